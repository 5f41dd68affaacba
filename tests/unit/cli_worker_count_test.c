/* The supervisor of several workers restarts a worker that is killed or exits, unless the worker
 * never listened. The workers here only report that they listen. */
#include "cli/workers/worker.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 2, FIRST_STATUS = 3, NEVER_STATUS = 4, PATIENCE_S = 100 };

typedef struct lives { /* in memory shared by all processes */
    _Atomic int n[COUNT];
    bool never; /* worker 1 does not listen */
} lives;

static lives *all;

static int live(const worker_flags *flags, uint32_t index, int lifeline)
{
    (void)flags;
    struct pollfd polled = {.fd = lifeline, .events = POLLIN};
    bool first = ++all->n[index] == 1;
    alarm(PATIENCE_S);
    if (all->never && index == 1) return NEVER_STATUS;
    worker_print_listening(lifeline);
    if (first && !all->never && index == 0) raise(SIGKILL);
    if (first && !all->never) return FIRST_STATUS;
    while (poll(&polled, 1, -1) <= 0) continue;
    return 0;
}

/* Runs until worker 1 was started n_lives times; returns the supervisor's exit status. */
static int supervise(bool never, int n_lives, bool stops)
{
    const worker_flags flags = {.listen = "127.0.0.1:7000", .count = COUNT};
    int how;
    all->never = never;
    for (int i = 0; i < COUNT; i++) all->n[i] = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(workers_supervise(&flags, live));
    while (all->n[0] < n_lives || all->n[1] < n_lives)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (stops) kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

static void a_worker_that_ends_is_restarted(void **state)
{
    (void)state;
    assert_int_equal(supervise(false, 2, true), 0);
}

static void a_worker_that_cannot_listen_ends_all(void **state)
{
    (void)state;
    assert_int_equal(supervise(true, 1, false), NEVER_STATUS);
    assert_int_equal(all->n[0], 1);
    assert_int_equal(all->n[1], 1);
}

int main(void)
{
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_ends_is_restarted),
        cmocka_unit_test(a_worker_that_cannot_listen_ends_all),
    };
    return cmocka_run_group_tests_name("worker_count", tests, NULL, NULL);
}

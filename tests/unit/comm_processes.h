/* Ranks as processes of one host, forked before UCX is used, since no process may fork afterwards.
 * The comm is UCX's, or what a test makes. Ranks count their failed checks; only the parent
 * asserts. */
#ifndef TESTS_COMM_PROCESSES_H
#define TESTS_COMM_PROCESSES_H

#include "comm/comm.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    PROCESSES_MAX = 9,
    ADDRESS_MAX = 1 << 14,
    PATIENCE_S = 100, /* a process that needs longer is stuck, and ends by SIGALRM */
};

typedef struct processes processes;

/* The body that each rank runs. */
typedef void (*process_body)(processes *all, comm *c, int rank);
/* Makes a rank's comm. */
typedef status (*process_comm)(processes *all, int rank, comm **out, error *err);

struct processes { /* in memory shared by all ranks */
    int size;
    process_comm make;
    process_body body;
    void *ctx; /* of the body */
    pid_t pids[PROCESSES_MAX];
    _Atomic int n_wrong;
    _Atomic int n_addresses; /* addresses exchanged in all meetings so far */
    int out;                 /* stdout of the ranks: nothing may be written to it */
    _Atomic bool lost;       /* a rank is lost: the others must abort */
    struct {
        size_t n;
        char bytes[ADDRESS_MAX];
    } addresses[PROCESSES_MAX];
};

#define CHECK(all, what) process_check(all, what, #what, __LINE__)

static inline void process_check(processes *all, bool ok, const char *what, int line)
{
    if (ok) return;
    if (all->n_wrong++ < 10) fprintf(stderr, "line %d: %s\n", line, what);
}

static inline void short_sleep(void) { nanosleep(&(struct timespec){0, 300000}, NULL); }

/* Memory shared by the parent and all ranks. */
static inline void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* The nth meeting of these processes, counted from 1. */
static inline bool process_meet(processes *all, comm *c, int rank, int nth)
{
    comm_address own = comm_own_address(c), others[PROCESSES_MAX];
    if (own.n > ADDRESS_MAX) own.n = 0; /* every rank refuses it */
    if (own.n > 0) memcpy(all->addresses[rank].bytes, own.bytes, own.n);
    all->addresses[rank].n = own.n;
    all->n_addresses++;
    while (all->n_addresses < nth * all->size) short_sleep();
    for (int r = 0; r < all->size; r++)
        others[r] = (comm_address){all->addresses[r].bytes, all->addresses[r].n};
    error err = {""};
    bool met = status_ok(comm_connect(c, others, (int64_t)PATIENCE_S * 1000000, &err));
    process_check(all, met, err.text, __LINE__);
    return met;
}

typedef struct process_watcher {
    processes *all;
    comm *comm;
    _Atomic bool stop;
} process_watcher;

/* Aborts the comm when a rank is lost, as a worker's heartbeat does. */
static inline void *process_watch(void *arg)
{
    process_watcher *w = arg;
    while (!w->stop && !w->all->lost) short_sleep();
    if (w->all->lost) comm_abort(w->comm);
    return NULL;
}

static inline status process_ucx(processes *all, int rank, comm **out, error *err)
{
    comm_options o = {.kind = "ucx", .rank = rank, .size = all->size};
    return comm_create(&o, out, err);
}

static inline void process_main(processes *all, int rank)
{
    alarm(PATIENCE_S);
    dup2(all->out, STDOUT_FILENO);
    error err = {""};
    process_watcher w = {.all = all};
    pthread_t thread;
    bool made = status_ok(all->make(all, rank, &w.comm, &err));
    process_check(all, made, err.text, __LINE__);
    if (!made) exit(1);
    pthread_create(&thread, NULL, process_watch, &w);
    if (process_meet(all, w.comm, rank, 1)) all->body(all, w.comm, rank);
    w.stop = true;
    pthread_join(thread, NULL);
    comm_destroy(w.comm);
    exit(0); /* ASan looks for leaks here */
}

/* A rank that was killed or stopped is lost; any other exit but success is wrong. A stopped rank
 * continues when the others have ended. */
static inline void processes_wait(processes *all)
{
    pid_t stopped = 0;
    for (int n_ended = 0; n_ended < all->size;) {
        if (stopped && n_ended == all->size - 1) kill(stopped, SIGCONT);
        int state = 0;
        pid_t pid = waitpid(-1, &state, WUNTRACED);
        assert_true(pid > 0);
        bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
        if (WIFSTOPPED(state)) stopped = pid;
        else n_ended++;
        if (WIFSTOPPED(state) || killed) all->lost = true;
        else all->n_wrong += !WIFEXITED(state) || WEXITSTATUS(state) != 0;
    }
}

static inline void processes_run_with(process_comm make, int size, process_body body, void *ctx)
{
    processes *all = shared_memory(sizeof *all);
    all->size = size;
    all->make = make;
    all->body = body;
    all->ctx = ctx;
    all->out = memfd_create("stdout", MFD_CLOEXEC);
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) process_main(all, r);
        all->pids[r] = pid;
    }
    processes_wait(all);
    process_check(all, lseek(all->out, 0, SEEK_END) == 0, "a rank writes to stdout", __LINE__);
    int n_wrong = all->n_wrong;
    close(all->out);
    munmap(all, sizeof *all);
    if (n_wrong) fail_msg("%d checks failed in a group of %d processes", n_wrong, size);
}

static inline void processes_run(int size, process_body body, void *ctx)
{
    processes_run_with(process_ucx, size, body, ctx);
}

#endif

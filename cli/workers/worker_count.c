/* The supervisor has one thread, starts workers as processes, and starts again those that end. It
 * forks before gRPC starts anything, in itself and in them. */
#include "cli/workers/worker.h"

#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STOP_MS = 5 * 1000, /* after it, workers are killed */
    LOOK_MS = 20,
    SOON_MS = 1000, /* a worker that lived shorter waits as long before it starts again */
};

typedef struct child {
    pid_t pid;          /* 0 = it does not run */
    int lifeline;       /* closing it ends the worker; it writes here once it listens; -1 */
    bool has_listened;  /* this process, or one before it */
    int64_t started_us; /* when it started, or is to start */
} child;

typedef struct supervisor {
    const worker_flags *flags;
    child *children; /* [flags->count] */
    int signals;     /* a signalfd */
    int result;      /* exit status, once the process is to end */
    bool ends;
} supervisor;

/* ---- addresses ------------------------------------------------------------------------------- */

status worker_address_of(const worker_flags *f, uint32_t index, char *out, size_t size, error *err)
{
    int n;
    if (f->local) {
        n = snprintf(out, size, "unix:%s/%u", f->local, index);
    } else if (f->count == 1) {
        n = snprintf(out, size, "%s", f->listen);
    } else if (strncmp(f->listen, "unix:", 5) == 0) {
        n = snprintf(out, size, "%s.%u", f->listen, index);
    } else {
        const char *colon = strrchr(f->listen, ':');
        uint64_t port = 0;
        const char *end = colon ? number_read_whole(colon + 1, &port) : NULL;
        if (!end || *end || port == 0 || port > UINT16_MAX || port + f->count > 65536)
            return error_set(err, STATUS_INVALID,
                             "--listen: with --count, '%.64s' must name a port with %u free ones "
                             "from there on",
                             f->listen, f->count);
        n = snprintf(out, size, "%.*s:%u", (int)(colon - f->listen), f->listen,
                     (uint32_t)port + index);
    }
    if (n >= 0 && (size_t)n < size) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "--listen: is too long");
}

/* ---- children -------------------------------------------------------------------------------- */

/* In the child: closes all that belongs to the supervisor, and ignores signals for the whole group,
 * which the supervisor answers. */
static bool become_worker(const supervisor *s, pid_t parent)
{
    sigset_t none;
    close(s->signals);
    for (uint32_t i = 0; i < s->flags->count; i++)
        if (s->children[i].lifeline >= 0) close(s->children[i].lifeline);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getppid() == parent;
}

/* Starts a worker. True in the child, where *lifeline is the child's own end. */
static bool start_worker(supervisor *s, uint32_t index, int *lifeline)
{
    child *c = &s->children[index];
    int ends[2];
    c->started_us = clock_now_us();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false; /* the loop tries again */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        close(ends[1]);
        *lifeline = ends[0];
        if (!become_worker(s, parent)) _exit(CLI_FAILED);
        return true;
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return false;
    }
    c->pid = pid;
    c->lifeline = ends[1];
    return false;
}

void worker_print_listening(int lifeline)
{
    ssize_t sent = send(lifeline, "", 1, MSG_NOSIGNAL);
    (void)sent; /* if the supervisor is gone, this process ends, too */
}

static void forget_child(child *c)
{
    char byte;
    bool listened = c->has_listened || recv(c->lifeline, &byte, 1, MSG_DONTWAIT) == 1;
    int64_t now = clock_now_us(), soon = (int64_t)SOON_MS * 1000;
    if (c->lifeline >= 0) close(c->lifeline);
    *c = (child){.lifeline = -1,
                 .has_listened = listened,
                 .started_us = now - c->started_us < soon ? now + soon : now};
}

/* A worker that exits without ever having listened has printed why, and the others are useless
 * without it: all end. Any other worker is started again. */
static void reap_workers(supervisor *s)
{
    int how;
    for (pid_t pid; (pid = waitpid(-1, &how, WNOHANG)) > 0;)
        for (uint32_t i = 0; i < s->flags->count; i++) {
            child *c = &s->children[i];
            if (c->pid != pid) continue;
            forget_child(c);
            if (s->ends) continue;
            if (WIFEXITED(how) && !c->has_listened) {
                s->ends = true;
                s->result = WEXITSTATUS(how);
                continue;
            }
            fprintf(stderr, "octavo worker: number %u ended %s %d: started again\n", i,
                    WIFEXITED(how) ? "with status" : "by signal",
                    WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how));
        }
}

static uint32_t n_alive(const supervisor *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->flags->count; i++) n += s->children[i].pid > 0;
    return n;
}

static void stop_all(supervisor *s)
{
    for (uint32_t i = 0; i < s->flags->count; i++) {
        child *c = &s->children[i];
        if (c->lifeline >= 0) close(c->lifeline);
        c->lifeline = -1;
    }
    for (int waited = 0; n_alive(s) > 0; waited += LOOK_MS) {
        if (waited >= STOP_MS)
            for (uint32_t i = 0; i < s->flags->count; i++)
                if (s->children[i].pid > 0) kill(s->children[i].pid, SIGKILL);
        poll(NULL, 0, LOOK_MS);
        reap_workers(s);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Reads the number of a worker that no longer answers, and kills that worker. The coordinator
 * writes nothing else to the pipe, and closes it when all workers are to end. */
static void hear_coordinator(supervisor *s)
{
    uint32_t index;
    ssize_t n = read(STDIN_FILENO, &index, sizeof index);
    if (n < 0 && errno == EINTR) return;
    if (n != (ssize_t)sizeof index) {
        s->ends = true;
        return;
    }
    if (index >= s->flags->count || s->children[index].pid <= 0) return;
    fprintf(stderr, "octavo worker: number %u does not answer: killed\n", index);
    kill(s->children[index].pid, SIGKILL);
}

static void poll_events(supervisor *s, int timeout_ms)
{
    struct signalfd_siginfo info;
    struct pollfd polled[2] = {{.fd = s->signals, .events = POLLIN},
                               {.fd = s->flags->local ? STDIN_FILENO : -1, .events = POLLIN}};
    poll(polled, 2, timeout_ms);
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD && !s->flags->local) s->ends = true;
    if (polled[1].revents) hear_coordinator(s);
    reap_workers(s);
}

/* Starts the workers that are due; *timeout_ms is the time until the next one is. True in a child,
 * with its index and lifeline. */
static bool start_due(supervisor *s, int *timeout_ms, uint32_t *index, int *lifeline)
{
    *timeout_ms = -1;
    for (uint32_t i = 0; i < s->flags->count; i++) {
        child *c = &s->children[i];
        if (c->pid > 0) continue;
        int64_t wait_us = c->started_us - clock_now_us();
        if (wait_us <= 0) {
            *index = i;
            if (start_worker(s, i, lifeline)) return true;
            if (c->pid > 0) continue;
            wait_us = (int64_t)SOON_MS * 1000;
            c->started_us = clock_now_us() + wait_us;
        }
        int ms = (int)(wait_us / 1000) + 1;
        if (*timeout_ms < 0 || ms < *timeout_ms) *timeout_ms = ms;
    }
    return false;
}

static int open_signals(void)
{
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    return signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void remove_sockets(const worker_flags *f)
{
    char address[256];
    for (uint32_t i = 0; i < f->count; i++)
        if (status_ok(worker_address_of(f, i, address, sizeof address, NULL)))
            unlink(address + strlen("unix:"));
    rmdir(f->local);
}

int workers_supervise(const worker_flags *flags,
                      int (*run)(const worker_flags *flags, uint32_t index, int lifeline))
{
    /* Local ranks need to be reached from this machine only, but UCX would listen at all
     * addresses. */
    if (flags->local) setenv("UCX_NET_DEVICES", "lo", 0);
    supervisor s = {.flags = flags, .signals = open_signals(), .result = CLI_OK};
    s.children = calloc(flags->count, sizeof *s.children);
    if (!s.children || s.signals < 0)
        return cli_complain("octavo worker", CLI_FAILED, "cannot watch for signals");
    for (uint32_t i = 0; i < flags->count; i++) s.children[i].lifeline = -1;
    int timeout_ms, lifeline;
    uint32_t index;
    while (!s.ends) {
        if (start_due(&s, &timeout_ms, &index, &lifeline)) {
            free(s.children);
            return run(flags, index, lifeline);
        }
        poll_events(&s, timeout_ms);
    }
    stop_all(&s);
    if (flags->local) remove_sockets(flags);
    close(s.signals);
    free(s.children);
    return s.result;
}

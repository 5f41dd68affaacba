/* Workers of this machine: this executable started again, as their supervisor (worker_count.c). */
#include "cli/workers/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    START_MS = 120 * 1000, /* sanitizers are slow on a busy machine */
    STOP_MS = 10 * 1000,
    STOP_LOOK_MS = 5,
    START_LOOK_MS = 100,
};

extern char **environ;

void workers_local_address(const workers_local *l, uint32_t i, char out[WORKER_ADDRESS_MAX])
{
    snprintf(out, WORKER_ADDRESS_MAX, "unix:%s/%u", l->folder, i);
}

static status make_folder(workers_local *l, error *err)
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(l->folder, sizeof l->folder, "%s/octavo-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof l->folder) {
        l->folder[0] = '\0';
        return error_set(err, STATUS_LIMIT, "--workers local: TMPDIR is too long for sockets");
    }
    if (mkdtemp(l->folder)) return STATUS_IS_OK;
    error_set(err, STATUS_IO,
              "--workers local: %s: %s (TMPDIR names another place; --workers threads needs none)",
              l->folder, strerror(errno));
    l->folder[0] = '\0';
    return status_make(STATUS_IO, NULL);
}

/* ---- starting -------------------------------------------------------------------------------- */

/* The environment without variables meant for workers that others start; NULL: out of memory. */
static char **own_environment(void)
{
    static const char theirs[] = "OCTAVO_WORKER_";
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **own = calloc(n + 1, sizeof *own);
    for (size_t i = 0; own && i < n; i++)
        if (strncmp(environ[i], theirs, strlen(theirs)) != 0) own[kept++] = environ[i];
    return own;
}

/* Starts the supervisor in a process group of its own, so that Ctrl-C reaches this process alone
 * and the workers go on until the server has drained. */
static int spawn(workers_local *l, uint32_t n, int in, int out)
{
    char count[16];
    snprintf(count, sizeof count, "%u", n);
    const char *const argv[] = {"octavo", "worker", "--local", l->folder, "--count", count, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGHUP);
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    if (posix_spawnattr_init(&how) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                       POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &usual);
    posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    pid_t pid = 0;
    char **environment = own_environment();
    int wrong = ENOMEM;
    if (environment)
        wrong = posix_spawn(&pid, "/proc/self/exe", &files, &how, (char *const *)argv, environment);
    if (wrong == 0) l->supervisor = pid;
    free(environment);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    return wrong;
}

/* Reads a line from each worker that listens. */
static status await_lines(int fd, uint32_t n, const _Atomic bool *given_up, error *err)
{
    int64_t until = clock_now_us() + (int64_t)START_MS * 1000;
    for (uint32_t lines = 0; lines < n;) {
        char text[512];
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        if (atomic_load(given_up)) return error_set(err, STATUS_ABORTED, "given up");
        if (clock_now_us() >= until)
            return error_set(err, STATUS_UNAVAILABLE,
                             "--workers local: %u of %u workers listen after %d s", lines, n,
                             START_MS / 1000);
        if (poll(&polled, 1, START_LOOK_MS) <= 0) continue;
        ssize_t got = read(fd, text, sizeof text);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return error_set(err, STATUS_UNAVAILABLE, "--workers local: they did not start");
        for (ssize_t i = 0; i < got; i++) lines += text[i] == '\n';
    }
    return STATUS_IS_OK;
}

status workers_local_start(workers_local *l, uint32_t n, const _Atomic bool *given_up, error *err)
{
    int lifeline[2], ready[2];
    *l = (workers_local){.lifeline = -1, .n = n};
    RETURN_IF_ERROR(make_folder(l, err));
    if (pipe2(lifeline, O_CLOEXEC) != 0)
        return error_set(err, STATUS_IO, "--workers local: %s", strerror(errno));
    l->lifeline = lifeline[1];
    if (pipe2(ready, O_CLOEXEC) != 0) {
        close(lifeline[0]);
        return error_set(err, STATUS_IO, "--workers local: %s", strerror(errno));
    }
    int wrong = spawn(l, n, lifeline[0], ready[1]);
    close(lifeline[0]);
    close(ready[1]);
    status s = wrong ? error_set(err, STATUS_IO, "--workers local: %s", strerror(wrong))
                     : await_lines(ready[0], n, given_up, err);
    close(ready[0]);
    return s;
}

static bool is_stopped(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

bool workers_local_minded(workers_local *l)
{
    pid_t pid = (pid_t)l->supervisor;
    if (pid > 0 && is_stopped(pid)) {
        kill(pid, SIGKILL); /* all workers end with it */
        waitpid(pid, NULL, 0);
        l->supervisor = 0;
    }
    if (l->supervisor > 0 && waitpid((pid_t)l->supervisor, NULL, WNOHANG) != 0) l->supervisor = 0;
    return l->supervisor > 0;
}

void workers_local_replace(const workers_local *l, uint32_t i)
{
    ssize_t put = write(l->lifeline, &i, sizeof i);
    (void)put; /* if the supervisor is gone, workers_local_minded reports it */
}

/* ---- stopping -------------------------------------------------------------------------------- */

void workers_local_stop(workers_local *l)
{
    if (l->lifeline > 0) close(l->lifeline);
    pid_t pid = (pid_t)l->supervisor;
    for (int waited = 0; pid > 0 && waitpid(pid, NULL, WNOHANG) == 0; waited += STOP_LOOK_MS) {
        if (waited >= STOP_MS) {
            kill(pid, SIGKILL); /* all workers end with it */
            waitpid(pid, NULL, 0);
            break;
        }
        usleep(STOP_LOOK_MS * 1000);
    }
    char address[WORKER_ADDRESS_MAX];
    for (uint32_t i = 0; l->folder[0] && i < l->n; i++) { /* normally removed already */
        workers_local_address(l, i, address);
        unlink(address + strlen("unix:"));
    }
    if (l->folder[0]) rmdir(l->folder);
    *l = (workers_local){.lifeline = -1};
}

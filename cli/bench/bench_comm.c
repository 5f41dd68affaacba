/* `octavo bench comm`: sums over ranks that are processes ("ucx") or threads of one process. */
#include "cli/cli.h"

#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS_MAX = 64,
    ADDRESS_MAX = 1 << 13,
    CONNECT_US = 10 * 1000 * 1000,
    WARM = 20, /* sums before those that are timed */
};

static const char name[] = "octavo bench comm";

static const struct {
    size_t bytes;
    int runs;
} sizes[] = {{16 << 10, 1000}, {256 << 10, 400}, {4 << 20, 60}};
enum { SIZES = sizeof sizes / sizeof sizes[0], RUNS_MAX = 1000 };

typedef struct comm_flags {
    uint32_t ranks;
} comm_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("ranks", "N", ARG_COUNT, comm_flags, ranks, "ranks", .min = 1, .max = RANKS_MAX,
            .initial = "2"),
};

/* State that ranks share, also across processes. */
typedef struct meeting {
    int size;
    comm_group *group; /* "threads" */
    _Atomic int n_published, n_failed;
    struct {
        size_t n;
        char bytes[ADDRESS_MAX];
    } addresses[RANKS_MAX];
    double us[SIZES][RUNS_MAX]; /* rank 0's times */
} meeting;

/* ---- a rank ---------------------------------------------------------------------------------- */

static status connect_rank(meeting *m, comm *c, error *err)
{
    comm_address own = comm_own_address(c), all[RANKS_MAX];
    int rank = comm_rank(c);
    if (own.n > ADDRESS_MAX) return error_set(err, STATUS_LIMIT, "an address of %zu bytes", own.n);
    if (own.n > 0) memcpy(m->addresses[rank].bytes, own.bytes, own.n);
    m->addresses[rank].n = own.n;
    m->n_published++;
    while (m->n_published < m->size && m->n_failed == 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (int r = 0; r < m->size; r++)
        all[r] = (comm_address){m->addresses[r].bytes, m->addresses[r].n};
    return comm_connect(c, all, CONNECT_US, err);
}

static status time_sums(meeting *m, comm *c)
{
    float *data = calloc(sizes[SIZES - 1].bytes, 1);
    status s = data ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
    for (int i = 0; status_ok(s) && i < SIZES; i++) {
        for (int k = -WARM; status_ok(s) && k < sizes[i].runs; k++) {
            int64_t begun = clock_now_ns();
            s = comm_all_reduce_sum(c, data, sizes[i].bytes / sizeof *data);
            if (comm_rank(c) == 0 && k >= 0) m->us[i][k] = (double)(clock_now_ns() - begun) * 1e-3;
        }
    }
    free(data);
    return s;
}

static void run_rank(meeting *m, const char *kind, int rank)
{
    error err = {""};
    comm *c = NULL;
    comm_options o = {.kind = kind, .rank = rank, .size = m->size, .group = m->group};
    status s = comm_create(&o, &c, &err);
    if (status_ok(s)) s = connect_rank(m, c, &err);
    if (status_ok(s)) {
        s = time_sums(m, c);
        if (!status_ok(s)) error_set(&err, s.code, "%s", s.message ? s.message : "out of memory");
    }
    if (!status_ok(s) && m->n_failed++ == 0) cli_complain(name, CLI_FAILED, err.text);
    comm_destroy(c);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

typedef struct thread_rank {
    meeting *m;
    int rank;
} thread_rank;

static void *thread_main(void *arg)
{
    thread_rank *t = arg;
    run_rank(t->m, "threads", t->rank);
    return NULL;
}

static bool run_threads(meeting *m)
{
    error err;
    pthread_t threads[RANKS_MAX];
    thread_rank ranks[RANKS_MAX];
    int n = 0;
    if (!status_ok(comm_group_create("threads", m->size, &m->group, &err))) return false;
    for (; n < m->size; n++) {
        ranks[n] = (thread_rank){m, n};
        if (pthread_create(&threads[n], NULL, thread_main, &ranks[n]) != 0) break;
    }
    if (n < m->size) m->n_failed++;
    for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
    comm_group_destroy(m->group);
    return m->n_failed == 0;
}

/* Forks before UCX starts any thread in this process, as UCX requires. */
static bool run_processes(meeting *m)
{
    fflush(NULL);
    for (int r = 0; r < m->size; r++) {
        pid_t pid = fork();
        if (pid < 0) m->n_failed++;
        if (pid != 0) continue;
        run_rank(m, "ucx", r);
        _exit(CLI_OK);
    }
    int state;
    while (wait(&state) > 0)
        if (!WIFEXITED(state)) m->n_failed++;
    return m->n_failed == 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(meeting *m, const char *kind)
{
    for (int i = 0; i < SIZES; i++) {
        double *us = m->us[i];
        qsort(us, (size_t)sizes[i].runs, sizeof *us, compare_double);
        double median = us[sizes[i].runs / 2];
        printf("%-8s %5d %9zu %10.1f %10.1f %10.1f %8.2f\n", kind, m->size, sizes[i].bytes / 1024,
               us[0], median, us[sizes[i].runs * 9 / 10], (double)sizes[i].bytes / median * 1e-3);
    }
}

static const struct {
    const char *kind;
    bool (*run)(meeting *m);
} kinds[] = {{"ucx", run_processes}, {"threads", run_threads}};

static int run_kinds(const comm_flags *f)
{
    int result = CLI_OK;
    printf("%-8s %5s %9s %10s %10s %10s %8s\n", "kind", "ranks", "KiB", "min us", "median us",
           "p90 us", "GB/s");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        meeting *m =
            mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED) return cli_complain(name, CLI_FAILED, "out of memory");
        m->size = (int)f->ranks;
        if (kinds[i].run(m)) print_times(m, kinds[i].kind);
        else result = CLI_FAILED;
        munmap(m, sizeof *m);
    }
    return result;
}

int cli_bench_comm(cli_line *line)
{
    comm_flags f = {0};
    const arg_group group = {"Flags", flags_table, sizeof flags_table / sizeof flags_table[0], &f};
    const arg_command command = {
        .name = name,
        .usage = "[flags]",
        .about = "Sums of f32 over ranks of this host, one after the other, as rank 0 sees them: "
                 "as\n"
                 "processes over UCX, and as threads of one process. GB/s: of the median.",
        .groups = &group,
        .n_groups = 1,
    };
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    result = run_kinds(&f);
    return cli_finish_output(name) ? result : CLI_FAILED;
}

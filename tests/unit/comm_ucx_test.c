/* comm: ranks as processes over UCX: the same bits as "threads", lost ranks, malformed
 * addresses. */
#include "tests/unit/comm_processes.h"

#include <dirent.h>

/* ---- the bits of "threads" ------------------------------------------------------------------- */

enum { CALLS = 10, FLOATS_MAX = 1 << 20 };

/* The calls that all ranks make, one after the other, and the expected sums. */
typedef struct script {
    int n_calls;
    struct {
        enum { REDUCE, GATHER, BROADCAST } what;
        size_t n;
        int root;
        size_t expected; /* REDUCE: index in sums */
    } calls[CALLS];
    float *sums; /* in shared memory */
    size_t n_sums;
} script;

/* Values of many magnitudes: sums in another order have other bits. */
static float value_of(int rank, int call, size_t i)
{
    uint64_t h = hash_mix64((uint64_t)rank << 48 ^ (uint64_t)call << 32 ^ i);
    float v = (float)(h >> 40) / 16777216.0f - 0.5f;
    return h & 1 ? v * 10000.0f : v;
}

typedef struct summand {
    comm_group *group;
    const script *s;
    int size, rank;
} summand;

static void *sum_by_thread(void *arg)
{
    summand *a = arg;
    comm *c = NULL;
    comm_options o = {.kind = "threads", .rank = a->rank, .size = a->size, .group = a->group};
    status made = comm_create(&o, &c, NULL);
    float *data = malloc(FLOATS_MAX * sizeof *data);
    for (int k = 0; status_ok(made) && k < a->s->n_calls; k++) {
        size_t n = a->s->calls[k].n;
        if (a->s->calls[k].what != REDUCE) continue;
        for (size_t i = 0; i < n; i++) data[i] = value_of(a->rank, k, i);
        made = comm_all_reduce_sum(c, data, n);
        if (a->rank == 0) memcpy(a->s->sums + a->s->calls[k].expected, data, n * sizeof *data);
    }
    free(data);
    comm_destroy(c);
    return NULL;
}

static void sum_by_threads(const script *s, int size)
{
    comm_group *group = NULL;
    pthread_t threads[PROCESSES_MAX];
    summand args[PROCESSES_MAX];
    assert_true(status_ok(comm_group_create("threads", size, &group, NULL)));
    for (int r = 0; r < size; r++) {
        args[r] = (summand){group, s, size, r};
        assert_int_equal(pthread_create(&threads[r], NULL, sum_by_thread, &args[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    comm_group_destroy(group);
}

/* Calls with lengths of all magnitudes. */
static script make_script(int size, uint64_t seed)
{
    script s = {.n_calls = CALLS};
    rng random = rng_seed(seed * 100 + (uint64_t)size);
    for (int k = 0; k < CALLS; k++) {
        size_t most = (size_t)1 << rng_below(&random, 21);
        s.calls[k].what = k < CALLS / 2 ? REDUCE : (int)rng_below(&random, 3);
        s.calls[k].n = rng_below(&random, (uint32_t)most + 1);
        if (s.calls[k].what == GATHER) s.calls[k].n /= (size_t)size;
        s.calls[k].root = (int)rng_below(&random, (uint32_t)size);
        s.calls[k].expected = s.n_sums;
        if (s.calls[k].what == REDUCE) s.n_sums += s.calls[k].n;
    }
    s.sums = shared_memory((s.n_sums + 1) * sizeof *s.sums);
    sum_by_threads(&s, size);
    return s;
}

static size_t gathered_wrong(const float *data, int size, int call, size_t n)
{
    size_t n_wrong = 0;
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < n; i++) n_wrong += data[(size_t)r * n + i] != value_of(r, call, i);
    return n_wrong;
}

static void script_body(processes *all, comm *c, int rank)
{
    const script *s = all->ctx;
    float *data = malloc((FLOATS_MAX + 1) * sizeof *data);
    for (int k = 0; k < s->n_calls; k++) {
        size_t n = s->calls[k].n, own = s->calls[k].what == GATHER ? (size_t)rank * n : 0;
        for (size_t i = 0; i < n; i++) data[own + i] = value_of(rank, k, i);
        if (k % all->size == rank) short_sleep(); /* one rank is late */
        if (s->calls[k].what == REDUCE) {
            CHECK(all, status_ok(comm_all_reduce_sum(c, data, n)));
            CHECK(all, memcmp(data, s->sums + s->calls[k].expected, n * sizeof *data) == 0);
        } else if (s->calls[k].what == GATHER) {
            CHECK(all, status_ok(comm_all_gather(c, data + own, n, data)));
            CHECK(all, gathered_wrong(data, all->size, k, n) == 0);
        } else {
            CHECK(all, status_ok(comm_broadcast(c, data, n * sizeof *data, s->calls[k].root)));
            size_t n_wrong = 0;
            for (size_t i = 0; i < n; i++) n_wrong += data[i] != value_of(s->calls[k].root, k, i);
            CHECK(all, n_wrong == 0);
        }
    }
    CHECK(all, status_ok(comm_check(c)) && !comm_on_device(c));
    free(data);
}

static void processes_have_the_bits_of_threads(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        script s = make_script(sizes[i], 11);
        processes_run(sizes[i], script_body, &s);
        munmap(s.sums, (s.n_sums + 1) * sizeof *s.sums);
    }
}

static void tcp_has_the_same_bits(void **state)
{
    (void)state;
    script s = make_script(2, 12);
    setenv("UCX_TLS", "tcp,self", 1);
    processes_run(2, script_body, &s);
    unsetenv("UCX_TLS");
    munmap(s.sums, (s.n_sums + 1) * sizeof *s.sums);
}

/* ---- lost ranks ------------------------------------------------------------------------------ */

enum { LOST_FLOATS = 60000 };

static void check_ended(processes *all, comm *c)
{
    float data[3] = {0}, out[3 * PROCESSES_MAX];
    CHECK(all, comm_check(c).code == STATUS_IO);
    CHECK(all, comm_all_reduce_sum(c, data, 3).code == STATUS_IO);
    CHECK(all, comm_all_gather(c, data, 3, out).code == STATUS_IO);
    CHECK(all, comm_broadcast(c, data, sizeof data, 0).code == STATUS_IO);
}

/* Sums until the group ends. Once the failed call has returned, no peer writes to its buffer. */
static void sum_until_the_end(processes *all, comm *c, int rank, int signal_at, int signal_no)
{
    float *data = malloc(LOST_FLOATS * sizeof *data);
    status s = STATUS_IS_OK;
    for (int k = 0; status_ok(s); k++) {
        size_t n = k % 2 ? LOST_FLOATS : 100, n_wrong = 0;
        for (size_t i = 0; i < n; i++) data[i] = 1.0f;
        if (k == signal_at && rank == all->size - 1) raise(signal_no);
        s = comm_all_reduce_sum(c, data, n);
        for (size_t i = 0; status_ok(s) && i < n; i++) n_wrong += data[i] != (float)all->size;
        CHECK(all, n_wrong == 0);
    }
    CHECK(all, s.code == STATUS_IO);
    size_t n_touched = 0;
    for (size_t i = 0; i < LOST_FLOATS; i++) data[i] = 5.0f;
    check_ended(all, c);
    for (int i = 0; i < 10; i++) short_sleep();
    for (size_t i = 0; i < LOST_FLOATS; i++) n_touched += data[i] != 5.0f;
    CHECK(all, n_touched == 0);
    free(data);
}

static void killed_body(processes *all, comm *c, int rank)
{
    sum_until_the_end(all, c, rank, 5, SIGKILL);
}

static void stopped_body(processes *all, comm *c, int rank)
{
    sum_until_the_end(all, c, rank, 6, SIGSTOP);
}

static int n_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void a_killed_rank_ends_the_group(void **state)
{
    (void)state;
    processes_run(2, killed_body, NULL);
    processes_run(4, killed_body, NULL);
    setenv("UCX_TLS", "tcp,self", 1);
    processes_run(2, killed_body, NULL);
    unsetenv("UCX_TLS");
}

static void a_stopped_rank_ends_the_group(void **state)
{
    (void)state;
    processes_run(2, stopped_body, NULL);
    processes_run(3, stopped_body, NULL);
    setenv("UCX_TLS", "tcp,self", 1);
    processes_run(2, stopped_body, NULL);
    unsetenv("UCX_TLS");
}

/* ---- which rank waits for which -------------------------------------------------------------- */

enum { WAITED_US = 50000 };

typedef struct waiting { /* in shared memory */
    _Atomic bool seen;
    comm_wait rank0;
} waiting;

typedef struct onlooker {
    comm *comm;
    waiting *w;
} onlooker;

static void *look_on(void *arg)
{
    onlooker *o = arg;
    comm_wait w = {0};
    while (!w.inside || w.peer != 1 || w.idle_us < WAITED_US) {
        short_sleep();
        if (!comm_waits(o->comm, &w)) return NULL;
    }
    o->w->rank0 = w;
    o->w->seen = true;
    return NULL;
}

/* Rank 1 calls when it was observed that rank 0 waits for it. */
static void waiting_body(processes *all, comm *c, int rank)
{
    waiting *m = all->ctx;
    onlooker o = {c, m};
    comm_wait w;
    pthread_t thread;
    float x = 1;
    if (rank == 0) pthread_create(&thread, NULL, look_on, &o);
    while (rank == 1 && !m->seen) short_sleep();
    CHECK(all, comm_waits(c, &w) && !w.inside && w.peer == -1);
    CHECK(all, rank == 0 || w.round + 1 == m->rank0.round);
    CHECK(all, status_ok(comm_all_reduce_sum(c, &x, 1)) && x == 2);
    if (rank == 0) pthread_join(thread, NULL);
    CHECK(all, comm_waits(c, &w) && !w.inside && w.round == m->rank0.round && w.idle_us == 0);
}

static void a_rank_reports_its_awaited_peer(void **state)
{
    (void)state;
    waiting *m = shared_memory(sizeof *m);
    processes_run(2, waiting_body, m);
    munmap(m, sizeof *m);
    comm *alone;
    comm_wait w;
    assert_true(status_ok(comm_create(&(comm_options){.kind = "self", .size = 1}, &alone, NULL)));
    assert_false(comm_waits(alone, &w));
    comm_destroy(alone);
}

/* ---- aborts at any moment -------------------------------------------------------------------- */

enum { GROUPS = 8 };

typedef struct moments {   /* in shared memory */
    _Atomic int n_aborted; /* groups that have to abort, so far */
    _Atomic int n_over;    /* ranks that have left a group, over all groups */
} moments;

typedef struct outsider {
    comm *comm;
    moments *m;
    int group, rank;
} outsider;

static void *abort_some_time(void *arg)
{
    outsider *o = arg;
    rng random = rng_seed((uint64_t)o->group);
    if (o->rank == 0) {
        nanosleep(&(struct timespec){0, rng_below(&random, 2000000)}, NULL);
        o->m->n_aborted = o->group;
    }
    while (o->m->n_aborted < o->group) short_sleep();
    comm_abort(o->comm);
    return NULL;
}

/* Makes groups of the same processes, one after the other. */
static void any_moment_body(processes *all, comm *first, int rank)
{
    (void)first;
    moments *m = all->ctx;
    int n_fds = 0;
    for (int g = 1; g <= GROUPS; g++) {
        outsider o = {.m = m, .group = g, .rank = rank};
        comm_options options = {.kind = "ucx", .rank = rank, .size = all->size};
        pthread_t thread;
        CHECK(all, status_ok(comm_create(&options, &o.comm, NULL)));
        if (!process_meet(all, o.comm, rank, 1 + g)) return;
        pthread_create(&thread, NULL, abort_some_time, &o);
        sum_until_the_end(all, o.comm, rank, -1, 0);
        pthread_join(thread, NULL);
        comm_destroy(o.comm);
        m->n_over++;
        while (m->n_over < g * all->size) short_sleep();
        if (g == 2) n_fds = n_files("/proc/self/fd");
    }
    CHECK(all, n_files("/proc/self/fd") == n_fds);
}

static void an_abort_may_come_at_any_moment(void **state)
{
    (void)state;
    int n_shared = n_files("/dev/shm");
    for (int size = 2; size <= 3; size++) {
        moments *m = shared_memory(sizeof *m);
        processes_run(size, any_moment_body, m);
        munmap(m, sizeof *m);
    }
    assert_true(n_files("/dev/shm") <= n_shared);
}

/* ---- meeting --------------------------------------------------------------------------------- */

static comm *make_rank(processes *all, int rank, int size)
{
    comm *c = NULL;
    error err = {""};
    comm_options o = {.kind = "ucx", .rank = rank, .size = size};
    process_check(all, status_ok(comm_create(&o, &c, &err)), err.text, __LINE__);
    return c;
}

static void check_refused(processes *all, comm *c, comm_address theirs, const char *says)
{
    error err = {""};
    status s = comm_connect(c, (comm_address[]){comm_own_address(c), theirs}, 1000, &err);
    CHECK(all, !status_ok(s));
    if (strstr(err.text, says)) return;
    process_check(all, false, says, __LINE__);
    process_check(all, false, err.text, __LINE__);
}

/* UCX never sees an address with any changed byte, or cut at any length. */
static void addresses_body(processes *all, comm *alone, int alone_rank)
{
    (void)alone, (void)alone_rank;
    comm *c = make_rank(all, 0, 2), *peer = make_rank(all, 1, 2), *third = make_rank(all, 1, 3);
    comm_address good = comm_own_address(peer);
    char *bad = malloc(good.n + 1);
    float x = 0;
    CHECK(all, comm_all_reduce_sum(c, &x, 1).code == STATUS_INVALID);
    memcpy(bad, good.bytes, good.n);
    bad[good.n] = 0;
    check_refused(all, c, (comm_address){NULL, 0}, "the address of rank 1 is not one of \"ucx\"");
    check_refused(all, c, (comm_address){"127.0.0.1:7002", 14}, "rank 1 is not one of \"ucx\"");
    check_refused(all, c, comm_own_address(c), "for rank 1 of 2 is that of rank 0 of 2");
    check_refused(all, c, comm_own_address(third), "for rank 1 of 2 is that of rank 1 of 3");
    check_refused(all, c, (comm_address){bad, good.n + 1}, "rank 1 is damaged");
    for (size_t n = 0; n < good.n; n++) check_refused(all, c, (comm_address){bad, n}, "rank 1 is ");
    for (size_t i = 0; i < good.n; i++) {
        bad[i] ^= (char)(1 << i % 8);
        check_refused(all, c, (comm_address){bad, good.n}, "rank 1 ");
        bad[i] ^= (char)(1 << i % 8);
    }
    free(bad);
    comm_destroy(third);
    comm_destroy(peer);
    comm_destroy(c);
}

static void hostile_addresses_are_refused_by_name(void **state)
{
    (void)state;
    processes_run(1, addresses_body, NULL);
}

/* Rank 1 is present and silent; then it is absent. */
static void absent_body(processes *all, comm *alone, int alone_rank)
{
    (void)alone, (void)alone_rank;
    comm *c = make_rank(all, 0, 2), *peer = make_rank(all, 1, 2);
    check_refused(all, c, comm_own_address(peer), "rank 1 did not answer within");
    check_ended(all, c);
    comm_destroy(c);
    c = make_rank(all, 0, 2);
    comm_address address = comm_own_address(peer);
    void *bytes = malloc(address.n);
    memcpy(bytes, address.bytes, address.n);
    comm_destroy(peer);
    check_refused(all, c, (comm_address){bytes, address.n}, "rank 1 ");
    free(bytes);
    comm_destroy(c);
}

/* UCX 1.13 leaks 100 bytes of an endpoint whose peer's memory is gone. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libuct.so"; }

static void an_absent_rank_is_named(void **state)
{
    (void)state;
    processes_run(1, absent_body, NULL);
    setenv("UCX_TLS", "tcp,self", 1);
    processes_run(1, absent_body, NULL);
    unsetenv("UCX_TLS");
}

static void *abort_soon(void *c)
{
    short_sleep();
    comm_abort(c);
    return NULL;
}

static void abort_meeting_body(processes *all, comm *alone, int alone_rank)
{
    (void)alone, (void)alone_rank;
    comm *c = make_rank(all, 0, 2), *peer = make_rank(all, 1, 2);
    comm_address both[] = {comm_own_address(c), comm_own_address(peer)};
    pthread_t thread;
    pthread_create(&thread, NULL, abort_soon, c);
    CHECK(all, comm_connect(c, both, (int64_t)PATIENCE_S * 1000000, NULL).code == STATUS_IO);
    pthread_join(thread, NULL);
    comm_destroy(c);
    comm_destroy(peer);
}

static void a_meeting_can_be_aborted(void **state)
{
    (void)state;
    processes_run(1, abort_meeting_body, NULL);
}

/* ---- the process ----------------------------------------------------------------------------- */

enum { SIGNALS = 32 };

static void signals_body(processes *all, comm *c, int rank)
{
    (void)c, (void)rank;
    const struct sigaction *before = all->ctx;
    for (int s = 1; s < SIGNALS; s++) {
        struct sigaction now;
        if (sigaction(s, NULL, &now) != 0) continue;
        CHECK(all, now.sa_handler == before[s].sa_handler);
    }
}

static void signals_stay_as_they_were(void **state)
{
    (void)state;
    struct sigaction before[SIGNALS] = {0};
    for (int s = 1; s < SIGNALS; s++) sigaction(s, NULL, &before[s]);
    processes_run(1, signals_body, before);
}

int main(void)
{
    comm *c = NULL;
    error err = {""};
    /* In a child, since no process may fork after UCX was used. */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        status s = comm_create(&(comm_options){.kind = "ucx", .size = 1}, &c, &err);
        comm_destroy(c);
        exit(s.code == STATUS_UNSUPPORTED ? 77 : 0);
    }
    int code = 0;
    waitpid(pid, &code, 0);
    if (WIFEXITED(code) && WEXITSTATUS(code) == 77) {
        fprintf(stderr, "skipped: no UCX here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_the_bits_of_threads),
        cmocka_unit_test(tcp_has_the_same_bits),
        cmocka_unit_test(a_killed_rank_ends_the_group),
        cmocka_unit_test(a_stopped_rank_ends_the_group),
        cmocka_unit_test(a_rank_reports_its_awaited_peer),
        cmocka_unit_test(an_abort_may_come_at_any_moment),
        cmocka_unit_test(hostile_addresses_are_refused_by_name),
        cmocka_unit_test(an_absent_rank_is_named),
        cmocka_unit_test(a_meeting_can_be_aborted),
        cmocka_unit_test(signals_stay_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

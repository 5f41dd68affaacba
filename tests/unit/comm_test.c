/* comm: the group of one, ranks as threads, and groups that cannot be made. */
#include "comm/comm.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void self_is_the_identity(void **state)
{
    (void)state;
    comm *c;
    assert_true(status_ok(comm_create(&(comm_options){.kind = "self", .size = 1}, &c, NULL)));
    assert_int_equal(comm_rank(c), 0);
    assert_int_equal(comm_size(c), 1);

    float data[3] = {1.5f, -2.0f, 3.25f}, out[3] = {0};
    assert_true(status_ok(comm_all_reduce_sum(c, data, 3)));
    assert_true(data[0] == 1.5f && data[1] == -2.0f && data[2] == 3.25f);
    assert_true(status_ok(comm_all_gather(c, data, 3, out)));
    assert_memory_equal(out, data, sizeof data);
    assert_true(status_ok(comm_all_gather(c, data, 3, data))); // in place
    assert_memory_equal(out, data, sizeof data);
    assert_true(status_ok(comm_broadcast(c, data, sizeof data, 0)));
    assert_memory_equal(out, data, sizeof data);
    assert_int_equal(comm_broadcast(c, data, sizeof data, 1).code, STATUS_INVALID);
    comm_destroy(c);
    comm_destroy(NULL);
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

enum { RANKS_MAX = 8, FLOATS_MAX = 5000 };

typedef struct world world;

/* The body that each rank runs. A failed check is counted, since cmocka's jump must not leave a
 * thread. */
typedef void (*rank_body)(world *w, comm *c, int rank);

struct world {
    comm_group *group;
    int size;
    rank_body body;
    _Atomic int n_wrong;
    int n_rounds[RANKS_MAX]; /* used by any_moment_body */
};

typedef struct rank_arg {
    world *w;
    int rank;
} rank_arg;

#define CHECK(w, what) check(w, what, #what)

static void check(world *w, bool ok, const char *what)
{
    if (ok) return;
    w->n_wrong++;
    fprintf(stderr, "%s\n", what);
}

static void *rank_main(void *arg)
{
    rank_arg *a = arg;
    world *w = a->w;
    comm *c = NULL;
    comm_options o = {.kind = "threads", .rank = a->rank, .size = w->size, .group = w->group};
    CHECK(w, status_ok(comm_create(&o, &c, NULL)));
    CHECK(w, comm_rank(c) == a->rank && comm_size(c) == w->size);
    w->body(w, c, a->rank);
    comm_destroy(c);
    return NULL;
}

static void run_ranks(int size, rank_body body)
{
    world w = {.size = size, .body = body};
    rank_arg args[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    assert_true(status_ok(comm_group_create("threads", size, &w.group, NULL)));
    for (int r = 0; r < size; r++) {
        args[r] = (rank_arg){&w, r};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &args[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    for (int r = 1; r < size; r++) assert_int_equal(w.n_rounds[r], w.n_rounds[0]);
    comm_group_destroy(w.group);
    if (w.n_wrong) fail_msg("%d checks failed in a group of %d", w.n_wrong, size);
}

static void short_sleep(void) { nanosleep(&(struct timespec){0, 3000000}, NULL); }

/* Values of many magnitudes: sums in another order have other bits. */
static float value_of(int rank, size_t n, size_t i)
{
    uint64_t key = (uint64_t)rank << 40 | (uint64_t)n << 20 | i;
    uint64_t h = hash_bytes(&key, sizeof key, 7);
    float v = (float)(h >> 40) / 16777216.0f - 0.5f;
    return h & 1 ? v * 10000.0f : v;
}

/* The serial sum in rank order. */
static float sum_of(int size, size_t n, size_t i)
{
    float sum = value_of(0, n, i);
    for (int r = 1; r < size; r++) sum += value_of(r, n, i);
    return sum;
}

static const size_t lengths[] = {0, 1, 3, 15, 16, 17, 127, 256, 1000, 1025, FLOATS_MAX};

static void reduce_body(world *w, comm *c, int rank)
{
    float *data = malloc(FLOATS_MAX * sizeof *data);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        size_t n = lengths[l], n_wrong = 0;
        for (size_t i = 0; i < n; i++) data[i] = value_of(rank, n, i);
        if (rank == (int)l % w->size) short_sleep(); /* one rank is late */
        CHECK(w, status_ok(comm_all_reduce_sum(c, data, n)));
        for (size_t i = 0; i < n; i++) {
            float due = sum_of(w->size, n, i);
            n_wrong += memcmp(&data[i], &due, sizeof due) != 0;
        }
        CHECK(w, n_wrong == 0);
    }
    free(data);
}

static void sums_are_taken_in_rank_order(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) run_ranks(size, reduce_body);
}

static void gather_body(world *w, comm *c, int rank)
{
    size_t size = (size_t)w->size;
    float *in = malloc(FLOATS_MAX * sizeof *in), *out = malloc(size * FLOATS_MAX * sizeof *out);
    for (size_t l = 0; l < 2 * sizeof lengths / sizeof *lengths; l++) {
        size_t n = lengths[l / 2], n_wrong = 0;
        float *from = l % 2 ? out + (size_t)rank * n : in; /* also in place */
        for (size_t i = 0; i < n; i++) from[i] = value_of(rank, n, i);
        CHECK(w, status_ok(comm_all_gather(c, from, n, out)));
        for (size_t i = 0; i < size * n; i++) n_wrong += out[i] != value_of((int)(i / n), n, i % n);
        CHECK(w, n_wrong == 0);
    }
    free(in);
    free(out);
}

static void broadcast_body(world *w, comm *c, int rank)
{
    char text[FLOATS_MAX];
    for (int root = 0; root < w->size; root++) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            size_t n_wrong = 0;
            memset(text, rank == root ? 'a' + root : '?', sizeof text);
            CHECK(w, status_ok(comm_broadcast(c, text, lengths[l], root)));
            for (size_t i = 0; i < lengths[l]; i++) n_wrong += text[i] != 'a' + root;
            CHECK(w, n_wrong == 0);
        }
    }
}

static void parts_are_gathered_and_roots_heard(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        run_ranks(size, gather_body);
        run_ranks(size, broadcast_body);
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void check_ended(world *w, comm *c)
{
    float data[3] = {0}, out[3 * RANKS_MAX];
    CHECK(w, comm_all_reduce_sum(c, data, 3).code == STATUS_IO);
    CHECK(w, comm_all_gather(c, data, 3, out).code == STATUS_IO);
    CHECK(w, comm_broadcast(c, data, sizeof data, 0).code == STATUS_IO);
}

/* The last rank aborts instead of calling; the others wait for it, or come later. */
static void abort_body(world *w, comm *c, int rank)
{
    float data[100] = {0};
    CHECK(w, status_ok(comm_all_reduce_sum(c, data, 100)));
    if (rank == w->size - 1) {
        short_sleep();
        comm_abort(c);
    } else if (rank == 0) {
        short_sleep();
    }
    check_ended(w, c);
}

/* The first rank leaves silently. */
static void leave_body(world *w, comm *c, int rank)
{
    float data[100] = {0};
    CHECK(w, status_ok(comm_all_reduce_sum(c, data, 100)));
    if (rank == 0) short_sleep();
    else check_ended(w, c);
}

static void different_calls_body(world *w, comm *c, int rank)
{
    float data[100] = {0};
    CHECK(w, comm_all_reduce_sum(c, data, rank == 1 ? 99 : 100).code == STATUS_IO);
    check_ended(w, c);
}

static void *abort_soon(void *c)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    comm_abort(c);
    return NULL;
}

/* All ranks call until another thread aborts at any moment: a round succeeds for all ranks or for
 * none. */
static void any_moment_body(world *w, comm *c, int rank)
{
    float data[300];
    pthread_t outsider;
    status s = STATUS_IS_OK;
    if (rank == 0) pthread_create(&outsider, NULL, abort_soon, c);
    for (w->n_rounds[rank] = 0; status_ok(s); w->n_rounds[rank]++) {
        int n_wrong = 0;
        for (int i = 0; i < 300; i++) data[i] = 1.0f;
        s = comm_all_reduce_sum(c, data, 300);
        for (int i = 0; i < 300; i++) n_wrong += data[i] != (float)w->size;
        CHECK(w, status_ok(s) ? n_wrong == 0 : s.code == STATUS_IO);
    }
    if (rank == 0) pthread_join(outsider, NULL);
}

static void a_lost_rank_ends_the_group(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++) {
        run_ranks(size, abort_body);
        run_ranks(size, leave_body);
        run_ranks(size, different_calls_body);
        for (int i = 0; i < 10; i++) run_ranks(size, any_moment_body);
    }
    run_ranks(1, abort_body);
}

/* ---- groups that cannot be made -------------------------------------------------------------- */

static void groups_are_joined_as_they_were_made(void **state)
{
    (void)state;
    error err = {""};
    comm_group *g = NULL, *none = NULL;
    comm *c = NULL, *twin = NULL;
    assert_true(status_ok(comm_group_create("threads", 2, &g, NULL)));
    comm_options o = {.kind = "threads", .rank = 1, .size = 2, .group = g};
    assert_true(status_ok(comm_create(&o, &c, NULL)));
    assert_int_equal(comm_create(&o, &twin, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "rank 1 has joined before"));

    const comm_options wrong[] = {
        {.kind = "threads", .rank = 0, .size = 2},
        {.kind = "threads", .rank = 0, .size = 3, .group = g},
        {.kind = "self", .rank = 0, .size = 1, .group = g},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(comm_create(&wrong[i], &twin, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, wrong[i].kind));
    }
    assert_null(twin);
    comm_destroy(c);
    comm_group_destroy(g);
    comm_group_destroy(NULL);

    assert_int_equal(comm_group_create("self", 1, &none, &err).code, STATUS_UNSUPPORTED);
    assert_int_equal(comm_group_create("pigeon", 1, &none, &err).code, STATUS_UNSUPPORTED);
    assert_int_equal(comm_group_create("threads", 0, &none, &err).code, STATUS_INVALID);
    assert_int_equal(comm_group_create("threads", 65, &none, &err).code, STATUS_INVALID);
    assert_null(none);
}

static void impossible_groups_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        comm_options options;
        status_code code;
        const char *says;
    } cases[] = {
        {{.kind = "carrier-pigeon", .rank = 0, .size = 1}, STATUS_UNSUPPORTED, "carrier-pigeon"},
        {{.kind = NULL, .rank = 0, .size = 1}, STATUS_UNSUPPORTED, "unknown kind"},
        {{.kind = "self", .rank = 0, .size = 2}, STATUS_INVALID, "2 ranks"},
        {{.kind = "self", .rank = 0, .size = 0}, STATUS_INVALID, "0 ranks"},
        {{.kind = "self", .rank = 1, .size = 1}, STATUS_INVALID, "rank 1 of 1"},
        {{.kind = "self", .rank = -1, .size = 1}, STATUS_INVALID, "rank -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm *c = NULL;
        error err = {""};
        assert_int_equal(comm_create(&cases[i].options, &c, &err).code, cases[i].code);
        assert_null(c);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self_is_the_identity),
        cmocka_unit_test(sums_are_taken_in_rank_order),
        cmocka_unit_test(parts_are_gathered_and_roots_heard),
        cmocka_unit_test(a_lost_rank_ends_the_group),
        cmocka_unit_test(groups_are_joined_as_they_were_made),
        cmocka_unit_test(impossible_groups_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

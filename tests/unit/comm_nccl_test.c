/* comm: "nccl" over a fake NCCL: the calls made, and the state of a group after a failure. The
 * ranks are threads, and their device memory is the host's. */
#include "comm/comm.h"
#include "tests/fake/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = 3, FLOATS = 1000, LONG_US = 60000000 };

typedef struct fake {
    void (*behave)(fake_nccl_behaviour);
    int (*live)(void);
    int (*polls)(void);
} fake;

static fake open_fake(void)
{
    void *library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    fake f;
    void *found[] = {dlsym(library, "fake_nccl_behave"), dlsym(library, "fake_nccl_live"),
                     dlsym(library, "fake_nccl_polls")};
    memcpy(&f.behave, &found[0], sizeof f.behave);
    memcpy(&f.live, &found[1], sizeof f.live);
    memcpy(&f.polls, &found[2], sizeof f.polls);
    f.behave(FAKE_WELL);
    return f;
}

static void nap(void) { nanosleep(&(struct timespec){0, 200000}, NULL); }

/* ---- ranks as threads ------------------------------------------------------------------------ */

typedef struct world world;
typedef void (*rank_body)(world *w, comm *c, int rank, fake_stream *stream);

struct world {
    rank_body body;
    comm *comms[RANKS];
    fake_stream streams[RANKS];
    comm_address addresses[RANKS];
    _Atomic int n_wrong;
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
    error err = {""};
    check(w, status_ok(comm_connect(w->comms[a->rank], w->addresses, LONG_US, &err)), err.text);
    w->body(w, w->comms[a->rank], a->rank, &w->streams[a->rank]);
    return NULL;
}

static void run_ranks(rank_body body)
{
    world w = {.body = body};
    rank_arg args[RANKS];
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) {
        comm_options o = {.kind = "nccl",
                          .rank = r,
                          .size = RANKS,
                          .stream = &w.streams[r],
                          .library = FAKE_NCCL};
        assert_true(status_ok(comm_create(&o, &w.comms[r], NULL)));
        w.addresses[r] = comm_own_address(w.comms[r]);
        assert_true((w.addresses[r].n > 0) == (r == 0));
        assert_true(comm_on_device(w.comms[r]));
        args[r] = (rank_arg){&w, r};
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &args[r]), 0);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++) comm_destroy(w.comms[r]);
    assert_int_equal(w.n_wrong, 0);
}

/* Waits for the stream as a backend does. */
static status wait_for(comm *c, const fake_stream *stream)
{
    status s = STATUS_IS_OK;
    while (stream->n_done < stream->n_enqueued) {
        status now = comm_check(c);
        if (status_ok(s)) s = now;
        nap();
    }
    return s;
}

static void well_body(world *w, comm *c, int rank, fake_stream *stream)
{
    float *data = malloc(RANKS * FLOATS * sizeof *data);
    size_t n_wrong = 0;
    for (int i = 0; i < FLOATS; i++) data[i] = (float)(rank * i);
    CHECK(w, status_ok(comm_all_reduce_sum(c, data, FLOATS)));
    CHECK(w, status_ok(wait_for(c, stream)));
    for (int i = 0; i < FLOATS; i++) n_wrong += data[i] != (float)(RANKS * (RANKS - 1) / 2 * i);

    float *own = data + (size_t)rank * FLOATS;
    for (int i = 0; i < FLOATS; i++) own[i] = (float)(rank + i);
    CHECK(w, status_ok(comm_all_gather(c, own, FLOATS, data)));
    CHECK(w, status_ok(wait_for(c, stream)));
    for (int i = 0; i < RANKS * FLOATS; i++) n_wrong += data[i] != (float)(i / FLOATS + i % FLOATS);

    for (int i = 0; i < FLOATS; i++) data[i] = (float)(rank * 100 + i);
    CHECK(w, status_ok(comm_broadcast(c, data, FLOATS * sizeof *data, 1)));
    CHECK(w, status_ok(wait_for(c, stream)));
    for (int i = 0; i < FLOATS; i++) n_wrong += data[i] != (float)(100 + i);
    CHECK(w, n_wrong == 0 && stream->n_done == 3 && status_ok(comm_check(c)));
    free(data);
}

static void collectives_go_to_the_stream(void **state)
{
    (void)state;
    fake f = open_fake();
    run_ranks(well_body);
    assert_int_equal(f.live(), 0);
}

/* The fake answers "in progress" to every call on a non-blocking communicator. A collective must
 * not wait for such an answer: nothing asks for a state between the calls. */
static void silent_body(world *w, comm *c, int rank, fake_stream *stream)
{
    fake f = open_fake();
    float x[RANKS] = {0};
    enum { CALLS = 50 };
    CHECK(w, status_ok(comm_all_reduce_sum(c, x, 1)));
    while (stream->n_done < stream->n_enqueued) nap();
    int polls = f.polls(); /* all ranks have made a call, so none is meeting any more */
    for (int i = 0; i < CALLS; i++) {
        CHECK(w, status_ok(comm_all_reduce_sum(c, x, 1)));
        while (stream->n_done < stream->n_enqueued) nap();
        CHECK(w, status_ok(comm_all_gather(c, &x[rank], 1, x)));
        while (stream->n_done < stream->n_enqueued) nap();
    }
    CHECK(w, f.polls() == polls);
}

static void collectives_return_when_they_are_enqueued(void **state)
{
    (void)state;
    fake f = open_fake();
    run_ranks(silent_body);
    assert_int_equal(f.live(), 0);
}

/* ---- groups that fail ------------------------------------------------------------------------ */

static void check_ended(world *w, comm *c, const char *why)
{
    float x[RANKS] = {0};
    status s = comm_check(c);
    CHECK(w, s.code == STATUS_IO && strcmp(s.message, why) == 0);
    CHECK(w, comm_all_reduce_sum(c, x, 1).code == STATUS_IO);
    CHECK(w, comm_all_gather(c, x, 1, x).code == STATUS_IO);
    CHECK(w, comm_broadcast(c, x, 1, 0).code == STATUS_IO);
}

static void refused_body(world *w, comm *c, int rank, fake_stream *stream)
{
    (void)rank, (void)stream;
    float x = 0;
    status s = comm_all_reduce_sum(c, &x, 1);
    CHECK(w, s.code == STATUS_IO && strcmp(s.message, "a fake refusal") == 0);
    check_ended(w, c, "a fake refusal");
}

static void failing_body(world *w, comm *c, int rank, fake_stream *stream)
{
    (void)rank;
    float x = 0;
    status s = comm_all_reduce_sum(c, &x, 1); /* fails while the work is enqueued, or later */
    if (status_ok(s)) s = wait_for(c, stream);
    CHECK(w, s.code == STATUS_IO && strcmp(s.message, "a fake remote error") == 0);
    CHECK(w, status_ok(wait_for(c, stream))); /* the abort has emptied the stream */
    check_ended(w, c, "a fake remote error");
}

static void *abort_soon(void *c)
{
    nap();
    comm_abort(c);
    return NULL;
}

static void aborted_body(world *w, comm *c, int rank, fake_stream *stream)
{
    (void)rank;
    float x = 0;
    pthread_t outsider;
    pthread_create(&outsider, NULL, abort_soon, c);
    status s = comm_all_reduce_sum(c, &x, 1);
    if (status_ok(s)) s = wait_for(c, stream);
    pthread_join(outsider, NULL);
    CHECK(w, status_ok(s) || s.code == STATUS_IO);
    CHECK(w, stream->n_done == stream->n_enqueued);
    check_ended(w, c, "the group of ranks was aborted");
}

/* A call waits for a peer that is lost, and holds the lock meanwhile. */
static void blocked_body(world *w, comm *c, int rank, fake_stream *stream)
{
    (void)rank, (void)stream;
    float x = 0;
    pthread_t outsider;
    pthread_create(&outsider, NULL, abort_soon, c);
    status s = comm_all_reduce_sum(c, &x, 1);
    pthread_join(outsider, NULL);
    CHECK(w, s.code == STATUS_IO && strcmp(s.message, "the group of ranks was aborted") == 0);
    check_ended(w, c, "the group of ranks was aborted");
}

static void failures_end_the_group_by_name(void **state)
{
    (void)state;
    fake f = open_fake();
    f.behave(FAKE_REFUSES);
    run_ranks(refused_body);
    f.behave(FAKE_FAILS);
    run_ranks(failing_body);
    f.behave(FAKE_NEVER_DOES);
    run_ranks(aborted_body);
    f.behave(FAKE_BLOCKS);
    run_ranks(blocked_body);
    assert_int_equal(f.live(), 0);
}

/* ---- ranks that do not meet ------------------------------------------------------------------ */

static comm *make_first(int size)
{
    comm *c = NULL;
    comm_options o = {.kind = "nccl", .size = size, .library = FAKE_NCCL};
    assert_true(status_ok(comm_create(&o, &c, NULL)));
    return c;
}

static void a_meeting_that_never_ends_is_given_up(void **state)
{
    (void)state;
    fake f = open_fake();
    error err = {""};
    comm *c = make_first(2);
    comm_address all[] = {comm_own_address(c), {NULL, 0}};
    float x = 0;
    assert_int_equal(comm_all_reduce_sum(c, &x, 1).code, STATUS_INVALID);
    assert_int_equal(comm_connect(c, all, 2000, &err).code, STATUS_UNAVAILABLE);
    assert_string_equal(err.text, "comm: rank 0 waited 0.0 s for the others of 2");
    assert_int_equal(f.live(), 0);
    assert_int_equal(comm_all_reduce_sum(c, &x, 1).code, STATUS_IO);
    comm_destroy(c);

    f.behave(FAKE_NEVER_MEETS);
    c = make_first(1);
    all[0] = comm_own_address(c);
    pthread_t outsider;
    pthread_create(&outsider, NULL, abort_soon, c);
    assert_int_equal(comm_connect(c, all, LONG_US, &err).code, STATUS_IO);
    assert_string_equal(err.text, "comm: NCCL: the group of ranks was aborted");
    pthread_join(outsider, NULL);
    comm_destroy(c);
    assert_int_equal(f.live(), 0);
}

static void addresses_are_whole_and_of_rank_0(void **state)
{
    (void)state;
    open_fake();
    error err = {""};
    comm *c = make_first(1), *other = make_first(2);
    comm_address own = comm_own_address(c);
    char *bytes = malloc(own.n);
    memcpy(bytes, own.bytes, own.n);
    for (size_t n = 0; n < own.n; n++)
        assert_false(status_ok(comm_connect(c, &(comm_address){bytes, n}, LONG_US, &err)));
    for (size_t i = 0; i < own.n; i++) {
        bytes[i] ^= 4;
        assert_false(status_ok(comm_connect(c, &(comm_address){bytes, own.n}, LONG_US, &err)));
        bytes[i] ^= 4;
    }
    comm_address theirs = comm_own_address(other);
    assert_int_equal(comm_connect(c, &theirs, LONG_US, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "comm: the address for rank 0 of 1 is that of rank 0 of 2");
    assert_true(status_ok(comm_connect(c, &own, LONG_US, &err)));
    free(bytes);
    comm_destroy(other);
    comm_destroy(c);
}

/* ---- libraries ------------------------------------------------------------------------------- */

static void libraries_that_will_not_do_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *file, *says;
    } cases[] = {
        {"libnot-there.so.2", "comm: no NCCL here: libnot-there.so.2"},
        {FAKE_NCCL_OLD, "comm: NCCL here has version code 21703, not 21800"},
        {FAKE_NCCL_PART, "comm: NCCL here has no ncclCommAbort"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm *c = NULL;
        error err = {""};
        comm_options o = {.kind = "nccl", .size = 1, .library = cases[i].file};
        assert_int_equal(comm_create(&o, &c, &err).code, STATUS_UNSUPPORTED);
        assert_null(c);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_go_to_the_stream),
        cmocka_unit_test(collectives_return_when_they_are_enqueued),
        cmocka_unit_test(failures_end_the_group_by_name),
        cmocka_unit_test(a_meeting_that_never_ends_is_given_up),
        cmocka_unit_test(addresses_are_whole_and_of_rank_0),
        cmocka_unit_test(libraries_that_will_not_do_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

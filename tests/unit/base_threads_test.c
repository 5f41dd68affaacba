/* The thread pool runs every item once, for any mix of sizes, pools and pauses; runs under TSan. */
#include "base/rng.h"
#include "base/threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct loop {
    uint32_t *seen; /* [n], not atomic: an item given out twice is a data race too */
    size_t n, grain;
    unsigned n_threads;
    uint32_t per_thread[32]; /* unlocked, as per-thread scratch may be */
    bool wrong;
} loop;

static void count_items(void *ctx, size_t from, size_t to, unsigned thread)
{
    loop *l = ctx;
    if (from >= to || to > l->n || to - from > l->grain || thread >= l->n_threads) {
        l->wrong = true;
        return;
    }
    for (size_t i = from; i < to; i++) l->seen[i]++;
    l->per_thread[thread] += (uint32_t)(to - from);
}

static void run_loops(unsigned n_threads, bool pin, int rounds, uint64_t seed)
{
    enum { N_MAX = 3000 };
    thread_pool *pool = NULL;
    thread_pool_options options = {.n_threads = n_threads, .pin = pin};
    assert_int_equal(thread_pool_create(&options, &pool).code, STATUS_OK);
    assert_int_equal(thread_pool_size(pool), n_threads);
    uint32_t *seen = calloc(N_MAX, sizeof *seen);
    rng r = rng_seed(seed);
    for (int round = 0; round < rounds; round++) {
        loop l = {.seen = seen, .n = rng_below(&r, N_MAX), .grain = 1 + rng_below(&r, 200)};
        l.n_threads = n_threads;
        memset(seen, 0, N_MAX * sizeof *seen);
        if (round % 3 == 0) { /* in runs of any length */
            l.grain = l.n;
            thread_pool_for_runs(pool, l.n, count_items, &l);
        } else {
            thread_pool_for(pool, l.n, l.grain, count_items, &l);
        }
        uint32_t total = 0;
        for (unsigned t = 0; t < n_threads; t++) total += l.per_thread[t];
        if (l.wrong || total != l.n)
            fail_msg("seed %llu, round %d: bad range", (unsigned long long)seed, round);
        for (size_t i = 0; i < N_MAX; i++)
            if (seen[i] != (i < l.n))
                fail_msg("seed %llu, round %d: item %zu ran %u times", (unsigned long long)seed,
                         round, i, seen[i]);
        if (rng_below(&r, 50) == 0) { /* long enough for the workers to fall asleep */
            struct timespec pause = {.tv_nsec = 300000};
            nanosleep(&pause, NULL);
        }
    }
    free(seen);
    thread_pool_destroy(pool);
}

static void test_each_item_once(void **state)
{
    (void)state;
    run_loops(1, false, 200, 1);
    run_loops(2, false, 3000, 2);
    run_loops(2, true, 3000, 3);
    run_loops(3, false, 2000, 4);
    run_loops(16, false, 500, 5); /* more threads than cores: they sleep and never spin */
}

static void record_run(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    uint32_t *lengths = ctx; /* [n], by the first item of a run */
    lengths[from] = (uint32_t)(to - from);
}

/* How a loop is cut into runs depends on the loop alone, not on the threads that take them: one
 * long run for each thread, then ever shorter ones down to single items. */
static void test_lengths_of_runs(void **state)
{
    (void)state;
    enum { N_MAX = 700 };
    static uint32_t lengths[N_MAX];
    for (unsigned threads = 2; threads <= 5; threads++) {
        thread_pool *pool = NULL;
        thread_pool_options options = {.n_threads = threads};
        assert_int_equal(thread_pool_create(&options, &pool).code, STATUS_OK);
        for (size_t n = 1; n <= N_MAX; n += 1 + n / 7) {
            thread_pool_for_runs(pool, n, record_run, lengths);
            size_t first = n / 4 * 3 / threads, at = 0, before = n;
            for (unsigned t = 0; t < threads && first > 0; t++, at += first)
                assert_int_equal(lengths[at], first);
            for (; at < n; at += before) {
                assert_in_range(lengths[at], 1, before < n - at ? before : n - at);
                before = lengths[at];
            }
            assert_int_equal(before, 1);
        }
        thread_pool_destroy(pool);
    }
}

/* The next loop reads the results of one loop from other threads. */
static void add_one_shifted(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    uint64_t(*buffers)[1024] = ctx;
    for (size_t i = from; i < to; i++) buffers[1][i] = buffers[0][(i + 511) % 1024] + 1;
}

static void test_loops_happen_in_order(void **state)
{
    (void)state;
    thread_pool *pool = NULL;
    assert_int_equal(thread_pool_create(&(thread_pool_options){.n_threads = 4}, &pool).code, 0);
    static uint64_t buffers[2][1024];
    for (int round = 1; round <= 1000; round++) {
        thread_pool_for(pool, 1024, 37, add_one_shifted, buffers);
        memcpy(buffers[0], buffers[1], sizeof buffers[0]);
        for (size_t i = 0; i < 1024; i++) assert_int_equal(buffers[0][i], round);
    }
    thread_pool_destroy(pool);
}

static void test_edges(void **state)
{
    (void)state;
    thread_pool *pool = NULL;
    assert_int_equal(thread_pool_create(NULL, &pool).code, STATUS_OK);
    assert_int_equal(thread_pool_size(pool), cpu_count_allowed());
    uint32_t seen[3] = {0};
    loop l = {.seen = seen, .n = 3, .grain = 1, .n_threads = thread_pool_size(pool)};
    thread_pool_for(pool, 0, 1, count_items, &l);
    assert_int_equal(seen[0], 0);
    thread_pool_for(pool, 3, 0, count_items, &l); /* grain 0 is 1 */
    assert_true(seen[0] == 1 && seen[1] == 1 && seen[2] == 1 && !l.wrong);
    l.grain = SIZE_MAX;
    thread_pool_for(pool, 3, SIZE_MAX, count_items, &l);
    assert_true(seen[0] == 2 && seen[1] == 2 && seen[2] == 2 && !l.wrong);
    thread_pool_destroy(pool);
    thread_pool_destroy(NULL);
    assert_int_equal(thread_pool_create(&(thread_pool_options){.n_threads = 100000}, &pool).code,
                     STATUS_INVALID);
}

static void *policy_of_thread(void *arg)
{
    *(int *)arg = sched_getscheduler(0);
    return NULL;
}

static void test_patience(void **state)
{
    (void)state;
    if (sched_getscheduler(0) != SCHED_OTHER) skip(); /* another scheduling policy decides */
    int policy = -1;
    pthread_t thread;
    assert_false(thread_set_patient(false));
    assert_true(thread_set_patient(true));
    assert_int_equal(sched_getscheduler(0), SCHED_BATCH);
    assert_false(thread_set_patient(true));
    assert_int_equal(pthread_create(&thread, NULL, policy_of_thread, &policy), 0);
    pthread_join(thread, NULL);
    assert_int_equal(policy, SCHED_BATCH);
    assert_true(thread_set_patient(false));
    assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
}

static void record_core(void *ctx, size_t from, size_t to, unsigned thread)
{
    int *cores = ctx;
    cpu_set_t set;
    (void)from, (void)to;
    if (thread > 0 && sched_getaffinity(0, sizeof set, &set) == 0) cores[thread] = CPU_COUNT(&set);
}

static void test_pinning(void **state)
{
    (void)state;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    thread_pool *pool = NULL;
    assert_int_equal(
        thread_pool_create(&(thread_pool_options){.n_threads = 3, .pin = true}, &pool).code, 0);
    int cores[3] = {0};
    for (int round = 0; round < 100; round++) thread_pool_for(pool, 64, 1, record_core, cores);
    for (unsigned t = 1; t < 3; t++) assert_in_range(cores[t], 0, 1); /* 0: it got no item */
    thread_pool_destroy(pool);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    assert_true(cpu_count_allowed() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_item_once), cmocka_unit_test(test_loops_happen_in_order),
        cmocka_unit_test(test_edges),          cmocka_unit_test(test_patience),
        cmocka_unit_test(test_pinning),        cmocka_unit_test(test_lengths_of_runs),
    };
    return cmocka_run_group_tests_name("base_threads", tests, NULL, NULL);
}

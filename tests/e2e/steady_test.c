/* Steady decoding allocates nothing: the linker redirects the house's allocations to this file
 * (tests/CMakeLists.txt), which counts those of the engine's threads and the pool's. */
#include "tests/e2e/house.h"

#include <errno.h>
#include <stdatomic.h>

/* A reader may be late: rings then grow until they hold RING outputs, and their sequences wait. So
 * counting begins when all rings have grown, and ends before a sequence can end. */
enum { STREAMS = 4, RING = 256, WARM = 160, MEASURED = RING + 100, OUTPUTS = RING + MEASURED };

/* ---- counting -------------------------------------------------------------------------------- */

static _Thread_local bool is_reader; /* the test's own thread is not the engine's */
static _Atomic bool counting;
static _Atomic uint32_t n_allocations;
static _Atomic size_t last_bytes;

static void count(size_t bytes)
{
    if (is_reader || !atomic_load(&counting)) return;
    atomic_fetch_add(&n_allocations, 1);
    atomic_store(&last_bytes, bytes);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    count(bytes);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count(n * size);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    count(bytes);
    return __real_realloc(p, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    count(bytes);
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count(bytes);
    return __real_posix_memalign(out, alignment, bytes);
}

/* ---- four requests side by side -------------------------------------------------------------- */

static engine_stream *submit(house *h, uint32_t i)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *s = NULL;
    error err = {{0}};
    uint32_t prompt[40];
    for (uint32_t t = 0; t < 40; t++) prompt[t] = 100 * i + t;
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = prompt;
    r.n_prompt_token_ids = 40;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    if (i % 2 == 1) { /* every second one samples, with alternatives */
        r.temperature = 1;
        r.top_p = 0.9f;
        r.has_seed = true;
        r.seed = i;
        r.logprobs = 5;
        r.frequency_penalty = 0.5f;
    }
    if (i == 2)
        r.retention = json_pack("{s:s, s:f, s:i}", "method", "chunkkv", "ratio", 0.5, "window", 16);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    r.prompt_token_ids = NULL;
    engine_request_destroy(&r);
    return s;
}

/* Reads n tokens of each stream. */
static void read_tokens(engine_stream **streams, uint32_t n)
{
    engine_output out;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < STREAMS; i++) {
            assert_true(engine_stream_wait(streams[i], &out));
            if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
            assert_true(out.has_token);
        }
}

static void steady_decoding_allocates_nothing(void **state)
{
    (void)state;
    static const setting s = {.what = "steady",
                              .kv_type = KERN_KV_BF16,
                              .prefill_chunk = 512,
                              .layers_per_group = 1,
                              .heads_per_group = 4,
                              .page_tokens = 16,
                              .max_model_len = 1024,
                              .kv_bytes = 64 << 20,
                              .swap_bytes = 8 << 20,
                              .prefix_cache = true};
    is_reader = true;
    house h = open_house(&s);
    engine_stream *streams[STREAMS];
    shut_gate(&h);
    for (uint32_t i = 0; i < STREAMS; i++) streams[i] = submit(&h, i);
    open_gate(&h);
    while (engine_get_stats(h.engine).steps < WARM) /* more than half a ring is unread */
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    uint64_t before = engine_get_stats(h.engine).steps;
    atomic_store(&counting, true);
    read_tokens(streams, MEASURED);
    atomic_store(&counting, false);
    uint64_t steps = engine_get_stats(h.engine).steps - before;
    uint32_t n = atomic_load(&n_allocations);
    for (uint32_t i = 0; i < STREAMS; i++) engine_stream_release(streams[i]);
    close_house(&h);
    if (n)
        fail_msg("%u allocations in %llu steps; the last of %zu bytes", n,
                 (unsigned long long)steps, atomic_load(&last_bytes));
    assert_true(steps >= MEASURED - RING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steady_decoding_allocates_nothing)};
    return cmocka_run_group_tests_name("steady", tests, NULL, NULL);
}

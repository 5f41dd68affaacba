/* Requests for which the model's numbers are not finite. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

static int setup(void **state)
{
    fixture *f = fixture_create();
    fixture_start(f);
    *state = f;
    return 0;
}

/* The model's numbers overflow for one request. The others of its steps go on, and it has no token
 * that would look like an answer. */
static void logits_that_are_not_finite_end_their_request_alone(void **state)
{
    fixture *f = *state;
    engine_metrics m;
    answer(f, "some words to say here");
    atomic_store(&f->model.hold, true);
    engine_stream *fine = submit(f, "{\"prompt\": \"a\"}");
    engine_stream *bad = submit(f, "{\"prompt_token_ids\": [5, 1039], \"n\": 2}");
    while (engine_get_stats(f->engine).requests_prepared < 2) nap();
    atomic_store(&f->model.hold, false);
    reading r = read_all(bad);
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(r.error_code, STATUS_INTERNAL);
    assert_int_equal(r.tokens, 0);
    assert_int_equal(r.ends, 2);
    assert_non_null(strstr(r.error_text, "output token 1 of choice 0: the model's logits are not "
                                         "finite (NaN or infinity) in step "));
    assert_string_equal(read_all(fine).text, "some words to say here");
    engine_get_metrics(f->engine, &m);
    assert_int_equal(m.undefined, 1);
    assert_int_equal(m.choices_finished[ENGINE_FINISH_ERROR], 2);

    /* A token of the answer may be the one. What was told before stays told. */
    f->model.script[2] = UNDEFINED;
    r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(r.tokens, 3);
    assert_non_null(strstr(r.error_text, "output token 4 of choice 0: "));
    engine_get_metrics(f->engine, &m);
    assert_int_equal(m.undefined, 2);
}

typedef struct cache_news {
    _Atomic uint32_t stored, removed, cleared;
} cache_news;

static void count_news(void *ctx, const pkv_block_event *event)
{
    cache_news *n = ctx;
    if (event->kind == PKV_BLOCK_STORED) atomic_fetch_add(&n->stored, 1);
    else if (event->kind == PKV_BLOCK_REMOVED) atomic_fetch_add(&n->removed, 1);
    else atomic_fetch_add(&n->cleared, 1);
}

/* A request's reader is told its end before the engine's thread is done with it. It is done once
 * another request has been answered, here one that stores no block. */
static void await_news(fixture *f) { read_all(submit(f, "{\"prompt\": \"a\"}")); }

/* Memory is damaged for a moment. K and V that a failed request has read or computed leave the
 * prefix cache, and readers of the cache's events learn so; those of other prompts stay. */
static void what_a_failed_request_read_is_computed_anew(void **state)
{
    static const char text[] = "{\"prompt\": \"a rather long text about pages of tokens that many "
                               "requests begin with, all of them alike\"}",
                      other[] = "{\"prompt\": \"something else entirely, which has little to do "
                                "with the first prompt at all, and less with its pages\"}";
    fixture *f = *state;
    cache_news news = {0};
    engine_destroy(f->engine);
    f->options.on_block = count_news;
    f->options.on_block_ctx = &news;
    fixture_start(f);
    answer(f, "some words to say here");
    uint32_t n_other = read_all(submit(f, other)).usage.prompt_tokens / 16 * 16;
    await_news(f);
    uint32_t stored = atomic_load(&news.stored);
    uint32_t n = read_all(submit(f, text)).usage.prompt_tokens / 16 * 16;
    assert_true(n >= 32 && n_other >= 32);
    assert_int_equal(read_all(submit(f, text)).usage.cached_tokens, n);
    for (int i = 0; i < 2; i++) {
        atomic_store(&f->model.faults, 1);
        reading r = read_all(submit(f, text));
        assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
        assert_int_equal(r.tokens, 0);
        await_news(f);
        assert_int_equal(atomic_load(&news.removed), atomic_load(&news.stored) - stored);
        assert_true(atomic_load(&news.removed) >= (i + 1) * n / 16);
    }
    assert_int_equal(read_all(submit(f, other)).usage.cached_tokens, n_other);
    reading r = read_all(submit(f, text));
    assert_string_equal(r.text, "some words to say here");
    assert_int_equal(r.usage.cached_tokens, 0);
    assert_int_equal(read_all(submit(f, text)).usage.cached_tokens, n);
    assert_int_equal(atomic_load(&news.cleared), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CASE(logits_that_are_not_finite_end_their_request_alone),
        CASE(what_a_failed_request_read_is_computed_anew),
    };
    int failures = cmocka_run_group_tests_name("numbers that are not finite", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}

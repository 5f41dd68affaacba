/* The store of embeddings that sessions of method `reform` keep: which of two readings of a session
 * stays, and how many bytes are counted. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

enum { TOKENS = 200, OF_TOKEN = 2 * EMBED_DIM * 2 + 4 /* bytes that a token of a text takes */ };

static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 1}};

static int setup(void **state)
{
    fixture *f = fixture_create();
    f->options.embed_heads = heads;
    f->options.n_embed_heads = 2;
    f->options.embed_memory = 1 << 20;
    f->options.max_sessions = 2;
    fixture_start(f);
    *state = f;
    return 0;
}

/* Keeps n tokens in the session {1, 2}, and returns how many it has then. */
static uint32_t keep(reform_store *s, uint32_t n, uint32_t token)
{
    reform_text text = {.n = 0};
    reform_claim claim = {.key = {1, 2}};
    reform_store_claim(s, &claim);
    assert_true(status_ok(reform_store_reserve(s, &text, n, NULL)));
    for (text.n = 0; text.n < n; text.n++) text.tokens[text.n] = token;
    reform_store_keep(s, &claim, &text);
    assert_int_equal(s->n_sessions, 1);
    assert_int_equal(s->used, s->newest->text.n * OF_TOKEN);
    assert_int_equal(s->idle, s->used);
    return s->newest->text.n;
}

static void a_shorter_reading_of_the_same_text_replaces_nothing(void **state)
{
    fixture *f = *state;
    reform_store *s = &f->engine->embeddings;
    assert_int_equal(keep(s, 100, 7), 100);
    assert_int_equal(keep(s, 40, 7), 100);
    assert_int_equal(keep(s, 120, 7), 120);
    assert_int_equal(keep(s, 40, 8), 40);
}

/* A session's text is a request's while that runs, and the session's again behind it. */
static void turns_of_a_session_leave_its_bytes_as_they_were(void **state)
{
    fixture *f = *state;
    reform_store *s = &f->engine->embeddings;
    const uint32_t same[TOKENS] = {0};
    (void)keep(s, TOKENS, 0);
    for (int turn = 0; turn < 3; turn++) {
        reform_claim claim = {.key = {1, 2}};
        reform_text text = {.n = 0};
        retention_policy policy = s->newest->text.policy;
        reform_store_claim(s, &claim);
        assert_true(reform_store_take(s, &claim, &policy, same, TOKENS, &text));
        assert_int_equal(text.n, TOKENS);
        assert_int_equal(s->used, TOKENS * OF_TOKEN);
        assert_int_equal(s->idle, 0);
        assert_null(s->owners);
        reform_store_keep(s, &claim, &text);
        assert_int_equal(s->idle, TOKENS * OF_TOKEN);
        assert_int_equal(s->owners->bytes, TOKENS * OF_TOKEN);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_shorter_reading_of_the_same_text_replaces_nothing),
        TEST(turns_of_a_session_leave_its_bytes_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Access between identities: which prefixes a request hits, and which blocks' tokens are
 * published. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

enum { PAGE = 16, PROMPT = 4 * PAGE + 5, ALL = 4 * PAGE };

/* Blocks that the cache took in, as reported to the engine's on_block. The engine thread writes the
 * counts, which are read when it has ended. */
typedef struct blocks {
    uint32_t with_tokens, hidden; // blocks reported with their tokens, and without
} blocks;

static void on_block(void *ctx, const pkv_block_event *event)
{
    blocks *b = ctx;
    if (event->kind != PKV_BLOCK_STORED) return;
    b->with_tokens += event->tokens != NULL;
    b->hidden += event->tokens == NULL;
}

/* Every answer consists of sevens. */
static fixture *begin(bool apart, blocks *b)
{
    fixture *f = fixture_create();
    f->model.script[0] = 7;
    f->model.n_script = 1;
    f->options.identities_apart = apart;
    f->options.max_sessions = 4;
    f->options.session_ttl_us = 1000000000;
    f->options.on_block = on_block;
    f->options.on_block_ctx = b;
    fixture_start(f);
    return f;
}

static void end(fixture *f)
{
    void *state = f;
    fixture_teardown(&state);
}

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

/* Number of cached tokens of a prompt that is always the same. */
static uint32_t hit(fixture *f, const char *identity, const char *salt, const char *session)
{
    engine_stream *s;
    engine_request r = request("{\"ignore_eos\": true, \"max_tokens\": 2}");
    error err = {{0}};
    r.prompt_token_ids = malloc(PROMPT * sizeof *r.prompt_token_ids);
    r.n_prompt_token_ids = PROMPT;
    for (uint32_t i = 0; i < PROMPT; i++) r.prompt_token_ids[i] = 100 + i;
    r.identity = copy(identity);
    r.cache_salt = copy(salt);
    r.session = copy(session);
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return read_all(s).usage.cached_tokens;
}

static void identities_share_prefixes(void **state)
{
    (void)state;
    blocks b = {0};
    fixture *f = begin(false, &b);
    assert_int_equal(hit(f, "alice", NULL, NULL), 0);
    assert_int_equal(hit(f, "bob", NULL, NULL), ALL);
    assert_int_equal(hit(f, NULL, NULL, NULL), ALL);
    assert_int_equal(hit(f, "alice", "pepper", NULL), 0);
    assert_int_equal(hit(f, "bob", "pepper", NULL), ALL);
    end(f);
    assert_int_equal(b.with_tokens, 4);
    assert_int_equal(b.hidden, 4);
}

static void identities_are_kept_apart(void **state)
{
    (void)state;
    blocks b = {0};
    fixture *f = begin(true, &b);
    assert_int_equal(hit(f, "alice", NULL, NULL), 0);
    assert_int_equal(hit(f, "alice", NULL, NULL), ALL);
    assert_int_equal(hit(f, "bob", NULL, NULL), 0);
    assert_int_equal(hit(f, "bob", NULL, NULL), ALL);
    assert_int_equal(hit(f, "alice", "pepper", NULL), 0);
    assert_int_equal(hit(f, "bob", "pepper", NULL), 0);
    assert_int_equal(hit(f, NULL, "alice", NULL), 0); /* a salt is no identity */
    assert_int_equal(hit(f, NULL, NULL, NULL), 0);
    end(f);
    assert_int_equal(b.with_tokens, 4); /* of the last block alone */
    assert_int_equal(b.hidden, 5 * 4);
}

/* Others that share a session's prefixes may hit its blocks, but their tokens are not reported. */
static void session_events_hold_no_tokens(void **state)
{
    (void)state;
    blocks b = {0};
    fixture *f = begin(false, &b);
    assert_int_equal(hit(f, NULL, NULL, "chat"), 0);
    assert_int_equal(hit(f, NULL, NULL, NULL), ALL);
    end(f);
    assert_int_equal(b.with_tokens, 0);
    assert_int_equal(b.hidden, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identities_share_prefixes),
        cmocka_unit_test(identities_are_kept_apart),
        cmocka_unit_test(session_events_hold_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

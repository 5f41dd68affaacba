/* The engine's reports on prompts: tokens, logprobs, refusals and counters. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <math.h>
#include <stdio.h>

enum { PROMPT = 150, TOPS = 3, PROMPTS = 4 };

static int setup(void **state)
{
    fixture *f = fixture_create();
    answer(f, "some words");
    *state = f;
    return 0;
}

static uint32_t token_of(uint32_t prompt, uint32_t i) { return (prompt * 37 + i * i * 7) % 1000; }

/* `more`: members after the prompt's ids. */
static engine_stream *submit_ids(fixture *f, uint32_t prompt, uint32_t n, const char *members)
{
    static char json[16384];
    size_t at = (size_t)snprintf(json, sizeof json, "{\"prompt_token_ids\": [");
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(json + at, sizeof json - at, i ? ",%u" : "%u", token_of(prompt, i));
    snprintf(json + at, sizeof json - at, "]%s}", members);
    return submit(f, json);
}

/* ---- logprobs -------------------------------------------------------------------------------- */

/* Computes the scores again from the logits, by the plainest arithmetic. */
static void expect_scores(const engine_prompt *p, uint32_t prompt, uint32_t n, uint32_t n_top)
{
    assert_int_equal(p->n_tokens, n);
    assert_int_equal(p->n_top, n_top);
    assert_non_null(p->logprobs);
    assert_true(isnan(p->logprobs[0]));
    assert_int_equal(p->ranks[0], 0);
    for (uint32_t i = 1; i < n; i++) {
        uint32_t before = token_of(prompt, i - 1), token = token_of(prompt, i), rank = 1;
        float own = scripted_logit(before, i - 1, token);
        long double sum = 0;
        for (uint32_t v = 0; v < VOCAB; v++) {
            float logit = scripted_logit(before, i - 1, v);
            sum += expl(logit);
            rank += logit > own;
        }
        assert_int_equal(p->tokens[i], token);
        assert_int_equal(p->ranks[i], rank);
        assert_float_equal(p->logprobs[i], own - logl(sum), 1e-5);
        for (uint32_t k = 0; k < n_top; k++) {
            uint32_t top = p->top_ids[i * n_top + k], above = 0;
            float logit = scripted_logit(before, i - 1, top);
            for (uint32_t v = 0; v < VOCAB; v++) above += scripted_logit(before, i - 1, v) > logit;
            assert_int_equal(above, k); /* no two logits of a row are equal here */
            assert_float_equal(p->top_logprobs[i * n_top + k], logit - logl(sum), 1e-5);
        }
    }
}

static void a_prompt_is_scored_alone(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    for (int round = 0; round < 2; round++) { /* the second does not hit the first's prefix */
        engine_stream *s =
            submit_ids(f, 1, PROMPT, ", \"prompt_logprobs\": 3, \"max_tokens\": 0, \"n\": 2");
        engine_output out;
        uint32_t ends = 0;
        while (engine_stream_wait(s, &out)) {
            assert_false(out.has_token);
            assert_int_equal(out.finish, ENGINE_FINISH_LENGTH);
            assert_int_equal(out.text_bytes, 0);
            assert_int_equal(out.usage.completion_tokens, 0);
            assert_int_equal(out.usage.prompt_tokens, PROMPT);
            assert_int_equal(out.usage.cached_tokens, 0);
            ends++;
        }
        assert_int_equal(ends, 2);
        engine_prompt p = engine_stream_prompt(s);
        expect_scores(&p, 1, PROMPT, TOPS);
        engine_stream_release(s);
    }
}

static void a_prompt_is_scored_before_it_is_answered(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    engine_stream *s = submit_ids(f, 2, PROMPT, ", \"prompt_logprobs\": 0, \"n\": 3");
    engine_output out;
    assert_true(engine_stream_wait(s, &out));
    engine_prompt p = engine_stream_prompt(s); /* comes with the first output */
    expect_scores(&p, 2, PROMPT, 0);
    reading r = read_stream(s);
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    p = engine_stream_prompt(s);
    expect_scores(&p, 2, PROMPT, 0);
    engine_stream_release(s);
}

/* Several scored prompts in one plan, with others between them and rationed logits rows. */
static void scored_prompts_share_steps(void **state)
{
    static const uint32_t rations[] = {0, 64, 7};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof rations / sizeof *rations; i++) {
        f->model.info.max_logit_rows = rations[i];
        fixture_start(f);
        engine_stream *streams[PROMPTS];
        atomic_store(&f->model.hold, true);
        for (uint32_t k = 0; k < PROMPTS; k++)
            streams[k] = submit_ids(f, k, k == 0 ? 1 : 20 + 10 * k,
                                    k == 2 ? "" : ", \"prompt_logprobs\": 3, \"max_tokens\": 2");
        for (int k = 0; k < 100; k++) nap(); /* so that most of them meet in a step */
        atomic_store(&f->model.hold, false);
        for (uint32_t k = 0; k < PROMPTS; k++) {
            assert_int_not_equal(read_stream(streams[k]).finish, ENGINE_FINISH_ERROR);
            engine_prompt p = engine_stream_prompt(streams[k]);
            if (k == 2) {
                assert_null(p.logprobs);
                assert_int_equal(p.n_tokens, 40);
                assert_int_equal(p.tokens[39], token_of(2, 39));
            } else {
                expect_scores(&p, k, k == 0 ? 1 : 20 + 10 * k, TOPS);
            }
            engine_stream_release(streams[k]);
        }
        engine_destroy(f->engine);
        f->engine = NULL;
    }
}

/* A method that repositions computes later rows at lower positions; their scores are still those of
 * the later tokens. */
static void scores_do_not_depend_on_positions(void **state)
{
    static const char members[] =
        ", \"prompt_logprobs\": 0, \"max_tokens\": 1, \"retention\": {\"method\": "
        "\"streaming-recurrent\", \"recurrent_chunk\": 32, \"sinks\": 4, \"window\": 16, "
        "\"tokens\": 32}";
    fixture *f = *state;
    fixture_start(f);
    engine_stream *s = submit_ids(f, 1, PROMPT, members);
    assert_int_not_equal(read_stream(s).finish, ENGINE_FINISH_ERROR);
    engine_prompt p = engine_stream_prompt(s);
    assert_non_null(p.logprobs);
    for (uint32_t i = 1; i < PROMPT; i++) assert_int_not_equal(p.ranks[i], 0);
    engine_stream_release(s);
}

static void an_aborted_prompt_has_no_scores(void **state)
{
    fixture *f = *state;
    f->model.info.max_logit_rows = 1;
    fixture_start(f);
    engine_stream *s = submit_ids(f, 1, PROMPT, ", \"prompt_logprobs\": 1");
    while (atomic_load(&f->model.steps) < 5) nap();
    atomic_store(&f->model.hold, true);
    bool early = atomic_load(&f->model.steps) < PROMPT;
    engine_stream_abort(s);
    atomic_store(&f->model.hold, false);
    reading r = read_stream(s);
    if (early && r.finish == ENGINE_FINISH_ABORT && r.tokens == 0)
        assert_null(engine_stream_prompt(s).logprobs);
    engine_stream_release(s);
}

/* ---- pooling --------------------------------------------------------------------------------- */

static engine_request pooling_request(uint32_t prompt, uint32_t n, step_pooling pooling)
{
    engine_request r = request("{}");
    r.prompt_token_ids = malloc(n * sizeof *r.prompt_token_ids);
    for (uint32_t i = 0; i < n; i++) r.prompt_token_ids[i] = token_of(prompt, i);
    r.n_prompt_token_ids = n;
    r.pooling = pooling;
    r.score_only = true;
    return r;
}

static engine_stream *submit_pooling(fixture *f, uint32_t prompt, uint32_t n, step_pooling pooling)
{
    engine_request r = pooling_request(prompt, n, pooling);
    engine_stream *s = NULL;
    error err = {{0}};
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

/* Reads the stream to its end and compares the vector with one made of the prompt alone. Returns
 * how many tokens came from the prefix cache. */
static uint32_t expect_pooled(engine_stream *s, uint32_t prompt, uint32_t n, step_pooling pooling)
{
    double sum[HIDDEN] = {0};
    uint32_t first = pooling == POOLING_LAST ? n - 1 : 0, size;
    for (uint32_t i = first; i < n; i++) {
        float one[HIDDEN];
        scripted_state(token_of(prompt, i), i, one);
        for (uint32_t j = 0; j < HIDDEN; j++) sum[j] += (double)one[j];
    }
    reading r = read_stream(s);
    assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
    assert_int_equal(r.tokens, 0);
    assert_int_equal(r.usage.prompt_tokens, n);
    const float *got = engine_stream_pooled(s, &size);
    assert_non_null(got);
    assert_int_equal(size, HIDDEN);
    for (uint32_t j = 0; j < HIDDEN; j++) assert_float_equal(got[j], sum[j] / (n - first), 0);
    engine_stream_release(s);
    return r.usage.cached_tokens;
}

/* The prompt has several chunks; its last token's state needs one row of a prompt that was seen,
 * a mean needs all. */
static void a_prompt_is_pooled(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    for (int round = 0; round < 2; round++) {
        engine_stream *s = submit_pooling(f, 3, PROMPT, POOLING_SUM);
        assert_int_equal(expect_pooled(s, 3, PROMPT, POOLING_SUM), 0);
        s = submit_pooling(f, 4, PROMPT, POOLING_LAST);
        uint32_t cached = expect_pooled(s, 4, PROMPT, POOLING_LAST);
        if (round == 0) assert_int_equal(cached, 0);
        else assert_in_range(cached, 1, PROMPT - 1);
        s = submit_pooling(f, 3, 1, POOLING_SUM);
        expect_pooled(s, 3, 1, POOLING_SUM);
    }
}

static void pooled_prompts_share_steps(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    engine_stream *streams[PROMPTS];
    atomic_store(&f->model.hold, true);
    for (uint32_t k = 0; k < PROMPTS; k++)
        streams[k] = k == 2 ? submit_ids(f, k, 40, "")
                            : submit_pooling(f, k, 20 + 10 * k, k % 2 ? POOLING_SUM : POOLING_LAST);
    for (int k = 0; k < 100; k++) nap();
    atomic_store(&f->model.hold, false);
    for (uint32_t k = 0; k < PROMPTS; k++) {
        uint32_t size;
        if (k != 2) {
            expect_pooled(streams[k], k, 20 + 10 * k, k % 2 ? POOLING_SUM : POOLING_LAST);
            continue;
        }
        assert_int_not_equal(read_stream(streams[k]).finish, ENGINE_FINISH_ERROR);
        assert_null(engine_stream_pooled(streams[k], &size));
        engine_stream_release(streams[k]);
    }
}

/* ---- numbers that are not finite ------------------------------------------------------------- */

static void expect_undefined(fixture *f, const char *json, const char *words)
{
    engine_metrics before, after;
    engine_get_metrics(f->engine, &before);
    reading r = read_all(submit(f, json));
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(r.error_code, STATUS_INTERNAL);
    if (!strstr(r.error_text, words)) fail_msg("%s", r.error_text);
    engine_get_metrics(f->engine, &after);
    assert_int_equal(after.undefined, before.undefined + 1);
}

static void prompts_whose_numbers_are_not_finite_fail(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    expect_undefined(f,
                     "{\"prompt_token_ids\": [5, 6, 1039, 7, 8], \"prompt_logprobs\": 0, "
                     "\"max_tokens\": 0}",
                     "the score of prompt token 3: the model's logits are not finite");
    engine_request r = request("{\"prompt_token_ids\": [5, 6, 1039]}");
    r.pooling = POOLING_LAST;
    r.score_only = true;
    engine_stream *s = NULL;
    error err = {{0}};
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    reading got = read_all(s);
    assert_int_equal(got.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(got.error_code, STATUS_INTERNAL);
    assert_non_null(strstr(got.error_text, "the pooled prompt: the model's hidden states are not "
                                           "finite"));
}

/* The draw behind a prompt that is only scored, and the score of the token after the prompt. */
static void what_is_not_asked_for_may_be_undefined(void **state)
{
    fixture *f = *state;
    engine_metrics m;
    fixture_start(f);
    engine_stream *s = submit(f, "{\"prompt_token_ids\": [5, 6, 7, 1039], \"prompt_logprobs\": 0, "
                                 "\"max_tokens\": 0}");
    reading r = read_stream(s);
    assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
    assert_int_equal(r.tokens, 0);
    engine_prompt p = engine_stream_prompt(s);
    assert_non_null(p.logprobs);
    for (uint32_t i = 1; i < 4; i++) assert_true(isfinite(p.logprobs[i]));
    engine_stream_release(s);
    engine_get_metrics(f->engine, &m);
    assert_int_equal(m.undefined, 0);
    expect_undefined(f,
                     "{\"prompt_token_ids\": [5, 6, 7, 1039], \"prompt_logprobs\": 0, "
                     "\"max_tokens\": 1}",
                     "output token 1 of choice 0: the model's logits are not finite");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void a_prompt_too_long_is_refused_in_numbers(void **state)
{
    fixture *f = *state;
    f->model.info.n_pages = 21;
    fixture_start(f);
    engine_stream *s = submit_ids(f, 1, 2040, ", \"max_tokens\": 16");
    reading r = read_all(s);
    assert_int_equal(r.error_code, STATUS_LIMIT);
    assert_string_equal(r.error_text, "prompt: 2040 tokens and max_tokens 16 make 2056; the "
                                      "maximum context length is 2048");
    r = read_all(submit_ids(f, 1, 2048, ", \"max_tokens\": 16"));
    assert_int_equal(r.error_code, STATUS_LIMIT);
    assert_string_equal(r.error_text, "prompt: 2048 tokens; the maximum context length is 2048");
    r = read_all(submit_ids(f, 1, 400, "")); /* names no max_tokens */
    assert_non_null(strstr(r.error_text, "prompt: 400 tokens need "));
    r = read_all(submit_ids(f, 1, 300, ", \"max_tokens\": 16"));
    assert_int_equal(r.error_code, STATUS_LIMIT);
    assert_non_null(strstr(r.error_text, "prompt: 300 tokens and max_tokens 16 need 40 KV pages, "
                                         "the pool has 20"));
}

static void scoring_is_asked_for_in_full(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    expect_refused(f, "{\"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens");
    expect_refused(f, "{\"prompt\": \"a\", \"prompt_logprobs\": 21}", "prompt_logprobs");
    expect_refused(f,
                   "{\"prompt\": \"a\", \"prompt_logprobs\": 1, \"max_tokens\": 0, "
                   "\"min_tokens\": 1}",
                   "min_tokens");
    /* The last member counts. */
    engine_request r = request("{\"max_tokens\": 0, \"max_completion_tokens\": 5}");
    assert_false(r.score_only);
    assert_int_equal(r.max_tokens, 5);
    engine_request_destroy(&r);
}

static void expect_invalid(fixture *f, const engine_request *r, const char *word)
{
    engine_stream *s = NULL;
    tok_ids ids = {0};
    error err = {{0}}, other = {{0}};
    assert_false(status_ok(engine_submit(f->engine, r, NULL, NULL, &s, &err)));
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not name %s", err.text, word);
    assert_false(status_ok(engine_tokenize(f->engine, r, &ids, &other)));
}

static void pooling_is_refused_by_name(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    static char session[] = "a";
    engine_request good = pooling_request(1, 20, POOLING_SUM), r = good;
    r.pooling = POOLING_SUM + 1;
    expect_invalid(f, &r, "pooling");
    r = good;
    r.score_only = false;
    expect_invalid(f, &r, "pooling");
    r = good;
    r.session = session;
    expect_invalid(f, &r, "pooling");
    f->model.info.hidden = 0;
    engine_destroy(f->engine);
    fixture_start(f);
    r = good;
    expect_invalid(f, &r, "pooling: the backend 'scripted' gives no hidden states");
    engine_request_destroy(&good);
}

/* The prompt's last tokens: its ids, or those of a text that is too long as a whole. */
static void a_prompt_is_truncated(void **state)
{
    static const struct {
        const char *members;
        uint32_t n, kept;
    } cases[] = {
        {", \"max_tokens\": 2, \"truncate_prompt_tokens\": 40", 300, 40},
        {", \"max_tokens\": 2, \"truncate_prompt_tokens\": 300", 300, 300},
        {", \"max_tokens\": 2, \"truncate_prompt_tokens\": 1", 300, 1},
        {", \"max_tokens\": 48, \"truncate_prompt_tokens\": -1", 2040, 2000},
        {", \"max_tokens\": 48, \"truncate_prompt_tokens\": -1", 2001, 2000},
        {", \"max_tokens\": 48, \"truncate_prompt_tokens\": -1", 2000, 2000},
        {", \"max_tokens\": 48, \"truncate_prompt_tokens\": -1", 7, 7},
        {", \"truncate_prompt_tokens\": -1", 2100, 2047},
        {", \"min_tokens\": 8, \"truncate_prompt_tokens\": -1", 2100, 2040},
    };
    fixture *f = *state;
    fixture_start(f);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        engine_stream *s = submit_ids(f, 1, cases[i].n, cases[i].members);
        reading r = read_stream(s);
        assert_int_not_equal(r.finish, ENGINE_FINISH_ERROR);
        assert_int_equal(r.usage.prompt_tokens, cases[i].kept);
        engine_prompt p = engine_stream_prompt(s);
        assert_int_equal(p.n_tokens, cases[i].kept);
        for (uint32_t k = 0; k < p.n_tokens; k++)
            assert_int_equal(p.tokens[k], token_of(1, cases[i].n - cases[i].kept + k));
        engine_stream_release(s);
    }
    engine_request by_hand = request("{\"prompt\": \"a\"}");
    by_hand.truncate_prompt_tokens = -2;
    expect_invalid(f, &by_hand, "truncate_prompt_tokens");
    engine_request_destroy(&by_hand);
    /* So much text is refused by its bytes alone where it is not truncated. */
    size_t size = 200000;
    char *json = malloc(size);
    int at =
        snprintf(json, size, "{\"truncate_prompt_tokens\": 5, \"max_tokens\": 2, \"prompt\": \"");
    memset(json + at, 'x', size - (size_t)at);
    memcpy(json + size - 3, "\"}", 3);
    reading r = read_all(submit(f, json));
    free(json);
    assert_int_equal(r.usage.prompt_tokens, 5);
}

/* Fields that a front end fills in itself are checked like those of JSON. */
static void fields_filled_by_hand_are_checked(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    static char empty[] = "", long_stop[ENGINE_STOP_BYTES_MAX + 2];
    memset(long_stop, 'x', sizeof long_stop - 1);
    const engine_request good = request("{\"prompt\": \"a\"}");
    engine_request r = good;
    r.n_stop = ENGINE_STOPS_MAX + 1;
    expect_invalid(f, &r, "stop");
    r.n_stop = 1;
    r.stop[0] = NULL;
    expect_invalid(f, &r, "stop");
    r.stop[0] = empty;
    expect_invalid(f, &r, "stop");
    r.stop[0] = long_stop;
    expect_invalid(f, &r, "stop");
    r = good;
    r.logprobs = -2;
    expect_invalid(f, &r, "logprobs");
    r.logprobs = -1;
    r.prompt_logprobs = 21;
    expect_invalid(f, &r, "prompt_logprobs");
    r = good;
    r.n_bias = UINT32_MAX;
    expect_invalid(f, &r, "logit_bias");
    r = good;
    r.retention = json_integer(1);
    expect_invalid(f, &r, "retention");
    json_decref(r.retention);
    r = good;
    r.score_only = true;
    r.prompt_logprobs = 0;
    r.max_tokens = 1;
    expect_invalid(f, &r, "max_tokens");
    r = good;
    engine_request_destroy(&r);
}

/* ---- tokenizing ------------------------------------------------------------------------------ */

static void tokenizing_is_what_a_request_would_see(void **state)
{
    static const char *const prompts[] = {
        "{\"prompt\": \"some words of <|im_end|> ours\", \"max_tokens\": 1}",
        "{\"prompt_token_ids\": [5, 6, 7], \"max_tokens\": 1}",
        ("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"hi\"}]}], \"max_tokens\": 1}"),
    };
    fixture *f = *state;
    fixture_start(f);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        engine_request r = request(prompts[i]);
        tok_ids ids = {0};
        error err = {{0}};
        if (!status_ok(engine_tokenize(f->engine, &r, &ids, &err))) fail_msg("%s", err.text);
        engine_request_destroy(&r);
        engine_stream *s = submit(f, prompts[i]);
        read_stream(s);
        engine_prompt p = engine_stream_prompt(s);
        assert_int_equal(p.n_tokens, ids.n);
        assert_memory_equal(p.tokens, ids.ids, ids.n * sizeof *ids.ids);
        engine_stream_release(s);
        tok_ids_destroy(&ids);
    }
}

/* The message gives a lower bound of the tokens, without counting them. */
static void a_hopeless_text_is_not_tokenized(void **state)
{
    enum { LONG = 4 << 20 };
    fixture *f = *state;
    fixture_start(f);
    engine_request r = request("{}");
    r.prompt = malloc(LONG + 1);
    assert_non_null(r.prompt);
    memset(r.prompt, 'a', LONG);
    r.prompt[LONG] = '\0';
    r.prompt_bytes = LONG;
    engine_stream *s;
    assert_true(status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, NULL)));
    engine_request_destroy(&r);
    reading got = read_stream(s);
    assert_int_equal(got.finish, ENGINE_FINISH_ERROR);
    assert_int_equal(engine_stream_prompt(s).n_tokens, 0);
    engine_stream_release(s);
}

static bool all_are_taken(engine *e)
{
    pthread_mutex_lock(&e->prepare.lock);
    bool none = !e->prepare.first;
    pthread_mutex_unlock(&e->prepare.lock);
    return none;
}

/* The request ends before the one tokenizer thread is done with those before it. */
static void an_aborted_request_is_not_tokenized(void **state)
{
    fixture *f = *state;
    f->options.tokenizer_threads = 1;
    fixture_start(f);
    pthread_rwlock_wrlock(&f->engine->sched_lock); /* held up where requests are checked */
    engine_stream *slow = submit(f, "{\"prompt\": \"some words\"}");
    while (!all_are_taken(f->engine)) nap();
    engine_stream *s = submit(f, "{\"prompt\": \"a\", \"n\": 2}");
    engine_stream_abort(s);
    engine_output out;
    uint32_t ends = 0;
    for (int i = 0; i < 100000 && ends < 2; i++, nap()) /* then they count as lost */
        while (engine_stream_read(s, &out)) ends += out.finish == ENGINE_FINISH_ABORT;
    bool slow_has_output = engine_stream_read(slow, &out);
    uint32_t n_live = engine_get_stats(f->engine).n_live;
    pthread_rwlock_unlock(&f->engine->sched_lock);
    assert_int_equal(ends, 2);
    assert_int_equal(engine_stream_prompt(s).n_tokens, 0);
    assert_false(slow_has_output);
    assert_int_equal(n_live, 1);
    engine_stream_release(s);
    engine_stream_release(slow);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t total(const engine_metrics *m, engine_histogram_id id)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= ENGINE_BUCKETS_MAX; i++) n += m->histograms[id].counts[i];
    assert_int_equal(n, m->histograms[id].count);
    return n;
}

static void histograms_are_described(void **state)
{
    (void)state;
    for (engine_histogram_id id = 0; id < ENGINE_HISTOGRAMS; id++) {
        engine_histogram_info info = engine_histogram_describe(id);
        assert_non_null(info.name);
        assert_non_null(info.help);
        assert_in_range(info.n_bounds, 5, ENGINE_BUCKETS_MAX);
        for (uint32_t i = 1; i < info.n_bounds; i++)
            assert_true(info.bounds[i] > info.bounds[i - 1]);
        for (engine_histogram_id other = 0; other < id; other++)
            assert_string_not_equal(info.name, engine_histogram_describe(other).name);
    }
}

/* All counters are up to date when the reader has the last output. */
static void what_happens_is_counted(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    read_all(submit_ids(f, 1, 40, ", \"max_tokens\": 30, \"n\": 2, \"ignore_eos\": true"));
    engine_metrics m;
    engine_get_metrics(f->engine, &m);
    assert_int_equal(total(&m, ENGINE_TIME_TO_FIRST_TOKEN), 1);
    assert_int_equal(total(&m, ENGINE_INTER_TOKEN_LATENCY), 2 * 29);
    assert_int_equal(total(&m, ENGINE_TIME_PER_OUTPUT_TOKEN), 2);
    static const engine_histogram_id once[] = {ENGINE_E2E_LATENCY,    ENGINE_QUEUE_TIME,
                                               ENGINE_PREFILL_TIME,   ENGINE_DECODE_TIME,
                                               ENGINE_INFERENCE_TIME, ENGINE_PROMPT_TOKENS};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) assert_int_equal(total(&m, once[i]), 1);
    assert_float_equal(m.histograms[ENGINE_PROMPT_TOKENS].sum, 40, 0);
    assert_int_equal(m.histograms[ENGINE_PROMPT_TOKENS].counts[5], 1); /* 20 < 40 <= 50 */
    assert_int_equal(total(&m, ENGINE_GENERATION_TOKENS), 2);
    assert_float_equal(m.histograms[ENGINE_GENERATION_TOKENS].sum, 60, 0);
    assert_int_equal(total(&m, ENGINE_ITERATION_TOKENS), 30);
    assert_float_equal(m.histograms[ENGINE_ITERATION_TOKENS].sum, 40 + 2 * 29, 0);
    assert_int_equal(m.choices_finished[ENGINE_FINISH_LENGTH], 2);
    engine_histogram e2e = m.histograms[ENGINE_E2E_LATENCY];
    double parts = m.histograms[ENGINE_QUEUE_TIME].sum + m.histograms[ENGINE_PREFILL_TIME].sum +
                   m.histograms[ENGINE_DECODE_TIME].sum;
    assert_true(parts <= e2e.sum + 1e-6 && parts > 0);

    read_all(submit_ids(f, 2, 40, ", \"max_tokens\": 0, \"prompt_logprobs\": 0"));
    read_all(submit_ids(f, 3, 3000, ""));
    engine_get_metrics(f->engine, &m);
    assert_int_equal(total(&m, ENGINE_TIME_TO_FIRST_TOKEN), 1);
    assert_int_equal(total(&m, ENGINE_E2E_LATENCY), 2);
    assert_int_equal(m.choices_finished[ENGINE_FINISH_LENGTH], 3);
    assert_int_equal(m.choices_finished[ENGINE_FINISH_ERROR], 1);
    engine_stats stats = engine_get_stats(f->engine);
    assert_int_equal(stats.requests_finished, 2);
    assert_int_equal(stats.requests_failed, 1);
    assert_int_equal(stats.n_live, 0);
    assert_int_equal(stats.state, ENGINE_WORKING);
}

static void retention_is_counted_by_method(void **state)
{
    fixture *f = *state;
    fixture_start(f);
    static const char members[] =
        ", \"max_tokens\": 3, \"n\": 3, \"retention\": {\"method\": \"chunkkv\", \"tokens\": 64}";
    read_all(submit_ids(f, 1, 200, members));
    read_all(submit_ids(f, 1, 20, ""));
    engine_metrics m;
    engine_get_metrics(f->engine, &m);
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    assert_true(n < ENGINE_METHODS_MAX);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(m.methods[i].method, presets[i].name);
        if (strcmp(presets[i].name, "chunkkv") != 0) {
            assert_int_equal(m.methods[i].pages_dropped, 0);
            continue;
        }
        /* Counted once, though three choices continue from what was left. */
        engine_stats stats = engine_get_stats(f->engine);
        assert_true(m.methods[i].pages_dropped > 0);
        assert_int_equal(m.methods[i].pages_dropped, stats.sched.pages.pages_dropped);
    }
    assert_null(m.methods[n].method);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_prompt_is_scored_alone),
        CASE(a_prompt_is_scored_before_it_is_answered),
        CASE(scored_prompts_share_steps),
        CASE(scores_do_not_depend_on_positions),
        CASE(an_aborted_prompt_has_no_scores),
        CASE(a_prompt_is_pooled),
        CASE(pooled_prompts_share_steps),
        CASE(prompts_whose_numbers_are_not_finite_fail),
        CASE(what_is_not_asked_for_may_be_undefined),
        CASE(pooling_is_refused_by_name),
        CASE(a_prompt_too_long_is_refused_in_numbers),
        CASE(a_prompt_is_truncated),
        CASE(scoring_is_asked_for_in_full),
        CASE(fields_filled_by_hand_are_checked),
        CASE(tokenizing_is_what_a_request_would_see),
        CASE(an_aborted_request_is_not_tokenized),
        CASE(a_hopeless_text_is_not_tokenized),
        cmocka_unit_test(histograms_are_described),
        CASE(what_happens_is_counted),
        CASE(retention_is_counted_by_method),
    };
    return cmocka_run_group_tests_name("engine and prompts", tests, NULL, NULL);
}

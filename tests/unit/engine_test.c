/* The engine around a scripted backend: the demo tokenizer is real, the test writes the model's
 * answers. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <pthread.h>

static int setup(void **state)
{
    fixture *f = fixture_create();
    fixture_start(f);
    *state = f;
    return 0;
}

static int setup_small(void **state)
{
    fixture *f = fixture_create();
    f->options.max_requests = 2;
    f->options.ring_capacity = 8;
    fixture_start(f);
    *state = f;
    return 0;
}

/* ---- stops ----------------------------------------------------------------------------------- */

static void eos_ends_and_is_not_shown(void **state)
{
    fixture *f = *state;
    answer(f, "Hello, wörld! \xf0\x9f\x8c\x8d");
    reading r = read_all(submit(f, "{\"prompt\": \"x\"}"));
    assert_string_equal(r.text, "Hello, wörld! \xf0\x9f\x8c\x8d");
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_int_equal(r.stop_token, f->eos);
    assert_int_equal(r.usage.completion_tokens, f->model.n_script);
    assert_int_equal(r.tokens, f->model.n_script);
}

static void stop_strings_cut_across_tokens(void **state)
{
    fixture *f = *state;
    answer(f, "The answer is 42. END of it");
    reading r = read_all(submit(f, "{\"prompt\": \"x\", \"stop\": [\"END\", \"42. E\"]}"));
    assert_string_equal(r.text, "The answer is ");
    assert_string_equal(r.stop_string, "42. E");
    r = read_all(
        submit(f, "{\"prompt\": \"x\", \"stop\": \"END\", \"include_stop_str_in_output\": true}"));
    assert_string_equal(r.text, "The answer is 42. END");
    /* A prefix of a stop string that turns out not to be one is delivered after all. */
    r = read_all(submit(f, "{\"prompt\": \"x\", \"stop\": \"is 43\"}"));
    assert_string_equal(r.text, "The answer is 42. END of it");
    assert_int_equal(r.stop_token, f->eos);
}

/* Lists the texts of a stream's outputs. */
static void list_texts(fixture *f, const char *json, strbuf *out)
{
    engine_output o;
    engine_stream *s = submit(f, json);
    strbuf_clear(out);
    while (engine_stream_wait(s, &o))
        strbuf_printf(out, "%u:%.*s|", o.choice, (int)o.text_bytes, o.text);
    engine_stream_release(s);
    assert_false(out->failed);
}

/* Whether the texts are the same with and without a stop string, and hold U+FFFD. */
static bool have_broken_text(fixture *f, const char *end)
{
    static const char *const stops[] = {"", ", \"stop\": \"\\u0001\""};
    strbuf texts[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        char json[128];
        snprintf(json, sizeof json, "{\"prompt\": \"x\", \"n\": 2, %s%s}", end, stops[k]);
        list_texts(f, json, &texts[k]);
    }
    assert_string_equal(texts[0].data, texts[1].data);
    bool broken = strstr(texts[0].data, "\xef\xbf\xbd") != NULL;
    strbuf_destroy(&texts[0]);
    strbuf_destroy(&texts[1]);
    return broken;
}

/* The engine thread makes the texts that it searches for stop strings, the reader makes all others.
 * Lengths and stop tokens end the answer within its characters, too. */
static void texts_are_the_same_whoever_makes_them(void **state)
{
    fixture *f = *state;
    uint32_t n_cut = 0, n_stopped = 0;
    answer(f, "wörld \xf0\x9f\x8c\x8d\xf0\x9f\x8c\x8d!");
    for (uint32_t i = 0; i < f->model.n_script; i++) {
        char end[64];
        snprintf(end, sizeof end, "\"max_tokens\": %u", i + 1);
        n_cut += have_broken_text(f, end);
        snprintf(end, sizeof end, "\"stop_token_ids\": [%u]", f->model.script[i]);
        n_stopped += have_broken_text(f, end);
    }
    assert_true(n_cut > 0 && n_stopped > 0);
}

static void lengths_and_min_tokens(void **state)
{
    fixture *f = *state;
    answer(f, "one two three four five six seven");
    reading r = read_all(submit(f, "{\"prompt\": \"x\", \"max_tokens\": 3}"));
    assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
    assert_int_equal(r.usage.completion_tokens, 3);
    r = read_all(submit(f, "{\"prompt\": \"x\", \"max_tokens\": 60, \"ignore_eos\": true}"));
    assert_int_equal(r.finish, ENGINE_FINISH_LENGTH);
    assert_int_equal(r.usage.completion_tokens, 60);
    uint32_t before = f->model.n_script;
    r = read_all(submit(f, "{\"prompt\": \"x\", \"min_tokens\": 20, \"max_tokens\": 30}"));
    assert_true(before < 20);
    assert_int_equal(r.usage.completion_tokens, 21); /* the first EOS after the minimum */
    r = read_all(submit(f, "{\"prompt\": \"x\", \"stop_token_ids\": [1], \"min_tokens\": 1}"));
    assert_int_equal(r.stop_token, f->eos);
}

static void every_choice_ends_once(void **state)
{
    fixture *f = *state;
    answer(f, "abc");
    reading r = read_all(submit(f, "{\"prompt\": \"hello\", \"n\": 5, \"logprobs\": 1}"));
    assert_int_equal(r.ends, 5);
    assert_string_equal(r.text, "abc");
}

static void messages_go_through_the_template(void **state)
{
    fixture *f = *state;
    answer(f, "ok");
    reading a = read_all(submit(f, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"));
    reading b = read_all(submit(f, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
                                   "\"text\", \"text\": \"hi\"}]}]}"));
    reading c = read_all(
        submit(f, "{\"prompt\": \"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n\"}"));
    assert_int_equal(a.usage.prompt_tokens, c.usage.prompt_tokens);
    assert_int_equal(b.usage.prompt_tokens, c.usage.prompt_tokens);
}

/* ---- bad requests ---------------------------------------------------------------------------- */

static void bad_requests_are_refused_by_name(void **state)
{
    fixture *f = *state;
    answer(f, "ok");
    expect_refused(f, "{}", "prompt");
    expect_refused(f, "{\"prompt\": \"a\", \"prompt_token_ids\": [1]}", "prompt_token_ids");
    expect_refused(f, "{\"prompt\": \"\"}", "prompt");
    expect_refused(f, "{\"prompt_token_ids\": [5000]}", "prompt_token_ids[0]");
    expect_refused(f, "{\"prompt_token_ids\": []}", "prompt_token_ids: has no tokens");
    expect_refused(f, "{\"prompt\": \"a\", \"top_p\": 0}", "top_p");
    expect_refused(f, "{\"prompt\": \"a\", \"temperature\": -1}", "temperature");
    expect_refused(f, "{\"prompt\": \"a\", \"n\": 9}", "n:");
    expect_refused(f, "{\"prompt\": \"a\", \"logprobs\": 21}", "logprobs");
    expect_refused(f, "{\"prompt\": \"a\", \"min_tokens\": 5, \"max_tokens\": 4}", "min_tokens");
    expect_refused(f, "{\"prompt\": \"a\", \"max_tokens\": 2048}", "2048");
    expect_refused(f, "{\"prompt\": \"a\", \"retention\": {\"method\": \"nope\"}}", "nope");
    strbuf ids = {0};
    strbuf_puts(&ids, "{\"prompt\": \"a\", \"stop_token_ids\": [7");
    for (int i = 0; i < VOCAB; i++) strbuf_puts(&ids, ", 7");
    strbuf_puts(&ids, "]}");
    expect_refused(f, ids.data, "stop_token_ids: 1041 ids");
    strbuf_destroy(&ids);
    /* With all tokens as stops, min_tokens leaves none to draw. */
    ids = (strbuf){0};
    strbuf_puts(&ids, "{\"prompt\": \"a\", \"min_tokens\": 1, \"stop_token_ids\": [0");
    for (int i = 1; i < VOCAB; i++) strbuf_printf(&ids, ", %d", i);
    strbuf_puts(&ids, "]}");
    expect_refused(f, ids.data, "stop_token_ids: are all tokens");
    strbuf_destroy(&ids);
    expect_refused(f, "{\"messages\": []}", "messages");
    expect_refused(f, "{\"messages\": [{\"content\": \"x\"}]}", "messages[0]");
    expect_refused(f,
                   "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
                   "content[0]");
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}")); /* the engine goes on */
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
}

static void unknown_fields_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"tempature\": 1}", "tempature"},
        {"{\"n\": 1.5}", "n"},
        {"{\"stop\": [1]}", "stop"},
        {"{\"stop\": \"\"}", "stop"},
        {"{\"logit_bias\": {\"x\": 1}}", "logit_bias"},
        {"{\"logit_bias\": {\"1\": 1, \"01\": 1}}",
         "logit_bias: \"01\": a token id has no leading zeros"},
        {"{\"logit_bias\": {\"00\": 1}}", "logit_bias: \"00\": a token id"},
        {"{\"prompt\": 7}", "prompt"},
        {"{\"seed\": \"a\"}", "seed"},
        {"[]", "object"}};
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        engine_request r;
        json_t *tree;
        error err = {{0}};
        engine_request_init(&r, &defaults);
        assert_true(status_ok(json_read_text("t", bad[i][0], strlen(bad[i][0]), &tree, &err)));
        assert_int_equal(engine_request_parse(tree, "t", NULL, &r, &err).code, STATUS_INVALID);
        if (!strstr(err.text, bad[i][1])) fail_msg("\"%s\" does not name %s", err.text, bad[i][1]);
        engine_request_destroy(&r);
        json_decref(tree);
    }
}

/* A penalty near 0 would divide logits to infinity. */
static void penalties_near_zero_are_the_smallest_that_keeps_logits_finite(void **state)
{
    static const struct {
        const char *json;
        float due;
    } cases[] = {{"{\"prompt\": \"a\", \"repetition_penalty\": 1e-30}", 1e-4f},
                 {"{\"prompt\": \"a\", \"repetition_penalty\": 0.00009}", 1e-4f},
                 {"{\"prompt\": \"a\", \"repetition_penalty\": 0.001}", 0.001f},
                 {"{\"prompt\": \"a\", \"repetition_penalty\": 2}", 2}};
    fixture *f = *state;
    answer(f, "some");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_stream *s = submit(f, cases[i].json);
        engine_output out;
        do assert_true(engine_stream_wait(s, &out));
        while (out.finish == ENGINE_FINISH_NONE);
        assert_int_equal(out.finish, ENGINE_FINISH_STOP);
        assert_true(s->sched_request.params.repetition_penalty == cases[i].due);
        engine_stream_release(s);
    }
    expect_refused(f, "{\"prompt\": \"a\", \"repetition_penalty\": 0}", "repetition_penalty");
    expect_refused(f, "{\"prompt\": \"a\", \"repetition_penalty\": 1e-320}", "repetition_penalty");
}

/* ---- aborts, full queues, slow readers ------------------------------------------------------- */

static void aborted_streams_end(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    engine_stream *s =
        submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 1900, \"n\": 2}");
    engine_output out;
    assert_true(engine_stream_wait(s, &out));
    engine_stream_abort(s);
    reading r = read_all(s);
    assert_int_equal(r.ends, 2);
    assert_int_equal(r.finish, ENGINE_FINISH_ABORT);
    /* Released without being read. */
    engine_stream_release(
        submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 1900}"));
}

static void count_notice(void *ctx) { atomic_fetch_add((_Atomic uint32_t *)ctx, 1); }

static void a_released_stream_gets_no_notice(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    engine_request r = request("{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 1900}");
    engine_stream *s;
    engine_output out;
    _Atomic uint32_t notices = 0;
    assert_true(status_ok(engine_submit(f->engine, &r, count_notice, (void *)&notices, &s, NULL)));
    engine_request_destroy(&r);
    assert_true(engine_stream_wait(s, &out));
    while (atomic_load(&notices) == 0) nap(); /* a token can be read before its notice */
    atomic_store(&f->model.hold, true);       /* that step yields a token and the end */
    engine_stream_release(s);
    uint32_t before = atomic_load(&notices);
    assert_true(before > 0);
    atomic_store(&f->model.hold, false);
    while (engine_get_stats(f->engine).requests_aborted == 0) nap();
    assert_int_equal(atomic_load(&notices), before);
}

/* Whether aborted before the engine thread knew the request, or while it ran. */
static void aborts_end_as_aborts(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    for (uint32_t i = 1; i <= 40; i++) {
        engine_stream *s =
            submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 1900}");
        engine_stream_abort(s);
        reading r = read_all(s);
        assert_int_equal(r.ends, 1);
        assert_int_equal(r.finish, ENGINE_FINISH_ABORT);
        while (engine_get_stats(f->engine).requests_aborted < i) nap();
    }
}

static void a_full_queue_refuses_at_once(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    atomic_store(&f->model.hold, true);
    engine_stream *a = submit(f, "{\"prompt\": \"a\"}"), *b = submit(f, "{\"prompt\": \"b\"}"),
                  *c = NULL;
    engine_request r = request("{\"prompt\": \"c\"}");
    error err = {{0}};
    assert_int_equal(engine_submit(f->engine, &r, NULL, NULL, &c, &err).code, STATUS_QUEUE_FULL);
    atomic_store(&f->model.hold, false);
    read_all(a);
    read_all(b);
    /* The engine's count of streams drops just before or just after the reader gets the end. */
    while (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &c, &err))) nap();
    engine_request_destroy(&r);
    assert_int_equal(read_all(c).finish, ENGINE_FINISH_STOP);
}

static void a_slow_reader_stalls_its_own_stream_alone(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    engine_stream *slow =
        submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 500}");
    reading quick =
        read_all(submit(f, "{\"prompt\": \"b\", \"ignore_eos\": true, \"max_tokens\": 300}"));
    assert_int_equal(quick.usage.completion_tokens, 300);
    /* The slow stream is paused by now: steps stop though it is not done. */
    uint32_t before, after = atomic_load(&f->model.steps);
    do {
        before = after;
        for (int i = 0; i < 50; i++) nap();
        after = atomic_load(&f->model.steps);
    } while (after != before);
    assert_true(after < 500);
    reading r = read_all(slow);
    assert_int_equal(r.usage.completion_tokens, 500);
    assert_int_equal(r.tokens, 500);
}

/* The ring starts small and grows, from any offset, while it is not read. */
static void a_late_reader_finds_everything(void **state)
{
    fixture *f = *state;
    char text[800] = "";
    for (int i = 0; i < 100; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d, ", i * i);
    answer(f, text);
    atomic_store(&f->model.hold_at, atomic_load(&f->model.steps) + 8); /* some are read */
    engine_stream *s = submit(f, "{\"prompt\": \"a\", \"max_tokens\": 100}");
    engine_output out;
    for (int i = 0; i < 100; i++) {
        if (i == 5) {
            while (!atomic_load(&f->model.hold)) nap();
            atomic_store(&f->model.hold, false);
            while (engine_get_stats(f->engine).n_live > 0) nap();
        }
        assert_true(engine_stream_wait(s, &out));
        assert_int_equal(out.sample.token, f->model.script[i]);
    }
    assert_int_equal(out.finish, ENGINE_FINISH_LENGTH);
    engine_stream_release(s);
}

/* The state of the backend at each notice of a reader. */
typedef struct notices {
    const scripted *model;
    uint32_t n, idle, collecting;
} notices;

static void note(void *ctx)
{
    notices *n = ctx;
    n->n++;
    n->idle += n->model->n_plans == 0;
    n->collecting += atomic_load(&n->model->collecting);
}

static notices notices_of(fixture *f, const char *json)
{
    notices n = {.model = &f->model};
    engine_request r = request(json);
    engine_stream *s;
    error err;
    if (!status_ok(engine_submit(f->engine, &r, note, &n, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    assert_int_equal(read_all(s).tokens, 40);
    return n;
}

/* A GPU computes the next step while tokens become text; a CPU, which computes when it is
 * collected, keeps no token back meanwhile. */
static void readers_are_told_between_submit_and_collect(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    notices n = notices_of(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 40}");
    assert_int_equal(n.n, 40);
    assert_int_equal(n.collecting, 0);
    assert_true(n.idle <= 1); /* the end, behind which there is no step */
    n = notices_of(f, "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": 40, "
                      "\"stop\": \"never\"}");
    assert_int_equal(n.n, 40);
    assert_int_equal(n.collecting, 0);
    assert_true(n.idle <= 1);
}

/* An answer whose end fits into the ring does not wait for its reader. */
static void a_short_answer_awaits_no_reader(void **state)
{
    fixture *f = *state;
    answer(f, "x");
    for (int n = 1; n <= 3; n++)
        for (int most = 1; most <= 4; most++) {
            char json[128];
            snprintf(json, sizeof json,
                     "{\"prompt\": \"a\", \"ignore_eos\": true, \"max_tokens\": %d, \"n\": %d}",
                     most, n);
            engine_stream *s = submit(f, json);
            while (engine_get_stats(f->engine).n_live > 0) nap();
            assert_int_equal(read_all(s).tokens, most); /* of the first choice */
        }
}

/* ---- trouble in the backend ------------------------------------------------------------------ */

static void a_failed_step_ends_its_requests_alone(void **state)
{
    fixture *f = *state;
    answer(f, "some words to say here");
    f->model.failure = status_make(STATUS_NO_MEMORY, "the step's buffers");
    atomic_store(&f->model.fail_at, 2);
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_non_null(strstr(r.error_text, "step's buffers"));
    r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "some words to say here");
}

/* Plans are the engine's own, so a refused one is no fault of the client's. */
static void a_refused_plan_is_the_servers_fault(void **state)
{
    fixture *f = *state;
    static const status_code codes[] = {STATUS_INVALID, STATUS_CORRUPT};
    answer(f, "some words to say here");
    for (size_t i = 0; i < 2; i++) {
        f->model.failure = status_make(codes[i], "plan: no such page");
        atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + 1 + fixture_in_flight);
        reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
        assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
        assert_int_equal(r.error_code, STATUS_INTERNAL);
        assert_string_equal(r.error_text, "plan: no such page");
    }
}

/* With two steps in flight a request is admitted into the step behind one that fails. That step
 * fails, too, and the request is none the worse for it. With one, it is in the step that fails. */
static void a_failed_step_spares_who_came_behind_it(void **state)
{
    fixture *f = *state;
    answer(f, "some words to say here");
    f->model.failure = status_make(STATUS_IO, "the step before has failed");
    uint32_t prepared = atomic_load(&f->engine->n_prepared);
    atomic_store(&f->model.hold_at, 3);
    engine_stream *first = submit(f, "{\"prompt\": \"a\", \"ignore_eos\": true}");
    while (!atomic_load(&f->model.hold)) nap();
    engine_stream *behind = submit(f, "{\"prompt\": \"b\"}");
    while (atomic_load(&f->engine->n_prepared) < prepared + 2) nap();
    atomic_store(&f->model.fail_behind, true);
    atomic_store(&f->model.fail_at, 4);
    atomic_store(&f->model.hold_at, 0);
    atomic_store(&f->model.hold, false);
    assert_int_equal(read_all(first).finish, ENGINE_FINISH_ERROR);
    reading r = read_all(behind);
    if (fixture_in_flight < 2) {
        assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
        return;
    }
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "some words to say here");
}

static void a_request_without_memory_fails_alone(void **state)
{
    fixture *f = *state;
    answer(f, "words");
    for (int i = 0; i < 4; i++) read_all(submit(f, "{\"prompt\": \"a\"}")); /* inboxes grow */
    atomic_store(&f->no_memory, true);
    reading r = read_all(submit(f, "{\"prompt\": \"a\", \"n\": 2}"));
    assert_int_equal(r.ends, 2);
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_non_null(strstr(r.error_text, "out of memory"));
    atomic_store(&f->no_memory, false);
    assert_string_equal(read_all(submit(f, "{\"prompt\": \"a\"}")).text, "words");
}

/* Each allocation fails once, in an engine that has not served yet, so that all lists have to
 * grow. */
static void whichever_allocation_fails_a_request_ends(void **state)
{
    fixture *f = *state;
    uint32_t n_failed = 0;
    answer(f, "words");
    for (long at = 0, left = -1; left < 0; at++) {
        engine_destroy(f->engine);
        fixture_start(f);
        atomic_store(&f->fail_in, at);
        reading r = read_all(submit(f, "{\"prompt\": \"a\", \"n\": 2}"));
        left = atomic_exchange(&f->fail_in, -1);
        assert_int_equal(r.ends, 2);
        if (r.finish == ENGINE_FINISH_ERROR) {
            assert_non_null(strstr(r.error_text, "out of memory"));
            n_failed++;
        } else {
            assert_string_equal(r.text, "words");
        }
        assert_string_equal(read_all(submit(f, "{\"prompt\": \"a\"}")).text, "words");
    }
    assert_true(n_failed > 2);
}

/* The vocabulary is padded, and random weights draw any id. */
static void ids_without_a_token_have_no_text(void **state)
{
    fixture *f = *state;
    answer(f, "one two");
    uint32_t unknown = tok_vocab_size(f->tokenizer);
    assert_true(unknown < f->model.info.vocab_size);
    memmove(f->model.script + 1, f->model.script, f->model.n_script * sizeof f->model.script[0]);
    f->model.script[0] = unknown;
    f->model.n_script++;
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "one two");
    assert_int_equal(r.usage.completion_tokens, f->model.n_script);
}

static void a_broken_backend_fails_every_request(void **state)
{
    fixture *f = *state;
    answer(f, "words");
    f->model.failure = status_make(STATUS_INTERNAL, "tables differ");
    atomic_store(&f->model.fail_at, 1);
    reading r = read_all(submit(f, "{\"prompt\": \"a\", \"n\": 3}"));
    assert_int_equal(r.ends, 3);
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    /* The backend is not remade: later requests are refused, at once or by the engine thread. */
    expect_refused(f, "{\"prompt\": \"a\"}", "the backend has failed");
}

static void other_page_tables_break_the_backend(void **state)
{
    fixture *f = *state;
    answer(f, "words");
    atomic_store(&f->model.lie_at, 1);
    reading r = read_all(submit(f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_ERROR);
    assert_non_null(strstr(r.error_text, "page tables"));
}

/* ---- many at once ---------------------------------------------------------------------------- */

static void *reader_thread(void *arg)
{
    fixture *f = arg;
    for (int i = 0; i < 20; i++) {
        bool stops = i & 1;
        engine_stream *s =
            submit(f, stops ? "{\"prompt\": \"many of us\", \"n\": 2, \"stop\": \"four\"}"
                            : "{\"prompt\": \"many of us\", \"n\": 2}");
        if (i % 5 == 4) {
            engine_stream_release(s);
            continue;
        }
        reading r = read_all(s);
        const char *due = stops ? "one two three " : "one two three four five";
        if (r.finish != ENGINE_FINISH_STOP || strcmp(r.text, due) != 0) return arg;
    }
    return NULL;
}

static void threads_share_the_engine(void **state)
{
    fixture *f = *state;
    answer(f, "one two three four five");
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader_thread, f), 0);
    for (int i = 0; i < 6; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong); /* a thread that read a wrong text returns it */
    }
    engine_stats stats = engine_get_stats(f->engine);
    assert_true(stats.requests_finished + stats.requests_aborted <= 120);
    assert_true(stats.requests_finished >= 96);
}

int main(void)
{
#define CASE(name)       cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
#define CASE_SMALL(name) cmocka_unit_test_setup_teardown(name, setup_small, fixture_teardown)
    const struct CMUnitTest tests[] = {
        CASE(eos_ends_and_is_not_shown),
        CASE(stop_strings_cut_across_tokens),
        CASE(texts_are_the_same_whoever_makes_them),
        CASE(lengths_and_min_tokens),
        CASE(every_choice_ends_once),
        CASE(messages_go_through_the_template),
        CASE(bad_requests_are_refused_by_name),
        CASE(unknown_fields_are_refused_by_name),
        CASE(penalties_near_zero_are_the_smallest_that_keeps_logits_finite),
        CASE(aborted_streams_end),
        CASE(a_released_stream_gets_no_notice),
        CASE(aborts_end_as_aborts),
        CASE_SMALL(a_full_queue_refuses_at_once),
        CASE_SMALL(a_slow_reader_stalls_its_own_stream_alone),
        CASE(a_late_reader_finds_everything),
        CASE(readers_are_told_between_submit_and_collect),
        CASE(a_short_answer_awaits_no_reader),
        CASE(a_failed_step_ends_its_requests_alone),
        CASE(a_refused_plan_is_the_servers_fault),
        CASE(a_failed_step_spares_who_came_behind_it),
        CASE(a_request_without_memory_fails_alone),
        CASE(whichever_allocation_fails_a_request_ends),
        CASE(ids_without_a_token_have_no_text),
        CASE(a_broken_backend_fails_every_request),
        CASE(other_page_tables_break_the_backend),
        CASE(threads_share_the_engine),
    };
    int failures = cmocka_run_group_tests_name("engine", tests, NULL, NULL);
    fixture_in_flight = 2;
    return failures + cmocka_run_group_tests_name("with two steps in flight", tests, NULL, NULL);
}

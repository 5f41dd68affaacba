/* The model whose weights are constructed to recall (tools/make_recall_model.py): with everything
 * kept it always recalls, and with a tenth of the pages kept, chunkkv keeps the needle's page in
 * the matching layer. Runs through the quality bench, and so tests tasks, pairs, records and
 * findings. */
#include "quality/quality.h"
#include "quality/score/findings.h"
#include "tests/e2e/house.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { PROMPTS = 24, LENGTH = 1500 };

static const setting recall = {.what = "recall",
                               .dir = "tests/golden/models/recall_f32",
                               .own_words = true,
                               .kv_type = KERN_KV_F32,
                               .prefill_chunk = 512,
                               .layers_per_group = 1,
                               .heads_per_group = 2,
                               .page_tokens = 16,
                               .max_model_len = 4096,
                               .kv_bytes = 16 << 20,
                               .prefix_cache = true,
                               .max_sessions = 64};

/* ---- hooks that sleep on a condition variable ------------------------------------------------ */

typedef struct sleeper {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool notified;
    unsigned turns_before_stop; // loop iterations; 0 = never stops
    char last[256];
} sleeper;

static void notify(void *ctx)
{
    sleeper *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->notified = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void wait_for(void *ctx, int timeout_ms)
{
    sleeper *s = ctx;
    (void)timeout_ms; /* a notification always comes */
    pthread_mutex_lock(&s->lock);
    while (!s->notified) pthread_cond_wait(&s->wake, &s->lock);
    s->notified = false;
    pthread_mutex_unlock(&s->lock);
}

static bool stopped(void *ctx)
{
    sleeper *s = ctx;
    return s->turns_before_stop && --s->turns_before_stop == 0;
}

static void progress(void *ctx, const char *text)
{
    sleeper *s = ctx;
    snprintf(s->last, sizeof s->last, "%s", text);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static char folder[128];

static void empty_folder(void)
{
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    closedir(dir);
}

static quality_options options_for(house *h, sleeper *s)
{
    static const char *const methods[] = {"chunkkv", "rag-bm25={\"tokens\":64}"};
    *s = (sleeper){.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
    return (quality_options){
        .engine = h->engine,
        .tokenizer = h->tokenizer,
        .model = "recall",
        .setup = "f32",
        .max_tokens = 4096,
        .in_flight = 16,
        .sessions = true,
        .methods = methods,
        .n_methods = 2,
        .budgets = "0.1,16,40",
        .tasks = "recall",
        .lengths = "1500",
        .samples = PROMPTS,
        .questions = 4,
        .measured = PROMPTS,
        .turns = 1,
        .seed = 7,
        .out = folder,
        .hooks = {notify, wait_for, stopped, progress, s},
    };
}

static json_t *run(const quality_options *o)
{
    strbuf table = {0};
    error err = {{0}};
    json_t *results;
    char path[512];
    if (!status_ok(quality_run(o, &table, &err))) fail_msg("%s", err.text);
    assert_non_null(strstr(table.data, "## recall"));
    strbuf_destroy(&table);
    snprintf(path, sizeof path, "%s/results.json", folder);
    if (!status_ok(json_read_file(path, 16 << 20, &results, &err))) fail_msg("%s", err.text);
    return results;
}

static const json_t *first_task(const json_t *results)
{
    return json_array_get(json_object_get(results, "tasks"), 0);
}

/* The cell of a method in the arm's list, over all compared lengths (or of length 0). */
static const json_t *find_cell(const json_t *place, const char *arm, const char *method,
                               const char *budget)
{
    const json_t *list = json_object_get(json_object_get(place, "cells"), arm);
    size_t i;
    json_t *cell;
    json_array_foreach((json_t *)list, i, cell)
    {
        if (strcmp(json_string_value(json_object_get(cell, "method")), method) == 0 &&
            strcmp(json_string_value(json_object_get(cell, "budget")), budget) == 0)
            return cell;
    }
    fail_msg("no cell %s %s", method, budget);
    return NULL;
}

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static double mean_of(const json_t *cell) { return number(json_object_get(cell, "score"), "mean"); }

/* ---- through the engine alone ---------------------------------------------------------------- */

enum { KEY = 0, TOKENS = 32, PAGE = 16, DIRECT_PROMPTS = 16, DIRECT_TOKENS = 1200 };

/* Asks for what follows the key; *found gets the kept sets of the report, if there is one. */
static uint32_t ask(house *h, const uint32_t *ids, const char *retention, const bool *needle,
                    findings *found)
{
    static const engine_defaults greedy = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    engine_stream *stream;
    engine_output out;
    error err = {{0}};
    uint32_t answer = UINT32_MAX;
    const bool forced[DIRECT_TOKENS] = {false};
    engine_request_init(&r, &greedy);
    r.prompt_token_ids = malloc(DIRECT_TOKENS * sizeof *ids);
    memcpy(r.prompt_token_ids, ids, DIRECT_TOKENS * sizeof *ids);
    r.n_prompt_token_ids = DIRECT_TOKENS;
    r.max_tokens = 1;
    r.retention = json_loads(retention, 0, NULL);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &stream, &err)))
        fail_msg("%s", err.text);
    while (engine_stream_wait(stream, &out)) {
        if (out.has_token) answer = out.sample.token;
        if (out.finish == ENGINE_FINISH_NONE) continue;
        assert_int_equal(out.finish, ENGINE_FINISH_LENGTH);
        if (found && !status_ok(findings_of_kept(out.report->kept_json, DIRECT_TOKENS, needle,
                                                 forced, found, &err)))
            fail_msg("%s", err.text);
    }
    engine_stream_release(stream);
    engine_request_destroy(&r);
    return answer;
}

/* The page that holds what follows the key is known: the matching layer keeps all of it. */
static void matching_layer_keeps_the_page(void **state)
{
    house *h = *state;
    rng r = rng_seed(11);
    unsigned kept_in_first_layer = 0;
    for (int i = 0; i < DIRECT_PROMPTS; i++) {
        uint32_t ids[DIRECT_TOKENS];
        bool needle[DIRECT_TOKENS] = {false};
        for (uint32_t p = 0; p < DIRECT_TOKENS; p++) ids[p] = 1 + rng_below(&r, TOKENS - 1);
        /* Not in the last pages, which are kept anyway. */
        uint32_t at = rng_below(&r, DIRECT_TOKENS - 8 * PAGE);
        ids[at] = ids[DIRECT_TOKENS - 1] = KEY;
        for (uint32_t p = 0; p < PAGE; p++) needle[(at + 1) / PAGE * PAGE + p] = true;
        findings found;
        assert_int_equal(ask(h, ids, "{\"method\":\"full\"}", NULL, NULL), ids[at + 1]);
        uint32_t answer =
            ask(h, ids, "{\"method\":\"chunkkv\",\"ratio\":0.08,\"report\":\"positions\"}", needle,
                &found);
        assert_int_equal(answer, ids[at + 1]);
        assert_int_equal(found.n_layers, 2);
        assert_true(found.needle_whole[1] >= 1);
        kept_in_first_layer += found.needle_whole[0] >= 1;
        findings_destroy(&found);
    }
    assert_in_range(kept_in_first_layer, 0, DIRECT_PROMPTS / 2);
}

/* ---- through the bench ----------------------------------------------------------------------- */

static void needle_stays(void **state)
{
    house *h = *state;
    sleeper s;
    empty_folder();
    quality_options o = options_for(h, &s);
    json_t *results = run(&o);
    const json_t *task = first_task(results), *all = json_object_get(task, "all");
    const json_t *full = find_cell(all, "single", "full", "-");
    assert_int_equal(number(json_object_get(full, "score"), "n"), PROMPTS);
    assert_float_equal(mean_of(full), 1, 0);
    const json_t *kept = find_cell(all, "single", "chunkkv", "0.1");
    assert_float_equal(mean_of(kept), 1, 0);
    assert_true(number(kept, "kept") < 0.1 && number(kept, "kept") > 0.05);
    assert_float_equal(number(json_object_get(kept, "difference"), "mean"), 0, 0);

    /* Layer 1 keeps what it has found; layer 0 attends one token back at most. */
    const json_t *measured = json_array_get(json_object_get(task, "measures"), 0);
    assert_string_equal(json_string_value(json_object_get(measured, "method")), "chunkkv");
    assert_int_equal(number(measured, "layers"), 2);
    const json_t *whole = json_object_get(measured, "needle_share");
    assert_true(json_number_value(json_array_get(whole, 0)) < 0.5);
    assert_true(json_number_value(json_array_get(whole, 1)) > 0.9);
    assert_int_equal(number(measured, "agreed"), PROMPTS);
    json_decref(results);
}

/* The engine refuses a budget below the protected pages, and the bench lists the refusal. */
static void refused_cell_is_listed(void **state)
{
    house *h = *state;
    sleeper s;
    empty_folder();
    quality_options o = options_for(h, &s);
    json_t *results = run(&o);
    /* A budget below the window is refused at once, one below its pages when the prompt is
     * known. */
    static const char *const budgets[] = {"16", "40"};
    for (int i = 0; i < 2; i++) {
        const json_t *cell =
            find_cell(json_object_get(first_task(results), "all"), "single", "chunkkv", budgets[i]);
        const char *why = json_string_value(json_object_get(cell, "refused"));
        assert_non_null(why);
        assert_non_null(strstr(why, "tokens"));
    }
    json_decref(results);
}

static size_t count_lines(void)
{
    char path[512], *text;
    size_t size, lines = 0;
    error err;
    snprintf(path, sizeof path, "%s/records.jsonl", folder);
    if (!status_ok(file_read(path, 16 << 20, &text, &size, &err))) fail_msg("%s", err.text);
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    free(text);
    return lines;
}

/* Stopped in the middle, resumed, and resumed once more: every prompt is answered once. */
static void resumes(void **state)
{
    house *h = *state;
    sleeper s;
    error err = {{0}};
    strbuf table = {0};
    empty_folder();
    quality_options o = options_for(h, &s);
    s.turns_before_stop = 4; /* each iteration answers 16 at most */
    status st = quality_run(&o, &table, &err);
    assert_int_equal(st.code, STATUS_ABORTED);
    size_t before = count_lines();
    strbuf_clear(&table);
    /* An existing file is not overwritten by accident. */
    assert_int_equal(quality_run(&o, &table, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "--resume"));

    o.resume = true;
    json_decref(run(&o));
    size_t whole = count_lines();
    assert_int_equal(whole, 1 + 3 * PROMPTS); /* the head line; then full, chunkkv, rag-bm25 */
    assert_true(before < whole);
    json_decref(run(&o));
    assert_int_equal(count_lines(), whole);
    assert_non_null(strstr(s.last, "0 answers (72 before)"));

    o.seed++;
    assert_int_equal(quality_run(&o, &table, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "other settings"));
    strbuf_destroy(&table);
}

/* With a tenth of the pages kept for the first question, the second question's answer is lost. */
static void second_question(void **state)
{
    house *h = *state;
    sleeper s;
    empty_folder();
    quality_options o = options_for(h, &s);
    o.turns = 2;
    strbuf table = {0};
    error err;
    assert_int_equal(quality_run(&o, &table, &err).code, STATUS_INVALID); /* rag-bm25 */
    strbuf_destroy(&table);
    o.n_methods = 1;
    json_t *results = run(&o);
    const json_t *all = json_object_get(first_task(results), "all");
    assert_float_equal(mean_of(find_cell(all, "session", "full", "-")), 1, 0);
    assert_float_equal(mean_of(find_cell(all, "fresh", "full", "-")), 1, 0);
    const json_t *session = find_cell(all, "session", "chunkkv", "0.1");
    assert_float_equal(number(session, "continued"), 1, 0);
    assert_true(mean_of(session) < 0.5);
    assert_float_equal(number(json_object_get(session, "difference"), "mean"), mean_of(session) - 1,
                       1e-6);
    assert_float_equal(mean_of(find_cell(all, "first", "chunkkv", "0.1")), 1, 0);
    assert_float_equal(mean_of(find_cell(all, "fresh", "chunkkv", "0.1")), 1, 0);
    assert_float_equal(mean_of(find_cell(all, "full", "chunkkv", "0.1")), 1, 0);
    json_decref(results);
}

static int setup(void **state)
{
    static house h;
    h = open_house(&recall);
    snprintf(folder, sizeof folder, "%s/octavo-recall-XXXXXX", P_tmpdir);
    *state = &h;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    close_house(*state);
    empty_folder();
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching_layer_keeps_the_page),
        cmocka_unit_test(needle_stays),
        cmocka_unit_test(refused_cell_is_listed),
        cmocka_unit_test(resumes),
        cmocka_unit_test(second_question),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

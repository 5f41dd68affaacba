/* Contexts far larger than the pool and than what the demo model was trained for, and answers far
 * longer than what is kept of them. Scheduler and backend run step by step, so that the pages of
 * every step can be inspected. */
#include "model/model.h"
#include "scheduler/scheduler.h"
#include "tests/light.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNK = 512, PAGE = 16, LAYERS = 4, TRAINED = 4096 };

/* One request alone on a pool of `pool_tokens`. */
typedef struct lane {
    comm *group;
    backend backend;
    const backend_info *info;
    sched *sched;
    const step_result *result;
    uint32_t peak_used; // pages, over all steps
    uint32_t furthest;  // RoPE position, over all steps
    double most_kept;   // largest number after a step, while `watch` is set
    uint32_t drawn, n_steps;
} lane;

static lane open_lane(uint32_t pool_tokens, uint32_t max_model_len, uint32_t max_logical_len)
{
    lane l = {0};
    error err = {{0}};
    model_config config;
    comm_options self = {.kind = "self", .size = 1};
    if (!status_ok(comm_create(&self, &l.group, &err)) ||
        !status_ok(model_config_load("models/demo", NULL, 0, &config, &err)))
        fail_msg("%s", err.text);
    config.max_positions = max_model_len;
    size_t page_bytes = (size_t)2 * PAGE * config.n_kv_heads * config.head_dim * 2;
    backend_options bo = {
        .dir = "models/demo",
        .config = &config,
        .kv_type = KERN_KV_BF16,
        .weight_type = DTYPE_BF16,
        .group = l.group,
        .geometry = {.page_tokens = PAGE,
                     .layers_per_group = 1,
                     .heads_per_group = config.n_kv_heads},
        .kv_bytes = (pool_tokens / PAGE + 1) * config.n_layers * page_bytes,
        .max_rows = CHUNK + 1,
        .max_seqs = 1,
        .max_model_len = max_model_len,
    };
    if (!status_ok(backend_cpu_create(&bo, &l.backend, &err))) fail_msg("%s", err.text);
    l.info = l.backend.ops->info(l.backend.ctx);
    assert_int_equal(l.info->n_pages, (pool_tokens / PAGE + 1) * LAYERS);
    sched_options so = {.geometry = l.info->geometry,
                        .n_pages = l.info->n_pages,
                        .max_seqs = 1,
                        .prefill_chunk = CHUNK,
                        .max_model_len = max_model_len,
                        .max_logical_len = max_logical_len,
                        .max_requests = 1,
                        .prefix_cache = true,
                        .salt = l.info->identity};
    if (!status_ok(sched_create(&so, &l.sched, &err))) fail_msg("%s", err.text);
    return l;
}

static void close_lane(lane *l)
{
    sched_destroy(l->sched);
    l->backend.ops->destroy(l->backend.ctx);
    comm_destroy(l->group);
}

/* False when there is no work left. */
static bool step(lane *l, const sched_event *event, bool watch)
{
    sched_event events[2] = {{0}};
    size_t n = 0;
    if (l->result) events[n++] = (sched_event){.kind = SCHED_RESULT, .result = l->result};
    if (event) events[n++] = *event;
    const step_plan *plan = sched_step(l->sched, 0, events, n);
    l->result = NULL;
    const char *wrong = ++l->n_steps % 256 == 0 ? sched_check_integrity(l->sched) : NULL;
    if (wrong) fail_msg("%s", wrong);
    sched_stats stats = sched_get_stats(l->sched);
    if (stats.pages.used > l->peak_used) l->peak_used = stats.pages.used;
    if (watch && stats.kept_tokens > l->most_kept) l->most_kept = stats.kept_tokens;
    if (sched_plan_empty(plan)) return false;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t last = plan->seqs[i].position + plan->seqs[i].n_tokens - 1;
        if (last > l->furthest) l->furthest = last;
        l->drawn += plan->seqs[i].n_samples;
    }
    assert_true(status_ok(l->backend.ops->submit(l->backend.ctx, plan)));
    assert_true(status_ok(l->backend.ops->collect(l->backend.ctx, &l->result)));
    if (!status_ok(l->result->status)) fail_msg("%s", l->result->status.message);
    return true;
}

static retention_policy policy_of(const lane *l, const char *text)
{
    retention_policy policy;
    error err = {{0}};
    json_t *json;
    retention_limits limits = {l->info->geometry, CHUNK, 0};
    if (!status_ok(json_read_text("retention", text, strlen(text), &json, &err)) ||
        !status_ok(retention_parse(json, &limits, &policy, &err)))
        fail_msg("%s", err.text);
    json_decref(json);
    return policy;
}

/* Runs a request to its end. */
static void run(lane *l, const char *retention, uint32_t n_prompt, uint32_t n_new)
{
    uint32_t *prompt = calloc(n_prompt, sizeof *prompt);
    assert_non_null(prompt);
    rng r = rng_seed(7);
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = rng_below(&r, 1000);
    sched_request q = {.id = 1,
                       .prompt = prompt,
                       .n_prompt = n_prompt,
                       .max_new_tokens = n_new,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .policy = policy_of(l, retention)};
    error err = {{0}};
    if (!status_ok(sched_check(l->sched, &q, &err))) fail_msg("%s", err.text);
    sched_event add = {.kind = SCHED_ADD, .add = &q};
    bool more = step(l, &add, false);
    while (more && l->drawn < n_new) more = step(l, NULL, l->drawn > 1);
    step(l, NULL, true);
    assert_int_equal(l->drawn, n_new);
    assert_int_equal(sched_get_stats(l->sched).preemptions, 0);
    free(prompt);
}

/* ---- a prompt many times the context --------------------------------------------------------- */

/* Runs one prompt under the model's own context and returns the most pages that it took. */
static uint32_t pages_of_prompt(const char *method, uint32_t pool, uint32_t tokens)
{
    char retention[256];
    uint32_t budget = pool / 4;
    snprintf(retention, sizeof retention,
             "{\"method\": \"%s\", \"scope\": \"layer\", \"tokens\": %u, \"recurrent_chunk\": "
             "%u, \"sinks\": %u, \"window\": %u}",
             method, budget, budget, budget / 8, budget / 8);
    lane l = open_lane(pool, TRAINED, tokens + 64);
    run(&l, retention, tokens, 8);
    uint32_t used = l.peak_used;
    print_message("%s: %u tokens, at most %u of %u pages, positions up to %u\n", method, tokens,
                  used, l.info->n_pages - 1, l.furthest);
    assert_in_range(used, budget / PAGE * LAYERS, l.info->n_pages - 1);
    /* Positions were reassigned: the model never sees one beyond two budgets. */
    assert_in_range(l.furthest, budget, 2 * budget + 8);
    close_lane(&l);
    return used;
}

/* However long the prompt, the pages are the same. */
static void a_prompt_many_times_the_context(void **state)
{
    (void)state;
    bool soak = getenv("OCTAVO_SOAK") != NULL, light = is_light();
    uint32_t longest = (soak ? 64 : light ? 4 : 16) * TRAINED;
    uint32_t pool = soak ? 8192 : light ? 512 : 1024;
    static const char *const methods[] = {"streaming-recurrent", "h2o-recurrent", "tova-recurrent",
                                          "infinipot"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        uint32_t used = pages_of_prompt(methods[i], pool, TRAINED + TRAINED / 4);
        if (strcmp(methods[i], "h2o-recurrent") == 0)
            assert_int_equal(pages_of_prompt(methods[i], pool, longest), used);
    }
}

static void a_prompt_that_keeps_all_does_not_fit(void **state)
{
    (void)state;
    lane l = open_lane(1024, 16384 + 64, 0);
    static uint32_t prompt[16384];
    sched_request q = {.id = 1,
                       .prompt = prompt,
                       .n_prompt = 16384,
                       .max_new_tokens = 8,
                       .n = 1,
                       .policy = policy_of(&l, "{\"method\": \"full\"}")};
    error err = {{0}};
    assert_int_equal(sched_check(l.sched, &q, &err).code, STATUS_LIMIT);
    close_lane(&l);
}

/* ---- an answer many times as long as what is kept of it -------------------------------------- */

static void an_answer_many_times_its_budget(void **state)
{
    (void)state;
    enum { PROMPT = 203, BETA = 64 };
    uint32_t n_new = getenv("OCTAVO_SOAK") ? 16384 : is_light() ? 400 : 1200;
    static const struct {
        const char *method;
        bool every_token;
    } methods[] = {{"scope-slide", true}, {"scope-adaptive", true}, {"scope-discontinuous", false}};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        char retention[256];
        snprintf(retention, sizeof retention,
                 "{\"method\": \"%s\", \"decode\": {\"beta1\": %d, \"beta2\": %d, \"scope\": "
                 "\"layer\"}}",
                 methods[i].method, BETA, BETA);
        lane l = open_lane(1024, PROMPT + n_new, 0);
        run(&l, retention, PROMPT, n_new);
        uint32_t interval = methods[i].every_token ? 1 : (n_new - BETA) / BETA;
        uint32_t slack = interval > 2 * PAGE ? interval : 2 * PAGE;
        print_message("%s: %u tokens, at most %.0f of them kept\n", methods[i].method, n_new,
                      l.most_kept - PROMPT);
        assert_true(l.most_kept <= PROMPT + 2 * BETA + slack);
        assert_true(l.most_kept >= PROMPT + 2 * BETA - 1);
        assert_int_equal(l.furthest, PROMPT + n_new - 2); /* RoPE positions continue */
        close_lane(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_many_times_the_context),
        cmocka_unit_test(a_prompt_that_keeps_all_does_not_fit),
        cmocka_unit_test(an_answer_many_times_its_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

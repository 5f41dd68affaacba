/* Requests that together use every sampling parameter, run with one and with two steps in flight
 * over emulated GPUs, which execute nothing until they are waited for. */
#ifndef TESTS_UNIT_MODEL_AHEAD_H
#define TESTS_UNIT_MODEL_AHEAD_H

#include "tests/unit/model_nccl.h"

#include "scheduler/scheduler.h"

enum { REQUESTS = 9, CHOICES = 2, OUTPUTS = 18, SEQS = 12, ROWS = 44, PROMPT = 90 };

#define GOLDEN "tests/golden/models/"

static const pass wide = {.dir = GOLDEN "qwen3_f32",
                          .kv_type = KERN_KV_BF16,
                          .bf16 = true,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .chunk = ROWS,
                          .n_threads = 1,
                          .max_seqs = SEQS,
                          .max_model_len = 128,
                          .batch_invariant = true,
                          .gpu_kv = GPU_KV_BF16};

/* The outcome of each choice. */
typedef struct heard {
    step_sample samples[REQUESTS][CHOICES][OUTPUTS];
    uint32_t n[REQUESTS][CHOICES];
    sched_stats stats;
    uint32_t measured; // steps with measures that come back, behind which one was submitted
    uint32_t failed;   // steps
    uint32_t spared;   // requests of the second of these that the first one did not have
} heard;

typedef struct house {
    void (*tidy)(void); // frees what ranks leave behind; NULL = nothing
    comm *group;
    backend backend;
    model_config config;
    sched *s;
    sched_request requests[REQUESTS];
    uint32_t prompts[REQUESTS][PROMPT];
    const step_plan *plans[2];
    uint32_t n_plans, depth;
    sched_event events[64];
    size_t n_events;
    uint64_t breaks; // this step is refused; 0 = none
    step_plan broken;
    uint32_t tokens[ROWS];
} house;

/* The policy of a request: its first steps have silent measures, its prompt's end measures that
 * come back, or it has none. */
static inline retention_policy policy_of(const house *h, uint32_t id)
{
    static const char *const texts[] = {
        [6] = "{\"method\": \"h2o\", \"scope\": \"layer\", \"tokens\": 32}",
        [8] = "{\"method\": \"snapkv\", \"scope\": \"layer\", \"tokens\": 16, "
              "\"window\": 4}"};
    const char *text = id < sizeof texts / sizeof *texts ? texts[id] : NULL;
    retention_limits limits = {h->backend.ops->info(h->backend.ctx)->geometry, ROWS, 0};
    retention_policy policy;
    json_t *json = NULL;
    error err;
    if (text) assert_true(status_ok(json_read_text("policy", text, strlen(text), &json, &err)));
    if (!status_ok(retention_parse(json, &limits, &policy, &err))) fail_msg("%s", err.text);
    json_decref(json);
    return policy;
}

/* Between them the requests use every sampling parameter. */
static inline void make_requests(house *h, bool greedy)
{
    /* While the longest goes on in chunks, which draw nothing, the shortest comes after it. */
    static const uint32_t lengths[REQUESTS] = {50, 46, 42, PROMPT, 6, 30, 26, 22, 18};
    static const uint32_t stops[] = {5, 7}, biased[] = {11, 12};
    static const float bias[] = {3.0f, -2.0f};
    const sample_params plain = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    for (uint32_t i = 0; i < REQUESTS; i++) {
        sched_request *r = &h->requests[i];
        for (uint32_t t = 0; t < PROMPT; t++)
            h->prompts[i][t] = (i * 13 + t * t) % h->config.vocab_size;
        *r = (sched_request){.id = i,
                             .arrival = i,
                             .prompt = h->prompts[i],
                             .n_prompt = lengths[i],
                             .max_new_tokens = OUTPUTS - i,
                             .n = 1,
                             .params = plain,
                             .policy = policy_of(h, i),
                             .want_scores = i == 5 || i == 7 ? 3 : 0};
        if (greedy) continue;
        r->params.temperature = i == 5 ? 0.0f : 0.9f + 0.1f * (float)i;
        r->params.seed = 77 + i;
        r->params.n_logprobs = i % 3 == 0 ? 3 : -1;
    }
    if (greedy) return;
    sample_params *p = &h->requests[0].params;
    p->presence_penalty = 0.8f;
    p->frequency_penalty = -2.0f; /* a token that came twice is likelier than one that came once */
    p->repetition_penalty = 1.3f;
    h->requests[1].n = CHOICES;
    h->requests[1].params.repetition_penalty = 1.5f;
    h->requests[1].params.frequency_penalty = -2.0f;
    h->requests[2].params.top_p = 0.8f;
    h->requests[2].params.top_k = 20;
    p = &h->requests[3].params;
    p->min_tokens = 6;
    p->stop_ids = stops, p->n_stop_ids = 2;
    p->bias_ids = biased, p->bias = bias, p->n_bias = 2;
    h->requests[4].params.min_p = 0.1f;
    h->requests[5].params.frequency_penalty = 1.5f; /* the largest penalty */
    h->requests[8].params.top_p = 0.9f;
}

static inline void open_house(house *h, const pass *p, uint32_t depth, bool greedy,
                              void (*tidy)(void))
{
    error err = {{0}};
    comm_options self = {.kind = "self", .size = 1};
    *h = (house){.depth = depth, .tidy = tidy};
    assert_true(status_ok(comm_create(&self, &h->group, NULL)));
    h->backend = open_backend(p, h->group, &h->config);
    const backend_info *info = h->backend.ops->info(h->backend.ctx);
    sched_options o = {.geometry = info->geometry,
                       .n_pages = info->n_pages,
                       .max_seqs = SEQS,
                       .prefill_chunk = ROWS - SEQS,
                       .max_model_len = 128,
                       .max_requests = REQUESTS,
                       .max_in_flight = depth};
    if (!status_ok(sched_create(&o, &h->s, &err))) fail_msg("%s", err.text);
    make_requests(h, greedy);
}

static inline void close_house(house *h)
{
    sched_destroy(h->s);
    h->backend.ops->destroy(h->backend.ctx);
    if (h->tidy) h->tidy();
    comm_destroy(h->group);
    assert_int_equal(simt_allocations(), 0);
}

static inline void post(house *h, sched_event event) { h->events[h->n_events++] = event; }

/* True for a token that ends its choice. */
static inline bool stops(uint32_t token, uint32_t n) { return token % 16 == 3 && n > 4; }

static inline void take_result(house *h, const step_plan *plan, const step_result *r, heard *out)
{
    if (!status_ok(r->status)) fail_msg("step %u: %s", (unsigned)r->step, r->status.message);
    post(h, (sched_event){.kind = SCHED_RESULT, .result = r});
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        for (uint32_t j = 0; j < plan->seqs[i].n_samples; j++) {
            uint32_t id = (uint32_t)plan->seqs[i].request, c = plan->seqs[i].choice + j;
            uint32_t *n = &out->n[id][c], most = h->requests[id].max_new_tokens;
            const step_sample *got = &r->seqs[i].samples[j];
            if (*n > 0 && (*n == most || stops(out->samples[id][c][*n - 1].token, *n))) continue;
            out->samples[id][c][(*n)++] = *got;
            if (*n == most || stops(got->token, *n))
                post(h, (sched_event){
                            .kind = SCHED_END, .request = id, .choice = c, .finished = true});
        }
}

static inline bool has_request(const step_plan *plan, uint64_t id)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].request == id) return true;
    return false;
}

static inline void take_failure(house *h, const step_plan *plan, const step_result *r, heard *out)
{
    post(h, (sched_event){.kind = SCHED_RESULT, .result = r});
    for (uint32_t i = 0; out->failed > 0 && i < plan->n_seqs; i++)
        out->spared += !has_request(&h->broken, plan->seqs[i].request);
    out->failed++;
}

/* Submits the plan; in place of the step that is to fail, one with a token that does not exist. */
static inline void submit(house *h, const step_plan *plan)
{
    h->plans[h->n_plans++] = plan;
    if (plan->step == h->breaks) {
        h->broken = *plan;
        memcpy(h->tokens, plan->tokens, plan->n_tokens * sizeof *h->tokens);
        h->tokens[plan->n_tokens - 1] = h->config.vocab_size;
        h->broken.tokens = h->tokens;
        plan = &h->broken;
    }
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, plan)));
}

static inline bool measures(const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const measure_spec *m = &plan->seqs[i].measure;
        if (m->kind != MEASURE_NONE && !m->silent) return true;
    }
    return false;
}

/* Plans the next step before the oldest is collected, as the engine does. */
static inline heard listen(house *h)
{
    heard out = {0};
    uint32_t added = 0;
    for (uint32_t step = 0; step < 400; step++) {
        if (added < REQUESTS && step >= added)
            post(h, (sched_event){.kind = SCHED_ADD, .add = &h->requests[added++]});
        const step_plan *plan = sched_step(h->s, step, h->events, h->n_events);
        const step_result *r;
        bool is_new = !sched_plan_empty(plan);
        h->n_events = 0;
        if (is_new) {
            out.measured += h->n_plans > 0 && measures(h->plans[0]);
            submit(h, plan);
        }
        if (h->n_plans == 0 && added == REQUESTS) break;
        if (h->n_plans == 0 || (is_new && h->n_plans < h->depth)) continue;
        assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
        bool fails = h->breaks > 0 && !status_ok(r->status);
        (fails ? take_failure : take_result)(h, h->plans[0], r, &out);
        h->plans[0] = h->plans[--h->n_plans];
    }
    assert_null(sched_check_integrity(h->s));
    out.stats = sched_get_stats(h->s);
    assert_int_equal(out.stats.running + out.stats.waiting, 0);
    return out;
}

static inline heard hear(const pass *p, uint32_t depth, bool greedy, uint64_t breaks,
                         void (*tidy)(void))
{
    house *h = malloc(sizeof *h);
    open_house(h, p, depth, greedy, tidy);
    h->breaks = breaks;
    heard out = listen(h);
    close_house(h);
    free(h);
    return out;
}

static inline void expect_same(const heard *a, const heard *b)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        for (uint32_t c = 0; c < CHOICES; c++) {
            assert_int_equal(a->n[i][c], b->n[i][c]);
            for (uint32_t t = 0; t < a->n[i][c]; t++) {
                const step_sample *x = &a->samples[i][c][t], *y = &b->samples[i][c][t];
                if (x->token != y->token)
                    fail_msg("request %u, choice %u, output %u: %u, not %u", i, c, t, y->token,
                             x->token);
                assert_int_equal(x->rank, y->rank);
                assert_int_equal(x->n_top, y->n_top);
                assert_memory_equal(x->top_ids, y->top_ids, x->n_top * sizeof *x->top_ids);
                assert_memory_equal(x->top_logprobs, y->top_logprobs,
                                    x->n_top * sizeof *x->top_logprobs);
            }
        }
}

/* The step behind one that is refused takes draws from there, so it fails, too. All its requests
 * are computed again and draw what they would have drawn, even those that were admitted into it. */
static inline void expect_recovery(const pass *p, const heard *one, bool greedy)
{
    heard two = hear(p, 2, greedy, 4, NULL);
    assert_int_equal(two.failed, 2);
    assert_true(two.spared > 0);
    expect_same(one, &two);
}

/* tidy: of the ranks that model->make_ranks makes. */
static inline void two_are_as_one(const pass *model, bool greedy, void (*tidy)(void))
{
    pass p = *model;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    heard one = hear(&p, 1, greedy, 0, tidy);
    simt_be_late(1);
    heard two = hear(&p, 2, greedy, 0, tidy);
    if (!is_light()) { /* a late device changes nothing of what the host runs */
        heard late = hear(&p, 1, greedy, 0, tidy);
        expect_same(&one, &late);
    }
    simt_be_late(0);
    assert_int_equal(one.stats.steps_ahead, 0);
    /* Steps with h2o's rows are awaited, because a selection follows each of them. */
    assert_true(two.stats.steps_ahead * 4 > two.stats.steps);
    assert_true(two.measured > 0);
    expect_same(&one, &two);
    uint32_t early = 0; /* some choices stop early: their extra row was discarded */
    for (uint32_t i = 0; i < REQUESTS; i++) early += one.n[i][0] < OUTPUTS - i;
    assert_true(greedy || early > 0);
    if (greedy && !p.make_ranks) expect_recovery(&p, &one, greedy);
}

/* Submits until a step and the one behind it are in flight. */
static inline void fill(house *h)
{
    heard out = {0};
    post(h, (sched_event){.kind = SCHED_ADD, .add = &h->requests[0]});
    while (h->n_plans < 2) {
        const step_plan *plan = sched_step(h->s, 0, h->events, h->n_events);
        const step_result *r;
        h->n_events = 0;
        if (!sched_plan_empty(plan)) {
            h->plans[h->n_plans++] = plan;
            assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, plan)));
            continue;
        }
        assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
        take_result(h, h->plans[0], r, &out);
        h->plans[0] = h->plans[--h->n_plans];
    }
}

#endif

/* Concurrency and decode speed at depth. The real scheduler admits, selects, grows and decodes.
 * Steps before the timed ones are not computed: their pages hold seeded keys and values and their
 * measures are seeded random numbers, so that a context of 32K tokens costs no prefill. */
#include "cli/bench/bench_retention.h"
#include "cli/bench/bench_sched.h"
#include "scheduler/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEW_TOKENS = 512, /* output of a request: outlasts the others' prompts and all rounds */
    ROUND_STEPS = 8,  /* decode steps in a round */
    SETTLE_STEPS = 2, /* computed before the first round */
};

typedef struct depth {
    bench *b;
    sched *sched;
    uint32_t context;
    const step_plan *plan; /* the scheduler's last plan */
    step_seq *shares;      /* [max_seqs] decodes of the plan */
    step_seq_result *seqs; /* [max_seqs] */
    uint32_t *tokens;      /* [max_seqs] */
    step_sample *samples;  /* [max_seqs] results of prompts */
    float *measures;
    size_t n_measures;
    step_result result;
    uint32_t filler;  /* tokens so far of the request that fills the rest of the pool */
    bool compute;     /* else only page tables change */
    bool has_prompts; /* the last plan has a prompt chunk */
    uint64_t decoded; /* tokens drawn by decodes that were computed */
} depth;

enum { FILLER = 1 << 30 }; // the id of a request that is no method's

static bool is_computed(const depth *d, const step_seq *s)
{
    return d->compute && s->n_tokens == 1 && s->request != FILLER;
}

/* Gives seeded random numbers in place of what attention would have measured. */
static status invent_measure(depth *d, const step_seq *s, measure_result *out, error *err)
{
    const pkv_geometry *g = &d->b->seqs.info->geometry;
    uint32_t slots = d->context + g->page_tokens;
    *out = (measure_result){
        .n_layers = measure_layers(g, s->measure.layer_step),
        .n_kv_heads = g->n_kv_heads,
        .stride = s->measure.by_slot ? slots : slots / g->page_tokens + 1,
        .q_heads = d->b->model.config.n_heads / g->n_kv_heads,
    };
    size_t n = (size_t)2 * out->n_layers * out->n_kv_heads * out->stride;
    if (n > d->n_measures) {
        float *grown = realloc(d->measures, n * sizeof *grown);
        if (!grown) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        d->measures = grown;
        d->n_measures = n;
        rng r = rng_seed(3);
        for (size_t i = 0; i < n; i++) grown[i] = (float)rng_below(&r, 1 << 24) * 0x1p-24f;
    }
    out->values = d->measures;
    return STATUS_IS_OK;
}

/* Sends the backend the plan's table changes and those decodes that are computed. */
static status run_decodes(depth *d, const step_result **out, error *err)
{
    step_plan plan = *d->plan;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->plan->n_seqs; i++) {
        const step_seq *s = &d->plan->seqs[i];
        if (!is_computed(d, s)) continue;
        d->shares[n] = *s;
        d->shares[n].first_token = n;
        d->tokens[n++] = d->plan->tokens[s->first_token];
    }
    plan.seqs = d->shares;
    plan.tokens = d->tokens;
    plan.n_seqs = plan.n_tokens = n;
    const backend *be = d->b->seqs.backend;
    status st = be->ops->submit(be->ctx, &plan);
    if (status_ok(st)) st = be->ops->collect(be->ctx, out);
    if (status_ok(st)) st = (*out)->status;
    return status_ok(st) ? st
                         : error_set(err, st.code, "step: %s",
                                     st.message ? st.message : status_text(st.code));
}

static status run_event_step(depth *d, const sched_event *event, error *err)
{
    sched_event events[2] = {{0}};
    size_t n = 0;
    if (d->result.step) events[n++] = (sched_event){.kind = SCHED_RESULT, .result = &d->result};
    if (event) events[n++] = *event;
    d->has_prompts = false;
    d->plan = sched_step(d->sched, clock_now_us(), events, n);
    d->result = (step_result){0};
    if (sched_plan_empty(d->plan)) return STATUS_IS_OK;
    const step_result *decodes;
    RETURN_IF_ERROR(run_decodes(d, &decodes, err));
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->plan->n_seqs; i++) {
        const step_seq *s = &d->plan->seqs[i];
        if (s->request == FILLER) d->filler += s->n_tokens;
        if (is_computed(d, s)) {
            d->decoded++;
            d->seqs[i] = decodes->seqs[at++];
            continue;
        }
        d->has_prompts |= s->n_tokens > 1;
        d->seqs[i] = (step_seq_result){.samples = d->samples, .n_samples = s->n_samples};
        if (s->measure.kind != MEASURE_NONE && !s->measure.silent)
            RETURN_IF_ERROR(invent_measure(d, s, &d->seqs[i].measure, err));
    }
    d->result = (step_result){.step = d->plan->step,
                              .seqs = d->seqs,
                              .n_seqs = d->plan->n_seqs,
                              .checksum = decodes->checksum};
    return STATUS_IS_OK;
}

/* ---- one method ------------------------------------------------------------------------------ */

/* Fills what the backend's pool has beyond the fixed one with the first request, which is never
 * computed: numbers of cells depend on the size of a pool, so the scheduler has the backend's. */
static status fill_rest(depth *d, uint32_t n_tokens, const retention_policy *full, error *err)
{
    if (n_tokens == 0) return STATUS_IS_OK;
    uint32_t *prompt = calloc(n_tokens, sizeof *prompt);
    if (!prompt) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    sched_request r = {.id = FILLER,
                       .prompt = prompt,
                       .n_prompt = n_tokens,
                       .max_new_tokens = NEW_TOKENS,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .policy = *full};
    sched_event add = {.kind = SCHED_ADD, .add = &r};
    status st = sched_check(d->sched, &r, err);
    if (status_ok(st)) st = run_event_step(d, &add, err);
    free(prompt);
    return st;
}

/* Adds requests one after the other until one cannot start; each prompt is one step. */
static status add_requests(depth *d, const bench_method *m, uint32_t most, uint32_t *n_added,
                           error *err)
{
    uint32_t *prompt = calloc(d->context, sizeof *prompt);
    if (!prompt) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = STATUS_IS_OK;
    bool fits = true;
    for (*n_added = 0; status_ok(st) && fits && *n_added < most;) {
        sched_request r = {.id = ++*n_added,
                           .prompt = prompt,
                           .n_prompt = d->context,
                           .max_new_tokens = NEW_TOKENS,
                           .n = 1,
                           .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                           .policy = m->policy,
                           .retrieval = m->retrieval};
        sched_event add = {.kind = SCHED_ADD, .add = &r};
        st = sched_check(d->sched, &r, err);
        if (status_ok(st)) st = run_event_step(d, &add, err);
        fits = d->has_prompts;
    }
    if (status_ok(st)) st = run_event_step(d, NULL, err); /* the last request's selection */
    free(prompt);
    return st;
}

typedef struct depth_row {
    uint32_t running;
    double kept, tokens_s, predicted_tokens_s;
} depth_row;

static status time_decodes(depth *d, const retrieval_spec *retrieval, depth_row *row, error *err)
{
    double tokens_s[BENCH_ROUNDS_MAX], predicted[BENCH_ROUNDS_MAX];
    d->compute = true;
    sched_stats before = sched_get_stats(d->sched);
    for (int i = 0; i < SETTLE_STEPS; i++) RETURN_IF_ERROR(run_event_step(d, NULL, err));
    sched_stats stats = sched_get_stats(d->sched);
    row->running = stats.running - (d->filler > 0);
    row->kept = (stats.kept_tokens - d->filler) / (row->running ? row->running : 1);
    if (retrieval->block_tokens)
        row->kept = (double)d->context *
                    (double)(stats.retrieval_read_tokens - before.retrieval_read_tokens) /
                    (double)(stats.retrieval_seen_tokens - before.retrieval_seen_tokens);
    for (uint32_t r = 0; r < d->b->rounds; r++) {
        d->decoded = 0;
        int64_t start = clock_now_ns();
        for (int i = 0; i < ROUND_STEPS; i++) RETURN_IF_ERROR(run_event_step(d, NULL, err));
        tokens_s[r] = (double)d->decoded / ((double)(clock_now_ns() - start) / 1e9);
        kern_limits limits;
        RETURN_IF_ERROR(bench_limits(d->b, &limits, err));
        bench_work w = bench_decode_work(d->b, row->running, row->kept);
        predicted[r] = row->running / bench_least_s(d->b, &w, &limits);
    }
    row->tokens_s = bench_median(tokens_s, d->b->rounds);
    row->predicted_tokens_s = bench_median(predicted, d->b->rounds);
    return STATUS_IS_OK;
}

static status run_method(bench *b, uint32_t context, uint32_t n_pages, uint32_t most,
                         const bench_method *m, const retention_policy *full, depth_row *row,
                         error *err)
{
    uint32_t max_seqs = b->model.max_batch;
    depth d = {.b = b, .context = context};
    const backend_info *info = b->seqs.info;
    uint32_t size = info->geometry.page_tokens;
    uint32_t rest = (info->n_pages - n_pages) / pkv_groups(&info->geometry);
    uint32_t grows = (NEW_TOKENS + size - 1) / size + 1; /* blocks that the filler's answer takes */
    uint32_t filler = rest > grows ? (rest - grows) * size : 0,
             longest = filler > context ? filler : context;
    sched_options o = {
        .geometry = b->seqs.info->geometry,
        .n_pages = info->n_pages,
        .max_seqs = max_seqs,
        .prefill_chunk = longest,
        .max_model_len = longest + NEW_TOKENS,
        .max_requests = max_seqs,
        .salt = 1,
        .retrieves = b->seqs.info->retrieves,
    };
    status st = sched_create(&o, &d.sched, err);
    d.shares = calloc(max_seqs, sizeof *d.shares);
    d.seqs = calloc(max_seqs, sizeof *d.seqs);
    d.tokens = calloc(max_seqs, sizeof *d.tokens);
    d.samples = calloc(max_seqs, sizeof *d.samples);
    if (status_ok(st) && (!d.shares || !d.seqs || !d.tokens || !d.samples))
        st = error_set(err, STATUS_NO_MEMORY, "out of memory");
    uint32_t n = 0;
    if (status_ok(st)) st = fill_rest(&d, filler, full, err);
    uint32_t room = filler > 0 ? max_seqs - 1 : max_seqs;
    if (status_ok(st)) st = add_requests(&d, m, most < room ? most : room, &n, err);
    if (status_ok(st)) st = time_decodes(&d, &m->retrieval, row, err);
    d.compute = false;
    for (uint32_t id = d.filler > 0 ? 0 : 1; d.sched && id <= n; id++) {
        sched_event end = {
            .kind = SCHED_END, .request = id ? id : FILLER, .choice = SCHED_ALL_CHOICES};
        if (status_ok(st)) st = run_event_step(&d, &end, err);
    }
    while (status_ok(st) && d.result.step) st = run_event_step(&d, NULL, err);
    sched_destroy(d.sched);
    free(d.shares);
    free(d.seqs);
    free(d.tokens);
    free(d.samples);
    free(d.measures);
    return st;
}

/* ---- all methods beside `full` --------------------------------------------------------------- */

static void print_row(bench *b, uint32_t context, const char *name, const depth_row *row,
                      const depth_row *full)
{
    double more = (double)row->running / full->running, speed = row->tokens_s / full->tokens_s,
           predicted = row->predicted_tokens_s / full->predicted_tokens_s;
    if (!b->as_json) {
        printf("%-28s %7u %8u %7.2fx %9.0f %9.2f %7.2fx %10.2fx %8.0f %%\n", name, context,
               row->running, more, row->kept, row->tokens_s, speed, predicted,
               100 * speed / predicted);
        fflush(stdout);
    }
    bench_report_row(&b->report, "depth");
    strbuf_puts(&b->report.rows, ",\"method\":");
    strbuf_json_string(&b->report.rows, name, strlen(name));
    strbuf_printf(&b->report.rows,
                  ",\"context\":%u,\"sequences\":%u,\"times_full\":%.4g,\"kept_tokens\":%.6g,"
                  "\"tokens_s\":%.6g,\"speedup\":%.4g,\"predicted_speedup\":%.4g}",
                  context, row->running, more, row->kept, row->tokens_s, speed, predicted);
}

status bench_depth(bench *b, uint32_t context, uint32_t n_full, const bench_method *methods,
                   size_t n, error *err)
{
    const pkv_geometry *g = &b->seqs.info->geometry;
    uint64_t block = (context + NEW_TOKENS) / g->page_tokens + 2;
    uint64_t pages = n_full * block * pkv_groups(g) + 1;
    if (pages > b->seqs.info->n_pages)
        return error_set(err, STATUS_LIMIT,
                         "%u whole contexts of %u tokens need %llu pages, the pool has %u: give "
                         "it more with --kv-memory, or ask for fewer with --full",
                         n_full, context, (unsigned long long)pages, b->seqs.info->n_pages);
    bench_method full = {.text = "full"};
    retention_limits limits = {*g, b->model.prefill_chunk, b->model.max_model_len};
    RETURN_IF_ERROR(retention_parse(NULL, &limits, &full.policy, err));
    RETURN_IF_ERROR(bench_seqs_fill_pool(&b->seqs, err));
    if (!b->as_json)
        printf("\n%-28s %7s %8s %8s %9s %9s %8s %11s %10s\n", "method (fixed pool)", "context",
               "seqs", "of full", "read", "tokens/s", "speed", "predicted", "reached");
    depth_row whole = {0}, row;
    RETURN_IF_ERROR(
        run_method(b, context, (uint32_t)pages, UINT32_MAX, &full, &full.policy, &whole, err));
    print_row(b, context, "full", &whole, &whole);
    for (size_t i = 0; i < n; i++) {
        char name[160];
        bool retrieves = methods[i].retrieval.block_tokens > 0;
        if (!retrieves) {
            RETURN_IF_ERROR(run_method(b, context, (uint32_t)pages, UINT32_MAX, &methods[i],
                                       &full.policy, &row, err));
            print_row(b, context, methods[i].text, &row, &whole);
        }
        RETURN_IF_ERROR(run_method(b, context, (uint32_t)pages, whole.running, &methods[i],
                                   &full.policy, &row, err));
        snprintf(name, sizeof name, retrieves ? "%.120s" : "%.120s, as many as full",
                 methods[i].text);
        print_row(b, context, name, &row, &whole);
    }
    return STATUS_IS_OK;
}

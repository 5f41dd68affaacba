/* One pass of `octavo bench reform`. The real scheduler plans every step; the backend computes a
 * few of them. What selections read are seeded random numbers. */
#include "cli/bench/bench_reform.h"
#include "scheduler/scheduler.h"

#include <stdlib.h>
#include <string.h>

enum { MEASURED_STEPS = 2 };

/* Times of computed steps: sums for the line through (slots read, seconds a row), and those of the
 * steps that measure. */
typedef struct timing {
    double n, x, y, xx, xy;
    double measure_s, measure_rows, measure_row_slots;
} timing;

typedef struct pass_run {
    bench *b;
    const reform_pass *pass;
    reform_cost *cost;
    sched *sched;
    step_sample *sample;
    step_seq_result seq;
    step_result result;
    float *measures;
    size_t n_measures;
    timing planned, whole;        // as planned; with all layers
    double rows, row_slots;       // over all steps: rows, and rows times the slots they read
    uint32_t measured, measuring; // steps that measure: computed, all
    uint64_t step;                // the backend's
} pass_run;

/* ---- what was not computed ------------------------------------------------------------------- */

static status invent_measure(pass_run *p, const step_seq *s, measure_result *out, error *err)
{
    const pkv_geometry *g = &p->b->seqs.info->geometry;
    uint32_t slots = s->position + s->n_tokens + g->page_tokens;
    *out = (measure_result){
        .n_layers = measure_layers(g, s->measure.layer_step),
        .n_kv_heads = g->n_kv_heads,
        .stride = s->measure.by_slot ? slots : slots / g->page_tokens + 1,
        .q_heads = p->b->model.config.n_heads / g->n_kv_heads,
    };
    size_t n = (size_t)2 * out->n_layers * out->n_kv_heads * out->stride;
    if (n > p->n_measures) {
        float *grown = realloc(p->measures, n * sizeof *grown);
        if (!grown) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        p->measures = grown;
        p->n_measures = n;
        rng r = rng_seed(3);
        for (size_t i = 0; i < n; i++) grown[i] = (float)rng_below(&r, 1 << 24) * 0x1p-24f;
    }
    out->values = p->measures;
    return STATUS_IS_OK;
}

/* ---- one step -------------------------------------------------------------------------------- */

static bool measures(const step_seq *s)
{
    return s->measure.kind != MEASURE_NONE && !s->measure.silent;
}

/* Whole steps in even distances, and the first ones that measure. */
static bool is_computed(const pass_run *p, const step_seq *s)
{
    uint32_t size = p->b->model.prefill_chunk, done = p->cost->computed;
    if (p->pass->computed == 0) return false;
    if (measures(s)) return p->measured < MEASURED_STEPS;
    double due = (done + 0.5) * p->pass->tokens / p->pass->computed;
    return done < p->pass->computed && p->rows >= due - size && s->n_tokens == size;
}

static void note_time(const step_seq *s, double seconds, timing *t)
{
    double slots = s->position + s->n_tokens / 2.0, rows = s->n_tokens, y = seconds / rows;
    if (measures(s)) {
        t->measure_s += seconds;
        t->measure_rows += rows;
        t->measure_row_slots += rows * slots;
        return;
    }
    t->n++;
    t->x += slots;
    t->y += y;
    t->xx += slots * slots;
    t->xy += slots * y;
}

static status run_plan(pass_run *p, step_plan *plan, const step_result **out, double *seconds,
                       error *err)
{
    const backend *be = p->b->seqs.backend;
    plan->step = ++p->step;
    int64_t start = clock_now_ns();
    status st = be->ops->submit(be->ctx, plan);
    if (status_ok(st)) st = be->ops->collect(be->ctx, out);
    if (status_ok(st)) st = (*out)->status;
    *seconds = (double)(clock_now_ns() - start) / 1e9;
    return status_ok(st) ? st
                         : error_set(err, st.code, "step: %s",
                                     st.message ? st.message : status_text(st.code));
}

/* Computes the same rows once more with all layers. */
static status run_whole(pass_run *p, const step_plan *plan, error *err)
{
    step_seq share = plan->seqs[0];
    step_plan again = *plan;
    const step_result *got;
    double seconds;
    share.embeds = NULL;
    share.n_embeds = share.n_layers = 0;
    again.deltas = (pkv_deltas){0};
    again.opens = NULL;
    again.n_opens = 0;
    again.seqs = &share;
    RETURN_IF_ERROR(run_plan(p, &again, &got, &seconds, err));
    note_time(&share, seconds, &p->whole);
    return STATUS_IS_OK;
}

/* Sends the plan, with or without its rows, and sets p->seq and the checksum. */
static status send_plan(pass_run *p, const step_plan *plan, error *err)
{
    step_plan asked = *plan;
    step_seq share;
    const step_result *got;
    double seconds;
    bool computes = plan->n_seqs == 1 && is_computed(p, &plan->seqs[0]);
    if (computes) {
        share = plan->seqs[0];
        share.n_layers = p->pass->n_layers;
        asked.seqs = &share;
    } else {
        asked.n_seqs = asked.n_tokens = 0;
    }
    RETURN_IF_ERROR(run_plan(p, &asked, &got, &seconds, err));
    p->seq = (step_seq_result){0};
    p->result = (step_result){
        .step = plan->step, .seqs = &p->seq, .n_seqs = plan->n_seqs, .checksum = got->checksum};
    if (!computes) {
        p->cost->move_s += seconds;
        return STATUS_IS_OK;
    }
    note_time(&plan->seqs[0], seconds, &p->planned);
    if (p->pass->with_all) RETURN_IF_ERROR(run_whole(p, plan, err));
    if (measures(&plan->seqs[0])) p->measured++;
    else p->cost->computed++;
    return STATUS_IS_OK;
}

static status take_step(pass_run *p, const step_plan *plan, error *err)
{
    RETURN_IF_ERROR(send_plan(p, plan, err));
    if (plan->n_seqs == 0) return STATUS_IS_OK;
    const step_seq *s = &plan->seqs[0];
    p->cost->steps++;
    p->rows += s->n_tokens;
    p->row_slots += s->n_tokens * (s->position + s->n_tokens / 2.0);
    p->measuring += measures(s);
    p->seq.samples = p->sample;
    p->seq.n_samples = s->n_samples;
    return measures(s) ? invent_measure(p, s, &p->seq.measure, err) : STATUS_IS_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static status run_request(pass_run *p, const uint32_t *prompt, error *err)
{
    sched_request r = {.id = 1,
                       .prompt = prompt,
                       .n_prompt = p->pass->tokens,
                       .max_new_tokens = 1,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .policy = p->pass->policy,
                       .embeds = p->pass->embeds,
                       .n_embeds = p->pass->n_embeds,
                       .n_layers = p->pass->with_all ? 0 : p->pass->n_layers};
    RETURN_IF_ERROR(sched_check(p->sched, &r, err));
    sched_event events[2] = {{.kind = SCHED_ADD, .add = &r}};
    size_t n = 1;
    for (bool ended = false;;) {
        int64_t start = clock_now_ns();
        const step_plan *plan = sched_step(p->sched, start / 1000, events, n);
        p->cost->select_s += (double)(clock_now_ns() - start) / 1e9;
        uint32_t used = sched_get_stats(p->sched).pages.used;
        if (used > p->cost->most_pages) p->cost->most_pages = used;
        if (sched_plan_empty(plan)) {
            if (ended) return STATUS_IS_OK;
            return error_set(err, STATUS_INTERNAL, "the scheduler stopped at token %.0f of %u",
                             p->rows, p->pass->tokens);
        }
        RETURN_IF_ERROR(take_step(p, plan, err));
        n = 0;
        events[n++] = (sched_event){.kind = SCHED_RESULT, .result = &p->result};
        if (p->rows < p->pass->tokens || ended) continue;
        events[n++] = (sched_event){.kind = SCHED_END, .request = 1, .choice = SCHED_ALL_CHOICES};
        ended = true;
    }
}

/* Seconds of all steps, by the line through those that were computed. */
static double estimate(const pass_run *p, const timing *t)
{
    double spread = t->n * t->xx - t->x * t->x;
    if (t->n == 0) return 0;
    double slope = spread > 1e-9 * t->xx ? (t->n * t->xy - t->x * t->y) / spread : 0;
    double first = (t->y - slope * t->x) / t->n;
    double extra = t->measure_s - first * t->measure_rows - slope * t->measure_row_slots;
    double all = first * p->rows + slope * p->row_slots;
    return p->measured ? all + extra / p->measured * p->measuring : all;
}

status reform_pass_run(bench *b, const reform_pass *pass, reform_cost *out, error *err)
{
    const backend_info *info = b->seqs.info;
    pass_run p = {.b = b, .pass = pass, .cost = out};
    *out = (reform_cost){0};
    const sched_options o = {.geometry = info->geometry,
                             .n_pages = info->n_pages,
                             .max_seqs = b->model.max_batch,
                             .prefill_chunk = b->model.prefill_chunk,
                             .max_model_len = b->model.max_model_len,
                             .max_logical_len = pass->tokens + 1,
                             .max_requests = 1,
                             .salt = 1};
    uint32_t *prompt = calloc(pass->tokens, sizeof *prompt);
    p.sample = calloc(1, sizeof *p.sample);
    status st = sched_create(&o, &p.sched, err);
    if (status_ok(st) && (!prompt || !p.sample))
        st = error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(st)) st = run_request(&p, prompt, err);
    out->compute_s = estimate(&p, &p.planned);
    if (pass->with_all) out->whole_s = estimate(&p, &p.whole);
    sched_destroy(p.sched);
    free(prompt);
    free(p.sample);
    free(p.measures);
    return st;
}

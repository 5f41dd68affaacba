#include "cli/bench/null_backend.h"

#include "cli/bench/bench_drive.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_IN_FLIGHT = 2, HELD_NS = 200000 };

typedef struct null_step {
    const step_plan *plan;
    status status;
    int64_t end_ns;
} null_step;

typedef struct null_backend {
    backend_info info;
    int64_t step_ns;
    bench_mirror mirror;
    step_seq_result *seqs; // [max_seqs]
    step_sample *samples;  // [step_most_draws]
    step_result result;
    float *measures; // invented once, [n_measures]
    size_t n_measures;
    _Atomic uint32_t holders;            // of them
    null_step in_flight[MOST_IN_FLIGHT]; // oldest first
    uint32_t n_in_flight;
    int64_t last_end_ns;  // of the newest step
    int64_t last_call_ns; // when the last call returned
    _Atomic bool interrupted, held;
    pthread_mutex_t lock;
    null_numbers numbers; // under lock
} null_backend;

static const backend_info *null_info(void *ctx) { return &((null_backend *)ctx)->info; }

/* The result of a share's measure: invented values, the same for all shares. */
static measure_result measure(null_backend *b, const step_seq *s)
{
    const measure_spec *spec = &s->measure;
    if (spec->kind == MEASURE_NONE || spec->silent) return (measure_result){0};
    pkv_mirror_extent extent = pkv_mirror_extent_of(b->mirror.tables, s->seq, UINT32_MAX);
    return (measure_result){.values = b->measures,
                            .n_layers = measure_layers(&b->info.geometry, spec->layer_step),
                            .n_kv_heads = b->info.geometry.n_kv_heads,
                            .stride = spec->by_slot ? extent.most_kept : extent.most_pages,
                            .q_heads = 1,
                            .holders = &b->holders};
}

/* Rows, draws, and measures of one kind are answered. */
static status check_plan(null_backend *b, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        measure_result m = measure(b, s);
        if (s->want_logits || s->want_scores || s->measure.novelty || s->measure.second)
            return status_make(STATUS_UNSUPPORTED, "the null backend computes nothing");
        if ((size_t)m.n_layers * m.n_kv_heads * m.stride > b->n_measures)
            return status_make(STATUS_UNSUPPORTED, "the null backend has too few measures");
    }
    return STATUS_IS_OK;
}

static status make_measures(null_backend *b, uint32_t tokens)
{
    const pkv_geometry *g = &b->info.geometry;
    b->n_measures = (size_t)g->n_layers * g->n_kv_heads * tokens;
    b->measures = alloc_resize(NULL, NULL, b->n_measures, sizeof *b->measures);
    if (!b->measures) return status_make(STATUS_NO_MEMORY, NULL);
    for (size_t i = 0; i < b->n_measures; i++)
        b->measures[i] = exp2f((float)(hash_mix64(i) >> 40) * -0x1p-20f); /* 1 to 2^-16 */
    return STATUS_IS_OK;
}

static void count_step(null_backend *b, const step_plan *plan, bool in_time, int64_t mirror_ns)
{
    pthread_mutex_lock(&b->lock);
    b->numbers.steps++;
    b->numbers.in_time += in_time;
    b->numbers.rows += plan->n_tokens;
    b->numbers.mirror_ns += mirror_ns;
    b->numbers.thread_ns = clock_thread_ns();
    pthread_mutex_unlock(&b->lock);
}

/* The engine thread calls the backend after a turn of its own. */
static int64_t begin_call(null_backend *b)
{
    int64_t now = clock_now_ns(), turn = b->last_call_ns ? now - b->last_call_ns : 0;
    pthread_mutex_lock(&b->lock);
    if (turn > b->numbers.longest_turn_ns) b->numbers.longest_turn_ns = turn;
    pthread_mutex_unlock(&b->lock);
    return now;
}

/* The step begins when it was submitted, or at the end of the step in front of it. A plan that only
 * changes tables takes no time on the device. */
static status null_submit(void *ctx, const step_plan *plan)
{
    null_backend *b = ctx;
    assert(b->n_in_flight < MOST_IN_FLIGHT);
    int64_t start = begin_call(b);
    RETURN_IF_ERROR(bench_mirror_apply(&b->mirror, plan));
    int64_t now = clock_now_ns();
    bool in_time = now <= b->last_end_ns;
    if (!in_time) b->last_end_ns = now;
    if (plan->n_seqs > 0) b->last_end_ns += b->step_ns;
    b->in_flight[b->n_in_flight++] =
        (null_step){.plan = plan, .status = check_plan(b, plan), .end_ns = b->last_end_ns};
    if (plan->n_seqs > 0) count_step(b, plan, in_time, now - start);
    b->last_call_ns = clock_now_ns();
    return STATUS_IS_OK;
}

static void sleep_until(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static void answer(null_backend *b, const null_step *step)
{
    const step_plan *plan = step->plan;
    uint32_t n = 0;
    b->result = (step_result){.step = plan->step,
                              .status = step->status,
                              .seqs = b->seqs,
                              .n_seqs = status_ok(step->status) ? plan->n_seqs : 0,
                              .checksum = plan->checksum,
                              .compute_us = plan->n_seqs > 0 ? b->step_ns / 1000 : 0};
    for (uint32_t i = 0; i < b->result.n_seqs; i++) {
        uint32_t n_samples = plan->seqs[i].n_samples;
        b->seqs[i] = (step_seq_result){.samples = &b->samples[n],
                                       .n_samples = n_samples,
                                       .measure = measure(b, &plan->seqs[i])};
        for (uint32_t j = 0; j < n_samples; j++, n++) {
            step_sample *out = &b->samples[n];
            out->token = (uint32_t)(hash_mix64(plan->step << 20 ^ n) % b->info.vocab_size);
            out->logprob = NAN;
            out->rank = out->n_top = 0;
        }
    }
}

static status null_collect(void *ctx, const step_result **out)
{
    null_backend *b = ctx;
    assert(b->n_in_flight > 0);
    null_step step = b->in_flight[0];
    b->in_flight[0] = b->in_flight[--b->n_in_flight];
    int64_t start = begin_call(b);
    if (start < step.end_ns) sleep_until(step.end_ns);
    while (atomic_load(&b->held) && !atomic_load(&b->interrupted))
        sleep_until(clock_now_ns() + HELD_NS);
    int64_t waited = clock_now_ns() - start;
    answer(b, &step);
    pthread_mutex_lock(&b->lock);
    b->numbers.waited_ns += waited;
    pthread_mutex_unlock(&b->lock);
    *out = &b->result;
    b->last_call_ns = clock_now_ns();
    return atomic_load(&b->interrupted) ? status_make(STATUS_INTERNAL, "interrupted")
                                        : STATUS_IS_OK;
}

static void null_interrupt(void *ctx) { atomic_store(&((null_backend *)ctx)->interrupted, true); }

static void null_destroy(void *ctx)
{
    null_backend *b = ctx;
    bench_mirror_destroy(&b->mirror);
    pthread_mutex_destroy(&b->lock);
    free(b->seqs);
    free(b->samples);
    free(b->measures);
    free(b);
}

static const backend_ops null_ops = {
    .info = null_info,
    .submit = null_submit,
    .collect = null_collect,
    .interrupt = null_interrupt,
    .destroy = null_destroy,
};

status null_backend_create(const null_options *o, backend *out, error *err)
{
    null_backend *b = calloc(1, sizeof *b);
    if (!b) return error_set(err, STATUS_NO_MEMORY, "null backend: out of memory");
    pthread_mutex_init(&b->lock, NULL);
    b->step_ns = o->step_us * 1000;
    b->info =
        (backend_info){.name = "null",
                       .vocab_size = o->vocab_size,
                       .max_positions = o->max_positions,
                       .max_rows = o->max_rows,
                       .max_seqs = o->max_seqs,
                       .lacks = MEASURES_SUMS | MEASURES_NOVELTY | MEASURES_READS | MEASURES_BESIDE,
                       .n_pages = o->n_pages,
                       .max_in_flight = MOST_IN_FLIGHT,
                       .geometry = o->geometry};
    b->seqs = calloc(o->max_seqs, sizeof *b->seqs);
    b->samples = calloc(step_most_draws(o->max_seqs), sizeof *b->samples);
    status st = b->seqs && b->samples ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
    if (status_ok(st)) st = make_measures(b, o->max_positions);
    if (status_ok(st)) st = bench_mirror_create(&o->geometry, o->n_pages, o->max_seqs, &b->mirror);
    if (!status_ok(st)) {
        null_destroy(b);
        return error_set(err, st.code, "null backend: %s", status_text(st.code));
    }
    *out = (backend){&null_ops, b};
    return STATUS_IS_OK;
}

null_numbers null_backend_numbers(const backend *of)
{
    assert(of->ops == &null_ops);
    null_backend *b = of->ctx;
    pthread_mutex_lock(&b->lock);
    null_numbers out = b->numbers;
    pthread_mutex_unlock(&b->lock);
    out.now_ns = clock_now_ns();
    return out;
}

void null_backend_hold(const backend *of, bool held)
{
    assert(of->ops == &null_ops);
    null_backend *b = of->ctx;
    pthread_mutex_lock(&b->lock);
    b->numbers.longest_turn_ns = 0;
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->held, held);
}

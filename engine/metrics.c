/* Names and bounds of the histograms (vLLM's, so that its dashboards fit), and counting into
 * them. */
#include "engine/internal.h"

static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                            0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                            20,    40,    80,   160,  640,  2560};
static const double token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                      0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double length_bounds[] = {1,    2,    5,     10,    20,    50,  100, 200, 500, 1000,
                                       2000, 5000, 10000, 20000, 50000, 1e5, 2e5, 5e5, 1e6};
static const double count_bounds[] = {1, 2, 5, 10, 20};
static const double step_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                     512, 1024, 2048, 4096, 8192, 16384};

#define ROW(stem, text, list)                                                                      \
    {                                                                                              \
        .name = (stem), .help = (text), .bounds = (list),                                          \
        .n_bounds = sizeof(list) / sizeof *(list)                                                  \
    }

static const engine_histogram_info rows[ENGINE_HISTOGRAMS] = {
    [ENGINE_TIME_TO_FIRST_TOKEN] =
        ROW("time_to_first_token_seconds", "From submission to a choice's first token.",
            first_token_bounds),
    [ENGINE_INTER_TOKEN_LATENCY] =
        ROW("inter_token_latency_seconds", "Between two tokens of a choice.", token_bounds),
    [ENGINE_TIME_PER_OUTPUT_TOKEN] =
        ROW("request_time_per_output_token_seconds",
            "A choice's mean time between tokens, without the first.", token_bounds),
    [ENGINE_E2E_LATENCY] = ROW("e2e_request_latency_seconds",
                               "From submission to the last choice's end.", request_bounds),
    [ENGINE_QUEUE_TIME] =
        ROW("request_queue_time_seconds", "From submission to the first step.", request_bounds),
    [ENGINE_PREFILL_TIME] = ROW("request_prefill_time_seconds",
                                "From the first step to the first token.", request_bounds),
    [ENGINE_DECODE_TIME] =
        ROW("request_decode_time_seconds", "From the first token to the last.", request_bounds),
    [ENGINE_INFERENCE_TIME] = ROW("request_inference_time_seconds",
                                  "From the first step to the last token.", request_bounds),
    [ENGINE_PROMPT_TOKENS] =
        ROW("request_prompt_tokens", "Tokens of a request's prompt.", length_bounds),
    [ENGINE_COMPUTED_TOKENS] =
        ROW("request_prefill_kv_computed_tokens",
            "Tokens of a request's prompt that were computed.", length_bounds),
    [ENGINE_GENERATION_TOKENS] =
        ROW("request_generation_tokens", "Tokens generated for a choice.", length_bounds),
    [ENGINE_LONGEST_CHOICE] =
        ROW("request_max_num_generation_tokens",
            "Tokens generated for the longest choice of a request.", length_bounds),
    [ENGINE_PARAMS_N] = ROW("request_params_n", "A request's n: its choices.", count_bounds),
    [ENGINE_PARAMS_MAX_TOKENS] = ROW("request_params_max_tokens",
                                     "A request's max_tokens, where it has one.", length_bounds),
    [ENGINE_ITERATION_TOKENS] =
        ROW("iteration_tokens_total", "Tokens computed in a step.", step_bounds),
};

engine_histogram_info engine_histogram_describe(engine_histogram_id id) { return rows[id]; }

void metrics_observe(engine_metrics *m, engine_histogram_id id, double value)
{
    uint32_t low = 0, high = rows[id].n_bounds;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (value <= rows[id].bounds[middle]) high = middle;
        else low = middle + 1;
    }
    m->histograms[id].counts[low]++;
    m->histograms[id].count++;
    m->histograms[id].sum += value;
}

/* ---- what a request leaves ------------------------------------------------------------------- */

static double seconds(int64_t us) { return (double)us / 1e6; }

void metrics_init(engine_metrics *m)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n && i < ENGINE_METHODS_MAX; i++) m->methods[i].method = presets[i].name;
}

static engine_method_metrics *method_row(engine_metrics *m, const char *name)
{
    /* Presets are static, so equal names have equal addresses. */
    for (uint32_t i = 0; i < ENGINE_METHODS_MAX; i++)
        if (m->methods[i].method == name) return &m->methods[i];
    return NULL;
}

static void count_method(engine_metrics *m, const engine_stream *s, const sched_choice_info *info)
{
    engine_method_metrics *row = method_row(m, info->report.method);
    if (!row) return;
    row->pages_dropped += info->report.pages_dropped - info->inherited_pages;
    row->scoring_seconds += info->report.scoring_ms / 1e3 - seconds(info->inherited_us);
    if (s->n_alive == 0) row->scoring_seconds += seconds(s->selecting_us);
}

static uint32_t longest_choice(const engine_stream *s)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < s->request.n; i++)
        if (s->choices[i].n_tokens > most) most = s->choices[i].n_tokens;
    return most;
}

static void count_request(engine_metrics *m, const engine_stream *s, const choice_end *end)
{
    int64_t planned_us = s->submit_us + end->timings.queue_us;
    int64_t last_us = s->last_token_us ? s->last_token_us : s->submit_us + end->timings.total_us;
    metrics_observe(m, ENGINE_E2E_LATENCY, seconds(end->timings.total_us));
    metrics_observe(m, ENGINE_QUEUE_TIME, seconds(end->timings.queue_us));
    metrics_observe(m, ENGINE_INFERENCE_TIME, seconds(last_us - planned_us));
    uint32_t cached = end->usage.cached_tokens;
    metrics_observe(m, ENGINE_PROMPT_TOKENS, s->n_tokens);
    metrics_observe(m, ENGINE_COMPUTED_TOKENS, s->n_tokens > cached ? s->n_tokens - cached : 0);
    metrics_observe(m, ENGINE_LONGEST_CHOICE, longest_choice(s));
    metrics_observe(m, ENGINE_PARAMS_N, s->request.n);
    if (s->request.max_tokens) metrics_observe(m, ENGINE_PARAMS_MAX_TOKENS, s->request.max_tokens);
    if (!s->first_token_us) return; /* the prompt was only scored */
    metrics_observe(m, ENGINE_PREFILL_TIME, seconds(s->first_token_us - planned_us));
    metrics_observe(m, ENGINE_DECODE_TIME, seconds(last_us - s->first_token_us));
}

void metrics_choice(engine_metrics *m, const engine_stream *s, const choice_state *c,
                    const choice_end *end, const sched_choice_info *info)
{
    if (end->has_report) count_method(m, s, info);
    if (end->finish != ENGINE_FINISH_STOP && end->finish != ENGINE_FINISH_LENGTH) return;
    metrics_observe(m, ENGINE_GENERATION_TOKENS, c->n_tokens);
    if (c->n_tokens > 1)
        metrics_observe(m, ENGINE_TIME_PER_OUTPUT_TOKEN,
                        seconds(c->last_token_us - c->first_token_us) / (c->n_tokens - 1));
    if (s->n_alive == 0) count_request(m, s, end);
}

void metrics_publish(engine *e)
{
    sched_stats now = sched_get_stats(e->sched);
    sched_add_counters(&now, &e->sums);
    pthread_mutex_lock(&e->stats_lock);
    e->stats.sched = now;
    e->stats.steps = e->steps;
    e->stats.schedule_us = e->schedule_us;
    e->stats.compute_us = e->compute_us;
    e->stats.tier = e->tier;
    e->stats.tell_us = e->tell_us;
    e->metrics = e->counting;
    pthread_mutex_unlock(&e->stats_lock);
}

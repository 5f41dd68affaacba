/* The span of a request, which ends where its log line is written. It has vLLM's name and
 * attributes (vllm/tracing), and what this server knows beyond them under "octavo.". Prompts,
 * answers, keys, the ids of sessions and messages of errors are in no span. */
#include "rpc/generation.h"

#include <stdlib.h>
#include <string.h>

struct request_trace {
    trace_span *span;
    uint32_t max_tokens; // 0 = as many as fit
    float temperature, top_p;
    uint8_t finishes[ENGINE_N_MAX]; // engine_finish of the choices that ended
    uint32_t n_finishes;
    /* The reports' numbers, summed over choices. */
    const char *method; // static; NULL = none came
    uint64_t logical_tokens, pages_dropped;
    double kept_tokens;
    char session[16]; // "continued", "stored", "restarted" or "ignored"; "" = absent
    bool reads;       // by blocks of a retrieval method
    uint64_t rows;
    double read_tokens;
};

static request_trace *make_trace(tracer *t, const engine_request *r, const trace_context *parent)
{
    trace_span *span = trace_begin(t, parent);
    request_trace *trace = span ? calloc(1, sizeof *trace) : NULL;
    if (!trace) {
        trace_drop(span);
        return NULL;
    }
    *trace = (request_trace){.span = span,
                             .max_tokens = r->max_tokens,
                             .temperature = r->temperature,
                             .top_p = r->top_p};
    return trace;
}

void generation_trace_begin(generation *g, const engine_request *requests,
                            const trace_headers *headers)
{
    tracer *t = g->service->tracer;
    trace_context parent;
    if (!t) return;
    bool has_parent = headers && trace_context_read(headers, &parent);
    for (uint32_t i = 0; i < g->n; i++)
        g->requests[i].trace = make_trace(t, &requests[i], has_parent ? &parent : NULL);
}

void generation_trace_drop(request_trace *trace)
{
    if (!trace) return;
    trace_drop(trace->span);
    free(trace);
}

const trace_span *generation_span(const generation_request *r)
{
    return r->trace ? r->trace->span : NULL;
}

/* ---- gathering while the request runs -------------------------------------------------------- */

static void take_report(request_trace *trace, const retention_report *report)
{
    trace->method = report->method;
    trace->logical_tokens += report->logical_tokens;
    trace->kept_tokens += report->kept_tokens;
    trace->pages_dropped += report->pages_dropped;
    /* The reason follows the word. */
    size_t n = strcspn(report->session, ":");
    if (n < sizeof trace->session) {
        memcpy(trace->session, report->session, n);
        trace->session[n] = '\0';
    }
}

void generation_trace_take(request_trace *trace, const engine_output *out)
{
    if (!trace || out->finish == ENGINE_FINISH_NONE) return;
    if (trace->n_finishes < ENGINE_N_MAX)
        trace->finishes[trace->n_finishes++] = (uint8_t)out->finish;
    if (out->report) take_report(trace, out->report);
    if (out->reading) {
        trace->reads = true;
        trace->rows += out->reading->rows;
        trace->read_tokens += out->reading->tokens;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void put_seconds(trace_span *s, const char *key, int64_t us)
{
    trace_put_double(s, key, us > 0 ? (double)us / 1e6 : 0);
}

static void put_text(trace_span *s, const char *key, const char *text)
{
    trace_put_text(s, key, text, strlen(text));
}

static void put_request(trace_span *s, const generation *g, const generation_request *r)
{
    const request_trace *trace = r->trace;
    put_text(s, "gen_ai.request.id", g->id);
    put_text(s, "gen_ai.response.model", g->service->o.model.names[0]);
    trace_put_double(s, "gen_ai.request.temperature", (double)trace->temperature);
    trace_put_double(s, "gen_ai.request.top_p", (double)trace->top_p);
    if (trace->max_tokens) trace_put_int(s, "gen_ai.request.max_tokens", trace->max_tokens);
    trace_put_int(s, "gen_ai.request.n", g->n_choices);
    put_text(s, "octavo.surface", g->surface);
    if (g->n > 1) trace_put_int(s, "octavo.prompt_index", r->index);
}

static void put_usage(trace_span *s, const generation *g, const request_log *log)
{
    trace_put_int(s, "gen_ai.usage.prompt_tokens", log->usage.prompt_tokens);
    trace_put_int(s, "gen_ai.usage.completion_tokens", log->usage.completion_tokens);
    trace_put_int(s, "gen_ai.usage.cached_tokens", log->usage.cached_tokens);
    trace_put_int(s, "gen_ai.usage.num_sequences", g->n_choices);
}

/* By vLLM's definitions: prefill is from the first step to the first token, decode from there to
 * the last, inference both. */
static void put_latencies(trace_span *s, const request_log *log)
{
    put_seconds(s, "gen_ai.latency.e2e", log->total_us);
    put_seconds(s, "gen_ai.latency.time_in_queue", log->queue_us);
    if (!log->ttft_us) return;
    put_seconds(s, "gen_ai.latency.time_to_first_token", log->ttft_us);
    put_seconds(s, "gen_ai.latency.time_in_model_prefill", log->ttft_us - log->queue_us);
    put_seconds(s, "gen_ai.latency.time_in_model_decode", log->total_us - log->ttft_us);
    put_seconds(s, "gen_ai.latency.time_in_model_inference", log->total_us - log->queue_us);
}

static void put_finishes(trace_span *s, const generation *g, const request_trace *trace)
{
    const char *names[ENGINE_N_MAX];
    uint32_t n = g->n_choices < ENGINE_N_MAX ? g->n_choices : ENGINE_N_MAX;
    for (uint32_t i = 0; i < n; i++)
        names[i] = engine_finish_name(i < trace->n_finishes ? (engine_finish)trace->finishes[i]
                                                            : ENGINE_FINISH_ABORT);
    trace_put_texts(s, "gen_ai.response.finish_reasons", names, n);
}

static void put_own(trace_span *s, const request_trace *trace)
{
    if (trace->method) {
        put_text(s, "octavo.retention.method", trace->method);
        trace_put_int(s, "octavo.retention.logical_tokens", (int64_t)trace->logical_tokens);
        trace_put_double(s, "octavo.retention.kept_tokens", trace->kept_tokens);
        trace_put_int(s, "octavo.retention.pages_dropped", (int64_t)trace->pages_dropped);
    }
    if (trace->session[0]) put_text(s, "octavo.session", trace->session);
    if (trace->reads && trace->rows)
        trace_put_double(s, "octavo.retrieval.tokens_per_row",
                         trace->read_tokens / (double)trace->rows);
}

void generation_trace_end(const generation *g, generation_request *r)
{
    request_trace *trace = r->trace;
    if (!trace) return;
    trace_span *s = trace->span;
    put_request(s, g, r);
    put_usage(s, g, &r->log);
    put_latencies(s, &r->log);
    put_finishes(s, g, trace);
    put_own(s, trace);
    if (r->log.error[0]) trace_fail(s, status_text(r->log.error_code));
    trace_end(s, "llm_request", r->log.total_us);
    trace->span = NULL;
}

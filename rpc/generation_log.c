/* The log line of a request: numbers always, texts only when the log shows prompts. */
#include "rpc/generation.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- texts ----------------------------------------------------------------------------------- */

/* Appends the prompt in the form it was sent: text, or JSON of messages or ids. */
static void copy_prompt(const engine_request *r, strbuf *out)
{
    if (r->prompt) {
        size_t n = r->prompt_bytes;
        strbuf_append(out, r->prompt, n < RPC_LOG_TEXT_MAX ? n : RPC_LOG_TEXT_MAX);
        return;
    }
    if (r->messages) {
        char *text = json_write(r->messages, JSON_COMPACT);
        if (text) strbuf_append(out, text, strnlen(text, RPC_LOG_TEXT_MAX));
        free(text);
        return;
    }
    for (uint32_t i = 0; i < r->n_prompt_token_ids && out->size < RPC_LOG_TEXT_MAX; i++)
        strbuf_printf(out, "%s%u", i ? " " : "", r->prompt_token_ids[i]);
}

bool generation_log_begin(generation *g, const engine_request *requests)
{
    if (!rpc_log_shows_prompts(g->service->o.log)) return true;
    for (uint32_t i = 0; i < g->n; i++) {
        copy_prompt(&requests[i], &g->requests[i].log.prompt);
        if (g->requests[i].log.prompt.failed) return false;
    }
    return true;
}

void generation_log_destroy(request_log *log)
{
    strbuf_destroy(&log->prompt);
    strbuf_destroy(&log->output);
    strbuf_destroy(&log->finishes);
    strbuf_destroy(&log->reports);
    strbuf_destroy(&log->readings);
}

/* ---- gathering while the request runs -------------------------------------------------------- */

static void take_report(request_log *log, const retention_report *report)
{
    retention_report brief = *report;
    brief.kept_json = NULL; /* it may be longer than the rest of the line */
    if (log->reports.size) strbuf_putc(&log->reports, ',');
    retention_report_json(&brief, &log->reports);
}

static void take_end(request_log *log, const engine_output *out)
{
    const engine_timings *t = &out->timings;
    strbuf_printf(&log->finishes, "%s\"%s\"", log->n_ends ? "," : "",
                  engine_finish_name(out->finish));
    bool started = t->ttft_us > 0; /* 0: no token came */
    if (started && (log->ttft_us == 0 || t->ttft_us < log->ttft_us)) log->ttft_us = t->ttft_us;
    if (t->queue_us > log->queue_us) log->queue_us = t->queue_us;
    if (t->total_us > log->total_us) log->total_us = t->total_us;
    if (started && out->usage.completion_tokens > 1) {
        log->decode_us += (double)(t->total_us - t->ttft_us);
        log->n_decoded += out->usage.completion_tokens - 1;
    }
    log->usage.prompt_tokens = out->usage.prompt_tokens;
    log->usage.cached_tokens = out->usage.cached_tokens;
    log->usage.completion_tokens += out->usage.completion_tokens;
    log->n_ends++;
    if (out->report) take_report(log, out->report);
    if (out->reading) {
        if (log->readings.size) strbuf_putc(&log->readings, ',');
        retrieval_report_json(out->reading, &log->readings);
    }
    if (out->error_text && !log->error[0]) {
        log->error_code = out->error_code;
        snprintf(log->error, sizeof log->error, "%s", out->error_text);
    }
}

void generation_log_take(generation_request *r, const engine_output *out)
{
    request_log *log = &r->log;
    log->n_tokens += out->has_token;
    if (out->text_bytes && log->output.size < RPC_LOG_TEXT_MAX &&
        rpc_log_shows_prompts(r->generation->service->o.log))
        strbuf_append(&log->output, out->text, out->text_bytes);
    if (out->finish != ENGINE_FINISH_NONE) take_end(log, out);
}

/* ---- writing the line ------------------------------------------------------------------------ */

static void put_list(strbuf *line, const char *key, const strbuf *values, bool one)
{
    if (!values->size || values->failed) return;
    strbuf_printf(line, one ? ",\"%s\":" : ",\"%s\":[", key);
    strbuf_append(line, values->data, values->size);
    if (!one) strbuf_putc(line, ']');
}

static void put_text(strbuf *line, const char *key, const strbuf *text)
{
    if (text->size) rpc_log_text(line, key, text->data, text->size);
}

/* Accounts for choices that were released before their end was read. */
static void end_the_rest(const generation *g, generation_request *r)
{
    request_log *log = &r->log;
    if (log->n_ends == g->n_choices) return;
    if (log->n_tokens) log->usage.prompt_tokens = engine_stream_prompt(r->stream).n_tokens;
    if (log->n_tokens > log->usage.completion_tokens) log->usage.completion_tokens = log->n_tokens;
    log->total_us = clock_now_us() - g->start_us;
    for (; log->n_ends < g->n_choices; log->n_ends++)
        strbuf_printf(&log->finishes, "%s\"%s\"", log->n_ends ? "," : "",
                      engine_finish_name(ENGINE_FINISH_ABORT));
}

/* "warning" for errors that the client caused, "error" for those that the server caused. */
static const char *level_of(const request_log *log)
{
    if (!log->error[0]) return "info";
    bool theirs = log->error_code == STATUS_INVALID || log->error_code == STATUS_UNSUPPORTED ||
                  log->error_code == STATUS_LIMIT;
    return theirs ? "warning" : "error";
}

void generation_log_end(const generation *g, generation_request *r)
{
    rpc_log *out = g->service->o.log;
    request_log *log = &r->log;
    const trace_span *span = generation_span(r);
    char trace[TRACE_ID_TEXT_BYTES];
    end_the_rest(g, r);
    if (!out) return;
    strbuf line = {0};
    rpc_log_begin(&line, level_of(log), "request");
    rpc_log_text(&line, "id", g->id, strlen(g->id));
    if (g->n > 1) rpc_log_number(&line, "prompt_index", r->index);
    if (span) {
        trace_id_text(span, trace);
        rpc_log_text(&line, "trace_id", trace, strlen(trace));
    }
    rpc_log_text(&line, "surface", g->surface, strlen(g->surface));
    rpc_log_number(&line, "prompt_tokens", log->usage.prompt_tokens);
    rpc_log_number(&line, "cached_tokens", log->usage.cached_tokens);
    rpc_log_number(&line, "completion_tokens", log->usage.completion_tokens);
    rpc_log_number(&line, "n", g->n_choices);
    rpc_log_ms(&line, "queue_ms", (double)log->queue_us);
    if (log->ttft_us) rpc_log_ms(&line, "ttft_ms", (double)log->ttft_us);
    if (log->n_decoded) rpc_log_ms(&line, "tpot_ms", log->decode_us / log->n_decoded);
    rpc_log_ms(&line, "total_ms", (double)log->total_us);
    put_list(&line, "finish_reason", &log->finishes, g->n_choices == 1);
    put_list(&line, "retention", &log->reports, g->n_choices == 1);
    put_list(&line, "retrieval", &log->readings, g->n_choices == 1);
    if (log->error[0]) rpc_log_text(&line, "error", log->error, strlen(log->error));
    put_text(&line, "prompt", &log->prompt);
    put_text(&line, "output", &log->output);
    rpc_log_end(out, &line);
}

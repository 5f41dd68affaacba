/* Writes the lines of `octavo run`. */
#include "cli/run_output.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void run_choice_destroy(run_choice *c)
{
    strbuf_destroy(&c->text);
    strbuf_destroy(&c->logprobs);
    free(c->token_ids);
    *c = (run_choice){0};
}

/* ---- logprobs: OpenAI's chat shape, with vLLM's rank ----------------------------------------- */

/* Writes "token": …, "logprob": …, "bytes": […]. A token without a text is written as an empty
 * one. */
static void describe_token(strbuf *out, const tokenizer *t, uint32_t id, float logprob)
{
    const char *bytes = "";
    size_t n = 0;
    if (!status_ok(tok_token_bytes(t, id, &bytes, &n))) n = 0;
    strbuf_puts(out, "\"token\":");
    strbuf_json_string(out, bytes, n);
    strbuf_puts(out, ",\"logprob\":");
    strbuf_json_float(out, logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    strbuf_putc(out, ']');
}

/* Writes one token, its rank, and the likeliest tokens in its place. */
static void describe_place(strbuf *out, const tokenizer *t, uint32_t id, float logprob,
                           uint32_t rank, const uint32_t *top_ids, const float *top_logprobs,
                           uint32_t n_top)
{
    strbuf_putc(out, '{');
    describe_token(out, t, id, logprob);
    strbuf_printf(out, ",\"rank\":%u,\"top_logprobs\":[", rank);
    for (uint32_t i = 0; i < n_top; i++) {
        strbuf_puts(out, i ? ",{" : "{");
        describe_token(out, t, top_ids[i], top_logprobs[i]);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}");
}

static void describe_sample(strbuf *out, const tokenizer *t, const step_sample *s)
{
    if (out->size) strbuf_putc(out, ',');
    describe_place(out, t, s->token, s->logprob, s->rank, s->top_ids, s->top_logprobs, s->n_top);
}

/* Nothing precedes the prompt's first token, so it has no logprob: null, as in vLLM. */
static void describe_prompt(strbuf *out, const tokenizer *t, const engine_prompt *p)
{
    strbuf_puts(out, ",\"prompt_logprobs\":[null");
    for (uint32_t i = 1; i < p->n_tokens; i++) {
        size_t top = (size_t)i * p->n_top;
        strbuf_putc(out, ',');
        describe_place(out, t, p->tokens[i], p->logprobs[i], p->ranks[i], p->top_ids + top,
                       p->top_logprobs + top, p->n_top);
    }
    strbuf_putc(out, ']');
}

void run_choice_take(run_choice *c, const engine_output *out, const tokenizer *t,
                     bool want_logprobs)
{
    strbuf_append(&c->text, out->text, out->text_bytes);
    c->failed |= c->text.failed || c->logprobs.failed;
    if (!out->has_token) return;
    if (c->n_tokens == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        uint32_t *grown = realloc(c->token_ids, capacity * sizeof *grown);
        if (!grown) {
            c->failed = true;
            return;
        }
        c->token_ids = grown;
        c->capacity = capacity;
    }
    c->token_ids[c->n_tokens++] = out->sample.token;
    if (want_logprobs) describe_sample(&c->logprobs, t, &out->sample);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void put_id(strbuf *line, const json_t *id)
{
    char *text = json_write(id, JSON_ENCODE_ANY | JSON_COMPACT);
    strbuf_puts(line, "{\"id\":");
    strbuf_puts(line, text ? text : "null");
    free(text);
}

void run_error_line(strbuf *line, const json_t *id, const char *message, uint64_t line_number)
{
    put_id(line, id);
    strbuf_puts(line, ",\"error\":{\"message\":");
    strbuf_json_string(line, message, strlen(message));
    if (line_number) strbuf_printf(line, ",\"line\":%llu", (unsigned long long)line_number);
    strbuf_puts(line, "}}\n");
}

static double ms(int64_t us) { return (double)us / 1000.0; }

void run_line(strbuf *line, const json_t *id, const run_choice *c, const engine_output *last,
              bool want_logprobs, const engine_prompt *prompt, const tokenizer *t)
{
    put_id(line, id);
    strbuf_printf(line, ",\"index\":%u,\"text\":", last->choice);
    strbuf_json_string(line, c->text.data ? c->text.data : "", c->text.size);
    strbuf_puts(line, ",\"token_ids\":[");
    for (size_t i = 0; i < c->n_tokens; i++) strbuf_printf(line, i ? ",%u" : "%u", c->token_ids[i]);
    strbuf_puts(line, "]");
    if (want_logprobs) {
        strbuf_puts(line, ",\"logprobs\":{\"content\":[");
        if (c->logprobs.size) strbuf_append(line, c->logprobs.data, c->logprobs.size);
        strbuf_puts(line, "]}");
    }
    if (prompt->logprobs) describe_prompt(line, t, prompt);
    const engine_usage *u = &last->usage;
    strbuf_printf(
        line,
        ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
        engine_finish_name(last->finish), u->prompt_tokens, u->completion_tokens, u->cached_tokens);
    if (last->report) {
        strbuf_puts(line, ",\"retention\":");
        retention_report_json(last->report, line);
    }
    if (last->reading) {
        strbuf_puts(line, ",\"retrieval\":");
        retrieval_report_json(last->reading, line);
    }
    strbuf_printf(line, ",\"timings\":{\"queue_ms\":%.3f,\"ttft_ms\":%.3f,\"total_ms\":%.3f}}\n",
                  ms(last->timings.queue_us), ms(last->timings.ttft_us),
                  ms(last->timings.total_us));
}

/* C0, DEL and C1. */
static bool is_control(uint32_t cp) { return cp < 0x20 || (cp >= 0x7f && cp < 0xa0); }

void run_terminal_text(strbuf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned used = utf8_decode((const uint8_t *)text + i, n - i, &cp);
        bool is_plain = cp == '\n' || cp == '\t' || (cp != UINT32_MAX && !is_control(cp));
        if (is_plain) strbuf_append(out, text + i, used);
        else strbuf_putc(out, '?');
        i += used;
    }
}

void run_report_text(strbuf *out, const retention_report *report)
{
    double share =
        report->logical_tokens ? 100.0 * report->kept_tokens / report->logical_tokens : 100.0;
    strbuf_printf(
        out,
        "retention %s: kept %.0f of %u tokens (%.0f %%), dropped %llu pages%s; scoring took "
        "%.2f ms",
        report->method, report->kept_tokens, report->logical_tokens, share,
        (unsigned long long)report->pages_dropped,
        report->budget_raised ? ", budget raised to what is protected" : "", report->scoring_ms);
    const retention_fields *f = &report->fields;
    if (f->tokens && f->recurrent_chunk)
        strbuf_printf(out, "; at most %u tokens behind each chunk of %u", f->tokens,
                      f->recurrent_chunk);
    const retention_gathering *g = &report->gathering;
    if (report->has_gathering)
        strbuf_printf(out,
                      "; read %u tokens in %.0f ms through %u layers, had %u, gathered %u in %.0f "
                      "ms, computed %u again in %.0f ms",
                      g->read, g->read_ms, g->layers, g->reused, g->gathered, g->gather_ms,
                      g->recomputed, g->recompute_ms);
    if (*report->session) strbuf_printf(out, "; session %s", report->session);
}

void run_reading_text(strbuf *out, const retrieval_totals *reading)
{
    double rows = reading->rows ? (double)reading->rows : 1;
    strbuf_printf(out, "retrieval: %llu tokens read %.0f of %.0f tokens each, in %.1f blocks",
                  (unsigned long long)reading->rows, reading->tokens / rows,
                  (double)reading->context / rows, reading->blocks / rows);
    if (reading->audited)
        strbuf_printf(out, "; recall %.4f on average, %.4f at least, in %llu audited rows",
                      reading->recall_sum / (double)reading->audits, reading->least_recall,
                      (unsigned long long)reading->audited);
}

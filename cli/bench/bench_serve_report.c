/* The report, in the form that load generators usually print, and its JSON. */
#include "cli/bench/bench_serve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { TTFT, TPOT, ITL, E2EL, REJECT, METRICS };

static const char *const end_names[] = {
#define SERVE_NAME(name, text) #name,
    SERVE_ENDS(SERVE_NAME)
#undef SERVE_NAME
};
static const char *const end_texts[] = {
#define SERVE_TEXT(name, text) text,
    SERVE_ENDS(SERVE_TEXT)
#undef SERVE_TEXT
};

const char *const serve_metric_names[4] = {"ttft", "tpot", "itl", "e2el"};
static const char *const metric_titles[METRICS] = {
    "Time to First Token", "Time per Output Token (excl. 1st token)", "Inter-token Latency",
    "End-to-end Latency", "Rejected: time to the answer"};
static const char *const metric_labels[METRICS] = {"TTFT", "TPOT", "ITL", "E2EL", "reject"};

typedef struct report {
    serve_run *run;
    const serve_report_options *o;
    samples ms[METRICS];
    uint64_t completed, failed, good, input, output, cached;
    double peak_tokens; // the most tokens in one second
} report;

uint64_t serve_count(const serve_run *run, serve_end end)
{
    uint64_t n = 0;
    for (size_t i = 0; i < run->n_calls; i++) n += run->calls[i].end == end;
    return n;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_within(const report *r, int metric, double ms)
{
    double limit = r->o->goodput_ms[metric];
    return limit == 0 || ms <= limit;
}

static void add_call(report *r, const serve_call *c)
{
    double ttft = c->ttft_s * 1000, e2el = c->latency_s * 1000;
    double tpot = c->output_tokens > 1 ? (e2el - ttft) / (c->output_tokens - 1) : 0;
    bool good = is_within(r, TTFT, ttft) && is_within(r, TPOT, tpot) && is_within(r, E2EL, e2el);
    samples_add(&r->ms[TTFT], ttft);
    samples_add(&r->ms[E2EL], e2el);
    if (c->output_tokens > 1) samples_add(&r->ms[TPOT], tpot);
    for (uint32_t i = 0; i < c->n_itls; i++) {
        samples_add(&r->ms[ITL], c->itls[i] * 1000.0);
        good &= is_within(r, ITL, c->itls[i] * 1000.0);
    }
    r->completed++;
    r->good += good;
    r->input += c->prompt_tokens;
    r->output += c->output_tokens;
    r->cached += c->cached_tokens;
}

static int by_index(const void *a, const void *b)
{
    const serve_call *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

static status measure_calls(report *r, error *err)
{
    serve_run *run = r->run;
    if (run->n_calls) qsort(run->calls, run->n_calls, sizeof *run->calls, by_index);
    for (size_t i = 0; i < run->n_calls; i++) {
        const serve_call *c = &run->calls[i];
        if (c->end == SERVE_OK) add_call(r, c);
        else if (c->end != SERVE_VANISHED) r->failed++;
        if (c->end == SERVE_REJECTED) samples_add(&r->ms[REJECT], c->latency_s * 1000);
    }
    bool failed = false;
    for (int m = 0; m < METRICS; m++) {
        samples_sort(&r->ms[m]);
        failed |= r->ms[m].failed;
    }
    for (size_t i = 0; i < run->n_seconds; i++)
        if (run->tokens_by_second[i] > r->peak_tokens) r->peak_tokens = run->tokens_by_second[i];
    return failed ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
}

static double per_second(const report *r, uint64_t n)
{
    return r->run->duration_s > 0 ? (double)n / r->run->duration_s : 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void row_whole(const char *name, uint64_t v)
{
    printf("%-42s %-10llu\n", name, (unsigned long long)v);
}
static void print_row(const char *name, double v) { printf("%-42s %-10.2f\n", name, v); }

static void title(const char *text)
{
    int left = (int)(53 - strlen(text)) / 2;
    printf("%.*s%s%.*s\n", left, "---------------------------", text,
           (int)(53 - strlen(text)) - left, "---------------------------");
}

static void print_metric(const report *r, int m)
{
    const samples *s = &r->ms[m];
    char name[48];
    title(metric_titles[m]);
    snprintf(name, sizeof name, "Mean %s (ms):", metric_labels[m]);
    print_row(name, samples_mean(s));
    snprintf(name, sizeof name, "Median %s (ms):", metric_labels[m]);
    print_row(name, samples_percentile(s, 50));
    for (uint32_t i = 0; i < r->o->n_percentiles; i++) {
        snprintf(name, sizeof name, "P%g %s (ms):", r->o->percentiles[i], metric_labels[m]);
        print_row(name, samples_percentile(s, r->o->percentiles[i]));
    }
}

static void print_others(const report *r)
{
    const serve_run *run = r->run;
    uint64_t vanished = serve_count(run, SERVE_VANISHED);
    if (vanished) row_whole("Left in mid-stream:", vanished);
    if (run->o->never_read) {
        row_whole("Streams never read:", run->never_read_open);
        row_whole("Of these ended by the server:", run->never_read_closed);
    }
    for (int e = SERVE_REJECTED; e < SERVE_END_KINDS; e++) {
        uint64_t n = serve_count(run, (serve_end)e);
        if (n == 0 || e == SERVE_VANISHED) continue;
        printf("  %llu %s", (unsigned long long)n, end_texts[e]);
        if (run->example[e][0]) printf(" (the first: %s)", run->example[e]);
        printf("\n");
    }
}

static bool has_goodput(const report *r)
{
    for (int m = 0; m < 4; m++)
        if (r->o->goodput_ms[m] > 0) return true;
    return false;
}

static void print_text(const report *r)
{
    const serve_run *run = r->run;
    printf("============ Serving Benchmark Result ===============\n");
    row_whole("Successful requests:", r->completed);
    row_whole("Failed requests:", r->failed);
    if (run->o->max_concurrency) row_whole("Maximum request concurrency:", run->o->max_concurrency);
    if (run->o->rate > 0) print_row("Request rate configured (RPS):", run->o->rate);
    print_row("Benchmark duration (s):", run->duration_s);
    row_whole("Total input tokens:", r->input);
    row_whole("Total generated tokens:", r->output);
    print_row("Request throughput (req/s):", per_second(r, r->completed));
    if (has_goodput(r)) print_row("Request goodput (req/s):", per_second(r, r->good));
    print_row("Output token throughput (tok/s):", per_second(r, r->output));
    print_row("Peak output token throughput (tok/s):", r->peak_tokens);
    row_whole("Peak concurrent requests:", run->peak_running);
    print_row("Total token throughput (tok/s):", per_second(r, r->input + r->output));
    row_whole("Prompt tokens found in the prefix cache:", r->cached);
    print_others(r);
    for (int m = 0; m < REJECT; m++) print_metric(r, m);
    if (r->ms[REJECT].n) print_metric(r, REJECT);
    printf("=====================================================\n");
}

/* ---- files ----------------------------------------------------------------------------------- */

static void put_stats(const report *r, int m, const char *name, strbuf *b)
{
    const samples *s = &r->ms[m];
    strbuf_printf(b, "\"mean_%s_ms\":%.6g,\"median_%s_ms\":%.6g,\"std_%s_ms\":%.6g", name,
                  samples_mean(s), name, samples_percentile(s, 50), name, samples_std(s));
    for (uint32_t i = 0; i < r->o->n_percentiles; i++)
        strbuf_printf(b, ",\"p%g_%s_ms\":%.6g", r->o->percentiles[i], name,
                      samples_percentile(s, r->o->percentiles[i]));
}

static void put_itls(const serve_call *c, strbuf *b)
{
    strbuf_putc(b, '[');
    for (uint32_t i = 0; i < c->n_itls; i++) strbuf_printf(b, i ? ",%.6g" : "%.6g", c->itls[i]);
    strbuf_putc(b, ']');
}

static void put_input_len(const serve_call *c, strbuf *b)
{
    strbuf_printf(b, "%u", c->prompt_tokens);
}
static void put_output_len(const serve_call *c, strbuf *b)
{
    strbuf_printf(b, "%u", c->output_tokens);
}
static void put_ttft(const serve_call *c, strbuf *b)
{
    strbuf_printf(b, "%.6g", c->ttft_s > 0 ? c->ttft_s : 0);
}

/* Writes a list with one element for each successful request. */
static void put_list(const report *r, const char *name, void (*put)(const serve_call *, strbuf *),
                     strbuf *b)
{
    bool first = true;
    strbuf_printf(b, ",\n \"%s\":[", name);
    for (size_t i = 0; i < r->run->n_calls; i++) {
        if (r->run->calls[i].end != SERVE_OK) continue;
        if (!first) strbuf_putc(b, ',');
        first = false;
        put(&r->run->calls[i], b);
    }
    strbuf_putc(b, ']');
}

static void put_ends(const report *r, strbuf *b)
{
    const serve_run *run = r->run;
    bool first = true;
    strbuf_puts(b, ",\n \"ends\":{");
    for (int e = 0; e < SERVE_END_KINDS; e++) {
        uint64_t n = serve_count(run, (serve_end)e);
        if (n == 0) continue;
        strbuf_printf(b, first ? "\"%s\":%llu" : ",\"%s\":%llu", end_names[e],
                      (unsigned long long)n);
        first = false;
    }
    strbuf_puts(b, "},\n \"examples\":{");
    first = true;
    for (int e = 0; e < SERVE_END_KINDS; e++) {
        if (!run->example[e][0]) continue;
        strbuf_printf(b, first ? "\"%s\":" : ",\"%s\":", end_names[e]);
        strbuf_json_string(b, run->example[e], strlen(run->example[e]));
        first = false;
    }
    strbuf_putc(b, '}');
}

static double cpu_seconds(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void put_json(const report *r, strbuf *b)
{
    const serve_run *run = r->run;
    strbuf_printf(b,
                  "{\"duration\":%.6g,\"completed\":%llu,\"failed\":%llu,"
                  "\"total_input_tokens\":%llu,\"total_output_tokens\":%llu,"
                  "\"request_throughput\":%.6g,\"request_goodput\":",
                  run->duration_s, (unsigned long long)r->completed, (unsigned long long)r->failed,
                  (unsigned long long)r->input, (unsigned long long)r->output,
                  per_second(r, r->completed));
    if (has_goodput(r)) strbuf_printf(b, "%.6g", per_second(r, r->good));
    else strbuf_puts(b, "null");
    strbuf_printf(b,
                  ",\"output_throughput\":%.6g,\"total_token_throughput\":%.6g,"
                  "\"max_output_tokens_per_s\":%.6g,\"max_concurrent_requests\":%u",
                  per_second(r, r->output), per_second(r, r->input + r->output), r->peak_tokens,
                  run->peak_running);
    for (int m = 0; m < REJECT; m++) {
        strbuf_puts(b, ",\n ");
        put_stats(r, m, serve_metric_names[m], b);
    }
    strbuf_printf(b, ",\n \"rejected\":%zu,", r->ms[REJECT].n);
    put_stats(r, REJECT, "reject", b);
    strbuf_printf(b, ",\n \"total_cached_tokens\":%llu,\"vanished\":%llu",
                  (unsigned long long)r->cached,
                  (unsigned long long)serve_count(run, SERVE_VANISHED));
    strbuf_printf(b,
                  ",\"never_read\":%u,\"never_read_closed\":%u,\"connections\":%llu,\"retried\":"
                  "%llu,\"client_cpu_s\":%.4g",
                  run->never_read_open, run->never_read_closed,
                  (unsigned long long)run->connections, (unsigned long long)run->retried,
                  cpu_seconds());
    put_ends(r, b);
    put_list(r, "input_lens", put_input_len, b);
    put_list(r, "output_lens", put_output_len, b);
    put_list(r, "ttfts", put_ttft, b);
    put_list(r, "itls", put_itls, b);
    strbuf_puts(b, "}\n");
}

static void put_requests(const report *r, strbuf *b)
{
    for (size_t i = 0; i < r->run->n_calls; i++) {
        const serve_call *c = &r->run->calls[i];
        strbuf_printf(b,
                      "{\"index\":%llu,\"end\":\"%s\",\"status\":%u,\"start_s\":%.6f,\"ttft_s\":"
                      "%.6g,\"latency_s\":%.6g,\"events\":%u,\"prompt_tokens\":%u,"
                      "\"output_tokens\":%u,\"cached_tokens\":%u,\"text_hash\":\"%016llx\"}\n",
                      (unsigned long long)c->index, end_names[c->end], c->status, c->start_s,
                      c->ttft_s, c->latency_s, c->events, c->prompt_tokens, c->output_tokens,
                      c->cached_tokens, (unsigned long long)c->text_hash);
    }
}

static status write_file(const char *path, const report *r, void (*put)(const report *, strbuf *),
                         error *err)
{
    strbuf b = {0};
    put(r, &b);
    if (b.failed) return strbuf_destroy(&b), error_set(err, STATUS_NO_MEMORY, "out of memory");
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(b.data ? b.data : "", 1, b.size, f) == b.size;
    if (f && fclose(f) != 0) ok = false;
    strbuf_destroy(&b);
    return ok ? STATUS_IS_OK : error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
}

status serve_report(serve_run *run, const serve_report_options *o, error *err)
{
    report r = {.run = run, .o = o};
    status st = measure_calls(&r, err);
    if (status_ok(st)) print_text(&r);
    if (status_ok(st) && o->json) st = write_file(o->json, &r, put_json, err);
    if (status_ok(st) && o->requests) st = write_file(o->requests, &r, put_requests, err);
    if (status_ok(st) && o->plot) st = serve_plot(run, r.ms, o->plot, err);
    for (int m = 0; m < METRICS; m++) samples_destroy(&r.ms[m]);
    return st;
}

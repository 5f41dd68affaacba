/* The flags and the report of `octavo bench engine --backend null`. */
#include "cli/bench/bench_null.h"

#include "cli/bench/bench_calls.h"
#include "cli/bench/bench_loop.h"
#include "cli/bench/bench_report.h"

#include <stdio.h>

static const arg_flag flags_table[] = {
    ARG_ROW("step-us", "N", ARG_COUNT, bench_null_flags, step_us,
            "how long a step takes, whatever it computes", .max = 1000000, .initial = "5000"),
    ARG_ROW("running", "LIST", ARG_TEXT, bench_null_flags, running,
            "requests that are always open: a finished one is followed by another",
            .initial = "64,256,512"),
    ARG_ROW("prompt-tokens", "N", ARG_COUNT, bench_null_flags, prompt_tokens,
            "tokens of each prompt, which are random", .min = 1, .max = 1 << 20, .initial = "1024"),
    ARG_ROW("output-tokens", "N", ARG_COUNT, bench_null_flags, output_tokens,
            "tokens that each request draws", .min = 1, .max = 1 << 20, .initial = "256"),
    ARG_ROW("layers", "N", ARG_COUNT, bench_null_flags, layers, "layers of the page tables",
            .min = 1, .max = 1024, .initial = "80"),
    ARG_ROW("kv-heads", "N", ARG_COUNT, bench_null_flags, kv_heads, "KV heads of a layer", .min = 1,
            .max = 1024, .initial = "8"),
    ARG_ROW("seconds", "N", ARG_COUNT, bench_null_flags, seconds,
            "how long each closed loop is measured, once as many requests have ended as are open",
            .min = 1, .max = 3600, .initial = "5"),
    ARG_ROW("sessions", "N", ARG_COUNT, bench_null_flags, sessions,
            "idle sessions beside which calls are timed", .min = 1, .max = 1 << 20,
            .initial = "16384"),
    ARG_ROW("arrivals", "N", ARG_COUNT, bench_null_flags, arrivals,
            "requests that arrive at once while others run", .min = 1, .max = 1 << 20,
            .initial = "10000"),
    ARG_ROW("long-tokens", "N", ARG_COUNT, bench_null_flags, long_tokens,
            "tokens of the sequence that is closed, opened and swapped", .min = 4096,
            .max = 1 << 20, .initial = "131072"),
    ARG_ROW(
        "http", "HOST:PORT", ARG_TEXT, bench_null_flags, http,
        "instead of the closed loops: serve HTTP there, and measure once clients have --running "
        "requests running; no call is timed alone"),
    ARG_ROW("grpc", "HOST:PORT", ARG_TEXT, bench_null_flags, grpc, "the same for gRPC"),
    ARG_ROW("otlp-traces-endpoint", "URL", ARG_TEXT, bench_null_flags, traces,
            "these servers send a span of each request there, as octavo serve does"),
};

arg_group bench_null_group(bench_null_flags *target)
{
    return (arg_group){"With --backend null", flags_table,
                       sizeof flags_table / sizeof flags_table[0], target};
}

typedef struct null_bench {
    bench_null_options o;
    pkv_geometry geometry;
    bench_report report;
} null_bench;

static bool is_served(const null_bench *b) { return b->o.flags->http || b->o.flags->grpc; }

/* ---- single calls ---------------------------------------------------------------------------- */

static void report_call(null_bench *b, const char *json, const char *name, uint32_t n, double us)
{
    if (!b->o.as_json) printf("%-56s N = %-7u %10.1f us\n", name, n, us);
    bench_report_row(&b->report, json);
    strbuf_printf(&b->report.rows, ",\"n\":%u,\"us\":%.4g}", n, us);
}

static uint32_t most_running(const bench_list *list)
{
    uint32_t most = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->values[i] > most) most = list->values[i];
    return most;
}

static status time_calls(null_bench *b, error *err)
{
    double us[BENCH_CALL_KINDS] = {0};
    bench_calls_options o = {.geometry = b->geometry,
                             .running = most_running(b->o.running),
                             .sessions = b->o.flags->sessions,
                             .arrivals = b->o.flags->arrivals,
                             .long_tokens = b->o.flags->long_tokens,
                             .rounds = b->o.rounds};
    RETURN_IF_ERROR(bench_calls(&o, us, err));
#define REPORT(id, json, name, option) report_call(b, json, name, o.option, us[BENCH_CALL_##id]);
    BENCH_CALLS(REPORT)
#undef REPORT
    return STATUS_IS_OK;
}

/* ---- closed loops ---------------------------------------------------------------------------- */

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

static void print_loop_head(void)
{
    printf("\n%7s %9s %7s %6s %6s %6s | the engine thread, us a step:\n", "running", "tokens/s",
           "steps/s", "rows", "ready", "ahead");
    printf("%7s %9s %7s %6s %6s %6s | %8s %6s %8s %8s %8s %8s %8s\n", "", "", "", "a step", "%",
           "%", "all", "%", "schedule", "tell", "mirror", "rest", "cpu");
}

static void report_loop(null_bench *b, uint32_t running, const bench_loop_numbers *n)
{
    double steps = n->steps, step_us = share(n->seconds * 1e6, steps);
    double busy = step_us - share(n->waited_us, steps), schedule = share(n->schedule_us, steps);
    double tell = share(n->tell_us, steps), mirror = share(n->mirror_us, steps);
    double rest = busy - schedule - tell - mirror;
    if (!b->o.as_json)
        printf("%7u %9.0f %7.1f %6.0f %6.1f %6.1f | %8.0f %6.1f %8.0f %8.0f %8.0f %8.0f %8.0f\n",
               running, n->tokens / n->seconds, steps / n->seconds, share(n->rows, steps),
               100 * share(n->in_time, steps), 100 * share(n->ahead, steps), busy,
               100 * share(busy, step_us), schedule, tell, mirror, rest,
               share(n->thread_us, steps));
    bench_report_row(&b->report, is_served(b) ? "served" : "closed_loop");
    strbuf_printf(&b->report.rows,
                  ",\"running\":%u,\"step_us\":%u,\"prompt_tokens\":%u,\"output_tokens\":%u,"
                  "\"prefill_chunk\":%u,\"seconds\":%.3f,\"requests\":%.0f,\"tokens_s\":%.6g,"
                  "\"steps_s\":%.5g,\"rows_a_step\":%.5g,\"ready\":%.4f,\"ahead\":%.4f,"
                  "\"engine_share\":%.4f,\"engine_us\":%.5g,\"schedule_us\":%.5g,\"tell_us\":%.5g,"
                  "\"mirror_us\":%.5g,\"rest_us\":%.5g,\"cpu_us\":%.5g}",
                  running, b->o.flags->step_us, b->o.flags->prompt_tokens,
                  b->o.flags->output_tokens, n->prefill_chunk, n->seconds, n->requests,
                  n->tokens / n->seconds, steps / n->seconds, share(n->rows, steps),
                  share(n->in_time, steps), share(n->ahead, steps), share(busy, step_us), busy,
                  schedule, tell, mirror, rest, share(n->thread_us, steps));
}

static status run_loops(null_bench *b, error *err)
{
    if (!b->o.as_json) print_loop_head();
    for (size_t i = 0; i < b->o.running->n; i++) {
        bench_loop_options o = {.geometry = b->geometry,
                                .running = b->o.running->values[i],
                                .prompt_tokens = b->o.flags->prompt_tokens,
                                .output_tokens = b->o.flags->output_tokens,
                                .prefill_chunk = b->o.model->prefill_chunk,
                                .step_us = b->o.flags->step_us,
                                .seconds = b->o.flags->seconds,
                                .prefix_cache = !b->o.model->no_prefix_cache,
                                .http = b->o.flags->http,
                                .grpc = b->o.flags->grpc,
                                .traces = b->o.flags->traces};
        bench_loop_numbers numbers;
        RETURN_IF_ERROR(bench_loop(&o, &numbers, err));
        report_loop(b, o.running, &numbers);
    }
    return STATUS_IS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static status make_geometry(null_bench *b, error *err)
{
    const model_flags *m = b->o.model;
    b->geometry = (pkv_geometry){.page_tokens = m->page_tokens ? m->page_tokens : 16,
                                 .n_layers = b->o.flags->layers,
                                 .n_kv_heads = b->o.flags->kv_heads,
                                 .layers_per_group = 1,
                                 .heads_per_group = 1};
    return pkv_geometry_check(&b->geometry, err);
}

static void start_report(null_bench *b)
{
    const pkv_geometry *g = &b->geometry;
    strbuf_printf(&b->report.head,
                  "\"backend\":\"null\",\"layers\":%u,\"kv_heads\":%u,\"page_tokens\":%u,"
                  "\"tables\":%u,\"rounds\":%u",
                  g->n_layers, g->n_kv_heads, g->page_tokens, pkv_groups(g), b->o.rounds);
    if (!b->o.as_json)
        printf("%u layers, %u KV heads, pages of %u tokens, at most %u tables a sequence; medians "
               "of %u rounds\n\n",
               g->n_layers, g->n_kv_heads, g->page_tokens, pkv_groups(g), b->o.rounds);
}

status bench_null(const bench_null_options *options, error *err)
{
    null_bench b = {.o = *options};
    RETURN_IF_ERROR(make_geometry(&b, err));
    if (is_served(&b) && b.o.running->n != 1)
        return error_set(err, STATUS_INVALID, "--running: --http and --grpc take one number");
    start_report(&b);
    status st = is_served(&b) ? STATUS_IS_OK : time_calls(&b, err);
    if (status_ok(st)) st = run_loops(&b, err);
    if (status_ok(st)) st = bench_report_write(&b.report, b.o.as_json, b.o.out, err);
    bench_report_destroy(&b.report);
    return st;
}

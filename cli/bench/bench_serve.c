/* `octavo bench serve`: puts load on an OpenAI-compatible server and reports how it answers. */
#include "cli/bench/bench_serve.h"

#include "base/json.h"
#include "base/number.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char bench_serve_name[] = "octavo bench serve";

typedef struct serve_flags {
    const char *url, *protocol, *endpoint, *model, *api_key, *extra;
    const char *workload, *text, *trace, *form, *range_ratio;
    uint32_t input_len, output_len, prefixes, prefix_len, distinct, vocab, trace_scale,
        block_tokens;
    bool whole_blocks, check, keep_eos, quiet;
    const char *rate, *burstiness, *trace_speed, *duration, *timeout, *vanish, *hold;
    uint64_t n_prompts, seed;
    uint32_t max_concurrency, never_read;
    const char *percentiles, *goodput, *json, *requests, *plot;
} serve_flags;

static const char *const protocols[] = {"http", "grpc", NULL};
static const char *const endpoints[] = {"completions", "chat", NULL};
static const char *const workloads[] = {"random", "prefix", "text", "trace", NULL};
static const char *const forms[] = {"ids", "text", NULL};

static const arg_flag server_table[] = {
    ARG_ROW("url", "URL", ARG_TEXT, serve_flags, url, "the server: http://HOST:PORT",
            .also = "--base-url"),
    ARG_ROW(
        "protocol", "NAME", ARG_OPTION, serve_flags, protocol,
        "what the server is asked by: OpenAI's API over HTTP, or octavo.v1's Generate over gRPC",
        .initial = "http", .options = protocols),
    ARG_ROW("endpoint", "NAME", ARG_OPTION, serve_flags, endpoint, "what is called",
            .initial = "completions", .options = endpoints),
    ARG_ROW("model", "NAME", ARG_TEXT, serve_flags, model,
            "the model's name (default: the first of /v1/models; gRPC: the served one)"),
    ARG_ROW("api-key", "KEY", ARG_TEXT, serve_flags, api_key, "sent as a bearer key"),
    ARG_ROW("extra", "JSON", ARG_TEXT, serve_flags, extra,
            "an object whose members go into each request, such as a retention; HTTP alone",
            .also = "--extra-body"),
};

static const arg_flag work_table[] = {
    ARG_ROW("workload", "NAME", ARG_OPTION, serve_flags, workload, "kind of the prompts",
            .initial = "random", .options = workloads),
    ARG_ROW("form", "NAME", ARG_OPTION, serve_flags, form,
            "prompts as token ids or as words (chat: always words)", .initial = "ids",
            .options = forms),
    ARG_ROW("input-len", "N", ARG_COUNT, serve_flags, input_len,
            "tokens of a prompt; of a text, four bytes each", .min = 1, .max = 1 << 22,
            .initial = "256"),
    ARG_ROW("output-len", "N", ARG_COUNT, serve_flags, output_len,
            "tokens of an answer (default: 128, or the trace's)", .min = 1, .max = 1 << 22),
    ARG_ROW("range-ratio", "R", ARG_TEXT, serve_flags, range_ratio,
            "lengths are uniform in length * (1 - R) to length * (1 + R)", .initial = "0"),
    ARG_ROW("prefixes", "N", ARG_COUNT, serve_flags, prefixes,
            "prefix: how many beginnings are shared", .min = 1, .max = 1 << 24, .initial = "10"),
    ARG_ROW("prefix-len", "N", ARG_COUNT, serve_flags, prefix_len,
            "prefix, text: tokens of a shared beginning", .max = 1 << 22, .initial = "256"),
    ARG_ROW("distinct", "N", ARG_COUNT, serve_flags, distinct,
            "repeat the same N requests (default: all differ)", .min = 1, .max = 4294967295.0),
    ARG_ROW("vocab", "N", ARG_COUNT, serve_flags, vocab, "token ids are from 16 to below N",
            .min = 17, .max = 4294967295.0, .initial = "1000"),
    ARG_ROW("text", "FILE", ARG_TEXT, serve_flags, text, "text: where prompts are cut from"),
    ARG_ROW("trace", "FILE", ARG_TEXT, serve_flags, trace,
            "trace: JSONL with input_length, output_length, hash_ids and timestamp (ms)"),
    ARG_ROW("scale", "N", ARG_COUNT, serve_flags, trace_scale, "trace: lengths are divided by it",
            .min = 1, .max = 1 << 20, .initial = "1"),
    ARG_ROW("block-tokens", "N", ARG_COUNT, serve_flags, block_tokens,
            "trace: tokens of a block (default: 512 divided by the scale)", .min = 1,
            .max = 1 << 20),
    ARG_ROW("whole-blocks", NULL, ARG_SWITCH, serve_flags, whole_blocks,
            "trace: a prompt is all its blocks in full and one token of its own"),
};

static const arg_flag load_table[] = {
    ARG_ROW("num-prompts", "N", ARG_WHOLE, serve_flags, n_prompts,
            "requests (default: the trace's, or 1000 when no duration is given)", .min = 1,
            .max = 0x1p40),
    ARG_ROW("duration", "S", ARG_TEXT, serve_flags, duration, "start requests for so many seconds",
            .initial = "0"),
    ARG_ROW("request-rate", "R", ARG_TEXT, serve_flags, rate, "requests a second",
            .initial = "inf"),
    ARG_ROW("burstiness", "B", ARG_TEXT, serve_flags, burstiness,
            "shape of the gamma distributed gaps: 1 = Poisson, less = burstier", .initial = "1"),
    ARG_ROW("trace-speed", "X", ARG_TEXT, serve_flags, trace_speed,
            "trace: send at its own times, X times as fast", .initial = "0"),
    ARG_ROW("max-concurrency", "N", ARG_COUNT, serve_flags, max_concurrency,
            "requests at once (default: no limit)", .min = 1, .max = 65536),
    ARG_ROW("timeout", "S", ARG_TEXT, serve_flags, timeout, "seconds a request may take",
            .initial = "600"),
    ARG_ROW("seed", "N", ARG_WHOLE, serve_flags, seed, "of prompts, lengths and gaps",
            .max = 0x1p60, .initial = "0"),
    ARG_ROW("keep-eos", NULL, ARG_SWITCH, serve_flags, keep_eos,
            "let the model end: do not send ignore_eos"),
    ARG_ROW("check", NULL, ARG_SWITCH, serve_flags, check,
            "equal requests must give equal texts (with --distinct or a trace)"),
    ARG_ROW("vanish", "P", ARG_TEXT, serve_flags, vanish,
            "share of the requests whose client leaves in mid-stream", .initial = "0"),
    ARG_ROW("never-read", "N", ARG_COUNT, serve_flags, never_read,
            "streams opened first, and never read", .max = 65536),
    ARG_ROW("hold", "S", ARG_TEXT, serve_flags, hold,
            "seconds these stay open after all others ended", .initial = "0"),
};

static const arg_flag report_table[] = {
    ARG_ROW("percentiles", "LIST", ARG_TEXT, serve_flags, percentiles, "which are printed",
            .initial = "90,95,99", .also = "--metric-percentiles"),
    ARG_ROW("goodput", "LIST", ARG_TEXT, serve_flags, goodput,
            "limits in ms, such as ttft:500,tpot:50; also itl, e2el"),
    ARG_ROW("json", "FILE", ARG_TEXT, serve_flags, json, "write the numbers there"),
    ARG_ROW("requests", "FILE", ARG_TEXT, serve_flags, requests,
            "write a JSON line for each request there"),
    ARG_ROW("plot", "FILE", ARG_TEXT, serve_flags, plot,
            "draw tokens and requests over time, and latencies by percentile, as SVG"),
};

/* ---- values ---------------------------------------------------------------------------------- */

static status read_number(const char *flag, const char *text, double min, double max, double *out,
                          error *err)
{
    double v = 0;
    const char *end = number_read(text, &v);
    if (!end || *end || !(v >= min && v <= max))
        return error_set(err, STATUS_INVALID, "--%s: '%.64s' must be a number from %g to %g", flag,
                         text, min, max);
    *out = v;
    return STATUS_IS_OK;
}

/* Reads http://HOST[:PORT][/PATH]. */
static status read_url(const char *url, serve_options *o, error *err)
{
    static const char scheme[] = "http://";
    if (!url) return error_set(err, STATUS_INVALID, "--url is missing");
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return error_set(err, STATUS_UNSUPPORTED, "--url: must begin with http://");
    const char *host = url + sizeof scheme - 1;
    bool bracket = *host == '[';
    size_t n = bracket ? strcspn(++host, "]") : strcspn(host, ":/");
    const char *rest = host + n;
    if (bracket && *rest++ != ']') return error_set(err, STATUS_INVALID, "--url: no ']'");
    const char *port = *rest == ':' ? rest + 1 : "80";
    size_t digits = strspn(port, "0123456789");
    if (*rest == ':') rest += 1 + digits;
    size_t path = strlen(rest);
    while (path && rest[path - 1] == '/') path--;
    if (n == 0 || n >= sizeof o->host || digits == 0 || digits > 5 || path >= sizeof o->path ||
        (*rest && *rest != '/'))
        return error_set(err, STATUS_INVALID, "--url: must be http://HOST:PORT");
    snprintf(o->host, sizeof o->host, "%.*s", (int)n, host);
    snprintf(o->port, sizeof o->port, "%.*s", (int)digits, port);
    snprintf(o->path, sizeof o->path, "%.*s", (int)path, rest);
    return STATUS_IS_OK;
}

/* Copies the members of a JSON object, without its braces. */
static status read_extra(const char *text, char **out, error *err)
{
    if (!text) return STATUS_IS_OK;
    json_t *tree = NULL;
    RETURN_IF_ERROR(json_read_text("--extra", text, strlen(text), &tree, err));
    char *all = json_is_object(tree) ? json_write(tree, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(tree);
    if (!all) return error_set(err, STATUS_INVALID, "--extra: must be a JSON object");
    size_t n = strlen(all);
    if (n > 2) {
        all[n - 1] = '\0';
        *out = strdup(all + 1);
    }
    free(all);
    return n > 2 && !*out ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
}

static status read_percentiles(const char *text, serve_report_options *out, error *err)
{
    for (const char *at = text;; at++) {
        double v = 0;
        const char *end = number_read(at, &v);
        if (!end || !(v >= 0 && v <= 100) || (*end && *end != ',') ||
            out->n_percentiles == SERVE_PERCENTILES_MAX)
            return error_set(err, STATUS_INVALID,
                             "--percentiles: must be up to %d numbers from 0 to 100",
                             SERVE_PERCENTILES_MAX);
        out->percentiles[out->n_percentiles++] = v;
        if (!*end) return STATUS_IS_OK;
        at = end;
    }
}

/* Reads "ttft:500,tpot:50". */
static status read_goodput(const char *text, serve_report_options *out, error *err)
{
    const char *at = text;
    while (at && *at) {
        int m = 0;
        size_t n = strcspn(at, ":");
        while (m < 4 &&
               (strlen(serve_metric_names[m]) != n || memcmp(at, serve_metric_names[m], n) != 0))
            m++;
        double v = 0;
        const char *end = m < 4 && at[n] ? number_read(at + n + 1, &v) : NULL;
        if (!end || !(v > 0 && v < 1e9) || (*end && *end != ','))
            return error_set(err, STATUS_INVALID,
                             "--goodput: must be NAME:MS, NAME one of ttft, tpot, itl, e2el");
        out->goodput_ms[m] = v;
        at = *end ? end + 1 : end;
    }
    return STATUS_IS_OK;
}

static status read_times(const serve_flags *f, serve_options *o, work_options *w, error *err)
{
    bool no_limit = strcmp(f->rate, "inf") == 0;
    if (!no_limit) RETURN_IF_ERROR(read_number("request-rate", f->rate, 1e-3, 1e6, &o->rate, err));
    RETURN_IF_ERROR(read_number("burstiness", f->burstiness, 1e-3, 1e3, &o->burstiness, err));
    RETURN_IF_ERROR(read_number("trace-speed", f->trace_speed, 0, 1e6, &o->trace_speed, err));
    RETURN_IF_ERROR(read_number("duration", f->duration, 0, 1e6, &o->duration_s, err));
    RETURN_IF_ERROR(read_number("timeout", f->timeout, 0.1, 1e6, &o->timeout_s, err));
    RETURN_IF_ERROR(read_number("vanish", f->vanish, 0, 1, &o->vanish, err));
    RETURN_IF_ERROR(read_number("hold", f->hold, 0, 1e6, &o->hold_s, err));
    return read_number("range-ratio", f->range_ratio, 0, 1, &w->range_ratio, err);
}

static status read_options(const serve_flags *f, serve_options *o, work_options *w,
                           serve_report_options *r, error *err)
{
    bool chat = strcmp(f->endpoint, "chat") == 0, trace = strcmp(f->workload, "trace") == 0;
    *o = (serve_options){.grpc = strcmp(f->protocol, "grpc") == 0,
                         .chat = chat,
                         .model = f->model,
                         .api_key = f->api_key,
                         .n_prompts = f->n_prompts,
                         .max_concurrency = f->max_concurrency,
                         .never_read = f->never_read,
                         .check = f->check,
                         .keep_eos = f->keep_eos,
                         .quiet = f->quiet,
                         .seed = f->seed};
    *w = (work_options){.kind = f->workload,
                        .file = trace ? f->trace : f->text,
                        .words = chat || strcmp(f->form, "text") == 0,
                        .input_len = f->input_len,
                        .output_len = f->output_len,
                        .prefixes = f->prefixes,
                        .prefix_len = f->prefix_len,
                        .distinct = f->distinct,
                        .vocab = f->vocab,
                        .scale = f->trace_scale,
                        .block_tokens = f->block_tokens,
                        .whole_blocks = f->whole_blocks,
                        .seed = f->seed};
    *r = (serve_report_options){.json = f->json, .requests = f->requests, .plot = f->plot};
    RETURN_IF_ERROR(read_url(f->url, o, err));
    if (o->grpc && *o->path)
        return error_set(err, STATUS_INVALID, "--url: gRPC has no path: it must end with the port");
    if (o->grpc && f->extra)
        return error_set(err, STATUS_UNSUPPORTED, "--extra: needs --protocol http");
    RETURN_IF_ERROR(read_times(f, o, w, err));
    if (o->trace_speed > 0 && !trace)
        return error_set(err, STATUS_INVALID, "--trace-speed: needs --workload trace");
    RETURN_IF_ERROR(read_percentiles(f->percentiles, r, err));
    RETURN_IF_ERROR(read_goodput(f->goodput, r, err));
    return read_extra(f->extra, &o->extra, err);
}

/* ---- the command ----------------------------------------------------------------------------- */

static status bench(serve_options *o, const work *w, const serve_report_options *r, bool *clean,
                    error *err)
{
    char *model = NULL;
    if (!o->model && !o->grpc) RETURN_IF_ERROR(serve_first_model(o, &model, err));
    if (model) o->model = model;
    uint64_t lines = work_count(w);
    if (o->n_prompts == 0 && lines) o->n_prompts = lines;
    if (o->n_prompts == 0 && o->duration_s == 0) o->n_prompts = 1000;
    serve_run run;
    status st = serve_load(o, w, &run, err);
    if (status_ok(st)) {
        st = serve_report(&run, r, err);
        *clean = serve_count(&run, SERVE_OK) + serve_count(&run, SERVE_VANISHED) == run.n_calls;
        serve_run_destroy(&run);
    }
    free(model);
    return st;
}

static int run_bench(const serve_flags *flags)
{
    serve_options o;
    work_options w;
    serve_report_options r;
    error err = {{0}};
    work *what = NULL;
    bool clean = false;
    int result = CLI_OK;
    if (!status_ok(read_options(flags, &o, &w, &r, &err)))
        result = cli_complain(bench_serve_name, CLI_USAGE, err.text);
    else if (!status_ok(work_create(&w, &what, &err)) ||
             !status_ok(bench(&o, what, &r, &clean, &err)))
        result = cli_complain(bench_serve_name, CLI_FAILED, err.text);
    else if (!cli_finish_output(bench_serve_name) || !clean) result = CLI_FAILED;
    work_destroy(what);
    free(o.extra);
    return result;
}

int cli_bench_serve(cli_line *line)
{
    serve_flags flags = {0};
    const arg_group groups[] = {
        {"The server", server_table, sizeof server_table / sizeof server_table[0], &flags},
        {"Prompts", work_table, sizeof work_table / sizeof work_table[0], &flags},
        {"Times and clients", load_table, sizeof load_table / sizeof load_table[0], &flags},
        {"The report", report_table, sizeof report_table / sizeof report_table[0], &flags},
    };
    const arg_command command = {
        .name = bench_serve_name,
        .usage = "--url http://HOST:PORT [flags]",
        .about =
            "Load on a server that speaks OpenAI's API, or octavo.v1: greedy, streamed requests, "
            "each "
            "checked\nto be whole ([DONE] or status OK, finish_reason, usage, as many tokens as "
            "asked for). Requests\nstart by a rate (Poisson or gamma), as fast as "
            "--max-concurrency lets them, or at a trace's own\ntimes. A chunk with choices counts "
            "as one token; over gRPC each token id does. Exit status 1 when\na request failed or "
            "was rejected.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .quiet = &flags.quiet,
    };
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    return run_bench(&flags);
}

/* `octavo bench retention`: what methods cost a prefill, and how many sequences they allow at
 * depth. */
#include "cli/bench/bench_retention.h"
#include "base/number.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "octavo bench retention";

typedef struct retention_flags {
    const char *shape, *tokens, *context, *ratio, *out;
    arg_list methods, retrievals;
    uint32_t full, rounds;
    bool json;
} retention_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("shape", "NAME", ARG_OPTION, retention_flags, shape,
            "instead of --model: random bf16 weights of a known shape", .options = bench_shapes),
    ARG_ROW("method", "NAME[={JSON}]", ARG_LIST, retention_flags, methods,
            "a method, with overrides, or METHOD:RATIO; may be repeated (chunkkv, and chunkkv with "
            "reuse_layers 2, unless --retrieval is given)"),
    ARG_ROW("retrieval", "NAME[={JSON}]", ARG_LIST, retention_flags, retrievals,
            "a retrieval method, with overrides, or METHOD:TOKENS, to decode by at depth; may be "
            "repeated"),
    ARG_ROW("ratio", "R", ARG_TEXT, retention_flags, ratio,
            "share kept, for methods given without a budget", .initial = "0.1"),
    ARG_ROW("tokens", "LIST", ARG_TEXT, retention_flags, tokens,
            "prompt lengths at which costs are measured; 0 for none", .initial = "8192"),
    ARG_ROW("context", "LIST", ARG_TEXT, retention_flags, context,
            "contexts at which concurrency and decoding are measured; 0 for none",
            .initial = "16384"),
    ARG_ROW("full", "N", ARG_COUNT, retention_flags, full,
            "whole contexts that the fixed pool has room for", .min = 1, .max = 1024,
            .initial = "6"),
    ARG_ROW("rounds", "N", ARG_COUNT, retention_flags, rounds, "repetitions; medians are printed",
            .min = 1, .max = BENCH_ROUNDS_MAX, .initial = "5"),
    ARG_ROW("json", NULL, ARG_SWITCH, retention_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, retention_flags, out, "write the JSON there as well"),
};

enum { METHODS_MAX = 32, SEQS_FOR_FULL = 16 };

/* Reads "chunkkv" or "chunkkv={\"window\":16}", given by `flag`, as the object of a request. */
static status read_object(const char *flag, const char *text, json_t **out, error *err)
{
    const char *parts = strchr(text, '=');
    size_t n = parts ? (size_t)(parts - text) : strlen(text);
    if (parts) RETURN_IF_ERROR(json_read_text(flag, parts + 1, strlen(parts + 1), out, err));
    else *out = json_object();
    json_object_set_new(*out, "method", json_stringn(text, n));
    return STATUS_IS_OK;
}

status bench_read_retrieval(const char *text, const pkv_geometry *geometry, retrieval_spec *out,
                            error *err)
{
    json_t *json = NULL;
    if (strchr(text, '=')) RETURN_IF_ERROR(read_object("--retrieval", text, &json, err));
    else RETURN_IF_ERROR(retrieval_read_text("--retrieval", text, &json, err));
    status st = retrieval_parse(json, geometry, out, err);
    json_decref(json);
    return st;
}

status bench_read_method(const char *flag, const char *text, double ratio,
                         const retention_limits *limits, retention_policy *out, error *err)
{
    json_t *json = NULL;
    bool is_short = strchr(text, ':') && !strchr(text, '=');
    if (is_short) RETURN_IF_ERROR(retention_read_text(flag, text, &json, err));
    else RETURN_IF_ERROR(read_object(flag, text, &json, err));
    if (!json_object_get(json, "ratio") && !json_object_get(json, "tokens"))
        json_object_set_new(json, "ratio", json_real(ratio));
    status st = retention_parse(json, limits, out, err);
    json_decref(json);
    return st;
}

static status read_retrieval(const char *text, const retention_limits *limits, bench_method *out,
                             error *err)
{
    out->text = text;
    RETURN_IF_ERROR(retention_parse(NULL, limits, &out->policy, err));
    return bench_read_retrieval(text, &limits->geometry, &out->retrieval, err);
}

static status read_retrievals(const retention_flags *f, const bench *b, bench_method *out,
                              error *err)
{
    retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                               b->model.max_model_len};
    if (f->retrievals.n > METHODS_MAX)
        return error_set(err, STATUS_INVALID, "--retrieval: at most %d of them", METHODS_MAX);
    for (size_t i = 0; i < f->retrievals.n; i++)
        RETURN_IF_ERROR(read_retrieval(f->retrievals.items[i], &limits, &out[i], err));
    return STATUS_IS_OK;
}

static status read_methods(const retention_flags *f, const bench *b, bench_method *out, size_t *n,
                           error *err)
{
    static const char *const usual[] = {"chunkkv", "chunkkv={\"reuse_layers\":2}"};
    retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                               b->model.max_model_len};
    *n = f->methods.n ? f->methods.n : f->retrievals.n ? 0 : sizeof usual / sizeof usual[0];
    double ratio = 0;
    const char *end = number_read(f->ratio, &ratio);
    if (!end || *end)
        return error_set(err, STATUS_INVALID, "--ratio: '%.64s' must be a number", f->ratio);
    if (*n > METHODS_MAX)
        return error_set(err, STATUS_INVALID, "--method: at most %d of them", METHODS_MAX);
    for (size_t i = 0; i < *n; i++) {
        out[i].text = f->methods.n ? f->methods.items[i] : usual[i];
        RETURN_IF_ERROR(
            bench_read_method("--method", out[i].text, ratio, &limits, &out[i].policy, err));
    }
    return STATUS_IS_OK;
}

typedef struct lists {
    bench_list tokens, contexts;
} lists;

static status run_all(bench *b, const retention_flags *f, const lists *l, error *err)
{
    bench_method methods[2 * METHODS_MAX] = {0};
    size_t n;
    RETURN_IF_ERROR(read_methods(f, b, methods, &n, err));
    RETURN_IF_ERROR(read_retrievals(f, b, methods + n, err));
    for (size_t i = 0; i < l->tokens.n; i++)
        RETURN_IF_ERROR(bench_cost(b, l->tokens.values[i], methods, n, err));
    for (size_t i = 0; i < l->contexts.n; i++)
        RETURN_IF_ERROR(
            bench_depth(b, l->contexts.values[i], f->full, methods, n + f->retrievals.n, err));
    return bench_write(b, err);
}

static status bench_retention(const model_flags *model, const retention_flags *f, const lists *l,
                              error *err)
{
    model_flags m = *model;
    uint32_t most = f->full * SEQS_FOR_FULL; /* so that the pool is the limit */
    if (most > m.max_batch) m.max_batch = most;
    bench b = {.rounds = f->rounds, .as_json = f->json, .out = f->out};
    RETURN_IF_ERROR(bench_open(&b, &m, f->shape, err));
    status st = run_all(&b, f, l, err);
    bench_close(&b);
    return st;
}

static status read_list(const char *flag, const char *text, bench_list *out, error *err)
{
    out->n = 0;
    return strcmp(text, "0") == 0 ? STATUS_IS_OK : bench_list_read(flag, text, out, err);
}

int cli_bench_retention(cli_line *line)
{
    model_flags model = {0};
    retention_flags flags = {0};
    lists l;
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = name,
        .usage = "(PATH | --shape 1.1b) [flags]",
        .about = "Costs: what a method adds to one prompt, beside a prefill's time, estimated from "
                 "its first and last chunk. Page mass: attention of the\n"
                 "measured rows without and with it, in turn, in every measured layer; other "
                 "measures: their pass, as\n"
                 "the backend times it; the selection; and carrying it out. Depth: how many "
                 "sequences of a context one\n"
                 "fixed pool holds whole and under a method, and how fast all of them decode, "
                 "beside what bytes and\n"
                 "operations at this machine's limits predict. Contexts are filled with seeded "
                 "keys and values instead\n"
                 "of a prefill.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &model.quiet,
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        result = CLI_OK;
        if (!model.dir == !flags.shape)
            result = cli_complain(name, CLI_USAGE, "one of --model and --shape must be given");
        else if (!status_ok(read_list("tokens", flags.tokens, &l.tokens, &err)) ||
                 !status_ok(read_list("context", flags.context, &l.contexts, &err)))
            result = cli_complain(name, CLI_USAGE, err.text);
        else if (!status_ok(bench_retention(&model, &flags, &l, &err)))
            result = cli_complain(name, CLI_FAILED, err.text);
        else if (!cli_finish_output(name)) result = CLI_FAILED;
    }
    free(flags.methods.items);
    free(flags.retrievals.items);
    model_flags_destroy(&model);
    return result;
}

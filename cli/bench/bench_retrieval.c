/* `octavo bench retrieval`: decoding over long contexts that reads few blocks, beside decoding that
 * reads everything. One sequence is as long as the context; its pages hold seeded keys and values
 * instead of a prefill's. */
#include "cli/bench/bench_retention.h"
#include "cli/bench/bench_sched.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "octavo bench retrieval";

enum {
    METHODS_MAX = 8,
    ROUND_US = 250 * 1000, /* shortest round, unless ROUND_STEPS come first */
    ROUND_STEPS = 16,
};

typedef struct retrieval_flags {
    const char *shape, *context, *out;
    arg_list retrievals;
    uint32_t rounds;
    bool json;
} retrieval_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("shape", "NAME", ARG_OPTION, retrieval_flags, shape,
            "instead of --model: random bf16 weights of a known shape", .options = bench_shapes),
    ARG_ROW("retrieval", "NAME[={JSON}]", ARG_LIST, retrieval_flags, retrievals,
            "a retrieval method, with overrides, or METHOD:TOKENS; may be repeated (ktransformers "
            "as it is, and with half as many blocks)"),
    ARG_ROW("context", "LIST", ARG_TEXT, retrieval_flags, context, "tokens before the timed ones",
            .initial = "16384,32768,131072"),
    ARG_ROW("rounds", "N", ARG_COUNT, retrieval_flags, rounds, "repetitions; medians are printed",
            .min = 1, .max = BENCH_ROUNDS_MAX, .initial = "5"),
    ARG_ROW("json", NULL, ARG_SWITCH, retrieval_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, retrieval_flags, out, "write the JSON there as well"),
};

/* A way to decode; block_tokens 0: everything is read. */
typedef struct way {
    const char *text;
    retrieval_spec spec;
} way;

typedef enum field { STEP_MS, ATTENTION_MS, SELECTION_MS, LIMIT_MS, FIELDS } field;

typedef struct way_rounds {
    double values[FIELDS][BENCH_ROUNDS_MAX];
    double of[FIELDS]; /* medians */
} way_rounds;

/* ---- what a step reads ----------------------------------------------------------------------- */

/* Bytes of representatives beside those of K and V, marks included. */
static double representatives_share(const bench *b, const retrieval_spec *spec)
{
    const kern_kv_shape shape = {b->model.kv_type, b->seqs.info->geometry.page_tokens,
                                 b->model.config.head_dim};
    uint32_t pages = spec->block_tokens / shape.page_tokens;
    double vectors = spec->representative == RETRIEVAL_QUEST ? 2 : 1;
    return (vectors * shape.head_dim * sizeof(uint16_t) + pages * sizeof(uint64_t)) /
           ((double)kern_kv_tile_bytes(&shape) * pages);
}

/* The work of a decode step: K and V of the tokens read, and representatives of the candidates. */
static bench_work work_of(const bench *b, uint32_t context, const retrieval_spec *spec)
{
    const pkv_geometry *g = &b->seqs.info->geometry;
    retrieval_extent e = {0};
    double read = 0, selecting = 0, few = context;
    if (spec->block_tokens) {
        e = retrieval_extent_of(spec, context - 1, context);
        few = retrieval_tokens_read(spec, context - 1, context);
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        uint32_t leader = spec->block_tokens ? retrieval_layer_leader(spec, g, l) : RETRIEVAL_ALL;
        read += leader == RETRIEVAL_ALL ? context : few;
        selecting += leader == l;
    }
    bench_work w = bench_decode_work(b, 1, read / g->n_layers);
    bench_work all = bench_decode_work(b, 1, spec->block_tokens);
    if (selecting > 0 && !retrieval_reads_all(&e))
        w.kv_bytes += (e.end - e.first) * all.kv_bytes * selecting / g->n_layers *
                      representatives_share(b, spec);
    return w;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static status run_round(bench *b, uint32_t *held, const retrieval_spec *spec, uint32_t round,
                        way_rounds *out, error *err)
{
    backend_times before, after;
    kern_limits limits;
    b->seqs.retrieval = *spec;
    b->seqs.n_prompt = *held; /* the round's first row selects */
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err)); /* representatives */
    backend_cpu_times(&b->model.backend, &before);
    uint32_t n = 0;
    int64_t start = clock_now_ns(), ns = 0;
    for (; n < ROUND_STEPS && ns < ROUND_US * INT64_C(1000); n++) {
        RETURN_IF_ERROR(bench_seqs_step(&b->seqs, 1, true, NULL, NULL, err));
        ns = clock_now_ns() - start;
    }
    backend_cpu_times(&b->model.backend, &after);
    *held += n + 1;
    RETURN_IF_ERROR(bench_limits(b, &limits, err));
    bench_work w = work_of(b, *held, spec);
    out->values[STEP_MS][round] = (double)ns / n / 1e6;
    out->values[ATTENTION_MS][round] = (double)(after.attention_ns - before.attention_ns) / n / 1e6;
    out->values[SELECTION_MS][round] = (double)(after.selection_ns - before.selection_ns) / n / 1e6;
    out->values[LIMIT_MS][round] = bench_least_s(b, &w, &limits) * 1e3;
    return STATUS_IS_OK;
}

static void print_head(const bench *b)
{
    if (!b->as_json)
        printf("%-44s %8s %7s %9s %9s %8s %12s %8s %10s %9s %8s\n", "method", "context", "read",
               "step ms", "tokens/s", "of full", "attention ms", "of full", "selection", "of limit",
               "beside");
}

static void print_row(bench *b, uint32_t context, const way *w, const way_rounds *r,
                      const way_rounds *full)
{
    bool few = w->spec.block_tokens > 0;
    uint32_t read = few ? retrieval_tokens_read(&w->spec, context - 1, context) : context;
    double share = few ? representatives_share(b, &w->spec) : 0;
    double faster = full->of[STEP_MS] / r->of[STEP_MS];
    double attention = full->of[ATTENTION_MS] / r->of[ATTENTION_MS];
    if (!b->as_json) {
        printf("%-44.44s %8u %7u %9.2f %9.1f %7.2fx %12.2f %7.2fx %8.1f %% %7.0f %% %6.2f %%\n",
               w->text, context, read, r->of[STEP_MS], 1e3 / r->of[STEP_MS], faster,
               r->of[ATTENTION_MS], attention,
               100 * (few ? r->of[SELECTION_MS] / r->of[ATTENTION_MS] : 0),
               100 * r->of[LIMIT_MS] / r->of[STEP_MS], 100 * share);
        fflush(stdout);
    }
    bench_report_row(&b->report, "retrieval");
    strbuf_puts(&b->report.rows, ",\"method\":");
    strbuf_json_string(&b->report.rows, w->text, strlen(w->text));
    strbuf_printf(&b->report.rows,
                  ",\"context\":%u,\"read_tokens\":%u,\"step_ms\":%.6g,\"attention_ms\":%.6g,"
                  "\"selection_ms\":%.6g,\"limit_ms\":%.6g,\"speedup\":%.4g,"
                  "\"attention_speedup\":%.4g,\"representatives_share\":%.4g}",
                  context, read, r->of[STEP_MS], r->of[ATTENTION_MS], r->of[SELECTION_MS],
                  r->of[LIMIT_MS], faster, attention, share);
}

/* Ways take turns, so that a slow moment of the machine is all of theirs. */
static status bench_context(bench *b, uint32_t context, const way *ways, size_t n, error *err)
{
    way_rounds r[METHODS_MAX + 1];
    uint32_t held = context;
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, context, err));
    status st = STATUS_IS_OK;
    for (uint32_t round = 0; round < b->rounds; round++)
        for (size_t i = 0; i < n && status_ok(st); i++)
            st = run_round(b, &held, &ways[i].spec, round, &r[i], err);
    b->seqs.retrieval = (retrieval_spec){0};
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    for (size_t i = 0; i < n; i++) {
        for (int f = 0; f < FIELDS; f++) r[i].of[f] = bench_median(r[i].values[f], b->rounds);
        print_row(b, context, &ways[i], &r[i], &r[0]);
    }
    return STATUS_IS_OK;
}

static status read_ways(const bench *b, const retrieval_flags *f, way *out, size_t *n, error *err)
{
    static const char *const usual[] = {
        "ktransformers", "ktransformers={\"local_windows_len\":2048,\"second_block_count\":47}"};
    enum { USUAL = sizeof usual / sizeof usual[0] };
    size_t given = f->retrievals.n ? f->retrievals.n : USUAL;
    if (given > METHODS_MAX)
        return error_set(err, STATUS_INVALID, "--retrieval: at most %d of them", METHODS_MAX);
    out[0] = (way){.text = "full"};
    for (size_t i = 0; i < given; i++) {
        way *w = &out[1 + i];
        w->text = f->retrievals.n ? f->retrievals.items[i] : usual[i];
        RETURN_IF_ERROR(bench_read_retrieval(w->text, &b->seqs.info->geometry, &w->spec, err));
        RETURN_IF_ERROR(retrieval_check(&w->spec, b->seqs.info->retrieves, err));
    }
    *n = 1 + given;
    return STATUS_IS_OK;
}

static status run_all(bench *b, const retrieval_flags *f, const bench_list *contexts, error *err)
{
    way ways[METHODS_MAX + 1] = {0};
    backend_times none;
    size_t n = 0;
    if (!backend_cpu_times(&b->model.backend, &none))
        return error_set(err, STATUS_INVALID, "only one CPU backend has such times: no --tp");
    RETURN_IF_ERROR(read_ways(b, f, ways, &n, err));
    print_head(b);
    for (size_t i = 0; i < contexts->n; i++)
        RETURN_IF_ERROR(bench_context(b, contexts->values[i], ways, n, err));
    return bench_write(b, err);
}

static status bench_retrieval(const model_flags *model, const retrieval_flags *f,
                              const bench_list *contexts, error *err)
{
    bench b = {.rounds = f->rounds, .as_json = f->json, .out = f->out};
    RETURN_IF_ERROR(bench_open(&b, model, f->shape, err));
    status st = run_all(&b, f, contexts, err);
    bench_close(&b);
    return st;
}

int cli_bench_retrieval(cli_line *line)
{
    model_flags model = {0};
    retrieval_flags flags = {0};
    bench_list contexts;
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = name,
        .usage = "(PATH | --shape 1.1b) [flags]",
        .about = "One sequence decodes over each context, reading everything and by each method in "
                 "turn. Printed are the\n"
                 "time of a step and of attention with the selections, the selections' share of "
                 "it, the share of what bytes\n"
                 "and operations at this machine's limits predict, and the memory of "
                 "representatives beside that of\n"
                 "K and V. Contexts are filled with seeded keys and values instead of a prefill.",
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
        else if (!status_ok(bench_list_read("context", flags.context, &contexts, &err)))
            result = cli_complain(name, CLI_USAGE, err.text);
        else if (!status_ok(bench_retrieval(&model, &flags, &contexts, &err)))
            result = cli_complain(name, CLI_FAILED, err.text);
        else if (!cli_finish_output(name)) result = CLI_FAILED;
    }
    free(flags.retrievals.items);
    model_flags_destroy(&model);
    return result;
}

/* `octavo bench engine`: prefill and decode beside this machine's limits, then the scheduler's and
 * the memory's cost; or, with a null backend, what the engine thread costs. */
#include "cli/bench/bench_engine_plot.h"
#include "cli/bench/bench_model.h"
#include "cli/bench/bench_null.h"
#include "cli/bench/bench_retention.h"
#include "cli/bench/bench_sched.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "octavo bench engine";

enum { SCHED_RUNNING = 256 };

static const char *const backends[] = {"model", "null", NULL};

typedef struct bench_flags {
    const char *backend, *shape, *batch, *context, *prefill, *prompts, *out, *plot;
    arg_list retention;
    uint32_t rounds;
    bool launches, json;
} bench_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("backend", "WHAT", ARG_OPTION, bench_flags, backend,
            "null takes no model: a step lasts --step-us, and what the engine thread does is timed",
            .initial = "model", .options = backends),
    ARG_ROW("shape", "NAME", ARG_OPTION, bench_flags, shape,
            "instead of --model: random bf16 weights of a known shape", .options = bench_shapes),
    ARG_ROW("batch", "LIST", ARG_TEXT, bench_flags, batch, "sequences that decode together",
            .initial = "1,4,8,16,32"),
    ARG_ROW("context", "LIST", ARG_TEXT, bench_flags, context, "tokens each of them holds",
            .initial = "128,1024"),
    ARG_ROW("prefill", "LIST", ARG_TEXT, bench_flags, prefill, "prompt lengths", .initial = "512"),
    ARG_ROW("prompts", "LIST", ARG_TEXT, bench_flags, prompts,
            "prompts that are computed together, as many of their tokens in a step as "
            "--prefill-chunk and --max-batch are together",
            .initial = "1"),
    ARG_ROW("retention", "NAME[={JSON}]", ARG_LIST, bench_flags, retention,
            "decodes with what this method measures of each token, too, beside steps without it "
            "(h2o, tova …); may be repeated"),
    ARG_ROW("launches", NULL, ARG_SWITCH, bench_flags, launches,
            "on a GPU, list what the launches of a decode step take, made one by one, beside the "
            "step as a graph"),
    ARG_ROW("rounds", "N", ARG_COUNT, bench_flags, rounds, "repetitions; medians are printed",
            .min = 1, .max = BENCH_ROUNDS_MAX, .initial = "5"),
    ARG_ROW("json", NULL, ARG_SWITCH, bench_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, bench_flags, out, "write the JSON there as well"),
    ARG_ROW("plot", "FILE", ARG_TEXT, bench_flags, plot,
            "draw tokens/s by batch and by length beside the machine's limits, as SVG"),
};

typedef struct lists {
    bench_list batches, contexts, prefills, prompts, running;
} lists;

/* ---- scheduler ------------------------------------------------------------------------------- */

static status bench_scheduler(bench *b, error *err)
{
    bench_sched_cost cost;
    RETURN_IF_ERROR(bench_sched(&b->seqs.info->geometry, SCHED_RUNNING, b->rounds, &cost, err));
    if (!b->as_json)
        printf("scheduler: %.2f us for each running sequence and step at %d running; page append "
               "and close "
               "%.1f ns\n",
               cost.us_per_seq_step, SCHED_RUNNING, cost.ns_per_page);
    bench_report_row(&b->report, "scheduler");
    strbuf_printf(&b->report.rows, ",\"running\":%d,\"us_per_seq_step\":%.4g,\"ns_per_page\":%.4g}",
                  SCHED_RUNNING, cost.us_per_seq_step, cost.ns_per_page);
    return STATUS_IS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Measurements that --retention and --launches add to decode steps. */
typedef struct methods {
    retention_policy policies[BENCH_LIST_MAX];
    const arg_list *texts;
    bool launches;
} methods;

enum { ANY_PROMPT = 4096 }; // tokens; what a method measures of generated ones is the same for all

static status read_methods(const bench *b, const arg_list *texts, methods *out, error *err)
{
    retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                               b->model.max_model_len};
    out->texts = texts;
    if (texts->n > BENCH_LIST_MAX)
        return error_set(err, STATUS_INVALID, "--retention: at most %d of them", BENCH_LIST_MAX);
    for (size_t i = 0; i < texts->n; i++) {
        retention_policy *p = &out->policies[i];
        RETURN_IF_ERROR(bench_read_method("--retention", texts->items[i], 0.5, &limits, p, err));
        if (retention_measure_rows(p, ANY_PROMPT, ANY_PROMPT, ANY_PROMPT + 1).kind == MEASURE_NONE)
            return error_set(err, STATUS_INVALID,
                             "--retention: \"%s\" does not measure each generated token",
                             texts->items[i]);
        uint32_t lacks = retention_measures(p, ANY_PROMPT) & b->seqs.info->lacks;
        if (lacks)
            return error_set(err, STATUS_UNSUPPORTED, "--retention: \"%s\": no %s here",
                             texts->items[i], retention_measure_name(lacks));
    }
    return STATUS_IS_OK;
}

static status decode_measured(bench *b, uint32_t batch, uint32_t context, const methods *m,
                              error *err)
{
    for (size_t i = 0; i < m->texts->n; i++)
        RETURN_IF_ERROR(
            bench_decode_measured(b, batch, context, m->texts->items[i], &m->policies[i], err));
    return STATUS_IS_OK;
}

static status decode_all(bench *b, const bench_list *batches, const bench_list *contexts,
                         const methods *m, error *err)
{
    for (size_t c = 0; c < contexts->n; c++) {
        double alone = 0;
        for (size_t i = 0; i < batches->n; i++) {
            uint32_t batch = batches->values[i];
            double tokens_s;
            status st = bench_decode(b, batch, contexts->values[c], &tokens_s, err);
            if (status_ok(st)) st = decode_measured(b, batch, contexts->values[c], m, err);
            if (status_ok(st) && m->launches)
                st = bench_launches(b, batch, contexts->values[c], err);
            if (st.code == STATUS_NO_PAGES) {
                fprintf(stderr, "%s: left out: %s\n", name, err->text);
                continue;
            }
            RETURN_IF_ERROR(st);
            if (batch == 1) alone = tokens_s;
            else if (alone > 0 && !b->as_json)
                printf("%23s batch %u is %.2f times batch 1\n", "", batch, tokens_s / alone);
        }
    }
    return STATUS_IS_OK;
}

static status run_all(bench *b, const lists *l, const bench_flags *flags, error *err)
{
    uint64_t loaded = bench_resident_bytes();
    methods m = {.launches = flags->launches};
    if (flags->launches && (!b->model.gpu || b->model.n_ranks > 1))
        return error_set(err, STATUS_UNSUPPORTED, "--launches: it needs one GPU of this process");
    RETURN_IF_ERROR(read_methods(b, &flags->retention, &m, err));
    bench_print_head(b);
    double unused;
    for (size_t i = 0; i < l->prefills.n; i++)
        for (size_t n = 0; n < l->prompts.n; n++)
            RETURN_IF_ERROR(bench_prefill(b, l->prompts.values[n], l->prefills.values[i], b->rounds,
                                          &unused, err));
    RETURN_IF_ERROR(decode_all(b, &l->batches, &l->contexts, &m, err));
    RETURN_IF_ERROR(bench_scheduler(b, err));
    return bench_memory(b, loaded, err);
}

static status bench_engine(const model_flags *model, const bench_flags *flags, const lists *l,
                           error *err)
{
    model_flags m = *model;
    for (size_t i = 0; i < l->batches.n; i++)
        if (l->batches.values[i] > m.max_batch) m.max_batch = l->batches.values[i];
    for (size_t i = 0; i < l->prompts.n; i++)
        if (l->prompts.values[i] > m.max_batch) m.max_batch = l->prompts.values[i];
    bench b = {.rounds = flags->rounds, .as_json = flags->json, .out = flags->out};
    RETURN_IF_ERROR(bench_open(&b, &m, flags->shape, err));
    status st = run_all(&b, l, flags, err);
    if (status_ok(st)) st = bench_write(&b, err);
    if (status_ok(st) && flags->plot) st = bench_engine_plot(&b, flags->plot, err);
    bench_close(&b);
    return st;
}

static status read_lists(const bench_flags *f, const bench_null_flags *null, lists *out, error *err)
{
    RETURN_IF_ERROR(bench_list_read("running", null->running, &out->running, err));
    RETURN_IF_ERROR(bench_list_read("batch", f->batch, &out->batches, err));
    RETURN_IF_ERROR(bench_list_read("context", f->context, &out->contexts, err));
    RETURN_IF_ERROR(bench_list_read("prompts", f->prompts, &out->prompts, err));
    return bench_list_read("prefill", f->prefill, &out->prefills, err);
}

/* Returns the first fault of the command line, or NULL. */
static const char *misuse(const model_flags *model, const bench_flags *flags)
{
    bool is_null = strcmp(flags->backend, "null") == 0;
    if (is_null && flags->plot) return "--backend null excludes --plot";
    if (is_null && flags->launches) return "--backend null excludes --launches";
    if (is_null && flags->retention.n) return "--backend null excludes --retention";
    if (is_null)
        return model->dir || flags->shape ? "--backend null excludes --model and --shape" : NULL;
    return !model->dir == !flags->shape ? "one of --model and --shape must be given" : NULL;
}

static status run_bench(const model_flags *model, const bench_flags *flags,
                        const bench_null_flags *null, const lists *l, error *err)
{
    if (strcmp(flags->backend, "null") != 0) return bench_engine(model, flags, l, err);
    bench_null_options o = {.flags = null,
                            .model = model,
                            .running = &l->running,
                            .rounds = flags->rounds,
                            .as_json = flags->json,
                            .out = flags->out};
    return bench_null(&o, err);
}

int cli_bench_engine(cli_line *line)
{
    model_flags model = {0};
    bench_flags flags = {0};
    bench_null_flags null = {0};
    lists l;
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
        bench_null_group(&null),
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = name,
        .usage = "(PATH | --shape 1.1b | --backend null) [flags]",
        .about =
            "Measures prefill and decode of a whole model: tokens, bytes of weights and KV read, "
            "and\n"
            "operations per second, each beside this machine's limit, measured right after each\n"
            "round, and the tokens beside those that the limits allow (\"of limit\"). A CPU's "
            "limits\n"
            "are its read bandwidth and the rate at which registers alone do the products of the\n"
            "weights' type; a GPU's are its bandwidth of copies and the rate of a large product. "
            "Then\n"
            "the costs of scheduling, and memory. Contexts are copies of a prompt of random "
            "tokens,\n"
            "which costs no prefill and changes no time.\n\n"
            "With --backend null, single calls of the scheduler and the page tables are timed, and "
            "then\n"
            "closed loops of requests through the whole engine, readers included, over a backend "
            "that\n"
            "computes nothing: tokens/s; the steps that were ready, submitted before the one in "
            "front of\n"
            "them had ended; those planned ahead of its result; and what a step costs the engine "
            "thread:\n"
            "scheduling, telling streams their tokens, a mirror of the page tables as a GPU's host "
            "keeps\n"
            "it, the rest, and processor time. --prefill-chunk is raised to what keeps all "
            "requests\n"
            "running.",
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
        const char *wrong = misuse(&model, &flags);
        if (wrong) result = cli_complain(name, CLI_USAGE, wrong);
        else if (!status_ok(read_lists(&flags, &null, &l, &err)))
            result = cli_complain(name, CLI_USAGE, err.text);
        else if (!status_ok(run_bench(&model, &flags, &null, &l, &err)))
            result = cli_complain(name, CLI_FAILED, err.text);
        else if (!cli_finish_output(name)) result = CLI_FAILED;
    }
    free(flags.retention.items);
    model_flags_destroy(&model);
    return result;
}

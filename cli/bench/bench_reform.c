/* `octavo bench reform`: what reading a long text for its embeddings costs, beside reading it with
 * the same bounded cache and all layers, and what the gather and the recompute add. */
#include "cli/bench/bench_reform.h"
#include "cli/cli.h"
#include "engine/reform/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "octavo bench reform";

enum { HEADS = 4, EDGE = 256, WINDOW = 129 };

typedef struct reform_flags {
    const char *shape, *tokens, *out;
    uint32_t chunk, exit_layer, gathered, question, computed;
    bool json;
} reform_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("shape", "NAME", ARG_OPTION, reform_flags, shape,
            "instead of --model: random bf16 weights of a known shape", .options = bench_shapes),
    ARG_ROW("tokens", "LIST", ARG_TEXT, reform_flags, tokens, "lengths of the text",
            .initial = "262144"),
    ARG_ROW("chunk", "N", ARG_COUNT, reform_flags, chunk,
            "tokens between two selections, and tokens that each of them keeps", .min = 1024,
            .max = 1 << 20, .initial = "32768"),
    ARG_ROW("exit-layer", "N", ARG_COUNT, reform_flags, exit_layer,
            "layers that are run for embeddings, the highest of which are taken before layer N "
            "(default: half)",
            .max = 1 << 10),
    ARG_ROW("gathered", "N", ARG_COUNT, reform_flags, gathered, "tokens that are read again",
            .min = 2 * EDGE, .max = 1 << 20, .initial = "8192"),
    ARG_ROW("question", "N", ARG_COUNT, reform_flags, question, "tokens of the question", .min = 1,
            .max = 4096, .initial = "32"),
    ARG_ROW("computed", "N", ARG_COUNT, reform_flags, computed,
            "steps of a pass that are computed, from which the time of all is estimated; 0 only "
            "counts pages",
            .max = 1 << 20, .initial = "6"),
    ARG_ROW("json", NULL, ARG_SWITCH, reform_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, reform_flags, out, "write the JSON there as well"),
};

/* ---- rows ------------------------------------------------------------------------------------ */

static void print_pass(bench *b, const char *what, const reform_pass *pass, const reform_cost *c)
{
    uint32_t layers = pass->n_layers ? pass->n_layers : b->model.config.n_layers;
    uint32_t bytes = pass->n_embeds * b->seqs.info->head_dim * 2;
    if (!b->as_json) {
        printf("%-16s %8u %6u %6u of %-6u %9.1f %9.2f %9.2f %9u %6u\n", what, pass->tokens, layers,
               c->computed, c->steps, c->compute_s, c->select_s, c->move_s, c->most_pages, bytes);
        fflush(stdout);
    }
    bench_report_row(&b->report, what);
    strbuf_printf(&b->report.rows,
                  ",\"tokens\":%u,\"layers\":%u,\"steps\":%u,\"computed\":%u,\"compute_s\":%.5g,"
                  "\"select_s\":%.4g,\"move_s\":%.4g,\"pages\":%u,\"embedding_bytes\":%u}",
                  pass->tokens, layers, c->steps, c->computed, c->compute_s, c->select_s, c->move_s,
                  c->most_pages, bytes);
}

static double seconds_of(const reform_cost *c) { return c->compute_s + c->select_s + c->move_s; }

/* Times the gather over embeddings of seeded numbers. */
static status time_gather(const bench *b, const reform_flags *f, uint32_t tokens, double *seconds,
                          error *err)
{
    uint32_t dim = HEADS * b->seqs.info->head_dim, n_out = 0;
    size_t n = (size_t)tokens * dim;
    uint16_t *rows = alloc_resize(NULL, NULL, n, sizeof *rows);
    float *scores = calloc(tokens, sizeof *scores);
    uint32_t *out = calloc(f->gathered, sizeof *out);
    rng r = rng_seed(5);
    for (size_t i = 0; rows && i < n; i++)
        rows[i] = (uint16_t)(0x2c00 |
                             (rng_below(&r, 1u << 16) & 0x83ff)); /* 1/16 to 1/8 of either sign */
    const gather_fields fields = {f->gathered, WINDOW, EDGE, EDGE};
    uint32_t question = f->question < tokens ? f->question : tokens;
    int64_t start = clock_now_ns();
    status st = rows && scores && out ? gather_scores(rows, tokens, rows, question, dim,
                                                      gather_background(&fields), scores)
                                      : status_make(STATUS_NO_MEMORY, NULL);
    if (status_ok(st)) st = gather_select(scores, tokens, &fields, out, &n_out);
    *seconds = (double)(clock_now_ns() - start) / 1e9;
    free(rows);
    free(scores);
    free(out);
    return status_ok(st) ? st : error_set(err, st.code, "gather: %s", status_text(st.code));
}

static void print_sums(bench *b, const reform_cost *read, const reform_cost *all,
                       const reform_cost *again, double gather_s)
{
    double whole = all->whole_s + all->select_s + all->move_s;
    double saved = 1 - seconds_of(read) / whole;
    double share = (seconds_of(again) + gather_s) / seconds_of(read);
    if (!b->as_json)
        printf("h2o-recurrent %.1f s; reading takes %.1f %% less; gather %.3f s; gather and "
               "recompute are %.2f %% of the reading\n",
               whole, 100 * saved, gather_s, 100 * share);
    bench_report_row(&b->report, "sums");
    strbuf_printf(&b->report.rows,
                  ",\"h2o_recurrent_s\":%.5g,\"gather_s\":%.4g,\"saved\":%.4g,\"again\":%.4g}",
                  whole, gather_s, saved, share);
}

/* ---- a length -------------------------------------------------------------------------------- */

static status read_policy(const bench *b, uint32_t chunk, retention_policy *out, error *err)
{
    const retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                                     b->model.max_model_len};
    json_t *json = json_pack("{s:s, s:i, s:i}", "method", "h2o-recurrent", "tokens", (int)chunk,
                             "recurrent_chunk", (int)chunk);
    if (!json) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = retention_parse(json, &limits, out, err);
    json_decref(json);
    if (status_ok(st)) retention_policy_resolve(out, 1);
    return st;
}

/* Runs the reading: its pages and selections, then its computation beside that with all layers. */
static status run_reading(bench *b, reform_pass *pass, uint32_t computed, reform_cost *read,
                          reform_cost *all, error *err)
{
    RETURN_IF_ERROR(reform_pass_run(b, pass, read, err));
    if (computed == 0) return STATUS_IS_OK;
    pass->with_all = true;
    pass->computed = computed;
    RETURN_IF_ERROR(reform_pass_run(b, pass, all, err));
    read->computed = all->computed;
    read->compute_s = all->compute_s;
    return STATUS_IS_OK;
}

static status bench_length(bench *b, const reform_flags *f, uint32_t tokens, error *err)
{
    uint32_t exit = f->exit_layer ? f->exit_layer : b->model.config.n_layers / 2;
    const embed_head heads[HEADS] = {
        {exit / 2, EMBED_Q, 0}, {exit / 2, EMBED_K, 0}, {exit, EMBED_V, 0}, {exit, EMBED_K, 0}};
    reform_pass pass = {.tokens = tokens};
    reform_cost read, all, again;
    const retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                                     b->model.max_model_len};
    double gather_s;
    RETURN_IF_ERROR(read_policy(b, f->chunk, &pass.policy, err));
    pass.embeds = heads;
    pass.n_embeds = HEADS;
    pass.n_layers = exit;
    RETURN_IF_ERROR(run_reading(b, &pass, f->computed, &read, &all, err));
    print_pass(b, "reading", &pass, &read);
    pass = (reform_pass){.tokens = f->gathered < tokens ? f->gathered : tokens,
                         .computed = f->computed};
    RETURN_IF_ERROR(retention_parse(NULL, &limits, &pass.policy, err));
    RETURN_IF_ERROR(reform_pass_run(b, &pass, &again, err));
    print_pass(b, "recompute", &pass, &again);
    if (f->computed == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(time_gather(b, f, tokens, &gather_s, err));
    print_sums(b, &read, &all, &again, gather_s);
    return STATUS_IS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static status run_all(bench *b, const reform_flags *f, const bench_list *tokens, error *err)
{
    uint32_t n_layers = b->model.config.n_layers;
    if (b->seqs.info->n_heads == 0)
        return error_set(err, STATUS_UNSUPPORTED, "the %s backend has no embeddings of tokens",
                         b->seqs.info->name);
    if (f->exit_layer >= n_layers || n_layers < 2)
        return error_set(err, STATUS_INVALID, "--exit-layer: must be below the model's %u layers",
                         n_layers);
    RETURN_IF_ERROR(bench_seqs_fill_pool(&b->seqs, err));
    if (!b->as_json)
        printf("%-16s %8s %6s %16s %9s %9s %9s %9s %6s\n", "pass", "tokens", "layers", "steps",
               "compute s", "select s", "moves s", "pages", "bytes");
    for (size_t i = 0; i < tokens->n; i++)
        RETURN_IF_ERROR(bench_length(b, f, tokens->values[i], err));
    return bench_write(b, err);
}

static status bench_reform(const model_flags *model, const reform_flags *f,
                           const bench_list *tokens, error *err)
{
    bench b = {.rounds = 1, .as_json = f->json, .out = f->out};
    RETURN_IF_ERROR(bench_open(&b, model, f->shape, err));
    status st = run_all(&b, f, tokens, err);
    bench_close(&b);
    return st;
}

int cli_bench_reform(cli_line *line)
{
    model_flags model = {0};
    reform_flags flags = {0};
    bench_list tokens;
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = name,
        .usage = "(PATH | --shape 1.1b) [flags]",
        .about = "Times the phases of REFORM beside h2o-recurrent, which reads with all layers. A "
                 "few steps of each pass are\n"
                 "computed, over pages of seeded keys and values; the scheduler plans all of them. "
                 "A step's time for a row\n"
                 "is linear in the slots that the row reads, and this line gives the time of the "
                 "others.",
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
        else if (!status_ok(bench_list_read("tokens", flags.tokens, &tokens, &err)))
            result = cli_complain(name, CLI_USAGE, err.text);
        else if (!status_ok(bench_reform(&model, &flags, &tokens, &err)))
            result = cli_complain(name, CLI_FAILED, err.text);
        else if (!cli_finish_output(name)) result = CLI_FAILED;
    }
    model_flags_destroy(&model);
    return result;
}

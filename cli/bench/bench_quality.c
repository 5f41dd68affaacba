/* `octavo bench quality`: its flags, and a model with its engine for quality/. */
#include "cli/cli.h"
#include "cli/model_open.h"
#include "cli/waiter.h"
#include "model/probe.h"
#include "quality/quality.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name[] = "octavo bench quality";

typedef struct quality_flags {
    arg_list methods, data;
    const char *budgets, *tasks, *lengths, *haystack, *templates, *out;
    uint32_t samples, questions, measure, turns;
    uint64_t seed;
    bool chat, resume, report, analyses;
} quality_flags;

static const arg_flag what_flags[] = {
    ARG_ROW("tasks", "LIST", ARG_TEXT, quality_flags, tasks,
            "generated tasks, such as demo_niah,vt (all are listed above)"),
    ARG_ROW("lengths", "LIST", ARG_TEXT, quality_flags, lengths,
            "tokens of prompt and answer that generated tasks are fitted to; beyond the context "
            "only methods whose positions close up, and rag-bm25, can be asked",
            .initial = "1024,2048,4096"),
    ARG_ROW("haystack", "FILE", ARG_TEXT, quality_flags, haystack,
            "a text for tasks that hide their needles in one (default: noise)"),
    ARG_ROW("data", "FILE:SHAPE", ARG_LIST, quality_flags, data,
            "JSON lines in the shape of longbench, infinitebench or gsm8k; may be repeated"),
    ARG_ROW("templates", "FILE", ARG_TEXT, quality_flags, templates,
            "a JSON object of prompts by dataset, with {context} and {input}"),
    ARG_ROW("samples", "N", ARG_COUNT, quality_flags, samples, "prompts of each task and length",
            .min = 1, .max = 1000000, .initial = "64"),
    ARG_ROW("questions", "N", ARG_COUNT, quality_flags, questions,
            "most questions about one document", .min = 1, .max = 1024, .initial = "16"),
    ARG_ROW("seed", "N", ARG_WHOLE, quality_flags, seed, "of the prompts and the intervals",
            .max = 0x1p63, .initial = "42"),
    ARG_ROW("chat", NULL, ARG_SWITCH, quality_flags, chat,
            "put prompts through the model's chat template (not the demo model's own)"),
};

static const arg_flag how_flags[] = {
    ARG_ROW("method", "NAME[={...}]", ARG_LIST, quality_flags, methods,
            "a method with its overrides, METHOD:RATIO, LABEL={\"method\":NAME,...}, rag-bm25, or "
            "all; may be repeated (default: all). full is always there"),
    ARG_ROW("budgets", "LIST", ARG_TEXT, quality_flags, budgets,
            "ratios kept and numbers of tokens, for methods that are given none",
            .initial = "0.05,0.1,0.2,0.3,0.5"),
    ARG_ROW("turns", "N", ARG_COUNT, quality_flags, turns,
            "2: the second question of a session, about the same context", .min = 1, .max = 2,
            .initial = "1"),
    ARG_ROW("measure", "N", ARG_COUNT, quality_flags, measure,
            "documents of each task and length whose kept positions and next tokens are compared",
            .max = 1000000, .initial = "8"),
    ARG_ROW(
        "analyses", NULL, ARG_SWITCH, quality_flags, analyses,
        "look into the attention of their first prompts: what evictions change, layer by layer, "
        "and where heavy hitters lie (a CPU without ranks)"),
    ARG_ROW("out", "DIR", ARG_TEXT, quality_flags, out,
            "where records.jsonl, results.json and the drawings go"),
    ARG_ROW("resume", NULL, ARG_SWITCH, quality_flags, resume,
            "go on with the records in --out; methods, budgets, tasks, lengths and samples may be "
            "added"),
    ARG_ROW("report", NULL, ARG_SWITCH, quality_flags, report,
            "run no prompts: table, JSON and drawings of the records in --out"),
};

/* ---- hooks ----------------------------------------------------------------------------------- */

static void hook_wait(void *ctx, int timeout_ms) { waiter_wait(ctx, -1, timeout_ms); }
static bool hook_stopped(void *ctx) { return waiter_interrupted(ctx); }

static void hook_progress(void *ctx, const char *text)
{
    (void)ctx;
    bool tty = isatty(STDERR_FILENO);
    fprintf(stderr, tty ? "\r\033[K%s" : "%s%s", text, strchr(text, '\n') ? "" : "\n");
}

/* ---- the run --------------------------------------------------------------------------------- */

typedef struct bench_quality {
    loaded_model model;
    engine *engine;
    model_probe *probe;
    waiter *waiter;
    strbuf table;
} bench_quality;

static status make_engine(bench_quality *b, const quality_flags *f, uint32_t in_flight, error *err)
{
    engine_options o = model_engine_options(&b->model, in_flight + 8);
    if (f->turns > 1) {
        /* Sessions whose second turn is over stay until they are the oldest. */
        o.max_sessions = 8 * in_flight;
        o.session_ttl_us = INT64_C(600) * 1000 * 1000;
    }
    return engine_create(&o, &b->engine, err);
}

static status make_probe(bench_quality *b, error *err)
{
    error why = {{0}};
    status st = model_probe_create(&b->model.backend, &b->model.options, b->model.max_model_len,
                                   &b->probe, &why);
    return status_ok(st) ? st : error_set(err, st.code, "--analyses: %s", why.text);
}

static status run_quality(bench_quality *b, const model_flags *m, const quality_flags *f,
                          error *err)
{
    RETURN_IF_ERROR(waiter_create(&b->waiter, err));
    RETURN_IF_ERROR(model_open(m, true, &b->model, err));
    if (f->chat && !b->model.chat)
        return error_set(err, STATUS_INVALID, "--chat: this model has no usable chat template");
    if (f->analyses) RETURN_IF_ERROR(make_probe(b, err));
    model_log(&b->model, m->dir);
    uint32_t in_flight = 2 * b->model.max_batch;
    RETURN_IF_ERROR(make_engine(b, f, in_flight, err));
    const backend_info *info = b->model.backend.ops->info(b->model.backend.ctx);
    char setup[128];
    snprintf(setup, sizeof setup, "%s, %s KV, %u tokens a page, groups of %u layers x %u KV heads",
             m->dtype, b->model.kv_name, info->geometry.page_tokens,
             info->geometry.layers_per_group, info->geometry.heads_per_group);
    quality_options o = {
        .engine = b->engine,
        .tokenizer = b->model.tokenizer,
        .model = b->model.config.architecture,
        .identity = info->identity,
        .setup = setup,
        .geometry = info->geometry,
        .max_tokens = b->model.max_model_len,
        .max_length = b->model.max_logical_len,
        .in_flight = in_flight,
        .sessions = f->turns > 1,
        .methods = f->methods.items,
        .n_methods = f->methods.n,
        .budgets = f->budgets,
        .tasks = f->tasks,
        .lengths = f->lengths,
        .samples = f->samples,
        .questions = f->questions,
        .measured = f->measure,
        .probe = b->probe,
        .turns = f->turns,
        .seed = f->seed,
        .chat = f->chat,
        .haystack = f->haystack,
        .data = f->data.items,
        .n_data = f->data.n,
        .templates = f->templates,
        .out = f->out,
        .resume = f->resume,
        .report = f->report,
        .hooks = {waiter_notify, hook_wait, hook_stopped, b->model.quiet ? NULL : hook_progress,
                  b->waiter},
    };
    waiter_arm(b->waiter, true);
    return quality_run(&o, &b->table, err);
}

static int run_and_print(const model_flags *m, const quality_flags *f)
{
    bench_quality b = {0};
    error err = {{0}};
    status st = run_quality(&b, m, f, &err);
    int result = CLI_OK;
    if (b.table.data) fwrite(b.table.data, 1, b.table.size, stdout);
    if (!status_ok(st)) result = cli_complain(name, CLI_FAILED, err.text);
    if (st.code == STATUS_ABORTED) result = CLI_INTERRUPTED;
    if (!cli_finish_output(name) && result == CLI_OK) result = CLI_FAILED;
    engine_destroy(b.engine);
    model_probe_destroy(b.probe);
    model_close(&b.model);
    waiter_destroy(b.waiter);
    strbuf_destroy(&b.table);
    return result;
}

static void write_about(strbuf *out)
{
    strbuf_puts(out, "Runs long-context tasks under methods x budgets x lengths, through the "
                     "engine, the same prompts\n"
                     "for all methods, and scores the answers: a table on stdout, and in --out "
                     "records.jsonl (written as\n"
                     "it goes), results.json and drawings.\n"
                     "\n"
                     "Generated tasks:\n");
    quality_list_tasks(out);
    /* The help text ends the paragraph itself. */
    if (out->size) out->data[--out->size] = 0;
}

int cli_bench_quality(cli_line *line)
{
    model_flags model = {0};
    quality_flags f = {0};
    strbuf about = {0};
    write_about(&about);
    const arg_group groups[] = {
        {"Prompts", what_flags, sizeof what_flags / sizeof what_flags[0], &f},
        {"How", how_flags, sizeof how_flags / sizeof how_flags[0], &f},
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = name,
        .usage = "PATH --tasks LIST --out DIR [flags]",
        .about = about.failed ? "" : about.data,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &model.quiet,
    };
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        if (!model.dir) result = cli_complain(name, CLI_USAGE, "--model is missing");
        else if (!f.out) result = cli_complain(name, CLI_USAGE, "--out is missing");
        else if (!f.tasks && f.data.n == 0)
            result = cli_complain(name, CLI_USAGE, "one of --tasks and --data must be given");
        else result = run_and_print(&model, &f);
    }
    strbuf_destroy(&about);
    free(f.methods.items);
    free(f.data.items);
    model_flags_destroy(&model);
    return result;
}

/* `octavo run`: its flags, the session, and the choice between --prompts, --prompt and --chat. */
#include "cli/chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The row of a flag that is a field of a request. */
#define FIELD(flag, value, request_field, json_kind, help)                                         \
    ARG_ROW(flag, value, ARG_FIELD, run_flags, fields, help, .field = request_field,               \
            .json = json_kind)

static const arg_flag input_flags[] = {
    ARG_ROW("prompt", "TEXT", ARG_TEXT, run_flags, prompt, "answer this text", .also = "-p"),
    ARG_ROW(
        "chat", NULL, ARG_SWITCH, run_flags, chat,
        "use the model's chat template: a conversation turn by turn, typed or one line of stdin "
        "each; with --prompt one turn"),
    ARG_ROW("system", "TEXT", ARG_TEXT, run_flags, system,
            "system message that the conversation begins with", .also = "-sys --system-prompt"),
    ARG_ROW("prompts", "FILE", ARG_TEXT, run_flags, prompts,
            "run a file of requests as one batch (- is stdin)"),
    ARG_ROW("json", NULL, ARG_SWITCH, run_flags, json,
            "print a JSON line for each choice, as --prompts does"),
};

/* Fields of requests that are no scalars. */
static const arg_flag stop_flag = FIELD("stop", "TEXT", "stop", ARG_JSON_STRINGS,
                                        "end an answer before this text; may be repeated");

static const arg_flag keep_flags[] = {
    ARG_ROW("retention", "METHOD:RATIO", ARG_TEXT, run_flags, retention,
            "which KV pages stay, such as chunkkv:0.25; a JSON object gives the method's parts; "
            "see octavo methods"),
    ARG_ROW("retrieval", "METHOD[:TOKENS]", ARG_TEXT, run_flags, retrieval,
            "which blocks of its context a generated token reads, such as quest:4096; nothing is "
            "given up; a JSON object gives the method's parts; see octavo methods"),
    FIELD("session", "ID", "session", ARG_JSON_TEXT,
          "continue from the pages that the session's last request left, and keep this request's "
          "for the next: with --chat, earlier turns are not computed again"),
};

static const char about_chat[] =
    "Answers a prompt, holds a chat, or runs a file of requests as one batch.\n"
    "\n"
    "--chat at a terminal has line editing, a history over chats, and commands:\n";

static const char about_prompts[] =
    "\n"
    "--prompts reads JSON lines: \"prompt\", \"messages\" or \"prompt_token_ids\", an optional "
    "\"id\", and any\n"
    "field below by its OpenAI name (max_tokens, temperature, stop, retention, retrieval, ...); "
    "flags are the\n"
    "defaults of all lines; lines of one \"session\" are its turns, and wait for each other. For "
    "each choice\n"
    "one JSON line goes to stdout when it ends:\n"
    "  {\"id\", \"index\", \"text\", \"token_ids\", \"logprobs\", \"prompt_logprobs\", "
    "\"finish_reason\", \"usage\",\n"
    "  \"retention\", \"retrieval\", \"timings\"}\n"
    "A line that cannot be run gives {\"id\", \"error\": {\"message\", \"line\"}}; the others go "
    "on, and the exit\n"
    "status is 1.";

/* The flag of a field that has one; its range is the field's. */
static arg_flag flag_of(const engine_field *f)
{
    arg_flag flag = FIELD(f->flag.name, f->flag.value, f->name, ARG_JSON_WHOLE, f->help);
    flag.also = f->flag.also;
    flag.min = fmax(f->range.min, INT32_MIN);
    flag.max = fmin(f->range.max, INT32_MAX);
    flag.above_min = f->range.above;
    if (f->kind == ENGINE_FIELD_FLOAT) flag.json = ARG_JSON_NUMBER;
    if (f->kind == ENGINE_FIELD_BOOL) flag.json = ARG_JSON_TRUE;
    if (f->kind == ENGINE_FIELD_SEED) flag.min = 0, flag.max = 0x1p63;
    return flag;
}

/* Fills out [ENGINE_FIELDS + 1]. Returns the number of flags. */
static size_t sampling_flags(arg_flag *out)
{
    size_t n = 0;
    for (size_t i = 0; i < ENGINE_FIELDS; i++)
        if (engine_fields()[i].flag.name) out[n++] = flag_of(&engine_fields()[i]);
    out[n++] = stop_flag;
    return n;
}

/* ---- the session ----------------------------------------------------------------------------- */

static status check_flags(const run_flags *f, error *err)
{
    if (f->prompts && (f->prompt || f->chat))
        return error_set(err, STATUS_INVALID, "--prompts excludes --prompt and --chat");
    if (!f->prompts && !f->prompt && !f->chat)
        return error_set(err, STATUS_INVALID,
                         "one of --prompt, --chat and --prompts must be given");
    if (f->system && !f->chat) return error_set(err, STATUS_INVALID, "--system needs --chat");
    return STATUS_IS_OK;
}

/* Takes over the method, a member of the request's fields; NULL removes it. */
static status set_method(run_flags *f, const char *field, json_t *method, error *err)
{
    if (!method) {
        json_object_del(f->fields, field);
        return STATUS_IS_OK;
    }
    if (!f->fields) f->fields = json_object();
    if (json_object_set_new(f->fields, field, method) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

static status read_methods(run_flags *f, error *err)
{
    json_t *method;
    if (f->retention) {
        RETURN_IF_ERROR(retention_read_text("--retention", f->retention, &method, err));
        RETURN_IF_ERROR(set_method(f, "retention", method, err));
    }
    if (!f->retrieval) return STATUS_IS_OK;
    RETURN_IF_ERROR(retrieval_read_text("--retrieval", f->retrieval, &method, err));
    return set_method(f, "retrieval", method, err);
}

/* Tries the fields of the command line once, so that a mistake in them is not reported for every
 * line. */
static status check_fields(const run_session *s, error *err)
{
    engine_request r;
    status st = run_request_init(s, &r, err);
    const backend_info *info = s->model.backend.ops->info(s->model.backend.ctx);
    retention_limits limits = {info->geometry, s->model.prefill_chunk, s->model.max_model_len};
    retention_policy policy;
    retrieval_spec retrieval;
    if (status_ok(st)) st = retention_parse(r.retention, &limits, &policy, err);
    if (status_ok(st)) st = retrieval_parse(r.retrieval, &info->geometry, &retrieval, err);
    engine_request_destroy(&r);
    return st;
}

status run_set_retention(run_session *s, const char *name, const char *text, error *err)
{
    json_t *policy, *before = json_object_get(s->flags.fields, "retention");
    RETURN_IF_ERROR(retention_read_text(name, text, &policy, err));
    json_incref(before);
    status st = set_method(&s->flags, "retention", policy, err);
    if (status_ok(st)) st = check_fields(s, err);
    if (status_ok(st)) json_decref(before);
    else if (!status_ok(set_method(&s->flags, "retention", before, NULL)))
        st.code = STATUS_NO_MEMORY;
    return st;
}

static int run_session_go(run_session *s, const model_flags *model)
{
    error err = {{0}};
    if (!status_ok(waiter_create(&s->waiter, &err)) ||
        !status_ok(model_open(model, true, &s->model, &err)))
        return cli_complain(run_name, CLI_FAILED, err.text);
    s->defaults = model_defaults(&s->model);
    if (s->flags.chat && !s->model.chat)
        return cli_complain(run_name, CLI_FAILED, "--chat: this model has no usable chat template");
    if (!status_ok(check_fields(s, &err))) return cli_complain(run_name, CLI_USAGE, err.text);
    model_log(&s->model, model->dir);

    /* Keeps enough requests waiting to fill the batch whenever some end. The engine gets room for a
     * few more, because it counts a request off just after the last output can be read. */
    s->max_requests = 2 * s->model.max_batch;
    engine_options o = model_engine_options(&s->model, s->max_requests + 8);
    retention_flags_apply(&s->retention, &o);
    if (!status_ok(engine_create(&o, &s->engine, &err)))
        return cli_complain(run_name, CLI_FAILED, err.text);
    if (s->flags.prompts) return run_batch(s);
    return s->flags.prompt ? run_prompt(s) : run_chat(s);
}

int cli_run(cli_line *line)
{
    model_flags model = {0};
    run_session s = {0};
    arg_flag sampling[ENGINE_FIELDS + 1];
    size_t n_sampling = sampling_flags(sampling);
    const arg_group groups[] = {
        {"What to run (one of --prompt, --chat, --prompts)", input_flags,
         sizeof input_flags / sizeof input_flags[0], &s.flags},
        {"Sampling", sampling, n_sampling, &s.flags},
        {"Retention and retrieval", keep_flags, sizeof keep_flags / sizeof keep_flags[0], &s.flags},
        retention_flags_group(&s.retention),
        model_flags_group(&model),
        workers_flags_group(&model.workers),
    };
    strbuf about = {0};
    strbuf_puts(&about, about_chat);
    chat_help(&about);
    strbuf_puts(&about, about_prompts);
    const arg_command command = {
        .name = run_name,
        .usage = "PATH (--prompt TEXT | --chat | --prompts FILE.jsonl) [flags]",
        .about = about.failed ? "" : about.data,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &model.quiet,
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        if (!model.dir) result = cli_complain(run_name, CLI_USAGE, "--model is missing");
        else if (!status_ok(check_flags(&s.flags, &err)) ||
                 !status_ok(read_methods(&s.flags, &err)) ||
                 !status_ok(retention_flags_read(&s.retention, &err)))
            result = cli_complain(run_name, CLI_USAGE, err.text);
        else result = run_session_go(&s, &model);
    }
    engine_destroy(s.engine);
    model_close(&s.model);
    waiter_destroy(s.waiter);
    json_decref(s.flags.fields);
    retention_flags_destroy(&s.retention);
    model_flags_destroy(&model);
    strbuf_destroy(&about);
    return result;
}

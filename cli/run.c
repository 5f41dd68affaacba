/* `octavo run`: its flags, the session, and the choice between --prompts, --prompt and --chat. */
#include "cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The row of a flag that is a field of a request. */
#define FIELD(flag, value, request_field, json_kind, range_min, range_max, help)                   \
    ARG_ROW(flag, value, ARG_FIELD, run_flags, fields, help, .field = request_field,               \
            .json = json_kind, .min = range_min, .max = range_max)

static const arg_flag input_flags[] = {
    ARG_ROW("prompt", "TEXT", ARG_TEXT, run_flags, prompt, "answer this text"),
    ARG_ROW(
        "chat", NULL, ARG_SWITCH, run_flags, chat,
        "use the model's chat template: a conversation turn by turn, one line of stdin each; with "
        "--prompt one turn"),
    ARG_ROW("system", "TEXT", ARG_TEXT, run_flags, system, "what the conversation begins with"),
    ARG_ROW("prompts", "FILE", ARG_TEXT, run_flags, prompts,
            "run a file of requests as one batch (- is stdin)"),
    ARG_ROW("json", NULL, ARG_SWITCH, run_flags, json,
            "print a JSON line for each choice, as --prompts does"),
};

static const arg_flag sampling_flags[] = {
    FIELD("max-tokens", "N", "max_tokens", ARG_JSON_WHOLE, 0, 0x1p31 - 1,
          "most tokens of an answer (default: what the context has room for); 0 scores the prompt"),
    FIELD("min-tokens", "N", "min_tokens", ARG_JSON_WHOLE, 0, 0x1p31 - 1,
          "no end before so many tokens"),
    FIELD("temperature", "T", "temperature", ARG_JSON_NUMBER, 0, 100,
          "0 is greedy (default: the model's generation_config.json, else greedy)"),
    FIELD("top-p", "P", "top_p", ARG_JSON_NUMBER, 1e-30, 1,
          "sample from the likeliest P of the mass"),
    FIELD("top-k", "K", "top_k", ARG_JSON_WHOLE, -1, 0x1p31 - 1,
          "sample from the K likeliest tokens; -1 is all"),
    FIELD("min-p", "P", "min_p", ARG_JSON_NUMBER, 0, 1,
          "leave out what is less likely than P times the likeliest"),
    FIELD("presence-penalty", "X", "presence_penalty", ARG_JSON_NUMBER, -2, 2,
          "taken off a token's logit once it has been said"),
    FIELD("frequency-penalty", "X", "frequency_penalty", ARG_JSON_NUMBER, -2, 2,
          "taken off for each time it has been said"),
    FIELD("repetition-penalty", "X", "repetition_penalty", ARG_JSON_NUMBER, 1e-30, 2,
          "divides the logits of tokens in prompt and answer; 1 is off"),
    FIELD("seed", "N", "seed", ARG_JSON_WHOLE, 0, 0x1p63, "makes sampling repeatable"),
    FIELD("n", "N", "n", ARG_JSON_WHOLE, 1, ENGINE_N_MAX, "choices for each prompt"),
    FIELD("stop", "TEXT", "stop", ARG_JSON_STRINGS, 0, 0,
          "end an answer before this text; may be repeated"),
    FIELD("ignore-eos", NULL, "ignore_eos", ARG_JSON_TRUE, 0, 0,
          "go on after the model's end of sequence"),
    FIELD("logprobs", "N", "logprobs", ARG_JSON_WHOLE, 0, SAMPLE_LOGPROBS_MAX,
          "report each token's log-probability and the N likeliest (JSON lines only)"),
    FIELD("prompt-logprobs", "N", "prompt_logprobs", ARG_JSON_WHOLE, 0, SAMPLE_LOGPROBS_MAX,
          "the same of each token of the prompt (JSON lines only)"),
};

static const arg_flag keep_flags[] = {
    FIELD("retention", "JSON", "retention", ARG_JSON_OBJECT, 0, 0,
          "which KV pages stay, such as '{\"method\":\"chunkkv\",\"ratio\":0.25}'; see octavo "
          "methods"),
    FIELD("session", "ID", "session", ARG_JSON_TEXT, 0, 0,
          "go on from the pages that the last request of this session left, and leave one's own: "
          "with --chat, no turn is computed anew"),
};

static const char about[] =
    "Answers a prompt, holds a chat, or runs a file of requests as one batch.\n"
    "\n"
    "--prompts reads JSON lines: \"prompt\", \"messages\" or \"prompt_token_ids\", an optional "
    "\"id\", and any\n"
    "field below by its OpenAI name (max_tokens, temperature, stop, retention, ...); flags are the "
    "defaults\n"
    "of all lines; lines of one \"session\" are its turns, and wait for each other. For each "
    "choice "
    "one JSON\n"
    "line goes to stdout when it ends:\n"
    "  {\"id\", \"index\", \"text\", \"token_ids\", \"logprobs\", \"prompt_logprobs\", "
    "\"finish_reason\", \"usage\",\n"
    "  \"retention\", \"timings\"}\n"
    "A line that cannot be run gives {\"id\", \"error\": {\"message\", \"line\"}}; the others go "
    "on, and the exit\n"
    "status is 1.";

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

/* Tries the fields of the command line once, so that a mistake in them is not reported for every
 * line. */
static status check_fields(const run_session *s, error *err)
{
    engine_request r;
    status st = run_request_init(s, &r, err);
    const backend_info *info = s->model.backend.ops->info(s->model.backend.ctx);
    retention_limits limits = {info->geometry, s->model.prefill_chunk};
    retention_policy policy;
    if (status_ok(st)) st = retention_parse(r.retention, &limits, &policy, err);
    engine_request_destroy(&r);
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

int cli_run(int argc, char **argv)
{
    model_flags model = {0};
    run_session s = {0};
    const arg_group groups[] = {
        {"What to run (one of --prompt, --chat, --prompts)", input_flags,
         sizeof input_flags / sizeof input_flags[0], &s.flags},
        {"Sampling", sampling_flags, sizeof sampling_flags / sizeof sampling_flags[0], &s.flags},
        {"Retention", keep_flags, sizeof keep_flags / sizeof keep_flags[0], &s.flags},
        retention_flags_group(&s.retention),
        model_flags_group(&model),
        workers_flags_group(&model.workers),
    };
    const arg_command command = {
        .name = run_name,
        .usage = "--model DIR (--prompt TEXT | --chat | --prompts FILE.jsonl) [flags]",
        .about = about,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, argc, argv, NULL, &result)) {
        if (!model.dir) result = cli_complain(run_name, CLI_USAGE, "--model is missing");
        else if (!status_ok(check_flags(&s.flags, &err)) ||
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
    return result;
}

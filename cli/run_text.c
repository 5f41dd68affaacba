/* One request of `octavo run`, whose text is printed as it comes, and --prompt. */
#include "cli/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One request while its choices are read. */
typedef struct answer {
    run_choice choices[ENGINE_N_MAX];
    uint32_t n, n_ended;
    bool want_logprobs;
    bool to_terminal; // the text is shown there
    bool failed, output_failed;
    bool has_bar;   // a terminal shows how far the prompt is
    bool *too_long; // where not NULL: set, instead of a complaint, when the prompt does not fit
} answer;

static void put_text(answer *a, const char *text, size_t n)
{
    if (n && fwrite(text, 1, n, stdout) != n) a->output_failed = true;
}

/* Puts a text that the model wrote. */
static void put_answer(answer *a, const char *text, size_t n)
{
    if (!a->to_terminal) {
        put_text(a, text, n);
        return;
    }
    strbuf shown = {0};
    run_terminal_text(&shown, text, n);
    put_text(a, shown.data, shown.size);
    a->failed |= shown.failed;
    strbuf_destroy(&shown);
}

static void end_with_newline(answer *a, const run_choice *c)
{
    if (c->text.size == 0 || c->text.data[c->text.size - 1] != '\n') put_text(a, "\n", 1);
}

/* Prints the end of a choice in plain text; with several choices, each has a heading. */
static void print_end(answer *a, const engine_output *out, bool quiet)
{
    const run_choice *c = &a->choices[out->choice];
    if (a->n > 1) {
        printf("[choice %u]\n", out->choice);
        if (c->text.size) put_answer(a, c->text.data, c->text.size);
    }
    end_with_newline(a, c);
    if (quiet || (!out->report && !out->reading)) return;
    fflush(stdout);
    strbuf text = {0};
    if (out->report) {
        run_report_text(&text, out->report);
        strbuf_putc(&text, '\n');
    }
    if (out->reading) {
        run_reading_text(&text, out->reading);
        strbuf_putc(&text, '\n');
    }
    fputs(text.data ? text.data : "", stderr);
    strbuf_destroy(&text);
}

static void end_choice(const run_session *s, answer *a, const json_t *id,
                       const engine_stream *stream, const engine_output *out)
{
    run_choice *c = &a->choices[out->choice];
    a->n_ended++;
    if (out->finish == ENGINE_FINISH_ERROR && a->too_long && out->error_code == STATUS_LIMIT) {
        *a->too_long = true;
        a->failed = true;
    } else if (out->finish == ENGINE_FINISH_ERROR) {
        if (!a->failed) cli_complain(run_name, CLI_FAILED, out->error_text);
        a->failed = true;
    } else if (s->flags.json) {
        strbuf line = {0};
        engine_prompt prompt = engine_stream_prompt(stream);
        run_line(&line, id, c, out, a->want_logprobs, &prompt, s->model.tokenizer);
        put_text(a, line.data, line.size);
        a->failed |= line.failed;
        strbuf_destroy(&line);
    } else {
        print_end(a, out, s->model.quiet);
    }
    a->failed |= c->failed;
}

/* Shows how far the prompt is, or, with the first output that has no progress, clears that. */
static void show_progress(answer *a, const engine_progress *p)
{
    if (p->phase) {
        char what[64];
        snprintf(what, sizeof what, "%s of %u tokens", p->phase, p->total_tokens);
        cli_draw_bar(what, p->computed_tokens, p->total_tokens);
    } else if (a->has_bar) {
        cli_clear_bar();
    }
    a->has_bar = p->phase != NULL;
}

/* Reads the stream to its end, printing as it goes. */
static void follow_stream(run_session *s, answer *a, const json_t *id, engine_stream *stream)
{
    bool streaming = a->n == 1 && !s->flags.json, aborted = false;
    engine_output out;
    while (a->n_ended < a->n) {
        if ((waiter_interrupted(s->waiter) || a->output_failed) && !aborted) {
            engine_stream_abort(stream);
            aborted = true;
        }
        if (!engine_stream_read(stream, &out)) {
            if (fflush(stdout) != 0) a->output_failed = true;
            waiter_wait(s->waiter, -1, -1);
            continue;
        }
        show_progress(a, &out.progress);
        if (out.progress.phase) continue;
        run_choice_take(&a->choices[out.choice], &out, s->model.tokenizer, a->want_logprobs);
        if (streaming) put_answer(a, out.text, out.text_bytes);
        if (out.finish != ENGINE_FINISH_NONE) end_choice(s, a, id, stream, &out);
    }
}

/* Runs one request and prints it; reply (may be NULL) receives the text of choice 0. */
static int run_request(run_session *s, engine_request *r, const json_t *id, strbuf *reply,
                       bool *too_long)
{
    error err = {{0}};
    answer *a = calloc(1, sizeof *a);
    engine_stream *stream = NULL;
    r->progress = !s->model.quiet && isatty(STDERR_FILENO) == 1;
    status st = a ? engine_submit(s->engine, r, waiter_notify, s->waiter, &stream, &err)
                  : error_set(&err, STATUS_NO_MEMORY, "out of memory");
    if (!status_ok(st)) {
        free(a);
        return cli_complain(run_name, CLI_FAILED, err.text);
    }
    a->n = r->n;
    a->too_long = too_long;
    a->want_logprobs = r->logprobs >= 0;
    a->to_terminal = isatty(STDOUT_FILENO) == 1;
    follow_stream(s, a, id, stream);
    engine_stream_release(stream);
    if (reply && a->choices[0].text.size)
        strbuf_append(reply, a->choices[0].text.data, a->choices[0].text.size);
    bool ok = !a->failed && !a->output_failed;
    for (uint32_t i = 0; i < a->n; i++) run_choice_destroy(&a->choices[i]);
    free(a);
    if (!cli_finish_output(run_name)) ok = false;
    return waiter_interrupted(s->waiter) ? CLI_INTERRUPTED : ok ? CLI_OK : CLI_FAILED;
}

/* ---- messages -------------------------------------------------------------------------------- */

bool run_messages_add(json_t *messages, const char *role, const char *text, size_t n)
{
    json_t *content = json_stringn(text, n);
    return content && json_array_append_new(
                          messages, json_pack("{s:s, s:o}", "role", role, "content", content)) == 0;
}

json_t *run_messages_start(const run_session *s)
{
    json_t *messages = json_array();
    const char *system = s->flags.system;
    if (!system || run_messages_add(messages, "system", system, strlen(system))) return messages;
    json_decref(messages);
    return NULL;
}

int run_messages_answer(run_session *s, json_t *messages, json_int_t turn, strbuf *reply,
                        bool *too_long)
{
    error err = {{0}};
    engine_request r;
    int result = CLI_USAGE;
    if (status_ok(run_request_init(s, &r, &err))) {
        r.messages = json_incref(messages);
        json_t *id = json_integer(turn);
        result = run_request(s, &r, id, reply, too_long);
        json_decref(id);
    } else {
        cli_complain(run_name, result, err.text);
    }
    engine_request_destroy(&r);
    return result;
}

/* ---- --prompt -------------------------------------------------------------------------------- */

static int run_plain(run_session *s, const char *text)
{
    error err = {{0}};
    engine_request r;
    int result;
    if (status_ok(run_request_init(s, &r, &err))) {
        r.prompt = strdup(text);
        r.prompt_bytes = strlen(text);
        json_t *id = json_integer(1);
        result = run_request(s, &r, id, NULL, NULL);
        json_decref(id);
    } else {
        result = cli_complain(run_name, CLI_USAGE, err.text);
    }
    engine_request_destroy(&r);
    return result;
}

int run_prompt(run_session *s)
{
    const char *text = s->flags.prompt;
    waiter_arm(s->waiter, true);
    if (!s->flags.chat) return run_plain(s, text);
    json_t *messages = run_messages_start(s);
    int result = CLI_USAGE;
    if (messages && run_messages_add(messages, "user", text, strlen(text)))
        result = run_messages_answer(s, messages, 1, NULL, NULL);
    else cli_complain(run_name, result, "--prompt and --system must be UTF-8");
    json_decref(messages);
    return result;
}

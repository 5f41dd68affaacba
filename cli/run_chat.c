/* `octavo run --chat`: a conversation turn by turn, from lines of stdin or typed at a terminal. */
#include "cli/chat.h"
#include "cli/editor.h"
#include "cli/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a turn ---------------------------------------------------------------------------------- */

/* Removes the oldest message and its answer; false when only the newest message is left. */
static bool forget_oldest(const run_session *s, json_t *messages)
{
    size_t oldest = s->flags.system ? 1 : 0;
    if (json_array_size(messages) < oldest + 3) return false;
    return json_array_remove(messages, oldest) == 0 && json_array_remove(messages, oldest) == 0;
}

static void remove_newest(json_t *messages)
{
    json_array_remove(messages, json_array_size(messages) - 1);
}

/* Answers the newest message. Older messages that no longer fit the context are left out, the
 * oldest first. */
static int answer_newest(chat *c, json_int_t turn, strbuf *reply, bool *left_out)
{
    for (;;) {
        bool too_long = false;
        int result = run_messages_answer(c->s, c->messages, turn, reply, &too_long);
        if (!too_long) return result;
        *left_out = !forget_oldest(c->s, c->messages);
        fprintf(stderr, "octavo run: the context of %u tokens is full: %s\n",
                c->s->model.max_model_len,
                *left_out ? "this message alone does not fit and is left out"
                          : "the oldest message and its answer are dropped");
        if (!*left_out) continue;
        remove_newest(c->messages);
        return CLI_OK;
    }
}

static int one_turn(chat *c, json_int_t turn, const char *text, size_t n, strbuf *reply)
{
    if (!run_messages_add(c->messages, "user", text, n))
        return cli_complain(run_name, CLI_FAILED, "a line of stdin is not UTF-8");
    bool left_out = false;
    strbuf_clear(reply);
    int result = answer_newest(c, turn, reply, &left_out);
    if (left_out || (result != CLI_OK && !reply->size)) return result;
    if (run_messages_add(c->messages, "assistant", reply->data ? reply->data : "", reply->size))
        return result;
    return cli_complain(run_name, CLI_FAILED, "out of memory");
}

/* ---- lines of stdin -------------------------------------------------------------------------- */

static int chat_by_lines(chat *c)
{
    line_reader in;
    error err = {{0}};
    strbuf reply = {0};
    int result = CLI_OK;
    status st = lines_open(&in, "-", &err);
    if (!status_ok(st)) result = cli_complain(run_name, CLI_FAILED, err.text);
    for (json_int_t turn = 1; result == CLI_OK; turn++) {
        char *text;
        size_t n;
        waiter_arm(c->s->waiter, false);
        line_outcome got = lines_next(&in, true, &text, &n);
        if (got == LINE_END) break;
        waiter_arm(c->s->waiter, true);
        if (got == LINE_FAILED) lines_failure(&in, &err);
        if (got != LINE_READ)
            result = cli_complain(run_name, CLI_FAILED,
                                  got == LINE_TOO_LONG ? "a line of stdin is longer than 16 MiB"
                                                       : err.text);
        else if (n) result = one_turn(c, turn, text, n, &reply);
    }
    lines_close(&in);
    strbuf_destroy(&reply);
    return result;
}

/* ---- a terminal ------------------------------------------------------------------------------ */

static void say(const strbuf *text) { fputs(text->size ? text->data : "", stderr); }

static void obey(chat *c, const char *message)
{
    error err = {{0}};
    strbuf out = {0};
    status st = chat_run_command(c, message, &out, &err);
    say(&out);
    if (!status_ok(st)) fprintf(stderr, "%s\n", err.text);
    strbuf_destroy(&out);
}

/* The chat outlives an answer that failed or was ended by Ctrl-C. Without a text of it the message
 * is taken back. */
static int typed_turn(chat *c, editor *e, json_int_t turn, const strbuf *message, strbuf *reply)
{
    int result = one_turn(c, turn, message->data, message->size, reply);
    bool ended = result == CLI_INTERRUPTED && waiter_resume(c->s->waiter);
    if (ended) editor_note_interrupt(e);
    if (!ended && (result != CLI_FAILED || ferror(stdout))) return result;
    if (reply->size) return CLI_OK;
    remove_newest(c->messages);
    fputs("Without an answer the message is taken back.\n", stderr);
    return CLI_OK;
}

static int chat_by_editor(chat *c)
{
    error err = {{0}};
    editor *e;
    strbuf message = {0}, reply = {0};
    int result = CLI_OK;
    waiter_arm(c->s->waiter, true);
    if (!status_ok(editor_create(c->s->waiter, &e, &err)))
        return cli_complain(run_name, CLI_FAILED, err.text);
    if (!c->s->model.quiet) fputs("/help lists commands; Ctrl-D ends.\n", stderr);
    for (json_int_t turn = 1; result == CLI_OK;) {
        editor_outcome got = editor_read(e, &message);
        if (got == EDITOR_END) break;
        if (got == EDITOR_SIGNAL) result = CLI_INTERRUPTED;
        else if (got == EDITOR_FAILED)
            result = cli_complain(run_name, CLI_FAILED, "cannot read the terminal");
        else if (!message.size) continue;
        else if (chat_is_command(message.data)) obey(c, message.data);
        else if (strspn(message.data, " \t\n") < message.size)
            result = typed_turn(c, e, turn++, &message, &reply);
    }
    editor_destroy(e);
    strbuf_destroy(&message);
    strbuf_destroy(&reply);
    return result;
}

int run_chat(run_session *s)
{
    chat c = {.s = s, .messages = run_messages_start(s)};
    if (!c.messages) return cli_complain(run_name, CLI_USAGE, "--system must be UTF-8");
    bool typed = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    int result = typed ? chat_by_editor(&c) : chat_by_lines(&c);
    json_decref(c.messages);
    free(c.saved);
    return result;
}

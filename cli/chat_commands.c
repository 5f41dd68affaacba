/* The commands of a chat: a command is a row of the table. */
#include "base/json.h"
#include "cli/chat.h"
#include "cli/nearest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat_command {
    const char *name;
    const char *value;   // what help calls it; NULL: the command takes none
    bool value_optional; // else it must be given
    const char *help;
    status (*run)(chat *c, const char *value, strbuf *out, error *err); // value "" = none
} chat_command;

/* ---- what they do ---------------------------------------------------------------------------- */

static status say_help(chat *c, const char *value, strbuf *out, error *err)
{
    (void)c;
    (void)value;
    (void)err;
    chat_help(out);
    return STATUS_IS_OK;
}

/* The next turn begins a session anew: it could not go on from the pages of the last one. */
static status forget_session(chat *c, error *err)
{
    engine_request r;
    if (!json_object_get(c->s->flags.fields, "session")) return STATUS_IS_OK;
    status st = run_request_init(c->s, &r, err);
    if (status_ok(st)) {
        st = engine_forget_session(c->s->engine, &r);
        if (!status_ok(st)) error_set(err, st.code, "the session: %s", status_text(st.code));
    }
    engine_request_destroy(&r);
    return st;
}

static status reset(chat *c, const char *value, strbuf *out, error *err)
{
    (void)value;
    json_t *messages = run_messages_start(c->s);
    if (!messages) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    json_decref(c->messages);
    c->messages = messages;
    strbuf_puts(out, "The conversation begins anew.\n");
    return forget_session(c, err);
}

static status write_text(const char *path, int flags, const char *text, error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0 && errno == EEXIST)
        return error_set(err, STATUS_IO, "%s: is there already, and not of this chat", path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        if (fd >= 0) close(fd);
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    }
    bool written = fputs(text, file) >= 0;
    if (fclose(file) == 0 && written) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
}

static status save(chat *c, const char *path, strbuf *out, error *err)
{
    bool again = c->saved && strcmp(c->saved, path) == 0;
    strbuf line = {0};
    char *messages = json_write(c->messages, JSON_COMPACT), *copy = strdup(path);
    strbuf_printf(&line, "{\"messages\":%s}\n", messages ? messages : "");
    status st = messages && copy && !line.failed
                    ? write_text(path, again ? O_TRUNC : O_EXCL, line.data, err)
                    : error_set(err, STATUS_NO_MEMORY, "out of memory");
    free(messages);
    strbuf_destroy(&line);
    if (!status_ok(st)) {
        free(copy);
        return st;
    }
    free(c->saved);
    c->saved = copy;
    strbuf_printf(out, "%zu messages are in %s.\n", json_array_size(c->messages), path);
    return st;
}

static status set_retention(chat *c, const char *value, strbuf *out, error *err)
{
    if (*value) {
        RETURN_IF_ERROR(run_set_retention(c->s, "retention", value, err));
        RETURN_IF_ERROR(forget_session(c, err));
    }
    const json_t *policy = json_object_get(c->s->flags.fields, "retention");
    char *text = policy ? json_write(policy, JSON_COMPACT) : NULL;
    strbuf_printf(out, "Retention is %s.\n", text ? text : "full");
    free(text);
    return STATUS_IS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const chat_command commands[] = {
    {"help", NULL, false, "list the commands", say_help},
    {"reset", NULL, false, "forget the conversation but for --system", reset},
    {"save", "FILE", false, "write the conversation as a line for --prompts", save},
    {"retention", "METHOD:RATIO", true, "which KV pages stay from here on, full: all; alone: show",
     set_retention},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

void chat_help(strbuf *out)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const chat_command *c = &commands[i];
        char words[64];
        snprintf(words, sizeof words, c->value_optional ? "/%s [%s]" : "/%s %s", c->name,
                 c->value ? c->value : "");
        strbuf_printf(out, "  %-26s%s\n", words, c->help);
    }
    strbuf_puts(
        out, "  A line that ends in \\ goes on in the next; what is pasted is one message. A "
             "message\n  that begins with / needs a blank before it. Ctrl-C ends the answer that "
             "is written,\n  and twice at an empty prompt the chat, as Ctrl-D does; Ctrl-R "
             "searches earlier messages.\n");
}

bool chat_is_command(const char *message) { return message[0] == '/'; }

static status find_command(const char *name, size_t n, const chat_command **out, error *err)
{
    nearest near;
    nearest_start(&near, name, n);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        *out = &commands[i];
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, name, n) == 0)
            return STATUS_IS_OK;
        nearest_try(&near, commands[i].name, strlen(commands[i].name));
    }
    if (near.best)
        return error_set(err, STATUS_INVALID, "unknown command '/%.*s': did you mean /%s?",
                         n < 64 ? (int)n : 64, name, near.best);
    return error_set(
        err, STATUS_INVALID,
        "unknown command '/%.*s': /help lists them; a message that begins with / needs "
        "a blank before it",
        n < 64 ? (int)n : 64, name);
}

status chat_run_command(chat *c, const char *message, strbuf *out, error *err)
{
    const chat_command *command;
    const char *name = message + 1;
    size_t n = strcspn(name, " \t\n");
    RETURN_IF_ERROR(find_command(name, n, &command, err));
    const char *from = name + n + strspn(name + n, " \t");
    size_t size = strlen(from);
    while (size && (from[size - 1] == ' ' || from[size - 1] == '\t')) size--;
    if (memchr(from, '\n', size))
        return error_set(err, STATUS_INVALID, "/%s: a command is one line", command->name);
    if (size && !command->value)
        return error_set(err, STATUS_INVALID, "/%s: takes no value", command->name);
    if (!size && command->value && !command->value_optional)
        return error_set(err, STATUS_INVALID, "/%s: needs %s", command->name, command->value);
    char *value = strndup(from, size);
    if (!value) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = command->run(c, value, out, err);
    free(value);
    return st;
}

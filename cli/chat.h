/* A conversation of `octavo run --chat`, and the commands that a terminal takes between its
 * messages. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include "cli/run.h"

typedef struct chat {
    run_session *s;
    json_t *messages; // an array; the system message is first
    char *saved;      // malloc'd: the file that /save wrote last, which it may write again
} chat;

/* Whether a message is a command: it begins with a slash. */
bool chat_is_command(const char *message);
/* Runs a command. `out` receives what it has to say. */
status chat_run_command(chat *c, const char *message, strbuf *out, error *err);
/* Appends a line for each command, and how messages are typed. */
void chat_help(strbuf *out);

#endif

/* The messages of earlier chats: a file of the user's own, mode 0600, in libedit's form. */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include "base/base.h"

#include <stdio.h>

/* Longer messages are not kept; of the others the newest. */
enum { HISTORY_ENTRIES = 1000, HISTORY_ENTRY_BYTES = 16 << 10 };

typedef struct chat_history {
    struct history *list; // libedit's
    FILE *file;           // appends; NULL = nothing is written
} chat_history;

/* Writes the path of the file, $XDG_STATE_HOME/octavo/chat_history or the same under
 * ~/.local/state, and makes the folders that it lies in. */
status history_path(char *out, size_t size, error *err);
/* Reads the file, or makes it; path NULL = there is none. When that fails the list is there but no
 * file. Only when memory is out there is no list. */
status history_open(const char *path, chat_history *out, error *err);
void history_close(chat_history *h);
/* Adds a message to the list and the file, unless it is the newest one already. */
void history_add(chat_history *h, const char *text);

#endif

/* Messages typed at a terminal: lines with editing and history, by libedit. The terminal is stdin
 * and stderr, so that stdout has nothing but answers. One thread. */
#ifndef CLI_EDITOR_H
#define CLI_EDITOR_H

#include "cli/waiter.h"

typedef struct editor editor;

typedef enum editor_outcome {
    EDITOR_READ,
    EDITOR_END,    // Ctrl-D, or Ctrl-C a second time
    EDITOR_SIGNAL, // SIGTERM
    EDITOR_FAILED, // the terminal cannot be read, or memory is out
} editor_outcome;

/* The waiter must stay armed as long as messages are read. Where the file of earlier messages
 * cannot be used, a line on stderr says so. */
status editor_create(waiter *w, editor **out, error *err);
void editor_destroy(editor *e);
/* Reads a message: a line, and those behind it while lines end with a backslash. A text that is
 * pasted stays whole. Ctrl-C takes back what is typed. */
editor_outcome editor_read(editor *e, strbuf *message);
/* Ctrl-C has just ended an answer: pressed once more, with nothing typed, it is EDITOR_END. */
void editor_note_interrupt(editor *e);

#endif

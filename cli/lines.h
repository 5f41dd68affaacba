/* Reads a file, pipe or terminal line by line, lazily, with a cap on what one line may hold. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include "base/base.h"

enum { CLI_LINE_BYTES_MAX = 16 << 20 };

typedef struct line_reader {
    int fd;
    bool is_stdin;
    bool at_end;     // read() has said so
    bool is_regular; // reading it never waits
    bool skipping;   // inside a line that is too long
    char *buffer;
    size_t start, scanned, end,
        capacity;    // the rest of what was read: [start, end), [.., scanned) has no newline
    uint64_t number; // of the line read last, from 1
} line_reader;

typedef enum line_outcome {
    LINE_READ,
    LINE_TOO_LONG, // skipped to its end
    LINE_LATER,    // nothing whole has arrived yet (only when told not to wait)
    LINE_END,
    LINE_FAILED, // an I/O error: errno
} line_outcome;

/* path "-" is stdin. */
status lines_open(line_reader *r, const char *path, error *err);
void lines_close(line_reader *r);
/* The line without its newline, NUL-terminated, valid until the next call. A last line without a
 * newline counts. */
line_outcome lines_next(line_reader *r, bool wait, char **line, size_t *n);
/* Lines of a regular file that hold more than blanks, or -1 when that cannot be told. Before the
 * first lines_next. */
int64_t lines_count(const line_reader *r);

#endif

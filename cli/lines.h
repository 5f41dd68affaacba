/* Reads a file, pipe or terminal line by line, lazily, with a cap on what one line may hold. */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include "base/base.h"

enum { CLI_LINE_BYTES_MAX = 16 << 20 };

typedef struct line_reader {
    int fd;
    const char *name; // as errors say it: "stdin", or the path that was opened
    bool is_stdin;
    bool at_end;     // read() has reported the end
    bool is_regular; // a regular file: reading it never waits
    bool skipping;   // inside a line that is too long
    char *buffer;
    size_t start, scanned, end,
        capacity; // bytes not yet returned are [start, end); none in [start, scanned) is a newline
    uint64_t number; // of the line that was read last, from 1
} line_reader;

typedef enum line_outcome {
    LINE_READ,
    LINE_TOO_LONG, // the line was skipped to its end
    LINE_LATER,    // no whole line has arrived yet (only without `wait`)
    LINE_END,
    LINE_FAILED, // an I/O error (lines_failure)
} line_outcome;

/* Opens a file; the path "-" is stdin. */
status lines_open(line_reader *r, const char *path, error *err);
void lines_close(line_reader *r);
/* Reads the next line without its newline, NUL-terminated and valid until the next call. A last
 * line without a newline counts. */
line_outcome lines_next(line_reader *r, bool wait, char **line, size_t *n);
/* Fills *err with the reason, right after lines_next has returned LINE_FAILED. */
status lines_failure(const line_reader *r, error *err);
/* Counts the lines of a regular file that hold more than blanks; -1 for any other file. To be
 * called before the first lines_next. */
int64_t lines_count(const line_reader *r);

#endif

/* Reads lines from a file descriptor. */
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

status lines_open(line_reader *r, const char *path, error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    *r = (line_reader){.fd = STDIN_FILENO, .name = is_stdin ? "stdin" : path, .is_stdin = is_stdin};
    if (!r->is_stdin) r->fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (r->fd < 0 || fstat(r->fd, &st) != 0) return lines_failure(r, err);
    r->is_regular = S_ISREG(st.st_mode);
    if (!S_ISDIR(st.st_mode)) return STATUS_IS_OK;
    lines_close(r);
    return error_set(err, STATUS_IO, "%s: is a folder", path);
}

status lines_failure(const line_reader *r, error *err)
{
    return error_set(err, STATUS_IO, "%s: %s", r->name, strerror(errno));
}

void lines_close(line_reader *r)
{
    if (!r->is_stdin && r->fd >= 0) close(r->fd);
    free(r->buffer);
    *r = (line_reader){.fd = -1};
}

/* Makes room for READ_BYTES and a NUL behind the bytes that are kept. */
static bool make_room(line_reader *r)
{
    if (r->start) {
        memmove(r->buffer, r->buffer + r->start, r->end - r->start);
        r->scanned -= r->start;
        r->end -= r->start;
        r->start = 0;
    }
    size_t need = r->end + READ_BYTES + 1;
    if (need <= r->capacity) return true;
    size_t capacity = 2 * r->capacity > need ? 2 * r->capacity : need;
    char *grown = realloc(r->buffer, capacity);
    if (!grown) return false;
    r->buffer = grown;
    r->capacity = capacity;
    return true;
}

/* Reads some more bytes. LINE_READ: bytes came, or the end. */
static line_outcome fill_buffer(line_reader *r, bool wait)
{
    if (!wait && !r->is_regular) {
        struct pollfd p = {.fd = r->fd, .events = POLLIN};
        int n = poll(&p, 1, 0);
        if (n == 0 || (n < 0 && errno == EINTR)) return LINE_LATER;
    }
    if (!make_room(r)) return LINE_FAILED;
    ssize_t n;
    do n = read(r->fd, r->buffer + r->end, READ_BYTES);
    while (n < 0 && errno == EINTR);
    if (n < 0) return LINE_FAILED;
    r->end += (size_t)n;
    r->at_end = n == 0;
    return LINE_READ;
}

/* Ends the line at `at`, where a newline or the end of the file is. */
static line_outcome take_line(line_reader *r, size_t at, char **line, size_t *n)
{
    bool skipped = r->skipping;
    r->number++;
    r->skipping = false;
    *line = r->buffer + r->start;
    *n = at - r->start;
    r->start = r->scanned = at < r->end ? at + 1 : at;
    if (skipped || *n > CLI_LINE_BYTES_MAX) return LINE_TOO_LONG;
    if (*n && (*line)[*n - 1] == '\r') --*n;
    (*line)[*n] = '\0';
    return LINE_READ;
}

line_outcome lines_next(line_reader *r, bool wait, char **line, size_t *n)
{
    for (;;) {
        char *newline =
            r->end > r->scanned ? memchr(r->buffer + r->scanned, '\n', r->end - r->scanned) : NULL;
        if (newline) return take_line(r, (size_t)(newline - r->buffer), line, n);
        r->scanned = r->end;
        if (r->at_end && r->end == r->start && !r->skipping) return LINE_END;
        if (r->at_end) return take_line(r, r->end, line, n);
        if (r->end - r->start > CLI_LINE_BYTES_MAX) {
            r->skipping = true;
            r->start = r->scanned = r->end = 0;
        }
        line_outcome got = fill_buffer(r, wait);
        if (got != LINE_READ) return got;
    }
}

int64_t lines_count(const line_reader *r)
{
    if (!r->is_regular) return -1;
    off_t start = lseek(r->fd, 0, SEEK_CUR), at = start;
    char block[4096];
    int64_t count = 0;
    bool in_line = false;
    for (ssize_t n; (n = pread(r->fd, block, sizeof block, at)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++) {
            bool blank = block[i] == ' ' || block[i] == '\t' || block[i] == '\r';
            if (block[i] == '\n') in_line = false;
            else if (!in_line && !blank) {
                in_line = true;
                count++;
            }
        }
    return start < 0 ? -1 : count;
}

/* The log: lines are built in a strbuf and written whole. */
#include "rpc/service.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long a line may wait for a reader that does not read. */
enum { PATIENCE_MS = 20 };

struct rpc_log {
    int fd;
    bool prompts;
    pthread_mutex_t lock; // one line at a time
    bool stuck;           // the last line was dropped: the next one does not wait
    bool torn;            // the last line was cut in the middle: end it before the next one
    uint64_t lost;        // lines dropped since the last one that was written
};

status rpc_log_create(int fd, bool prompts, rpc_log **out)
{
    rpc_log *log = calloc(1, sizeof *log);
    if (!log) return status_make(STATUS_NO_MEMORY, "log");
    log->fd = fd;
    log->prompts = prompts;
    pthread_mutex_init(&log->lock, NULL);
    *out = log;
    return STATUS_IS_OK;
}

void rpc_log_destroy(rpc_log *log)
{
    if (!log) return;
    pthread_mutex_destroy(&log->lock);
    free(log);
}

bool rpc_log_shows_prompts(const rpc_log *log) { return log && log->prompts; }

/* ---- writing --------------------------------------------------------------------------------- */

/* Waits until fd can be written. Other processes may share fd, so its mode stays as it is and a
 * write could block; a pipe that poll calls writable takes PIPE_BUF bytes without blocking. */
static bool can_write(const rpc_log *log, int64_t deadline_us)
{
    struct pollfd p = {.fd = log->fd, .events = POLLOUT};
    for (;;) {
        int64_t left_us = deadline_us - clock_now_us();
        int timeout_ms = log->stuck || left_us <= 0 ? 0 : (int)(left_us / 1000) + 1;
        int n = poll(&p, 1, timeout_ms);
        if (n < 0 && errno == EINTR) continue;
        return n > 0 && p.revents & POLLOUT;
    }
}

/* True when all n bytes were written. *begun: at least one byte was written. */
static bool write_all(rpc_log *log, const char *at, size_t n, bool *begun)
{
    int64_t deadline_us = clock_now_us() + PATIENCE_MS * 1000;
    while (n > 0) {
        if (!can_write(log, deadline_us)) return false;
        ssize_t put = write(log->fd, at, n < PIPE_BUF ? n : PIPE_BUF);
        if (put < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (put < 0 && clock_now_us() >= deadline_us) return false;
        if (put <= 0) continue;
        *begun = true;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

static bool write_line(rpc_log *log, const char *line, size_t n)
{
    bool begun = false, done = write_all(log, line, n, &begun);
    log->stuck = !done;
    if (begun) log->torn = !done;
    return done;
}

static void log_lost(rpc_log *log)
{
    strbuf line = {0};
    rpc_log_begin(&line, "warning", "log");
    strbuf_printf(&line, ",\"message\":\"%llu lines could not be written\"}\n",
                  (unsigned long long)log->lost);
    if (!line.failed && write_line(log, line.data, line.size)) log->lost = 0;
    strbuf_destroy(&line);
}

static void put_line(rpc_log *log, const strbuf *line)
{
    pthread_mutex_lock(&log->lock);
    if (log->torn) write_line(log, "\n", 1);
    if (log->lost && !log->torn) log_lost(log);
    if (line->failed || log->torn || !write_line(log, line->data, line->size)) log->lost++;
    pthread_mutex_unlock(&log->lock);
}

/* ---- lines ----------------------------------------------------------------------------------- */

void rpc_log_begin(strbuf *line, const char *level, const char *event)
{
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    strbuf_clear(line);
    strbuf_printf(line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"event\":\"%s\"", date,
                  now.tv_nsec / 1000000, level, event);
}

/* Appends JSON in which the controls U+0080 to U+009F are escaped: JSON allows them, but they steer
 * a terminal that shows the log. In UTF-8 they are 0xc2 and their own last byte. */
static void put_without_c1(strbuf *line, const strbuf *json)
{
    line->failed |= json->failed;
    for (size_t at = 0, end; at < json->size; at = end) {
        const uint8_t *bytes = (const uint8_t *)json->data;
        for (end = at; end < json->size; end++)
            if (bytes[end] == 0xc2 && bytes[end + 1] < 0xa0) break;
        strbuf_append(line, json->data + at, end - at);
        if (end == json->size) continue;
        strbuf_printf(line, "\\u%04x", bytes[end + 1]);
        end += 2;
    }
}

void rpc_log_text(strbuf *line, const char *key, const char *text, size_t n)
{
    strbuf_printf(line, ",\"%s\":", key);
    size_t cut = n < RPC_LOG_TEXT_MAX ? n : RPC_LOG_TEXT_MAX;
    if (cut < n) cut -= utf8_incomplete_tail((const uint8_t *)text, cut);
    strbuf json = {0};
    strbuf_json_string(&json, text, cut);
    put_without_c1(line, &json);
    strbuf_destroy(&json);
}

void rpc_log_number(strbuf *line, const char *key, uint64_t value)
{
    strbuf_printf(line, ",\"%s\":%llu", key, (unsigned long long)value);
}

void rpc_log_ms(strbuf *line, const char *key, double us)
{
    strbuf_printf(line, ",\"%s\":%.3f", key, us / 1000);
}

void rpc_log_end(rpc_log *log, strbuf *line)
{
    strbuf_puts(line, "}\n");
    if (log) put_line(log, line);
    strbuf_destroy(line);
}

void rpc_log_note(rpc_log *log, const char *level, const char *event, const char *message)
{
    if (!log) return;
    strbuf line = {0};
    rpc_log_begin(&line, level, event);
    rpc_log_text(&line, "message", message, strlen(message));
    rpc_log_end(log, &line);
}

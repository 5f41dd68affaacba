/* Messages go to the file one by one, so that chats side by side lose none of each other's. */
#include "cli/history.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file above this size is written anew at the start, with what the list has. */
enum { FILE_BYTES = 1 << 20 };

/* ---- where it lies --------------------------------------------------------------------------- */

/* Makes the folder and those above it. */
static bool make_folders(char *path)
{
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *at = '/';
        if (!made) return false;
    }
    return true;
}

status history_path(char *out, size_t size, error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;
    if (state && *state == '/') n = snprintf(out, size, "%s/octavo/chat_history", state);
    else if (home && *home == '/')
        n = snprintf(out, size, "%s/.local/state/octavo/chat_history", home);
    else return error_set(err, STATUS_IO, "HOME names no folder");
    if (n < 0 || (size_t)n >= size) return error_set(err, STATUS_LIMIT, "the path is too long");
    if (make_folders(out)) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: %s", out, strerror(errno));
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Replaces the file by one of what the list has. */
static bool write_anew(History *list, const char *path)
{
    char temporary[4096];
    HistEvent event;
    int n = snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    if (n < 0 || (size_t)n >= sizeof temporary) return false;
    int fd = mkostemp(temporary, O_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        if (fd >= 0) close(fd);
        return false;
    }
    bool written = history(list, &event, H_SAVE_FP, file) >= 0;
    if (fclose(file) == 0 && written && rename(temporary, path) == 0) return true;
    unlink(temporary);
    return false;
}

static FILE *open_file(const char *path, struct stat *st)
{
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return NULL;
    errno = EINVAL;
    bool fine = fstat(fd, st) == 0 && S_ISREG(st->st_mode) && fchmod(fd, 0600) == 0;
    FILE *file = fine ? fdopen(fd, "a") : NULL;
    if (!file) close(fd);
    return file;
}

status history_open(const char *path, chat_history *out, error *err)
{
    HistEvent event;
    struct stat st;
    *out = (chat_history){.list = history_init()};
    if (!out->list) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    history(out->list, &event, H_SETSIZE, HISTORY_ENTRIES);
    history(out->list, &event, H_SETUNIQUE, 1);
    if (!path) return STATUS_IS_OK;
    FILE *file = open_file(path, &st);
    if (!file) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    if (st.st_size > 0 && history(out->list, &event, H_LOAD, path) < 0) {
        fclose(file);
        return error_set(err, STATUS_INVALID, "%s: is no history of messages", path);
    }
    if (st.st_size > FILE_BYTES && write_anew(out->list, path)) {
        fclose(file);
        file = open_file(path, &st);
        if (!file) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    }
    out->file = file;
    return STATUS_IS_OK;
}

void history_close(chat_history *h)
{
    if (h->file) fclose(h->file);
    if (h->list) history_end(h->list);
    *h = (chat_history){0};
}

/* libedit writes whole lists, and the form's first line before the first of a file. */
static void append_message(FILE *file, const char *text)
{
    HistEvent event;
    History *one = history_init();
    if (!one) return;
    history(one, &event, H_SETSIZE, 1);
    fseek(file, 0, SEEK_END);
    if (history(one, &event, H_ENTER, text) >= 0) history(one, &event, H_SAVE_FP, file);
    fflush(file);
    history_end(one);
}

void history_add(chat_history *h, const char *text)
{
    HistEvent event;
    if (strlen(text) > HISTORY_ENTRY_BYTES) return;
    if (history(h->list, &event, H_FIRST) >= 0 && strcmp(event.str, text) == 0) return;
    if (history(h->list, &event, H_ENTER, text) >= 0 && h->file) append_message(h->file, text);
}

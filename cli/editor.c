/* libedit reads and shows one line; pastes, lines that go on, and Ctrl-C are here. */
#include "cli/editor.h"

#include "cli/history.h"
#include "cli/lines.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

enum { CTRL_C = 3 };

struct editor {
    EditLine *el;
    FILE *terminal; // written
    chat_history history;
    waiter *waiter;
    locale_t locale, former;
    const char *prompt;
    struct winsize size;
    bool marks_pastes;
    bool taken_back;  // by Ctrl-C: the line that is being read
    bool interrupted; // Ctrl-C was the last key, and nothing was typed
    bool signalled;
    uint8_t bytes[4096]; // [start, end) are read and not yet taken
    size_t start, end;
};

static editor *editor_of(EditLine *el)
{
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

static void print(editor *e, const char *text)
{
    fputs(text, e->terminal);
    fflush(e->terminal);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* True: stdin can be read. False: a signal came. */
static bool wait_for_key(editor *e)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!waiter_interrupted(e->waiter)) {
        if (poll(&p, 1, 0) > 0) return true;
        waiter_wait(e->waiter, STDIN_FILENO, -1);
    }
    return false;
}

/* Reads until a whole character or a wrong byte is there. Returns 1, 0 at the end, -1. */
static int read_bytes(editor *e)
{
    for (;;) {
        size_t n = e->end - e->start;
        if (n && utf8_incomplete_tail(e->bytes + e->start, n < 4 ? n : 4) < n) return 1;
        memmove(e->bytes, e->bytes + e->start, n);
        e->start = 0;
        e->end = n;
        if (!wait_for_key(e)) return 0;
        ssize_t got = read(STDIN_FILENO, e->bytes + n, sizeof e->bytes - n);
        if (got == 0) return 0;
        if (got < 0 && errno != EINTR && errno != EAGAIN) return -1;
        if (got > 0) e->end += (size_t)got;
    }
}

/* Lines are drawn for the width that the terminal has now. */
static void follow_size(editor *e)
{
    struct winsize now;
    if (ioctl(fileno(e->terminal), TIOCGWINSZ, &now) != 0) return;
    if (now.ws_col == e->size.ws_col && now.ws_row == e->size.ws_row) return;
    e->size = now;
    el_resize(e->el);
}

/* EL_GETCFN. SIGINT is the key Ctrl-C; bytes that are not UTF-8 are skipped. */
static int read_key(EditLine *el, wchar_t *out)
{
    editor *e = editor_of(el);
    uint32_t character;
    follow_size(e);
    do {
        int got = read_bytes(e);
        if (got == 0 && waiter_interrupted(e->waiter)) {
            e->signalled = !waiter_resume(e->waiter);
            *out = CTRL_C;
            return !e->signalled;
        }
        if (got <= 0) return got;
        e->start += utf8_decode(e->bytes + e->start, e->end - e->start, &character);
    } while (character == UINT32_MAX);
    *out = (wchar_t)character;
    return 1;
}

/* Asks the terminal to mark what is pasted, so that its line ends submit nothing. */
static void mark_pastes(editor *e, bool on)
{
    if (e->marks_pastes) print(e, on ? "\033[?2004h" : "\033[?2004l");
}

/* The functions of keys (EL_ADDFN). */

static unsigned char take_back(EditLine *el, int key)
{
    (void)key;
    const LineInfo *line = el_line(el);
    editor_of(el)->taken_back = true;
    if (line->lastchar == line->buffer) return CC_EOF;
    el_push(el, "\n"); /* which leaves the line as it is shown */
    return CC_NORM;
}

static unsigned char stop(EditLine *el, int key)
{
    (void)key;
    mark_pastes(editor_of(el), false);
    el_set(el, EL_PREP_TERM, 0);
    kill(0, SIGTSTP);
    el_set(el, EL_PREP_TERM, 1);
    mark_pastes(editor_of(el), true);
    return CC_REDISPLAY;
}

/* Takes a paste up to the mark behind it. The terminal's mode turns \n into \r, and \r into \n. */
static unsigned char paste(EditLine *el, int key)
{
    static const char mark[] = "\033[201~";
    enum { MARK = sizeof mark - 1 };
    strbuf text = {0};
    wchar_t c, before = 0;
    (void)key;
    for (; text.size < CLI_LINE_BYTES_MAX && read_key(el, &c) == 1 && c != CTRL_C; before = c) {
        uint8_t bytes[4];
        if (c == 0 || (before == '\n' && c == '\r')) continue;
        strbuf_append(&text, bytes, utf8_encode(c == '\r' ? '\n' : (uint32_t)c, bytes));
        if (text.size < MARK || memcmp(text.data + text.size - MARK, mark, MARK) != 0) continue;
        text.data[text.size -= MARK] = '\0';
        break;
    }
    bool put = !text.failed && (text.size == 0 || el_insertstr(el, text.data) == 0);
    strbuf_destroy(&text);
    return put ? CC_REFRESH : CC_ERROR;
}

/* ---- a terminal ------------------------------------------------------------------------------ */

static char *prompt_of(EditLine *el) { return (char *)editor_of(el)->prompt; }

static void bind_keys(EditLine *el)
{
    static const char *const keys[][2] = {
        {"^C", "octavo-take-back"},    {"^Z", "octavo-stop"},
        {"\033[200~", "octavo-paste"}, {"^R", "em-inc-search-prev"},
        {"^W", "ed-delete-prev-word"}, {"\033[1;5C", "em-next-word"},
        {"\033[1;5D", "ed-prev-word"}, {"\033[3~", "ed-delete-next-char"},
        {"\033[H", "ed-move-to-beg"},  {"\033[F", "ed-move-to-end"},
    };
    /* libedit never frees the copies that el_set makes of these texts. */
    el_wset(el, EL_ADDFN, L"octavo-take-back", L"take back what is typed", take_back);
    el_wset(el, EL_ADDFN, L"octavo-stop", L"stop the process", stop);
    el_wset(el, EL_ADDFN, L"octavo-paste", L"insert what is pasted", paste);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
    /* Keys while a line is typed, not signals: the terminal is put in order first. */
    el_set(el, EL_SETTY, "-d", "-isig", NULL);
}

static void open_history(editor *e)
{
    char path[4096];
    error err = {{0}};
    bool has_path = status_ok(history_path(path, sizeof path, &err));
    if (!status_ok(history_open(has_path ? path : NULL, &e->history, &err)) || !has_path)
        fprintf(stderr, "octavo run: messages are not kept for other chats: %s\n", err.text);
    if (e->history.list) el_set(e->el, EL_HIST, history, e->history.list);
}

status editor_create(waiter *w, editor **out, error *err)
{
    const char *terminal = getenv("TERM");
    editor *e = calloc(1, sizeof *e);
    int fd = dup(STDERR_FILENO);
    if (e) e->terminal = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!e || !e->terminal) {
        if (fd >= 0) close(fd);
        free(e);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    e->waiter = w;
    e->prompt = "";
    e->marks_pastes = terminal && *terminal && strcmp(terminal, "dumb") != 0;
    /* Messages are UTF-8 whatever the locale: this thread's alone is changed. */
    e->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (e->locale) e->former = uselocale(e->locale);
    e->el = el_init("octavo", stdin, e->terminal, e->terminal);
    if (!e->el) {
        editor_destroy(e);
        return error_set(err, STATUS_INTERNAL, "the terminal cannot be used");
    }
    ioctl(fd, TIOCGWINSZ, &e->size);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_GETCFN, read_key);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_EDITOR, "emacs");
    el_source(e->el, NULL); /* the user's ~/.editrc */
    bind_keys(e->el);
    open_history(e);
    *out = e;
    return STATUS_IS_OK;
}

void editor_destroy(editor *e)
{
    if (!e) return;
    if (e->el) el_end(e->el);
    history_close(&e->history);
    if (e->locale) {
        uselocale(e->former);
        freelocale(e->locale);
    }
    fclose(e->terminal);
    free(e);
}

/* ---- messages -------------------------------------------------------------------------------- */

void editor_note_interrupt(editor *e) { e->interrupted = true; }

static const char *read_line(editor *e, const char *prompt, int *n)
{
    e->prompt = prompt;
    e->taken_back = false;
    el_set(e->el, EL_PREP_TERM, 1); /* before the prompt is there: Ctrl-C is a key behind it */
    mark_pastes(e, true);
    const char *line = el_gets(e->el, n);
    mark_pastes(e, false);
    if (!line) print(e, "\n");
    return line;
}

/* Ctrl-C was pressed, with or without something typed. False: the chat ends. */
static bool drop_message(editor *e, bool typed)
{
    if (!typed && e->interrupted) return false;
    if (!typed) print(e, "Ctrl-C once more, or Ctrl-D, ends the chat.\n");
    e->interrupted = !typed;
    return true;
}

editor_outcome editor_read(editor *e, strbuf *message)
{
    strbuf_clear(message);
    for (bool more = true; more;) {
        int n = 0;
        const char *line = read_line(e, message->size ? ".. " : "> ", &n);
        if (e->signalled) return EDITOR_SIGNAL;
        if (e->taken_back) {
            if (!drop_message(e, line || message->size)) return EDITOR_END;
            strbuf_clear(message);
            continue;
        }
        e->interrupted = false;
        if (!line) return n < 0 ? EDITOR_FAILED : EDITOR_END;
        if (n && line[n - 1] == '\n') n--;
        more = n && line[n - 1] == '\\';
        strbuf_append(message, line, (size_t)(more ? n - 1 : n));
        if (more) strbuf_putc(message, '\n');
    }
    while (message->size && message->data[message->size - 1] == '\n')
        message->data[--message->size] = '\0';
    if (message->failed) return EDITOR_FAILED;
    if (e->history.list && message->size) history_add(&e->history, message->data);
    return EDITOR_READ;
}

/* A chat without its model: the commands of a terminal, and the history of what was typed. */
#include "cli/chat.h"
#include "cli/history.h"
#include "cli/run_output.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <histedit.h>

/* ---- commands -------------------------------------------------------------------------------- */

static void open_chat(chat *c, run_session *s)
{
    *s = (run_session){.flags = {.system = "be brief"}};
    *c = (chat){.s = s, .messages = run_messages_start(s)};
    assert_true(run_messages_add(c->messages, "user", "a \"b\"\n/", 7));
}

static void close_chat(chat *c)
{
    json_decref(c->messages);
    free(c->saved);
}

static void obeys(chat *c, const char *message, const char *answer)
{
    strbuf out = {0};
    error err = {{0}};
    assert_true(chat_is_command(message));
    status st = chat_run_command(c, message, &out, &err);
    if (!status_ok(st)) fail_msg("%s: %s", message, err.text);
    assert_string_equal(out.data, answer);
    strbuf_destroy(&out);
}

static void refuses(chat *c, const char *message, const char *why)
{
    strbuf out = {0};
    error err = {{0}};
    assert_true(chat_is_command(message));
    assert_false(status_ok(chat_run_command(c, message, &out, &err)));
    assert_string_equal(err.text, why);
    assert_int_equal(out.size, 0);
}

static void lines_are_commands_or_messages(void **state)
{
    (void)state;
    assert_true(chat_is_command("/reset"));
    assert_true(chat_is_command("/"));
    assert_false(chat_is_command(""));
    assert_false(chat_is_command(" /reset"));
    assert_false(chat_is_command("reset /"));
}

static void wrong_commands_are_refused(void **state)
{
    (void)state;
    chat c;
    run_session s;
    open_chat(&c, &s);
    refuses(&c, "/rest", "unknown command '/rest': did you mean /reset?");
    refuses(&c, "/retension x", "unknown command '/retension': did you mean /retention?");
    refuses(&c, "/RESET",
            "unknown command '/RESET': /help lists them; a message that begins with "
            "/ needs a blank before it");
    refuses(&c, "/",
            "unknown command '/': /help lists them; a message that begins with / needs a "
            "blank before it");
    refuses(&c, "/usr/bin/env is where?",
            "unknown command '/usr/bin/env': /help lists them; a message that begins with / needs "
            "a blank before it");
    refuses(&c, "/reset now", "/reset: takes no value");
    refuses(&c, "/save", "/save: needs FILE");
    refuses(&c, "/save  \t ", "/save: needs FILE");
    refuses(&c, "/save a\nb", "/save: a command is one line");
    refuses(&c, "/reset\nb", "/reset: a command is one line");
    refuses(
        &c, "/retention snapkv",
        "retention: 'snapkv' must be METHOD:RATIO with a ratio in (0, 1], full, or a JSON object");
    refuses(&c, "/retention {\"method\":", "retention: line 1, column 11: a value is expected");
    assert_int_equal(json_array_size(c.messages), 2);
    assert_null(s.flags.fields);
    obeys(&c, "/retention", "Retention is full.\n");
    close_chat(&c);
}

static void help_names_every_command(void **state)
{
    (void)state;
    strbuf help = {0};
    static const char *const rows[] = {"  /help  ", "  /reset  ", "  /save FILE  ",
                                       "  /retention [METHOD:RATIO] "};
    chat_help(&help);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_non_null(strstr(help.data, rows[i]));
    obeys(NULL, "/help", help.data);
    strbuf_destroy(&help);
}

static void reset_keeps_the_system_message(void **state)
{
    (void)state;
    chat c;
    run_session s;
    open_chat(&c, &s);
    obeys(&c, "/reset \t", "The conversation begins anew.\n");
    assert_int_equal(json_array_size(c.messages), 1);
    const json_t *role = json_object_get(json_array_get(c.messages, 0), "role");
    assert_string_equal(json_string_value(role), "system");
    close_chat(&c);
}

/* Reads the file, which has one JSON value. */
static json_t *read_json(const char *path)
{
    json_t *value;
    error err = {{0}};
    if (!status_ok(json_read_file(path, 4096, &value, &err))) fail_msg("%s", err.text);
    return value;
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

static void save_replaces_its_own_file_alone(void **state)
{
    (void)state;
    char folder[] = "cli_chat_test.XXXXXX", path[64], command[80], text[160];
    chat c;
    run_session s;
    open_chat(&c, &s);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a b", folder); /* a name may have a blank */
    snprintf(command, sizeof command, "/save  %s  ", path);
    snprintf(text, sizeof text, "2 messages are in %s.\n", path);
    obeys(&c, command, text);
    assert_int_equal(mode_of(path), 0600);
    json_t *saved = read_json(path), *expected = json_pack("{s:O}", "messages", c.messages);
    assert_true(json_equal(saved, expected));
    json_decref(saved);
    json_decref(expected);

    obeys(&c, "/reset", "The conversation begins anew.\n");
    snprintf(text, sizeof text, "1 messages are in %s.\n", path);
    obeys(&c, command, text);
    saved = read_json(path);
    assert_int_equal(json_array_size(json_object_get(saved, "messages")), 1);
    json_decref(saved);
    close_chat(&c);

    open_chat(&c, &s); /* another chat */
    snprintf(text, sizeof text, "%s: is there already, and not of this chat", path);
    refuses(&c, command, text);
    snprintf(command, sizeof command, "/save %s/no/such", folder);
    snprintf(text, sizeof text, "%s/no/such: No such file or directory", folder);
    refuses(&c, command, text);
    assert_null(c.saved);
    close_chat(&c);
    remove(path);
    rmdir(folder);
}

/* ---- the history ----------------------------------------------------------------------------- */

typedef struct place {
    char folder[PATH_MAX / 2], path[PATH_MAX];
} place;

static void make_place(place *p)
{
    error err = {{0}};
    char here[PATH_MAX / 4], folder[] = "cli_chat_test.XXXXXX";
    assert_non_null(getcwd(here, sizeof here));
    assert_non_null(mkdtemp(folder));
    snprintf(p->folder, sizeof p->folder, "%s/%s", here, folder);
    setenv("XDG_STATE_HOME", p->folder, 1);
    if (!status_ok(history_path(p->path, sizeof p->path, &err))) fail_msg("%s", err.text);
}

static void remove_place(const place *p)
{
    remove(p->path);
    char *slash = strrchr(p->path, '/');
    *slash = '\0';
    rmdir(p->path);
    assert_int_equal(rmdir(p->folder), 0);
}

static void opens(chat_history *h, const char *path)
{
    error err = {{0}};
    if (!status_ok(history_open(path, h, &err))) fail_msg("%s", err.text);
}

/* Compares with the newest messages, the newest first; NULL ends. */
static void has(const chat_history *h, ...)
{
    va_list texts;
    HistEvent event;
    int op = H_FIRST;
    va_start(texts, h);
    for (const char *text; (text = va_arg(texts, const char *)); op = H_NEXT) {
        assert_int_equal(history(h->list, &event, op), 0);
        assert_string_equal(event.str, text);
    }
    va_end(texts);
    assert_int_not_equal(history(h->list, &event, op), 0);
}

static void history_lies_in_the_state_folder(void **state)
{
    (void)state;
    place p;
    char path[PATH_MAX], expected[PATH_MAX];
    error err = {{0}};
    make_place(&p);
    snprintf(expected, sizeof expected, "%s/octavo/chat_history", p.folder);
    assert_string_equal(p.path, expected);
    *strrchr(expected, '/') = '\0';
    assert_int_equal(mode_of(expected), 0700);
    remove_place(&p);

    make_place(&p);
    setenv("HOME", p.folder, 1);
    setenv("XDG_STATE_HOME", "relative", 1); /* which counts for nothing */
    assert_true(status_ok(history_path(path, sizeof path, &err)));
    snprintf(expected, sizeof expected, "%s/.local/state/octavo/chat_history", p.folder);
    assert_string_equal(path, expected);
    for (int i = 0; i < 3; i++) {
        *strrchr(expected, '/') = '\0';
        assert_int_equal(rmdir(expected), 0);
    }
    assert_false(status_ok(history_path(path, 10, &err)));
    setenv("HOME", "/dev/null", 1);
    assert_false(status_ok(history_path(path, sizeof path, &err)));
    assert_non_null(strstr(err.text, "/dev/null/.local"));
    unsetenv("HOME");
    assert_false(status_ok(history_path(path, sizeof path, &err)));
    remove_place(&p);
}

static void messages_outlive_a_chat(void **state)
{
    (void)state;
    place p;
    chat_history h, beside;
    char long_text[HISTORY_ENTRY_BYTES + 2];
    memset(long_text, 'x', sizeof long_text);
    long_text[HISTORY_ENTRY_BYTES + 1] = '\0';
    make_place(&p);
    opens(&h, p.path);
    assert_int_equal(mode_of(p.path), 0600);
    history_add(&h, "one \\012 w\xc3\xb6rd");
    history_add(&h, "two\nlines");
    history_add(&h, "two\nlines");
    history_add(&h, long_text);
    opens(&beside, p.path);
    history_add(&beside, "beside");
    history_add(&h, "last");
    has(&h, "last", "two\nlines", "one \\012 w\xc3\xb6rd", NULL);
    has(&beside, "beside", "two\nlines", "one \\012 w\xc3\xb6rd", NULL);
    history_close(&h);
    history_close(&beside);
    assert_int_equal(chmod(p.path, 0644), 0);
    opens(&h, p.path);
    assert_int_equal(mode_of(p.path), 0600);
    has(&h, "last", "beside", "two\nlines", "one \\012 w\xc3\xb6rd", NULL);
    history_close(&h);
    remove_place(&p);
}

static void a_large_file_is_cut(void **state)
{
    (void)state;
    place p;
    chat_history h;
    struct stat st;
    char text[1200];
    make_place(&p);
    opens(&h, p.path);
    FILE *file = h.file;
    for (int i = 0; i < HISTORY_ENTRIES + 100; i++) {
        char number[16];
        memset(text, 'x', sizeof text);
        snprintf(number, sizeof number, "%07d", i);
        memcpy(text + sizeof text - 8, number, 8);
        history_add(&h, text);
    }
    assert_ptr_equal(h.file, file);
    history_close(&h);
    opens(&h, p.path);
    assert_int_equal(stat(p.path, &st), 0);
    assert_in_range(st.st_size, HISTORY_ENTRIES * 1199, HISTORY_ENTRIES * 1201 + 64);
    assert_int_equal(mode_of(p.path), 0600);
    history_add(&h, "newest");
    history_close(&h);
    opens(&h, p.path);
    HistEvent event;
    assert_int_equal(history(h.list, &event, H_FIRST), 0);
    assert_string_equal(event.str, "newest");
    assert_int_equal(history(h.list, &event, H_LAST), 0);
    assert_string_equal(event.str + sizeof text - 8, "0000101");
    history_close(&h);
    remove_place(&p);
}

static void other_files_are_left_alone(void **state)
{
    (void)state;
    place p;
    chat_history h;
    error err = {{0}};
    char expected[PATH_MAX + 64];
    make_place(&p);
    FILE *file = fopen(p.path, "w");
    fputs("precious\n", file);
    fclose(file);
    assert_false(status_ok(history_open(p.path, &h, &err)));
    snprintf(expected, sizeof expected, "%s: is no history of messages", p.path);
    assert_string_equal(err.text, expected);
    history_add(&h, "kept in memory");
    has(&h, "kept in memory", NULL);
    history_close(&h);
    struct stat st;
    assert_int_equal(stat(p.path, &st), 0);
    assert_int_equal(st.st_size, 9);

    remove(p.path);
    assert_int_equal(mkfifo(p.path, 0600), 0); /* which nobody writes */
    assert_false(status_ok(history_open(p.path, &h, &err)));
    history_close(&h);
    opens(&h, NULL);
    history_add(&h, "no file");
    has(&h, "no file", NULL);
    history_close(&h);
    remove_place(&p);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answers_do_not_steer_the_terminal(void **state)
{
    (void)state;
    static const char text[] = "a\tb\n\x1b]0;x\x07\r\b\0\x1f\x7f\xc2\x80\xc2\x9f"
                               "31m\xc2\xa0\xe2\x80\x93\xff\xf0\x9f\x99\x82";
    strbuf out = {0};
    run_terminal_text(&out, text, sizeof text - 1);
    assert_string_equal(out.data, "a\tb\n?]0;x????????31m\xc2\xa0\xe2\x80\x93?\xf0\x9f\x99\x82");
    run_terminal_text(&out, text, 0);
    assert_int_equal(out.size, strlen(out.data));
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_steer_the_terminal),
        cmocka_unit_test(lines_are_commands_or_messages),
        cmocka_unit_test(wrong_commands_are_refused),
        cmocka_unit_test(help_names_every_command),
        cmocka_unit_test(reset_keeps_the_system_message),
        cmocka_unit_test(save_replaces_its_own_file_alone),
        cmocka_unit_test(history_lies_in_the_state_folder),
        cmocka_unit_test(messages_outlive_a_chat),
        cmocka_unit_test(a_large_file_is_cut),
        cmocka_unit_test(other_files_are_left_alone),
    };
    return cmocka_run_group_tests_name("cli_chat", tests, NULL, NULL);
}

/* The log: whole lines from any thread, and no waiting for a reader that does not read. */
#include "tests/unit/rpc_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum { WRITERS = 6, LINES = 200 };

typedef struct log_pipe {
    int from, to;
    rpc_log *log;
} log_pipe;

static log_pipe open_pipe(void)
{
    int ends[2];
    log_pipe p;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    p = (log_pipe){.from = ends[0], .to = ends[1]};
    assert_true(status_ok(rpc_log_create(p.to, false, &p.log)));
    return p;
}

static void close_pipe(log_pipe *p)
{
    rpc_log_destroy(p->log);
    close(p->from);
    close(p->to);
}

static json_t *parse(const char *line, size_t n)
{
    json_error_t why;
    json_t *tree = json_loadb(line, n, JSON_REJECT_DUPLICATES, &why);
    if (!tree) fail_msg("%.*s: %s", (int)n, line, why.text);
    return tree;
}

static const char *text(const json_t *line, const char *key)
{
    const char *t = json_string_value(json_object_get(line, key));
    return t ? t : "";
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_note_is_one_line(void **state)
{
    (void)state;
    log_pipe p = open_pipe();
    char line[1024];
    rpc_log_note(p.log, "warning", "backend",
                 "a \"quoted\"\nline \x1b[31m\xc2\x80\xc2\x9f\xc2\xa0\xc2\x9b");
    ssize_t n = read(p.from, line, sizeof line);
    assert_true(n > 0 && line[n - 1] == '\n');
    assert_null(memchr(line, '\n', (size_t)n - 1));
    assert_null(memchr(line, '\x1b', (size_t)n));
    assert_non_null(memmem(line, (size_t)n, "\\u0080\\u009f\xc2\xa0\\u009b\"", 21));
    json_t *tree = parse(line, (size_t)n);
    assert_string_equal(text(tree, "level"), "warning");
    assert_string_equal(text(tree, "event"), "backend");
    assert_string_equal(text(tree, "message"),
                        "a \"quoted\"\nline \x1b[31m\xc2\x80\xc2\x9f\xc2\xa0\xc2\x9b");
    /* 2026-11-21T10:07:38.123Z */
    const char *time = text(tree, "time"), *shape = "dddd-dd-ddTdd:dd:dd.dddZ";
    assert_int_equal(strlen(time), strlen(shape));
    for (size_t i = 0; shape[i]; i++)
        assert_true(shape[i] == 'd' ? time[i] >= '0' && time[i] <= '9' : time[i] == shape[i]);
    json_decref(tree);
    close_pipe(&p);
    rpc_log_note(NULL, "info", "x", "swallowed");
}

static void long_texts_are_cut_between_characters(void **state)
{
    (void)state;
    static char euros[3 * RPC_LOG_TEXT_MAX];
    for (size_t i = 0; i < sizeof euros; i++) euros[i] = "\xe2\x82\xac"[i % 3];
    strbuf line = {0};
    rpc_log_begin(&line, "info", "x");
    rpc_log_text(&line, "t", euros, sizeof euros);
    strbuf_putc(&line, '}');
    json_t *tree = parse(line.data, line.size);
    const char *cut = text(tree, "t");
    assert_int_equal(strlen(cut), RPC_LOG_TEXT_MAX / 3 * 3);
    assert_null(strstr(cut, "\xef\xbf\xbd"));
    json_decref(tree);
    strbuf_destroy(&line);
}

static void *write_lines(void *ctx)
{
    char message[600];
    memset(message, 'm', sizeof message);
    for (int i = 0; i < LINES; i++) {
        message[sizeof message - 1 - (size_t)i] = '\0'; /* of all lengths */
        rpc_log_note(ctx, "info", "line", message);
    }
    return NULL;
}

static void lines_of_many_writers_stay_whole(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, f->log), 0);
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    json_t *lines = rpc_fixture_log(f); /* parses each line */
    assert_int_equal(json_array_size(lines), WRITERS * LINES);
    json_decref(lines);
    rpc_fixture_destroy(f);
}

/* Reads the available lines, checks that each is whole and counts those of `event`. */
static size_t read_lines(const log_pipe *p, const char *event, int64_t *lost)
{
    static char bytes[1 << 20];
    size_t n = 0, count = 0;
    assert_int_equal(fcntl(p->from, F_SETFL, O_NONBLOCK), 0);
    for (ssize_t got; (got = read(p->from, bytes + n, sizeof bytes - n)) > 0;) n += (size_t)got;
    for (size_t from = 0; from < n;) {
        const char *end = memchr(bytes + from, '\n', n - from);
        assert_non_null(end);
        size_t size = (size_t)(end - bytes) - from;
        json_t *tree = parse(bytes + from, size);
        count += strcmp(text(tree, "event"), event) == 0;
        if (strcmp(text(tree, "event"), "log") == 0)
            assert_int_equal(sscanf(text(tree, "message"), "%ld", lost), 1);
        json_decref(tree);
        from += size + 1;
    }
    return count;
}

/* A pipe holds 64 KiB. If a writer blocked, this test would not end. */
static void a_reader_that_does_not_read_costs_lines(void **state)
{
    (void)state;
    enum { MANY = 400 };
    log_pipe p = open_pipe();
    char message[500];
    memset(message, 'm', sizeof message - 1);
    message[sizeof message - 1] = '\0';
    for (int i = 0; i < MANY; i++) rpc_log_note(p.log, "info", "line", message);
    int64_t lost = 0;
    size_t got = read_lines(&p, "line", &lost);
    assert_true(got > 0 && got < MANY);
    assert_int_equal(lost, 0);
    rpc_log_note(p.log, "info", "line", "room again");
    assert_int_equal(read_lines(&p, "line", &lost), 1);
    assert_int_equal(lost, MANY - got);
    rpc_log_note(p.log, "info", "line", "and again");
    lost = 0;
    assert_int_equal(read_lines(&p, "line", &lost), 1);
    assert_int_equal(lost, 0);
    close_pipe(&p);
}

/* A line longer than the pipe is cut in the middle, and ended before the next line. */
static void a_torn_line_damages_no_other(void **state)
{
    (void)state;
    static char long_text[RPC_LOG_TEXT_MAX];
    static char bytes[1 << 20];
    log_pipe p = open_pipe();
    memset(long_text, 'm', sizeof long_text);
    strbuf line = {0};
    rpc_log_begin(&line, "info", "long");
    for (int i = 0; i < 8; i++) rpc_log_text(&line, "t", long_text, sizeof long_text);
    rpc_log_end(p.log, &line);
    ssize_t torn = read(p.from, bytes, sizeof bytes);
    assert_true(torn > 0 && bytes[torn - 1] != '\n');
    rpc_log_note(p.log, "info", "line", "after");
    char newline;
    assert_int_equal(read(p.from, &newline, 1), 1);
    assert_int_equal(newline, '\n');
    int64_t lost = 0;
    assert_int_equal(read_lines(&p, "line", &lost), 1);
    assert_int_equal(lost, 1);
    close_pipe(&p);
}

static void a_closed_pipe_is_survived(void **state)
{
    (void)state;
    log_pipe p = open_pipe();
    close(p.from);
    for (int i = 0; i < 3; i++) rpc_log_note(p.log, "info", "line", "nobody");
    p.from = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close_pipe(&p);
}

/* ---- lines of refusals ----------------------------------------------------------------------- */

static void refuse(rpc_fixture *f, const char *authorization, const char *route, int n)
{
    service_answer a = {.surface = "http", .route = route, .code = "400", .is_refusal = true};
    service_key_ok(&f->service, authorization, &a.key);
    for (int i = 0; i < n; i++) service_count_answer(&f->service, &a);
}

/* Counts the log's lines of refusals of this route; *hidden: how many the log says it left out. */
static int count_refusals(rpc_fixture *f, const char *route, json_int_t *hidden)
{
    int n = 0;
    size_t i;
    json_t *line, *lines = rpc_fixture_log(f);
    *hidden = 0;
    json_array_foreach(lines, i, line)
    {
        n += strcmp(text(line, "event"), "refusal") == 0 && strcmp(text(line, "route"), route) == 0;
        *hidden += json_integer_value(json_object_get(line, "not_shown"));
    }
    json_decref(lines);
    return n;
}

static void a_key_takes_no_lines_of_another(void **state)
{
    (void)state;
    const char *keys[] = {"first-key", "second"}, *admins[] = {"root"};
    rpc_fixture *f = rpc_fixture_create(
        &(rpc_fixture_options){.keys = keys, .n_keys = 2, .admin_keys = admins, .n_admin_keys = 1});
    json_int_t hidden;
    refuse(f, "Bearer first-key", "/noisy", 100);
    refuse(f, "bearer   first-key", "/spelled", 1); // it is the same key
    refuse(f, "Bearer wrong", "/wrong", 100);
    refuse(f, NULL, "/none", 1); // all that have no valid key are one sender
    refuse(f, "Bearer second", "/second", 3);
    refuse(f, "Bearer root", "/root", 11);
    assert_int_equal(count_refusals(f, "/noisy", &hidden), 10);
    assert_int_equal(count_refusals(f, "/spelled", &hidden), 0);
    assert_int_equal(count_refusals(f, "/wrong", &hidden), 10);
    assert_int_equal(count_refusals(f, "/none", &hidden), 0);
    assert_int_equal(count_refusals(f, "/second", &hidden), 3);
    assert_int_equal(count_refusals(f, "/root", &hidden), 10);
    answers_tick(&f->service); // a second has passed
    refuse(f, "Bearer first-key", "/noisy", 11);
    assert_int_equal(count_refusals(f, "/noisy", &hidden), 20);
    assert_int_equal(hidden, 90 + 1 + 90 + 1 + 1);
    rpc_fixture_destroy(f);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_note_is_one_line),
        cmocka_unit_test(long_texts_are_cut_between_characters),
        cmocka_unit_test(lines_of_many_writers_stay_whole),
        cmocka_unit_test(a_reader_that_does_not_read_costs_lines),
        cmocka_unit_test(a_torn_line_damages_no_other),
        cmocka_unit_test(a_closed_pipe_is_survived),
        cmocka_unit_test(a_key_takes_no_lines_of_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

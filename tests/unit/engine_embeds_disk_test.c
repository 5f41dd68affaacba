/* Embeddings of sessions on disk: those that leave memory, and those of an engine that has ended,
 * come back with the session's next question, for its own key alone and only if they are whole. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 200, FOLDER_BYTES = 96 };
enum { OF_TOKEN = 2 * EMBED_DIM * 2 + 4 }; /* bytes that a token of a text takes */

typedef struct kept {
    fixture f; /* the first member, since the fixture's teardown is used */
    char dir[64], folder[FOLDER_BYTES];
    disk_records *records;
} kept;

static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 1}};

static void start(kept *k)
{
    error err = {{0}};
    const disk_records_options o = {
        .dir = k->dir, .folder = "embeddings", .most = 8, .bytes = 1 << 20};
    if (!status_ok(disk_records_open(&o, &k->records, &err))) fail_msg("%s", err.text);
    k->f.options.embeddings = k->records;
    fixture_start(&k->f);
}

static int setup(void **state)
{
    fixture *plain = fixture_create();
    kept *k = calloc(1, sizeof *k);
    k->f = *plain;
    free(plain);
    fixture *f = &k->f;
    snprintf(k->dir, sizeof k->dir, "%s/octavo-embeds-XXXXXX", P_tmpdir);
    if (!mkdtemp(k->dir)) return -1;
    snprintf(k->folder, sizeof k->folder, "%s/embeddings", k->dir);
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    f->options.backend = &f->backend;
    f->options.stop_ids = &f->eos;
    f->options.alloc = &f->alloc;
    f->options.embed_heads = heads;
    f->options.n_embed_heads = 2;
    f->options.embed_memory = 1 << 20;
    f->options.max_sessions = 8;
    answer(f, "sure");
    start(k);
    *state = k;
    return 0;
}

/* As a server ends: with time to write, or at once. */
static void stop(kept *k, bool saves)
{
    if (saves) engine_save_at_end(k->f.engine, clock_now_us() + 20000000);
    engine_destroy(k->f.engine);
    k->f.engine = NULL;
    k->f.model.n_plans = 0;
    disk_records_close(k->records);
    k->records = NULL;
}

static void restart(kept *k)
{
    stop(k, true);
    start(k);
}

/* Calls `each` for the files that there are; returns how many. */
static uint32_t for_files(const kept *k, void (*each)(int dir, const char *name))
{
    uint32_t n = 0;
    DIR *dir = opendir(k->folder);
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (each) each(dirfd(dir), e->d_name);
    }
    if (dir) closedir(dir);
    return n;
}

static void remove_file(int dir, const char *name) { unlinkat(dir, name, 0); }

static int teardown(void **state)
{
    kept *k = *state;
    char dir[sizeof k->dir];
    stop(k, false);
    for_files(k, remove_file);
    rmdir(k->folder);
    memcpy(dir, k->dir, sizeof dir);
    fixture_teardown(state);
    return rmdir(dir);
}

/* What the report says of a request about a text of TOKENS tokens that ends with this question. */
static retention_report ask(kept *k, const char *identity, const char *session, uint32_t question,
                            uint32_t sinks)
{
    char json[512];
    snprintf(json, sizeof json,
             "{\"max_tokens\":8,\"session\":\"%s\",\"retention\":{\"method\":\"reform\","
             "\"tokens\":48,\"recurrent_chunk\":32,\"rows\":4,\"scope\":\"layer\",\"sinks\":%u,"
             "\"window\":4,\"gather_tokens\":24,\"gather_window\":3,\"query_tokens\":1}}",
             session, sinks);
    engine_request r = request(json);
    r.n_prompt_token_ids = TOKENS;
    r.prompt_token_ids = malloc(TOKENS * sizeof *r.prompt_token_ids);
    for (uint32_t i = 0; i < TOKENS; i++) r.prompt_token_ids[i] = 8 * (i % 60 + 1);
    r.prompt_token_ids[TOKENS - 1] = question;
    r.identity = strdup(identity);
    engine_stream *stream;
    engine_output out;
    error err = {{0}};
    retention_report report = {0};
    if (!status_ok(engine_submit(k->f.engine, &r, NULL, NULL, &stream, &err)))
        fail_msg("%s", err.text);
    while (engine_stream_wait(stream, &out)) {
        if (out.finish == ENGINE_FINISH_NONE) continue;
        if (out.error_text) fail_msg("%s", out.error_text);
        report = *out.report;
    }
    engine_stream_release(stream);
    engine_request_destroy(&r);
    return report;
}

static void expect(kept *k, const char *identity, const char *session, uint32_t question,
                   uint32_t n_reused)
{
    retention_report r = ask(k, identity, session, question, 4);
    assert_int_equal(r.gathering.reused, n_reused);
    assert_int_equal(r.gathering.read, TOKENS - n_reused);
    assert_string_equal(r.session, n_reused ? "continued" : "stored");
}

static void settle(const kept *k)
{
    while (disk_record_count(k->records).waiting > 0) usleep(100);
}

/* ---- coming back ----------------------------------------------------------------------------- */

/* The values too are those that were read: an engine with them in memory has the same. */
static void the_next_question_after_a_restart_reads_only_itself(void **state)
{
    kept *k = *state;
    expect(k, "me", "s", 565, 0);
    assert_int_equal(for_files(k, NULL), 0); /* it is asked again soon, perhaps */
    restart(k);
    assert_int_equal(for_files(k, NULL), 1);
    assert_int_equal(disk_record_count(k->records).records, 1);
    expect(k, "me", "s", 565, TOKENS);
    expect(k, "me", "s", 566, TOKENS - 1);
    assert_int_equal(disk_record_count(k->records).read, 1); /* then it was in memory */
    reform_store *s = &k->f.engine->embeddings;
    pthread_mutex_lock(&s->lock);
    const reform_text *text = &s->newest->text;
    assert_int_equal(text->n, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint16_t row[2 * EMBED_DIM];
        scripted_embed(text->tokens[i], row);
        assert_memory_equal(text->values + i * sizeof row / sizeof *row, row, sizeof row);
    }
    pthread_mutex_unlock(&s->lock);
}

static void what_is_pushed_out_of_memory_comes_back(void **state)
{
    kept *k = *state;
    stop(k, false);
    k->f.options.embed_memory = TOKENS * OF_TOKEN;
    start(k);
    expect(k, "me", "s", 565, 0);
    expect(k, "me", "t", 565, 0);
    assert_int_equal(k->f.engine->embeddings.n_sessions, 1);
    expect(k, "me", "s", 566, TOKENS - 1);
    expect(k, "me", "t", 565, TOKENS);
    assert_int_equal(disk_record_count(k->records).read, 2);
    assert_int_equal(disk_record_count(k->records).errors, 0);
}

/* A copy is on disk and the text in memory: it goes from there without being written again. */
static void what_is_idle_is_written(void **state)
{
    kept *k = *state;
    reform_store *s = &k->f.engine->embeddings;
    expect(k, "me", "s", 565, 0);
    int64_t now = clock_now_us();
    assert_true(reform_store_tend(s, now));
    assert_int_equal(disk_record_count(k->records).records, 0);
    assert_false(reform_store_tend(s, now + REFORM_IDLE_US));
    settle(k);
    assert_int_equal(for_files(k, NULL), 1);
    assert_false(reform_store_tend(s, now + 2 * REFORM_IDLE_US));
    settle(k);
    assert_int_equal(disk_record_count(k->records).written, 1);
    stop(k, false); /* as by a kill */
    start(k);
    expect(k, "me", "s", 566, TOKENS - 1);
}

/* ---- not coming back ------------------------------------------------------------------------- */

static void it_is_of_its_key_and_of_its_fields(void **state)
{
    kept *k = *state;
    expect(k, "me", "s", 565, 0);
    restart(k);
    expect(k, "you", "s", 565, 0);
    expect(k, "me", "t", 565, 0);
    assert_int_equal(disk_record_count(k->records).read, 0);
    assert_int_equal(ask(k, "me", "s", 565, 5).gathering.reused, 0);
    assert_int_equal(disk_record_count(k->records).damaged, 0);
}

static void forget(kept *k, const char *identity, const char *session)
{
    engine_request r = {.identity = (char *)(uintptr_t)identity,
                        .session = (char *)(uintptr_t)session};
    assert_true(status_ok(engine_forget_session(k->f.engine, &r)));
    settle(k);
}

static void a_deletion_reaches_the_disk(void **state)
{
    kept *k = *state;
    expect(k, "me", "s", 565, 0);
    restart(k);
    forget(k, "you", "s");
    assert_int_equal(for_files(k, NULL), 1);
    forget(k, "me", "s");
    assert_int_equal(for_files(k, NULL), 0);
    expect(k, "me", "s", 565, 0);
    forget(k, "me", "s"); /* in memory alone */
    restart(k);
    assert_int_equal(for_files(k, NULL), 0);
}

static void flip_a_bit(int dir, const char *name)
{
    uint8_t byte;
    int fd = openat(dir, name, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, 80 + 16 + TOKENS * 4 + 1001), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 80 + 16 + TOKENS * 4 + 1001), 1);
    close(fd);
}

static void tear(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
    close(fd);
}

static void what_is_damaged_is_read_anew(void **state)
{
    kept *k = *state;
    void (*const damage[])(int, const char *) = {flip_a_bit, tear};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        expect(k, "me", "s", 565, 0);
        stop(k, true);
        assert_int_equal(for_files(k, damage[i]), 1);
        start(k);
        expect(k, "me", "s", 565, 0);
        assert_int_equal(disk_record_count(k->records).damaged, 1);
        forget(k, "me", "s");
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(the_next_question_after_a_restart_reads_only_itself),
        CASE(what_is_pushed_out_of_memory_comes_back),
        CASE(what_is_idle_is_written),
        CASE(it_is_of_its_key_and_of_its_fields),
        CASE(a_deletion_reaches_the_disk),
        CASE(what_is_damaged_is_read_anew),
    };
    return cmocka_run_group_tests_name("embeddings on disk", tests, NULL, NULL);
}

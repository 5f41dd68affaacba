/* The engine's prefix cache on disk: blocks that leave memory come back, and none is loaded into a
 * backend that is gone. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { PROMPT = 40, PROMPT_BLOCKS = 2, POOL_BLOCKS = 12, BLOCK_BYTES = 256 };

typedef struct stored {
    fixture f; /* the first member, since the fixture's teardown is used */
    char dir[64];
    disk_cache *disk;
    bool restarts; /* the backend can be made again, from files that have changed */
} stored;

static status restart(void *ctx, backend *out, error *err)
{
    stored *s = ctx;
    if (s->restarts) {
        s->f.model.info.block_identity++;
        s->f.model.n_plans = 0; /* plans in flight went with the old backend */
        *out = s->f.backend;
        return STATUS_IS_OK;
    }
    atomic_store(&s->f.model.gone, true);
    return error_set(err, STATUS_IO, "no weights any more");
}

static int setup_bare(void **state)
{
    fixture *plain = fixture_create();
    stored *s = calloc(1, sizeof *s);
    s->f = *plain;
    free(plain);
    fixture *f = &s->f;
    error err = {{0}};
    snprintf(s->dir, sizeof s->dir, "%s/octavo-engine-disk-XXXXXX", P_tmpdir);
    if (!mkdtemp(s->dir)) return -1;
    const disk_options d = {.dir = s->dir, .bytes = 1 << 20, .block_bytes = BLOCK_BYTES};
    if (!status_ok(disk_open(&d, &s->disk, &err))) fail_msg("%s", err.text);
    f->model.info.block_bytes = BLOCK_BYTES;
    f->model.info.n_pages = 1 + POOL_BLOCKS * pkv_groups(&f->model.info.geometry);
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    f->options.backend = &f->backend;
    f->options.stop_ids = &f->eos;
    f->options.alloc = &f->alloc;
    f->options.restart = restart;
    f->options.restart_ctx = s;
    *state = s;
    answer(f, "some words");
    return 0;
}

static int setup(void **state)
{
    if (setup_bare(state)) return -1;
    stored *s = *state;
    s->f.options.disk = s->disk;
    fixture_start(&s->f);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"lock", "index", "blocks"};
    stored *s = *state;
    char dir[sizeof s->dir];
    memcpy(dir, s->dir, sizeof dir);
    engine_destroy(s->f.engine);
    s->f.engine = NULL;
    disk_close(s->disk);
    fixture_teardown(state);
    int at = open(dir, O_RDONLY | O_DIRECTORY);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlinkat(at, names[i], 0);
    close(at);
    return rmdir(dir);
}

/* A request for n tokens from `first` on. */
static const char *ask(uint32_t first, uint32_t n, const char *more)
{
    static char list[8192], json[10240];
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, i ? ",%u" : "%u", first + i);
    snprintf(json, sizeof json, "{\"prompt_token_ids\": [%s], \"max_tokens\": 4%s}", list, more);
    return json;
}

/* Asks for PROMPT tokens from 100 on, and has others take their pages. */
static void store_prompt(stored *s)
{
    read_all(submit(&s->f, ask(100, PROMPT, "")));
    read_all(submit(&s->f, ask(400, (POOL_BLOCKS - 1) * 16, "")));
    while (disk_count(s->disk).waiting > 0) nap();
    assert_true(disk_count(s->disk).blocks >= PROMPT_BLOCKS);
}

static void blocks_come_back(void **state)
{
    stored *s = *state;
    store_prompt(s);
    reading r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_string_equal(r.text, "some words");
    assert_int_equal(r.usage.cached_tokens, PROMPT_BLOCKS * 16);
    assert_int_equal(atomic_load(&s->f.model.writes), PROMPT_BLOCKS);
}

/* The prompt's blocks leave in the step that takes their pages. */
static void blocks_that_leave_together_are_read_at_once(void **state)
{
    stored *s = *state;
    read_all(submit(&s->f, ask(100, PROMPT, "")));
    read_all(submit(&s->f, ask(400, POOL_BLOCKS * 16 - 5, "")));
    while (disk_count(s->disk).waiting > 0) nap();
    assert_int_equal(disk_count(s->disk).blocks, PROMPT_BLOCKS);
    assert_int_equal(atomic_load(&s->f.model.reads), 1);
}

/* The step before which pages are moved fails, so that a load which waits for the end of that step
 * finds no backend. */
static void no_load_begins_without_a_backend(void **state)
{
    stored *s = *state;
    fixture *f = &s->f;
    store_prompt(s);
    atomic_store(&f->model.hold, true);
    engine_stream *moved =
        submit(f, ask(700, 64, ", \"retention\": {\"method\": \"streaming\", \"ratio\": 0.5}"));
    while (!atomic_load(&f->model.collecting)) nap();
    engine_stream *loaded = submit(f, ask(100, PROMPT, ""));
    for (bool waits = false; !waits; nap()) { /* until the request has been prepared */
        pthread_mutex_lock(&f->engine->inbox.lock);
        waits = f->engine->inbox.added.first != NULL;
        pthread_mutex_unlock(&f->engine->inbox.lock);
    }
    f->model.failure = status_make(STATUS_INTERNAL, "it broke");
    atomic_store(&f->model.fail_at, atomic_load(&f->model.steps) + 2);
    atomic_store(&f->model.hold, false);
    assert_int_equal(read_all(moved).finish, ENGINE_FINISH_ERROR);
    assert_int_equal(read_all(loaded).finish, ENGINE_FINISH_ERROR);
    while (engine_get_stats(f->engine).state != ENGINE_BROKEN) nap();
    for (int i = 0; i < 100; i++) nap(); /* a load that had begun would write */
    assert_int_equal(atomic_load(&f->model.writes), 0);
    assert_int_equal(atomic_load(&f->model.late_writes), 0);
}

/* Memory was damaged when the prompt was computed, and its blocks lie on disk. The request that
 * goes on from them fails, and the one after it computes the prompt. */
static void blocks_of_a_failed_request_are_forgotten(void **state)
{
    stored *s = *state;
    store_prompt(s);
    uint64_t before = disk_count(s->disk).blocks;
    atomic_store(&s->f.model.faults, 1);
    assert_int_equal(read_all(submit(&s->f, ask(100, PROMPT, ""))).finish, ENGINE_FINISH_ERROR);
    assert_int_equal(atomic_load(&s->f.model.writes), PROMPT_BLOCKS);
    reading r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_string_equal(r.text, "some words");
    assert_int_equal(r.usage.cached_tokens, 0);
    assert_int_equal(atomic_load(&s->f.model.writes), PROMPT_BLOCKS);
    while (disk_count(s->disk).waiting > 0) nap();
    assert_true(disk_count(s->disk).blocks >= before - PROMPT_BLOCKS);
    store_prompt(s); /* it is kept again */
    r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_int_equal(r.usage.cached_tokens, PROMPT_BLOCKS * 16);
}

/* A rank that has a part of the pages is gone while blocks leave memory. */
static void blocks_that_cannot_be_read_are_not_stored(void **state)
{
    stored *s = *state;
    atomic_store(&s->f.model.unreadable, true);
    read_all(submit(&s->f, ask(100, PROMPT, "")));
    read_all(submit(&s->f, ask(400, (POOL_BLOCKS - 1) * 16, "")));
    assert_int_equal(disk_count(s->disk).waiting, 0);
    engine_save_at_end(s->f.engine, clock_now_us() + 60000000);
    engine_destroy(s->f.engine);
    assert_int_equal(disk_count(s->disk).waiting, 0);
    assert_int_equal(disk_count(s->disk).blocks, 0);
    atomic_store(&s->f.model.unreadable, false);
    fixture_start(&s->f);
    store_prompt(s);
}

/* A rank is gone while blocks are loaded: they are computed, and stay on disk. */
static void blocks_that_cannot_be_loaded_are_computed(void **state)
{
    stored *s = *state;
    store_prompt(s);
    atomic_store(&s->f.model.unwritable, true);
    reading r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_string_equal(r.text, "some words");
    assert_int_equal(r.usage.cached_tokens, 0);
    assert_true(atomic_load(&s->f.model.writes) > 0);
    assert_int_equal(disk_count(s->disk).damaged, 0);
    atomic_store(&s->f.model.unwritable, false);
    read_all(submit(&s->f, ask(400, (POOL_BLOCKS - 1) * 16, "")));
    r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_int_equal(r.usage.cached_tokens, PROMPT_BLOCKS * 16);
}

/* What only memory has is written when the engine ends, if there is time. */
static void the_end_writes_what_memory_has(void **state)
{
    stored *s = *state;
    for (int has_time = 0; has_time < 2; has_time++) {
        read_all(submit(&s->f, ask(100, PROMPT, "")));
        assert_int_equal(disk_count(s->disk).blocks, 0);
        if (has_time) engine_save_at_end(s->f.engine, clock_now_us() + 60000000);
        engine_destroy(s->f.engine);
        s->f.engine = NULL;
        while (disk_count(s->disk).waiting > 0) nap();
        /* The prompt's blocks, and none that is not full. */
        assert_int_equal(disk_count(s->disk).blocks, has_time ? PROMPT_BLOCKS : 0);
        fixture_start(&s->f);
    }
    reading r = read_all(submit(&s->f, ask(100, PROMPT, "")));
    assert_string_equal(r.text, "some words");
    assert_int_equal(r.usage.cached_tokens, PROMPT_BLOCKS * 16);
    assert_int_equal(atomic_load(&s->f.model.writes), PROMPT_BLOCKS);
}

static void fail_step(stored *s)
{
    s->restarts = true;
    s->f.model.failure = status_make(STATUS_INTERNAL, "it broke");
    atomic_store(&s->f.model.fail_at, atomic_load(&s->f.model.steps) + 1);
    assert_int_equal(read_all(submit(&s->f, ask(100, PROMPT, ""))).finish, ENGINE_FINISH_ERROR);
    while (engine_get_stats(s->f.engine).state == ENGINE_RESTARTING) nap();
}

/* Blocks in the store are those of the files that the first backend was made from. */
static void changed_files_are_no_replacement_with_a_disk(void **state)
{
    stored *s = *state;
    fail_step(s);
    assert_int_equal(engine_get_stats(s->f.engine).state, ENGINE_BROKEN);
}

static void changed_files_do_not_matter_without_a_disk(void **state)
{
    stored *s = *state;
    fixture_start(&s->f);
    fail_step(s);
    assert_int_equal(engine_get_stats(s->f.engine).state, ENGINE_WORKING);
    assert_string_equal(read_all(submit(&s->f, ask(100, PROMPT, ""))).text, "some words");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(blocks_come_back),
        CASE(blocks_that_leave_together_are_read_at_once),
        CASE(blocks_of_a_failed_request_are_forgotten),
        CASE(blocks_that_cannot_be_read_are_not_stored),
        CASE(blocks_that_cannot_be_loaded_are_computed),
        CASE(the_end_writes_what_memory_has),
        CASE(no_load_begins_without_a_backend),
        CASE(changed_files_are_no_replacement_with_a_disk),
        cmocka_unit_test_setup_teardown(changed_files_do_not_matter_without_a_disk, setup_bare,
                                        teardown),
    };
    return cmocka_run_group_tests_name("engine with a disk", tests, NULL, NULL);
}

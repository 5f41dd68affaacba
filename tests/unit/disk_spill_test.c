/* Pieces of memory that lie in a file: they come back as they were, or not at all. */
#include "disk/spill.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIECES = 40, PIECE = 3 * SPILL_ALIGN, ALL = PIECES * PIECE };

typedef struct fixture {
    char dir[64];
    uint8_t *memory;
    spill_options options;
    disk_spill *s;
    spill_leave leaving[PIECES];
    /* What the calls of the system do: fail with an errno, do at most `most` bytes, flip a bit. */
    _Atomic int read_errno, write_errno;
    _Atomic size_t most;
    _Atomic bool flips;
    _Atomic uint32_t calls;
} fixture;

static ssize_t cut_short(const fixture *f, ssize_t done)
{
    return f->most && done > (ssize_t)f->most ? (ssize_t)f->most : done;
}

static ssize_t faulty_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    fixture *f = ctx;
    f->calls++;
    errno = f->read_errno;
    if (errno) return -1;
    ssize_t got = cut_short(f, pread(fd, to, n, at));
    if (got > 100 && f->flips) ((uint8_t *)to)[100] ^= 1;
    return got;
}

static ssize_t faulty_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    fixture *f = ctx;
    f->calls++;
    errno = f->write_errno;
    return errno ? -1 : cut_short(f, pwrite(fd, from, n, at));
}

static int setup(void **state)
{
    static disk_io io = {faulty_read, faulty_write, NULL, NULL};
    fixture *f = calloc(1, sizeof *f);
    error err = {{0}};
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.36s/octavo-spill-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->dir));
    f->memory = alloc_reserve(ALL);
    assert_non_null(f->memory);
    io.ctx = f;
    f->options = (spill_options){f->dir, f->memory, PIECE, PIECES, &io};
    if (!status_ok(spill_open(&f->options, &f->s, &err))) fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    spill_close(f->s);
    alloc_pages_free(f->memory, ALL);
    rmdir(f->dir);
    free(f);
    return 0;
}

static void fill(fixture *f, uint32_t piece, uint32_t version)
{
    uint32_t *words = (uint32_t *)(void *)(f->memory + (size_t)piece * PIECE);
    for (uint32_t i = 0; i < PIECE / 4; i++) words[i] = i * 7 + piece * 31 + version * 1009 + 1;
}

static bool holds(const fixture *f, uint32_t piece, uint32_t version)
{
    const uint32_t *words = (const uint32_t *)(const void *)(f->memory + (size_t)piece * PIECE);
    for (uint32_t i = 0; i < PIECE / 4; i++)
        if (words[i] != i * 7 + piece * 31 + version * 1009 + 1) return false;
    return true;
}

/* Small pages of the pieces that take memory. */
static size_t pages_held(const fixture *f, uint32_t first, uint32_t n)
{
    unsigned char in[ALL / SPILL_ALIGN];
    size_t sum = 0, pages = (size_t)n * PIECE / SPILL_ALIGN;
    assert_int_equal(mincore(f->memory + (size_t)first * PIECE, (size_t)n * PIECE, in), 0);
    for (size_t i = 0; i < pages; i++) sum += in[i] & 1;
    return sum;
}

static spill_job run(fixture *f, uint32_t leave, uint32_t n_leave, bool write, uint32_t come,
                     uint32_t n_come)
{
    for (uint32_t i = 0; i < n_leave; i++) f->leaving[i] = (spill_leave){leave + i, write};
    spill_job job = {
        .leaving = f->leaving, .n_leaving = n_leave, .first = come, .n_coming = n_come};
    spill_begin(f->s, &job, 1);
    spill_wait(f->s);
    return job;
}

static void send_away(fixture *f, uint32_t first, uint32_t n)
{
    spill_job job = run(f, first, n, true, 0, 0);
    assert_int_equal(job.fault, SPILL_DONE);
    assert_int_equal(job.n_left, n);
}

static void pieces_come_back(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < PIECES; i++) fill(f, i, 0);
    send_away(f, 0, PIECES);
    assert_int_equal(pages_held(f, 0, PIECES), 0);
    spill_job job = run(f, 0, 0, false, 8, 5);
    assert_int_equal(job.n_came, 5);
    assert_int_equal(pages_held(f, 0, PIECES), 5 * PIECE / SPILL_ALIGN);
    for (uint32_t i = 8; i < 13; i++) assert_true(holds(f, i, 0));
    fill(f, 9, 1);
    job = run(f, 8, 2, true, 0, 2); /* 8 and 9 leave, and 0 and 1 come */
    assert_int_equal(job.n_left + job.n_came, 4);
    assert_true(holds(f, 0, 0) && holds(f, 1, 0));
    job = run(f, 10, 3, false, 8, 2);
    assert_true(holds(f, 8, 0) && holds(f, 9, 1));
    assert_int_equal(pages_held(f, 10, 3), 0);
}

static void many_jobs_run_at_once(void **state)
{
    fixture *f = *state;
    spill_job jobs[PIECES];
    for (uint32_t i = 0; i < PIECES; i++) fill(f, i, 3);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < PIECES; i++) {
            f->leaving[i] = (spill_leave){i, round % 2 == 0};
            jobs[i] =
                (spill_job){.leaving = &f->leaving[i], .n_leaving = 1, .first = i, .n_coming = 1};
        }
        spill_begin(f->s, jobs, PIECES / 2);
        spill_begin(f->s, jobs + PIECES / 2, PIECES / 2);
        spill_wait(f->s);
        for (uint32_t i = 0; i < PIECES; i++) {
            assert_int_equal(jobs[i].fault, SPILL_DONE);
            assert_true(holds(f, i, 3));
        }
    }
}

static void short_calls_go_on(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < 4; i++) fill(f, i, 1);
    f->most = SPILL_ALIGN + 100; /* O_DIRECT goes on from the last whole page */
    send_away(f, 0, 4);
    assert_int_equal(run(f, 0, 0, false, 0, 4).n_came, 4);
    for (uint32_t i = 0; i < 4; i++) assert_true(holds(f, i, 1));
    f->most = 100;
    spill_job job = run(f, 0, 2, true, 0, 0);
    assert_int_equal(job.fault, SPILL_NOT_WRITTEN);
    assert_int_equal(job.why, ENOSPC);
    assert_int_equal(job.n_left, 0);
    assert_true(holds(f, 0, 1) && holds(f, 1, 1));
}

static void what_cannot_be_written_stays(void **state)
{
    fixture *f = *state;
    fill(f, 0, 1);
    fill(f, 1, 1);
    send_away(f, 1, 1);
    f->write_errno = ENOSPC;
    spill_job job = run(f, 0, 1, true, 1, 1);
    assert_int_equal(job.fault, SPILL_NOT_WRITTEN);
    assert_int_equal(job.why, ENOSPC);
    assert_int_equal(job.n_left + job.n_came, 0);
    assert_true(holds(f, 0, 1));
    assert_int_equal(pages_held(f, 1, 1), 0);
    f->write_errno = 0;
    job = run(f, 0, 1, true, 1, 1);
    assert_int_equal(job.fault, SPILL_DONE);
    assert_true(holds(f, 1, 1));
}

static void what_cannot_be_read_holds_no_memory(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < 3; i++) fill(f, i, 1);
    send_away(f, 0, 3);
    f->read_errno = EIO;
    spill_job job = run(f, 0, 0, false, 0, 3);
    assert_int_equal(job.fault, SPILL_NOT_READ);
    assert_int_equal(job.why, EIO);
    assert_int_equal(job.n_came, 0);
    assert_int_equal(pages_held(f, 0, 3), 0);
    f->read_errno = 0;
    f->flips = true;
    job = run(f, 0, 0, false, 0, 3);
    assert_int_equal(job.fault, SPILL_DAMAGED);
    assert_int_equal(job.n_came, 0);
    assert_int_equal(pages_held(f, 0, 3), 0);
    f->flips = false;
    assert_int_equal(run(f, 0, 0, false, 0, 3).n_came, 3);
}

/* A piece that was written to another's place is damaged, too: both have the same bytes here. */
static void a_piece_passes_for_no_other(void **state)
{
    fixture *f = *state;
    memset(f->memory, 5, 2 * PIECE);
    send_away(f, 0, 2);
    assert_int_equal(run(f, 0, 0, false, 0, 2).n_came, 2);
    memset(f->memory + PIECE, 6, PIECE);
    send_away(f, 1, 1);
    assert_int_equal(run(f, 0, 1, false, 1, 1).n_came, 1);
    assert_int_equal(f->memory[PIECE], 6);
}

static void the_file_has_no_name(void **state)
{
    fixture *f = *state;
    DIR *d = opendir(f->dir);
    uint32_t n = 0;
    while (readdir(d)) n++;
    closedir(d);
    assert_int_equal(n, 2); /* . and .. */
}

static void a_folder_that_cannot_be_used_is_named(void **state)
{
    fixture *f = *state;
    disk_spill *s = NULL;
    error err = {{0}};
    spill_options o = f->options;
    o.dir = "/nonexistent/folder";
    assert_int_equal(spill_open(&o, &s, &err).code, STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/folder: No such file"));
    o.dir = f->dir;
    o.piece_bytes = (size_t)1 << 50;
    assert_int_equal(spill_open(&o, &s, &err).code, STATUS_IO);
    assert_non_null(strstr(err.text, "no file of"));
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(many_jobs_run_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(short_calls_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_holds_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(a_piece_passes_for_no_other, setup, teardown),
        cmocka_unit_test_setup_teardown(the_file_has_no_name, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_used_is_named, setup, teardown),
    };
    return cmocka_run_group_tests_name("spill", tests, NULL, NULL);
}

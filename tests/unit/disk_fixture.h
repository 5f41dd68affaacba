/* A store of blocks in a folder of its own, whose calls of the system can fail or wait. Each block
 * has bytes that follow from its number. */
#ifndef TESTS_UNIT_DISK_FIXTURE_H
#define TESTS_UNIT_DISK_FIXTURE_H

#include "disk/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCK = 5000, SLOT = 8192, RECORD = 40, BLOCKS = 12 };

typedef struct fixture {
    char dir[64];
    disk_options options;
    disk_cache *d;
    _Atomic int troubles;
    char trouble[256];
    /* Calls of the system: they fail with this errno, from the n-th block or record on. */
    _Atomic int read_errno, write_errno, sync_errno;
    _Atomic long good_syncs; // of records: these calls work although sync_errno is set
    _Atomic long good_writes;
    _Atomic uint64_t bytes_read;
    _Atomic off_t synced_bytes; // of the file that was synced last
    /* While `gate` is GATE_ARMED, the next write of a record, or the next report, waits until it is
     * GATE_OPEN: for 20 seconds at most (`waited_long`). */
    _Atomic int gate;
    _Atomic bool waited_long;
} fixture;

enum { GATE_OPEN, GATE_ARMED, GATE_REACHED };

static inline void pass_gate(fixture *f)
{
    int armed = GATE_ARMED;
    if (!atomic_compare_exchange_strong(&f->gate, &armed, GATE_REACHED)) return;
    for (int i = 0; f->gate != GATE_OPEN && i < 20000; i++) usleep(1000);
    f->waited_long = f->gate != GATE_OPEN;
}

/* ---- calls of the system that fail ----------------------------------------------------------- */

static inline ssize_t faulty_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    fixture *f = ctx;
    f->bytes_read += n;
    errno = f->read_errno;
    return errno ? -1 : pread(fd, to, n, at);
}

static inline ssize_t faulty_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    fixture *f = ctx;
    if (n == RECORD) pass_gate(f);
    errno = f->write_errno;
    return errno && f->good_writes-- <= 0 ? -1 : pwrite(fd, from, n, at);
}

static inline int faulty_sync(void *ctx, int fd)
{
    fixture *f = ctx;
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    f->synced_bytes = st.st_size;
    errno = f->sync_errno;
    return errno ? -1 : fsync(fd);
}

static inline void on_trouble(void *ctx, const char *text)
{
    fixture *f = ctx;
    pass_gate(f);
    f->troubles++;
    snprintf(f->trouble, sizeof f->trouble, "%s", text);
}

/* ---- a store --------------------------------------------------------------------------------- */

static inline disk_key key(uint32_t i)
{
    uint64_t words[2] = {hash_mix64(i + 1), i};
    disk_key k;
    memcpy(&k, words, sizeof k);
    return k;
}

static inline void fill(uint8_t *bytes, uint32_t i)
{
    for (uint32_t at = 0; at < BLOCK; at++) bytes[at] = (uint8_t)(at * 7 + at / 251 + i * 31 + 1);
}

static inline void open_store(fixture *f)
{
    error err = {{0}};
    status st = disk_open(&f->options, &f->d, &err);
    if (!status_ok(st)) fail_msg("%s", err.text);
}

static inline void reopen(fixture *f)
{
    disk_close(f->d);
    open_store(f);
}

static inline int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.36s/octavo-disk-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->dir));
    static disk_io io = {faulty_read, faulty_write, faulty_sync, NULL};
    io.ctx = f;
    f->options = (disk_options){.dir = f->dir,
                                .bytes = 4096 + BLOCKS * (SLOT + RECORD),
                                .block_bytes = BLOCK,
                                .identity = 7,
                                .on_trouble = on_trouble,
                                .on_trouble_ctx = f,
                                .io = &io};
    open_store(f);
    *state = f;
    return 0;
}

static inline void path_of(const fixture *f, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", f->dir, name);
}

static inline void remove_files(const fixture *f)
{
    const char *names[] = {"lock", "index", "blocks"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        path_of(f, names[i], path);
        unlink(path);
    }
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    disk_close(f->d);
    remove_files(f);
    rmdir(f->dir);
    free(f);
    return 0;
}

static inline bool put(fixture *f, uint32_t i)
{
    disk_key k = key(i);
    uint8_t *bytes = disk_put_begin(f->d, &k);
    if (!bytes) return false;
    fill(bytes, i);
    disk_put_end(f->d, bytes);
    return true;
}

static inline bool has(fixture *f, uint32_t i)
{
    disk_key k = key(i);
    return disk_has(f->d, &k);
}

/* Waits until all that was put is written or given up. */
static inline void settle(fixture *f)
{
    while (disk_count(f->d).waiting > 0) usleep(100);
}

static inline void put_blocks(fixture *f, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        put(f, i);
        settle(f);
    }
}

typedef struct reader {
    disk_read read;
    disk_key keys[64];
    uint32_t first;
    _Atomic uint32_t taken[64];
    _Atomic bool wrong, done;
    _Atomic uint32_t refused; // a block that is not taken, + 1
    uint32_t n_good;
} reader;

static inline bool take(void *ctx, uint32_t i, const uint8_t *bytes)
{
    reader *r = ctx;
    uint8_t want[BLOCK];
    fill(want, r->first + i);
    r->taken[i]++;
    if (memcmp(bytes, want, BLOCK) != 0) r->wrong = true;
    return r->refused != i + 1;
}

static inline void done(void *ctx, uint32_t n_good)
{
    reader *r = ctx;
    r->n_good = n_good;
    r->done = true;
}

static inline void begin_read(fixture *f, reader *r, uint32_t first, uint32_t n)
{
    *r = (reader){.first = first};
    for (uint32_t i = 0; i < n; i++) r->keys[i] = key(first + i);
    r->read = (disk_read){.keys = r->keys, .n = n, .take = take, .done = done, .ctx = r};
    disk_read_begin(f->d, &r->read);
}

/* How many of the blocks come back; they have their bytes. */
static inline uint32_t read_blocks(fixture *f, uint32_t first, uint32_t n)
{
    reader r;
    begin_read(f, &r, first, n);
    while (!r.done) usleep(100);
    assert_false(r.wrong);
    assert_true(r.n_good <= n);
    for (uint32_t i = 0; i < r.n_good; i++) assert_int_equal(r.taken[i], 1);
    return r.n_good;
}

/* Changes bytes of a file: xors them with 1, or cuts the file there if n is 0. */
static inline void damage(fixture *f, const char *name, off_t at, size_t n)
{
    char path[128];
    path_of(f, name, path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (n == 0) assert_int_equal(ftruncate(fd, at), 0);
    for (; n > 0; n--, at++) {
        uint8_t byte = 0;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* A call that fails turns the store off, and says so once. */
static inline void check_off(fixture *f, const char *why)
{
    disk_counts c = disk_count(f->d);
    assert_false(c.works);
    assert_int_equal(c.blocks, 0);
    assert_int_equal(c.bytes, 0);
    assert_true(c.errors >= 1);
    assert_int_equal(f->troubles, 1);
    if (!strstr(f->trouble, why)) fail_msg("'%s' does not say '%s'", f->trouble, why);
    assert_false(put(f, 50));
    assert_false(has(f, 0));
    assert_int_equal(read_blocks(f, 0, 2), 0);
    assert_int_equal(f->troubles, 1);
}

#endif

/* The store of blocks on disk: what it gives back, after a restart, damage and failing calls. */
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
    _Atomic long good_writes;
    _Atomic uint64_t bytes_read;
    _Atomic off_t synced_bytes; // of the file that was synced last
    /* While `gate` is GATE_ARMED, the next write of a record, or the next report, waits until it is
     * GATE_OPEN: for 20 seconds at most (`waited_long`). */
    _Atomic int gate;
    _Atomic bool waited_long;
} fixture;

enum { GATE_OPEN, GATE_ARMED, GATE_REACHED };

static void pass_gate(fixture *f)
{
    int armed = GATE_ARMED;
    if (!atomic_compare_exchange_strong(&f->gate, &armed, GATE_REACHED)) return;
    for (int i = 0; f->gate != GATE_OPEN && i < 20000; i++) usleep(1000);
    f->waited_long = f->gate != GATE_OPEN;
}

/* ---- calls of the system that fail ----------------------------------------------------------- */

static ssize_t faulty_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    fixture *f = ctx;
    f->bytes_read += n;
    errno = f->read_errno;
    return errno ? -1 : pread(fd, to, n, at);
}

static ssize_t faulty_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    fixture *f = ctx;
    if (n == RECORD) pass_gate(f);
    errno = f->write_errno;
    return errno && f->good_writes-- <= 0 ? -1 : pwrite(fd, from, n, at);
}

static int faulty_sync(void *ctx, int fd)
{
    fixture *f = ctx;
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    f->synced_bytes = st.st_size;
    errno = f->sync_errno;
    return errno ? -1 : fsync(fd);
}

static void on_trouble(void *ctx, const char *text)
{
    fixture *f = ctx;
    pass_gate(f);
    f->troubles++;
    snprintf(f->trouble, sizeof f->trouble, "%s", text);
}

/* ---- a store --------------------------------------------------------------------------------- */

static disk_key key(uint32_t i)
{
    uint64_t words[2] = {hash_mix64(i + 1), i};
    disk_key k;
    memcpy(&k, words, sizeof k);
    return k;
}

static void fill(uint8_t *bytes, uint32_t i)
{
    for (uint32_t at = 0; at < BLOCK; at++) bytes[at] = (uint8_t)(at * 7 + at / 251 + i * 31 + 1);
}

static void open_store(fixture *f)
{
    error err = {{0}};
    status st = disk_open(&f->options, &f->d, &err);
    if (!status_ok(st)) fail_msg("%s", err.text);
}

static void reopen(fixture *f)
{
    disk_close(f->d);
    open_store(f);
}

static int setup(void **state)
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

static void path_of(const fixture *f, const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", f->dir, name);
}

static void remove_files(const fixture *f)
{
    const char *names[] = {"lock", "index", "blocks"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        path_of(f, names[i], path);
        unlink(path);
    }
}

static int teardown(void **state)
{
    fixture *f = *state;
    disk_close(f->d);
    remove_files(f);
    rmdir(f->dir);
    free(f);
    return 0;
}

static bool put(fixture *f, uint32_t i)
{
    disk_key k = key(i);
    uint8_t *bytes = disk_put_begin(f->d, &k);
    if (!bytes) return false;
    fill(bytes, i);
    disk_put_end(f->d, bytes);
    return true;
}

static bool has(fixture *f, uint32_t i)
{
    disk_key k = key(i);
    return disk_has(f->d, &k);
}

/* Waits until all that was put is written or given up. */
static void settle(fixture *f)
{
    while (disk_count(f->d).waiting > 0) usleep(100);
}

static void put_blocks(fixture *f, uint32_t first, uint32_t n)
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
    uint32_t n_good;
} reader;

static void take(void *ctx, uint32_t i, const uint8_t *bytes)
{
    reader *r = ctx;
    uint8_t want[BLOCK];
    fill(want, r->first + i);
    r->taken[i]++;
    if (memcmp(bytes, want, BLOCK) != 0) r->wrong = true;
}

static void done(void *ctx, uint32_t n_good)
{
    reader *r = ctx;
    r->n_good = n_good;
    r->done = true;
}

static void begin_read(fixture *f, reader *r, uint32_t first, uint32_t n)
{
    *r = (reader){.first = first};
    for (uint32_t i = 0; i < n; i++) r->keys[i] = key(first + i);
    r->read = (disk_read){.keys = r->keys, .n = n, .take = take, .done = done, .ctx = r};
    disk_read_begin(f->d, &r->read);
}

/* How many of the blocks come back; they have their bytes. */
static uint32_t read_blocks(fixture *f, uint32_t first, uint32_t n)
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
static void damage(fixture *f, const char *name, off_t at, size_t n)
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

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_gives_back(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 6);
    assert_true(has(f, 0) && has(f, 5));
    assert_false(has(f, 6));
    assert_false(put(f, 3)); /* it is there */
    assert_int_equal(read_blocks(f, 0, 6), 6);
    assert_int_equal(read_blocks(f, 4, 4), 2);
    assert_int_equal(read_blocks(f, 9, 1), 0);
    disk_counts c = disk_count(f->d);
    assert_int_equal(c.blocks, 6);
    assert_int_equal(c.bytes, 6 * SLOT);
    assert_int_equal(c.written, 6);
    assert_int_equal(c.read, 8);
    assert_true(c.works);
    assert_int_equal(f->troubles, 0);
}

static void test_restart(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 6);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 6);
    assert_int_equal(read_blocks(f, 0, 6), 6);
    assert_int_equal(f->troubles, 0);
}

/* The store is small: the blocks used longest ago make room, also in the order that the process
 * before left. */
static void test_evicts(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, BLOCKS);
    disk_key k = key(1);
    disk_touch(f->d, &k);
    assert_int_equal(read_blocks(f, 0, 1), 1);
    put_blocks(f, 100, 2);
    assert_true(has(f, 0) && has(f, 1));
    assert_false(has(f, 2) || has(f, 3));
    assert_int_equal(disk_count(f->d).evicted, 2);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, BLOCKS);
    put_blocks(f, 200, 1);
    assert_false(has(f, 0)); /* the one that was put first; touches do not outlive a process */
    assert_true(has(f, 1) && has(f, 101) && has(f, 200));
    assert_int_equal(read_blocks(f, 100, 2), 2);
}

/* A chain that was read loses its end first. */
static void test_forgets_ends_first(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, BLOCKS);
    assert_int_equal(read_blocks(f, 0, BLOCKS), BLOCKS);
    put_blocks(f, 100, 3);
    for (uint32_t i = 0; i < BLOCKS; i++) assert_int_equal(has(f, i), i < BLOCKS - 3);
}

static void test_damage(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 6);
    damage(f, "blocks", 2 * SLOT + 4321, 1);
    assert_int_equal(read_blocks(f, 0, 6), 2);
    assert_false(has(f, 2));
    assert_int_equal(f->troubles, 1);
    assert_non_null(strstr(f->trouble, "torn or damaged"));
    damage(f, "blocks", 4 * SLOT, 1);
    assert_int_equal(read_blocks(f, 3, 3), 1);
    assert_int_equal(f->troubles, 1);
    assert_int_equal(disk_count(f->d).damaged, 2);
    put_blocks(f, 2, 1); /* the place is used again */
    assert_int_equal(read_blocks(f, 0, 4), 4);
    assert_true(disk_count(f->d).works);
}

/* Every byte of a record is checked, so is its place; so is the header. */
static void test_damaged_index(void **state)
{
    fixture *f = *state;
    for (off_t at = 0; at < 40; at++) {
        put_blocks(f, 0, 3);
        damage(f, "index", 4096 + 40 + at, 1);
        reopen(f);
        assert_int_equal(disk_count(f->d).blocks, 2);
        assert_int_equal(read_blocks(f, 0, 3), 1);
    }
    damage(f, "index", 9, 1);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 0);
}

/* A sudden end between a block and its record: the slot's old record meets another block. */
static void test_torn_write(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, BLOCKS);
    f->good_writes = 1; /* the block is written, its record is not */
    f->write_errno = EIO;
    put(f, 100);
    settle(f);
    f->write_errno = 0;
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, BLOCKS);
    assert_int_equal(read_blocks(f, 0, 1), 0);
    assert_int_equal(read_blocks(f, 1, BLOCKS - 1), BLOCKS - 1);
}

static void test_truncated(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 4);
    damage(f, "blocks", 2 * SLOT + 777, 0);
    assert_int_equal(read_blocks(f, 0, 4), 2);
    assert_true(disk_count(f->d).works);
    damage(f, "index", 4096 + 41, 0);
    reopen(f);
    assert_int_equal(read_blocks(f, 0, 2), 1);
}

static void test_foreign(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 4);
    f->options.identity = 8;
    reopen(f);
    assert_int_equal(f->troubles, 1);
    assert_int_equal(disk_count(f->d).blocks, 0);
    put_blocks(f, 0, 1);
    f->options.block_bytes = BLOCK - 1;
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 0);
    f->options.block_bytes = BLOCK;
}

static void test_size_changes(void **state)
{
    fixture *f = *state;
    uint64_t size = f->options.bytes;
    put_blocks(f, 0, BLOCKS);
    f->options.bytes = 4096 + 5 * (SLOT + RECORD);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 5);
    assert_int_equal(read_blocks(f, 0, 5), 5);
    f->options.bytes = size;
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 5);
    put_blocks(f, 5, BLOCKS - 5);
    assert_int_equal(read_blocks(f, 0, BLOCKS), BLOCKS);
    f->options.bytes = SLOT;
    error err = {{0}};
    disk_close(f->d);
    assert_int_equal(disk_open(&f->options, &f->d, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "less than a block"));
}

static size_t resident_bytes(void)
{
    size_t total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu %zu", &total, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* A large store that holds little opens at the cost of what it holds. */
static void test_large_store(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    disk_close(f->d);
    f->options.bytes = 4096 + (1ull << 20) * (SLOT + RECORD);
    f->bytes_read = 0;
    size_t before = resident_bytes();
    open_store(f);
    size_t after = resident_bytes();
    assert_true(f->bytes_read < 1 << 20);
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__)             /* these have memory of their own */
    assert_true(after < before + (24 << 20)); /* all slots have 56 MiB, all records 40 MiB */
#endif
    assert_true(after > 0 && before > 0);
    put_blocks(f, 3, 2 * BLOCKS);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 3 + 2 * BLOCKS);
    assert_int_equal(read_blocks(f, 0, 3 + 2 * BLOCKS), 3 + 2 * BLOCKS);
}

/* A call that fails turns the store off, and says so once. */
static void check_off(fixture *f, const char *why)
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

static void test_full_disk(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    f->write_errno = ENOSPC;
    put(f, 3);
    settle(f);
    check_off(f, "No space left");
    f->write_errno = 0;
    reopen(f);
    assert_int_equal(read_blocks(f, 0, 4), 3);
}

static void test_failing_reads(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    f->read_errno = EIO;
    assert_int_equal(read_blocks(f, 0, 3), 0);
    check_off(f, "cannot be read");
    f->read_errno = 0;
}

static void test_deleted(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    remove_files(f);
    rmdir(f->dir);
    put(f, 3);
    settle(f);
    check_off(f, "No such file");
}

static void test_bad_folders(void **state)
{
    fixture *f = *state;
    disk_cache *second;
    error err = {{0}};
    assert_int_equal(disk_open(&f->options, &second, &err).code, STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "another process"));
    disk_options o = f->options;
    o.dir = "/proc/octavo";
    assert_int_equal(disk_open(&o, &second, &err).code, STATUS_IO);
    assert_non_null(strstr(err.text, "/proc/octavo"));
    o.dir = "/dev/null";
    assert_int_equal(disk_open(&o, &second, &err).code, STATUS_IO);
}

static void write_text(const fixture *f, const char *name, const char *text)
{
    char path[128];
    path_of(f, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void check_text(const fixture *f, const char *name, const char *text)
{
    char path[128], have[64] = "";
    path_of(f, name, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    (void)!fread(have, 1, sizeof have - 1, file);
    fclose(file);
    assert_string_equal(have, text);
}

static void refuse(fixture *f, const char *why)
{
    error err = {{0}};
    assert_int_equal(disk_open(&f->options, &f->d, &err).code, STATUS_IO);
    assert_null(f->d);
    if (!strstr(err.text, why)) fail_msg("'%s' does not say '%s'", err.text, why);
}

/* Files that have the names of the store's, but were written by others, stay as they are. */
static void test_other_contents(void **state)
{
    fixture *f = *state;
    disk_close(f->d);
    remove_files(f);
    write_text(f, "index", "chapter one, page 1\n");
    refuse(f, "index: the file is not a disk cache's");
    check_text(f, "index", "chapter one, page 1\n");
    remove_files(f);
    write_text(f, "blocks", "wood, stone\n");
    refuse(f, "blocks: the file is not a disk cache's");
    check_text(f, "blocks", "wood, stone\n");
    remove_files(f);
    open_store(f);
}

static void test_links(void **state)
{
    fixture *f = *state;
    char target[128], path[128];
    disk_close(f->d);
    path_of(f, "target", target);
    write_text(f, "target", "");
    for (int i = 0; i < 3; i++) {
        const char *name = (const char *[]){"lock", "index", "blocks"}[i];
        remove_files(f);
        path_of(f, name, path);
        assert_int_equal(link(target, path), 0);
        refuse(f, "hard links");
        unlink(path);
        assert_int_equal(symlink(target, path), 0);
        refuse(f, name);
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        refuse(f, "not a regular file");
    }
    check_text(f, "target", "");
    remove_files(f);
    unlink(target);
    open_store(f);
}

/* Other users may neither write into the directory nor own it or its files. */
static void test_other_users(void **state)
{
    fixture *f = *state;
    char path[128];
    struct stat st;
    put_blocks(f, 0, 3);
    disk_close(f->d);
    for (int bit = 0; bit < 2; bit++) {
        assert_int_equal(chmod(f->dir, bit ? 0702 : 0720), 0);
        refuse(f, "other users may write");
    }
    assert_int_equal(chmod(f->dir, 0755), 0);
    path_of(f, "blocks", path);
    assert_int_equal(chmod(path, 0666), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 1, 1), 0);
        refuse(f, "blocks: the file belongs to another user");
        assert_int_equal(chown(path, 0, 0), 0);
        assert_int_equal(chown(f->dir, 1, 1), 0);
        refuse(f, "the directory belongs to another user");
        assert_int_equal(chown(f->dir, 0, 0), 0);
    }
    open_store(f);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(read_blocks(f, 0, 3), 3);
}

static void test_modes(void **state)
{
    fixture *f = *state;
    const char *names[] = {"lock", "index", "blocks"};
    char path[128];
    struct stat st;
    for (int i = 0; i < 3; i++) {
        path_of(f, names[i], path);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
    }
    disk_close(f->d);
    remove_files(f);
    assert_int_equal(rmdir(f->dir), 0);
    open_store(f);
    assert_int_equal(stat(f->dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_flush(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 5);
    disk_key k = key(9);
    uint8_t *bytes = disk_put_begin(f->d, &k); /* put before the flush, written behind it */
    assert_non_null(bytes);
    disk_flush(f->d);
    fill(bytes, 9);
    disk_put_end(f->d, bytes);
    settle(f);
    assert_int_equal(disk_count(f->d).blocks, 0);
    assert_false(has(f, 0) || has(f, 9));
    put_blocks(f, 20, 2);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 2);
    assert_int_equal(read_blocks(f, 20, 2), 2);
}

/* What the engine calls does not wait for a disk that is slow to write a record, or for a log that
 * is slow to take a line. */
static void call_while_held(fixture *f)
{
    while (f->gate != GATE_REACHED) usleep(100);
    disk_key k = key(60);
    reader r;
    (void)has(f, 60);
    disk_touch(f->d, &k);
    (void)put(f, 60);
    (void)disk_count(f->d);
    begin_read(f, &r, 61, 1);
    while (!r.done) usleep(100);
    assert_false(f->waited_long);
}

static void test_waits_for_nobody(void **state)
{
    fixture *f = *state;
    f->gate = GATE_ARMED;
    put(f, 0);
    call_while_held(f);
    f->gate = GATE_OPEN;
    settle(f);
    assert_true(has(f, 0) && has(f, 60));

    damage(f, "blocks", 100, 1);
    f->gate = GATE_ARMED;
    reader r;
    begin_read(f, &r, 0, 1); /* is reported as damaged */
    call_while_held(f);
    f->gate = GATE_OPEN;
    while (!r.done) usleep(100);
    assert_int_equal(r.n_good, 0);

    f->gate = GATE_ARMED;
    f->read_errno = EIO;
    begin_read(f, &r, 60, 1); /* turns the store off */
    call_while_held(f);
    f->gate = GATE_OPEN;
    while (!r.done) usleep(100);
    assert_int_equal(f->troubles, 2);
}

static void *flush(void *arg)
{
    fixture *f = arg;
    disk_flush(f->d);
    return NULL;
}

/* The index is emptied on the disk too, so that no power failure brings its blocks back. */
static void test_flush_syncs(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    f->synced_bytes = -1;
    disk_flush(f->d);
    assert_int_equal(f->synced_bytes, 4096);
    put_blocks(f, 0, 3);
    f->sync_errno = EIO;
    disk_flush(f->d);
    check_off(f, "cannot be emptied");
    f->sync_errno = 0;
}

/* A flush that comes while a record is being written forgets that one too. */
static void test_flush_meets_record(void **state)
{
    fixture *f = *state;
    pthread_t other;
    put_blocks(f, 0, 2);
    f->gate = GATE_ARMED;
    put(f, 2);
    while (f->gate != GATE_REACHED) usleep(100);
    assert_int_equal(pthread_create(&other, NULL, flush, f), 0);
    usleep(5000);
    f->gate = GATE_OPEN;
    pthread_join(other, NULL);
    settle(f);
    assert_int_equal(disk_count(f->d).blocks, 0);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 0);
}

/* Buffers are bounded: what does not fit is left out and counted. */
static void test_buffers_run_out(void **state)
{
    fixture *f = *state;
    uint8_t *buffers[DISK_BUFFERS_MOST];
    uint32_t n = 0;
    for (; n <= DISK_BUFFERS_MOST; n++) {
        disk_key k = key(n);
        uint8_t *buffer = disk_put_begin(f->d, &k);
        if (!buffer) break;
        buffers[n] = buffer;
    }
    assert_in_range(n, DISK_BUFFERS_LEAST, DISK_BUFFERS_MOST);
    assert_false(put(f, 99));
    assert_int_equal(disk_count(f->d).left_out, 2);
    for (uint32_t i = 0; i < n; i++) {
        fill(buffers[i], i);
        disk_put_end(f->d, buffers[i]);
    }
    settle(f);
    assert_true(put(f, 99));
}

static void test_drain(void **state)
{
    fixture *f = *state;
    reader r[4];
    put_blocks(f, 0, BLOCKS);
    for (int i = 0; i < 4; i++) begin_read(f, &r[i], 0, BLOCKS);
    disk_drain(f->d);
    for (int i = 0; i < 4; i++) {
        assert_true(r[i].done);
        assert_false(r[i].wrong);
        for (uint32_t b = 0; b < r[i].n_good; b++) assert_int_equal(r[i].taken[b], 1);
    }
    assert_int_equal(read_blocks(f, 0, BLOCKS), BLOCKS);
}

/* Puts, reads and touches from two threads, over a store that holds half of the keys. */
static void *churn(void *arg)
{
    fixture *f = arg;
    rng random = rng_seed((uintptr_t)&random);
    for (int i = 0; i < 300; i++) {
        uint32_t at = rng_below(&random, 2 * BLOCKS);
        put(f, at);
        if (i % 3 == 0) (void)read_blocks(f, at, 3);
        disk_key k = key(at);
        disk_touch(f->d, &k);
        if (i % 100 == 99) disk_flush(f->d);
    }
    return NULL;
}

static void test_threads(void **state)
{
    fixture *f = *state;
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, churn, f), 0);
    churn(f);
    pthread_join(other, NULL);
    settle(f);
    assert_int_equal(f->troubles, 0);
    assert_true(disk_count(f->d).read > 0);
}

/* Puts blocks until it is killed, and tells through `to` when the first was stored. */
static void put_for_ever(fixture *f, int to)
{
    bool told = false;
    open_store(f);
    for (uint32_t i = 0;; i++) {
        if (!put(f, i * 5 % (3 * BLOCKS))) usleep(50);
        if (told || disk_count(f->d).written == 0) continue;
        told = write(to, "", 1) == 1;
    }
}

/* A process that is killed while it writes: the next one finds whole blocks, and no others. */
static void test_killed(void **state)
{
    fixture *f = *state;
    disk_close(f->d);
    f->d = NULL;
    for (int round = 0; round < 8; round++) {
        int ends[2];
        char told;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) put_for_ever(f, ends[1]);
        close(ends[1]);
        assert_int_equal(read(ends[0], &told, 1), 1);
        close(ends[0]);
        usleep(500 * (useconds_t)round);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        open_store(f);
        uint64_t n = disk_count(f->d).blocks, n_good = 0;
        for (uint32_t i = 0; i < 3 * BLOCKS; i++) n_good += read_blocks(f, i, 1);
        assert_true(n_good > 0);
        assert_int_equal(n - n_good, disk_count(f->d).damaged);
        disk_close(f->d);
        f->d = NULL;
        remove_files(f);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_gives_back),
        TEST(test_restart),
        TEST(test_evicts),
        TEST(test_forgets_ends_first),
        TEST(test_damage),
        TEST(test_damaged_index),
        TEST(test_torn_write),
        TEST(test_truncated),
        TEST(test_foreign),
        TEST(test_size_changes),
        TEST(test_large_store),
        TEST(test_full_disk),
        TEST(test_failing_reads),
        TEST(test_deleted),
        TEST(test_bad_folders),
        TEST(test_other_contents),
        TEST(test_links),
        TEST(test_other_users),
        TEST(test_modes),
        TEST(test_flush),
        TEST(test_waits_for_nobody),
        TEST(test_flush_meets_record),
        TEST(test_flush_syncs),
        TEST(test_buffers_run_out),
        TEST(test_drain),
        TEST(test_threads),
        TEST(test_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The store of blocks on disk: what it gives back, after a restart, damage and failing calls. */
#include "tests/unit/disk_fixture.h"

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

static void forget(fixture *f, uint32_t first, uint32_t n)
{
    disk_key keys[BLOCKS];
    for (uint32_t i = 0; i < n; i++) keys[i] = key(first + i);
    disk_forget(f->d, keys, n);
}

/* Keys that the store has and keys that it lacks are forgotten. Forgotten blocks do not come back
 * with the next process, and their places are used again. */
static void test_forget(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 8);
    f->synced_bytes = 0;
    forget(f, 20, 3);
    assert_int_equal(f->synced_bytes, 0); /* nothing to forget, nothing to wait for */
    forget(f, 6, 4);
    assert_true(f->synced_bytes > 0);
    assert_int_equal(disk_count(f->d).blocks, 6);
    reopen(f);
    assert_int_equal(disk_count(f->d).blocks, 6);
    assert_int_equal(read_blocks(f, 0, 6), 6);
    assert_false(has(f, 6) || has(f, 7));
    put_blocks(f, 6, BLOCKS - 6);
    assert_int_equal(read_blocks(f, 0, BLOCKS), BLOCKS);
    assert_int_equal(disk_count(f->d).evicted, 0);
    assert_int_equal(f->troubles, 0);
}

/* A block that waits to be written, or is being written, is forgotten too; one that is put later is
 * not. */
static void test_forget_put(void **state)
{
    fixture *f = *state;
    atomic_store(&f->gate, GATE_ARMED);
    put(f, 0);
    while (f->gate != GATE_REACHED) usleep(100);
    for (uint32_t i = 1; i < 9; i++) put(f, i); /* other threads write them, but no record */
    atomic_store(&f->gate, GATE_OPEN);
    forget(f, 1, 4);
    settle(f);
    assert_true(has(f, 0) && has(f, 5) && has(f, 8));
    for (uint32_t i = 1; i < 5; i++) assert_false(has(f, i));
    put_blocks(f, 1, 4);
    assert_int_equal(read_blocks(f, 0, 9), 9);
    /* The buffers of forgotten blocks are used again. */
    atomic_store(&f->gate, GATE_ARMED);
    put(f, 20);
    while (f->gate != GATE_REACHED) usleep(100);
    for (uint32_t i = 21; i < 20 + BLOCKS; i++) put(f, i);
    atomic_store(&f->gate, GATE_OPEN);
    settle(f);
    reopen(f);
    assert_int_equal(read_blocks(f, 20, BLOCKS), BLOCKS);
    assert_false(f->waited_long);
}

/* A store that cannot forget turns itself off. */
static void test_forget_fails(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 3);
    f->write_errno = EIO;
    forget(f, 1, 1);
    check_off(f, "blocks cannot be forgotten");
    f->write_errno = 0;
    reopen(f);
    f->troubles = 0;
    f->sync_errno = EIO;
    forget(f, 2, 1);
    check_off(f, "blocks cannot be forgotten");
    f->sync_errno = 0;
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

/* Buffers that could not be filled are free again, and their blocks are not stored. */
static void test_dropped(void **state)
{
    fixture *f = *state;
    disk_key k = key(1);
    for (uint32_t i = 0; i < 2 * DISK_BUFFERS_MOST; i++) {
        uint8_t *bytes = disk_put_begin(f->d, &k);
        assert_non_null(bytes);
        disk_put_drop(f->d, bytes);
    }
    assert_int_equal(disk_count(f->d).waiting, 0);
    assert_int_equal(disk_count(f->d).left_out, 0);
    assert_false(has(f, 1));
    put_blocks(f, 1, 1);
    assert_int_equal(read_blocks(f, 1, 1), 1);
}

/* A block that the reader cannot take ends the read, and stays. */
static void test_not_taken(void **state)
{
    fixture *f = *state;
    put_blocks(f, 0, 6);
    reader r = {.refused = 1 + 2};
    for (uint32_t i = 0; i < 6; i++) r.keys[i] = key(i);
    r.read = (disk_read){.keys = r.keys, .n = 6, .take = take, .done = done, .ctx = &r};
    disk_read_begin(f->d, &r.read);
    while (!r.done) usleep(100);
    assert_int_equal(r.n_good, 2);
    assert_int_equal(disk_count(f->d).damaged, 0);
    assert_int_equal(f->troubles, 0);
    assert_int_equal(read_blocks(f, 0, 6), 6);
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_gives_back),     TEST(test_restart),
        TEST(test_evicts),         TEST(test_forgets_ends_first),
        TEST(test_forget),         TEST(test_forget_put),
        TEST(test_forget_fails),   TEST(test_damage),
        TEST(test_damaged_index),  TEST(test_torn_write),
        TEST(test_truncated),      TEST(test_foreign),
        TEST(test_size_changes),   TEST(test_large_store),
        TEST(test_full_disk),      TEST(test_failing_reads),
        TEST(test_deleted),        TEST(test_bad_folders),
        TEST(test_other_contents), TEST(test_links),
        TEST(test_other_users),    TEST(test_modes),
        TEST(test_dropped),        TEST(test_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

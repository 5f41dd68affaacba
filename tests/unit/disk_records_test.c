/* Records on disk: what they give back after a restart, damage and failing calls, and which go. */
#include "disk/record_files.h"
#include "disk/records.h"
#include "tests/unit/disk_fixture.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 80, MOST = 4 };

typedef struct records {
    fixture *f;
    disk_records *d;
    disk_records_options options;
    disk_io io;
    char folder[96];
} records;

/* A test of a thousand files does not wait for the disk. */
static int quick_sync(void *ctx, int fd)
{
    fixture *f = ctx;
    (void)fd;
    if (f->sync_errno && f->good_syncs > 0) {
        f->good_syncs--;
        return 0;
    }
    errno = f->sync_errno;
    return errno ? -1 : 0;
}

static void open_records(records *r)
{
    error err = {{0}};
    status st = disk_records_open(&r->options, &r->d, &err);
    if (!status_ok(st)) fail_msg("%s", err.text);
}

static void reopen_records(records *r)
{
    disk_records_close(r->d);
    open_records(r);
}

static int setup_records(void **state)
{
    records *r = calloc(1, sizeof *r);
    if (setup((void **)&r->f)) return -1;
    r->io = *r->f->options.io;
    r->io.sync = quick_sync;
    r->options = (disk_records_options){.dir = r->f->dir,
                                        .identity = 7,
                                        .most = MOST,
                                        .on_trouble = on_trouble,
                                        .on_trouble_ctx = r->f,
                                        .io = &r->io};
    snprintf(r->folder, sizeof r->folder, "%s/sessions", r->f->dir);
    open_records(r);
    *state = r;
    return 0;
}

/* Removes the files that are left, and counts them. */
static uint32_t clear_folder(const records *r)
{
    uint32_t n = 0;
    DIR *dir = opendir(r->folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        unlinkat(dirfd(dir), e->d_name, 0);
        n++;
    }
    closedir(dir);
    return n;
}

static int teardown_records(void **state)
{
    records *r = *state;
    disk_records_close(r->d);
    clear_folder(r);
    rmdir(r->folder);
    teardown((void **)&r->f);
    free(r);
    return 0;
}

/* Bytes of a record that follow from its number. */
static size_t bytes_of(uint32_t i, uint8_t out[256])
{
    size_t n = 16 + (i * 37) % 200;
    for (size_t at = 0; at < n; at++) out[at] = (uint8_t)(i * 13 + at * 7);
    return n;
}

static void settle_records(const records *r)
{
    while (disk_record_count(r->d).waiting > 0) usleep(100);
}

/* Puts content `what` under key i. */
static void put_record(const records *r, uint32_t i, uint64_t owner, uint32_t what)
{
    uint8_t bytes[256];
    disk_key k = key(i);
    size_t n = bytes_of(what, bytes);
    assert_true(disk_record_put(r->d, &k, owner, bytes, n));
    settle_records(r);
}

static bool is_record(const records *r, uint32_t i, uint32_t what)
{
    uint8_t want[256];
    disk_key k = key(i);
    size_t n = 0, n_want = bytes_of(what, want);
    uint64_t version = 0;
    uint8_t *bytes = disk_record_get(r->d, &k, &n, &version);
    if (!bytes) return false;
    assert_int_equal(version, disk_record_version(r->d, &k));
    assert_true(version > 0);
    bool same = n == n_want && memcmp(bytes, want, n) == 0;
    free(bytes);
    if (!same) fail_msg("record %u has other bytes", i);
    return true;
}

static bool has_record(const records *r, uint32_t i)
{
    disk_key k = key(i);
    return disk_record_version(r->d, &k) != 0;
}

static void file_of(const records *r, uint32_t i, char out[64])
{
    disk_key k = key(i);
    int at = snprintf(out, 64, "sessions/");
    for (size_t b = 0; b < sizeof k.bytes; b++)
        at += snprintf(out + at, 64 - (size_t)at, "%02x", k.bytes[b]);
    (void)r;
}

/* ---- what is given back ---------------------------------------------------------------------- */

static void test_last_put_counts(void **state)
{
    records *r = *state;
    put_record(r, 1, 5, 1);
    put_record(r, 2, 5, 2);
    assert_true(is_record(r, 1, 1) && is_record(r, 2, 2));
    assert_false(has_record(r, 3) || is_record(r, 3, 3));
    put_record(r, 1, 5, 30);
    assert_true(is_record(r, 1, 30));
    reopen_records(r);
    assert_true(is_record(r, 1, 30) && is_record(r, 2, 2));
    disk_record_counts c = disk_record_count(r->d);
    assert_int_equal(c.records, 2);
    assert_int_equal(c.read, 2);
    disk_key k = key(1);
    disk_record_remove(r->d, &k);
    assert_false(has_record(r, 1) || is_record(r, 1, 30));
    reopen_records(r);
    assert_false(has_record(r, 1));
    assert_true(is_record(r, 2, 2));
    assert_int_equal(r->f->troubles, 0);
    assert_int_equal(clear_folder(r), 1);
}

/* What waits to be written is there, too: puts, gets and removals of one key in any order. */
static void test_before_it_is_written(void **state)
{
    records *r = *state;
    disk_key k = key(1);
    uint8_t bytes[256];
    for (uint32_t i = 0; i < 200; i++) {
        assert_true(disk_record_put(r->d, &k, 1, bytes, bytes_of(i, bytes)));
        assert_true(is_record(r, 1, i));
        if (i % 3 == 2) disk_record_remove(r->d, &k);
        assert_int_equal(has_record(r, 1), i % 3 != 2);
    }
    settle_records(r);
    assert_true(is_record(r, 1, 199));
    reopen_records(r);
    assert_true(is_record(r, 1, 199));
}

/* ---- which go -------------------------------------------------------------------------------- */

static void test_owner_with_most_makes_room(void **state)
{
    records *r = *state;
    put_record(r, 1, 100, 1);
    for (uint32_t i = 2; i <= 6; i++) put_record(r, i, 200, i);
    assert_true(is_record(r, 1, 1));
    assert_false(has_record(r, 2) || has_record(r, 3));
    assert_true(is_record(r, 4, 4) && is_record(r, 6, 6));
    assert_int_equal(disk_record_count(r->d).removed, 2);
    reopen_records(r);
    put_record(r, 7, 200, 7);
    assert_true(is_record(r, 1, 1));
    assert_false(has_record(r, 4)); /* ages outlive a process */
    assert_true(is_record(r, 5, 5));
    assert_int_equal(clear_folder(r), MOST);
}

static void test_old_ones_go(void **state)
{
    records *r = *state;
    put_record(r, 1, 1, 1);
    reopen_records(r);
    assert_true(is_record(r, 1, 1)); /* without a limit */
    r->options.ttl_us = 200000;
    put_record(r, 1, 1, 1);
    reopen_records(r);
    put_record(r, 2, 1, 2);
    usleep(250000);
    assert_false(has_record(r, 1) || has_record(r, 2) || is_record(r, 2, 2));
    for (int i = 0; i < 500 && disk_record_count(r->d).records > 0; i++) usleep(10000);
    settle_records(r);
    assert_int_equal(disk_record_count(r->d).removed, 2);
    assert_int_equal(clear_folder(r), 0);
}

/* ---- offered bytes --------------------------------------------------------------------------- */

/* Bytes that stay with the test until they are written: those of number n follow from it. */
typedef struct offering {
    pthread_mutex_t lock; // until the version is known
    disk_key key;
    uint64_t version;
    size_t gone_at; // the source ends there
} offering;

static uint8_t offered_byte(uint64_t at) { return (uint8_t)(at * 7 + at / 1000); }

static bool copy_offered(void *ctx, const disk_key *k, uint64_t version, uint64_t at, void *to,
                         size_t n)
{
    offering *o = ctx;
    pthread_mutex_lock(&o->lock);
    bool is_it = memcmp(k, &o->key, sizeof *k) == 0 && version == o->version;
    pthread_mutex_unlock(&o->lock);
    if (!is_it || at + n > o->gone_at) return false;
    for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = offered_byte(at + i);
    return true;
}

typedef struct taken {
    uint64_t n, most;
    bool same;
} taken;

static bool take_part(void *ctx, uint64_t at, const uint8_t *bytes, size_t n, uint64_t all)
{
    taken *t = ctx;
    assert_int_equal(at, t->n);
    assert_true(at + n <= all);
    for (size_t i = 0; i < n; i++) t->same &= bytes[i] == offered_byte(at + i);
    t->n += n;
    return t->n <= t->most;
}

/* Offers n bytes under key i, which are gone behind gone_at. */
static void offer(const records *r, uint32_t i, uint64_t owner, size_t n, size_t gone_at)
{
    offering o = {.lock = PTHREAD_MUTEX_INITIALIZER, .key = key(i), .gone_at = gone_at};
    disk_records_source(r->d, copy_offered, &o);
    pthread_mutex_lock(&o.lock);
    o.version = disk_record_offer(r->d, &o.key, owner, n, 0);
    pthread_mutex_unlock(&o.lock);
    assert_int_not_equal(o.version, 0);
    disk_record_await(r->d, &o.key, clock_now_us() + 20000000);
    assert_false(disk_record_waits(r->d, &o.key));
    disk_records_source(r->d, NULL, NULL);
    settle_records(r);
}

static uint64_t bytes_back(const records *r, uint32_t i, uint64_t most)
{
    taken t = {.most = most, .same = true};
    disk_key k = key(i);
    bool whole = disk_record_read(r->d, &k, take_part, &t);
    assert_true(t.same);
    return whole ? t.n : 0;
}

enum { PARTS = 3 * RECORD_PART + 77 };

static void test_what_is_offered_is_copied(void **state)
{
    records *r = *state;
    offer(r, 1, 1, PARTS, PARTS);
    assert_int_equal(bytes_back(r, 1, PARTS), PARTS);
    assert_int_equal(bytes_back(r, 1, RECORD_PART), 0); /* no more is wanted */
    reopen_records(r);
    assert_int_equal(bytes_back(r, 1, PARTS), PARTS);
    assert_int_equal(disk_record_count(r->d).read, 1);
    assert_int_equal(disk_record_count(r->d).bytes, HEADER + PARTS);
    /* A record that is gone before it is copied leaves the file as it was, or none. */
    offer(r, 1, 1, 2 * PARTS, PARTS);
    assert_int_equal(bytes_back(r, 1, PARTS), PARTS);
    offer(r, 2, 1, PARTS, RECORD_PART);
    assert_false(has_record(r, 2));
    offer(r, 2, 1, PARTS, 0);
    assert_int_equal(disk_record_count(r->d).errors, 0);
    assert_int_equal(disk_record_count(r->d).bytes, HEADER + PARTS);
    assert_int_equal(clear_folder(r), 1);
}

/* The bound holds for a file and what replaces it, and who has most bytes makes room. */
static void test_bytes_are_bounded(void **state)
{
    records *r = *state;
    disk_key k = key(9);
    r->options.bytes = 10 * (HEADER + 1000);
    reopen_records(r);
    assert_int_equal(disk_record_offer(r->d, &k, 1, 10 * (HEADER + 1000), 0), 0);
    offer(r, 1, 100, 1000, 1000);
    offer(r, 2, 200, 6 * (HEADER + 1000) - HEADER, SIZE_MAX);
    offer(r, 3, 300, 3 * (HEADER + 1000) - HEADER, SIZE_MAX);
    assert_int_equal(disk_record_count(r->d).removed, 0);
    assert_int_equal(disk_record_count(r->d).bytes, r->options.bytes);
    offer(r, 1, 100, 2000, 2000);
    assert_false(has_record(r, 2));
    assert_int_equal(bytes_back(r, 1, 2000), 2000);
    offer(r, 2, 200, 7 * (HEADER + 1000), SIZE_MAX); /* only the smallest has room beside it */
    assert_true(has_record(r, 1) && has_record(r, 2) && !has_record(r, 3));
    offer(r, 2, 200, 8 * (HEADER + 1000) - 1, SIZE_MAX); /* nothing has, nor what it replaces */
    assert_true(has_record(r, 2) && !has_record(r, 1));
    assert_true(disk_record_count(r->d).bytes <= r->options.bytes);
    r->options.bytes = 5 * (HEADER + 1000);
    reopen_records(r);
    settle_records(r);
    for (int i = 0; i < 500 && disk_record_count(r->d).bytes > 0; i++) usleep(10000);
    assert_int_equal(clear_folder(r), 0);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Each byte of a file is checked, and each length; what is damaged is deleted. */
static void test_damage(void **state)
{
    records *r = *state;
    uint8_t bytes[256];
    char name[64];
    size_t n = HEADER + bytes_of(1, bytes);
    file_of(r, 1, name);
    for (size_t at = 0; at < 2 * n; at++) {
        put_record(r, 1, 1, 1);
        disk_records_close(r->d);
        damage(r->f, name, (off_t)(at % n), at < n ? 1 : 0); /* flips a bit; cuts the file there */
        open_records(r);
        assert_false(is_record(r, 1, 1));
        assert_false(has_record(r, 1));
        settle_records(r);
        assert_int_equal(clear_folder(r), 0);
        assert_true(disk_record_count(r->d).damaged + disk_record_count(r->d).removed <= 2);
    }
    put_record(r, 1, 1, 1);
    reopen_records(r);
    assert_true(is_record(r, 1, 1));
    damage(r->f, name, HEADER + 3, 1); /* while it is known */
    assert_false(is_record(r, 1, 1));
    assert_int_equal(disk_record_count(r->d).damaged, 1);
    assert_non_null(strstr(r->f->trouble, "a session was damaged on disk"));
}

/* A file under another's name, of another identity, and files that are not the store's. */
static void test_foreign(void **state)
{
    records *r = *state;
    char one[64], two[64], from[160], to[160];
    put_record(r, 1, 1, 1);
    file_of(r, 1, one);
    file_of(r, 2, two);
    path_of(r->f, one, from);
    path_of(r->f, two, to);
    assert_int_equal(rename(from, to), 0);
    reopen_records(r);
    assert_false(has_record(r, 1) || has_record(r, 2));
    settle_records(r);
    assert_int_equal(clear_folder(r), 0);

    put_record(r, 1, 1, 1);
    put_record(r, 2, 1, 2);
    char note[160];
    path_of(r->f, "sessions/note", note);
    fclose(fopen(note, "w"));
    char link_name[160];
    file_of(r, 3, one);
    path_of(r->f, one, link_name);
    assert_int_equal(symlink(note, link_name), 0);
    r->options.identity = 8;
    r->f->trouble[0] = '\0';
    reopen_records(r);
    settle_records(r);
    assert_int_equal(disk_record_count(r->d).records, 0);
    assert_non_null(strstr(r->f->trouble, "sessions of another model"));
    assert_int_equal(clear_folder(r), 2); /* the note and the link */
}

/* A sudden end while a file is written leaves the one before it, and what is unfinished. */
static void test_torn(void **state)
{
    records *r = *state;
    put_record(r, 1, 1, 1);
    char note[160];
    path_of(r->f, "sessions/new", note);
    FILE *unfinished = fopen(note, "w");
    fputs("half a record", unfinished);
    fclose(unfinished);
    reopen_records(r);
    assert_true(is_record(r, 1, 1));
    put_record(r, 1, 1, 2);
    reopen_records(r);
    assert_true(is_record(r, 1, 2));
    assert_int_equal(clear_folder(r), 1);
}

/* ---- calls of the system that fail ----------------------------------------------------------- */

static void test_no_space(void **state)
{
    records *r = *state;
    put_record(r, 1, 1, 1);
    for (long good = 0; good < 2; good++) { /* the header, then the bytes, cannot be written */
        r->f->good_writes = good;
        r->f->write_errno = ENOSPC;
        put_record(r, 1, 1, 2);
        put_record(r, 2, 1, 3);
        assert_true(is_record(r, 1, 1)); /* as it was before */
        assert_false(has_record(r, 2));
        r->f->write_errno = 0;
    }
    assert_true(disk_record_count(r->d).errors >= 3);
    assert_int_equal(r->f->troubles, 1);
    assert_non_null(strstr(r->f->trouble, "No space left on device"));
    put_record(r, 2, 1, 3); /* there is room again */
    assert_true(is_record(r, 2, 3));
    reopen_records(r);
    assert_true(is_record(r, 1, 1) && is_record(r, 2, 3));
    assert_int_equal(clear_folder(r), 2);
}

static void test_sync_fails(void **state)
{
    records *r = *state;
    put_record(r, 1, 1, 1);
    r->f->sync_errno = EIO;
    put_record(r, 1, 1, 2);
    r->f->sync_errno = 0;
    assert_true(is_record(r, 1, 1));
    assert_non_null(strstr(r->f->trouble, "cannot be written: Input/output error"));
}

/* The file of a new record is in its folder, which cannot be synced: it goes again. */
static void test_what_cannot_be_synced_is_deleted(void **state)
{
    records *r = *state;
    char name[64], path[sizeof r->f->dir + 64];
    file_of(r, 1, name);
    snprintf(path, sizeof path, "%s/%s", r->f->dir, name);
    r->f->good_syncs = 1; /* that of the file */
    r->f->sync_errno = EIO;
    put_record(r, 1, 1, 1);
    r->f->sync_errno = 0;
    settle_records(r);
    assert_false(has_record(r, 1));
    assert_int_equal(access(path, F_OK), -1);
    reopen_records(r);
    assert_false(has_record(r, 1));
}

/* A folder in the file's place cannot be deleted as a file is; at the end the file is there. */
static void test_a_deletion_is_tried_again(void **state)
{
    records *r = *state;
    char name[64], path[sizeof r->f->dir + 64], aside[sizeof r->f->dir + 16];
    disk_key k = key(1);
    file_of(r, 1, name);
    snprintf(path, sizeof path, "%s/%s", r->f->dir, name);
    snprintf(aside, sizeof aside, "%s/aside", r->f->dir);
    put_record(r, 1, 1, 1);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    disk_record_remove(r->d, &k);
    settle_records(r);
    assert_int_equal(disk_record_count(r->d).errors, 1);
    assert_false(has_record(r, 1));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rename(aside, path), 0);
    reopen_records(r);
    assert_false(has_record(r, 1));
    assert_int_equal(access(path, F_OK), -1);
}

static void test_read_fails(void **state)
{
    records *r = *state;
    put_record(r, 1, 1, 1);
    r->f->read_errno = EIO;
    assert_false(is_record(r, 1, 1));
    r->f->read_errno = 0;
    assert_non_null(strstr(r->f->trouble, "cannot be read: Input/output error"));
    assert_int_equal(disk_record_count(r->d).errors, 1);
    put_record(r, 1, 1, 2);
    assert_true(is_record(r, 1, 2));
}

static void test_refusals(void **state)
{
    records *r = *state;
    error err = {{0}};
    disk_records *other = NULL;
    disk_records_options o = r->options;
    o.dir = "/proc/nothing";
    assert_int_equal(disk_records_open(&o, &other, &err).code, STATUS_IO);
    assert_null(other);
    disk_records_close(r->d);
    r->d = NULL;
    clear_folder(r);
    assert_int_equal(rmdir(r->folder), 0);
    assert_int_equal(symlink("/tmp", r->folder), 0); /* a link to another's folder */
    assert_int_equal(disk_records_open(&r->options, &other, &err).code, STATUS_IO);
    assert_int_equal(unlink(r->folder), 0);
    open_records(r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup_records, teardown_records)
    const struct CMUnitTest tests[] = {
        TEST(last_put_counts),
        TEST(before_it_is_written),
        TEST(owner_with_most_makes_room),
        TEST(old_ones_go),
        TEST(what_is_offered_is_copied),
        TEST(bytes_are_bounded),
        TEST(damage),
        TEST(foreign),
        TEST(torn),
        TEST(no_space),
        TEST(sync_fails),
        TEST(what_cannot_be_synced_is_deleted),
        TEST(a_deletion_is_tried_again),
        TEST(read_fails),
        TEST(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

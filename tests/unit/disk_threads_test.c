/* The store of blocks on disk: flushes, full buffers and several threads at once. */
#include "tests/unit/disk_fixture.h"

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

/* The calls that the engine makes do not wait for a disk that is slow to write a record, or for a
 * log that is slow to take a line. */
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
        TEST(test_flush),       TEST(test_waits_for_nobody), TEST(test_flush_meets_record),
        TEST(test_flush_syncs), TEST(test_buffers_run_out),  TEST(test_drain),
        TEST(test_threads),     TEST(test_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

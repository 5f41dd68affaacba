/* base: status, memory, numbers, files, limits. Text and JSON: base_text_test.c; the thread pool:
 * base_threads_test.c. */
#include "base/base.h"
#include "base/cgroup.h"
#include "base/rng_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a temporary folder for tests that need files ---- */

typedef struct scratch {
    char dir[64];
} scratch;

static int make_scratch(void **state)
{
    scratch *s = calloc(1, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "%s/octavo-base-XXXXXX", P_tmpdir);
    *state = s;
    return mkdtemp(s->dir) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    scratch *s = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    int result = system(command);
    free(s);
    return result;
}

/* Writes s->dir/name, creating folders as needed; returns the path in `path`. */
static void put_file(const scratch *s, const char *name, const char *text, size_t n, char path[256])
{
    snprintf(path, 256, "%s/%s", s->dir, name);
    for (char *p = path + strlen(s->dir) + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void put_text(const scratch *s, const char *name, const char *text)
{
    char path[256];
    put_file(s, name, text, strlen(text), path);
}

/* ---- status ---- */

static void test_status(void **state)
{
    (void)state;
    assert_true(status_ok(STATUS_IS_OK));
    assert_string_equal(status_text(STATUS_NO_PAGES), "no free pages");
    assert_string_equal(status_text((status_code)999), "unknown status");

    error err;
    status s = error_set(&err, STATUS_CORRUPT, "tensor %d", 7);
    assert_int_equal(s.code, STATUS_CORRUPT);
    assert_string_equal(s.message, "corrupt input");
    assert_string_equal(err.text, "tensor 7");
    error_prefix(&err, "%s", "a.safetensors");
    assert_string_equal(err.text, "a.safetensors: tensor 7");
    assert_int_equal(error_set(NULL, STATUS_IO, "x").code, STATUS_IO);
    error_prefix(NULL, "x");
    error_set(&err, STATUS_IO, "kv-disk: a page: damaged");
    error_insert(&err, "rank %d", 1);
    assert_string_equal(err.text, "kv-disk: rank 1: a page: damaged");
    error_set(&err, STATUS_IO, "out of memory: 3 bytes");
    error_insert(&err, "rank %d", 1);
    assert_string_equal(err.text, "rank 1: out of memory: 3 bytes");
    error_insert(NULL, "x");
}

static void test_error_is_one_clean_line(void **state)
{
    (void)state;
    error err;
    error_set(&err, STATUS_INVALID, "%s", "a\nb\x1b[31m\x7f\xff\xc2\x9b \xc3\xa9");
    assert_string_equal(err.text, "a?b?[31m??\?? \xc3\xa9");

    char longer[600];
    memset(longer, 'x', sizeof longer);
    longer[510] = '\xc3'; /* its second byte is cut off */
    longer[511] = '\xa9';
    longer[599] = 0;
    error_set(&err, STATUS_INVALID, "%s", longer);
    assert_int_equal(strlen(err.text), 510);
    error_prefix(&err, "place");
    assert_memory_equal(err.text, "place: xxx", 10);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    error_prefix(&err, "%s", longer + 512 - 400 + 2); /* hardly any room left after the prefix */
    assert_true(strlen(err.text) < sizeof err.text);
}

/* ---- memory ---- */

typedef struct counting {
    int live, calls, fail_at;
} counting;

static void *counting_resize(void *ctx, void *ptr, size_t size)
{
    counting *c = ctx;
    if (size == 0) {
        c->live -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (++c->calls == c->fail_at) return NULL;
    c->live += ptr == NULL;
    return realloc(ptr, size);
}

static void test_alloc(void **state)
{
    (void)state;
    counting c = {.fail_at = 4};
    allocator a = {counting_resize, &c};
    uint8_t *p = alloc_zeroed(&a, 100, 3);
    for (int i = 0; i < 300; i++) assert_int_equal(p[i], 0);
    p[0] = 42;
    p = alloc_resize(&a, p, 1000, 1);
    assert_int_equal(p[0], 42);
    assert_null(alloc_zeroed(&a, SIZE_MAX / 2, 3));
    assert_null(alloc_resize(&a, p, SIZE_MAX / 2, 3));
    assert_int_equal(c.calls, 2);
    void *empty = alloc_zeroed(&a, 0, 8);
    assert_non_null(empty);
    assert_null(alloc_resize(&a, p, 2000, 1)); /* the 4th call fails, p stays */
    assert_int_equal(p[0], 42);
    alloc_free(&a, p);
    alloc_free(&a, empty);
    alloc_free(&a, NULL);
    assert_int_equal(c.live, 0);

    void *q = alloc_zeroed(NULL, 1, 1);
    assert_non_null(q);
    alloc_free(NULL, q);
}

static void test_alloc_pages(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 12345};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *p = alloc_pages(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (sizes[i] >= 2 << 20 ? 2 << 20 : 4096), 0);
        for (size_t at = 0; at < sizes[i]; at += 1024) assert_int_equal(p[at], 0);
        if (sizes[i] > 0) p[0] = p[sizes[i] - 1] = 1;
        alloc_pages_free(p, sizes[i]);
    }
    assert_null(alloc_pages(SIZE_MAX));
    assert_null(alloc_pages(SIZE_MAX / 2));
    alloc_pages_free(NULL, 4096);
}

static void test_arena(void **state)
{
    (void)state;
    arena a;
    arena_init(&a, 64, 4096);
    assert_non_null(arena_alloc(&a, 0));
    assert_ptr_not_equal(arena_alloc(&a, 0), arena_alloc(&a, 0));
    for (int round = 0; round < 3; round++) {
        size_t given = 0;
        for (size_t n = 1;; n = n * 7 % 101 + 1) {
            uint8_t *p = arena_alloc(&a, n);
            if (!p) break;
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
            memset(p, 0xab, n);
            given += n;
        }
        assert_true(given > 1000);
        assert_true(a.total_bytes <= 4096);
        arena_reset(&a);
    }
    char *s = arena_strndup(&a, "octavo", 3);
    assert_string_equal(s, "oct");
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_null(arena_alloc(&a, 5000));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc_array(&a, SIZE_MAX / 4, 8));
    assert_null(arena_strndup(&a, "x", SIZE_MAX));
    assert_non_null(arena_alloc_array(&a, 4, 8));
    arena_destroy(&a);
    arena_destroy(NULL);

    arena_init(&a, 1024, 0); /* no limit: allocations above the block size succeed */
    assert_non_null(arena_alloc(&a, 100000));
    arena_destroy(&a);
}

/* ---- numbers ---- */

/* Computed from the definition (IEEE 754 binary16), not by the code's bit operations. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 0    ? ldexp(fraction, -24)
                       : exponent == 31 ? (fraction ? (double)NAN : INFINITY)
                                        : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void test_f16_all(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = f16_to_f32(h);
        if (isnan(half_value(h))) {
            assert_true(isnan(f));
            uint16_t back = f16_from_f32(f);
            assert_true(isnan(half_value(back)));
            assert_int_equal(back & 0x8000, h & 0x8000);
            continue;
        }
        assert_true((double)f == half_value(h));
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(f16_from_f32(f), h);
    }
}

/* Between each half and the next one: a value just below the middle, the middle (to even), and one
 * just above. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7c00; h++) {
        double next = h == 0x7bff ? 65536.0 : half_value((uint16_t)(h + 1));
        float middle = (float)((half_value(h) + next) / 2); /* exact */
        uint16_t even = (uint16_t)(h + (h & 1));
        assert_int_equal(f16_from_f32(middle), even);
        assert_int_equal(f16_from_f32(nextafterf(middle, 0.0f)), h);
        assert_int_equal(f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f16_from_f32(-middle), 0x8000 | even);
    }
    assert_int_equal(f16_from_f32(FLT_MAX), 0x7c00);
    assert_int_equal(f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(f16_from_f32(FLT_TRUE_MIN), 0);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float f = bf16_to_f32((uint16_t)i);
        if (isnan(f)) assert_true(isnan(bf16_to_f32(bf16_from_f32(f))));
        else assert_int_equal(bf16_from_f32(f), i);
    }
    assert_int_equal(bf16_from_f32(1.0f + 0x1p-8f), 0x3f80); /* tie to even */
    assert_int_equal(bf16_from_f32(1.0f + 0x3p-8f), 0x3f82); /* tie to even, upwards */
    assert_int_equal(bf16_from_f32(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
    assert_int_equal(bf16_from_f32(FLT_MAX), 0x7f80);
    uint32_t small_nan = 0x7f800001u; /* its payload would round to infinity's */
    float f;
    memcpy(&f, &small_nan, sizeof f);
    assert_true(isnan(bf16_to_f32(bf16_from_f32(f))));
}

/* kat_vectors of Random123: philox4x32, 10 rounds. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, lo, hi;
        uint32_t v[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        philox_block b = philox4x32(known[i].key, known[i].lo, known[i].hi);
        assert_memory_equal(b.v, known[i].v, sizeof b.v);
    }
}

static void test_rng(void **state)
{
    (void)state;
    rng a = rng_seed(7), b = rng_seed(7), c = rng_seed(8);
    int same = 0;
    for (int i = 0; i < 100; i++) {
        uint32_t x = rng_u32(&a);
        assert_int_equal(x, rng_u32(&b));
        same += x == rng_u32(&c);
    }
    assert_true(same < 3);

    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) counts[rng_below(&a, 7)]++;
    for (int i = 0; i < 7; i++) assert_in_range(counts[i], 9500, 10500);
    /* Without rejection every third value would come twice as often. */
    uint32_t huge = 0xc0000001u;
    int thirds = 0;
    for (int i = 0; i < 30000; i++) {
        uint32_t x = rng_below(&a, huge);
        assert_true(x < huge);
        thirds += x % 3 == 0;
    }
    assert_in_range(thirds, 9500, 10500);

    double sum = 0, sum2 = 0, unit = 0;
    for (int i = 0; i < 100000; i++) {
        float z = rng_normal(&a), u = rng_unit(&a);
        assert_true(isfinite(z) && u >= 0.0f && u < 1.0f);
        sum += z;
        sum2 += (double)z * z;
        unit += u;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(sum2 / 1e5 - 1) < 0.03);
    assert_true(fabs(unit / 1e5 - 0.5) < 0.01);
}

static void test_hash(void **state)
{
    (void)state;
    enum { SIZE_MAX_TESTED = 300 };
    uint8_t data[SIZE_MAX_TESTED + 8];
    rng r = rng_seed(1);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)rng_u32(&r);

    /* Equal bytes have equal hashes at any address; each bit, the size and the seed change the
     * hash. */
    uint8_t moved[SIZE_MAX_TESTED + 8];
    uint64_t before = 0;
    for (size_t n = 0; n <= SIZE_MAX_TESTED; n++) {
        uint64_t h = hash_bytes(data, n, 5);
        memcpy(moved + n % 8, data, n);
        assert_true(hash_bytes(moved + n % 8, n, 5) == h);
        assert_true(hash_bytes(data, n, 6) != h && h != before);
        before = h;
        double flipped = 0;
        for (size_t bit = 0; bit < n * 8; bit++) {
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            uint64_t other = hash_bytes(data, n, 5);
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_true(other != h);
            flipped += __builtin_popcountll(other ^ h);
        }
        if (n >= 8) assert_true(fabs(flipped / ((double)n * 8) - 32) < 2.5);
    }
    uint8_t zeros[64] = {0};
    for (size_t n = 0; n < 64; n++)
        for (size_t m = 0; m < n; m++)
            assert_true(hash_bytes(zeros, n, 0) != hash_bytes(zeros, m, 0));
    assert_true(hash_bytes(NULL, 0, 0) == hash_bytes(zeros, 0, 0));
}

/* Blocks that are made together are those made one by one, over a carry of the counter too. */
static void test_rng_blocks(void **state)
{
    (void)state;
    philox_block many[23];
    rng r = rng_seed(4);
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t key = rng_u64(&r), lo = rng_u64(&r), n = rng_below(&r, 24);
        uint64_t hi = i % 2 ? rng_u64(&r) : 0xfffffff0u + rng_below(&r, 16);
        philox4x32_blocks(key, lo, hi, n, many);
        for (uint64_t k = 0; k < n; k++) {
            philox_block due = philox4x32(key, lo, hi + k);
            assert_memory_equal(&many[k], &due, sizeof due);
        }
    }
}

static void test_clock(void **state)
{
    (void)state;
    int64_t us = clock_now_us(), ns = clock_now_ns(), later = clock_now_us();
    assert_true(us > 0 && ns / 1000 >= us && later >= ns / 1000);

    /* A thread that sleeps computes nothing. */
    int64_t computed = clock_thread_ns();
    ns = clock_now_ns();
    usleep(50000);
    computed = clock_thread_ns() - computed;
    assert_in_range(computed, 0, clock_now_ns() - ns - 1);
    for (computed = clock_thread_ns(); clock_thread_ns() == computed;) continue;
}

/* ---- files ---- */

static void test_files(void **state)
{
    const scratch *s = *state;
    char path[256], other[256];
    error err;
    file_map map;
    enum { SIZE = 3 * 4096 + 17 };
    char *data = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) data[i] = (char)(i * 31);
    put_file(s, "data.bin", data, SIZE, path);
    assert_true(status_ok(file_map_open(path, &map, &err)));
    assert_int_equal(map.size, SIZE);
    assert_memory_equal(map.data, data, SIZE);
    file_map_release(&map, 100, SIZE + 999); /* released pages read the same again */
    file_map_release(&map, SIZE, SIZE);
    assert_memory_equal(map.data, data, SIZE);
    file_map_close(&map);
    file_map_close(&map);
    file_map_close(NULL);

    char *text;
    size_t n;
    assert_true(status_ok(file_read(path, SIZE, &text, &n, &err)));
    assert_int_equal(n, SIZE);
    assert_memory_equal(text, data, SIZE);
    assert_int_equal(text[n], 0);
    free(text);
    assert_int_equal(file_read(path, SIZE - 1, &text, &n, &err).code, STATUS_LIMIT);
    assert_non_null(strstr(err.text, "data.bin: 12305 bytes"));
    free(data);

    put_file(s, "empty", "", 0, other);
    assert_true(status_ok(file_map_open(other, &map, &err)));
    assert_true(map.data == NULL && map.size == 0);
    file_map_close(&map);
    assert_true(file_exists(other));

    snprintf(other, sizeof other, "%s/fifo", s->dir);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(file_map_open(other, &map, &err).code, STATUS_INVALID);
    assert_int_equal(file_read(other, 10, &text, &n, &err).code, STATUS_INVALID);
    assert_int_equal(file_map_open(s->dir, &map, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "not a regular file"));
    snprintf(other, sizeof other, "%s/none", s->dir);
    assert_int_equal(file_map_open(other, &map, &err).code, STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/none: No such file"));
    assert_false(file_exists(other));
}

static void test_file_join(void **state)
{
    (void)state;
    char out[8];
    assert_true(status_ok(file_join(out, sizeof out, "ab", "cd", NULL)));
    assert_string_equal(out, "ab/cd");
    assert_true(status_ok(file_join(out, sizeof out, "ab/", "cdef", NULL)));
    assert_string_equal(out, "ab/cdef");
    assert_true(status_ok(file_join(out, sizeof out, "", "cd", NULL)));
    assert_string_equal(out, "cd");
    assert_int_equal(file_join(out, sizeof out, "abc", "defg", NULL).code, STATUS_LIMIT);
}

static void test_json_file(void **state)
{
    const scratch *s = *state;
    char path[256];
    json_t *doc;
    error err;
    put_file(s, "c.json", "{\"a\":\n tru}", 11, path);
    assert_int_equal(json_read_file(path, 100, &doc, &err).code, STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "c.json: line 2, column"));
    assert_int_equal(json_read_file(path, 10, &doc, &err).code, STATUS_LIMIT);
    put_file(s, "c.json", "{\"a\":1}", 7, path);
    assert_true(status_ok(json_read_file(path, 100, &doc, &err)));
    json_decref(doc);
}

/* ---- limits of control groups ---- */

static void test_cgroup_v2(void **state)
{
    const scratch *s = *state;
    double cores;
    uint64_t bytes;
    assert_false(cgroup_cpu_quota(s->dir, &cores));
    assert_false(cgroup_memory_left(s->dir, &bytes));

    put_text(s, "proc/self/cgroup", "0::/outer/inner\n");
    put_text(s, "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    put_text(s, "sys/fs/cgroup/outer/inner/memory.max", "max\n");
    assert_false(cgroup_cpu_quota(s->dir, &cores));
    assert_false(cgroup_memory_left(s->dir, &bytes));

    /* An ancestor's limit counts; the tightest one applies. */
    put_text(s, "sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
    put_text(s, "sys/fs/cgroup/outer/memory.max", "1000000\n");
    put_text(s, "sys/fs/cgroup/outer/memory.current", "700000\n");
    put_text(s, "sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 200000\nfile 1\n");
    assert_true(cgroup_cpu_quota(s->dir, &cores) && cores == 1.5);
    assert_true(cgroup_memory_left(s->dir, &bytes) && bytes == 500000);
    put_text(s, "sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
    put_text(s, "sys/fs/cgroup/outer/inner/memory.max", "600\n");
    put_text(s, "sys/fs/cgroup/outer/inner/memory.current", "700\n");
    assert_true(cgroup_cpu_quota(s->dir, &cores) && cores == 0.5);
    assert_true(cgroup_memory_left(s->dir, &bytes) && bytes == 0);
}

static void test_cgroup_v1(void **state)
{
    const scratch *s = *state;
    double cores;
    uint64_t bytes;
    put_text(s, "proc/self/cgroup", "5:cpuset:/\n4:memory:/job\n3:cpu,cpuacct:/gone\n");
    put_text(s, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
    put_text(s, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put_text(s, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
    put_text(s, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000\n");
    put_text(s, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(cgroup_cpu_quota(s->dir, &cores) && cores == 3);
    assert_true(cgroup_memory_left(s->dir, &bytes) && bytes == 2000);
    put_text(s, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    assert_false(cgroup_cpu_quota(s->dir, &cores));
}

/* The bound on all memory: the tightest limit of all groups, whatever is in use. */
static void test_memory_bound(void **state)
{
    const scratch *s = *state;
    uint64_t bytes;
    assert_false(cgroup_memory_limit(s->dir, &bytes));
    memory_bound none = memory_bound_of(s->dir, UINT64_MAX);
    assert_true(none.bytes == UINT64_MAX);
    put_text(s, "proc/meminfo", "MemFree: 10 kB\nMemTotal:       8000 kB\nMemAvailable: 20 kB\n");
    memory_bound all = memory_bound_of(s->dir, UINT64_MAX);
    assert_true(all.bytes == 8000 * 1024);
    assert_string_equal(all.what, "this machine");
    memory_bound space = memory_bound_of(s->dir, 5000000);
    assert_true(space.bytes == 5000000);
    assert_string_equal(space.what, "RLIMIT_AS");

    put_text(s, "proc/self/cgroup", "4:memory:/job\n0::/outer/inner\n");
    put_text(s, "sys/fs/cgroup/outer/inner/memory.max", "max\n");
    assert_false(cgroup_memory_limit(s->dir, &bytes));
    put_text(s, "sys/fs/cgroup/outer/memory.max", "4000000\n");
    put_text(s, "sys/fs/cgroup/outer/memory.current", "3999999\n");
    assert_true(cgroup_memory_limit(s->dir, &bytes) && bytes == 4000000);
    memory_bound group = memory_bound_of(s->dir, 5000000);
    assert_true(group.bytes == 4000000);
    assert_string_equal(group.what, "the memory cgroup");
    put_text(s, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(cgroup_memory_limit(s->dir, &bytes) && bytes == 4000000);
    put_text(s, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000000\n");
    assert_true(cgroup_memory_limit(s->dir, &bytes) && bytes == 3000000);
}

static void test_limits(void **state)
{
    (void)state;
    assert_in_range(cpu_count_allowed(), 1, sysconf(_SC_NPROCESSORS_ONLN));
    size_t total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_in_range(memory_available_bytes(), 0, total);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),       cmocka_unit_test(test_error_is_one_clean_line),
        cmocka_unit_test(test_alloc),        cmocka_unit_test(test_alloc_pages),
        cmocka_unit_test(test_arena),        cmocka_unit_test(test_f16_all),
        cmocka_unit_test(test_f16_rounding), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_philox),       cmocka_unit_test(test_rng),
        cmocka_unit_test(test_hash),         cmocka_unit_test(test_rng_blocks),
        cmocka_unit_test(test_clock),        cmocka_unit_test(test_file_join),
        cmocka_unit_test(test_limits),       WITH_FOLDER(test_files),
        WITH_FOLDER(test_json_file),         WITH_FOLDER(test_cgroup_v2),
        WITH_FOLDER(test_cgroup_v1),         WITH_FOLDER(test_memory_bound),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}

/* The mirror of the tables: the delta words that it accepts, and those that it refuses. */
#include "paged_kv/delta.h"
#include "paged_kv/paged_kv.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct heap {
    long calls, live, fail_at;
} heap;

static void *counting_resize(void *ctx, void *ptr, size_t size)
{
    heap *h = ctx;
    if (size == 0) {
        h->live -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (h->calls++ == h->fail_at) return NULL;
    void *got = realloc(ptr, size);
    h->live += !ptr && got;
    return got;
}

static const pkv_geometry two_groups = {
    .page_tokens = 16, .n_layers = 2, .n_kv_heads = 1, .layers_per_group = 1, .heads_per_group = 1};

static void mirror_refuses_lies(void **state)
{
    (void)state;
    enum {
        O = DELTA_OPEN,
        C = DELTA_CLOSE,
        A = DELTA_APPEND,
        R = DELTA_REPLACE,
        D = DELTA_DROP,
        X = DELTA_COMPACT,
        F = DELTA_FORK,
        T = DELTA_TRIM,
        K = DELTA_PARK,
        H = DELTA_HOLD
    };
    static const struct {
        uint32_t words[24];
        size_t n;
        bool good;
    } logs[] = {
        {{O, 0, 1, 1, 5, 6, A, 0, 3, 2, 7, 8}, 12, true},
        {{O, 0, 1, 1, 5, 6, A, 0, 3, 2, 7, 8, D, 0, 1, 2, 2, F, 0, 1, 0, C, 0}, 23, true},
        {{O, 0, 0, 0, A, 0, 3, 2, 7, 8, R, 0, 1, 9, X, 0, 0, 2, 4}, 19, true},
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 1, 20, 1, 1, 9}, 15, true},
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 1, 3, 0, A, 0, 30, 4, 2, 5, 6, 7}, 21, false},
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 1, 3, 0, A, 0, 30, 4, 4, 5, 6, 7}, 21, true},
        {{O, 0, 1, 1, 1, 3, T, 0, 0, 0, 0, A, 0, 1, 2, 1, 2}, 17, true}, /* page 1 is free */
        {{0}, 1, false},
        {{8, 0}, 2, false},
        {{O}, 1, false},
        {{O, 0, 1, 1, 5}, 5, false},              /* cut off */
        {{O, 4, 1, 0}, 4, false},                 /* no such sequence */
        {{O, 0, 0, 0, O, 0, 0, 0}, 8, false},     /* open twice */
        {{O, 0, 1, 1, 0, 6}, 6, false},           /* page 0 */
        {{O, 0, 1, 1, 5, 20}, 6, false},          /* past the pool */
        {{O, 0, 1, 0x80000000u, 1, 2}, 6, false}, /* more than the pool */
        {{C, 0}, 2, false},                       /* closed */
        {{C, 0xffffffffu}, 2, false},
        {{O, 0, 1, 1, 5, 6, K, 0, O, 0, 1, 1, 5, 7}, 14, true},
        {{K, 0}, 2, false}, /* closed */
        {{O, 0, 1, 1, 5, 6, K}, 7, false},
        {{O, 0, 1, 1, 5, 6, H, 0, C, 0}, 10, true},
        {{H, 0}, 2, false}, /* closed */
        {{O, 0, 1, 1, 5, 6, H}, 7, false},
        {{A, 0, 1, 2, 7, 8}, 6, false},                 /* closed */
        {{O, 0, 0, 0, A, 0, 0, 0}, 8, false},           /* no pages */
        {{O, 0, 0, 0, A, 0, 3, 1, 7}, 9, false},        /* too few pages */
        {{O, 0, 0, 0, A, 0, 3, 3, 7, 8, 9}, 11, false}, /* too many */
        {{O, 0, 0, 0, A, 0, 3, 2, 7}, 9, false},        /* cut off */
        {{O, 0, 0, 0, A, 0, 3, 2, 7, 7}, 10, false},    /* one page twice */
        {{O, 0, 0, 0, A, 0, 0xffffffffu, 2, 7, 8}, 10, false},
        {{O, 0, 1, 1, 5, 6, A, 0, 3, 2, 7, 5}, 12, false},              /* a page that is taken */
        {{O, 0, 0, 0, R, 0, 0, 9}, 8, false},                           /* no last page */
        {{O, 0, 1, 1, 5, 6, R, 0, 0, 6}, 10, false},                    /* taken */
        {{O, 0, 1, 1, 5, 6, R, 0, 2, 9}, 10, false},                    /* no such group */
        {{O, 0, 1, 1, 5, 6, D, 0, 0, 2, 1}, 11, false},                 /* wrong length */
        {{O, 0, 1, 1, 5, 6, D, 0, 0, 1}, 10, false},                    /* cut off */
        {{O, 0, 1, 1, 5, 6, D, 0, 0, 1, 2}, 11, false},                 /* a bit too many */
        {{O, 0, 0, 0, A, 0, 3, 2, 7, 8, D, 0, 0, 1, 0}, 15, true},      /* the page being filled */
        {{O, 0, 1, 1, 5, 6, X, 0, 0, 17, 7, 8}, 12, false},             /* more than there is */
        {{O, 0, 1, 1, 5, 6, X, 0, 0, 3, 5}, 11, false},                 /* one of its own pages */
        {{O, 0, 2, 2, 1, 2, 3, 4, X, 0, 0, 20, 7, 7}, 14, false},       /* one page twice */
        {{O, 0, 1, 1, 5, 6, X, 0, 0, 3}, 10, false},                    /* cut off */
        {{T, 0, 0, 0, 0}, 5, false},                                    /* closed */
        {{O, 0, 1, 1, 5, 6, T, 0, 2, 3, 0}, 11, false},                 /* no such group */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 17, 0}, 11, false},                /* more than there is */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3}, 10, false},                    /* cut off */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 1, 0}, 12, false},              /* cut off */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 0xffffffffu, 0, 9}, 13, false}, /* too many */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 6}, 13, false},           /* taken */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 5}, 13, false},           /* replaced by itself */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 20}, 13, false},          /* past the pool */
        {{O, 0, 1, 1, 5, 6, T, 0, 0, 3, 1, 1, 9}, 13, false},           /* past the table */
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 0, 16, 1, 1, 9}, 15, false},    /* past the kept pages */
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 1, 9, 0, 8}, 17, false}, /* out of order */
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 1, 9, 1, 8}, 17, false}, /* one page twice */
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 0, 9, 1, 9}, 17, false}, /* by one page twice */
        {{O, 0, 2, 2, 1, 2, 3, 4, T, 0, 0, 16, 1, 0, 2}, 15, false},       /* by a dropped page */
        {{F, 0, 1, 0}, 4, false},                                          /* closed parent */
        {{O, 0, 0, 0, F, 0, 0, 0}, 8, false},                              /* onto itself */
        {{O, 0, 0, 0, F, 0, 4, 0}, 8, false},                              /* no such sequence */
        {{O, 0, 0, 0, F, 0}, 6, false},                                    /* cut off */
    };
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++) {
        pkv_mirror *m;
        assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
        /* Exactly sized, so that a sanitizer sees a read past the end. */
        uint32_t *words = malloc(logs[i].n * sizeof *words);
        memcpy(words, logs[i].words, logs[i].n * sizeof *words);
        status s = pkv_mirror_apply(m, words, logs[i].n);
        if (s.code != (logs[i].good ? STATUS_OK : STATUS_CORRUPT))
            fail_msg("log %zu: %d", i, s.code);
        if (!logs[i].good) assert_non_null(s.message);
        free(words);
        pkv_mirror_destroy(m);
    }
}

static void expect_page(const pkv_mirror *m, uint32_t page, bool held, bool parked, uint32_t group)
{
    pkv_mirror_page p = pkv_mirror_page_at(m, page);
    assert_int_equal(p.held, held);
    assert_int_equal(p.parked, parked);
    if (held) assert_int_equal(p.group, group);
}

/* Parked pages are held until they are opened or closed again, shared ones too. */
static void mirror_knows_the_holders_of_a_page(void **state)
{
    (void)state;
    static const uint32_t open[] = {DELTA_OPEN,   0, 1, 1, 5, 6, DELTA_FORK, 0, 1, 0,
                                    DELTA_APPEND, 1, 3, 2, 7, 8};
    static const uint32_t leave[] = {DELTA_PARK, 0, DELTA_CLOSE, 1};
    static const uint32_t again[] = {DELTA_OPEN, 2, 1, 0, DELTA_APPEND, 2, 1, 2, 6, 8};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, open, sizeof open / sizeof *open)));
    for (uint32_t page = 5; page <= 8; page++) expect_page(m, page, true, false, (page - 1) % 2);
    assert_true(status_ok(pkv_mirror_apply(m, leave, sizeof leave / sizeof *leave)));
    for (uint32_t page = 5; page <= 8; page++) expect_page(m, page, false, page <= 6, 0);
    assert_true(status_ok(pkv_mirror_apply(m, again, sizeof again / sizeof *again)));
    expect_page(m, 5, false, true, 0);
    expect_page(m, 6, true, false, 0);
    expect_page(m, 8, true, false, 1);
    expect_page(m, 19, false, false, 0);
    pkv_mirror_destroy(m);
}

/* A parked copy is made of a sequence that continues. After the sequence has closed, the copy holds
 * the pages of that time, and pages that the sequence took later are free. */
static void mirror_knows_what_a_parked_copy_holds(void **state)
{
    (void)state;
    static const uint32_t words[] = {DELTA_OPEN,   0, 1, 1, 5, 6, DELTA_HOLD,  0,
                                     DELTA_APPEND, 0, 3, 2, 7, 8, DELTA_CLOSE, 0};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, words, sizeof words / sizeof *words)));
    for (uint32_t page = 5; page <= 8; page++) expect_page(m, page, false, page <= 6, 0);
    pkv_mirror_destroy(m);
}

/* A resumed page is no longer parked, except by a copy that is still parked. */
static void mirror_knows_what_came_back(void **state)
{
    (void)state;
    static const uint32_t park[] = {DELTA_OPEN, 0, 1, 1, 5, 6, DELTA_HOLD, 0, DELTA_PARK, 0};
    static const uint32_t first[] = {DELTA_RETURN, 1, 1, 2, 5, 2, 6};
    static const uint32_t second[] = {DELTA_RETURN, 2, 1, 2, 5, 2, 6};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, park, sizeof park / sizeof *park)));
    expect_page(m, 5, false, true, 0);
    assert_true(status_ok(pkv_mirror_apply(m, first, sizeof first / sizeof *first)));
    expect_page(m, 5, true, true, 0);
    assert_false(pkv_mirror_page_at(m, 5).shared);
    assert_true(status_ok(pkv_mirror_apply(m, second, sizeof second / sizeof *second)));
    expect_page(m, 5, true, false, 0);
    assert_true(pkv_mirror_page_at(m, 5).shared);
    pkv_mirror_destroy(m);
}

static void mirror_survives_failing_allocations(void **state)
{
    (void)state;
    static const uint32_t words[] = {DELTA_OPEN, 0, 1, 1, 5, 6, DELTA_APPEND, 0, 20, 4, 7, 8, 9, 10,
                                     DELTA_FORK, 0, 1, 0};
    heap f = {0};
    allocator alloc = {counting_resize, &f};
    status last = status_make(STATUS_NO_MEMORY, NULL);
    for (f.fail_at = 0; !status_ok(last); f.fail_at++) {
        f.calls = 0;
        pkv_mirror *m = NULL;
        last = pkv_mirror_create(&two_groups, 20, 4, &alloc, &m);
        if (status_ok(last)) last = pkv_mirror_apply(m, words, sizeof words / sizeof words[0]);
        assert_true(status_ok(last) || last.code == STATUS_NO_MEMORY);
        pkv_mirror_destroy(m);
        assert_int_equal(f.live, 0);
    }
    assert_true(f.fail_at > 6);
}

/* Two different states with the same checksum would hide a difference. */
static void checksums_differ_by_table(void **state)
{
    (void)state;
    static const uint32_t logs[][18] = {
        {4, DELTA_OPEN, 0, 0, 0},
        {4, DELTA_OPEN, 1, 0, 0},
        {6, DELTA_OPEN, 0, 1, 1, 5, 6},
        {6, DELTA_OPEN, 0, 1, 1, 6, 5},
        {8, DELTA_OPEN, 0, 2, 2, 5, 7, 6, 8},
        {8, DELTA_OPEN, 0, 2, 2, 7, 5, 6, 8},
        {10, DELTA_OPEN, 0, 0, 0, DELTA_APPEND, 0, 3, 2, 5, 6},
        {10, DELTA_OPEN, 0, 0, 0, DELTA_APPEND, 0, 4, 2, 5, 6},
        {15, DELTA_OPEN, 0, 0, 0, DELTA_APPEND, 0, 4, 2, 5, 6, DELTA_TRIM, 0, 1, 3, 0},
    };
    enum { N = sizeof logs / sizeof logs[0] };
    uint64_t sums[N];
    for (size_t i = 0; i < N; i++) {
        pkv_mirror *m;
        assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
        assert_true(status_ok(pkv_mirror_apply(m, logs[i] + 1, logs[i][0])));
        sums[i] = pkv_mirror_checksum(m);
        for (size_t j = 0; j < i; j++) assert_int_not_equal(sums[i], sums[j]);
        pkv_mirror_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirror_refuses_lies),
        cmocka_unit_test(mirror_knows_the_holders_of_a_page),
        cmocka_unit_test(mirror_knows_what_a_parked_copy_holds),
        cmocka_unit_test(mirror_knows_what_came_back),
        cmocka_unit_test(mirror_survives_failing_allocations),
        cmocka_unit_test(checksums_differ_by_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

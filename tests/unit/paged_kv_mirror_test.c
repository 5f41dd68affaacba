/* The mirror of the tables: the delta words that it accepts, and those that it refuses. */
#include "paged_kv/delta.h"
#include "paged_kv/log.h"
#include "tests/unit/paged_kv_whole.h"
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

static const pkv_geometry four_groups = {
    .page_tokens = 16, .n_layers = 2, .n_kv_heads = 2, .layers_per_group = 1, .heads_per_group = 1};

/* Applies a log to a new mirror, which takes it only when it is good. */
static void apply_log(const pkv_geometry *g, uint32_t n_pages, size_t i, const uint32_t *log,
                      size_t n, bool good)
{
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(g, n_pages, 4, NULL, &m)));
    /* Exactly sized, so that a sanitizer sees a read past the end. */
    uint32_t *words = malloc(n * sizeof *words);
    memcpy(words, log, n * sizeof *words);
    status s = pkv_mirror_apply(m, words, n);
    if (s.code != (good ? STATUS_OK : STATUS_CORRUPT)) fail_msg("log %zu: %d", i, s.code);
    if (!good) assert_non_null(s.message);
    free(words);
    pkv_mirror_destroy(m);
}

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
        H = DELTA_HOLD,
        G = PKV_HEAD
    };
    static const struct {
        uint32_t words[26];
        size_t n;
        bool good;
    } logs[] = {
        {{O, 0, G, 1, 1, 5, 6, A, 0, 2, 3, 2, 7, 8}, 14, true},
        {{O, 0, G, 1, 1, 5, 6, A, 0, 2, 3, 2, 7, 8, D, 0, 1, 2, 2, F, 0, 1, 0, C, 0}, 25, true},
        {{O, 0, G, 0, 0, A, 0, 2, 3, 2, 7, 8, R, 0, 1, 9, X, 0, 0, 2, 4}, 21, true},
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 1, 20, 1, 1, 9}, 16, true},
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 1, 3, 0, A, 0, 2, 30, 4, 2, 5, 6, 7}, 23, false},
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 1, 3, 0, A, 0, 2, 30, 4, 4, 5, 6, 7}, 23, true},
        {{O, 0, G, 1, 1, 1, 3, T, 0, 0, 0, 0, A, 0, 2, 1, 2, 1, 2}, 19, true}, /* page 1 is free */
        {{0}, 1, false},
        {{8, 0}, 2, false},
        {{O}, 1, false},
        {{O, 0, G, 1, 1, 5}, 6, false},              /* cut off */
        {{O, 4, G, 1, 0}, 5, false},                 /* no such sequence */
        {{O, 0, G, 0, 0, O, 0, G, 0, 0}, 10, false}, /* open twice */
        {{O, 0, G, 1, 1, 0, 6}, 7, false},           /* page 0 */
        {{O, 0, G, 1, 1, 5, 20}, 7, false},          /* past the pool */
        {{O, 0, G, 1, 0x80000000u, 1, 2}, 7, false}, /* more than the pool */
        {{C, 0}, 2, false},                          /* closed */
        {{C, 0xffffffffu}, 2, false},
        {{O, 0, G, 1, 1, 5, 6, K, 0, O, 0, G, 1, 1, 5, 7}, 16, true},
        {{K, 0}, 2, false}, /* closed */
        {{O, 0, G, 1, 1, 5, 6, K}, 8, false},
        {{O, 0, G, 1, 1, 5, 6, H, 0, C, 0}, 11, true},
        {{H, 0}, 2, false}, /* closed */
        {{O, 0, G, 1, 1, 5, 6, H}, 8, false},
        {{O, 0, G, 0, 0, A, 0, 1, 3, 1, 7, A, 0, 1, 16, 1, 8}, 17, true}, /* some tables */
        {{O, 0, G, 0, 0, A, 0, 0, 3, 0}, 10, false},                      /* to none */
        {{O, 0, G, 0, 0, A, 0, 3, 3, 3, 7, 8, 9}, 13, false},             /* to more than it has */
        {{A, 0, 2, 1, 2, 7, 8}, 7, false},                                /* closed */
        {{O, 0, G, 0, 0, A, 0, 2, 0, 0}, 10, false},                      /* no pages */
        {{O, 0, G, 0, 0, A, 0, 2, 3, 1, 7}, 11, false},                   /* too few pages */
        {{O, 0, G, 0, 0, A, 0, 2, 3, 3, 7, 8, 9}, 13, false},             /* too many */
        {{O, 0, G, 0, 0, A, 0, 2, 3, 2, 7}, 11, false},                   /* cut off */
        {{O, 0, G, 0, 0, A, 0, 2, 3, 2, 7, 7}, 12, false},                /* one page twice */
        {{O, 0, G, 0, 0, A, 0, 2, 0xffffffffu, 2, 7, 8}, 12, false},
        {{O, 0, G, 1, 1, 5, 6, A, 0, 2, 3, 2, 7, 5}, 14, false},         /* a page that is taken */
        {{O, 0, G, 0, 0, R, 0, 0, 9}, 9, false},                         /* no last page */
        {{O, 0, G, 1, 1, 5, 6, R, 0, 0, 6}, 11, false},                  /* taken */
        {{O, 0, G, 1, 1, 5, 6, R, 0, 2, 9}, 11, false},                  /* no such group */
        {{O, 0, G, 1, 1, 5, 6, D, 0, 0, 2, 1}, 12, false},               /* wrong length */
        {{O, 0, G, 1, 1, 5, 6, D, 0, 0, 1}, 11, false},                  /* cut off */
        {{O, 0, G, 1, 1, 5, 6, D, 0, 0, 1, 2}, 12, false},               /* a bit too many */
        {{O, 0, G, 0, 0, A, 0, 2, 3, 2, 7, 8, D, 0, 0, 1, 0}, 17, true}, /* the page being filled */
        {{O, 0, G, 1, 1, 5, 6, X, 0, 0, 17, 7, 8}, 13, false},           /* more than there is */
        {{O, 0, G, 1, 1, 5, 6, X, 0, 0, 3, 5}, 12, false},               /* one of its own pages */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, X, 0, 0, 20, 7, 7}, 15, false},     /* one page twice */
        {{O, 0, G, 1, 1, 5, 6, X, 0, 0, 3}, 11, false},                  /* cut off */
        {{T, 0, 0, 0, 0}, 5, false},                                     /* closed */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 2, 3, 0}, 12, false},               /* no such group */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 17, 0}, 12, false},              /* more than there is */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3}, 11, false},                  /* cut off */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 1, 0}, 13, false},            /* cut off */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 0xffffffffu, 0, 9}, 14, false}, /* too many */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 6}, 14, false},           /* taken */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 5}, 14, false},           /* replaced by itself */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 1, 0, 20}, 14, false},          /* past the pool */
        {{O, 0, G, 1, 1, 5, 6, T, 0, 0, 3, 1, 1, 9}, 14, false},           /* past the table */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 0, 16, 1, 1, 9}, 16, false},    /* past the kept pages */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 1, 9, 0, 8}, 18, false}, /* out of order */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 1, 9, 1, 8}, 18, false}, /* one page twice */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 0, 20, 2, 0, 9, 1, 9},
         18,
         false},                                                        /* by one page twice */
        {{O, 0, G, 2, 2, 1, 2, 3, 4, T, 0, 0, 16, 1, 0, 2}, 16, false}, /* by a dropped page */
        {{F, 0, 1, 0}, 4, false},                                       /* closed parent */
        {{O, 0, G, 0, 0, F, 0, 0, 0}, 9, false},                        /* onto itself */
        {{O, 0, G, 0, 0, F, 0, 4, 0}, 9, false},                        /* no such sequence */
        {{O, 0, G, 0, 0, F, 0}, 7, false},                              /* cut off */
    };
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++)
        apply_log(&two_groups, 20, i, logs[i].words, logs[i].n, logs[i].good);
}

/* Sixteen cells: whole runs begin at 2, 4 and 6, and a whole run's cells of layer group 1 are 8
 * numbers behind those of layer group 0. */
static void mirror_refuses_lies_about_grains(void **state)
{
    (void)state;
    enum {
        O = DELTA_OPEN,
        C = DELTA_CLOSE,
        A = DELTA_APPEND,
        R = DELTA_REPLACE,
        D = DELTA_DROP,
        F = DELTA_FORK,
        T = DELTA_TRIM,
        X = DELTA_COMPACT,
        K = DELTA_PARK,
        B = DELTA_RETURN,
        S = DELTA_SPLIT,
        P = DELTA_PART,
        V = DELTA_LEAVE,
        Y = DELTA_BACK,
        U = DELTA_UNPARK,
        W = PKV_ALL,
        L = PKV_LAYER,
        G = PKV_HEAD
    };
    static const struct {
        uint32_t words[32];
        size_t n;
        bool good;
    } logs[] = {
        {{O, 0, W, 0, 0, A, 0, 1, 20, 2, 2, 4, S, 0, L, D, 0, 1, 2, 1, S, 0, G}, 23, true},
        {{O, 0, W, 1, 1, 2, F, 0, 1, 0, S, 1, G, C, 0, A, 1, 4, 1, 4, 4, 5, 12, 13}, 24, true},
        {{O, 0, W, 1, 1, 2, K, 0, B, 1, W, 1, 16, 2, S, 1, L, K, 1}, 19, true},
        {{B, 0, L, 1, 16, 2, 16, 10, S, 0, G, A, 0, 4, 1, 4, 4, 5, 6, 7}, 20, true},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, C, 0}, 13, true},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, O, 1, W, 0, 0, A, 1, 1, 1, 1, 4}, 22, true},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 1, 1, K, 0, B, 1, W, 1, 16, 4}, 19, true},
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 20, 2, 2, 4}, 13, true},
        {{O, 0, W, 0, 0, Y, 0, 0, 0, 16, 1, DELTA_FRESH + 2}, 12, true},
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 16, 1, 2, Y, 0, 0, 0, 20, 1, 4}, 19, true},
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 10, 1, 2, Y, 0, 1, 0, 20, 1, 4}, 19, false}, /* not full */
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 40, 2, 2, 4}, 13, false},                    /* lacks a page */
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 16, 2, 2, 4}, 13, false},                    /* one too many */
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 0, 0}, 11, false},
        {{O, 0, W, 0, 0, Y, 0, 1, 1, 16, 1, 2}, 12, false},                  /* no such table */
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 20, 2, 2}, 12, false},                  /* cut off */
        {{O, 0, W, 1, 1, 2, Y, 0, 0, 0, 20, 1, DELTA_FRESH + 2}, 13, false}, /* taken */
        {{O, 0, W, 0, 0, Y, 0, 1, 0, 16, 1, 3}, 12, false}, /* not the first cell */
        {{Y, 0, 1, 0, 16, 1, 2}, 7, false},                 /* of a closed sequence */
        {{V, 0, 0, 1}, 4, false},                           /* of a closed sequence */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0}, 10, false},        /* cut off */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 2, 1}, 11, false},     /* neither parked nor given up */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 0}, 11, false},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 2}, 11, false}, /* leaves no page */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 0xffffffffu}, 11, false},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, A, 0, 1, 1, 1, 6}, 17, false}, /* it is leaving */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, F, 0, 1, 0}, 15, false},
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, S, 0, G}, 14, false},
        /* a page that has not left */
        {{O, 0, W, 2, 2, 2, 4, V, 0, 0, 1, O, 1, W, 0, 0, A, 1, 1, 1, 1, 2}, 22, false},
        {{O, 0, 3, 0, 0}, 5, false}, /* no such grain */
        {{O, 0, 0xffffffffu, 0, 0}, 5, false},
        {{B, 0, 3, 1, 16, 2}, 6, false},
        {{O, 0, W, 1, 1, 0}, 6, false},                 /* page 0 */
        {{O, 0, W, 1, 1, 3}, 6, false},                 /* not the first cell of a run */
        {{O, 0, W, 1, 1, 10}, 6, false},                /* the first one of another layer group */
        {{O, 0, W, 1, 1, 16}, 6, false},                /* past the pool */
        {{O, 0, L, 1, 1, 2, 11}, 7, false},             /* not the first cell */
        {{O, 0, L, 1, 1, 2, 16}, 7, false},             /* past the pool */
        {{O, 0, L, 1, 1, 2}, 6, false},                 /* one page for two tables */
        {{O, 0, W, 1, 5, 2, 4, 6, 2, 4}, 10, false},    /* more than there are whole runs */
        {{O, 0, W, 0, 0, A, 0, 1, 1, 1, 5}, 11, false}, /* not the first cell */
        {{O, 0, W, 0, 0, A, 0, 1, 1, 1, 12}, 11, false},
        {{O, 0, W, 0, 0, A, 0, 1, 1, 4, 2, 4, 6, 8}, 14, false}, /* pages of four tables */
        {{O, 0, W, 1, 1, 2, R, 0, 0, 5}, 10, false},
        {{O, 0, W, 1, 1, 2, X, 0, 0, 3, 5}, 11, false},
        {{O, 0, W, 1, 1, 2, T, 0, 0, 3, 1, 0, 5}, 13, false},
        {{O, 0, W, 1, 1, 2, R, 0, 1, 4}, 10, false}, /* no such table at this grain */
        {{O, 0, W, 1, 1, 2, D, 0, 1, 1, 0}, 11, false},
        {{O, 0, L, 1, 1, 2, 10, T, 0, 2, 0, 0}, 12, false},
        {{O, 0, L, 1, 1, 2, 10, X, 0, 3, 0}, 11, false},
        {{B, 0, W, 1, 16, 10}, 6, false}, /* not the first cell */
        {{B, 0, L, 1, 16, 3, 16, 10}, 8, false},
        {{B, 0, L, 1, 16, 2}, 6, false}, /* one table of two */
        {{B, 0, L, 1, 16, DELTA_FRESH + 2, 16, DELTA_FRESH + 10}, 8, true},
        {{B, 0, W, 1, 16, DELTA_FRESH + 10}, 6, false}, /* not the first cell */
        {{B, 0, L, 1, 16, DELTA_FRESH + 2, 16, DELTA_FRESH + 2},
         8,
         false}, /* one fresh page twice */
        {{O, 0, L, 1, 1, 2, 10, B, 1, L, 1, 16, DELTA_FRESH + 4, 16, DELTA_FRESH + 10},
         15,
         false}, /* it is held */
        {{U, 0, W, 1, 16, 10}, 6, false},
        {{S, 0, G}, 3, false},           /* closed */
        {{S, 0xffffffffu, G}, 3, false}, /* no such sequence */
        {{O, 0, W, 1, 1, 2, C, 0, S, 0, G}, 11, false},
        {{O, 0, W, 1, 1, 2, K, 0, S, 0, G}, 11, false},
        {{O, 0, W, 0, 0, S, 0, W}, 8, false}, /* as fine already */
        {{O, 0, G, 0, 0, S, 0, G}, 8, false},
        {{O, 0, G, 0, 0, S, 0, L}, 8, false}, /* finer already */
        {{O, 0, L, 0, 0, S, 0, W}, 8, false},
        {{O, 0, W, 0, 0, S, 0, 3}, 8, false}, /* no such grain */
        {{O, 0, W, 0, 0, S, 0}, 7, false},    /* cut off */
        {{O, 0, W, 0, 0, S}, 6, false},
        /* In portions: the pages of one table, of several, to a grain that is split again. */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, S, 0, G, D, 0, 3, 2, 1}, 19, true},
        {{O, 0, L, 1, 1, 2, 10, P, 0, G, 1, S, 0, G, D, 0, 3, 1, 0}, 19, true},
        {{O, 0, W, 2, 2, 2, 4, P, 0, L, 1, S, 0, G}, 14, true},
        {{O, 0, W, 2, 2, 2, 4, F, 0, 1, 0, P, 1, G, 1, C, 0, S, 1, G, C, 1}, 22, true},
        {{P, 0, G, 1}, 4, false},                       /* closed */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G}, 10, false},    /* cut off */
        {{O, 0, W, 2, 2, 2, 4, P, 0, W, 1}, 11, false}, /* as fine already */
        {{O, 0, W, 2, 2, 2, 4, P, 0, 3, 1}, 11, false}, /* no such grain */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 0}, 11, false}, /* no page */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 2}, 11, false}, /* none is left */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, P, 0, G, 1}, 15, false},
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 0xffffffffu}, 11, false},
        {{O, 0, W, 3, 3, 2, 4, 6, P, 0, G, 1, P, 0, L, 1}, 16, false}, /* to another grain */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, S, 0, L}, 14, false},
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, C, 0}, 13, false}, /* another change */
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, F, 0, 1, 0}, 15, false},
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, T, 0, 0, 0, 0}, 16, false},
        {{O, 0, W, 2, 2, 2, 4, P, 0, G, 1, O, 1, G, 0, 0, A, 1, 4, 1, 4, 2, 6, 7, 14}, 25, false},
        /* A page that is held as a whole is taken as a part, and the other way round. */
        {{O, 0, W, 1, 1, 2, O, 1, G, 0, 0, A, 1, 4, 1, 4, 4, 5, 6, 11}, 20, false},
        {{O, 0, W, 1, 1, 2, O, 1, L, 0, 0, A, 1, 2, 1, 2, 4, 10}, 18, false},
        {{O, 0, L, 1, 1, 2, 12, O, 1, G, 0, 0, A, 1, 4, 1, 4, 4, 5, 6, 13}, 21, false},
        {{O, 0, L, 1, 1, 2, 12, O, 1, G, 0, 0, A, 1, 4, 1, 4, 4, 5, 6, 11}, 21, true},
        {{O, 0, G, 1, 1, 2, 5, 8, 9, O, 1, W, 0, 0, A, 1, 1, 1, 1, 4}, 20, false},
        {{O, 0, G, 1, 1, 2, 3, 8, 15, O, 1, W, 0, 0, A, 1, 1, 1, 1, 6}, 20, false},
        {{O, 0, G, 1, 1, 2, 3, 8, 15, O, 1, W, 0, 0, A, 1, 1, 1, 1, 4}, 20, true},
        {{O, 0, G, 1, 1, 2, 3, 8, 15, O, 1, L, 0, 0, A, 1, 2, 1, 2, 6, 14}, 21, false},
        {{O, 0, L, 1, 1, 2, 14, O, 1, W, 0, 0, A, 1, 1, 1, 1, 6}, 18, false},
        {{O, 0, L, 0, 0, A, 0, 2, 1, 2, 4, 4}, 12, false}, /* one run twice */
        /* Others hold a run as a whole after one sequence was split; and when none does. */
        {{O, 0, W, 1, 1, 2, F, 0, 1, 0, S, 1, G, C, 1, O, 2, W, 0, 0, A, 2, 1, 1, 1, 2}, 26, false},
        {{O, 0, W, 1, 1, 2, F, 0, 1, 0, S, 1, G, C, 0, O, 2, W, 0, 0, A, 2, 1, 1, 1, 2}, 26, false},
        {{O, 0, W, 1, 1, 2, F, 0, 1, 0, S, 1, G, C, 0, C, 1, O, 2, W, 0, 0, A, 2, 1, 1, 1, 2},
         28,
         true},
    };
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++)
        apply_log(&four_groups, 14, i, logs[i].words, logs[i].n, logs[i].good);
}

/* A grain with the tables of a finer one goes by the finer one's name. */
static void mirror_refuses_a_grain_that_does_not_fit(void **state)
{
    (void)state;
    static const pkv_geometry one_layer = {.page_tokens = 16,
                                           .n_layers = 2,
                                           .n_kv_heads = 4,
                                           .layers_per_group = 2,
                                           .heads_per_group = 1};
    static const uint32_t all[] = {DELTA_OPEN, 0, PKV_ALL, 0, 0, DELTA_SPLIT, 0, PKV_LAYER};
    static const uint32_t layer[] = {DELTA_OPEN, 0, PKV_LAYER, 0, 0, DELTA_SPLIT, 0, PKV_HEAD};
    apply_log(&two_groups, 20, 0, all, 5, true); /* tables for each layer are as fine as can be */
    apply_log(&two_groups, 20, 1, all, 8, false);
    apply_log(&two_groups, 20, 2, layer, 5, false);
    apply_log(&one_layer, 20, 3, all, 5, false);
    apply_log(&one_layer, 20, 4, layer, 8, true);
    static const uint32_t returns[] = {DELTA_RETURN, 0, PKV_LAYER, 1, 0, 0};
    apply_log(&two_groups, 20, 5, returns, 6, false);
}

static void mirror_refuses_absurd_sizes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, (1u << 30) + 1, UINT32_MAX};
    pkv_mirror *m = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(pkv_mirror_create(&four_groups, sizes[i], 4, NULL, &m).code,
                         STATUS_INVALID);
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Checks that tables lead each layer and KV head to its cell of the whole run at `first`. */
static void expect_cells(const pkv_mirror *m, const pkv_geometry *g, uint32_t seq, uint32_t index,
                         uint32_t first, uint32_t stride)
{
    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        for (uint32_t head = 0; head < g->n_kv_heads; head++) {
            uint32_t group = pkv_group_of(g, layer, head);
            pkv_table_view view = pkv_mirror_table(m, seq, group);
            uint32_t cell =
                first + layer / g->layers_per_group * stride + head / g->heads_per_group;
            assert_true(index < view.n_pages);
            assert_int_equal(view.pages[index] + view.offset, cell);
            pkv_mirror_page page = pkv_mirror_page_at(m, cell);
            assert_true(page.held);
            assert_int_equal(page.group, group);
        }
    }
}

/* Three layers and six heads in groups of two: whole runs begin at 3, 6 and 9. */
static void tables_of_every_grain_lead_to_the_cells(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 3,
                                   .n_kv_heads = 6,
                                   .layers_per_group = 2,
                                   .heads_per_group = 2};
    enum { USABLE = 23, STRIDE = 12 };
    static const uint32_t open[] = {
        DELTA_OPEN, 0, PKV_ALL, 2, 2, 6, 3, DELTA_OPEN, 1, PKV_LAYER, 1, 1, 9, 21,
    };
    static const uint32_t to_layer[] = {DELTA_SPLIT, 0, PKV_LAYER};
    static const uint32_t to_head[] = {DELTA_SPLIT, 0, PKV_HEAD, DELTA_SPLIT, 1, PKV_HEAD};
    assert_int_equal(pkv_cell_offset(&g, USABLE, PKV_ALL, 1, 0), STRIDE);
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&g, USABLE + 1, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, open, sizeof open / sizeof *open)));
    for (uint32_t finer = 0; finer < 3; finer++) {
        if (finer == 1) assert_true(status_ok(pkv_mirror_apply(m, to_layer, 3)));
        if (finer == 2) assert_true(status_ok(pkv_mirror_apply(m, to_head, 6)));
        expect_cells(m, &g, 0, 0, 6, STRIDE);
        expect_cells(m, &g, 0, 1, 3, STRIDE);
        expect_cells(m, &g, 1, 0, 9, STRIDE);
        assert_int_equal(pkv_mirror_table(m, 0, 5).kept_tokens, 32);
        assert_int_equal(pkv_mirror_table(m, 0, 6).n_pages, 0); /* no such group */
    }
    pkv_mirror_destroy(m);
}

/* Two shares of one head each: cells from 8 on are those of head 1. */
static void a_table_of_one_head_holds_cells_of_its_share_alone(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 2,
                                   .n_kv_heads = 2,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1,
                                   .n_shares = 2};
    enum { USABLE = 12 };
    static const uint32_t whole[] = {DELTA_OPEN, 0, PKV_ALL, 1, 1, 3, DELTA_SPLIT, 0, PKV_HEAD};
    static const uint32_t cells[] = {DELTA_OPEN, 1, PKV_HEAD, 1, 1, 1, 9, 2, 10};
    static const uint32_t open_apart[] = {DELTA_OPEN, 2, PKV_HEAD, 1, 1, 5, 6, 13, 14};
    static const uint32_t append_apart[] = {DELTA_APPEND, 1, 4, 1, 4, 5, 6, 13, 14};
    static const uint32_t due[] = {3, 11, 7, 15};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&g, USABLE + 1, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, whole, sizeof whole / sizeof *whole)));
    for (uint32_t i = 0; i < 4; i++) {
        pkv_table_view view = pkv_mirror_table(m, 0, i);
        assert_int_equal(view.pages[0] + view.offset, due[i]);
        assert_true(pkv_has_cell(pkv_cells_of(&g, USABLE, i % 2, 1), due[i]));
    }
    assert_true(status_ok(pkv_mirror_apply(m, cells, sizeof cells / sizeof *cells)));
    assert_int_equal(
        pkv_mirror_apply(m, append_apart, sizeof append_apart / sizeof *append_apart).code,
        STATUS_CORRUPT);
    assert_int_equal(pkv_mirror_apply(m, open_apart, sizeof open_apart / sizeof *open_apart).code,
                     STATUS_CORRUPT);
    pkv_mirror_destroy(m);
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
    static const uint32_t open[] = {DELTA_OPEN, 0, PKV_HEAD,     1, 1, 5, 6, DELTA_FORK, 0,
                                    1,          0, DELTA_APPEND, 1, 2, 3, 2, 7,          8};
    static const uint32_t leave[] = {DELTA_PARK, 0, DELTA_CLOSE, 1};
    static const uint32_t again[] = {DELTA_OPEN, 2, PKV_HEAD, 1, 0, DELTA_APPEND, 2, 2, 1, 2, 6, 8};
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
    static const uint32_t words[] = {DELTA_OPEN,   0, PKV_HEAD, 1, 1, 5, 6, DELTA_HOLD,  0,
                                     DELTA_APPEND, 0, 2,        3, 2, 7, 8, DELTA_CLOSE, 0};
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
    static const uint32_t park[] = {DELTA_OPEN, 0,          PKV_HEAD, 1,          1, 5,
                                    6,          DELTA_HOLD, 0,        DELTA_PARK, 0};
    static const uint32_t first[] = {DELTA_UNPARK, 1, PKV_HEAD, 1, 2, 5, 2, 6};
    static const uint32_t second[] = {DELTA_UNPARK, 2, PKV_HEAD, 1, 2, 5, 2, 6};
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

/* A sequence that is swapped in takes back a page that another one has parked: it stays parked. A
 * page that it takes afresh was given up by all who had parked it. */
static void mirror_knows_what_was_taken_back(void **state)
{
    (void)state;
    static const uint32_t park[] = {DELTA_OPEN, 0, PKV_HEAD, 1, 1, 5, 6, DELTA_PARK, 0};
    static const uint32_t back[] = {DELTA_RETURN, 1, PKV_HEAD, 1, 2, 5, 2, DELTA_FRESH + 6};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&two_groups, 20, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, park, sizeof park / sizeof *park)));
    assert_true(status_ok(pkv_mirror_apply(m, back, sizeof back / sizeof *back)));
    expect_page(m, 5, true, true, 0);
    expect_page(m, 6, true, false, 1);
    pkv_mirror_destroy(m);
}

/* A cell is held, shared or parked by what holds the run around it. */
static void mirror_knows_the_holders_of_a_run(void **state)
{
    (void)state;
    static const uint32_t share[] = {DELTA_OPEN, 0,          PKV_ALL, 1, 1,           2,
                                     DELTA_FORK, 0,          1,       0, DELTA_SPLIT, 1,
                                     PKV_HEAD,   DELTA_DROP, 1,       3, 1,           0};
    static const uint32_t park[] = {DELTA_PARK, 0};
    static const uint32_t leave[] = {DELTA_CLOSE, 1};
    static const uint32_t again[] = {DELTA_OPEN, 2, PKV_HEAD, 0, 0, DELTA_APPEND, 2,
                                     4,          1, 4,        3, 4, 12,           13};
    static const uint32_t cells[] = {2, 3, 10, 11};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&four_groups, 14, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, share, sizeof share / sizeof *share)));
    for (uint32_t g = 0; g < 4; g++) {
        expect_page(m, cells[g], true, false, g);
        assert_int_equal(pkv_mirror_page_at(m, cells[g]).shared, g < 3); /* one was dropped */
    }
    assert_true(status_ok(pkv_mirror_apply(m, park, 2)));
    for (uint32_t g = 0; g < 4; g++) {
        expect_page(m, cells[g], g < 3, true, g);
        assert_false(pkv_mirror_page_at(m, cells[g]).shared);
    }
    assert_true(status_ok(pkv_mirror_apply(m, leave, 2)));
    for (uint32_t g = 0; g < 4; g++) expect_page(m, cells[g], false, true, 0);
    /* A cell that is handed out again says that the parked sequence has given up the run. */
    assert_true(status_ok(pkv_mirror_apply(m, again, sizeof again / sizeof *again)));
    for (uint32_t g = 0; g < 4; g++) expect_page(m, cells[g], g == 1, false, 0);
    pkv_mirror_destroy(m);
}

/* A run that is handed out as a whole was given up by everyone who had parked its parts. */
static void mirror_forgets_parked_parts_of_a_fresh_run(void **state)
{
    (void)state;
    static const uint32_t words[] = {
        DELTA_OPEN, 0,          PKV_ALL, 1,         1, 2, DELTA_SPLIT, 0,  PKV_HEAD,   DELTA_PARK,
        0,          DELTA_OPEN, 1,       PKV_LAYER, 1, 1, 4,           12, DELTA_PARK, 1,
    };
    static const uint32_t again[] = {DELTA_OPEN, 2,  PKV_ALL, 0, 0, DELTA_APPEND, 2,
                                     1,          20, 2,       2, 4, DELTA_CLOSE,  2};
    pkv_mirror *m;
    assert_true(status_ok(pkv_mirror_create(&four_groups, 14, 4, NULL, &m)));
    assert_true(status_ok(pkv_mirror_apply(m, words, sizeof words / sizeof *words)));
    for (uint32_t cell = 2; cell < 6; cell++) expect_page(m, cell, false, true, 0);
    for (uint32_t cell = 10; cell < 14; cell++) expect_page(m, cell, false, true, 0);
    assert_true(status_ok(pkv_mirror_apply(m, again, sizeof again / sizeof *again)));
    for (uint32_t cell = 0; cell < 16; cell++) expect_page(m, cell, false, false, 0);
    pkv_mirror_destroy(m);
}

static void mirror_survives_failing_allocations(void **state)
{
    (void)state;
    static const uint32_t words[] = {
        DELTA_OPEN, 0, PKV_ALL, 1, 1,           2, DELTA_APPEND, 0,           1, 20,      2, 4, 6,
        DELTA_FORK, 0, 1,       0, DELTA_SPLIT, 1, PKV_LAYER,    DELTA_SPLIT, 1, PKV_HEAD};
    heap f = {0};
    allocator alloc = {counting_resize, &f};
    status last = status_make(STATUS_NO_MEMORY, NULL);
    for (f.fail_at = 0; !status_ok(last); f.fail_at++) {
        f.calls = 0;
        pkv_mirror *m = NULL;
        last = pkv_mirror_create(&four_groups, 14, 4, &alloc, &m);
        if (status_ok(last)) last = pkv_mirror_apply(m, words, sizeof words / sizeof words[0]);
        assert_true(status_ok(last) || last.code == STATUS_NO_MEMORY);
        pkv_mirror_destroy(m);
        assert_int_equal(f.live, 0);
    }
    assert_true(f.fail_at > 6);
}

/* The lists of a closed sequence stay, but very long ones are given back. */
static void long_lists_are_given_back(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 64,
                                   .n_kv_heads = 16,
                                   .layers_per_group = 1,
                                   .heads_per_group = 1};
    heap f = {.fail_at = -1}, of_mirror = {.fail_at = -1};
    allocator alloc = {counting_resize, &f}, mirrors = {counting_resize, &of_mirror};
    pkv_options o = {.geometry = g, .n_pages = 4096, .max_seqs = 1, .alloc = &alloc};
    pkv *kv;
    pkv_mirror *m;
    assert_true(status_ok(pkv_create(&o, &kv)));
    assert_true(status_ok(pkv_mirror_create(&g, 4096, 1, &mirrors, &m)));
    for (int i = 0; i < 4; i++) { /* the first time grows the log */
        uint32_t hit, tokens = i % 2 ? 16 * 1100 : 16;
        pkv_deltas d = pkv_take_deltas(kv);
        assert_true(status_ok(pkv_mirror_apply(m, d.words, d.n_words)));
        long before = f.live, mirrored = of_mirror.live;
        assert_true(status_ok(pkv_seq_open(kv, 0, PKV_HEAD, NULL, 0, 0, tokens, &hit)));
        assert_true(status_ok(pkv_seq_append(kv, 0, 16)));
        park_whole(kv, 0, &hit);
        discard_whole(kv, hit);
        d = pkv_take_deltas(kv);
        assert_true(status_ok(pkv_mirror_apply(m, d.words, d.n_words)));
        if (i == 3) assert_int_equal(f.live, before - 3); /* those of the sequence before, too */
        if (i == 3) assert_int_equal(of_mirror.live, mirrored - 1);
        assert_null(pkv_check_integrity(kv));
    }
    pkv_mirror_destroy(m);
    pkv_destroy(kv);
    assert_true(f.live == 0 && of_mirror.live == 0);
}

/* Two different states with the same checksum would hide a difference. */
static void checksums_differ_by_table(void **state)
{
    (void)state;
    static const uint32_t logs[][18] = {
        {5, DELTA_OPEN, 0, PKV_HEAD, 0, 0},
        {5, DELTA_OPEN, 1, PKV_HEAD, 0, 0},
        {7, DELTA_OPEN, 0, PKV_HEAD, 1, 1, 5, 6},
        {7, DELTA_OPEN, 0, PKV_HEAD, 1, 1, 6, 5},
        {9, DELTA_OPEN, 0, PKV_HEAD, 2, 2, 5, 7, 6, 8},
        {9, DELTA_OPEN, 0, PKV_HEAD, 2, 2, 7, 5, 6, 8},
        {12, DELTA_OPEN, 0, PKV_HEAD, 0, 0, DELTA_APPEND, 0, 2, 3, 2, 5, 6},
        {12, DELTA_OPEN, 0, PKV_HEAD, 0, 0, DELTA_APPEND, 0, 2, 4, 2, 5, 6},
        {17, DELTA_OPEN, 0, PKV_HEAD, 0, 0, DELTA_APPEND, 0, 2, 4, 2, 5, 6, DELTA_TRIM, 0, 1, 3, 0},
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
        cmocka_unit_test(mirror_refuses_lies_about_grains),
        cmocka_unit_test(mirror_refuses_a_grain_that_does_not_fit),
        cmocka_unit_test(mirror_refuses_absurd_sizes),
        cmocka_unit_test(tables_of_every_grain_lead_to_the_cells),
        cmocka_unit_test(a_table_of_one_head_holds_cells_of_its_share_alone),
        cmocka_unit_test(mirror_knows_the_holders_of_a_run),
        cmocka_unit_test(mirror_forgets_parked_parts_of_a_fresh_run),
        cmocka_unit_test(mirror_knows_the_holders_of_a_page),
        cmocka_unit_test(mirror_knows_what_a_parked_copy_holds),
        cmocka_unit_test(mirror_knows_what_came_back),
        cmocka_unit_test(mirror_knows_what_was_taken_back),
        cmocka_unit_test(mirror_survives_failing_allocations),
        cmocka_unit_test(checksums_differ_by_table),
        cmocka_unit_test(long_lists_are_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

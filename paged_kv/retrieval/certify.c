#include "paged_kv/retrieval/certify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736
/* The part of epsilon that is spent: the rest is for the rounding of products and sums. */
#define SPENT (1 - 0x1p-7)

typedef struct ranked {
    double bound; /* the greatest over query heads, relative to what is read anyway */
    uint32_t block;
} ranked;

typedef struct exam_state {
    ranked *order;       /* [n] candidates in the order in which they are read */
    double *base, *read; /* [heads] log2 of what is read anyway; sum of what is read, relative to
                            it */
    double *sums;        /* [RETRIEVAL_SUMS_MOST, heads] */
    double *rest;        /* [n + 1, heads] bounds of candidate i of the order and of all after it,
                            relative to base */
    uint32_t *asked;     /* [RETRIEVAL_SUMS_MOST] blocks */
    bool *chosen;        /* [n] */
    uint32_t first, n;   /* candidates: blocks [first, first + n) */
} exam_state;

size_t retrieval_certify_bytes(uint32_t n_candidates, uint32_t n_heads)
{
    return n_candidates * (sizeof(ranked) + sizeof(bool)) +
           ((size_t)n_candidates + 3 + RETRIEVAL_SUMS_MOST) * n_heads * sizeof(double) +
           RETRIEVAL_SUMS_MOST * sizeof(uint32_t);
}

static exam_state lay_out(const retrieval_exam *exam, const retrieval_extent *e, void *scratch)
{
    uint32_t end = exam->sure < e->end ? exam->sure : e->end;
    exam_state s = {.first = e->first, .n = end > e->first ? end - e->first : 0};
    s.order = scratch;
    s.base = (double *)(s.order + s.n);
    s.read = s.base + exam->n_heads;
    s.sums = s.read + exam->n_heads;
    s.rest = s.sums + (size_t)RETRIEVAL_SUMS_MOST * exam->n_heads;
    s.asked = (uint32_t *)(s.rest + ((size_t)s.n + 1) * exam->n_heads);
    s.chosen = (bool *)(s.asked + RETRIEVAL_SUMS_MOST);
    return s;
}

/* log2(2^a + 2^b) */
static double add_logs(double a, double b)
{
    if (a == -INFINITY) return b;
    return a > b ? a + log2(1 + exp2(b - a)) : b + log2(1 + exp2(a - b));
}

/* Adds up the blocks asked for, which are read anyway. */
static status add_sure(const retrieval_exam *exam, uint32_t n, const exam_state *s)
{
    RETURN_IF_ERROR(exam->sums(exam->ctx, s->asked, n, s->sums));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < exam->n_heads; h++)
            s->base[h] = add_logs(s->base[h], s->sums[(size_t)i * exam->n_heads + h]);
    return STATUS_IS_OK;
}

static status read_sure(const retrieval_exam *exam, uint32_t n_blocks, const exam_state *s)
{
    uint32_t n = 0;
    for (uint32_t h = 0; h < exam->n_heads; h++) {
        s->base[h] = -INFINITY;
        s->read[h] = 1;
    }
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (b >= s->first && b < s->first + s->n) continue;
        s->asked[n++] = b;
        if (n < RETRIEVAL_SUMS_MOST) continue;
        RETURN_IF_ERROR(add_sure(exam, n, s));
        n = 0;
    }
    return n > 0 ? add_sure(exam, n, s) : STATUS_IS_OK;
}

static int compare_ranked(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->bound != b->bound) return a->bound > b->bound ? -1 : 1;
    return a->block < b->block ? -1 : 1;
}

/* log2 of the bound on candidate i's sum for a query head, relative to base. */
static double bound_of(const retrieval_spec *spec, const retrieval_exam *exam, const exam_state *s,
                       uint32_t i, uint32_t head)
{
    double bound = (double)exam->bounds[head][i] * exam->scale * LOG2_E - s->base[head] +
                   log2(spec->block_tokens);
    return bound == bound ? bound : INFINITY; /* NaN: nothing is known of the block */
}

static void rank_blocks(const retrieval_spec *spec, const retrieval_exam *exam, const exam_state *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        double most = -INFINITY;
        for (uint32_t h = 0; h < exam->n_heads; h++)
            most = fmax(most, bound_of(spec, exam, s, i, h));
        s->order[i] = (ranked){most, s->first + i};
    }
    qsort(s->order, s->n, sizeof *s->order, compare_ranked);
    double *after = s->rest + (size_t)s->n * exam->n_heads;
    for (uint32_t h = 0; h < exam->n_heads; h++) after[h] = 0;
    for (uint32_t i = s->n; i-- > 0; after -= exam->n_heads)
        for (uint32_t h = 0; h < exam->n_heads; h++)
            after[(ptrdiff_t)h - exam->n_heads] =
                after[h] + exp2(bound_of(spec, exam, s, s->order[i].block - s->first, h));
}

/* The greatest bound on the share that a query head misses when `n` candidates are read. */
static double missed_share(const retrieval_exam *exam, const exam_state *s, uint32_t n)
{
    const double *rest = s->rest + (size_t)n * exam->n_heads;
    double most = 0;
    for (uint32_t h = 0; h < exam->n_heads; h++) {
        double share = rest[h] > 0 ? rest[h] / (rest[h] + s->read[h]) : 0;
        if (!(share <= most)) most = share <= 1 ? share : 1; /* infinite over infinite */
    }
    return most;
}

/* Whether a query head would miss too much with `to` candidates read, even if those from `from` on
 * had all the mass that their bounds allow. */
static bool surely_misses(const retrieval_spec *spec, const retrieval_exam *exam,
                          const exam_state *s, uint32_t from, uint32_t to)
{
    const double *rest = s->rest + (size_t)to * exam->n_heads;
    const double *all = s->rest + (size_t)from * exam->n_heads;
    for (uint32_t h = 0; h < exam->n_heads; h++)
        if (rest[h] > SPENT * (double)spec->epsilon * (s->read[h] + all[h])) return true;
    return false;
}

/* Asks for the sums of candidate `from` of the order, and of those after it, below `most`, that
 * will be read whatever these sums are. *n: how many. */
static status ask_sums(const retrieval_spec *spec, const retrieval_exam *exam, const exam_state *s,
                       uint32_t from, uint32_t most, uint32_t *n)
{
    uint32_t some = 0;
    do {
        s->asked[some] = s->order[from + some].block;
        some++;
    } while (from + some < most && some < RETRIEVAL_SUMS_MOST &&
             surely_misses(spec, exam, s, from, from + some));
    *n = some;
    return exam->sums(exam->ctx, s->asked, some, s->sums);
}

status retrieval_certify(const retrieval_spec *spec, const retrieval_exam *exam, void *scratch,
                         uint32_t *blocks, uint32_t *n, double *missed)
{
    retrieval_extent e = retrieval_extent_of(spec, exam->n_prompt, exam->n_slots);
    exam_state s = lay_out(exam, &e, scratch);
    uint32_t most = s.n < spec->top_blocks ? s.n : spec->top_blocks, first = 0, n_asked = 0;
    RETURN_IF_ERROR(read_sure(exam, e.n_blocks, &s));
    rank_blocks(spec, exam, &s);
    memset(s.chosen, 0, s.n * sizeof *s.chosen);
    for (uint32_t i = 0;; i++) {
        *missed = fmin(missed_share(exam, &s, i) / SPENT, 1);
        if (!(*missed > (double)spec->epsilon) || i == most) break;
        if (i == first + n_asked) {
            first = i;
            RETURN_IF_ERROR(ask_sums(spec, exam, &s, first, most, &n_asked));
        }
        const double *sums = s.sums + (size_t)(i - first) * exam->n_heads;
        s.chosen[s.order[i].block - s.first] = true;
        for (uint32_t h = 0; h < exam->n_heads; h++) s.read[h] += exp2(sums[h] - s.base[h]);
    }
    *n = 0;
    for (uint32_t b = 0; b < e.n_blocks; b++)
        if (b < s.first || b >= s.first + s.n || s.chosen[b - s.first]) blocks[(*n)++] = b;
    return STATUS_IS_OK;
}

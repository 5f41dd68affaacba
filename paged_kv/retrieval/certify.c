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
    ranked *order;               /* [n] candidates in the order in which they are read */
    double *base, *read, *block; /* [heads] log2 of what is read anyway; sum of what is read,
                                    relative to it; a block's sums */
    double *rest;                /* [n + 1, heads] bounds of candidate i of the order and of all
                                    after it, relative to base */
    bool *chosen;                /* [n] */
    uint32_t first, n;           /* candidates: blocks [first, first + n) */
} exam_state;

size_t retrieval_certify_bytes(uint32_t n_candidates, uint32_t n_heads)
{
    return n_candidates * (sizeof(ranked) + sizeof(bool)) +
           ((size_t)n_candidates + 4) * n_heads * sizeof(double);
}

static exam_state lay_out(const retrieval_exam *exam, const retrieval_extent *e, void *scratch)
{
    uint32_t end = exam->sure < e->end ? exam->sure : e->end;
    exam_state s = {.first = e->first, .n = end > e->first ? end - e->first : 0};
    s.order = scratch;
    s.base = (double *)(s.order + s.n);
    s.read = s.base + exam->n_heads;
    s.block = s.read + exam->n_heads;
    s.rest = s.block + exam->n_heads;
    s.chosen = (bool *)(s.rest + ((size_t)s.n + 1) * exam->n_heads);
    return s;
}

/* log2(2^a + 2^b) */
static double add_logs(double a, double b)
{
    if (a == -INFINITY) return b;
    return a > b ? a + log2(1 + exp2(b - a)) : b + log2(1 + exp2(a - b));
}

/* Sums up the blocks that are read anyway. */
static void read_sure(const retrieval_exam *exam, uint32_t n_blocks, const exam_state *s)
{
    for (uint32_t h = 0; h < exam->n_heads; h++) s->base[h] = -INFINITY;
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (b >= s->first && b < s->first + s->n) continue;
        exam->sums(exam->ctx, b, s->block);
        for (uint32_t h = 0; h < exam->n_heads; h++) s->base[h] = add_logs(s->base[h], s->block[h]);
    }
    for (uint32_t h = 0; h < exam->n_heads; h++) s->read[h] = 1;
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

uint32_t retrieval_certify(const retrieval_spec *spec, const retrieval_exam *exam, void *scratch,
                           uint32_t *blocks, double *missed)
{
    retrieval_extent e = retrieval_extent_of(spec, exam->n_prompt, exam->n_slots);
    exam_state s = lay_out(exam, &e, scratch);
    uint32_t n_read = 0, n = 0;
    read_sure(exam, e.n_blocks, &s);
    rank_blocks(spec, exam, &s);
    memset(s.chosen, 0, s.n * sizeof *s.chosen);
    while ((*missed = fmin(missed_share(exam, &s, n_read) / SPENT, 1)) > (double)spec->epsilon &&
           n_read < s.n && n_read < spec->top_blocks) {
        uint32_t block = s.order[n_read++].block;
        s.chosen[block - s.first] = true;
        exam->sums(exam->ctx, block, s.block);
        for (uint32_t h = 0; h < exam->n_heads; h++) s.read[h] += exp2(s.block[h] - s.base[h]);
    }
    for (uint32_t b = 0; b < e.n_blocks; b++)
        if (b < s.first || b >= s.first + s.n || s.chosen[b - s.first]) blocks[n++] = b;
    return n;
}

/* Representatives of blocks. One thread computes an item. */
#include "kernels/represent.h"

#include "base/half.h"
#include "base/minmax.h"
#include "kernels/context.h"
#include "kernels/strips.h"

#include <assert.h>
#include <string.h>

typedef struct represent_job {
    const kern_context *kc;
    const kern_represent_batch *batch;
    size_t thread_bytes;
} represent_job;

/* A thread's scratch. A dim has 16 lanes, and lane i stands for the slots i of all strips. */
typedef struct represent_state {
    float *keys;               /* [4 strips][head_dim][16] a block */
    float *largest, *smallest; /* [head_dim][16]; sums are in `largest` */
    uint8_t *wide;             /* formats with grids: a block as bf16 */
} represent_state;

static size_t state_bytes(const kern_kv_shape *shape)
{
    size_t lanes = (size_t)shape->head_dim * KERN_STRIP;
    return align64((KERN_BLOCK_STRIPS + 2) * lanes * sizeof(float) +
                   kern_wide_bytes(shape->head_dim));
}

static represent_state state_at(const kern_kv_shape *shape, void *scratch)
{
    size_t lanes = (size_t)shape->head_dim * KERN_STRIP;
    represent_state s = {.keys = scratch};
    s.largest = s.keys + KERN_BLOCK_STRIPS * lanes;
    s.smallest = s.largest + lanes;
    s.wide = (uint8_t *)(s.smallest + lanes);
    return s;
}

/* Adds the marked slots of a strip. */
static void add_strip(const float *keys, uint32_t head_dim, uint32_t marks, float *sums)
{
    float marked[KERN_STRIP];
    if (marks == 0) return;
    if (marks == 0xffff) {
        for (size_t i = 0; i < (size_t)head_dim * KERN_STRIP; i++) sums[i] += keys[i];
        return;
    }
    for (uint32_t i = 0; i < KERN_STRIP; i++) marked[i] = marks >> i & 1 ? 1.0f : 0.0f;
    for (uint32_t d = 0; d < head_dim; d++, keys += KERN_STRIP, sums += KERN_STRIP)
        for (uint32_t i = 0; i < KERN_STRIP; i++) sums[i] += marked[i] != 0.0f ? keys[i] : 0.0f;
}

static void widen_box(const float *keys, size_t n, float *largest, float *smallest)
{
    for (size_t i = 0; i < n; i++) {
        largest[i] = keys[i] > largest[i] ? keys[i] : largest[i];
        smallest[i] = keys[i] < smallest[i] ? keys[i] : smallest[i];
    }
}

/* Takes in a strip, the strip-th of the block. */
static void take_strip(const represent_job *job, const kern_represent_item *it, const float *keys,
                       size_t strip, const represent_state *s)
{
    uint32_t head_dim = job->batch->shape.head_dim;
    size_t lanes = (size_t)head_dim * KERN_STRIP, slot = strip * KERN_STRIP;
    if (job->batch->kind == KERN_REPRESENT_SUM) {
        uint64_t marks = it->slots ? it->slots[slot / 64] >> slot % 64 : UINT64_MAX;
        add_strip(keys, head_dim, marks & 0xffff, s->largest);
    } else if (strip == 0) {
        memcpy(s->largest, keys, lanes * sizeof *keys);
        memcpy(s->smallest, keys, lanes * sizeof *keys);
    } else {
        widen_box(keys, lanes, s->largest, s->smallest);
    }
}

/* The least bf16 that is not below x; where `up` is not set, the greatest one that is not above
 * x. Infinities and NaN stay what they are. */
static uint16_t round_outwards(float x, bool up)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    bool away = (bits >> 31 == 0) == up; /* from 0 */
    return (uint16_t)((bits >> 16) + (away && (bits & 0xffff) != 0));
}

/* Joins the lanes of each dim, ascending. */
static void join_lanes(kern_represent_kind kind, const kern_represent_item *it, uint32_t head_dim,
                       const represent_state *s)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        const float *l = s->largest + d * KERN_STRIP, *m = s->smallest + d * KERN_STRIP;
        float sum = l[0], largest = l[0], smallest = m[0];
        for (uint32_t i = 1; i < KERN_STRIP; i++) {
            sum += l[i];
            largest = l[i] > largest ? l[i] : largest;
            smallest = m[i] < smallest ? m[i] : smallest;
        }
        it->out[d] =
            kind == KERN_REPRESENT_SUM ? bf16_from_f32(sum) : round_outwards(largest, true);
        if (kind == KERN_REPRESENT_BOX) it->smallest[d] = round_outwards(smallest, false);
    }
}

static void represent_block(const represent_job *job, const kern_represent_item *it,
                            const represent_state *s)
{
    const kern_kv_shape *shape = &job->batch->shape, read_as = kern_kv_wide(shape);
    const kern_pages pages = {it->pages, it->tiles, job->batch->page_stride, NULL, 0, SIZE_MAX};
    size_t lanes = (size_t)shape->head_dim * KERN_STRIP;
    size_t n_slots = (size_t)job->batch->n_pages * shape->page_tokens;
    memset(s->largest, 0, lanes * sizeof *s->largest);
    memset(s->smallest, 0, lanes * sizeof *s->smallest);
    for (size_t block = 0; block < kern_blocks_of(n_slots); block++) {
        kern_block b = kern_block_of(&job->kc->isa, shape, &pages, block, n_slots, s->wide);
        kern_block_keys(&job->kc->isa, &read_as, &b, s->keys);
        for (size_t t = 0; t < b.n_strips; t++)
            take_strip(job, it, s->keys + t * lanes, block * KERN_BLOCK_STRIPS + t, s);
    }
    join_lanes(job->batch->kind, it, shape->head_dim, s);
}

static void represent_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const represent_job *job = ctx;
    uint8_t *scratch = (uint8_t *)job->kc->measure.threads.data + thread * job->thread_bytes;
    represent_state s = state_at(&job->batch->shape, scratch);
    for (size_t i = from; i < to; i++) represent_block(job, &job->batch->items[i], &s);
}

status kern_represent(kern_context *kc, const kern_represent_batch *batch)
{
    const kern_kv_shape *shape = &batch->shape;
    represent_job job = {kc, batch, state_bytes(shape)};
    assert(shape->page_tokens % KERN_STRIP == 0 && batch->n_pages > 0);
    assert(shape->head_dim % KERN_STRIP == 0 && shape->head_dim <= KERN_HEAD_DIM_MAX);
    if (!kern_reserve(&kc->measure.threads, job.thread_bytes * kc->n_threads))
        return status_make(STATUS_NO_MEMORY, "scratch for representatives");
    thread_pool_for(kc->pool, batch->n_items, 4, represent_range, &job);
    return STATUS_IS_OK;
}

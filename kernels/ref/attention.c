/* Attention's inner loops and KV access in plain C: slow and simple, the reference for all ISAs. */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <math.h>

static float load(kern_kv_format t, const uint8_t *p, size_t index)
{
    if (t == KERN_KV_F32) return ((const float *)p)[index];
    if (t == KERN_KV_INT8) return ((const int8_t *)p)[index];
    uint16_t h = ((const uint16_t *)p)[index];
    return t == KERN_KV_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static void store(kern_kv_format t, uint8_t *p, size_t index, float value)
{
    if (t == KERN_KV_F32) ((float *)p)[index] = value;
    else ((uint16_t *)p)[index] = t == KERN_KV_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
}

static float scale_at(const uint8_t *scales, size_t slot)
{
    return bf16_to_f32(((const uint16_t *)scales)[slot]);
}

/* Index of (d, slot) in K and of (slot, d) in V: pairs of the summed axis lie side by side. */
static size_t pair_index(size_t pair, size_t summed, size_t other, size_t other_size)
{
    return (summed / pair * other_size + other) * pair + summed % pair;
}

static void kv_write(kern_kv_format t, const kern_kv_shape *s, void *tile, uint32_t slot,
                     const float *k, const float *v)
{
    size_t pair = kern_kv_facts_of(t).pair;
    uint8_t *keys = tile, *values = keys + kern_kv_values_at(s);
    for (size_t d = 0; d < s->head_dim; d++) {
        store(t, keys, pair_index(pair, d, slot, s->page_tokens), k[d]);
        store(t, values, pair_index(pair, slot, d, s->head_dim), v[d]);
    }
}

static void kv_read(kern_kv_format t, const kern_kv_shape *s, const void *tile, uint32_t slot,
                    float *k, float *v)
{
    size_t pair = kern_kv_facts_of(t).pair;
    const uint8_t *keys = tile, *values = keys + kern_kv_values_at(s);
    for (size_t d = 0; d < s->head_dim; d++) {
        k[d] = load(t, keys, pair_index(pair, d, slot, s->page_tokens));
        v[d] = load(t, values, pair_index(pair, slot, d, s->head_dim));
    }
}

/* ---- int8: integers times a scale for each slot's K and V ------------------------------------ */

static void kv_write_int8(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                          const float *v)
{
    int8_t q[2][KERN_HEAD_DIM_MAX], *keys = tile, *values = keys + kern_kv_values_at(s);
    uint8_t *scales = (uint8_t *)tile + kern_kv_scales_at(s);
    ((uint16_t *)scales)[slot] = quant_kv_8(k, s->head_dim, q[0]);
    ((uint16_t *)(scales + kern_kv_scale_bytes(s)))[slot] = quant_kv_8(v, s->head_dim, q[1]);
    for (size_t d = 0; d < s->head_dim; d++) {
        keys[pair_index(2, d, slot, s->page_tokens)] = q[0][d];
        values[pair_index(2, slot, d, s->head_dim)] = q[1][d];
    }
}

static void kv_read_int8(const kern_kv_shape *s, const void *tile, uint32_t slot, float *k,
                         float *v)
{
    kv_read(KERN_KV_INT8, s, tile, slot, k, v);
    const uint8_t *scales = (const uint8_t *)tile + kern_kv_scales_at(s);
    float k_scale = scale_at(scales, slot);
    float v_scale = scale_at(scales + kern_kv_scale_bytes(s), slot);
    for (size_t d = 0; d < s->head_dim; d++) {
        k[d] *= k_scale;
        v[d] *= v_scale;
    }
}

/* Element `lane` of the first (which = 0) or second row of the pair at p. */
static float pair_load(kern_kv_format t, const uint8_t *p, size_t half, size_t lane, size_t which)
{
    return t == KERN_KV_F32 ? load(t, p + which * half, lane) : load(t, p, 2 * lane + which);
}

static void scores(kern_kv_format t, const kern_attn_strips *k, uint32_t from, uint32_t to,
                   const float *q, uint32_t n, uint32_t head_dim, float *s)
{
    for (uint32_t strip = from; strip < to; strip++)
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t lane = 0; lane < KERN_STRIP; lane++) {
                float sum = 0.0f;
                for (uint32_t d = 0; d < head_dim; d++)
                    sum += q[r * KERN_ATTN_Q_STRIDE + d] *
                           pair_load(t, k->at[strip] + d / 2 * k->step, k->half, lane, d % 2);
                if (t == KERN_KV_INT8) sum *= scale_at(k->scales[strip], lane);
                s[r * KERN_BLOCK + strip * KERN_STRIP + lane] = sum;
            }
}

static void softmax(kern_attn_row *rows, uint32_t n, float *s)
{
    for (uint32_t r = 0; r < n; r++, s += KERN_BLOCK) {
        kern_attn_row *row = &rows[r];
        row->fix = 1.0f;
        if (row->lo >= row->hi) continue;
        float max = row->max;
        for (uint32_t j = row->lo; j < row->hi; j++) max = s[j] > max ? s[j] : max;
        row->fix = exp2f(row->max - max);
        row->max = max;
        float strip[KERN_BLOCK_STRIPS] = {0};
        for (uint32_t i = 0; i < KERN_STRIP; i++) row->sum[i] *= row->fix;
        for (uint32_t j = row->lo; j < row->hi; j++) {
            s[j] = exp2f(s[j] - max);
            row->sum[j % KERN_STRIP] += s[j];
            strip[j / KERN_STRIP] += s[j];
        }
        for (uint32_t i = 0; row->mass && i < KERN_BLOCK_STRIPS; i++) row->mass[i] = strip[i];
    }
}

static void values(kern_kv_format t, const kern_attn_strips *v, uint32_t from, uint32_t to,
                   const float *p, const kern_attn_row *rows, uint32_t n, uint32_t head_dim,
                   float *o)
{
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t d = 0; d < head_dim; d++) {
            float sum = o[r * head_dim + d] * rows[r].fix;
            for (uint32_t j = from; j < to; j++) {
                const uint8_t *strip = v->at[j / KERN_STRIP];
                float x = pair_load(t, strip + j % KERN_STRIP / 2 * v->step, v->half, d, j % 2);
                if (t == KERN_KV_INT8) x *= scale_at(v->scales[j / KERN_STRIP], j % KERN_STRIP);
                sum += p[r * KERN_BLOCK + j] * x;
            }
            o[r * head_dim + d] = sum;
        }
}

static void widen(kern_kv_format t, const void *from, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = load(t, from, i);
}

#define FOR_FLOATS(NAME, TYPE)                                                                     \
    static void kv_write_##NAME(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k, \
                                const float *v)                                                    \
    {                                                                                              \
        kv_write(TYPE, s, tile, slot, k, v);                                                       \
    }                                                                                              \
    static void kv_read_##NAME(const kern_kv_shape *s, const void *tile, uint32_t slot, float *k,  \
                               float *v)                                                           \
    {                                                                                              \
        kv_read(TYPE, s, tile, slot, k, v);                                                        \
    }

#define FOR_FORMAT(NAME, TYPE)                                                                     \
    static void widen_##NAME(const void *from, size_t n, float *out)                               \
    {                                                                                              \
        widen(TYPE, from, n, out);                                                                 \
    }                                                                                              \
    static void scores_##NAME(const kern_attn_strips *k, uint32_t from, uint32_t to,               \
                              const float *q, uint32_t n, uint32_t head_dim, float *s)             \
    {                                                                                              \
        scores(TYPE, k, from, to, q, n, head_dim, s);                                              \
    }                                                                                              \
    static void values_##NAME(const kern_attn_strips *v, uint32_t from, uint32_t to,               \
                              const float *p, const kern_attn_row *rows, uint32_t n,               \
                              uint32_t head_dim, float *o)                                         \
    {                                                                                              \
        values(TYPE, v, from, to, p, rows, n, head_dim, o);                                        \
    }

FOR_FLOATS(f32, KERN_KV_F32)
FOR_FLOATS(bf16, KERN_KV_BF16)
FOR_FLOATS(f16, KERN_KV_F16)
FOR_FORMAT(f32, KERN_KV_F32)
FOR_FORMAT(bf16, KERN_KV_BF16)
FOR_FORMAT(f16, KERN_KV_F16)
FOR_FORMAT(int8, KERN_KV_INT8)

#define FILL(NAME, TYPE)                                                                           \
    isa->kv_write[TYPE] = kv_write_##NAME;                                                         \
    isa->kv_read[TYPE] = kv_read_##NAME;                                                           \
    isa->widen[TYPE] = widen_##NAME;                                                               \
    isa->attn_scores[TYPE] = scores_##NAME;                                                        \
    isa->attn_values[TYPE] = values_##NAME

void kern_attention_fill_ref(kern_isa *isa)
{
    FILL(f32, KERN_KV_F32);
    FILL(bf16, KERN_KV_BF16);
    FILL(f16, KERN_KV_F16);
    FILL(int8, KERN_KV_INT8);
    isa->attn_rows = KERN_ATTN_ROWS;
    isa->attn_softmax = softmax;
}

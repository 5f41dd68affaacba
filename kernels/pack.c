/* Weight matrices in panels: packing and reading back. */
#include "kernels/context.h"
#include "kernels/quant_groups.h"

#include <assert.h>
#include <string.h>

enum { CHUNK = 512 }; /* columns of 16 rows converted at a time: 32 KiB, read in runs of 2 KiB */

size_t kern_matrix_bytes(dtype type, size_t n, size_t k)
{
    size_t panels = (n + KERN_PANEL - 1) / KERN_PANEL, pair = kern_pair(type);
    return panels * ((k + pair - 1) / pair) * pair * KERN_PANEL * dtype_bytes(type);
}

/* Number of pairs of groups in a row. */
static size_t group_pairs(const kern_matrix *w)
{
    size_t columns = (size_t)2 * w->quant.group;
    return (w->k + columns - 1) / columns;
}

size_t kern_matrix_size(const kern_matrix *w)
{
    if (w->is_float) return (w->n * w->k + 15) / 16 * 16 + w->n * kern_float_groups(w) * 4;
    if (!w->quant.bits) return kern_matrix_bytes(w->type, w->n, w->k);
    return (w->n + KERN_PANEL - 1) / KERN_PANEL * group_pairs(w) * kern_quant_bytes(w->quant);
}

typedef struct pack_job {
    const kern_isa *isa;
    const kern_matrix *w;
    size_t row0, rows;
    const uint8_t *src;
    dtype src_type;
    size_t src_stride;
} pack_job;

static float load_f32(dtype type, const uint8_t *src)
{
    uint32_t u32 = 0;
    uint16_t u16 = 0;
    if (type != DTYPE_F32) memcpy(&u16, src, sizeof u16);
    if (type == DTYPE_BF16) return bf16_to_f32(u16);
    if (type == DTYPE_F16) return f16_to_f32(u16);
    memcpy(&u32, src, sizeof u32);
    float f;
    memcpy(&f, &u32, sizeof f);
    return f;
}

/* Converts `n` elements from unaligned src of src_type to dst of type. */
static void convert(dtype src_type, const uint8_t *src, dtype type, void *dst, size_t n)
{
    if (src_type == type) {
        memcpy(dst, src, n * dtype_bytes(type));
        return;
    }
    if (src_type == DTYPE_BF16 && type == DTYPE_F32) {
        for (size_t i = 0; i < n; i++) {
            uint16_t half;
            memcpy(&half, src + 2 * i, sizeof half);
            ((float *)dst)[i] = bf16_to_f32(half);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float f = load_f32(src_type, src + i * dtype_bytes(src_type));
        if (type == DTYPE_F32) ((float *)dst)[i] = f;
        if (type == DTYPE_BF16) ((uint16_t *)dst)[i] = bf16_from_f32(f);
        if (type == DTYPE_F16) ((uint16_t *)dst)[i] = f16_from_f32(f);
    }
}

/* Columns [c0, c1) of dst [words][16] = the transpose of words [16][CHUNK]. A word is a pair, or
 * one f32. */
static void transpose_words(const uint32_t (*words)[CHUNK], size_t n_words, size_t c0, size_t c1,
                            uint32_t *dst)
{
    for (size_t i = 0; i < n_words; i++)
        for (size_t c = c0; c < c1; c++) dst[i * KERN_PANEL + c] = words[c][i];
}

/* Packs the rows of one panel that lie in [row0, row0 + rows). */
static void pack_panel(const pack_job *j, size_t panel)
{
    const kern_matrix *w = j->w;
    size_t first = panel * KERN_PANEL, pair = kern_pair(w->type);
    size_t c0 = j->row0 > first ? j->row0 - first : 0;
    size_t c1 = j->row0 + j->rows - first < KERN_PANEL ? j->row0 + j->rows - first : KERN_PANEL;
    size_t n_words = (w->k + pair - 1) / pair, src_bytes = dtype_bytes(j->src_type);
    uint32_t *dst = (uint32_t *)w->data + panel * n_words * KERN_PANEL;
    uint32_t words[KERN_PANEL][CHUNK];

    for (size_t at = 0; at < n_words; at += CHUNK) {
        size_t count = n_words - at < CHUNK ? n_words - at : CHUNK;
        size_t k0 = at * pair, k1 = (at + count) * pair < w->k ? (at + count) * pair : w->k;
        for (size_t c = c0; c < c1; c++) {
            words[c][count - 1] = 0; /* the half pair beyond an odd k */
            const uint8_t *row = j->src + (first + c - j->row0) * j->src_stride * src_bytes;
            convert(j->src_type, row + k0 * src_bytes, w->type, words[c], k1 - k0);
        }
        if (c0 == 0 && c1 == KERN_PANEL)
            transpose_words(words, count, 0, KERN_PANEL, dst + at * KERN_PANEL);
        else transpose_words(words, count, c0, c1, dst + at * KERN_PANEL);
    }
}

/* Returns where one row's group of a panel begins: q of its columns 0 to 3 (4 bits: of 0 to 3 in
 * the low halves and of 4 to 7 in the high ones). The next columns follow 64 bytes on. With block
 * floats it is where the group of all the panel's rows begins. */
static uint8_t *group_at(const kern_matrix *w, size_t row, size_t group, uint8_t **scale)
{
    size_t pair_bytes = kern_quant_bytes(w->quant), panel = row / KERN_PANEL;
    uint8_t *pair = (uint8_t *)w->data + (panel * group_pairs(w) + group / 2) * pair_bytes;
    *scale = pair + group % 2 * 32 + row % KERN_PANEL * 2;
    uint8_t *at = pair + 64 + group % 2 * ((pair_bytes - 64) / 2);
    return w->quant.bits == 12 ? at : at + row % KERN_PANEL * 4;
}

/* Quantises one row of w. */
static void quantise_row(const pack_job *j, size_t row)
{
    const kern_matrix *w = j->w;
    const uint8_t *src = j->src + (row - j->row0) * j->src_stride * dtype_bytes(j->src_type);
    size_t group = w->quant.group;
    for (size_t k = 0; k < w->k; k += group) {
        float x[KERN_GROUP_MAX];
        int16_t q16[KERN_GROUP_MAX];
        int8_t *q = (int8_t *)q16;
        size_t n = w->k - k < group ? w->k - k : group;
        convert(j->src_type, src + k * dtype_bytes(j->src_type), DTYPE_F32, x, n);
        memset(x + n, 0, (group - n) * sizeof *x);
        uint16_t scale = j->isa->quant_w[kern_quant_index(w->quant)](x, (unsigned)group, q16);
        uint8_t *scale_at, *at = group_at(w, row, k / group, &scale_at);
        memcpy(scale_at, &scale, sizeof scale);
        if (w->quant.bits == 12) quant_put_12(q16, (unsigned)group, row % KERN_PANEL, at);
        if (w->quant.bits == 8)
            for (size_t i = 0; i < group; i += 4) memcpy(at + i * 16, q + i, 4);
        if (w->quant.bits != 4) continue;
        for (size_t i = 0; i < group; i += 8)
            for (size_t b = 0; b < 4; b++)
                at[i * 8 + b] = (uint8_t)((q[i + b] + 8) | (q[i + 4 + b] + 8) << 4);
    }
}

static void quantise_panel(const pack_job *j, size_t panel)
{
    size_t from = panel * KERN_PANEL, to = from + KERN_PANEL, end = j->row0 + j->rows;
    if (from < j->row0) from = j->row0;
    for (size_t row = from; row < to && row < end; row++) quantise_row(j, row);
}

static void pack_panels(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const pack_job *j = ctx;
    size_t panel0 = j->row0 / KERN_PANEL;
    for (size_t i = from; i < to; i++) {
        if (j->w->quant.bits) quantise_panel(j, panel0 + i);
        else pack_panel(j, panel0 + i);
    }
}

void kern_matrix_pack(kern_context *kc, kern_matrix *w, size_t row0, size_t rows, const void *src,
                      dtype src_type, size_t src_stride)
{
    assert(row0 + rows <= w->n && src_stride >= w->k && !w->is_float);
    if (rows == 0 || w->k == 0) return;
    pack_job j = {.isa = &kc->isa, .w = w, .row0 = row0, .rows = rows};
    j.src = src;
    j.src_type = src_type;
    j.src_stride = src_stride;
    size_t panels = (row0 + rows - 1) / KERN_PANEL - row0 / KERN_PANEL + 1;
    thread_pool_for(kc->pool, panels, 1, pack_panels, &j);
}

static void quantised_row(const kern_matrix *w, size_t row, float *out)
{
    size_t group = w->quant.group;
    for (size_t k = 0; k < w->k; k++) {
        uint8_t *scale_at, *at = group_at(w, row, k / group, &scale_at);
        size_t i = k % group;
        uint16_t scale;
        memcpy(&scale, scale_at, sizeof scale);
        int q;
        if (w->quant.bits == 12) {
            q = quant_get_12(at, i, row % KERN_PANEL);
        } else if (w->quant.bits == 8) {
            q = (int8_t)at[i / 4 * 64 + i % 4];
        } else {
            int pair = at[i / 8 * 64 + i % 4];
            q = (i / 4 % 2 ? pair >> 4 : pair & 15) - 8;
        }
        out[k] = (float)q * quant_scale(w->quant.bits, scale);
    }
}

void kern_matrix_row(const kern_context *kc, const kern_matrix *w, size_t row, float *out)
{
    (void)kc;
    assert(row < w->n && !w->is_float);
    if (w->quant.bits) {
        quantised_row(w, row, out);
        return;
    }
    size_t pair = kern_pair(w->type), n_words = (w->k + pair - 1) / pair;
    const uint32_t *words =
        (const uint32_t *)w->data + row / KERN_PANEL * n_words * KERN_PANEL + row % KERN_PANEL;
    for (size_t k = 0; k < w->k; k++) {
        const uint8_t *word = (const uint8_t *)(words + k / pair * KERN_PANEL);
        out[k] = load_f32(w->type, word + k % pair * 2);
    }
}

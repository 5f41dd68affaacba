/* Computes rows of quantised weights, value by value as the public libraries do. */
#include "model/load/quantized/scheme.h"

#include <math.h>

enum {
    CHUNK = 256, /* columns at a time */
};

void quantized_unpack_e4m3(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    const uint8_t *in = w->in[QUANTIZED_VALUES].data + row * w->cols + col;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = in[i], magnitude = bits & 0x7f;
        uint32_t normal = (bits & 0x80) << 24 | (magnitude + (120 << 3)) << 20;
        float f;
        memcpy(&f, &normal, sizeof f);
        if (magnitude < 8) f = (bits & 0x80 ? -0x1p-9f : 0x1p-9f) * (float)magnitude;
        out[i] = magnitude == 0x7f ? NAN : f;
    }
}

void quantized_unpack_i8(const quantized_weight *w, size_t row, size_t col, size_t n, float *out)
{
    const uint8_t *in = w->in[QUANTIZED_VALUES].data + row * w->cols + col;
    for (size_t i = 0; i < n; i++) out[i] = (float)(int8_t)in[i];
}

float quantized_scale(const quantized_weight *w, size_t row, size_t group)
{
    size_t at = row / w->group_rows * w->scale_row_step + group * w->scale_step;
    const uint8_t *in = w->in[QUANTIZED_SCALES].data;
    uint16_t half;
    float f;
    if (w->type == DTYPE_F32) {
        memcpy(&f, in + 4 * at, sizeof f);
        return f;
    }
    memcpy(&half, in + 2 * at, sizeof half);
    return w->type == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

/* Turns values x [n] of the columns from col on into weights: (x - zero) * scale. */
static void scale_columns(const quantized_weight *w, size_t col, size_t n, const float *scale,
                          const float *zero, float *x)
{
    const uint8_t *order = w->in[QUANTIZED_ORDER].data;
    for (size_t i = 0; order && i < n; i++) {
        uint32_t g = quantized_word(w, QUANTIZED_ORDER, col + i);
        if (g >= w->n_groups) g = 0; /* checked before, but the file may have changed since */
        x[i] = (x[i] - zero[g]) * scale[g];
    }
    for (size_t i = 0, end; !order && i < n; i = end) {
        size_t g = (col + i) / w->group_cols;
        end = (g + 1) * w->group_cols - col;
        if (end > n) end = n;
        for (; i < end; i++) x[i] = (x[i] - zero[g]) * scale[g];
    }
}

static void store_values(dtype type, const float *x, size_t n, uint8_t *out)
{
    if (type == DTYPE_F32) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = type == DTYPE_BF16 ? bf16_from_f32(x[i]) : f16_from_f32(x[i]);
        memcpy(out + 2 * i, &half, sizeof half);
    }
}

static void make_row(const quantized_weight *w, size_t row, uint8_t *out)
{
    float scale[QUANTIZED_GROUPS_MAX], zero[QUANTIZED_GROUPS_MAX], x[CHUNK];
    for (size_t g = 0; g < w->n_groups; g++) {
        scale[g] = quantized_scale(w, row, g);
        zero[g] = w->zero ? w->zero(w, row, g) : 0.0f;
    }
    for (size_t col = 0; col < w->cols; col += CHUNK) {
        size_t n = w->cols - col < CHUNK ? w->cols - col : CHUNK;
        w->unpack(w, row, col, n, x);
        scale_columns(w, col, n, scale, zero, x);
        store_values(w->type, x, n, out + col * dtype_bytes(w->type));
    }
}

void quantized_rows(const quantized_weight *w, size_t row, size_t n, uint8_t *out)
{
    size_t bytes = w->cols * dtype_bytes(w->type);
    for (size_t i = 0; i < n; i++) make_row(w, row + i, out + i * bytes);
}

uint64_t quantized_hash(const quantized_weight *w, uint64_t h)
{
    const uint64_t facts[] = {w->rows,       w->cols,       (uint64_t)w->type,
                              w->bits,       w->is_float,   w->zero_plus,
                              w->group_rows, w->group_cols, w->in[QUANTIZED_ORDER].data != NULL};
    return hash_bytes(facts, sizeof facts, h);
}

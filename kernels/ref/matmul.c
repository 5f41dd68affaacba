/* Matrix product, plain C. fmaf rounds once, as the vector units do, so every ISA with the same
 * order of summation gives the same bits. */
#include "kernels/isa.h"

#include <math.h>

static inline float weight_at(dtype type, const void *w, size_t k, size_t column)
{
    if (type == DTYPE_F32) return ((const float *)w)[k * KERN_PANEL + column];
    uint16_t h = ((const uint16_t *)w)[(k / 2) * 2 * KERN_PANEL + 2 * column + (k & 1)];
    return type == DTYPE_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline void tile_1x1(dtype type, const void *w, size_t k, const float *x, float *acc)
{
    for (size_t i = 0; i < k; i++)
        for (size_t c = 0; c < KERN_PANEL; c++)
            acc[c] = fmaf(weight_at(type, w, i, c), x[i], acc[c]);
}

#define TILE_REF(name, type)                                                                       \
    static void tile_##name##__ref(const void *w, size_t w_stride, size_t k, const float *x,       \
                                   float *acc, const kern_ahead *ahead)                            \
    {                                                                                              \
        (void)w_stride;                                                                            \
        (void)ahead;                                                                               \
        tile_1x1(type, w, k, x, acc);                                                              \
    }

TILE_REF(f32, DTYPE_F32)
TILE_REF(bf16, DTYPE_BF16)
TILE_REF(f16, DTYPE_F16)

static void pack_x__ref(const float *x, size_t x_stride, size_t rows, size_t k, float *out)
{
    for (size_t i = 0; i < k; i++)
        for (size_t r = 0; r < rows; r++) out[i * rows + r] = x[r * x_stride + i];
}

static double fma_burst__ref(size_t rounds, float *sink)
{
    enum { CHAINS = 16 };
    float acc[CHAINS] = {0};
    for (size_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++) acc[c] = fmaf(acc[c], 0.999f, 0.001f);
    for (int c = 0; c < CHAINS; c++) *sink += acc[c];
    return 2.0 * CHAINS * (double)rounds;
}

void kern_matmul_fill_ref(kern_isa *isa)
{
    isa->tile_rows = 1;
    isa->tile_panels[1] = 1;
    kern_tile_fn tile[KERN_DTYPES] = {
        [DTYPE_F32] = tile_f32__ref, [DTYPE_BF16] = tile_bf16__ref, [DTYPE_F16] = tile_f16__ref};
    for (int t = 0; t < KERN_DTYPES; t++) isa->tile[t][1] = isa->tile1[t][1] = tile[t];
    isa->pack_x = pack_x__ref;
    isa->fma_burst = fma_burst__ref;
}

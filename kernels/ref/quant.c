/* Quantised matrix product, plain C: what the integers and the order of the sums are. */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <math.h>
#include <string.h>

/* Weight of column k, counted from the group's first. */
static inline int weight_at(unsigned bits, const uint8_t *group, size_t k, size_t row)
{
    if (bits == 8) return (int8_t)group[k / 4 * 64 + row * 4 + k % 4];
    int pair = group[k / 8 * 64 + row * 4 + k % 4];
    return (k / 4 % 2 ? pair >> 4 : pair & 15) - 8;
}

/* x of column k. */
static inline int x_at(unsigned bits, const uint8_t *x, size_t k)
{
    static const uint8_t places[] = {0, 2, 1, 3};
    int16_t q;
    if (bits == 4) return (int8_t)x[k];
    memcpy(&q, x + 2 * (k / 4 * 4 + places[k % 4]), sizeof q);
    return q;
}

static inline void add_group(unsigned bits, const uint8_t *scales, const uint8_t *w, unsigned group,
                             const uint8_t *x, float *acc)
{
    float x_scale;
    memcpy(&x_scale, x + (bits == 8 ? 2 * group : group), sizeof x_scale);
    for (size_t c = 0; c < KERN_PANEL; c++) {
        int32_t sum = 0;
        uint16_t scale;
        memcpy(&scale, scales + 2 * c, sizeof scale);
        for (size_t k = 0; k < group; k++) sum += weight_at(bits, w, k, c) * x_at(bits, x, k);
        acc[c] = fmaf((float)sum, quant_scale(bits, scale) * x_scale, acc[c]);
    }
}

static inline void tile_1x1(unsigned bits, const uint8_t *w, size_t k, unsigned group,
                            const uint8_t *x, float *acc)
{
    const kern_quant quant = {(uint8_t)bits, (uint8_t)group};
    size_t group_bytes = (size_t)group * KERN_PANEL * bits / 8;
    for (size_t i = 0; i < k; i += 2 * group, w += 64 + 2 * group_bytes)
        for (size_t g = 0; g < 2; g++, x += kern_quant_x_bytes(quant))
            add_group(bits, w + 32 * g, w + 64 + g * group_bytes, group, x, acc);
}

#define TILE_REF(bits)                                                                             \
    static void tile_##bits##__ref(const void *w, size_t w_stride, size_t k, unsigned group,       \
                                   const void *x, float *acc, const kern_ahead *ahead)             \
    {                                                                                              \
        (void)w_stride;                                                                            \
        (void)ahead;                                                                               \
        tile_1x1(bits, w, k, group, x, acc);                                                       \
    }

TILE_REF(8)
TILE_REF(4)

static void quant_x16__ref(const float *x, unsigned group, int16_t *q, float *scale)
{
    float inverse = quant_scale_of(quant_largest_bits(x, group), 32767.0f, scale);
    for (unsigned i = 0; i < group; i += 4)
        for (unsigned c = 0; c < 4; c++)
            q[i + c] = (int16_t)(int32_t)quant_round(
                inverse > 0.0f ? x[i + (c >> 1) + (c & 1) * 2] * inverse : 0.0f);
}

static void quant_x8__ref(const float *x, unsigned group, int8_t *q, float *scale, int32_t *sum)
{
    float inverse = quant_scale_of(quant_largest_bits(x, group), 127.0f, scale);
    *sum = 0;
    for (unsigned i = 0; i < group; i++) {
        q[i] = (int8_t)(int32_t)quant_round(inverse > 0.0f ? x[i] * inverse : 0.0f);
        *sum += q[i];
    }
}

static uint16_t quant_w8__ref(const float *w, unsigned group, int8_t *q)
{
    return quant_group_8(w, group, q);
}

static uint16_t quant_w4__ref(const float *w, unsigned group, int8_t *q)
{
    return quant_group_4(w, group, q);
}

static double int_burst__ref(size_t rounds, float *sink)
{
    enum { CHAINS = 16 };
    int32_t sums[CHAINS] = {0};
    for (size_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++)
            sums[c] += (int8_t)(i + (size_t)c) * (int8_t)(i ^ (size_t)c);
    for (int c = 0; c < CHAINS; c++) *sink += (float)sums[c];
    return 2.0 * CHAINS * (double)rounds;
}

void kern_quant_fill_ref(kern_isa *isa)
{
    isa->quant_rows = 1;
    isa->quant_panels[1] = 1;
    isa->quant_tile[0][1] = isa->quant_tile1[0][1] = tile_8__ref;
    isa->quant_tile[1][1] = isa->quant_tile1[1][1] = tile_4__ref;
    isa->quant_x16 = quant_x16__ref;
    isa->quant_x8 = quant_x8__ref;
    isa->quant_w[0] = quant_w8__ref;
    isa->quant_w[1] = quant_w4__ref;
    isa->int_burst = int_burst__ref;
}

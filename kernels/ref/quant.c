/* Quantised matrix product, plain C. It defines the integers and the order of the sums. */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <math.h>
#include <string.h>

/* Weight of column k, counted from the group's first. */
static inline int weight_at(unsigned bits, const uint8_t *group, size_t k, size_t row)
{
    if (bits == 8) return (int8_t)group[k / 4 * 64 + row * 4 + k % 4];
    if (bits == 12) return quant_get_12(group, k, row);
    int pair = group[k / 8 * 64 + row * 4 + k % 4];
    return (k / 4 % 2 ? pair >> 4 : pair & 15) - 8;
}

/* The integer of x at column k. */
static inline int x_at(bool wide, const uint8_t *x, size_t k)
{
    int16_t q;
    if (!wide) return (int8_t)x[k];
    memcpy(&q, x + 2 * k, sizeof q);
    return q;
}

static inline void add_group(unsigned bits, bool wide, const uint8_t *scales, const uint8_t *w,
                             unsigned group, const uint8_t *x, float *acc)
{
    float x_scale;
    memcpy(&x_scale, x + (wide ? 2 * group : group), sizeof x_scale);
    for (size_t c = 0; c < KERN_PANEL; c++) {
        int32_t sum = 0;
        uint16_t scale;
        memcpy(&scale, scales + 2 * c, sizeof scale);
        for (size_t k = 0; k < group; k++) sum += weight_at(bits, w, k, c) * x_at(wide, x, k);
        acc[c] = fmaf((float)sum, quant_scale(bits, scale) * x_scale, acc[c]);
    }
}

static inline void tile_1x1(unsigned bits, bool wide, const uint8_t *w, size_t k, unsigned group,
                            const uint8_t *x, float *acc)
{
    size_t group_bytes = (size_t)group * KERN_PANEL * bits / 8;
    for (size_t i = 0; i < k; i += 2 * group, w += 64 + 2 * group_bytes)
        for (size_t g = 0; g < 2; g++, x += kern_quant_x_bytes(wide, group))
            add_group(bits, wide, w + 32 * g, w + 64 + g * group_bytes, group, x, acc);
}

#define TILE_REF(name, bits, wide)                                                                 \
    static void tile_##name##__ref(const void *w, size_t w_stride, size_t k, unsigned group,       \
                                   const void *x, float *acc, const kern_ahead *ahead)             \
    {                                                                                              \
        (void)w_stride;                                                                            \
        (void)ahead;                                                                               \
        tile_1x1(bits, wide, w, k, group, x, acc);                                                 \
    }

TILE_REF(8_wide, 8, true)
TILE_REF(8, 8, false)
TILE_REF(4, 4, false)
TILE_REF(12, 12, true)

static inline void quant_x(bool wide, float most, const float *x, size_t groups, unsigned group,
                           uint8_t *out)
{
    for (; groups > 0; groups--, x += group, out += kern_quant_x_bytes(wide, group)) {
        float scale;
        float inverse = quant_scale_of(quant_largest_bits(x, group), most, &scale);
        for (unsigned i = 0; i < group; i++) {
            int32_t q = (int32_t)quant_round(inverse > 0.0f ? x[i] * inverse : 0.0f);
            int16_t both = (int16_t)q;
            if (wide) memcpy(out + (size_t)2 * i, &both, sizeof both);
            else out[i] = (uint8_t)q;
        }
        memcpy(out + (wide ? 2 * group : group), &scale, sizeof scale);
    }
}

static void quant_x_wide__ref(const float *x, size_t groups, unsigned group, size_t rows, size_t r,
                              uint8_t *out)
{
    (void)rows;
    (void)r;
    quant_x(true, 32767.0f, x, groups, group, out);
}

static void quant_x__ref(const float *x, size_t groups, unsigned group, size_t rows, size_t r,
                         uint8_t *out)
{
    (void)rows;
    (void)r;
    quant_x(false, 127.0f, x, groups, group, out);
}

static void quant_x_12__ref(const float *x, size_t groups, unsigned group, size_t rows, size_t r,
                            uint8_t *out)
{
    (void)rows;
    (void)r;
    quant_x(true, QUANT_X_MOST_12, x, groups, group, out);
}

static uint16_t quant_w8__ref(const float *w, unsigned group, void *q)
{
    return quant_group_8(w, group, q);
}

static uint16_t quant_w4__ref(const float *w, unsigned group, void *q)
{
    return quant_group_4(w, group, q);
}

static uint16_t quant_w12__ref(const float *w, unsigned group, void *q)
{
    return quant_group_12(w, group, q);
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
    bool wide = isa->precision == KERN_PRECISION_HIGH;
    isa->quant_rows = 1;
    isa->quant_many = 1;
    isa->quant_many_rows = isa->quant_many_least = 1;
    for (unsigned i = 0; i < KERN_QUANTS; i++) {
        isa->quant_panels[i][1] = 1;
        isa->quant_ahead[i] = 1024;
    }
    isa->quant_tile[0][1] = isa->quant_tile1[0][1] = wide ? tile_8_wide__ref : tile_8__ref;
    isa->quant_tile[1][1] = isa->quant_tile1[1][1] = tile_4__ref;
    isa->quant_tile[2][1] = isa->quant_tile1[2][1] = tile_12__ref;
    isa->quant_x_wide[0] = wide;
    isa->quant_x_wide[2] = true;
    isa->quant_x[0] = wide ? quant_x_wide__ref : quant_x__ref;
    isa->quant_x[1] = quant_x__ref;
    isa->quant_x[2] = quant_x_12__ref;
    isa->quant_w[0] = quant_w8__ref;
    isa->quant_w[1] = quant_w4__ref;
    isa->quant_w[2] = quant_w12__ref;
    isa->int_burst = int_burst__ref;
}

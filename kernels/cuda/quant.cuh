/* kernels/cuda, private: how quantised weights lie. A tile is 16 rows by as many columns as a
 * warp reads at once, 16 bytes a lane. A lane reads its own fragments of A (multiply), so nothing
 * is shuffled. Of every 32 columns of rows g and g + 8, lane 4 g + t has the eight from 8 t on.
 *
 *     8 bits   tiles of 32 columns: row g's bytes, row g + 8's
 *     4 bits   tiles of 64: 4 bytes of row g, 4 of row g + 8, then those of the other 32 columns;
 *              of eight columns, column e's q + 8 is in bits 4 (e / 2) + 16 (e % 2)
 *     scales   [panel of 16 rows][group][g][row g, row g + 8]; 4 bits: bf16; 8 bits, where they are
 *              never negative: bits 30 to 15 of an f32; e4m3: f32
 *
 * e4m3 floats lie as integers of 8 bits do. Columns that pad the last tile may hold any integer; x
 * is zeros there. Floats are zeros there, because 0 times NaN is NaN. */
#ifndef KERNELS_CUDA_QUANT_CUH
#define KERNELS_CUDA_QUANT_CUH

#include "kernels/cuda/simt.cuh"

/* Byte offset of row `row`'s eight columns from `column` on. */
static DEVICE size_t quant_bytes_at(const gpu_matrix &w, size_t row, size_t column)
{
    size_t columns = gpu_tile_columns(w.bits), tiles = (w.k + columns - 1) / columns;
    size_t in = column % columns, lane = row % 8 * 4 + in % 32 / 8;
    size_t eight = w.bits; /* eight columns take this many bytes */
    return ((row / 16 * tiles + column / columns) * 32 + lane) * 16 + in / 32 * 2 * eight +
           row % 16 / 8 * eight;
}

static DEVICE size_t scale_index(const gpu_matrix &w, size_t row, size_t column)
{
    size_t group = w.group ? column / w.group : 0;
    return ((row / 16 * gpu_groups(&w) + group) * 8 + row % 8) * 2 + row % 16 / 8;
}

static DEVICE float scale_at(const gpu_matrix &w, size_t row, size_t column)
{
    if (w.is_float) return ((const float *)w.scales)[scale_index(w, row, column)];
    uint32_t scale = ((const uint16_t *)w.scales)[scale_index(w, row, column)];
    return float_of_bits(scale << (w.bits == 8 ? 15 : 16));
}

/* Byte `i` of u less `zero`: it is put into the mantissa of 2^23. */
static DEVICE float float_of_byte(uint32_t u, int i, int zero)
{
    return float_of_bits(pick_bytes(u, 0x4b000000u, 0x7650 + i)) - (8388608.0f + zero);
}

/* Two bytes of u, each q + 128, as a pair of q in T: a byte is put into the mantissa of a power of
 * two. */
static DEVICE uint32_t pair_of_bytes(uint32_t u, int pair, f16)
{
    return subtract2(pick_bytes(u, 0x64646464u, pair ? 0x4342 : 0x4140), 0x64806480u, f16());
}
static DEVICE uint32_t pair_of_bytes(uint32_t u, int pair, bf16)
{
    return pack2(float_of_byte(u, 2 * pair, 128), float_of_byte(u, 2 * pair + 1, 128), bf16());
}
/* pair_of_bytes for four bits, with u = q + 8. */
static DEVICE uint32_t pair_of_halves(uint32_t word, int pair, f16)
{
    uint32_t u = put_bits(word >> 4 * pair, 0x000f000fu, 0x64006400u);
    return subtract2(u, 0x64086408u, f16());
}
static DEVICE uint32_t pair_of_halves(uint32_t word, int pair, bf16)
{
    uint32_t u = put_bits(word >> 4 * pair, 0x000f000fu, 0x43004300u);
    return subtract2(u, 0x43084308u, bf16());
}
/* The pair that pair_of_halves gives, with 24 added to both: four bits u in the upper end of the
 * mantissa of the number 16 make 16 + u. Products of few rows subtract all 24s from a sum at once,
 * which costs less than to subtract from every pair. */
static DEVICE uint32_t biased_pair(uint32_t word, int pair, f16)
{
    uint32_t there = pair < 2 ? word << (6 - 4 * pair) : word >> (4 * pair - 6);
    return put_bits(there, 0x03c003c0u, 0x4c004c00u);
}
static DEVICE uint32_t biased_pair(uint32_t word, int pair, bf16)
{
    uint32_t there = pair < 1 ? word << 3 : word >> (4 * pair - 3);
    return put_bits(there, 0x00780078u, 0x41804180u);
}
static DEVICE uint32_t minus_bias(f16) { return 0xce00ce00u; }
static DEVICE uint32_t minus_bias(bf16) { return 0xc1c0c1c0u; }

/* Two of the four e4m3 of `word` as a pair of T. A byte's exponent and fraction are put into those
 * of a T, whose exponents' bias is larger: the product by a power of two makes up for that. It is
 * exact, and right for denormals, but not for NaN, which is never stored. */
static DEVICE uint32_t pair_of_floats(uint32_t word, int pair, f16)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return widen2(word >> 16 * pair, e4m3());
#else
    uint32_t u = pick_bytes(word, 0, pair ? 0x3424 : 0x1404);
    return multiply2((u & 0x80008000u) | (u >> 1 & 0x3f803f80u), 0x5c005c00u, f16()); /* 2^8 */
#endif
}
static DEVICE uint32_t pair_of_floats(uint32_t word, int pair, bf16)
{
    uint32_t u = pick_bytes(word, 0, pair ? 0x3424 : 0x1404);
    return multiply2((u & 0x80008000u) | (u >> 4 & 0x07f007f0u), 0x7b807b80u, bf16()); /* 2^120 */
}

/* ---- operands of scaled weights -----------------------------------------------------------------
 * A row's columns of one group, two at a time: each is integer or float times scale, rounded once.
 * What an integer is put into has few bits above it, so that a fused multiply-add with the scale
 * takes that away again and is exact. */
template <class T, int BITS, bool FLOAT> struct scaled_row {
    float scale, less;

    /* Row g's scales of a panel and group, or those of row g + 8. */
    struct both {
        vec8 of_rows;
        static DEVICE both at(const void *scales, size_t g)
        {
            if (FLOAT) return both{((const vec8 *)scales)[g]};
            uint32_t two = ((const uint32_t *)scales)[g];
            int up = BITS == 8 ? 15 : 16;
            return both{{{(two & 0xffffu) << up, two >> 16 << up}}};
        }
    };
    DEVICE scaled_row(const both &b, int row)
        : scale(float_of_bits(b.of_rows.w[row])),
          less(-(BITS == 8 ? 32768.0f + 128 : 24.0f) * scale)
    {
    }
    /* Bytes `low` and `high` of v; integers are q + 128. */
    DEVICE uint32_t bytes(uint32_t v, int low, int high) const
    {
        if (FLOAT) {
            uint32_t pair = pair_of_floats(pick_bytes(v, 0, (uint32_t)(low | high << 4)), 0, f16());
            return pack2(to_float(f16{(uint16_t)pair}) * scale,
                         to_float(f16{(uint16_t)(pair >> 16)}) * scale, T());
        }
        return pack2(of_byte(v, low), of_byte(v, high), T());
    }
    /* Bits 4 i to 4 i + 3 of both halves of v, q + 8 each. */
    DEVICE uint32_t halves(uint32_t v, int i) const { return halves_of(v, i, T()); }

  private:
    DEVICE float of_byte(uint32_t v, int i) const /* 2^15 + byte */
    {
        uint32_t bits = pick_bytes(v, 0x47000000u, 0x7404u | (uint32_t)i << 4);
        return fmaf(float_of_bits(bits), scale, less);
    }
    DEVICE float of_half(uint32_t v, int at) const /* 16 + four bits */
    {
        uint32_t there = at < 19 ? v << (19 - at) : v >> (at - 19);
        return fmaf(float_of_bits(put_bits(there, 0x00780000u, 0x41800000u)), scale, less);
    }
    DEVICE uint32_t halves_of(uint32_t v, int i, f16) const
    {
        return pack2(of_half(v, 4 * i), of_half(v, 16 + 4 * i), f16());
    }
    /* A scale beside integers of 4 bits is a bf16. */
    DEVICE uint32_t halves_of(uint32_t v, int i, bf16) const
    {
        uint32_t bits = bits_of_float(scale);
        return multiply2(pair_of_halves(v, i, bf16()), pick_bytes(bits, 0, 0x3232), bf16());
    }
};

static DEVICE uint32_t log2_of_group(const gpu_matrix &w)
{
    return w.group == 32 ? 5 : w.group == 64 ? 6 : w.group == 128 ? 7 : 31;
}

/* Eight columns of a row as f32 without their scale. */
static DEVICE void quant_eight(const gpu_matrix &w, size_t row, size_t column, float out[8])
{
    const uint32_t *at =
        (const uint32_t *)((const uint8_t *)w.data + quant_bytes_at(w, row, column));
    if (w.bits == 4) {
        uint32_t word = at[0];
#pragma unroll
        for (int e = 0; e < 8; e++)
            out[e] = (float)((int)(word >> (4 * (e / 2) + 16 * (e % 2)) & 15) - 8);
        return;
    }
    vec8 words = *(const vec8 *)at;
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
        uint32_t word = words.w[e / 4];
        if (w.is_float) {
            uint32_t pair = pair_of_floats(word, e % 4 / 2, f16());
            out[e] = to_float(f16{(uint16_t)pair});
            out[e + 1] = to_float(f16{(uint16_t)(pair >> 16)});
        } else {
            out[e] = (float)(int8_t)(word >> e % 4 * 8);
            out[e + 1] = (float)(int8_t)(word >> (e % 4 + 1) * 8);
        }
    }
}

#endif

/* kernels/cuda, private: from K and V in shared memory to products with them, of a warp's 16 query
 * rows with some slots. K and V lie there as in their pages, each row ROW_PAD bytes longer.
 *
 * Those of 8 bits become operands of f16 in registers. load_matrices moves 16 bits as a whole,
 * which are two dims of a slot. So a lane has four dims of K in a row instead of two and two:
 * queries have the same order then, which a sum over all dims does not notice. Transposed, a lane
 * has two dims of two slots: a product takes the even dims of V, and another one the odd dims. */
#ifndef KERNELS_CUDA_FRAGMENTS_CUH
#define KERNELS_CUDA_FRAGMENTS_CUH

#include "kernels/cuda/quant.cuh"

enum { ROW_PAD = 16 /* bytes, so that rows begin in different banks */ };

template <class KV, int D> struct kv_row {
    static constexpr int BYTES = D * (int)sizeof(KV) + ROW_PAD;
};

/* Below compute capability 8.9 a NaN reads as 480: the state that it was made of has become NaN in
 * its own row already. */
static DEVICE uint32_t widen_pair(uint32_t word, int pair, e4m3)
{
    return pair_of_floats(word, pair, f16());
}
static DEVICE uint32_t widen_pair(uint32_t word, int pair, i8)
{
    return pair_of_bytes(word ^ 0x80808080u, pair, f16());
}

/* Bytes `dim` and `dim` + 2: a dim of two slots, as load_matrices_transposed reads two of each. */
static DEVICE uint32_t widen_slots(uint32_t word, int dim, e4m3)
{
    return widen_pair(pick_bytes(word, 0, 0x3120), dim, e4m3());
}
static DEVICE uint32_t widen_slots(uint32_t word, int dim, i8)
{
    uint32_t pair = pick_bytes(word ^ 0x80808080u, 0x64646464u, dim ? 0x4341 : 0x4240);
    return subtract2(pair, 0x64806480u, f16());
}

/* A warp's 16 query rows: in registers, or, when they do not fit, in shared memory. */
template <int D, bool NARROW> struct query_rows {
    static constexpr bool HELD = D <= 128;
    static constexpr int ROW = D + ROW_PAD / 2;
    uint32_t held[HELD ? D / 16 : 1][4];
    const uint16_t *at; /* the rows of this lane */
    DEVICE void load(const void *rows)
    {
        unsigned lane = threadIdx.x % WARP;
        at = (const uint16_t *)rows;
        if (NARROW) at += lane / 4 * ROW + lane % 4 * 4;
        else at += lane % 16 * ROW + lane / 16 * 8;
#pragma unroll
        for (int d = 0; HELD && d < D / 16; d++) read(d, held[HELD ? d : 0]);
    }
    DEVICE void read(int d, uint32_t a[4]) const
    {
        if (!NARROW) {
            load_matrices(a, at + d * 16);
            return;
        }
        vec8 low = *(const vec8 *)(at + d * 16), high = *(const vec8 *)(at + 8 * ROW + d * 16);
        a[0] = low.w[0];
        a[1] = high.w[0];
        a[2] = low.w[1];
        a[3] = high.w[1];
    }
};

/* scores [2 tiles of 8 slots for each 16] of a warp's 16 rows with TOKENS slots, whose K begins at
 * `k`. */
template <class KV, int D, int TOKENS, class Q>
static DEVICE void score(const Q &q, const unsigned char *k, float s[TOKENS / 8][4])
{
    typedef typename query_of<KV>::type T;
    constexpr int ROW_BYTES = kv_row<KV, D>::BYTES;
    constexpr int AT_ONCE = 2 / sizeof(KV); /* times 16 dims */
    unsigned lane = threadIdx.x % WARP;
    const unsigned char *mine = k + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d += AT_ONCE) {
        uint32_t rows[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (!q.HELD) q.read(d + i, rows[i]);
            else
                for (int j = 0; j < 4; j++) rows[i][j] = q.held[q.HELD ? d + i : 0][j];
        }
#pragma unroll
        for (int n = 0; n < TOKENS / 16; n++) {
            uint32_t b[4];
            load_matrices(b, mine + n * 16 * ROW_BYTES + d / AT_ONCE * 32);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if constexpr (sizeof(KV) == 2) {
                    multiply(s[2 * n + i], rows[0], b[2 * i], b[2 * i + 1], T());
                } else {
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        multiply(s[2 * n + i], rows[j], widen_pair(b[2 * i + j], 0, KV()),
                                 widen_pair(b[2 * i + j], 1, KV()), T());
                }
        }
    }
}

/* o += weights * V of TOKENS slots, which begins at `v`. */
template <class KV, int D, int TOKENS>
static DEVICE void weigh(const float s[TOKENS / 8][4], const unsigned char *v, float o[D / 8][4])
{
    typedef typename query_of<KV>::type T;
    constexpr int ROW_BYTES = kv_row<KV, D>::BYTES;
    constexpr int AT_ONCE = 2 / sizeof(KV); /* times 16 dims */
    unsigned lane = threadIdx.x % WARP;
    const unsigned char *mine = v + lane % 16 * ROW_BYTES + lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < TOKENS / 16; n++) {
        const float *low = s[2 * n], *high = s[2 * n + 1];
        uint32_t p[4] = {pack2(low[0], low[1], T()), pack2(low[2], low[3], T()),
                         pack2(high[0], high[1], T()), pack2(high[2], high[3], T())};
#pragma unroll
        for (int d = 0; d < D / 16; d += AT_ONCE) {
            uint32_t b[4];
            load_matrices_transposed(b, mine + n * 16 * ROW_BYTES + d / AT_ONCE * 32);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if constexpr (sizeof(KV) == 2) {
                    multiply(o[2 * d + i], p, b[2 * i], b[2 * i + 1], T());
                } else {
#pragma unroll
                    for (int j = 0; j < 2; j++) /* even dims of the i-th 16, then odd ones */
                        multiply(o[2 * (d + i) + j], p, widen_slots(b[2 * i], j, KV()),
                                 widen_slots(b[2 * i + 1], j, KV()), T());
                }
        }
    }
}

/* Puts a lane's sums over V of 8 bits in pairs of neighbouring dims, whose first is dim_of. */
template <int D> static DEVICE void pair_up(float o[D / 8][4])
{
#pragma unroll
    for (int d = 0; d < D / 8; d += 2)
#pragma unroll
        for (int i = 1; i < 4; i += 2) {
            float even = o[d][i];
            o[d][i] = o[d + 1][i - 1];
            o[d + 1][i - 1] = even;
        }
}

/* The first dim of a lane's pair d of a row's sums. */
template <bool NARROW> static DEVICE uint32_t dim_of(int d)
{
    uint32_t t = threadIdx.x % 4;
    return NARROW ? d / 2 * 16 + t * 4 + d % 2 * 2 : d * 8 + t * 2;
}

#endif

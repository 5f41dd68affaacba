/* Matrix product, AVX-512F in f32: a register holds one column of a panel; tiles of up to 24 rows,
 * sums in registers. Packing x stays AVX2's. */
#include "kernels/isa.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 24,
    TILE_SIDE = 8,
    TILE_SUMS = 24, /* side by rows, of all tiles below */
};

/* Loads 16 weights of each of a pair of columns (f32: of one column). f16 weights come in the lane
 * order that the conversion of pairs leaves, see to_lanes. */
INLINE void load_columns(const dtype type, const uint8_t *w, __m512 *even, __m512 *odd)
{
    if (type == DTYPE_F32) {
        *even = _mm512_load_ps(w);
    } else if (type == DTYPE_BF16) {
        const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
        __m512i pairs = _mm512_load_si512(w);
        *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
    } else {
        __m512 left = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)w));
        __m512 right = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)w + 1));
        *even = _mm512_shuffle_ps(left, right, 0x88);
        *odd = _mm512_shuffle_ps(left, right, 0xdd);
    }
}

/* Converts from the order of rows of W to the order of load_columns' lanes, and back. */
INLINE __m512 to_lanes(const dtype type, __m512 v)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    if (type != DTYPE_F16) return v;
    return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(v)));
}
INLINE __m512 from_lanes(const dtype type, __m512 v)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    if (type != DTYPE_F16) return v;
    return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(v)));
}

/* sums [side][rows] += one column of each panel times x [rows]. */
INLINE void add_column(const int rows, const int side, const __m512 *v, const float *x,
                       __m512 *sums)
{
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < side; i++)
            sums[i * rows + r] = _mm512_fmadd_ps(v[i], _mm512_set1_ps(x[r]), sums[i * rows + r]);
}

/* Loops over sums are unrolled by pragma: gcc keeps the sums of a remaining loop in memory. */
INLINE void tile(const dtype type, const int rows, const int side, const uint8_t *w,
                 size_t w_stride, size_t k, const float *x, float *acc, const kern_ahead *ahead)
{
    __m512 sums[TILE_SUMS], even[TILE_SIDE], odd[TILE_SIDE];
#pragma GCC unroll 24
    for (int s = 0; s < side * rows; s++)
        sums[s] = to_lanes(type, _mm512_loadu_ps(acc + s * KERN_PANEL));

    const int step = type == DTYPE_F32 ? 1 : 2;
    const uint8_t *next = ahead->at;
    const size_t next_stride = ahead->stride, next_step = ahead->step;
    for (size_t n = k / (size_t)step; n > 0; n--) {
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) {
            _mm_prefetch((const char *)(next + i * next_stride), _MM_HINT_T0);
            load_columns(type, w + i * w_stride, &even[i], &odd[i]);
        }
        add_column(rows, side, even, x, sums);
        if (type != DTYPE_F32) add_column(rows, side, odd, x + rows, sums);
        w += 64;
        x += step * rows;
        next += next_step;
    }
    if (k % (size_t)step != 0) {
#pragma GCC unroll 8
        for (int i = 0; i < side; i++) load_columns(type, w + i * w_stride, &even[i], &odd[i]);
        add_column(rows, side, even, x, sums);
    }
#pragma GCC unroll 24
    for (int s = 0; s < side * rows; s++)
        _mm512_storeu_ps(acc + s * KERN_PANEL, from_lanes(type, sums[s]));
}

/* Rows of a tile, and the panels it takes at once: eight or more sums hide the latency. */
// clang-format off
#define FOR_TILES(X, name, type)                                                                   \
    X(name, type, 1, 8)  X(name, type, 2, 4)  X(name, type, 3, 4)  X(name, type, 4, 2)             \
    X(name, type, 5, 2)  X(name, type, 6, 2)  X(name, type, 7, 2)  X(name, type, 8, 2)             \
    X(name, type, 9, 2)  X(name, type, 10, 2) X(name, type, 11, 2) X(name, type, 12, 2)            \
    X(name, type, 13, 1) X(name, type, 14, 1) X(name, type, 15, 1) X(name, type, 16, 1)            \
    X(name, type, 17, 1) X(name, type, 18, 1) X(name, type, 19, 1) X(name, type, 20, 1)            \
    X(name, type, 21, 1) X(name, type, 22, 1) X(name, type, 23, 1) X(name, type, 24, 1)
// clang-format on

#define TILE(name, type, rows, side)                                                               \
    static void tile_##name##_##rows##__avx512(const void *w, size_t w_stride, size_t k,           \
                                               const float *x, float *acc,                         \
                                               const kern_ahead *ahead)                            \
    {                                                                                              \
        tile(type, rows, side, w, w_stride, k, x, acc, ahead);                                     \
    }
#define TILE1(name, type, rows, side)                                                              \
    static void tile1_##name##_##rows##__avx512(const void *w, size_t w_stride, size_t k,          \
                                                const float *x, float *acc,                        \
                                                const kern_ahead *ahead)                           \
    {                                                                                              \
        tile(type, rows, 1, w, w_stride, k, x, acc, ahead);                                        \
    }
#define TILES_OF(name, type)                                                                       \
    FOR_TILES(TILE, name, type)                                                                    \
    FOR_TILES(TILE1, name, type)

TILES_OF(f32, DTYPE_F32)
TILES_OF(bf16, DTYPE_BF16)
TILES_OF(f16, DTYPE_F16)

void kern_matmul_fill_avx512(kern_isa *isa)
{
    isa->row_ahead = 0;
    isa->tile_rows = TILE_ROWS;
#define SET_TILE(name, type, rows, side)                                                           \
    isa->tile_panels[rows] = side;                                                                 \
    isa->tile[type][rows] = tile_##name##_##rows##__avx512;                                        \
    isa->tile1[type][rows] = tile1_##name##_##rows##__avx512;
    FOR_TILES(SET_TILE, f32, DTYPE_F32)
    FOR_TILES(SET_TILE, bf16, DTYPE_BF16)
    FOR_TILES(SET_TILE, f16, DTYPE_F16)
}

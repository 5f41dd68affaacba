/* Matrix product, AVX2 + FMA: tiles of up to 6 rows by 16 columns, sums in registers. */
#include "kernels/isa.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,
    TILE_SIDE = 4,
    ROW_AHEAD = 384, /* one row reads four or six streams; the CPU waits for few lines at once */
};

/* v [2] = 16 weights of one column: the even or the odd one of a pair (f32: the only one). f16
 * weights come in the lane order that the conversion of pairs leaves, see lane_order. */
INLINE void load_column(const dtype type, const int odd, const uint8_t *w, __m256 v[2])
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    const __m256i up =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13, /* twice */
                         -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    for (int h = 0; h < 2; h++, w += 32) {
        if (type == DTYPE_F32) {
            v[h] = _mm256_load_ps((const float *)w);
        } else if (type == DTYPE_BF16) {
            __m256i pairs = _mm256_load_si256((const __m256i *)w);
            /* A shuffle, not a shift: on Intel it leaves the ports of the FMAs alone. */
            v[h] = _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, high)
                                           : _mm256_shuffle_epi8(pairs, up));
        } else {
            __m256 left = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)w));
            __m256 right = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)w + 1));
            v[h] =
                odd ? _mm256_shuffle_ps(left, right, 0xdd) : _mm256_shuffle_ps(left, right, 0x88);
        }
    }
}

/* Converts between the order of rows of W and the order of load_column's lanes, either way. */
INLINE __m256 lane_order(const dtype type, __m256 v)
{
    if (type != DTYPE_F16) return v;
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}

/* sums [2] += v [2] * x, in place. Written in assembly because gcc, short of registers with 12
 * sums, computes into the register of x and spills sums in every round, at a quarter of the
 * speed. */
INLINE void add_product(__m256 sums[2], const __m256 v[2], const float *x)
{
    __m256 all;
    __asm__("vbroadcastss %[x], %[all]\n\t"
            "vfmadd231ps %[v0], %[all], %[s0]\n\t"
            "vfmadd231ps %[v1], %[all], %[s1]"
            : [s0] "+x"(sums[0]), [s1] "+x"(sums[1]), [all] "=&x"(all)
            : [v0] "x"(v[0]), [v1] "x"(v[1]), [x] "m"(*x));
}

/* Loops over sums are unrolled by pragma: gcc keeps the sums of a remaining loop in memory. */
INLINE void tile(const dtype type, const int rows, const int side, const uint8_t *w,
                 size_t w_stride, size_t k, const float *x, float *acc, const kern_ahead *ahead)
{
    __m256 sums[TILE_SIDE * TILE_ROWS][2], v[2];
#pragma GCC unroll 16
    for (int s = 0; s < side * rows; s++) {
        sums[s][0] = lane_order(type, _mm256_loadu_ps(acc + s * KERN_PANEL));
        sums[s][1] = lane_order(type, _mm256_loadu_ps(acc + s * KERN_PANEL + 8));
    }
    const int step = type == DTYPE_F32 ? 1 : 2;
    const uint8_t *next = ahead->at;
    const size_t next_stride = ahead->stride, next_step = ahead->step;
    for (size_t n = k / (size_t)step; n > 0; n--) {
#pragma GCC unroll 16
        for (int i = 0; i < side; i++) {
            const uint8_t *at = w + i * w_stride;
            _mm_prefetch((const char *)(next + i * next_stride), _MM_HINT_T0);
            load_column(type, 0, at, v);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) add_product(sums[i * rows + r], v, x + r);
            if (type == DTYPE_F32) continue;
            /* With many sums no register is left to keep the odd column in, so it is loaded
             * again. */
            if (side * rows > 5) __asm__("" : "+r"(at));
            load_column(type, 1, at, v);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) add_product(sums[i * rows + r], v, x + rows + r);
        }
        w += 64;
        x += step * rows;
        next += next_step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < side; i++) {
        if (k % (size_t)step == 0) break;
        load_column(type, 0, w + i * w_stride, v);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) add_product(sums[i * rows + r], v, x + r);
    }
#pragma GCC unroll 16
    for (int s = 0; s < side * rows; s++) {
        _mm256_storeu_ps(acc + s * KERN_PANEL, lane_order(type, sums[s][0]));
        _mm256_storeu_ps(acc + s * KERN_PANEL + 8, lane_order(type, sums[s][1]));
    }
}

/* Rows of a tile, and the panels it takes at once: eight or more sums hide the latency. */
// clang-format off
#define FOR_TILES(X, name, type)                                                                   \
    X(name, type, 1, 4) X(name, type, 2, 2) X(name, type, 3, 2)                                    \
    X(name, type, 4, 1) X(name, type, 5, 1) X(name, type, 6, 1)
// clang-format on

#define TILE(name, type, rows, side)                                                               \
    static void tile_##name##_##rows##__avx2(const void *w, size_t w_stride, size_t k,             \
                                             const float *x, float *acc, const kern_ahead *ahead)  \
    {                                                                                              \
        tile(type, rows, side, w, w_stride, k, x, acc, ahead);                                     \
    }
#define TILE1(name, type, rows, side)                                                              \
    static void tile1_##name##_##rows##__avx2(const void *w, size_t w_stride, size_t k,            \
                                              const float *x, float *acc, const kern_ahead *ahead) \
    {                                                                                              \
        tile(type, rows, 1, w, w_stride, k, x, acc, ahead);                                        \
    }
#define TILES_OF(name, type)                                                                       \
    FOR_TILES(TILE, name, type)                                                                    \
    FOR_TILES(TILE1, name, type)

TILES_OF(f32, DTYPE_F32)
TILES_OF(bf16, DTYPE_BF16)
TILES_OF(f16, DTYPE_F16)

/* Transposes: lane j of v[i] becomes lane i of v[j]. */
INLINE void transpose_8x8(__m256 v[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* Transposes eight columns at a time. A store of eight rows may overrun its column into the next
 * ones, which are written after it. */
static void pack_x__avx2(const float *x, size_t x_stride, size_t rows, size_t k, float *out)
{
    size_t i = 0;
    for (; i + 8 <= k; i += 8) {
        __m256 v[KERN_TILE_ROWS / 8][8];
        for (size_t r = 0; r < rows; r += 8) {
            for (size_t j = 0; j < 8; j++)
                v[r / 8][j] = r + j < rows ? _mm256_loadu_ps(x + (r + j) * x_stride + i)
                                           : _mm256_setzero_ps();
            transpose_8x8(v[r / 8]);
        }
        for (size_t c = 0; c < 8; c++)
            for (size_t r = 0; r < rows; r += 8)
                _mm256_storeu_ps(out + (i + c) * rows + r, v[r / 8][c]);
    }
    for (; i < k; i++)
        for (size_t r = 0; r < rows; r++) out[i * rows + r] = x[r * x_stride + i];
}

void kern_matmul_fill_avx2(kern_isa *isa)
{
    isa->row_ahead = ROW_AHEAD;
    isa->tile_rows = TILE_ROWS;
#define SET_TILE(name, type, rows, side)                                                           \
    isa->tile_panels[rows] = side;                                                                 \
    isa->tile[type][rows] = tile_##name##_##rows##__avx2;                                          \
    isa->tile1[type][rows] = tile1_##name##_##rows##__avx2;
    FOR_TILES(SET_TILE, f32, DTYPE_F32)
    FOR_TILES(SET_TILE, bf16, DTYPE_BF16)
    FOR_TILES(SET_TILE, f16, DTYPE_F16)
    isa->pack_x = pack_x__avx2;
}

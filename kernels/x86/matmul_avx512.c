/* Matrix product, AVX-512F in f32: a register holds one column of a panel; tiles of up to 12 rows by two
 * panels, sums in registers. Packing x stays AVX2's. */
#include "kernels/isa.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 12,
    TILE_SIDE = 8,
    PREFETCH_BYTES = 2048, /* ahead in each stream; within 5 % from 1 to 4 KiB */
};

/* One pair of columns (f32: one column) of a panel. Those of f16 come in the order that the conversion
 * of pairs leaves, see to_lanes. */
typedef struct columns {
    __m512 even, odd;
} columns;

INLINE columns load_columns(const dtype type, const uint8_t *w)
{
    columns c = {0};
    if (type == DTYPE_F32) {
        c.even = _mm512_load_ps(w);
    } else if (type == DTYPE_BF16) {
        __m512i pairs = _mm512_load_si512(w);
        c.even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        c.odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        __m512 left = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)w));
        __m512 right = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)w + 1));
        c.even = _mm512_shuffle_ps(left, right, 0x88);
        c.odd = _mm512_shuffle_ps(left, right, 0xdd);
    }
    return c;
}

/* From the order of rows of W to that of load_columns' lanes, and back. */
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

INLINE void tile(const dtype type, const int rows, const int side, const uint8_t *w, size_t w_stride,
                 size_t k, const float *x, float *acc)
{
    __m512 sums[TILE_SIDE][TILE_ROWS];
    for (int i = 0; i < side; i++)
        for (int r = 0; r < rows; r++)
            sums[i][r] = to_lanes(type, _mm512_loadu_ps(acc + (i * rows + r) * KERN_PANEL));

    const size_t step = type == DTYPE_F32 ? 1 : 2;
    columns c[TILE_SIDE];
    for (size_t n = k / step; n > 0; n--) {
        for (int i = 0; i < side; i++) {
            _mm_prefetch((const char *)(w + i * w_stride + PREFETCH_BYTES), _MM_HINT_T0);
            c[i] = load_columns(type, w + i * w_stride);
        }
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < side; i++)
                sums[i][r] = _mm512_fmadd_ps(c[i].even, _mm512_set1_ps(x[r]), sums[i][r]);
        if (type != DTYPE_F32)
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < side; i++)
                    sums[i][r] = _mm512_fmadd_ps(c[i].odd, _mm512_set1_ps(x[rows + r]), sums[i][r]);
        w += 64;
        x += step * (size_t)rows;
    }
    if (k % step != 0)
        for (int i = 0; i < side; i++) {
            c[i] = load_columns(type, w + i * w_stride);
            for (int r = 0; r < rows; r++)
                sums[i][r] = _mm512_fmadd_ps(c[i].even, _mm512_set1_ps(x[r]), sums[i][r]);
        }

    for (int i = 0; i < side; i++)
        for (int r = 0; r < rows; r++)
            _mm512_storeu_ps(acc + (i * rows + r) * KERN_PANEL, from_lanes(type, sums[i][r]));
}

INLINE void widen(const dtype type, const uint8_t *w, size_t k, float *out)
{
    for (size_t i = 0; i < k; i += 2, w += 64) {
        columns c = load_columns(type, w);
        _mm512_store_ps(out + i * KERN_PANEL, from_lanes(type, c.even));
        if (i + 1 < k) _mm512_store_ps(out + (i + 1) * KERN_PANEL, from_lanes(type, c.odd));
    }
}

/* Rows of a tile, and the panels it takes at once: eight or more independent sums hide the latency. */
#define FOR_TILES(X, name, type)                                                                   \
    X(name, type, 1, 8) X(name, type, 2, 4) X(name, type, 3, 4) X(name, type, 4, 2)                \
    X(name, type, 5, 2) X(name, type, 6, 2) X(name, type, 7, 2) X(name, type, 8, 2)                \
    X(name, type, 9, 2) X(name, type, 10, 2) X(name, type, 11, 2) X(name, type, 12, 2)

#define TILE(name, type, rows, side)                                                               \
    static void tile_##name##_##rows##__avx512(const void *w, size_t w_stride, size_t k,           \
                                               const float *x, float *acc)                         \
    {                                                                                              \
        tile(type, rows, side, w, w_stride, k, x, acc);                                            \
    }
#define TILE1(name, type, rows, side)                                                              \
    static void tile1_##name##_##rows##__avx512(const void *w, size_t w_stride, size_t k,          \
                                                const float *x, float *acc)                        \
    {                                                                                              \
        tile(type, rows, 1, w, w_stride, k, x, acc);                                               \
    }
#define TILES_OF(name, type)                                                                       \
    FOR_TILES(TILE, name, type)                                                                    \
    FOR_TILES(TILE1, name, type)

TILES_OF(f32, DTYPE_F32)
TILES_OF(bf16, DTYPE_BF16)
TILES_OF(f16, DTYPE_F16)

static void widen_bf16__avx512(const void *w, size_t k, float *out)
{
    widen(DTYPE_BF16, w, k, out);
}
static void widen_f16__avx512(const void *w, size_t k, float *out) { widen(DTYPE_F16, w, k, out); }

static double fma_burst__avx512(size_t rounds, float *sink)
{
    enum { CHAINS = 12 };
    const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    __m512 sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_setzero_ps();
    for (size_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_fmadd_ps(sums[c], a, b);
    for (int c = 0; c < CHAINS; c++) *sink += _mm512_cvtss_f32(sums[c]);
    return 2.0 * 16 * CHAINS * (double)rounds;
}

void kern_matmul_fill_avx512(kern_isa *isa)
{
    isa->tile_rows = TILE_ROWS;
    isa->widen_tiles = 3;
#define SET_TILE(name, type, rows, side)                                                           \
    isa->tile_panels[rows] = side;                                                                 \
    isa->tile[type][rows] = tile_##name##_##rows##__avx512;                                        \
    isa->tile1[type][rows] = tile1_##name##_##rows##__avx512;
    FOR_TILES(SET_TILE, f32, DTYPE_F32)
    FOR_TILES(SET_TILE, bf16, DTYPE_BF16)
    FOR_TILES(SET_TILE, f16, DTYPE_F16)
    isa->widen[DTYPE_BF16] = widen_bf16__avx512;
    isa->widen[DTYPE_F16] = widen_f16__avx512;
    isa->fma_burst = fma_burst__avx512;
}

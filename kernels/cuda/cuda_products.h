/* cuda_products: weight matrices on a GPU, and what their products need.
 *
 * What     how a matrix lies, and the sizes that its memory and its products take.
 * Owner    all memory is the caller's.
 * Threads  values and functions without state: any.
 * Units    elements for n, k and group; bytes where a name says so. */
#ifndef KERNELS_CUDA_CUDA_PRODUCTS_H
#define KERNELS_CUDA_CUDA_PRODUCTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Marks functions that kernels call too. */
#ifdef __CUDACC__
#define GPU_INLINE inline __host__ __device__
#else
#define GPU_INLINE inline
#endif

typedef enum gpu_type { GPU_F32, GPU_BF16, GPU_F16, GPU_TYPES } gpu_type;

/* W [n, k]. bits 0: elements of `type`, row by row. Quantised: integers or e4m3 floats in tiles
 * (quant.cuh), and `scales` for each row and group of columns: 16 bits for integers, f32 for
 * floats. gpu_matrix_bytes and gpu_scale_bytes give the sizes of both. */
typedef struct gpu_matrix {
    void *data, *scales;
    size_t n, k;
    gpu_type type;       /* quantised: type of the operands of products */
    uint8_t bits, group; /* 8 or 4, and 32, 64 or 128; of floats also 0: all columns */
    bool is_float;       /* bits is 8 */
} gpu_matrix;

static GPU_INLINE size_t gpu_tile_columns(uint8_t bits) { return bits == 4 ? 64 : 32; }
/* Groups of a row, including those that pad its last tile. */
static GPU_INLINE size_t gpu_groups(const gpu_matrix *w)
{
    size_t columns = gpu_tile_columns(w->bits), all = (w->k + columns - 1) / columns * columns;
    return w->group ? (all + w->group - 1) / w->group : 1;
}
static GPU_INLINE size_t gpu_matrix_bytes(const gpu_matrix *w)
{
    if (w->bits == 0) return w->n * w->k * (w->type == GPU_F32 ? 4 : 2);
    size_t columns = gpu_tile_columns(w->bits), tiles = (w->k + columns - 1) / columns;
    return (w->n + 15) / 16 * tiles * 512;
}
static GPU_INLINE size_t gpu_scale_bytes(const gpu_matrix *w)
{
    return w->bits ? (w->n + 15) / 16 * 16 * gpu_groups(w) * (w->is_float ? 4 : 2) : 0;
}

/* Whether products of many rows with w can be of e4m3 by e4m3, by its shape. */
static GPU_INLINE bool gpu_may_narrow(const gpu_matrix *w)
{
    return w->is_float && (w->group == 0 || w->group == 128) && w->n % 16 == 0 && w->k % 16 == 0;
}

static GPU_INLINE size_t gpu_type_bytes(gpu_type t) { return t == GPU_F32 ? 4 : 2; }

/* Up to how many rows a product reads W once, as it lies (few.cu): of W in operands, since for more
 * rows x is read about as often as W; of quantised W, which for more rows becomes operands; and of
 * experts, on average, since then nearly every one has a single tile there. Up to GPU_STAGED_ROWS
 * quantised W becomes operands in registers, by tiles of 128 rows (grouped.cu); for more rows the
 * library's faster product is worth the operands' way through memory. */
enum { GPU_FEW_ROWS = 8, GPU_FEW_QUANT_ROWS = 128, GPU_FEW_OF_EXPERT = 16, GPU_STAGED_ROWS = 512 };
/* These numbers of one gpu (set_few). */
typedef struct gpu_few {
    uint32_t rows, quant_rows, of_expert, staged_rows;
} gpu_few;

/* Rounds m rows up to the number whose algorithm the library takes for them: the next of eight
 * steps between powers of two, of at least 8 rows each. The best algorithm depends on the number
 * of rows, and a step may have any number. */
static inline size_t gpu_rounded_rows(size_t m)
{
    size_t step = 8;
    while (step * 16 <= m) step *= 2;
    return (m + step - 1) / step * step;
}

/* The rows that y of a product of m rows has room for. */
static inline size_t gpu_product_rows(size_t m) { return (m + 3) / 4 * 4; }

/* Bytes of scratch that a product of up to m rows with w needs: a whole matrix of operands when w
 * is quantised, or W and x as e4m3 with their scales. */
enum { GPU_NARROW_ALIGNED = 256 };
static inline size_t gpu_product_scratch(const gpu_matrix *w, size_t m)
{
    size_t wide = w->bits ? w->n * w->k * 2 : 0;
    if (!gpu_may_narrow(w)) return wide;
    size_t rows = w->n + gpu_product_rows(m);
    size_t narrow = rows * (w->k + gpu_groups(w) * sizeof(float)) + 4 * GPU_NARROW_ALIGNED;
    return narrow > wide ? narrow : wide;
}

#endif

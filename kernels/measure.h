/* measures: values per slot, made from queries, keys and values, by which retention selects.
 *
 * What     for each slot of a table: softmax mass of query rows and its variants, norms and
 *          directions, the attention expected from future queries, the size of values behind the
 *          output projection. docs/retention.md section 4 defines each.
 * Owner    scratch is the context's; everything else the caller's.
 * Threads  the rules of kernels.h.
 * Shapes   a table's slots [0, n_slots) are all written; values are f32, one for each slot.
 * Invariance   a value depends on its table and its rows alone, not on batch mates, threads or
 *          page_tokens. A running sum does not depend on how its rows were cut into calls.
 * Errors   STATUS_NO_MEMORY when scratch cannot grow. Arguments are the caller's duty
 *          (asserted). */
#ifndef KERNELS_MEASURE_H
#define KERNELS_MEASURE_H

#include "kernels/kernels.h"

/* K and V of one sequence, one layer and one KV head, as in kern_attn_item. */
typedef struct kern_table {
    const uint32_t *pages; // [ceil(n_slots / page_tokens)]
    const uint8_t *tiles;
    uint32_t n_slots;
    // Formats with grids: bf16 tiles (kern_kv_wide) of the pages from first_filling on. The pages
    // of the query rows and a last page that is not full need one. A NULL entry: the page is read
    // as stored. A measure of a table alone reads pages as the next row would.
    const uint8_t *const *filling;
    uint32_t first_filling, residual_pages;
} kern_table;

/* ---- under query rows -------------------------------------------------------------------------
 * The n_rows query rows sit at the last slots of the table, row i at n_slots - n_rows + i. Sums go
 * over a row's query heads first, then over rows, both ascending. */
typedef enum kern_row_measure {
    KERN_MEASURE_MASS,       // softmax attention
    KERN_MEASURE_RAW,        // q . k of all slots, without scale, mask or softmax
    KERN_MEASURE_PROJECTION, // attention times <y, v>
    KERN_MEASURE_OUTSIDE,    // attention and y of the slots before the last `window` alone
    KERN_MEASURE_POOLED,     // attention max-pooled by 7; y of chunks [1, ceil(n / c) - w / c)
    KERN_ROW_MEASURES,
} kern_row_measure;

typedef struct kern_rows_item {
    kern_table table;
    kern_row_measure kind;
    uint32_t n_rows;
    uint32_t window; // OUTSIDE, POOLED
    uint32_t chunk;  // POOLED
    float bias;      // PROJECTION, OUTSIDE, POOLED: added to <y, v>
    float theta;     // PROJECTION, OUTSIDE, POOLED: y is made by the softmax of scores / theta, not
                     // by the attention that multiplies <y, v>; 0: by that attention
    const float *q;  // row i, head h at q + i * q_stride + h * head_dim
    const float *y;  // attention's output: row i, head h at y + i * y_stride + h * head_dim;
                     // read by PROJECTION without theta alone
    float *sums;     // running sums: the rows are added to slot j of page p, at sums + p *
                     // sums_stride + j % page_tokens; NULL: `out` is of these rows alone
    float *out;      // [n_slots], or NULL when only the sums are wanted
} kern_rows_item;

typedef struct kern_rows_batch {
    kern_kv_shape shape;
    size_t page_stride; // bytes
    size_t sums_stride; // floats
    uint32_t q_heads;   // query heads for each KV head
    float scale;
    size_t q_stride, y_stride; // floats
    const kern_rows_item *items;
    size_t n_items;
} kern_rows_batch;

status kern_measure_rows(kern_context *kc, const kern_rows_batch *batch);

/* ---- of a table alone ------------------------------------------------------------------------ */

typedef enum kern_table_measure {
    KERN_MEASURE_KEY_NORM,   // 2-norm
    KERN_MEASURE_KEY_COSINE, // between k and the mean of k / |k| over all slots
    KERN_MEASURE_VALUE_NORM, // 2-norm
    KERN_TABLE_MEASURES,
} kern_table_measure;

typedef struct kern_table_item {
    kern_table table;
    kern_table_measure kind;
    float *out; // [n_slots]
} kern_table_item;

status kern_measure_tables(kern_context *kc, const kern_kv_shape *shape, size_t page_stride,
                           const kern_table_item *items, size_t n_items);

/* ---- under the queries to come ----------------------------------------------------------------
 * Sum over query heads of softmax((k . m + k' C k / (2 sqrt d)) / sqrt d) over the slots from
 * `sinks` on; slots before have 0. m and C are the mean and the covariance (divided by the count)
 * of the rows' queries before rotation, both rotated by `mean_rope`. Without rows m and C are 0. */
typedef struct kern_expected_item {
    kern_table table;
    uint32_t sinks;
    uint32_t n_rows;
    const float *q;         // unrotated: row i, head h at q + i * q_stride + h * head_dim
    const float *mean_rope; // [head_dim]: mean cosines, then mean sines, laid out as kern_rope's
    float *out;             // [n_slots]
} kern_expected_item;

typedef struct kern_expected_batch {
    kern_kv_shape shape;
    size_t page_stride;
    uint32_t q_heads;
    size_t q_stride;
    const kern_expected_item *items;
    size_t n_items;
} kern_expected_batch;

status kern_measure_expected(kern_context *kc, const kern_expected_batch *batch);

/* ---- behind the output projection -------------------------------------------------------------
 * out [n_slots] = sum over q_heads of the 1-norm of W v, where W is the head_dim columns of o from
 * first_column + h * head_dim on. Costs as much as a product of o with n_slots rows. */
status kern_measure_value_weight(kern_context *kc, const kern_kv_shape *shape, size_t page_stride,
                                 const kern_table *table, const kern_matrix *o, size_t first_column,
                                 uint32_t q_heads, float *out);

#endif

/* Weights that a folder keeps as integers or 8-bit floats with scales: "quantization_config" of its
 * config.json (private to model/).
 *
 * What     reads the configuration, refuses what is not supported by name, finds the tensors that
 *          make each matrix and makes rows of them: (value - zero) * scale in f32, rounded once to
 *          the type of the scales. These are the bits that the public libraries give. What a
 *          scheme says of activations is not read: where products round them (--precision), each
 *          row makes its own scale, which is nearer to the model than one scale for all rows.
 * Which    the files decide which matrices are quantised; the configuration must not contradict
 *          them. A scheme is a file here and a row of the table in quantized.c.
 * Owner    a quantized value owns its lists and the weights that were matched; those point into
 *          the mappings of a safetensors value, which must outlive them.
 * Threads  one thread opens, matches and closes; rows are made by any number of threads.
 * Errors   one line that names the file and the field or tensor. */
#ifndef MODEL_LOAD_QUANTIZED_QUANTIZED_H
#define MODEL_LOAD_QUANTIZED_QUANTIZED_H

#include "model/load/tensors.h"

/* ---- one matrix ------------------------------------------------------------------------------ */

/* The tensors that a matrix is made of. */
typedef enum quantized_tensor {
    QUANTIZED_VALUES,
    QUANTIZED_SCALES,
    QUANTIZED_ZEROS,
    QUANTIZED_ORDER, /* i32 [cols]: each column's group */
    QUANTIZED_TENSORS
} quantized_tensor;

typedef struct quantized_bytes {
    const uint8_t *data; /* NULL: no such tensor */
    size_t bytes;
} quantized_bytes;

/* Limits far above any published model. */
enum { QUANTIZED_GROUPS_MAX = 4096, QUANTIZED_WAYS_MAX = 16 };

typedef struct quantized_weight {
    const file_map *map; /* the mapping of the values */
    size_t begin;        /* where the values begin in the file */
    size_t rows, cols;
    dtype type; /* type of the scales and of the rows */
    uint8_t bits;
    bool is_float;
    uint32_t zero_plus;                /* added to a word of zeros before it is read */
    size_t group_rows, group_cols;     /* weights that share a scale */
    size_t n_groups;                   /* side by side in a row; with an order, in any columns */
    size_t scale_row_step, scale_step; /* from a scale to the next row's; to the next group's */
    quantized_bytes in[QUANTIZED_TENSORS];
    /* Sets out to the exact values of columns [col, col + n) of a row. */
    void (*unpack)(const struct quantized_weight *w, size_t row, size_t col, size_t n, float *out);
    float (*zero)(const struct quantized_weight *w, size_t row, size_t group); /* NULL: 0 */
} quantized_weight;

/* Computes rows [row, row + n), each cols elements of w->type. */
void quantized_rows(const quantized_weight *w, size_t row, size_t n, uint8_t *out);
/* Hashes into h all that decides the rows except the data. */
uint64_t quantized_hash(const quantized_weight *w, uint64_t h);

/* ---- e4m3 that stays as it is (kept.c) ------------------------------------------------------- */

/* Whether slices of n columns of w, or all of its columns, can be kept as e4m3 with f32 scales: its
 * values are that, and no run of 32 columns of any slice has two scales in a row. Sets *group to
 * the most columns, of 32, 64 and 128, that never have two, or to 0 where all columns of w share a
 * scale. It is the same for all slices, which so have the same size. */
bool quantized_can_keep(const quantized_weight *w, size_t n, uint8_t *group);
/* The group of a matrix with parts of both groups. */
uint8_t quantized_join_groups(uint8_t a, uint8_t b);

typedef struct quantized_kept {
    const quantized_weight *w;
    size_t row, rows, col, n; /* the part of w */
    size_t group;             /* columns that share a scale, at least 1; from col on */
    uint8_t *values;          /* [rows, n] */
    float *scales;            /* [rows, groups] */
} quantized_kept;

/* Copies values and makes scales. False: row *bad of w, the first such one, holds a NaN, or has a
 * scale by which a value may not be finite. pool may be NULL. */
bool quantized_keep_rows(const quantized_kept *k, thread_pool *pool, size_t *bad);

/* ---- a folder's configuration ---------------------------------------------------------------- */

struct quantized_name;

/* Names of modules: exact ones, and patterns ("re:...") from the name's first character on. */
typedef struct quantized_names {
    struct quantized_name *items; /* patterns first */
    size_t n, n_patterns;
} quantized_names;

/* One way in which some of the modules are quantised. */
typedef struct quantized_group {
    const char *name;
    quantized_names targets; /* empty: all modules */
    bool is_float, packed, symmetric;
    uint8_t bits;
    size_t group_rows, group_cols; /* weights that share a scale; 0: all rows or columns */
} quantized_group;

typedef struct quantized_scheme quantized_scheme;

typedef struct quantized {
    const quantized_scheme *scheme; /* NULL: nothing is quantised */
    const char *where;              /* names config.json in messages */
    quantized_group *groups;
    size_t n_groups;
    quantized_names ignored;
    uint32_t zero_plus;        /* as in quantized_weight */
    quantized_weight *weights; /* [n_weights] matched so far */
    size_t n_weights;
    uint64_t work_left; /* what name matching may still cost */
    arena memory;
} quantized;

/* Reads a whole config.json; out->scheme stays NULL when it has no "quantization_config". */
status quantized_read(const json_t *config, const char *where, quantized *out, error *err);
/* Reads dir/config.json. */
status quantized_open(const char *dir, quantized *out, error *err);
/* Closing twice, or closing a zeroed value, is allowed. */
void quantized_close(quantized *q);
/* Appends one line for users: the method, and how each group is quantised. */
void quantized_describe(const quantized *q, strbuf *out);

/* Makes room for n matches. The list never grows afterwards, because sources point into it. */
status quantized_reserve(quantized *q, size_t n, error *err);
/* Makes p's source from the tensors that hold it quantised, and marks them in used [st->n_tensors].
 * When the files hold it plain, *found is false and p is unchanged. */
status quantized_match(quantized *q, const safetensors *st, bool *used, tensor_part *p, bool *found,
                       error *err);

#endif

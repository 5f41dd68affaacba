/* Weights that a folder keeps as integers or 8-bit floats with scales: "quantization_config" of its
 * config.json (private to model/).
 *
 * What     reads the configuration, refuses what is not supported by name, finds the tensors that
 *          make each matrix and makes rows of them: (value - zero) * scale in f32, rounded once to
 *          the type of the scales, which are the bits that the public libraries give. Activations
 *          are never quantised as a scheme may say: they stay as they are, which is nearer to the
 *          model that was quantised.
 * Which    the files say which matrices are quantised; the configuration must not contradict them.
 *          A scheme is a file here and a row of the table in quantized.c.
 * Owner    a quantized value owns its lists and the weights that were matched; those point into
 *          the mappings of a safetensors value, which must outlive them.
 * Threads  one thread opens, matches and closes; rows are made by any number of threads.
 * Errors   one line that names the file and the field or tensor. */
#ifndef MODEL_QUANTIZED_QUANTIZED_H
#define MODEL_QUANTIZED_QUANTIZED_H

#include "model/tensors.h"

/* ---- one matrix ------------------------------------------------------------------------------ */

/* The tensors that a matrix is made of. */
typedef enum quantized_tensor {
    QUANTIZED_VALUES,
    QUANTIZED_SCALES,
    QUANTIZED_ZEROS,
    QUANTIZED_ORDER, /* i32 [cols]: the group of each column */
    QUANTIZED_TENSORS
} quantized_tensor;

typedef struct quantized_bytes {
    const uint8_t *data; /* NULL: there is none */
    size_t bytes;
} quantized_bytes;

/* Far above any model there is. */
enum { QUANTIZED_GROUPS_MAX = 4096, QUANTIZED_WAYS_MAX = 16 };

typedef struct quantized_weight {
    const file_map *map; /* of the values */
    size_t begin;        /* of them, from the start of the file */
    size_t rows, cols;
    dtype type; /* of the scales, and so of the rows */
    uint8_t bits;
    bool is_float;
    uint32_t zero_plus;                /* is added to a word of zeros before it is read */
    size_t group_rows, group_cols;     /* weights that share a scale */
    size_t n_groups;                   /* side by side in a row; with an order, in any columns */
    size_t scale_row_step, scale_step; /* from a row's group to that below it, and beside it */
    quantized_bytes in[QUANTIZED_TENSORS];
    /* Values of columns [col, col + n) of a row, exact. */
    void (*unpack)(const struct quantized_weight *w, size_t row, size_t col, size_t n, float *out);
    float (*zero)(const struct quantized_weight *w, size_t row, size_t group); /* NULL: 0 */
} quantized_weight;

/* Rows [row, row + n), each cols elements of w->type. */
void quantized_rows(const quantized_weight *w, size_t row, size_t n, uint8_t *out);
/* What decides the rows, data aside. */
uint64_t quantized_hash(const quantized_weight *w, uint64_t h);

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
    quantized_names targets; /* none: all */
    bool is_float, packed, symmetric;
    uint8_t bits;
    size_t group_rows, group_cols; /* weights that share a scale; 0: all of them */
} quantized_group;

typedef struct quantized_scheme quantized_scheme;

typedef struct quantized {
    const quantized_scheme *scheme; /* NULL: nothing is quantised */
    const char *where;              /* names config.json in messages */
    quantized_group *groups;
    size_t n_groups;
    quantized_names ignored;
    uint32_t zero_plus;        /* as of a weight */
    quantized_weight *weights; /* [n_weights]: those that were matched */
    size_t n_weights;
    uint64_t work_left; /* what matching names may still cost */
    arena memory;
} quantized;

/* Of a whole config.json: out->scheme stays NULL when it has no "quantization_config". */
status quantized_read(const json_t *config, const char *where, quantized *out, error *err);
/* Of dir/config.json. */
status quantized_open(const char *dir, quantized *out, error *err);
/* Closing twice, or a zeroed value, is fine. */
void quantized_close(quantized *q);
/* One line for people: the method, and how each group is quantised. */
void quantized_describe(const quantized *q, strbuf *out);

/* Room for so many matches, which must not grow after. */
status quantized_reserve(quantized *q, size_t n, error *err);
/* Makes p's source of the tensors that hold it quantised, and marks them in used
 * [st->n_tensors]; *found is false, and p as it was, when the files hold it plain. */
status quantized_match(quantized *q, const safetensors *st, bool *used, tensor_part *p, bool *found,
                       error *err);

#endif

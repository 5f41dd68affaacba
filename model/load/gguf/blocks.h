/* The element types of GGUF tensors (private to model/): how many elements make a block, how many
 * bytes it takes, and how it becomes f32. A type is a row. */
#ifndef MODEL_LOAD_GGUF_BLOCKS_H
#define MODEL_LOAD_GGUF_BLOCKS_H

#include "base/base.h"

enum { BLOCK_ELEMENTS_MAX = 256 };

typedef struct block_type {
    uint32_t id; /* number in the file format */
    const char *name;
    uint32_t elements, bytes; /* in one block */
    uint8_t bits;             /* integers of this width fit it best; 0: not quantised */
    /* Gives the same bits as dequantize_blocks of the `gguf` package. NULL: unsupported type. */
    void (*decode)(const uint8_t *block, float *out);
} block_type;

/* NULL when the format has no such type. */
const block_type *block_type_find(uint32_t id);

#endif

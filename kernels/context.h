/* kernels, private: what a context owns. */
#ifndef KERNELS_CONTEXT_H
#define KERNELS_CONTEXT_H

#include "kernels/isa.h"

/* Scratch of one thread, allocated once when the context is made. */
typedef struct kern_thread {
    struct kern_matmul_scratch *matmul; /* matmul.c */
} kern_thread;

/* Memory that grows to the largest need seen; its contents do not survive growth. */
typedef struct kern_buffer {
    void *data;
    size_t bytes;
} kern_buffer;

bool kern_reserve(kern_buffer *buffer, size_t bytes); /* false: no memory */

/* Scratch of attention.c. */
typedef struct kern_attn_scratch {
    kern_buffer units, mass_offsets, mass, rows, parts;
} kern_attn_scratch;

/* Scratch of measure_*.c: each thread's state, and what one phase leaves for the next. */
typedef struct kern_measure_scratch {
    kern_buffer threads, units, pieces, rows;
} kern_measure_scratch;

struct kern_context {
    thread_pool *pool;
    unsigned n_threads;
    kern_isa isa;
    uint64_t matmul_calls; /* id of the current product: x packed under it stays valid */
    kern_thread *threads;  /* [n_threads] */
    kern_attn_scratch attention;
    kern_measure_scratch measure;
    kern_buffer read; /* what limits.c reads to measure bandwidth; empty before the first time */
};

/* Bytes of a thread's scratch for products, which matmul.c and matmul_blocks.c lay out: one huge
 * page. */
enum { KERN_MATMUL_SCRATCH_BYTES = 2 << 20 };

/* y [m, n] = x [m, k] times columns [first, first + k) of w, or y [m, n / 2] = swiglu of that. */
typedef struct kern_operands {
    const kern_matrix *w;
    size_t first, k;
    const float *bias, *x;
    size_t x_stride, m;
    float *y;
    size_t y_stride;
    bool swiglu;
} kern_operands;

/* Returns false and does nothing where the ISA has no blocks for this product (matmul_blocks.c).
 * Otherwise sets *done to whether the product was computed: one that ends in swiglu is not when it
 * has few rows. m and n are not 0. */
bool kern_matmul_blocks(kern_context *kc, const kern_operands *o, bool *done);

#endif

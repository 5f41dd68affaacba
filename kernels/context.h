/* kernels, private: what a context owns. */
#ifndef KERNELS_CONTEXT_H
#define KERNELS_CONTEXT_H

#include "kernels/isa.h"

/* Scratch of one thread, allocated once when the context is made. */
typedef struct kern_thread {
    struct kern_matmul_scratch *matmul; /* matmul.c */
} kern_thread;

struct kern_context {
    thread_pool *pool;
    unsigned n_threads;
    kern_isa isa;
    uint64_t matmul_calls; /* names the current product: what a thread packed for it stays valid */
    kern_thread *threads;  /* [n_threads] */
};

/* Bytes of kern_matmul_scratch: matmul.c knows them. */
size_t kern_matmul_scratch_bytes(void);

#endif

/* cuda_kept: what decode attention keeps of a sequence for a measure of mass.
 *
 * What     where it lies and how much it is. A measure that finds it does not read K again.
 * Owner    all memory is the caller's.
 * Threads  values and functions without state: any.
 * Units    floats. */
#ifndef KERNELS_CUDA_CUDA_KEPT_H
#define KERNELS_CUDA_CUDA_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Slots of a strip, which lie in one page. */
enum { GPU_KEPT_STRIP = 16 };

/* For each KV head, strip and packed row of the sequence in the step: either the scores of the
 * strip's slots, or the sum of their unnormalised weights and the maximum that these are relative
 * to, in base 2. */
typedef struct gpu_kept {
    size_t at;       /* index in gpu_attention.kept, a multiple of GPU_KEPT_STRIP */
    uint32_t strips; /* of a KV head: those of the longest table. 0: nothing is kept */
    bool slots;      /* whether scores are kept */
} gpu_kept;

static inline size_t gpu_kept_floats(const gpu_kept *k, size_t kv_heads, size_t rows)
{
    return kv_heads * k->strips * rows * (k->slots ? GPU_KEPT_STRIP : 2);
}

#endif

/* cuda_sums: sums and gathers over the gpus of several ranks, and the memory that they reach of
 * each other (the functions `sums`, `exchange`, `sum_gathered`, `share`, `reach` and `unreach` of
 * cuda_kernels.h).
 *
 * Owner    all memory is the caller's.
 * Threads  the rules of cuda_kernels.h; a call waits on the device for the other ranks' calls.
 * Units    bytes; elements for rows and columns. */
#ifndef KERNELS_CUDA_CUDA_SUMS_H
#define KERNELS_CUDA_CUDA_SUMS_H

#include "kernels/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each rank copies what it adds to memory of its own that all ranks reach, raises a flag at each of
 * them, and adds up all ranks' copies once it sees their flags. Where that is much to read, a rank
 * adds up a part of each row, and a second flag says that the others may read its sums. Copies and
 * sums exist twice, and calls take them in turn: a rank that is in call n has seen that the others
 * began call n - 1, so no rank reads the copies and sums of call n - 2 any more. */
enum { GPU_RANKS_MOST = 8, GPU_SUM_BLOCKS = 64, GPU_SUM_DIMS = 16384 };

/* Device memory that another gpu can reach, of this process or of another one on this host. */
struct gpu_handle {
    uint8_t bytes[64];
    uint64_t host, process, address;
    uint32_t ordinal, is_there; /* 0: the memory is not shared */
};

struct gpu_meeting {
    uint32_t rank, ranks;
    size_t room;                     /* bytes of a call's copies; a multiple of 16 */
    size_t once;                     /* of more bytes each rank adds up a part */
    uint8_t *copies[GPU_RANKS_MOST]; /* of each rank [4, room]: copies twice, then sums twice */
    /* The flags of each rank [2, GPU_SUM_BLOCKS, GPU_RANKS_MOST] say that its copies, and its sums,
     * are there. All are zero at first. */
    uint32_t *flags[GPU_RANKS_MOST];
    uint32_t *calls;      /* this rank's own [GPU_SUM_BLOCKS], likewise */
    const uint32_t *stop; /* in pinned host memory: not 0 ends all waits, and the sums are wrong */
};

/* x [m, d] = the sum of all ranks' delta in rank order, added to x where it `adds`; then out =
 * rmsnorm(x). With `post` the sum is first normed by its weights. delta is rounded to bf16 where
 * out is bf16, and the sum likewise; otherwise both are f32. So the bits of a row depend neither on
 * the number of rows nor on its place among them. */
struct gpu_sums {
    gpu_meeting meeting;
    float *x;
    const float *delta; /* may be x where nothing is added */
    bool adds;
    const float *post; /* [d], or NULL */
    const float *weight;
    float eps;
    size_t m, d;
    void *out;
    gpu_type type;
};

static inline size_t gpu_sums_bytes(size_t room) { return 4 * room; }
static inline size_t gpu_sums_flags(void) { return 2 * GPU_SUM_BLOCKS * GPU_RANKS_MOST; }
/* Bytes of an element of delta as it travels. */
static inline size_t gpu_sum_element(gpu_type type) { return type == GPU_BF16 ? 2 : 4; }
static inline bool gpu_takes_sums(size_t room, size_t m, size_t d, gpu_type type)
{
    return d % 4 == 0 && d <= GPU_SUM_DIMS && m * d * gpu_sum_element(type) <= room;
}

#ifdef __cplusplus
}
#endif
#endif

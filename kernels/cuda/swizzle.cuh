/* kernels/cuda, private: how rows of 64 elements of 16 bits lie in shared memory for wgmma, which
 * reads them swizzled in 128 bytes: the pieces of a row are in an order that depends on the row, so
 * that one piece of eight rows lies in different banks. */
#ifndef KERNELS_CUDA_SWIZZLE_CUH
#define KERNELS_CUDA_SWIZZLE_CUH

#include "kernels/cuda/simt.cuh"

enum {
    ROW_BYTES = 128,                     /* a row of an operand: 64 elements */
    ROW_PIECES = ROW_BYTES / 16,         /* of 16 bytes */
    SWIZZLE_ROWS = 8,                    /* rows after which the swizzle repeats */
    SWIZZLED = SWIZZLE_ROWS * ROW_BYTES, /* operands begin at a multiple of these bytes */
};

/* Where piece `piece` of a row lies, of rows that begin at `first`. */
static DEVICE uint32_t swizzled_at(uint32_t row, uint32_t piece, uint32_t first = 0)
{
    return first + row * ROW_BYTES + (piece ^ row % SWIZZLE_ROWS) * 16;
}

#endif

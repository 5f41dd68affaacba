/* Matrix product, op level: cuts the work, keeps the scratch, knows the edges. */
#include "kernels/context.h"

struct kern_matmul_scratch {
    uint64_t call; /* the product for which x is packed here */
};

size_t kern_matmul_scratch_bytes(void) { return sizeof(struct kern_matmul_scratch); }

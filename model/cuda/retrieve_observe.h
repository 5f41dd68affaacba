/* Measures what the prompts that end in a step attend to, for the preselection of blocks and for
 * the keys that stand for a block (private to model/cuda/retrieve.c; docs/retrieval.md, section
 * 4). */
#ifndef MODEL_CUDA_RETRIEVE_OBSERVE_H
#define MODEL_CUDA_RETRIEVE_OBSERVE_H

#include "model/cuda/retrieve_lists.h"

/* Prompts that end in the step. Zeroed at first. */
typedef struct cuda_endings {
    struct cuda_ending {
        uint32_t seq; /* of the step */
        cuda_prompt_end end;
    } * all; /* [n] */
    uint32_t n, capacity;
    uint8_t *scratch; /* masses, pooled masses, keys */
    size_t bytes;
} cuda_endings;

void cuda_endings_free(backend_cuda *b, cuda_endings *e);
/* Lists the step's, and makes room for what they decide. */
status cuda_endings_start(backend_cuda *b, const step_plan *plan, cuda_lists *lists,
                          cuda_endings *e);
/* After a layer's attention, which kept a->lse. The plan is b->plan. */
status cuda_endings_layer(const backend_cuda *b, const cuda_endings *e, uint32_t layer,
                          const gpu_attention *a);

#endif

/* Lists that requests keep between steps on a GPU (private to model/cuda/retrieve.c): the lists of
 * blocks of the last row of each choice that selected, for every layer and run of KV heads, by
 * which later rows read; and what the prompt's end attended to. They belong to a request's number
 * in plans (step_seq.note), so they are there when its pages come back from the host tier, until a
 * plan says that the request is over. All of them take at most twice backend_info.note_bytes. */
#ifndef MODEL_CUDA_RETRIEVE_LISTS_H
#define MODEL_CUDA_RETRIEVE_LISTS_H

#include "kernels/cuda/cuda_retrieval.h"
#include "model/cuda/backend.h"

typedef struct cuda_lists cuda_lists;

status cuda_lists_create(cuda_lists **out);
void cuda_lists_destroy(backend_cuda *b, cuda_lists *lists);

/* Gives up what is kept under these numbers, and what replaced lists took. May wait. */
status cuda_lists_end(backend_cuda *b, cuda_lists *lists, const uint32_t *notes, uint32_t n);
/* Gives a row that selects the memory in which its lists are kept. */
status cuda_lists_keep(backend_cuda *b, cuda_lists *lists, const step_seq *s, gpu_sparse_row *row);
/* Gives a row the lists of the choice's row that saw `selected_at` slots; STATUS_INVALID where
 * they are not kept. */
status cuda_lists_find(const cuda_lists *lists, const step_seq *s, uint32_t selected_at,
                       gpu_sparse_row *row);

/* The parts of a prompt's end that are kept on the device, as gpu_sparse_row has it; NULL where the
 * request asks for none of it. */
typedef struct cuda_prompt_end {
    uint32_t *left_out, *chosen;
    gpu_tile_mark *marks;
} cuda_prompt_end;

/* Makes room for what the end of a share's prompt decides. */
status cuda_lists_observe(backend_cuda *b, cuda_lists *lists, const step_seq *s,
                          cuda_prompt_end *out);
/* Finds its decisions of an earlier step; STATUS_INVALID where they are not kept. */
status cuda_lists_observed(const backend_cuda *b, const cuda_lists *lists, const step_seq *s,
                           cuda_prompt_end *out);

#endif

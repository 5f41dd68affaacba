/* Rows that read few blocks on a GPU (private to model/; docs/retrieval.md). Which rows select,
 * follow and read how much is known before a step runs, and goes to the device with it; what they
 * read is chosen there (kernels/cuda/cuda_retrieval.h), so a step never waits for the host.
 *
 * In layers where some row reads few blocks, attention is made twice: over the sequences' tables
 * for the rows that read everything, and over tables of gathered pages for the others. */
#ifndef MODEL_CUDA_RETRIEVE_H
#define MODEL_CUDA_RETRIEVE_H

#include "model/cuda/backend.h"

/* The kinds of retrieval that a GPU of its own makes (backend_info.retrieves). */
enum {
    CUDA_RETRIEVES = 1 << RETRIEVAL_MEAN | 1 << RETRIEVAL_MAX | 1 << RETRIEVAL_QUEST |
                     1 << RETRIEVAL_FIX | 1 << RETRIEVAL_DYNAMIC | RETRIEVAL_NEEDS_HISTORY |
                     RETRIEVAL_NEEDS_PRESELECTION
};

/* Bytes of representatives and marks beside a cell; 0 where the backend has no retrieval. */
size_t cuda_retrieve_of_page(const backend_cuda *b);
/* The most bytes on the device that the rows of a step list and score. */
uint64_t cuda_retrieve_of_step(const backend_cuda *b);
/* Makes room for representatives, and says what is kept for requests at most. The pool exists
 * already. */
status cuda_retrieve_create(backend_cuda *b);
void cuda_retrieve_destroy(backend_cuda *b);

/* Gives up what is kept for requests that the plan says are over. */
status cuda_retrieve_end_notes(backend_cuda *b, const step_plan *plan);
/* Lays out the rows of the step that read by retrieval, sends them, and clears the marks of the
 * pages that the step writes. Comes after cuda_send. Gives the shares their readings. */
status cuda_retrieve_lay_out(backend_cuda *b, const step_plan *plan, cuda_batch *batch);
/* Forgets the representatives in n consecutive cells, to which something is copied, by a copy that
 * goes with those of copies.c. */
status cuda_retrieve_forget(backend_cuda *b, uint32_t cell, uint32_t n);

#endif

/* Outputs of a generation, gathered for messages that hold several tokens of one choice (private to
 * rpc/services).
 *
 * A message costs server, wire and client about the same whether it holds one token or a hundred.
 * So a stream whose last message is still on its way gathers what comes meanwhile, and its next
 * message has all of it. A stream that keeps up has a message for each token.
 *
 * Owner    the batch keeps copies of texts; other pointers of an output lead into the generation,
 *          which must outlive the batch.
 * Threads  those of the generation: one at a time. */
#ifndef RPC_SERVICES_BATCH_H
#define RPC_SERVICES_BATCH_H

#include "rpc/service.h"

/* Most outputs read before they are sent. A stream whose client does not read holds these, the
 * message on its way, and the engine's ring, which then pauses its sequence. */
enum { BATCH_OUTPUTS = 256 };

/* All zero: empty. Without outputs it holds no memory. */
typedef struct output_batch {
    arena memory;                      // the outputs and their texts
    const generation_output **outputs; // [n], sorted by choice; errors come last
    uint32_t n, at;                    // those before `at` have been given
} output_batch;

/* Outputs of one choice in order. Only the last can be the choice's end, and an output that ends
 * its choice by an error is alone, and so is progress. */
typedef struct output_run {
    const generation_output *const *outputs; // [n]
    uint32_t n;                              // 0 = no output is ready
} output_run;

/* Gives the next run, whose outputs stay valid until the next call of a function of the batch. It
 * reads from the generation when all runs of the last reading have been given. STATUS_NO_MEMORY:
 * outputs may be lost, so the call must fail. */
status batch_next(output_batch *b, generation *g, output_run *out);
/* True when every output that was read has been given. */
bool batch_is_empty(const output_batch *b);
void batch_destroy(output_batch *b);

/* The run's last output. */
static inline const generation_output *run_last(const output_run *r)
{
    return r->outputs[r->n - 1];
}

#endif

/* Measures what the prompt's last rows attend to (private to model/; docs/retrieval.md, section 4),
 * once the prompt is done, for the preselection of blocks and for the keys that stand for a block
 * (DYNAMIC), and keeps it for the request. Ranks that copy a KV head measure all its query heads;
 * masses of blocks are gathered where KV heads that select together lie on several ranks. */
#ifndef MODEL_CPU_RETRIEVE_OBSERVE_H
#define MODEL_CPU_RETRIEVE_OBSERVE_H

#include "kernels/measure.h"
#include "model/cpu/forward.h"
#include "model/cpu/retrieve_notes.h"
#include "model/cpu/retrieve_ranks.h"

/* Zeroed at first; freed by retrieve_observe_free. */
typedef struct retrieve_observer {
    float *mass; // [KV heads, slots]
    uint32_t *keys, *rows;
    kern_rows_item *items; // [KV heads]
    const float **heads;   // [KV heads of the model] their blocks' masses
    size_t n_mass, n_keys, n_rows, n_items, n_heads;
    retrieve_gather pooled; // [KV heads, blocks]
} retrieve_observer;

void retrieve_observe_free(retrieve_observer *w);
/* Bytes that it takes now. */
static inline size_t retrieve_observer_bytes(const retrieve_observer *w)
{
    return w->n_mass * sizeof *w->mass + w->n_keys * sizeof *w->keys + w->n_rows * sizeof *w->rows +
           w->n_items * sizeof *w->items + w->n_heads * sizeof *w->heads + w->pooled.bytes;
}
/* Measures what rows of the step that end a prompt attend to in a layer that selects. qkv is that
 * of retrieve_layer, q_heads the query heads of a KV head that this rank has. */
status retrieve_observe(retrieve_observer *w, const forward_options *o, retrieve_ranks *ranks,
                        uint32_t q_heads, uint32_t qkv_width, uint32_t layer, const float *qkv,
                        const forward_seq *seqs, uint32_t n_seqs, retrieve_notes *notes);
/* Words of a block's slots. */
static inline size_t retrieve_block_words(const forward_seq *seq)
{
    return (seq->retrieval.block_tokens + 63) / 64;
}
/* The place of the note that says which slots' keys stand for the prompt's blocks in a KV head. */
retrieve_bits retrieve_slots_at(const forward_seq *seq, uint32_t layer, uint32_t head,
                                uint32_t n_heads);
/* The place of the note that says which blocks a run of KV heads leaves out in the layer. */
retrieve_bits retrieve_left_out_at(const forward_seq *seq, uint32_t layer, uint32_t run,
                                   uint32_t n_runs);

#endif

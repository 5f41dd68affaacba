/* Holds the pages that a layer of a step uses in memory while it computes, where the pool is larger
 * than memory (private to model/): these functions know which pages, and kv_tier.h brings them in.
 * Without a tier (kv_store.tier) they do nothing.
 *
 * A layer holds all that it uses until it ends, so memory must have room for one layer of the pool.
 *
 * Ranks wait for each other in collectives, so a rank that cannot hold its pages tells the others
 * first: at the places where pages come in, the ranks agree whether all of them go on. They end the
 * step together or not at all (kv_store.ended), and the group stays usable. Which of these places a
 * layer has follows from the plan alone. */
#ifndef MODEL_CPU_KV_HOLD_H
#define MODEL_CPU_KV_HOLD_H

#include "model/cpu/retrieve.h"

/* Called before the layer writes K and V: holds the pages that they are written to, and the whole
 * tables of sequences whose rows, or measures of them, read everything. */
status kv_hold_layer(const forward_options *o, const retrieve *r, uint32_t layer,
                     const forward_seq *seqs, uint32_t n_seqs);
/* Names the pages of a block whose representative is about to be made; marks are its tile's in page
 * 0. kv_hold_blocks brings in the pages of all blocks named so far, on this rank alone, so
 * kv_hold_agree must come after it. */
void kv_hold_block(const kv_store *s, const uint64_t *marks, const uint32_t *pages, uint32_t n);
status kv_hold_blocks(const kv_store *s);
/* Called at the same place on all ranks, each with what became of it. Where one has failed, all end
 * the step: the result is an error on each. */
status kv_hold_agree(const forward_options *o, status own);
/* Called once the layer has selected: holds the pages of the selected blocks. What the next layer
 * reads as a whole, and what it selected in the step before, begins to be read while this layer
 * computes. */
status kv_hold_rows(const forward_options *o, const retrieve *r, uint32_t layer,
                    const forward_seq *seqs, uint32_t n_seqs);
/* Lets go of all that the layer held. */
void kv_hold_end(const forward_options *o, uint32_t layer);

/* Holds the cells of a move, as far as they are stored here, before it is made. kv_tier_release
 * ends that once it is made. */
status kv_hold_move(const kv_store *s, const pkv_move *m, uint32_t n_host_pages);

#endif

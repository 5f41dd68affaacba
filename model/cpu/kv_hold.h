/* Which pages a layer of a step uses, where the pool is larger than memory (private to model/): the
 * sequences' pages to hold in memory (kv_tier.h) while the layer computes. Without a tier these
 * functions do nothing.
 *
 * A layer holds all that it uses until it ends, so memory has room for one layer of the pool.
 *
 * Ranks wait for each other in collectives, so a rank that cannot hold its pages tells the others
 * first: at the places where pages come in, the ranks agree whether all of them go on. They end the
 * step together or not at all (kv_store.ended), and the group stays usable. Which of these places a
 * layer has follows from the plan alone. */
#ifndef MODEL_CPU_KV_HOLD_H
#define MODEL_CPU_KV_HOLD_H

#include "model/cpu/retrieve.h"

/* Before K and V are written: the pages that they are written to, and the whole tables of sequences
 * whose rows, or measures of them, read everything. */
status kv_hold_layer(const forward_options *o, const retrieve *r, uint32_t layer,
                     const forward_seq *seqs, uint32_t n_seqs);
/* The pages of a block whose representative is about to be made; marks are its tile's in page 0.
 * kv_hold_blocks brings in the pages of all blocks named so far, of this rank alone: kv_hold_agree
 * comes after it. */
void kv_hold_block(const kv_store *s, const uint64_t *marks, const uint32_t *pages, uint32_t n);
status kv_hold_blocks(const kv_store *s);
/* Called at the same place on all ranks, each with what became of it. Where one has failed, all end
 * the step: the result is an error on each. */
status kv_hold_agree(const forward_options *o, status own);
/* Once the layer has selected: the pages of the selected blocks. What the next layer reads as a
 * whole, and what it selected in the step before, begins to be read while this one computes. */
status kv_hold_rows(const forward_options *o, const retrieve *r, uint32_t layer,
                    const forward_seq *seqs, uint32_t n_seqs);
void kv_hold_end(const forward_options *o, uint32_t layer);

/* The cells of a move, on this backend, before it is made; ended like a layer. */
status kv_hold_move(const kv_store *s, const pkv_move *m, uint32_t n_host_pages);

#endif

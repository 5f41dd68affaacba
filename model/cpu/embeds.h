/* Embeddings of rows (private to model/; docs/reform.md, section 1): vectors of query, key and
 * value heads as the projections gave them, each divided by its L2 norm, in f16. */
#ifndef MODEL_CPU_EMBEDS_H
#define MODEL_CPU_EMBEDS_H

#include "model/cpu/forward.h"
#include "model/embed_room.h"

typedef struct embeds embeds;

/* The options' objects are borrowed. heads, kv_heads: this rank's. */
status embeds_create(const forward_options *options, uint32_t heads, uint32_t kv_heads,
                     embeds **out);
void embeds_destroy(embeds *e);

/* Whether one of the sequences embeds a head of the layer that this rank gives. */
bool embeds_wanted(const embeds *e, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs);
/* Writes the parts of a layer's heads. qkv [rows, q, k and v of this rank] has the projections'
 * outputs, before norms and RoPE. STATUS_NO_MEMORY. */
status embeds_layer(embeds *e, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                    const float *qkv);

/* Lays out the embeddings of a plan's shares one after the other, of the heads that this rank
 * gives: sets results [n_seqs], and seqs by place [n_seqs]. STATUS_NO_MEMORY. */
status embeds_lay_out(embed_room *room, const backend_info *info, const comm *group,
                      const step_plan *plan, const uint32_t *place, forward_seq *seqs,
                      step_seq_result *results);

#endif

/* Counts what rows read by retrieval (private to model/; docs/retrieval.md, section 7), in each
 * layer, and compares it for audited rows with all that they could have read. Of several ranks each
 * counts its part: a list where its first KV head is, a recall where its query head is. */
#ifndef MODEL_CPU_READINGS_H
#define MODEL_CPU_READINGS_H

#include "model/cpu/retrieve.h"

typedef struct readings readings;

/* lists: says what the rows read. The options' objects are borrowed. */
status readings_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       const retrieve *lists, readings **out);
void readings_destroy(readings *r);

/* Begins the readings of a step, after retrieve_start. */
void readings_start(const forward_seq *seqs, uint32_t n_seqs, const retrieve *lists);
/* Counts a layer, after retrieve_layer with the same qkv. */
status readings_layer(readings *r, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv);

#endif

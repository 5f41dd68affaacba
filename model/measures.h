/* Measures that a step takes beside its attention, layer by layer (private to model/). A table in
 * measures.c says how each kind is measured; the arithmetic is in kernels/measure.h.
 *
 * The mass of pages is not measured here: attention itself returns it. */
#ifndef MODEL_MEASURES_H
#define MODEL_MEASURES_H

#include "kernels/measure.h"
#include "model/cpu/forward.h"

typedef struct measures measures;

status measures_create(const forward_options *options, const float *inv_freq, measures **out);
void measures_destroy(measures *m);

/* Called before the layers. Sets the time to 0. */
status measures_start(measures *m, const forward_seq *seqs, uint32_t n_seqs);
/* Called between the qkv projection and its rotation: keeps queries that are measured unrotated. */
void measures_queries(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv);
/* Called after the layer's attention: qkv has the rotated queries, attn the attention output. */
status measures_layer(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv, const float *attn);
/* Microseconds spent since measures_start. */
int64_t measures_us(const measures *m);

/* Sets mean_rope [head_dim] to the mean cosines and mean sines of the positions that come after a
 * sequence of len tokens. */
void measures_mean_rope(const rope_config *rope, const float *inv_freq, uint32_t head_dim,
                        uint32_t len, float *mean_rope);
/* The first of n_rows rows at `position` whose query stands for the queries to come, as do those of
 * the rows behind it. spec->rows <= n_rows. */
uint32_t measures_first_expected(const measure_spec *spec, uint32_t n_rows, uint32_t position);

/* Says what is wrong with a spec that cannot be measured; NULL for one that can. */
const char *measures_check(const measure_spec *spec);
/* How many arrays of values the spec's measure returns; those of its kinds alone, which are the
 * first. */
uint32_t measures_arrays(const measure_spec *spec);
uint32_t measures_own_arrays(const measure_spec *spec);
/* The kind of measure that one of the arrays holds. */
measure_kind measures_kind_of(const measure_spec *spec, uint32_t array);
/* Whether its arrays are as long as the slots of the longest table, not as its pages. */
bool measures_by_slot(const measure_spec *spec);

#endif

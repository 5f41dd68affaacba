/* What a step measures beside its attention, layer by layer (private to model/). Which kind is
 * measured how is a table in measures.c; the arithmetic is kernels/measure.h.
 *
 * The mass of pages is not here: attention itself returns it. */
#ifndef MODEL_MEASURES_H
#define MODEL_MEASURES_H

#include "kernels/measure.h"
#include "model/forward.h"

typedef struct measures measures;

status measures_create(const forward_options *options, const float *inv_freq, measures **out);
void measures_destroy(measures *m);

/* Before the layers. Sets the time to 0. */
status measures_start(measures *m, const forward_seq *seqs, uint32_t n_seqs);
/* Between qkv and its rotation: keeps the queries that are measured unrotated. */
void measures_queries(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv);
/* After the layer's attention: qkv has its rotated queries, attn its output. */
status measures_layer(measures *m, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv, const float *attn);
/* Spent since measures_start. */
int64_t measures_us(const measures *m);

/* turn [head_dim] = the means of the cosines and of the sines of the positions to come after a
 * sequence of so many. */
void measures_turn(const rope_config *rope, const float *inv_freq, uint32_t head_dim, uint32_t len,
                   float *turn);
/* Rows of a share of n_rows at `position`, from its first one, whose queries stand for those to
 * come; spec->rows <= n_rows. */
uint32_t measures_first_expected(const measure_spec *spec, uint32_t n_rows, uint32_t position);

/* What of a spec cannot be measured: NULL, or what is wrong with it. */
const char *measures_check(const measure_spec *spec);
/* 0, 1 or 2 arrays of values come back. */
uint32_t measures_arrays(const measure_spec *spec);

#endif

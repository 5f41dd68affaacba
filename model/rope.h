/* Rotary position embedding: frequencies and angles (private to model/). kern_rope rotates. */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "model/model.h"

/* Sets inv_freq [head_dim / 2] under the config's scaling, for sequences up to its `length`, in f32
 * as Hugging Face computes it. Queries and keys are rotated by cosines and sines times
 * attention_factor (rope_scaled_angles); a key that moves is rotated without it (rope_angles). */
void rope_frequencies(const rope_config *rope, uint32_t head_dim, float *inv_freq);

/* Sets cos_sin [head_dim] to head_dim / 2 cosines, then as many sines, of position * inv_freq. */
void rope_angles(const float *inv_freq, uint32_t head_dim, uint32_t position, float *cos_sin);
/* rope_angles times the attention factor, for queries and keys. */
void rope_scaled_angles(const rope_config *rope, const float *inv_freq, uint32_t head_dim,
                        uint32_t position, float *cos_sin);

#endif

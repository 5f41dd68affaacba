/* Rotary position embedding: frequencies and angles (private to model/). The rotation is kern_rope.
 */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "model/model.h"

/* inv_freq [head_dim / 2] under the config's scaling, for sequences up to its `length`, computed as
 * Hugging Face does: in f32. Queries and keys are rotated by cosines and sines times
 * attention_factor, a key that moves is not: rope_angles leaves it to the caller. */
void rope_frequencies(const rope_config *rope, uint32_t head_dim, float *inv_freq);

/* cos_sin [head_dim]: head_dim / 2 cosines, then as many sines, of position * inv_freq. */
void rope_angles(const float *inv_freq, uint32_t head_dim, uint32_t position, float *cos_sin);
/* The same times the attention factor: what queries and keys are turned by. */
void rope_scaled_angles(const rope_config *rope, const float *inv_freq, uint32_t head_dim,
                        uint32_t position, float *cos_sin);

#endif

/* Rotary position embedding: frequencies and angles (private to model/). The rotation is kern_rope.
 */
#ifndef MODEL_ROPE_H
#define MODEL_ROPE_H

#include "model/model.h"

/* inv_freq [head_dim / 2] under the config's scaling (default, linear, llama3), computed as Hugging
 * Face does: in f32. */
void rope_frequencies(const rope_config *rope, uint32_t head_dim, float *inv_freq);

/* cos_sin [head_dim]: head_dim / 2 cosines, then as many sines, of position * inv_freq. */
void rope_angles(const float *inv_freq, uint32_t head_dim, uint32_t position, float *cos_sin);

#endif

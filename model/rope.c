#include "model/rope.h"

#include <math.h>

/* Llama 3.1: long wavelengths are slowed down by `factor`, short ones kept, those between blended.
 */
static float llama3_scale(const rope_config *rope, float inv_freq)
{
    float factor = (float)rope->factor;
    float original = (float)rope->original_max_positions;
    float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
    float wavelength = 2.0f * (float)M_PI / inv_freq;
    if (wavelength < original / high) return inv_freq;
    if (wavelength > original / low) return inv_freq / factor;
    float smooth = (original / wavelength - low) / (high - low);
    return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

void rope_frequencies(const rope_config *rope, uint32_t head_dim, float *inv_freq)
{
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)head_dim;
        float f = 1.0f / (float)pow(rope->theta, exponent);
        switch (rope->kind) {
        case ROPE_DEFAULT: break;
        case ROPE_LINEAR: f /= (float)rope->factor; break;
        case ROPE_LLAMA3: f = llama3_scale(rope, f); break;
        }
        inv_freq[i] = f;
    }
}

void rope_angles(const float *inv_freq, uint32_t head_dim, uint32_t position, float *cos_sin)
{
    uint32_t half = head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)position * inv_freq[i];
        sincosf(angle, &cos_sin[half + i], &cos_sin[i]);
    }
}

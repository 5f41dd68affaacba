#include "model/rope.h"

#include <math.h>

static float plain(double theta, uint32_t head_dim, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    return (float)pow(theta, exponent);
}

/* Dynamic RoPE: beyond the model's positions theta grows with the longest sequence. */
static double stretched_theta(const rope_config *r, uint32_t head_dim)
{
    if (r->kind != ROPE_DYNAMIC || r->length <= r->max_positions || head_dim <= 2) return r->theta;
    double over = r->factor * r->length / r->max_positions - (r->factor - 1.0);
    return r->theta * pow(over, head_dim / (head_dim - 2.0));
}

/* Llama 3.1 slows long wavelengths down by `factor`, keeps short ones and blends between them. */
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

/* The index of the pair of elements that rotates `rotations` times over the original context. */
static double yarn_pair(const rope_config *r, uint32_t head_dim, double rotations)
{
    return head_dim * log(r->original_max_positions / (rotations * 2.0 * M_PI)) /
           (2.0 * log(r->theta));
}

/* YaRN: pairs that rotate often keep their frequency, pairs that rotate rarely are slowed down, and
 * between them lies a ramp. */
static float yarn_scale(const rope_config *r, uint32_t head_dim, uint32_t i, float power)
{
    double low = yarn_pair(r, head_dim, r->beta_fast), high = yarn_pair(r, head_dim, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, head_dim - 1.0);
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float kept = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
    return 1.0f / ((float)r->factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

void rope_frequencies(const rope_config *rope, uint32_t head_dim, float *inv_freq)
{
    double theta = stretched_theta(rope, head_dim);
    const float *factors =
        rope->length > rope->original_max_positions ? rope->long_factor : rope->short_factor;
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        float power = plain(theta, head_dim, i), f = 1.0f / power;
        switch (rope->kind) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: break;
        case ROPE_LINEAR: f /= (float)rope->factor; break;
        case ROPE_LLAMA3: f = llama3_scale(rope, f); break;
        case ROPE_YARN: f = yarn_scale(rope, head_dim, i, power); break;
        case ROPE_LONGROPE: f = 1.0f / (factors[i] * power); break;
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

void rope_scaled_angles(const rope_config *rope, const float *inv_freq, uint32_t head_dim,
                        uint32_t position, float *cos_sin)
{
    rope_angles(inv_freq, head_dim, position, cos_sin);
    if (rope->attention_factor == 1.0) return;
    for (uint32_t i = 0; i < head_dim; i++) cos_sin[i] *= (float)rope->attention_factor;
}

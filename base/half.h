/* bf16 and fp16 to and from f32, one value at a time: round to nearest even, NaN stays NaN. */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Element types of tensors and pages. */
typedef enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16 } dtype;

static inline unsigned dtype_bytes(dtype t) { return t == DTYPE_F32 ? 4u : 2u; }
static inline const char *dtype_name(dtype t)
{
    return t == DTYPE_F32 ? "f32" : t == DTYPE_BF16 ? "bf16" : "f16";
}

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float f);

#endif

#include "base/half.h"

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    /* Subnormal or zero: fraction * 2^-24, exact in f32. */
    float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t f16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (u >= 0x38800000u) {                                  /* 2^-14: normal halves */
        u += 0xfffu + (u >> 13 & 1u);
        return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
    }
    if (u < 0x33000000u) return sign; /* below 2^-25, half the smallest subnormal */
    uint32_t fraction = (u & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - (u >> 23); /* 14..24 bits below the half's last one */
    uint32_t rounded = fraction >> shift;
    uint32_t rest = fraction & ((1u << shift) - 1);
    uint32_t tie = 1u << (shift - 1);
    if (rest > tie || (rest == tie && (rounded & 1u))) rounded++;
    return (uint16_t)(sign | rounded);
}

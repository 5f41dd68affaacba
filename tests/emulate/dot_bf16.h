/* One step of the bf16 dot products, as Intel's manual (volume 2, VDPBF16PS and TDPBF16PS) defines
 * it: a fused multiply-add, rounded to nearest even, with denormal inputs and outputs as zeros,
 * whatever MXCSR is set to. */
#ifndef TESTS_EMULATE_DOT_BF16_H
#define TESTS_EMULATE_DOT_BF16_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Emulated kernels are built without optimisation, since compiling their unrolled tiles would take
 * minutes; the code that stands for instructions is optimised. */
#ifdef __clang__
#define EMULATED_BODY __attribute__((noinline, unused))
#else
#define EMULATED_BODY __attribute__((noinline, unused, optimize("O2")))
#endif

static inline float emulated_no_denormal(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0.0f, f) : f;
}

static inline float emulated_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return emulated_no_denormal(f);
}

static inline float emulated_fma_bf16(uint16_t a, uint16_t b, float sum)
{
    return emulated_no_denormal(
        fmaf(emulated_bf16(a), emulated_bf16(b), emulated_no_denormal(sum)));
}

/* VCVTNE2PS2BF16: to nearest even; denormals are zeros, a NaN stays a NaN. */
static inline uint16_t emulated_to_bf16(float f)
{
    uint32_t bits;
    f = emulated_no_denormal(f);
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif

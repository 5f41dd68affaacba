/* kernels, private: x of a block rounded to bf16. Included by files with AVX512-BF16 only. */
#ifndef KERNELS_X86_PACK_BF16_H
#define KERNELS_X86_PACK_BF16_H

#include "kernels/isa.h"

#include <immintrin.h>

/* kern_dot_ops.pack: units of 32 columns. */
static void pack_bf16_row(const float *x, size_t units, unsigned group, size_t rows, size_t r,
                          uint8_t *out)
{
    (void)group;
    out += r * 64;
    for (; units > 0; units--, x += 32, out += rows * 64) {
        __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
        _mm512_store_si512(out, (__m512i)pairs);
    }
}

#endif

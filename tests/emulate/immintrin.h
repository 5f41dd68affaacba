/* Replaces the compiler's <immintrin.h> where kernels are emulated: AVX2, FMA and F16C are the
 * CPU's own, AVX-512 and AMX are plain C. */
#ifndef TESTS_EMULATE_IMMINTRIN_H
#define TESTS_EMULATE_IMMINTRIN_H

/* The compilers' headers for each ISA check that <immintrin.h> includes them. */
#define _IMMINTRIN_H_INCLUDED
#define __IMMINTRIN_H
#include <smmintrin.h>

#include <avxintrin.h>

#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>

#include "tests/emulate/amx.h"
#include "tests/emulate/avx512.h"

#endif

/* Numbers of 8 and 16 bits in the emulator (simt.h): to float and back, and rounding to nearest,
 * ties to even. */
#include "kernels/cuda/simt.cuh"

#include <stdio.h>

static unsigned n_failed;

static void expect(bool holds, const char *type, const char *what, uint32_t bits)
{
    if (holds) return;
    printf("FAIL  %s 0x%x: %s\n", type, bits, what);
    n_failed++;
}

template <class T> static uint32_t round_to(float x) { return from_float<T>(x).bits; }
template <class T> static float value_of(uint32_t bits)
{
    T x;
    x.bits = (decltype(x.bits))bits;
    return to_float(x);
}

/* Checks a type whose finite numbers are 0 to `largest` and, with `sign`, their negatives. The one
 * behind the largest is what larger numbers become. */
template <class T>
static void check_type(const char *type, uint32_t largest, uint32_t sign, uint32_t beyond)
{
    for (uint32_t i = 0; i <= largest; i++) {
        const float x = value_of<T>(i);
        const float next = i < largest ? value_of<T>(i + 1) : x + (x - value_of<T>(i - 1));
        const uint32_t above = i < largest ? i + 1 : beyond;
        const float tie = (x + next) / 2;
        expect(x < next, type, "no order", i);
        expect(value_of<T>(i | sign) == -x && signbit(value_of<T>(i | sign)), type, "sign", i);
        expect(round_to<T>(x) == i && round_to<T>(-x) == (i | sign), type, "other bits", i);
        expect(round_to<T>(tie) == (i % 2 ? above : i), type, "tie", i);
        expect(round_to<T>(-tie) == ((i % 2 ? above : i) | sign), type, "negative tie", i);
        expect(round_to<T>(nextafterf(tie, 0.0f)) == i, type, "below a tie", i);
        expect(round_to<T>(nextafterf(tie, INFINITY)) == above, type, "above a tie", i);
    }
    for (float x : {1e6f, 1e38f, INFINITY})
        expect(round_to<T>(x) == beyond && round_to<T>(-x) == (beyond | sign), type, "large",
               beyond);
    expect(isnan(value_of<T>(round_to<T>(NAN))), type, "NaN", beyond);
}

int main(void)
{
    check_type<f16>("f16", 0x7bff, 0x8000, 0x7c00);
    check_type<e4m3>("e4m3", 0x7e, 0x80, 0x7e);
    expect(value_of<f16>(1) == 0x1p-24f && value_of<f16>(0x3c00) == 1.0f, "f16", "value", 1);
    expect(value_of<f16>(0x7c00) == INFINITY && isnan(value_of<f16>(0x7c01)), "f16", "value",
           0x7c00);
    expect(value_of<e4m3>(1) == 0x1p-9f && value_of<e4m3>(0x38) == 1.0f, "e4m3", "value", 1);
    expect(isnan(value_of<e4m3>(0x7f)) && isnan(value_of<e4m3>(0xff)), "e4m3", "value", 0x7f);
    printf("%s: numbers of f16 and e4m3\n", n_failed ? "FAIL" : "PASS");
    return n_failed != 0;
}

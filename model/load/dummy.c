#include "model/load/dummy.h"

#include <math.h>
#include <string.h>

/* The x that a standard normal stays below with probability p, by bisection. */
static double normal_quantile(double p)
{
    double low = -8.0, high = 8.0;
    for (int i = 0; i < 32; i++) { /* to the last bit of an f32 */
        double mid = 0.5 * (low + high);
        if (0.5 * erfc(-mid / sqrt(2.0)) < p) low = mid;
        else high = mid;
    }
    return 0.5 * (low + high);
}

static uint32_t to_bits(float f, dtype type)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (type == DTYPE_BF16) return bf16_from_f32(f);
    if (type == DTYPE_F16) return f16_from_f32(f);
    return u;
}

void dummy_tensor_init(dummy_tensor *t, uint64_t seed, const char *name, size_t cols, dtype type)
{
    t->key = hash_bytes(name, strlen(name), seed);
    t->cols = cols;
    t->type = type;
    double x[256], square = 0.0;
    for (int i = 0; i < 128; i++) {
        x[i] = normal_quantile((i + 0.5) / 256.0);
        x[255 - i] = -x[i];
        square += x[i] * x[i];
    }
    double scale = 1.0 / sqrt(square / 128.0 * (double)cols);
    for (int i = 0; i < 256; i++) t->table[i] = to_bits((float)(x[i] * scale), type);
}

static uint64_t eight_bytes(const dummy_tensor *t, uint64_t word)
{
    return hash_mix64(t->key + word * 0x9e3779b97f4a7c15ull);
}

static void fill_u16(const dummy_tensor *t, uint64_t word, size_t n, uint16_t *out)
{
    for (; n >= 8; n -= 8, out += 8, word++) {
        uint64_t bytes = eight_bytes(t, word);
        for (int i = 0; i < 8; i++) out[i] = (uint16_t)t->table[bytes >> (8 * i) & 255];
    }
    uint64_t bytes = eight_bytes(t, word);
    for (size_t i = 0; i < n; i++) out[i] = (uint16_t)t->table[bytes >> (8 * i) & 255];
}

static void fill_u32(const dummy_tensor *t, uint64_t word, size_t n, uint32_t *out)
{
    for (; n >= 8; n -= 8, out += 8, word++) {
        uint64_t bytes = eight_bytes(t, word);
        for (int i = 0; i < 8; i++) out[i] = t->table[bytes >> (8 * i) & 255];
    }
    uint64_t bytes = eight_bytes(t, word);
    for (size_t i = 0; i < n; i++) out[i] = t->table[bytes >> (8 * i) & 255];
}

void dummy_tensor_rows(const dummy_tensor *t, size_t row, size_t rows, void *out)
{
    size_t words = (t->cols + 7) / 8; /* each row starts at a new word */
    for (size_t i = 0; i < rows; i++) {
        uint64_t word = (uint64_t)(row + i) * words;
        if (t->type == DTYPE_F32) fill_u32(t, word, t->cols, (uint32_t *)out + i * t->cols);
        else fill_u16(t, word, t->cols, (uint16_t *)out + i * t->cols);
    }
}

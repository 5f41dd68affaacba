/* ggml's block types (ggml-common.h; gguf-py, quants.py). */
#include "model/load/gguf/blocks.h"

#include <string.h>

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static uint32_t word_at(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* ---- blocks of one element ------------------------------------------------------------------- */

static void decode_f32(const uint8_t *b, float *out) { memcpy(out, b, sizeof *out); }

static void decode_f16(const uint8_t *b, float *out) { *out = half_at(b); }

static void decode_bf16(const uint8_t *b, float *out)
{
    uint16_t h;
    memcpy(&h, b, sizeof h);
    *out = bf16_to_f32(h);
}

/* ---- blocks of 32: a scale, perhaps a minimum, and integers ---------------------------------- */

enum { SMALL = 32 };

/* Integer i of a block where byte i holds the integers i and i + 16. */
static int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

static void decode_q4_0(const uint8_t *b, float *out)
{
    float d = half_at(b);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void decode_q4_1(const uint8_t *b, float *out)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)nibble(b + 4, i) + m;
}

static void decode_q5_0(const uint8_t *b, float *out)
{
    float d = half_at(b);
    uint32_t high = word_at(b + 2);
    for (int i = 0; i < SMALL; i++)
        out[i] = d * (float)((nibble(b + 6, i) | (int)(high >> i & 1) << 4) - 16);
}

static void decode_q5_1(const uint8_t *b, float *out)
{
    float d = half_at(b), m = half_at(b + 2);
    uint32_t high = word_at(b + 4);
    for (int i = 0; i < SMALL; i++)
        out[i] = d * (float)(nibble(b + 8, i) | (int)(high >> i & 1) << 4) + m;
}

static void decode_q8_0(const uint8_t *b, float *out)
{
    float d = half_at(b);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* ---- blocks of 256: scales that have a scale ------------------------------------------------- */

/* Sets *scale and *min to number j of eight; they are 6 bits each, packed in 12 bytes. */
static void six_bits(const uint8_t *s, int j, float *scale, float *min)
{
    int k = j - 4;
    *scale = (float)(j < 4 ? s[j] & 63 : (s[8 + k] & 15) | (s[k] >> 2 & 48));
    *min = (float)(j < 4 ? s[4 + j] & 63 : s[8 + k] >> 4 | (s[4 + k] >> 2 & 48));
}

/* Decodes eight runs. With high NULL integers have 4 bits; else bit j of high[i] is the fifth bit
 * of integer i of run j. */
static void decode_runs(const uint8_t *b, const uint8_t *high, const uint8_t *low, float *out)
{
    float d = half_at(b), d_min = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        float scale, min;
        six_bits(b + 4, j, &scale, &min);
        scale *= d;
        min *= d_min;
        for (int i = 0; i < SMALL; i++) {
            int q = low[j / 2 * SMALL + i] >> (j % 2 * 4) & 15;
            if (high) q |= (high[i] >> j & 1) << 4;
            out[j * SMALL + i] = scale * (float)q - min;
        }
    }
}

static void decode_q4_k(const uint8_t *b, float *out) { decode_runs(b, NULL, b + 16, out); }

static void decode_q5_k(const uint8_t *b, float *out) { decode_runs(b, b + 16, b + 48, out); }

static void decode_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    float d = half_at(b + 208);
    for (int i = 0; i < BLOCK_ELEMENTS_MAX; i++) {
        int half = i / 128, run = i % 128 / 32, at = i % 32;
        int l = low[half * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
        int h = high[half * 32 + at] >> (run * 2) & 3;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)((l | h << 4) - 32);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static const block_type types[] = {
    {0, "F32", 1, 4, 0, decode_f32},
    {1, "F16", 1, 2, 0, decode_f16},
    {2, "Q4_0", 32, 18, 4, decode_q4_0},
    {3, "Q4_1", 32, 20, 8, decode_q4_1},
    {6, "Q5_0", 32, 22, 8, decode_q5_0},
    {7, "Q5_1", 32, 24, 8, decode_q5_1},
    {8, "Q8_0", 32, 34, 8, decode_q8_0},
    {9, "Q8_1", 32, 40, 8, NULL},
    {10, "Q2_K", 256, 84, 8, NULL},
    {11, "Q3_K", 256, 110, 8, NULL},
    {12, "Q4_K", 256, 144, 8, decode_q4_k},
    {13, "Q5_K", 256, 176, 8, decode_q5_k},
    {14, "Q6_K", 256, 210, 8, decode_q6_k},
    {15, "Q8_K", 256, 292, 8, NULL},
    {16, "IQ2_XXS", 256, 66, 8, NULL},
    {17, "IQ2_XS", 256, 74, 8, NULL},
    {18, "IQ3_XXS", 256, 98, 8, NULL},
    {19, "IQ1_S", 256, 50, 8, NULL},
    {20, "IQ4_NL", 32, 18, 8, NULL},
    {21, "IQ3_S", 256, 110, 8, NULL},
    {22, "IQ2_S", 256, 82, 8, NULL},
    {23, "IQ4_XS", 256, 136, 8, NULL},
    {24, "I8", 1, 1, 0, NULL},
    {25, "I16", 1, 2, 0, NULL},
    {26, "I32", 1, 4, 0, NULL},
    {27, "I64", 1, 8, 0, NULL},
    {28, "F64", 1, 8, 0, NULL},
    {29, "IQ1_M", 256, 56, 8, NULL},
    {30, "BF16", 1, 2, 0, decode_bf16},
    {34, "TQ1_0", 256, 54, 8, NULL},
    {35, "TQ2_0", 256, 66, 8, NULL},
    {39, "MXFP4", 32, 17, 8, NULL},
};

const block_type *block_type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

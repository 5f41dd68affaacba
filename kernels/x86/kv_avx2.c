/* int8 pages for AVX2: writes one token, reads many elements as f32. */
#include "kernels/isa.h"
#include "kernels/quant_groups.h"

#include <immintrin.h>

static void kv_write_int8(const kern_kv_shape *s, void *tile, uint32_t slot, const float *k,
                          const float *v)
{
    /* Only this slot's bytes are stored: its neighbours may be written by other threads. */
    int8_t q[KERN_HEAD_DIM_MAX];
    uint8_t *keys = (uint8_t *)tile + (size_t)slot * 2;
    uint8_t *values =
        (uint8_t *)tile + kern_kv_values_at(s) + (size_t)(slot / 2) * s->head_dim * 2 + slot % 2;
    uint8_t *scales = (uint8_t *)tile + kern_kv_scales_at(s) + (size_t)slot * 2;
    size_t step = (size_t)s->page_tokens * 2;
    uint16_t scale = quant_kv_8(k, s->head_dim, q);
    memcpy(scales, &scale, 2);
    for (size_t d = 0; d < s->head_dim; d += 2) memcpy(keys + d / 2 * step, q + d, 2);
    scale = quant_kv_8(v, s->head_dim, q);
    memcpy(scales + kern_kv_scale_bytes(s), &scale, 2);
    for (size_t d = 0; d < s->head_dim; d++) values[d * 2] = (uint8_t)q[d];
}

static void widen_int8(const void *from, size_t n, float *out)
{
    const int8_t *bytes = from;
    for (size_t i = 0; i < n; i += 8) {
        __m256i w = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + i)));
        _mm256_storeu_ps(out + i, _mm256_cvtepi32_ps(w));
    }
}

void kern_kv_fill_avx2(kern_isa *isa)
{
    isa->kv_write[KERN_KV_INT8] = kv_write_int8;
    isa->widen[KERN_KV_INT8] = widen_int8;
}

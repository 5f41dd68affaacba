/* Attention mass of the observation window (ChunkKV's chunk score, SnapKV's before its pooling):
 * the backend has summed a page's softmax mass over the window's rows and each KV head's query
 * heads; here over KV heads. */
#include "paged_kv/retention/method.h"

void retention_score_window(const measure_result *m, const retention_group *scope, uint32_t first,
                            uint32_t n, float *scores)
{
    size_t layer_size = (size_t)m->n_kv_heads * m->stride;
    const float *layer = m->values + scope->measured_layer * layer_size; // [n_kv_heads, stride]
    for (uint32_t i = 0; i < n; i++)
        scores[i] = layer[(size_t)scope->head_from * m->stride + first + i];
    for (uint32_t h = scope->head_from + 1; h < scope->head_to; h++) {
        for (uint32_t i = 0; i < n; i++) scores[i] += layer[(size_t)h * m->stride + first + i];
    }
}

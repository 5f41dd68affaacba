/* Smoothing of token scores over their neighbours, stride 1, both sides. Written as one pass over
 * the scores for each neighbour, so that sums come in ascending order and compilers vectorise. */
#include "paged_kv/retention/method.h"

/* out[i] = f(out[i], in[i + d]) for every i that has such a neighbour. */
#define FOR_NEIGHBOURS(d, half, i, n)                                                              \
    for (int64_t d = -(half); d <= (half); d++)                                                    \
        for (int64_t i = d < 0 ? -d : 0, end_ = d > 0 ? (n)-d : (n); i < end_; i++)

void pool_max(const float *in, uint32_t n, uint32_t kernel, float *out)
{
    for (uint32_t i = 0; i < n; i++) out[i] = in[i];
    /* NaN is less than everything. */
    FOR_NEIGHBOURS(d, (int64_t)kernel / 2, i, (int64_t)n)
    {
        out[i] = in[i + d] > out[i] || out[i] != out[i] ? in[i + d] : out[i];
    }
}

void pool_avg(const float *in, uint32_t n, uint32_t kernel, float *out)
{
    for (uint32_t i = 0; i < n; i++) out[i] = 0;
    FOR_NEIGHBOURS(d, (int64_t)kernel / 2, i, (int64_t)n) { out[i] += in[i + d]; }
    for (uint32_t i = 0; i < n; i++) out[i] /= (float)kernel;
}

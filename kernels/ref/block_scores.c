/* Scores of blocks in plain C. */
#include "base/half.h"
#include "kernels/isa.h"

#include <math.h>

enum { LANES = 16 };

static void add_products(const float *x, const uint16_t *v, size_t n, float *lanes)
{
    for (size_t d = 0; d < n; d++)
        lanes[d % LANES] = fmaf(x[d], bf16_to_f32(v[d]), lanes[d % LANES]);
}

static void block_scores(const kern_vectors *v, const uint32_t *pages, size_t n, size_t n_known,
                         const float *folded, float *out)
{
    (void)n_known;
    for (size_t i = 0; i < n; i++) {
        size_t at = pages[i * v->step] * v->stride;
        float lanes[LANES] = {0};
        add_products(folded, v->first + at, v->head_dim, lanes);
        if (v->second) add_products(folded + v->head_dim, v->second + at, v->head_dim, lanes);
        for (size_t half = LANES / 2; half > 0; half /= 2)
            for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
        out[i] = lanes[0];
    }
}

void kern_block_scores_fill_ref(kern_isa *isa) { isa->block_scores = block_scores; }

/* Which layers select. reuse_layers and measures count the selecting layers alone. */
#include "paged_kv/retention/method.h"

uint32_t retention_selecting_layers(const pkv_geometry *geometry, uint32_t end)
{
    uint32_t n = smaller(end, geometry->n_layers);
    if (geometry->window == 0) return n;
    for (uint32_t word = 0; word < PKV_WINDOW_WORDS && word * 64 < end; word++) {
        uint64_t windows = geometry->window_layers[word];
        if (end - word * 64 < 64) windows &= (UINT64_C(1) << (end - word * 64)) - 1;
        n -= (uint32_t)__builtin_popcountll(windows);
    }
    return n;
}

uint32_t retention_selecting_layer(const pkv_geometry *geometry, uint32_t nth)
{
    uint32_t layer = 0;
    for (uint32_t left = nth + 1;; layer++) {
        if (pkv_window_of(geometry, layer) == 0 && --left == 0) return layer;
    }
}

pkv_grain retention_grain(const retention_policy *policy, const pkv_geometry *geometry)
{
    bool prefill = retention_selects(policy), decode = policy->growth != RETENTION_GROWTH_JOINT;
    if (!prefill && !decode) return PKV_ALL;
    bool by_head = (prefill && policy->scope == RETENTION_SCOPE_HEAD) ||
                   (decode && policy->decode_scope == RETENTION_SCOPE_HEAD);
    if (by_head) return PKV_HEAD;
    /* Selections of the decode phase are made layer by layer. */
    bool together = !decode && geometry->window == 0 && policy->reuse_layers >= geometry->n_layers;
    return together ? PKV_ALL : PKV_LAYER;
}

uint32_t measure_layers(const pkv_geometry *geometry, uint32_t step)
{
    uint32_t n = retention_selecting_layers(geometry, geometry->n_layers);
    return n > 0 ? runs_of(n, step) : 1;
}

uint32_t measure_layer_of(const pkv_geometry *geometry, uint32_t layer, uint32_t step)
{
    if (pkv_window_of(geometry, layer) > 0) return MEASURE_NO_LAYER;
    uint32_t below = retention_selecting_layers(geometry, layer);
    return below % step == 0 ? below / step : MEASURE_NO_LAYER;
}

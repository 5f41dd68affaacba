#include "model/load/weights_hash.h"

#include <string.h>

uint64_t weights_hash_options(const weights_options *o)
{
    const model_config *c = o->config;
    const rope_config *r = &c->rope;
    uint64_t h = hash_bytes(c->architecture, strlen(c->architecture), 0);
    const uint64_t numbers[] = {c->n_layers,
                                c->hidden,
                                c->n_heads,
                                c->n_kv_heads,
                                c->head_dim,
                                c->ffn,
                                c->vocab_size,
                                (uint64_t)r->kind,
                                r->original_max_positions,
                                (uint64_t)o->type,
                                c->window,
                                c->n_experts,
                                c->experts_per_token,
                                c->expert_ffn,
                                c->expert_norm,
                                r->max_positions,
                                r->kind == ROPE_DYNAMIC || r->kind == ROPE_LONGROPE ? r->length : 0,
                                r->truncate,
                                c->shared_ffn,
                                (uint64_t)c->local_rope.kind};
    const double reals[] = {(double)c->rms_eps,
                            r->theta,
                            r->factor,
                            r->low_freq_factor,
                            r->high_freq_factor,
                            r->beta_fast,
                            r->beta_slow,
                            r->attention_factor,
                            (double)c->query_factor,
                            c->local_rope.theta,
                            c->local_rope.factor};
    h = hash_bytes(c->layers, c->n_layers, h);
    h = hash_bytes(r->short_factor, sizeof r->short_factor, h);
    h = hash_bytes(r->long_factor, sizeof r->long_factor, h);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) h = hash_number(h, numbers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) h = hash_real(h, reals[i]);
    kern_quant quant = o->quant;
    if (quant.bits)
        h = hash_number(h, (uint64_t)o->attention_bits << 16 | (uint64_t)quant.bits << 8 |
                               quant.group);
    return h;
}

uint64_t weights_config_hash(const model_config *config)
{
    return weights_hash_options(&(weights_options){.config = config});
}

#include "model/load/weights_quant.h"

#include "model/load/quantized/quantized.h"

static bool may_quantise(tensor_role role)
{
    return role != TENSOR_EMBED && role != TENSOR_ROUTER && role != TENSOR_SHARED_SWITCH;
}

kern_quant weights_quant_of(const weights_options *o, tensor_role role)
{
    if (!may_quantise(role) || !o->quant.bits) return (kern_quant){0};
    bool attention = role == TENSOR_Q || role == TENSOR_K || role == TENSOR_V || role == TENSOR_O;
    uint8_t bits = o->quant.bits;
    if (role == TENSOR_HEAD) bits = 8;
    else if (attention && o->attention_bits) bits = o->attention_bits;
    return (kern_quant){bits, o->quant.group};
}

bool weights_takes_blocks(const weights_options *o)
{
    return o->block_floats.bits && o->type == DTYPE_BF16 && !o->quant.bits;
}

/* A matrix of `type` and k columns that the options do not quantise. Block floats take whole groups
 * alone, so that slices of a row are groups of the whole. Embeddings that are the head, too, are
 * multiplied like any other. */
static kern_quant unquantised(const weights_options *o, tensor_role role, size_t k)
{
    const kern_quant floats = o->block_floats;
    const bool is_head = role == TENSOR_EMBED && o->config->tied_embeddings;
    const bool fits = weights_takes_blocks(o) && k % floats.group == 0;
    return fits && (is_head || may_quantise(role)) ? floats : (kern_quant){0};
}

static kern_quant quant_of(const weights_options *o, tensor_role role, size_t k)
{
    const kern_quant quant = weights_quant_of(o, role);
    return quant.bits ? quant : unquantised(o, role, k);
}

void weights_join_quant(const weights_options *o, const tensor_part *p, bool is_first,
                        kern_matrix *m)
{
    uint8_t group;
    bool keeps = o->keep_floats && o->type != DTYPE_F32 && may_quantise(p->role) &&
                 !o->quant.bits && p->source.quantized &&
                 quantized_can_keep(p->source.quantized, p->n_cols, &group);
    if (keeps && (is_first || m->is_float)) {
        m->quant.bits = 8;
        m->quant.group = is_first ? group : quantized_join_groups(m->quant.group, group);
        m->is_float = true;
        return;
    }
    m->is_float = false;
    m->quant = quant_of(o, p->role, p->n_cols);
}

static kern_matrix *matrix_of(ffn_weights *expert, bool down)
{
    return down ? &expert->down : &expert->gate_up;
}

static void join_matrices(const weights_options *o, ffn_weights *experts, bool down)
{
    const kern_matrix *first = matrix_of(experts, down);
    uint8_t group = first->quant.group;
    bool is_float = first->is_float;
    for (uint32_t i = 1; i < o->config->n_experts && is_float; i++) {
        const kern_matrix *m = matrix_of(&experts[i], down);
        group = quantized_join_groups(group, m->quant.group);
        is_float = m->is_float;
    }
    for (uint32_t i = 0; i < o->config->n_experts; i++) {
        kern_matrix *m = matrix_of(&experts[i], down);
        if (is_float) m->quant.group = group;
        else m->quant = quant_of(o, TENSOR_EXPERT_UP, m->k);
        m->is_float = is_float;
    }
}

void weights_join_experts(const weights_options *o, ffn_weights *experts)
{
    join_matrices(o, experts, false);
    join_matrices(o, experts, true);
}

/* Whether products of many rows with e4m3 weights are of e4m3 by e4m3. */
#include "model/cuda/backend.h"

#include <stdio.h>

/* Matrices of e4m3: those that products of many rows multiply, all experts' of a layer counted as
 * one, and of these those that the device multiplies by e4m3. */
typedef struct count {
    uint32_t all, narrow, narrow_experts; /* narrow: of all, narrow_experts: of narrow */
} count;

static void add(count *n, const gpu_matrix *w, bool experts, const gpu_facts *facts)
{
    if (w->n == 0 || !w->is_float) return;
    bool by_library = gpu_may_narrow(w) && (w->group ? facts->narrow_groups : facts->narrow_rows);
    bool narrow = experts ? gpu_narrows_experts(facts->compute, w) : by_library;
    n->all++;
    n->narrow += narrow;
    n->narrow_experts += experts && narrow;
}

static count count_matrices(const backend_cuda *b)
{
    count n = {0};
    for (uint32_t l = 0; l < b->weights.n_layers; l++) {
        const cuda_layer *w = &b->weights.layers[l];
        const gpu_matrix *dense[] = {&w->qkv, &w->o, &w->gate_up, &w->down};
        const gpu_matrix *experts[] = {&w->experts_up, &w->experts_down};
        for (size_t i = 0; i < 4; i++) add(&n, dense[i], false, &b->device.facts);
        for (size_t i = 0; i < 2; i++) add(&n, experts[i], true, &b->device.facts);
    }
    return n;
}

/* Says beside how many matrices activations have 8 bits, and from how many rows on. */
static void describe(backend_cuda *b, const count *n)
{
    size_t size = sizeof b->narrow, from = GPU_FEW_QUANT_ROWS;
    int at = snprintf(b->narrow, size,
                      "activations have 8 bits in steps of more than %zu rows, with %u of %u "
                      "matrices",
                      from, n->narrow, n->all);
    if (n->narrow_experts == 0) return;
    size_t experts_from = gpu_narrow_experts_from(b->config.n_experts, b->config.experts_per_token);
    if (experts_from > from)
        snprintf(b->narrow + at, size - (size_t)at, "; with experts in steps of more than %zu rows",
                 experts_from);
}

void cuda_narrow(backend_cuda *b, const backend_options *o)
{
    static const char wide[] = "activations have 16 bits";
    const count n = count_matrices(b);
    const gpu_facts *facts = &b->device.facts;
    bool wanted = o->precision == KERN_PRECISION_STANDARD && !b->invariant;
    b->device.api->set_narrow(b->device.g, wanted);
    b->narrow[0] = '\0';
    if (n.all == 0) return;
    size_t size = sizeof b->narrow;
    if (b->invariant) snprintf(b->narrow, size, "%s (--batch-invariant)", wide);
    else if (!wanted) snprintf(b->narrow, size, "%s (--precision high)", wide);
    else if (n.narrow > 0) describe(b, &n);
    else if (!facts->narrow_rows)
        snprintf(b->narrow, size, "%s (compute capability %u.%u does not multiply 8 bits)", wide,
                 facts->compute / 10, facts->compute % 10);
    else snprintf(b->narrow, size, "%s (no product of 8 bits here takes them)", wide);
}

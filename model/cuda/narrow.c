/* Whether products of many rows with e4m3 weights are of e4m3 by e4m3. */
#include "model/cuda/backend.h"

#include <stdio.h>

/* Matrices of e4m3: those that products of many rows multiply, all experts' of a layer counted as
 * one, and of these those that the device multiplies by e4m3. */
typedef struct count {
    uint32_t all, experts, narrow;
} count;

static void add(count *n, const gpu_matrix *w, bool experts, const gpu_facts *facts)
{
    if (w->n == 0 || !w->is_float) return;
    n->all++;
    n->experts += experts;
    n->narrow +=
        !experts && gpu_may_narrow(w) && (w->group ? facts->narrow_groups : facts->narrow_rows);
}

static count count_matrices(const backend_cuda *b)
{
    count n = {0, 0, 0};
    for (uint32_t l = 0; l < b->weights.n_layers; l++) {
        const cuda_layer *w = &b->weights.layers[l];
        const gpu_matrix *dense[] = {&w->qkv, &w->o, &w->gate_up, &w->down};
        const gpu_matrix *experts[] = {&w->experts_up, &w->experts_down};
        for (size_t i = 0; i < 4; i++) add(&n, dense[i], false, &b->device.facts);
        for (size_t i = 0; i < 2; i++) add(&n, experts[i], true, &b->device.facts);
    }
    return n;
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
    else if (!facts->narrow_rows)
        snprintf(b->narrow, size, "%s (compute capability %u.%u does not multiply 8 bits)", wide,
                 facts->compute / 10, facts->compute % 10);
    else if (n.experts == n.all)
        snprintf(b->narrow, size, "%s (experts have no product of 8 bits)", wide);
    else if (n.narrow == 0)
        snprintf(b->narrow, size, "%s (the library has no product of 8 bits for their scales)",
                 wide);
    else
        snprintf(b->narrow, size,
                 "activations have 8 bits in steps of more than %d rows, with %u of %u matrices",
                 GPU_FEW_QUANT_ROWS, n.narrow, n.all);
}

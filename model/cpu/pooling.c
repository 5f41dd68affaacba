#include "model/cpu/pooling.h"

#include <stdlib.h>
#include <string.h>

static status make_room(row_pooling *p, size_t n_values, uint32_t hidden)
{
    if (!p->sum) p->sum = alloc_resize(NULL, NULL, hidden, sizeof *p->sum);
    if (!p->sum) return status_make(STATUS_NO_MEMORY, "pooled hidden states");
    if (n_values <= p->n_values) return STATUS_IS_OK;
    float *grown = alloc_resize(NULL, p->values, n_values, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "pooled hidden states");
    p->values = grown;
    p->n_values = n_values;
    return STATUS_IS_OK;
}

/* Sums in double, so that the order in which a prompt is cut into chunks changes little but the
 * rounding of each chunk's sum. */
static void sum_rows(row_pooling *p, const float *rows, uint32_t n, uint32_t hidden, float *out)
{
    memset(p->sum, 0, hidden * sizeof *p->sum);
    for (uint32_t i = 0; i < n; i++, rows += hidden)
        for (uint32_t j = 0; j < hidden; j++) p->sum[j] += (double)rows[j];
    for (uint32_t j = 0; j < hidden; j++) out[j] = (float)p->sum[j];
}

status row_pooling_run(row_pooling *p, const forward *f, uint32_t hidden, const step_plan *plan,
                       const uint32_t *first_rows, step_seq_result *results)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].pooling != POOLING_NONE;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(make_room(p, n * hidden, hidden));
    float *out = p->values;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->pooling == POOLING_NONE) continue;
        uint32_t skip = s->pooling == POOLING_LAST ? s->n_tokens - 1 : 0;
        sum_rows(p, forward_states(f, first_rows[i] + skip), s->n_tokens - skip, hidden, out);
        results[i].pooled = out;
        out += hidden;
    }
    return STATUS_IS_OK;
}

void row_pooling_free(row_pooling *p)
{
    free(p->values);
    free(p->sum);
}

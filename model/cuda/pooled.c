/* Pooled hidden states: rows come to the host some at a time and are added up there, as the CPU
 * backend does. */
#include "model/cuda/backend.h"

#include "base/half.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 }; // that come to the host at once

static status make_room(backend_cuda *b, size_t n_values)
{
    size_t hidden = b->config.hidden;
    if (!b->pooled_sum) b->pooled_sum = alloc_resize(NULL, NULL, hidden, sizeof *b->pooled_sum);
    if (!b->pooled_sum) return status_make(STATUS_NO_MEMORY, "pooled hidden states");
    if (n_values <= b->pooled_capacity) return STATUS_IS_OK;
    float *grown = alloc_resize(NULL, b->pooled, n_values, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "pooled hidden states");
    b->pooled = grown;
    b->pooled_capacity = n_values;
    return STATUS_IS_OK;
}

static void add_values(const void *values, gpu_type type, size_t n, double *sum)
{
    const float *f32 = values;
    const uint16_t *half = values;
    if (type == GPU_F32)
        for (size_t i = 0; i < n; i++) sum[i] += (double)f32[i];
    else if (type == GPU_BF16)
        for (size_t i = 0; i < n; i++) sum[i] += (double)bf16_to_f32(half[i]);
    else
        for (size_t i = 0; i < n; i++) sum[i] += (double)f16_to_f32(half[i]);
}

/* Adds up n rows of the step from `row` on. */
static status sum_rows(backend_cuda *b, uint32_t row, uint32_t n, float *out)
{
    cuda_device *d = &b->device;
    gpu_type type = b->weights.head.type;
    size_t hidden = b->config.hidden, bytes = hidden * (type == GPU_F32 ? 4 : 2);
    memset(b->pooled_sum, 0, hidden * sizeof *b->pooled_sum);
    for (uint32_t done = 0; done < n; done += ROWS) {
        uint32_t some = n - done < ROWS ? n - done : ROWS;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_pack_begin(d, &b->logits, some * bytes));
        RETURN_IF_GPU_ERROR(d->api->copy_out(
            d->g, b->logits.host, cuda_forward_states(b->forward, row + done), some * bytes));
        RETURN_IF_ERROR(cuda_wait(d));
        for (uint32_t i = 0; i < some; i++)
            add_values(b->logits.host + i * bytes, type, hidden, b->pooled_sum);
    }
    for (size_t i = 0; i < hidden; i++) out[i] = (float)b->pooled_sum[i];
    return STATUS_IS_OK;
}

status cuda_pooled(backend_cuda *b, const step_plan *plan)
{
    size_t n = 0, hidden = b->config.hidden;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].pooling != POOLING_NONE;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(make_room(b, n * hidden));
    float *out = b->pooled;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->pooling == POOLING_NONE) continue;
        uint32_t skip = s->pooling == POOLING_LAST ? s->n_tokens - 1 : 0;
        RETURN_IF_ERROR(sum_rows(b, s->first_token + skip, s->n_tokens - skip, out));
        b->seq_results[i].pooled = out;
        out += hidden;
    }
    return STATUS_IS_OK;
}

/* How unlikely each prompt token was: draws of given tokens, which give their log-probabilities; of
 * ranks, which have parts of the rows, on the host. */
#include "model/cuda/backend.h"

#include "base/logits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Some rows of one sequence, on the host and on the device. */
typedef struct some_rows {
    uint32_t n, rows[CUDA_LOGIT_ROWS], tokens[CUDA_LOGIT_ROWS]; /* the token that comes after it */
} some_rows;

static status from_device(backend_cuda *b, const some_rows *some, const float *logits,
                          const gpu_draw *draws, size_t drawn_at, float *out)
{
    cuda_device *d = &b->device;
    gpu_drawn *drawn = (gpu_drawn *)(void *)(b->logits.device + drawn_at);
    const gpu_drawn *host = (const gpu_drawn *)(const void *)(b->logits.host + drawn_at);
    gpu_sampling job = {.logits = logits,
                        .n_vocab = b->config.vocab_size,
                        .n = some->n,
                        .draws = draws,
                        .scratch = b->draw_scratch,
                        .out = drawn};
    RETURN_IF_GPU_ERROR(d->api->sample(d->g, &job));
    RETURN_IF_GPU_ERROR(
        d->api->copy_out(d->g, b->logits.host + drawn_at, drawn, some->n * sizeof *drawn));
    RETURN_IF_ERROR(cuda_wait(d));
    for (uint32_t i = 0; i < some->n; i++) out[i] = -host[i].logprob;
    return STATUS_IS_OK;
}

static status from_ranks(backend_cuda *b, const some_rows *some, const float *part, float *out)
{
    size_t vocab = b->config.vocab_size;
    float *logits = alloc_resize(NULL, NULL, some->n * vocab, sizeof *logits);
    if (!logits) return status_make(STATUS_NO_MEMORY, "novelty of prompts");
    status s = cuda_join_logits(b, part, some->n, logits);
    for (uint32_t i = 0; status_ok(s) && i < some->n; i++)
        out[i] = -logits_score(logits + i * vocab, (uint32_t)vocab, some->tokens[i], 0, NULL, NULL)
                      .logprob;
    free(logits);
    return s;
}

static status measure_rows(backend_cuda *b, const some_rows *some, float *out)
{
    const uint32_t *d_rows;
    const gpu_draw *d_draws;
    float *logits;
    size_t bytes = some->n * (sizeof(uint32_t) + sizeof(gpu_draw) + sizeof(gpu_drawn)) + 3 * 64;
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->logits, bytes));
    uint32_t *rows = cuda_pack_take(&b->logits, some->n * sizeof *rows, &d_rows);
    gpu_draw *draws = cuda_pack_take(&b->logits, some->n * sizeof *draws, &d_draws);
    memcpy(rows, some->rows, some->n * sizeof *rows);
    for (uint32_t i = 0; i < some->n; i++)
        draws[i] = (gpu_draw){.row = i, .given = some->tokens[i]};
    RETURN_IF_ERROR(cuda_pack_send(&b->device, &b->logits));
    RETURN_IF_ERROR(cuda_forward_logits(b->forward, d_rows, some->n, &logits));
    if (comm_size(b->device.group) > 1) return from_ranks(b, some, logits, out);
    return from_device(b, some, logits, d_draws, b->logits.size, out);
}

static status measure_share(backend_cuda *b, const step_plan *plan, const step_seq *s, float *out)
{
    for (uint32_t from = 0; from < s->n_tokens; from += CUDA_LOGIT_ROWS) {
        some_rows some = {.n = s->n_tokens - from};
        if (some.n > CUDA_LOGIT_ROWS) some.n = CUDA_LOGIT_ROWS;
        for (uint32_t i = 0; i < some.n; i++) {
            uint32_t row = s->first_token + from + i;
            bool last = from + i + 1 == s->n_tokens;
            some.rows[i] = row;
            some.tokens[i] = last ? s->next_token : plan->tokens[row + 1];
        }
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(measure_rows(b, &some, out + from));
    }
    return STATUS_IS_OK;
}

status cuda_novelty(backend_cuda *b, const step_plan *plan)
{
    size_t total = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].measure.novelty) total += plan->seqs[i].n_tokens;
    if (total > b->novelty_capacity) {
        float *grown = alloc_resize(NULL, b->novelty, total, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "novelty of prompts");
        b->novelty = grown;
        b->novelty_capacity = total;
    }
    float *at = b->novelty;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->measure.novelty) continue;
        RETURN_IF_ERROR(measure_share(b, plan, s, at));
        b->seq_results[i].novelty = at;
        at += s->n_tokens;
    }
    return STATUS_IS_OK;
}

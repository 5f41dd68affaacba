/* Scores of rows: how likely the token after each row was. A single rank "draws" the given tokens
 * on the device, and these draws carry the scores. Several ranks, which have parts of each row's
 * logits, score on the host. */
#include "model/cuda/backend.h"

#include "base/logits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_ROWS = CUDA_HEAD_ROWS_LEAST }; /* scored at a time */

/* Some rows of one sequence. */
typedef struct some_rows {
    uint32_t n, n_top, rows[SCORE_ROWS];
    uint32_t tokens[SCORE_ROWS]; /* the token after each row */
} some_rows;

static status from_device(backend_cuda *b, const some_rows *some, const float *logits,
                          const gpu_draw *draws, size_t drawn_at, step_sample *out)
{
    cuda_device *d = &b->device;
    gpu_drawn *drawn = (gpu_drawn *)(void *)(b->logits.device + drawn_at);
    gpu_sampling job = {.logits = logits,
                        .n_vocab = b->config.vocab_size,
                        .stride = b->config.vocab_size,
                        .n = some->n,
                        .draws = draws,
                        .scratch = b->draw_scratch,
                        .drawn = drawn};
    RETURN_IF_GPU_ERROR(d->api->sample(d->g, &job));
    RETURN_IF_GPU_ERROR(
        d->api->copy_out(d->g, b->logits.host + drawn_at, drawn, some->n * sizeof *drawn));
    RETURN_IF_ERROR(cuda_wait(d));
    memcpy(out, b->logits.host + drawn_at, some->n * sizeof *out);
    return STATUS_IS_OK;
}

/* Rows with logits of the whole vocabulary, scored on the thread pool. */
typedef struct score_job {
    const some_rows *some;
    const float *logits;
    uint32_t vocab_size;
    step_sample *out;
} score_job;

static void score_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const score_job *job = ctx;
    for (size_t i = from; i < to; i++) {
        step_sample *s = &job->out[i];
        logit_score score =
            logits_score(job->logits + i * job->vocab_size, job->vocab_size, job->some->tokens[i],
                         job->some->n_top, s->top_ids, s->top_logprobs);
        s->token = job->some->tokens[i];
        s->logprob = score.logprob;
        s->rank = score.rank;
        s->n_top = score.n_top;
        s->undefined = 0;
    }
}

static status from_ranks(backend_cuda *b, const some_rows *some, const float *part,
                         step_sample *out)
{
    size_t vocab = b->config.vocab_size;
    float *logits = alloc_resize(NULL, NULL, some->n * vocab, sizeof *logits);
    if (!logits) return status_make(STATUS_NO_MEMORY, "scores of prompts");
    status s = cuda_join_logits(&b->device, part, some->n, b->weights.head.n, b->config.vocab_size,
                                logits);
    score_job job = {some, logits, (uint32_t)vocab, out};
    if (status_ok(s)) thread_pool_for(b->pool, some->n, 1, score_rows, &job);
    free(logits);
    return s;
}

static status run_rows(backend_cuda *b, const some_rows *some, step_sample *out)
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
        draws[i] = (gpu_draw){
            .row = i, .given = some->tokens[i], .n_logprobs = (int32_t)some->n_top, .result = i};
    RETURN_IF_ERROR(cuda_pack_send(&b->device, &b->logits));
    RETURN_IF_ERROR(cuda_forward_logits(b->forward, d_rows, some->n, &logits));
    if (comm_size(b->device.group) > 1) return from_ranks(b, some, logits, out);
    return from_device(b, some, logits, d_draws, b->logits.size, out);
}

/* Scores a sequence's rows into `scores`, `novelty` or both, where not NULL. */
static status run_share(backend_cuda *b, const step_plan *plan, const step_seq *s,
                        step_sample *scores, float *novelty)
{
    step_sample block[SCORE_ROWS];
    for (uint32_t from = 0; from < s->n_tokens; from += SCORE_ROWS) {
        some_rows some = {.n = s->n_tokens - from,
                          .n_top = s->want_scores ? s->want_scores - 1 : 0};
        if (some.n > SCORE_ROWS) some.n = SCORE_ROWS;
        for (uint32_t i = 0; i < some.n; i++) {
            uint32_t row = s->first_token + from + i;
            bool last = from + i + 1 == s->n_tokens;
            some.rows[i] = row;
            some.tokens[i] = last ? s->next_token : plan->tokens[row + 1];
        }
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(run_rows(b, &some, block));
        if (scores) memcpy(scores + from, block, some.n * sizeof *block);
        for (uint32_t i = 0; novelty && i < some.n; i++) novelty[from + i] = -block[i].logprob;
    }
    return STATUS_IS_OK;
}

static status make_room(backend_cuda *b, size_t n_scores, size_t n_novelty)
{
    if (n_scores > b->scores_capacity) {
        step_sample *grown = alloc_resize(NULL, b->scores, n_scores, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "scores of prompts");
        b->scores = grown;
        b->scores_capacity = n_scores;
    }
    if (n_novelty > b->novelty_capacity) {
        float *grown = alloc_resize(NULL, b->novelty, n_novelty, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "novelty of prompts");
        b->novelty = grown;
        b->novelty_capacity = n_novelty;
    }
    return STATUS_IS_OK;
}

status cuda_scores(backend_cuda *b, const step_plan *plan)
{
    size_t n_scores = 0, n_novelty = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        if (plan->seqs[i].want_scores) n_scores += plan->seqs[i].n_tokens;
        if (plan->seqs[i].measure.novelty) n_novelty += plan->seqs[i].n_tokens;
    }
    RETURN_IF_ERROR(make_room(b, n_scores, n_novelty));
    step_sample *scores = b->scores;
    float *novelty = b->novelty;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->want_scores && !s->measure.novelty) continue;
        RETURN_IF_ERROR(run_share(b, plan, s, s->want_scores ? scores : NULL,
                                  s->measure.novelty ? novelty : NULL));
        if (s->want_scores) {
            b->seq_results[i].scores = scores;
            scores += s->n_tokens;
        }
        if (s->measure.novelty) {
            b->seq_results[i].novelty = novelty;
            novelty += s->n_tokens;
        }
    }
    return STATUS_IS_OK;
}

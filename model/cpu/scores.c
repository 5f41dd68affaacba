#include "model/cpu/scores.h"

#include "base/logits.h"

#include <stdlib.h>

/* Rows whose logits are in memory at a time; of each row only a few numbers are kept. */
enum { BLOCK = 64 };

static status reserve_values(void **values, size_t *n, size_t need, size_t size)
{
    if (need <= *n) return STATUS_IS_OK;
    void *grown = alloc_resize(NULL, *values, need, size);
    if (!grown) return status_make(STATUS_NO_MEMORY, "scores of prompts");
    *values = grown;
    *n = need;
    return STATUS_IS_OK;
}

static status make_room(row_scores *r, uint32_t vocab_size, size_t n_samples, size_t n_novelty)
{
    void *logits = r->logits, *samples = r->samples, *novelty = r->novelty;
    status s = reserve_values(&logits, &r->n_logits, (size_t)BLOCK * vocab_size, sizeof *r->logits);
    if (status_ok(s)) s = reserve_values(&samples, &r->n_samples, n_samples, sizeof *r->samples);
    if (status_ok(s)) s = reserve_values(&novelty, &r->n_novelty, n_novelty, sizeof *r->novelty);
    r->logits = logits;
    r->samples = samples;
    r->novelty = novelty;
    return s;
}

/* A block of one sequence's rows in this step (its share of the plan). */
typedef struct score_job {
    const step_plan *plan;
    const step_seq *share;
    uint32_t first_row; /* of the share in the pass */
    const float *logits;
    uint32_t from, vocab_size;
    step_sample *samples; /* the share's samples, or NULL */
    float *novelty;       /* the share's novelty, or NULL */
} score_job;

static void score_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const score_job *job = ctx;
    const step_seq *s = job->share;
    for (size_t i = from; i < to; i++) {
        size_t row = job->from + i;
        const float *logits = job->logits + i * job->vocab_size;
        step_sample one = {.token = row + 1 < s->n_tokens
                                        ? job->plan->tokens[s->first_token + row + 1]
                                        : s->next_token};
        uint32_t n_top = job->samples ? s->want_scores - 1 : 0;
        logit_score score =
            logits_score(logits, job->vocab_size, one.token, n_top, one.top_ids, one.top_logprobs);
        one.logprob = score.logprob;
        one.rank = score.rank;
        one.n_top = score.n_top;
        if (job->samples) job->samples[row] = one;
        if (job->novelty) job->novelty[row] = -one.logprob;
    }
}

static status run_share(row_scores *r, forward *f, thread_pool *pool, score_job *job)
{
    const step_seq *s = job->share;
    for (job->from = 0; job->from < s->n_tokens; job->from += BLOCK) {
        uint32_t rows[BLOCK], left = s->n_tokens - job->from, some = left < BLOCK ? left : BLOCK;
        for (uint32_t i = 0; i < some; i++) rows[i] = job->first_row + job->from + i;
        RETURN_IF_ERROR(forward_logits(f, rows, some, r->logits));
        if (job->samples || job->novelty) thread_pool_for(pool, some, 1, score_rows, job);
    }
    return STATUS_IS_OK;
}

status row_scores_run(row_scores *r, forward *f, thread_pool *pool, uint32_t vocab_size,
                      bool with_scores, const step_plan *plan, const uint32_t *first_rows,
                      step_seq_result *results)
{
    size_t n_scored = 0, n_novel = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->want_scores) n_scored += s->n_tokens;
        if (s->measure.novelty) n_novel += s->n_tokens;
    }
    if (n_scored + n_novel == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(make_room(r, vocab_size, with_scores ? n_scored : 0, n_novel));
    step_sample *samples = r->samples;
    float *novelty = r->novelty;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->want_scores && !s->measure.novelty) continue;
        score_job job = {.plan = plan,
                         .share = s,
                         .first_row = first_rows[i],
                         .logits = r->logits,
                         .vocab_size = vocab_size};
        if (s->want_scores && with_scores) {
            results[i].scores = job.samples = samples;
            samples += s->n_tokens;
        }
        if (s->measure.novelty) {
            results[i].novelty = job.novelty = novelty;
            novelty += s->n_tokens;
        }
        RETURN_IF_ERROR(run_share(r, f, pool, &job));
    }
    return STATUS_IS_OK;
}

void row_scores_free(row_scores *r)
{
    free(r->logits);
    free(r->samples);
    free(r->novelty);
}

#include "model/novelty.h"

#include "base/logits.h"

#include <stdlib.h>

/* Rows whose logits are there at a time: nobody needs more than one number of each. */
enum { BLOCK = 32 };

static status reserve(float **values, size_t *n, size_t need)
{
    if (need <= *n) return STATUS_IS_OK;
    float *grown = alloc_resize(NULL, *values, need, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "novelty of prompts");
    *values = grown;
    *n = need;
    return STATUS_IS_OK;
}

static uint32_t token_after(const step_plan *plan, const step_seq *s, uint32_t row)
{
    return row + 1 < s->n_tokens ? plan->tokens[s->first_token + row + 1] : s->next_token;
}

static status run_share(novelty *n, forward *f, uint32_t vocab_size, const step_plan *plan,
                        const step_seq *s, float *out)
{
    for (uint32_t from = 0; from < s->n_tokens; from += BLOCK) {
        uint32_t rows[BLOCK], some = s->n_tokens - from < BLOCK ? s->n_tokens - from : BLOCK;
        for (uint32_t i = 0; i < some; i++) rows[i] = s->first_token + from + i;
        RETURN_IF_ERROR(forward_logits(f, rows, some, n->logits));
        for (uint32_t i = 0; i < some; i++) {
            const float *row = n->logits + (size_t)i * vocab_size;
            uint32_t token = token_after(plan, s, from + i);
            out[from + i] = -logits_score(row, vocab_size, token, 0, NULL, NULL).logprob;
        }
    }
    return STATUS_IS_OK;
}

status novelty_run(novelty *n, forward *f, uint32_t vocab_size, const step_plan *plan,
                   step_seq_result *results)
{
    size_t total = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].measure.novelty) total += plan->seqs[i].n_tokens;
    if (total == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(reserve(&n->logits, &n->n_logits, (size_t)BLOCK * vocab_size));
    RETURN_IF_ERROR(reserve(&n->values, &n->n_values, total));
    float *at = n->values;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!s->measure.novelty) continue;
        RETURN_IF_ERROR(run_share(n, f, vocab_size, plan, s, at));
        results[i].novelty = at;
        at += s->n_tokens;
    }
    return STATUS_IS_OK;
}

void novelty_free(novelty *n)
{
    free(n->logits);
    free(n->values);
}

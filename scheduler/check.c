/* Whether a request can ever run: what its fields need of the model, of the backend and of the
 * pool. */
#include "scheduler/pages.h"
#include "scheduler/sched_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* Writes 1250 as "1,250". */
static const char *grouped(char out[27], uint64_t n)
{
    char digits[21];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

/* Whether generated tokens can read as the request asks: the blocks of tables of one length, from
 * which nothing is taken meanwhile. */
static status check_retrieval(const sched *s, const sched_request *r, error *err)
{
    if (r->retrieval.block_tokens == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(retrieval_check(&r->retrieval, s->options.retrieves, err));
    if (!retention_suits_retrieval(&r->policy, &s->options.geometry))
        return error_set(err, STATUS_INVALID,
                         "retrieval: needs KV heads that keep equally many tokens once the prompt "
                         "is over, so it cannot go with retention method '%s' as it is asked for",
                         r->policy.preset ? r->policy.preset->name : "?");
    if (retention_selects(&r->policy) && (retrieval_needs(&r->retrieval) & RETRIEVAL_OBSERVES))
        return error_set(err, STATUS_INVALID,
                         "retrieval: what the prompt's end attends to is measured before retention "
                         "selects, so DYNAMIC and preselect_block cannot go with retention method "
                         "'%s'",
                         r->policy.preset ? r->policy.preset->name : "?");
    if (r->policy.pressure && s->pressure.preset)
        return error_set(err, STATUS_INVALID,
                         "retrieval: nothing may be given up while tokens are generated, so it "
                         "cannot go with retention.pressure");
    return STATUS_IS_OK;
}

/* Rows that the turn's first selection measures in one step. */
static uint32_t rows_together(const sched_turn *turn)
{
    uint32_t point = retention_next_point(&turn->policy, turn->n_prompt, 0);
    if (point > turn->n_prompt) return 0;
    return retention_rows_together(&turn->policy, turn->n_prompt, point);
}

status sched_check_turn(const sched *s, const sched_turn *turn, error *err)
{
    uint32_t n_prompt = turn->n_prompt, together = rows_together(turn);
    if (together > s->options.prefill_chunk) {
        return error_set(err, STATUS_INVALID,
                         "retention.window: %" PRIu32
                         " rows do not fit in a prefill chunk of %" PRIu32,
                         together, s->options.prefill_chunk);
    }
    uint32_t lacking = retention_measures(&turn->policy, n_prompt) & s->options.lacks;
    if (lacking) {
        return error_set(err, STATUS_INVALID,
                         "retention.method: %s needs %s, which this device cannot measure",
                         turn->policy.preset ? turn->policy.preset->name : "it",
                         retention_measure_name(lacking));
    }
    return retention_check_budget(&turn->policy, &s->options.geometry, n_prompt, err);
}

/* Whether a reading has only what a reading may have. The engine refuses such fields of a client's
 * request by name before, so here they are a mistake of the caller. */
static bool is_plain_reading(const sched_request *r)
{
    return r->n_embeds > 0 && r->n == 1 && !r->want_logits && !r->want_scores &&
           !r->retrieval.block_tokens && !r->session[0] && !r->session[1] &&
           !retention_wants_novelty(&r->policy);
}

status sched_check(const sched *s, const sched_request *r, error *err)
{
    char a[27], b[27], words[SCHED_WORDS_BYTES];
    if ((r->n_embeds || r->n_layers) && !is_plain_reading(r))
        return error_set(err, STATUS_INVALID,
                         "a request for embeddings, which alone may run some layers, has one "
                         "choice, and neither logits, scores, novelty, retrieval nor a session");
    if (r->n_prompt == 0) return error_set(err, STATUS_INVALID, "prompt: has no tokens");
    if (r->max_new_tokens == 0)
        return error_set(err, STATUS_INVALID, "max_tokens: must be at least 1");
    uint32_t n_prompt = input_of(r);
    if (r->n == 0 || r->n > s->options.max_seqs) {
        return error_set(err, STATUS_INVALID, "n: %" PRIu32 " is not in [1, %" PRIu32 "]", r->n,
                         s->options.max_seqs);
    }
    if (r->priority != 0 && s->options.policy == SCHED_FCFS) {
        return error_set(err, STATUS_INVALID,
                         "priority: %" PRId32 " is not 0, and requests run in order of arrival "
                         "(--scheduling-policy fcfs)",
                         r->priority);
    }
    sched_turn turn = sched_turn_of(r);
    RETURN_IF_ERROR(sched_check_length(s, r, &turn, err));
    RETURN_IF_ERROR(check_retrieval(s, r, err));
    RETURN_IF_ERROR(sched_note_check(s, &r->retrieval, n_prompt, r->max_new_tokens, r->n, err));
    uint32_t together = rows_together(&turn);
    uint32_t observed = retrieval_observed_rows(&r->retrieval, n_prompt);
    if (observed > s->options.prefill_chunk) {
        return error_set(err, STATUS_INVALID,
                         "retrieval: the prompt's last %" PRIu32
                         " rows are measured, which do not fit in a prefill chunk of %" PRIu32,
                         observed, s->options.prefill_chunk);
    }
    RETURN_IF_ERROR(sched_check_turn(s, &turn, err));
    if ((r->want_logits || r->want_scores) && n_prompt < r->n_prompt) {
        return error_set(err, STATUS_INVALID,
                         "prompt_logprobs: retention method '%s' cuts %" PRIu32
                         " of the prompt's %" PRIu32 " tokens, which then have no logprobs",
                         turn.policy.preset->name, r->n_prompt - n_prompt, r->n_prompt);
    }
    if (r->pooling == POOLING_SUM && n_prompt < r->n_prompt) {
        return error_set(err, STATUS_INVALID,
                         "pooling: retention method '%s' cuts %" PRIu32 " of the prompt's %" PRIu32
                         " tokens, whose mean is asked for",
                         turn.policy.preset->name, r->n_prompt - n_prompt, r->n_prompt);
    }
    uint32_t rows = s->options.max_logit_rows;
    if ((r->want_logits || r->want_scores) && rows && together > rows) {
        return error_set(err, STATUS_INVALID,
                         "prompt_logprobs: a step gives the logits of %" PRIu32
                         " rows, retention.window measures %" PRIu32 " at once",
                         rows, together);
    }
    if ((r->want_logits || r->want_scores) && rows && observed > rows) {
        return error_set(err, STATUS_INVALID,
                         "prompt_logprobs: a step gives the logits of %" PRIu32
                         " rows, retrieval measures the prompt's last %" PRIu32 " at once",
                         rows, observed);
    }
    uint64_t peak = sched_peak_alone(s, r->n_layers, &turn, 1, r->max_new_tokens, r->n);
    if (peak > s->even_pages) {
        return error_set(
            err, STATUS_LIMIT,
            "prompt: %" PRIu32
            " tokens%s need %s KV pages, the pool has %s: shorten them, or give the KV cache "
            "more memory",
            n_prompt, sched_length_words(r, words), grouped(a, peak), grouped(b, s->even_pages));
    }
    return STATUS_IS_OK;
}

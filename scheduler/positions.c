/* The positions that a sequence takes, which bound how long it may be: a model reads none beyond
 * its context. Where a method leaves positions as they are, each token takes one. Where they close
 * up after each selection, a sequence takes as many as its tables have slots at most, however many
 * tokens it has seen. */
#include "scheduler/pages.h"
#include "scheduler/sched_internal.h"
#include <inttypes.h>
#include <stdio.h>

static const char *name_of(const retention_policy *p) { return p->preset ? p->preset->name : "?"; }

/* The turn grows from length `from`, with `held` slots in each table, to length `to`. Raises *most
 * to the slots on the way and returns those at the end. What a selection keeps never shrinks from
 * one point to the next, so the last one counts for all. */
static uint32_t walk_slots(const sched *s, const sched_turn *turn, uint32_t from, uint32_t held,
                           uint32_t to, uint32_t *most)
{
    const pkv_geometry *g = &s->options.geometry;
    sched_points run = sched_points_in(turn, from, to);
    bool selects = run.first <= to;
    uint32_t before = held + (selects ? run.first : to) - from, gap, kept;
    if (before > *most) *most = before;
    if (!selects) return before;

    kept = retention_bound_at(&turn->policy, g, 0, turn->n_prompt, run.first).longest;
    if (kept > before) kept = before;
    gap = (run.second < to ? run.second : to) - run.first;
    if (kept + gap > *most) *most = kept + gap;
    if (run.last > run.first) {
        kept = retention_bound_at(&turn->policy, g, 0, turn->n_prompt, run.last).longest;
        gap = (run.third < to ? run.third : to) - run.second;
        if (kept + gap > *most) *most = kept + gap;
    }
    if (kept + to - run.last > *most) *most = kept + to - run.last;
    return kept + to - run.last;
}

uint32_t sched_positions_of(const sched *s, const sched_turn *turns, uint32_t n_turns, uint32_t to)
{
    if (!turns[n_turns - 1].policy.contiguous) return to;
    uint32_t at = 0, held = 0, most = 0;
    for (uint32_t i = 0; i < n_turns && at < to; i++) {
        uint32_t end = turns[i].end < to ? turns[i].end : to;
        held = walk_slots(s, &turns[i], at, held, end, &most);
        at = end;
    }
    return most;
}

static status check_tokens(const sched *s, const sched_request *r, uint32_t n_prompt, error *err)
{
    uint64_t tokens = (uint64_t)n_prompt + r->max_new_tokens;
    if (!r->policy.contiguous) {
        if (tokens <= s->options.max_model_len) return STATUS_IS_OK;
        return error_set(err, STATUS_LIMIT,
                         "prompt: %" PRIu32 " tokens and max_tokens %" PRIu32 " make %" PRIu64
                         "; the maximum context length is %" PRIu32,
                         n_prompt, r->max_new_tokens, tokens, s->options.max_model_len);
    }
    if (tokens * r->n <= s->options.max_logical_len) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "prompt: %" PRIu32 " tokens and max_tokens %" PRIu32 " make %" PRIu64
                     " over %" PRIu32 " choices; retention method '%s' may be given %" PRIu32
                     " (--max-logical-len)",
                     n_prompt, r->max_new_tokens, tokens * r->n, r->n, name_of(&r->policy),
                     s->options.max_logical_len);
}

const char *sched_length_words(const sched_request *r, char out[SCHED_WORDS_BYTES])
{
    snprintf(out, SCHED_WORDS_BYTES, " and max_tokens %" PRIu32, r->max_new_tokens);
    return r->open_length ? "" : out;
}

status sched_check_length(const sched *s, const sched_request *r, const sched_turn *turn,
                          error *err)
{
    char words[SCHED_WORDS_BYTES];
    uint32_t n_prompt = turn->n_prompt, most = s->options.max_model_len;
    RETURN_IF_ERROR(check_tokens(s, r, n_prompt, err));
    uint32_t positions = sched_positions_of(s, turn, 1, n_prompt + r->max_new_tokens);
    if (positions > most)
        return error_set(err, STATUS_LIMIT,
                         "prompt: %" PRIu32 " tokens%s take %" PRIu32
                         " positions under retention method '%s'; the maximum context length is "
                         "%" PRIu32 ": lower retention.tokens, recurrent_chunk or max_tokens",
                         n_prompt, sched_length_words(r, words), positions, name_of(&turn->policy),
                         most);
    if ((r->want_logits || r->want_scores) && n_prompt > most)
        return error_set(err, STATUS_LIMIT,
                         "prompt_logprobs: the prompt has %" PRIu32
                         " tokens, logprobs are given for prompts up to the context length of "
                         "%" PRIu32,
                         n_prompt, most);
    return STATUS_IS_OK;
}

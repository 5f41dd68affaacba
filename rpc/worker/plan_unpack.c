#include "rpc/worker/codec.h"

#include <string.h>

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "plan: it takes too much memory");
}

/* ---- opens ----------------------------------------------------------------------------------- */

static status check_open(const open_message *m, const backend_info *info, error *err)
{
    if (m->seq >= info->max_seqs)
        return error_set(err, STATUS_INVALID, "opens.seq: %u, there are %u", m->seq,
                         info->max_seqs);
    if (m->n_logprobs < -1 || m->n_logprobs > SAMPLE_LOGPROBS_MAX)
        return error_set(err, STATUS_INVALID, "opens.n_logprobs: %d is not -1 to %d", m->n_logprobs,
                         SAMPLE_LOGPROBS_MAX);
    if (m->bias.len != m->n_bias_ids * sizeof(float))
        return error_set(err, STATUS_INVALID, "opens.bias: %zu bytes for %zu ids", m->bias.len,
                         m->n_bias_ids);
    if (m->n_stop_ids > UINT32_MAX || m->n_bias_ids > UINT32_MAX || m->n_history > UINT32_MAX)
        return error_set(err, STATUS_LIMIT, "opens: too many ids");
    for (size_t i = 0; i < m->n_history; i++)
        if (m->history[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID, "opens.history: %u is not in the vocabulary",
                             m->history[i]);
    return STATUS_IS_OK;
}

/* Unpacks an open; its lists stay in the message. */
static void unpack_open(const open_message *m, step_open *open, sample_params *p)
{
    *p = (sample_params){
        .temperature = m->temperature,
        .top_p = m->top_p,
        .min_p = m->min_p,
        .top_k = m->top_k,
        .presence_penalty = m->presence_penalty,
        .frequency_penalty = m->frequency_penalty,
        .repetition_penalty = m->repetition_penalty,
        .seed = m->seed,
        .n_logprobs = m->n_logprobs,
        .min_tokens = m->min_tokens,
        .stop_ids = m->stop_ids,
        .n_stop_ids = (uint32_t)m->n_stop_ids,
        .bias_ids = m->bias_ids,
        .bias = (const float *)(const void *)m->bias.data,
        .n_bias = (uint32_t)m->n_bias_ids,
    };
    *open = (step_open){
        .seq = m->seq,
        .choice = m->choice,
        .params = p,
        .history = m->history,
        .n_history = (uint32_t)m->n_history,
        .n_prompt = m->n_prompt,
        .n_most = m->n_most,
    };
}

static status unpack_opens(const plan_message *m, const backend_info *info, arena *a,
                           step_plan *out, error *err)
{
    if (m->n_opens > info->max_seqs)
        return error_set(err, STATUS_INVALID, "opens: %zu, there are %u sequences", m->n_opens,
                         info->max_seqs);
    step_open *opens = arena_alloc_array(a, m->n_opens, sizeof *opens);
    sample_params *params = arena_alloc_array(a, m->n_opens, sizeof *params);
    if (!opens || !params) return out_of_memory(err);
    for (size_t i = 0; i < m->n_opens; i++) {
        RETURN_IF_ERROR(check_open(m->opens[i], info, err));
        unpack_open(m->opens[i], &opens[i], &params[i]);
    }
    out->opens = opens;
    out->n_opens = (uint32_t)m->n_opens;
    return STATUS_IS_OK;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Checks the page at one end of a move: it begins a run of cells of the move's grain, all of which
 * the pool or the host tier has. */
static status check_end(const char *name, uint32_t page, bool in_host, const pkv_move *m,
                        const backend_info *info, error *err)
{
    const pkv_geometry *g = &info->geometry;
    if (in_host && info->n_host_pages == 0)
        return error_set(err, STATUS_INVALID, "%s: there is no host tier", name);
    uint32_t usable = in_host ? info->n_host_pages : info->n_pages - 1;
    if (page >= pkv_cell_count(g, usable))
        return error_set(err, STATUS_INVALID, "%s: %u, there are %u", name, page,
                         pkv_cell_count(g, usable));
    if (!pkv_is_page(g, usable, m->grain, page))
        return error_set(err, STATUS_INVALID, "%s: %u begins no page of grain %u", name, page,
                         m->grain);
    return STATUS_IS_OK;
}

static status check_move(const pkv_move *m, const backend_info *info, error *err)
{
    const pkv_geometry at = pkv_geometry_at(&info->geometry, m->grain);
    uint32_t slots = at.page_tokens, groups = pkv_groups(&at);
    RETURN_IF_ERROR(check_end("move_src_page", m->src_page, m->kind == PKV_MOVE_IN, m, info, err));
    RETURN_IF_ERROR(check_end("move_dst_page", m->dst_page, m->kind == PKV_MOVE_OUT, m, info, err));
    if (m->n_slots > slots || m->src_slot > slots - m->n_slots || m->dst_slot > slots - m->n_slots)
        return error_set(err, STATUS_INVALID, "move_n_slots: %u from %u to %u, a page has %u",
                         m->n_slots, m->src_slot, m->dst_slot, slots);
    if (m->group >= groups)
        return error_set(err, STATUS_INVALID, "move_group: %u, there are %u", m->group, groups);
    return STATUS_IS_OK;
}

static status unpack_moves(const plan_message *m, const backend_info *info, arena *a,
                           step_plan *out, error *err)
{
    size_t n = m->n_move_kind;
    pkv_move *moves = arena_alloc_array(a, n, sizeof *moves);
    if (!moves) return out_of_memory(err);
    RETURN_IF_ERROR(columns_unpack(&plan_move_columns, m, moves, n, err));
    for (size_t i = 0; i < n; i++) RETURN_IF_ERROR(check_move(&moves[i], info, err));
    out->deltas.moves = moves;
    out->deltas.n_moves = n;
    return STATUS_IS_OK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Gives each share its part of the joined lists of heads. */
static status unpack_embeds(const plan_message *m, arena *a, step_seq *seqs, size_t n, error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += seqs[i].n_embeds;
    const struct {
        const char *name;
        size_t n;
    } lists[] = {{"embed_layer", m->n_embed_layer},
                 {"embed_kind", m->n_embed_kind},
                 {"embed_head", m->n_embed_head}};
    for (size_t i = 0; i < 3; i++)
        if (lists[i].n != total)
            return error_set(err, STATUS_INVALID, "%s: %zu values, n_embeds are %zu", lists[i].name,
                             lists[i].n, total);
    if (total == 0) return STATUS_IS_OK;
    embed_head *heads = arena_alloc_array(a, total, sizeof *heads);
    if (!heads) return out_of_memory(err);
    for (size_t i = 0; i < total; i++) {
        if (m->embed_kind[i] >= EMBED_KINDS)
            return error_set(err, STATUS_INVALID, "embed_kind: %u, there are %d", m->embed_kind[i],
                             EMBED_KINDS);
        heads[i] = (embed_head){m->embed_layer[i], (embed_kind)m->embed_kind[i], m->embed_head[i]};
    }
    for (size_t i = 0; i < n; i++) {
        seqs[i].embeds = heads;
        heads += seqs[i].n_embeds;
    }
    return STATUS_IS_OK;
}

/* Gives each share its part of the joined masks, which stay in the message. */
static status unpack_masks(const plan_message *m, const backend_info *info, step_seq *seqs,
                           size_t n, error *err)
{
    const uint32_t *words = (const uint32_t *)(const void *)m->masks.data;
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (seqs[i].n_mask_words && seqs[i].n_mask_words != step_mask_words(info->vocab_size))
            return error_set(err, STATUS_INVALID, "n_mask_words: %u, the vocabulary takes %u",
                             seqs[i].n_mask_words, step_mask_words(info->vocab_size));
        total += seqs[i].n_mask_words;
    }
    if (m->masks.len != total * sizeof *words)
        return error_set(err, STATUS_INVALID, "masks: %zu bytes, n_mask_words are %zu",
                         m->masks.len, total);
    for (size_t i = 0; i < n; i++) {
        if (seqs[i].n_mask_words == 0) continue; // there may be no masks at all
        seqs[i].mask = words;
        words += seqs[i].n_mask_words;
    }
    return STATUS_IS_OK;
}

/* The backend checks what depends on the tables and on other fields of the share. */
static status check_retrieval(const step_seq *s, const backend_info *info, error *err)
{
    if (s->retrieval.block_tokens == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(retrieval_spec_check(&s->retrieval, &info->geometry, err));
    return retrieval_check(&s->retrieval, info->retrieves, err);
}

static status check_seq(const step_seq *s, const backend_info *info, error *err)
{
    if (s->seq >= info->max_seqs)
        return error_set(err, STATUS_INVALID, "seq: %u, there are %u", s->seq, info->max_seqs);
    if (s->position > info->max_positions || s->n_tokens > info->max_positions - s->position)
        return error_set(err, STATUS_INVALID, "position: %u and %u tokens, the model takes %u",
                         s->position, s->n_tokens, info->max_positions);
    if (s->token_from && (steps_of(info) < 2 || s->n_tokens != 1))
        return error_set(err, STATUS_INVALID, "token_from: %u tokens, and %u steps in flight",
                         s->n_tokens, steps_of(info));
    if ((s->measure.novelty || s->want_scores) && s->next_token >= info->vocab_size)
        return error_set(err, STATUS_INVALID, "next_token: %u is not in the vocabulary",
                         s->next_token);
    return check_retrieval(s, info, err);
}

/* Checks that the sequences' rows tile the tokens, and that the plan asks for no more draws and
 * logit rows than the backend has. */
static status check_seqs(step_seq *seqs, size_t n, size_t n_tokens, const backend_info *info,
                         error *err)
{
    uint32_t next = 0, draws = 0, logit_rows = 0;
    for (size_t i = 0; i < n; i++) {
        step_seq *s = &seqs[i];
        if (s->n_tokens == 0 || s->n_tokens > n_tokens - next)
            return error_set(err, STATUS_INVALID, "rows: they do not add up to %zu tokens",
                             n_tokens);
        s->first_token = next;
        next += s->n_tokens;
        if (s->n_samples > step_most_draws(info->max_seqs) - draws)
            return error_set(err, STATUS_INVALID, "samples: more than %u draws",
                             step_most_draws(info->max_seqs));
        draws += s->n_samples;
        if (s->want_logits || s->want_scores) logit_rows += s->n_tokens;
        RETURN_IF_ERROR(check_seq(s, info, err));
    }
    if (next != n_tokens)
        return error_set(err, STATUS_INVALID, "rows: %u, there are %zu tokens", next, n_tokens);
    if (info->max_logit_rows && logit_rows > info->max_logit_rows)
        return error_set(err, STATUS_INVALID, "want_logits, want_scores: %u rows, at most %u",
                         logit_rows, info->max_logit_rows);
    return STATUS_IS_OK;
}

/* Checks that no sequence is in the step twice: two threads would write the same sampler's
 * state. */
static status check_once(const step_seq *seqs, size_t n, const backend_info *info, arena *a,
                         error *err)
{
    bool *seen = arena_alloc_array(a, info->max_seqs, sizeof *seen);
    if (!seen) return out_of_memory(err);
    memset(seen, 0, info->max_seqs * sizeof *seen);
    for (size_t i = 0; i < n; i++) {
        if (seen[seqs[i].seq])
            return error_set(err, STATUS_INVALID, "seq: %u is there twice", seqs[i].seq);
        seen[seqs[i].seq] = true;
    }
    return STATUS_IS_OK;
}

static status unpack_seqs(const plan_message *m, const backend_info *info, arena *a, step_plan *out,
                          error *err)
{
    size_t n = m->n_seq;
    if (n > info->max_seqs)
        return error_set(err, STATUS_INVALID, "seq: %zu sequences, at most %u", n, info->max_seqs);
    if (m->n_tokens > info->max_rows)
        return error_set(err, STATUS_INVALID, "tokens: %zu, at most %u", m->n_tokens,
                         info->max_rows);
    for (size_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID, "tokens: %u is not in the vocabulary",
                             m->tokens[i]);
    step_seq *seqs = arena_alloc_array(a, n, sizeof *seqs);
    if (!seqs) return out_of_memory(err);
    RETURN_IF_ERROR(columns_unpack(&plan_seq_columns, m, seqs, n, err));
    RETURN_IF_ERROR(unpack_embeds(m, a, seqs, n, err));
    RETURN_IF_ERROR(unpack_masks(m, info, seqs, n, err));
    RETURN_IF_ERROR(check_seqs(seqs, n, m->n_tokens, info, err));
    RETURN_IF_ERROR(check_once(seqs, n, info, a, err));
    out->seqs = seqs;
    out->n_seqs = (uint32_t)n;
    out->tokens = m->tokens;
    out->n_tokens = (uint32_t)m->n_tokens;
    return STATUS_IS_OK;
}

status plan_unpack(const plan_message *m, const backend_info *info, arena *a, step_plan *out,
                   error *err)
{
    *out = (step_plan){
        .step = m->step,
        .deltas = {.words = m->words, .n_words = m->n_words},
        .checksum = m->checksum,
        .ended_notes = m->ended_notes,
        .n_ended_notes = (uint32_t)m->n_ended_notes,
    };
    if (m->n_ended_notes > STEP_ENDED_NOTES)
        return error_set(err, STATUS_INVALID, "ended_notes: %zu, at most %d", m->n_ended_notes,
                         STEP_ENDED_NOTES);
    RETURN_IF_ERROR(unpack_opens(m, info, a, out, err));
    RETURN_IF_ERROR(unpack_moves(m, info, a, out, err));
    return unpack_seqs(m, info, a, out, err);
}

/* Lists the shares of the step in flight: of[seq] is 1 + the index of its share, or 0. NULL: memory
 * is out. */
static uint32_t *list_shares(const step_plan *before, const backend_info *info, arena *a)
{
    uint32_t *of = arena_alloc_array(a, info->max_seqs, sizeof *of);
    if (!of) return NULL;
    memset(of, 0, info->max_seqs * sizeof *of);
    for (uint32_t i = 0; i < before->n_seqs; i++) of[before->seqs[i].seq] = 1 + i;
    return of;
}

/* Checks what the step in flight asks for beside draws: the rows of logits may be computed when it
 * is collected. */
static status check_before(const step_plan *before, error *err)
{
    for (uint32_t i = 0; i < before->n_seqs; i++) {
        const step_seq *s = &before->seqs[i];
        if (s->want_logits || s->want_scores || s->measure.novelty)
            return error_set(err, STATUS_INVALID,
                             "step: it comes behind step %llu, whose sequence %u asks for logits "
                             "or scores of its rows",
                             (unsigned long long)before->step, s->seq);
    }
    return STATUS_IS_OK;
}

/* Checks a share behind one of the same sequence, which draws `from->n_samples` tokens. */
static status check_behind(const step_seq *s, const step_seq *from, error *err)
{
    if (from->n_samples > 1)
        return error_set(err, STATUS_INVALID,
                         "seq: %u has a share behind %u draws, which decide how it goes on", s->seq,
                         from->n_samples);
    if (from->n_samples == 1 && !s->token_from)
        return error_set(err, STATUS_INVALID,
                         "token_from: sequence %u goes on without the token that it draws", s->seq);
    return STATUS_IS_OK;
}

static status check_token(const step_plan *plan, const step_seq *s, const step_plan *before,
                          error *err)
{
    if (!before || before->step + 1 != plan->step)
        return error_set(err, STATUS_INVALID,
                         "token_from: the step before step %llu is not in flight",
                         (unsigned long long)plan->step);
    if (s->token_from > before->n_seqs)
        return error_set(err, STATUS_INVALID, "token_from: %u, the step before has %u shares",
                         s->token_from, before->n_seqs);
    const step_seq *from = &before->seqs[s->token_from - 1];
    if (from->seq == s->seq && from->n_samples == 1) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "token_from: sequence %u takes one of %u draws of sequence %u", s->seq,
                     from->n_samples, from->seq);
}

status plan_check_ahead(const step_plan *plan, const step_plan *before, const backend_info *info,
                        arena *a, error *err)
{
    uint32_t *of = before ? list_shares(before, info, a) : NULL;
    if (before && !of) return out_of_memory(err);
    if (before) RETURN_IF_ERROR(check_before(before, err));
    for (uint32_t i = 0; before && i < plan->n_opens; i++)
        if (of[plan->opens[i].seq])
            return error_set(err, STATUS_INVALID,
                             "open: sequence %u, which has a share in the step in flight",
                             plan->opens[i].seq);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        uint32_t share = before ? of[s->seq] : 0;
        if (s->token_from) RETURN_IF_ERROR(check_token(plan, s, before, err));
        if (share) RETURN_IF_ERROR(check_behind(s, &before->seqs[share - 1], err));
    }
    return STATUS_IS_OK;
}

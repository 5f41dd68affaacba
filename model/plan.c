#include "model/plan.h"

#include "model/measures.h"

status plan_follow(pkv_mirror *mirror, const step_plan *plan)
{
    status s = pkv_mirror_apply(mirror, plan->deltas.words, plan->deltas.n_words);
    if (s.code == STATUS_NO_MEMORY)
        return status_make(STATUS_UNAVAILABLE, "page tables: out of memory");
    if (!status_ok(s)) return status_make(STATUS_INTERNAL, s.message);
    if (pkv_mirror_checksum(mirror) != plan->checksum)
        return status_make(STATUS_INTERNAL, "page tables differ from the coordinator's");
    return STATUS_IS_OK;
}

static uint32_t dense_rows(const step_seq *s, const pkv_mirror_extent *extent)
{
    uint32_t from = extent->least_kept - s->n_tokens;
    uint32_t left = from < s->n_prompt ? s->n_prompt - from : 0;
    return s->retrieval.block_tokens && left < s->n_tokens ? left : s->n_tokens;
}

/* The lengths of the tables that the share's rows are in. */
static pkv_mirror_extent extent_of(const pkv_mirror *mirror, const step_seq *s)
{
    return pkv_mirror_extent_of(mirror, s->seq, s->n_layers ? s->n_layers : UINT32_MAX);
}

uint32_t plan_dense_rows(const pkv_mirror *mirror, const step_seq *s)
{
    pkv_mirror_extent extent = extent_of(mirror, s);
    return dense_rows(s, &extent);
}

/* Says why a share's retrieval cannot be made, or returns NULL. */
static const char *wrong_retrieval(const backend_info *info, const step_seq *s,
                                   const pkv_mirror_extent *extent)
{
    const retrieval_spec *spec = &s->retrieval;
    if (spec->block_tokens == 0) return NULL;
    if (retrieval_needs(spec) & ~info->retrieves) return "plan: a retrieval that is not to be had";
    if (s->n_tokens - dense_rows(s, extent) > STEP_SPARSE_ROWS)
        return "plan: more rows that read by retrieval than a share may have";
    uint32_t observed = retrieval_observed_rows(spec, s->n_prompt);
    uint32_t to = extent->least_kept, from = to - s->n_tokens;
    if (observed > 0 && from < s->n_prompt && to >= s->n_prompt &&
        (to > s->n_prompt || s->n_tokens < observed))
        return "plan: the last rows of a prompt that are not together, and alone, in a share";
    if (s->measure.kind != MEASURE_NONE && dense_rows(s, extent) < s->n_tokens &&
        (s->measure.by_slot || s->measure.beside || s->measure.rows != 1 ||
         info->lacks & MEASURES_READS))
        return "plan: a measure of rows that read by retrieval";
    if (extent->least_kept != extent->most_kept)
        return "plan: a retrieval in tables of different lengths";
    if (retrieval_keeps(spec) && (s->note >= STEP_NOTES_MOST || s->choice >= info->max_seqs))
        return "plan: a retrieval that keeps more than the backend has room for";
    return NULL;
}

/* Says why a share's rows cannot be embedded, or returns NULL. */
static const char *wrong_embeds(const backend_info *info, const step_seq *s)
{
    uint32_t n_layers = info->geometry.n_layers;
    uint32_t layers = s->n_layers && s->n_layers < n_layers ? s->n_layers + 1 : n_layers;
    if (s->n_embeds > EMBED_HEADS_MOST)
        return "plan: embeddings of more heads than a share may have";
    for (uint32_t i = 0; i < s->n_embeds; i++) {
        const embed_head *h = &s->embeds[i];
        if ((unsigned)h->kind >= EMBED_KINDS) return "plan: an embedding of an unknown kind";
        if (h->layer >= layers) return "plan: an embedding of a layer that is not run";
        if (h->head >= (h->kind == EMBED_Q ? info->n_heads : info->geometry.n_kv_heads))
            return "plan: an embedding of a head that the model does not have";
    }
    return NULL;
}

/* Says why a share's draws cannot be masked, or its tokens counted, or returns NULL. */
static const char *wrong_draws(const backend_info *info, const step_seq *s)
{
    if (s->n_uncounted > (s->token_from ? 0 : s->n_tokens))
        return "plan: more tokens to be counted than a share has, or one that is not drawn yet";
    if (s->n_mask_words == 0) return NULL;
    if (!info->masks) return "plan: a mask of tokens, which this backend does not support";
    if (s->n_mask_words != step_mask_words(info->vocab_size) || s->token_from)
        return "plan: a mask of another size than the vocabulary, or behind a token that is not "
               "drawn yet";
    return NULL;
}

/* Says why a share's rows cannot leave early or be embedded, or returns NULL. */
static const char *wrong_layers(const backend_info *info, const step_seq *s)
{
    if (s->n_embeds == 0 && s->n_layers == 0) return NULL;
    if (info->n_heads == 0)
        return "plan: embeddings or early exit, which this backend does not have";
    if (s->n_layers > info->geometry.n_layers)
        return "plan: rows that run more layers than the model has";
    if (s->n_layers && (s->n_samples || s->want_logits || s->want_scores || s->measure.novelty ||
                        s->pooling || s->retrieval.block_tokens || s->token_from))
        return "plan: rows that leave early and ask for what comes behind all layers";
    return wrong_embeds(info, s);
}

/* Says why a share's hidden states cannot be pooled, or returns NULL. */
static const char *wrong_pooling(const backend_info *info, const step_seq *s)
{
    if (s->pooling > POOLING_SUM) return "plan: a pooling of an unknown kind";
    if (s->pooling && info->hidden == 0) return "plan: pooling, which this backend does not have";
    return NULL;
}

status plan_check(const backend_info *info, const pkv_mirror *mirror, const step_plan *plan)
{
    if (plan->n_seqs > info->max_seqs || plan->n_tokens > info->max_rows)
        return status_make(STATUS_LIMIT, "plan: more sequences or tokens than the backend takes");
    uint32_t next = 0, draws = 0, sparse_rows = 0;
    uint64_t embed_bytes = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->seq >= info->max_seqs || s->n_tokens == 0 || s->first_token != next ||
            s->n_tokens > plan->n_tokens - next)
            return status_make(STATUS_INVALID, "plan: sequences do not tile the tokens");
        next += s->n_tokens;
        if (s->token_from && (info->max_in_flight < 2 || s->n_tokens != 1))
            return status_make(STATUS_INVALID, "plan: a token of a step that is not in flight");
        if (s->n_samples > step_most_draws(info->max_seqs) - draws)
            return status_make(STATUS_LIMIT, "plan: more draws than the backend takes");
        draws += s->n_samples;
        if ((s->measure.novelty || s->want_scores) && s->next_token >= info->vocab_size)
            return status_make(STATUS_INVALID, "plan: a next token outside the vocabulary");
        if (s->want_scores > 1 + SAMPLE_LOGPROBS_MAX)
            return status_make(STATUS_INVALID, "plan: scores of more tokens than a sample has");
        const char *wrong = measures_check(&s->measure);
        if (!wrong && s->measure.beside && info->lacks & MEASURES_BESIDE)
            wrong = "plan: a mass beside a measure, which this backend does not have";
        if (wrong) return status_make(STATUS_INVALID, wrong);
        wrong = wrong_layers(info, s);
        if (!wrong) wrong = wrong_draws(info, s);
        if (!wrong) wrong = wrong_pooling(info, s);
        if (wrong) return status_make(STATUS_INVALID, wrong);
        embed_bytes += (uint64_t)s->n_tokens * s->n_embeds * info->head_dim * sizeof(uint16_t);
        pkv_mirror_extent extent = extent_of(mirror, s);
        if (extent.least_kept < s->n_tokens)
            return status_make(STATUS_INVALID, "plan: a table without slots for its tokens");
        wrong = wrong_retrieval(info, s, &extent);
        if (wrong) return status_make(STATUS_INVALID, wrong);
        if (s->retrieval.block_tokens) sparse_rows += s->n_tokens - dense_rows(s, &extent);
    }
    if (next != plan->n_tokens)
        return status_make(STATUS_INVALID, "plan: sequences do not tile the tokens");
    if (sparse_rows > step_most_sparse_rows(info->max_seqs))
        return status_make(STATUS_LIMIT, "plan: more rows that read by retrieval than it may have");
    if (embed_bytes > EMBED_BYTES_MOST)
        return status_make(STATUS_LIMIT, "plan: more bytes of embeddings than a step may have");
    for (uint32_t i = 0; i < plan->n_tokens; i++)
        if (plan->tokens[i] >= info->vocab_size)
            return status_make(STATUS_INVALID, "plan: a token outside the vocabulary");
    return STATUS_IS_OK;
}

uint32_t plan_longest_table(const pkv_mirror *mirror, uint32_t seq, bool slots)
{
    pkv_mirror_extent extent = pkv_mirror_extent_of(mirror, seq, UINT32_MAX);
    return slots ? extent.most_kept : extent.most_pages;
}

size_t plan_measure_floats(const measure_result *m)
{
    return (size_t)m->n_layers * m->n_kv_heads * m->stride;
}

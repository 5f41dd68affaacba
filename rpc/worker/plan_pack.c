#include "rpc/worker/codec.h"

#include <string.h>

/* Drops const for protobuf-c, which does not change what it packs. */
static void *borrow(const void *p) { return (void *)(uintptr_t)p; }

static void pack_open(const step_open *from, open_message *to)
{
    const sample_params *p = from->params;
    *to = (open_message)OCTAVO__WORKER__V1__OPEN__INIT;
    to->seq = from->seq;
    to->choice = from->choice;
    to->temperature = p->temperature;
    to->top_p = p->top_p;
    to->min_p = p->min_p;
    to->top_k = p->top_k;
    to->presence_penalty = p->presence_penalty;
    to->frequency_penalty = p->frequency_penalty;
    to->repetition_penalty = p->repetition_penalty;
    to->seed = p->seed;
    to->n_logprobs = p->n_logprobs;
    to->min_tokens = p->min_tokens;
    to->stop_ids = borrow(p->stop_ids);
    to->n_stop_ids = p->n_stop_ids;
    to->bias_ids = borrow(p->bias_ids);
    to->n_bias_ids = p->n_bias;
    to->bias = (ProtobufCBinaryData){p->n_bias * sizeof *p->bias, borrow(p->bias)};
    to->history = borrow(from->history);
    to->n_history = from->n_history;
    to->n_prompt = from->n_prompt;
    to->n_most = from->n_most;
}

static status pack_opens(const step_plan *plan, arena *a, plan_message *out)
{
    open_message *opens = arena_alloc_array(a, plan->n_opens, sizeof *opens);
    open_message **list = arena_alloc_array(a, plan->n_opens, sizeof *list);
    if (!opens || !list) return status_make(STATUS_NO_MEMORY, "a message's opens");
    for (uint32_t i = 0; i < plan->n_opens; i++) {
        pack_open(&plan->opens[i], &opens[i]);
        list[i] = &opens[i];
    }
    out->opens = list;
    out->n_opens = plan->n_opens;
    return STATUS_IS_OK;
}

/* Joins the lists of heads of all shares that embed. */
static status pack_embeds(const step_plan *plan, arena *a, plan_message *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].n_embeds;
    if (n == 0) return STATUS_IS_OK;
    uint32_t *layers = arena_alloc_array(a, n, sizeof *layers);
    uint32_t *kinds = arena_alloc_array(a, n, sizeof *kinds);
    uint32_t *heads = arena_alloc_array(a, n, sizeof *heads);
    if (!layers || !kinds || !heads) return status_make(STATUS_NO_MEMORY, "a message's embeds");
    out->embed_layer = layers;
    out->embed_kind = kinds;
    out->embed_head = heads;
    out->n_embed_layer = out->n_embed_kind = out->n_embed_head = n;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        for (uint32_t j = 0; j < plan->seqs[i].n_embeds; j++) {
            const embed_head *h = &plan->seqs[i].embeds[j];
            *layers++ = h->layer;
            *kinds++ = h->kind;
            *heads++ = h->head;
        }
    return STATUS_IS_OK;
}

/* Joins the masks of all shares that have one. */
static status pack_masks(const step_plan *plan, arena *a, plan_message *out)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].n_mask_words;
    if (n == 0) return STATUS_IS_OK;
    uint32_t *words = arena_alloc_array(a, n, sizeof *words);
    if (!words) return status_make(STATUS_NO_MEMORY, "a message's masks");
    out->masks = (ProtobufCBinaryData){n * sizeof *words, (uint8_t *)words};
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->n_mask_words) memcpy(words, s->mask, s->n_mask_words * sizeof *words);
        words += s->n_mask_words;
    }
    return STATUS_IS_OK;
}

status plan_pack(const step_plan *plan, uint64_t session, arena *a, plan_message *out)
{
    *out = (plan_message)OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    out->session = session;
    out->step = plan->step;
    out->checksum = plan->checksum;
    out->words = borrow(plan->deltas.words);
    out->n_words = plan->deltas.n_words;
    out->tokens = borrow(plan->tokens);
    out->n_tokens = plan->n_tokens;
    out->ended_notes = borrow(plan->ended_notes);
    out->n_ended_notes = plan->n_ended_notes;
    RETURN_IF_ERROR(pack_opens(plan, a, out));
    RETURN_IF_ERROR(
        columns_pack(&plan_move_columns, plan->deltas.moves, plan->deltas.n_moves, out, a));
    RETURN_IF_ERROR(pack_embeds(plan, a, out));
    RETURN_IF_ERROR(pack_masks(plan, a, out));
    return columns_pack(&plan_seq_columns, plan->seqs, plan->n_seqs, out, a);
}

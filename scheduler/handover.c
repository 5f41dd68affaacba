/* Prompts that one scheduler computes and another goes on from: the pages that are left after the
 * prompt's selection, with the first token.
 *
 *   out   the sequence ends with its first token, and its parked pages wait until their K and V
 *         have been read
 *   in    a waiting sequence takes pages for what arrives, parked ones, which are filled while it
 *         waits; then it starts from them as from any parked pages
 *
 * A replay computes the prompt and selects in it again, as after any preemption. */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"

typedef enum handing_state { HANDING_PROMISED, HANDING_NEW, HANDING_OUT } handing_state;

struct sched_handing {
    sched_export export; // what the caller sees
    handing_state state;
    uint32_t parked; // 0: memory was out
    uint64_t kept;
    pkv_image_table *tables; // of the export
    uint32_t *tokens;
    sched_handing *earlier, *later;
};

const char *sched_hands_over(const retention_policy *policy)
{
    if (retention_has_sums(policy)) return "keeps running scores beside its pages";
    if (retention_wants_novelty(policy)) return "measures every token of the prompt for later";
    if (policy->growth != RETENTION_GROWTH_JOINT)
        return "divides its budget by the length of the answer";
    if (policy->gather_tokens > 0) return "reads the prompt before it computes a part of it";
    return NULL;
}

/* ---- out ------------------------------------------------------------------------------------- */

/* The tables have the prompt alone: no row behind it is in flight. */
static bool may_hand_over(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    return e->hands_over && e->forked && q->state == SEQ_RUNNING && q->computed == e->n_prompt &&
           pkv_seq_length(s->kv, q->slot) == e->n_prompt && q->n_tokens == e->n_prompt + 1 &&
           q->n_pressure_drops == 0 && !q->leaving && !q->arriving;
}

void sched_promise_export(sched *s, sched_seq *q)
{
    if (!may_hand_over(s, q)) return;
    sched_handing *x = alloc_zeroed(&s->alloc, 1, sizeof *x);
    if (!x) return;
    *x = (sched_handing){.export.request = q->entry->id, .earlier = s->last_handing};
    *(x->earlier ? &x->earlier->later : &s->first_handing) = x;
    s->last_handing = x;
    q->handing = x;
    q->final.hands_over = true;
}

/* Nothing that grows with the pages is copied: the caller reads the parked sequence's own lists,
 * which no call changes until it has done so. False when memory is out. */
static bool fill_export(sched *s, const sched_seq *q, sched_handing *x)
{
    uint32_t n_tables = pkv_parked_tables(s->kv, q->parked), n_tokens = q->entry->n_prompt;
    x->tables = alloc_zeroed(&s->alloc, n_tables, sizeof *x->tables);
    x->tokens = alloc_resize(&s->alloc, NULL, (size_t)n_tokens + 1, sizeof *x->tokens);
    if (!x->tables || !x->tokens) return false;
    memcpy(x->tokens, q->tokens, (n_tokens + 1) * sizeof *x->tokens);
    pkv_image image = pkv_parked_image(s->kv, q->parked, x->tables);
    x->export = (sched_export){.request = q->entry->id,
                               .image = image,
                               .tokens = x->tokens,
                               .n_cells = (uint32_t)pkv_image_cells(&s->options.geometry, &image),
                               .n_tokens = n_tokens,
                               .pages_dropped = q->pages_dropped,
                               .budget_raised = q->budget_raised};
    return true;
}

void sched_hand_over(sched *s, sched_seq *q)
{
    sched_handing *x = q->handing;
    q->handing = NULL;
    x->state = HANDING_NEW;
    if (!q->parked || !fill_export(s, q, x)) return;
    x->parked = q->parked;
    x->kept = q->kept;
    q->parked = 0;
    q->kept = 0;
}

const sched_export *sched_next_export(sched *s)
{
    sched_handing *x = s->first_handing;
    while (x && x->state != HANDING_NEW) x = x->later;
    if (!x) return NULL;
    x->state = HANDING_OUT;
    return &x->export;
}

uint32_t sched_export_cells(const sched *s, const sched_export *x, uint32_t first, uint32_t n,
                            uint32_t *to)
{
    return pkv_list_cells(s->kv, &x->image, first, n, to);
}

static void free_handing(sched *s, sched_handing *x)
{
    *(x->earlier ? &x->earlier->later : &s->first_handing) = x->later;
    *(x->later ? &x->later->earlier : &s->last_handing) = x->earlier;
    alloc_free(&s->alloc, x->tables);
    alloc_free(&s->alloc, x->tokens);
    alloc_free(&s->alloc, x);
}

void sched_take_export(sched *s, const sched_export *export)
{
    sched_handing *x = s->first_handing;
    while (&x->export != export) x = x->later;
    assert(x->state == HANDING_OUT);
    if (x->parked) {
        sched_remove_kept(s, pkv_parked_length(s->kv, x->parked), x->kept);
        sched_discard(s, x->parked);
    }
    free_handing(s, x);
}

void sched_exports_destroy(sched *s)
{
    while (s->first_handing) free_handing(s, s->first_handing);
}

void sched_exports_count(const sched *s, uint64_t *n_tokens, uint64_t *kept)
{
    for (const sched_handing *x = s->first_handing; x; x = x->later) {
        if (!x->parked) continue;
        *n_tokens += pkv_parked_length(s->kv, x->parked);
        *kept += pkv_parked_kept(s->kv, x->parked);
    }
}

/* ---- in -------------------------------------------------------------------------------------- */

/* Whether the request's method may leave of its prompt what the image has. Admission, selections
 * and the model's context count with no more. */
static bool is_left_by_method(const sched *s, const sched_entry *e, const pkv_image *image)
{
    const sched_turn *turn = e->turns;
    const pkv_geometry *g = &s->options.geometry;
    uint32_t n = e->n_prompt, size = s->page_tokens, last = sched_points_in(turn, 0, n).last;
    bool closes_up = turn->policy.contiguous && last <= n;
    uint32_t longest =
        closes_up ? retention_bound_at(&turn->policy, g, 0, turn->n_prompt, last).longest : n;
    if (image->contiguous != (turn->policy.contiguous && image->dropped)) return false;
    bool whole_pages = sched_keeps_pages(&turn->policy);
    pkv_geometry at = pkv_geometry_at(g, image->grain);
    for (uint32_t i = 0; i < pkv_groups(&at); i++) {
        const pkv_image_table *t = &image->tables[i];
        if (t->kept > longest) return false;
        if (whole_pages && (t->slot_pages > 0 || t->kept % size != n % size)) return false;
    }
    return pkv_image_cost(s->kv, image) <= sched_peak_of(s, 0, turn, 1, 0, 0, n).even;
}

const sched_handed *sched_handed_for(const sched *s, const sched_request *r, const sched_entry *e)
{
    const sched_handed *a = r->handed;
    if (!a) return NULL;
    bool plain = r->n == 1 && !r->want_logits && !r->want_scores && !r->pooling && !r->n_embeds &&
                 !r->n_layers && !r->retrieval.block_tokens && !r->session[0] && !r->session[1] &&
                 !sched_hands_over(&r->policy);
    return plain && a->n_tokens == e->n_prompt &&
                   memcmp(a->tokens, e->seqs[0].tokens, a->n_tokens * sizeof *a->tokens) == 0 &&
                   is_left_by_method(s, e, &a->image)
               ? a
               : NULL;
}

status sched_handed_begin(sched *s, sched_seq *q)
{
    sched_entry *e = q->entry;
    uint32_t parked;
    bool may_publish = !e->handed->foreign;
    RETURN_IF_ERROR(pkv_adopt(s->kv, &e->handed->image, e->salt, e->hidden, may_publish, &parked));
    uint32_t n_cells = (uint32_t)pkv_image_cells(&s->options.geometry, &e->handed->image);
    if (!sched_load_parked(s, q, parked, n_cells)) {
        sched_discard(s, parked);
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    while (sched_load_take_some(s)) {}
    return STATUS_IS_OK;
}

/* The sequence is as one whose prompt was computed and selected in here, and that was parked. */
void sched_handed_end(sched *s, sched_seq *q, uint32_t parked, bool good)
{
    sched_entry *e = q->entry;
    const sched_handed *a = e->handed;
    e->handed = NULL;
    if (!good) {
        sched_discard(s, parked);
        return;
    }
    q->parked = parked;
    q->kept = pkv_parked_kept(s->kv, parked);
    sched_add_kept(s, e->n_prompt, q->kept);
    q->computed = q->furthest = q->selected = e->n_prompt;
    q->pages_dropped = a->pages_dropped;
    q->budget_raised = a->budget_raised;
    q->tokens[q->n_tokens++] = a->first_token;
    e->rows_sent = e->cached_tokens = e->n_prompt;
    e->forked = e->was_handed = true;
    s->stats.prompt_tokens += e->n_prompt;
    s->stats.prompt_handed_tokens += e->n_prompt;
    s->stats.generated_tokens++;
}

/* Admission: which waiting sequences start now, in which order, and how they begin. */
#include "scheduler/fits.h"
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sessions.h"

static status open_tables(sched *s, sched_seq *q, const sched_beginning *b, uint32_t slot)
{
    const sched_entry *e = q->entry;
    uint32_t expect = e->n_positions, hit_tokens;
    if (q->swap) {
        RETURN_IF_ERROR(
            pkv_swap_in_some(s->kv, q->swap, slot, q->tokens, expect, sched_portion(s)));
        sched_has_opened(s, q, slot);
        sched_add_kept(s, q->computed, q->kept);
        s->stats.swaps_in++;
        sched_left_tier(s, q);
        return STATUS_IS_OK;
    }
    if (q->parked) {
        RETURN_IF_ERROR(pkv_unpark_some(s->kv, q->parked, slot, expect, sched_portion(s)));
        sched_has_opened(s, q, slot);
        q->parked = 0;
        return STATUS_IS_OK;
    }
    uint64_t before = pkv_available(s->kv), taken;
    RETURN_IF_ERROR(pkv_seq_open_some(s->kv, slot, sched_grain_of(s, e->n_layers), q->tokens,
                                      b->max_hit, e->salt, expect, sched_portion(s), &hit_tokens));
    assert(hit_tokens <= b->computed);
    taken = before - pkv_available(s->kv);
    /* More than was counted is taken where cached cells lie unevenly in the shares. */
    uint64_t owed = b->taken > taken ? b->taken - taken : 0;
    if (hit_tokens < b->computed) sched_hit_begin(s, q, b->computed, b->max_hit, owed);
    q->computed = hit_tokens;
    if (e->n_layers) pkv_seq_fill_layers(s->kv, slot, e->n_layers);
    q->kept = hit_tokens * sched_token_kept(s, q);
    sched_add_kept(s, hit_tokens, q->kept);
    if (e->hidden) pkv_seq_hide(s->kv, slot);
    return STATUS_IS_OK;
}

/* Gives a sequence that has started its pages for blocks that are loaded, else for a chunk that is
 * computed. */
static status begin_rows(sched *s, sched_seq *q, uint32_t chunk, uint32_t max_hit)
{
    bool loads;
    RETURN_IF_ERROR(sched_load_begin(s, q, max_hit, &loads));
    if (loads) return STATUS_IS_OK;
    RETURN_IF_ERROR(sched_append(s, q, chunk));
    sched_seq_plan(s, q, chunk);
    return STATUS_IS_OK;
}

/* Takes pages for the arrival that the sequence waits for, when a slot and enough pages beside
 * those owed are there. It goes on waiting while they are filled. */
static bool try_handed(sched *s, sched_seq *q, const sched_owed *owed)
{
    sched_beginning b;
    if (s->n_free_slots == 0 || !sched_has_pages(s, q, &b, owed)) return false;
    status st = sched_handed_begin(s, q);
    if (st.code == STATUS_NO_MEMORY) sched_starve(s, q);
    if (st.code == STATUS_NO_PAGES) (void)sched_parked_give_way(s, q);
    return status_ok(st);
}

/* Starts the sequence when a slot, enough pages beside those owed, and enough tokens are there. */
static bool try_start(sched *s, sched_seq *q, const sched_owed *owed)
{
    sched_entry *e = q->entry;
    if (s->n_free_slots == 0 || (q->parked && q->parked == s->moving)) return false;

    sched_beginning b;
    if (!sched_has_pages(s, q, &b, owed)) return false;
    uint32_t computed = q->computed;
    q->computed = b.computed;
    uint32_t chunk = sched_seq_chunk(s, q), slot = s->free_slots[s->n_free_slots - 1];
    status st = status_make(STATUS_NO_PAGES, NULL);
    if (chunk > 0) st = open_tables(s, q, &b, slot);
    else s->budget = 0;   /* it lacks tokens of this step, so no sequence needs to give way */
    if (!status_ok(st)) { /* no tokens left in this step, or no memory for the lists */
        if (st.code == STATUS_NO_MEMORY) sched_starve(s, q);
        q->computed = computed;
        if (chunk > 0 && st.code == STATUS_NO_PAGES) (void)sched_parked_give_way(s, q);
        return false;
    }
    sched_list_remove(&s->waiting, q);
    sched_seq_start(s, q);
    st = q->arriving || q->hit_to ? STATUS_IS_OK : begin_rows(s, q, chunk, b.max_hit);
    /* They were counted, but not where the cached cells of a hit lie in the shares. They lie
     * unevenly only while others hold the rest, so idle sessions give way. */
    assert(st.code != STATUS_NO_PAGES || pkv_shares(&s->options.geometry) > 1);
    if (!status_ok(st)) {
        if (st.code == STATUS_NO_MEMORY) sched_starve(s, q);
        sched_replay(s, q);
        if (st.code == STATUS_NO_PAGES) (void)sched_parked_give_way(s, q);
        return false;
    }
    if (e->first_planned_us < 0 && !e->was_handed) {
        e->cached_tokens = b.hit < q->computed ? b.hit : q->computed; /* what it has taken */
        e->loaded_tokens = 0;
    }
    if (q->furthest < q->computed) q->furthest = q->computed;
    return true;
}

/* The pages that a sequence has just come to share may be those of a selection of this step. */
static void note_shared(sched *s, const sched_seq *q)
{
    if (s->if_shared == 0) return;
    uint64_t shared = sched_pages_shared(s, q).most;
    if (shared > s->if_shared) shared = s->if_shared;
    s->if_shared -= shared;
    s->lasting += shared;
}

/* ---- ageing ---------------------------------------------------------------------------------- */

/* Whether a sequence of the request waits that only better-ranked requests keep from starting or
 * computing its prompt. A running sequence whose prompt is not done waits too, because the tokens
 * of a step go to better ranks first. */
static bool can_be_passed(const sched_entry *e)
{
    if (e->rank == SCHED_AGED) return false;
    for (uint32_t i = 0; i < e->n; i++) {
        const sched_seq *q = &e->seqs[i];
        bool waits = q->state == SEQ_WAITING || (q->state == SEQ_RUNNING && seq_is_parent(q));
        if (waits && !sched_seq_is_idle(q)) return true;
    }
    return false;
}

/* The request that has waited longest. Those that arrived before it run, are idle or have aged. */
static sched_entry *longest_waiting(const sched *s)
{
    sched_entry *e = s->earliest;
    while (e && !can_be_passed(e)) e = e->later;
    return e;
}

/* Notes that a request has started. Returns whether the order changed, because the longest waiting
 * request was passed once too often. */
static bool note_pass(sched *s, const sched_entry *started)
{
    if (s->options.policy != SCHED_PRIORITY) return false;
    sched_entry *oldest = longest_waiting(s);
    if (!oldest || !sched_arrived_before(oldest, started)) return false;
    uint32_t most = s->options.max_passes ? s->options.max_passes : SCHED_MAX_PASSES;
    if (++oldest->passed < most) return false;
    sched_entry_age(s, oldest);
    return true;
}

/* Whether a sequence is being preempted, which will wait in its place. */
static bool is_preempting(const sched *s)
{
    for (uint32_t i = 0; i < s->running.n; i++)
        if (s->running.seqs[i]->leaving && !seq_is_over(s->running.seqs[i])) return true;
    return false;
}

/* Admits strictly in order: a blocked request blocks those behind it, unless it only lacks logit
 * rows, because prompts that want logits are computed slowly, or room for what the backend keeps
 * for it, which one behind it may hold: then it blocks those that need such room too. Idle
 * sequences hold slots and pages without using them: they are preempted when their readers sleep,
 * or when no other sequence would make room. */
void sched_admit(sched *s, int64_t now_us)
{
    if (s->n_leaving > 0 && is_preempting(s)) return;
    sched_owed owed = {.lasting = s->lasting, .passing = s->passing};
    uint32_t n_active = 0, i = 0;
    bool lacks_notes = false;
    for (uint32_t r = 0; s->waiting.n > 0 && r < s->running.n; r++) {
        n_active += seq_is_over(s->running.seqs[r]); /* it gives up its pages */
        if (sched_seq_is_idle(s->running.seqs[r])) continue;
        sched_owe_running(s, s->running.seqs[r], &owed);
        n_active++;
    }
    while (i < s->waiting.n && s->budget > 0) {
        sched_seq *q = s->waiting.seqs[i];
        bool lacks_note = sched_note_lacks(s, q->entry, lacks_notes);
        if (sched_seq_is_idle(q) || sched_seq_lacks_logits(s, q) || q->loading) {
            i++;
        } else if (sched_awaits_handed(q) && try_handed(s, q, &owed)) {
            i++;
        } else if (lacks_note) {
            lacks_notes = true;
            i++;
        } else if (!sched_awaits_handed(q) && try_start(s, q, &owed)) {
            uint64_t before = s->lasting;
            note_shared(s, q);
            sched_reserve(s, q);
            sched_owe(&owed, s->lasting - before, s->passing);
            sched_owe_running(s, q, &owed);
            n_active++;
            if (note_pass(s, q->entry)) i = 0; /* the aged request is first in the list now */
        } else if (s->budget > 0 && s->n_leaving == 0 && !sched_away_frees(s) &&
                   sched_preempt_idle(s, n_active == 0, now_us)) {
            i = 0; /* the preempted sequence may rank before q */
        } else {
            return;
        }
    }
}

/* Whether the pages of a sequence that waits fit: what it starts from, what it needs, and what
 * running sequences may yet need beside it. */
#include "scheduler/fits.h"
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sessions.h"

/* The most tokens of the sequence that may come from the prefix cache. At least one token is
 * computed, for its logits. The rows that are measured are computed too, and all rows that
 * depend on a selection. Rows that read by retrieval are not what others would have computed. A
 * reading runs every row itself. */
static uint32_t hit_cap(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    uint32_t cap = e->has_sums || e->n_embeds ? 0 : q->n_tokens - 1;
    for (uint32_t i = 0; i < e->n_turns; i++) {
        uint32_t limit = retention_hit_limit(&e->turns[i].policy, e->turns[i].n_prompt);
        if (limit < cap) cap = limit;
    }
    if (q->n_pressure_drops > 0 && q->pressure_drops[0] - 1 < cap) cap = q->pressure_drops[0] - 1;
    bool gives_all = e->want_logits || e->pooling == POOLING_SUM;
    if (gives_all && cap > e->rows_sent) cap = e->rows_sent;
    if (e->retrieval.block_tokens == 0) return cap;
    uint32_t limit = e->n_prompt - retrieval_observed_rows(&e->retrieval, e->n_prompt);
    if (cap > limit) cap = limit;
    return cap;
}

void sched_owe(sched_owed *sum, uint64_t lasting, uint64_t passing)
{
    sum->lasting += lasting;
    if (sum->passing < passing) sum->passing = passing;
}

void sched_owe_running(const sched *s, const sched_seq *q, sched_owed *sum)
{
    const sched_entry *e = q->entry;
    uint32_t last = rows_of(e);
    uint32_t known = seq_known(q);
    uint32_t target = known + s->page_tokens < last ? known + s->page_tokens : last;
    uint64_t held = pkv_seq_copy_cost(s->kv, q->slot), most;
    uint32_t length = pkv_seq_length(s->kv, q->slot);
    if (q->hit_to) { /* the rest of its hit takes only what others do not hold */
        held += (uint64_t)s->groups * ((q->hit_to - length) / s->page_tokens);
        length = q->hit_to;
        sum->lasting += q->hit_owed;
    }
    most = held;
    sched_peak peak = sched_peak_of(s, e->n_layers, e->turns, e->n_turns, length, held, target);
    if (length < known)
        most = sched_peak_of(s, e->n_layers, e->turns, e->n_turns, length, held, known).most;
    sum->growth += peak.most - most;
    if (seq_is_parent(q)) {
        uint32_t forks = e->live - 1 < s->n_free_slots ? e->live - 1 : s->n_free_slots;
        sum->growth += (uint64_t)s->groups * forks;
    }
    sched_owe(sum, most - held, peak.passing);
}

/* Without room to grow a newly admitted sequence would be preempted by the next page that is
 * needed. The running ones do not all need their next block at once, and meanwhile others end: a
 * small share of the pool, or one block, is enough for all of them. */
enum { GROWTH_PERCENT = 3 };

static uint64_t room_to_grow(const sched *s, const sched_owed *owed)
{
    uint64_t share = (uint64_t)s->options.n_pages * GROWTH_PERCENT / 100;
    uint64_t most = share > s->groups ? share : s->groups;
    return owed->growth < most ? owed->growth : most;
}

/* Stands for the sequence's tokens. */
static uint64_t key_of(const sched_seq *q) { return (q->entry->serial + 1) << 16 | q->choice; }

/* The pool's view of a sequence that waits; which of the three depends on where its pages
 * are. */
typedef struct pool_view {
    pkv_swap_cost cost;
    pkv_parked_pages pages;
    pkv_hit hit;
    uint32_t max_hit;
} pool_view;

static pool_view view_fresh(const sched *s, const sched_seq *q)
{
    if (q->swap) return (pool_view){.cost = pkv_swap_in_cost(s->kv, q->swap, q->tokens)};
    if (q->parked) return (pool_view){.pages = pkv_parked_look(s->kv, q->parked)};
    uint32_t cap = hit_cap(q);
    return (pool_view){.hit = pkv_lookup(s->kv, q->tokens, cap, q->entry->salt), .max_hit = cap};
}

static pool_view view_again(const sched *s, const sched_seq *q)
{
    uint64_t key = key_of(q);
    if (q->swap) return (pool_view){.cost = pkv_swap_in_cost_again(s->kv, key, q->swap, q->tokens)};
    if (q->parked) return (pool_view){.pages = pkv_parked_look_again(s->kv, q->parked)};
    uint32_t cap = hit_cap(q);
    return (pool_view){.hit = pkv_lookup_again(s->kv, key, q->tokens, cap, q->entry->salt),
                       .max_hit = cap};
}

/* A sequence that lacks pages is asked again in every step, and it may be long: from the second
 * time on the pool remembers what it found. */
static pool_view view_of(sched *s, const sched_seq *q)
{
    bool again = s->blocked == key_of(q);
    s->blocked = key_of(q);
    return again ? view_again(s, q) : view_fresh(s, q);
}

/* All pages of an arrival are fresh. */
static sched_beginning beginning_of_handed(const sched *s, const sched_seq *q)
{
    uint64_t cost = pkv_image_cost(s->kv, &q->entry->handed->image);
    return (sched_beginning){
        .computed = q->entry->n_prompt, .held = cost, .taken = cost, .taken_alone = cost};
}

static sched_beginning beginning_of_swapped(const sched_seq *q, const pkv_swap_cost *cost)
{
    uint64_t own = (uint64_t)cost->fresh + cost->cached_pages;
    return (sched_beginning){.computed = q->computed,
                             .held = cost->held_even,
                             .taken = own + cost->uneven,
                             .shared = cost->shared_even,
                             .taken_alone = own + cost->parked_pages,
                             .shared_alone = cost->held - own - cost->parked_pages};
}

static sched_beginning beginning_of_parked(const sched_seq *q, const pkv_parked_pages *pages)
{
    return (sched_beginning){.computed = q->computed,
                             .held = pages->held_even,
                             .taken = pages->filling,
                             .shared = pages->shared,
                             .taken_alone = pages->filling_open,
                             .shared_alone = pages->shared_open,
                             .alone = pages->alone_even};
}

static sched_beginning beginning_of(sched *s, const sched_seq *q)
{
    if (sched_awaits_handed(q)) return beginning_of_handed(s, q);
    pool_view view = view_of(s, q);
    if (q->swap) return beginning_of_swapped(q, &view.cost);
    if (q->parked) return beginning_of_parked(q, &view.pages);
    pkv_hit hit = view.hit;
    uint64_t held = (uint64_t)s->groups * (hit.tokens / s->page_tokens);
    return (sched_beginning){.computed = hit.tokens,
                             .hit = hit.tokens,
                             .max_hit = view.max_hit,
                             .held = held,
                             .taken = hit.cached_pages,
                             .shared = held - hit.cached_pages,
                             .taken_alone = (uint64_t)hit.cached_pages + hit.parked_pages,
                             .shared_alone = held - hit.cached_pages - hit.parked_pages};
}

/* The pages, with those owed, that a sequence needs to compute its known tokens. A retention
 * selection copies pages that other sequences hold too: its own, and those of this step when the
 * sequence comes to share what they keep. */
static uint64_t pages_needed(const sched *s, const sched_seq *q, const sched_beginning *b,
                             uint64_t taken, uint64_t shared, const sched_owed *owed)
{
    const sched_entry *e = q->entry;
    sched_peak peak =
        sched_peak_of(s, e->n_layers, e->turns, e->n_turns, b->computed, b->held, q->n_tokens);
    uint64_t need = peak.most - b->held + taken + owed->lasting + room_to_grow(s, owed);
    need += peak.passing > owed->passing ? peak.passing : owed->passing;
    if (peak.passing > 0) need += shared < peak.after ? shared : peak.after;
    return need + (shared < s->if_shared ? shared : s->if_shared);
}

static bool fits(const sched *s, const sched_seq *q, const sched_beginning *b,
                 const sched_owed *owed)
{
    return pages_needed(s, q, b, b->taken, b->shared, owed) <= pkv_available(s->kv);
}

/* Gives up parked pages for the sequence if that is enough for it. Those that open sequences, or
 * this sequence at its start, hold too do not count, because they would not come free. */
static bool make_room(sched *s, const sched_seq *q, const sched_beginning *b,
                      const sched_owed *owed)
{
    uint64_t most = pkv_available_unparked(s->kv);
    if (pages_needed(s, q, b, b->taken_alone, b->shared_alone, owed) + b->alone > most)
        return false;
    /* Pages of a sequence that is coming back count as parked, but cannot be given up. */
    return s->n_arriving == 0 && sched_parked_give_way(s, q);
}

/* The beginning of the sequence for which it needs most: others hold all of its parked pages, or no
 * swapped one is resident. *n_pages counts its pages, 0 if it is neither parked nor swapped. */
static sched_beginning beginning_at_most(const sched *s, const sched_seq *q, uint32_t *n_pages)
{
    if (q->swap) {
        pkv_swap_cost cost = pkv_swap_in_most(s->kv, q->swap);
        *n_pages = cost.held;
        return beginning_of_swapped(q, &cost);
    }
    *n_pages = 0;
    if (!q->parked) return (sched_beginning){0};
    pkv_parked_pages pages = pkv_parked_most(s->kv, q->parked);
    *n_pages = pages.held;
    return beginning_of_parked(q, &pages);
}

static pkv_seen look_on(sched *s, const sched_seq *q, sched_beginning *b)
{
    uint32_t most = sched_look_portion(s);
    pkv_swap_cost cost;
    pkv_parked_pages pages;
    pkv_seen seen = q->swap ? pkv_swap_in_cost_some(s->kv, q->swap, q->tokens, most, &cost)
                            : pkv_parked_look_some(s->kv, q->parked, most, &pages);
    if (seen != PKV_SEEN_NOTHING)
        *b = q->swap ? beginning_of_swapped(q, &cost) : beginning_of_parked(q, &pages);
    s->looks |= seen != PKV_SEEN_NOW;
    return seen;
}

/* Whether the sequence fits by the last complete look at its pages. A swapped sequence whose
 * tables come at once computes rows in the same step, and the look may be of an earlier step: its
 * pages are counted anew. */
static bool fits_as_seen(sched *s, const sched_seq *q, sched_beginning *b, const sched_owed *owed,
                         pkv_seen seen)
{
    if (!fits(s, q, b, owed)) return false;
    if (seen == PKV_SEEN_NOW || !q->swap || pkv_swap_has_portions(s->kv, q->swap, sched_portion(s)))
        return true;
    pkv_swap_cost cost = pkv_swap_in_cost(s->kv, q->swap, q->tokens);
    *b = beginning_of_swapped(q, &cost);
    return fits(s, q, b, owed);
}

/* Does what sched_has_pages does, for a long sequence that comes back, whose `b` is
 * beginning_at_most. A look at which of its pages others hold takes a time that grows with its
 * length, so the look goes in portions, and only where it decides. References change meanwhile: the
 * last complete look decides. */
static bool has_pages_long(sched *s, const sched_seq *q, sched_beginning *b, const sched_owed *owed)
{
    if (fits(s, q, b, owed)) return true;
    pkv_seen seen = look_on(s, q, b);
    if (seen != PKV_SEEN_NOTHING) {
        if (fits_as_seen(s, q, b, owed, seen)) return true;
        if (!make_room(s, q, b, owed)) return false;
        s->looks = true;
    }
    s->budget = 0; /* it may yet start, so no running sequence needs to give way */
    return false;
}

/* Whether the sequence's hit has more pages than a portion. Then *b is the beginning for which it
 * needs most: all pages of the hit are taken from the available ones, and yet others share all of
 * them. A look at the pages takes longer than one step should, so they are counted only where this
 * beginning does not fit, and the pool remembers the numbers for a sequence that waits. */
static bool hits_long(const sched *s, const sched_seq *q, sched_beginning *b)
{
    uint32_t portion = sched_portion(s);
    if (q->swap || q->parked || sched_awaits_handed(q) || s->blocked == key_of(q)) return false;
    uint32_t cap = hit_cap(q);
    if ((uint64_t)cap / s->page_tokens * s->groups <= portion) return false;
    pkv_hit hit = pkv_lookup_most(s->kv, q->tokens, cap, q->entry->salt);
    *b = (sched_beginning){.computed = hit.tokens,
                           .hit = hit.tokens,
                           .max_hit = cap,
                           .held = hit.cached_pages,
                           .taken = hit.cached_pages,
                           .shared = hit.cached_pages};
    return hit.cached_pages > portion;
}

bool sched_has_pages(sched *s, const sched_seq *q, sched_beginning *b, const sched_owed *owed)
{
    uint32_t n_pages;
    if (hits_long(s, q, b) && fits(s, q, b, owed)) return true;
    *b = beginning_at_most(s, q, &n_pages);
    if (n_pages > sched_portion(s)) return has_pages_long(s, q, b, owed);
    for (;;) {
        *b = beginning_of(s, q);
        if (fits(s, q, b, owed)) return true;
        if (!make_room(s, q, b, owed)) return false;
    }
}

const char *sched_blocked_check(const sched *s)
{
    for (uint32_t i = 0; i < s->waiting.n; i++) {
        const sched_seq *q = s->waiting.seqs[i];
        if (key_of(q) != s->blocked || (q->parked && q->parked == s->moving)) continue;
        pool_view fresh = view_fresh(s, q), again = view_again(s, q);
        if (memcmp(&fresh, &again, sizeof fresh) != 0)
            return "what the pool remembers of a waiting sequence is not so";
    }
    return NULL;
}

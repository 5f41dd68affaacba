/* Admission: whether a request can ever run, and whether it can start now. Counts physical
 * pages. */
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include <inttypes.h>
#include <stdio.h>

/* ---- whether a request can ever run ---------------------------------------------------------- */

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

/* ---- what may start now ---------------------------------------------------------------------- */

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

/* The pages set aside for running sequences before a new one starts: those they take to compute
 * their known tokens, those they may grow by beyond, and those one of their selections takes for a
 * moment. */
typedef struct pages_owed {
    uint64_t lasting, growth, passing;
} pages_owed;

static void owe(pages_owed *sum, uint64_t lasting, uint64_t passing)
{
    sum->lasting += lasting;
    if (sum->passing < passing) sum->passing = passing;
}

/* Adds what a running sequence is owed: the pages to compute all its known tokens and, as growth,
 * to begin one block more, and a block for each choice that will be forked from it into a slot. */
static void owe_running(const sched *s, const sched_seq *q, pages_owed *sum)
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
    owe(sum, most - held, peak.passing);
}

/* Without room to grow a newly admitted sequence would be preempted by the next page that is
 * needed. The running ones do not all need their next block at once, and meanwhile others end: a
 * small share of the pool, or one block, is enough for all of them. */
enum { GROWTH_PERCENT = 3 };

static uint64_t room_to_grow(const sched *s, const pages_owed *owed)
{
    uint64_t share = (uint64_t)s->options.n_pages * GROWTH_PERCENT / 100;
    uint64_t most = share > s->groups ? share : s->groups;
    return owed->growth < most ? owed->growth : most;
}

/* The state that a waiting sequence starts from: a prefix hit, the session it continues, or its
 * pages in the host tier. */
typedef struct beginning {
    uint32_t computed;
    uint32_t hit;     // tokens of `computed` that the prefix cache has
    uint32_t max_hit; // 0 where its pages are those of a session or in the host tier
    uint64_t held;    // pages of its tables, like all of these as many in each share
    uint64_t taken;   // pages that it takes at once from those available to new work
    uint64_t shared;  // pages of its tables that others hold too
    /* `taken` and `shared` if everything else that is parked is given up. */
    uint64_t taken_alone, shared_alone;
    uint64_t alone; // its own pages, if only parked sequences hold them
} beginning;

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
static beginning beginning_of_handed(const sched *s, const sched_seq *q)
{
    uint64_t cost = pkv_image_cost(s->kv, &q->entry->handed->image);
    return (beginning){
        .computed = q->entry->n_prompt, .held = cost, .taken = cost, .taken_alone = cost};
}

static beginning beginning_of_swapped(const sched_seq *q, const pkv_swap_cost *cost)
{
    uint64_t own = (uint64_t)cost->fresh + cost->cached_pages;
    return (beginning){.computed = q->computed,
                       .held = cost->held_even,
                       .taken = own + cost->uneven,
                       .shared = cost->shared_even,
                       .taken_alone = own + cost->parked_pages,
                       .shared_alone = cost->held - own - cost->parked_pages};
}

static beginning beginning_of_parked(const sched_seq *q, const pkv_parked_pages *pages)
{
    return (beginning){.computed = q->computed,
                       .held = pages->held_even,
                       .taken = pages->filling,
                       .shared = pages->shared,
                       .taken_alone = pages->filling_open,
                       .shared_alone = pages->shared_open,
                       .alone = pages->alone_even};
}

static beginning beginning_of(sched *s, const sched_seq *q)
{
    if (sched_awaits_handed(q)) return beginning_of_handed(s, q);
    pool_view view = view_of(s, q);
    if (q->swap) return beginning_of_swapped(q, &view.cost);
    if (q->parked) return beginning_of_parked(q, &view.pages);
    pkv_hit hit = view.hit;
    uint64_t held = (uint64_t)s->groups * (hit.tokens / s->page_tokens);
    return (beginning){.computed = hit.tokens,
                       .hit = hit.tokens,
                       .max_hit = view.max_hit,
                       .held = held,
                       .taken = hit.cached_pages,
                       .shared = held - hit.cached_pages,
                       .taken_alone = (uint64_t)hit.cached_pages + hit.parked_pages,
                       .shared_alone = held - hit.cached_pages - hit.parked_pages};
}

static status open_tables(sched *s, sched_seq *q, const beginning *b, uint32_t slot)
{
    const sched_entry *e = q->entry;
    uint32_t expect = e->n_positions, hit_tokens;
    if (q->swap) {
        RETURN_IF_ERROR(
            pkv_swap_in_some(s->kv, q->swap, slot, q->tokens, expect, sched_portion(s)));
        sched_has_opened(s, q, slot);
        sched_hold(s, q->computed, q->kept);
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
    sched_hold(s, hit_tokens, q->kept);
    if (e->hidden) pkv_seq_hide(s->kv, slot);
    return STATUS_IS_OK;
}

/* The pages, with those owed, that a sequence needs to compute its known tokens. A retention
 * selection copies pages that other sequences hold too: its own, and those of this step when the
 * sequence comes to share what they keep. */
static uint64_t pages_needed(const sched *s, const sched_seq *q, const beginning *b, uint64_t taken,
                             uint64_t shared, const pages_owed *owed)
{
    const sched_entry *e = q->entry;
    sched_peak peak =
        sched_peak_of(s, e->n_layers, e->turns, e->n_turns, b->computed, b->held, q->n_tokens);
    uint64_t need = peak.most - b->held + taken + owed->lasting + room_to_grow(s, owed);
    need += peak.passing > owed->passing ? peak.passing : owed->passing;
    if (peak.passing > 0) need += shared < peak.after ? shared : peak.after;
    return need + (shared < s->if_shared ? shared : s->if_shared);
}

static bool fits(const sched *s, const sched_seq *q, const beginning *b, const pages_owed *owed)
{
    return pages_needed(s, q, b, b->taken, b->shared, owed) <= pkv_available(s->kv);
}

/* Gives up parked pages for the sequence if that is enough for it. Those that open sequences, or
 * this sequence at its start, hold too do not count, because they would not come free. */
static bool make_room(sched *s, const sched_seq *q, const beginning *b, const pages_owed *owed)
{
    uint64_t most = pkv_available_unparked(s->kv);
    if (pages_needed(s, q, b, b->taken_alone, b->shared_alone, owed) + b->alone > most)
        return false;
    /* Pages of a sequence that is coming back count as parked, but cannot be given up. */
    return s->n_arriving == 0 && sched_parked_give_way(s, q);
}

/* The beginning of the sequence for which it needs most: others hold all of its parked pages, or no
 * swapped one is resident. *n_pages counts its pages, 0 if it is neither parked nor swapped. */
static beginning beginning_at_most(const sched *s, const sched_seq *q, uint32_t *n_pages)
{
    if (q->swap) {
        pkv_swap_cost cost = pkv_swap_in_most(s->kv, q->swap);
        *n_pages = cost.held;
        return beginning_of_swapped(q, &cost);
    }
    *n_pages = 0;
    if (!q->parked) return (beginning){0};
    pkv_parked_pages pages = pkv_parked_most(s->kv, q->parked);
    *n_pages = pages.held;
    return beginning_of_parked(q, &pages);
}

static pkv_seen look_on(sched *s, const sched_seq *q, beginning *b)
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
static bool fits_as_seen(sched *s, const sched_seq *q, beginning *b, const pages_owed *owed,
                         pkv_seen seen)
{
    if (!fits(s, q, b, owed)) return false;
    if (seen == PKV_SEEN_NOW || !q->swap || pkv_swap_has_portions(s->kv, q->swap, sched_portion(s)))
        return true;
    pkv_swap_cost cost = pkv_swap_in_cost(s->kv, q->swap, q->tokens);
    *b = beginning_of_swapped(q, &cost);
    return fits(s, q, b, owed);
}

/* Does what has_pages does, for a long sequence that comes back, whose `b` is beginning_at_most. A
 * look at which of its pages others hold takes a time that grows with its length, so the look goes
 * in portions, and only where it decides. References change meanwhile: the last complete look
 * decides. */
static bool has_pages_long(sched *s, const sched_seq *q, beginning *b, const pages_owed *owed)
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

/* Sets *b to the beginning for which a sequence needs most whose hit has more pages than a portion:
 * nothing of it is held, and everything. A look at these pages takes longer than one step should,
 * so they are counted only where that does not fit, and for a sequence that waits the pool
 * remembers the numbers. */
static bool hits_long(const sched *s, const sched_seq *q, beginning *b)
{
    uint32_t portion = sched_portion(s);
    if (q->swap || q->parked || sched_awaits_handed(q) || s->blocked == key_of(q)) return false;
    uint32_t cap = hit_cap(q);
    if ((uint64_t)cap / s->page_tokens * s->groups <= portion) return false;
    pkv_hit hit = pkv_lookup_most(s->kv, q->tokens, cap, q->entry->salt);
    *b = (beginning){.computed = hit.tokens,
                     .hit = hit.tokens,
                     .max_hit = cap,
                     .held = hit.cached_pages,
                     .taken = hit.cached_pages,
                     .shared = hit.cached_pages};
    return hit.cached_pages > portion;
}

/* Whether the sequence can have its pages beside those owed. Parked pages are given up for it where
 * that is enough. */
static bool has_pages(sched *s, const sched_seq *q, beginning *b, const pages_owed *owed)
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
static bool try_handed(sched *s, sched_seq *q, const pages_owed *owed)
{
    beginning b;
    if (s->n_free_slots == 0 || !has_pages(s, q, &b, owed)) return false;
    status st = sched_handed_begin(s, q);
    if (st.code == STATUS_NO_MEMORY) sched_starve(s, q);
    if (st.code == STATUS_NO_PAGES) (void)sched_parked_give_way(s, q);
    return status_ok(st);
}

/* Starts the sequence when a slot, enough pages beside those owed, and enough tokens are there. */
static bool try_start(sched *s, sched_seq *q, const pages_owed *owed)
{
    sched_entry *e = q->entry;
    if (s->n_free_slots == 0 || (q->parked && q->parked == s->moving)) return false;

    beginning b;
    if (!has_pages(s, q, &b, owed)) return false;
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
    uint64_t shared = pkv_seq_pages_shared(s->kv, q->slot, &s->looks_left).most;
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
    pages_owed owed = {.lasting = s->lasting, .passing = s->passing};
    uint32_t n_active = 0, i = 0;
    bool lacks_notes = false;
    for (uint32_t r = 0; s->waiting.n > 0 && r < s->running.n; r++) {
        n_active += seq_is_over(s->running.seqs[r]); /* it gives up its pages */
        if (sched_seq_is_idle(s->running.seqs[r])) continue;
        owe_running(s, s->running.seqs[r], &owed);
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
            owe(&owed, s->lasting - before, s->passing);
            owe_running(s, q, &owed);
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

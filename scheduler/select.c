/* Selections of retention. What a sequence keeps is a pure function of its measures and tables.
 * Where it is long work, it is handed out (sched_next_selection): the caller makes it on another
 * thread, and the other sequences go on. The sequence has no share of a step meanwhile, and neither
 * gives up nor takes a page, so its tables can be read. If it ends, its pages stay until the
 * selection is handed back, as they would for rows in flight.
 *
 *   new       made with a result; handed out after that sched_step. If the choice finishes in the
 *             same call and leaves a session, it is made at once.
 *   out       on another thread
 *   applied   selected: the tables are split as finely as they were selected in, then each of them
 *             changes, a portion in each sched_step
 *
 * Kept bits are the same wherever they are computed; only the steps differ in which they apply. */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"

/* One sched_step splits pages and changes tables of at most this many times options.hand_out_slots
 * for selections that were handed out, though always one page or table, so that long ones do not
 * hold up a step either. */
enum { APPLIED_AT_ONCE = 8 };

typedef enum selection_state { SELECTION_NEW, SELECTION_OUT, SELECTION_APPLIED } selection_state;

struct sched_selection {
    sched_seq *seq;    // NULL once it was dropped
    sched_seq *target; // while it is out: the same, dropped or not
    uint64_t request;
    selection_state state;
    sched_selection *earlier, *later; // among all
    /* The input of the selection, frozen until it was run. */
    const pkv *kv;
    uint32_t slot, n_prompt;
    const retention_policy *policy;
    measure_result measures;
    bool holds; // counted in measures.holders
    retention_selection out;
    uint32_t groups;
    _Atomic bool cancelled;
    status status;
    /* Pages that applying it may take: at most `bound` of shared ones, and some for a moment. */
    uint64_t bound, lasting, passing;
    uint64_t as_of; // pkv_shared.as_of of `lasting`
    bool pressing;  // under pressure retention
    bool forks;     // the request's choices are forked once it is applied
    /* Applying it. */
    bool begun, is_split;
    uint32_t held;  // pages before
    uint32_t table; // the next one to change
    uint32_t parts; // tables of the sequence for each that was selected in
};

static uint32_t longest_table(const sched *s, const sched_seq *q)
{
    uint32_t longest = 0, n_tables = pkv_groups(pkv_seq_geometry(s->kv, q->slot));
    for (uint32_t g = 0; g < n_tables; g++) {
        uint32_t n = pkv_seq_table(s->kv, q->slot, g).kept_tokens;
        if (n > longest) longest = n;
    }
    return longest;
}

/* ---- applying it ----------------------------------------------------------------------------- */

/* A page's part takes as long as so many slots of a table that changes: a cell, a layer's run. */
enum { CELL_SLOTS = 4, RUN_SLOTS = 8 };

/* Splits pages of the sequence until its tables are as fine as they were selected in, or the budget
 * of slots is used up. */
static status split_some(sched *s, const sched_seq *q, sched_selection *x, uint64_t *slots)
{
    uint32_t parts = x->groups / pkv_groups(pkv_seq_geometry(s->kv, q->slot));
    uint64_t of_part = x->out.grain == PKV_HEAD ? CELL_SLOTS : RUN_SLOTS;
    uint64_t of_page = of_part * parts, n = *slots / of_page;
    uint32_t pages = n == 0 ? 1 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    RETURN_IF_ERROR(pkv_seq_split_some(s->kv, q->slot, x->out.grain, &pages));
    x->is_split = pkv_seq_grain(s->kv, q->slot) >= x->out.grain;
    if (x->is_split) x->parts = pkv_groups(pkv_seq_geometry(s->kv, q->slot)) / x->groups;
    *slots -= pages * of_page < *slots ? pages * of_page : *slots;
    return STATUS_IS_OK;
}

/* Where the pool has cells for what a table gathers, but no longer in runs, the sequence goes over
 * to the finest grain, and its tables that are not done yet to a table for each part, each with the
 * selection of the whole. */
static status keep_table(sched *s, const sched_seq *q, sched_selection *x)
{
    const uint64_t *keep = x->out.keep + (size_t)(x->table / x->parts) * x->out.words;
    status st = pkv_seq_keep(s->kv, q->slot, x->table, keep, x->policy->contiguous);
    uint32_t tables = x->groups * x->parts;
    if (st.code == STATUS_NO_PAGES && tables < s->groups) {
        RETURN_IF_ERROR(pkv_seq_split(s->kv, q->slot, PKV_HEAD, 0));
        x->table *= s->groups / tables;
        x->parts *= s->groups / tables;
        return keep_table(s, q, x);
    }
    if (status_ok(st)) x->table++;
    return st;
}

/* Changes tables until the budget of slots is used up or all are done. If this fails, some tables
 * may have changed, and the sequence must be computed again. Pages were set aside, so they are
 * short only where others came to share some while a long selection was applied. Tables of a
 * contiguous sequence change together, since they have one next position. A table that keeps
 * everything costs nothing, so that whenever some are left, others have changed. */
static status change_some(sched *s, sched_seq *q, sched_selection *x, uint64_t *slots)
{
    status st = STATUS_IS_OK;
    while (x->table < x->groups * x->parts && (*slots > 0 || x->policy->contiguous)) {
        uint32_t kept = pkv_seq_table(s->kv, q->slot, x->table).kept_tokens;
        st = keep_table(s, q, x);
        if (!status_ok(st)) break;
        if (pkv_seq_table(s->kv, q->slot, x->table - 1).kept_tokens == kept) continue;
        *slots -= kept < *slots ? kept : *slots;
    }
    assert(st.code != STATUS_NO_PAGES || x->seq);
    sched_recount(s, q);
    return st;
}

/* Applies a part of the selection. */
static status apply_some(sched *s, sched_seq *q, sched_selection *x, uint64_t *slots)
{
    if (!x->begun) x->held = pkv_seq_pages_held(s->kv, q->slot);
    x->begun = true;
    if (!x->out.gives_up) return STATUS_IS_OK;
    if (!x->is_split) RETURN_IF_ERROR(split_some(s, q, x, slots));
    return x->is_split && *slots > 0 ? change_some(s, q, x, slots) : STATUS_IS_OK;
}

static bool is_applied(const sched_selection *x)
{
    return !x->out.gives_up || (x->is_split && x->table == x->groups * x->parts);
}

/* Tables that are being split are not closed: what is left would be split at once. */
static bool is_being_split(const sched_selection *x)
{
    return x->begun && x->out.gives_up && !x->is_split;
}

static void count_selection(sched *s, sched_seq *q, const sched_selection *x)
{
    if (q->computed <= q->selected) return; /* counted before the replay */
    q->selected = q->computed;
    q->pages_dropped += (x->held - pkv_seq_pages_held(s->kv, q->slot)) /
                        sched_cells_of(s, q->entry->n_layers, x->policy);
    q->budget_raised |= x->out.budget_raised;
}

/* Applies a selection as a whole. retention_select fails on a budget that sched_check refuses, so
 * not here, and on a backend that measured something else: keeping everything is right then. */
static status apply_all(sched *s, sched_seq *q, sched_selection *x)
{
    uint64_t slots = UINT64_MAX;
    if (!status_ok(x->status)) return STATUS_IS_OK;
    RETURN_IF_ERROR(apply_some(s, q, x, &slots));
    count_selection(s, q, x);
    return STATUS_IS_OK;
}

/* ---- one selection --------------------------------------------------------------------------- */

static void release_measures(sched_selection *x)
{
    if (x->holds) atomic_fetch_sub(x->measures.holders, 1);
    x->holds = false;
}

static void select_now(sched_selection *x)
{
    x->status =
        retention_select(x->policy, x->kv, x->slot, x->n_prompt, &x->measures, &x->out, NULL);
}

void sched_selection_run(sched_selection *x)
{
    select_now(x);
    release_measures(x);
}

uint64_t sched_selection_request(const sched_selection *x) { return x->request; }

/* Describes the selection; its arrays are set elsewhere. */
static sched_selection describe(const sched *s, const sched_seq *q, const retention_policy *policy,
                                uint32_t n_prompt, const measure_result *measures)
{
    pkv_grain own = pkv_seq_grain(s->kv, q->slot),
              grain = retention_grain(policy, &s->options.geometry);
    if (grain < own) grain = own;
    pkv_geometry at = pkv_geometry_at(&s->options.geometry, grain);
    sched_selection x = {.request = q->entry->id,
                         .kv = s->kv,
                         .slot = q->slot,
                         .n_prompt = n_prompt,
                         .policy = policy,
                         .measures = *measures,
                         .groups = pkv_groups(&at),
                         .parts = 1,
                         .out.grain = grain,
                         .out.words = longest_table(s, q) / 64 + 1};
    x.measures.novelty = q->novelty;
    return x;
}

/* Whether the selection is long enough for another thread, and can leave this one. A sequence that
 * is over is selected in for the session that it leaves at once. */
static bool is_worth_handing_out(const sched *s, const sched_seq *q, const sched_selection *x)
{
    if (seq_is_over(q)) return false;
    uint64_t slots = (uint64_t)x->groups * x->out.words * 64;
    return s->options.hand_out_slots > 0 && slots >= s->options.hand_out_slots &&
           (!x->measures.values || x->measures.holders);
}

static status select_here(sched *s, sched_seq *q, sched_selection *x)
{
    x->out.keep = s->keep;
    x->out.scratch = s->scratch;
    x->out.n_scratch = s->n_scratch;
    assert((size_t)x->out.words * x->groups <= s->n_keep);
    select_now(x);
    return apply_all(s, q, x);
}

/* NULL when memory is out. */
static sched_selection *make_selection(sched *s, sched_seq *q, const sched_selection *like)
{
    size_t n_keep = (size_t)like->groups * like->out.words;
    size_t n_scratch = retention_scratch_floats(&s->options.geometry, like->out.words * 64);
    sched_selection *x = alloc_resize(
        &s->alloc, NULL,
        sizeof *x + n_keep * sizeof *like->out.keep + n_scratch * sizeof *like->out.scratch, 1);
    if (!x) return NULL;
    *x = *like;
    x->seq = q;
    x->out.keep = (uint64_t *)(x + 1);
    x->out.scratch = (float *)(x->out.keep + n_keep);
    x->out.n_scratch = n_scratch;
    x->out.cancelled = &x->cancelled;
    x->holds = x->measures.values != NULL;
    if (x->holds) atomic_fetch_add(x->measures.holders, 1);
    x->earlier = s->last_selection;
    *(x->earlier ? &x->earlier->later : &s->first_selection) = x;
    s->last_selection = x;
    return x;
}

static void free_selection(sched *s, sched_selection *x)
{
    release_measures(x);
    *(x->earlier ? &x->earlier->later : &s->first_selection) = x->later;
    *(x->later ? &x->later->earlier : &s->last_selection) = x->earlier;
    alloc_free(&s->alloc, x);
}

/* The sequence no longer waits for its selection. */
static void detach(sched *s, sched_selection *x)
{
    if (!x->seq) return;
    s->n_pressing -= x->pressing;
    s->n_selecting--;
    x->seq->selecting = NULL;
    x->seq = NULL;
}

/* Pages that are shared with others cost as many copies for good. */
static void note_shared(sched *s, const sched_seq *q, sched_selection *x)
{
    if (x->bound == 0 || q->entry->has_sums) return;
    pkv_shared shared = sched_pages_shared(s, q);
    x->lasting = shared.most < x->bound ? shared.most : x->bound;
    x->as_of = shared.as_of;
}

status sched_select(sched *s, sched_seq *q, const retention_policy *policy, uint32_t n_prompt,
                    const measure_result *measures)
{
    sched_selection like = describe(s, q, policy, n_prompt, measures), *x = NULL;
    if (is_worth_handing_out(s, q, &like)) x = make_selection(s, q, &like);
    if (!x) return select_here(s, q, &like);
    if (!sched_keeps_pages(policy)) {
        uint32_t n_layers = q->entry->n_layers;
        retention_bound bound =
            retention_bound_at(policy, &s->options.geometry, n_layers, n_prompt, q->computed);
        x->bound = bound.even_pages;
        x->passing = sched_passing_of(s, n_layers, policy, bound.longest_pages);
    }
    note_shared(s, q, x);
    x->pressing = policy == &s->pressure;
    s->n_pressing += x->pressing;
    s->n_selecting++;
    q->selecting = x;
    return STATUS_IS_OK;
}

/* ---- the sequence while it is selected in ---------------------------------------------------- */

void sched_select_reserve(sched *s, const sched_seq *q)
{
    sched_selection *x = q->selecting;
    if (!x->begun) note_shared(s, q, x); /* others may have come to share some */
    /* Once it has begun, the tables that are left may need all of them. */
    sched_reserve_lasting(s, x->lasting, x->begun ? pkv_sharing_changes(s->kv) : x->as_of);
    if (s->passing < x->passing) s->passing = x->passing;
}

void sched_select_then_fork(sched_seq *parent) { parent->selecting->forks = true; }

/* Lets the sequence go on after a selection that was applied, or could not be. */
static void finish_selection(sched *s, sched_seq *q, sched_selection *x, bool invalid)
{
    bool forks = x->forks;
    detach(s, x);
    free_selection(s, x);
    if (seq_is_over(q)) s->has_ended = true; /* it waited for its tables to be split */
    else if (forks) sched_fork(s, q, invalid);
    else if (invalid) sched_replay(s, q);
}

void sched_select_settle(sched *s, sched_seq *q)
{
    sched_selection *x = q->selecting;
    if (!x || x->state != SELECTION_NEW) return;
    sched_selection_run(x);
    finish_selection(s, q, x, !status_ok(apply_all(s, q, x)));
}

void sched_select_drop(sched *s, sched_seq *q)
{
    sched_selection *x = q->selecting;
    if (!x || is_being_split(x)) return;
    detach(s, x);
    if (x->state == SELECTION_OUT) atomic_store(&x->cancelled, true);
    else free_selection(s, x);
}

/* ---- handing out and taking back ------------------------------------------------------------- */

sched_selection *sched_next_selection(sched *s)
{
    sched_selection *x = s->last_selection, *first = NULL;
    for (; x && x->state == SELECTION_NEW; x = x->earlier) first = x;
    if (!first) return NULL;
    first->state = SELECTION_OUT;
    first->target = first->seq;
    first->seq->listed++;
    first->seq->entry->listed++;
    s->stats.selections_handed_out++;
    return first;
}

void sched_cancel_selections(sched *s)
{
    for (sched_selection *x = s->first_selection; x; x = x->later)
        atomic_store(&x->cancelled, true);
}

void sched_take_selection(sched *s, sched_selection *x)
{
    assert(x->state == SELECTION_OUT);
    sched_seq *q = x->target;
    q->listed--;
    q->entry->listed--;
    s->has_ended |= s->ended_listed;
    s->ended_listed = false;
    x->state = SELECTION_APPLIED;
    if (!x->seq) free_selection(s, x);
}

void sched_apply_selections(sched *s)
{
    uint64_t slots = APPLIED_AT_ONCE * s->options.hand_out_slots;
    for (sched_selection *x = s->first_selection, *later; x && slots > 0; x = later) {
        later = x->later;
        if (x->state != SELECTION_APPLIED) continue;
        sched_seq *q = x->seq;
        status st = STATUS_IS_OK;
        if (status_ok(x->status)) {
            bool over = seq_is_over(q); /* it keeps nothing, but is closed once it is split */
            st = over ? split_some(s, q, x, &slots) : apply_some(s, q, x, &slots);
            if (status_ok(st) && (over ? is_being_split(x) : !is_applied(x))) continue;
            if (status_ok(st)) count_selection(s, q, x);
        }
        finish_selection(s, q, x, !status_ok(st));
    }
}

void sched_selections_destroy(sched *s)
{
    while (s->first_selection) {
        detach(s, s->first_selection);
        free_selection(s, s->first_selection);
    }
}

const char *sched_select_check(const sched *s)
{
    uint32_t n_selecting = 0, n_pressing = 0;
    for (const sched_selection *x = s->first_selection; x; x = x->later) {
        if (!x->seq) continue;
        const sched_seq *q = x->seq;
        n_selecting++;
        n_pressing += x->pressing;
        if (q->selecting != x || q->state != SEQ_RUNNING || q->flying > 0 ||
            (seq_is_over(q) && !is_being_split(x)))
            return "a selection is not of a sequence that waits for it";
    }
    return n_selecting == s->n_selecting && n_pressing == s->n_pressing
               ? NULL
               : "selections are miscounted";
}

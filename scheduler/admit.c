/* Admission: what may ever run, and what may start now. Counted in physical pages. */
#include "scheduler/sched_internal.h"
#include <inttypes.h>
#include <stdio.h>

/* ---- whether a request can ever run ---------------------------------------------------------- */

/* "1,250" */
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

/* Pages at the worst moment of a life that has the pool for itself. At the prompt's end it is whole
 * in every group; then come the `kept` pages that stay, the full ones shared by all choices, and
 * for each choice a tail of its own: the last partial page and what is generated. (The last token's
 * K and V are never computed.) */
static uint64_t peak_of(const sched *s, const sched_request *r, uint64_t kept)
{
    uint64_t groups = s->groups, prompt = pages_of(s, r->n_prompt), size = s->page_tokens;
    uint64_t fill = r->n_prompt % size, tail = (fill + r->max_new_tokens - 1 + size - 1) / size;
    uint64_t tails = r->max_new_tokens > 1 ? r->n * tail : tail;
    uint64_t after = (kept - (fill > 0) + tails) * groups;
    return after > prompt * groups ? after : prompt * groups;
}

status sched_check(const sched *s, const sched_request *r, error *err)
{
    char a[27], b[27];
    if (r->n_prompt == 0) return error_set(err, STATUS_INVALID, "prompt: has no tokens");
    if (r->max_new_tokens == 0)
        return error_set(err, STATUS_INVALID, "max_tokens: must be at least 1");
    if ((uint64_t)r->n_prompt + r->max_new_tokens > s->options.max_model_len) {
        return error_set(err, STATUS_LIMIT,
                         "prompt: %" PRIu32 " tokens and max_tokens %" PRIu32 " make %" PRIu64
                         "; the maximum context length is %" PRIu32,
                         r->n_prompt, r->max_new_tokens, (uint64_t)r->n_prompt + r->max_new_tokens,
                         s->options.max_model_len);
    }
    if (r->n == 0 || r->n > s->options.max_seqs) {
        return error_set(err, STATUS_INVALID, "n: %" PRIu32 " is not in [1, %" PRIu32 "]", r->n,
                         s->options.max_seqs);
    }
    measure_spec measure = retention_measure(&r->policy);
    if (measure.kind != MEASURE_NONE && measure.rows > s->options.prefill_chunk) {
        return error_set(err, STATUS_INVALID,
                         "retention.window: %" PRIu32
                         " rows do not fit in a prefill chunk of %" PRIu32,
                         measure.rows, s->options.prefill_chunk);
    }
    uint32_t rows = s->options.max_logit_rows;
    if (r->want_logits && rows && measure.kind != MEASURE_NONE && measure.rows > rows) {
        return error_set(err, STATUS_INVALID,
                         "prompt_logprobs: a step gives the logits of %" PRIu32
                         " rows, retention.window measures %" PRIu32 " at once",
                         rows, measure.rows);
    }
    uint64_t kept = pages_of(s, r->n_prompt);
    if (retention_next_point(&r->policy, r->n_prompt, 0) == r->n_prompt) {
        retention_budget budget;
        RETURN_IF_ERROR(
            retention_budget_for(&r->policy, s->page_tokens, r->n_prompt, &budget, err));
        kept = budget.kept_pages;
    }
    uint64_t peak = peak_of(s, r, kept);
    if (peak >= s->options.n_pages) {
        return error_set(err, STATUS_LIMIT,
                         "prompt: %" PRIu32 " tokens and max_tokens %" PRIu32
                         " need %s KV pages, the pool has %s: shorten them, or give the KV cache "
                         "more memory",
                         r->n_prompt, r->max_new_tokens, grouped(a, peak),
                         grouped(b, s->options.n_pages - 1));
    }
    return STATUS_IS_OK;
}

/* ---- what may start now ---------------------------------------------------------------------- */

/* Most tokens of the sequence that may come from the prefix cache. One token is always computed,
 * for its logits; so are the rows that the first choice of retention measures, and all that depends
 * on a drop. */
static uint32_t hit_cap(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    uint32_t cap = q->n_tokens - 1, d = 0;
    while (d < q->n_drops && q->drops[d].pages_dropped == 0) d++;
    uint32_t point = d < q->n_drops ? q->drops[d].length
                                    : retention_next_point(&e->policy, e->n_prompt,
                                                           d > 0 ? q->drops[d - 1].length : 0);
    if (point != UINT32_MAX) {
        uint32_t rows = e->measure.rows > 0 ? e->measure.rows : 1;
        uint32_t before = point > rows ? point - rows : 0;
        if (before < cap) cap = before;
    }
    if (e->want_logits && cap > e->logits_sent) cap = e->logits_sent;
    return cap;
}

/* The most pages a sequence holds until its tables reach `target` tokens, when they hold `held` now
 * at logical length `from` and its recorded drops from `next_drop` on are still ahead. */
static uint64_t pages_until(const sched *s, const sched_seq *q, uint32_t next_drop, uint32_t from,
                            uint64_t held, uint32_t target)
{
    uint64_t most = held;
    for (uint32_t d = next_drop; d < q->n_drops; d++) {
        const drop_record *drop = &q->drops[d];
        held += (uint64_t)s->groups * (pages_of(s, drop->length) - pages_of(s, from));
        if (held > most) most = held;
        held = drop->pages_kept;
        from = drop->length;
    }
    held += (uint64_t)s->groups * (pages_of(s, target) - pages_of(s, from));
    return held > most ? held : most;
}

/* What a running sequence is owed before anybody new starts: the pages to compute all its known
 * tokens and to begin one block more, and one block for each choice still to be forked from it.
 * Without that margin whoever is admitted would be preempted by the next page that is needed. */
static uint64_t pages_owed(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    uint32_t last = e->n_prompt + e->max_new_tokens - 1; /* rows it will ever compute */
    uint32_t target = q->n_tokens + s->page_tokens < last ? q->n_tokens + s->page_tokens : last;
    uint64_t held = pkv_seq_pages_held(s->kv, q->slot);
    uint64_t owed =
        pages_until(s, q, q->next_drop, pkv_seq_length(s->kv, q->slot), held, target) - held;
    if (seq_is_carrier(q)) owed += (uint64_t)s->groups * (e->live - 1);
    return owed;
}

static uint32_t first_drop_after(const sched_seq *q, uint32_t length)
{
    uint32_t d = 0;
    while (d < q->n_drops && q->drops[d].length <= length) d++;
    return d;
}

/* What a waiting sequence starts with: a prefix hit, or what it left in the host tier. */
typedef struct beginning {
    uint32_t computed, next_drop;
    uint32_t max_hit;
    uint64_t held;  // pages of its tables
    uint64_t taken; // of those that new work can have
} beginning;

static beginning beginning_of(const sched *s, const sched_seq *q)
{
    if (q->swap) {
        pkv_swap_cost cost = pkv_swap_in_cost(s->kv, q->swap, q->tokens);
        return (beginning){.computed = q->computed,
                           .next_drop = q->next_drop,
                           .held = cost.held,
                           .taken = (uint64_t)cost.fresh + cost.cached_pages};
    }
    uint32_t cap = hit_cap(q);
    pkv_hit hit = pkv_lookup(s->kv, q->tokens, cap, q->entry->salt);
    return (beginning){.computed = hit.tokens,
                       .next_drop = first_drop_after(q, hit.tokens),
                       .max_hit = cap,
                       .held = (uint64_t)s->groups * (hit.tokens / s->page_tokens),
                       .taken = hit.cached_pages};
}

static status open_tables(sched *s, sched_seq *q, const beginning *b, uint32_t slot)
{
    const sched_entry *e = q->entry;
    uint32_t expect = e->n_prompt + e->max_new_tokens, hit_tokens;
    if (q->swap) {
        RETURN_IF_ERROR(pkv_swap_in(s->kv, q->swap, slot, q->tokens, expect));
        s->stats.swaps_in++;
        sched_left_tier(s, q);
        return STATUS_IS_OK;
    }
    RETURN_IF_ERROR(pkv_seq_open(s->kv, slot, q->tokens, b->max_hit, e->salt, expect, &hit_tokens));
    assert(hit_tokens == b->computed);
    return STATUS_IS_OK;
}

/* Starts the sequence when slots, pages beside those owed, and tokens suffice. */
static bool start(sched *s, sched_seq *q, uint32_t budget, uint64_t owed)
{
    sched_entry *e = q->entry;
    uint32_t slots = seq_is_carrier(q) ? e->n : 1;
    if (s->n_free_slots < s->reserved_slots + slots) return false;

    beginning b = beginning_of(s, q);
    uint64_t need = pages_until(s, q, b.next_drop, b.computed, b.held, q->n_tokens) - b.held;
    if (need + b.taken + owed > pkv_available(s->kv)) return false;

    uint32_t computed = q->computed, next_drop = q->next_drop;
    q->computed = b.computed;
    q->next_drop = b.next_drop;
    uint32_t chunk = sched_seq_chunk(s, q, budget), slot = s->free_slots[s->n_free_slots - 1];
    status st = status_make(STATUS_NO_PAGES, NULL);
    if (chunk > 0) st = open_tables(s, q, &b, slot);
    if (!status_ok(st)) { /* no tokens left in this step, or no memory for its lists */
        q->computed = computed;
        q->next_drop = next_drop;
        return false;
    }
    sched_list_remove(&s->waiting, q);
    sched_seq_start(s, q);
    st = pkv_seq_append(s->kv, slot, chunk);
    assert(st.code != STATUS_NO_PAGES); /* they were counted */
    if (!status_ok(st)) {
        sched_replay(s, q);
        return false;
    }
    sched_seq_plan(s, q, chunk);
    if (e->first_planned_us < 0) e->cached_tokens = b.computed;
    if (q->furthest < b.computed) q->furthest = b.computed;
    return true;
}

/* Strictly in order: whoever cannot start yet lets nobody pass, but for those who wait for logits
 * alone: prompts that want them are computed slowly. Idle sequences hold slots and pages
 * for nothing: they give way when their readers sleep, or when nobody else would make room. */
void sched_admit(sched *s, uint32_t budget, int64_t now_us)
{
    uint64_t owed = 0;
    uint32_t n_active = 0, i = 0;
    for (uint32_t r = 0; s->waiting.n > 0 && r < s->running.n; r++) {
        if (sched_seq_is_idle(s->running.seqs[r])) continue;
        owed += pages_owed(s, s->running.seqs[r]);
        n_active++;
    }
    while (i < s->waiting.n && budget > 0) {
        sched_seq *q = s->waiting.seqs[i];
        if (sched_seq_is_idle(q) || sched_seq_lacks_logits(s, q)) {
            i++;
        } else if (start(s, q, budget, owed)) {
            budget -= q->planned;
            owed += pages_owed(s, q);
            n_active++;
        } else if (sched_preempt_idle(s, n_active == 0, now_us)) {
            i = 0; /* it waits in front of q or behind */
        } else {
            return;
        }
    }
}

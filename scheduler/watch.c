/* Rows that are measured because people watch their sequence (sched_watch): where the attention
 * of a row that draws a token goes. The measure is beside what the row computes, so it changes no
 * token, and no selection of retention reads it.
 *
 * A policy may measure the row too. Where that is the same, it is used; where it is another, the
 * mass is asked for beside it. */
#include "scheduler/sched_internal.h"

/* The most values of a measure; layers are left out beyond that. What one of them takes here to be
 * added up is taken to be at most WATCH_VALUE_NS, which is many times what it takes. */
enum { WATCH_VALUES_MOST = 1 << 20, WATCH_VALUE_NS = 5 };

const sched_seq *sched_seen_choice(const sched_entry *e)
{
    const sched_seq *q = e->seqs;
    while (e->forked && q->ended) q++;
    return q;
}

void sched_watch(sched *s, uint64_t request)
{
    sched_entry *e = sched_entry_find(s, request);
    if (!e || e->live == 0 || e->watched || sched_seen_choice(e)->state != SEQ_RUNNING) return;
    if (!e->masses) e->masses = alloc_zeroed(&s->alloc, 1, sizeof *e->masses);
    if (!e->masses) return; /* without memory the map shows no masses */
    e->watched = ++s->n_watches;
    s->n_watched++;
}

void sched_watch_end(sched *s, sched_entry *e)
{
    s->n_watched -= e->watched > 0;
    e->watched = 0;
}

static uint64_t values_of(const sched *s, uint32_t step, uint32_t pages)
{
    return (uint64_t)measure_layers(&s->options.geometry, step) * s->options.geometry.n_kv_heads *
           pages;
}

/* The mass of the last row alone, which the policy measures. */
static bool is_row_mass(const step_seq *share)
{
    const measure_spec *m = &share->measure;
    return m->kind == MEASURE_MASS && m->sum == MEASURE_SUM_STEP &&
           (m->rows == 1 || share->n_tokens == 1);
}

/* Adds the mass of the last row to what the share measures. The bits of what it takes; 0: it is
 * too much. */
static uint32_t add_mass(const sched *s, const sched_seq *q, step_seq *share)
{
    measure_spec *m = &share->measure;
    uint32_t pages = pkv_seq_most_pages(s->kv, q->slot), step = 1;
    if (is_row_mass(share)) return 1u << MEASURE_MASS;
    if (m->kind != MEASURE_NONE) {
        m->beside = m->by_slot;
        if (!m->beside) return 0;
        return values_of(s, m->layer_step, pages) <= WATCH_VALUES_MOST ? MEASURES_BESIDE : 0;
    }
    while (values_of(s, step, pages) > WATCH_VALUES_MOST && step < s->options.geometry.n_layers)
        step++;
    *m = (measure_spec){.kind = MEASURE_MASS, .rows = 1, .layer_step = step};
    return 1u << MEASURE_MASS | (q->entry->retrieval.block_tokens ? MEASURES_READS : 0);
}

/* The share of the watched request that has waited longest, of those that draw now; n_seqs: none
 * does. */
static uint32_t longest_watched(const sched_work *w)
{
    uint64_t first = UINT64_MAX;
    uint32_t share = w->plan.n_seqs;
    for (uint32_t i = 0; i < w->plan.n_seqs; i++) {
        const sched_entry *e = w->planned[i]->entry;
        if (e->watched == 0 || e->watched >= first || w->seqs[i].n_samples == 0 ||
            w->seqs[i].measure.novelty || w->planned[i] != sched_seen_choice(e))
            continue;
        first = e->watched;
        share = i;
    }
    return share;
}

void sched_watch_plan(sched *s, sched_work *w)
{
    w->watch = WATCH_NONE;
    if (s->n_watched == 0 || s->now_us < s->watch_us) return;
    w->watch_share = longest_watched(w);
    if (w->watch_share == w->plan.n_seqs) return;
    step_seq *share = &w->seqs[w->watch_share];
    sched_seq *q = w->planned[w->watch_share];
    measure_spec policy = share->measure;
    uint32_t bits = add_mass(s, q, share);
    sched_watch_end(s, q->entry);
    q->entry->unmeasured = bits & s->options.lacks;
    if (bits == 0 || q->entry->unmeasured) {
        share->measure = policy;
        return;
    }
    uint64_t values = values_of(s, share->measure.layer_step, pkv_seq_most_pages(s->kv, q->slot));
    if (share->measure.by_slot && !share->measure.beside) values *= s->page_tokens;
    s->watch_us = s->now_us + (int64_t)(values * WATCH_VALUE_NS * SCHED_WATCH_SHARE / 1000);
    w->watch = policy.kind == MEASURE_NONE ? WATCH_ALONE : WATCH_SAME;
}

bool sched_measured_for_map(const sched *s, uint32_t share)
{
    assert(s->n_in_flight > 0);
    const sched_work *w = &s->works[s->first];
    return w->watch == WATCH_ALONE && w->watch_share == share;
}

/* The array of values that has the row's mass. */
static const float *mass_of(const sched *s, const measure_spec *spec, const measure_result *r)
{
    if (!spec->beside) return r->values;
    uint32_t before = spec->silent ? 0 : spec->second == MEASURE_NONE ? 1 : 2;
    size_t floats = (size_t)measure_layers(&s->options.geometry, spec->layer_step) *
                    s->options.geometry.n_kv_heads * r->stride;
    return r->values + before * floats;
}

void sched_watch_take(const sched *s, sched_seq *q, const step_seq *share, const measure_result *r)
{
    sched_entry *e = q->entry;
    const measure_spec *spec = &share->measure;
    uint32_t kv_heads = s->options.geometry.n_kv_heads, length = pkv_seq_length(s->kv, q->slot);
    if (!r->values || r->n_kv_heads != kv_heads ||
        r->n_layers != measure_layers(&s->options.geometry, spec->layer_step))
        return;
    const pkv_masses masses = {.values = mass_of(s, spec, r),
                               .layer_step = spec->layer_step,
                               .stride = r->stride,
                               .by_slot = !spec->beside && spec->by_slot,
                               .whole = (float)kv_heads * (float)r->q_heads,
                               .behind = length - q->computed};
    pkv_seq_map_masses(s->kv, q->slot, &masses, e->masses);
    e->masses_at = q->computed - 1;
    e->measured = true;
}

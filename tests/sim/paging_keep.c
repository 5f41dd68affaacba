/* Operations that give up slots, and what the model expects of them. */
#include "tests/sim/paging.h"

enum { KEEP_WORDS = LEN_MAX / 64 + 1 };

void taint(sim *s, model_seq *m)
{
    m->dropped = true;
    m->tail = hash_mix64(m->tail + ++s->taint);
}

static void drop_in_model(const sim *s, model_seq *m, uint32_t g, const uint64_t *keep)
{
    uint32_t left = 0;
    for (uint32_t t = 0; t < m->n_kept[g]; t++) {
        uint32_t page = t / s->page_tokens;
        if (keep[page / 64] >> page % 64 & 1) m->kept[g][left++] = m->kept[g][t];
    }
    m->n_kept[g] = left;
}

static void drop_table(sim *s, uint32_t id, uint32_t table)
{
    model_seq *m = &s->seqs[id];
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    uint64_t keep[(PAGES_OF_TABLE + 63) / 64 + 1] = {0};
    uint32_t n_drop = 0, kept_pages = 1 + rng_below(&s->random, 8);
    for (uint32_t i = 0; i < pkv_seq_table(s->kv, id, table).n_pages; i++) {
        bool stays = rng_below(&s->random, 8) < kept_pages;
        if (stays) keep[i / 64] |= UINT64_C(1) << i % 64;
        n_drop += !stays;
    }
    pkv_seq_drop(s->kv, id, table, keep);
    uint32_t first = first_group(s, grain, table), n_groups = groups_in(s, grain);
    for (uint32_t g = first; g < first + n_groups; g++) drop_in_model(s, m, g, keep);
    s->pages_dropped += (uint64_t)n_drop * n_groups;
    if (n_drop > 0 && !m->dropped) taint(s, m);
}

void op_drop(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open || m->repositions) return;
    for (uint32_t t = 0; t < n_tables(s, pkv_seq_grain(s->kv, id)); t++) {
        if (rng_below(&s->random, 3) == 0) continue;
        drop_table(s, id, t);
        if (rng_below(&s->random, 4) == 0) drop_table(s, id, t);
    }
    if (m->dropped) taint(s, m);
    s->done[DONE_DROP]++;
}

/* Whether the pool has n runs of the grain; counts when it only has as many cells. */
static bool has_runs(sim *s, pkv_grain grain, uint32_t n)
{
    bool enough = n <= model_runs(s, grain);
    s->done[DONE_NO_RUNS] += !enough && n * groups_in(s, grain) <= pkv_available(s->kv);
    return enough;
}

void op_compact(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open || m->repositions) return;
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    uint32_t table = rng_below(&s->random, n_tables(s, grain)), keep[LEN_MAX], n = 0;
    uint32_t first = first_group(s, grain, table), end = first + groups_in(s, grain);
    uint32_t share = rng_below(&s->random, 9);
    for (uint32_t i = 0; i < m->n_kept[first]; i++) {
        if (rng_below(&s->random, 8) < share) keep[n++] = i;
    }
    uint32_t fresh = (n + s->page_tokens - 1) / s->page_tokens;
    uint32_t old = pkv_seq_table(s->kv, id, table).n_pages;
    uint64_t before = pkv_checksum(s->kv);
    bool enough = has_runs(s, grain, fresh);
    if (!went(s, pkv_seq_compact(s->kv, id, table, keep, n), enough, before)) return;
    for (uint32_t g = first; g < end; g++) {
        for (uint32_t i = 0; i < n; i++) m->kept[g][i] = m->kept[g][keep[i]];
        m->n_kept[g] = n;
        m->compacted[g] = true;
    }
    s->pages_dropped += (uint64_t)(old - fresh) * (end - first);
    taint(s, m);
    s->done[DONE_COMPACT]++;
}

/* ---- pkv_seq_keep ---------------------------------------------------------------------------- */

static bool bit(const uint64_t *keep, uint32_t i) { return keep[i / 64] >> i % 64 & 1; }
static void clear(uint64_t *keep, uint32_t i) { keep[i / 64] &= ~(UINT64_C(1) << i % 64); }

/* Selects some of n slots, in the patterns that methods select. Bits from n on are random: paged_kv
 * must ignore them. */
static void select_slots(sim *s, uint32_t n, uint64_t *keep)
{
    uint32_t size = s->page_tokens, way = rng_below(&s->random, 7);
    uint32_t some = 1 + rng_below(&s->random, size), share = rng_below(&s->random, 9);
    for (uint32_t i = 0; i < KEEP_WORDS; i++) keep[i] = ~UINT64_C(0);
    for (uint32_t i = n; i < KEEP_WORDS * 64; i++) {
        if (rng_below(&s->random, 2)) clear(keep, i);
    }
    if (n == 0 || way == 0) return;
    if (way < 3) { /* drops a few slots */
        if (way == 1) some = 1 + some % 3;
        while (some-- > 0) clear(keep, rng_below(&s->random, n));
    } else if (way == 3) { /* drops the last slots */
        for (uint32_t i = n - (some < n ? some : n); i < n; i++) clear(keep, i);
    } else if (way == 4) { /* drops whole pages */
        for (uint32_t i = 0; i < n; i += size) {
            if (rng_below(&s->random, 8) < share) continue;
            for (uint32_t k = i; k < i + size && k < n; k++) clear(keep, k);
        }
    } else {
        for (uint32_t i = 0; i < n; i++) {
            if (rng_below(&s->random, 8) >= share) clear(keep, i);
        }
    }
}

/* Selects exactly `left` of n slots. */
static void select_exactly(sim *s, uint32_t n, uint32_t left, uint64_t *keep)
{
    memset(keep, 0xff, KEEP_WORDS * sizeof *keep);
    for (uint32_t i = 0, rest = n; i < n; i++, rest--) {
        if (rng_below(&s->random, rest) < left) left--;
        else clear(keep, i);
    }
}

static bool is_whole_pages(const sim *s, uint32_t n, const uint64_t *keep)
{
    for (uint32_t i = 0; i < n; i++) {
        if (bit(keep, i) != bit(keep, i - i % s->page_tokens)) return false;
    }
    return true;
}

/* Fresh pages that filling holes takes: one for each page left that is written, now or by the next
 * token, and is not the sequence's alone. */
static uint32_t fill_cost(const sim *s, uint32_t id, uint32_t g, const uint64_t *keep,
                          uint32_t left)
{
    uint32_t cost = 0;
    for (uint32_t i = 0; i * s->page_tokens < left; i++) {
        uint32_t end = (i + 1) * s->page_tokens;
        bool written = left < end;
        for (uint32_t slot = end - s->page_tokens; slot < end && slot < left; slot++)
            written |= !bit(keep, slot);
        cost += written && model_is_common(s, id, g, i);
    }
    return cost;
}

static void keep_in_model(model_seq *m, uint32_t g, const uint64_t *keep, uint32_t left, bool fill)
{
    uint16_t *slots = m->kept[g];
    uint32_t n = m->n_kept[g], to = 0;
    for (uint32_t from = fill ? left : 0; from < n; from++) {
        if (!bit(keep, from)) continue;
        while (fill && bit(keep, to)) to++;
        slots[to++] = slots[from];
    }
    m->n_kept[g] = left;
}

/* False when the selection was refused. */
static bool keep_table(sim *s, uint32_t id, uint32_t table, const uint64_t *keep)
{
    model_seq *m = &s->seqs[id];
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    uint32_t first = first_group(s, grain, table), end = first + groups_in(s, grain);
    uint32_t n = m->n_kept[first], left = 0, size = s->page_tokens, cost = 0;
    for (uint32_t i = 0; i < n; i++) left += bit(keep, i);
    done_kind how = DONE_KEEP_GATHERED;
    if (m->repositions) how = DONE_KEEP_CONTIGUOUS;
    else if (is_whole_pages(s, n, keep)) how = DONE_KEEP_PAGES;
    else if (n - left <= size) how = DONE_KEEP_FILLED;
    if (how == DONE_KEEP_FILLED) cost = fill_cost(s, id, first, keep, left);
    else if (how != DONE_KEEP_PAGES && left < n) cost = (left + size - 1) / size;
    uint64_t before = pkv_checksum(s->kv);
    bool enough = cost == 0 || has_runs(s, grain, cost);
    uint32_t old = pkv_seq_table(s->kv, id, table).n_pages;
    if (!went(s, pkv_seq_keep(s->kv, id, table, keep, m->repositions), enough, before))
        return false;
    if (left == n) return true;
    for (uint32_t g = first; g < end; g++) {
        keep_in_model(m, g, keep, left, how == DONE_KEEP_FILLED);
        m->compacted[g] |= how != DONE_KEEP_PAGES;
    }
    m->contiguous = m->repositions;
    s->pages_dropped += (uint64_t)(old - (left + size - 1) / size) * (end - first);
    s->done[how]++;
    s->done[DONE_KEEP_COPIED] += how == DONE_KEEP_FILLED && cost > 0;
    taint(s, m);
    return true;
}

void op_keep(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open || m->computed < m->length) return;
    uint64_t keep[KEEP_WORDS];
    uint32_t left = m->n_kept[0] > 0 ? 1 + rng_below(&s->random, m->n_kept[0]) : 0;
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    for (uint32_t t = 0; t < n_tables(s, grain); t++) {
        uint32_t n = m->n_kept[first_group(s, grain, t)];
        if (m->repositions) select_exactly(s, n, left, keep);
        else select_slots(s, n, keep);
        if (keep_table(s, id, t, keep) || !m->repositions) continue;
        /* Its tables now keep unequal numbers of slots, with which the sequence cannot continue. */
        if (t > 0) {
            pkv_seq_close(s->kv, id);
            m->open = false;
        }
        return;
    }
}

void op_unshare(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open) return;
    uint32_t cost = 0;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t n = view_of(s, id, g).n_pages;
        for (uint32_t i = 0; i < n; i++) cost += model_is_common(s, id, g, i);
    }
    uint64_t before = pkv_checksum(s->kv);
    bool enough = cost <= pkv_available(s->kv);
    if (!went(s, pkv_seq_unshare(s->kv, id), enough, before)) return;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t n = view_of(s, id, g).n_pages;
        for (uint32_t i = 0; i < n; i++) CHECK(s, !model_is_common(s, id, g, i));
    }
    m->unshared = true;
    m->arriving |= cost > 0;
    s->done[DONE_UNSHARE] += cost > 0;
}

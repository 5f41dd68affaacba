/* One table: its protected slots, and a key for every other unit. */
#include "paged_kv/retention/select.h"
#include <string.h>

static uint32_t position_of(const contest *t, uint32_t slot)
{
    return t->positions ? t->positions[slot] : slot;
}

/* The `at`-th slot in the order of positions. */
static uint32_t slot_at(const contest *t, uint32_t at) { return t->order ? t->order[at] : at; }

static bool in_window(const selector *c, uint32_t position) { return position >= c->window_from; }

static bool is_protected(const selector *c, uint32_t position)
{
    return c->protects && (position < c->sinks || in_window(c, position));
}

void keep_range(uint64_t *keep, uint32_t from, uint32_t to)
{
    while (from < to) {
        uint32_t word = from / 64, end = smaller(to, (word + 1) * 64);
        uint64_t bits = end - from == 64 ? UINT64_MAX : (UINT64_C(1) << (end - from)) - 1;
        keep[word] |= bits << from % 64;
        from = end;
    }
}

static uint32_t unit_end(const contest *t, uint32_t unit)
{
    return smaller(t->n, (unit + 1) * t->size);
}

/* ---- protected slots ------------------------------------------------------------------------- */

/* Whether a page holds a protected slot, or has room for the next token. */
static bool page_is_protected(const selector *c, const contest *t, uint32_t page)
{
    uint32_t from = page * t->size, to = unit_end(t, page);
    if (to - from < t->size) return true;
    if (!t->positions) return c->protects && (from < c->sinks || to > c->window_from);
    for (uint32_t i = from; i < to; i++) {
        if (is_protected(c, t->positions[i])) return true;
    }
    return false;
}

void contest_open(const selector *c, contest *t)
{
    t->n = table_kept(c, t->group);
    t->positions = t->n == c->len ? NULL : c->positions;
    t->size = t->unit == RETENTION_UNIT_PAGE    ? c->geometry->page_tokens
              : t->unit == RETENTION_UNIT_CHUNK ? c->policy->chunk
                                                : 1;
    t->n_units = runs_of(t->n, t->size);
    t->order = NULL;
    t->keep = c->out->keep + (size_t)t->group * c->out->words;
}

/* Sorts slots by their positions, a radix sort from the lowest byte on. Positions are distinct. */
static void sort_slots(const uint32_t *positions, uint32_t n, uint32_t *other, uint32_t *order)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < n; i++) {
        highest = larger(highest, positions[i]);
        order[i] = i;
    }
    uint32_t *from = order, *to = other;
    for (int shift = 0; shift < 32 && highest >> shift > 0; shift += 8) {
        uint32_t starts[257] = {0};
        for (uint32_t i = 0; i < n; i++) starts[(positions[i] >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++) starts[b + 1] += starts[b];
        for (uint32_t i = 0; i < n; i++) to[starts[positions[from[i]] >> shift & 255]++] = from[i];
        uint32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order) memcpy(order, from, n * sizeof *order);
}

/* Small selections fill holes from the table's end (keep.c), so a token's slot depends on the page
 * size. Which tokens are neighbours must not: so slots are ordered by position. */
static void contest_order(selector *c, contest *t)
{
    bool ascending = true;
    t->order = NULL;
    if (!t->positions) return;
    for (uint32_t i = 0; i < t->n; i++) {
        c->positions[i] = table_position(c, t->group, i);
        ascending &= i == 0 || c->positions[i] > c->positions[i - 1];
    }
    if (ascending) return;
    sort_slots(c->positions, t->n, (uint32_t *)c->more, c->order);
    t->order = c->order;
}

static void protect_pages(const selector *c, contest *t)
{
    for (uint32_t i = 0; i < t->n_units; i++) {
        if (!page_is_protected(c, t, i)) continue;
        keep_range(t->keep, i * t->size, unit_end(t, i));
        t->fixed++;
    }
}

static void protect_slots(const selector *c, contest *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (!is_protected(c, position_of(t, i))) continue;
        keep_range(t->keep, i, i + 1);
        t->fixed++;
    }
}

void contest_protect(selector *c, contest *t)
{
    contest_order(c, t);
    t->fixed = 0;
    if (t->unit == RETENTION_UNIT_PAGE) protect_pages(c, t);
    else protect_slots(c, t);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Smooths the scores of the slots outside the window along their positions. */
static void smooth(const selector *c, const contest *t, float *scores)
{
    const retention_pool_row *pool = &retention_pools[t->pool];
    if (!pool->pool) return;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t slot = slot_at(t, i);
        if (!in_window(c, position_of(t, slot))) c->more[n++] = scores[slot];
    }
    pool->pool(c->more, n, c->policy->kernel, c->pooled);
    n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t slot = slot_at(t, i);
        if (!in_window(c, position_of(t, slot))) scores[slot] = c->pooled[n++];
    }
}

static const float *measured_scores(const selector *c, const contest *t, uint32_t kind,
                                    uint32_t head)
{
    const measure_result *m = c->measures;
    if (!m || !m->values) return NULL;
    return m->values +
           ((kind * (size_t)m->n_layers + t->layer_index) * m->n_kv_heads + head) * m->stride;
}

/* Scores one KV head, smoothed, into c->scores. */
static void score_head(selector *c, const contest *t, uint32_t head)
{
    const retention_phase *phase = &c->phase;
    retention_score_fn score = phase->variant->score ? phase->variant->score : phase->score->score;
    score_input in = {
        .first = phase->kind != MEASURE_NONE ? measured_scores(c, t, 0, head) : NULL,
        .second = phase->score->second != MEASURE_NONE ? measured_scores(c, t, 1, head) : NULL,
        .novelty = c->measures ? c->measures->novelty : NULL,
        .positions = t->positions,
        .n = c->by_slot ? t->n : t->n_units,
        .rows = c->rows,
        .q_heads = c->q_heads,
    };
    score(&in, c->scores);
    smooth(c, t, c->scores);
}

/* The best score of the layer outside the window. kvpress scores window slots above it. */
static float best_of_layer(selector *c, const contest *t)
{
    float best = 0;
    for (uint32_t h = 0; h < c->geometry->n_kv_heads; h++) {
        score_head(c, t, h);
        for (uint32_t i = 0; i < t->n; i++) {
            if (!in_window(c, position_of(t, i)) && c->scores[i] > best) best = c->scores[i];
        }
    }
    return best;
}

static void add_scores(float *sum, const float *scores, uint32_t n, bool first)
{
    if (first) memcpy(sum, scores, n * sizeof *sum);
    else
        for (uint32_t i = 0; i < n; i++) sum[i] += scores[i];
}

/* Puts the scope's scores into c->sum, and those for the second half of the budget into
 * c->second_sum. */
static void score_scope(selector *c, const contest *t)
{
    uint32_t n = c->by_slot ? t->n : t->n_units;
    float best = c->phase.variant->kvpress ? best_of_layer(c, t) : 0;
    for (uint32_t h = t->head_from; h < t->head_to; h++) {
        score_head(c, t, h);
        for (uint32_t i = 0; c->phase.variant->kvpress && i < t->n; i++) {
            if (in_window(c, position_of(t, i))) c->scores[i] = best + 1;
        }
        add_scores(c->sum, c->scores, n, h == t->head_from);
        if (!c->phase.score->refine) continue;
        bool two = c->phase.score->second != MEASURE_NONE;
        score_input in = {.first = measured_scores(c, t, 0, h),
                          .second = two ? measured_scores(c, t, 1, h) : NULL,
                          .pooled = c->scores,
                          .n = n,
                          .rows = c->rows,
                          .q_heads = c->q_heads};
        c->phase.score->refine(&in, c->more);
        add_scores(c->second_sum, c->more, n, h == t->head_from);
    }
}

/* ---- units ----------------------------------------------------------------------------------- */

/* Algorithm 3 of ChunkKV, literally: a chunk with window slots competes with all its slots. */
static bool competes_whole(const selector *c, const contest *t, uint32_t from, uint32_t to)
{
    if (t->unit != RETENTION_UNIT_CHUNK || !c->phase.variant->whole_chunks) return false;
    for (uint32_t i = from; i < to; i++) {
        if (in_window(c, position_of(t, slot_at(t, i)))) return true;
    }
    return false;
}

/* The key of the slots [from, to) in the order of positions. */
static uint32_t key_of_slots(const selector *c, const contest *t, uint32_t from, uint32_t to)
{
    bool whole = competes_whole(c, t, from, to);
    uint32_t n = 0;
    float sum = 0;
    for (uint32_t i = from; i < to; i++) {
        uint32_t slot = slot_at(t, i);
        if (!whole && is_protected(c, position_of(t, slot))) continue;
        sum = n++ > 0 ? sum + c->sum[slot] : c->sum[slot];
    }
    if (n == 0) return KEY_NONE;
    return rank_key(c->phase.variant->kvpress ? sum / (float)n : sum);
}

void contest_score(selector *c, contest *t)
{
    score_scope(c, t);
    if (t->unit == RETENTION_UNIT_PAGE) t->order = NULL; /* pages are in slot order */
    for (uint32_t u = 0; u < t->n_units; u++) {
        uint32_t from = u * t->size;
        bool fixed = t->unit == RETENTION_UNIT_PAGE && (t->keep[from / 64] >> from % 64 & 1);
        if (fixed) t->keys[u] = KEY_NONE;
        else if (!c->by_slot) t->keys[u] = rank_key(c->sum[u]);
        else t->keys[u] = key_of_slots(c, t, from, unit_end(t, u));
    }
}

void contest_refine(selector *c, contest *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->keys[i] != KEY_NONE && t->keys[i] != KEY_SELECTED)
            t->keys[i] = rank_key(c->second_sum[slot_at(t, i)]);
    }
}

void contest_close(const contest *t)
{
    bool pages = t->unit == RETENTION_UNIT_PAGE;
    for (uint32_t u = 0; u < t->n_units; u++) {
        if (t->keys[u] != KEY_SELECTED) continue;
        if (pages || !t->order) keep_range(t->keep, u * t->size, unit_end(t, u));
        else
            for (uint32_t i = u * t->size; i < unit_end(t, u); i++)
                keep_range(t->keep, t->order[i], t->order[i] + 1);
    }
}

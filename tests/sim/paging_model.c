#include "tests/sim/paging.h"

void *heap_resize(void *ctx, void *ptr, size_t size)
{
    test_heap *h = ctx;
    if (size == 0) {
        h->blocks -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (h->calls++ == h->fail_at) return NULL;
    void *got = realloc(ptr, size);
    h->blocks += !ptr && got;
    return got;
}

static model_block *find_block(sim *s, uint64_t hash)
{
    for (uint32_t i = 0; i < PAGES_MAX; i++) {
        if (s->blocks[i].live && s->blocks[i].hash == hash) return &s->blocks[i];
    }
    return NULL;
}

void on_block(void *ctx, const pkv_block_event *event)
{
    sim *s = ctx;
    if (event->kind == PKV_CLEARED) {
        for (uint32_t i = 0; i < PAGES_MAX; i++) s->blocks[i].live = false;
        return;
    }
    if (event->kind == PKV_BLOCK_REMOVED) {
        model_block *gone = find_block(s, event->hash);
        CHECK(s, gone && gone->parent == event->parent);
        for (uint32_t i = 0; i < PAGES_MAX; i++) {
            CHECK(s, !s->blocks[i].live || s->blocks[i].parent != gone->hash);
        }
        gone->live = false;
        s->done[DONE_REMOVED]++;
        return;
    }
    const model_seq *q = &s->seqs[s->publishing];
    CHECK(s, !q->dropped && !q->sealed && q->groups == s->groups);
    const model_block *parent = event->parent != 0 ? find_block(s, event->parent) : NULL;
    CHECK(s, event->parent == 0 || parent);
    model_block *b = s->blocks;
    while (b->live) b++;
    *b = (model_block){.live = true, .hash = event->hash, .parent = event->parent};
    b->index = parent ? parent->index + 1 : 0;
    uint32_t first = b->index * s->page_tokens;
    CHECK(s, first + s->page_tokens <= q->computed);
    CHECK(s, memcmp(event->tokens, q->tokens + first, s->page_tokens * sizeof(uint32_t)) == 0);
    memcpy(b->context, q->context + first, s->page_tokens * sizeof *b->context);
    b->grain = pkv_seq_grain(s->kv, s->publishing);
    for (uint32_t g = 0; g < s->groups; g++) {
        pkv_table_view view = view_of(s, s->publishing, g);
        b->cells[g] = cell_at(&view, b->index);
    }
}

/* ---- tables and cells ------------------------------------------------------------------------ */

uint32_t table_of(const sim *s, pkv_grain grain, uint32_t group)
{
    return grain == PKV_ALL ? 0 : grain == PKV_LAYER ? group / s->heads : group;
}

uint32_t groups_in(const sim *s, pkv_grain grain)
{
    return grain == PKV_ALL ? s->groups : grain == PKV_LAYER ? s->heads : 1;
}

uint32_t first_group(const sim *s, pkv_grain grain, uint32_t table)
{
    return table * groups_in(s, grain);
}

uint32_t n_tables(const sim *s, pkv_grain grain) { return s->groups / groups_in(s, grain); }

/* Numbers from a cell of a whole run to that of the next layer. */
static uint32_t layer_stride(const sim *s)
{
    return pkv_cell_offset(&s->geometry, s->n_pages - 1, PKV_ALL, 1, 0);
}

pkv_table_view view_of(const sim *s, uint32_t id, uint32_t group)
{
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    pkv_table_view view = pkv_seq_table(s->kv, id, table_of(s, grain, group));
    uint32_t stride = layer_stride(s);
    if (grain == PKV_ALL) view.offset = group / s->heads * stride;
    if (grain != PKV_HEAD) view.offset += group % s->heads;
    return view;
}

uint32_t grains_of(const sim *s)
{
    uint32_t sum = 0;
    for (uint32_t q = 0; q < SEQS; q++)
        if (pkv_seq_is_open(s->kv, q)) sum += pkv_seq_grain(s->kv, q);
    return sum;
}

/* Cells that tables hold, and those that are never handed out: the first ones of whole run 0. */
static void mark_held(const sim *s, bool *held)
{
    uint32_t usable = s->n_pages - 1, stride = layer_stride(s);
    for (uint32_t i = 0; i < pkv_cell_count(&s->geometry, usable) - usable; i++)
        held[i / s->heads * stride + i % s->heads] = true;
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t q = 0; q < SEQS; q++) {
            if (!s->seqs[q].open || s->seqs[q].in_portions) continue;
            pkv_table_view view = view_of(s, q, g);
            for (uint32_t i = 0; i < view.n_pages; i++) held[cell_at(&view, i)] = true;
        }
        for (uint32_t k = 0; k < PARKS; k++) {
            const model_parked *away = &s->parked[k];
            for (uint32_t i = 0; away->number != 0 && i < away->n_pages[g]; i++)
                held[away->cells[g][i]] = true;
        }
    }
}

uint32_t model_runs(const sim *s, pkv_grain grain)
{
    bool held[PAGES_MAX] = {false};
    mark_held(s, held);
    uint32_t stride = layer_stride(s), n = 0;
    for (uint32_t first = 0; first < stride; first += s->heads) { /* of a whole run */
        uint32_t free[GROUPS_MAX] = {0}, of_table = groups_in(s, grain);
        for (uint32_t g = 0; g < s->groups; g++)
            free[g / of_table] += !held[g / s->heads * stride + first + g % s->heads];
        for (uint32_t t = 0; t < n_tables(s, grain); t++) n += free[t] == of_table;
    }
    return n;
}

static uint32_t in_open_tables(const sim *s, uint32_t group, uint32_t cell)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < SEQS; q++) {
        if (!s->seqs[q].open || s->seqs[q].in_portions) continue;
        pkv_table_view view = view_of(s, q, group);
        for (uint32_t i = 0; i < view.n_pages; i++) n += cell_at(&view, i) == cell;
    }
    return n;
}

uint32_t model_holders(const sim *s, uint32_t group, uint32_t cell)
{
    uint32_t n = in_open_tables(s, group, cell);
    for (uint32_t k = 0; k < PARKS; k++) {
        const model_parked *away = &s->parked[k];
        if (away->number == 0) continue;
        for (uint32_t i = 0; i < away->n_pages[group]; i++) n += away->cells[group][i] == cell;
    }
    return n;
}

bool model_is_alone(const sim *s, uint32_t group, uint32_t cell)
{
    return model_holders(s, group, cell) > 0 && in_open_tables(s, group, cell) == 0;
}

static bool is_hashed(const sim *s, uint32_t group, uint32_t cell)
{
    for (uint32_t i = 0; i < PAGES_MAX; i++) {
        if (s->blocks[i].live && s->blocks[i].cells[group] == cell) return true;
    }
    return false;
}

bool model_is_shared(const sim *s, uint32_t id, uint32_t group, uint32_t index)
{
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    uint32_t first = first_group(s, grain, table_of(s, grain, group));
    for (uint32_t g = first; g < first + groups_in(s, grain); g++) {
        pkv_table_view view = view_of(s, id, g);
        if (model_holders(s, g, cell_at(&view, index)) > 1) return true;
    }
    return false;
}

bool model_is_common(const sim *s, uint32_t id, uint32_t group, uint32_t index)
{
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    uint32_t first = first_group(s, grain, table_of(s, grain, group));
    for (uint32_t g = first; g < first + groups_in(s, grain); g++) {
        pkv_table_view view = view_of(s, id, g);
        if (is_hashed(s, g, cell_at(&view, index))) return true;
    }
    return model_is_shared(s, id, group, index);
}

pkv_hit model_hit(sim *s, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt,
                  bool *is_mixed)
{
    pkv_hit hit = {0};
    uint32_t grains = 0;
    uint64_t context = first_context(salt);
    while (hit.tokens + s->page_tokens <= max_tokens) {
        for (uint32_t i = 0; i < s->page_tokens; i++) {
            context = next_context(context, tokens[hit.tokens + i]);
        }
        const model_block *b = NULL;
        for (uint32_t i = 0; i < PAGES_MAX && !b; i++) {
            const model_block *k = &s->blocks[i];
            if (k->live && k->context[s->page_tokens - 1] == context) b = k;
        }
        if (!b) break;
        hit.tokens += s->page_tokens;
        grains |= UINT32_C(1) << b->grain;
        for (uint32_t g = 0; g < s->groups; g++) {
            hit.cached_pages += model_holders(s, g, b->cells[g]) == 0;
            hit.parked_pages += model_is_alone(s, g, b->cells[g]);
        }
    }
    *is_mixed = (grains & (grains - 1)) != 0;
    return hit;
}

uint32_t model_append_cost(const sim *s, uint32_t id, uint32_t n)
{
    uint32_t cost = 0, size = s->page_tokens;
    for (uint32_t g = 0; g < s->seqs[id].groups; g++) {
        uint32_t kept = s->seqs[id].n_kept[g];
        cost += (kept + n + size - 1) / size - (kept + size - 1) / size;
        if (kept % size != 0) cost += model_is_shared(s, id, g, kept / size);
    }
    return cost;
}

/* Cells of the sequence that the model expects to be resident: those of published blocks whose
 * grain is not finer than its own. */
pkv_swap_cost model_swap_cost(const sim *s, const model_seq *m, pkv_grain grain, uint32_t held)
{
    pkv_swap_cost cost = {.held = held, .fresh = held};
    for (uint32_t i = 0; !m->sealed && !m->unshared && i < PAGES_MAX; i++) {
        const model_block *b = &s->blocks[i];
        uint32_t first = b->index * s->page_tokens, last = first + s->page_tokens - 1;
        if (!b->live || last >= m->published || b->grain > grain ||
            b->context[s->page_tokens - 1] != m->context[last])
            continue;
        for (uint32_t g = 0; g < s->groups; g++) {
            bool kept = false;
            for (uint32_t slot = 0; slot < m->n_kept[g] && !m->compacted[g]; slot++)
                kept |= m->kept[g][slot] == first;
            cost.fresh -= kept;
            cost.cached_pages += kept && model_holders(s, g, b->cells[g]) == 0;
            cost.parked_pages += kept && model_is_alone(s, g, b->cells[g]);
        }
    }
    return cost;
}

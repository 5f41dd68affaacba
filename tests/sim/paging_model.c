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
    CHECK(s, !q->dropped && !q->sealed);
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
    for (uint32_t g = 0; g < s->groups; g++) {
        b->pages[g] = pkv_seq_table(s->kv, s->publishing, g).pages[b->index];
    }
}

uint32_t model_holders(const sim *s, uint32_t group, uint32_t page)
{
    uint32_t n = 0;
    for (uint32_t q = 0; q < SEQS; q++) {
        if (!s->seqs[q].open) continue;
        pkv_table_view view = pkv_seq_table(s->kv, q, group);
        for (uint32_t i = 0; i < view.n_pages; i++) n += view.pages[i] == page;
    }
    for (uint32_t k = 0; k < PARKS; k++) {
        const model_parked *away = &s->parked[k];
        if (away->number == 0) continue;
        for (uint32_t i = 0; i < away->n_pages[group]; i++) n += away->pages[group][i] == page;
    }
    return n;
}

static bool is_in_open_table(const sim *s, uint32_t group, uint32_t page)
{
    for (uint32_t q = 0; q < SEQS; q++) {
        if (!s->seqs[q].open) continue;
        pkv_table_view view = pkv_seq_table(s->kv, q, group);
        for (uint32_t i = 0; i < view.n_pages; i++)
            if (view.pages[i] == page) return true;
    }
    return false;
}

bool model_is_alone(const sim *s, uint32_t group, uint32_t page)
{
    return model_holders(s, group, page) > 0 && !is_in_open_table(s, group, page);
}

bool model_is_common(const sim *s, uint32_t group, uint32_t page)
{
    for (uint32_t i = 0; i < PAGES_MAX; i++) {
        if (s->blocks[i].live && s->blocks[i].pages[group] == page) return true;
    }
    return model_holders(s, group, page) > 1;
}

pkv_hit model_hit(sim *s, const uint32_t *tokens, uint32_t max_tokens, uint64_t salt)
{
    pkv_hit hit = {0};
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
        for (uint32_t g = 0; g < s->groups; g++) {
            hit.cached_pages += model_holders(s, g, b->pages[g]) == 0;
            hit.parked_pages += model_is_alone(s, g, b->pages[g]);
        }
    }
    return hit;
}

uint32_t model_append_cost(const sim *s, uint32_t id, uint32_t n)
{
    uint32_t cost = 0, size = s->page_tokens;
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t kept = s->seqs[id].n_kept[g];
        cost += (kept + n + size - 1) / size - (kept + size - 1) / size;
        if (kept % size == 0) continue;
        pkv_table_view view = pkv_seq_table(s->kv, id, g);
        cost += model_holders(s, g, view.pages[view.n_pages - 1]) > 1;
    }
    return cost;
}

/* Pages of the sequence that the model expects to be resident: pages of published blocks. */
pkv_swap_cost model_swap_cost(const sim *s, const model_seq *m, uint32_t held)
{
    pkv_swap_cost cost = {.held = held, .fresh = held};
    for (uint32_t i = 0; !m->sealed && !m->unshared && i < PAGES_MAX; i++) {
        const model_block *b = &s->blocks[i];
        uint32_t first = b->index * s->page_tokens, last = first + s->page_tokens - 1;
        if (!b->live || last >= m->published || b->context[s->page_tokens - 1] != m->context[last])
            continue;
        for (uint32_t g = 0; g < s->groups; g++) {
            bool kept = false;
            for (uint32_t slot = 0; slot < m->n_kept[g] && !m->compacted[g]; slot++)
                kept |= m->kept[g][slot] == first;
            cost.fresh -= kept;
            cost.cached_pages += kept && model_holders(s, g, b->pages[g]) == 0;
            cost.parked_pages += kept && model_is_alone(s, g, b->pages[g]);
        }
    }
    return cost;
}

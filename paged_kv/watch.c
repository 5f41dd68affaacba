/* Questions that are asked again and again, for a sequence that waits for pages. A lookup in the
 * prefix cache: the chain that it found, with counts that follow every change of its pages. The
 * pages of a parked sequence: what was seen, until a change. */
#include "paged_kv/internal.h"

/* Adds the pages of a block to those that are counted, or takes them away. */
static void watch_block(pkv *p, uint32_t b, bool watched)
{
    const uint32_t *pages = block_pages(p, b);
    for (uint32_t g = 0; g < p->groups; g++) {
        pkv_page *page = &p->pages[pages[g]];
        watch_count(p, page, UINT32_MAX);
        page->watched = watched;
        watch_count(p, page, 1);
    }
}

void watch_forget(pkv *p)
{
    for (uint32_t b = p->watch.last; b != 0; b = p->blocks[b].parent) watch_block(p, b, false);
    p->watch = (prefix_watch){0};
}

void watch_remove(pkv *p, uint32_t b)
{
    if (b != p->watch.last) return;
    watch_block(p, b, false);
    p->watch.last = p->blocks[b].parent;
    p->watch.n_blocks--;
}

pkv_hit pkv_lookup_again(pkv *p, uint64_t key, const uint32_t *tokens, uint32_t max_tokens,
                         uint64_t salt)
{
    prefix_watch *w = &p->watch;
    uint32_t size = p->geometry.page_tokens, n_max = p->prefix_cache ? max_tokens / size : 0;
    assert(key != 0);
    if (w->key != key || w->max_tokens != max_tokens) {
        watch_forget(p);
        w->key = key;
        w->max_tokens = max_tokens;
    }
    while (w->n_blocks < n_max) {
        const uint32_t *of_block = tokens + (size_t)w->n_blocks * size;
        uint64_t hash = prefix_hash(p, p->blocks[w->last].hash, of_block, salt);
        uint32_t b = prefix_find(p, w->last, hash, of_block, salt);
        if (b == 0) break;
        watch_block(p, b, true);
        w->last = b;
        w->n_blocks++;
    }
    return (pkv_hit){.tokens = w->n_blocks * size,
                     .cached_pages = w->cached_pages,
                     .parked_pages = w->parked_pages};
}

pkv_parked_pages pkv_parked_look_again(pkv *p, uint32_t parked)
{
    if (p->sight.parked != parked) p->sight.pages = pkv_parked_look(p, parked);
    p->sight.parked = parked;
    return p->sight.pages;
}

const char *watch_check(const pkv *p)
{
    const prefix_watch *w = &p->watch;
    uint32_t n = 0, cached = 0, parked = 0, watched = 0;
    for (uint32_t b = w->last; b != 0; b = p->blocks[b].parent, n++) {
        if (p->blocks[b].generation % 2 == 0) return "a watched block has left the cache";
        for (uint32_t g = 0; g < p->groups; g++) {
            const pkv_page *page = &p->pages[block_pages(p, b)[g]];
            if (!page->watched) return "a watched block has a page that is not watched";
            cached += page->refs == 0;
            parked += is_parked_alone(page);
        }
    }
    for (uint32_t i = 1; i < p->touched; i++) watched += p->pages[i].watched;
    if (n != w->n_blocks || watched != n * p->groups) return "watched blocks are miscounted";
    if (cached != w->cached_pages || parked != w->parked_pages)
        return "pages of watched blocks are miscounted";
    return NULL;
}

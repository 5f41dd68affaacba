#include "paged_kv/internal.h"

/* Far above any model, low enough that no product below overflows. */
enum { GROUPS_MAX = 1 << 20, LAYERS_MAX = 1 << 14, HEADS_MAX = 1 << 14 };
#define PAGES_MAX (UINT32_C(1) << 31)

status pkv_geometry_check(const pkv_geometry *g, error *err)
{
    if (g->page_tokens < 16 || g->page_tokens > PAGE_TOKENS_MOST || g->page_tokens % 16 != 0) {
        return error_set(err, STATUS_INVALID,
                         "page_tokens is %u: must be a multiple of 16 from 16 to 256",
                         g->page_tokens);
    }
    if (g->n_layers < 1 || g->n_layers > LAYERS_MAX) {
        return error_set(err, STATUS_INVALID, "n_layers is %u: must be 1 to %d", g->n_layers,
                         LAYERS_MAX);
    }
    if (g->n_kv_heads < 1 || g->n_kv_heads > HEADS_MAX) {
        return error_set(err, STATUS_INVALID, "n_kv_heads is %u: must be 1 to %d", g->n_kv_heads,
                         HEADS_MAX);
    }
    if (g->layers_per_group < 1 || g->layers_per_group > g->n_layers) {
        return error_set(err, STATUS_INVALID, "layers_per_group is %u: must be 1 to n_layers = %u",
                         g->layers_per_group, g->n_layers);
    }
    if (g->heads_per_group < 1 || g->n_kv_heads % g->heads_per_group != 0) {
        return error_set(err, STATUS_INVALID, "heads_per_group is %u: must divide n_kv_heads = %u",
                         g->heads_per_group, g->n_kv_heads);
    }
    if ((uint64_t)pkv_layer_groups(g) * pkv_head_groups(g) > GROUPS_MAX) {
        return error_set(err, STATUS_LIMIT, "more than %d KV groups", GROUPS_MAX);
    }
    for (uint32_t l = 1; l < g->n_layers; l++) {
        if (l % g->layers_per_group == 0 || pkv_window_of(g, l) == pkv_window_of(g, l - 1))
            continue;
        return error_set(err, STATUS_INVALID,
                         "layers_per_group is %u: of layers %u and %u, which would share a page "
                         "table, one has a sliding window",
                         g->layers_per_group, l - 1, l);
    }
    return STATUS_IS_OK;
}

status pkv_create(const pkv_options *options, pkv **out)
{
    RETURN_IF_ERROR(pkv_geometry_check(&options->geometry, NULL));
    if (options->n_pages < 2 || options->n_pages > PAGES_MAX) {
        return status_make(STATUS_INVALID, "n_pages must be 2 to 2^31");
    }
    if (options->n_host_pages > PAGES_MAX) {
        return status_make(STATUS_INVALID, "n_host_pages must be at most 2^31");
    }
    if (options->max_seqs < 1 || options->max_seqs == UINT32_MAX) {
        return status_make(STATUS_INVALID, "max_seqs must be at least 1");
    }
    const allocator *a = options->alloc ? options->alloc : &allocator_default;
    pkv *p = alloc_zeroed(a, 1, sizeof *p);
    if (!p) return status_make(STATUS_NO_MEMORY, NULL);
    p->geometry = options->geometry;
    p->groups = pkv_groups(&options->geometry);
    p->n_pages = options->n_pages;
    p->max_seqs = options->max_seqs;
    p->alloc = *a;
    p->on_block = options->on_block;
    p->on_block_ctx = options->on_block_ctx;
    p->prefix_cache = options->prefix_cache;
    p->n_host_pages = options->n_host_pages;
    p->log.epoch = 1;
    p->free = p->n_pages - 1;
    p->touched = 1;
    /* Not zeroed: a page's record is written when the page is first handed out, so the memory of a
     * large idle pool stays untouched. */
    p->pages = alloc_resize(a, NULL, p->n_pages, sizeof *p->pages);
    p->seqs = alloc_zeroed(a, p->max_seqs, sizeof *p->seqs);
    if (!p->pages || !p->seqs || (p->prefix_cache && !status_ok(prefix_create(p))) ||
        !status_ok(host_create(p))) {
        pkv_destroy(p);
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    p->pages[0] = (pkv_page){0};
    *out = p;
    return STATUS_IS_OK;
}

void pkv_destroy(pkv *p)
{
    if (!p) return;
    for (uint32_t i = 0; p->seqs && i < p->max_seqs; i++) seq_free_lists(p, &p->seqs[i]);
    host_destroy(p);
    prefix_destroy(p);
    alloc_free(&p->alloc, p->seqs);
    alloc_free(&p->alloc, p->pages);
    alloc_free(&p->alloc, p->log.words);
    alloc_free(&p->alloc, p->log.moves);
    alloc_free(&p->alloc, p->scratch);
    allocator a = p->alloc;
    alloc_free(&a, p);
}

const pkv_geometry *pkv_get_geometry(const pkv *p) { return &p->geometry; }

/* The two kinds of fields fill the struct, so a counter beside the list does not compile. */
#define ONE_MORE(field, metric, help) +1
enum { N_COUNTERS = 0 PKV_COUNTERS(ONE_MORE), N_GAUGES = 6 };
_Static_assert(sizeof(pkv_counts) == N_COUNTERS * sizeof(uint64_t) + N_GAUGES * sizeof(uint32_t),
               "a counter belongs in PKV_COUNTERS, a number of the moment in N_GAUGES");

pkv_counts pkv_count(const pkv *p)
{
    pkv_counts now = p->counts;
    now.n_pages = p->n_pages;
    now.free = p->free;
    now.used = p->used;
    now.cached = p->cached;
    now.n_host_pages = p->n_host_pages;
    now.host_used = host_used(p);
    return now;
}

void pkv_add_counters(pkv_counts *sum, const pkv_counts *more)
{
#define ADD(field, metric, help) sum->field += more->field;
    PKV_COUNTERS(ADD)
#undef ADD
}

uint32_t pkv_available(const pkv *p) { return p->free + p->cached; }
uint32_t pkv_parked_alone(const pkv *p) { return p->parked_alone; }

uint64_t pkv_checksum(const pkv *p) { return p->checksum; }

/* ---- pages: free <-> used <-> cached --------------------------------------------------------- */

static void push_free(pkv *p, uint32_t id)
{
    p->pages[id] = (pkv_page){.next = p->free_head};
    p->free_head = id;
    p->free++;
}

/* The ring of cached pages: pages[0].next is the least recently used, pages[0].prev the most. */
static void ring_push(pkv *p, uint32_t id)
{
    pkv_page *pages = p->pages;
    pages[id].prev = pages[0].prev;
    pages[id].next = 0;
    pages[pages[0].prev].next = id;
    pages[0].prev = id;
    p->cached++;
}

static void ring_remove(pkv *p, uint32_t id)
{
    pkv_page *pages = p->pages;
    pages[pages[id].prev].next = pages[id].next;
    pages[pages[id].next].prev = pages[id].prev;
    p->cached--;
}

uint32_t pool_take(pkv *p)
{
    assert(pkv_available(p) > 0);
    if (p->free == 0) prefix_remove(p, p->pages[p->pages[0].next].block);
    uint32_t id = p->free_head;
    if (id != 0) p->free_head = p->pages[id].next;
    else id = p->touched++;
    p->pages[id] = (pkv_page){.refs = 1};
    p->free--;
    p->used++;
    return id;
}

void pool_ref(pkv *p, uint32_t id)
{
    pkv_page *g = &p->pages[id];
    watch_count(p, g, UINT32_MAX);
    if (g->refs == 0) {
        ring_remove(p, id);
        p->used++;
    }
    p->parked_alone -= is_parked_alone(g);
    g->refs++;
    watch_count(p, g, 1);
}

void pool_unref(pkv *p, uint32_t id)
{
    pkv_page *g = &p->pages[id];
    assert(g->refs > g->parked);
    watch_count(p, g, UINT32_MAX);
    g->refs--;
    watch_count(p, g, 1);
    p->parked_alone += is_parked_alone(g);
    if (g->refs > 0) return;
    p->used--;
    if (g->block != 0) ring_push(p, id);
    else push_free(p, id);
}

void pool_park(pkv *p, uint32_t id)
{
    pkv_page *g = &p->pages[id];
    assert(g->parked < g->refs);
    watch_count(p, g, UINT32_MAX);
    g->parked++;
    watch_count(p, g, 1);
    p->parked_alone += is_parked_alone(g);
}

void pool_unpark(pkv *p, uint32_t id)
{
    pkv_page *g = &p->pages[id];
    assert(g->parked > 0);
    p->parked_alone -= is_parked_alone(g);
    watch_count(p, g, UINT32_MAX);
    g->parked--;
    watch_count(p, g, 1);
}

void pool_uncache(pkv *p, uint32_t id)
{
    ring_remove(p, id);
    push_free(p, id);
}

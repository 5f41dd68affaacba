/* The bytes of a record, and back. */
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_DROPPED = 1, FLAG_CONTIGUOUS = 2, FLAG_BUDGET_RAISED = 4, FLAGS = 8 };
enum { RECORD_VERSION = 3 };

typedef struct record_head {
    uint64_t layout;   // a hash of the version and of what sizes depend on
    uint64_t identity; // kv_identity of the backend that computed it
    uint64_t policy, sampling;
    uint64_t pages_dropped;
    uint32_t n_tokens, n_tables, n_cells, grain;
    uint32_t flags, token, rank, n_top;
    float logprob;
    uint32_t top_ids[SAMPLE_LOGPROBS_MAX];
    float top_logprobs[SAMPLE_LOGPROBS_MAX];
    uint32_t zero;
} record_head;

typedef struct record_table {
    uint32_t kept, slot_pages;
} record_table;

_Static_assert(sizeof(record_head) % 8 == 0, "what follows is aligned");

static uint64_t layout_of(const handover_terms *terms)
{
    const pkv_geometry *g = terms->geometry;
    const uint64_t parts[] = {RECORD_VERSION,     sizeof(record_head), g->page_tokens,
                              g->n_layers,        g->n_kv_heads,       g->layers_per_group,
                              g->heads_per_group, g->window,           terms->cell_bytes};
    return hash_bytes(g->window_layers, sizeof g->window_layers,
                      hash_bytes(parts, sizeof parts, 0));
}

static size_t pages_of(const handover_terms *terms, uint32_t n)
{
    return ((size_t)n + terms->geometry->page_tokens - 1) / terms->geometry->page_tokens;
}

/* Bytes before K and V, which begin at a multiple of 8. */
static size_t padded(size_t n) { return (n + 7) & ~(size_t)7; }

static uint32_t tables_at(const handover_terms *terms, pkv_grain grain)
{
    pkv_geometry at = pkv_geometry_at(terms->geometry, grain);
    return pkv_groups(&at);
}

size_t handover_most(const handover_terms *terms)
{
    size_t tables = pkv_groups(terms->geometry), pages = pages_of(terms, terms->n_tokens);
    size_t words = terms->n_tokens + tables * (pages + terms->n_tokens);
    return padded(sizeof(record_head) + tables * sizeof(record_table) + words * sizeof(uint32_t)) +
           tables * pages * terms->cell_bytes;
}

size_t handover_size(const handover_terms *terms, const sched_export *x)
{
    size_t tables = tables_at(terms, x->image.grain), words = x->n_tokens;
    for (size_t i = 0; i < tables; i++)
        words += pages_of(terms, x->image.tables[i].kept) +
                 pkv_image_slots(terms->geometry, &x->image.tables[i]);
    return padded(sizeof(record_head) + tables * sizeof(record_table) + words * sizeof(uint32_t)) +
           x->n_cells * terms->cell_bytes;
}

/* ---- writing --------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
    if (n > 0) memcpy(to, from, n);
    return to + n;
}

static record_head head_of(const handover_terms *terms, const sched_export *x,
                           const step_sample *first)
{
    record_head h = {.layout = layout_of(terms),
                     .identity = terms->identity,
                     .policy = terms->policy,
                     .sampling = terms->sampling,
                     .pages_dropped = x->pages_dropped,
                     .n_tokens = x->n_tokens,
                     .n_tables = tables_at(terms, x->image.grain),
                     .n_cells = x->n_cells,
                     .grain = x->image.grain,
                     .flags = (x->image.dropped ? FLAG_DROPPED : 0) |
                              (x->image.contiguous ? FLAG_CONTIGUOUS : 0) |
                              (x->budget_raised ? FLAG_BUDGET_RAISED : 0),
                     .token = first->token,
                     .rank = first->rank,
                     .n_top = first->n_top,
                     .logprob = first->logprob};
    memcpy(h.top_ids, first->top_ids, first->n_top * sizeof *h.top_ids);
    memcpy(h.top_logprobs, first->top_logprobs, first->n_top * sizeof *h.top_logprobs);
    return h;
}

uint8_t *handover_write(const handover_terms *terms, const sched_export *x,
                        const step_sample *first, uint8_t *to)
{
    record_head h = head_of(terms, x, first);
    uint8_t *at = put(to, &h, sizeof h);
    for (uint32_t i = 0; i < h.n_tables; i++) {
        const pkv_image_table *t = &x->image.tables[i];
        at = put(at, &(record_table){t->kept, t->slot_pages}, sizeof(record_table));
    }
    at = put(at, x->tokens, x->n_tokens * sizeof *x->tokens);
    for (uint32_t i = 0; i < h.n_tables; i++) {
        const pkv_image_table *t = &x->image.tables[i];
        size_t pages = pages_of(terms, t->kept), compacted = t->slot_pages;
        /* Pages whose slots have positions of their own have no bases. */
        memset(at, 0, compacted * sizeof *t->bases);
        at = put(at + compacted * sizeof *t->bases, t->bases + compacted,
                 (pages - compacted) * sizeof *t->bases);
        at = put(at, t->slots, pkv_image_slots(terms->geometry, t) * sizeof *t->slots);
    }
    uint8_t *cells = to + padded((size_t)(at - to));
    memset(at, 0, (size_t)(cells - at));
    return cells;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_among(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Whether the first token is the one that would be drawn here, with its logprobs. It was drawn
 * without min_tokens, and what that bans changes no greedy draw of another token. It changes the
 * logprobs of a draw with a mask, because they are those of the tokens that the mask leaves. */
static bool draws_alike(const handover_terms *terms, const record_head *h)
{
    if (h->sampling != terms->sampling) return false;
    if (terms->n_banned == 0) return true;
    return terms->greedy && !terms->bans_shown &&
           !is_among(terms->banned, terms->n_banned, h->token);
}

static bool head_fits(const handover_terms *terms, const record_head *h)
{
    bool fits = h->grain <= PKV_HEAD && h->flags < FLAGS && h->n_tokens > 0 &&
                h->token < terms->vocab_size && h->rank <= terms->vocab_size &&
                h->n_top <= SAMPLE_LOGPROBS_MAX && !(h->n_top > 0 && isnan(h->logprob));
    fits = fits && pkv_grain_fit(terms->geometry, (pkv_grain)h->grain) == (pkv_grain)h->grain;
    fits = fits && h->n_tables == tables_at(terms, (pkv_grain)h->grain);
    for (uint32_t i = 0; fits && i < h->n_top; i++)
        fits = h->top_ids[i] < terms->vocab_size && !isnan(h->top_logprobs[i]);
    return fits;
}

static void take_head(const handover_terms *terms, takeover *t, const record_head *h)
{
    t->first =
        (step_sample){.token = h->token, .logprob = h->logprob, .rank = h->rank, .n_top = h->n_top};
    memcpy(t->first.top_ids, h->top_ids, h->n_top * sizeof *h->top_ids);
    memcpy(t->first.top_logprobs, h->top_logprobs, h->n_top * sizeof *h->top_logprobs);
    t->handed = (sched_handed){.n_tokens = h->n_tokens,
                               .first_token = h->token,
                               .pages_dropped = h->pages_dropped,
                               .budget_raised = h->flags & FLAG_BUDGET_RAISED,
                               .foreign = h->identity != terms->identity,
                               .image = {.grain = (pkv_grain)h->grain,
                                         .length = h->n_tokens,
                                         .dropped = h->flags & FLAG_DROPPED,
                                         .contiguous = h->flags & FLAG_CONTIGUOUS}};
}

/* Sets the tables' lists, which lie behind the tokens. False: they reach behind the bytes. */
static bool take_tables(const handover_terms *terms, const uint8_t *bytes, size_t n,
                        const record_head *h, takeover *t)
{
    const record_table *rows = (const record_table *)(const void *)(bytes + sizeof *h);
    const uint32_t *words = (const uint32_t *)(const void *)(rows + h->n_tables);
    size_t at = h->n_tokens, room = (n - sizeof *h - h->n_tables * sizeof *rows) / sizeof *words;
    if (at > room) return false;
    t->handed.tokens = words;
    for (uint32_t i = 0; i < h->n_tables; i++) {
        pkv_image_table *table = &t->tables[i];
        *table = (pkv_image_table){.kept = rows[i].kept, .slot_pages = rows[i].slot_pages};
        if (table->kept > h->n_tokens) return false;
        size_t pages = pages_of(terms, table->kept),
               slots = pkv_image_slots(terms->geometry, table);
        if (pages + slots > room - at) return false;
        table->bases = words + at;
        table->slots = words + at + pages;
        at += pages + slots;
    }
    size_t before = padded(sizeof *h + h->n_tables * sizeof *rows + at * sizeof *words);
    t->handed.image.tables = t->tables;
    t->cells = bytes + before;
    return before <= n && pkv_image_cells(terms->geometry, &t->handed.image) == h->n_cells &&
           (n - before) % terms->cell_bytes == 0 && (n - before) / terms->cell_bytes == h->n_cells;
}

const char *handover_read(const handover_terms *terms, const uint8_t *bytes, size_t n, takeover *t)
{
    static const char foreign[] = "the record is none of this version and of these pages";
    static const char damaged[] = "the record is damaged";
    record_head h;
    if (n < sizeof h) return damaged;
    memcpy(&h, bytes, sizeof h);
    if (h.layout != layout_of(terms)) return foreign;
    if (!head_fits(terms, &h) || h.n_tables > (n - sizeof h) / sizeof(record_table)) return damaged;
    if (h.policy != terms->policy) return "it was computed under another retention";
    if (!draws_alike(terms, &h)) return "its first token was drawn by other sampling parameters";
    t->tables = alloc_zeroed(NULL, h.n_tables, sizeof *t->tables);
    if (!t->tables) return "memory is out";
    take_head(terms, t, &h);
    if (!take_tables(terms, bytes, n, &h, t)) return damaged;
    if (h.n_tokens != terms->n_tokens ||
        memcmp(t->handed.tokens, terms->tokens, h.n_tokens * sizeof *terms->tokens) != 0)
        return "it is of another prompt";
    return pkv_image_fits(terms->geometry, &t->handed.image) ? NULL : damaged;
}

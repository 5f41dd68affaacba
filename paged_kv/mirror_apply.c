/* Applies delta words to a mirror. They may come from a wire: every field is checked against what
 * the mirror knows, and what it allocates is bounded by its own sizes. */
#include "paged_kv/mirror.h"
#include <string.h>

/* The words of one pkv_mirror_apply. */
typedef struct reader {
    const uint32_t *next, *end;
} reader;

static status corrupt(const char *what) { return status_make(STATUS_CORRUPT, what); }

/* ---- helpers --------------------------------------------------------------------------------- */

static uint32_t pages_for(const pkv_mirror *m, uint32_t tokens)
{
    return tokens / m->page_tokens + (tokens % m->page_tokens != 0);
}

/* The fresh pages that n more tokens take. */
static uint32_t pages_needed(const pkv_mirror *m, const mirror_table *t, uint32_t n)
{
    uint32_t room = t->n_pages * m->page_tokens - t->kept;
    return n > room ? pages_for(m, n - room) : 0;
}

static bool take_fields(reader *r, uint32_t *fields, size_t n)
{
    if ((size_t)(r->end - r->next) < n) return false;
    memcpy(fields, r->next, n * sizeof *fields);
    r->next += n;
    return true;
}

static mirror_seq *open_seq(const pkv_mirror *m, uint32_t seq)
{
    return seq < m->max_seqs && m->seqs[seq].open ? &m->seqs[seq] : NULL;
}

/* Whether a table of the sequence may hold that page: it is the first cell of a run, or of the
 * share of the table's head. */
static bool is_page(const pkv_mirror *m, const mirror_seq *s, uint32_t table, uint32_t page)
{
    if (page == 0 || !tree_is_page(&m->tree, s->grain, page)) return false;
    return s->grain != PKV_HEAD ||
           cell_share(&m->tree, page) == head_share(&m->tree, table % m->tree.n_heads);
}

/* Whether no table holds the page, a part of it or a run around it. */
static bool is_fresh(const pkv_mirror *m, const mirror_seq *s, uint32_t table, uint32_t page)
{
    if (!is_page(m, s, table, page)) return false;
    uint32_t node = node_of(&m->tree, s->grain, page);
    if (m->pool[node].below > 0) return false;
    while (m->pool[node].refs == 0 && node < tree_whole_at(&m->tree))
        node = node_above(&m->tree, node);
    return m->pool[node].refs == 0;
}

status mirror_reserve(pkv_mirror *m, mirror_seq *s, uint32_t row)
{
    if (row >= m->tree.n_cells) row = m->tree.n_cells - 1;
    uint32_t half_more = s->open ? s->row + s->row / 2 : 0;
    if (s->open && row <= s->row) return STATUS_IS_OK;
    if (row < half_more) row = half_more;
    size_t n = (size_t)s->groups * row;
    if (!s->open && row < s->row && (size_t)s->groups * s->row <= s->cap_list) return STATUS_IS_OK;
    if (!s->open && n <= s->cap_list) {
        s->row = row;
        return STATUS_IS_OK;
    }
    uint32_t *pages = alloc_resize(&m->alloc, NULL, n, sizeof *pages);
    if (!pages) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t g = 0; s->open && g < s->groups; g++) {
        memcpy(pages + (size_t)g * row, mirror_list(s, g), s->tables[g].n_pages * sizeof *pages);
    }
    alloc_free(&m->alloc, s->pages);
    s->pages = pages;
    s->cap_list = n;
    s->row = row;
    return STATUS_IS_OK;
}

status mirror_shape(pkv_mirror *m, mirror_seq *s, pkv_grain grain)
{
    const pkv_geometry at = pkv_geometry_at(&m->geometry, grain);
    uint32_t groups = pkv_groups(&at);
    if (groups > s->cap_tables) {
        mirror_table *tables = alloc_resize(&m->alloc, s->tables, groups, sizeof *tables);
        if (!tables) return status_make(STATUS_NO_MEMORY, NULL);
        s->tables = tables;
        s->cap_tables = groups;
    }
    s->grain = grain;
    s->groups = groups;
    return STATUS_IS_OK;
}

static void set_kept(pkv_mirror *m, mirror_seq *s, uint32_t table, uint32_t kept)
{
    uint64_t key = mirror_key(m, s, table);
    m->checksum += checksum_kept(key, kept) - checksum_kept(key, s->tables[table].kept);
    s->tables[table].kept = kept;
}

/* The KV group of a page's first cell. */
static uint32_t first_group(const pkv_mirror *m, const mirror_seq *s, uint32_t table)
{
    return s->grain == PKV_LAYER ? table * m->tree.n_heads : table;
}

static void put_page(pkv_mirror *m, mirror_seq *s, uint32_t table, uint32_t index, uint32_t page)
{
    mirror_list(s, table)[index] = page;
    uint32_t node = node_of(&m->tree, s->grain, page);
    mirror_count_ref(m, node, 1);
    m->pool[node].group = first_group(m, s, table);
    m->checksum += checksum_page(mirror_key(m, s, table), index, page);
}

/* No part of the node is parked any more. */
static void clear_parts(pkv_mirror *m, uint32_t node)
{
    page_state *at = &m->pool[node];
    bool whole = node >= tree_whole_at(&m->tree);
    for (uint32_t i = 0; at->parts_parked && i < (whole ? m->tree.n_layers : m->tree.n_heads);
         i++) {
        uint32_t part = node_part(&m->tree, node, i);
        m->pool[part].parked = 0;
        if (whole) clear_parts(m, part);
    }
    at->parts_parked = 0;
}

/* put_page for a fresh page: no table holds it, a part of it or a run around it. */
static void put_fresh(pkv_mirror *m, mirror_seq *s, uint32_t table, uint32_t index, uint32_t page)
{
    put_page(m, s, table, index, page);
    uint32_t node = node_of(&m->tree, s->grain, page);
    if (node >= m->tree.n_cells) clear_parts(m, node);
    for (;; node = node_above(&m->tree, node)) {
        m->pool[node].parked = 0;
        if (node >= tree_whole_at(&m->tree)) return;
    }
}

static void enter_open(pkv_mirror *m, mirror_seq *s)
{
    s->open = true;
    m->checksum += checksum_seq((uint32_t)(s - m->seqs));
    for (uint32_t g = 0; g < s->groups; g++) s->tables[g] = (mirror_table){0};
    mirror_weigh(m, s, s->groups);
}

/* ---- one function for each operation (delta.h) ----------------------------------------------- */

static bool is_grain(const pkv_mirror *m, uint32_t grain)
{
    return grain <= PKV_HEAD && pkv_grain_fit(&m->geometry, (pkv_grain)grain) == grain;
}

static status apply_open(pkv_mirror *m, reader *r)
{
    uint32_t f[4]; // seq, grain, capacity, n
    if (!take_fields(r, f, 4)) return corrupt("delta log: OPEN is cut off");
    if (f[0] >= m->max_seqs || m->seqs[f[0]].open)
        return corrupt("delta log: OPEN of an open sequence");
    if (!is_grain(m, f[1])) return corrupt("delta log: OPEN at no grain");
    if (f[3] >= m->tree.n_whole || f[3] > UINT32_MAX / m->page_tokens)
        return corrupt("delta log: OPEN holds too many pages");
    mirror_seq *s = &m->seqs[f[0]];
    RETURN_IF_ERROR(mirror_shape(m, s, (pkv_grain)f[1]));
    size_t n = (size_t)f[3] * s->groups;
    if ((size_t)(r->end - r->next) < n) return corrupt("delta log: OPEN is cut off");
    for (size_t i = 0; i < n; i++) {
        if (!is_page(m, s, (uint32_t)(i / f[3]), r->next[i]))
            return corrupt("delta log: OPEN has no such page");
    }
    RETURN_IF_ERROR(mirror_reserve(m, s, f[2] > f[3] ? f[2] : f[3] > 0 ? f[3] : 1));
    enter_open(m, s);
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t i = 0; i < f[3]; i++) put_page(m, s, g, i, *r->next++);
        s->tables[g].n_pages = f[3];
        set_kept(m, s, g, f[3] * m->page_tokens);
    }
    return STATUS_IS_OK;
}

static status apply_close(pkv_mirror *m, reader *r, bool parked)
{
    uint32_t seq;
    if (!take_fields(r, &seq, 1)) return corrupt("delta log: CLOSE is cut off");
    mirror_seq *s = open_seq(m, seq);
    if (!s) return corrupt("delta log: CLOSE of a closed sequence");
    mirror_close(m, s, parked);
    return STATUS_IS_OK;
}

static status apply_leave(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, parked, n
    if (!take_fields(r, f, 3)) return corrupt("delta log: LEAVE is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s) return corrupt("delta log: LEAVE of a closed sequence");
    if (f[1] > 1) return corrupt("delta log: LEAVE neither parks nor gives up");
    return mirror_leave(m, s, f[1], f[2]);
}

static status apply_hold(const pkv_mirror *m, reader *r)
{
    uint32_t seq;
    if (!take_fields(r, &seq, 1)) return corrupt("delta log: HOLD is cut off");
    const mirror_seq *s = open_seq(m, seq);
    if (!s) return corrupt("delta log: HOLD of a closed sequence");
    for (uint32_t g = 0; g < s->groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++)
            mirror_mark_parked(m, s, mirror_list(s, g)[i]);
    return STATUS_IS_OK;
}

static status apply_append(pkv_mirror *m, reader *r)
{
    uint32_t f[4]; // seq, tables, n, n_fresh
    if (!take_fields(r, f, 4)) return corrupt("delta log: APPEND is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    uint32_t tables = f[1], n = f[2];
    if (!s || n == 0) return corrupt("delta log: APPEND to a closed sequence");
    if (tables == 0 || tables > s->groups) return corrupt("delta log: APPEND to no table");
    if ((size_t)(r->end - r->next) < f[3]) return corrupt("delta log: APPEND is cut off");
    uint64_t fresh = 0;
    uint32_t longest = 0;
    for (uint32_t g = 0; g < tables; g++) {
        const mirror_table *t = &s->tables[g];
        if (n > UINT32_MAX - m->page_tokens - t->kept) {
            return corrupt("delta log: APPEND past 2^32 tokens");
        }
        uint32_t more = pages_needed(m, t, n);
        fresh += more;
        if (t->n_pages + more > longest) longest = t->n_pages + more;
    }
    if (fresh != f[3]) return corrupt("delta log: APPEND with a wrong number of pages");
    if (longest >= m->tree.n_cells) return corrupt("delta log: APPEND past the pool");
    RETURN_IF_ERROR(mirror_reserve(m, s, longest));
    for (uint32_t g = 0; g < tables; g++) {
        mirror_table *t = &s->tables[g];
        for (uint32_t more = pages_needed(m, t, n); more > 0; more--) {
            uint32_t page = *r->next++;
            if (!is_fresh(m, s, g, page))
                return corrupt("delta log: APPEND of a page that is taken");
            put_fresh(m, s, g, t->n_pages++, page);
        }
        t->kept += n;
    }
    if (s->n_weighed != tables) mirror_weigh(m, s, tables);
    m->checksum += s->weight * n;
    return STATUS_IS_OK;
}

static status apply_replace(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, table, page
    if (!take_fields(r, f, 3)) return corrupt("delta log: REPLACE is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= s->groups) return corrupt("delta log: REPLACE in no table");
    uint32_t n = s->tables[f[1]].n_pages;
    if (n == 0 || !is_fresh(m, s, f[1], f[2]))
        return corrupt("delta log: REPLACE by a page that is taken");
    mirror_clear_page(m, s, f[1], n - 1);
    put_fresh(m, s, f[1], n - 1, f[2]);
    return STATUS_IS_OK;
}

static status apply_trim(pkv_mirror *m, reader *r)
{
    uint32_t f[4]; // seq, table, kept, n
    if (!take_fields(r, f, 4)) return corrupt("delta log: TRIM is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= s->groups) return corrupt("delta log: TRIM of no table");
    mirror_table *t = &s->tables[f[1]];
    if (f[2] > t->kept) return corrupt("delta log: TRIM keeps more than there is");
    uint32_t left = pages_for(m, f[2]), n = f[3];
    if ((size_t)(r->end - r->next) < (size_t)2 * n) return corrupt("delta log: TRIM is cut off");
    /* Checked while the old pages still hold their references: moves read them. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = r->next[2 * i];
        if (index >= left || (i > 0 && index <= r->next[2 * i - 2]))
            return corrupt("delta log: TRIM of pages out of order");
        if (!is_fresh(m, s, f[1], r->next[2 * i + 1]))
            return corrupt("delta log: TRIM by a page that is taken");
    }
    for (uint32_t i = 0; i < n; i++) mirror_clear_page(m, s, f[1], r->next[2 * i]);
    for (uint32_t i = 0; i < n; i++, r->next += 2) {
        if (!is_fresh(m, s, f[1], r->next[1])) return corrupt("delta log: TRIM by one page twice");
        put_fresh(m, s, f[1], r->next[0], r->next[1]);
    }
    for (uint32_t i = left; i < t->n_pages; i++) mirror_clear_page(m, s, f[1], i);
    t->n_pages = left;
    set_kept(m, s, f[1], f[2]);
    return STATUS_IS_OK;
}

static status apply_drop(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, table, n
    if (!take_fields(r, f, 3)) return corrupt("delta log: DROP is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= s->groups) return corrupt("delta log: DROP in no table");
    mirror_table *t = &s->tables[f[1]];
    uint32_t n = t->n_pages, left = 0;
    if (f[2] != n) return corrupt("delta log: DROP of a table of another length");
    const uint32_t *keep = r->next;
    if ((size_t)(r->end - r->next) < delta_bit_words(n))
        return corrupt("delta log: DROP is cut off");
    r->next += delta_bit_words(n);
    if (n % 32 != 0 && keep[n / 32] >> n % 32 != 0)
        return corrupt("delta log: DROP keeps too much");
    /* A last page that is not full takes fewer tokens with it. */
    uint32_t unfilled = n * m->page_tokens - t->kept;
    if (n == 0 || keep[(n - 1) / 32] >> (n - 1) % 32 & 1) unfilled = 0;
    uint32_t *pages = mirror_list(s, f[1]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = pages[i];
        mirror_clear_page(m, s, f[1], i);
        if (keep[i / 32] >> i % 32 & 1) put_page(m, s, f[1], left++, page);
    }
    t->n_pages = left;
    set_kept(m, s, f[1], t->kept + unfilled - (n - left) * m->page_tokens);
    return STATUS_IS_OK;
}

static status apply_compact(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, table, kept
    if (!take_fields(r, f, 3)) return corrupt("delta log: COMPACT is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= s->groups) return corrupt("delta log: COMPACT of no table");
    mirror_table *t = &s->tables[f[1]];
    if (f[2] > t->kept) return corrupt("delta log: COMPACT keeps more than there is");
    uint32_t n = pages_for(m, f[2]);
    if ((size_t)(r->end - r->next) < n) return corrupt("delta log: COMPACT is cut off");
    /* Checked while the old pages still hold their references: moves read them. */
    for (uint32_t i = 0; i < n; i++) {
        if (!is_fresh(m, s, f[1], r->next[i]))
            return corrupt("delta log: COMPACT into a page that is taken");
    }
    for (uint32_t i = 0; i < t->n_pages; i++) mirror_clear_page(m, s, f[1], i);
    t->n_pages = 0;
    for (; t->n_pages < n; t->n_pages++) {
        if (!is_fresh(m, s, f[1], *r->next))
            return corrupt("delta log: COMPACT into one page twice");
        put_fresh(m, s, f[1], t->n_pages, *r->next++);
    }
    set_kept(m, s, f[1], f[2]);
    return STATUS_IS_OK;
}

static status apply_fork(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // parent, child, capacity
    if (!take_fields(r, f, 3)) return corrupt("delta log: FORK is cut off");
    const mirror_seq *parent = open_seq(m, f[0]);
    if (!parent) return corrupt("delta log: FORK of a closed sequence");
    if (f[1] >= m->max_seqs || m->seqs[f[1]].open)
        return corrupt("delta log: FORK into an open sequence");
    mirror_seq *child = &m->seqs[f[1]];
    uint32_t row = f[2] > 0 ? f[2] : 1;
    for (uint32_t g = 0; g < parent->groups; g++) {
        if (parent->tables[g].n_pages > row) row = parent->tables[g].n_pages;
    }
    RETURN_IF_ERROR(mirror_shape(m, child, parent->grain));
    RETURN_IF_ERROR(mirror_reserve(m, child, row));
    enter_open(m, child);
    for (uint32_t g = 0; g < child->groups; g++) {
        const mirror_table *from = &parent->tables[g];
        for (uint32_t i = 0; i < from->n_pages; i++)
            put_page(m, child, g, i, mirror_list(parent, g)[i]);
        child->tables[g].n_pages = from->n_pages;
        set_kept(m, child, g, from->kept);
    }
    return STATUS_IS_OK;
}

/* A page may stay for a sequence that returns: it is one that the sequence may hold, and fresh
 * where the words say so. */
static bool can_return(const pkv_mirror *m, const mirror_seq *s, uint32_t table, uint32_t word)
{
    return word & DELTA_FRESH ? is_fresh(m, s, table, word & ~DELTA_FRESH)
                              : is_page(m, s, table, word);
}

/* Checks the tables of RETURN or UNPARK, and finds the longest one's pages. */
static status check_returned(const pkv_mirror *m, const mirror_seq *s, const reader *r,
                             uint32_t *longest)
{
    const uint32_t *at = r->next;
    for (uint32_t g = 0; g < s->groups; g++) {
        if (at == r->end) return corrupt("delta log: RETURN is cut off");
        uint32_t kept = *at++, n = pages_for(m, kept);
        if (n >= m->tree.n_cells || kept > UINT32_MAX - m->page_tokens)
            return corrupt("delta log: RETURN holds too many pages");
        if ((size_t)(r->end - at) < n) return corrupt("delta log: RETURN is cut off");
        for (uint32_t i = 0; i < n; i++) {
            if (!can_return(m, s, g, *at++)) return corrupt("delta log: RETURN has no such page");
        }
        if (n > *longest) *longest = n;
    }
    return STATUS_IS_OK;
}

/* The next n pages of a table. */
static status return_pages(pkv_mirror *m, mirror_seq *s, uint32_t table, uint32_t n, reader *r,
                           bool parked)
{
    mirror_table *t = &s->tables[table];
    for (uint32_t i = 0; i < n; i++, t->n_pages++) {
        uint32_t word = *r->next++, page = word & ~DELTA_FRESH;
        if (!can_return(m, s, table, word)) return corrupt("delta log: RETURN to one page twice");
        (word & DELTA_FRESH ? put_fresh : put_page)(m, s, table, t->n_pages, page);
        page_state *was = &m->pool[node_of(&m->tree, s->grain, page)];
        if (parked && was->parked > 0) was->parked--;
    }
    return STATUS_IS_OK;
}

/* Pages that are not fresh may be shared: those of a parked sequence, which are parked once less
 * now, and blocks that were still resident when a swapped one came back, which others may have
 * parked. */
static status apply_return(pkv_mirror *m, reader *r, bool parked)
{
    uint32_t f[3], row = 1; // seq, grain, capacity
    if (!take_fields(r, f, 3)) return corrupt("delta log: RETURN is cut off");
    if (f[0] >= m->max_seqs || m->seqs[f[0]].open)
        return corrupt("delta log: RETURN of an open sequence");
    if (!is_grain(m, f[1])) return corrupt("delta log: RETURN at no grain");
    mirror_seq *s = &m->seqs[f[0]];
    RETURN_IF_ERROR(mirror_shape(m, s, (pkv_grain)f[1]));
    RETURN_IF_ERROR(check_returned(m, s, r, &row));
    RETURN_IF_ERROR(mirror_reserve(m, s, f[2] > row ? f[2] : row));
    enter_open(m, s);
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t kept = *r->next++, n = pages_for(m, kept);
        RETURN_IF_ERROR(return_pages(m, s, g, n, r, parked));
        set_kept(m, s, g, kept);
    }
    return STATUS_IS_OK;
}

static status apply_back(pkv_mirror *m, reader *r)
{
    uint32_t f[5]; // seq, parked, table, kept, n
    if (!take_fields(r, f, 5)) return corrupt("delta log: BACK is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[2] >= s->groups) return corrupt("delta log: BACK to no table");
    const mirror_table *t = &s->tables[f[2]];
    uint64_t n_pages = (uint64_t)t->n_pages + f[4];
    if ((size_t)(r->end - r->next) < f[4]) return corrupt("delta log: BACK is cut off");
    if (f[4] == 0 || t->kept % m->page_tokens != 0 || pages_for(m, f[3]) != n_pages ||
        n_pages >= m->tree.n_cells || f[3] > UINT32_MAX - m->page_tokens)
        return corrupt("delta log: BACK with a wrong number of pages");
    for (uint32_t i = 0; i < f[4]; i++)
        if (!can_return(m, s, f[2], r->next[i])) return corrupt("delta log: BACK has no such page");
    RETURN_IF_ERROR(mirror_reserve(m, s, (uint32_t)n_pages));
    RETURN_IF_ERROR(return_pages(m, s, f[2], f[4], r, f[1] != 0));
    set_kept(m, s, f[2], f[3]);
    return STATUS_IS_OK;
}

/* The fields of SPLIT and PART: a sequence, and a grain that it can go over to. */
static mirror_seq *seq_to_split(pkv_mirror *m, const uint32_t f[2])
{
    mirror_seq *s = open_seq(m, f[0]);
    bool ok = s && is_grain(m, f[1]) && f[1] > s->grain;
    return ok && (!s->splitting || f[1] >= s->splitting->to.grain) ? s : NULL;
}

static status apply_split(pkv_mirror *m, reader *r)
{
    uint32_t f[2]; // seq, grain
    if (!take_fields(r, f, 2)) return corrupt("delta log: SPLIT is cut off");
    mirror_seq *s = seq_to_split(m, f);
    return s ? mirror_split(m, s, (pkv_grain)f[1]) : corrupt("delta log: SPLIT to no finer grain");
}

static status apply_part(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, grain, n
    if (!take_fields(r, f, 3)) return corrupt("delta log: PART is cut off");
    mirror_seq *s = seq_to_split(m, f);
    if (!s || (s->splitting && f[1] != s->splitting->to.grain))
        return corrupt("delta log: PART to no finer grain");
    return mirror_split_some(m, s, (pkv_grain)f[1], f[2]);
}

/* Whether the operation, whose fields are next, changes a sequence that is being split or that is
 * leaving, and must not. */
static bool breaks_in(const pkv_mirror *m, const reader *r, uint32_t op)
{
    const mirror_seq *s = r->next < r->end ? open_seq(m, *r->next) : NULL;
    if (!s) return false;
    if (s->splitting) return op != DELTA_SPLIT && op != DELTA_PART;
    return s->leaves && op != DELTA_LEAVE && op != DELTA_CLOSE && op != DELTA_PARK;
}

status pkv_mirror_apply(pkv_mirror *m, const uint32_t *words, size_t n_words)
{
    reader r = {words, words + n_words};
    while (r.next < r.end) {
        uint32_t op = *r.next++;
        if (breaks_in(m, &r, op))
            return corrupt("delta log: a change of a sequence that is being split or closed");
        switch (op) {
        case DELTA_OPEN: RETURN_IF_ERROR(apply_open(m, &r)); break;
        case DELTA_CLOSE: RETURN_IF_ERROR(apply_close(m, &r, false)); break;
        case DELTA_PARK: RETURN_IF_ERROR(apply_close(m, &r, true)); break;
        case DELTA_LEAVE: RETURN_IF_ERROR(apply_leave(m, &r)); break;
        case DELTA_HOLD: RETURN_IF_ERROR(apply_hold(m, &r)); break;
        case DELTA_APPEND: RETURN_IF_ERROR(apply_append(m, &r)); break;
        case DELTA_REPLACE: RETURN_IF_ERROR(apply_replace(m, &r)); break;
        case DELTA_TRIM: RETURN_IF_ERROR(apply_trim(m, &r)); break;
        case DELTA_DROP: RETURN_IF_ERROR(apply_drop(m, &r)); break;
        case DELTA_COMPACT: RETURN_IF_ERROR(apply_compact(m, &r)); break;
        case DELTA_FORK: RETURN_IF_ERROR(apply_fork(m, &r)); break;
        case DELTA_SPLIT: RETURN_IF_ERROR(apply_split(m, &r)); break;
        case DELTA_PART: RETURN_IF_ERROR(apply_part(m, &r)); break;
        case DELTA_RETURN: RETURN_IF_ERROR(apply_return(m, &r, false)); break;
        case DELTA_UNPARK: RETURN_IF_ERROR(apply_return(m, &r, true)); break;
        case DELTA_BACK: RETURN_IF_ERROR(apply_back(m, &r)); break;
        default: return corrupt("delta log: unknown operation");
        }
    }
    return STATUS_IS_OK;
}

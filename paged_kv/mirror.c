/* A backend's copy of the tables. Its words may come from a wire: every field is checked against
 * what the mirror knows, and what it allocates is bounded by its own sizes. */
#include "paged_kv/delta.h"
#include <string.h>

typedef struct mirror_table {
    uint32_t n_pages, kept;
} mirror_table;

typedef struct mirror_seq {
    bool open;
    uint32_t row;         // capacity of each list
    uint32_t *pages;      // [groups, row]
    mirror_table *tables; // [groups]
    uint64_t weight;      // weight of its tables' lengths in the checksum
} mirror_seq;

typedef struct page_state {
    uint32_t refs; // references in tables; a fresh page has none
    uint32_t group;
    uint32_t parked; // parked since it was fresh, less those that came back
} page_state;

struct pkv_mirror {
    uint32_t groups, page_tokens, n_pages, max_seqs;
    allocator alloc;
    mirror_seq *seqs; // [max_seqs]
    page_state *pool; // [n_pages]
    uint32_t touched; // pages from here on are unset and mean 0: an idle pool costs no memory
    uint64_t checksum;
};

/* The words of one pkv_mirror_apply. */
typedef struct reader {
    const uint32_t *next, *end;
} reader;

static status corrupt(const char *what) { return status_make(STATUS_CORRUPT, what); }

status pkv_mirror_create(const pkv_geometry *geometry, uint32_t n_pages, uint32_t max_seqs,
                         const allocator *alloc, pkv_mirror **out)
{
    RETURN_IF_ERROR(pkv_geometry_check(geometry, NULL));
    if (n_pages < 2 || max_seqs < 1) return status_make(STATUS_INVALID, "empty mirror");
    const allocator *a = alloc ? alloc : &allocator_default;
    pkv_mirror *m = alloc_zeroed(a, 1, sizeof *m);
    if (!m) return status_make(STATUS_NO_MEMORY, NULL);
    m->groups = pkv_groups(geometry);
    m->page_tokens = geometry->page_tokens;
    m->n_pages = n_pages;
    m->max_seqs = max_seqs;
    m->alloc = *a;
    m->seqs = alloc_zeroed(a, max_seqs, sizeof *m->seqs);
    m->pool = alloc_resize(a, NULL, n_pages, sizeof *m->pool);
    if (!m->seqs || !m->pool) {
        pkv_mirror_destroy(m);
        return status_make(STATUS_NO_MEMORY, NULL);
    }
    *out = m;
    return STATUS_IS_OK;
}

void pkv_mirror_destroy(pkv_mirror *m)
{
    if (!m) return;
    for (uint32_t i = 0; m->seqs && i < m->max_seqs; i++) {
        alloc_free(&m->alloc, m->seqs[i].pages);
        alloc_free(&m->alloc, m->seqs[i].tables);
    }
    alloc_free(&m->alloc, m->seqs);
    alloc_free(&m->alloc, m->pool);
    allocator a = m->alloc;
    alloc_free(&a, m);
}

uint64_t pkv_mirror_checksum(const pkv_mirror *m) { return m->checksum; }

pkv_table_view pkv_mirror_table(const pkv_mirror *m, uint32_t seq, uint32_t group)
{
    if (seq >= m->max_seqs || group >= m->groups || !m->seqs[seq].open) return (pkv_table_view){0};
    const mirror_seq *s = &m->seqs[seq];
    return (pkv_table_view){
        .pages = s->pages + (size_t)group * s->row,
        .n_pages = s->tables[group].n_pages,
        .kept_tokens = s->tables[group].kept,
    };
}

pkv_mirror_page pkv_mirror_page_at(const pkv_mirror *m, uint32_t page)
{
    if (page >= m->touched) return (pkv_mirror_page){0};
    const page_state *p = &m->pool[page];
    return (pkv_mirror_page){
        .held = p->refs > 0, .shared = p->refs > 1, .parked = p->parked > 0, .group = p->group};
}

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

static uint32_t *list_of(const mirror_seq *s, uint32_t group)
{
    return s->pages + (size_t)group * s->row;
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

static bool is_page(const pkv_mirror *m, uint32_t page) { return page >= 1 && page < m->n_pages; }

static bool is_fresh(const pkv_mirror *m, uint32_t page)
{
    return is_page(m, page) && (page >= m->touched || m->pool[page].refs == 0);
}

/* Makes every list hold at least `row` pages. A list never needs more than the pool has. */
static status reserve_lists(pkv_mirror *m, mirror_seq *s, uint32_t row)
{
    if (row >= m->n_pages) row = m->n_pages - 1;
    if (!s->tables) {
        s->tables = alloc_zeroed(&m->alloc, m->groups, sizeof *s->tables);
        if (!s->tables) return status_make(STATUS_NO_MEMORY, NULL);
    }
    if (row <= s->row) return STATUS_IS_OK;
    uint32_t half_more = s->open ? s->row + s->row / 2 : 0;
    if (row < half_more) row = half_more;
    uint32_t *pages = alloc_resize(&m->alloc, NULL, (size_t)m->groups * row, sizeof *pages);
    if (!pages) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t g = 0; s->open && g < m->groups; g++) {
        memcpy(pages + (size_t)g * row, list_of(s, g), s->tables[g].n_pages * sizeof *pages);
    }
    alloc_free(&m->alloc, s->pages);
    s->pages = pages;
    s->row = row;
    return STATUS_IS_OK;
}

static uint64_t key_of(const pkv_mirror *m, const mirror_seq *s, uint32_t group)
{
    return checksum_key((uint32_t)(s - m->seqs), group);
}

static void set_kept(pkv_mirror *m, mirror_seq *s, uint32_t group, uint32_t kept)
{
    uint64_t key = key_of(m, s, group);
    m->checksum += checksum_kept(key, kept) - checksum_kept(key, s->tables[group].kept);
    s->tables[group].kept = kept;
}

static void put_page(pkv_mirror *m, mirror_seq *s, uint32_t group, uint32_t index, uint32_t page)
{
    list_of(s, group)[index] = page;
    while (m->touched <= page) m->pool[m->touched++] = (page_state){0};
    m->pool[page].refs++;
    m->pool[page].group = group;
    m->checksum += checksum_page(key_of(m, s, group), index, page);
}

/* put_page for a fresh page, which no table holds. */
static void put_fresh(pkv_mirror *m, mirror_seq *s, uint32_t group, uint32_t index, uint32_t page)
{
    put_page(m, s, group, index, page);
    m->pool[page].parked = 0;
}

static void clear_page(pkv_mirror *m, mirror_seq *s, uint32_t group, uint32_t index)
{
    uint32_t page = list_of(s, group)[index];
    m->pool[page].refs--;
    m->checksum -= checksum_page(key_of(m, s, group), index, page);
}

static void enter_open(pkv_mirror *m, mirror_seq *s)
{
    s->open = true;
    m->checksum += checksum_seq((uint32_t)(s - m->seqs));
    s->weight = 0;
    for (uint32_t g = 0; g < m->groups; g++) {
        s->tables[g] = (mirror_table){0};
        s->weight += checksum_weight(key_of(m, s, g));
    }
}

/* ---- one function for each operation (delta.h) ----------------------------------------------- */

static status apply_open(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, capacity, n
    if (!take_fields(r, f, 3)) return corrupt("delta log: OPEN is cut off");
    if (f[0] >= m->max_seqs || m->seqs[f[0]].open)
        return corrupt("delta log: OPEN of an open sequence");
    if (f[2] > (m->n_pages - 1) / m->groups || f[2] > UINT32_MAX / m->page_tokens)
        return corrupt("delta log: OPEN holds too many pages");
    size_t n = (size_t)f[2] * m->groups;
    if ((size_t)(r->end - r->next) < n) return corrupt("delta log: OPEN is cut off");
    for (size_t i = 0; i < n; i++) {
        if (!is_page(m, r->next[i])) return corrupt("delta log: OPEN has no such page");
    }
    mirror_seq *s = &m->seqs[f[0]];
    RETURN_IF_ERROR(reserve_lists(m, s, f[1] > f[2] ? f[1] : f[2] > 0 ? f[2] : 1));
    enter_open(m, s);
    for (uint32_t g = 0; g < m->groups; g++) {
        for (uint32_t i = 0; i < f[2]; i++) put_page(m, s, g, i, *r->next++);
        s->tables[g].n_pages = f[2];
        set_kept(m, s, g, f[2] * m->page_tokens);
    }
    return STATUS_IS_OK;
}

static status apply_close(pkv_mirror *m, reader *r)
{
    uint32_t seq;
    if (!take_fields(r, &seq, 1)) return corrupt("delta log: CLOSE is cut off");
    mirror_seq *s = open_seq(m, seq);
    if (!s) return corrupt("delta log: CLOSE of a closed sequence");
    for (uint32_t g = 0; g < m->groups; g++) {
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++) clear_page(m, s, g, i);
        m->checksum -= checksum_kept(key_of(m, s, g), s->tables[g].kept);
    }
    m->checksum -= checksum_seq(seq);
    s->open = false;
    return STATUS_IS_OK;
}

static void mark_parked(const pkv_mirror *m, const mirror_seq *s)
{
    for (uint32_t g = 0; g < m->groups; g++)
        for (uint32_t i = 0; i < s->tables[g].n_pages; i++) m->pool[list_of(s, g)[i]].parked++;
}

static status apply_park(pkv_mirror *m, reader *r)
{
    const mirror_seq *s = r->next < r->end ? open_seq(m, *r->next) : NULL;
    if (s) mark_parked(m, s);
    return apply_close(m, r);
}

static status apply_hold(const pkv_mirror *m, reader *r)
{
    uint32_t seq;
    if (!take_fields(r, &seq, 1)) return corrupt("delta log: HOLD is cut off");
    const mirror_seq *s = open_seq(m, seq);
    if (!s) return corrupt("delta log: HOLD of a closed sequence");
    mark_parked(m, s);
    return STATUS_IS_OK;
}

static status apply_append(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, n, n_fresh
    if (!take_fields(r, f, 3)) return corrupt("delta log: APPEND is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] == 0) return corrupt("delta log: APPEND to a closed sequence");
    if ((size_t)(r->end - r->next) < f[2]) return corrupt("delta log: APPEND is cut off");
    uint64_t fresh = 0;
    uint32_t longest = 0;
    for (uint32_t g = 0; g < m->groups; g++) {
        const mirror_table *t = &s->tables[g];
        if (f[1] > UINT32_MAX - m->page_tokens - t->kept) {
            return corrupt("delta log: APPEND past 2^32 tokens");
        }
        uint32_t more = pages_needed(m, t, f[1]);
        fresh += more;
        if (t->n_pages + more > longest) longest = t->n_pages + more;
    }
    if (fresh != f[2]) return corrupt("delta log: APPEND with a wrong number of pages");
    if (longest >= m->n_pages) return corrupt("delta log: APPEND past the pool");
    RETURN_IF_ERROR(reserve_lists(m, s, longest));
    for (uint32_t g = 0; g < m->groups; g++) {
        mirror_table *t = &s->tables[g];
        for (uint32_t more = pages_needed(m, t, f[1]); more > 0; more--) {
            uint32_t page = *r->next++;
            if (!is_fresh(m, page)) return corrupt("delta log: APPEND of a page that is taken");
            put_fresh(m, s, g, t->n_pages++, page);
        }
        t->kept += f[1];
    }
    m->checksum += s->weight * f[1];
    return STATUS_IS_OK;
}

static status apply_replace(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, group, page
    if (!take_fields(r, f, 3)) return corrupt("delta log: REPLACE is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= m->groups) return corrupt("delta log: REPLACE in no table");
    uint32_t n = s->tables[f[1]].n_pages;
    if (n == 0 || !is_fresh(m, f[2])) return corrupt("delta log: REPLACE by a page that is taken");
    clear_page(m, s, f[1], n - 1);
    put_fresh(m, s, f[1], n - 1, f[2]);
    return STATUS_IS_OK;
}

static status apply_trim(pkv_mirror *m, reader *r)
{
    uint32_t f[4]; // seq, group, kept, n
    if (!take_fields(r, f, 4)) return corrupt("delta log: TRIM is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= m->groups) return corrupt("delta log: TRIM of no table");
    mirror_table *t = &s->tables[f[1]];
    if (f[2] > t->kept) return corrupt("delta log: TRIM keeps more than there is");
    uint32_t left = pages_for(m, f[2]), n = f[3];
    if ((size_t)(r->end - r->next) < (size_t)2 * n) return corrupt("delta log: TRIM is cut off");
    /* Checked while the old pages still hold their references: moves read them. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = r->next[2 * i];
        if (index >= left || (i > 0 && index <= r->next[2 * i - 2]))
            return corrupt("delta log: TRIM of pages out of order");
        if (!is_fresh(m, r->next[2 * i + 1]))
            return corrupt("delta log: TRIM by a page that is taken");
    }
    for (uint32_t i = 0; i < n; i++) clear_page(m, s, f[1], r->next[2 * i]);
    for (uint32_t i = 0; i < n; i++, r->next += 2) {
        if (!is_fresh(m, r->next[1])) return corrupt("delta log: TRIM by one page twice");
        put_fresh(m, s, f[1], r->next[0], r->next[1]);
    }
    for (uint32_t i = left; i < t->n_pages; i++) clear_page(m, s, f[1], i);
    t->n_pages = left;
    set_kept(m, s, f[1], f[2]);
    return STATUS_IS_OK;
}

static status apply_drop(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, group, n
    if (!take_fields(r, f, 3)) return corrupt("delta log: DROP is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= m->groups) return corrupt("delta log: DROP in no table");
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
    uint32_t *pages = list_of(s, f[1]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = pages[i];
        clear_page(m, s, f[1], i);
        if (keep[i / 32] >> i % 32 & 1) put_page(m, s, f[1], left++, page);
    }
    t->n_pages = left;
    set_kept(m, s, f[1], t->kept + unfilled - (n - left) * m->page_tokens);
    return STATUS_IS_OK;
}

static status apply_compact(pkv_mirror *m, reader *r)
{
    uint32_t f[3]; // seq, group, kept
    if (!take_fields(r, f, 3)) return corrupt("delta log: COMPACT is cut off");
    mirror_seq *s = open_seq(m, f[0]);
    if (!s || f[1] >= m->groups) return corrupt("delta log: COMPACT of no table");
    mirror_table *t = &s->tables[f[1]];
    if (f[2] > t->kept) return corrupt("delta log: COMPACT keeps more than there is");
    uint32_t n = pages_for(m, f[2]);
    if ((size_t)(r->end - r->next) < n) return corrupt("delta log: COMPACT is cut off");
    /* Checked while the old pages still hold their references: moves read them. */
    for (uint32_t i = 0; i < n; i++) {
        if (!is_fresh(m, r->next[i]))
            return corrupt("delta log: COMPACT into a page that is taken");
    }
    for (uint32_t i = 0; i < t->n_pages; i++) clear_page(m, s, f[1], i);
    t->n_pages = 0;
    for (; t->n_pages < n; t->n_pages++) {
        if (!is_fresh(m, *r->next)) return corrupt("delta log: COMPACT into one page twice");
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
    for (uint32_t g = 0; g < m->groups; g++) {
        if (parent->tables[g].n_pages > row) row = parent->tables[g].n_pages;
    }
    RETURN_IF_ERROR(reserve_lists(m, child, row));
    enter_open(m, child);
    for (uint32_t g = 0; g < m->groups; g++) {
        const mirror_table *from = &parent->tables[g];
        for (uint32_t i = 0; i < from->n_pages; i++)
            put_page(m, child, g, i, list_of(parent, g)[i]);
        child->tables[g].n_pages = from->n_pages;
        set_kept(m, child, g, from->kept);
    }
    return STATUS_IS_OK;
}

/* The pages may be shared: blocks that were still resident. Pages of a parked sequence are parked
 * once less. Pages of a swapped one are fresh: sequences parked in them earlier have gone, so what
 * their count still holds is stale. */
static status apply_return(pkv_mirror *m, reader *r)
{
    uint32_t f[2], row = 1; // seq, capacity
    if (!take_fields(r, f, 2)) return corrupt("delta log: RETURN is cut off");
    if (f[0] >= m->max_seqs || m->seqs[f[0]].open)
        return corrupt("delta log: RETURN of an open sequence");
    const uint32_t *at = r->next;
    for (uint32_t g = 0; g < m->groups; g++) {
        if (at == r->end) return corrupt("delta log: RETURN is cut off");
        uint32_t kept = *at++, n = pages_for(m, kept);
        if (n >= m->n_pages || kept > UINT32_MAX - m->page_tokens)
            return corrupt("delta log: RETURN holds too many pages");
        if ((size_t)(r->end - at) < n) return corrupt("delta log: RETURN is cut off");
        for (uint32_t i = 0; i < n; i++) {
            if (!is_page(m, *at++)) return corrupt("delta log: RETURN has no such page");
        }
        if (n > row) row = n;
    }
    mirror_seq *s = &m->seqs[f[0]];
    RETURN_IF_ERROR(reserve_lists(m, s, f[1] > row ? f[1] : row));
    enter_open(m, s);
    for (uint32_t g = 0; g < m->groups; g++) {
        uint32_t kept = *r->next++, n = pages_for(m, kept);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t page = *r->next++;
            put_page(m, s, g, i, page);
            if (m->pool[page].parked > 0) m->pool[page].parked--;
        }
        s->tables[g].n_pages = n;
        set_kept(m, s, g, kept);
    }
    return STATUS_IS_OK;
}

status pkv_mirror_apply(pkv_mirror *m, const uint32_t *words, size_t n_words)
{
    reader r = {words, words + n_words};
    while (r.next < r.end) {
        switch (*r.next++) {
        case DELTA_OPEN: RETURN_IF_ERROR(apply_open(m, &r)); break;
        case DELTA_CLOSE: RETURN_IF_ERROR(apply_close(m, &r)); break;
        case DELTA_PARK: RETURN_IF_ERROR(apply_park(m, &r)); break;
        case DELTA_HOLD: RETURN_IF_ERROR(apply_hold(m, &r)); break;
        case DELTA_APPEND: RETURN_IF_ERROR(apply_append(m, &r)); break;
        case DELTA_REPLACE: RETURN_IF_ERROR(apply_replace(m, &r)); break;
        case DELTA_TRIM: RETURN_IF_ERROR(apply_trim(m, &r)); break;
        case DELTA_DROP: RETURN_IF_ERROR(apply_drop(m, &r)); break;
        case DELTA_COMPACT: RETURN_IF_ERROR(apply_compact(m, &r)); break;
        case DELTA_FORK: RETURN_IF_ERROR(apply_fork(m, &r)); break;
        case DELTA_RETURN: RETURN_IF_ERROR(apply_return(m, &r)); break;
        default: return corrupt("delta log: unknown operation");
        }
    }
    return STATUS_IS_OK;
}

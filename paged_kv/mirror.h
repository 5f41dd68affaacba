/* The state of a mirror, private to its files. */
#ifndef PAGED_KV_MIRROR_H
#define PAGED_KV_MIRROR_H

#include "paged_kv/delta.h"
#include "paged_kv/tree.h"

typedef struct mirror_table {
    uint32_t n_pages, kept;
} mirror_table;

typedef struct mirror_seq {
    bool open;
    pkv_grain grain;
    uint32_t groups;                    // tables of this grain
    uint32_t row;                       // capacity of each list
    size_t cap_list;                    // capacity of `pages`
    uint32_t cap_tables;                // capacity of `tables`
    uint32_t *pages;                    // [groups, row]
    mirror_table *tables;               // [groups]
    uint64_t weight;                    // of the lengths of its first n_weighed tables, in the
    uint32_t n_weighed;                 // checksum
    struct mirror_splitting *splitting; // NULL = none of its pages is split
    /* It is being closed in portions: tables before left_table are no longer held, nor are those of
     * its layer from page left_rows on. */
    bool leaves;
    uint32_t left_table, left_rows;
} mirror_seq;

/* A sequence that goes over to a finer grain in portions. Its tables are as before until all pages
 * are split; the parts of those before the next one have their references already. */
typedef struct mirror_splitting {
    mirror_seq to;
    uint32_t table, page; // of the sequence's tables: the next page to split
    uint64_t checksum;    // terms of the pages of `to`
} mirror_splitting;

typedef struct page_state {
    uint32_t refs;             // references in tables; a fresh page has none
    uint32_t below;            // those of its parts, which a fresh page has not either
    uint32_t group;            // of the finest grain: of the page's first cell
    uint32_t parked : 31;      // parked since it was fresh, less those that came back
    uint32_t parts_parked : 1; // some part of it may have been parked since it was fresh
} page_state;

struct pkv_mirror {
    pkv_geometry geometry;
    pkv_tree tree; // its numbers of cells and nodes alone
    uint32_t page_tokens, max_seqs;
    allocator alloc;
    mirror_seq *seqs; // [max_seqs]
    page_state *pool; // by node
    uint64_t checksum;
};

static inline uint32_t *mirror_list(const mirror_seq *s, uint32_t table)
{
    return s->pages + (size_t)table * s->row;
}
static inline uint64_t mirror_key(const pkv_mirror *m, const mirror_seq *s, uint32_t table)
{
    return checksum_key((uint32_t)(s - m->seqs), table);
}
/* Counts one reference of a page more, or one less (`sign` -1). */
static inline void mirror_count_ref(pkv_mirror *m, uint32_t node, uint32_t sign)
{
    m->pool[node].refs += sign;
    while (node < tree_whole_at(&m->tree)) {
        node = node_above(&m->tree, node);
        m->pool[node].below += sign;
    }
}
/* Gives up page `index` of a table. */
static inline void mirror_clear_page(pkv_mirror *m, const mirror_seq *s, uint32_t table,
                                     uint32_t index)
{
    uint32_t page = mirror_list(s, table)[index];
    mirror_count_ref(m, node_of(&m->tree, s->grain, page), (uint32_t)-1);
    m->checksum -= checksum_page(mirror_key(m, s, table), index, page);
}
/* Notes that a parked sequence holds the page. */
static inline void mirror_mark_parked(const pkv_mirror *m, const mirror_seq *s, uint32_t page)
{
    uint32_t node = node_of(&m->tree, s->grain, page);
    m->pool[node].parked++;
    while (node < tree_whole_at(&m->tree)) {
        node = node_above(&m->tree, node);
        m->pool[node].parts_parked = 1;
    }
}
/* Sets the weight to that of the first n tables. */
static inline void mirror_weigh(const pkv_mirror *m, mirror_seq *s, uint32_t n)
{
    s->weight = 0;
    s->n_weighed = n;
    for (uint32_t g = 0; g < n; g++) s->weight += checksum_weight(mirror_key(m, s, g));
}
/* Gives a closed sequence the tables of a grain. */
status mirror_shape(pkv_mirror *m, mirror_seq *s, pkv_grain grain);
/* Makes every list hold at least `row` pages. A list never needs more than the pool has. */
status mirror_reserve(pkv_mirror *m, mirror_seq *s, uint32_t row);

/* ---- mirror_split.c ---- */
/* SPLIT to a finer grain than the sequence has, or than it is being split to. */
status mirror_split(pkv_mirror *m, mirror_seq *s, pkv_grain grain);
/* PART to a finer grain, the same one each time. */
status mirror_split_some(pkv_mirror *m, mirror_seq *s, pkv_grain grain, uint32_t n);
void mirror_splitting_free(pkv_mirror *m, mirror_seq *s);

/* ---- mirror_leave.c ---- */
/* LEAVE: n rows of an open sequence. */
status mirror_leave(pkv_mirror *m, mirror_seq *s, bool parked, uint32_t n);
/* CLOSE, or PARK: all rows that are left. */
void mirror_close(pkv_mirror *m, mirror_seq *s, bool parked);

#endif

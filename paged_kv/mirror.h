/* The state of a mirror, private to mirror.c and mirror_apply.c. */
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
    uint32_t groups;      // tables of this grain
    uint32_t row;         // capacity of each list
    size_t cap_list;      // capacity of `pages`
    uint32_t cap_tables;  // capacity of `tables`
    uint32_t *pages;      // [groups, row]
    mirror_table *tables; // [groups]
    uint64_t weight;      // weight of its tables' lengths in the checksum
} mirror_seq;

typedef struct page_state {
    uint32_t refs;             // references in tables; a fresh page has none
    uint32_t below;            // those of its parts, which a fresh page has not either
    uint32_t group;            // of the finest grain: of the page's first cell
    uint32_t parked : 31;      // parked since it was fresh, less those that came back
    uint32_t parts_parked : 1; // some part of it may have been parked since it was fresh
} page_state;

struct pkv_mirror {
    pkv_geometry geometry;
    pkv_tree tier; // its numbers of cells and nodes alone
    uint32_t page_tokens, max_seqs;
    allocator alloc;
    mirror_seq *seqs; // [max_seqs]
    page_state *pool; // by node
    uint64_t checksum;
};

#endif

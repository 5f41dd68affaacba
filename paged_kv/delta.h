/* The words of the delta log: what pkv_take_deltas gives and pkv_mirror_apply takes. Private to
 * paged_kv; a wire carries the words as they are (little-endian u32).
 *
 * Each operation is its code and its fields, one word each. P = page_tokens; pages are
 * listed table by table. G is the number of tables of the sequence's grain.
 *
 *   OPEN    seq grain capacity n pages[G * n]    a sequence whose tables hold n full pages each (a
 *                                                prefix hit)
 *   CLOSE   seq                                  all its references are given up
 *   PARK    seq                                  the sequence is closed, its pages stay as they are
 *   HOLD    seq                                  a parked copy was made: its pages stay as they are
 *                                                even when the sequence gives them up
 *   LEAVE   seq parked n                         the next n rows of its tables are given up, or if
 *                                                parked is 1, stay as they are, and some are left.
 *                                                A row is page i of each table of a layer; the
 *                                                last row of the first layer goes first. The tables
 *                                                are as before until CLOSE or PARK, which comes
 *                                                before any other change and is of what is left
 *   APPEND  seq tables n n_fresh pages[n_fresh]  n tokens more in each of the first so many tables;
 *                                                the fresh pages that it takes
 *   REPLACE seq table page                       the last page of a table gives way to a fresh one
 *   TRIM    seq table kept n (index page)[n]     the table's first `kept` tokens stay and its pages
 *                                                from ceil(kept / P) on are given up; before that
 *                                                the pages at n indices, ascending, gave way to
 *                                                fresh ones
 *   DROP    seq table n keep[ceil(n / 32)]       of the table's n pages those with bit 0 are given
 *                                                up; bit i is bit i % 32 of word i / 32, bits from
 *                                                n on are 0
 *   COMPACT seq table kept pages[ceil(kept / P)] the table's kept tokens were gathered into fresh
 *                                                pages
 *   FORK    parent child capacity                child becomes a copy of parent
 *   SPLIT   seq grain                            every page of its tables, or every one that is
 *                                                left, gives way to its parts
 *   PART    seq grain n                          the next n pages of its tables, table by table, do
 *                                                so, and some are left. The tables are as before
 *                                                until SPLIT, which comes before any other change
 *   RETURN  seq grain capacity, then for each    a sequence comes back from the host tier; a page
 *           kept pages[ceil(kept / P)]           that is fresh has DELTA_FRESH added to it
 *   UNPARK  as RETURN                            a parked sequence comes back (the sequence was
 *                                                closed when it went)
 *   BACK    seq parked table kept n pages[n]     n pages more come back behind those of a table,
 *                                                which then keeps so many tokens: as RETURN, or if
 *                                                parked is 1, as UNPARK. Or they are more of a
 *                                                prefix hit
 *
 * A fresh page is one that no table holds. `capacity` says how many pages a table will probably
 * grow to, so that later appends allocate nothing; a hint. */
#ifndef PAGED_KV_DELTA_H
#define PAGED_KV_DELTA_H

#include "paged_kv/log.h"

/* Lists of a closed sequence are kept for the next one where they have room for no more pages: a
 * long sequence with a table for each head has lists of tens of megabytes. */
enum { PKV_LISTS_KEPT = 1 << 20 };

typedef enum delta_op {
    DELTA_OPEN = 1,
    DELTA_CLOSE,
    DELTA_APPEND,
    DELTA_REPLACE,
    DELTA_DROP,
    DELTA_COMPACT,
    DELTA_FORK,
    DELTA_RETURN,
    DELTA_TRIM,
    DELTA_PARK,
    DELTA_HOLD,
    DELTA_SPLIT,
    DELTA_UNPARK,
    DELTA_PART,
    DELTA_LEAVE,
    DELTA_BACK,
} delta_op;

#define DELTA_FRESH UINT32_C(0x80000000) /* above every page number */

enum {
    DELTA_CLOSE_WORDS = 2, /* and of PARK, HOLD */
    DELTA_REPLACE_WORDS = 4,
    DELTA_FORK_WORDS = 4,
    DELTA_OPEN_HEAD = 5, /* words before the list */
    DELTA_APPEND_HEAD = 5,
    DELTA_TRIM_HEAD = 5,
    DELTA_DROP_HEAD = 4,
    DELTA_COMPACT_HEAD = 4,
    DELTA_RETURN_HEAD = 4, /* and of UNPARK */
    DELTA_BACK_HEAD = 6,
    DELTA_SPLIT_WORDS = 3,
    DELTA_PART_WORDS = 4,
    DELTA_LEAVE_WORDS = 4,
};

static inline uint32_t delta_bit_words(uint32_t n) { return n / 32 + (n % 32 != 0); }

/* The checksum of pool and mirror is a wrapping sum of one term for each open sequence, each
 * table's length and each page at its index. So a change costs only what it touches, and the order
 * of changes does not matter. A length's term is linear (times an odd number), so appending to all
 * tables of a sequence costs one multiplication by the sum of their weights. */
static inline uint64_t checksum_key(uint32_t seq, uint32_t table)
{
    return hash_mix64(((uint64_t)seq << 32 | table) + 0x9e3779b97f4a7c15ull);
}
static inline uint64_t checksum_seq(uint32_t seq) { return ~checksum_key(seq, UINT32_MAX); }
static inline uint64_t checksum_weight(uint64_t key) { return key | 1; }
static inline uint64_t checksum_kept(uint64_t key, uint32_t kept)
{
    return checksum_weight(key) * kept;
}
static inline uint64_t checksum_page(uint64_t key, uint32_t index, uint32_t page)
{
    return hash_mix64(key + ((uint64_t)index << 32 | page));
}

#endif

/* paged_kv, private: writing the delta log, whose words delta.h describes. */
#ifndef PAGED_KV_DELTA_LOG_H
#define PAGED_KV_DELTA_LOG_H

#include "paged_kv/state.h"

/* Makes room for this many words and moves besides the reserve, which grows by `more_reserve`
 * words. */
status log_room(pkv *p, size_t words, size_t moves, size_t more_reserve);
/* Words that the log reserves for an open sequence of that many tables, with lists of `row`
 * pages. */
size_t log_reserve_of(uint32_t groups, uint32_t row);
static inline void log_word(pkv *p, uint32_t word)
{
    assert(p->log.n_words < p->log.cap_words);
    p->log.words[p->log.n_words++] = word;
}
void log_move(pkv *p, pkv_move move);
/* Logs a TRIM without pages; returns the index of its count of pages. */
size_t log_trim(pkv *p, uint32_t seq, uint32_t table, uint32_t kept);
/* Logs a drop; keep has bits over the table's n_pages before the drop. */
void log_drop(pkv *p, uint32_t seq, uint32_t table, const uint64_t *keep);

#endif

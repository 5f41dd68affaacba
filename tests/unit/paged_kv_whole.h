/* Sequences and records that leave, come back or are discarded in one portion, for tests of what
 * does not depend on portions. */
#ifndef TESTS_UNIT_PAGED_KV_WHOLE_H
#define TESTS_UNIT_PAGED_KV_WHOLE_H

#include "paged_kv/paged_kv.h"

static inline status park_whole(pkv *kv, uint32_t seq, uint32_t *parked)
{
    return pkv_seq_leave_some(kv, seq, PKV_PARK, UINT32_MAX, parked);
}

static inline status unpark_whole(pkv *kv, uint32_t parked, uint32_t seq, uint32_t expect_tokens)
{
    return pkv_unpark_some(kv, parked, seq, expect_tokens, UINT32_MAX);
}

static inline status swap_out_parked_whole(pkv *kv, uint32_t parked, uint32_t *swap)
{
    return pkv_parked_swap_out_some(kv, parked, UINT32_MAX, swap);
}

/* Discards a parked or swapped sequence, and all that were discarded before it. */
static inline void discard_whole(pkv *kv, uint32_t number)
{
    pkv_discard_later(kv, number);
    (void)pkv_discard_some(kv, UINT32_MAX);
}

#endif

/* Gives up pages of sequences without a slot, idle sessions and waiting sequences, moves them to
 * the host tier, or takes pages for prompts that another server has computed. Long tables have
 * millions of pages, more than others should wait for in one sched_step, so this is done in
 * portions, as for running sequences (leave.c). One sequence at a time moves: s->moving. */
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

void sched_away_begin(sched *s)
{
    uint32_t portion = sched_portion(s);
    s->away_left = portion > 0 ? portion : 1;
}

void sched_away_spend(sched *s, uint32_t n)
{
    if (s->away_left == UINT32_MAX) return;
    s->away_left -= n < s->away_left ? n : s->away_left;
}

/* False when nothing is left to discard, or nothing of this step's portion. */
static bool discard_some(sched *s)
{
    if (s->away_left == 0 || pkv_discards(s->kv) + pkv_host_discards(s->kv) == 0) return false;
    sched_away_spend(s, pkv_discard_some(s->kv, s->away_left));
    return true;
}

void sched_discard(sched *s, uint32_t number)
{
    if (number == s->moving) { /* note_moved discards it, once it is in the tier */
        s->moving_session = NULL;
        s->moving_seq = NULL;
        return;
    }
    pkv_discard_later(s->kv, number);
    (void)discard_some(s);
}

/* Tells the owner of the parked sequence, which is in the host tier now, of its new number. Nobody
 * owns one that was discarded while it moved. */
static void note_moved(sched *s, uint32_t swap)
{
    sched_session *session = s->moving_session;
    sched_seq *q = s->moving_seq;
    s->moving = 0;
    s->moving_session = NULL;
    s->moving_seq = NULL;
    if (session) {
        sched_idle_to_tier(s, session, swap);
        sched_remove_kept(s, session->n_tokens, session->kept);
        s->stats.swapped_tokens += session->n_tokens;
    } else if (q) {
        sched_remove_kept(s, q->computed, q->kept);
        s->stats.swapped_tokens += q->computed;
        q->parked = 0;
        q->swap = swap;
    } else {
        sched_discard(s, swap);
    }
}

/* Moves a portion of the parked sequence. */
static status move_some(sched *s, uint32_t parked)
{
    uint32_t swap;
    RETURN_IF_ERROR(pkv_parked_swap_out_some(s->kv, parked, s->away_left, &swap));
    s->moving = parked;
    if (swap == 0) sched_away_spend(s, s->away_left);
    else note_moved(s, swap);
    return STATUS_IS_OK;
}

status sched_move_session(sched *s, sched_session *session)
{
    s->moving_session = session;
    status st = move_some(s, session->parked);
    if (!status_ok(st)) s->moving_session = NULL;
    return st;
}

status sched_move_seq(sched *s, sched_seq *q)
{
    s->moving_seq = q;
    status st = move_some(s, q->parked);
    if (!status_ok(st)) s->moving_seq = NULL;
    return st;
}

void sched_moves_to(sched *s, uint32_t parked, sched_seq *q)
{
    if (parked == 0 || parked != s->moving) return;
    s->moving_session = NULL;
    s->moving_seq = q;
}

bool sched_away_frees(const sched *s)
{
    return s->moving != 0 || s->away_left == 0 || pkv_discards(s->kv) > 0;
}

bool sched_away_go_on(sched *s)
{
    bool went = discard_some(s);
    if (s->moving != 0 && s->away_left > 0) went |= status_ok(move_some(s, s->moving));
    while (sched_load_take_some(s)) went = true;
    return went;
}

bool sched_away_again(sched *s)
{
    bool spent = s->away_left == 0; /* others may wait for what this step may no longer change */
    sched_away_begin(s);
    return sched_away_go_on(s) || spent;
}

const char *sched_away_check(const sched *s)
{
    const sched_session *x = s->moving_session;
    const sched_seq *q = s->moving_seq;
    bool right = !(x && q) && (!x || x->parked == s->moving) && (!q || q->parked == s->moving) &&
                 (s->moving != 0 || (!x && !q)) && (!q || q->state == SEQ_WAITING);
    return right ? NULL : "a sequence that is being moved to the host tier is not known as one";
}

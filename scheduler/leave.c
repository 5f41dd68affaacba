/* Closes the tables of sequences that are preempted or over, and opens those of sequences that were
 * parked or swapped out. A long sequence with a table for each head has millions of pages, more
 * than others should wait for in one sched_step, so this is done in portions. Meanwhile the
 * sequence has its slot, but no share of a step, and is no victim. */
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"

/* A portion has one page for every SLOTS_OF_PAGE of options.hand_out_slots. */
enum { SLOTS_OF_PAGE = 4 };

uint32_t sched_portion(const sched *s)
{
    uint64_t most = s->options.hand_out_slots / SLOTS_OF_PAGE;
    return s->options.hand_out_slots == 0 || most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
}

/* Looking at a page takes less than changing one. */
enum { LOOKED_AT_ONCE = 2 };

uint32_t sched_look_portion(const sched *s)
{
    uint32_t portion = sched_portion(s);
    if (portion == 0) return 1;
    return portion > UINT32_MAX / LOOKED_AT_ONCE ? UINT32_MAX : LOOKED_AT_ONCE * portion;
}

static void set_leaving(sched *s, sched_seq *q, bool leaving, pkv_way way)
{
    s->n_leaving -= q->leaving;
    s->n_giving -= q->leaving && q->way != PKV_PARK;
    q->leaving = leaving;
    q->way = way;
    s->n_leaving += leaving;
    s->n_giving += leaving && way != PKV_PARK;
}

/* Notes what has become of the tables, which had n_tokens. */
static void note_closed(sched *s, sched_seq *q, pkv_way way, uint32_t number, uint32_t n_tokens)
{
    set_leaving(s, q, false, way);
    if (way == PKV_PARK) {
        q->parked = number;
        return;
    }
    sched_remove_kept(s, n_tokens, q->kept);
    if (way == PKV_GIVE_UP) {
        q->kept = 0;
        return;
    }
    q->swap = number;
    s->stats.swaps_out++;
    s->stats.swapped_tokens += n_tokens;
}

static void note_opened(sched *s, sched_seq *q)
{
    s->n_arriving -= q->arriving;
    q->arriving = false;
}

/* Takes away a portion of at most `most` pages. STATUS_NO_PAGES changes nothing. Where memory is
 * out, all pages are given up at once. */
static status leave_some(sched *s, sched_seq *q, pkv_way way, uint32_t most)
{
    uint32_t number = 0, n_tokens = pkv_seq_length(s->kv, q->slot);
    sched_hit_stop(s, q);
    if (q->arriving) {
        note_opened(s, q);
        way = PKV_GIVE_UP;
    }
    status st = pkv_seq_leave_some(s->kv, q->slot, way, most, &number);
    if (st.code == STATUS_NO_PAGES) return st;
    if (status_ok(st) && pkv_seq_is_open(s->kv, q->slot)) {
        set_leaving(s, q, true, way);
        s->has_left = true;
        return st;
    }
    if (!status_ok(st)) {
        pkv_seq_close(s->kv, q->slot);
        set_leaving(s, q, false, way);
        way = PKV_GIVE_UP;
    }
    note_closed(s, q, way, number, n_tokens);
    return STATUS_IS_OK;
}

/* The way that the sequence goes already, else the one that it is to go. A sequence that waits for
 * room in the tier (sched_leave_later) has not begun. */
static pkv_way way_of(const sched *s, const sched_seq *q, pkv_way way)
{
    return pkv_seq_is_leaving(s->kv, q->slot) ? q->way : way;
}

status sched_leave(sched *s, sched_seq *q, pkv_way way)
{
    return leave_some(s, q, way_of(s, q, way), sched_portion(s));
}

void sched_leave_later(sched *s, sched_seq *q) { set_leaving(s, q, true, PKV_SWAP_OUT); }

bool sched_leave_waits(const sched *s, const sched_seq *q)
{
    const pkv_geometry *tables = pkv_seq_geometry(s->kv, q->slot);
    uint32_t cells = s->groups / pkv_groups(tables);
    return s->has_left && pkv_seq_pages_held(s->kv, q->slot) / cells > sched_portion(s);
}

void sched_has_opened(sched *s, sched_seq *q, uint32_t slot)
{
    q->arriving = pkv_seq_is_arriving(s->kv, slot);
    s->n_arriving += q->arriving;
}

status sched_arrive(sched *s, sched_seq *q)
{
    RETURN_IF_ERROR(pkv_seq_arrive(s->kv, q->slot, sched_portion(s)));
    if (!pkv_seq_is_arriving(s->kv, q->slot)) note_opened(s, q);
    return STATUS_IS_OK;
}

void sched_leave_all(sched *s, sched_seq *q, pkv_way way)
{
    do (void)leave_some(s, q, way_of(s, q, way), UINT32_MAX);
    while (q->leaving);
}

const char *sched_leave_check(const sched *s)
{
    uint32_t n_leaving = 0, n_giving = 0, n_arriving = 0;
    for (uint32_t i = 0; i < s->running.n; i++) {
        const sched_seq *q = s->running.seqs[i];
        n_leaving += q->leaving;
        n_giving += q->leaving && q->way != PKV_PARK;
        n_arriving += q->arriving;
        if (q->arriving != pkv_seq_is_arriving(s->kv, q->slot) || (q->arriving && q->leaving))
            return "a sequence whose tables come back is not known as one";
        if ((q->leaving || q->arriving) &&
            (q->planned > 0 || q->listed > 0 || q->selecting || q->loading))
            return "a sequence whose tables are being closed or opened is in use";
    }
    return n_leaving == s->n_leaving && n_giving == s->n_giving && n_arriving == s->n_arriving
               ? NULL
               : "sequences whose tables are being closed or opened are miscounted";
}

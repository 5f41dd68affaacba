/* Preemption: a sequence gives up pages and slot at once and goes back to its place in the waiting
 * list. Either its pages are swapped to the host tier and copied back when it runs again, or its
 * tokens are computed again then, with every retention selection coming out as it did. Pressure
 * retention, which may make a preemption unnecessary, is here too. */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

static void wait_again(sched *s, sched_seq *q)
{
    sched_seq_stop(s, q, SEQ_WAITING);
    q->planned = q->flying = 0;
    q->awaited = q->drop_planned = false;
    q->preemptions++;
    sched_list_insert(&s->waiting, q);
    s->n_preempted++;
    s->stats.preemptions++;
}

void sched_replay(sched *s, sched_seq *q)
{
    wait_again(s, q);
    q->computed = 0;
}

/* Decides between swap and replay for a sequence that dropped nothing. Computing a token is taken
 * to cost as much as copying the pages of COPY_GAIN tokens out and back: a low estimate, since for
 * a model of 10^9 parameters it is nearer to 1,000. SHORT_TOKENS are few enough to be computed
 * beside others in one step. */
enum { COPY_GAIN = 16, SHORT_TOKENS = 64 };

/* After a drop a replay computes all dropped tokens again, and takes the pages for them: swapping
 * is better. Without a drop, blocks that other sequences hold too cost a replay nothing; the
 * sequence's own blocks are the ones that others are waiting for. */
static bool is_worth_swapping(const sched *s, const sched_seq *q)
{
    if (pkv_seq_has_dropped(s->kv, q->slot)) return true;
    uint32_t anew = q->computed - pkv_seq_shared_tokens(s->kv, q->slot);
    return anew > SHORT_TOKENS &&
           (uint64_t)anew * COPY_GAIN * sched_groups_of(s, q->entry->n_layers) >
               (uint64_t)pkv_seq_pages_held(s->kv, q->slot) * s->page_tokens;
}

/* Swaps the sequence out, or a portion of it. Idle sessions leave the tier to make room, a long one
 * in several steps: then the sequence waits for it, marked as leaving. */
static status swap_out(sched *s, sched_seq *q)
{
    bool fits = pkv_seq_copy_cost(s->kv, q->slot) <= pkv_host_most(s->kv);
    for (;;) {
        status st = sched_leave(s, q, PKV_SWAP_OUT);
        if (st.code != STATUS_NO_PAGES || !fits) return st;
        if (pkv_host_discards(s->kv) > 0) {
            sched_leave_later(s, q);
            return STATUS_IS_OK;
        }
        if (!sched_sessions_leave_tier(s)) return st;
    }
}

/* The sequence, whose tables are closed, waits in its old place. */
static void wait_closed(sched *s, sched_seq *q)
{
    if (q->swap) wait_again(s, q);
    else sched_replay(s, q);
}

/* Swaps the sequence out or gives up its pages, or goes on with that. */
static void leave(sched *s, sched_seq *q, bool swap)
{
    if (swap && status_ok(swap_out(s, q))) return;
    s->stats.swaps_refused += swap;
    (void)sched_leave(s, q, PKV_GIVE_UP);
}

void sched_preempt(sched *s, sched_seq *q)
{
    assert(pkv_seq_length(s->kv, q->slot) == q->computed);
    leave(s, q, is_worth_swapping(s, q));
    if (!q->leaving) {
        wait_closed(s, q);
        return;
    }
    q->planned = q->flying = 0;
    q->awaited = q->drop_planned = false;
}

/* Whether the sequence waits for portions that come to it: of its own tables, or of its hit. */
static bool takes_portions(const sched_seq *q)
{
    return q->arriving || (q->hit_to && !seq_is_over(q));
}

/* Takes a portion of the sequence's tables. Idle sessions give way to it. */
static status arrive(sched *s, sched_seq *q)
{
    status st;
    do st = sched_arrive(s, q);
    while (st.code == STATUS_NO_PAGES && sched_parked_give_way(s, NULL));
    return st;
}

/* Gives a portion to the best in rank of the sequences that come back or take a hit. One that comes
 * back and lacks pages for its portion waits for those that come free. Where none do, or memory is
 * out, it gives up what has come, and is computed again. */
static void arrive_next(sched *s)
{
    uint32_t i = 0;
    while (i < s->running.n && !takes_portions(s->running.seqs[i])) i++;
    if (i == s->running.n || s->has_left) return;
    sched_seq *q = s->running.seqs[i];
    if (q->hit_to) {
        sched_hit_go_on(s, q);
        return;
    }
    status st = arrive(s, q);
    if (status_ok(st)) return;
    if (st.code == STATUS_NO_PAGES && (s->n_giving > 0 || sched_away_frees(s))) return;
    leave(s, q, false);
    if (!q->leaving) wait_closed(s, q);
}

void sched_go_on(sched *s)
{
    for (uint32_t i = s->running.n; s->n_leaving > 0 && i-- > 0;) {
        sched_seq *q = s->running.seqs[i];
        if (!q->leaving || seq_is_over(q) || sched_leave_waits(s, q)) continue;
        leave(s, q, q->way == PKV_SWAP_OUT);
        if (!q->leaving) wait_closed(s, q);
    }
    if (s->n_arriving + s->n_hitting > 0) arrive_next(s);
}

void sched_left_tier(sched *s, sched_seq *q)
{
    s->stats.swapped_tokens -= q->computed;
    q->swap = 0;
}

/* A reader that has been slow for this long will hardly mind that its tokens are computed again. */
enum { SLEEP_US = 1000000 };

static bool sleeps(const sched_seq *q, int64_t now_us)
{
    const sched_entry *e = q->entry;
    bool is_parent = seq_is_parent(q);
    uint32_t first = is_parent ? 0 : q->choice, stop = is_parent ? e->n : q->choice + 1;
    for (uint32_t i = first; i < stop; i++) {
        const sched_seq *c = &e->seqs[i];
        if (!c->ended && !(c->paused && now_us - c->paused_us >= SLEEP_US)) return false;
    }
    return true;
}

/* An idle sequence does not use its pages now, and will not while its reader sleeps: idle ones are
 * victims first, whatever their rank. Then rank decides, so that the best sequence always makes
 * progress. A sequence whose pages are loaded cannot give them up before the load ends, which takes
 * as long as the disk does: the next in rank goes instead. Where none but the lacking sequence is
 * left, it keeps what it has, since its pages would help nobody. */
uint32_t sched_pick_victim(const sched *s, uint32_t lacking)
{
    uint32_t none = s->running.n, last = none - 1;
    for (uint32_t i = none; i-- > 0;) {
        const sched_seq *q = s->running.seqs[i];
        if (sched_seq_is_idle(q) && !seq_is_spared(q)) return i;
    }
    while (last > lacking && sched_load_fills(s, s->running.seqs[last])) last--;
    bool spares = last == lacking && lacking + 1 < none;
    return spares || seq_is_spared(s->running.seqs[last]) ? none : last;
}

bool sched_preempt_idle(sched *s, bool all, int64_t now_us)
{
    for (uint32_t i = s->running.n; i-- > 0;) {
        sched_seq *q = s->running.seqs[i];
        if (seq_is_spared(q)) continue;
        if (!sched_seq_is_idle(q) || !(all || sleeps(q, now_us))) continue;
        sched_preempt(s, q);
        return true;
    }
    return false;
}

/* ---- compression before preemption ----------------------------------------------------------- */

/* Whether tables that share one selection of the sequence's own policy also share one under
 * pressure. */
static bool tables_agree(const retention_policy *own, const retention_policy *pressure)
{
    bool joint = own->growth == RETENTION_GROWTH_JOINT;
    if (!retention_selects(own) && joint) return true;
    return !own->contiguous && own->scope == pressure->scope &&
           own->reuse_layers == pressure->reuse_layers &&
           (joint || own->decode_scope == pressure->scope);
}

/* Whether the sequence's next row can be measured for a selection under pressure: the sequence
 * decodes, its row needs no new page and runs beside what is set aside for selections, no selection
 * of its own needs the measures of that row, it has grown by a page of tokens since its last
 * pressure drop, and it would give something up. */
static bool can_drop_under_pressure(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    const retention_policy *own = policy_of(e);
    uint32_t length = q->n_tokens,
             last = q->n_pressure_drops > 0 ? q->pressure_drops[q->n_pressure_drops - 1] : 0;
    if (!own->pressure || !tables_agree(own, &s->pressure) || q->drop_planned || q->planned != 1 ||
        !e->forked || length - q->computed != 1 || length - last < s->page_tokens ||
        q->n_pressure_drops == e->max_pressure_drops)
        return false;
    bool has_page = pkv_seq_length(s->kv, q->slot) >= length;
    if (!has_page &&
        (pkv_append_cost(s->kv, q->slot, 1) > 0 || s->lasting + s->passing > pkv_available(s->kv)))
        return false;
    if (retention_measure_rows(own, e->n_prompt, length - 1, length).kind != MEASURE_NONE ||
        sched_next_stop(q, q->computed).at == length)
        return false;
    retention_bound bound =
        retention_bound_at(&s->pressure, &s->options.geometry, e->n_layers, length, length);
    return bound.pages < pkv_seq_pages_held(s->kv, q->slot);
}

void sched_forget_pressure_drop(sched *s, sched_seq *q)
{
    s->n_drops_planned -= q->drop_planned;
    q->drop_planned = false;
}

bool sched_plan_pressure_drop(sched *s)
{
    sched_seq *longest = NULL;
    for (uint32_t i = 0; s->pressure.preset && i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (can_drop_under_pressure(s, q) && (!longest || q->n_tokens > longest->n_tokens))
            longest = q;
    }
    if (!longest) return false;
    longest->drop_planned = true;
    s->n_drops_planned++;
    return true;
}

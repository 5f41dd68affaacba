/* Operations on sequences that give up their sequence number: swapped out, or parked. */
#include "tests/sim/paging.h"
#include "tests/unit/paged_kv_whole.h"

bool leave(sim *s, uint32_t id, pkv_way way, bool room, uint32_t *number)
{
    model_seq *m = &s->seqs[id];
    uint32_t most = rng_below(&s->random, 2) ? UINT32_MAX : rng_below(&s->random, 20);
    uint64_t before = pkv_checksum(s->kv);
    if (!went(s, pkv_seq_leave_some(s->kv, id, way, most, number), room, before)) return false;
    m->splitting = PKV_ALL;
    m->in_portions = true;
    while (pkv_seq_is_open(s->kv, id)) {
        s->done[DONE_LEAVE_SOME]++;
        between(s);
        before = pkv_checksum(s->kv);
        if (rng_below(&s->random, 16) > 0 &&
            went(s, pkv_seq_leave_some(s->kv, id, way, most, number), true, before))
            continue;
        pkv_seq_close(s->kv, id);
        s->done[DONE_BROKEN_OFF]++;
        m->open = false;
    }
    bool left = m->open;
    m->open = m->in_portions = false;
    return left;
}

/* Notes a swapped sequence. It is discarded where others have taken the room for it meanwhile. */
static void keep_swapped(sim *s, uint32_t number, uint32_t held, pkv_grain grain,
                         const model_seq *seq)
{
    uint32_t i = 0;
    while (i < SWAPS && s->swapped[i].number != 0) i++;
    if (i == SWAPS) {
        discard_whole(s->kv, number);
        return;
    }
    s->swapped[i].number = number;
    s->swapped[i].held = held;
    s->swapped[i].grain = grain;
    s->swapped[i].seq = *seq;
    s->host_used += held;
}

/* Tokens that are not computed yet have no content to copy. */
static void op_swap_out(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    uint32_t i = 0;
    while (i < SWAPS && s->swapped[i].number != 0) i++;
    if (!m->open || m->computed < m->length || i == SWAPS) return;
    uint32_t held = pkv_seq_pages_held(s->kv, id), number;
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    model_seq before = *m;
    bool room = held > 0 && held <= s->n_host - s->host_used;
    s->done[DONE_NO_ROOM] += held > 0 && !room;
    if (!leave(s, id, PKV_SWAP_OUT, room, &number)) return;
    CHECK(s, number != 0 && pkv_swap_length(s->kv, number) == m->length);
    before.sealed = m->sealed;
    keep_swapped(s, number, held, grain, &before);
    s->done[DONE_SWAP_OUT]++;
}

/* A swapped sequence's tables may have become finer, for lack of runs in the host tier. */
static bool is_cost_at_some_grain(const sim *s, uint32_t i, const pkv_swap_cost *cost)
{
    for (pkv_grain grain = s->swapped[i].grain; grain <= PKV_HEAD; grain++) {
        pkv_swap_cost want = model_swap_cost(s, &s->swapped[i].seq, grain, s->swapped[i].held);
        if (cost->fresh == want.fresh && cost->cached_pages == want.cached_pages &&
            cost->parked_pages == want.parked_pages)
            return true;
    }
    return false;
}

void discard_all(sim *s)
{
    while (pkv_discards(s->kv) + pkv_host_discards(s->kv) > 0) {
        uint32_t left = pkv_discards(s->kv) + pkv_host_discards(s->kv);
        uint32_t n = pkv_discard_some(s->kv, 1 + rng_below(&s->random, 20));
        CHECK(s, n > 0 || pkv_discards(s->kv) + pkv_host_discards(s->kv) < left);
        s->done[DONE_DISCARD_SOME]++;
        between(s);
    }
    CHECK(s, pkv_discard_some(s->kv, 1) == 0);
}

/* The sequence is closed between two portions. */
static void break_off(sim *s, uint32_t id, uint32_t most)
{
    uint32_t none;
    while (rng_below(&s->random, 8) > 0 && pkv_seq_is_open(s->kv, id)) {
        uint64_t before = pkv_checksum(s->kv);
        (void)went(s, pkv_seq_leave_some(s->kv, id, PKV_GIVE_UP, most, &none), true, before);
        s->seqs[id].open = pkv_seq_is_open(s->kv, id);
        between(s);
    }
    if (pkv_seq_is_open(s->kv, id)) pkv_seq_close(s->kv, id);
    s->seqs[id].open = s->seqs[id].in_portions = false;
    discard_all(s);
    s->done[DONE_BROKEN_OFF]++;
}

/* Whether sequence m, of which a first portion was opened, is there after the others. False where
 * it was closed between two of them: then it is gone. Where others have changed meanwhile, or the
 * cache was flushed, it may lack places for pages that were resident, or that others held. */
static bool arrives(sim *s, uint32_t id, const model_seq *m, uint32_t most, bool looked)
{
    long others = s->done[DONE_BETWEEN];
    bool disturbed = !looked;
    s->seqs[id] = *m;
    s->seqs[id].in_portions = true;
    while (pkv_seq_is_arriving(s->kv, id)) {
        s->done[DONE_ARRIVE_SOME]++;
        between(s);
        if (rng_below(&s->random, 20) == 0) {
            flush(s);
            disturbed = true;
        }
        disturbed |= s->done[DONE_BETWEEN] != others;
        uint64_t before = pkv_checksum(s->kv);
        if (rng_below(&s->random, 16) > 0) {
            status st = pkv_seq_arrive(s->kv, id, most);
            if (went(s, st, !disturbed || st.code != STATUS_NO_PAGES, before)) continue;
            if (st.code == STATUS_NO_PAGES && rng_below(&s->random, 2)) continue; /* again */
        }
        break_off(s, id, most);
        return false;
    }
    s->seqs[id].in_portions = false;
    return true;
}

static uint32_t portion(sim *s)
{
    return rng_below(&s->random, 2) ? UINT32_MAX : rng_below(&s->random, 20);
}

static void op_swap_in(sim *s, uint32_t id)
{
    uint32_t i = rng_below(&s->random, SWAPS), number = s->swapped[i].number;
    if (s->seqs[id].open || number == 0) return;
    const model_seq m = s->swapped[i].seq;
    uint32_t held = s->swapped[i].held;
    pkv_swap_cost cost = pkv_swap_in_cost(s->kv, number, m.tokens);
    CHECK(s, cost.held == held);
    CHECK_WHOLE(s, is_cost_at_some_grain(s, i, &cost));
    uint64_t before = pkv_checksum(s->kv);
    bool enough = cost.fresh + cost.cached_pages <= pkv_available(s->kv);
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : 0, most = portion(s), fresh = cost.fresh;
    bool looks = most == UINT32_MAX || rng_below(&s->random, 2);
    while (looks && pkv_swap_in_cost_some(s->kv, number, m.tokens, 30, &cost) != PKV_SEEN_NOW)
        continue;
    status st = pkv_swap_in_some(s->kv, number, id, m.tokens, expect, most);
    if (!went(s, st, looks ? enough : status_ok(st), before)) return;
    s->swapped[i].number = 0;
    s->host_used -= held;
    if (!arrives(s, id, &m, most, looks)) return;
    s->seqs[id].arriving = true;
    s->seqs[id].hits = 0;
    s->done[DONE_RETAKEN] += held - fresh;
    s->done[DONE_SWAP_IN]++;
}

static void discard(sim *s, uint32_t i)
{
    uint32_t number = s->swapped[i].number;
    if (number == 0) return;
    s->swapped[i].number = 0;
    s->host_used -= s->swapped[i].held;
    pkv_discard_later(s->kv, number);
    if (rng_below(&s->random, 2)) (void)pkv_discard_some(s->kv, UINT32_MAX);
    discard_all(s);
    s->done[DONE_DISCARD]++;
}

void op_swap(sim *s, uint32_t id)
{
    uint32_t kind = rng_below(&s->random, 10);
    if (kind < 5) op_swap_out(s, id);
    else if (kind < 9) op_swap_in(s, id);
    else discard(s, rng_below(&s->random, SWAPS));
}

/* ---- parked sequences ------------------------------------------------------------------------ */

/* Parks the sequence itself, or a fork of it (`stays`). */
static void park(sim *s, uint32_t id, model_parked *away, bool stays)
{
    model_seq *m = &s->seqs[id];
    if (!m->open || m->computed < m->length || away->number != 0) return;
    model_parked now = {
        .seq = *m, .held = pkv_seq_pages_held(s->kv, id), .grain = pkv_seq_grain(s->kv, id)};
    for (uint32_t g = 0; g < s->groups; g++) {
        pkv_table_view view = view_of(s, id, g);
        now.n_pages[g] = view.n_pages;
        for (uint32_t i = 0; i < view.n_pages; i++) now.cells[g][i] = cell_at(&view, i);
    }
    uint64_t before = pkv_checksum(s->kv);
    uint32_t used = pkv_count(s->kv).used;
    long others = s->done[DONE_BETWEEN];
    if (!stays && !leave(s, id, PKV_PARK, true, &now.number)) return;
    if (stays && !went(s, pkv_seq_fork_parked(s->kv, id, &now.number), true, before)) return;
    if (stays) now.seq.key = ++s->n_keys;
    CHECK(s, now.number != 0);
    CHECK(s, s->done[DONE_BETWEEN] != others || pkv_count(s->kv).used == used);
    now.seq.sealed = m->sealed;
    if (away->number == 0) *away = now;
    else discard_whole(s->kv, now.number); /* others have taken its place */
    s->done[stays ? DONE_FORK_PARKED : DONE_PARK]++;
}

static void unpark(sim *s, uint32_t id, model_parked *away)
{
    if (s->seqs[id].open || away->number == 0) return;
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : 0, used = pkv_count(s->kv).used;
    uint32_t most = portion(s), number = away->number;
    uint64_t before = pkv_checksum(s->kv);
    long others = s->done[DONE_BETWEEN];
    if (!went(s, pkv_unpark_some(s->kv, number, id, expect, most), true, before)) return;
    model_seq m = away->seq;
    uint32_t held = away->held;
    pkv_grain grain = away->grain;
    away->number = 0;
    if (!arrives(s, id, &m, most, true)) return;
    CHECK(s, s->done[DONE_BETWEEN] != others || pkv_count(s->kv).used == used);
    CHECK(s, pkv_seq_pages_held(s->kv, id) == held && pkv_seq_grain(s->kv, id) == grain);
    /* Its pages are unchanged; copies that the sequence awaits may still be among the moves. */
    s->done[DONE_UNPARK]++;
}

static void parked_out(sim *s, model_parked *away)
{
    if (away->number == 0) return;
    model_parked now = *away;
    uint32_t number, most = portion(s);
    bool room = now.held > 0 && now.held <= s->n_host - s->host_used;
    uint64_t before = pkv_checksum(s->kv);
    if (!went(s, pkv_parked_swap_out_some(s->kv, now.number, most, &number), room, before)) return;
    away->number = 0;
    uint32_t flushes = (uint32_t)s->done[DONE_FLUSH];
    while (number == 0) {
        s->done[DONE_PARKED_OUT_SOME]++;
        between(s);
        before = pkv_checksum(s->kv);
        (void)went(s, pkv_parked_swap_out_some(s->kv, now.number, most, &number), true, before);
    }
    CHECK(s, pkv_swap_length(s->kv, number) == now.seq.length);
    now.seq.sealed |= s->done[DONE_FLUSH] != flushes;
    keep_swapped(s, number, now.held, now.grain, &now.seq);
    s->done[DONE_PARKED_OUT]++;
}

static void discard_parked(sim *s, model_parked *away)
{
    uint32_t number = away->number;
    if (number == 0) return;
    away->number = 0;
    pkv_discard_later(s->kv, number);
    if (rng_below(&s->random, 2)) (void)pkv_discard_some(s->kv, UINT32_MAX);
    discard_all(s);
    s->done[DONE_PARKED_DISCARD]++;
}

/* Whether others hold a cell of the page that has this cell of a parked sequence. */
static bool is_shared(const sim *s, const model_parked *away, uint32_t group, uint32_t index)
{
    uint32_t first = first_group(s, away->grain, table_of(s, away->grain, group));
    for (uint32_t g = first; g < first + groups_in(s, away->grain); g++)
        if (model_holders(s, g, away->cells[g][index]) > 1) return true;
    return false;
}

/* Whether open sequences hold a cell of that page. */
static bool is_open_too(const sim *s, const model_parked *away, uint32_t group, uint32_t index)
{
    uint32_t first = first_group(s, away->grain, table_of(s, away->grain, group));
    for (uint32_t g = first; g < first + groups_in(s, away->grain); g++)
        if (!model_is_alone(s, g, away->cells[g][index])) return true;
    return false;
}

static void check_parked(sim *s, const model_parked *away)
{
    if (away->number == 0) return;
    pkv_parked_pages want = {.held = away->held}, seen = pkv_parked_look(s->kv, away->number);
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t i = 0; i < away->n_pages[g]; i++) {
            bool shared = is_shared(s, away, g, i), last = i + 1 == away->n_pages[g];
            bool open_too = is_open_too(s, away, g, i);
            bool fills = last && away->seq.n_kept[g] % s->page_tokens != 0;
            want.shared += shared;
            want.filling += shared && fills;
            want.shared_open += open_too;
            want.filling_open += open_too && fills;
            want.alone += model_is_alone(s, g, away->cells[g][i]);
        }
    }
    CHECK_WHOLE(s, pkv_parked_frees(s->kv, away->number) == (want.alone > 0));
    CHECK(s, pkv_parked_length(s->kv, away->number) == away->seq.length);
    want.held_even = want.held; /* there is one share */
    want.alone_even = want.alone;
    CHECK_WHOLE(s, memcmp(&want, &seen, sizeof want) == 0);
}

static void check_alone(sim *s)
{
    bool seen[PAGES_MAX] = {false};
    uint32_t alone = 0;
    for (uint32_t k = 0; k < PARKS; k++) {
        const model_parked *away = &s->parked[k];
        for (uint32_t g = 0; away->number != 0 && g < s->groups; g++) {
            for (uint32_t i = 0; i < away->n_pages[g]; i++) {
                uint32_t cell = away->cells[g][i];
                alone += !seen[cell] && model_is_alone(s, g, cell);
                seen[cell] = true;
            }
        }
    }
    CHECK_WHOLE(s, pkv_parked_alone(s->kv) == alone);
}

void op_park(sim *s, uint32_t id)
{
    model_parked *away = &s->parked[rng_below(&s->random, PARKS)];
    uint32_t kind = rng_below(&s->random, 12);
    if (kind < 5) park(s, id, away, kind < 2);
    else if (kind < 8) unpark(s, id, away);
    else if (kind < 11) parked_out(s, away);
    else discard_parked(s, away);
    for (uint32_t i = 0; i < PARKS; i++) check_parked(s, &s->parked[i]);
    check_alone(s);
}

void away_end(sim *s)
{
    for (uint32_t i = 0; i < PARKS; i++) discard_parked(s, &s->parked[i]);
    for (uint32_t i = 0; i < SWAPS; i++) discard(s, i);
}

/* Operations on sequences that give up their sequence number: swapped out, or parked. */
#include "tests/sim/paging.h"

/* Tokens that are not computed yet have no content to copy. */
static void op_swap_out(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    uint32_t i = 0;
    while (i < SWAPS && s->swapped[i].number != 0) i++;
    if (!m->open || m->computed < m->length || i == SWAPS) return;
    uint32_t held = pkv_seq_pages_held(s->kv, id), number;
    uint64_t before = pkv_checksum(s->kv);
    bool room = held > 0 && held <= s->n_host - s->host_used;
    s->done[DONE_NO_ROOM] += held > 0 && !room;
    if (!went(s, pkv_seq_swap_out(s->kv, id, &number), room, before)) return;
    CHECK(s, number != 0 && pkv_swap_length(s->kv, number) == m->length);
    s->swapped[i].number = number;
    s->swapped[i].held = held;
    s->swapped[i].seq = *m;
    s->host_used += held;
    m->open = false;
    s->done[DONE_SWAP_OUT]++;
}

static void op_swap_in(sim *s, uint32_t id)
{
    uint32_t i = rng_below(&s->random, SWAPS);
    if (s->seqs[id].open || s->swapped[i].number == 0) return;
    const model_seq *m = &s->swapped[i].seq;
    uint32_t held = s->swapped[i].held;
    pkv_swap_cost want = model_swap_cost(s, m, held);
    pkv_swap_cost cost = pkv_swap_in_cost(s->kv, s->swapped[i].number, m->tokens);
    CHECK(s, cost.held == held && cost.fresh == want.fresh);
    CHECK(s, cost.cached_pages == want.cached_pages && cost.parked_pages == want.parked_pages);
    uint64_t before = pkv_checksum(s->kv);
    bool enough = cost.fresh + cost.cached_pages <= pkv_available(s->kv);
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : 0;
    if (!went(s, pkv_swap_in(s->kv, s->swapped[i].number, id, m->tokens, expect), enough, before))
        return;
    s->seqs[id] = *m;
    s->seqs[id].arriving = true;
    s->swapped[i].number = 0;
    s->host_used -= held;
    s->done[DONE_RETAKEN] += held - cost.fresh;
    s->done[DONE_SWAP_IN]++;
}

static void discard(sim *s, uint32_t i)
{
    if (s->swapped[i].number == 0) return;
    pkv_swap_discard(s->kv, s->swapped[i].number);
    s->swapped[i].number = 0;
    s->host_used -= s->swapped[i].held;
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
    model_parked now = {.seq = *m, .held = pkv_seq_pages_held(s->kv, id)};
    for (uint32_t g = 0; g < s->groups; g++) {
        pkv_table_view view = pkv_seq_table(s->kv, id, g);
        now.n_pages[g] = view.n_pages;
        memcpy(now.pages[g], view.pages, view.n_pages * sizeof *view.pages);
    }
    uint64_t before = pkv_checksum(s->kv);
    uint32_t used = pkv_count(s->kv).used;
    status st =
        stays ? pkv_seq_fork_parked(s->kv, id, &now.number) : pkv_seq_park(s->kv, id, &now.number);
    if (!went(s, st, true, before)) return;
    if (stays) now.seq.key = ++s->n_keys;
    CHECK(s, now.number != 0 && pkv_count(s->kv).used == used);
    *away = now;
    m->open = stays;
    s->done[stays ? DONE_FORK_PARKED : DONE_PARK]++;
}

static void unpark(sim *s, uint32_t id, model_parked *away)
{
    if (s->seqs[id].open || away->number == 0) return;
    uint64_t before = pkv_checksum(s->kv);
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : 0, used = pkv_count(s->kv).used;
    if (!went(s, pkv_unpark(s->kv, away->number, id, expect), true, before)) return;
    CHECK(s, pkv_count(s->kv).used == used && pkv_seq_pages_held(s->kv, id) == away->held);
    s->seqs[id] = away->seq;
    /* Its pages are unchanged; copies that the sequence awaits may still be among the moves. */
    away->number = 0;
    s->done[DONE_UNPARK]++;
}

static void parked_out(sim *s, model_parked *away)
{
    uint32_t i = 0, number;
    while (i < SWAPS && s->swapped[i].number != 0) i++;
    if (away->number == 0 || i == SWAPS) return;
    bool room = away->held > 0 && away->held <= s->n_host - s->host_used;
    uint64_t before = pkv_checksum(s->kv);
    if (!went(s, pkv_parked_swap_out(s->kv, away->number, &number), room, before)) return;
    CHECK(s, pkv_swap_length(s->kv, number) == away->seq.length);
    s->swapped[i].number = number;
    s->swapped[i].held = away->held;
    s->swapped[i].seq = away->seq;
    s->host_used += away->held;
    away->number = 0;
    s->done[DONE_PARKED_OUT]++;
}

static void discard_parked(sim *s, model_parked *away)
{
    if (away->number == 0) return;
    pkv_parked_discard(s->kv, away->number);
    away->number = 0;
    s->done[DONE_PARKED_DISCARD]++;
}

static void check_parked(sim *s, const model_parked *away)
{
    if (away->number == 0) return;
    pkv_parked_pages want = {.held = away->held}, seen = pkv_parked_look(s->kv, away->number);
    for (uint32_t g = 0; g < s->groups; g++) {
        for (uint32_t i = 0; i < away->n_pages[g]; i++) {
            bool shared = model_holders(s, g, away->pages[g][i]) > 1;
            bool alone = model_is_alone(s, g, away->pages[g][i]);
            bool fills = i + 1 == away->n_pages[g] && away->seq.n_kept[g] % s->page_tokens != 0;
            want.shared += shared;
            want.filling += shared && fills;
            want.shared_open += !alone;
            want.filling_open += !alone && fills;
            want.alone += alone;
        }
    }
    CHECK(s, pkv_parked_length(s->kv, away->number) == away->seq.length);
    CHECK(s, memcmp(&want, &seen, sizeof want) == 0);
}

static void check_alone(sim *s)
{
    bool seen[PAGES_MAX] = {false};
    uint32_t alone = 0;
    for (uint32_t k = 0; k < PARKS; k++) {
        const model_parked *away = &s->parked[k];
        for (uint32_t g = 0; away->number != 0 && g < s->groups; g++) {
            for (uint32_t i = 0; i < away->n_pages[g]; i++) {
                uint32_t page = away->pages[g][i];
                alone += !seen[page] && model_is_alone(s, g, page);
                seen[page] = true;
            }
        }
    }
    CHECK(s, pkv_parked_alone(s->kv) == alone);
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

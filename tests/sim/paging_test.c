/* Random operations on paged_kv, compared with a plain model that keeps what every page slot holds.
 *
 * The model computes a token's K/V as a hash of everything that K/V depends on: the tokens before
 * it, the salt, and any drop or compaction before it. Moves are executed on that memory as a
 * backend would. So a page that is handed out twice, a shared page that is written, a stale move or
 * a polluted prefix block shows as a wrong value. After each operation: pkv_check_integrity and the
 * contents of every hashed page. After each batch of deltas: every slot of every table, and the
 * mirror's tables and checksum.
 *
 *   paging_test [seed]      one seed; OCTAVO_SOAK=SEED runs 10^6 operations for each of 20 seeds,
 *                           starting with that one */
#include "tests/sim/paging.h"
#include <stdio.h>

/* ---- checks ---------------------------------------------------------------------------------- */

void check_always(sim *s)
{
    const char *wrong = pkv_check_integrity(s->kv);
    if (wrong) fail_msg("seed %llu, operation %ld: %s", (unsigned long long)s->seed, s->op, wrong);
    for (uint32_t i = 0; i < PAGES_MAX; i++) {
        const model_block *b = &s->blocks[i];
        if (!b->live) continue;
        for (uint32_t g = 0; g < s->groups; g++) {
            for (uint32_t t = 0; t < s->page_tokens; t++) {
                const model_slot *slot = &s->memory[b->cells[g]][t];
                CHECK(s, slot->value == value_of(b->context[t], g));
                CHECK(s, slot->rotation == b->index * s->page_tokens + t);
            }
        }
    }
    pkv_counts c = pkv_count(s->kv);
    CHECK(s, c.free + c.used + c.cached == s->n_pages - 1);
    CHECK(s, c.pages_dropped == s->pages_dropped);
    CHECK(s, c.n_host_pages == s->n_host);
    CHECK_WHOLE(s, c.host_used == s->host_used);
    for (uint32_t q = 0; q < SEQS; q++) {
        const model_seq *m = &s->seqs[q];
        CHECK(s, pkv_seq_is_open(s->kv, q) == m->open);
        if (!m->open || m->in_portions) continue;
        CHECK(s, pkv_seq_length(s->kv, q) == m->length);
        CHECK(s, pkv_seq_has_dropped(s->kv, q) == m->dropped);
        CHECK(s, pkv_seq_next_position(s->kv, q) == (m->contiguous ? m->n_kept[0] : m->length));
    }
}

static void check_slots(sim *s, uint32_t q, uint32_t g, const pkv_table_view *view)
{
    const model_seq *m = &s->seqs[q];
    uint32_t table = table_of(s, pkv_seq_grain(s->kv, q), g);
    for (uint32_t slot = 0; slot < view->kept_tokens; slot++) {
        uint32_t position = m->kept[g][slot];
        CHECK(s, pkv_seq_position(s->kv, q, table, slot) == position);
        const model_slot *here =
            &s->memory[cell_at(view, slot / s->page_tokens)][slot % s->page_tokens];
        CHECK(s, here->value == value_of(m->context[position], g));
        CHECK(s, here->rotation == (m->contiguous ? slot : position));
    }
}

static void check_tables(sim *s)
{
    for (uint32_t q = 0; q < SEQS; q++) {
        const model_seq *m = &s->seqs[q];
        if (!m->open || m->in_portions) continue;
        uint32_t held = 0;
        CHECK(s, pkv_mirror_grain(s->mirror, q) == pkv_seq_grain(s->kv, q));
        for (uint32_t g = 0; g < s->groups; g++) {
            pkv_table_view view = view_of(s, q, g), far = pkv_mirror_table(s->mirror, q, g);
            held += view.n_pages;
            CHECK(s, view.kept_tokens == m->n_kept[g]);
            CHECK(s, far.kept_tokens == view.kept_tokens && far.n_pages == view.n_pages);
            CHECK(s, far.offset == view.offset);
            CHECK(s, memcmp(far.pages, view.pages, view.n_pages * sizeof *view.pages) == 0);
            for (uint32_t i = 0; i < view.n_pages; i++)
                CHECK(s, s->copies[q][g].cells[i] == cell_at(&view, i));
            check_slots(s, q, g, &view);
        }
        CHECK(s, pkv_seq_pages_held(s->kv, q) == held);
    }
    CHECK(s, pkv_checksum(s->kv) == pkv_mirror_checksum(s->mirror));
}

/* ---- operations ------------------------------------------------------------------------------ */

bool went(sim *s, status result, bool enough_pages, uint64_t checksum_before)
{
    if (s->heap.fail_at < 0) CHECK(s, result.code != STATUS_NO_MEMORY);
    if (status_ok(result)) {
        CHECK_WHOLE(s, enough_pages);
        return true;
    }
    if (result.code != STATUS_NO_MEMORY || grains_of(s) == s->grains)
        CHECK(s, pkv_checksum(s->kv) == checksum_before);
    CHECK(s, result.code == STATUS_NO_MEMORY || result.code == STATUS_NO_PAGES);
    CHECK_WHOLE(s, result.code == STATUS_NO_MEMORY || !enough_pages);
    s->done[DONE_NO_PAGES] += result.code == STATUS_NO_PAGES;
    s->no_memory += result.code == STATUS_NO_MEMORY;
    return false;
}

static void compute(sim *s)
{
    for (uint32_t q = 0; q < SEQS; q++) {
        model_seq *m = &s->seqs[q];
        m->arriving = false;
        if (!m->open || m->in_portions || m->computed == m->length) continue;
        for (uint32_t g = 0; g < s->groups; g++) {
            pkv_table_view view = pkv_mirror_table(s->mirror, q, g);
            for (uint32_t slot = view.kept_tokens; slot-- > 0;) {
                uint32_t position = m->kept[g][slot];
                if (position < m->computed) continue;
                s->memory[cell_at(&view, slot / s->page_tokens)][slot % s->page_tokens] =
                    (model_slot){value_of(m->context[position], g),
                                 m->contiguous ? slot : position};
            }
        }
        m->computed = m->length;
    }
}

static void move_slots(sim *s, const pkv_move *m)
{
    CHECK(s, m->n_slots > 0 && m->src_slot + m->n_slots <= s->page_tokens &&
                 m->dst_slot + m->n_slots <= s->page_tokens);
    uint32_t cells = pkv_cell_count(&s->geometry, s->n_pages - 1);
    CHECK(s, m->src_page >= 1 && m->src_page < cells && m->dst_page >= 1 && m->dst_page < cells);
    for (uint32_t i = 0; i < m->n_slots; i++) { /* the destinations of moves must not overlap */
        model_slot *to = &s->memory[m->dst_page][m->dst_slot + i];
        *to = s->memory[m->src_page][m->src_slot + i];
        to->rotation += m->rotate;
    }
    s->slots_moved += m->n_slots;
}

static void move_cell(sim *s, const pkv_move *m)
{
    if (m->kind == PKV_MOVE_SLOTS) {
        move_slots(s, m);
        return;
    }
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    CHECK(s, page >= 1 && page < pkv_cell_count(&s->geometry, s->n_pages - 1));
    CHECK(s, host >= 1 && host < pkv_cell_count(&s->geometry, s->n_host));
    CHECK(s, m->n_slots == s->page_tokens && m->src_slot == 0 && m->dst_slot == 0 && !m->rotate);
    model_slot *here = s->memory[page], *there = s->host[host];
    memcpy(out ? there : here, out ? here : there, s->page_tokens * sizeof *here);
    if (!out) memset(there, 0xdd, s->page_tokens * sizeof *there); /* the host page is free again */
}

static void move(sim *s, const pkv_move *m)
{
    CHECK(s, pkv_move_cells(&s->geometry, m) == groups_in(s, m->grain));
    for (uint32_t i = 0; i < groups_in(s, m->grain); i++) {
        pkv_move cell = pkv_move_cell(&s->geometry, m, i, s->n_pages - 1, s->n_host);
        CHECK(s, cell.group == first_group(s, m->grain, m->group) + i);
        move_cell(s, &cell);
    }
}

/* Updates the copies of cells where pkv_delta_touch says so, and nowhere else. A table's number is
 * of the grain that the sequence had then: a split touches all of its tables. */
static void patch_copies(sim *s, const pkv_deltas *d)
{
    bool touched[SEQS] = {false};
    size_t at = 0;
    while (at < d->n_words) {
        pkv_touch touch;
        at += pkv_delta_touch(&s->geometry, d->words + at, &touch);
        CHECK(s, touch.seq < SEQS && (touch.group < s->groups || touch.group == PKV_ALL_GROUPS));
        touched[touch.seq] = true;
        pkv_grain grain = pkv_mirror_grain(s->mirror, touch.seq);
        for (uint32_t g = 0; g < s->groups && !touch.appends; g++) {
            if (touch.group == table_of(s, grain, g) || touch.group == PKV_ALL_GROUPS)
                s->copies[touch.seq][g].sent = 0;
        }
    }
    CHECK(s, at == d->n_words);
    for (uint32_t q = 0; q < SEQS; q++)
        for (uint32_t g = 0; g < s->groups && touched[q]; g++) {
            model_copy *c = &s->copies[q][g];
            pkv_table_view view = pkv_mirror_table(s->mirror, q, g);
            for (; c->sent < view.n_pages; c->sent++) c->cells[c->sent] = cell_at(&view, c->sent);
        }
}

void take(sim *s)
{
    pkv_deltas d = pkv_take_deltas(s->kv);
    CHECK(s, status_ok(pkv_mirror_apply(s->mirror, d.words, d.n_words)));
    patch_copies(s, &d);
    for (size_t i = 0; i < d.n_moves; i++) move(s, &d.moves[i]);
    CHECK(s, pkv_count(s->kv).slots_moved == s->slots_moved);
    compute(s);
    check_tables(s);
}

void op_append(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open) return;
    uint32_t n = rng_below(&s->random, 2) ? 1 : 1 + rng_below(&s->random, 60);
    if (m->length + n > LEN_MAX) return;
    uint32_t cost = model_append_cost(s, id, n);
    CHECK_WHOLE(s, pkv_append_cost(s->kv, id, n) == cost);
    uint64_t before = pkv_checksum(s->kv);
    bool enough = cost <= pkv_available(s->kv);
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    bool has_runs = model_runs(s, grain) >= cost / groups_in(s, grain);
    if (!went(s, pkv_seq_append(s->kv, id, n), enough, before)) return;
    CHECK_WHOLE(s, (pkv_seq_grain(s->kv, id) > grain) == !has_runs);
    s->done[DONE_FINER] += !has_runs;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = m->length++;
        m->tokens[at] = rng_below(&s->random, 40) ? document_token(m->document, at) : 7;
        m->tail = m->context[at] = next_context(m->tail, m->tokens[at]);
        for (uint32_t g = 0; g < m->groups; g++) m->kept[g][m->n_kept[g]++] = (uint16_t)at;
    }
    s->done[DONE_APPEND]++;
}

/* Appends tokens and cuts them off again: nothing changes except that shared pages were copied. */
static void op_cut(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id], before = *m;
    op_append(s, id);
    uint32_t n = m->length - before.length;
    if (!m->open || n == 0) return;
    if (rng_below(&s->random, 2)) take(s);
    uint64_t checksum = pkv_checksum(s->kv);
    if (!went(s, pkv_seq_cut(s->kv, id, n), true, checksum)) return;
    before.computed = m->computed < before.length ? m->computed : before.length;
    before.arriving = m->arriving;
    *m = before;
    s->done[DONE_CUT]++;
}

void op_publish(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open || m->arriving) return;
    s->publishing = id;
    uint32_t n = rng_below(&s->random, 4) ? m->computed : rng_below(&s->random, m->computed + 1);
    pkv_seq_publish(s->kv, id, m->tokens, n);
    bool may = !m->dropped && !m->sealed && m->groups == s->groups;
    if (may && n > m->published) m->published = n;
    s->done[DONE_PUBLISH]++;
}

static void op_fork(sim *s, uint32_t id)
{
    uint32_t child = 0;
    while (child < SEQS && (s->seqs[child].open || s->seqs[child].in_portions)) child++;
    if (!s->seqs[id].open || child == SEQS) return;
    uint64_t before = pkv_checksum(s->kv);
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : 0;
    if (!went(s, pkv_seq_fork(s->kv, id, child, expect), true, before)) return;
    s->seqs[child] = s->seqs[id];
    s->seqs[child].key = ++s->n_keys;
    s->seqs[child].document = 1 + rng_below(&s->random, 12);
    s->done[DONE_FORK]++;
}

void op_split(sim *s, uint32_t id)
{
    if (!s->seqs[id].open) return;
    pkv_grain grain = (pkv_grain)rng_below(&s->random, PKV_HEAD + 1);
    if (s->seqs[id].splitting) grain = s->seqs[id].splitting;
    grain = pkv_grain_fit(&s->geometry, grain);
    pkv_grain old = pkv_seq_grain(s->kv, id), want = grain > old ? grain : old;
    uint64_t before = pkv_checksum(s->kv);
    if (!went(s, pkv_seq_split(s->kv, id, grain, 0), true, before)) return;
    CHECK(s, pkv_seq_grain(s->kv, id) == want);
    s->seqs[id].splitting = PKV_ALL;
    s->done[DONE_SPLIT] += want > old;
}

/* Some pages of the sequence are split; until all are, it is only split or closed. */
static void op_split_some(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (!m->open) return;
    pkv_grain old = pkv_seq_grain(s->kv, id);
    pkv_grain grain = pkv_grain_fit(&s->geometry, (pkv_grain)rng_below(&s->random, PKV_HEAD + 1));
    if (m->splitting) grain = m->splitting;
    uint64_t before = pkv_checksum(s->kv);
    uint32_t most = 1 + rng_below(&s->random, 5), pages = most;
    if (!went(s, pkv_seq_split_some(s->kv, id, grain, &pages), true, before)) return;
    pkv_grain now = pkv_seq_grain(s->kv, id);
    CHECK(s, pages <= most && (now == old ? grain <= old || pages == most : now == grain));
    m->splitting = now < grain ? grain : PKV_ALL;
    s->done[DONE_SPLIT_SOME] += m->splitting != 0;
}

void between(sim *s)
{
    s->portions++;
    check_always(s);
    if (rng_below(&s->random, 4) == 0) take(s);
    bool acts = s->portions <= PORTIONS_MOST && rng_below(&s->random, 2);
    for (uint32_t n = acts ? rng_below(&s->random, 8) : 0; n > 0; n--) {
        run_operation(s);
        s->done[DONE_BETWEEN]++;
        s->done[DONE_TOGETHER] += s->portions > 1;
    }
    s->portions--;
}

static void op_close(sim *s, uint32_t id)
{
    uint32_t none = 0;
    if (!s->seqs[id].open) return;
    if (rng_below(&s->random, 2)) (void)leave(s, id, PKV_GIVE_UP, true, &none);
    if (s->seqs[id].open) pkv_seq_close(s->kv, id);
    CHECK(s, none == 0);
    s->seqs[id].open = false;
    s->done[DONE_CLOSE]++;
}

void flush(sim *s)
{
    pkv_flush(s->kv);
    for (uint32_t q = 0; q < SEQS; q++) s->seqs[q].sealed = s->seqs[q].open;
    for (uint32_t i = 0; i < SWAPS; i++) s->swapped[i].seq.sealed = true;
    for (uint32_t i = 0; i < PARKS; i++) s->parked[i].seq.sealed = true;
    for (uint32_t i = 0; i < PAGES_MAX; i++) CHECK(s, !s->blocks[i].live);
    CHECK(s, pkv_count(s->kv).cached == 0);
    s->done[DONE_FLUSH]++;
}

static bool same_cost(pkv_swap_cost a, pkv_swap_cost b)
{
    return a.held == b.held && a.fresh == b.fresh && a.cached_pages == b.cached_pages &&
           a.parked_pages == b.parked_pages && a.uneven == b.uneven && a.held_even == b.held_even &&
           a.shared_even == b.shared_even;
}

static bool same_pages(pkv_parked_pages a, pkv_parked_pages b)
{
    return a.held == b.held && a.held_even == b.held_even && a.shared == b.shared &&
           a.filling == b.filling && a.shared_open == b.shared_open &&
           a.filling_open == b.filling_open && a.alone == b.alone && a.alone_even == b.alone_even;
}

/* Asks again after a few other operations: the answer is a fresh one. */
static void op_look_again(sim *s)
{
    if (s->again.key == 0 || rng_below(&s->random, 30) == 0) {
        s->again.key = ++s->n_keys;
        s->again.salt = rng_below(&s->random, 8) == 0;
        s->again.document = 1 + rng_below(&s->random, 12);
        s->again.n = 1 + rng_below(&s->random, 240);
        s->again.swapped = rng_below(&s->random, 2 * SWAPS);
        s->again.parked = rng_below(&s->random, PARKS);
    }
    uint32_t tokens[LEN_MAX], n = s->again.n, i = s->again.swapped, number;
    if (i < SWAPS && (number = s->swapped[i].number) != 0) {
        const uint32_t *of_it = s->swapped[i].seq.tokens;
        CHECK(s, same_cost(pkv_swap_in_cost_again(s->kv, s->swapped[i].seq.key, number, of_it),
                           pkv_swap_in_cost(s->kv, number, of_it)));
        s->done[DONE_COST_AGAIN]++;
    } else {
        for (uint32_t k = 0; k < n; k++) tokens[k] = document_token(s->again.document, k);
        bool mixed;
        pkv_hit want = model_hit(s, tokens, n, s->again.salt, &mixed);
        pkv_hit seen = pkv_lookup_again(s->kv, s->again.key, tokens, n, s->again.salt);
        CHECK(s, seen.tokens == want.tokens);
        CHECK_WHOLE(s, seen.cached_pages == want.cached_pages);
        CHECK_WHOLE(s, seen.parked_pages == want.parked_pages);
        s->done[DONE_HIT_AGAIN] += seen.tokens > 0;
    }
    if ((number = s->parked[s->again.parked].number) != 0) {
        CHECK(s, same_pages(pkv_parked_look_again(s->kv, number), pkv_parked_look(s->kv, number)));
        s->done[DONE_SIGHT_AGAIN]++;
    }
}

/* Looks in portions, which other operations may come between. */
static void op_look_some(sim *s)
{
    uint32_t i = rng_below(&s->random, SWAPS), k = rng_below(&s->random, PARKS), number;
    uint32_t most = 1 + rng_below(&s->random, 40);
    bool parked = rng_below(&s->random, 2);
    pkv_swap_cost cost;
    pkv_parked_pages pages;
    pkv_seen seen = PKV_SEEN_NOTHING;
    if ((number = parked ? s->parked[k].number : s->swapped[i].number) == 0) return;
    const uint32_t *tokens = s->swapped[i].seq.tokens;
    for (uint32_t n = 0; seen != PKV_SEEN_NOW && rng_below(&s->random, 8) > 0; n++) {
        seen = parked ? pkv_parked_look_some(s->kv, number, most, &pages)
                      : pkv_swap_in_cost_some(s->kv, number, tokens, most, &cost);
        CHECK(s, n <= 2 * CELLS_OF_SEQ);
    }
    if (seen != PKV_SEEN_NOW) return;
    if (parked) CHECK(s, same_pages(pages, pkv_parked_look(s->kv, number)));
    else CHECK(s, same_cost(cost, pkv_swap_in_cost(s->kv, number, tokens)));
    s->done[DONE_LOOK_SOME]++;
}

/* Counts pages that others hold too in portions, which other operations may come between. Every
 * check compares what is known with a count of all of them. */
static void op_count_shared(sim *s)
{
    uint32_t id = rng_below(&s->random, SEQS), looks = rng_below(&s->random, 30);
    if (!s->seqs[id].open || s->seqs[id].in_portions || s->seqs[id].splitting) return;
    pkv_shared shared = pkv_seq_pages_shared(s->kv, id, &looks);
    CHECK(s, shared.as_of <= pkv_sharing_changes(s->kv));
    CHECK(s, looks == 0 || shared.as_of == pkv_sharing_changes(s->kv));
    s->done[DONE_COUNT_SHARED] += looks > 0;
}

/* A sequence of which some pages are split is split further, or closed. */
static void go_on_splitting(sim *s, uint32_t id)
{
    uint32_t kind = rng_below(&s->random, 20);
    if (kind == 0) op_close(s, id);
    else if (kind == 1) op_split(s, id);
    else op_split_some(s, id);
}

void run_operation(sim *s)
{
    /* Often the sequence of the operation before, so that one batch holds several changes of a
     * table. */
    if (rng_below(&s->random, 2)) s->current = rng_below(&s->random, SEQS);
    while (s->seqs[s->current].in_portions) s->current = (s->current + 1) % SEQS;
    uint32_t id = s->current, kind = rng_below(&s->random, 100);
    uint32_t away = kind < 92 ? rng_below(&s->random, 12) : 2;
    const model_seq *m = &s->seqs[id];
    if (m->open && m->splitting) go_on_splitting(s, id);
    else if (m->open && m->length < m->hit_to && rng_below(&s->random, 2)) op_hit_more(s, id);
    else if (away == 0) op_swap(s, id);
    else if (away == 1 && rng_below(&s->random, 2)) op_park(s, id);
    else if (away == 1) op_hand(s);
    else if (kind < 12) m->open ? op_hit_more(s, id) : op_open(s, id);
    else if (kind < 43) op_append(s, id);
    else if (kind < 45) op_split(s, id);
    else if (kind < 49) op_split_some(s, id);
    else if (kind < 52) op_cut(s, id);
    else if (kind < 65) op_publish(s, id);
    else if (kind < 70) op_drop(s, id);
    else if (kind < 74) op_compact(s, id);
    else if (kind < 84) op_keep(s, id);
    else if (kind < 86) op_unshare(s, id);
    else if (kind < 89) op_fork(s, id);
    else if (kind < 97 && rng_below(&s->random, 40)) op_close(s, id);
    else if (kind < 97) flush(s);
    if (kind >= 97 || rng_below(&s->random, s->batch) == 0) take(s);
    if (rng_below(&s->random, 3) == 0) op_look_again(s);
    if (rng_below(&s->random, 3) == 0) op_look_some(s);
    if (rng_below(&s->random, 2) == 0) op_count_shared(s);
    check_always(s);
    s->grains = grains_of(s);
    s->op++;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static const pkv_geometry geometries[] = {
    {.page_tokens = 16,
     .n_layers = 1,
     .n_kv_heads = 1,
     .layers_per_group = 1,
     .heads_per_group = 1},
    {.page_tokens = 16,
     .n_layers = 2,
     .n_kv_heads = 2,
     .layers_per_group = 1,
     .heads_per_group = 2},
    {.page_tokens = 32,
     .n_layers = 3,
     .n_kv_heads = 2,
     .layers_per_group = 2,
     .heads_per_group = 1},
    {.page_tokens = 48,
     .n_layers = 5,
     .n_kv_heads = 4,
     .layers_per_group = 2,
     .heads_per_group = 2},
    {.page_tokens = 16,
     .n_layers = 2,
     .n_kv_heads = 4,
     .layers_per_group = 1,
     .heads_per_group = 1},
};
enum { GEOMETRIES = sizeof geometries / sizeof geometries[0] };

/* False when memory ran out before any operation. */
static bool sim_begin(sim *s, uint64_t seed, long fail_at)
{
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->random = rng_seed(seed);
    s->heap.fail_at = fail_at;
    s->geometry = geometries[seed % GEOMETRIES];
    s->groups = pkv_groups(&s->geometry);
    s->heads = pkv_head_groups(&s->geometry);
    s->page_tokens = s->geometry.page_tokens;
    s->n_pages = 10 + s->groups * (8 + rng_below(&s->random, 22));
    s->n_host = s->groups * (2 + rng_below(&s->random, 14));
    s->batch = 1 + rng_below(&s->random, 10);
    allocator alloc = {heap_resize, &s->heap};
    pkv_options options = {
        .geometry = s->geometry,
        .n_pages = s->n_pages,
        .max_seqs = SEQS,
        .prefix_cache = true,
        .n_host_pages = s->n_host,
        .alloc = &alloc,
        .on_block = on_block,
        .on_block_ctx = s,
    };
    status created = pkv_create(&options, &s->kv);
    if (!status_ok(created)) {
        assert_int_equal(created.code, STATUS_NO_MEMORY);
        assert_int_equal(s->heap.blocks, 0);
        return false;
    }
    assert_true(status_ok(pkv_mirror_create(&s->geometry, s->n_pages, SEQS, NULL, &s->mirror)));
    return true;
}

static void sim_end(sim *s)
{
    s->portions = PORTIONS_MOST; /* nothing is opened between portions */
    for (uint32_t q = 0; q < SEQS; q++) op_close(s, q);
    away_end(s);
    s->portions = 0;
    take(s);
    check_always(s);
    pkv_counts c = pkv_count(s->kv);
    CHECK(s, c.used == 0 && pkv_available(s->kv) == s->n_pages - 1);
    CHECK(s, pkv_checksum(s->kv) == 0);
    pkv_mirror_destroy(s->mirror);
    pkv_destroy(s->kv);
    CHECK(s, s->heap.blocks == 0);
}

/* Names for the report of a run: an operation that never happened was not tested. */
static const char *const done_names[N_DONE] = {
    [DONE_OPEN] = "open",
    [DONE_OPEN_SOME] = "open, tokens in some layers",
    [DONE_APPEND] = "append",
    [DONE_CUT] = "cut",
    [DONE_PUBLISH] = "publish",
    [DONE_DROP] = "drop",
    [DONE_COMPACT] = "compact",
    [DONE_KEEP_PAGES] = "keep pages",
    [DONE_KEEP_FILLED] = "keep, holes filled",
    [DONE_KEEP_COPIED] = "keep, pages copied",
    [DONE_KEEP_GATHERED] = "keep, gathered",
    [DONE_KEEP_CONTIGUOUS] = "keep contiguous",
    [DONE_UNSHARE] = "unshare",
    [DONE_FORK] = "fork",
    [DONE_SPLIT] = "split",
    [DONE_SPLIT_SOME] = "split in portions",
    [DONE_LEAVE_SOME] = "closed in portions",
    [DONE_ARRIVE_SOME] = "unparked or swapped in in portions",
    [DONE_BROKEN_OFF] = "given up between portions",
    [DONE_BETWEEN] = "operations between portions",
    [DONE_TOGETHER] = "operations between portions of several sequences",
    [DONE_FINER] = "split for lack of runs",
    [DONE_CLOSE] = "close",
    [DONE_FLUSH] = "flush",
    [DONE_SWAP_OUT] = "swap out",
    [DONE_SWAP_IN] = "swap in",
    [DONE_DISCARD] = "discard",
    [DONE_DISCARD_SOME] = "discarded in portions",
    [DONE_PARKED_OUT_SOME] = "swapped out parked in portions",
    [DONE_PARK] = "park",
    [DONE_FORK_PARKED] = "fork, parked",
    [DONE_UNPARK] = "unpark",
    [DONE_PARKED_OUT] = "parked, swapped out",
    [DONE_PARKED_DISCARD] = "parked, discarded",
    [DONE_HIT] = "hit",
    [DONE_HIT_MIXED] = "hit, blocks of several grains",
    [DONE_HIT_SOME] = "hit in portions",
    [DONE_HIT_AGAIN] = "hit, looked up again",
    [DONE_COST_AGAIN] = "cost of swapping in, again",
    [DONE_SIGHT_AGAIN] = "parked pages, again",
    [DONE_LOOK_SOME] = "looked at in portions",
    [DONE_COUNT_SHARED] = "counts of shared pages",
    [DONE_REMOVED] = "block removed",
    [DONE_NO_PAGES] = "no pages",
    [DONE_NO_RUNS] = "cells, but no runs",
    [DONE_NO_ROOM] = "no room",
    [DONE_RETAKEN] = "retaken",
    [DONE_ADOPT] = "adopted",
    [DONE_ADOPT_SOME] = "adopted in portions",
    [DONE_ADOPT_FINER] = "adopted, finer after a portion",
    [DONE_ADOPT_BROKEN] = "given up while adopted",
};

static void run_seed(uint64_t seed, long n_operations, long counts[N_DONE])
{
    sim *s = malloc(sizeof *s);
    assert_non_null(s);
    assert_true(sim_begin(s, seed, -1));
    for (long i = 0; i < n_operations; i++) run_operation(s);
    for (int i = 0; i < N_DONE; i++) counts[i] += s->done[i];
    sim_end(s);
    free(s);
}

static void random_operations(void **state)
{
    const uint64_t *only = *state;
    const char *soak = getenv("OCTAVO_SOAK");
    uint64_t first = only ? *only : soak ? strtoull(soak, NULL, 10) : 1;
    int n_seeds = only ? 1 : soak ? 20 : 6;
    long counts[N_DONE] = {0};
    printf("  %d seeds from %llu on\n", n_seeds, (unsigned long long)first);
    for (int i = 0; i < n_seeds; i++)
        run_seed(first + (uint64_t)i, soak ? 1000000 : only ? 50000 : 20000, counts);
    for (int i = 0; i < N_DONE; i++) {
        printf("  %s %ld\n", done_names[i], counts[i]);
        assert_true(only || counts[i] > 10);
    }
}

/* For every i, the i-th allocation fails: the operation is refused, nothing else changes, nothing
 * leaks. */
static void failing_allocations(void **state)
{
    (void)state;
    sim *s = malloc(sizeof *s);
    assert_non_null(s);
    long refused = 0;
    for (long fail_at = 0;; fail_at++) {
        if (!sim_begin(s, 2 + (uint64_t)fail_at % GEOMETRIES, fail_at)) continue;
        for (long i = 0; i < 400; i++) run_operation(s);
        bool reached = s->heap.calls > fail_at;
        refused += s->no_memory;
        sim_end(s);
        if (!reached) break;
    }
    assert_true(refused > 20);
    free(s);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(random_operations, argc > 1 ? &seed : NULL),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Property: a worker accepts a plan as a whole, with every value in its range, or refuses it with a
 * text; an accepted plan is unchanged when it is packed and unpacked again. */
#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { LIMIT = 1 << 22 };

static const backend_info info = {
    .vocab_size = 1000,
    .max_positions = 512,
    .max_rows = 64,
    .max_seqs = 8,
    .max_in_flight = 2,
    .n_pages = 50,
    .n_host_pages = 20,
    .n_heads = 8,
    .head_dim = 4,
    .retrieves = 1 << RETRIEVAL_MEAN | 1 << RETRIEVAL_QUEST | 1 << RETRIEVAL_FIX,
    .geometry = {.page_tokens = 16,
                 .n_layers = 6,
                 .n_kv_heads = 4,
                 .layers_per_group = 2,
                 .heads_per_group = 2},
};

static status read_plan(const uint8_t *bytes, size_t n, arena *a, step_plan *out)
{
    const ProtobufCMessage *m;
    error err = {{0}};
    status s =
        message_unpack(&octavo__worker__v1__step_plan__descriptor, bytes, n, LIMIT, a, &m, &err);
    if (status_ok(s)) s = plan_unpack((const plan_message *)m, &info, a, out, &err);
    FUZZ_CHECK(status_ok(s) || err.text[0]);
    return s;
}

/* The last cell of the page's run lies in the memory of its tier. */
static void check_cells(pkv_grain grain, uint32_t page, bool in_host)
{
    const pkv_geometry *g = &info.geometry;
    uint32_t usable = in_host ? info.n_host_pages : info.n_pages - 1;
    uint64_t last = page;
    last += pkv_cell_offset(g, usable, grain, pkv_layer_groups(g) - 1, pkv_head_groups(g) - 1);
    FUZZ_CHECK(last < pkv_cell_count(g, usable));
}

/* No division by zero, list without an end or block of half a page is left to the backend. */
static void check_retrieval(const retrieval_spec *s)
{
    const pkv_geometry *g = &info.geometry;
    if (s->block_tokens == 0) return;
    FUZZ_CHECK((retrieval_needs(s) & ~info.retrieves) == 0);
    FUZZ_CHECK(s->block_tokens % g->page_tokens == 0 && s->block_tokens <= RETRIEVAL_BLOCK_MOST);
    FUZZ_CHECK(s->representative_num > 0 && s->representative_num <= s->block_tokens);
    FUZZ_CHECK(g->n_kv_heads % retrieval_heads_together(s, g) == 0);
    for (uint32_t n = 1; n < 2 * info.max_positions; n += 37) {
        retrieval_extent e = retrieval_extent_of(s, n / 2, n);
        FUZZ_CHECK(e.first <= e.end && e.end <= e.n_blocks && e.top <= e.end - e.first);
        FUZZ_CHECK(e.n_blocks - (e.end - e.first - e.top) <= retrieval_most_blocks(s));
    }
    for (uint32_t l = 0; l < g->n_layers; l++) {
        uint32_t leader = retrieval_layer_leader(s, g, l);
        FUZZ_CHECK(leader == RETRIEVAL_ALL || leader <= l);
    }
}

static void check_ranges(const step_plan *p)
{
    uint32_t rows = 0, draws = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const step_seq *s = &p->seqs[i];
        FUZZ_CHECK(s->seq < info.max_seqs && s->first_token == rows && s->n_tokens > 0);
        FUZZ_CHECK((uint64_t)s->position + s->n_tokens <= info.max_positions);
        FUZZ_CHECK(s->measure.kind < MEASURE_KINDS && s->measure.sum <= MEASURE_SUM_ADD);
        FUZZ_CHECK(!s->token_from || s->n_tokens == 1);
        check_retrieval(&s->retrieval);
        rows += s->n_tokens;
        draws += s->n_samples;
    }
    FUZZ_CHECK(rows == p->n_tokens && rows <= info.max_rows);
    FUZZ_CHECK(draws <= step_most_draws(info.max_seqs));
    for (uint32_t i = 0; i < rows; i++) FUZZ_CHECK(p->tokens[i] < info.vocab_size);
    for (uint32_t i = 0; i < p->n_opens; i++) {
        const step_open *o = &p->opens[i];
        FUZZ_CHECK(o->seq < info.max_seqs && o->params->n_logprobs <= SAMPLE_LOGPROBS_MAX);
        for (uint32_t k = 0; k < o->n_history; k++) FUZZ_CHECK(o->history[k] < info.vocab_size);
    }
    for (size_t i = 0; i < p->deltas.n_moves; i++) {
        const pkv_move *m = &p->deltas.moves[i];
        FUZZ_CHECK(m->kind <= PKV_MOVE_IN && m->grain <= PKV_HEAD);
        check_cells(m->grain, m->src_page, m->kind == PKV_MOVE_IN);
        check_cells(m->grain, m->dst_page, m->kind == PKV_MOVE_OUT);
        const pkv_geometry at = pkv_geometry_at(&info.geometry, m->grain);
        FUZZ_CHECK(m->group < pkv_groups(&at));
        FUZZ_CHECK(m->src_slot + m->n_slots <= 16 && m->dst_slot + m->n_slots <= 16);
    }
}

/* Every list of heads is readable, and equal when it was packed again. */
static void check_embeds(const step_seq *a, const step_seq *b)
{
    FUZZ_CHECK(a->n_embeds <= EMBED_HEADS_MOST);
    for (uint32_t i = 0; i < a->n_embeds; i++) {
        FUZZ_CHECK(a->embeds[i].kind < EMBED_KINDS);
        FUZZ_CHECK(memcmp(&a->embeds[i], &b->embeds[i], sizeof *a->embeds) == 0);
    }
}

/* A plan behind itself: each token that a share takes is a draw's, and each share behind a draw
 * takes its token. */
static void check_ahead(step_plan plan, arena *a)
{
    step_plan before = plan;
    error err;
    plan.step++;
    if (!status_ok(plan_check_ahead(&plan, &before, &info, a, &err))) return;
    for (uint32_t i = 0; i < plan.n_seqs; i++) {
        const step_seq *s = &plan.seqs[i];
        FUZZ_CHECK(s->token_from == (s->n_samples ? 1 + i : 0) && s->n_samples <= 1);
        FUZZ_CHECK(!s->want_logits && !s->want_scores && !s->measure.novelty);
        for (uint32_t o = 0; o < plan.n_opens; o++) FUZZ_CHECK(plan.opens[o].seq != s->seq);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    arena first, packing, second;
    step_plan plan, again;
    plan_message m;
    if (status_ok(read_plan(data, size, &first, &plan))) {
        check_ranges(&plan);
        check_ahead(plan, &first);
        arena_init(&packing, 4096, 0);
        FUZZ_CHECK(status_ok(plan_pack(&plan, 1, &packing, &m)));
        size_t n = protobuf_c_message_get_packed_size(&m.base);
        uint8_t *bytes = malloc(n + 1);
        FUZZ_CHECK(bytes && protobuf_c_message_pack(&m.base, bytes) == n);
        FUZZ_CHECK(status_ok(read_plan(bytes, n, &second, &again)));
        FUZZ_CHECK(again.n_seqs == plan.n_seqs && again.n_tokens == plan.n_tokens);
        for (uint32_t i = 0; i < plan.n_seqs; i++) {
            step_seq there = again.seqs[i];
            check_embeds(&there, &plan.seqs[i]);
            there.embeds = plan.seqs[i].embeds;
            FUZZ_CHECK(memcmp(&there, &plan.seqs[i], sizeof there) == 0);
        }
        FUZZ_CHECK(again.deltas.n_moves == plan.deltas.n_moves);
        for (size_t i = 0; i < plan.deltas.n_moves; i++)
            FUZZ_CHECK(memcmp(&again.deltas.moves[i], &plan.deltas.moves[i],
                              sizeof *plan.deltas.moves) == 0);
        free(bytes);
        arena_destroy(&packing);
        arena_destroy(&second);
    }
    arena_destroy(&first);
    return 0;
}

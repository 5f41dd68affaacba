/* Tables of every grain on the CUDA backend over emulated GPUs: logits and running sums have the
 * bits of the same steps with all tables at the finest grain, while sequences of different grains
 * share steps, are forked, split between steps, lose tokens, and go to the host tier and back; and
 * moves that no table can ask for are refused. Launches and copies are executed only when they are
 * waited for, as on a slow GPU. */
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/device.h"

enum {
    SEQS = 8,
    STEPS = 16,
    VOCAB = 64,
    PROMPT = 40, /* the longest prompt */
    ROWS = 4 * PROMPT,
    LENGTH = PROMPT + STEPS,
    SUMS = 2048, /* floats of a sequence's running sums */
};

static const pass cells = {.dir = "tests/golden/models/qwen3_f32",
                           .override = "num_hidden_layers=4",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .heads_per_group = 1,
                           .chunk = ROWS,
                           .n_threads = 1,
                           .max_seqs = SEQS,
                           .max_model_len = 128,
                           .swap_bytes = 1 << 20,
                           .gpu_kv = GPU_KV_BF16};

/* Those that are opened with a prompt; the others are their forks. */
static const struct {
    uint32_t prompt;
    pkv_grain grain;
} opened[] = {{20, PKV_ALL}, {PROMPT, PKV_LAYER}, {18, PKV_HEAD}, {35, PKV_ALL}};
/* WHOLE keeps a single table until the end. */
enum { OPENED = sizeof opened / sizeof *opened, WHOLE = 3, FORKS = 4, ALL_SEQS = 0xff };

/* What the backend gave: rows of sequences that took no part in a step stay 0. */
typedef struct account {
    float logits[STEPS][SEQS][VOCAB];
    float sums[OPENED][SUMS];
} account;

typedef struct house {
    comm *group;
    backend backend;
    model_config config;
    pkv *kv;
    const pkv_geometry *geometry;
    bool mixed; /* else all tables are of the finest grain */
    bool sums;  /* running sums are asked for */
    uint32_t step, length[SEQS];
    account *out;
} house;

static house open_house(const pass *p, bool mixed)
{
    house h = {.mixed = mixed, .sums = p->kv_host == 0, .out = calloc(1, sizeof *h.out)};
    pass device = *p;
    device.gpu = octavo_cuda_api(GPU_API_VERSION);
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.backend = open_backend(&device, h.group, &h.config);
    assert_int_equal(h.config.vocab_size, VOCAB);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    h.geometry = &info->geometry;
    pkv_options po = {.geometry = info->geometry,
                      .n_pages = info->n_pages,
                      .max_seqs = SEQS,
                      .n_host_pages = info->n_host_pages};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    return h;
}

static void close_house(house *h)
{
    assert_null(pkv_check_integrity(h->kv));
    pkv_destroy(h->kv);
    h->backend.ops->destroy(h->backend.ctx);
    comm_destroy(h->group);
    assert_int_equal(simt_allocations(), 0);
}

static uint32_t token_of(uint32_t seq, uint32_t position)
{
    return (seq % FORKS * 31 + position * position * 7 + position) % VOCAB;
}

/* Computes a step over the sequences of the mask: n more tokens of each, or (n 0) their prompts.
 * Sums: whether the opened sequences' running sums start, or are added to and returned. */
static void take_step(house *h, uint32_t mask, uint32_t n, measure_sum sum)
{
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    uint32_t tokens[ROWS], ids[SEQS], n_tokens = 0, n_seqs = 0;
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    if (!h->sums) sum = MEASURE_SUM_STEP;
    for (uint32_t s = 0; s < SEQS; s++) {
        if (!(mask >> s & 1)) continue;
        uint32_t some = n ? n : opened[s].prompt;
        opens[n_seqs] = (step_open){.seq = s, .params = &greedy};
        seqs[n_seqs] = (step_seq){.seq = s,
                                  .first_token = n_tokens,
                                  .n_tokens = some,
                                  .position = pkv_seq_next_position(h->kv, s),
                                  .want_logits = n > 0};
        if (sum != MEASURE_SUM_STEP && s < OPENED)
            seqs[n_seqs].measure = (measure_spec){.kind = MEASURE_MASS,
                                                  .sum = sum,
                                                  .rows = some,
                                                  .layer_step = 1,
                                                  .by_slot = true,
                                                  .silent = sum == MEASURE_SUM_START};
        ids[n_seqs++] = s;
        for (uint32_t i = 0; i < some; i++) tokens[n_tokens++] = token_of(s, h->length[s]++);
        assert_true(status_ok(pkv_seq_append(h->kv, s, some)));
    }
    step_plan plan = {.step = h->step + 1,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = opens,
                      .n_opens = n ? 0 : n_seqs,
                      .seqs = seqs,
                      .n_seqs = n_seqs,
                      .tokens = tokens,
                      .n_tokens = n_tokens,
                      .checksum = pkv_checksum(h->kv)};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("step %u: %s", h->step, r->status.message);
    assert_in_range(h->step, 0, STEPS - 1);
    for (uint32_t i = 0; n && i < n_seqs; i++)
        memcpy(h->out->logits[h->step][ids[i]], r->logits + (size_t)i * n * VOCAB,
               sizeof h->out->logits[0][0]);
    for (uint32_t i = 0; sum == MEASURE_SUM_ADD && i < n_seqs; i++) {
        const measure_result *m = &r->seqs[i].measure;
        size_t floats = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        if (ids[i] >= OPENED) continue;
        assert_in_range(floats, 1, SUMS);
        memcpy(h->out->sums[ids[i]], m->values, floats * sizeof *m->values);
    }
    h->step++;
}

static void split(house *h, uint32_t seq, pkv_grain grain)
{
    assert_true(status_ok(pkv_seq_split(h->kv, seq, grain, 0)));
    if (h->mixed) assert_int_equal(pkv_seq_grain(h->kv, seq), pkv_grain_fit(h->geometry, grain));
}

/* Each KV group of the sequence loses every third token; others take their places. */
static void thin_out(house *h, uint32_t seq, bool contiguous)
{
    for (uint32_t g = 0; g < pkv_groups(h->geometry); g++) {
        uint64_t keep[LENGTH / 64 + 1] = {0};
        for (uint32_t i = 0; i < pkv_seq_table(h->kv, seq, g).kept_tokens; i++)
            if ((i + (contiguous ? 0 : g)) % 3 != 1) keep[i / 64] |= (uint64_t)1 << i % 64;
        assert_true(status_ok(pkv_seq_keep(h->kv, seq, g, keep, contiguous)));
    }
}

static void fork_all(house *h)
{
    for (uint32_t s = 0; s < OPENED; s++) {
        assert_true(status_ok(pkv_seq_fork(h->kv, s, FORKS + s, LENGTH)));
        h->length[FORKS + s] = h->length[s];
    }
}

/* Makes one list of moves that copies shared pages at three grains, selects in tables that are cut
 * after that, and sends all the opened sequences to the host tier. */
static void move_all(house *h, uint32_t swaps[OPENED])
{
    for (uint32_t s = 1; s < OPENED; s++) assert_true(status_ok(pkv_seq_unshare(h->kv, FORKS + s)));
    for (uint32_t s = OPENED; s-- > 0;) {
        if (s > 0) split(h, FORKS + s, PKV_HEAD);
        if (s > 0) thin_out(h, FORKS + s, s == 1);
        assert_true(status_ok(pkv_seq_swap_out(h->kv, s, &swaps[s])));
    }
}

static account *live(const pass *p, bool mixed, uint64_t *replays)
{
    house h = open_house(p, mixed);
    uint32_t swaps[OPENED], hit, tokens[LENGTH];
    uint64_t before = simt_counted().replays;
    for (uint32_t s = 0; s < OPENED; s++)
        assert_true(status_ok(
            pkv_seq_open(h.kv, s, mixed ? opened[s].grain : PKV_HEAD, NULL, 0, 0, LENGTH, &hit)));
    take_step(&h, 0xf, 0, MEASURE_SUM_START);
    for (int i = 0; i < 3; i++) take_step(&h, 0xf, 1, MEASURE_SUM_STEP);
    split(&h, 0, PKV_LAYER); /* the step's shape stays, its grains do not */
    take_step(&h, 0xf, 1, MEASURE_SUM_STEP);
    fork_all(&h);
    for (int i = 0; i < 2; i++) take_step(&h, ALL_SEQS, 1, MEASURE_SUM_STEP);
    split(&h, FORKS, PKV_HEAD);
    take_step(&h, ALL_SEQS, 1, MEASURE_SUM_STEP);
    *replays = simt_counted().replays - before;
    move_all(&h, swaps);
    take_step(&h, 0xf0, 5, MEASURE_SUM_STEP); /* takes pages that the swapped ones left */
    for (uint32_t s = 0; s < OPENED; s++) {
        for (uint32_t i = 0; i < h.length[s]; i++) tokens[i] = token_of(s, i);
        assert_true(status_ok(pkv_swap_in(h.kv, swaps[s], s, tokens, LENGTH)));
    }
    uint64_t copies_in = simt_counted().copies_in;
    take_step(&h, ALL_SEQS, 1, MEASURE_SUM_STEP);
    copies_in = simt_counted().copies_in - copies_in;
    /* Many pages, and not a copy for each of them. */
    assert_true(p->n_ranks > 0 || p->kv_host > 0 || copies_in < 8);
    if (mixed) assert_int_equal(pkv_seq_grain(h.kv, WHOLE), pkv_grain_fit(h.geometry, PKV_ALL));
    split(&h, WHOLE, PKV_HEAD);
    thin_out(&h, WHOLE, false);
    take_step(&h, ALL_SEQS, 1, MEASURE_SUM_ADD);
    account *out = h.out;
    close_house(&h);
    return out;
}

static void check(const pass *p)
{
    uint64_t replays[2];
    account *finest = live(p, false, &replays[0]), *mixed = live(p, true, &replays[1]);
    for (uint32_t t = 0; t < STEPS; t++)
        for (uint32_t s = 0; s < SEQS; s++)
            if (memcmp(finest->logits[t][s], mixed->logits[t][s], sizeof mixed->logits[t][s]))
                fail_msg("step %u: logits of sequence %u differ", t, s);
    assert_memory_equal(finest->sums, mixed->sums, sizeof mixed->sums);
    assert_true(finest->sums[0][0] > 0 && finest->sums[WHOLE][0] > 0);
    assert_int_equal(replays[0], replays[1]);
    assert_true(p->n_ranks > 0 || replays[1] >= 3);
    free(finest);
    free(mixed);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void mixed_grains_give_the_bits_of_the_finest(void **state)
{
    (void)state;
    check(&cells);
}

/* Pages with scales in groups of two layers, of which the last is short; and all heads in one
 * group, where the tables of layers are the finest. */
static void other_formats_and_geometries(void **state)
{
    (void)state;
    pass p = cells;
    p.override = "num_hidden_layers=3";
    p.gpu_kv = GPU_KV_INT8;
    p.layers_per_group = 2;
    p.page_tokens = 32;
    check(&p);
    p = cells;
    p.gpu_kv = GPU_KV_E4M3;
    p.heads_per_group = 2;
    check(&p);
}

static account *live_far(bool invariant, bool early)
{
    enum { CELL = 2048, CELLS = 512, ROOM = 2 * CELLS / 4 + 40 };
    uint64_t replays;
    pass p = cells;
    p.batch_invariant = invariant;
    p.kv_bytes = (uint64_t)ROOM * CELL;
    p.kv_host = (uint64_t)(CELLS - ROOM) * CELL;
    simt_copy_early(early);
    account *out = live(&p, true, &replays);
    simt_copy_early(false);
    assert_int_equal(replays, 0);
    return out;
}

/* Most pages lie in host memory, and the device has room for two layers of them: the bits of the
 * same steps with all pages on the device, however late or early copies come. Where single rows
 * leave their full pages to the CPU, the same logits but for rounding. */
static void pages_in_host_memory(void **state)
{
    (void)state;
    uint64_t replays;
    pass p = cells;
    p.batch_invariant = true;
    account *here = live(&p, true, &replays), *there;
    for (int early = 0; early < 2; early++) {
        there = live_far(true, early);
        for (uint32_t t = 0; t < STEPS; t++)
            for (uint32_t s = 0; s < SEQS; s++)
                if (memcmp(here->logits[t][s], there->logits[t][s], sizeof there->logits[t][s]))
                    fail_msg("step %u: logits of sequence %u differ", t, s);
        free(there);
    }
    there = live_far(false, false);
    size_t floats = sizeof here->logits / sizeof(float);
    double e = nmse(&there->logits[0][0][0], &here->logits[0][0][0], floats);
    print_message("NMSE of logits %.1e\n", e);
    assert_true(e > 0 && e < 1e-4);
    free(there);
    free(here);
}

/* Each rank has one of the two KV heads. */
static void ranks(void **state)
{
    (void)state;
    pass p = cells;
    p.n_ranks = 2;
    check(&p);
}

/* ---- steps in flight ------------------------------------------------------------------------- */

enum { AHEAD = 6, DRAWING = 3 };

/* A plan, which must live until it is collected. */
typedef struct flight {
    step_plan plan;
    step_seq seqs[DRAWING];
    step_open opens[DRAWING];
    uint32_t tokens[DRAWING * PROMPT];
} flight;

/* Submits a step of each sequence's prompt (the first step), of the tokens of `drawn`, or with NULL
 * of those that the step in flight draws. */
static void submit(house *h, flight *f, const step_sample *drawn)
{
    bool prompts = h->step == 0;
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = 3};
    uint32_t n_tokens = 0;
    for (uint32_t s = 0; s < DRAWING; s++) {
        uint32_t n = prompts ? opened[s].prompt : 1;
        f->opens[s] = (step_open){.seq = s, .params = &greedy};
        f->seqs[s] = (step_seq){.seq = s,
                                .first_token = n_tokens,
                                .n_tokens = n,
                                .position = h->length[s],
                                .sample_index = h->step,
                                .token_from = prompts || drawn ? 0 : 1 + s,
                                .n_samples = 1};
        assert_true(status_ok(pkv_seq_append(h->kv, s, n)));
        for (uint32_t i = 0; i < n; i++, h->length[s]++)
            f->tokens[n_tokens++] = prompts ? token_of(s, i) : drawn ? drawn[s].token : 0;
    }
    f->plan = (step_plan){.step = ++h->step,
                          .deltas = pkv_take_deltas(h->kv),
                          .opens = f->opens,
                          .n_opens = prompts ? DRAWING : 0,
                          .seqs = f->seqs,
                          .n_seqs = DRAWING,
                          .tokens = f->tokens,
                          .n_tokens = n_tokens,
                          .checksum = pkv_checksum(h->kv)};
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &f->plan)));
}

static void collect(const house *h, step_sample samples[DRAWING])
{
    const step_result *r;
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("step %u: %s", (unsigned)r->step, r->status.message);
    for (uint32_t s = 0; s < DRAWING; s++) samples[s] = r->seqs[s].samples[0];
}

/* Sequences are cut while the step before is in flight. */
static void draw_ahead(bool mixed, step_sample samples[AHEAD + 1][DRAWING])
{
    static const struct {
        uint32_t seq;
        pkv_grain grain;
    } cuts[AHEAD] = {[2] = {0, PKV_LAYER}, [3] = {1, PKV_HEAD}, [4] = {0, PKV_HEAD}};
    house h = open_house(&cells, mixed);
    flight flights[2];
    uint32_t hit;
    for (uint32_t s = 0; s < DRAWING; s++)
        assert_true(status_ok(
            pkv_seq_open(h.kv, s, mixed ? opened[s].grain : PKV_HEAD, NULL, 0, 0, LENGTH, &hit)));
    submit(&h, &flights[0], NULL);
    collect(&h, samples[0]);
    for (uint32_t i = 0; i < AHEAD; i++) {
        if (cuts[i].grain != PKV_ALL) split(&h, cuts[i].seq, cuts[i].grain);
        submit(&h, &flights[i % 2], i == 0 ? samples[0] : NULL);
        if (i > 0) collect(&h, samples[i]);
    }
    collect(&h, samples[AHEAD]);
    free(h.out);
    close_house(&h);
}

static void steps_in_flight(void **state)
{
    (void)state;
    step_sample finest[AHEAD + 1][DRAWING] = {0}, mixed[AHEAD + 1][DRAWING] = {0};
    draw_ahead(false, finest);
    draw_ahead(true, mixed);
    for (uint32_t i = 0; i <= AHEAD; i++)
        for (uint32_t s = 0; s < DRAWING; s++) {
            const step_sample *x = &finest[i][s], *y = &mixed[i][s];
            assert_int_equal(x->token, y->token);
            assert_int_equal(x->n_top, 3);
            assert_memory_equal(x->top_logprobs, y->top_logprobs, 3 * sizeof *x->top_logprobs);
        }
}

/* ---- plans of a wire ------------------------------------------------------------------------- */
static status_code code_of(house *h, pkv_move move)
{
    step_plan plan = {.step = ++h->step, .deltas = {.moves = &move, .n_moves = 1}};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    assert_true(status_ok(h->backend.ops->collect(h->backend.ctx, &r)));
    return r->status.code;
}

static void lies_are_refused(void **state)
{
    (void)state;
    house h = open_house(&cells, true);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    uint32_t pool = pkv_cell_count(h.geometry, info->n_pages - 1);
    uint32_t host = pkv_cell_count(h.geometry, info->n_host_pages), heads = 2;
    const struct {
        pkv_move_kind kind;
        pkv_grain grain;
        uint32_t src, dst;
        status_code code;
    } cases[] = {
        {PKV_MOVE_SLOTS, PKV_HEAD, 1, pool - 1, STATUS_OK},
        {PKV_MOVE_SLOTS, PKV_HEAD, 1, pool, STATUS_INVALID},
        {PKV_MOVE_SLOTS, PKV_LAYER, heads, pool - heads, STATUS_OK},
        {PKV_MOVE_SLOTS, PKV_LAYER, heads, pool, STATUS_INVALID},
        {PKV_MOVE_SLOTS, PKV_LAYER, heads + 1, heads, STATUS_INVALID}, /* not the first cell */
        {PKV_MOVE_SLOTS, PKV_ALL, heads, pool / 4 - heads, STATUS_OK},
        {PKV_MOVE_SLOTS, PKV_ALL, heads, pool / 4, STATUS_INVALID}, /* another layer's */
        {PKV_MOVE_SLOTS, PKV_ALL, heads + 1, heads, STATUS_INVALID},
        {PKV_MOVE_SLOTS, (pkv_grain)3, heads, heads, STATUS_INVALID},
        {PKV_MOVE_OUT, PKV_ALL, heads, host / 4 - heads, STATUS_OK},
        {PKV_MOVE_OUT, PKV_ALL, heads, host / 4, STATUS_INVALID},
        {PKV_MOVE_OUT, PKV_ALL, pool / 4, 0, STATUS_INVALID},
        {PKV_MOVE_IN, PKV_LAYER, host - heads, heads, STATUS_OK},
        {PKV_MOVE_IN, PKV_LAYER, host, heads, STATUS_INVALID},
        {PKV_MOVE_IN, PKV_LAYER, 1, heads, STATUS_INVALID},
        {PKV_MOVE_IN, PKV_HEAD, host - 1, 1, STATUS_OK},
        {PKV_MOVE_IN, PKV_HEAD, host, 1, STATUS_INVALID},
        {PKV_MOVE_IN, (pkv_grain)3, 0, heads, STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pkv_move move = {.kind = cases[i].kind,
                         .grain = cases[i].grain,
                         .src_page = cases[i].src,
                         .dst_page = cases[i].dst,
                         .n_slots = 16};
        status_code code = code_of(&h, move);
        if (code != cases[i].code) fail_msg("case %zu: %d", i, code);
    }
    free(h.out);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_grains_give_the_bits_of_the_finest),
        cmocka_unit_test(other_formats_and_geometries),
        cmocka_unit_test(pages_in_host_memory),
        cmocka_unit_test(ranks),
        cmocka_unit_test(steps_in_flight),
        cmocka_unit_test(lies_are_refused),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Decode by graphs over emulated GPUs: a replayed graph gives the bits of the same launches made
 * one by one, while sequences come and go, tables grow, shrink and are measured, and pages change
 * hands. With --batch-invariant a sequence's bits are the same alone and among others. Launches and
 * copies are executed only when they are waited for, as on a slow GPU. */
#include "tests/unit/model_nccl.h"

enum {
    SEQS = 11, /* above eight, rows are padded */
    STEPS = 10,
    VOCAB = 64,
    PROMPT = 254, /* the longest prompt: soon exceeds the slots of one part of attention */
    ROWS = PROMPT + SEQS,
    MASS = 64, /* floats */
};

#define GOLDEN "tests/golden/models/"

static const pass wide = {.dir = GOLDEN "qwen3_f32",
                          .override = "num_hidden_layers=1",
                          .kv_type = KERN_KV_BF16,
                          .bf16 = true,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .chunk = ROWS,
                          .n_threads = 1,
                          .max_seqs = SEQS,
                          .max_model_len = 400,
                          .gpu_kv = GPU_KV_BF16};

static pass on_gpu(const pass *p)
{
    pass out = *p;
    out.gpu = octavo_cuda_api(GPU_API_VERSION);
    return out;
}

/* A sequence's life: it joins with its prompt in one step and leaves before another. */
typedef struct life {
    uint32_t joins, leaves, prompt;
} life;

/* Several cross into new pages, and get pages that others left. */
static const life lives[SEQS] = {{0, STEPS, 15}, {0, 6, 13},    {2, 8, PROMPT}, {4, STEPS, 20},
                                 {7, STEPS, 2},  {0, STEPS, 1}, {7, STEPS, 2},  {0, STEPS, 1},
                                 {0, STEPS, 3},  {0, STEPS, 1}, {0, STEPS, 2}};
/* A subset: its three rows use three tiles, then four, as four rows do when the longest sequence is
 * gone. */
enum { SOME = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 };
/* Sequence 0 is measured and loses tokens, in steps that otherwise only decode. */
enum { MEASURED = 1, THINNED = 6 };

typedef struct house {
    bool has_ranks;
    comm *group;
    backend backend;
    uint32_t prompt_most;
    model_config config;
    pkv *kv;
    uint32_t step, length[SEQS];
    const measure_spec *specs; /* what sequences that decode measure, in turns; NULL: nothing */
    uint32_t n_specs;          /* 0: there are two, and all sequences take turns with them */
} house;

/* All logits of all decode steps by sequence, and all measures. */
typedef struct account {
    float logits[SEQS][STEPS][VOCAB];
    float mass[MASS];
} account;

static house open_house(const pass *p)
{
    house h = {.prompt_most = p->max_model_len - 2 * STEPS, .has_ranks = p->make_ranks};
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.backend = open_backend(p, h.group, &h.config);
    assert_int_equal(h.config.vocab_size, VOCAB);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = SEQS};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    return h;
}

static void close_house(house *h)
{
    pkv_destroy(h->kv);
    h->backend.ops->destroy(h->backend.ctx);
    if (h->has_ranks) leave();
    comm_destroy(h->group);
    assert_int_equal(simt_allocations(), 0);
}

/* The token at a position: the same in every run, whatever else is in the batch. */
static uint32_t token_of(uint32_t seq, uint32_t position)
{
    return (seq * 31 + position * position * 7 + position) % VOCAB;
}

/* The measure of a sequence in this step. */
static const measure_spec *spec_of(const house *h, uint32_t seq)
{
    return &h->specs[h->n_specs ? (seq + h->step) % h->n_specs : h->step % 2];
}

/* Computes n[seq] more tokens of every sequence (0 = none); logits of those that decode. */
static const step_result *take_step(house *h, const uint32_t n[SEQS], bool measures)
{
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    uint32_t tokens[ROWS], n_tokens = 0, n_seqs = 0, n_opens = 0;
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    h->step++;
    for (uint32_t s = 0; s < SEQS; s++) {
        if (n[s] == 0) continue;
        if (h->length[s] == 0) opens[n_opens++] = (step_open){.seq = s, .params = &greedy};
        seqs[n_seqs] = (step_seq){.seq = s,
                                  .first_token = n_tokens,
                                  .n_tokens = n[s],
                                  .position = h->length[s],
                                  .want_logits = h->length[s] > 0};
        if (s == 0 && measures)
            seqs[n_seqs].measure = (measure_spec){.kind = MEASURE_MASS, .rows = 1, .layer_step = 1};
        if (h->specs && h->length[s] > 0) seqs[n_seqs].measure = *spec_of(h, s);
        n_seqs++;
        for (uint32_t i = 0; i < n[s]; i++) tokens[n_tokens++] = token_of(s, h->length[s]++);
        assert_true(status_ok(pkv_seq_append(h->kv, s, n[s])));
    }
    step_plan plan = {.step = h->step,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = opens,
                      .n_opens = n_opens,
                      .seqs = seqs,
                      .n_seqs = n_seqs,
                      .tokens = tokens,
                      .n_tokens = n_tokens,
                      .checksum = pkv_checksum(h->kv)};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    (void)h->backend.ops->collect(h->backend.ctx, &r);
    return r;
}

/* Drops every third token; others move into their slots. */
static void thin_out(house *h, uint32_t seq)
{
    uint64_t keep[ROWS / 64 + 1];
    const pkv_geometry *geometry = &h->backend.ops->info(h->backend.ctx)->geometry;
    for (uint32_t g = 0; g < pkv_groups(geometry); g++) {
        memset(keep, 0, sizeof keep);
        for (uint32_t i = 0; i < pkv_seq_table(h->kv, seq, g).kept_tokens; i++)
            if (i % 3 != 1) keep[i / 64] |= (uint64_t)1 << i % 64;
        assert_true(status_ok(pkv_seq_keep(h->kv, seq, g, keep, false)));
    }
}

/* Fills n with the tokens that step t computes of every sequence of `which`; returns their
 * number. */
static uint32_t begin_step(house *h, uint32_t t, uint32_t which, uint32_t n[SEQS])
{
    uint32_t n_live = 0, hit;
    for (uint32_t s = 0; s < SEQS; s++) {
        n[s] = 0;
        if (!(which >> s & 1)) continue;
        if (lives[s].leaves == t) pkv_seq_close(h->kv, s);
        if (t < lives[s].joins || t >= lives[s].leaves) continue;
        n[s] = 1;
        if (t == lives[s].joins)
            n[s] = lives[s].prompt < h->prompt_most ? lives[s].prompt : h->prompt_most;
        if (t == lives[s].joins)
            assert_true(status_ok(pkv_seq_open(h->kv, s, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        n_live++;
    }
    if (t == THINNED && n[0]) thin_out(h, 0);
    return n_live;
}

static account *live(const pass *p, uint32_t which)
{
    house h = open_house(p);
    account *all = calloc(1, sizeof *all);
    for (uint32_t t = 0; t < STEPS; t++) {
        uint32_t n[SEQS];
        if (begin_step(&h, t, which, n) == 0) continue;
        const step_result *r = take_step(&h, n, t == MEASURED);
        if (!status_ok(r->status)) fail_msg("step %u: %s", h.step, r->status.message);
        const float *row = r->logits;
        for (uint32_t s = 0; s < SEQS; s++) {
            if (n[s] == 0 || lives[s].joins == t) continue;
            memcpy(all->logits[s][t], row, sizeof all->logits[s][t]);
            row += VOCAB;
        }
        const measure_result *m = &r->seqs[0].measure;
        if (t != MEASURED || !n[0]) continue;
        size_t floats = (size_t)m->n_layers * m->n_kv_heads * m->stride;
        assert_in_range(floats, 1, MASS);
        memcpy(all->mass, m->values, floats * sizeof(float));
    }
    close_house(&h);
    return all;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_replays(const pass *model, uint32_t which, uint64_t least, uint64_t most)
{
    pass p = on_gpu(model);
    simt_refuse_captures(1);
    uint64_t before = simt_counted().replays;
    account *plain = live(&p, which);
    assert_int_equal(simt_counted().replays, before);
    simt_refuse_captures(0);
    account *graphs = live(&p, which);
    print_message("%s: %d of %d steps replayed\n", p.dir, (int)(simt_counted().replays - before),
                  STEPS);
    assert_in_range(simt_counted().replays - before, least, most);
    assert_memory_equal(plain, graphs, sizeof *plain);
    free(plain);
    free(graphs);
}

static void replays_are_the_launches(void **state)
{
    (void)state;
    check_replays(&wide, SOME, 3, STEPS);
    check_replays(&wide, ~0u & ~(1u << 2), 1, STEPS);
}

/* Ranks capture their sums with the rest, all of them or none. */
static void replays_of_ranks(void **state)
{
    (void)state;
    pass p = wide;
    void *library = open_nccl(FAKE_WELL);
    p.n_ranks = RANKS;
    p.make_ranks = make_ranks;
    check_replays(&p, SOME, RANKS * 3, RANKS * STEPS);
    check_replays(&p, ~0u & ~(1u << 2), RANKS, RANKS * STEPS);
    p = on_gpu(&p);
    account *all = live(&p, SOME);
    simt_refuse_captures(SIMT_REFUSE_SOME);
    uint64_t before = simt_counted().replays;
    account *none = live(&p, SOME);
    assert_int_equal(simt_counted().replays, before);
    assert_memory_equal(all, none, sizeof *all);
    simt_refuse_captures(SIMT_REFUSE_NONE);
    free(all);
    free(none);
    dlclose(library);
}

static void replays_of_experts(void **state)
{
    (void)state;
    pass p = wide;
    p.dir = GOLDEN "mixtral_f32";
    p.override = "head_dim=32";
    p.max_model_len = 48;
    check_replays(&p, SOME, 2, STEPS);
    p.bf16 = false;
    check_replays(&p, SOME, 2, STEPS);
}

/* A sanitizer needs no long context: the host's code is the same for each number of parts. */
static uint32_t context(void) { return is_light() ? 1024 : 8192; }

/* Grows the first n sequences from nothing to the longest context, a token in each step. */
static void grow(house *h, uint32_t n)
{
    uint32_t rows[SEQS] = {0}, hit;
    for (uint32_t s = 0; s < n; s++) {
        assert_true(status_ok(pkv_seq_open(h->kv, s, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        h->length[s] = 0;
        rows[s] = 1;
    }
    for (uint32_t t = 0; t < context(); t++) {
        const step_result *r = take_step(h, rows, false);
        if (!status_ok(r->status)) fail_msg("step %u: %s", h->step, r->status.message);
    }
    for (uint32_t s = 0; s < n; s++) pkv_seq_close(h->kv, s);
}

/* Contexts grow through all numbers of parts that attention cuts tables into. What the kernels
 * compute does not matter here, and they compute nothing. */
static void one_graph_for_each_batch_size(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, captures; /* nine rows are padded to ten */
    } sizes[] = {{1, 1}, {3, 1}, {9, 1}, {10, 0}};
    pass p = on_gpu(&wide);
    p.override = "max_position_embeddings=8192";
    p.max_model_len = context();
    p.kv_bytes = 96 << 20;
    for (int invariant = 0; invariant < 2; invariant++) {
        p.batch_invariant = invariant;
        simt_have_sms(132);
        simt_be_idle(1);
        house h = open_house(&p);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            simt_counts before = simt_counted();
            grow(&h, sizes[i].n);
            simt_counts after = simt_counted();
            assert_int_equal(after.captures - before.captures, sizes[i].captures);
            /* The first step of a new shape launches, the second captures and replays. */
            assert_int_equal(after.replays - before.replays, context() - sizes[i].captures);
        }
        close_house(&h);
        simt_be_idle(0);
        simt_have_sms(2);
    }
}

/* ---- measured -------------------------------------------------------------------------------- */

enum { MEASURED_SEQS = 10, MEASURED_STEPS = 12, MEASURED_FLOATS = 1 << 17 };

/* Values that steps have measured of sequences that grow. */
typedef struct findings {
    float values[MEASURED_FLOATS];
    size_t n;
    struct found {
        const measure_spec *spec;
        size_t at, n;
    } of[MEASURED_STEPS][MEASURED_SEQS];
} findings;

static void add_findings(const house *h, uint32_t t, const step_result *r, findings *f)
{
    for (uint32_t s = 0; s < MEASURED_SEQS; s++) {
        const measure_spec *spec = spec_of(h, s);
        const measure_result *m = &r->seqs[s].measure;
        bool gives = spec->kind != MEASURE_NONE && !spec->silent;
        uint32_t arrays = !gives ? 0 : spec->second == MEASURE_NONE ? 1 : 2;
        size_t n = (size_t)arrays * m->n_layers * m->n_kv_heads * m->stride;
        assert_int_equal(m->values != NULL, gives);
        assert_in_range(f->n + n, 0, MEASURED_FLOATS);
        if (n > 0) memcpy(f->values + f->n, m->values, n * sizeof(float));
        f->of[t][s] = (struct found){spec, f->n, n};
        f->n += n;
    }
}

/* In the second step the first sequence rests, and a padding row is in its place. The last sequence
 * grows beyond 64 slots. Sequences take turns with the specs. */
static findings *measure_steps(const pass *p, const measure_spec *specs, uint32_t n_specs)
{
    findings *f = calloc(1, sizeof *f);
    house h = open_house(p);
    uint32_t n[SEQS] = {0}, hit;
    for (uint32_t s = 0; s < MEASURED_SEQS; s++) {
        assert_true(status_ok(pkv_seq_open(h.kv, s, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        n[s] = s == 9 ? 60 : 8 + 2 * s;
    }
    assert_true(status_ok(take_step(&h, n, false)->status));
    h.specs = specs;
    h.n_specs = n_specs;
    for (uint32_t t = 0; t < MEASURED_STEPS; t++) {
        for (uint32_t s = 0; s < MEASURED_SEQS; s++) n[s] = t != 1 || s != 0;
        const step_result *r = take_step(&h, n, false);
        if (!status_ok(r->status)) fail_msg("step %u: %s", h.step, r->status.message);
        if (t != 1) add_findings(&h, t, r, f);
    }
    close_house(&h);
    return f;
}

static const measure_spec specs_of_one_kind[] = {
    {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1},
    {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .by_slot = true, .sum = MEASURE_SUM_ADD},
    {.kind = MEASURE_RAW,
     .second = MEASURE_VALUE_NORM,
     .rows = 1,
     .layer_step = 1,
     .by_slot = true},
    {.kind = MEASURE_PROJECTION, .rows = 1, .layer_step = 1, .by_slot = true, .theta = 2},
    {.kind = MEASURE_EXPECTED,
     .second = MEASURE_VALUE_WEIGHT,
     .rows = 1,
     .layer_step = 1,
     .by_slot = true,
     .sinks = 2},
    {.kind = MEASURE_KEY_COSINE, .layer_step = 1, .by_slot = true},
};

/* Measures with graphs and without: the same bits. Returns what was measured, and how many steps
 * were captured and replayed. */
static findings *measure_twice(const pass *p, const measure_spec *specs, uint32_t n_specs,
                               simt_counts *counts)
{
    simt_refuse_captures(SIMT_REFUSE_ALL);
    findings *plain = measure_steps(p, specs, n_specs);
    simt_refuse_captures(SIMT_REFUSE_NONE);
    simt_counts before = simt_counted();
    findings *graphs = measure_steps(p, specs, n_specs);
    *counts = simt_counted();
    counts->captures -= before.captures;
    counts->replays -= before.replays;
    assert_true(plain->n > 0 && plain->n == graphs->n);
    assert_memory_equal(plain->values, graphs->values, plain->n * sizeof(float));
    free(plain);
    return graphs;
}

static pass measured_pass(void)
{
    pass p = on_gpu(&wide);
    p.override = "num_hidden_layers=2";
    p.max_model_len = 96;
    return p;
}

static void what_replays_measure(void **state)
{
    (void)state;
    pass p = measured_pass();
    simt_counts counts;
    for (size_t i = 0; i < sizeof specs_of_one_kind / sizeof *specs_of_one_kind; i++) {
        free(measure_twice(&p, &specs_of_one_kind[i], 1, &counts));
        assert_in_range(counts.replays, 5, MEASURED_STEPS);
    }
}

/* Ten sequences, of which each is measured in another way, and in another one in each step. In the
 * first step the longest sequence has the most results. */
#define LAYERS_OF(step) .rows = 1, .layer_step = step
static const measure_spec masses[MEASURED_SEQS] = {
    {.kind = MEASURE_NONE},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true},
    {.kind = MEASURE_MASS, LAYERS_OF(1)},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true, .sum = MEASURE_SUM_ADD, .silent = true},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true, .sum = MEASURE_SUM_ADD},
    {.kind = MEASURE_MASS, LAYERS_OF(2), .by_slot = true},
    {.kind = MEASURE_NONE},
    {.kind = MEASURE_MASS, LAYERS_OF(2)},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true, .sum = MEASURE_SUM_START},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true, .window = 7, .chunk = 4, .sinks = 3},
};
static const measure_spec of_all_kinds[MEASURED_SEQS] = {
    {.kind = MEASURE_NONE},
    {.kind = MEASURE_MASS, LAYERS_OF(1)},
    {.kind = MEASURE_MASS, LAYERS_OF(2), .second = MEASURE_VALUE_WEIGHT, .by_slot = true},
    {.kind = MEASURE_RAW, .second = MEASURE_VALUE_NORM, LAYERS_OF(1), .by_slot = true},
    {.kind = MEASURE_PROJECTION, LAYERS_OF(1), .by_slot = true},
    {.kind = MEASURE_MASS, LAYERS_OF(1), .by_slot = true, .sum = MEASURE_SUM_ADD, .silent = true},
    {.kind = MEASURE_KEY_COSINE, LAYERS_OF(2), .by_slot = true},
    {.kind = MEASURE_EXPECTED,
     .second = MEASURE_VALUE_NORM,
     LAYERS_OF(1),
     .by_slot = true,
     .sinks = 2},
    {.kind = MEASURE_PROJECTION, LAYERS_OF(1), .by_slot = true, .theta = 2},
    {.kind = MEASURE_KEY_COSINE, LAYERS_OF(1), .by_slot = true},
};
#undef LAYERS_OF

/* A sequence in a mixture gets the bits that it gets where all are measured like it. Sums are not
 * compared, because theirs are of other steps. */
static void compare_to_alike(const pass *p, const measure_spec *specs, const findings *mixture)
{
    if (is_light()) return; /* the mixture has run the code of each measure */
    for (uint32_t i = 0; i < MEASURED_SEQS; i++) {
        if (specs[i].kind == MEASURE_NONE || specs[i].sum == MEASURE_SUM_ADD) continue;
        findings *alike = measure_steps(p, &specs[i], 1);
        uint32_t n = 0;
        for (uint32_t t = 0; t < MEASURED_STEPS; t++)
            for (uint32_t s = 0; s < MEASURED_SEQS; s++) {
                const struct found *a = &mixture->of[t][s], *b = &alike->of[t][s];
                if (a->spec != &specs[i]) continue;
                assert_int_equal(a->n, b->n);
                assert_memory_equal(mixture->values + a->at, alike->values + b->at,
                                    a->n * sizeof(float));
                n++;
            }
        assert_in_range(n, MEASURED_STEPS - 2, MEASURED_STEPS);
        free(alike);
    }
}

/* One graph serves all steps of measures of mass, whatever is measured of whom. */
static void mixtures_are_one_graph(void **state)
{
    (void)state;
    pass p = measured_pass();
    simt_counts counts;
    findings *f = measure_twice(&p, masses, MEASURED_SEQS, &counts);
    assert_int_equal(counts.captures, 1);
    assert_int_equal(counts.replays, MEASURED_STEPS - 1);
    compare_to_alike(&p, masses, f);
    free(f);
    f = measure_twice(&p, of_all_kinds, MEASURED_SEQS, &counts);
    assert_in_range(counts.replays, 5, MEASURED_STEPS);
    compare_to_alike(&p, of_all_kinds, f);
    free(f);
    measure_spec nine_kinds[MEASURED_SEQS];
    memcpy(nine_kinds, of_all_kinds, sizeof nine_kinds);
    nine_kinds[1] = (measure_spec){.kind = MEASURE_KEY_NORM, .layer_step = 1, .by_slot = true};
    free(measure_twice(&p, nine_kinds, MEASURED_SEQS, &counts));
    assert_int_equal(counts.replays, 0); /* too many for a graph */
    p.batch_invariant = true; /* then mass is measured from K, and its launches go by lengths */
    f = measure_twice(&p, masses, MEASURED_SEQS, &counts);
    assert_in_range(counts.replays, 5, MEASURED_STEPS);
    compare_to_alike(&p, masses, f);
    free(f);
}

/* Steps that alternate between two ways of measuring that are not the same launches, though the
 * same arrays: each has its graph. */
static void other_launches_are_other_graphs(void **state)
{
    (void)state;
#define BY_SLOT .rows = 1, .layer_step = 1, .by_slot = true
    static const measure_spec pairs[][2] = {
        {{.kind = MEASURE_MASS, BY_SLOT}, {.kind = MEASURE_MASS, BY_SLOT, .sum = MEASURE_SUM_ADD}},
        {{.kind = MEASURE_MASS, BY_SLOT}, {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1}},
        {{.kind = MEASURE_MASS, .rows = 1, .layer_step = 2},
         {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1}},
        {{.kind = MEASURE_RAW, BY_SLOT}, {.kind = MEASURE_MASS, BY_SLOT}},
        {{.kind = MEASURE_NONE}, {.kind = MEASURE_MASS, BY_SLOT}},
        {{.kind = MEASURE_PROJECTION, BY_SLOT}, {.kind = MEASURE_PROJECTION, BY_SLOT, .theta = 2}},
        {{.kind = MEASURE_PROJECTION, BY_SLOT, .bias = 1},
         {.kind = MEASURE_PROJECTION, BY_SLOT, .bias = 2}},
        {{.kind = MEASURE_EXPECTED, BY_SLOT}, {.kind = MEASURE_EXPECTED, BY_SLOT, .sinks = 2}},
        {{.kind = MEASURE_PROJECTION_OUTSIDE, BY_SLOT, .window = 2},
         {.kind = MEASURE_PROJECTION_OUTSIDE, BY_SLOT, .window = 5}},
        {{.kind = MEASURE_PROJECTION_POOLED, BY_SLOT, .window = 4, .chunk = 2},
         {.kind = MEASURE_PROJECTION_POOLED, BY_SLOT, .window = 4, .chunk = 4}},
    };
#undef BY_SLOT
    pass p = measured_pass();
    simt_counts counts;
    p.batch_invariant = true; /* mass is measured from K */
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        free(measure_twice(&p, pairs[i], 0, &counts));
        assert_in_range(counts.replays, 5, MEASURED_STEPS);
    }
}

/* Ranks that are threads, with a GPU each. */
static void mixtures_over_ranks(void **state)
{
    (void)state;
    pass p = measured_pass();
    void *library = open_nccl(FAKE_WELL);
    simt_counts counts;
    p.n_ranks = RANKS;
    p.make_ranks = make_ranks;
    findings *f = measure_twice(&p, masses, MEASURED_SEQS, &counts);
    assert_int_equal(counts.captures, RANKS);
    assert_int_equal(counts.replays, RANKS * (MEASURED_STEPS - 1));
    compare_to_alike(&p, masses, f);
    free(f);
    free(measure_twice(&p, of_all_kinds, MEASURED_SEQS, &counts));
    assert_in_range(counts.replays, RANKS * 5, RANKS * MEASURED_STEPS);
    dlclose(library);
}

/* ---- what is not captured -------------------------------------------------------------------- */

static void a_capture_that_fails_at_its_end(void **state)
{
    (void)state;
    pass p = on_gpu(&wide);
    account *due = live(&p, SOME);
    simt_refuse_captures(SIMT_REFUSE_AT_END);
    uint64_t before = simt_counted().replays;
    account *got = live(&p, SOME);
    assert_int_equal(simt_counted().replays, before);
    assert_memory_equal(due, got, sizeof *due);
    simt_refuse_captures(SIMT_REFUSE_NONE);
    free(due);
    free(got);
}

static void alone_as_among_others(void **state)
{
    (void)state;
    pass p = on_gpu(&wide);
    p.batch_invariant = true;
    uint64_t before = simt_counted().replays;
    account *all = live(&p, ~0u); /* padding rows among them */
    assert_in_range(simt_counted().replays - before, 1, STEPS);
    for (uint32_t s = 0; s < 3; s += 2) {
        account *alone = live(&p, 1u << s);
        assert_memory_equal(alone->logits[s], all->logits[s], sizeof all->logits[s]);
        if (s == 0) assert_memory_equal(alone->mass, all->mass, sizeof all->mass);
        free(alone);
    }
    free(all);
}

/* In the capturing step, and in the replaying ones. */
static void a_lost_device_ends_the_backend(void **state)
{
    (void)state;
    pass p = on_gpu(&wide);
    for (uint32_t step = 2; step < 4; step++)
        for (int after = 0; after < 8; after += 4) {
            uint32_t n[SEQS];
            house h = open_house(&p);
            for (uint32_t t = 0; t <= step; t++) {
                begin_step(&h, t, 1, n);
                simt_fail_after(t == step ? after : -1);
                status_code code = take_step(&h, n, false)->status.code;
                assert_int_equal(code, t == step ? STATUS_INTERNAL : STATUS_OK);
            }
            simt_fail_after(-1);
            close_house(&h);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_are_the_launches),
        cmocka_unit_test(replays_of_ranks),
        cmocka_unit_test(replays_of_experts),
        cmocka_unit_test(one_graph_for_each_batch_size),
        cmocka_unit_test(what_replays_measure),
        cmocka_unit_test(mixtures_are_one_graph),
        cmocka_unit_test(other_launches_are_other_graphs),
        cmocka_unit_test(mixtures_over_ranks),
        cmocka_unit_test(a_capture_that_fails_at_its_end),
        cmocka_unit_test(alone_as_among_others),
        cmocka_unit_test(a_lost_device_ends_the_backend),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

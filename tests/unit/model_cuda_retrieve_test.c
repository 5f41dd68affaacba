/* Rows that read few blocks on the CUDA backend, over emulated GPUs (tests/simt): they read what
 * the CPU backend's read, and bits do not depend on how a run is cut, batched or swapped. Launches
 * and copies are executed only when they are waited for, as on a slow GPU. */
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/simt/device.h"

enum { TOKENS = 84, PROMPT = 70, CHUNK = 14, VOCAB = 64 };

/* Two layers; the override makes dummy weights and four KV heads of one query head. */
static const pass shape = {.dir = "tests/golden/models/qwen3_f32",
                           .override = "num_key_value_heads=4",
                           .kv_type = KERN_KV_BF16,
                           .precision = KERN_PRECISION_HIGH,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .heads_per_group = 2,
                           .chunk = CHUNK,
                           .n_threads = 1,
                           .max_seqs = 5,
                           .max_model_len = 192,
                           .n_prompt = PROMPT,
                           .gpu_kv = GPU_KV_BF16};

static const retrieval_spec spec = {.block_tokens = 16,
                                    .representative_num = 1,
                                    .group_heads = 1,
                                    .initial_tokens = 1,
                                    .local_tokens = 16,
                                    .top_blocks = 1,
                                    .layer_step = 1,
                                    .token_step = 1};

static pass on_gpu(pass p)
{
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    return p;
}

static pass with(const retrieval_spec *s)
{
    pass p = shape;
    p.retrieval = *s;
    return p;
}

static pass_result run_tokens(const pass *p)
{
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB);
    return run(p, tokens, TOKENS);
}

/* ---- as on the CPU --------------------------------------------------------------------------- */

static const float *generated(const pass_result *r) { return r->logits + (size_t)PROMPT * VOCAB; }
static const size_t n_generated = (size_t)(TOKENS - PROMPT) * VOCAB;

static void expect_same_tokens(const pass_result *a, const pass_result *b)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        const float *x = a->logits + (size_t)i * VOCAB, *y = b->logits + (size_t)i * VOCAB;
        uint32_t first = logits_argmax(x, VOCAB), second = logits_argmax(y, VOCAB);
        assert_true(first == second || x[first] - x[second] < 0.01f);
    }
}

static void expect_same_readings(const pass_result *a, const pass_result *b)
{
    for (uint32_t i = PROMPT; i < TOKENS; i++) {
        const retrieval_reading *x = &a->readings[i], *y = &b->readings[i];
        assert_int_equal(x->context, y->context);
        assert_int_equal(x->lists, y->lists);
        assert_int_equal(x->selections, y->selections);
        assert_int_equal(x->tokens, y->tokens);
        assert_int_equal(x->blocks, y->blocks);
    }
}

/* Other blocks make other logits: what full attention computes is far off. */
static void expect_cpu(const pass *p, const pass_result *full)
{
    pass device = on_gpu(*p);
    pass_result cpu = run_tokens(p), ours = run_tokens(&device);
    double e = nmse(generated(&ours), generated(&cpu), n_generated);
    double apart = nmse(generated(full), generated(&cpu), n_generated);
    if (!(e < 1e-5 && apart > 30 * e)) fail_msg("NMSE %g, full attention's %g", e, apart);
    expect_same_tokens(&cpu, &ours);
    expect_same_readings(&cpu, &ours);
    result_free(&cpu);
    result_free(&ours);
    assert_int_equal(simt_allocations(), 0);
}

static void rows_read_what_the_cpu_reads(void **state)
{
    (void)state;
    pass all = with(&(retrieval_spec){0});
    pass_result full = run_tokens(&all);
    for (retrieval_representative r = RETRIEVAL_MEAN; r < RETRIEVAL_REPRESENTATIVES; r++) {
        retrieval_spec s = spec;
        s.representative = r;
        s.representative_num = r == RETRIEVAL_FIX ? 5 : r == RETRIEVAL_DYNAMIC ? 2 : 1;
        s.observed_rows = 8;
        s.preselect_blocks = r == RETRIEVAL_QUEST || r == RETRIEVAL_DYNAMIC ? 1 : 0;
        s.heads = (retrieval_heads)(r % RETRIEVAL_HEAD_MODES);
        s.group_heads = s.heads == RETRIEVAL_GROUP ? 2 : 1;
        s.dense_layers = r == RETRIEVAL_MAX;
        s.layer_step = 1 + (r == RETRIEVAL_QUEST);
        s.token_step = 1 + 3 * (r % 2);
        pass p = with(&s);
        p.chunk = r == RETRIEVAL_FIX ? 6 : CHUNK;
        expect_cpu(&p, &full);
    }
    result_free(&full);
}

static void pages_of_8_bits(void **state)
{
    (void)state;
    retrieval_spec s = spec;
    s.representative = RETRIEVAL_QUEST;
    s.heads = RETRIEVAL_SEPARATE;
    pass p = with(&s), all = with(&(retrieval_spec){0});
    p.kv_type = all.kv_type = KERN_KV_INT8;
    p.gpu_kv = GPU_KV_INT8;
    pass_result full = run_tokens(&all);
    expect_cpu(&p, &full);
    result_free(&full);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void expect_bits(const pass_result *due, const pass *p)
{
    pass_result got = run_tokens(p);
    assert_memory_equal(got.logits, due->logits, (size_t)TOKENS * VOCAB * sizeof(float));
    result_free(&got);
}

/* Several rows of a request are computed in one step after a preemption. */
static void bits_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    retrieval_spec s = spec;
    s.representative = RETRIEVAL_MAX;
    s.heads = RETRIEVAL_SEPARATE;
    s.token_step = 4;
    pass p = on_gpu(with(&s));
    p.batch_invariant = true;
    p.chunk = TOKENS; /* one share has rows of both kinds */
    pass_result whole = run_tokens(&p);
    p.chunk = 5;
    expect_bits(&whole, &p);
    p.chunk = 23;
    p.layers_per_group = 2;
    p.heads_per_group = 0;
    expect_bits(&whole, &p);
    result_free(&whole);
}

/* ---- among others ---------------------------------------------------------------------------- */

enum { SEQS = 5, STEPS = 9, SWAPPED_FROM = 4, SWAPPED_TO = 6, JOINS = 5, MASSES = 1024 };

typedef retrieval_spec wish(uint32_t seq);

/* The retrieval that a sequence asks for. The first one is swapped out for some steps, the fourth
 * joins while others decode, the fifth asks for nothing. */
static retrieval_spec each_its_own(uint32_t seq)
{
    retrieval_spec s = spec;
    if (seq == SEQS - 1) return (retrieval_spec){0};
    s.representative = seq == 0 ? RETRIEVAL_QUEST : seq == 1 ? RETRIEVAL_MEAN : RETRIEVAL_FIX;
    s.representative_num = seq == 2 || seq == 3 ? 3 : 1;
    s.heads = (retrieval_heads)(seq % RETRIEVAL_HEAD_MODES);
    s.group_heads = s.heads == RETRIEVAL_GROUP ? 2 : 1;
    s.dense_layers = seq == 1;
    s.observed_rows = 8;
    if (seq == 0) s.preselect_blocks = 1;
    if (seq == 3) s.representative = RETRIEVAL_DYNAMIC;
    s.token_step = seq == 1 ? 1 : 5;
    s.block_tokens = seq == 3 ? 32 : 16;
    return s;
}

typedef struct account {
    float logits[SEQS][STEPS][VOCAB];
    float mass[STEPS][MASSES]; /* of the first that asks for nothing */
} account;

typedef struct house {
    comm *group;
    backend backend;
    model_config config;
    pkv *kv;
    uint32_t step, length[SEQS], swap, known[TOKENS];
} house;

static uint32_t token_of(uint32_t seq, uint32_t position)
{
    return (seq * 31 + position * position * 7 + position) % VOCAB;
}

/* How many tokens of a sequence are computed in step t. */
static uint32_t rows_in(const house *h, uint32_t seq, uint32_t t, bool swaps)
{
    if (seq == 0 && swaps && t >= SWAPPED_FROM && t < SWAPPED_TO) return 0;
    if (seq == 3 && t < JOINS) return 0;
    return h->length[seq] < PROMPT ? PROMPT : 1;
}

static const step_result *take_step(house *h, wish *wish_of, const uint32_t n[SEQS])
{
    static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    uint32_t tokens[SEQS * PROMPT], n_tokens = 0, n_seqs = 0, n_opens = 0, n_measured = 0, hit;
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    for (uint32_t s = 0; s < SEQS; s++) {
        if (n[s] == 0) continue;
        if (h->length[s] == 0) {
            opens[n_opens++] = (step_open){.seq = s, .params = &greedy};
            pkv_grain grain = s % 2 ? PKV_HEAD : PKV_ALL;
            assert_true(status_ok(pkv_seq_open(h->kv, s, grain, NULL, 0, 0, 64, &hit)));
        }
        seqs[n_seqs++] = (step_seq){.seq = s,
                                    .first_token = n_tokens,
                                    .n_tokens = n[s],
                                    .position = h->length[s],
                                    .want_logits = h->length[s] > 0,
                                    .retrieval = wish_of(s),
                                    .n_prompt = PROMPT,
                                    .note = s};
        if (wish_of(s).block_tokens == 0 && n_measured++ == 0)
            seqs[n_seqs - 1].measure =
                (measure_spec){.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .by_slot = true};
        for (uint32_t i = 0; i < n[s]; i++) tokens[n_tokens++] = token_of(s, h->length[s]++);
        assert_true(status_ok(pkv_seq_append(h->kv, s, n[s])));
    }
    step_plan plan = {.step = ++h->step,
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

static void swap(house *h, uint32_t t)
{
    for (uint32_t i = 0; i < h->length[0]; i++) h->known[i] = token_of(0, i);
    if (t == SWAPPED_FROM) assert_true(status_ok(pkv_seq_swap_out(h->kv, 0, &h->swap)));
    if (t == SWAPPED_TO)
        assert_true(status_ok(pkv_swap_in(h->kv, h->swap, 0, h->known, h->length[0])));
}

static void keep_values(const measure_result *m, float *out)
{
    size_t n = (size_t)m->n_layers * m->n_kv_heads * m->stride;
    assert_in_range(n, 1, MASSES);
    memcpy(out, m->values, n * sizeof *out);
}

/* Runs the sequences of `which`; row i of each is its i-th generated token's. */
static account *live(wish *wish_of, uint32_t which, bool invariant, bool swaps)
{
    pass p = on_gpu(shape);
    p.chunk = SEQS * PROMPT;
    p.batch_invariant = invariant;
    p.swap_bytes = 1 << 20;
    house h = {0};
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.backend = open_backend(&p, h.group, &h.config);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    pkv_options po = {.geometry = info->geometry,
                      .n_pages = info->n_pages,
                      .max_seqs = SEQS,
                      .n_host_pages = info->n_host_pages};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    account *all = calloc(1, sizeof *all);
    for (uint32_t t = 0; t < STEPS; t++) {
        uint32_t n[SEQS], many = 0;
        if (swaps) swap(&h, t);
        for (uint32_t s = 0; s < SEQS; s++) {
            n[s] = which >> s & 1 ? rows_in(&h, s, t, swaps) : 0;
            many += n[s];
        }
        if (many == 0) continue;
        const step_result *r = take_step(&h, wish_of, n);
        if (!status_ok(r->status)) fail_msg("step %u: %s", h.step, r->status.message);
        const float *row = r->logits;
        for (uint32_t i = 0; i < r->n_seqs; i++)
            if (r->seqs[i].measure.values) keep_values(&r->seqs[i].measure, all->mass[t]);
        for (uint32_t s = 0; s < SEQS; s++) {
            if (n[s] != 1) continue;
            memcpy(all->logits[s][h.length[s] - PROMPT - 1], row, sizeof all->logits[s][t]);
            row += VOCAB;
        }
    }
    pkv_destroy(h.kv);
    h.backend.ops->destroy(h.backend.ctx);
    comm_destroy(h.group);
    assert_int_equal(simt_allocations(), 0);
    return all;
}

static void alone_as_among_others(void **state)
{
    (void)state;
    account *all = live(each_its_own, (1 << SEQS) - 1, true, true);
    for (uint32_t s = 0; s < SEQS; s += 3) {
        account *alone = live(each_its_own, 1u << s, true, false);
        uint32_t n = s == 0 ? STEPS - 1 - (SWAPPED_TO - SWAPPED_FROM) : STEPS - 1;
        if (s == 3) n = STEPS - 1 - JOINS;
        assert_memory_equal(alone->logits[s], all->logits[s], n * sizeof all->logits[s][0]);
        free(alone);
    }
    free(all);
}

static retrieval_spec all_but_the_first(uint32_t seq)
{
    return each_its_own(seq == 0 ? SEQS - 1 : seq == SEQS - 1 ? 0 : seq);
}

/* Attention keeps scores of a sequence that is measured, beside others that read by lists. */
static void measured_as_among_others(void **state)
{
    (void)state;
    account *all = live(all_but_the_first, (1 << SEQS) - 1, false, false);
    account *alone = live(all_but_the_first, 1, false, false);
    double e = nmse(all->mass[0], alone->mass[0], STEPS * MASSES);
    if (!(e < 1e-6)) fail_msg("NMSE %g", e);
    free(alone);
    free(all);
}

static retrieval_spec nothing(uint32_t seq)
{
    (void)seq;
    return (retrieval_spec){0};
}

static retrieval_spec a_block(uint32_t seq)
{
    retrieval_spec s = spec;
    s.representative = RETRIEVAL_QUEST;
    s.dense_layers = seq;
    return s;
}

static retrieval_spec all_blocks(uint32_t seq)
{
    retrieval_spec s = a_block(seq);
    s.top_blocks = 100;
    return s;
}

static void all_blocks_are_full_attention(void **state)
{
    (void)state;
    account *full = live(nothing, 3, false, false), *all = live(all_blocks, 3, false, false);
    account *few = live(a_block, 3, false, false);
    assert_memory_equal(all->logits, full->logits, sizeof all->logits);
    assert_memory_not_equal(few->logits, full->logits, sizeof few->logits);
    free(full);
    free(all);
    free(few);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void what_is_not_made_is_refused(void **state)
{
    (void)state;
    retrieval_spec bounded = spec, audited = spec;
    error err;
    pass p = on_gpu(shape);
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(&p, group, &config);
    uint32_t can = b.ops->info(b.ctx)->retrieves;
    bounded.representative = RETRIEVAL_QUEST;
    bounded.epsilon = 0.1f;
    audited.audit = 4;
    assert_true(status_ok(retrieval_check(&spec, can, &err)));
    assert_false(status_ok(retrieval_check(&bounded, can, &err)));
    assert_non_null(strstr(err.text, "epsilon"));
    assert_false(status_ok(retrieval_check(&audited, can, &err)));
    assert_non_null(strstr(err.text, "audit"));
    b.ops->destroy(b.ctx);
    comm_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_read_what_the_cpu_reads),
        cmocka_unit_test(pages_of_8_bits),
        cmocka_unit_test(all_blocks_are_full_attention),
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(alone_as_among_others),
        cmocka_unit_test(measured_as_among_others),
        cmocka_unit_test(what_is_not_made_is_refused),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Draws of the CUDA backend over the emulator: on the device, from whole rows on the host, and by
 * shards of ranks, within all limits, with and without masks, the tokens are those that a sampler
 * gives from the logits, also where they are part of a graph that is replayed. Pooled hidden states
 * beside the CPU backend's. */
#include "tests/unit/model_nccl.h"

#include "model/sampler.h"

/* More sequences than a device of little memory has rows of logits (64), and more rows of prompts
 * than any has (256). */
enum { SEQS = 70, PROMPT = 4, CHOICES = 2, WORDS_MOST = 64, GIVEN = 2, DECODES = 7 };

#define DIR "tests/golden/models/qwen3_f32"

static const pass model = {.dir = DIR,
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .chunk = 2 * SEQS * PROMPT,
                           .n_threads = 2,
                           .max_seqs = 2 * SEQS,
                           .max_model_len = 64,
                           .gpu_kv = GPU_KV_BF16};

/* What is asked for each sequence, whose number is taken twice: with its logits, and without. */
typedef struct asked {
    uint32_t tokens[SEQS][PROMPT];
    sample_params params[SEQS];
    uint32_t masks[SEQS][WORDS_MOST];
    bool has_mask[SEQS];
    uint32_t history[SEQS][8], stops[1], bias_ids[2];
    float bias[2];
} asked;

static void make_asked(asked *a, uint32_t vocab, bool all_greedy, uint64_t seed)
{
    rng r = rng_seed(seed);
    a->stops[0] = 3;
    for (int i = 0; i < 2; i++) a->bias_ids[i] = rng_below(&r, vocab), a->bias[i] = 2;
    for (uint32_t i = 0; i < SEQS; i++) {
        sample_params *p = &a->params[i];
        *p = (sample_params){
            .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .seed = rng_u64(&r)};
        for (uint32_t k = 0; k < PROMPT; k++) a->tokens[i][k] = rng_below(&r, vocab);
        for (uint32_t k = 0; k < 8; k++) a->history[i][k] = rng_below(&r, vocab);
        for (uint32_t k = 0; k < GIVEN; k++)
            a->history[i][8 - GIVEN + k] = a->tokens[i][PROMPT - GIVEN + k];
        a->has_mask[i] = i % 3 == 1 || i == SEQS - 1;
        for (uint32_t k = 0; k < WORDS_MOST; k++) a->masks[i][k] = rng_u32(&r) & rng_u32(&r);
        if (i % 14 == 6) { /* a stop token alone may come, though fewer than min_tokens did */
            a->has_mask[i] = true;
            memset(a->masks[i], 0, sizeof a->masks[i]);
            a->masks[i][0] = 1u << a->stops[0];
            p->min_tokens = 5, p->stop_ids = a->stops, p->n_stop_ids = 1;
        }
        if (all_greedy) continue;
        if (i % 4) p->temperature = 0.5f + rng_unit(&r);
        if (i % 5 == 1) p->top_k = 1 + rng_below(&r, 20);
        if (i % 5 == 2) p->top_p = 0.8f;
        if (i % 5 == 3) p->min_p = 0.05f;
        if (i % 10 == 1) p->top_p = 0.7f;
        if (i % 9 == 5) p->top_k = GPU_LIST_MOST + 1;
        if (i % 18 == 14) p->top_p = 0.7f;
        if (i % 7 == 2) p->presence_penalty = 0.5f;
        if (i % 7 == 3) p->repetition_penalty = 1.2f;
        if (i % 6 == 4) p->n_logprobs = 3;
        if (i % 7 == 5) p->min_tokens = 5, p->stop_ids = a->stops, p->n_stop_ids = 1;
        if (i % 8 == 6) p->bias_ids = a->bias_ids, p->bias = a->bias, p->n_bias = 2;
    }
}

static step_open open_of(const asked *a, uint32_t i, uint32_t seq)
{
    return (step_open){.seq = seq,
                       .params = &a->params[i],
                       .history = a->history[i],
                       .n_history = 8,
                       .n_prompt = 5,
                       .n_most = 20};
}

typedef struct house {
    comm *group;
    backend backend;
    pkv *kv;
    model_config config;
} house;

static house open_house(const pass *p)
{
    house h = {0};
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.backend = open_backend(p, h.group, &h.config);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    pkv_options po = {
        .geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = info->max_seqs};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    return h;
}

static void close_house(house *h)
{
    pkv_destroy(h->kv);
    h->backend.ops->destroy(h->backend.ctx);
    comm_destroy(h->group);
}

/* Computes all prompts in sequences first, first + 1, … and draws. The result lasts until the next
 * step. */
static const step_result *take_step(house *h, const asked *a, uint64_t step, uint32_t first,
                                    bool logits, uint32_t pooling)
{
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    uint32_t hit, words = step_mask_words(h->config.vocab_size);
    assert_true(words <= WORDS_MOST);
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t seq = first + i;
        assert_true(status_ok(pkv_seq_open(h->kv, seq, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        assert_true(status_ok(pkv_seq_append(h->kv, seq, PROMPT)));
        opens[i] = open_of(a, i, seq);
        seqs[i] = (step_seq){.seq = seq,
                             .first_token = i * PROMPT,
                             .n_tokens = PROMPT,
                             .want_logits = logits,
                             .pooling = pooling,
                             .n_samples = i % 10 == 9 ? 0 : 1 + i % CHOICES,
                             .sample_index = 3};
        if (i % 2) { /* its share brings the last tokens of its history */
            opens[i].n_history -= GIVEN;
            seqs[i].n_uncounted = GIVEN;
        }
        if (!a->has_mask[i] || !seqs[i].n_samples) continue;
        seqs[i].mask = a->masks[i];
        seqs[i].n_mask_words = words;
    }
    step_plan plan = {.step = step,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = opens,
                      .n_opens = SEQS,
                      .seqs = seqs,
                      .n_seqs = SEQS,
                      .tokens = a->tokens[0],
                      .n_tokens = SEQS * PROMPT,
                      .checksum = pkv_checksum(h->kv)};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    (void)h->backend.ops->collect(h->backend.ctx, &r);
    if (!status_ok(r->status)) fail_msg("step %d: %s", (int)step, r->status.message);
    return r;
}

/* What a sampler draws from the logits of each sequence's last row. */
static void draw_due(const asked *a, const float *logits, uint32_t vocab,
                     step_sample due[SEQS][CHOICES])
{
    sampler *s;
    thread_pool *pool;
    thread_pool_options one = {.n_threads = 1};
    assert_true(status_ok(thread_pool_create(&one, &pool)));
    assert_true(status_ok(sampler_create(SEQS, vocab, pool, &s)));
    for (uint32_t i = 0; i < SEQS; i++) {
        step_open open = open_of(a, i, i);
        assert_true(status_ok(sampler_open(s, &open)));
        for (uint32_t c = 0; c < CHOICES; c++) {
            sampler_draw d = {.seq = i,
                              .choice = c,
                              .sample_index = 3,
                              .logits = logits + ((size_t)i * PROMPT + PROMPT - 1) * vocab,
                              .mask = a->has_mask[i] ? a->masks[i] : NULL,
                              .out = &due[i][c]};
            sampler_run(s, &d, 1);
        }
    }
    sampler_destroy(s);
    thread_pool_destroy(pool);
}

static void check_drawn(const asked *a, const step_result *r, step_sample due[SEQS][CHOICES])
{
    uint32_t n_masked = 0;
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t c = 0; c < r->seqs[i].n_samples; c++) {
            const step_sample *got = &r->seqs[i].samples[c], *want = &due[i][c];
            assert_int_equal(got->token, want->token);
            if (a->has_mask[i]) {
                assert_true(a->masks[i][got->token / 32] >> got->token % 32 & 1);
                n_masked++;
            }
            if (a->params[i].n_logprobs < 0) continue;
            assert_true(fabsf(got->logprob - want->logprob) < 1e-5f);
            assert_int_equal(got->rank, want->rank);
            assert_int_equal(got->n_top, want->n_top);
            assert_memory_equal(got->top_ids, want->top_ids, want->n_top * sizeof(uint32_t));
        }
    assert_true(n_masked > SEQS / 4);
}

static void check_draws(const pass *p, void (*close_ranks)(void))
{
    for (int greedy = 0; greedy < 2; greedy++) {
        house h = open_house(p);
        asked a;
        step_sample due[SEQS][CHOICES];
        assert_true(h.backend.ops->info(h.backend.ctx)->masks);
        make_asked(&a, h.config.vocab_size, greedy, 11 + (uint64_t)greedy);
        const step_result *r = take_step(&h, &a, 1, 0, true, POOLING_NONE);
        assert_int_equal(r->n_logit_rows, SEQS * PROMPT);
        draw_due(&a, r->logits, h.config.vocab_size, due);
        check_drawn(&a, r, due);
        check_drawn(&a, take_step(&h, &a, 2, SEQS, false, POOLING_NONE), due);
        close_house(&h);
        if (close_ranks) close_ranks();
        assert_int_equal(simt_allocations(), 0);
    }
}

/* ---- steps that only decode ------------------------------------------------------------------ */

/* The draws of n sequences in steps behind their prompts. */
typedef struct drawn {
    uint32_t n;
    bool has[DECODES][SEQS];
    step_sample samples[DECODES][SEQS];
} drawn;

/* A step of the first n sequences: their prompts, or 1 token of each, most of which draw. */
static const step_result *take_some(house *h, const asked *a, uint32_t step, uint32_t n,
                                    bool logits)
{
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    uint32_t hit, some = step ? 1 : PROMPT, tokens[SEQS * PROMPT];
    for (uint32_t i = 0; i < n; i++) {
        if (!step) assert_true(status_ok(pkv_seq_open(h->kv, i, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        assert_true(status_ok(pkv_seq_append(h->kv, i, some)));
        for (uint32_t t = 0; t < some; t++)
            tokens[i * some + t] = a->tokens[i][(step + t) % PROMPT];
        opens[i] = open_of(a, i, i);
        seqs[i] = (step_seq){.seq = i,
                             .first_token = i * some,
                             .n_tokens = some,
                             .position = step ? PROMPT + step - 1 : 0,
                             .want_logits = logits && step,
                             .n_samples = step && (i + step) % 10 < 9,
                             .sample_index = step ? step - 1 : 0};
        /* Masks go from row to row, and some steps have none. */
        if (step % 3 == 0 || !a->has_mask[(i + step) % n] || !seqs[i].n_samples) continue;
        seqs[i].mask = a->masks[(i + step) % n];
        seqs[i].n_mask_words = step_mask_words(h->config.vocab_size);
    }
    step_plan plan = {.step = step + 1,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = opens,
                      .n_opens = step ? 0 : n,
                      .seqs = seqs,
                      .n_seqs = n,
                      .tokens = tokens,
                      .n_tokens = n * some,
                      .checksum = pkv_checksum(h->kv)};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    (void)h->backend.ops->collect(h->backend.ctx, &r);
    if (!status_ok(r->status)) fail_msg("step %u: %s", step, r->status.message);
    return r;
}

/* With `logits` the plan wants these, so that no draw is part of a graph. */
static drawn *decode(const pass *p, uint32_t n, bool greedy, bool logits, void (*close_ranks)(void))
{
    house h = open_house(p);
    drawn *out = calloc(1, sizeof *out);
    asked a;
    make_asked(&a, h.config.vocab_size, greedy, 17);
    out->n = n;
    for (uint32_t step = 0; step <= DECODES; step++) {
        const step_result *r = take_some(&h, &a, step, n, logits);
        for (uint32_t i = 0; step && i < n; i++) {
            out->has[step - 1][i] = r->seqs[i].n_samples;
            if (r->seqs[i].n_samples) out->samples[step - 1][i] = r->seqs[i].samples[0];
        }
    }
    close_house(&h);
    if (close_ranks) close_ranks();
    assert_int_equal(simt_allocations(), 0);
    return out;
}

static void expect_same(const drawn *a, const drawn *b, float tolerance)
{
    uint32_t n_drawn = 0;
    for (uint32_t t = 0; t < DECODES; t++)
        for (uint32_t i = 0; i < a->n; i++) {
            const step_sample *x = &a->samples[t][i], *y = &b->samples[t][i];
            assert_int_equal(a->has[t][i], b->has[t][i]);
            if (!a->has[t][i]) continue;
            n_drawn++;
            if (x->token != y->token)
                fail_msg("step %u, sequence %u: %u, not %u", t, i, y->token, x->token);
            assert_int_equal(x->rank, y->rank);
            assert_int_equal(x->n_top, y->n_top);
            assert_memory_equal(x->top_ids, y->top_ids, x->n_top * sizeof *x->top_ids);
            if (x->rank) assert_true(fabsf(x->logprob - y->logprob) <= tolerance);
        }
    assert_in_range(n_drawn, DECODES * a->n * 8 / 10, DECODES * a->n);
}

/* Draws of n sequences by graphs, launch by launch, and from logits that the plan wants. */
static void check_replays(const pass *p, uint32_t n, void (*close_ranks)(void))
{
    for (int greedy = 0; greedy < 2; greedy++) {
        uint64_t before = simt_counted().replays;
        drawn *graphs = decode(p, n, greedy, false, close_ranks);
        /* Two shapes: with masks, and without. The first step of each is launched. */
        uint64_t ranks = p->n_ranks ? p->n_ranks : 1;
        assert_int_equal(simt_counted().replays - before, (DECODES - 2) * ranks);
        drawn *logits = decode(p, n, greedy, true, close_ranks);
        expect_same(graphs, logits, 1e-5f);
        free(logits);
        if (!is_light()) { /* these launches are those of the first step of each shape */
            simt_refuse_captures(SIMT_REFUSE_ALL);
            before = simt_counted().replays;
            drawn *launches = decode(p, n, greedy, false, close_ranks);
            assert_int_equal(simt_counted().replays, before);
            simt_refuse_captures(SIMT_REFUSE_NONE);
            expect_same(graphs, launches, 0);
            free(launches);
        }
        free(graphs);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void one_rank_draws_what_a_sampler_draws(void **state)
{
    (void)state;
    pass p = model;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    check_draws(&p, NULL);
}

static void ranks_that_meet_on_the_host_do(void **state)
{
    (void)state;
    pass p = model;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.n_ranks = 2;
    check_draws(&p, NULL);
    /* Ranks that do not divide the vocabulary, and more draws than there are rows of logits. */
    p.override = "vocab_size=61";
    simt_have_memory(1 << 20);
    check_draws(&p, NULL);
    simt_have_memory(1 << 30);
}

/* The words that ranks exchange for draws go through the device where their comm is there. */
static void ranks_that_meet_on_the_device_do(void **state)
{
    (void)state;
    pass p = model;
    void *library = open_nccl(FAKE_WELL);
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.n_ranks = RANKS;
    p.make_ranks = make_ranks;
    check_draws(&p, leave);
    dlclose(library);
}

static void graphs_draw_the_same(void **state)
{
    (void)state;
    enum { SOME = 21 }; /* rows are padded */
    pass p = model;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    simt_be_late(1);
    check_replays(&p, SOME, NULL);
    simt_have_memory(1 << 20); /* for 64 rows of logits */
    check_replays(&p, SEQS, NULL);
    simt_have_memory(1 << 30);
    void *library = open_nccl(FAKE_WELL);
    p.n_ranks = RANKS;
    p.make_ranks = make_ranks;
    check_replays(&p, SOME, leave);
    simt_be_late(0);
    dlclose(library);
}

/* The sum or the last row of hidden states, as the CPU backend has them but for rounding. */
static void pooled_states_are_those_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t pooling = POOLING_LAST; pooling <= POOLING_SUM; pooling++)
        for (uint32_t ranks = 0; ranks <= 2; ranks += 2) {
            pass p = model;
            house cpu = open_house(&p);
            p.n_ranks = ranks;
            p.gpu = octavo_cuda_api(GPU_API_VERSION);
            house device = open_house(&p);
            asked a;
            make_asked(&a, cpu.config.vocab_size, true, 5);
            const step_result *due = take_step(&cpu, &a, 1, 0, false, pooling);
            const step_result *got = take_step(&device, &a, 1, 0, false, pooling);
            uint32_t hidden = device.backend.ops->info(device.backend.ctx)->hidden;
            assert_int_equal(hidden, cpu.config.hidden);
            for (uint32_t i = 0; i < SEQS; i++) {
                double off = 0, size = 0;
                assert_non_null(got->seqs[i].pooled);
                for (uint32_t j = 0; j < hidden; j++) {
                    double x = due->seqs[i].pooled[j], y = got->seqs[i].pooled[j];
                    off += (x - y) * (x - y);
                    size += x * x;
                }
                assert_true(size > 0 && off < 1e-3 * size);
            }
            close_house(&cpu);
            close_house(&device);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_draws_what_a_sampler_draws),
        cmocka_unit_test(ranks_that_meet_on_the_host_do),
        cmocka_unit_test(ranks_that_meet_on_the_device_do),
        cmocka_unit_test(graphs_draw_the_same),
        cmocka_unit_test(pooled_states_are_those_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

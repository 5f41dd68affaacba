/* Decode steps of a small model on the emulated GPU, for tests of what the backend asks of it. */
#ifndef TESTS_UNIT_MODEL_CUDA_STEPS_H
#define TESTS_UNIT_MODEL_CUDA_STEPS_H

#include "tests/unit/model_nccl.h"

enum { PROMPT = 20, STEPS = 5, FEW = 8, SEQS = 256, MASK_WORDS = 2 };

static const pass model = {.dir = "tests/golden/models/qwen3_f32",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .chunk = SEQS,
                           .n_threads = 1,
                           .max_seqs = SEQS,
                           .max_model_len = 64,
                           .gpu_kv = GPU_KV_BF16};

/* A kind of step. */
typedef struct kind {
    uint32_t n_layers, n_seqs;
    bool graphs, measured, sampled, limits, ranks; /* ranks: two, that meet on their devices */
    bool summed;                                   /* measured by slot, in running sums */
    bool mixture;       /* each sequence is measured in another way, which changes in each step */
    bool norms;         /* in a mixture: some by norms of keys and of values, in place of mass */
    bool masked, mixed; /* the last sequence has a mask; the first one's draws have logprobs */
    uint32_t top_k;
    bool experts;    /* Mixtral, which has 2 layers, in place of Qwen3 */
    bool post_norms; /* Gemma 3, which has 4 layers */
    uint8_t quant_bits;
} kind;

typedef struct house {
    bool has_ranks;
    comm *group;
    backend backend;
    pkv *kv;
    uint32_t length;
} house;

static inline house open_house(const kind *k)
{
    char override[64];
    pass p = model;
    house h = {.has_ranks = k->ranks};
    model_config config;
    snprintf(override, sizeof override, "num_hidden_layers=%u", k->n_layers);
    p.override = override;
    if (k->experts) p.dir = "tests/golden/models/mixtral_f32";
    if (k->post_norms) p.dir = "tests/golden/models/gemma3_f32";
    if (k->experts || k->post_norms) p.override = "head_dim=32";
    p.quant_bits = p.quant_attention = k->quant_bits;
    p.quant_group = k->quant_bits ? 32 : 0;
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.n_ranks = k->ranks ? RANKS : 0;
    p.make_ranks = k->ranks ? make_ranks : NULL;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.backend = open_backend(&p, h.group, &config);
    const backend_info *info = h.backend.ops->info(h.backend.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = SEQS};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    return h;
}

static inline void close_house(house *h)
{
    pkv_destroy(h->kv);
    h->backend.ops->destroy(h->backend.ctx);
    if (h->has_ranks) leave();
    comm_destroy(h->group);
    assert_int_equal(simt_allocations(), 0);
}

/* The measure of a sequence of a mixture, and whether its values come back. */
static inline measure_spec spec_of(const kind *k, uint32_t seq, uint64_t step)
{
    static const measure_spec masses[] = {
        {.kind = MEASURE_NONE},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .by_slot = true, .window = 7},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .by_slot = true, .sum = MEASURE_SUM_ADD},
        {.kind = MEASURE_MASS,
         .rows = 1,
         .layer_step = 1,
         .by_slot = true,
         .sum = MEASURE_SUM_ADD,
         .silent = true},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 2},
    };
    enum { MASSES = sizeof masses / sizeof *masses };
    measure_spec norms = {.kind = MEASURE_KEY_NORM,
                          .second = MEASURE_VALUE_NORM,
                          .rows = 1,
                          .layer_step = 1,
                          .by_slot = true};
    uint64_t turn = (seq + step) % FEW;
    if (k->norms && turn >= MASSES) return norms;
    return masses[turn % MASSES];
}

/* Computes n more tokens of each sequence, and draws one. */
static inline void take_step(house *h, const kind *k, uint64_t step, uint32_t n)
{
    sample_params params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1}, scored;
    uint32_t tokens[SEQS] = {0}, mask[MASK_WORDS] = {7, 7}, hit;
    step_seq seqs[SEQS];
    step_open opens[SEQS];
    if (k->sampled) params.temperature = 1;
    if (k->limits) params.top_p = 0.9f;
    params.top_k = k->top_k;
    scored = params;
    scored.n_logprobs = 0;
    for (uint32_t s = 0; s < k->n_seqs; s++) {
        if (step == 1)
            assert_true(status_ok(pkv_seq_open(h->kv, s, PKV_HEAD, NULL, 0, 0, 64, &hit)));
        opens[s] = (step_open){.seq = s, .params = k->mixed && s == 0 ? &scored : &params};
        seqs[s] = (step_seq){.seq = s,
                             .first_token = s * n,
                             .n_tokens = n,
                             .position = h->length,
                             .n_samples = 1,
                             .sample_index = (uint32_t)step - 1};
        if (k->masked && s == k->n_seqs - 1) {
            seqs[s].mask = mask;
            seqs[s].n_mask_words = MASK_WORDS;
        }
        if (k->measured)
            seqs[s].measure = (measure_spec){.kind = MEASURE_MASS,
                                             .rows = 1,
                                             .layer_step = 1,
                                             .by_slot = k->summed,
                                             .sum = k->summed ? MEASURE_SUM_ADD : MEASURE_SUM_STEP};
        if (k->mixture) seqs[s].measure = spec_of(k, s, step);
        assert_true(status_ok(pkv_seq_append(h->kv, s, n)));
    }
    h->length += n;
    step_plan plan = {.step = step,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = opens,
                      .n_opens = step == 1 ? k->n_seqs : 0,
                      .seqs = seqs,
                      .n_seqs = k->n_seqs,
                      .tokens = tokens,
                      .n_tokens = k->n_seqs * n,
                      .checksum = pkv_checksum(h->kv)};
    const step_result *r;
    assert_true(status_ok(h->backend.ops->submit(h->backend.ctx, &plan)));
    (void)h->backend.ops->collect(h->backend.ctx, &r);
    if (!status_ok(r->status)) fail_msg("step %d: %s", (int)step, r->status.message);
}

#endif

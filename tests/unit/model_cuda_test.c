/* The CUDA backend over its own kernels, which run on the CPU here (tests/simt): logits, masses and
 * tokens equal the CPU backend's for any geometry, chunks and moves; refusals; a lost device. */
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "paged_kv/retention/retention.h"
#include "tests/simt/device.h"

enum { TOKENS = 40, VOCAB_MOST = 64 };

#define GOLDEN "tests/golden/models/"

/* Two layers, four query heads on two KV heads, each head with a norm. */
static const pass small = {.dir = GOLDEN "qwen3_f32",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .chunk = 24,
                           .mass_rows = 8,
                           .layer_step = 1,
                           .n_threads = 1,
                           .max_model_len = 128};

static pass on_gpu(pass p, gpu_kv_format kv)
{
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = (uint8_t)kv;
    return p;
}

static uint32_t vocab_of(const pass *p)
{
    error err;
    model_config config;
    assert_true(
        status_ok(model_config_load(p->dir, &p->override, p->override != NULL, &config, &err)));
    assert_in_range(config.vocab_size, 1, VOCAB_MOST);
    return config.vocab_size;
}

/* How often the most likely token is the same; tokens within `tie` of each other count as equal. */
static uint32_t equal_selections(const pass_result *a, const pass_result *b, uint32_t n,
                                 uint32_t vocab, float tie)
{
    uint32_t equal = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float *x = a->logits + (size_t)i * vocab, *y = b->logits + (size_t)i * vocab;
        uint32_t first = logits_argmax(x, vocab), second = logits_argmax(y, vocab);
        equal += first == second || x[first] - x[second] < tie;
    }
    return equal;
}

static void check_pass(pass p, gpu_kv_format kv, double limit, float tie)
{
    uint32_t tokens[TOKENS], vocab = vocab_of(&p);
    random_tokens(tokens, TOKENS, vocab);
    pass_result cpu = run(&p, tokens, TOKENS);
    p = on_gpu(p, kv);
    pass_result ours = run(&p, tokens, TOKENS);
    double e = nmse(ours.logits, cpu.logits, (size_t)TOKENS * vocab);
    assert_int_equal(cpu.mass_floats, ours.mass_floats);
    double of_mass = nmse(ours.mass, cpu.mass, cpu.mass_floats);
    print_message("%s%s%s: NMSE of logits %.1e, of masses %.1e (< %.0e)\n", p.dir,
                  p.override ? ", " : "", p.override ? p.override : "", e, of_mass, limit);
    /* Where all layers have a window, none is measured. */
    bool same = memcmp(ours.mass, cpu.mass, cpu.mass_floats * sizeof *cpu.mass) == 0;
    assert_true(e < limit && (same || of_mass < limit));
    assert_int_equal(equal_selections(&cpu, &ours, TOKENS, vocab, tie), TOKENS);
    result_free(&cpu);
    result_free(&ours);
    assert_int_equal(simt_allocations(), 0);
}

/* Biases, norms of heads and behind blocks, windows, RoPE of single layers, GELU, tied heads. */
static void the_same_as_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *override;
        uint32_t compute; /* 90: prefill attention with wgmma, which others do not have */
    } models[] = {
        {GOLDEN "qwen3_f32", NULL, 80},
        {GOLDEN "gemma3_layers_bf16", NULL, 80},
        {GOLDEN "internlm2_long_bf16", NULL, 80},
        {GOLDEN "qwen2_window_bf16", "head_dim=32", 90},
        {GOLDEN "mistral_window_f32", "head_dim=128", 80},
        {GOLDEN "mistral_window_f32", "head_dim=128", 90},
        {GOLDEN "mistral_window_f32", "head_dim=128", 100},
        {GOLDEN "qwen3_f32", "head_dim=64", 120},
        {GOLDEN "qwen3_f32", "head_dim=64", 90},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        pass p = small;
        p.dir = models[i].dir;
        p.override = models[i].override;
        simt_have_compute(models[i].compute);
        check_pass(p, GPU_KV_BF16, 1e-3, 0.3f);
    }
    simt_have_compute(80);
}

/* In 16 bits a row may go to another expert when two are nearly as likely. */
static void experts(void **state)
{
    (void)state;
    static const char *const models[] = {GOLDEN "mixtral_f32", GOLDEN "qwen2_moe_f32",
                                         GOLDEN "qwen3_moe_f32", GOLDEN "mixtral_three_bf16"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        pass p = small;
        p.dir = models[i];
        p.override = "head_dim=32";
        check_pass(p, GPU_KV_BF16, 3e-2, 1.0f);
        p.bf16 = false;
        if (i < 3) check_pass(p, GPU_KV_BF16, 1e-4, 0.1f);
    }
}

static void weights_of_32_bits(void **state)
{
    (void)state;
    pass p = small;
    p.bf16 = false;
    check_pass(p, GPU_KV_BF16, 1e-4, 0.1f);
}

static void other_geometries(void **state)
{
    (void)state;
    pass p = small;
    p.heads_per_group = 1;
    p.layers_per_group = 2;
    p.page_tokens = 32;
    p.chunk = 17;
    check_pass(p, GPU_KV_BF16, 1e-3, 0.3f);
}

/* One row or three at a time: decode attention, products of few rows. */
static void few_rows(void **state)
{
    (void)state;
    pass p = small;
    p.chunk = 3;
    p.mass_rows = 2;
    check_pass(p, GPU_KV_BF16, 1e-3, 0.3f);
}

static void pages_of_8_bits(void **state)
{
    (void)state;
    check_pass(small, GPU_KV_E4M3, 5e-2, 2.0f);
    pass p = small;
    p.kv_type = KERN_KV_INT8;
    check_pass(p, GPU_KV_INT8, 2e-3, 0.5f);
}

static void weights_of_8_and_4_bits(void **state)
{
    (void)state;
    pass p = small;
    p.dir = GOLDEN "internlm2_long_bf16";
    p.quant_bits = 8;
    p.quant_group = 32;
    p.chunk = 30;
    check_pass(p, GPU_KV_BF16, 3e-3, 2.0f);
    p.quant_bits = 4;
    p.quant_attention = 8;
    p.chunk = 7;
    check_pass(p, GPU_KV_BF16, 3e-3, 2.0f);
}

/* Two ranks that add up by threads: KV heads cut, then copied; groups of one head and of all; an
 * odd vocabulary. */
static void ranks(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *override;
        uint32_t heads_per_group;
    } cases[] = {
        {GOLDEN "qwen3_f32", NULL, 0},
        {GOLDEN "qwen3_f32", NULL, 1},
        {GOLDEN "qwen2_window_bf16", "head_dim=32", 2},
        {GOLDEN "internlm2_long_bf16", "vocab_size=63", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pass p = small;
        p.dir = cases[i].dir;
        p.override = cases[i].override;
        p.heads_per_group = cases[i].heads_per_group;
        p.n_ranks = 2;
        check_pass(p, GPU_KV_BF16, 1e-3, 0.3f);
    }
}

/* ---- step by step ---------------------------------------------------------------------------- */

typedef struct lane {
    comm *group;
    backend backend;
    pkv *kv;
    model_config config;
    uint32_t step;
} lane;

static lane open_lane(const pass *p, bool opens)
{
    lane l = {0};
    uint32_t hit;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &l.group, NULL)));
    l.backend = open_backend(p, l.group, &l.config);
    const backend_info *info = l.backend.ops->info(l.backend.ctx);
    pkv_options po = {.geometry = info->geometry,
                      .n_pages = info->n_pages,
                      .max_seqs = 2,
                      .n_host_pages = info->n_host_pages};
    assert_true(status_ok(pkv_create(&po, &l.kv)));
    if (opens) assert_true(status_ok(pkv_seq_open(l.kv, 1, PKV_HEAD, NULL, 0, 0, 64, &hit)));
    return l;
}

static void close_lane(lane *l)
{
    pkv_destroy(l->kv);
    l->backend.ops->destroy(l->backend.ctx);
    comm_destroy(l->group);
    assert_int_equal(simt_allocations(), 0);
}

/* Computes n more tokens of sequence 1, with one draw. */
static const step_result *take_step(lane *l, const uint32_t *tokens, uint32_t n, uint32_t position,
                                    const sample_params *params, measure_spec measure)
{
    assert_true(status_ok(pkv_seq_append(l->kv, 1, n)));
    step_seq seq = {
        .seq = 1, .n_tokens = n, .position = position, .n_samples = 1, .measure = measure};
    step_open open = {.seq = 1, .params = params};
    step_plan plan = {.step = ++l->step,
                      .deltas = pkv_take_deltas(l->kv),
                      .opens = &open,
                      .n_opens = l->step == 1,
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = tokens,
                      .n_tokens = n,
                      .checksum = pkv_checksum(l->kv)};
    const step_result *r;
    assert_true(status_ok(l->backend.ops->submit(l->backend.ctx, &plan)));
    (void)l->backend.ops->collect(l->backend.ctx, &r);
    return r;
}

static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};

/* Draws the device's largest logit, and with the CPU's sampler under all its options. */
static void draws(void **state)
{
    (void)state;
    sample_params drawn = {.temperature = 0.8f,
                           .top_p = 0.9f,
                           .top_k = 40,
                           .repetition_penalty = 1.2f,
                           .seed = 7,
                           .n_logprobs = 3};
    const sample_params *all[] = {&greedy, &drawn};
    uint32_t prompt[20];
    random_tokens(prompt, 20, vocab_of(&small));
    for (size_t i = 0; i < 2; i++) {
        pass device = on_gpu(small, GPU_KV_BF16);
        lane a = open_lane(&small, true), b = open_lane(&device, true);
        uint32_t token = 0;
        for (uint32_t t = 0; t < 6; t++) {
            const uint32_t *next = t ? &token : prompt;
            uint32_t n = t ? 1 : 20, position = t ? 19 + t : 0;
            const step_result *x = take_step(&a, next, n, position, all[i], (measure_spec){0});
            const step_result *y = take_step(&b, next, n, position, all[i], (measure_spec){0});
            assert_true(status_ok(x->status) && status_ok(y->status));
            assert_int_equal(x->seqs[0].samples[0].token, y->seqs[0].samples[0].token);
            assert_int_equal(x->seqs[0].samples[0].n_top, y->seqs[0].samples[0].n_top);
            token = x->seqs[0].samples[0].token;
        }
        close_lane(&b);
        close_lane(&a);
    }
}

static void a_lost_device_ends_the_backend(void **state)
{
    (void)state;
    uint32_t tokens[4] = {1, 2, 3, 4};
    for (int after = 0; after < 30; after += 9) {
        pass p = on_gpu(small, GPU_KV_BF16);
        lane l = open_lane(&p, true);
        simt_fail_after(after);
        const step_result *r = take_step(&l, tokens, 4, 0, &greedy, (measure_spec){0});
        simt_fail_after(-1);
        assert_int_equal(r->status.code, STATUS_INTERNAL);
        close_lane(&l);
    }
}

/* ---- measures -------------------------------------------------------------------------------- */

/* The same steps on both backends, each with its own tables. */
typedef struct two_lanes {
    lane cpu, gpu;
    uint32_t tokens[2 * TOKENS], done;
} two_lanes;

static void open_two(two_lanes *t, const pass *p, gpu_kv_format kv)
{
    pass device = on_gpu(*p, kv);
    *t = (two_lanes){.cpu = open_lane(p, true), .gpu = open_lane(&device, true)};
    random_tokens(t->tokens, 2 * TOKENS, vocab_of(p));
}

static void close_two(two_lanes *t)
{
    close_lane(&t->gpu);
    close_lane(&t->cpu);
}

static const pkv_geometry *geometry_of(const lane *l)
{
    return &l->backend.ops->info(l->backend.ctx)->geometry;
}

typedef struct two_results {
    const step_seq_result *cpu, *gpu;
} two_results;

static two_results step_two(two_lanes *t, uint32_t n, uint32_t position, measure_spec spec)
{
    lane *lanes[] = {&t->cpu, &t->gpu};
    const step_seq_result *out[2];
    for (int i = 0; i < 2; i++) {
        const step_result *r = take_step(lanes[i], t->tokens + t->done, n, position, &greedy, spec);
        if (!status_ok(r->status)) fail_msg("%s", r->status.message);
        out[i] = &r->seqs[0];
    }
    t->done += n;
    return (two_results){out[0], out[1]};
}

static void check_values(const char *name, const two_results *r, uint32_t arrays, double limit)
{
    const measure_result *x = &r->cpu->measure, *y = &r->gpu->measure;
    size_t n = (size_t)x->n_layers * x->n_kv_heads * x->stride * arrays;
    assert_int_equal(x->stride, y->stride);
    double e = nmse(y->values, x->values, n);
    print_message("%s: NMSE %.1e\n", name, e);
    assert_true(e < limit);
}

/* Every kind, and two kinds at once, in a chunk of a prompt and in a decode step; sums over three
 * steps, of which the first two return nothing, and which start within the second. */
static void every_measure(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        measure_spec spec;
    } cases[] = {
        {"mass", {.kind = MEASURE_MASS, .second = MEASURE_VALUE_NORM}},
        {"raw", {.kind = MEASURE_RAW, .second = MEASURE_KEY_NORM}},
        {"projection", {.kind = MEASURE_PROJECTION, .second = MEASURE_KEY_COSINE}},
        {"outside", {.kind = MEASURE_PROJECTION_OUTSIDE, .window = 9}},
        {"pooled", {.kind = MEASURE_PROJECTION_POOLED, .window = 9, .chunk = 4}},
        {"with b and theta", {.kind = MEASURE_PROJECTION, .bias = 0.5f, .theta = 3}},
        {"expected", {.kind = MEASURE_EXPECTED, .sinks = 4, .second = MEASURE_VALUE_NORM}},
        {"mass, value weight", {.kind = MEASURE_MASS, .second = MEASURE_VALUE_WEIGHT}},
    };
    static const gpu_kv_format formats[] = {GPU_KV_BF16, GPU_KV_INT8};
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            pass p = small;
            p.bf16 = f == 1;
            if (f == 1) p.kv_type = KERN_KV_INT8;
            two_lanes t;
            open_two(&t, &p, formats[f]);
            measure_spec spec = cases[i].spec;
            spec.rows = 7, spec.layer_step = 1, spec.by_slot = true;
            (void)step_two(&t, 20, 0, (measure_spec){0});
            two_results r = step_two(&t, 13, 20, spec);
            check_values(cases[i].name, &r, spec.second ? 2 : 1, 3e-3);
            spec.rows = 1;
            r = step_two(&t, 1, 33, spec);
            check_values("  in a decode step", &r, spec.second ? 2 : 1, 3e-3);
            close_two(&t);
        }
}

static void running_sums(void **state)
{
    (void)state;
    static const measure_kind kinds[] = {MEASURE_MASS, MEASURE_PROJECTION};
    for (size_t i = 0; i < 2; i++) {
        pass p = small;
        p.bf16 = false;
        p.heads_per_group = 1;
        p.swap_bytes = 1 << 20;
        two_lanes t;
        open_two(&t, &p, GPU_KV_BF16);
        measure_spec spec = {
            .kind = kinds[i], .layer_step = 1, .by_slot = true, .silent = true, .rows = 5};
        spec.sum = MEASURE_SUM_START;
        (void)step_two(&t, 20, 0, spec);
        spec.sum = MEASURE_SUM_ADD;
        spec.rows = 11;
        (void)step_two(&t, 11, 20, spec);
        /* Slots are dropped, others take their places; then all go to the host tier and come back,
         * and the last page is shared and copied. */
        const uint64_t keep[1] = {0x6fe3ff5f};
        lane *lanes[] = {&t.cpu, &t.gpu};
        for (int l = 0; l < 2; l++) {
            for (uint32_t g = 0; g < pkv_groups(geometry_of(lanes[l])); g++)
                assert_true(status_ok(pkv_seq_keep(lanes[l]->kv, 1, g, keep, false)));
        }
        spec.rows = 1;
        (void)step_two(&t, 1, 31, spec);
        for (int l = 0; l < 2; l++) {
            uint32_t swap;
            assert_true(status_ok(pkv_seq_swap_out(lanes[l]->kv, 1, &swap)));
            assert_true(status_ok(pkv_swap_in(lanes[l]->kv, swap, 1, t.tokens, TOKENS)));
            assert_true(status_ok(pkv_seq_fork(lanes[l]->kv, 1, 0, TOKENS)));
        }
        spec.silent = false;
        two_results r = step_two(&t, 1, 32, spec);
        check_values("running sums", &r, 1, 1e-4);
        close_two(&t);
    }
}

static void scores(void **state)
{
    (void)state;
    pass p = small;
    p.bf16 = false;
    p.mass_rows = 0;
    p.want_scores = 1 + 4;
    pass device = on_gpu(p, GPU_KV_BF16);
    for (device.n_ranks = 0; device.n_ranks < 3; device.n_ranks += 2) {
        uint32_t tokens[TOKENS], vocab = vocab_of(&p), top_ids[4];
        float tops[4], worst = 0;
        random_tokens(tokens, TOKENS, vocab);
        pass_result r = run(&device, tokens, TOKENS);
        for (uint32_t i = 0; i < TOKENS; i++) {
            const step_sample *s = &r.scores[i];
            uint32_t next = i + 1 < TOKENS ? tokens[i + 1] : 0;
            logit_score due =
                logits_score(r.logits + (size_t)i * vocab, vocab, next, 4, top_ids, tops);
            assert_true(s->token == next && s->rank == due.rank && s->n_top == 4);
            assert_memory_equal(s->top_ids, top_ids, sizeof top_ids);
            for (uint32_t k = 0; k < 4; k++)
                worst = fmaxf(worst, fabsf(s->top_logprobs[k] - tops[k]));
            worst = fmaxf(worst, fabsf(s->logprob - due.logprob));
        }
        print_message("scores, %u ranks: within %.1e\n", device.n_ranks, (double)worst);
        assert_true(worst < 1e-4f);
        result_free(&r);
    }
}

static void novelty(void **state)
{
    (void)state;
    for (uint32_t ranks = 0; ranks < 3; ranks += 2) {
        pass p = small;
        p.bf16 = false;
        pass device = on_gpu(p, GPU_KV_BF16);
        device.n_ranks = ranks;
        lane a = open_lane(&p, true), b = open_lane(&device, true);
        uint32_t tokens[TOKENS];
        random_tokens(tokens, TOKENS, vocab_of(&p));
        measure_spec spec = {.novelty = true};
        const step_result *x = take_step(&a, tokens, 24, 0, &greedy, spec);
        const step_result *y = take_step(&b, tokens, 24, 0, &greedy, spec);
        assert_true(status_ok(x->status) && status_ok(y->status));
        double e = nmse(y->seqs[0].novelty, x->seqs[0].novelty, 24);
        print_message("novelty, %u ranks: NMSE %.1e\n", ranks, e);
        assert_true(e < 1e-5);
        close_lane(&b);
        close_lane(&a);
    }
}

/* ---- presets --------------------------------------------------------------------------------- */

enum { PROMPT = 70, ANSWER = 3, KEEP_WORDS = 4, ROWS_MOST = 256 };

static uint32_t select_kept(const lane *l, const retention_policy *policy, const measure_result *m,
                            uint64_t *keep)
{
    uint32_t groups = pkv_groups(geometry_of(l));
    size_t floats = retention_scratch_floats(geometry_of(l), PROMPT + ANSWER);
    float *scratch = calloc(floats, sizeof *scratch);
    retention_selection out = {
        .keep = keep, .words = KEEP_WORDS, .scratch = scratch, .n_scratch = floats};
    error err = {{0}};
    if (!status_ok(retention_select(policy, l->kv, 1, PROMPT, m, &out, &err)))
        fail_msg("%s", err.text);
    free(scratch);
    return groups;
}

/* Both select by their own measures; then both keep the CPU's selection. */
static void select_on_both(const char *name, two_lanes *t, const retention_policy *policy,
                           const two_results *r, const float *const novel[2])
{
    uint64_t keep[2][64 * KEEP_WORDS];
    lane *lanes[] = {&t->cpu, &t->gpu};
    const step_seq_result *results[] = {r->cpu, r->gpu};
    uint32_t groups = 0;
    for (int i = 0; i < 2; i++) {
        measure_result m = results[i]->measure;
        m.novelty = novel[i];
        groups = select_kept(lanes[i], policy, &m, keep[i]);
    }
    uint32_t differ = 0; /* two nearly equal scores may change places */
    for (uint32_t w = 0; w < groups * KEEP_WORDS; w++)
        differ += (uint32_t)__builtin_popcountll(keep[0][w] ^ keep[1][w]);
    if (differ > 0) print_message("%s: a tie in %u slots\n", name, differ);
    assert_in_range(differ, 0, 2);
    for (int i = 0; i < 2; i++)
        for (uint32_t g = 0; g < groups; g++)
            assert_true(status_ok(
                pkv_seq_keep(lanes[i]->kv, 1, g, keep[0] + g * KEEP_WORDS, policy->contiguous)));
}

/* Fields for methods made for long prompts and answers, so that they select in these short ones. */
#define CHUNKS    "{\"tokens\": 40, \"recurrent_chunk\": 24, \"sinks\": 4, \"window\": 8}"
#define GENERATED "{\"decode\": {\"beta1\": 1, \"beta2\": 1}}"
static const struct {
    const char *preset, *parts;
} shorter[] = {
    {"streaming-recurrent", CHUNKS},
    {"h2o-recurrent", CHUNKS},
    {"tova-recurrent", CHUNKS},
    {"infinipot", CHUNKS},
    {"reform", CHUNKS}, // of its reading
    {"scope-slide", GENERATED},
    {"scope-adaptive", GENERATED},
    {"scope-discontinuous", GENERATED},
};

static json_t *method_of(const retention_preset *preset)
{
    for (size_t i = 0; i < sizeof shorter / sizeof *shorter; i++) {
        if (strcmp(shorter[i].preset, preset->name) != 0) continue;
        json_t *json = json_loads(shorter[i].parts, 0, NULL);
        json_object_set_new(json, "method", json_string(preset->name));
        return json;
    }
    json_t *json = json_object();
    json_object_set_new(json, "method", json_string(preset->name));
    if (preset->needs_budget) json_object_set_new(json, "ratio", json_real(0.6));
    return json;
}

static void run_preset(const retention_preset *preset, pass p, gpu_kv_format kv)
{
    p.bf16 = false;
    p.chunk = ROWS_MOST;
    two_lanes t;
    open_two(&t, &p, kv);
    retention_limits limits = {*geometry_of(&t.cpu), ROWS_MOST, 0};
    retention_policy policy;
    error err = {{0}};
    json_t *json = method_of(preset);
    if (!status_ok(retention_parse(json, &limits, &policy, &err)))
        fail_msg("%s: %s", preset->name, err.text);
    json_decref(json);
    retention_policy_resolve(&policy, ANSWER);
    float novel[2][PROMPT];
    uint32_t n_selections = 0;
    while (t.done < PROMPT + ANSWER) {
        uint32_t from = t.done, point = retention_next_point(&policy, PROMPT, from);
        uint32_t to = from < PROMPT ? PROMPT : from + 1;
        if (point < to) to = point;
        if (retention_has_sums(&policy) && from < 40 && to > 40) to = 40;
        measure_spec spec = retention_measure_rows(&policy, PROMPT, from, to);
        uint32_t position = policy.contiguous ? pkv_seq_table(t.cpu.kv, 1, 0).kept_tokens : from;
        two_results r = step_two(&t, to - from, position, spec);
        for (uint32_t i = from; spec.novelty && i < to && i + 1 < PROMPT; i++) {
            novel[0][i + 1] = r.cpu->novelty[i - from];
            novel[1][i + 1] = r.gpu->novelty[i - from];
        }
        novel[0][0] = novel[1][0] = 0.0f;
        const float *given[] = {retention_wants_novelty(&policy) ? novel[0] : NULL,
                                retention_wants_novelty(&policy) ? novel[1] : NULL};
        if (to != point) continue;
        select_on_both(preset->name, &t, &policy, &r, given);
        n_selections++;
    }
    print_message("%s: %u selections\n", preset->name, n_selections);
    assert_true(n_selections > 0 || !retention_selects(&policy));
    close_two(&t);
}

/* The first presets only; all of them with OCTAVO_SOAK. */
static void presets_select_as_on_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        uint32_t page_tokens;
        kern_kv_format kv;
        gpu_kv_format gpu_kv;
    } cases[] = {
        {GOLDEN "qwen3_f32", 16, KERN_KV_BF16, GPU_KV_BF16},
        {GOLDEN "qwen3_f32", 16, KERN_KV_INT8, GPU_KV_INT8},
        {GOLDEN "internlm2_long_bf16", 32, KERN_KV_BF16, GPU_KV_BF16},
        {GOLDEN "llama3_rope_f32", 16, KERN_KV_BF16, GPU_KV_BF16},
        {GOLDEN "mistral_f32", 16, KERN_KV_BF16, GPU_KV_BF16},
    };
    size_t n, n_cases = getenv("OCTAVO_SOAK") ? sizeof cases / sizeof *cases : 1;
    const retention_preset *presets = retention_presets(&n);
    for (size_t c = 0; c < n_cases; c++) {
        pass p = small;
        p.dir = cases[c].dir;
        p.heads_per_group = 1;
        p.page_tokens = cases[c].page_tokens;
        p.kv_type = cases[c].kv;
        if (n_cases > 1) print_message("%s, %s pages\n", p.dir, kern_kv_name(p.kv_type));
        for (size_t i = 0; i < n; i++) run_preset(&presets[i], p, cases[c].gpu_kv);
    }
}

static void models_without_kernels(void **state)
{
    (void)state;
    static const struct {
        const char *override, *word;
        size_t shared; /* size of a block's shared memory */
    } cases[] = {
        {"head_dim=48", "heads of 48 dims", 163 << 10},
        {"head_dim=256", "144 KB of shared memory a block; simt has 99", 99 << 10},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error err;
        backend b;
        comm *group;
        model_config config;
        comm_options self = {.kind = "self", .size = 1};
        assert_true(status_ok(comm_create(&self, &group, NULL)));
        assert_true(
            status_ok(model_config_load("models/demo", &cases[i].override, 1, &config, &err)));
        backend_cuda_options o = {.common = {.dir = "models/demo",
                                             .config = &config,
                                             .dummy = true,
                                             .group = group,
                                             .geometry = {.page_tokens = 16,
                                                          .layers_per_group = 1,
                                                          .heads_per_group = config.n_kv_heads}},
                                  .api = octavo_cuda_api(GPU_API_VERSION)};
        simt_have_shared(cases[i].shared);
        assert_int_equal(backend_cuda_create(&o, &b, &err).code, STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, cases[i].word));
        simt_have_shared(163 << 10);
        comm_destroy(group);
    }
    assert_null(octavo_cuda_api(GPU_API_VERSION + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_the_cpu),
        cmocka_unit_test(experts),
        cmocka_unit_test(weights_of_32_bits),
        cmocka_unit_test(other_geometries),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(pages_of_8_bits),
        cmocka_unit_test(weights_of_8_and_4_bits),
        cmocka_unit_test(ranks),
        cmocka_unit_test(draws),
        cmocka_unit_test(a_lost_device_ends_the_backend),
        cmocka_unit_test(every_measure),
        cmocka_unit_test(running_sums),
        cmocka_unit_test(scores),
        cmocka_unit_test(novelty),
        cmocka_unit_test(presets_select_as_on_the_cpu),
        cmocka_unit_test(models_without_kernels),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

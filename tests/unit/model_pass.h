/* A teacher-forced pass of a token list through the model, for the tests of the forward pass. */
#ifndef TESTS_UNIT_MODEL_PASS_H
#define TESTS_UNIT_MODEL_PASS_H

#include "disk/disk.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "tests/light.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* TSan makes a pass 40 times as slow: fewer pairs of settings. */
#if defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

typedef struct pass {
    const char *dir;
    const char *override; /* JSON over config.json; the weights are then dummies */
    kern_kv_format kv_type;
    uint32_t kv_residual;
    bool bf16; /* weights as bf16 instead of f32 or their stored type */
    uint8_t quant_bits, quant_attention, quant_group;
    const char *isa;
    kern_precision precision;
    uint32_t page_tokens, layers_per_group, heads_per_group; /* 0 = all heads */
    uint32_t chunk;                                          /* rows of a step */
    unsigned n_threads, n_ranks;                             /* n_ranks 0 = no group */
    uint32_t mass_rows, layer_step;                          /* rows measured in the last step */
    uint32_t want_scores;                                    /* scores of every row: step_seq's */
    uint64_t swap_bytes;
    uint64_t kv_bytes;   /* 0 = 32 MB */
    const char *kv_disk; /* a folder; the pool has 4 times kv_bytes there */
    const disk_io *kv_disk_io;
    uint64_t kv_host;         /* bytes of a GPU's pool beyond the device */
    uint32_t max_model_len;   /* 0 = the model's */
    uint32_t max_seqs;        /* 0 = 2 */
    bool batch_invariant;     /* of a GPU backend */
    const char *cache_dir;    /* of packed weights */
    retrieval_spec retrieval; /* of rows from n_prompt on */
    uint32_t n_prompt;
    bool decodes; /* steps behind the prompt have one row */
    bool late;    /* the prompt's shares have no retrieval: its rows make no representatives */
    bool repeats; /* a step that fails is taken once more */
    bool may_fail;
    const struct gpu_api *gpu; /* NULL = the CPU */
    uint8_t gpu_kv;            /* gpu_kv_format of the GPU's pages */
    /* Used instead of backend_cpu_ranks_create; NULL = not. */
    status (*make_cpu_ranks)(const backend_options *o, uint32_t n, backend *out, error *err);
    /* Used instead of backend_cuda_ranks_create; NULL = not. */
    status (*make_ranks)(const backend_cuda_options *o, uint32_t n, backend *out, error *err);
} pass;

typedef struct pass_result {
    model_config config;
    float *logits; /* [n, vocab] */
    float *mass;   /* [layers, kv heads, pages] */
    size_t mass_floats;
    step_sample *scores;         /* [n] score of the token after each row, 0 after the last */
    retrieval_reading *readings; /* [n] of rows that read by retrieval; else zeros */
    backend_tier tier;           /* summed over the steps */
    uint64_t *reads;             /* [n] pages that the step with this first row read; else 0 */
    status failure;              /* of a step that failed, if the pass may fail; it is the last */
    error why;                   /* its message, which the backend owns */
    uint32_t n_done;             /* tokens whose logits there are */
} pass_result;

static inline backend open_backend(const pass *p, comm *group, model_config *config)
{
    error err = {{0}};
    if (!status_ok(model_config_load(p->dir, &p->override, p->override != NULL, config, &err)))
        fail_msg("%s", err.text);
    backend_options o = {
        .dir = p->dir,
        .config = config,
        .dummy = p->override != NULL,
        .kv_type = p->kv_type,
        .kv_residual = p->kv_residual,
        .weight_type = p->bf16 ? DTYPE_BF16 : DTYPE_F32,
        .quant_bits = p->quant_bits,
        .quant_attention = p->quant_attention,
        .quant_group = p->quant_group,
        .n_threads = p->n_threads,
        .isa = p->isa,
        .precision = p->precision,
        .group = group,
        .geometry = {.page_tokens = p->page_tokens,
                     .layers_per_group = p->layers_per_group,
                     .heads_per_group =
                         p->heads_per_group ? p->heads_per_group : config->n_kv_heads},
        .kv_bytes = p->kv_bytes ? p->kv_bytes : 32 << 20,
        .kv_disk = p->kv_disk,
        .kv_disk_bytes = 4 * p->kv_bytes,
        .kv_disk_io = p->kv_disk_io,
        .kv_host_bytes = p->kv_host,
        .swap_bytes = p->swap_bytes,
        .max_rows = p->chunk,
        .max_seqs = p->max_seqs ? p->max_seqs : 2,
        .max_model_len = p->max_model_len ? p->max_model_len : config->max_positions,
        .cache_dir = p->cache_dir,
    };
    backend b;
    backend_cuda_options cuda = {
        .common = o, .api = p->gpu, .kv = p->gpu_kv, .batch_invariant = p->batch_invariant};
    status s = p->make_ranks          ? p->make_ranks(&cuda, p->n_ranks, &b, &err)
               : p->gpu && p->n_ranks ? backend_cuda_ranks_create(&cuda, p->n_ranks, &b, &err)
               : p->gpu               ? backend_cuda_create(&cuda, &b, &err)
               : p->make_cpu_ranks    ? p->make_cpu_ranks(&o, p->n_ranks, &b, &err)
               : p->n_ranks           ? backend_cpu_ranks_create(&o, p->n_ranks, &b, &err)
                                      : backend_cpu_create(&o, &b, &err);
    if (!status_ok(s)) fail_msg("%s: %s", p->dir, err.text);
    return b;
}

static inline void keep_mass(const measure_result *m, pass_result *out)
{
    out->mass_floats = (size_t)m->n_layers * m->n_kv_heads * m->stride;
    out->mass = malloc(out->mass_floats * sizeof(float));
    memcpy(out->mass, m->values, out->mass_floats * sizeof(float));
}

/* How many rows the step after `done` has. Those that are measured are in one, which ends with
 * them. */
static inline uint32_t rows_of_step(const pass *p, uint32_t done, uint32_t n)
{
    uint32_t to = n - done < p->chunk ? n : done + p->chunk;
    if (p->decodes && done >= p->n_prompt) return 1;
    uint32_t observed = retrieval_observed_rows(&p->retrieval, p->n_prompt);
    if (observed == 0 || done >= p->n_prompt) return to - done;
    if (to >= p->n_prompt) return p->n_prompt - done;
    return (to < p->n_prompt - observed ? to : p->n_prompt - observed) - done;
}

static inline pass_result run(const pass *p, const uint32_t *tokens, uint32_t n)
{
    pass_result out = {0};
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(p, group, &out.config);
    const backend_info *info = b.ops->info(b.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 2};
    pkv *kv;
    uint32_t hit;
    assert_true(status_ok(pkv_create(&po, &kv)));
    assert_true(status_ok(pkv_seq_open(kv, 1, PKV_HEAD, tokens, 0, 0, n, &hit)));
    out.logits = malloc((size_t)n * info->vocab_size * sizeof(float));
    out.scores = calloc(n, sizeof *out.scores);
    out.readings = calloc(n, sizeof *out.readings);
    out.reads = calloc(n, sizeof *out.reads);

    sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    step_open open = {.seq = 1, .params = &greedy};
    for (uint32_t done = 0, step = 1; done < n; step++) {
        uint32_t some = rows_of_step(p, done, n);
        assert_true(status_ok(pkv_seq_append(kv, 1, some)));
        step_seq seq = {.seq = 1,
                        .n_tokens = some,
                        .position = done,
                        .want_logits = true,
                        .want_scores = p->want_scores,
                        .retrieval = p->retrieval,
                        .n_prompt = p->n_prompt,
                        .next_token = done + some < n ? tokens[done + some] : 0};
        if (p->late && done < p->n_prompt) seq.retrieval = (retrieval_spec){0};
        if (done + some == n && p->mass_rows)
            seq.measure = (measure_spec){
                .kind = MEASURE_MASS, .rows = p->mass_rows, .layer_step = p->layer_step};
        step_plan plan = {.step = step,
                          .deltas = pkv_take_deltas(kv),
                          .opens = &open,
                          .n_opens = done == 0,
                          .seqs = &seq,
                          .n_seqs = 1,
                          .tokens = tokens + done,
                          .n_tokens = some,
                          .checksum = pkv_checksum(kv)};
        const step_result *r;
        assert_true(status_ok(b.ops->submit(b.ctx, &plan)));
        assert_true(status_ok(b.ops->collect(b.ctx, &r)));
        if (p->repeats && !status_ok(r->status)) {
            plan.step = ++step;
            plan.deltas = pkv_take_deltas(kv); /* none */
            plan.n_opens = 0;
            assert_true(status_ok(b.ops->submit(b.ctx, &plan)));
            assert_true(status_ok(b.ops->collect(b.ctx, &r)));
        }
        backend_tier_add(&out.tier, &r->tier);
        out.reads[done] = r->tier.reads;
        if (p->may_fail && !status_ok(r->status)) {
            out.failure = r->status;
            error_set(&out.why, r->status.code, "%s", r->status.message);
            break;
        }
        if (!status_ok(r->status)) fail_msg("step %u: %s", step, r->status.message);
        assert_int_equal(r->n_logit_rows, some);
        memcpy(out.logits + (size_t)done * info->vocab_size, r->logits,
               (size_t)some * info->vocab_size * sizeof(float));
        assert_int_equal(r->seqs[0].scores != NULL, p->want_scores != 0);
        if (p->want_scores) memcpy(out.scores + done, r->seqs[0].scores, some * sizeof *out.scores);
        if (seq.measure.kind == MEASURE_MASS) keep_mass(&r->seqs[0].measure, &out);
        uint32_t first = done < p->n_prompt ? p->n_prompt : done; /* of those that read few */
        uint32_t sparse =
            p->retrieval.block_tokens && done + some > first ? done + some - first : 0;
        assert_int_equal(r->seqs[0].n_readings, sparse);
        for (uint32_t i = first; i < first + sparse; i++)
            out.readings[i] = r->seqs[0].readings[i - first];
        out.n_done = done += some;
    }
    pkv_destroy(kv);
    b.ops->destroy(b.ctx);
    comm_destroy(group);
    return out;
}

static inline void result_free(pass_result *r)
{
    free(r->logits);
    free(r->mass);
    free(r->scores);
    free(r->readings);
    free(r->reads);
}

static inline double nmse(const float *ours, const float *golden, size_t n)
{
    double error_sum = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)ours[i] - golden[i];
        error_sum += d * d;
        sum += (double)golden[i] * golden[i];
    }
    return error_sum / sum;
}

enum { GOLDEN_TOKENS_MAX = 256 };

/* Reads {"token_ids": [...]} from a file and returns the number of tokens. */
static inline uint32_t read_tokens(const char *path, uint32_t out[GOLDEN_TOKENS_MAX])
{
    json_t *json;
    error err = {{0}};
    if (!status_ok(json_read_file(path, 1 << 16, &json, &err))) fail_msg("%s", err.text);
    const json_t *ids = json_object_get(json, "token_ids");
    uint32_t n = (uint32_t)json_array_size(ids);
    assert_in_range(n, 1, GOLDEN_TOKENS_MAX);
    for (uint32_t i = 0; i < n; i++) out[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    json_decref(json);
    return n;
}

/* NMSE of the pass's logits for these tokens against the logits of a file. */
static inline double golden_nmse(const pass *p, const char *tokens_path, const char *logits_path)
{
    uint32_t tokens[GOLDEN_TOKENS_MAX], n = read_tokens(tokens_path, tokens);
    char *golden;
    size_t bytes;
    error err = {{0}};
    if (!status_ok(file_read(logits_path, 64 << 20, &golden, &bytes, &err)))
        fail_msg("%s", err.text);
    pass_result r = run(p, tokens, n);
    size_t floats = (size_t)n * r.config.vocab_size;
    assert_int_equal(bytes, floats * sizeof(float));
    double e = nmse(r.logits, (const float *)(const void *)golden, floats);
    result_free(&r);
    free(golden);
    return e;
}

/* Random ids, the same in every test: varied enough that attention differs everywhere. */
static inline void random_tokens(uint32_t *tokens, uint32_t n, uint32_t vocab)
{
    rng r = rng_seed(99);
    for (uint32_t i = 0; i < n; i++) tokens[i] = rng_below(&r, vocab);
}

#endif

/* A model behind an engine, as the end-to-end tests open it: the demo model, or one of the tiny
 * models, which borrow the demo model's tokenizer. */
#ifndef TESTS_E2E_HOUSE_H
#define TESTS_E2E_HOUSE_H

#include "engine/engine.h"
#include "model/model.h"
#include "tests/light.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

typedef struct setting {
    const char *what;     // in messages
    const char *dir;      // NULL = the demo model; else a model whose weights are kept as f32
    const char *override; // JSON over its config.json; NULL = none
    bool own_words;       // dir has a tokenizer of its own
    kern_kv_format kv_type;
    uint32_t kv_residual;
    /* High precision where passes that sum in another order are compared: where x is rounded to
     * bf16, the last bits of f32 decide some roundings. */
    kern_precision precision;
    uint8_t quant_bits; // of weights, in groups of 32; 0 = not quantised
    uint32_t prefill_chunk, layers_per_group, heads_per_group, page_tokens;
    uint32_t max_model_len;
    uint64_t kv_bytes, swap_bytes;
    const char *kv_disk; // NULL, or a folder: the pool has kv_disk_bytes, and kv_bytes in memory
    uint64_t kv_disk_bytes;
    bool prefix_cache;
    uint32_t n_ranks; // 0 = no group
    /* Makes the backend of n_ranks; NULL = ranks are threads. */
    status (*make_ranks)(const backend_options *o, uint32_t n_ranks, backend *out, error *err);
    uint32_t max_sessions;
    int64_t session_ttl_us; // 0 = sessions never expire
} setting;

/* A backend whose steps wait while its gate is shut. */
typedef struct gate {
    backend inner;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool shut, held; // held: a step waits at the gate
    uint64_t before; // requests prepared before the gate was shut
} gate;

typedef struct house {
    comm *group;
    backend backend; // behind a gate
    engine_stream *doorman;
    tokenizer *tokenizer;
    engine *engine;
} house;

enum { HOUSE_SEQS = 32 };

static inline const backend_info *gate_info(void *ctx)
{
    gate *g = ctx;
    return g->inner.ops->info(g->inner.ctx);
}

static inline status gate_submit(void *ctx, const step_plan *plan)
{
    gate *g = ctx;
    pthread_mutex_lock(&g->lock);
    g->held = g->shut;
    pthread_cond_broadcast(&g->moved);
    while (g->shut) pthread_cond_wait(&g->moved, &g->lock);
    g->held = false;
    pthread_mutex_unlock(&g->lock);
    return g->inner.ops->submit(g->inner.ctx, plan);
}

static inline status gate_collect(void *ctx, const step_result **out)
{
    gate *g = ctx;
    return g->inner.ops->collect(g->inner.ctx, out);
}

static inline void gate_interrupt(void *ctx)
{
    gate *g = ctx;
    g->inner.ops->interrupt(g->inner.ctx);
}

static inline void gate_destroy(void *ctx)
{
    gate *g = ctx;
    g->inner.ops->destroy(g->inner.ctx);
    pthread_cond_destroy(&g->moved);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static inline backend gate_create(backend inner)
{
    static const backend_ops ops = {
        .info = gate_info,
        .submit = gate_submit,
        .collect = gate_collect,
        .interrupt = gate_interrupt,
        .destroy = gate_destroy,
    };
    gate *g = calloc(1, sizeof *g);
    g->inner = inner;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->moved, NULL);
    return (backend){&ops, g};
}

/* Requests submitted between shut_gate and open_gate are planned together, in their order, on
 * any machine: the doorman, a request of one token, is held in its only step until they are all
 * there. */
static inline void shut_gate(house *h)
{
    gate *g = h->backend.ctx;
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    uint32_t token = 1;
    engine_request r;
    error err = {{0}};
    pthread_mutex_lock(&g->lock);
    g->shut = true;
    g->before = engine_get_stats(h->engine).requests_prepared;
    pthread_mutex_unlock(&g->lock);
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = &token;
    r.n_prompt_token_ids = r.max_tokens = 1;
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &h->doorman, &err)))
        fail_msg("%s", err.text);
    r.prompt_token_ids = NULL;
    engine_request_destroy(&r);
    pthread_mutex_lock(&g->lock);
    while (!g->held) pthread_cond_wait(&g->moved, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* Waits, with the gate shut, until the engine thread has received every submitted request. */
static inline void await_prepared(house *h)
{
    gate *g = h->backend.ctx;
    engine_stats stats;
    while (stats = engine_get_stats(h->engine), stats.requests_prepared - g->before < stats.n_live)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static inline void open_gate(house *h)
{
    gate *g = h->backend.ctx;
    await_prepared(h);
    pthread_mutex_lock(&g->lock);
    g->shut = false;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
    engine_output out;
    while (engine_stream_wait(h->doorman, &out)) {}
    engine_stream_release(h->doorman);
}

static inline house open_house(const setting *s)
{
    house h = {0};
    error err = {{0}};
    model_config config;
    comm_options self = {.kind = "self", .size = 1};
    const char *dir = s->dir ? s->dir : "models/demo";
    if (!status_ok(comm_create(&self, &h.group, &err)) ||
        !status_ok(model_config_load(dir, &s->override, s->override != NULL, &config, &err)) ||
        !status_ok(tok_load(s->own_words ? dir : "models/demo", &h.tokenizer, &err)))
        fail_msg("%s", err.text);
    backend_options bo = {
        .dir = dir,
        .config = &config,
        .kv_type = s->kv_type,
        .kv_residual = s->kv_residual,
        .precision = s->precision,
        .weight_type = s->dir ? DTYPE_F32 : DTYPE_BF16,
        .quant_bits = s->quant_bits,
        .quant_group = 32,
        .group = h.group,
        .geometry = {.page_tokens = s->page_tokens,
                     .layers_per_group = s->layers_per_group,
                     .heads_per_group = s->heads_per_group},
        .kv_bytes = s->kv_bytes,
        .swap_bytes = s->swap_bytes,
        .kv_disk = s->kv_disk,
        .kv_disk_bytes = s->kv_disk_bytes,
        .max_rows = s->prefill_chunk + HOUSE_SEQS,
        .max_seqs = HOUSE_SEQS,
        .max_model_len = s->max_model_len,
    };
    status made = s->make_ranks ? s->make_ranks(&bo, s->n_ranks, &h.backend, &err)
                  : s->n_ranks  ? backend_cpu_ranks_create(&bo, s->n_ranks, &h.backend, &err)
                                : backend_cpu_create(&bo, &h.backend, &err);
    if (!status_ok(made)) fail_msg("%s", err.text);
    h.backend = gate_create(h.backend);
    static const embed_head heads[] = {{0, EMBED_K, 0}, {1, EMBED_V, 0}};
    engine_options eo = {
        .backend = &h.backend,
        .tokenizer = h.tokenizer,
        .bos = "",
        .eos = "",
        .prefill_chunk = s->prefill_chunk,
        .max_model_len = s->max_model_len,
        .max_requests = 64,
        .embed_heads = heads,
        .n_embed_heads = sizeof heads / sizeof *heads,
        .embed_memory = 64 << 20,
        .prefix_cache = s->prefix_cache,
        .stop_ids = config.stop_ids,
        .n_stop_ids = config.n_stop_ids,
        .max_sessions = s->max_sessions,
        .session_ttl_us = s->session_ttl_us ? s->session_ttl_us : INT64_MAX / 2,
    };
    if (!status_ok(engine_create(&eo, &h.engine, &err))) fail_msg("%s", err.text);
    return h;
}

static inline void close_house(house *h)
{
    engine_destroy(h->engine);
    h->backend.ops->destroy(h->backend.ctx);
    tok_destroy(h->tokenizer);
    comm_destroy(h->group);
}

#endif

/* A model behind an engine, as the end-to-end tests open it: the demo model, or one of the tiny
 * ones, which borrow its tokenizer. */
#ifndef TESTS_E2E_HOUSE_H
#define TESTS_E2E_HOUSE_H

#include "engine/engine.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct setting {
    const char *what; // for messages
    const char *dir;  // NULL = the demo model; else one whose weights are kept as f32
    bool own_words;   // dir has a tokenizer of its own
    kern_kv_format kv_type;
    uint32_t prefill_chunk, layers_per_group, heads_per_group, page_tokens;
    uint32_t max_model_len;
    uint64_t kv_bytes, swap_bytes;
    bool prefix_cache;
    uint32_t n_ranks; // 0 = no group
    uint32_t max_sessions;
    int64_t session_ttl_us; // 0 = for ever
} setting;

typedef struct house {
    comm *group;
    backend backend;
    tokenizer *tokenizer;
    engine *engine;
} house;

enum { HOUSE_SEQS = 32 };

static inline house open_house(const setting *s)
{
    house h = {0};
    error err = {{0}};
    model_config config;
    comm_options self = {.kind = "self", .size = 1};
    const char *dir = s->dir ? s->dir : "models/demo";
    if (!status_ok(comm_create(&self, &h.group, &err)) ||
        !status_ok(model_config_load(dir, NULL, 0, &config, &err)) ||
        !status_ok(tok_load(s->own_words ? dir : "models/demo", &h.tokenizer, &err)))
        fail_msg("%s", err.text);
    backend_cpu_options bo = {
        .dir = dir,
        .config = &config,
        .kv_type = s->kv_type,
        .weight_type = s->dir ? DTYPE_F32 : DTYPE_BF16,
        .group = h.group,
        .geometry = {.page_tokens = s->page_tokens,
                     .layers_per_group = s->layers_per_group,
                     .heads_per_group = s->heads_per_group},
        .kv_bytes = s->kv_bytes,
        .swap_bytes = s->swap_bytes,
        .max_rows = s->prefill_chunk + HOUSE_SEQS,
        .max_seqs = HOUSE_SEQS,
        .max_model_len = s->max_model_len,
    };
    status made = s->n_ranks ? backend_cpu_ranks_create(&bo, s->n_ranks, &h.backend, &err)
                             : backend_cpu_create(&bo, &h.backend, &err);
    if (!status_ok(made)) fail_msg("%s", err.text);
    engine_options eo = {
        .backend = &h.backend,
        .tokenizer = h.tokenizer,
        .bos = "",
        .eos = "",
        .prefill_chunk = s->prefill_chunk,
        .max_model_len = s->max_model_len,
        .max_requests = 64,
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

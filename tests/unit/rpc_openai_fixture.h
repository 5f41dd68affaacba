/* A service without sockets: the demo tokenizer and template, and an engine whose backend is never
 * asked to compute. */
#ifndef TESTS_UNIT_RPC_OPENAI_FIXTURE_H
#define TESTS_UNIT_RPC_OPENAI_FIXTURE_H

#include "rpc/openai/openai.h"

#include <stdlib.h>
#include <string.h>

typedef struct openai_fixture {
    service service;
    tokenizer *tokenizer;
    chat_template *chat;
    engine *engine;
} openai_fixture;

static inline const backend_info *idle_info(void *ctx)
{
    (void)ctx;
    static const backend_info info = {.name = "idle",
                                      .vocab_size = 1024,
                                      .max_positions = 4096,
                                      .max_rows = 128,
                                      .max_seqs = 8,
                                      .n_pages = 1000,
                                      .max_in_flight = 1,
                                      .geometry = {.page_tokens = 16,
                                                   .n_layers = 2,
                                                   .n_kv_heads = 2,
                                                   .layers_per_group = 1,
                                                   .heads_per_group = 2}};
    return &info;
}

static inline status openai_fixture_open(openai_fixture *f, error *err)
{
    static const backend_ops ops = {.info = idle_info};
    static const char *const names[] = {"demo", "also/demo"};
    const backend idle = {&ops, NULL};
    strbuf bos = {0}, eos = {0};
    *f = (openai_fixture){0};
    RETURN_IF_ERROR(tok_load("models/demo", &f->tokenizer, err));
    status st = tmpl_load("models/demo", &f->chat, &bos, &eos, err);
    strbuf_destroy(&bos);
    strbuf_destroy(&eos);
    RETURN_IF_ERROR(st);
    const engine_options o = {.backend = &idle,
                              .tokenizer = f->tokenizer,
                              .chat = f->chat,
                              .bos = "",
                              .eos = "<|im_end|>",
                              .prefill_chunk = 64,
                              .max_model_len = 2048,
                              .max_requests = 8};
    RETURN_IF_ERROR(engine_create(&o, &f->engine, err));
    const rpc_options options = {
        .engine = f->engine,
        .version = "1.2.3",
        .model = {.names = names,
                  .n_names = 2,
                  .dir = "models/demo",
                  .tokenizer = f->tokenizer,
                  .chat = f->chat,
                  .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                  .bos_id = -1,
                  .vocab_size = 1024,
                  .max_model_len = 2048,
                  .max_batch = 8,
                  .max_logical_len = 1 << 22,
                  .max_requests = 8,
                  .isa = "isa"},
    };
    return service_init(&f->service, &options);
}

static inline void openai_fixture_close(openai_fixture *f)
{
    service_destroy(&f->service);
    engine_destroy(f->engine);
    tmpl_destroy(f->chat);
    tok_destroy(f->tokenizer);
}

#endif

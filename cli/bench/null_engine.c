#include "cli/bench/null_engine.h"

/* A tokenizer of words of four letters, since detokenising is a part of what is timed. */
static status make_tokenizer(tokenizer **out, error *err)
{
    static const char byte_level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    strbuf json = {0};
    strbuf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < NULL_VOCAB; i++)
        strbuf_printf(&json, "%s\"x%c%c%c\":%d", i ? "," : "", 'a' + i / 256, 'a' + i / 16 % 16,
                      'a' + i % 16, i);
    strbuf_printf(&json, "}},\"pre_tokenizer\":%s,\"decoder\":%s}", byte_level, byte_level);
    status st = json.failed
                    ? error_set(err, STATUS_NO_MEMORY, "out of memory")
                    : tok_load_text("the bench's tokenizer", json.data, json.size, out, err);
    strbuf_destroy(&json);
    return st;
}

static status make_backend(const null_engine_options *o, backend *out, error *err)
{
    uint32_t groups = pkv_groups(&o->geometry), size = o->geometry.page_tokens;
    uint64_t pages = (uint64_t)(o->tokens / size + 2) * groups;
    pages += pages / 4; /* what ended requests left in the prefix cache */
    pages = pages * o->running + (uint64_t)(o->long_tokens / size + 2) * groups * 5 / 4;
    if (pages >= PKV_PAGES_MOST)
        return error_set(err, STATUS_LIMIT, "the requests would take more than 2^30 pages");
    null_options n = {.geometry = o->geometry,
                      .n_pages = (uint32_t)pages + 1,
                      .max_seqs = o->running,
                      .max_rows = o->prefill_chunk + o->running,
                      .vocab_size = NULL_VOCAB,
                      .max_positions = o->tokens > o->long_tokens ? o->tokens : o->long_tokens,
                      .step_us = o->step_us};
    return null_backend_create(&n, out, err);
}

status null_engine_create(const null_engine_options *options, null_engine *out, error *err)
{
    *out = (null_engine){0};
    status st = make_tokenizer(&out->tokenizer, err);
    if (status_ok(st)) st = make_backend(options, &out->backend, err);
    if (status_ok(st)) {
        engine_options e = {.backend = &out->backend,
                            .tokenizer = out->tokenizer,
                            .bos = "",
                            .eos = "",
                            .prefill_chunk = options->prefill_chunk,
                            .max_requests = options->max_requests,
                            .ring_capacity = options->ring_capacity,
                            .prefix_cache = options->prefix_cache};
        st = engine_create(&e, &out->engine, err);
    }
    if (!status_ok(st)) null_engine_destroy(out);
    return st;
}

void null_engine_destroy(null_engine *n)
{
    engine_destroy(n->engine);
    if (n->backend.ops) n->backend.ops->destroy(n->backend.ctx);
    tok_destroy(n->tokenizer);
    *n = (null_engine){0};
}

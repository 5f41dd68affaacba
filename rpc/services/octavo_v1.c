/* octavo.v1.Inference: the table of methods, and the methods that answer at once. */
#include "rpc/services/octavo_v1.h"

#include "rpc/services/subscription.h"

/* Limits of Tokenize and Detokenize, which run on the thread that serves every stream. HTTP takes
 * larger ones. */
enum { TOKENIZE_BYTES_MAX = 256 << 10, DETOKENIZE_IDS_MAX = 256 << 10 };

/* ---- tokens ---------------------------------------------------------------------------------- */

static void octavo_tokenize(rpc_call *c, const ProtobufCMessage *message)
{
    const service *s = call_service(c);
    error err = {{0}};
    engine_request r;
    tok_ids ids = {0};
    status st = octavo_v1_tokenize_of(s, (const Octavo__V1__TokenizeRequest *)message, &r, &err);
    if (status_ok(st) && protobuf_c_message_get_packed_size(message) > TOKENIZE_BYTES_MAX)
        st = error_set(&err, STATUS_LIMIT, "input: Tokenize takes at most %d bytes",
                       TOKENIZE_BYTES_MAX);
    if (status_ok(st)) st = engine_tokenize(s->o.engine, &r, &ids, &err);
    if (status_ok(st)) {
        Octavo__V1__TokenizeResponse reply = OCTAVO__V1__TOKENIZE_RESPONSE__INIT;
        reply.n_token_ids = ids.n;
        reply.token_ids = ids.ids;
        reply.max_model_len = s->o.model.max_model_len;
        call_reply(c, &reply.base);
    } else {
        call_fail(c, st, &err);
    }
    tok_ids_destroy(&ids);
    engine_request_destroy(&r);
}

static void octavo_detokenize(rpc_call *c, const ProtobufCMessage *message)
{
    const Octavo__V1__DetokenizeRequest *m = (const Octavo__V1__DetokenizeRequest *)message;
    error err = {{0}};
    strbuf text = {0};
    status st = m->n_token_ids > DETOKENIZE_IDS_MAX
                    ? error_set(&err, STATUS_LIMIT, "more than %d", DETOKENIZE_IDS_MAX)
                    : tok_decode(call_service(c)->o.model.tokenizer, m->token_ids, m->n_token_ids,
                                 m->skip_special_tokens, &text, &err);
    if (!status_ok(st)) error_prefix(&err, "token_ids");
    else if (text.failed) st = error_set(&err, STATUS_NO_MEMORY, "token_ids: out of memory");
    if (status_ok(st)) {
        Octavo__V1__DetokenizeResponse reply = OCTAVO__V1__DETOKENIZE_RESPONSE__INIT;
        reply.text = call_bytes(text.data, text.size);
        call_reply(c, &reply.base);
    } else {
        call_fail(c, st, &err);
    }
    strbuf_destroy(&text);
}

/* ---- information ----------------------------------------------------------------------------- */

static void model_info(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    const rpc_model *model = &call_service(c)->o.model;
    Octavo__V1__ModelInfoResponse reply = OCTAVO__V1__MODEL_INFO_RESPONSE__INIT;
    ProtobufCBinaryData methods[ENGINE_METHODS_MAX];
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    if (n > ENGINE_METHODS_MAX) n = ENGINE_METHODS_MAX;
    for (size_t i = 0; i < n; i++) methods[i] = field_of(presets[i].name);
    reply.model = field_of(model->names[0]);
    reply.path = field_of(model->dir);
    reply.architecture = field_of(model->architecture);
    reply.vocab_size = model->vocab_size;
    reply.max_model_len = model->max_model_len;
    reply.max_logical_len = model->max_logical_len;
    reply.n_eos_token_ids = model->n_eos_ids;
    reply.eos_token_ids = (uint32_t *)(uintptr_t)model->eos_ids;
    reply.has_chat_template = model->chat != NULL;
    reply.weight_dtype = field_of(model->weight_dtype);
    reply.kv_dtype = field_of(model->kv_dtype);
    reply.n_retention_methods = n;
    reply.retention_methods = methods;
    call_reply(c, &reply.base);
}

static void server_info(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    service *s = call_service(c);
    Octavo__V1__ServerInfoResponse reply = OCTAVO__V1__SERVER_INFO_RESPONSE__INIT;
    reply.version = field_of(s->o.version);
    reply.uptime_seconds = (double)(clock_now_us() - s->start_us) / 1e6;
    reply.state = field_of(service_state(s));
    reply.isa = field_of(s->o.model.isa);
    reply.page_tokens = s->o.model.page_tokens;
    reply.total_pages = s->o.model.n_pages;
    reply.max_batch = s->o.model.max_batch;
    reply.max_requests = s->o.model.max_requests;
    call_reply(c, &reply.base);
}

static void loads(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    engine_stats stats = engine_get_stats(call_service(c)->o.engine);
    const sched_stats *now = &stats.sched;
    Octavo__V1__LoadsResponse reply = OCTAVO__V1__LOADS_RESPONSE__INIT;
    reply.running = now->running;
    reply.waiting = now->waiting;
    reply.total_pages = now->pages.n_pages ? now->pages.n_pages - 1 : 0;
    reply.used_pages = now->pages.used;
    reply.cached_pages = now->pages.cached;
    reply.logical_tokens = now->logical_tokens;
    reply.kept_tokens = now->kept_tokens;
    reply.prompt_tokens_total = now->prompt_tokens;
    reply.generated_tokens_total = now->generated_tokens;
    reply.prefix_queried_tokens_total = now->pages.queried_tokens;
    reply.prefix_hit_tokens_total = now->pages.hit_tokens;
    call_reply(c, &reply.base);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void abort_requests(rpc_call *c, const ProtobufCMessage *message)
{
    const Octavo__V1__AbortRequest *m = (const Octavo__V1__AbortRequest *)message;
    Octavo__V1__AbortResponse reply = OCTAVO__V1__ABORT_RESPONSE__INIT;
    reply.aborted = call_abort(c, m->request_ids, m->n_request_ids);
    call_reply(c, &reply.base);
}

static void flush_cache(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    status st = engine_flush_cache(call_service(c)->o.engine);
    if (status_ok(st)) {
        Octavo__V1__FlushCacheResponse reply = OCTAVO__V1__FLUSH_CACHE_RESPONSE__INIT;
        call_reply(c, &reply.base);
    } else {
        error err = {{0}};
        call_fail(c, error_set(&err, st.code, "flush: %s", status_text(st.code)), &err);
    }
}

/* ---- KV events ------------------------------------------------------------------------------- */

static void send_event(rpc_call *c, const kv_event *e, uint32_t page_tokens)
{
    Octavo__V1__KvEventBatch batch = OCTAVO__V1__KV_EVENT_BATCH__INIT;
    Octavo__V1__KvEvent event = OCTAVO__V1__KV_EVENT__INIT, *events = &event;
    Octavo__V1__KvBlocksStored stored = OCTAVO__V1__KV_BLOCKS_STORED__INIT;
    Octavo__V1__KvBlocksRemoved removed = OCTAVO__V1__KV_BLOCKS_REMOVED__INIT;
    Octavo__V1__KvCacheCleared cleared = OCTAVO__V1__KV_CACHE_CLEARED__INIT;
    Octavo__V1__KvBlock block = OCTAVO__V1__KV_BLOCK__INIT, *blocks = &block;
    int64_t hash = (int64_t)e->hash;
    batch.sequence_number = e->sequence;
    batch.timestamp = e->time;
    batch.n_events = 1;
    batch.events = &events;
    switch (e->kind) {
    case KV_STORED:
        block.block_hash = hash;
        block.n_token_ids = e->tokens ? page_tokens : 0;
        block.token_ids = (uint32_t *)(uintptr_t)e->tokens;
        stored.n_blocks = 1;
        stored.blocks = &blocks;
        stored.parent_block_hash = (int64_t)e->parent;
        event.event_case = OCTAVO__V1__KV_EVENT__EVENT_STORED;
        event.stored = &stored;
        break;
    case KV_REMOVED:
        removed.n_block_hashes = 1;
        removed.block_hashes = &hash;
        event.event_case = OCTAVO__V1__KV_EVENT__EVENT_REMOVED;
        event.removed = &removed;
        break;
    case KV_CLEARED:
        event.event_case = OCTAVO__V1__KV_EVENT__EVENT_CLEARED;
        event.cleared = &cleared;
        break;
    }
    call_send(c, &batch.base);
}

static void octavo_subscribe(rpc_call *c, const ProtobufCMessage *message)
{
    const Octavo__V1__SubscribeKvEventsRequest *m =
        (const Octavo__V1__SubscribeKvEventsRequest *)message;
    subscription_begin(c, m->start_sequence_number, send_event);
}

/* ---- the service ----------------------------------------------------------------------------- */

static const rpc_method methods[] = {
    {
        .path = "/octavo.v1.Inference/Generate",
        .input = &octavo__v1__generate_request__descriptor,
        .message = octavo_v1_generate,
        .writable = octavo_v1_generate_writable,
        .ended = octavo_v1_generate_ended,
    },
    {
        .path = "/octavo.v1.Inference/Tokenize",
        .input = &octavo__v1__tokenize_request__descriptor,
        .message = octavo_tokenize,
    },
    {
        .path = "/octavo.v1.Inference/Detokenize",
        .input = &octavo__v1__detokenize_request__descriptor,
        .message = octavo_detokenize,
    },
    {
        .path = "/octavo.v1.Inference/ModelInfo",
        .input = &octavo__v1__model_info_request__descriptor,
        .message = model_info,
    },
    {
        .path = "/octavo.v1.Inference/ServerInfo",
        .input = &octavo__v1__server_info_request__descriptor,
        .message = server_info,
    },
    {
        .path = "/octavo.v1.Inference/Loads",
        .input = &octavo__v1__loads_request__descriptor,
        .message = loads,
    },
    {
        .path = "/octavo.v1.Inference/Abort",
        .input = &octavo__v1__abort_request__descriptor,
        .message = abort_requests,
    },
    {
        .path = "/octavo.v1.Inference/FlushCache",
        .input = &octavo__v1__flush_cache_request__descriptor,
        .admin = true,
        .message = flush_cache,
    },
    {
        .path = "/octavo.v1.Inference/SubscribeKvEvents",
        .input = &octavo__v1__subscribe_kv_events_request__descriptor,
        .admin = true,
        .message = octavo_subscribe,
        .writable = subscription_writable,
        .ended = subscription_ended,
    },
};

const rpc_service octavo_v1_service = {
    "octavo.v1.Inference",
    methods,
    sizeof methods / sizeof methods[0],
};

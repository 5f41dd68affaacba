/* vllm.grpc.engine.VllmEngine: the table of methods, and the methods that answer at once. */
#include "rpc/services/subscription.h"
#include "rpc/services/vllm.h"

#include <time.h>

/* ---- model and server ------------------------------------------------------------------------ */

/* Reads model_type from config.json, which only this service needs; "" where there is none. False
 * when memory is out. */
static bool read_model_type(const char *dir, char *out, size_t size)
{
    char path[4096];
    json_t *config = NULL;
    *out = '\0';
    status st = file_join(path, sizeof path, dir, "config.json", NULL);
    if (status_ok(st)) st = json_read_file(path, 1 << 20, &config, NULL);
    if (!status_ok(st)) return st.code != STATUS_NO_MEMORY;
    const char *type = json_word(json_object_get(config, "model_type"));
    if (type) snprintf(out, size, "%s", type);
    json_decref(config);
    return true;
}

static void put_default(strbuf *out, const char *name, float value)
{
    strbuf_printf(out, "%s\"%s\": ", out->size > 1 ? ", " : "", name);
    strbuf_json_float(out, value);
}

static void default_sampling(const engine_defaults *d, strbuf *out)
{
    strbuf_putc(out, '{');
    put_default(out, "temperature", d->temperature);
    put_default(out, "top_p", d->top_p);
    put_default(out, "min_p", d->min_p);
    put_default(out, "repetition_penalty", d->repetition_penalty);
    strbuf_printf(out, ", \"top_k\": %d", d->top_k);
    if (d->max_tokens) strbuf_printf(out, ", \"max_tokens\": %u", d->max_tokens);
    strbuf_putc(out, '}');
}

static void get_model_info(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    const rpc_model *model = &call_service(c)->o.model;
    Vllm__Grpc__Engine__GetModelInfoResponse m = VLLM__GRPC__ENGINE__GET_MODEL_INFO_RESPONSE__INIT;
    ProtobufCBinaryData architecture = field_of(model->architecture);
    char type[64];
    strbuf defaults = {0};
    bool ok = read_model_type(model->dir, type, sizeof type);
    default_sampling(&model->defaults, &defaults);
    m.model_path = m.tokenizer_path = field_of(model->dir);
    m.is_generation = true;
    m.max_context_length = model->max_model_len;
    m.vocab_size = model->vocab_size;
    m.served_model_name = field_of(model->names[0]);
    m.model_type = field_of(type);
    m.n_architectures = 1;
    m.architectures = &architecture;
    m.n_eos_token_ids = model->n_eos_ids;
    m.eos_token_ids = (int32_t *)(uintptr_t)model->eos_ids;
    m.bos_token_id = (int32_t)model->bos_id;
    m.pad_token_id = -1;
    m.max_req_input_len = (int32_t)model->max_model_len - 1;
    m.default_sampling_params_json = call_bytes(defaults.data, defaults.size);
    error err = {{0}};
    if (ok && !defaults.failed) call_reply(c, &m.base);
    else call_fail(c, error_set(&err, STATUS_NO_MEMORY, "model info: out of memory"), &err);
    strbuf_destroy(&defaults);
}

static void get_server_info(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    service *s = call_service(c);
    char engine_id[SERVICE_ENGINE_ID_BYTES];
    int64_t last_us = atomic_load(&s->last_receive_us);
    Vllm__Grpc__Engine__GetServerInfoResponse m =
        VLLM__GRPC__ENGINE__GET_SERVER_INFO_RESPONSE__INIT;
    m.active_requests = engine_get_stats(s->o.engine).n_live;
    m.is_paused = !service_is_serving(s);
    if (last_us) m.last_receive_timestamp = s->start_time + (double)(last_us - s->start_us) / 1e6;
    m.uptime_seconds = (double)(clock_now_us() - s->start_us) / 1e6;
    m.server_type = field_of("octavo");
    if (s->o.kv_role) {
        service_engine_id(s, engine_id);
        m.kv_connector = field_of("NixlConnector");
        m.kv_role = field_of(s->o.kv_role);
        m.kv_engine_id = field_of(engine_id);
    }
    m.data_parallel_size = 1;
    m.kv_cache_dtype = field_of(s->o.model.kv_dtype);
    m.block_size = (int32_t)s->o.model.page_tokens;
    m.attention_backend = field_of(s->o.model.isa);
    m.model_dtype = field_of(s->o.model.weight_dtype);
    m.max_num_seqs = (int32_t)s->o.model.max_batch;
    call_reply(c, &m.base);
}

static int32_t clamped(uint64_t tokens) { return tokens < INT32_MAX ? (int32_t)tokens : INT32_MAX; }

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

static void fill_load(service *s, Vllm__Grpc__Engine__SchedulerLoad *m)
{
    engine_stats stats = engine_get_stats(s->o.engine);
    const sched_stats *now = &stats.sched;
    const pkv_counts *pages = &now->pages;
    uint32_t all = pages->n_pages > 1 ? pages->n_pages - 1 : 1;
    uint64_t room = (uint64_t)s->o.model.n_blocks * s->o.model.page_tokens;
    double seconds = (double)(clock_now_us() - s->start_us) / 1e6;
    m->num_running_reqs = (int32_t)now->running;
    m->num_waiting_reqs = (int32_t)now->waiting;
    m->num_total_reqs = (int32_t)stats.n_live;
    m->num_used_tokens = clamped((room * pages->used + all - 1) / all);
    m->max_total_num_tokens = clamped(room);
    m->token_usage = share(pages->used, all);
    m->gen_throughput = share((double)now->generated_tokens, seconds);
    m->cache_hit_rate = share((double)pages->hit_tokens, (double)pages->queried_tokens);
    m->max_running_requests = (int32_t)s->o.model.max_batch;
    m->utilization = share(m->num_running_reqs, m->max_running_requests);
}

static void get_loads(rpc_call *c, const ProtobufCMessage *message)
{
    const Vllm__Grpc__Engine__GetLoadsRequest *wanted =
        (const Vllm__Grpc__Engine__GetLoadsRequest *)message;
    service *s = call_service(c);
    Vllm__Grpc__Engine__GetLoadsResponse m = VLLM__GRPC__ENGINE__GET_LOADS_RESPONSE__INIT;
    Vllm__Grpc__Engine__SchedulerLoad load = VLLM__GRPC__ENGINE__SCHEDULER_LOAD__INIT;
    Vllm__Grpc__Engine__SchedulerLoad *loads = &load;
    char timestamp[32];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(timestamp, sizeof timestamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    fill_load(s, &load);
    m.timestamp = field_of(timestamp);
    m.version = field_of(s->o.version);
    m.dp_rank_count = 1;
    /* octavo has no data-parallel ranks but rank 0. */
    m.n_loads = !wanted->dp_rank_opt_case || wanted->dp_rank == 0;
    m.loads = &loads;
    call_reply(c, &m.base);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void health_check(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    service *s = call_service(c);
    Vllm__Grpc__Engine__HealthCheckResponse m = VLLM__GRPC__ENGINE__HEALTH_CHECK_RESPONSE__INIT;
    m.healthy = service_is_serving(s);
    m.message = field_of(service_state(s));
    call_reply(c, &m.base);
}

static void abort_requests(rpc_call *c, const ProtobufCMessage *message)
{
    const Vllm__Grpc__Engine__AbortRequest *wanted =
        (const Vllm__Grpc__Engine__AbortRequest *)message;
    Vllm__Grpc__Engine__AbortResponse m = VLLM__GRPC__ENGINE__ABORT_RESPONSE__INIT;
    call_abort(c, wanted->request_ids, wanted->n_request_ids);
    call_reply(c, &m.base);
}

static void flush_cache(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    Smg__Grpc__Common__FlushCacheResponse m = SMG__GRPC__COMMON__FLUSH_CACHE_RESPONSE__INIT;
    status st = engine_flush_cache(call_service(c)->o.engine);
    m.success = status_ok(st);
    m.message = field_of(m.success ? "flushed" : status_text(st.code));
    call_reply(c, &m.base);
}

/* ---- KV events ------------------------------------------------------------------------------- */

static void fill_stored(const kv_event *e, uint32_t page_tokens, Smg__Grpc__Common__KvBlock *block,
                        Smg__Grpc__Common__KvBlocksStored *out)
{
    block->block_hash = (int64_t)e->hash;
    block->n_token_ids = e->tokens ? page_tokens : 0;
    block->token_ids = (uint32_t *)(uintptr_t)e->tokens;
    block->block_size = page_tokens;
    if (e->parent == 0) return;
    out->parent_block_hash_opt_case =
        SMG__GRPC__COMMON__KV_BLOCKS_STORED__PARENT_BLOCK_HASH_OPT_PARENT_BLOCK_HASH;
    out->parent_block_hash = (int64_t)e->parent;
}

static void send_event(rpc_call *c, const kv_event *e, uint32_t page_tokens)
{
    Smg__Grpc__Common__KvEventBatch batch = SMG__GRPC__COMMON__KV_EVENT_BATCH__INIT;
    Smg__Grpc__Common__KvCacheEvent event = SMG__GRPC__COMMON__KV_CACHE_EVENT__INIT;
    Smg__Grpc__Common__KvBlocksStored stored = SMG__GRPC__COMMON__KV_BLOCKS_STORED__INIT;
    Smg__Grpc__Common__KvBlocksRemoved removed = SMG__GRPC__COMMON__KV_BLOCKS_REMOVED__INIT;
    Smg__Grpc__Common__KvCacheCleared cleared = SMG__GRPC__COMMON__KV_CACHE_CLEARED__INIT;
    Smg__Grpc__Common__KvBlock block = SMG__GRPC__COMMON__KV_BLOCK__INIT;
    Smg__Grpc__Common__KvCacheEvent *events = &event;
    Smg__Grpc__Common__KvBlock *blocks = &block;
    int64_t hash = (int64_t)e->hash;
    batch.sequence_number = event.event_id = e->sequence;
    batch.timestamp = e->time;
    batch.n_events = 1;
    batch.events = &events;
    switch (e->kind) {
    case KV_STORED:
        fill_stored(e, page_tokens, &block, &stored);
        stored.n_blocks = 1;
        stored.blocks = &blocks;
        event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_STORED;
        event.stored = &stored;
        break;
    case KV_REMOVED:
        removed.n_block_hashes = 1;
        removed.block_hashes = &hash;
        event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_REMOVED;
        event.removed = &removed;
        break;
    case KV_CLEARED:
        event.data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_CLEARED;
        event.cleared = &cleared;
        break;
    }
    call_send(c, &batch.base);
}

static void vllm_subscribe(rpc_call *c, const ProtobufCMessage *message)
{
    const Smg__Grpc__Common__SubscribeKvEventsRequest *m =
        (const Smg__Grpc__Common__SubscribeKvEventsRequest *)message;
    subscription_begin(c, m->start_sequence_number, send_event);
}

/* ---- the service ----------------------------------------------------------------------------- */

static const rpc_method methods[] = {
    {
        .path = "/vllm.grpc.engine.VllmEngine/Generate",
        .input = &vllm__grpc__engine__generate_request__descriptor,
        .message = vllm_generate,
        .writable = vllm_generate_writable,
        .ended = vllm_generate_ended,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/Embed",
        .input = &vllm__grpc__engine__embed_request__descriptor,
        .message = vllm_embed,
        .writable = vllm_embed_writable,
        .ended = vllm_embed_ended,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/HealthCheck",
        .input = &vllm__grpc__engine__health_check_request__descriptor,
        .open = true,
        .message = health_check,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/Abort",
        .input = &vllm__grpc__engine__abort_request__descriptor,
        .message = abort_requests,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/FlushCache",
        .input = &smg__grpc__common__flush_cache_request__descriptor,
        .admin = true,
        .message = flush_cache,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/GetModelInfo",
        .input = &vllm__grpc__engine__get_model_info_request__descriptor,
        .message = get_model_info,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/GetServerInfo",
        .input = &vllm__grpc__engine__get_server_info_request__descriptor,
        .message = get_server_info,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/GetLoads",
        .input = &vllm__grpc__engine__get_loads_request__descriptor,
        .message = get_loads,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/GetTokenizer",
        .input = &smg__grpc__common__get_tokenizer_request__descriptor,
        .message = vllm_tokenizer,
        .writable = vllm_tokenizer_writable,
        .ended = vllm_tokenizer_ended,
    },
    {
        .path = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
        .input = &smg__grpc__common__subscribe_kv_events_request__descriptor,
        .admin = true,
        .message = vllm_subscribe,
        .writable = subscription_writable,
        .ended = subscription_ended,
    },
};

const rpc_service vllm_engine_service = {
    "vllm.grpc.engine.VllmEngine",
    methods,
    sizeof methods / sizeof methods[0],
};

/* Calls of octavo.v1's Generate and the messages that come over them. */
#include "cli/bench/bench_serve_grpc.h"

#include "proto/proto.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h>
#endif
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_AT_ONCE = 256, CONNECT_S = 10 };

typedef struct sent_call sent_call;

/* The callback for an event of the queue; its address is the event's tag. */
typedef struct call_op {
    sent_call *call;
    void (*done)(sent_call *k, bool ok);
} call_op;

struct sent_call {
    serve_grpc *client;
    serve_request r;
    sent_call *prev, *next;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    grpc_byte_buffer *outgoing, *incoming;
    call_op begun, received, over;
    uint32_t n_ops;     // whose events have not come
    serve_end given_up; // why this client cancelled the call; SERVE_OK: it did not
    bool malformed;
};

struct serve_grpc {
    serve_tracker *t;
    grpc_channel *channel;
    grpc_completion_queue *queue;
    sent_call *first;
    bool closing; // the calls that end now are not recorded
};

/* ---- the request ----------------------------------------------------------------------------- */

static ProtobufCBinaryData field_of(const char *text, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)text};
}

static grpc_byte_buffer *pack(const ProtobufCMessage *m)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/* Packs m with a prompt of token ids. NULL: out of memory. */
static grpc_byte_buffer *pack_ids(Octavo__V1__GenerateRequest *m, const json_t *list)
{
    Octavo__V1__TokenIds ids = OCTAVO__V1__TOKEN_IDS__INIT;
    ids.n_ids = json_array_size(list);
    ids.ids = calloc(ids.n_ids + 1, sizeof *ids.ids);
    if (!ids.ids) return NULL;
    for (size_t i = 0; i < ids.n_ids; i++)
        ids.ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    m->input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
    m->token_ids = &ids;
    grpc_byte_buffer *buffer = pack(&m->base);
    free(ids.ids);
    return buffer;
}

static grpc_byte_buffer *pack_chat(Octavo__V1__GenerateRequest *m, ProtobufCBinaryData text)
{
    Octavo__V1__ChatMessage message = OCTAVO__V1__CHAT_MESSAGE__INIT, *messages[] = {&message};
    Octavo__V1__Chat chat = OCTAVO__V1__CHAT__INIT;
    message.role = field_of("user", strlen("user"));
    message.content = text;
    chat.n_messages = 1;
    chat.messages = messages;
    m->input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_CHAT;
    m->chat = &chat;
    return pack(&m->base);
}

static grpc_byte_buffer *pack_request(const serve_options *o, const serve_request *r,
                                      const char *id, const json_t *prompt)
{
    Octavo__V1__GenerateRequest m;
    Octavo__V1__SamplingParams sampling;
    octavo__v1__generate_request__init(&m);
    octavo__v1__sampling_params__init(&sampling);
    sampling.temperature_opt_case = OCTAVO__V1__SAMPLING_PARAMS__TEMPERATURE_OPT_TEMPERATURE;
    sampling.temperature = 0;
    sampling.max_tokens_opt_case = OCTAVO__V1__SAMPLING_PARAMS__MAX_TOKENS_OPT_MAX_TOKENS;
    sampling.max_tokens = r->want;
    sampling.ignore_eos = !o->keep_eos;
    m.request_id = field_of(id, strlen(id));
    if (o->model) m.model = field_of(o->model, strlen(o->model));
    m.sampling = &sampling;
    if (json_is_array(prompt)) return pack_ids(&m, prompt);
    ProtobufCBinaryData text = field_of(json_string_value(prompt), json_string_length(prompt));
    if (o->chat) return pack_chat(&m, text);
    m.input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_PROMPT;
    m.prompt = text;
    return pack(&m.base);
}

/* ---- a call's end ---------------------------------------------------------------------------- */

static bool is_connected(const serve_grpc *g)
{
    return grpc_channel_check_connectivity_state(g->channel, 0) == GRPC_CHANNEL_READY;
}

static serve_end judge_call(const sent_call *k)
{
    if (k->given_up != SERVE_OK) return k->given_up;
    if (k->malformed) return SERVE_MALFORMED;
    if (k->code == GRPC_STATUS_OK) return track_judge(k->client->t, &k->r);
    if (k->r.call.events > 0) return SERVE_STREAM_ERROR;
    if (k->code == GRPC_STATUS_RESOURCE_EXHAUSTED) return SERVE_REJECTED;
    if (k->code != GRPC_STATUS_UNAVAILABLE) return SERVE_STATUS;
    return is_connected(k->client) ? SERVE_REJECTED : SERVE_CONNECT;
}

static void note_status(const sent_call *k, serve_end end)
{
    char text[160];
    int n = GRPC_SLICE_LENGTH(k->details) < 120 ? (int)GRPC_SLICE_LENGTH(k->details) : 120;
    snprintf(text, sizeof text, "gRPC status %d: %.*s", (int)k->code, n,
             (const char *)GRPC_SLICE_START_PTR(k->details));
    track_example(k->client->t, end, text);
}

static void destroy_call(sent_call *k)
{
    if (k->prev) k->prev->next = k->next;
    else k->client->first = k->next;
    if (k->next) k->next->prev = k->prev;
    grpc_call_unref(k->call);
    grpc_metadata_array_destroy(&k->initial);
    grpc_metadata_array_destroy(&k->trailing);
    grpc_slice_unref(k->details);
    grpc_byte_buffer_destroy(k->outgoing);
    free(k->r.call.itls);
    free(k);
}

/* All events of the call have come. */
static void end_call(sent_call *k)
{
    serve_grpc *g = k->client;
    if (!g->closing) {
        serve_end end = judge_call(k);
        k->r.call.status = k->code;
        if (k->code != GRPC_STATUS_OK && k->given_up == SERVE_OK) note_status(k, end);
        track_end(g->t, &k->r, end);
    }
    destroy_call(k);
}

static void give_up(sent_call *k, serve_end why)
{
    if (k->given_up != SERVE_OK) return;
    k->given_up = why;
    grpc_call_cancel(k->call, NULL);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Starts operations. gRPC refuses none that are right; if it does, the call is cancelled and ends
 * by the operations before. */
static void start(sent_call *k, const grpc_op *ops, size_t n, call_op *tag)
{
    if (grpc_call_start_batch(k->call, ops, n, tag, NULL) == GRPC_CALL_OK) k->n_ops++;
    else give_up(k, SERVE_MALFORMED);
}

static void receive_next(sent_call *k)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &k->incoming;
    start(k, &op, 1, &k->received);
}

static void on_nothing(sent_call *k, bool ok)
{
    (void)k;
    (void)ok;
}

/* A message with several tokens counts as tokens that come at once, as bytes of several events
 * do over HTTP. */
static void take_message(sent_call *k, const uint8_t *bytes, size_t n)
{
    Octavo__V1__GenerateResponse *m = octavo__v1__generate_response__unpack(NULL, n, bytes);
    serve_request *r = &k->r;
    if (!m) {
        k->malformed = true;
        track_example(k->client->t, SERVE_MALFORMED, "a message that is no GenerateResponse");
        return;
    }
    for (size_t i = 0; i < m->n_token_ids; i++) track_token(k->client->t, r);
    track_text(r, (const char *)m->text.data, m->text.len);
    if (m->finish_reason.len > 0) r->finished = true;
    if (m->usage) {
        r->has_usage = true;
        r->call.prompt_tokens = m->usage->prompt_tokens;
        r->call.output_tokens = m->usage->completion_tokens;
        r->call.cached_tokens = m->usage->cached_tokens;
    }
    octavo__v1__generate_response__free_unpacked(m, NULL);
}

static void on_received(sent_call *k, bool ok)
{
    grpc_byte_buffer *buffer = k->incoming;
    grpc_byte_buffer_reader reader;
    k->incoming = NULL;
    if (!ok || !buffer) return; // the status comes next
    if (k->given_up == SERVE_OK && grpc_byte_buffer_reader_init(&reader, buffer)) {
        grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
        take_message(k, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
        grpc_slice_unref(all);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
    if (k->r.vanish_after && k->r.call.events >= k->r.vanish_after) give_up(k, SERVE_VANISHED);
    receive_next(k);
}

/* Handles the queue's next event. False when none came until then. */
static bool take_event(serve_grpc *g, gpr_timespec until)
{
    grpc_event e = grpc_completion_queue_next(g->queue, until, NULL);
    g->t->now_us = clock_now_us();
    if (e.type != GRPC_OP_COMPLETE) return false;
    const call_op *op = e.tag;
    sent_call *k = op->call;
    k->n_ops--;
    op->done(k, e.success);
    if (k->n_ops == 0) end_call(k);
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void send_request(sent_call *k, const grpc_metadata *key, size_t n_keys)
{
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &k->trailing;
    ops[0].data.recv_status_on_client.status = &k->code;
    ops[0].data.recv_status_on_client.status_details = &k->details;
    start(k, ops, 1, &k->over);
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[0].data.send_initial_metadata.count = n_keys;
    ops[0].data.send_initial_metadata.metadata = (grpc_metadata *)(uintptr_t)key;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = k->outgoing;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &k->initial;
    start(k, ops, 4, &k->begun);
    if (!k->r.never_read) receive_next(k);
}

static void open_call(serve_grpc *g, sent_call *k)
{
    const char *api_key = g->t->o->api_key;
    grpc_metadata key = {.key = grpc_slice_from_static_string("authorization")};
    strbuf bearer = {0};
    if (api_key) strbuf_printf(&bearer, "Bearer %s", api_key);
    if (bearer.failed) g->t->no_memory = true;
    key.value = grpc_slice_from_copied_string(bearer.data ? bearer.data : "");
    k->call =
        grpc_channel_create_call(g->channel, NULL, GRPC_PROPAGATE_DEFAULTS, g->queue,
                                 grpc_slice_from_static_string("/octavo.v1.Inference/Generate"),
                                 NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    send_request(k, &key, api_key ? 1 : 0);
    grpc_slice_unref(key.value);
    strbuf_destroy(&bearer);
}

void serve_grpc_send(serve_grpc *g, const serve_request *r, const char *id, const strbuf *prompt)
{
    json_t *tree = json_loadb(prompt->data, prompt->size, JSON_DECODE_ANY, NULL);
    sent_call *k = calloc(1, sizeof *k);
    grpc_byte_buffer *message = k && tree ? pack_request(g->t->o, r, id, tree) : NULL;
    json_decref(tree);
    if (!message) {
        g->t->no_memory = true;
        free(k);
        return;
    }
    *k = (sent_call){.client = g,
                     .r = *r,
                     .next = g->first,
                     .details = grpc_empty_slice(),
                     .outgoing = message,
                     .begun = {k, on_nothing},
                     .received = {k, on_received},
                     .over = {k, on_nothing}};
    if (k->next) k->next->prev = k;
    g->first = k;
    grpc_metadata_array_init(&k->initial);
    grpc_metadata_array_init(&k->trailing);
    g->t->now_us = clock_now_us();
    track_start(g->t, &k->r);
    open_call(g, k);
}

/* ---- the client ------------------------------------------------------------------------------ */

static gpr_timespec in_us(int64_t us)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(us, GPR_TIMESPAN));
}

static bool await_connection(serve_grpc *g)
{
    gpr_timespec until = in_us(INT64_C(1000000) * CONNECT_S);
    for (;;) {
        grpc_connectivity_state state = grpc_channel_check_connectivity_state(g->channel, 1);
        if (state == GRPC_CHANNEL_READY) return true;
        if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
        grpc_channel_watch_connectivity_state(g->channel, state, until, g->queue, NULL);
        if (!grpc_completion_queue_next(g->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
                 .success)
            return false;
    }
}

status serve_grpc_create(serve_tracker *t, serve_grpc **out, error *err)
{
    serve_grpc *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    char target[sizeof t->o->host + sizeof t->o->port + 4];
    bool v6 = strchr(t->o->host, ':') != NULL;
    snprintf(target, sizeof target, "%s%s%s:%s", v6 ? "[" : "", t->o->host, v6 ? "]" : "",
             t->o->port);
    grpc_arg args[] = {
        {GRPC_ARG_INTEGER, (char *)"grpc.enable_http_proxy", {.integer = 0}},
        {GRPC_ARG_INTEGER, (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, {.integer = -1}},
    };
    grpc_channel_args all = {sizeof args / sizeof *args, args};
    grpc_init();
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    g->t = t;
    g->channel = grpc_channel_create(target, plain, &all);
    grpc_channel_credentials_release(plain);
    g->queue = grpc_completion_queue_create_for_next(NULL);
    t->run->connections = 1;
    if (await_connection(g)) {
        *out = g;
        return STATUS_IS_OK;
    }
    serve_grpc_destroy(g);
    return error_set(err, STATUS_IO, "--url: %s: no gRPC server answers", target);
}

void serve_grpc_destroy(serve_grpc *g)
{
    g->closing = true;
    for (sent_call *k = g->first; k; k = k->next) grpc_call_cancel(k->call, NULL);
    while (g->first) take_event(g, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    grpc_channel_destroy(g->channel);
    grpc_completion_queue_shutdown(g->queue);
    while (grpc_completion_queue_next(g->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(g->queue);
    grpc_shutdown();
    free(g);
}

void serve_grpc_wait(serve_grpc *g, int64_t us)
{
    gpr_timespec until = in_us(us);
    for (int i = 0; i < EVENTS_AT_ONCE && take_event(g, until); i++)
        until = gpr_inf_past(GPR_CLOCK_MONOTONIC);
}

void serve_grpc_sweep(serve_grpc *g)
{
    int64_t oldest = g->t->now_us - (int64_t)(g->t->o->timeout_s * 1e6);
    for (sent_call *k = g->first; k; k = k->next)
        if (!k->r.never_read && k->r.start_us <= oldest) give_up(k, SERVE_TIMEOUT);
}

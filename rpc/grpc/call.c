/* A call as a state machine:
 *
 *   arrives ── refused ────────────────────────────┐
 *      │                                           v
 *      └─> receiving ── message ──> sending … ──> status sent ──> over
 *             ^            │          (one at a time)              ^
 *             └────────────┘ client_streams                        │
 *   RECV_CLOSE_ON_SERVER (cancelled, deadline, connection gone) ───┘ */
#include "rpc/grpc/internal.h"

#include <grpc/byte_buffer.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */

static void slices_free(rpc_call *c)
{
    for (size_t i = 0; i < c->n_trailers; i++) {
        grpc_slice_unref(c->trailers[i].key);
        grpc_slice_unref(c->trailers[i].value);
    }
    free(c->trailers);
    grpc_slice_unref(c->details);
}

static void forget_metadata(rpc_call *c)
{
    grpc_metadata_array_destroy(&c->metadata);
    grpc_metadata_array_init(&c->metadata);
}

void call_ref(rpc_call *c) { atomic_fetch_add(&c->references, 1); }

void call_unref(rpc_call *c)
{
    if (atomic_fetch_sub(&c->references, 1) != 1) return;
    front_queue *q = c->queue;
    if (c->prev) c->prev->next = c->next;
    else q->first = c->next;
    if (c->next) c->next->prev = c->prev;
    open_leave(c);
    slices_free(c);
    grpc_metadata_array_destroy(&c->metadata);
    if (c->outgoing) grpc_byte_buffer_destroy(c->outgoing);
    if (c->incoming) grpc_byte_buffer_destroy(c->incoming);
    grpc_call_unref(c->call);
    if (c->body_taken) service_give_body(q->front->o.service, c->body_taken);
    free(c);
    atomic_fetch_sub(&q->n_calls, 1);
}

/* Starts a batch, which holds a reference until its event. If gRPC refuses the batch, the call is
 * cancelled and ends through on_closed as usual. */
static bool start_batch(rpc_call *c, const grpc_op *ops, size_t n, queue_op *tag)
{
    grpc_call *call = c->call; // the queue's thread may end c once the batch has begun
    atomic_fetch_add(&c->references, 1);
    if (grpc_call_start_batch(call, ops, n, tag, NULL) == GRPC_CALL_OK) return true;
    atomic_fetch_sub(&c->references, 1);
    grpc_call_cancel_with_status(call, GRPC_STATUS_INTERNAL, "batch refused", NULL);
    return false;
}

/* Counts the call's answer when gRPC has closed the call. One that is cancelled then was left by
 * its client before it could have a status. */
static void count_answer(const rpc_call *c)
{
    service *s = c->queue->front->o.service;
    if (!s) return;
    bool has_code = c->finishing && (!c->cancelled || c->gets_code);
    grpc_status_code code = has_code ? c->code : GRPC_STATUS_CANCELLED;
    service_answer a = {.surface = "grpc",
                        .route = c->method ? c->method->path : "other",
                        .code = call_code_name(code),
                        .key = c->key,
                        .is_refusal = code != GRPC_STATUS_OK && code != GRPC_STATUS_CANCELLED};
    char text[DETAILS_BYTES_MAX + 1];
    size_t n = GRPC_SLICE_LENGTH(c->details);
    a.message = c->why;
    a.is_own_message = c->why;
    if (a.is_refusal && !c->why && n < sizeof text) {
        memcpy(text, GRPC_SLICE_START_PTR(c->details), n);
        text[n] = '\0';
        a.message = text;
    }
    service_count_answer(s, &a);
}

/* Ends the call. Its end can have several reasons: only the first call does anything. */
static void end_call(rpc_call *c)
{
    if (c->over) return;
    c->over = true;
    if (c->entered && c->method->ended) c->method->ended(c);
    call_unref(c);
}

static void close_call(rpc_call *c)
{
    count_answer(c);
    end_call(c);
}

static void on_closed(void *owner, bool ok)
{
    (void)ok;
    rpc_call *c = owner;
    if (c->receiving && !c->entered) c->was_closed = true; // on_received learns who ended the call
    else close_call(c);
    call_unref(c);
}

/* ---- receiving ------------------------------------------------------------------------------- */

void call_receive(rpc_call *c)
{
    if (c->over || c->finishing || c->receiving) return;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &c->incoming;
    c->receiving = start_batch(c, &op, 1, &c->received);
}

void call_deliver(rpc_call *c, arena *a, const ProtobufCMessage *m, status s, const error *err)
{
    if (c->over || c->finishing) return;
    if (status_ok(s)) {
        c->entered = true;
        c->delivered = a;
        c->method->message(c, m);
        c->delivered = NULL;
    } else if (s.code == STATUS_LIMIT) {
        call_finish(c, GRPC_STATUS_RESOURCE_EXHAUSTED, err->text);
    } else {
        call_fail(c, s, err);
    }
    if (!c->method->client_streams) forget_metadata(c);
}

arena call_keep_message(rpc_call *c)
{
    arena kept = *c->delivered;
    arena_init(c->delivered, kept.block_bytes, kept.limit_bytes);
    return kept;
}

static void half_close(rpc_call *c)
{
    if (!c->method->client_streams) {
        call_refuse(c, GRPC_STATUS_INVALID_ARGUMENT, "request: the message is missing");
        return;
    }
    c->entered = true;
    c->method->half_closed(c);
}

static void on_received(void *owner, bool ok)
{
    rpc_call *c = owner;
    c->receiving = false;
    grpc_byte_buffer *buffer = c->incoming;
    c->incoming = NULL;
    /* Not ok: gRPC has refused the call and told the client. (A client that cancels its call leaves
     * this ok, without a message.) It refuses an encoding before the call comes here. */
    if (!ok && !c->over && !c->finishing) {
        c->gets_code = true;
        if (c->was_closed)
            call_refuse(c, GRPC_STATUS_UNIMPLEMENTED, "request: compression is not supported");
        else call_refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED, "request: the message is too large");
    }
    if (c->was_closed) close_call(c);
    if (ok && !c->over && !c->finishing) {
        if (buffer) call_read(c, buffer);
        else half_close(c);
        buffer = NULL;
    }
    if (buffer) grpc_byte_buffer_destroy(buffer);
    call_unref(c);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends in one batch: the initial metadata if they have not been sent, the message (taken over)
 * unless it is NULL, and the status if with_status. */
static void send_batch(rpc_call *c, grpc_byte_buffer *message, bool with_status)
{
    grpc_op ops[3];
    size_t n = 0;
    memset(ops, 0, sizeof ops);
    if (!c->metadata_sent) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    c->metadata_sent = true;
    if (message) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = message;
    }
    if (with_status) {
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = c->code;
        ops[n].data.send_status_from_server.status_details = &c->details;
        ops[n].data.send_status_from_server.trailing_metadata_count = c->n_trailers;
        ops[n++].data.send_status_from_server.trailing_metadata = c->trailers;
    }
    c->outgoing = message;
    c->sending = true;
    c->since_us = clock_now_us();
    start_batch(c, ops, n, with_status ? &c->finished : &c->sent);
}

static grpc_byte_buffer *pack_message(const ProtobufCMessage *m)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void outgoing_free(rpc_call *c)
{
    if (c->outgoing) grpc_byte_buffer_destroy(c->outgoing);
    c->outgoing = NULL;
}

static void on_sent(void *owner, bool ok)
{
    rpc_call *c = owner;
    c->sending = false;
    outgoing_free(c);
    if (ok && !c->over) {
        if (c->finishing) send_batch(c, NULL, true);
        else if (c->method->writable) c->method->writable(c);
    }
    call_unref(c);
}

static void on_finished(void *owner, bool ok)
{
    (void)ok;
    rpc_call *c = owner;
    c->sending = false;
    outgoing_free(c);
    end_call(c);
    call_unref(c);
}

bool call_can_send(const rpc_call *c) { return !c->over && !c->finishing && !c->sending; }

void call_accept(rpc_call *c)
{
    if (call_can_send(c) && !c->metadata_sent) send_batch(c, NULL, false);
}

bool call_send(rpc_call *c, const ProtobufCMessage *m)
{
    if (!call_can_send(c)) return false;
    send_batch(c, pack_message(m), false);
    return true;
}

/* Keeps code and details for the status. False when the call has a status already or is over. */
static bool set_status(rpc_call *c, grpc_status_code code, const char *details)
{
    if (c->finishing || c->over) return false;
    char text[DETAILS_BYTES_MAX];
    c->finishing = true;
    c->code = code;
    c->details = grpc_slice_from_copied_buffer(text, details_text(details ? details : "", text));
    return true;
}

void call_finish(rpc_call *c, grpc_status_code code, const char *details)
{
    if (set_status(c, code, details) && !c->sending) send_batch(c, NULL, true);
}

void call_refuse(rpc_call *c, grpc_status_code code, const char *why)
{
    if (!c->finishing) c->why = why;
    call_finish(c, code, why);
}

void call_reply(rpc_call *c, const ProtobufCMessage *m)
{
    bool can_send = call_can_send(c);
    if (set_status(c, GRPC_STATUS_OK, "") && can_send) send_batch(c, pack_message(m), true);
}

bool call_add_trailer(rpc_call *c, const char *key, const void *value, size_t n)
{
    if (c->finishing || c->over || c->n_trailers == TRAILERS_MAX) return true;
    if (!c->trailers) c->trailers = calloc(TRAILERS_MAX, sizeof *c->trailers);
    if (!c->trailers) return false;
    grpc_metadata m = {.key = grpc_slice_from_copied_string(key),
                       .value = grpc_slice_from_copied_buffer(value, n)};
    if (grpc_header_key_is_legal(m.key) &&
        (grpc_is_binary_header(m.key) || grpc_header_nonbin_value_is_legal(m.value))) {
        c->trailers[c->n_trailers++] = m;
        return true;
    }
    grpc_slice_unref(m.key);
    grpc_slice_unref(m.value);
    return true;
}

/* ---- waking ---------------------------------------------------------------------------------- */

void call_post(rpc_call *c, queue_op *tag) { start_batch(c, NULL, 0, tag); }

/* Adds c to the woken calls of its queue. The engine's thread wakes every stream of a step, and an
 * event of the queue costs it a microsecond or more, so only the first call that is added posts
 * one. */
static void add_woken(rpc_call *c)
{
    front_queue *q = c->queue;
    rpc_call *before = atomic_load(&q->woken);
    call_ref(c);
    do c->next_woken = before;
    while (!atomic_compare_exchange_weak(&q->woken, &before, c));
    if (!before) call_post(c, &q->awake);
}

void call_wake(void *call)
{
    rpc_call *c = call;
    if (!atomic_exchange(&c->woken, true)) add_woken(c);
}

/* Takes the queue's woken calls, the first one first. */
static rpc_call *take_woken(front_queue *q)
{
    rpc_call *left = atomic_exchange(&q->woken, NULL), *first = NULL;
    while (left) {
        rpc_call *next = left->next_woken;
        left->next_woken = first;
        first = left;
        left = next;
    }
    return first;
}

/* ---- the beginning --------------------------------------------------------------------------- */

enum { AUTHORIZATION_BYTES = 1024 }; // longer than any key that is accepted

/* The value of `authorization`, or NULL when it is absent or cannot hold a valid key. */
static const char *authorization_of(const rpc_call *c, char text[AUTHORIZATION_BYTES])
{
    size_t n;
    const char *value = call_metadata(c, "authorization", &n);
    if (!value || n >= AUTHORIZATION_BYTES || memchr(value, '\0', n)) return NULL;
    memcpy(text, value, n);
    text[n] = '\0';
    return text;
}

static bool has_key(rpc_call *c)
{
    char text[AUTHORIZATION_BYTES];
    const service *s = c->queue->front->o.service;
    return !s || service_key_ok(s, authorization_of(c, text), &c->key);
}

static bool is_admin(const rpc_call *c)
{
    char text[AUTHORIZATION_BYTES];
    const service *s = c->queue->front->o.service;
    return !s || service_is_admin(s, authorization_of(c, text));
}

void call_identity(const rpc_call *c, char out[SERVICE_IDENTITY_BYTES])
{
    char text[AUTHORIZATION_BYTES];
    service_identity(c->queue->front->o.service, authorization_of(c, text), out);
}

const trace_headers *call_trace(const rpc_call *c, trace_headers *out)
{
    *out = (trace_headers){0};
    if (!c->queue->front->o.service->tracer) return NULL;
    for (size_t i = 0; i < c->metadata.count; i++) {
        const grpc_metadata *m = &c->metadata.metadata[i];
        trace_headers_add(out, (const char *)GRPC_SLICE_START_PTR(m->key),
                          GRPC_SLICE_LENGTH(m->key), (const char *)GRPC_SLICE_START_PTR(m->value),
                          GRPC_SLICE_LENGTH(m->value));
    }
    return out;
}

uint32_t call_abort(const rpc_call *c, const ProtobufCBinaryData *ids, size_t n)
{
    char identity[SERVICE_IDENTITY_BYTES];
    bool all = is_admin(c);
    uint32_t aborted = 0;
    call_identity(c, identity);
    for (size_t i = 0; i < n; i++)
        aborted += service_abort(c->queue->front->o.service, all ? NULL : identity,
                                 (const char *)ids[i].data, ids[i].len);
    return aborted;
}

static void refuse_client(rpc_call *c)
{
    char text[DETAILS_BYTES_MAX];
    snprintf(text, sizeof text,
             "%s: reads or changes the data of other clients and needs an admin key%s",
             c->method->path + 1,
             c->queue->front->o.service->o.n_admin_keys
                 ? ""
                 : "; this server has none (--admin-key-file)");
    c->why = "an admin key is needed";
    call_finish(c, GRPC_STATUS_PERMISSION_DENIED, text);
}

/* The metadata that comes twice although it must be single, or NULL: which of the two counts would
 * be ambiguous, and a proxy may have checked the other. */
static const char *find_duplicate(const rpc_call *c)
{
    static const char *const single[] = {"authorization", "octavo-retention", "octavo-retrieval",
                                         "octavo-session"};
    for (size_t i = 0; i < sizeof single / sizeof single[0]; i++) {
        unsigned n = 0;
        for (size_t j = 0; j < c->metadata.count; j++)
            n += grpc_slice_str_cmp(c->metadata.metadata[j].key, single[i]) == 0;
        if (n > 1) return single[i];
    }
    return NULL;
}

static void refuse_duplicate(rpc_call *c, const char *key)
{
    char text[DETAILS_BYTES_MAX];
    snprintf(text, sizeof text, "%s: is there twice", key);
    c->why = "metadata that must be single is there twice";
    call_finish(c, GRPC_STATUS_INVALID_ARGUMENT, text);
}

/* Refuses the call, or waits for its first message. */
static void admit_call(rpc_call *c, const char *path, size_t n)
{
    const char *duplicate = find_duplicate(c);
    c->method = front_method(c->queue->front, path, n);
    if (!c->method) {
        char text[DETAILS_BYTES_MAX];
        snprintf(text, sizeof text, "there is no method %.*s", n < 256 ? (int)n : 256, path);
        c->why = "there is no such method";
        call_finish(c, GRPC_STATUS_UNIMPLEMENTED, text);
    } else if (duplicate) {
        refuse_duplicate(c, duplicate);
    } else if (!c->method->open && !has_key(c)) {
        call_refuse(c, GRPC_STATUS_UNAUTHENTICATED, "authorization: a valid bearer key is needed");
    } else if (c->method->open && !open_enter(c)) {
        call_refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED,
                    "too many calls without a key on one connection");
    } else if (c->method->admin && !is_admin(c)) {
        refuse_client(c);
    } else if (!c->method->open && front_is_draining(c->queue->front)) {
        call_refuse(c, GRPC_STATUS_UNAVAILABLE, "the server is draining");
    } else {
        c->since_us = clock_now_us();
        call_receive(c);
    }
}

/* The call's first event on its own queue. */
static void begin_call(rpc_call *c)
{
    c->next = c->queue->first;
    if (c->next) c->next->prev = c;
    c->queue->first = c;
    c->begun = true;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &c->cancelled;
    if (start_batch(c, &op, 1, &c->closed))
        admit_call(c, (const char *)GRPC_SLICE_START_PTR(c->path), GRPC_SLICE_LENGTH(c->path));
    else end_call(c);
    grpc_slice_unref(c->path);
}

void call_arrive(front_queue *q, grpc_call *call, const grpc_call_details *details,
                 grpc_metadata_array *metadata)
{
    rpc_call *c = calloc(1, sizeof *c);
    if (!c) {
        grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory", NULL);
        grpc_metadata_array_destroy(metadata);
        grpc_call_unref(call);
        atomic_fetch_sub(&q->n_calls, 1);
        return;
    }
    c->queue = q;
    c->call = call;
    c->path = grpc_slice_ref(details->method);
    c->metadata = *metadata;
    c->details = grpc_empty_slice();
    c->closed = (queue_op){on_closed, c};
    c->received = (queue_op){on_received, c};
    c->sent = (queue_op){on_sent, c};
    c->finished = (queue_op){on_finished, c};
    atomic_init(&c->references, 1);
    atomic_init(&c->woken, true);
    add_woken(c);
}

void call_on_awake(void *queue, bool ok)
{
    (void)ok;
    rpc_call *poster = take_woken(queue), *next;
    for (rpc_call *c = poster; c; c = next) {
        next = c->next_woken;
        atomic_store(&c->woken, false); // from here on c may be woken again
        if (!c->begun) begin_call(c);
        else if (call_can_send(c) && c->method->writable) c->method->writable(c);
        if (c != poster) call_unref(c);
    }
    call_unref(poster); // of being woken
    call_unref(poster); // of the event, which the first call that was woken has posted
}

static void cancel_stalled(rpc_call *c)
{
    static const char why[] = "the client does not read";
    c->gets_code = set_status(c, GRPC_STATUS_RESOURCE_EXHAUSTED, why);
    if (c->gets_code) c->why = why;
    grpc_call_cancel_with_status(c->call, GRPC_STATUS_RESOURCE_EXHAUSTED, why, NULL);
}

void call_check_stall(rpc_call *c, int64_t now_us)
{
    const grpc_front_options *o = &c->queue->front->o;
    if (c->over) return;
    if (c->sending) {
        if (o->stall_timeout_us > 0 && now_us - c->since_us > o->stall_timeout_us)
            cancel_stalled(c);
    } else if (!c->entered && c->receiving && !c->method->client_streams) {
        if (o->keepalive_timeout_us > 0 && now_us - c->since_us > o->keepalive_timeout_us)
            call_refuse(c, GRPC_STATUS_DEADLINE_EXCEEDED, "request: no message came in time");
    }
}

/* ---- accessors for methods ------------------------------------------------------------------- */

service *call_service(const rpc_call *c) { return c->queue->front->o.service; }
void *call_context(const rpc_call *c) { return c->queue->front->o.ctx; }
grpc_front *call_front(const rpc_call *c) { return c->queue->front; }
void call_set_state(rpc_call *c, void *state) { c->state = state; }
void *call_state(const rpc_call *c) { return c->state; }

const char *call_metadata(const rpc_call *c, const char *key, size_t *n)
{
    for (size_t i = 0; i < c->metadata.count; i++) {
        const grpc_metadata *m = &c->metadata.metadata[i];
        if (grpc_slice_str_cmp(m->key, key) != 0) continue;
        *n = GRPC_SLICE_LENGTH(m->value);
        return (const char *)GRPC_SLICE_START_PTR(m->value);
    }
    return NULL;
}

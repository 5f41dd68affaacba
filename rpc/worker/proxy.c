/* The backend of a rank at a worker: sends plans, receives results. One thread drives the streams
 * of all ranks with one queue; other threads only cancel. */
#include "rpc/worker/group.h"

#include "rpc/worker/codes.h"
#include <grpc/support/time.h>
#include <stdio.h>
#include <string.h>

enum {
    UNPACK_FACTOR = 2,
    UNPACK_EXTRA = 1 << 20,
    SHUTDOWN_US = 5000000,
    GRACE_EXTRA_US = 500000, // beyond the silence after which a rank is lost
};

/* ---- the queue ------------------------------------------------------------------------------- */

/* Handles one event of the queue. False when none came until then. */
static bool drive_once(worker_group *g, gpr_timespec until)
{
    grpc_event event = grpc_completion_queue_next(g->steps, until, NULL);
    if (event.type != GRPC_OP_COMPLETE) return false;
    stream_op *op = event.tag;
    op->link->stream.n_ops--;
    op->done(op->link, event.success);
    return true;
}

static void drive(worker_group *g)
{
    gpr_timespec until =
        g->grace_until_us ? time_at(g->grace_until_us) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (drive_once(g, until) || !g->grace_until_us) return;
    g->grace_until_us = 0;
    group_fail(g, g->o.n); // no rank was lost, but some ranks may still wait for their peers
}

static bool start_operations(worker_link *l, const grpc_op *ops, size_t n, stream_op *tag)
{
    stream *s = &l->stream;
    if (grpc_call_start_batch(s->call, ops, n, tag, NULL) == GRPC_CALL_OK) {
        s->n_ops++;
        return true;
    }
    grpc_call_cancel(s->call, NULL);
    return false;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_begun(worker_link *l, bool ok)
{
    (void)l;
    (void)ok;
}

static bool send_next(worker_link *l);

static void on_sent(worker_link *l, bool ok)
{
    stream *s = &l->stream;
    s->sending = false;
    grpc_byte_buffer_destroy(s->outgoing);
    s->outgoing = NULL;
    if (ok && s->n_sent < GRPC_SLICE_LENGTH(s->packed)) {
        (void)send_next(l);
        return;
    }
    /* The whole plan has gone out, or `over` will say why not. */
    grpc_slice_unref(s->packed);
    s->packed = grpc_empty_slice();
}

static void on_over(worker_link *l, bool ok)
{
    (void)ok;
    l->stream.ended = true;
    group_fail(l->group, l->rank);
}

/* A step that failed because of its peers (STATUS_IO) may be the first sign of a lost rank. Which
 * rank it is becomes known when its heartbeat is missed, so the group waits for that. */
static void on_failed_step(worker_link *l, status s)
{
    worker_group *g = l->group;
    if (s.code != STATUS_IO) group_fail(g, l->rank);
    else if (!g->grace_until_us)
        g->grace_until_us = clock_now_us() + group_silence_us(g) + GRACE_EXTRA_US;
}

/* The next place for a step. */
static flight *next_flight(stream *s) { return &s->flights[s->n_submitted % STEPS_MOST]; }
static flight *oldest_flight(stream *s) { return &s->flights[s->n_collected % STEPS_MOST]; }

static status fail_with(worker_link *l, flight *f, status_code code, const char *text)
{
    error err;
    error_set(&err, code, "%s", text);
    link_prefix(l, &err);
    snprintf(f->trouble, sizeof f->trouble, "%s", err.text);
    return status_make(code, f->trouble);
}

/* The error of a rank whose failure has ended the step on all ranks, but not the group. */
static status fail_in_step(const worker_link *l, flight *f, status_code code, const char *text)
{
    error err;
    error_set(&err, code, "%s", text);
    error_insert(&err, "rank %u (%s)", l->rank, l->address);
    snprintf(f->trouble, sizeof f->trouble, "%s", err.text);
    return status_make(code, f->trouble);
}

/* Unpacks a result into the flight's arena. */
static status unpack_result(flight *f, const uint8_t *bytes, size_t n, const result_message **out,
                            error *err)
{
    const ProtobufCMessage *m;
    error why;
    arena_destroy(&f->message);
    status st = message_unpack(&octavo__worker__v1__step_result__descriptor, bytes, n,
                               UNPACK_FACTOR * n + UNPACK_EXTRA, &f->message, &m, &why);
    f->message.limit_bytes = 0;
    *out = (const result_message *)m;
    if (st.code == STATUS_NO_MEMORY) return error_set(err, st.code, "out of memory");
    return status_ok(st) ? st : error_set(err, STATUS_INTERNAL, "not a valid message");
}

/* Takes the part in *m. Sets *m to the whole message after the last part, and to NULL before. */
static status take_part(worker_link *l, flight *f, const result_message **m, error *err)
{
    assembly *parts = &l->stream.parts;
    const part_sizes sizes = {group_part_bytes(l->group), result_bytes_max};
    RETURN_IF_ERROR(assembly_add(parts, (*m)->part, &sizes, err));
    *m = NULL;
    if (parts->have < parts->size) return STATUS_IS_OK;
    status st = unpack_result(f, parts->bytes, parts->size, m, err);
    assembly_clear(parts);
    if (st.code == STATUS_NO_MEMORY || (status_ok(st) && !(*m)->part)) return st;
    return error_set(err, STATUS_INVALID, "part: the parts make up no valid message");
}

/* Reads a result or a part of one. */
static status read_result(worker_link *l, flight *f, grpc_slice bytes, bool *complete, error *err)
{
    const result_message *m;
    RETURN_IF_ERROR(
        unpack_result(f, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes), &m, err));
    if (m->part) RETURN_IF_ERROR(take_part(l, f, &m, err));
    else if (l->stream.parts.bytes)
        return error_set(err, STATUS_INVALID, "part: another result comes before the last parts");
    *complete = m != NULL;
    if (!m) return STATUS_IS_OK;
    result_source source = {f->plan, &l->facts.info, l->rank, l->group->o.n};
    return result_unpack(m, &source, &f->message, &f->store, err);
}

static bool receive_next(worker_link *l)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &l->stream.incoming;
    l->stream.receiving = start_operations(l, &op, 1, &l->stream.received);
    return l->stream.receiving;
}

/* Takes a complete result, or what is wrong with it. */
static void take_result(worker_link *l, flight *f, status s, error *err)
{
    l->stream.n_answered++;
    if (!status_ok(s)) {
        error_prefix(err, "result");
        bool no_memory = s.code == STATUS_NO_MEMORY;
        f->status = fail_with(l, f, no_memory ? STATUS_NO_MEMORY : STATUS_INTERNAL, err->text);
        group_fail(l->group, l->rank);
        return;
    }
    step_result *r = &f->store.result;
    if (status_ok(r->status)) return;
    if (r->end != STEP_ENDED_ALONE) {
        r->status = fail_in_step(l, f, r->status.code, f->store.text);
        return;
    }
    r->status = fail_with(l, f, r->status.code, f->store.text);
    on_failed_step(l, r->status);
}

static void on_received(worker_link *l, bool ok)
{
    stream *s = &l->stream;
    flight *f = &s->flights[s->n_answered % STEPS_MOST];
    grpc_byte_buffer *buffer = s->incoming;
    grpc_slice bytes;
    error err = {{0}};
    bool complete = false;
    s->incoming = NULL;
    s->receiving = false;
    if (!ok || !buffer) return; // `over` comes next
    status st = STATUS_IS_OK;
    if (bytes_read(buffer, &bytes)) {
        st = read_result(l, f, bytes, &complete, &err);
        grpc_slice_unref(bytes);
    } else {
        st = error_set(&err, STATUS_INTERNAL, "compressed");
    }
    grpc_byte_buffer_destroy(buffer);
    if (complete || !status_ok(st)) take_result(l, f, st, &err);
    if (status_ok(st) && s->n_answered < s->n_submitted)
        (void)receive_next(l); // if gRPC refuses, the call ends and `over` comes
}

/* ---- a stream's life ------------------------------------------------------------------------- */

status stream_open(worker_link *l, error *err)
{
    worker_group *g = l->group;
    stream *s = &l->stream;
    grpc_op ops[2];
    *s = (stream){.begun = {on_begun, l},
                  .sent = {on_sent, l},
                  .received = {on_received, l},
                  .over = {on_over, l},
                  .packed = grpc_empty_slice(),
                  .details = grpc_empty_slice()};
    grpc_metadata_array_init(&s->initial);
    grpc_metadata_array_init(&s->trailing);
    for (int i = 0; i < STEPS_MOST; i++) arena_init(&s->flights[i].message, MEMORY_BLOCK, 0);
    grpc_slice path = grpc_slice_from_static_string("/octavo.worker.v1.Worker/Step");
    grpc_call *call =
        grpc_channel_create_call(l->channel, NULL, GRPC_PROPAGATE_DEFAULTS, g->steps, path, NULL,
                                 gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    pthread_mutex_lock(&g->lock);
    s->call = call;
    bool failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &s->initial;
    bool ok = start_operations(l, ops, 2, &s->begun);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &s->trailing;
    ops[0].data.recv_status_on_client.status = &s->code;
    ops[0].data.recv_status_on_client.status_details = &s->details;
    if (ok) ok = start_operations(l, ops, 1, &s->over);
    if (ok && !failed) return STATUS_IS_OK;
    stream_close(l);
    return failed ? group_failure(g, err)
                  : error_set(err, STATUS_INTERNAL, "Step: refused by gRPC");
}

void stream_close(worker_link *l)
{
    worker_group *g = l->group;
    stream *s = &l->stream;
    if (!s->call) return;
    grpc_call_cancel(s->call, NULL);
    while (s->n_ops > 0) drive_once(g, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    pthread_mutex_lock(&g->lock);
    grpc_call_unref(s->call);
    s->call = NULL;
    pthread_mutex_unlock(&g->lock);
    grpc_metadata_array_destroy(&s->initial);
    grpc_metadata_array_destroy(&s->trailing);
    grpc_slice_unref(s->details);
    if (s->outgoing) grpc_byte_buffer_destroy(s->outgoing);
    if (s->incoming) grpc_byte_buffer_destroy(s->incoming);
    grpc_slice_unref(s->packed);
    assembly_clear(&s->parts);
    for (int i = 0; i < STEPS_MOST; i++) arena_destroy(&s->flights[i].message);
}

void link_end_session(worker_link *l)
{
    stream_close(l);
    pthread_mutex_lock(&l->group->lock);
    bool ask = l->has_session && (!l->lost || l->in_reach);
    uint64_t session = l->group->session;
    pthread_mutex_unlock(&l->group->lock);
    if (ask) {
        Octavo__Worker__V1__ShutdownRequest request = OCTAVO__WORKER__V1__SHUTDOWN_REQUEST__INIT;
        request.session = session;
        question q = {.path = "/octavo.worker.v1.Worker/Shutdown",
                      .message = &request.base,
                      .answer = &octavo__worker__v1__shutdown_reply__descriptor,
                      .timeout_us = SHUTDOWN_US,
                      .is_last = true};
        answer a;
        if (status_ok(link_ask(l, &q, &a, NULL))) arena_destroy(&a.memory);
    }
    l->has_session = false;
    heart_leave(l);
    link_disconnect(l);
}

/* ---- the interface --------------------------------------------------------------------------- */

static const backend_info *proxy_info(void *ctx) { return &((worker_link *)ctx)->facts.info; }

/* The error for a step that gets no result. */
static status judge_end(worker_link *l, flight *f)
{
    worker_group *g = l->group;
    stream *s = &l->stream;
    char text[384];
    pthread_mutex_lock(&g->lock);
    bool lost = l->lost, interrupted = l->interrupted, failed = g->failed;
    uint32_t failed_rank = g->failed_rank;
    snprintf(text, sizeof text, "%s", l->reason);
    pthread_mutex_unlock(&g->lock);
    if (lost) return fail_with(l, f, STATUS_UNAVAILABLE, text);
    /* A reason that the worker gave is told even where another rank's failure led to the
     * interrupt. */
    bool told = s->ended && s->code != GRPC_STATUS_OK && s->code != GRPC_STATUS_CANCELLED;
    if (interrupted && !told) return fail_with(l, f, STATUS_INTERNAL, "interrupted");
    if (failed && failed_rank != l->rank) return fail_with(l, f, STATUS_IO, "its peers failed");
    status_code code = STATUS_UNAVAILABLE;
    snprintf(text, sizeof text, "the connection is gone");
    if (s->ended) text_of_status(s->details, text, sizeof text);
    if (s->ended && s->code != GRPC_STATUS_OK) code = code_from_wire(s->code);
    if (code == STATUS_UNAVAILABLE) {
        pthread_mutex_lock(&g->lock);
        link_count_loss(l);
        pthread_mutex_unlock(&g->lock);
    }
    return fail_with(l, f, code, text);
}

/* Packs a plan when its first rank needs it: the same bytes go to all ranks. */
static status pack_once(worker_group *g, const step_plan *plan)
{
    if (g->packed_left > 0 && g->packed_step == plan->step) return STATUS_IS_OK;
    plan_message m;
    arena memory;
    arena_init(&memory, MEMORY_BLOCK, 0);
    status st = plan_pack(plan, g->session, &memory, &m);
    size_t n = status_ok(st) ? protobuf_c_message_get_packed_size(&m.base) : 0;
    if (n > plan_bytes_max) st = status_make(STATUS_LIMIT, "the plan is too large for messages");
    if (status_ok(st)) {
        grpc_slice_unref(g->packed);
        g->packed = grpc_slice_malloc(n);
        protobuf_c_message_pack(&m.base, GRPC_SLICE_START_PTR(g->packed));
        g->packed_step = plan->step;
        g->packed_left = g->o.n;
    }
    arena_destroy(&memory);
    return st;
}

static bool is_over(worker_link *l)
{
    worker_group *g = l->group;
    while (drive_once(g, gpr_inf_past(GPR_CLOCK_MONOTONIC)))
        continue; // handles events that have come meanwhile
    pthread_mutex_lock(&g->lock);
    bool over = l->stream.ended || g->failed || l->interrupted;
    pthread_mutex_unlock(&g->lock);
    return over;
}

/* Sends a message, which it takes over. False: gRPC refuses, and the call ends. */
static bool send_bytes(worker_link *l, grpc_byte_buffer *message)
{
    stream *s = &l->stream;
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_SEND_MESSAGE;
    op.data.send_message.send_message = s->outgoing = message;
    s->sending = start_operations(l, &op, 1, &s->sent);
    return s->sending;
}

/* Sends the plan, or its next part. False: gRPC refuses, and the call ends. */
static bool send_next(worker_link *l)
{
    stream *s = &l->stream;
    size_t n = GRPC_SLICE_LENGTH(s->packed), part_bytes = group_part_bytes(l->group);
    if (n <= part_bytes) {
        s->n_sent = n;
        return send_bytes(l, grpc_raw_byte_buffer_create(&s->packed, 1));
    }
    plan_message m = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    part_message part = part_of(GRPC_SLICE_START_PTR(s->packed), n, s->n_sent, part_bytes);
    m.session = l->group->session;
    m.step = s->step;
    m.part = &part;
    s->n_sent += part.data.len;
    return send_bytes(l, bytes_of_message(&m.base));
}

static status proxy_submit(void *ctx, const step_plan *plan)
{
    worker_link *l = ctx;
    worker_group *g = l->group;
    stream *s = &l->stream;
    flight *f = next_flight(s);
    if (is_over(l)) return judge_end(l, f);
    RETURN_IF_ERROR(pack_once(g, plan));
    while (s->sending && !s->ended) drive(g);
    if (s->ended) return judge_end(l, f);
    f->plan = plan;
    f->status = STATUS_IS_OK;
    s->n_submitted++;
    grpc_slice_unref(s->packed);
    s->packed = grpc_slice_ref(g->packed);
    s->n_sent = 0;
    s->step = plan->step;
    if (--g->packed_left == 0) {
        grpc_slice_unref(g->packed);
        g->packed = grpc_empty_slice();
    }
    bool receives = s->receiving || receive_next(l);
    return receives && send_next(l) ? STATUS_IS_OK : judge_end(l, f);
}

/* Tells a rank that no plan comes before the results of those that it has. */
static void send_wait(worker_link *l)
{
    stream *s = &l->stream;
    plan_message m = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    while (s->sending && !s->ended) drive(l->group);
    if (s->ended) return; // collect says why
    m.session = l->group->session;
    m.step = s->step;
    m.awaits = true;
    s->n_awaited = s->n_submitted;
    (void)send_bytes(l, bytes_of_message(&m.base));
}

/* Has the ranks end the oldest step, whose number is n. A rank with as many steps as it can have
 * does so by itself; the others wait for the next plan until they are told that none comes. All are
 * told at once, because they may meet in what they do when they end a step. */
static void await_step(worker_group *g, uint64_t n)
{
    for (uint32_t i = 0; i < g->o.n; i++) {
        const stream *s = &g->links[i].stream;
        bool is_full = s->n_submitted - n == steps_of(&g->links[i].facts.info);
        if (s->call && s->n_submitted > n && s->n_awaited <= n && !is_full) send_wait(&g->links[i]);
    }
}

static status proxy_collect(void *ctx, const step_result **out)
{
    worker_link *l = ctx;
    stream *s = &l->stream;
    flight *f = oldest_flight(s);
    uint64_t n = s->n_collected;
    await_step(l->group, n);
    while (s->n_answered <= n && !s->ended) drive(l->group);
    s->n_collected++;
    if (s->n_answered <= n) return judge_end(l, f);
    RETURN_IF_ERROR(f->status);
    *out = &f->store.result;
    return STATUS_IS_OK;
}

static void proxy_interrupt(void *ctx)
{
    worker_link *l = ctx;
    worker_group *g = l->group;
    pthread_mutex_lock(&g->lock);
    l->interrupted = true;
    if (l->stream.call) grpc_call_cancel(l->stream.call, NULL);
    link_cancel_cells(l);
    pthread_mutex_unlock(&g->lock);
}

static void proxy_destroy(void *ctx) { link_end_session(ctx); }

const backend_ops proxy_ops = {
    .info = proxy_info,
    .submit = proxy_submit,
    .collect = proxy_collect,
    .interrupt = proxy_interrupt,
    .read_cells = proxy_read_cells,
    .write_cells = proxy_write_cells,
    .destroy = proxy_destroy,
};

/* Channels to workers, and calls that block until the answer. */
#include "rpc/worker/group.h"

#include "rpc/worker/codes.h"
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h> // newer gRPC: grpc_security.h no longer includes it
#endif
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

enum { UNPACK_FACTOR = 4, UNPACK_EXTRA = 1 << 20, RECONNECT_MS = 100, ANSWER_BYTES = 1 << 20 };

gpr_timespec time_at(int64_t us)
{
    gpr_timespec wait = gpr_time_from_micros(us - clock_now_us(), GPR_TIMESPAN);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), wait);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

grpc_byte_buffer *bytes_of_message(const ProtobufCMessage *m)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

bool bytes_read(grpc_byte_buffer *buffer, grpc_slice *out)
{
    grpc_byte_buffer_reader reader;
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE ||
        !grpc_byte_buffer_reader_init(&reader, buffer))
        return false;
    *out = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return true;
}

void text_of_status(grpc_slice details, char *out, size_t size)
{
    text_copy(GRPC_SLICE_START_PTR(details), GRPC_SLICE_LENGTH(details), out, size);
    if (!out[0]) text_copy("the connection is gone", 22, out, size);
}

/* ---- channels -------------------------------------------------------------------------------- */

static status make_credentials(const worker_tls *t, grpc_channel_credentials **out, error *err)
{
    char *cert = NULL, *key = NULL, *ca = NULL;
    *out = NULL;
    if (!t->cert && !t->key && !t->ca) {
        *out = grpc_insecure_credentials_create();
        return STATUS_IS_OK;
    }
    if (!t->cert || !t->key || !t->ca)
        return error_set(err, STATUS_INVALID, "tls: a certificate, its key and a CA are needed");
    status s = pem_read("tls-cert", t->cert, &cert, err);
    if (status_ok(s)) s = pem_read("tls-key", t->key, &key, err);
    if (status_ok(s)) s = pem_read("tls-ca", t->ca, &ca, err);
    if (status_ok(s)) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = key, .cert_chain = cert};
        *out = grpc_ssl_credentials_create(ca, &pair, NULL, NULL);
    }
    if (key) explicit_bzero(key, strlen(key));
    free(cert);
    free(key);
    free(ca);
    return s;
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

status link_connect(worker_link *l, error *err)
{
    grpc_channel_credentials *credentials;
    RETURN_IF_ERROR(make_credentials(&l->group->o.tls, &credentials, err));
    grpc_arg args[] = {
        /* Each link has its own connection, so that it does not inherit another link's reconnect
         * backoff. */
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_MS),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, (int)(group_silence_us(l->group) / 1000)),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)message_bytes_max),
        int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
    };
    grpc_channel_args all = {.num_args = sizeof args / sizeof *args, .args = args};
    l->channel = grpc_channel_create(l->address, credentials, &all);
    grpc_channel_credentials_release(credentials);
    l->answers = grpc_completion_queue_create_for_pluck(NULL);
    return STATUS_IS_OK;
}

/* Waits until a connection attempt has ended: gRPC before 1.52 keeps a connection for ever if its
 * channel is destroyed during the attempt (gRPC #32071). link_connect limits the attempt's time. */
static void await_attempt(worker_link *l)
{
    gpr_timespec until = time_at(clock_now_us() + group_silence_us(l->group));
    grpc_connectivity_state connecting = GRPC_CHANNEL_CONNECTING;
    while (grpc_channel_check_connectivity_state(l->channel, 0) == connecting) {
        grpc_channel_watch_connectivity_state(l->channel, connecting, until, l->answers, l);
        grpc_event event =
            grpc_completion_queue_pluck(l->answers, l, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (!event.success) return;
    }
}

void link_disconnect(worker_link *l)
{
    if (!l->channel) return;
    await_attempt(l);
    grpc_channel_destroy(l->channel);
    grpc_completion_queue_shutdown(l->answers);
    while (grpc_completion_queue_pluck(l->answers, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(l->answers);
    l->channel = NULL;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Makes the call and registers it as `asking`. False: the session has failed. */
static bool begin_asking(worker_link *l, unary_call *x, const question *q)
{
    worker_group *g = l->group;
    grpc_slice path = grpc_slice_from_static_string(q->path);
    pthread_mutex_lock(&g->lock);
    bool ok = q->is_last || !g->failed;
    if (ok) {
        x->call =
            grpc_channel_create_call(l->channel, NULL, GRPC_PROPAGATE_DEFAULTS, l->answers, path,
                                     NULL, time_at(clock_now_us() + q->timeout_us), NULL);
        l->asking = x->call;
    }
    pthread_mutex_unlock(&g->lock);
    return ok;
}

static void end_asking(worker_link *l, unary_call *x)
{
    pthread_mutex_lock(&l->group->lock);
    l->asking = NULL;
    pthread_mutex_unlock(&l->group->lock);
    grpc_call_unref(x->call);
    unary_end(x);
}

bool unary_begin(unary_call *x, const ProtobufCMessage *m, void *tag)
{
    grpc_op ops[6];
    memset(ops, 0, sizeof ops);
    grpc_metadata_array_init(&x->initial);
    grpc_metadata_array_init(&x->trailing);
    x->details = grpc_empty_slice();
    x->outgoing = bytes_of_message(m);
    x->incoming = NULL;
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = x->outgoing;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &x->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &x->incoming;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &x->trailing;
    ops[5].data.recv_status_on_client.status = &x->code;
    ops[5].data.recv_status_on_client.status_details = &x->details;
    return grpc_call_start_batch(x->call, ops, 6, tag, NULL) == GRPC_CALL_OK;
}

void unary_end(unary_call *x)
{
    grpc_metadata_array_destroy(&x->initial);
    grpc_metadata_array_destroy(&x->trailing);
    grpc_byte_buffer_destroy(x->outgoing);
    if (x->incoming) grpc_byte_buffer_destroy(x->incoming);
    grpc_slice_unref(x->details);
}

static void run_call(worker_link *l, unary_call *x, const question *q)
{
    if (unary_begin(x, q->message, x))
        grpc_completion_queue_pluck(l->answers, x, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    else x->code = GRPC_STATUS_INTERNAL;
}

static status read_answer(unary_call *x, const question *q, answer *out, error *err)
{
    grpc_slice bytes;
    if (!x->incoming || !bytes_read(x->incoming, &bytes))
        return error_set(err, STATUS_INTERNAL, "%s: an answer without a message", q->path);
    size_t n = GRPC_SLICE_LENGTH(bytes);
    error why;
    status s = n > ANSWER_BYTES ? status_make(STATUS_LIMIT, NULL)
                                : message_unpack(q->answer, GRPC_SLICE_START_PTR(bytes), n,
                                                 UNPACK_FACTOR * n + UNPACK_EXTRA, &out->memory,
                                                 &out->message, &why);
    if (!status_ok(s)) {
        if (n <= ANSWER_BYTES) arena_destroy(&out->memory);
        s = error_set(err, STATUS_INTERNAL, "%s: an answer that is no %s", q->path,
                      q->answer->name);
    }
    grpc_slice_unref(bytes);
    return s;
}

/* The error of a failed call: the reason for which the rank was lost or the session failed, or else
 * the text of the peer or of gRPC. */
static status judge_reply(worker_link *l, const unary_call *x, const question *q, error *err)
{
    worker_group *g = l->group;
    char text[384];
    text_of_status(x->details, text, sizeof text);
    pthread_mutex_lock(&g->lock);
    bool gave_up = g->failed && !q->is_last;
    bool lost = l->lost;
    if (lost) error_set(err, STATUS_UNAVAILABLE, "%s", l->reason);
    pthread_mutex_unlock(&g->lock);
    if (lost) return status_make(STATUS_UNAVAILABLE, NULL);
    if (gave_up && x->code == GRPC_STATUS_CANCELLED) return group_failure(g, err);
    if (x->code == GRPC_STATUS_DEADLINE_EXCEEDED)
        return error_set(err, STATUS_UNAVAILABLE, "no answer to %s within %.1f s",
                         strrchr(q->path, '/') + 1, (double)q->timeout_us / 1e6);
    return error_set(err, code_from_wire(x->code), "%s", text);
}

status link_ask(worker_link *l, const question *q, answer *out, error *err)
{
    unary_call x = {0};
    if (!begin_asking(l, &x, q)) return group_failure(l->group, err);
    run_call(l, &x, q);
    status s = x.code == GRPC_STATUS_OK ? read_answer(&x, q, out, err) : judge_reply(l, &x, q, err);
    end_asking(l, &x);
    return s;
}

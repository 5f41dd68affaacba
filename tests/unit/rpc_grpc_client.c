#include "tests/unit/rpc_grpc_client.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h>
#endif
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_S = 180 };

static gpr_timespec in_ms(int64_t ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static void die(const char *what)
{
    fprintf(stderr, "grpc client: %s\n", what);
    abort();
}

/* ---- clients --------------------------------------------------------------------------------- */

static grpc_client open_client(const char *target, grpc_channel_credentials *credentials, bool gzip)
{
    grpc_init(); // a client may outlive the server's gRPC
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)"grpc.use_local_subchannel_pool",
         .value.integer = 1},
        {.type = GRPC_ARG_INTEGER, .key = (char *)"grpc.enable_http_proxy", .value.integer = 0},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM,
         .value.integer = gzip ? GRPC_COMPRESS_GZIP : GRPC_COMPRESS_NONE},
        {.type = GRPC_ARG_STRING,
         .key = (char *)"grpc.ssl_target_name_override",
         .value.string = (char *)"localhost"},
    };
    grpc_channel_args all = {.num_args = sizeof args / sizeof *args, .args = args};
    grpc_client c = {.channel = grpc_channel_create(target, credentials, &all),
                     .queue = grpc_completion_queue_create_for_pluck(NULL)};
    grpc_channel_credentials_release(credentials);
    return c;
}

static grpc_client connect_to(uint16_t port, grpc_channel_credentials *credentials, bool gzip)
{
    char target[32];
    snprintf(target, sizeof target, "127.0.0.1:%u", port);
    return open_client(target, credentials, gzip);
}

grpc_client grpc_client_of(const char *address)
{
    return open_client(address, grpc_insecure_credentials_create(), false);
}

grpc_client grpc_client_plain(uint16_t port)
{
    return connect_to(port, grpc_insecure_credentials_create(), false);
}

grpc_client grpc_client_gzip(uint16_t port)
{
    return connect_to(port, grpc_insecure_credentials_create(), true);
}

grpc_client grpc_client_tls(uint16_t port, const char *ca, const char *cert, const char *key)
{
    grpc_ssl_pem_key_cert_pair pair = {.private_key = key, .cert_chain = cert};
    return connect_to(port, grpc_ssl_credentials_create(ca, cert ? &pair : NULL, NULL, NULL),
                      false);
}

void grpc_client_destroy(grpc_client *c)
{
    grpc_channel_destroy(c->channel);
    grpc_completion_queue_shutdown(c->queue);
    while (grpc_completion_queue_pluck(c->queue, NULL, in_ms(100), NULL).type == GRPC_OP_COMPLETE)
        continue;
    grpc_completion_queue_destroy(c->queue);
    grpc_shutdown();
}

/* ---- batches --------------------------------------------------------------------------------- */

static void start(client_call *k, const grpc_op *ops, size_t n, void *tag)
{
    if (grpc_call_start_batch(k->call, ops, n, tag, NULL) != GRPC_CALL_OK) die("batch refused");
}

static bool wait_for(client_call *k, void *tag)
{
    grpc_event e =
        grpc_completion_queue_pluck(k->client->queue, tag, in_ms(PATIENCE_S * 1000), NULL);
    if (e.type != GRPC_OP_COMPLETE) die("nothing happens");
    return e.success;
}

static bool run_op(client_call *k, const grpc_op *op)
{
    start(k, op, 1, (void *)(uintptr_t)op);
    return wait_for(k, (void *)(uintptr_t)op);
}

/* ---- calls ----------------------------------------------------------------------------------- */

client_call *client_start(grpc_client *c, const char *path, const client_header *headers,
                          int deadline_ms)
{
    client_call *k = calloc(1, sizeof *k);
    grpc_metadata metadata[8];
    size_t n = 0;
    for (; headers && headers[n].key && n < 8; n++)
        metadata[n] = (grpc_metadata){.key = grpc_slice_from_copied_string(headers[n].key),
                                      .value = grpc_slice_from_copied_string(headers[n].value)};
    grpc_slice method = grpc_slice_from_copied_string(path);
    k->client = c;
    k->call =
        grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue, method, NULL,
                                 in_ms(deadline_ms ? deadline_ms : PATIENCE_S * 1000), NULL);
    grpc_slice_unref(method);
    grpc_metadata_array_init(&k->initial);
    grpc_metadata_array_init(&k->trailing);
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = n;
    ops[0].data.send_initial_metadata.metadata = metadata;
    start(k, ops, 1, &k->details);
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &k->initial;
    start(k, &ops[1], 1, &k->initial);
    ops[2].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[2].data.recv_status_on_client.trailing_metadata = &k->trailing;
    ops[2].data.recv_status_on_client.status = &k->code;
    ops[2].data.recv_status_on_client.status_details = &k->details;
    start(k, &ops[2], 1, k);
    wait_for(k, &k->details);
    for (size_t i = 0; i < n; i++) {
        grpc_slice_unref(metadata[i].key);
        grpc_slice_unref(metadata[i].value);
    }
    return k;
}

bool client_write_bytes(client_call *k, const void *bytes, size_t n)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, n);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    bool ok = run_op(k, &op);
    grpc_byte_buffer_destroy(buffer);
    return ok;
}

bool client_write(client_call *k, const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    protobuf_c_message_pack(m, bytes);
    bool ok = client_write_bytes(k, bytes, n);
    free(bytes);
    return ok;
}

void client_half_close(client_call *k)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    run_op(k, &op);
}

bool client_read(client_call *k, strbuf *out)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_byte_buffer_reader reader;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &buffer;
    strbuf_clear(out);
    if (!run_op(k, &op) || !buffer) return false;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) die("reader");
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    strbuf_append(out, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(buffer);
    return true;
}

void client_cancel(client_call *k) { grpc_call_cancel(k->call, NULL); }

grpc_status_code client_end(client_call *k)
{
    if (k->ended) return k->code;
    wait_for(k, k);
    wait_for(k, &k->initial);
    k->ended = true;
    size_t n = GRPC_SLICE_LENGTH(k->details);
    if (n >= sizeof k->text) n = sizeof k->text - 1;
    memcpy(k->text, GRPC_SLICE_START_PTR(k->details), n);
    grpc_slice_unref(k->details);
    return k->code;
}

const char *client_trailer(const client_call *k, const char *key, size_t *n)
{
    for (size_t i = 0; i < k->trailing.count; i++) {
        const grpc_metadata *m = &k->trailing.metadata[i];
        if (grpc_slice_str_cmp(m->key, key) != 0) continue;
        *n = GRPC_SLICE_LENGTH(m->value);
        return (const char *)GRPC_SLICE_START_PTR(m->value);
    }
    return NULL;
}

void client_destroy(client_call *k)
{
    if (!k->ended) {
        client_cancel(k);
        client_end(k);
    }
    grpc_metadata_array_destroy(&k->initial);
    grpc_metadata_array_destroy(&k->trailing);
    grpc_call_unref(k->call);
    free(k);
}

client_call *client_ask(grpc_client *c, const char *path, const client_header *headers,
                        const ProtobufCMessage *m)
{
    client_call *k = client_start(c, path, headers, 0);
    client_write(k, m);
    client_half_close(k);
    return k;
}

bool client_unary(grpc_client *c, const char *path, const ProtobufCMessage *m, strbuf *out)
{
    client_call *k = client_ask(c, path, NULL, m);
    bool ok = client_read(k, out);
    ok = client_end(k) == GRPC_STATUS_OK && ok;
    client_destroy(k);
    return ok;
}

/* A gRPC client over the C core, for tests: each call waits, up to a deadline that fails the test.
 * One thread uses a client. */
#ifndef TESTS_UNIT_RPC_GRPC_CLIENT_H
#define TESTS_UNIT_RPC_GRPC_CLIENT_H

#include "base/base.h"

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

typedef struct grpc_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
} grpc_client;

/* Connects to 127.0.0.1:port; each client has a connection of its own. */
grpc_client grpc_client_plain(uint16_t port);
/* Connects to an address of gRPC's, such as "unix:/path". */
grpc_client grpc_client_of(const char *address);
/* A client that compresses what it sends. */
grpc_client grpc_client_gzip(uint16_t port);
/* TLS; the server's name is "localhost". cert and key may be NULL. PEM text. */
grpc_client grpc_client_tls(uint16_t port, const char *ca, const char *cert, const char *key);
void grpc_client_destroy(grpc_client *c);

typedef struct client_call {
    grpc_client *client;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    char text[1100]; // details, NUL-terminated, when the call has ended
    bool ended;
} client_call;

typedef struct client_header {
    const char *key, *value;
} client_header;

/* Starts a call. headers end with a NULL key; NULL = none. deadline_ms 0 = three minutes. */
client_call *client_start(grpc_client *c, const char *path, const client_header *headers,
                          int deadline_ms);
/* Sends a message; false when the call has ended. */
bool client_write(client_call *k, const ProtobufCMessage *m);
bool client_write_bytes(client_call *k, const void *bytes, size_t n);
void client_half_close(client_call *k);
/* The next message, into *out (destroy it); false at the end. */
bool client_read(client_call *k, strbuf *out);
void client_cancel(client_call *k);
/* Waits for the end; the code, and k->text. */
grpc_status_code client_end(client_call *k);
/* A trailing metadata value after the end, or NULL. */
const char *client_trailer(const client_call *k, const char *key, size_t *n);
void client_destroy(client_call *k);

/* Start, one message, half-close. */
client_call *client_ask(grpc_client *c, const char *path, const client_header *headers,
                        const ProtobufCMessage *m);
/* True when one answer came (in *out) and the status is OK. */
bool client_unary(grpc_client *c, const char *path, const ProtobufCMessage *m, strbuf *out);

#endif

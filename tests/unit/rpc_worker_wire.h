/* Shared by the tests of plans and results as messages: the facts of a small backend, and a
 * message's way to its peer. */
#ifndef TESTS_UNIT_RPC_WORKER_WIRE_H
#define TESTS_UNIT_RPC_WORKER_WIRE_H

#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SEQS = 16,
    ROWS = 64,
    VOCAB = 1000,
    LAYERS = 6,
    KV_HEADS = 4,
    PAGES = 50,
    HEADS = 8,
    HEAD_DIM = 4,
    HIDDEN = 3
};

static const backend_info info = {
    .name = "test",
    .vocab_size = VOCAB,
    .max_positions = 512,
    .max_rows = ROWS,
    .max_seqs = SEQS,
    .max_logit_rows = 0,
    .logit_row_cost = 260,
    .retrieves = ((1 << RETRIEVAL_REPRESENTATIVES) - 1) | RETRIEVAL_NEEDS_HISTORY |
                 RETRIEVAL_NEEDS_PRESELECTION | RETRIEVAL_NEEDS_EXAM | RETRIEVAL_NEEDS_AUDIT,
    .n_heads = HEADS,
    .head_dim = HEAD_DIM,
    .hidden = HIDDEN,
    .n_pages = PAGES,
    .n_host_pages = 20,
    .max_in_flight = 2,
    .geometry = {.page_tokens = 16,
                 .n_layers = LAYERS,
                 .n_kv_heads = KV_HEADS,
                 .layers_per_group = 2,
                 .heads_per_group = KV_HEADS / 2},
    .identity = 77,
};

/* Packs and unpacks a message; the copy is in the arena. */
static inline const ProtobufCMessage *travel(const ProtobufCMessage *m, arena *a)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    const ProtobufCMessage *out;
    error err;
    protobuf_c_message_pack(m, bytes);
    if (!status_ok(message_unpack(m->descriptor, bytes, n, 64 << 20, a, &out, &err)))
        fail_msg("%s", err.text);
    free(bytes);
    return out;
}

#endif

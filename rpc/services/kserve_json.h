/* KServe's messages as JSON and back, for HTTP (private to rpc/services). */
#ifndef RPC_SERVICES_KSERVE_JSON_H
#define RPC_SERVICES_KSERVE_JSON_H

#include "rpc/services/kserve.h"

/* A request's body: JSON, and the bytes behind it that its tensors with `binary_data_size` share in
 * their order. */
typedef struct kserve_body {
    const json_t *json;
    const uint8_t *bytes;
    size_t n_bytes;
    ProtobufCBinaryData model, version; // of the path; empty = the first one
} kserve_body;

/* Converts a body into the message that gRPC has, whose tensors have raw contents. It lies in the
 * arena and points into the body. *binary: bit i says that output i goes out as bytes. */
status kserve_read_json(const kserve_body *body, arena *memory, Inference__ModelInferRequest *out,
                        uint32_t *binary, error *err);
/* Writes a response: JSON, and the bytes of the outputs in `binary` behind it. Returns the bytes of
 * the JSON. */
size_t kserve_write_json(const Inference__ModelInferResponse *m, uint32_t binary, strbuf *out);
/* Writes any other message, with every field that it has. */
void kserve_write_message(const ProtobufCMessage *m, strbuf *out);

#endif

/* What the conversions of the three services share (private to rpc/services): fields of messages
 * into a request. Each takes the field's name and names it when it refuses. */
#ifndef RPC_SERVICES_FIELDS_H
#define RPC_SERVICES_FIELDS_H

#include "proto/proto.h"
#include "rpc/service.h"

#include <string.h>

static inline bool field_is(ProtobufCBinaryData text, const char *what)
{
    return text.len == strlen(what) && memcmp(text.data, what, text.len) == 0;
}
/* The bytes of a text that is a C string. */
static inline ProtobufCBinaryData field_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* A copy of valid UTF-8, with a NUL behind it (NULs inside are kept). */
status field_text(const char *name, ProtobufCBinaryData text, char **out, error *err);
/* A short text that becomes a C string of ours: UTF-8 without NUL, at most size - 1 bytes. */
status field_word(const char *name, ProtobufCBinaryData text, char *out, size_t size, error *err);
status field_prompt(const char *name, ProtobufCBinaryData text, engine_request *r, error *err);
status field_ids(const char *name, const uint32_t *ids, size_t n, uint32_t **out, uint32_t *n_out,
                 error *err);
status field_stops(const char *name, const ProtobufCBinaryData *stops, size_t n, engine_request *r,
                   error *err);
/* Finite. */
status field_float(const char *name, float value, float *out, error *err);
/* Up to 2^31 - 1. */
status field_count(const char *name, uint32_t value, uint32_t *out, error *err);
/* An explicit 0 only scores the prompt. */
status field_max_tokens(const char *name, uint32_t value, engine_request *r, error *err);
/* 0 .. SAMPLE_LOGPROBS_MAX. */
status field_logprobs(const char *name, int32_t value, int32_t *out, error *err);
/* Room for n biases, then each of them, then a look whether one came twice. */
status field_bias_begin(size_t n, engine_request *r, error *err);
status field_bias_add(const char *name, int64_t id, float value, engine_request *r, error *err);
status field_bias_end(const char *name, const engine_request *r, error *err);
/* JSON is read on the thread that serves every stream, and each of its bytes may be a value. */
enum { FIELD_JSON_BYTES_MAX = 256 << 10 };
/* JSON text of this type ("an object"); "" leaves *out alone. */
status field_json(const char *name, ProtobufCBinaryData text, json_type type, json_t **out,
                  error *err);
status field_model(const service *s, const char *name, ProtobufCBinaryData text, error *err);
/* "" is none. */
status field_session(const char *name, ProtobufCBinaryData text, engine_request *r, error *err);

#endif

/* Conversions of message fields into an engine request, shared by the three services (private to
 * rpc/services). Each takes the field's name, which its errors begin with. */
#ifndef RPC_SERVICES_FIELDS_H
#define RPC_SERVICES_FIELDS_H

#include "proto/proto.h"
#include "rpc/service.h"

#include <string.h>

static inline bool field_is(ProtobufCBinaryData text, const char *what)
{
    return text.len == strlen(what) && memcmp(text.data, what, text.len) == 0;
}
/* Wraps a C string as a field of a message, without a copy. */
static inline ProtobufCBinaryData field_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* Copies valid UTF-8 and adds a NUL (NULs inside are kept). */
status field_text(const char *name, ProtobufCBinaryData text, char **out, error *err);
/* Copies a short text into out [size]: UTF-8 without NUL, at most size - 1 bytes. */
status field_word(const char *name, ProtobufCBinaryData text, char *out, size_t size, error *err);
status field_prompt(const char *name, ProtobufCBinaryData text, engine_request *r, error *err);
status field_ids(const char *name, const uint32_t *ids, size_t n, uint32_t **out, uint32_t *n_out,
                 error *err);
status field_stops(const char *name, const ProtobufCBinaryData *stops, size_t n, engine_request *r,
                   error *err);
status field_bad_words(const char *name, const ProtobufCBinaryData *words, size_t n,
                       engine_request *r, error *err);
/* Reads the fields of message m that have the name of a row in engine/request_fields.inc. Errors
 * name them behind `prefix`, such as "sampling.". A field without presence is always given, unless
 * zero is out of the row's range: then zero means the default. */
status field_rows(const char *prefix, const ProtobufCMessage *m, engine_request *r, error *err);
/* Read n biases: begin makes room for them, add takes each, end refuses a token that came twice. */
status field_bias_begin(size_t n, engine_request *r, error *err);
status field_bias_add(const char *name, int64_t id, float value, engine_request *r, error *err);
status field_bias_end(const char *name, const engine_request *r, error *err);
/* The largest JSON text: it is parsed on a thread that serves many streams, and each byte may be a
 * value. */
enum { FIELD_JSON_BYTES_MAX = 256 << 10 };
/* Parses JSON text that must have this type; "" leaves *out as it is. */
status field_json(const char *name, ProtobufCBinaryData text, json_type type, json_t **out,
                  error *err);
/* Reads a retention policy: METHOD:RATIO, "full" or an object in JSON; "" leaves *out as it is. */
status field_retention(const char *name, ProtobufCBinaryData text, json_t **out, error *err);
/* Reads a retrieval method: METHOD, METHOD:TOKENS or an object in JSON; "" likewise. */
status field_retrieval(const char *name, ProtobufCBinaryData text, json_t **out, error *err);
status field_model(const service *s, const char *name, ProtobufCBinaryData text, error *err);
/* Takes the name of a session; "" means no session. */
status field_session(const char *name, ProtobufCBinaryData text, engine_request *r, error *err);

#endif

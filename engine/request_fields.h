/* request_fields: the scalar fields of a request as a table, for whatever reads requests.
 *
 * What     request_fields.inc has a row for each field: name, kind, default, range, flag, help. A
 *          reader walks engine_fields(), converts a value of its own form, and stores it by
 *          engine_field_set_*. Lists, texts and objects have readers of their own.
 * Owner    the table is constant.
 * Threads  any.
 * Errors   readers refuse values of the wrong type; engine_submit refuses those out of range. */
#ifndef ENGINE_REQUEST_FIELDS_H
#define ENGINE_REQUEST_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_request;

typedef enum engine_field_kind {
    ENGINE_FIELD_FLOAT,
    ENGINE_FIELD_BOOL,
    ENGINE_FIELD_INT,      // 32 bits
    ENGINE_FIELD_UINT,     // 0 .. 2^31 - 1
    ENGINE_FIELD_LENGTH,   // UINT; an explicit 0 means that the request only scores its prompt
    ENGINE_FIELD_TOP,      // the n likeliest tokens, 0 .. 20; -1 = not asked for
    ENGINE_FIELD_LOGPROBS, // TOP; JSON may also have true, which means 0
    ENGINE_FIELD_SEED,     // 64 bits; has_seed says whether it was given
} engine_field_kind;

/* The member of engine_request for each kind. */
#define ENGINE_TYPE_FLOAT    float
#define ENGINE_TYPE_BOOL     bool
#define ENGINE_TYPE_INT      int32_t
#define ENGINE_TYPE_UINT     uint32_t
#define ENGINE_TYPE_LENGTH   uint32_t
#define ENGINE_TYPE_TOP      int32_t
#define ENGINE_TYPE_LOGPROBS int32_t
#define ENGINE_TYPE_SEED     uint64_t

typedef struct engine_field {
    const char *name;
    engine_field_kind kind;
    size_t offset; // of the member in engine_request
    struct {
        double min, max; // INFINITY = the kind's own limit
        bool above;      // min itself is out of range
    } range;
    struct {
        const char *name; // of the flag of `octavo run`, without "--"; NULL = none
        const char *value;
        const char *also; // aliases as they are typed, between spaces; NULL = none
    } flag;
    const char *help;
} engine_field;

/* The number of rows. */
enum {
    ENGINE_FIELDS = 0
#define FIELD(...) +1
#include "engine/request_fields.inc"
};

/* The rows [ENGINE_FIELDS]. */
const engine_field *engine_fields(void);
/* The row of a name, or NULL. */
const engine_field *engine_field_find(const char *name);
/* False for NaN. */
bool engine_field_in_range(const engine_field *f, double value);
/* Store a value in r. The value is of the field's kind, but may be out of the row's range. */
void engine_field_set_float(const engine_field *f, float value, struct engine_request *r);
void engine_field_set_whole(const engine_field *f, int64_t value, struct engine_request *r);

#endif

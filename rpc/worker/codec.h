/* Plans, results and configurations as messages, and back (private to rpc/worker).
 *
 * Packing trusts what it is given; unpacking trusts nothing: sizes, ranges and sums are checked,
 * and the error names the field. What is checked against pages and tables is left to the backend,
 * which has them. */
#ifndef RPC_WORKER_CODEC_H
#define RPC_WORKER_CODEC_H

#include "proto/proto.h"
#include "rpc/worker.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats travel as they lie in memory");

typedef Octavo__Worker__V1__Geometry geometry_message;
typedef Octavo__Worker__V1__ConfigureRequest configure_message;
typedef Octavo__Worker__V1__JoinRequest join_message;
typedef Octavo__Worker__V1__LoadReply load_message;
typedef Octavo__Worker__V1__Open open_message;
typedef Octavo__Worker__V1__StepPlan plan_message;
typedef Octavo__Worker__V1__StepResult result_message;
typedef Octavo__Worker__V1__Part part_message;

/* A plan or a result of more bytes is sent in parts of so many. */
static const size_t part_bytes_usual = (size_t)64 << 20;
/* The most that one gRPC message may have: a part, and the fields around its data. */
static const size_t message_bytes_max = ((size_t)64 << 20) + 4096;
/* The most that the parts of a plan, or of a result, make up. A plan is that large when hundreds of
 * sequences of 128K tokens are opened at once, after a backend has been made anew. What a result
 * can be is what protobuf can: measures of many long sequences, slot by slot. */
static const size_t plan_bytes_max = (size_t)1 << 30;
static const size_t result_bytes_max = INT32_MAX;

enum { MEMORY_BLOCK = 4096 }; // of arenas that hold messages

/* ---- parts ----------------------------------------------------------------------------------- */

/* The part of a packed message of n bytes that begins at `offset`; it points into `whole`. */
part_message part_of(const uint8_t *whole, size_t n, size_t offset, size_t part_bytes);

typedef struct part_sizes {
    size_t part;  // bytes of all parts but the last
    size_t whole; // the most that they make up
} part_sizes;

/* A message of which parts have come. All zero: none. */
typedef struct assembly {
    uint8_t *bytes;
    size_t size, have; // complete when they are equal
} assembly;

/* Parts come in order, each once. The error names the field that is wrong: STATUS_INVALID, or
 * STATUS_LIMIT when the whole would be too large. Memory is taken as parts come. */
status assembly_add(assembly *a, const part_message *p, const part_sizes *sizes, error *err);
void assembly_clear(assembly *a);

/* ---- columns --------------------------------------------------------------------------------- */

typedef enum column_type { COLUMN_U32, COLUMN_BOOL, COLUMN_ZIGZAG } column_type;

/* One field of many structs, as a packed list of a message. */
typedef struct column {
    const char *name;
    column_type type;
    size_t at;            // in the struct
    size_t n, values;     // in the message: the list's count and pointer
    uint32_t usual;       // a list that has nothing else is left out
    uint32_t most;        // that the field can be
    bool is_always_there; // it says how many structs there are
} column;

typedef struct column_table {
    const column *columns;
    size_t n;
    size_t struct_bytes;
} column_table;

extern const column_table plan_seq_columns;  // step_seq in plan_message
extern const column_table plan_move_columns; // pkv_move in plan_message

/* The message's lists lie in `a`. STATUS_NO_MEMORY. */
status columns_pack(const column_table *t, const void *structs, size_t n, void *message, arena *a);
/* structs [n] are zeroed before. STATUS_INVALID: a list of another length, or a value too large. */
status columns_unpack(const column_table *t, const void *message, void *structs, size_t n,
                      error *err);

/* ---- plans ----------------------------------------------------------------------------------- */

/* The message points into `a` and into the plan. STATUS_UNSUPPORTED: a plan ahead of its tokens,
 * which no worker is given: ranks take one step at a time, and messages have no token_from. */
status plan_pack(const step_plan *plan, uint64_t session, arena *a, plan_message *out);
/* The plan lies in `a` and in the message. info: of the backend that is to make it. */
status plan_unpack(const plan_message *m, const backend_info *info, arena *a, step_plan *out,
                   error *err);

/* ---- results --------------------------------------------------------------------------------- */

/* The message of a failed step has nothing but the reason. Floats that lay apart are copied into
 * `a`. with_rows: the message has logits and scores too, as that of rank 0 does. */
status result_pack(const step_plan *plan, const step_result *result, const backend_info *info,
                   bool with_rows, arena *a, result_message *out);

/* Whose result it is. */
typedef struct result_source {
    const step_plan *plan;
    const backend_info *info; // of the rank
    uint32_t rank, size;
} result_source;

enum { RESULT_TEXT_BYTES = 256 };

/* What a message says: values lie in the message, structs in `a`. */
typedef struct result_store {
    step_result result; // its status.message is `text`
    char text[RESULT_TEXT_BYTES];
} result_store;

status result_unpack(const result_message *m, const result_source *source, arena *a,
                     result_store *out, error *err);

/* ---- what ranks are made of ------------------------------------------------------------------ */

/* The message points into `a` and into the config. */
status config_pack(const worker_config *config, uint64_t session, const char *version, arena *a,
                   configure_message *out);
/* STATUS_UNSUPPORTED: another version. The config lies in `a`. */
status config_unpack(const configure_message *m, const char *version, arena *a, worker_config *out,
                     error *err);
status join_unpack(const join_message *m, uint32_t size, arena *a, worker_address **out,
                   error *err);

enum { BACKEND_NAME_BYTES = 64 };

/* What a rank says of itself when it has been loaded. */
typedef struct rank_facts {
    backend_info info; // its name is `name`
    char name[BACKEND_NAME_BYTES];
    worker_facts facts;
} rank_facts;

status load_pack(const backend_info *info, const worker_facts *facts, arena *a, load_message *out);
/* config: what was asked for. */
status load_unpack(const load_message *m, const worker_config *config, rank_facts *out, error *err);

/* Text of a peer into out, cut to its size, without what would end or break a line. */
void text_copy(const void *bytes, size_t n, char *out, size_t size);

/* The KV heads of one rank. */
static inline uint32_t rank_kv_heads(const pkv_geometry *g, uint32_t size)
{
    return g->n_kv_heads > size ? g->n_kv_heads / size : 1;
}

/* How many of the likeliest tokens each score of the share lists. */
static inline uint32_t score_tops(const step_seq *s, const backend_info *info)
{
    uint32_t n = s->want_scores ? s->want_scores - 1 : 0;
    return n < info->vocab_size ? n : info->vocab_size;
}

/* Arrays of values that come back of a measure. */
static inline uint32_t measured_arrays(const measure_spec *s)
{
    return s->kind == MEASURE_NONE || s->silent ? 0 : s->second == MEASURE_NONE ? 1 : 2;
}

#endif

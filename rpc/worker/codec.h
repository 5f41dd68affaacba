/* Packs plans, results and configurations into messages, and unpacks them (private to rpc/worker).
 *
 * Packing trusts its input. Unpacking checks sizes, ranges and sums, and the error names the field.
 * Checks against pages and tables are left to the backend, which has them. */
#ifndef RPC_WORKER_CODEC_H
#define RPC_WORKER_CODEC_H

#include "proto/proto.h"
#include "rpc/worker.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats travel as they lie in memory");

typedef Octavo__Worker__V1__Geometry geometry_message;
typedef Octavo__Worker__V1__ConfigureRequest configure_message;
typedef Octavo__Worker__V1__JoinRequest join_message;
typedef Octavo__Worker__V1__LoadReply load_message;
typedef Octavo__Worker__V1__CellsRequest cells_message;
typedef Octavo__Worker__V1__Open open_message;
typedef Octavo__Worker__V1__StepPlan plan_message;
typedef Octavo__Worker__V1__StepResult result_message;
typedef Octavo__Worker__V1__Part part_message;

/* A larger plan or result is sent in parts of this size. */
static const size_t part_bytes_usual = (size_t)64 << 20;
/* The largest gRPC message: a part, and the fields around its data. */
static const size_t message_bytes_max = ((size_t)64 << 20) + 4096;
/* The largest plan and the largest result. A plan is large when hundreds of sequences of 128K
 * tokens are opened at once, after the backend was restarted. A result is large when it measures
 * many long sequences by slot; its limit is protobuf's. */
static const size_t plan_bytes_max = (size_t)1 << 30;
static const size_t result_bytes_max = INT32_MAX;

/* The largest cell of a rank that Cells copies. */
static const size_t cell_bytes_max = (size_t)32 << 20;

enum { MEMORY_BLOCK = 4096 }; // block size of arenas that hold messages

enum { STEPS_MOST = 2 }; // in flight

/* How many steps a rank has in flight at most. */
static inline uint32_t steps_of(const backend_info *info)
{
    return info->max_in_flight < STEPS_MOST ? 1 : STEPS_MOST;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The part of a packed message of n bytes that begins at `offset`; it points into `whole`. */
part_message part_of(const uint8_t *whole, size_t n, size_t offset, size_t part_bytes);

typedef struct part_sizes {
    size_t part;  // bytes of each part but the last
    size_t whole; // most bytes of the whole message
} part_sizes;

/* A message that comes in parts. All zero: no part has come. */
typedef struct assembly {
    uint8_t *bytes;
    size_t size, have; // complete when they are equal
} assembly;

/* Adds the next part; parts come in order, each once. STATUS_INVALID: a field is wrong, and the
 * error names it. STATUS_LIMIT: the whole would be too large. Memory is touched as parts come. */
status assembly_add(assembly *a, const part_message *p, const part_sizes *sizes, error *err);
void assembly_clear(assembly *a);

/* ---- columns --------------------------------------------------------------------------------- */

typedef enum column_type { COLUMN_U32, COLUMN_BOOL, COLUMN_ZIGZAG } column_type;

/* A field of many structs, which travels as one packed list of a message. */
typedef struct column {
    const char *name;
    column_type type;
    size_t at;            // offset in the struct
    size_t n, values;     // offsets in the message of the list's count and pointer
    uint32_t usual;       // a list in which all values are this one is left out
    uint32_t most;        // largest value of the field
    bool is_always_there; // never left out: its count is the number of structs
} column;

typedef struct column_table {
    const column *columns;
    size_t n;
    size_t struct_bytes;
} column_table;

extern const column_table plan_seq_columns;       // step_seq in plan_message
extern const column_table plan_move_columns;      // pkv_move in plan_message
extern const column_table result_reading_columns; // retrieval_reading in result_message

/* Fills the message's lists, which lie in `a`. STATUS_NO_MEMORY: memory is out. */
status columns_pack(const column_table *t, const void *structs, size_t n, void *message, arena *a);
/* Fills structs [n], which the caller has zeroed. STATUS_INVALID: a list has another length than n,
 * or a value is too large. */
status columns_unpack(const column_table *t, const void *message, void *structs, size_t n,
                      error *err);

/* ---- plans ----------------------------------------------------------------------------------- */

/* Packs a plan; the message points into `a` and into the plan. */
status plan_pack(const step_plan *plan, uint64_t session, arena *a, plan_message *out);
/* Unpacks a plan, which lies in `a` and in the message. info: of the backend that runs the plan. */
status plan_unpack(const plan_message *m, const backend_info *info, arena *a, step_plan *out,
                   error *err);
/* Checks that the plan may be submitted behind `before`, that of the step in flight (NULL: there is
 * none), by the order of backend.h: what its shares and opens must wait for, and that each token
 * which a share takes is a draw of that step. Memory that it needs comes from `a`. */
status plan_check_ahead(const step_plan *plan, const step_plan *before, const backend_info *info,
                        arena *a, error *err);

/* ---- results --------------------------------------------------------------------------------- */

/* The rank that packs a result, of `size` ranks. */
typedef struct result_rank {
    uint32_t rank, size;
} result_rank;

/* Packs a result. For a failed step the message has the status, checksum and times only. Floats
 * that are not contiguous are copied into `a`. Rank 0 sends logits and scores, too. */
status result_pack(const step_plan *plan, const step_result *result, const backend_info *info,
                   result_rank who, arena *a, result_message *out);

/* The plan and the rank that a result belongs to. */
typedef struct result_source {
    const step_plan *plan;
    const backend_info *info; // of the rank
    uint32_t rank, size;
} result_source;

enum { RESULT_TEXT_BYTES = 256 };

/* An unpacked result: values lie in the message, structs in the arena of result_unpack. */
typedef struct result_store {
    step_result result; // its status.message is `text`
    char text[RESULT_TEXT_BYTES];
} result_store;

status result_unpack(const result_message *m, const result_source *source, arena *a,
                     result_store *out, error *err);

/* The part of a result that says what rows read by retrieval: with an item for each row. */
status readings_pack(const step_plan *plan, const step_result *result, arena *a,
                     result_message *out);
status readings_unpack(const result_message *m, const result_source *source, arena *a,
                       step_seq_result *seqs, error *err);

/* ---- configurations and facts of ranks ------------------------------------------------------- */

/* Packs a config; the message points into `a` and into the config. */
status config_pack(const worker_config *config, uint64_t session, const char *version, arena *a,
                   configure_message *out);
/* Unpacks a config, which lies in `a`. STATUS_UNSUPPORTED: the coordinator has another version. */
status config_unpack(const configure_message *m, const char *version, arena *a, worker_config *out,
                     error *err);
status join_unpack(const join_message *m, uint32_t size, arena *a, worker_address **out,
                   error *err);

enum { BACKEND_NAME_BYTES = 64 };

/* Facts that a worker sends when its rank has been loaded. */
typedef struct rank_facts {
    backend_info info; // its name is `name`
    char name[BACKEND_NAME_BYTES];
    worker_facts facts;
} rank_facts;

status load_pack(const backend_info *info, const worker_facts *facts, arena *a, load_message *out);
/* Unpacks the facts of a rank and checks them against the config it was asked to load. */
status load_unpack(const load_message *m, const worker_config *config, rank_facts *out, error *err);

/* Checks a request for cells of the rank, and that no message above message_bytes_max answers it.
 * slice: what the rank has. */
status cells_check(const cells_message *m, const backend_info *info, const backend_slice *slice,
                   error *err);

/* Copies a peer's text into out [size]: cut to the size, control characters replaced by '?'. */
void text_copy(const void *bytes, size_t n, char *out, size_t size);

/* How many KV heads one rank has. */
static inline uint32_t rank_kv_heads(const pkv_geometry *g, uint32_t size)
{
    return g->n_kv_heads > size ? g->n_kv_heads / size : 1;
}

/* How many of the likeliest tokens each score of the sequence lists. */
static inline uint32_t score_tops(const step_seq *s, const backend_info *info)
{
    uint32_t n = s->want_scores ? s->want_scores - 1 : 0;
    return n < info->vocab_size ? n : info->vocab_size;
}

/* How many arrays of values the result of a measure has. */
static inline uint32_t measured_arrays(const measure_spec *s)
{
    uint32_t own = s->silent ? 0 : s->second == MEASURE_NONE ? 1 : 2;
    return s->kind == MEASURE_NONE ? 0 : own + s->beside;
}

#endif

/* handover: the record of a computed prompt that goes from one server to another (private to
 * engine/), and what a stream has of one.
 *
 * The record: a head, the prompt's tokens, the tables of what is kept, and K and V of its pages.
 * Everything that the taker would compute otherwise is in the head as a digest, so that a record is
 * taken only by a request that asks for the same. Numbers are as in the memory of the machine,
 * little-endian. */
#ifndef ENGINE_HANDOVER_H
#define ENGINE_HANDOVER_H

#include "engine/engine.h"

#include <stdatomic.h>

struct engine_stream;

/* A copy of K and V, made by the thread of hand.c. */
typedef struct hand_job {
    struct hand_job *next;
    struct engine_stream *stream; /* referenced */
    const sched_export *exported; /* a prompt that is handed over, or NULL */
    const sched_load *load;       /* one that is taken over, or NULL */
    bool waits;                   /* `after` is set */
    uint64_t after;               /* plans that must have been collected when it begins */
    bool good;
} hand_job;

/* The state of a request that hands its prompt over. It is `making` from the scheduler's promise of
 * an export until the record is made, or cannot be made. Once the thread of hand.c has the export,
 * the state belongs to that thread. */
typedef struct handover {
    transfer_key key;
    uint64_t owner; /* whose room the record takes */
    step_sample first;
    bool has_first, making;
    const char *why_not; /* the request's method, or what else keeps it from being handed over */
    uint64_t bytes;
    hand_job job;
} handover;

/* The state of a request that takes its prompt over. */
typedef struct takeover {
    transfer_fetch fetch;
    atomic_bool fetches; /* the fetch was begun, so that it can be taken back */
    uint8_t
        *bytes; /* the record, with its room in the transfer; NULL before the fetch and after use */
    size_t n;
    sched_handed handed;
    pkv_image_table *tables;
    const uint8_t *cells; /* K and V, in bytes */
    step_sample first;
    hand_job job;
} takeover;

/* The facts of a request and its model that a record must agree with. */
typedef struct handover_terms {
    const pkv_geometry *geometry;
    size_t cell_bytes;
    uint32_t vocab_size;
    uint64_t identity;         /* backend_info.kv_identity */
    uint64_t policy, sampling; /* digests */
    bool greedy;
    const uint32_t *banned; /* [n_banned] that min_tokens keeps from being the first token */
    uint32_t n_banned;
    bool bans_shown; /* the draw has a mask, without the banned tokens, and its logprobs are told */
    const uint32_t *tokens; /* [n_tokens] of the prompt, without what its method cuts */
    uint32_t n_tokens;
} handover_terms;

/* The most bytes of a record of these terms, and the bytes of one. */
size_t handover_most(const handover_terms *terms);
size_t handover_size(const handover_terms *terms, const sched_export *x);
/* Writes all of a record but K and V; returns where those belong, cell after cell. */
uint8_t *handover_write(const handover_terms *terms, const sched_export *x,
                        const step_sample *first, uint8_t *to);
/* Reads a record of n bytes, which may be anything, into t->handed, tables, cells and first; the
 * bytes stay in place. NULL, or why it cannot be taken. */
const char *handover_read(const handover_terms *terms, const uint8_t *bytes, size_t n, takeover *t);

#endif

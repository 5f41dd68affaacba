/* The sums of `octavo plan` (private to cli/): arithmetic alone, over the functions by which
 * backends and scheduler share out memory. */
#ifndef CLI_PLAN_SIZES_H
#define CLI_PLAN_SIZES_H

#include "cli/model_open.h"
#include "scheduler/scheduler.h"

/* Assumptions about a GPU that is not there: the memory that the driver, the library and NCCL take
 * before Octavo does (a running server asks the device instead), and an H100's multiprocessors,
 * which decide the size of a buffer, and shared memory. */
#define PLAN_GPU_DRIVER_BYTES (UINT64_C(640) << 20)
enum { PLAN_GPU_SMS = 132, PLAN_GPU_SHARED_BYTES = 227 << 10 };

typedef struct plan_question {
    const loaded_model *model; // described, not opened: only config, options and ranks
    uint32_t n_devices;        // 1 device with all ranks, or one for each rank
    uint64_t memory;           // of one device, before the driver takes its part
    uint32_t context;          // tokens of a sequence, prompt and output
    uint32_t output;           // of these, how many are output
    uint32_t chunk;            // tokens of a prompt in one step
    uint32_t sequences;        // at once
} plan_question;

/* The number of sequences that the pool holds under one policy. */
typedef struct plan_room {
    sched_need need;
    uint64_t fit;        // at once, when one is in its prompt and all others are past theirs
    uint64_t in_prefill; // at once, if all were at their peak
} plan_room;

typedef struct plan_answer {
    backend_measures measures;
    uint64_t rank_memory;          // of a rank; for a GPU without the driver's part
    uint64_t rank_pool, rank_sums; // pages; page sums beside a GPU's pages
    uint64_t rank_representatives; // most that retrieval writes beside the pages
    /* With --kv-host: bytes of the pool in host memory; bytes of rank_pool that hold two layers of
     * them while these compute; the tokens of a chunk; bytes that the prompt's last chunk copies up
     * to the device and down from it, and that all its chunks copy up. */
    uint64_t host_pool, windows;
    uint32_t chunk;
    double chunk_up, chunk_down, prompt_up;
    uint64_t rank_left; // for other uses
    /* Embeddings of method reform, at the coordinator: bytes of a token, 0 where the model has no
     * heads or the backend computes none; what they may take, as serve shares memory; and the
     * sessions of the asked-for prompt that this holds. */
    uint64_t embed_token, embed_bytes, embed_sessions;
    uint64_t short_of;  // bytes that a rank lacks; 0 = it has enough
    double token_bytes; // of K and V, on all ranks
    uint64_t pages;     // usable by sequences
    uint64_t tokens;    // that the pages hold
    plan_room room;
} plan_answer;

/* Fills everything but `room`. */
status plan_measure(const plan_question *q, plan_answer *out, error *err);
/* Fills `room` for a policy with this geometry. The error names retention when its budget cannot be
 * met. */
status plan_fill(const plan_question *q, const retention_policy *policy, plan_answer *inout,
                 error *err);

/* Refuses a sequence for which the model has no positions. */
status plan_check_context(const plan_question *q, const retention_policy *policy,
                          const sched_need *need, error *err);

/* Writes one line: that what was asked for fits, or why it does not. */
bool plan_verdict(const plan_question *q, const plan_answer *a, char *out, size_t size);
/* Writes "1,234,567". */
const char *plan_number(uint64_t n, char out[32]);

#endif

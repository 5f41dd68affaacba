/* What `octavo plan` works out (private to cli/): arithmetic alone, over the functions by which
 * backends and scheduler share out memory. */
#ifndef CLI_PLAN_SIZES_H
#define CLI_PLAN_SIZES_H

#include "cli/model_flags.h"
#include "scheduler/scheduler.h"

/* What is taken for granted of a GPU that is not there: what the driver, the library and NCCL take
 * of its memory before anything of ours (a server is told how much is free), and an H100's
 * multiprocessors, by which a buffer is sized, and shared memory. */
#define PLAN_GPU_DRIVER_BYTES (UINT64_C(640) << 20)
enum { PLAN_GPU_SMS = 132, PLAN_GPU_SHARED_BYTES = 227 << 10 };

typedef struct plan_question {
    const loaded_model *model; // described, not opened: config, options and ranks
    uint32_t n_devices;        // 1, on which all ranks are, or one for each rank
    uint64_t memory;           // of a device, all of it
    uint32_t context;          // tokens of a sequence, prompt and output
    uint32_t output;           // of them
    uint32_t sequences;        // at once
} plan_question;

/* How many sequences the pool holds under one policy. */
typedef struct plan_room {
    sched_need need;
    uint64_t fit;        // at once: all behind their prompt but one, which is in it
    uint64_t in_prefill; // were all at their peak at once
} plan_room;

typedef struct plan_answer {
    backend_cpu_measures measures;
    uint64_t rank_memory;          // of a GPU: what the driver leaves
    uint64_t rank_pool, rank_sums; // beside a GPU's pages
    uint64_t rank_left;            // for everybody else
    uint64_t short_of;             // bytes that a rank lacks; 0 = it has enough
    double token_bytes;            // of K and V, on all ranks
    uint64_t pages;                // that sequences can have
    uint64_t tokens;               // they have room for
    plan_room room;
} plan_answer;

/* Everything but `room`. */
status plan_measure(const plan_question *q, plan_answer *out, error *err);
/* `room` of a policy for this geometry: the error names retention, when its budget cannot be met.
 */
status plan_fill(const plan_question *q, const retention_policy *policy, plan_answer *inout,
                 error *err);

/* One line: whether what was asked for fits, else why not. */
bool plan_verdict(const plan_question *q, const plan_answer *a, char *out, size_t size);
/* "1,234,567" */
const char *plan_number(uint64_t n, char out[32]);

#endif

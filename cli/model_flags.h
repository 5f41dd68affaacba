/* The flags that choose a model and how it runs: shared by run, serve, score, bench and plan.
 * model_open.h opens what they describe. */
#ifndef CLI_MODEL_FLAGS_H
#define CLI_MODEL_FLAGS_H

#include "cli/args.h"
#include "cli/workers/workers.h"
#include "model/model.h"

typedef struct model_flags {
    const char *dir;         // or a GGUF file's path
    const char *load_format; // "auto", "dummy"
    uint64_t dummy_seed;
    arg_list overrides;
    const char *dtype;    // "auto", "f32", "bf16"
    const char *kv_dtype; // "auto": that of dtype
    uint32_t kv_residual;
    const char *quantize; // "auto", "none", "int8", "mixed", "int4"
    uint32_t quantize_group;
    const char *weights_cache; // NULL, or a folder
    const char *device;        // "auto", "cpu", "cuda", "cuda:N"
    bool batch_invariant;      // a GPU's flag: a CPU always is
    uint32_t threads;          // 0 = all allowed cores
    uint32_t tp;               // tensor-parallel ranks
    const char *isa;           // NULL = best
    const char *precision;     // "standard", "high"; NULL = by dtype
    uint64_t kv_memory;        // 0 = the default share of memory
    const char *kv_disk;       // NULL, or a folder
    uint64_t kv_disk_size;
    uint64_t kv_host;
    uint64_t swap_memory;
    uint64_t embed_memory;
    uint32_t page_tokens; // 0 = the fewest that the type of KV pages allows
    uint32_t max_batch;
    uint32_t prefill_chunk;
    uint32_t max_model_len;        // 0 = the model's own
    uint32_t max_logical_len;      // 0 = 4,194,304 or max_model_len, the larger
    const char *scheduling_policy; // "fcfs", "priority"
    bool no_prefix_cache;
    bool quiet;            // --quiet, which is a flag of the command
    workers_flags workers; // have a group of flags of their own
} model_flags;

/* The table of these flags, for arg_command. */
arg_group model_flags_group(model_flags *target);
void model_flags_destroy(model_flags *flags);

/* Recognises "cuda" and "cuda:N"; *ordinal receives N, or 0. */
bool device_is_cuda(const char *device, uint32_t *ordinal);
/* Finds the GPU's format (gpu_kv_format) of pages by name; false: the GPU has none of that name. */
bool gpu_kv_named(const char *name, uint8_t *out);

#endif

/* The flags that choose a model and how it runs, and the model they open: what run, score and bench
 * share. */
#ifndef CLI_MODEL_FLAGS_H
#define CLI_MODEL_FLAGS_H

#include "cli/args.h"
#include "cli/workers.h"
#include "engine/engine.h"
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
    bool batch_invariant;      // of a GPU: a CPU always is
    uint32_t threads;          // 0 = all allowed cores
    uint32_t tp;               // tensor-parallel ranks
    const char *isa;           // NULL = best
    const char *precision;     // "standard", "high"; NULL = by dtype
    uint64_t kv_memory;        // 0 = default share
    uint64_t swap_memory;
    uint32_t page_tokens; // 0 = the fewest of its type of KV pages
    uint32_t kv_group_layers;
    uint32_t kv_group_heads; // 0 = all KV heads
    uint32_t max_batch;
    uint32_t prefill_chunk;
    uint32_t max_model_len;        // 0 = the model's
    const char *scheduling_policy; // "fcfs", "priority"
    bool no_prefix_cache;
    workers_flags workers; // a group of its own, beside these
} model_flags;

/* The table of these flags, for arg_command. */
arg_group model_flags_group(model_flags *target);
void model_flags_destroy(model_flags *flags);

typedef struct loaded_model {
    model_config config;
    comm *group; // the group of one
    uint32_t n_ranks;
    workers *workers;   // NULL: ranks are threads
    arg_list overrides; // borrowed from the flags
    backend backend;
    backend_cpu_facts facts; // of all ranks, or of the GPU
    tokenizer *tokenizer;    // NULL unless asked for
    chat_template *chat;     // NULL when the model has none
    strbuf bos, eos;         // texts for the template
    kern_kv_format kv_type;
    uint32_t max_model_len, max_batch, prefill_chunk;
    sched_policy policy;
    bool prefix_cache;
    bool default_pool; // nobody gave --kv-memory
    int64_t open_us;
    int64_t bar_us;              // when the bar of loading was last drawn; 0: there is none
    backend_cpu_options options; // what the backend was made with
    _Atomic bool given_up;
    const struct gpu_api *gpu; // NULL: the CPU, or other processes
    bool on_gpu;               // here or there
    bool gpu_has_kv;
    bool batch_invariant;
    uint32_t gpu_ordinal;
    uint8_t gpu_kv;      // gpu_kv_format
    const char *kv_name; // of pages
} loaded_model;

/* Opens everything, the tokenizer and template only when with_text is set. On failure nothing is
 * left open. *out must not move while it is open. */
status model_open(const model_flags *flags, bool with_text, loaded_model *out, error *err);
/* config and options alone, as model_open would fill them: nothing is opened. */
status model_describe(const model_flags *flags, loaded_model *out, error *err);
void model_close(loaded_model *m);
/* An engine_options.restart; ctx is the loaded_model: the backend is destroyed, and another made
 * with as many pages. */
status model_restart(void *m, backend *out, error *err);
/* What model_restart does, and would do from now on, fails soon. Any thread. */
void model_give_up(loaded_model *m);
/* One line on stderr: what was loaded, on what it runs, and how much KV it may hold. */
void model_tell(const loaded_model *m, const char *dir);
/* Options of an engine over this model. */
engine_options model_engine_options(loaded_model *m, uint32_t max_requests);
/* What a request samples with when it says nothing: generation_config.json's word, else greedy. */
engine_defaults model_defaults(const loaded_model *m);
/* "cuda" and "cuda:N". */
bool device_is_cuda(const char *device, uint32_t *ordinal);
/* The GPU's format (gpu_kv_format) of pages with this name; false: it has none. */
bool gpu_kv_named(const char *name, uint8_t *out);
/* "512 MiB" of a number of bytes. */
void format_bytes(char *out, size_t size, uint64_t bytes);

#endif

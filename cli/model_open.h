/* The model that a command's flags describe, open: its backend, tokenizer and template. */
#ifndef CLI_MODEL_OPEN_H
#define CLI_MODEL_OPEN_H

#include "cli/model_flags.h"
#include "engine/engine.h"
#include "model/embed_heads.h"

/* Gets what opening a model has to say, on the threads that load. Each may be NULL. */
typedef struct model_listener {
    void (*note)(void *ctx, const char *line);
    /* Bytes of weights. At the end done equals total, also when opening fails. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
} model_listener;

typedef struct loaded_model {
    model_config config;
    comm *group; // a group of one rank
    uint32_t n_ranks;
    workers *workers;   // NULL: the ranks are threads
    arg_list overrides; // borrowed from the flags
    backend backend;
    backend_facts facts;  // of all ranks, or of the GPU
    tokenizer *tokenizer; // NULL unless asked for
    chat_template *chat;  // NULL when the model has none
    strbuf bos, eos;      // texts for the template
    kern_kv_format kv_type;
    uint32_t max_model_len, max_logical_len, max_batch, prefill_chunk;
    sched_policy policy;
    bool prefix_cache;
    bool default_pool; // --kv-memory was not given
    int64_t open_us;
    bool quiet;              // model_log prints nothing
    int64_t bar_us;          // when the progress bar of loading was last drawn; 0 = it is not shown
    model_listener listener; // also told when a backend is made again
    backend_options options; // that the backend was made with
    _Atomic bool given_up;
    const struct gpu_api *gpu; // NULL: this process computes on no GPU
    bool on_gpu;               // the model runs on GPUs, here or at the workers
    bool gpu_has_kv;
    bool batch_invariant;
    uint32_t gpu_ordinal;
    uint8_t gpu_kv;      // gpu_kv_format
    const char *kv_name; // of the pages' format
    embed_choice embeds; // the heads of retention method reform, if any are known
    uint64_t embed_memory;
} loaded_model;

/* Opens everything; the tokenizer and template only when with_text is set. On failure nothing is
 * left open. *out must not move while it is open. */
status model_open_with(const model_flags *flags, bool with_text, const model_listener *listener,
                       loaded_model *out, error *err);
/* Opens as model_open_with does, for a terminal: notes go to stderr, and unless --quiet is given a
 * bar shows progress there. */
status model_open(const model_flags *flags, bool with_text, loaded_model *out, error *err);
/* Fills config and options as model_open would, but opens nothing. */
status model_describe(const model_flags *flags, loaded_model *out, error *err);
void model_close(loaded_model *m);
/* An engine_options.restart; ctx is the loaded_model. Destroys the backend and makes another with
 * as many pages. */
status model_restart(void *m, backend *out, error *err);
/* From now on model_restart fails soon, even a call that is under way. Any thread. */
void model_give_up(loaded_model *m);
/* Prints a line on stderr: what was loaded, what it runs on, and how much KV it may hold. */
void model_log(const loaded_model *m, const char *dir);
/* The options of an engine over this model. */
engine_options model_engine_options(loaded_model *m, uint32_t max_requests);
/* Sampling defaults of a request that names none: those of generation_config.json, else greedy. */
engine_defaults model_defaults(const loaded_model *m);
/* Writes a number of bytes as "512 MiB". */
void format_bytes(char *out, size_t size, uint64_t bytes);

#endif

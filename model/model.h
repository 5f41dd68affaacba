/* model: a Hugging Face model folder, and the CPU backend that runs it.
 *
 * What     config.json and generation_config.json as plain facts; safetensors by mmap, packed
 *          tensor by tensor; the forward pass over a ragged batch and the sampler, behind
 *          scheduler/backend.h.
 * Owner    a model_config is a plain value; a backend owns weights, pages and scratch.
 * Threads  loading and a backend belong to one thread, which lends them a pool of workers.
 * Units    bytes, tokens.
 * Errors   one line that names the file and the field or tensor. Unknown architectures,
 *          activations and RoPE types are refused by name before any memory is taken. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/base.h"
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "scheduler/backend.h"

/* ---- configuration --------------------------------------------------------------------------- */

typedef enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE
} rope_kind;

enum {
    MODEL_STOPS_MAX = 16,
    MODEL_NAME_MAX = 64,
    MODEL_LAYERS_MAX = 1024,
    MODEL_HEAD_DIM_MAX = 256, /* kernels/kernels.h, kern_kv_shape */
};

typedef struct rope_config {
    rope_kind kind;
    double theta;
    double factor;                   // all but default
    double low_freq_factor;          // llama3
    double high_freq_factor;         // llama3
    uint32_t original_max_positions; // llama3, yarn, longrope
    double beta_fast, beta_slow;     // yarn
    bool truncate;                   // yarn
    double attention_factor;         // cosines and sines times this: yarn, longrope; else 1
    /* dynamic, longrope: the longest sequence decides the frequencies, of short ones too, so that
     * K of one prefix serves them all. Whoever makes a backend sets it from max_model_len. */
    uint32_t max_positions, length;
    float short_factor[MODEL_HEAD_DIM_MAX / 2], long_factor[MODEL_HEAD_DIM_MAX / 2]; // longrope
} rope_config;

/* What a layer is beside the plain one. */
enum {
    LAYER_WINDOW = 1, /* a row sees the last `window` tokens */
    LAYER_SPARSE = 2, /* experts instead of one feed-forward */
    LAYER_LOCAL = 4,  /* rotates by local_rope; has a window, be it as long as any sequence */
};

typedef struct model_config {
    const struct model_family *family; // the row of the family table
    char architecture[MODEL_NAME_MAX]; // "LlamaForCausalLM"
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t ffn; // of dense layers; 0 = there are none
    uint32_t vocab_size;
    uint32_t max_positions;
    float rms_eps;
    bool tied_embeddings;
    bool qkv_bias;
    bool qk_norm;    // RMSNorm of each query and key head before its rotation
    uint32_t window; // of layers with LAYER_WINDOW; 0 = there are none
    /* Of layers with LAYER_SPARSE; n_experts 0 = there are none. */
    uint32_t n_experts, experts_per_token, expert_ffn;
    uint32_t shared_ffn;              // of the expert that every row has; 0 = there is none
    bool expert_norm;                 // the chosen experts' weights are divided by their sum
    uint8_t layers[MODEL_LAYERS_MAX]; // LAYER_ flags
    float query_factor; // scores are so many times q k / sqrt(head_dim); needs qk_norm
    rope_config rope;
    rope_config local_rope; // of layers with LAYER_LOCAL
    dtype stored;           // config's torch_dtype or dtype: what --dtype auto means
    uint8_t quant_bits;     // 8, 4: integers keep the stored weights best; 0 = `stored`
    /* How config.json says that the files' weights are quantised; NULL: not. */
    const struct quantized_scheme *quantized;
    uint32_t stop_ids[MODEL_STOPS_MAX]; // the eos ids of both files
    uint32_t n_stop_ids;
    int64_t bos_id; // -1 = none
    /* generation_config.json's sampling defaults; NaN or -1 where it says nothing. */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    bool do_sample;
} model_config;

/* The longest sequence that the model can be run with: max_positions, or further where its RoPE
 * stretches (dynamic). */
uint32_t model_max_length(const model_config *config);

/* Everywhere `dir` is the folder of a model, or the path of a GGUF file (FILE.gguf).
 *
 * Reads dir/config.json (and generation_config.json when there), or a file's metadata; here `dir`
 * may also be the path of a config.json alone (FILE.json). overrides: "key=value" with a JSON
 * value, replacing top-level keys of config.json before they are read. */
status model_config_load(const char *dir, const char *const *overrides, size_t n_overrides,
                         model_config *out, error *err);

/* tok_load and tmpl_load of a folder, or of a file. */
struct tokenizer;
struct chat_template;
status model_tokenizer_load(const char *dir, struct tokenizer **out, error *err);
status model_template_load(const char *dir, struct chat_template **out, strbuf *bos, strbuf *eos,
                           error *err);

/* What a folder holds, one "key: value" a line, unsupported things named: `octavo inspect`. Appends
 * to out; fails only when there is nothing to tell. */
status model_inspect(const char *dir, strbuf *out, error *err);

/* Whether so many tensor-parallel ranks can share the model: they divide its query heads and its
 * intermediate size, and its KV heads go evenly among them, or they evenly among its KV heads. The
 * error names the field. */
status model_ranks_check(const model_config *config, uint32_t n_ranks, error *err);

/* The architectures this build knows, for help and docs. */
size_t model_family_count(void);
const char *model_family_architecture(size_t i);

/* ---- the CPU backend ------------------------------------------------------------------------- */

enum { MODEL_RESIDUAL_MAX = 512 }; // tokens: a chunk of prefill, as it is by default

typedef struct backend_cpu_options {
    const char *dir;
    const model_config *config; // copied
    bool dummy;                 // seeded random weights instead of dir's (--load-format dummy)
    uint64_t dummy_seed;
    kern_kv_format kv_type; // of pages
    /* int4 and int2: a row reads so many tokens before its own page as bf16, a multiple of
     * page_tokens up to MODEL_RESIDUAL_MAX; 0: its own page alone. It goes with no prefix cache: a
     * page found there would be read as bf16 or not depending on who computed it and when. */
    uint32_t kv_residual;
    dtype weight_type;        // packed weights; 16-bit stored weights stay exact under DTYPE_F32
    uint8_t quant_bits;       // 8, 4: weights as integers; 0 = of weight_type
    uint8_t quant_attention;  // the same of q, k, v and o; 0 = as the other matrices
    uint8_t quant_group;      // 32, 64 or 128 columns that share a scale
    uint32_t n_threads;       // 0 = all allowed cores
    const char *isa;          // NULL = best
    kern_precision precision; // how exactly activations enter a product
    comm *group;              // borrowed: this rank's place among those that share the model
    uint32_t ranks_here;      // of them share this machine's memory; 0 = all
    pkv_geometry geometry;    // n_layers and n_kv_heads are taken from config
    uint64_t kv_bytes;        // of all ranks; 0 = 60 % of what the cgroup leaves after the weights
                              // on each of their machines, were they like rank 0's
    uint64_t swap_bytes;      // most of the host tier, of all ranks; 0 = none
    uint32_t max_rows;        // tokens in one plan
    uint32_t max_seqs;
    uint32_t max_model_len; // sizes the RoPE range and attention scratch
    const char *cache_dir;  // NULL, or the folder that keeps packed weights; not with dummy
    /* A line for the log about the cache, on the thread that makes a rank; NULL: nobody asks. */
    void (*tell)(void *ctx, const char *line);
    void *tell_ctx;
    /* weights_options.progress of rank 0, called on the thread that makes the rank. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
    /* Set by another thread: weights are read and packed no further (STATUS_ABORTED). NULL: never.
     */
    const _Atomic bool *given_up;
} backend_cpu_options;

status backend_cpu_create(const backend_cpu_options *options, backend *out, error *err);

/* Facts about a CPU backend for reports and benches. */
typedef struct backend_cpu_facts {
    const char *isa;
    uint32_t n_threads;
    uint64_t weight_bytes; // packed
    uint64_t page_bytes;
    uint64_t pool_bytes;
    uint64_t filling_bytes; // most of pages in bf16 beside the pool: int4 and int2
    uint64_t swap_bytes;    // of the host tier, committed as it fills
    int64_t load_us;        // reading and packing the weights
    bool from_cache;        // they were read as they had been packed
} backend_cpu_facts;

backend_cpu_facts backend_cpu_describe(const backend *b);

/* A probe (model/probe.h) over the weights of b, which `made_with` made and which must outlive it:
 * threads, ISA and precision are the same. max_tokens: of one run. STATUS_UNSUPPORTED for any other
 * backend than a CPU's that runs the whole model alone. */
struct model_probe;
status model_probe_create(const backend *b, const backend_cpu_options *made_with,
                          uint32_t max_tokens, struct model_probe **out, error *err);

/* What the pool takes of the memory that the weights leave, where nobody says kv_bytes: others live
 * on the machine too. */
#define MODEL_POOL_SHARE 0.6

/* What backends of these options would be, on n_ranks that share `memory` bytes: the files' headers
 * are read, or with `dummy` the configuration alone, and nothing is made. By the same arithmetic as
 * when they are made. group, isa and threads are not looked at. */
typedef struct backend_cpu_measures {
    pkv_geometry geometry;
    uint64_t parameters; // of the whole model
    /* Of one rank: all have equal slices. */
    uint64_t weight_bytes;  // packed
    uint64_t page_bytes;    // its slice of a page
    uint64_t sums_of_page;  // beside it, once a method with running sums is asked for
    uint64_t filling_bytes; // as in backend_cpu_facts
    uint64_t step_bytes;    // of a GPU: buffers of the longest step
    bool fits;              // the weights of all ranks
    uint32_t n_pages;       // page 0 included; 0: the pool would not hold one block
    uint32_t n_host_pages;
} backend_cpu_measures;

status backend_cpu_measure(const backend_cpu_options *options, uint32_t n_ranks, uint64_t memory,
                           double pool_share, backend_cpu_measures *out, error *err);

/* What n_ranks such backends take of the memory that they share, once all of it is in use: arrays
 * that grow with steps, and pages that swapped sequences go to, come on top. left: bytes that are
 * free before the weights are loaded. */
typedef struct backend_cpu_needs {
    uint64_t weights, pool;
    uint64_t buffers; // activations and logits of a step
} backend_cpu_needs;

status backend_cpu_need(const backend_cpu_options *options, uint32_t n_ranks, uint64_t left,
                        backend_cpu_needs *out, error *err);

/* What ranks in other processes compare before anything is loaded: of the configuration; and of the
 * weights' names, shapes and types, from the headers of dir's files (0 with `dummy`). */
status model_fingerprints(const backend_cpu_options *options, uint64_t *config, uint64_t *weights,
                          error *err);

/* ---- the CUDA backend ------------------------------------------------------------------------ */

struct gpu_api;
struct gpu;
struct gpu_facts;

/* Opens the plugin, liboctavo_cuda.so beside the executable or where dlopen finds it, if a driver
 * answers and shows a device; it stays open. The error says which of these is missing. */
status backend_cuda_find(const struct gpu_api **out, error *err);
/* How many devices a driver shows; 0 where none answers. */
uint32_t backend_cuda_devices(void);

typedef struct backend_cuda_options {
    backend_cpu_options common; // kv_type is not looked at; threads pack weights and draw tokens
    const struct gpu_api *api;  // of backend_cuda_find, or a test's
    uint32_t ordinal;           // which device
    uint8_t kv;                 // gpu_kv_format of pages
    bool batch_invariant;       // a sequence gets the same bits whatever is computed beside it
    /* NULL; or the device, which a comm needs before (comm_options.stream): opened by api, and
     * closed after both. */
    struct gpu *gpu;
    const struct gpu_facts *gpu_facts; // of gpu, for this call
} backend_cuda_options;

/* What the pool takes of a GPU's memory that weights and step buffers leave, where nobody says
 * kv_bytes: nobody else lives there, but arrays that grow with steps, and graphs. */
#define MODEL_GPU_POOL_SHARE 0.85

/* What backend_cuda_create, or n_ranks of them, would make: by its own code, on a device that only
 * counts, of gpu_facts->n_sms multiprocessors. api, ordinal and gpu are not looked at. Each rank
 * has gpu_facts->free_bytes: its GPU's, or its part of one that ranks share. The host has memory
 * enough to swap to. sums_of_page lie beside every page, whether or not anybody asks for sums. */
status backend_cuda_measure(const backend_cuda_options *options, uint32_t n_ranks,
                            backend_cpu_measures *out, error *err);

/* Refuses by name what has no kernels. */
status backend_cuda_create(const backend_cuda_options *options, backend *out, error *err);
/* isa is the device's name, valid until the backend is destroyed; pool_bytes are the device's. */
backend_cpu_facts backend_cuda_describe(const backend *b);

/* ---- tensor-parallel ranks ------------------------------------------------------------------- */

/* A backend that is a group of ranks in threads of this process. Each rank is a backend of its own,
 * with its slice of the weights and of every page, which is made, run and destroyed on its rank's
 * thread; a plan goes to all of them. Tokens and logits are rank 0's; measures are put together by
 * KV head. Ranks that differ in their tables or samples, and one that fails, are STATUS_INTERNAL
 * with a message that names the rank: the backend can then only be destroyed.
 *
 * make makes one rank's backend: comm_rank(group) says which. When a rank cannot be made, and when
 * its step fails or is interrupted, the group of comms is aborted, so that nobody waits for it. */
typedef struct backend_ranks_options {
    uint32_t n_ranks;
    /* The ranks compute elsewhere: submit only sends, collect only waits, and a rank that fails
     * ends the wait for the others. Each is made on a thread, all at once; then the caller's drives
     * them. A rank's messages name it; one that is lost is STATUS_UNAVAILABLE, and so is then the
     * step. */
    bool driven;
    status (*make)(void *ctx, comm *group, backend *out, error *err);
    void *ctx; // outlives the call only
} backend_ranks_options;

status backend_ranks_create(const backend_ranks_options *options, backend *out, error *err);

/* n_ranks CPU backends that divide the threads between them, at least one each. options->group is
 * not looked at. */
status backend_cpu_ranks_create(const backend_cpu_options *options, uint32_t n_ranks, backend *out,
                                error *err);
/* Sums over the ranks. */
backend_cpu_facts backend_cpu_ranks_describe(const backend *b);

/* The same over one GPU, which all of them share. */
status backend_cuda_ranks_create(const backend_cuda_options *options, uint32_t n_ranks,
                                 backend *out, error *err);
backend_cpu_facts backend_cuda_ranks_describe(const backend *b);

#endif

/* model: a Hugging Face model folder or a GGUF file, and the CPU and CUDA backends that run it.
 *
 * What     reads config.json and generation_config.json into plain facts, maps safetensors and
 *          packs them tensor by tensor, and runs the forward pass over a ragged batch and the
 *          sampler behind backend/backend.h.
 * Owner    a model_config is a plain value; a backend owns weights, pages and scratch.
 * Threads  one thread loads a backend and calls it; a pool of worker threads computes.
 * Units    bytes, tokens.
 * Errors   one line that names the file and the field or tensor. Unknown architectures,
 *          activations and RoPE types are refused by name before any memory is taken. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "backend/backend.h"
#include "base/base.h"
#include "comm/comm.h"
#include "kernels/kernels.h"

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
    /* dynamic, longrope: `length`, the longest sequence that can run, decides the frequencies of
     * short ones too, so that K of one prefix serves all. Backends set it from max_model_len. */
    uint32_t max_positions, length;
    float short_factor[MODEL_HEAD_DIM_MAX / 2], long_factor[MODEL_HEAD_DIM_MAX / 2]; // longrope
} rope_config;

/* Flags by which a layer differs from a plain one. */
enum {
    LAYER_WINDOW = 1, /* a row sees the last `window` tokens */
    LAYER_SPARSE = 2, /* experts instead of one feed-forward */
    LAYER_LOCAL = 4,  /* rotates by local_rope; its window may cover any sequence */
};

typedef struct model_config {
    const struct model_family *family; // the row of the family table
    char architecture[MODEL_NAME_MAX]; // "LlamaForCausalLM"
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t ffn; // width in dense layers; 0 = there are none
    uint32_t vocab_size;
    uint32_t max_positions;
    float rms_eps;
    bool tied_embeddings;
    bool qkv_bias;
    bool qk_norm;    // RMSNorm of each query and key head before its rotation
    uint32_t window; // in tokens, of layers with LAYER_WINDOW; 0 = there are none
    /* Sizes of layers with LAYER_SPARSE; n_experts is 0 when there are none. */
    uint32_t n_experts, experts_per_token, expert_ffn;
    uint32_t shared_ffn;              // width of the expert that every row uses; 0 = there is none
    bool expert_norm;                 // the chosen experts' weights are divided by their sum
    uint8_t layers[MODEL_LAYERS_MAX]; // LAYER_ flags
    float query_factor; // attention scores are this times q k / sqrt(head_dim); needs qk_norm
    rope_config rope;
    rope_config local_rope; // for layers with LAYER_LOCAL
    dtype stored;           // config's torch_dtype or dtype: what --dtype auto means
    uint8_t quant_bits;     // 8, 4: integers that fit the stored weights best; 0 = `stored`
    /* The scheme by which config.json says that the weights are quantised; NULL: they are not. */
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

/* Every `dir` in this header is the folder of a model, or the path of a GGUF file (FILE.gguf).
 *
 * model_config_load reads dir/config.json (and generation_config.json if present), or a GGUF file's
 * metadata; here `dir` may also be the path of a config.json alone (FILE.json). overrides are
 * "key=value" with a JSON value; they replace top-level keys of config.json before it is read. */
status model_config_load(const char *dir, const char *const *overrides, size_t n_overrides,
                         model_config *out, error *err);

/* Like tok_load and tmpl_load, for a folder or a GGUF file. */
struct tokenizer;
struct chat_template;
status model_tokenizer_load(const char *dir, struct tokenizer **out, error *err);
status model_template_load(const char *dir, struct chat_template **out, strbuf *bos, strbuf *eos,
                           error *err);

/* Appends to out what a folder holds, one "key: value" a line, and names what is unsupported
 * (`octavo inspect`). Fails only when there is nothing to tell. */
status model_inspect(const char *dir, strbuf *out, error *err);

/* Checks that n_ranks tensor-parallel ranks can share the model: n_ranks must divide its query
 * heads and its intermediate size, and must divide its KV heads or be a multiple of them. The error
 * names the field. */
status model_ranks_check(const model_config *config, uint32_t n_ranks, error *err);

/* The architectures this build knows, for help and docs. */
size_t model_family_count(void);
const char *model_family_architecture(size_t i);

/* ---- what every backend is asked for --------------------------------------------------------- */

enum { MODEL_RESIDUAL_MAX = 512 }; // tokens: the default prefill chunk

typedef struct backend_options {
    const char *dir;
    const model_config *config; // copied
    bool dummy;                 // seeded random weights instead of dir's (--load-format dummy)
    uint64_t dummy_seed;
    kern_kv_format kv_type; // format of K and V in pages
    /* int4 and int2: how many tokens before its own page a row reads as bf16, a multiple of
     * page_tokens up to MODEL_RESIDUAL_MAX; 0: it reads its own page alone as bf16. A residual
     * excludes the prefix cache: whether a cached page is read as bf16 would depend on which
     * request computed it and when. */
    uint32_t kv_residual;
    dtype weight_type;        // packed weights; 16-bit stored weights stay exact under DTYPE_F32
    uint8_t quant_bits;       // 8, 4: weights as integers; 0 = as weight_type
    uint8_t quant_attention;  // the same for q, k, v and o; 0 = quant_bits
    uint8_t quant_group;      // 32, 64 or 128 columns that share a scale
    uint32_t n_threads;       // 0 = all allowed cores
    const char *isa;          // NULL = best
    kern_precision precision; // how exactly activations enter a product
    comm *group;              // borrowed: the ranks that share the model, and which this is
    uint32_t ranks_here;      // ranks that share this machine's memory; 0 = all
    pkv_geometry geometry;    // n_layers and n_kv_heads are taken from config
    uint64_t kv_bytes;        // pool of all ranks; 0 = 60 % of what the cgroup leaves beside the
                              // weights on each machine, assuming all are like rank 0's
    uint64_t swap_bytes;      // limit of the host tier, of all ranks; 0 = none
    /* NULL, or a directory: the pool has kv_disk_bytes and lies there, each rank's part in a file
     * of its own, and kv_bytes of it are in memory at once, at least one layer's. Both are of all
     * ranks. For pages without grids. */
    const char *kv_disk;
    uint64_t kv_disk_bytes;
    const struct disk_io *kv_disk_io; // NULL = the system's
    /* Bytes of host memory that a GPU's pool has beyond kv_bytes; 0 = none. The kv_bytes on the
     * device then hold the pool's first pages and two layers' of the others (model/cuda/window.h).
     * For one rank alone. */
    uint64_t kv_host_bytes;
    uint32_t max_rows; // tokens in one plan
    uint32_t max_seqs;
    uint32_t max_model_len; // sizes the RoPE range and attention scratch
    const char *cache_dir;  // NULL, or the folder of the cache of packed weights; unused with dummy
    /* Called with a log line about the cache of weights or about a GPU, on the rank's own thread or
     * the caller's; may be NULL. */
    void (*log_line)(void *ctx, const char *line);
    void *log_ctx;
    /* weights_options.progress of rank 0, called on the thread that makes that rank. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
    /* Another thread sets it to stop reading and packing weights (STATUS_ABORTED). NULL: never. */
    const _Atomic bool *given_up;
} backend_options;

/* Facts about a backend for reports and benches. */
typedef struct backend_facts {
    const char *isa;
    uint32_t n_threads;
    uint64_t weight_bytes; // packed
    uint64_t page_bytes;
    uint64_t pool_bytes;    // of the pool in memory; a GPU's: in its own memory
    uint64_t disk_bytes;    // of the pool's file or files; 0 = the whole pool is in memory
    uint64_t host_bytes;    // of a GPU's pool in host memory; 0 = the whole pool is on the GPU
    uint64_t filling_bytes; // limit of pages in bf16 beside the pool: int4 and int2
    uint64_t swap_bytes;    // size of the host tier, committed as it fills
    int64_t load_us;        // reading and packing the weights
    bool from_cache;        // weights came packed from the cache
    /* How many rows are multiplied with weights that a GPU keeps as e4m3, for a log; NULL: it keeps
     * none so. The backend owns it. */
    const char *narrow;
    /* A text for the log: whether kernels or NCCL add up over ranks on GPUs, and why. NULL where no
     * ranks meet on GPUs. The backend owns it. */
    const char *sums;
} backend_facts;

/* ---- the CPU backend ------------------------------------------------------------------------- */

status backend_cpu_create(const backend_options *options, backend *out, error *err);
backend_facts backend_cpu_describe(const backend *b);

/* Time that a backend's steps have taken so far in all layers, for benches. */
typedef struct backend_times {
    int64_t attention_ns; // attention with the selections of retrieval
    int64_t selection_ns; // the selections alone
} backend_times;

/* False for all backends but a CPU backend that runs the whole model alone. */
bool backend_cpu_times(const backend *b, backend_times *out);

/* Makes a probe (model/probe.h) over the weights of b, which must outlive the probe. made_with are
 * the options that made b: threads, ISA and precision are the same. max_tokens limits one run.
 * STATUS_UNSUPPORTED unless b is a CPU backend that runs the whole model alone. */
struct model_probe;
status model_probe_create(const backend *b, const backend_options *made_with, uint32_t max_tokens,
                          struct model_probe **out, error *err);

/* The share of the memory that the weights leave which the pool takes, with the representatives of
 * its blocks, when kv_bytes is 0. The rest is for other programs on the machine. */
#define MODEL_POOL_SHARE 0.6

/* The geometry of the pages of a backend that these options would make: theirs, with the model's
 * layers, heads and windows, and with shares for n_ranks ranks. Checks it, and that it suits the
 * type of the pages. Reads no file. */
status model_geometry(const backend_options *options, uint32_t n_ranks, pkv_geometry *out,
                      error *err);

/* Sizes of the backends that these options would make on n_ranks ranks that share `memory` bytes,
 * by the same arithmetic as when they are made. Only the files' headers are read, or with `dummy`
 * the configuration alone, and nothing is made. group, isa and n_threads are ignored. */
typedef struct backend_measures {
    pkv_geometry geometry;
    uint64_t parameters; // in the whole model
    /* The next nine are one rank's; all ranks have equal slices. */
    uint64_t weight_bytes;            // packed
    uint64_t page_bytes;              // what it stores of a page
    uint32_t rank_shares;             // shares of the pages that it stores, of pkv_shares
    uint64_t sums_of_page;            // running sums beside a page, once a method uses them
    uint64_t representatives_of_page; // and what retrieval keeps beside it, once requests use it
    uint64_t note_bytes;              // most that retrieval keeps for requests (backend_info)
    uint64_t scratch_bytes;           // most that a step's rows list of what they read by it
    uint64_t filling_bytes;           // as in backend_facts
    uint64_t step_bytes;              // a GPU's buffers for the longest step
    bool fits;                        // the weights of all ranks fit into `memory`
    uint32_t n_pages;                 // page 0 included; 0: the pool would not hold one block
    uint32_t n_frames;                // pages that a rank's memory holds of its part of a pool on
                                      // disk, or the device of one with kv_host_bytes; 0 = all
    uint32_t n_here;                  // of n_frames, those that are always on the device; the
                                      // others are two layers' of the rest
    uint64_t tier_bytes;              // one rank's tables of a pool on disk
    uint32_t n_host_pages;
} backend_measures;

/* How many of n pages one rank stores. */
static inline uint64_t backend_rank_pages(const backend_measures *m, uint64_t n)
{
    return n / pkv_shares(&m->geometry) * m->rank_shares;
}
/* Bytes that a page takes over all ranks. */
static inline uint64_t backend_page_bytes(const backend_measures *m, uint32_t n_ranks)
{
    return m->page_bytes * n_ranks * m->rank_shares / pkv_shares(&m->geometry);
}
/* Bytes of one rank's pool that are in memory. */
static inline uint64_t backend_pool_bytes(const backend_measures *m)
{
    return (m->n_frames ? m->n_frames : backend_rank_pages(m, m->n_pages)) * m->page_bytes;
}
/* Most bytes of one rank that retrieval writes beside its pool. */
static inline uint64_t backend_representatives_bytes(const backend_measures *m)
{
    return backend_rank_pages(m, m->n_pages) * m->representatives_of_page;
}
/* Bytes of one rank's host tier. */
static inline uint64_t backend_host_bytes(const backend_measures *m)
{
    if (m->n_host_pages == 0) return 0;
    return backend_rank_pages(m, pkv_cell_count(&m->geometry, m->n_host_pages)) * m->page_bytes;
}

status backend_cpu_measure(const backend_options *options, uint32_t n_ranks, uint64_t memory,
                           double pool_share, backend_measures *out, error *err);

/* Memory that n_ranks such backends take once all of it is in use, on a machine that they share.
 * Arrays that grow with steps come on top. left is the memory that is free
 * before the weights are loaded. */
typedef struct backend_cpu_needs {
    uint64_t weights, pool;   // of a pool on disk: what memory holds of it
    uint64_t representatives; // most that retrieval writes beside the pool
    uint64_t retrieval;       // most that retrieval keeps for requests and lists in a step
    uint64_t buffers;         // activations and logits of a step, bf16 tiles of int4 and int2
                              // pages, tables of a pool on disk
    uint64_t swap;            // most that the host tier would take of what is left
    size_t block_bytes;       // K and V of a block, over all KV groups and ranks
} backend_cpu_needs;

/* STATUS_INVALID when kv_bytes does not hold a block. */
status backend_cpu_need(const backend_options *options, uint32_t n_ranks, uint64_t left,
                        backend_cpu_needs *out, error *err);

/* Hashes that ranks in different processes compare before they load anything: one of the
 * configuration, one of the weights' names, shapes and types from the headers of dir's files (0
 * with `dummy`). */
status model_fingerprints(const backend_options *options, uint64_t *config, uint64_t *weights,
                          error *err);

/* ---- the CUDA backend ------------------------------------------------------------------------ */

struct gpu_api;
struct gpu;
struct gpu_facts;
struct gpu_launches;

/* Opens the plugin, liboctavo_cuda.so beside the executable or where dlopen finds it, if a driver
 * answers and shows a device. The plugin stays open. The error says which of these is missing. */
status backend_cuda_find(const struct gpu_api **out, error *err);
/* How many devices a driver shows; 0 where none answers. */
uint32_t backend_cuda_devices(void);

typedef struct backend_cuda_options {
    backend_options common;    // kv_type is ignored; threads pack weights and draw tokens
    const struct gpu_api *api; // from backend_cuda_find, or a test's
    uint32_t ordinal;          // which device
    uint8_t kv;                // the pages' gpu_kv_format
    bool batch_invariant;      // a sequence gets the same bits in every batch
    /* NULL, or a device that the caller opened by `api` because a comm needs it earlier
     * (comm_options.stream). The caller closes it after comm and backend. */
    struct gpu *gpu;
    const struct gpu_facts *gpu_facts; // facts of gpu; read during this call only
    /* The ranks of common.group, which are threads of this process, open a GPU each, from `ordinal`
     * on, and meet there over NCCL. Otherwise they share one GPU, and meet on the host. */
    bool own_gpus;
    const char *nccl; // opened in place of libnccl.so.2; may be NULL
} backend_cuda_options;

/* The pool's share of the GPU memory that weights and step buffers leave, when kv_bytes is 0. The
 * rest is for arrays that grow with steps, and for graphs; no other program is expected there. */
#define MODEL_GPU_POOL_SHARE 0.85

/* Sizes of what backend_cuda_create would make on n_ranks ranks. It runs the same code on a device
 * that only counts allocations and has gpu_facts->n_sms multiprocessors. api, ordinal and gpu are
 * ignored. Each rank has gpu_facts->free_bytes: its own GPU's, or its part of a shared one. Ranks
 * with own_gpus are assumed to reach each other's memory. The host is assumed to have room for the
 * whole host tier. sums_of_page lie beside every page, whether or not a method uses sums. */
status backend_cuda_measure(const backend_cuda_options *options, uint32_t n_ranks,
                            backend_measures *out, error *err);

/* Refuses a model without kernels with a message that names what is missing. */
status backend_cuda_create(const backend_cuda_options *options, backend *out, error *err);
/* isa is the device's name, valid until the backend is destroyed; pool_bytes lie on the device. */
backend_facts backend_cuda_describe(const backend *b);

/* Between trace and traced, the device times the launches of the backend's steps, which traced adds
 * to *out by name (gpu_api.trace). With `one_by_one` none of these steps is replayed as a graph.
 * Steps in flight have been launched already, and are not timed. STATUS_UNSUPPORTED for a backend
 * of several ranks, and for any other that backend_cuda_create did not make. */
status backend_cuda_trace(const backend *b, bool one_by_one, error *err);
status backend_cuda_traced(const backend *b, struct gpu_launches *out, error *err);

/* ---- tensor-parallel ranks ------------------------------------------------------------------- */

/* A backend that is a group of ranks in threads of this process. Each rank is a backend of its own,
 * with its slice of the weights and of every page, and is made, run and destroyed on its own
 * thread. Every plan goes to all ranks. Tokens and logits are rank 0's; measures are put together
 * by KV head. A rank that fails, and ranks that differ in tables or samples, give STATUS_INTERNAL
 * with a message that names the rank: the backend can then only be destroyed.
 *
 * make makes one rank's backend: comm_rank(group) says which. When a rank cannot be made, or its
 * step fails or is interrupted, the group's comms are aborted, so that no rank waits for it. */
typedef struct backend_ranks_options {
    uint32_t n_ranks;
    /* The ranks compute elsewhere: submit only sends, collect only waits, and a rank that fails
     * ends the wait for the others. All are made at once, each on a thread of its own; then the
     * caller's thread drives them. A rank's messages name it. A lost rank is STATUS_UNAVAILABLE,
     * and so is then the step. */
    bool driven;
    status (*make)(void *ctx, comm *group, backend *out, error *err);
    void *ctx; // used during the call only
} backend_ranks_options;

status backend_ranks_create(const backend_ranks_options *options, backend *out, error *err);

/* Makes n_ranks CPU backends that divide the threads between them, at least one each.
 * options->group is ignored. */
status backend_cpu_ranks_create(const backend_options *options, uint32_t n_ranks, backend *out,
                                error *err);
/* Facts summed over the ranks. */
backend_facts backend_cpu_ranks_describe(const backend *b);

/* Makes ranks of CUDA backends in threads of this process: on one GPU, or with options->own_gpus on
 * a GPU each. */
status backend_cuda_ranks_create(const backend_cuda_options *options, uint32_t n_ranks,
                                 backend *out, error *err);
backend_facts backend_cuda_ranks_describe(const backend *b);

#endif

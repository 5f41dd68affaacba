/* The table of the flags that choose a model, and the names that they take. */
#include "cli/model_flags.h"

#include "base/number.h"

#include "kernels/cuda/cuda_kernels.h"

#include <stdlib.h>
#include <string.h>

static const char *const load_formats[] = {"auto", "dummy", NULL};
static const char *const dtypes[] = {"auto", "f32", "bf16", NULL};

static const char *const kv_dtypes[] = {"auto", "f32",  "bf16", "f16", "int8",
                                        "int4", "int2", "fp8",  NULL};

static const char *const precisions[] = {"standard", "high", NULL};
static const char *const quantizations[] = {"auto", "none", "int8", "mixed", "int4", NULL};

static const char *const policies[] = {"fcfs", "priority", NULL};

static const arg_flag flags_table[] = {
    ARG_ROW("model", "PATH", ARG_TEXT, model_flags, dir,
            "the Hugging Face folder (config.json, tokenizer.json, *.safetensors), or a GGUF file",
            .also = "-m"),
    ARG_ROW("load-format", "WHAT", ARG_OPTION, model_flags, load_format,
            "dummy makes seeded random weights from config.json alone", .initial = "auto",
            .options = load_formats),
    ARG_ROW("dummy-seed", "N", ARG_WHOLE, model_flags, dummy_seed, "seed of dummy weights",
            .max = 0x1p63, .initial = "0"),
    ARG_ROW("override", "KEY=VALUE", ARG_LIST, model_flags, overrides,
            "change a field of config.json (the value is JSON); may be repeated"),
    ARG_ROW(
        "dtype", "TYPE", ARG_OPTION, model_flags, dtype,
        "type of weights and KV pages (f32 keeps stored weights exact, auto is the stored type)",
        .initial = "auto", .options = dtypes),
    ARG_ROW(
        "kv-dtype", "TYPE", ARG_OPTION, model_flags, kv_dtype,
        "type of KV pages (auto is --dtype's; int8 has a scale for each token, head, K and V; int4 "
        "and int2 have scales and zeros for groups of 32, and the page that fills is bf16; a GPU "
        "has bf16, f16, int8, and fp8 (e4m3 without a scale), which only a GPU has)",
        .initial = "auto", .options = kv_dtypes, .also = "--kv-cache-dtype"),
    ARG_ROW("kv-residual", "N", ARG_COUNT, model_flags, kv_residual,
            "tokens before the page that fills which int4 and int2 pages keep in bf16 too, a "
            "multiple of --page-tokens up to 512; needs --no-prefix-cache",
            .max = MODEL_RESIDUAL_MAX, .initial = "0"),
    ARG_ROW(
        "quantize", "TYPE", ARG_OPTION, model_flags, quantize,
        "make integers of the layers' weights (of 8 bits in the head) when they are loaded; mixed "
        "is int4 with 8 bits for q, k, v and o; auto: int4 of a GGUF file of Q4_0, int8 of one of "
        "other integers, unless --dtype is given; else none",
        .initial = "auto", .options = quantizations),
    ARG_ROW("quantize-group", "N", ARG_COUNT, model_flags, quantize_group,
            "weights of a row that share a scale: 32, 64 or 128", .min = 32, .max = 128,
            .initial = "32"),
    ARG_ROW("weights-cache", "DIR", ARG_TEXT, model_flags, weights_cache,
            "keep the weights in this folder as products read them, quantised or not, and read "
            "them from there when the model's files are the same"),
    ARG_ROW(
        "device", "WHAT", ARG_TEXT, model_flags, device,
        "cpu, cuda or cuda:N (the GPU with that number); auto is cuda where a driver shows a GPU "
        "that can run the model, else cpu",
        .initial = "auto"),
    ARG_ROW(
        "batch-invariant", NULL, ARG_SWITCH, model_flags, batch_invariant,
        "on a GPU, too, a sequence gets the same bits whatever else is in its batch; decoding is "
        "slower then: a table is read by one block, quantised weights are unpacked in every step"),
    ARG_ROW("threads", "N", ARG_COUNT, model_flags, threads,
            "threads of the forward pass (default: all allowed cores)", .min = 1, .max = 1024,
            .also = "-t"),
    ARG_ROW("tp", "N", ARG_COUNT, model_flags, tp,
            "tensor-parallel ranks: each holds its share of heads, weights and KV pages, and of "
            "the threads",
            .min = 1, .max = 64, .initial = "1", .also = "-tp --tensor-parallel-size --tp-size"),
    ARG_ROW("isa", "NAME", ARG_TEXT, model_flags, isa,
            "instruction set of the kernels (default: the best this CPU has)"),
    ARG_ROW(
        "precision", "NAME", ARG_OPTION, model_flags, precision,
        "how exactly activations enter a product: standard rounds them to the type that the CPU's "
        "dot products read, and on a GPU to e4m3 beside weights of e4m3 in steps of more than 128 "
        "rows; high keeps 16 bits or more, and takes up to twice as long in prefill (default: high "
        "with --dtype f32, else standard)",
        .options = precisions),
    ARG_ROW("kv-memory", "BYTES", ARG_BYTES, model_flags, kv_memory,
            "size of the KV page pool, such as 512M or 4G (default: with what retrieval may write "
            "beside it, 60 % of what the cgroup leaves after the weights)",
            .min = 1, .max = 0x1p62),
    ARG_ROW("kv-disk", "DIR", ARG_TEXT, model_flags, kv_disk,
            "let KV pages that no step needs lie in a file in this folder, one for each rank, "
            "which goes when the process ends: the pool has --kv-disk-size, and --kv-memory of it "
            "are in memory; workers by address have folders of their own"),
    ARG_ROW("kv-disk-size", "BYTES", ARG_BYTES, model_flags, kv_disk_size,
            "size of the KV page pool with --kv-disk, over all ranks; all of it is taken at the "
            "start",
            .min = 1, .max = 0x1p62),
    ARG_ROW("kv-host", "BYTES", ARG_BYTES, model_flags, kv_host,
            "on a GPU: host memory for KV pages beyond the device's, all of it taken and pinned at "
            "the start; each step then moves what it reads of them, layer by layer, so "
            "--prefill-chunk 4096 suits it",
            .min = 1, .max = 0x1p62),
    ARG_ROW("swap-memory", "BYTES", ARG_BYTES, model_flags, swap_memory,
            "host memory for the pages of preempted sequences, taken as it fills and at most half "
            "of what the KV pool leaves; 0 computes them again",
            .max = 0x1p62, .initial = "1G"),
    ARG_ROW("embed-memory", "BYTES", ARG_BYTES, model_flags, embed_memory,
            "host memory for the embeddings of tokens that retention method reform reads by, over "
            "all requests and sessions; taken as it fills",
            .min = 1, .max = 0x1p62, .initial = "1G"),
    ARG_ROW("page-tokens", "N", ARG_COUNT, model_flags, page_tokens,
            "tokens in a page, a multiple of 16, of 32 with int4 and int2 (default: the smallest)",
            .min = 16, .max = 256, .also = "--block-size --page-size"),
    ARG_ROW("max-batch", "N", ARG_COUNT, model_flags, max_batch, "sequences that run at once",
            .min = 1, .max = 4096, .initial = "32", .also = "--max-num-seqs"),
    ARG_ROW("prefill-chunk", "N", ARG_COUNT, model_flags, prefill_chunk,
            "tokens of one prompt in one step", .min = 16, .max = 65536, .initial = "512"),
    ARG_ROW("max-model-len", "N", ARG_COUNT, model_flags, max_model_len,
            "most tokens of prompt and output together (default: the model's)", .min = 1,
            .max = 0x1p31, .also = "-c --ctx-size --context-length"),
    ARG_ROW("max-logical-len", "N", ARG_COUNT, model_flags, max_logical_len,
            "most tokens of prompt and output together where a retention method closes up the "
            "positions of what it keeps, which alone count for --max-model-len (default: 4194304)",
            .min = 1, .max = 0x1p31 - 1),
    ARG_ROW("scheduling-policy", "WHAT", ARG_OPTION, model_flags, scheduling_policy,
            "order in which requests start: fcfs: by arrival; priority: the lowest value first, "
            "but after 8 later requests have started, the request that has waited longest",
            .initial = "fcfs", .options = policies),
    ARG_ROW("no-prefix-cache", NULL, ARG_SWITCH, model_flags, no_prefix_cache,
            "compute every prompt in full",
            .also = "--no-enable-prefix-caching --disable-radix-cache"),
};

arg_group model_flags_group(model_flags *target)
{
    return (arg_group){"Model and memory", flags_table, sizeof flags_table / sizeof flags_table[0],
                       target};
}

void model_flags_destroy(model_flags *flags)
{
    free(flags->overrides.items);
    flags->overrides = (arg_list){0};
}

bool device_is_cuda(const char *device, uint32_t *ordinal)
{
    *ordinal = 0;
    if (strcmp(device, "cuda") == 0) return true;
    uint64_t n = 0;
    const char *end = strncmp(device, "cuda:", 5) == 0 ? number_read_whole(device + 5, &n) : NULL;
    *ordinal = (uint32_t)n;
    return end && !*end && n < 1024;
}

bool gpu_kv_named(const char *name, uint8_t *out)
{
    static const struct {
        const char *name;
        gpu_kv_format format;
    } rows[] = {
        {"bf16", GPU_KV_BF16}, {"f16", GPU_KV_F16}, {"int8", GPU_KV_INT8}, {"fp8", GPU_KV_E4M3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        *out = (uint8_t)rows[i].format;
        return true;
    }
    return false;
}

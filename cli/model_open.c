/* Opens a model as flags describe it. */
#include "cli/model_open.h"

#include "kernels/cuda/cuda_kernels.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------- */

static dtype wanted_type(const char *name, dtype stored)
{
    if (strcmp(name, "f32") == 0) return DTYPE_F32;
    if (strcmp(name, "bf16") == 0) return DTYPE_BF16;
    return stored;
}

/* Users who ask for f32 want no rounding, so activations keep all their bits, too. */
static kern_precision wanted_precision(const model_flags *f, dtype type)
{
    if (!f->precision) return type == DTYPE_F32 ? KERN_PRECISION_HIGH : KERN_PRECISION_STANDARD;
    return strcmp(f->precision, "high") == 0 ? KERN_PRECISION_HIGH : KERN_PRECISION_STANDARD;
}

/* Gives the listener a line. */
__attribute__((format(printf, 2, 3))) static void tell(const loaded_model *m, const char *fmt, ...)
{
    char line[sizeof(error) + 64];
    if (!m->listener.note) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    m->listener.note(m->listener.ctx, line);
}

static status open_text(const char *dir, loaded_model *m, error *err)
{
    RETURN_IF_ERROR(model_tokenizer_load(dir, &m->tokenizer, err));
    error why = {{0}};
    /* Without a usable template plain prompts work all the same: only messages are refused,
     * later. */
    if (!status_ok(model_template_load(dir, &m->chat, &m->bos, &m->eos, &why)))
        tell(m, "%s: messages cannot be used with this model", why.text);
    return STATUS_IS_OK;
}

/* Most tokens of a request whose positions close up, unless a flag says otherwise. */
enum { LOGICAL_LEN = 4 << 20 };

static status check_shape(const model_flags *f, loaded_model *m, error *err)
{
    m->max_model_len = f->max_model_len ? f->max_model_len : m->config.max_positions;
    uint32_t most = model_max_length(&m->config);
    if (m->max_model_len > most)
        return error_set(err, STATUS_INVALID,
                         "--max-model-len: %u is more than the model's %u positions",
                         f->max_model_len, most);
    uint32_t usual = m->max_model_len > LOGICAL_LEN ? m->max_model_len : LOGICAL_LEN;
    m->max_logical_len = f->max_logical_len ? f->max_logical_len : usual;
    if (m->max_logical_len < m->max_model_len)
        return error_set(err, STATUS_INVALID,
                         "--max-logical-len: %u is less than the context of %u", m->max_logical_len,
                         m->max_model_len);
    if (f->quantize_group & (f->quantize_group - 1))
        return error_set(err, STATUS_INVALID, "--quantize-group: %u is not 32, 64 or 128",
                         f->quantize_group);
    if (f->weights_cache && strcmp(f->load_format, "dummy") == 0)
        return error_set(err, STATUS_INVALID,
                         "--weights-cache: it keeps weights of files, and --load-format dummy "
                         "reads none");
    status s = model_ranks_check(&m->config, f->tp, err);
    if (!status_ok(s)) error_prefix(err, "--tp");
    return s;
}

/* Refuses residual pages beside a prefix cache: a page that requests share would be bf16 or
 * quantised depending on when the requests came. */
static status check_residual(const model_flags *f, error *err)
{
    if (f->kv_residual == 0 || f->no_prefix_cache) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "--kv-residual: the prefix cache shares pages in their quantised form alone; "
                     "add --no-prefix-cache");
}

/* The folder of a pool on disk, as ranks are told it. Workers by address may have folders of their
 * own, so that "" turns the pool on there. */
static const char *wanted_disk(const model_flags *f)
{
    bool by_address = f->workers.where && strchr(f->workers.where, ':');
    return f->kv_disk_size && !f->kv_disk && by_address ? "" : f->kv_disk;
}

/* A pool on disk lies under the memory of CPUs. on_gpu is known once it is asked for or found. */
static status check_kv_disk(const model_flags *f, const loaded_model *m, error *err)
{
    if (f->kv_disk_size && !wanted_disk(f))
        return error_set(err, STATUS_INVALID, "--kv-disk-size: --kv-disk is missing");
    if (f->kv_disk && !*f->kv_disk)
        return error_set(err, STATUS_INVALID, "--kv-disk: the name of a folder is missing");
    if (f->kv_disk && !f->kv_disk_size)
        return error_set(err, STATUS_INVALID, "--kv-disk: --kv-disk-size is missing");
    if (!f->kv_disk_size || !m->on_gpu) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "--kv-disk: K and V of a GPU cannot lie on disk; --device cpu uses none");
}

/* Only the pool of one GPU, in this process and without ranks, can have pages in host memory. */
static status check_kv_host(const model_flags *f, const loaded_model *m, error *err)
{
    if (!f->kv_host || (m->n_ranks == 1 && !m->workers && m->on_gpu)) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "--kv-host: needs one rank on a GPU (--device cuda, no --tp or workers)");
}

static uint32_t wanted_page(const model_flags *f, kern_kv_format kv_type)
{
    uint32_t group = kern_kv_facts_of(kv_type).group;
    if (f->page_tokens) return f->page_tokens;
    return group ? group : 16;
}

/* auto applies when no type was named: --dtype f32 or bf16 names one. */
static uint8_t wanted_bits(const model_flags *f, const model_config *config)
{
    if (strcmp(f->quantize, "auto") == 0)
        return strcmp(f->dtype, "auto") == 0 ? config->quant_bits : 0;
    if (strcmp(f->quantize, "int8") == 0) return 8;
    return strcmp(f->quantize, "none") == 0 ? 0 : 4;
}

/* ---- which device ---------------------------------------------------------------------------- */

/* Reads --device as far as it can be judged before anything is opened. */
static status read_device(const model_flags *f, loaded_model *m, error *err)
{
    bool is_auto = strcmp(f->device, "auto") == 0;
    m->on_gpu = device_is_cuda(f->device, &m->gpu_ordinal);
    m->gpu_has_kv = gpu_kv_named(m->kv_name, &m->gpu_kv);
    if (!m->on_gpu && !is_auto && strcmp(f->device, "cpu") != 0)
        return error_set(err, STATUS_INVALID, "--device: \"%s\" is not auto, cpu, cuda or cuda:N",
                         f->device);
    if (m->on_gpu && !m->gpu_has_kv)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "--kv-dtype: %s pages are not built for --device cuda: bf16, f16, int8 or fp8",
            m->kv_name);
    return STATUS_IS_OK;
}

static status check_fp8(const loaded_model *m, error *err)
{
    if (strcmp(m->kv_name, "fp8") != 0 || m->on_gpu) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "--kv-dtype: fp8 pages need --device cuda");
}

/* Sets m->gpu to the GPU that this process computes on, or leaves it NULL: the CPU or the workers
 * compute. With --device auto the listener gets a line where the driver is too old. */
static status find_device(const model_flags *f, loaded_model *m, error *err)
{
    bool asked = m->on_gpu, is_auto = strcmp(f->device, "auto") == 0;
    if (!m->workers && (asked || (is_auto && m->gpu_has_kv && m->n_ranks == 1))) {
        status s = backend_cuda_find(&m->gpu, err);
        if (!status_ok(s) && asked) error_prefix(err, "--device");
        if (!status_ok(s) && asked) return s;
        if (s.code == STATUS_UNSUPPORTED) tell(m, "%s: on the CPU instead", err->text);
        m->on_gpu = m->gpu != NULL;
    }
    return check_fp8(m, err);
}

/* Whether each rank can have a GPU of its own. */
static bool has_gpus(const loaded_model *m)
{
    comm_options o = {.kind = "nccl", .rank = 1, .size = 2};
    comm *c = NULL;
    if (backend_cuda_devices() < m->gpu_ordinal + m->n_ranks) return false;
    bool has = status_ok(comm_create(&o, &c, NULL)); /* a library on the loader's path */
    comm_destroy(c);
    return has;
}

static status make_cuda(loaded_model *m, error *err)
{
    backend_cuda_options o = {.common = m->options,
                              .api = m->gpu,
                              .ordinal = m->gpu_ordinal,
                              .kv = m->gpu_kv,
                              .batch_invariant = m->batch_invariant};
    if (m->n_ranks > 1) {
        o.own_gpus = has_gpus(m);
        RETURN_IF_ERROR(backend_cuda_ranks_create(&o, m->n_ranks, &m->backend, err));
        m->facts = backend_cuda_ranks_describe(&m->backend);
        return STATUS_IS_OK;
    }
    RETURN_IF_ERROR(backend_cuda_create(&o, &m->backend, err));
    m->facts = backend_cuda_describe(&m->backend);
    return STATUS_IS_OK;
}

/* Makes the backend that m->workers, m->gpu, m->options and m->n_ranks describe. */
static status make_backend(loaded_model *m, error *err)
{
    if (m->workers)
        return workers_make_backend(m->workers, &m->options, m->overrides.items, m->overrides.n,
                                    &m->backend, &m->facts, err);
    if (m->gpu) return make_cuda(m, err);
    if (m->n_ranks > 1) {
        RETURN_IF_ERROR(backend_cpu_ranks_create(&m->options, m->n_ranks, &m->backend, err));
        m->facts = backend_cpu_ranks_describe(&m->backend);
    } else {
        RETURN_IF_ERROR(backend_cpu_create(&m->options, &m->backend, err));
        m->facts = backend_cpu_describe(&m->backend);
    }
    return STATUS_IS_OK;
}

/* With --device auto, a model that the GPU's kernels do not support runs on the CPU, and the
 * listener gets a line about it. */
static status make_first(const model_flags *f, loaded_model *m, error *err)
{
    status s = make_backend(m, err);
    if (s.code != STATUS_UNSUPPORTED || !m->gpu || strcmp(f->device, "auto") != 0) return s;
    if (m->gpu_kv == GPU_KV_E4M3) return s; /* the CPU has no such pages */
    tell(m, "%s: on the CPU instead", err->text);
    m->gpu = NULL;
    m->on_gpu = false;
    return make_backend(m, err);
}

static void tell_line(void *ctx, const char *line) { tell(ctx, "%s", line); }

static loaded_model unopened(const model_flags *flags)
{
    return (loaded_model){
        .n_ranks = flags->tp,
        .max_batch = flags->max_batch,
        .prefill_chunk = flags->prefill_chunk,
        .policy = strcmp(flags->scheduling_policy, "priority") == 0 ? SCHED_PRIORITY : SCHED_FCFS,
        .prefix_cache = !flags->no_prefix_cache,
        .batch_invariant = flags->batch_invariant,
        .default_pool = flags->kv_memory == 0,
        .overrides = flags->overrides,
    };
}

static status read_options(const model_flags *f, loaded_model *m, error *err)
{
    RETURN_IF_ERROR(model_config_load(f->dir, f->overrides.items, f->overrides.n, &m->config, err));
    RETURN_IF_ERROR(check_shape(f, m, err));
    RETURN_IF_ERROR(embed_heads_load(f->dir, &m->config, &m->embeds, err));
    m->embed_memory = f->embed_memory;
    RETURN_IF_ERROR(check_residual(f, err));
    dtype type = wanted_type(f->dtype, m->config.stored);
    m->kv_type = kern_kv_named(f->kv_dtype);
    if (m->kv_type == KERN_KV_FORMATS) m->kv_type = (kern_kv_format)type; /* auto, fp8 */
    m->kv_name = strcmp(f->kv_dtype, "fp8") == 0 ? "fp8" : kern_kv_name(m->kv_type);
    /* f16 has three more bits of precision than bf16, so weights stored as f16 stay f16. */
    bool keep_f16 = type == DTYPE_BF16 && m->config.stored == DTYPE_F16;
    m->options = (backend_options){
        .dir = f->dir,
        .config = &m->config,
        .dummy = strcmp(f->load_format, "dummy") == 0,
        .dummy_seed = f->dummy_seed,
        .kv_type = m->kv_type,
        .kv_residual = f->kv_residual,
        .weight_type = keep_f16 ? DTYPE_F16 : type,
        .quant_bits = wanted_bits(f, &m->config),
        .quant_attention = strcmp(f->quantize, "mixed") == 0 ? 8 : 0,
        .quant_group = (uint8_t)f->quantize_group,
        .n_threads = f->threads,
        .isa = f->isa,
        .precision = wanted_precision(f, type),
        .geometry = {.page_tokens = wanted_page(f, m->kv_type),
                     .layers_per_group = 1,
                     .heads_per_group = 1},
        .kv_bytes = f->kv_memory,
        .swap_bytes = f->swap_memory,
        .kv_disk = wanted_disk(f),
        .kv_disk_bytes = f->kv_disk_size,
        .kv_host_bytes = f->kv_host,
        .max_rows = f->prefill_chunk + f->max_batch,
        .max_seqs = f->max_batch,
        .max_model_len = m->max_model_len,
        .cache_dir = f->weights_cache,
        .log_line = tell_line,
        .log_ctx = m,
        .progress = m->listener.progress,
        .progress_ctx = m->listener.ctx,
        .given_up = &m->given_up,
    };
    return STATUS_IS_OK;
}

status model_describe(const model_flags *flags, loaded_model *out, error *err)
{
    *out = unopened(flags);
    RETURN_IF_ERROR(read_options(flags, out, err));
    RETURN_IF_ERROR(read_device(flags, out, err));
    RETURN_IF_ERROR(check_kv_disk(flags, out, err));
    RETURN_IF_ERROR(check_kv_host(flags, out, err));
    return check_fp8(out, err);
}

static status open_parts(const model_flags *f, bool with_text, loaded_model *m, error *err)
{
    RETURN_IF_ERROR(read_options(f, m, err));
    if (with_text) RETURN_IF_ERROR(open_text(f->dir, m, err));
    comm_options alone = {.kind = "self", .rank = 0, .size = 1};
    RETURN_IF_ERROR(comm_create(&alone, &m->group, err));
    m->options.group = m->group;
    RETURN_IF_ERROR(read_device(f, m, err));
    const workers_device device = {m->on_gpu ? "cuda" : "cpu", m->gpu_ordinal, m->kv_name,
                                   m->batch_invariant};
    RETURN_IF_ERROR(workers_create(&f->workers, &device, &m->n_ranks, &m->workers, err));
    RETURN_IF_ERROR(model_ranks_check(&m->config, m->n_ranks, err));
    RETURN_IF_ERROR(find_device(f, m, err));
    RETURN_IF_ERROR(check_kv_disk(f, m, err));
    RETURN_IF_ERROR(check_kv_host(f, m, err));
    return make_first(f, m, err);
}

status model_restart(void *ctx, backend *out, error *err)
{
    loaded_model *m = ctx;
    if (m->backend.ops) m->backend.ops->destroy(m->backend.ctx);
    m->backend = (backend){0};
    m->options.kv_bytes = m->facts.pool_bytes;
    RETURN_IF_ERROR(make_backend(m, err));
    *out = m->backend;
    return STATUS_IS_OK;
}

void model_give_up(loaded_model *m)
{
    atomic_store(&m->given_up, true);
    if (m->workers) workers_give_up(m->workers);
}

status model_open_with(const model_flags *flags, bool with_text, const model_listener *listener,
                       loaded_model *out, error *err)
{
    if (!flags->dir) return error_set(err, STATUS_INVALID, "--model is missing");
    int64_t start = clock_now_us();
    *out = unopened(flags);
    out->listener = *listener;
    status s = open_parts(flags, with_text, out, err);
    if (listener->progress) listener->progress(listener->ctx, 1, 1);
    if (!status_ok(s)) model_close(out);
    out->open_us = clock_now_us() - start;
    return s;
}

void model_close(loaded_model *m)
{
    if (m->backend.ops) m->backend.ops->destroy(m->backend.ctx);
    workers_destroy(m->workers);
    comm_destroy(m->group);
    tmpl_destroy(m->chat);
    tok_destroy(m->tokenizer);
    strbuf_destroy(&m->bos);
    strbuf_destroy(&m->eos);
    *m = (loaded_model){0};
}

/* ---- facts about the model ------------------------------------------------------------------- */

engine_options model_engine_options(loaded_model *m, uint32_t max_requests)
{
    return (engine_options){
        .backend = &m->backend,
        .tokenizer = m->tokenizer,
        .chat = m->chat,
        .bos = m->bos.data ? m->bos.data : "",
        .eos = m->eos.data ? m->eos.data : "",
        .prefill_chunk = m->prefill_chunk,
        .max_model_len = m->max_model_len,
        .max_logical_len = m->max_logical_len,
        .max_requests = max_requests,
        .policy = m->policy,
        .prefix_cache = m->prefix_cache,
        .embed_heads = m->embeds.heads,
        .n_embed_heads = m->embeds.n,
        .embed_memory = m->embed_memory,
        .stop_ids = m->config.stop_ids,
        .n_stop_ids = m->config.n_stop_ids,
    };
}

engine_defaults model_defaults(const loaded_model *m)
{
    const model_config *c = &m->config;
    return (engine_defaults){
        .temperature = !isnan(c->temperature) ? c->temperature
                       : c->do_sample         ? 1.0f
                                              : 0.0f,
        .top_p = isnan(c->top_p) ? 1.0f : c->top_p,
        .min_p = isnan(c->min_p) ? 0.0f : c->min_p,
        .repetition_penalty = isnan(c->repetition_penalty) ? 1.0f : c->repetition_penalty,
        .top_k = c->top_k,
    };
}

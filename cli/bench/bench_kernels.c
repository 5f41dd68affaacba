/* `octavo bench kernels`: each operation, timed alone on cold operands, beside the limits of this
 * machine measured in the same minute. Bytes moved and operations are counted beside each call. */
#include "cli/bench/bench_kernels.h"
#include "cli/bench/bench_attention.h"
#include "cli/bench/bench_gpu.h"
#include "cli/cli.h"
#include "cli/model_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLD_BYTES = 512 << 20, /* copies of the weights of this size take turns: none is in a cache */
    RUNS_MIN = 5,
    RUNS_MAX = 101,
    RUNS_US = 400 * 1000, /* longest time of a line once RUNS_MIN runs are done */
    ROWS_USUAL = 512,     /* rows of the largest product, unless --rows is given */
    ROWS_MOST = 2048,
    ROWS_OF_GPU = 16384,
};

static const char name[] = "octavo bench kernels";

typedef struct kernels_flags {
    uint32_t threads, rows, part_slots;
    uint32_t few_rows, few_quant_rows, few_of_expert, staged_rows;
    const char *dtype, *kv_dtype, *isa, *precision, *device, *prefill;
} kernels_flags;

static const char *const prefills[] = {"all", "mma", "wgmma", NULL};
static const char *const precisions[] = {"standard", "high", NULL};
static const char *const dtypes[] = {"bf16", "f16", "f32", "int8", "int4", "fp8", NULL};
static const char *const kv_dtypes[] = {"auto", "bf16", "f16", "f32", "int8", "fp8", NULL};

static const arg_flag flags_table[] = {
    ARG_ROW("device", "WHAT", ARG_TEXT, kernels_flags, device,
            "cpu, cuda or cuda:N (the GPU with that number)", .initial = "cpu"),
    ARG_ROW("threads", "N", ARG_COUNT, kernels_flags, threads,
            "threads (default: all allowed cores)", .min = 1, .max = 1024, .also = "-t"),
    ARG_ROW("rows", "N", ARG_COUNT, kernels_flags, rows,
            "most rows of a matrix product (default: 512; a GPU's 16384)", .min = 1, .max = 16384),
    ARG_ROW("part-slots", "N", ARG_COUNT, kernels_flags, part_slots,
            "slots of a table that a block of a GPU's attention reads, a multiple of 64 (default: "
            "what serving takes)",
            .min = 64, .max = 1 << 20),
    ARG_ROW("few-rows", "N", ARG_COUNT, kernels_flags, few_rows,
            "rows up to which a GPU's kernel for few rows multiplies (default: 8)", .min = 1,
            .max = 16384),
    ARG_ROW("few-quant-rows", "N", ARG_COUNT, kernels_flags, few_quant_rows,
            "the same with quantised weights (default: 128)", .min = 1, .max = 16384),
    ARG_ROW("few-of-expert", "N", ARG_COUNT, kernels_flags, few_of_expert,
            "the same of an expert on average (default: 16)", .min = 1, .max = 16384),
    ARG_ROW("staged-rows", "N", ARG_COUNT, kernels_flags, staged_rows,
            "rows up to which quantised weights become operands in a GPU's registers (default: "
            "512)",
            .min = 1, .max = 16384),
    ARG_ROW("prefill-kernel", "NAME", ARG_OPTION, kernels_flags, prefill,
            "kernel of a GPU's prefill attention: all that run there, or one", .initial = "all",
            .options = prefills),
    ARG_ROW("dtype", "TYPE", ARG_OPTION, kernels_flags, dtype, "type of weights (fp8 needs a GPU)",
            .initial = "bf16", .options = dtypes),
    ARG_ROW("kv-dtype", "TYPE", ARG_OPTION, kernels_flags, kv_dtype,
            "type of KV pages (auto: that of the weights, bf16 beside int8, int4 and fp8; fp8 "
            "needs a GPU)",
            .initial = "auto", .options = kv_dtypes),
    ARG_ROW("isa", "NAME", ARG_TEXT, kernels_flags, isa,
            "instruction set (default: the best this CPU has)"),
    ARG_ROW("precision", "NAME", ARG_OPTION, kernels_flags, precision,
            "how exactly activations enter a product", .initial = "standard",
            .options = precisions),
};

typedef struct bench {
    kern_context *kc;
    thread_pool *pool;
    const char *type_name;
    dtype type; /* of weights that are not quantised */
    kern_kv_format kv_type;
    kern_quant quant;
    kern_limits limits; /* the better of the limits before and after the lines compared with them */
} bench;

/* Other processes on the machine only ever slow a run down, so shares compare the best run with the
 * best limit. */
typedef struct timing {
    double median_us, best_us;
} timing;

/* The matrices of a 1.1B Llama: 22 layers, hidden 2048, 32/4 heads of 64, ffn 5632, vocabulary
 * 32000. */
static const struct shape {
    const char *name;
    size_t n, k;
    unsigned count; /* matrices of this shape in the model */
} shapes[] = {
    {"qkv", 2560, 2048, 22},  {"attn out", 2048, 2048, 22}, {"gate up", 11264, 2048, 22},
    {"down", 2048, 5632, 22}, {"lm head", 32000, 2048, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const size_t rows_list[] = {1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512, 2048};
enum { ROWS = sizeof rows_list / sizeof rows_list[0] };

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing timing_of(double *us, size_t n)
{
    qsort(us, n, sizeof *us, compare_double);
    return (timing){.median_us = us[n / 2], .best_us = us[0]};
}

static status measure_limits(bench *b, bool again)
{
    kern_limits now;
    RETURN_IF_ERROR(kern_measure_limits(b->kc, &now));
    if (!again || now.read_gb_s > b->limits.read_gb_s) b->limits.read_gb_s = now.read_gb_s;
    if (!again || now.fma_gflop_s > b->limits.fma_gflop_s) b->limits.fma_gflop_s = now.fma_gflop_s;
    if (!again || now.dot_gflop_s > b->limits.dot_gflop_s) b->limits.dot_gflop_s = now.dot_gflop_s;
    if (!again || now.pair_gop_s > b->limits.pair_gop_s) b->limits.pair_gop_s = now.pair_gop_s;
    if (!again || now.int_gop_s > b->limits.int_gop_s) b->limits.int_gop_s = now.int_gop_s;
    return STATUS_IS_OK;
}

/* Fills in plausible weights of either sign, without denormals. */
static void fill_weights(dtype type, void *data, size_t bytes)
{
    uint16_t *half = data;
    float *full = data;
    rng r = rng_seed(1);
    for (size_t i = 0; i < bytes / dtype_bytes(type); i++) {
        uint32_t bits = i % 61 == 0 ? rng_u32(&r) : (uint32_t)i * 2654435761u;
        if (type == DTYPE_F32) full[i] = ((float)(bits >> 8) - 8388608.0f) * 1e-9f;
        else half[i] = (uint16_t)((bits & 0x807fu) | (type == DTYPE_BF16 ? 0x3c00u : 0x2400u));
    }
}

/* How weights of this type are kept: bf16 as block floats where the kernels prefer them. */
static kern_quant quant_of(const bench *b)
{
    return b->quant.bits ? b->quant : kern_block_floats(b->kc, b->type);
}

static kern_matrix matrix_of(const bench *b, const struct shape *s)
{
    return (kern_matrix){.type = b->type, .n = s->n, .k = s->k, .quant = quant_of(b)};
}

static double weight_bytes(const bench *b, const struct shape *s)
{
    kern_matrix w = matrix_of(b, s);
    return (double)kern_matrix_size(&w);
}

/* The limit that products are compared with: operations of this type on registers alone. */
static double rate_limit(const bench *b)
{
    if (b->quant.bits) return b->limits.int_gop_s;
    if (quant_of(b).bits) return b->limits.pair_gop_s;
    return b->type == DTYPE_BF16 ? b->limits.dot_gflop_s : b->limits.fma_gflop_s;
}

static const char *rate_name(const bench *b)
{
    if (b->quant.bits) return "int";
    if (quant_of(b).bits) return "int16";
    return b->type == DTYPE_BF16 ? "dot" : "fma";
}

static void print_line(const bench *b, const struct shape *s, size_t m, timing t)
{
    double bytes = weight_bytes(b, s) + (double)(m * (s->k + s->n)) * sizeof(float);
    double gflop_s = 2.0 * (double)m * (double)s->n * (double)s->k / t.best_us / 1e3;
    double gb_s = bytes / t.best_us / 1e3;
    printf("%-9s %5zu x %-5zu %-5s %5zu %10.1f %10.1f %9.1f %8.2f %7.1f%% %7.1f%%\n", s->name, s->n,
           s->k, b->type_name, m, t.median_us, t.best_us, gflop_s, gb_s,
           100 * gflop_s / rate_limit(b), 100 * gb_s / b->limits.read_gb_s);
    fflush(stdout);
}

static timing time_matmul(const bench *b, kern_matrix *copies, size_t n_copies, const float *x,
                          size_t m, float *y)
{
    double us[RUNS_MAX];
    size_t runs = 0;
    int64_t started = clock_now_us();
    while (runs < RUNS_MAX && (runs < RUNS_MIN || clock_now_us() - started < RUNS_US)) {
        const kern_matrix *w = &copies[runs % n_copies];
        int64_t t = clock_now_ns();
        kern_matmul(b->kc, w, NULL, x, w->k, m, y, w->n);
        us[runs++] = (double)(clock_now_ns() - t) / 1e3;
    }
    return timing_of(us, runs);
}

/* Times one shape; fills t [ROWS]. */
static status bench_matmul(bench *b, const struct shape *s, size_t m_max, timing *t)
{
    kern_matrix shape = matrix_of(b, s);
    size_t bytes = kern_matrix_size(&shape), n_copies = COLD_BYTES / bytes + 1;
    size_t x_bytes = m_max * s->k * sizeof(float), y_bytes = m_max * s->n * sizeof(float);
    kern_matrix *copies = alloc_zeroed(NULL, n_copies, sizeof *copies);
    uint8_t *data = alloc_pages(bytes * n_copies);
    float *x = alloc_pages(x_bytes), *y = alloc_pages(y_bytes);
    bool ok = copies && data && x && y;
    if (ok) {
        fill_weights(b->type, data, bytes * n_copies); /* any integers will do */
        for (size_t i = 0; i < n_copies; i++) {
            copies[i] = shape;
            copies[i].data = data + i * bytes;
        }
        rng r = rng_seed(2);
        for (size_t i = 0; i < m_max * s->k; i++) x[i] = rng_unit(&r) - 0.5f;
        ok = status_ok(measure_limits(b, false));
    }
    for (size_t i = 0; ok && i < ROWS && rows_list[i] <= m_max; i++)
        t[i] = time_matmul(b, copies, n_copies, x, rows_list[i], y);
    ok = ok && status_ok(measure_limits(b, true));
    for (size_t i = 0; ok && i < ROWS && rows_list[i] <= m_max; i++)
        print_line(b, s, rows_list[i], t[i]);
    alloc_free(NULL, copies);
    alloc_pages_free(data, bytes * n_copies);
    alloc_pages_free(x, x_bytes);
    alloc_pages_free(y, y_bytes);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "memory for the operands");
}

static status bench_all_matmuls(bench *b, size_t m_max)
{
    double total_us[ROWS] = {0}, read_us[ROWS] = {0}, fma_us[ROWS] = {0}; /* ours; at the limits */
    for (size_t s = 0; s < SHAPES; s++) {
        timing t[ROWS] = {{0}};
        RETURN_IF_ERROR(bench_matmul(b, &shapes[s], m_max, t));
        double bytes = weight_bytes(b, &shapes[s]);
        double flop = 2.0 * (double)shapes[s].n * (double)shapes[s].k;
        for (size_t i = 0; i < ROWS; i++) {
            total_us[i] += shapes[s].count * t[i].best_us;
            read_us[i] += shapes[s].count * bytes / 1e3 / b->limits.read_gb_s;
            fma_us[i] += shapes[s].count * flop * (double)rows_list[i] / 1e3 / rate_limit(b);
        }
    }
    printf("\nall products of a 1.1B Llama, beside the limits measured around each shape:\n");
    for (size_t i = 0; i < ROWS && rows_list[i] <= m_max; i++)
        printf("%5zu rows: %9.1f ms, %8.1f rows/s, %5.1f%% of read, %5.1f%% of %s\n", rows_list[i],
               total_us[i] / 1e3, 1e6 * (double)rows_list[i] / total_us[i],
               100 * read_us[i] / total_us[i], 100 * fma_us[i] / total_us[i], rate_name(b));
    return STATUS_IS_OK;
}

static int run_kernels(bench *b, unsigned n_threads, size_t m_max)
{
    printf("isa %s, %u threads\n", kern_isa_name(b->kc), n_threads);
    if (!status_ok(measure_limits(b, false)))
        return cli_complain(name, CLI_FAILED, "out of memory");
    printf("limits now: read %.2f GB/s, f32 FMA %.1f, bf16 dot %.1f GFLOP/s, "
           "16-bit integers %.1f, 8-bit integers %.1f GOP/s; measured again around each shape\n\n",
           b->limits.read_gb_s, b->limits.fma_gflop_s, b->limits.dot_gflop_s, b->limits.pair_gop_s,
           b->limits.int_gop_s);
    printf("%-9s %5s x %-5s %-5s %5s %10s %10s %9s %8s %5s%s %8s\n", "matmul", "n", "k", "type",
           "rows", "median us", "best us", "GFLOP/s", "GB/s", "of ", rate_name(b), "of read");
    status st = bench_all_matmuls(b, m_max);
    if (status_ok(st)) st = bench_attention(b->kc, b->kv_type);
    return status_ok(st)
               ? 0
               : cli_complain(name, CLI_FAILED, st.message ? st.message : status_text(st.code));
}

static kern_quant named_quant(const char *type)
{
    uint8_t bits = strcmp(type, "int8") == 0 ? 8 : strcmp(type, "int4") == 0 ? 4 : 0;
    return (kern_quant){bits, KERN_GROUP_MIN};
}

static dtype named_type(const char *type)
{
    return strcmp(type, "f32") == 0 ? DTYPE_F32 : strcmp(type, "f16") == 0 ? DTYPE_F16 : DTYPE_BF16;
}

static int run_on_cpu(const kernels_flags *f)
{
    bench b = {.type_name = f->dtype, .type = named_type(f->dtype), .quant = named_quant(f->dtype)};
    b.kv_type = kern_kv_named(f->kv_dtype);
    if (b.kv_type == KERN_KV_FORMATS) b.kv_type = (kern_kv_format)b.type; /* auto */
    if (strcmp(f->kv_dtype, "fp8") == 0)
        return cli_complain(name, CLI_FAILED, "--kv-dtype: fp8 pages need --device cuda");
    if (strcmp(f->dtype, "fp8") == 0)
        return cli_complain(name, CLI_FAILED, "--dtype: fp8 weights need --device cuda");
    unsigned n_threads = f->threads ? f->threads : cpu_count_allowed();
    error err = {{0}};
    thread_pool_options threads = {.n_threads = n_threads, .pin = true};
    status st = thread_pool_create(&threads, &b.pool);
    if (!status_ok(st)) return cli_complain(name, CLI_FAILED, status_text(st.code));
    kern_options options = {.pool = b.pool, .isa = f->isa};
    if (strcmp(f->precision, "high") == 0) options.precision = KERN_PRECISION_HIGH;
    st = kern_create(&options, &b.kc, &err);
    uint32_t rows = f->rows == 0 ? ROWS_USUAL : f->rows < ROWS_MOST ? f->rows : ROWS_MOST;
    int result =
        status_ok(st) ? run_kernels(&b, n_threads, rows) : cli_complain(name, CLI_FAILED, err.text);
    kern_destroy(b.kc);
    thread_pool_destroy(b.pool);
    return result;
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

static status read_gpu_types(const kernels_flags *f, bench_gpu_kernels_options *out, error *err)
{
    static const gpu_type types[] = {
        [DTYPE_F32] = GPU_F32, [DTYPE_BF16] = GPU_BF16, [DTYPE_F16] = GPU_F16};
    dtype type = named_type(f->dtype);
    const char *pages = strcmp(f->kv_dtype, "auto") != 0 ? f->kv_dtype
                        : type == DTYPE_F16              ? "f16"
                                                         : "bf16";
    uint8_t kv;
    if (!gpu_kv_named(pages, &kv))
        return error_set(err, STATUS_UNSUPPORTED,
                         "--kv-dtype: %s pages are not built for --device cuda: bf16, f16, int8 or "
                         "fp8",
                         pages);
    bool is_float = strcmp(f->dtype, "fp8") == 0;
    *out = (bench_gpu_kernels_options){
        .type = types[type],
        .bits = is_float ? 8 : named_quant(f->dtype).bits,
        .is_float = is_float,
        .kv = (gpu_kv_format)kv,
        .most_rows = f->rows ? f->rows : ROWS_OF_GPU,
        .prefill_rows = strcmp(f->prefill, "mma") == 0     ? GPU_PREFILL_ROWS
                        : strcmp(f->prefill, "wgmma") == 0 ? GPU_WIDE_ROWS
                                                           : 0,
        .part_slots = f->part_slots,
        .few = {f->few_rows, f->few_quant_rows, f->few_of_expert, f->staged_rows}};
    return STATUS_IS_OK;
}

static int run_on_gpu(const kernels_flags *f, uint32_t ordinal)
{
    const gpu_api *api;
    bench_gpu b = {0};
    bench_gpu_kernels_options o;
    error err = {{0}};
    status st = read_gpu_types(f, &o, &err);
    if (status_ok(st)) st = backend_cuda_find(&api, &err);
    if (status_ok(st)) st = bench_gpu_open(api, ordinal, &b, &err);
    if (status_ok(st)) st = bench_gpu_kernels(&b, &o, &err);
    bench_gpu_close(&b);
    return status_ok(st) ? CLI_OK : cli_complain(name, CLI_FAILED, err.text);
}

static int run_on(const kernels_flags *f)
{
    uint32_t ordinal;
    if (f->part_slots % GPU_KV_STEP != 0)
        return cli_complain(name, CLI_USAGE, "--part-slots: it is no multiple of 64");
    if (device_is_cuda(f->device, &ordinal)) return run_on_gpu(f, ordinal);
    if (f->part_slots) return cli_complain(name, CLI_USAGE, "--part-slots: it needs --device cuda");
    if (f->few_rows || f->few_quant_rows || f->few_of_expert || f->staged_rows)
        return cli_complain(name, CLI_USAGE,
                            "--few-rows, --few-quant-rows, --few-of-expert, --staged-rows: they "
                            "need --device cuda");
    if (strcmp(f->prefill, "all") != 0)
        return cli_complain(name, CLI_USAGE, "--prefill-kernel: it needs --device cuda");
    if (strcmp(f->device, "cpu") == 0) return run_on_cpu(f);
    return cli_complain(name, CLI_USAGE, "--device: it is none of cpu, cuda and cuda:N");
}

int cli_bench_kernels(cli_line *line)
{
    kernels_flags f = {0};
    const arg_group group = {"Flags", flags_table, sizeof flags_table / sizeof flags_table[0], &f};
    const arg_command command = {
        .name = name,
        .usage = "[flags]",
        .about = "Each kernel alone on cold operands of a 1.1B Llama, of an 8B one on a GPU: time, "
                 "GB/s,\n"
                 "GFLOP/s and the share of this machine's limits, measured in the same run.",
        .groups = &group,
        .n_groups = 1,
    };
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    result = run_on(&f);
    return cli_finish_output(name) ? result : CLI_FAILED;
}

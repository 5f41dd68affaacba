#include "kernels/context.h"
#include "kernels/choose.h"
#include "kernels/quant_groups.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef void (*fill_fn)(kern_isa *isa);

static bool runs_always(void) { return true; }

#if defined(__x86_64__)
/* __builtin_cpu_supports also asks XGETBV whether the system saves the wide registers. Every CPU
 * with AVX2 and FMA has F16C, which clang's list of names lacks. */
static bool runs_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool runs_avx512(void)
{
    __builtin_cpu_init();
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool runs_vnni(void)
{
    __builtin_cpu_init();
    return runs_avx512() && __builtin_cpu_supports("avx512vnni");
}

static bool runs_bf16(void)
{
    __builtin_cpu_init();
    return runs_vnni() && __builtin_cpu_supports("avx512bf16");
}

/* Whether AMX runs. Tile registers are 8 KiB more state for each thread, which Linux saves only for
 * processes that asked. The permission holds for all threads of the process, running ones
 * included. */
static bool runs_amx(void)
{
    enum { LEAF = 7, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    const unsigned all = AMX_BF16 | AMX_TILE | AMX_INT8;
    unsigned a, b, c, d;
    if (!runs_bf16() || !__get_cpuid_count(LEAF, 0, &a, &b, &c, &d)) return false;
    return (d & all) == all && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

/* Slow to fast. A context of row i runs the fill functions of rows 0 to i. */
static const struct isa_row {
    const char *name;
    bool (*runs)(void);
    bool block_floats; /* it multiplies bf16 fastest as block floats, in standard precision */
    fill_fn fill[9];
} isa_rows[] = {
    {"ref",
     runs_always,
     false,
     {kern_matmul_fill_ref, kern_quant_fill_ref, kern_rows_fill_ref, kern_attention_fill_ref,
      kern_kv_grids_fill_ref, kern_block_scores_fill_ref, kern_cosines_fill_ref}},
#if defined(__x86_64__)
    {"avx2",
     runs_avx2,
     true,
     {kern_matmul_fill_avx2, kern_quant_fill_avx2, kern_rows_fill_avx2, kern_attention_fill_avx2,
      kern_kv_fill_avx2, kern_kv_grids_fill_avx2, kern_block_scores_fill_avx2,
      kern_cosines_fill_avx2, kern_burst_fill_avx2}},
    {"avx512",
     runs_avx512,
     false, /* its registers of f32 are twice as wide as those of AVX2 */
     {kern_matmul_fill_avx512, kern_rows_fill_avx512, kern_attention_fill_avx512,
      kern_block_scores_fill_avx512, kern_cosines_fill_avx512, kern_burst_fill_avx512}},
    {"avx512vnni",
     runs_vnni,
     false,
     {kern_quant_fill_vnni, kern_attention_fill_vnni, kern_burst_fill_vnni}},
    {"avx512bf16",
     runs_bf16,
     false,
     {kern_matmul_fill_bf16, kern_attention_fill_bf16, kern_burst_fill_bf16}},
    {"amx",
     runs_amx,
     false,
     {kern_matmul_fill_amx, kern_quant_fill_amx, kern_attention_fill_amx, kern_burst_fill_amx}},
#endif
};

enum { ISA_ROWS = sizeof isa_rows / sizeof isa_rows[0] };
_Static_assert(ISA_ROWS <= (int)KERN_ISAS_MOST, "choose.c has room for every row");

size_t kern_isa_count(void) { return ISA_ROWS; }

const char *kern_isa_at(size_t i, bool *available)
{
    *available = isa_rows[i].runs();
    return isa_rows[i].name;
}

/* Finds the row of an ISA, which need not run here. NULL means the fastest that does. */
static status choose_isa(const char *name, size_t *out, error *err)
{
    if (!name) {
        const kern_cpu here = kern_cpu_here();
        status s = kern_isa_choose(&here, out);
        return status_ok(s) ? s : error_set(err, s.code, "the default isa: %s", s.message);
    }
    for (*out = 0; *out < ISA_ROWS; ++*out)
        if (strcmp(name, isa_rows[*out].name) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "isa %s: no such instruction set", name);
}

/* Block floats of an ISA. Its fill functions do not say it, because they are compiled for CPUs that
 * have the ISA and run nowhere else. */
static kern_quant floats_of(size_t row, kern_precision precision)
{
    const bool prefers = isa_rows[row].block_floats && precision == KERN_PRECISION_STANDARD;
    return prefers ? (kern_quant){12, QUANT_GROUP_12} : (kern_quant){0};
}

static void fill_isa(size_t row, kern_isa *isa)
{
    for (size_t i = 0; i <= row; i++)
        for (size_t f = 0; f < sizeof isa_rows[i].fill / sizeof isa_rows[i].fill[0]; f++)
            if (isa_rows[i].fill[f]) isa_rows[i].fill[f](isa);
    isa->block_floats = floats_of(row, isa->precision);
    isa->name = isa_rows[row].name;
}

status kern_isa_find(const char *name, kern_isa *out, error *err)
{
    size_t row = 0;
    RETURN_IF_ERROR(choose_isa(name, &row, err));
    if (!isa_rows[row].runs())
        return error_set(err, STATUS_UNSUPPORTED, "isa %s: this CPU lacks it", isa_rows[row].name);
    fill_isa(row, out);
    return STATUS_IS_OK;
}

status kern_create(const kern_options *options, kern_context **out, error *err)
{
    *out = NULL;
    kern_isa isa = {.precision = options->precision};
    RETURN_IF_ERROR(kern_isa_find(options->isa, &isa, err));

    kern_context *kc = alloc_zeroed(NULL, 1, sizeof *kc);
    if (!kc) return error_set(err, STATUS_NO_MEMORY, "kernel context");
    kc->isa = isa;
    kc->pool = options->pool;
    kc->n_threads = thread_pool_size(options->pool);
    kc->threads = alloc_zeroed(NULL, kc->n_threads, sizeof *kc->threads);
    bool ok = kc->threads != NULL;
    for (unsigned t = 0; ok && t < kc->n_threads; t++) {
        kc->threads[t].matmul = alloc_pages(KERN_MATMUL_SCRATCH_BYTES);
        ok = kc->threads[t].matmul != NULL;
    }
    if (!ok) {
        kern_destroy(kc);
        return error_set(err, STATUS_NO_MEMORY, "kernel scratch for %u threads",
                         thread_pool_size(options->pool));
    }
    *out = kc;
    return STATUS_IS_OK;
}

bool kern_reserve(kern_buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->bytes) return true;
    bytes += bytes / 2; /* so that a growing sequence does not reallocate at each page */
    void *data = alloc_pages(bytes);
    if (!data) return false;
    alloc_pages_free(buffer->data, buffer->bytes);
    *buffer = (kern_buffer){data, bytes};
    return true;
}

static void kern_buffer_free(kern_buffer *buffer)
{
    alloc_pages_free(buffer->data, buffer->bytes);
    *buffer = (kern_buffer){0};
}

void kern_destroy(kern_context *kc)
{
    if (!kc) return;
    for (unsigned t = 0; kc->threads && t < kc->n_threads; t++)
        alloc_pages_free(kc->threads[t].matmul, KERN_MATMUL_SCRATCH_BYTES);
    kern_buffer_free(&kc->attention.units);
    kern_buffer_free(&kc->attention.mass_offsets);
    kern_buffer_free(&kc->attention.mass);
    kern_buffer_free(&kc->attention.rows);
    kern_buffer_free(&kc->attention.parts);
    kern_buffer_free(&kc->measure.threads);
    kern_buffer_free(&kc->measure.units);
    kern_buffer_free(&kc->measure.pieces);
    kern_buffer_free(&kc->measure.rows);
    kern_buffer_free(&kc->read);
    alloc_free(NULL, kc->threads);
    alloc_free(NULL, kc);
}

kern_quant kern_block_floats(const kern_context *kc, dtype type)
{
    return type == DTYPE_BF16 ? kc->isa.block_floats : (kern_quant){0};
}

status kern_block_floats_of(const kern_options *options, dtype type, kern_quant *out, error *err)
{
    size_t row = 0;
    RETURN_IF_ERROR(choose_isa(options->isa, &row, err));
    *out = type == DTYPE_BF16 ? floats_of(row, options->precision) : (kern_quant){0};
    return STATUS_IS_OK;
}

const char *kern_isa_name(const kern_context *kc) { return kc->isa.name; }

/* Chooses the instruction set of a context that names none: by a table for models of CPUs that were
 * measured, else by timing two products with each instruction set here, which takes some
 * milliseconds. */
#include "kernels/choose.h"

#include "kernels/kernels.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The product that is timed: its weights stay in a second-level cache of 512 KiB, and it has enough
 * rows for arithmetic to count. */
enum { ROWS = 32, OUTPUTS = 256, INPUTS = 512, REPEATS = 6 };

/* How much slower in both types together an instruction set may be than the choice before it and
 * still replace it. Timings of one product differ by a tenth, so equals keep the later one, always
 * the same. */
#define TOLERANCE 1.25

/* The models that were measured. Zen 4 and Zen 5 multiply bf16 at twice the rate of f32 with
 * vdpbf16ps. Sapphire Rapids, whose fast bf16 is AMX, has a third of the rate of f32 (64 GFLOP/s
 * where FMA does 195). */
static const struct measured_cpu {
    const char *vendor;
    unsigned family, model;
    const char *slow; /* an instruction set that is never the default; "": none */
} measured[] = {
    {"AuthenticAMD", 25, 17, ""},          /* Zen 4 */
    {"AuthenticAMD", 26, 2, ""},           /* Zen 5 */
    {"GenuineIntel", 6, 143, "avx512bf16"} /* Sapphire Rapids */
};

kern_cpu kern_cpu_here(void)
{
    kern_cpu cpu = {0};
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return cpu;
    memcpy(cpu.vendor, &b, 4);
    memcpy(cpu.vendor + 4, &d, 4);
    memcpy(cpu.vendor + 8, &c, 4);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return cpu;
    cpu.family = a >> 8 & 15;
    cpu.model = a >> 4 & 15;
    if (cpu.family == 6 || cpu.family == 15) cpu.model += (a >> 16 & 15) << 4;
    if (cpu.family == 15) cpu.family += a >> 20 & 255;
#endif
    return cpu;
}

const char *kern_cpu_slow_isa(const kern_cpu *cpu)
{
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        const struct measured_cpu *m = &measured[i];
        if (strcmp(cpu->vendor, m->vendor) == 0 && cpu->family == m->family &&
            cpu->model == m->model)
            return m->slow;
    }
    return NULL;
}

size_t kern_isa_fastest(const kern_isa_times *times, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        if (!times[i].runs) continue;
        double ratio = best == n ? 0
                                 : times[i].bf16_ns / times[best].bf16_ns *
                                       (times[i].int8_ns / times[best].int8_ns);
        if (ratio < TOLERANCE) best = i;
    }
    return best;
}

/* ---- timing ---------------------------------------------------------------------------------- */

enum { TYPES = 2 };

/* The operands of the timed products: one block of memory, on a pool of one thread. */
typedef struct operands {
    thread_pool *pool;
    kern_matrix w[TYPES];
    float *x, *y;
    uint8_t *memory;
    size_t bytes;
} operands;

static void destroy_operands(operands *o)
{
    alloc_pages_free(o->memory, o->bytes);
    thread_pool_destroy(o->pool);
}

static status make_operands(operands *o)
{
    *o = (operands){.w = {{.type = DTYPE_BF16, .n = OUTPUTS, .k = INPUTS},
                          {.n = OUTPUTS, .k = INPUTS, .quant = {8, KERN_GROUP_MIN}}}};
    const size_t x_bytes = sizeof(float) * ROWS * INPUTS, y_bytes = sizeof(float) * ROWS * OUTPUTS;
    const size_t w_bytes = kern_matrix_size(&o->w[0]); /* block floats take less */
    o->bytes = x_bytes + y_bytes + w_bytes + kern_matrix_size(&o->w[1]);
    o->memory = alloc_pages(o->bytes);
    if (!o->memory) return status_make(STATUS_NO_MEMORY, "products that are timed");
    o->x = (float *)(void *)o->memory;
    o->y = (float *)(void *)(o->memory + x_bytes);
    o->w[0].data = o->memory + x_bytes + y_bytes;
    o->w[1].data = o->memory + x_bytes + y_bytes + w_bytes;
    for (size_t i = 0; i < (size_t)ROWS * INPUTS; i++) o->x[i] = (float)(i % 61) - 30.0f;
    return thread_pool_create(&(thread_pool_options){.n_threads = 1}, &o->pool);
}

/* The weights are zeros, in whatever form this context multiplies them. */
static double product_ns(kern_context *kc, const operands *o, size_t type)
{
    kern_matrix w = o->w[type];
    if (type == 0) w.quant = kern_block_floats(kc, w.type);
    int64_t start = clock_now_ns();
    kern_matmul(kc, &w, NULL, o->x, INPUTS, ROWS, o->y, OUTPUTS);
    return (double)(clock_now_ns() - start);
}

static void keep_least(double *least, double ns)
{
    if (*least == 0 || ns < *least) *least = ns;
}

/* Times each context's products in turn, so that a slow moment of the machine meets all of them;
 * other processes only ever slow a product down, so the least time counts. */
static void time_contexts(kern_context *const *contexts, size_t n, const operands *o,
                          kern_isa_times *times)
{
    for (int round = 0; round < REPEATS; round++)
        for (size_t i = 0; i < n; i++) {
            if (!contexts[i]) continue;
            keep_least(&times[i].bf16_ns, product_ns(contexts[i], o, 0));
            keep_least(&times[i].int8_ns, product_ns(contexts[i], o, 1));
        }
}

status kern_isa_measure(kern_isa_times *times, size_t n)
{
    operands o;
    kern_context *contexts[KERN_ISAS_MOST] = {NULL};
    status s = make_operands(&o);
    memset(times, 0, n * sizeof *times);
    for (size_t i = 0; i < n && status_ok(s); i++) {
        const char *name = kern_isa_at(i, &times[i].runs);
        /* The reference, in plain C, is not worth its time where anything else runs. */
        times[i].runs = times[i].runs && i > 0;
        if (times[i].runs)
            s = kern_create(&(kern_options){.pool = o.pool, .isa = name}, &contexts[i], NULL);
    }
    if (status_ok(s)) time_contexts(contexts, n, &o, times);
    for (size_t i = 0; i < n; i++) kern_destroy(contexts[i]);
    destroy_operands(&o);
    return s;
}

/* The last instruction set that runs and is not `slow`. */
static size_t last_isa(size_t n, const char *slow)
{
    size_t last = 0;
    for (size_t i = 0; i < n; i++) {
        bool runs;
        const char *name = kern_isa_at(i, &runs);
        if (runs && strcmp(name, slow) != 0) last = i;
    }
    return last;
}

status kern_isa_choose(const kern_cpu *cpu, size_t *out)
{
    size_t n = kern_isa_count();
    const char *slow = kern_cpu_slow_isa(cpu);
    *out = last_isa(n, slow ? slow : "");
    if (slow || *out <= 1) return STATUS_IS_OK; /* measured, or one faster than the reference */
    kern_isa_times times[KERN_ISAS_MOST];
    RETURN_IF_ERROR(kern_isa_measure(times, n));
    *out = kern_isa_fastest(times, n);
    return STATUS_IS_OK;
}

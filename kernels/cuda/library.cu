/* Products by cublasLt: of 16 and 32 bits, and of e4m3 by e4m3. */
#include "kernels/cuda/device.cuh"

#include <math.h>
#include <stdio.h>

static cudaDataType_t data_type(gpu_type t)
{
    return t == GPU_BF16 ? CUDA_R_16BF : t == GPU_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Where the scales of e4m3 operands lie on the device. */
typedef struct scales_at {
    const void *w, *x;
} scales_at;

enum {
    INVARIANT_ROWS = 128, /* in invariant mode algorithms are those for so many rows, always */
    CANDIDATES = 8,       /* algorithms of a shape that are timed */
    TIMED_RUNS = 2,       /* of each, behind one that is not timed; the faster one counts */
    LOOKED_AT = 4,        /* places of a shape in the table */
};

static size_t rounded_rows(const gpu *g, size_t m)
{
    return g->invariant ? (size_t)INVARIANT_ROWS : gpu_rounded_rows(m);
}

typedef struct shapes {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
} shapes;

static void forget_shapes(shapes *s)
{
    if (s->product) cublasLtMatmulDescDestroy(s->product);
    if (s->w) cublasLtMatrixLayoutDestroy(s->w);
    if (s->x) cublasLtMatrixLayoutDestroy(s->x);
    if (s->y) cublasLtMatrixLayoutDestroy(s->y);
}

#if CUBLAS_VERSION >= 120900
/* Scales of 128 columns lie group by group, those of all rows together. */
static cublasStatus_t set_scales(const algorithm *c, const scales_at *at, shapes *s)
{
    int32_t mode = c->scales == SCALES_ROWS ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                            : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const struct {
        cublasLtMatmulDescAttributes_t what;
        const void *value;
        size_t bytes;
    } all[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode},
               {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode},
               {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &at->w, sizeof at->w},
               {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &at->x, sizeof at->x}};
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; e == CUBLAS_STATUS_SUCCESS && i < sizeof all / sizeof *all; i++)
        e = cublasLtMatmulDescSetAttribute(s->product, all[i].what, all[i].value, all[i].bytes);
    return e;
}
#else
static cublasStatus_t set_scales(const algorithm *, const scales_at *, shapes *)
{
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
#endif

/* The library stores matrices by columns: y^T [n, m] = (W^T)^T [n, k] x^T [k, m]. */
static cublasStatus_t make_shapes(const algorithm *c, size_t m, const scales_at *scales, shapes *s)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t type = c->scales == SCALES_PLAIN ? data_type(c->type) : CUDA_R_8F_E4M3;
    cublasStatus_t e = cublasLtMatmulDescCreate(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulDescSetAttribute(s->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&s->w, type, c->k, c->n, (int64_t)c->k);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&s->x, type, c->k, m, (int64_t)c->k);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&s->y, data_type(c->y_type), c->n, m, (int64_t)c->n);
    if (e == CUBLAS_STATUS_SUCCESS && (c->scales == SCALES_ROWS || c->scales == SCALES_GROUPS))
        e = set_scales(c, scales, s);
    return e;
}

/* Asks the library for up to `most` algorithms of a shape with c->m rows, its first choice first.
 * Success means that there is one. */
static cublasStatus_t ask(gpu *g, const algorithm *c, const scales_at *scales, int most,
                          cublasLtMatmulHeuristicResult_t *out, int *found)
{
    shapes s = {NULL, NULL, NULL, NULL};
    cublasLtMatmulPreference_t wish = NULL;
    size_t workspace = WORKSPACE_BYTES;
    *found = 0;
    uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t e = make_shapes(c, c->m, scales, &s);
    if (e == CUBLAS_STATUS_SUCCESS) e = cublasLtMatmulPreferenceCreate(&wish);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace);
    const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4 && e == CUBLAS_STATUS_SUCCESS; i++)
        e = cublasLtMatmulPreferenceSetAttribute(wish, aligned[i], &c->alignment,
                                                 sizeof c->alignment);
    if (e == CUBLAS_STATUS_SUCCESS && g->invariant)
        e = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &no_split, sizeof no_split);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulAlgoGetHeuristic(g->library, s.product, s.w, s.x, s.y, s.y, wish, most,
                                           out, found);
    if (wish) cublasLtMatmulPreferenceDestroy(wish);
    forget_shapes(&s);
    return e == CUBLAS_STATUS_SUCCESS && *found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : e;
}

/* Takes the library's first choice. */
static cublasStatus_t find_algorithm(gpu *g, algorithm *c, const scales_at *scales)
{
    cublasLtMatmulHeuristicResult_t best;
    int found;
    cublasStatus_t e = ask(g, c, scales, 1, &best, &found);
    if (e != CUBLAS_STATUS_SUCCESS) return e;
    c->algo = best.algo;
    c->state = ALGORITHM_KNOWN;
    return e;
}

/* The alignment of all operands in bytes. In invariant mode it is at most 16, so that an expert's
 * result does not depend on the rows it has. */
static uint32_t alignment_of(const gpu *g, const void *w, const void *x, const void *y)
{
    uintptr_t all = (uintptr_t)w | (uintptr_t)x | (uintptr_t)y | (g->invariant ? 16 : 256);
    return (uint32_t)(all & ~(all - 1));
}

static bool is_shape(const algorithm *a, const algorithm *b)
{
    return a->n == b->n && a->k == b->k && a->m == b->m && a->type == b->type &&
           a->y_type == b->y_type && a->scales == b->scales && a->alignment == b->alignment;
}

/* The shape's place in the table: where it is already, or a free place, or else one that another
 * shape loses. */
static algorithm *algorithm_of(gpu *g, const algorithm *c)
{
    const uint64_t mix = 0x9e3779b97f4a7c15u; /* its upper bits depend on all of a factor's */
    uint64_t hash = (c->m * mix + c->n) * mix + c->k;
    algorithm *place = NULL;
    hash = (hash * mix + (uint64_t)c->y_type * 64 + (uint64_t)c->scales * 8 + c->alignment) * mix;
    hash >>= 40;
    for (size_t i = 0; i < LOOKED_AT; i++) {
        algorithm *at = &g->algorithms[(hash + i) % ALGORITHMS];
        if (at->state != ALGORITHM_UNKNOWN && is_shape(at, c)) return at;
        if (at->state == ALGORITHM_UNKNOWN && !place) place = at;
    }
    if (!place) place = &g->algorithms[hash % ALGORITHMS];
    *place = *c;
    return place;
}

/* Operands of one product. */
typedef struct operands {
    const void *w, *x;
    size_t m;
    void *y;
    scales_at scales;
} operands;

static cublasStatus_t run_algorithm(gpu *g, const algorithm *c, const operands *o)
{
    shapes s = {NULL, NULL, NULL, NULL};
    const float one = 1.0f, zero = 0.0f;
    cublasStatus_t e = make_shapes(c, o->m, &o->scales, &s);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmul(g->library, s.product, &one, o->w, s.w, o->x, s.x, &zero, o->y, s.y,
                           o->y, s.y, &c->algo, g->workspace, WORKSPACE_BYTES, queue_on_stream(g));
    forget_shapes(&s);
    return e;
}

/* Microseconds of a product by c's algorithm, the least of a few. */
static cublasStatus_t time_algorithm(gpu *g, const algorithm *c, const operands *o, double *us)
{
    cublasStatus_t e = run_algorithm(g, c, o);
    *us = INFINITY;
    for (int i = 0; i < TIMED_RUNS && e == CUBLAS_STATUS_SUCCESS; i++) {
        double now = 0.0;
        bool well = gpu_mark(g) == GPU_OK;
        e = run_algorithm(g, c, o);
        well = well && gpu_elapsed(g, &now) == GPU_OK;
        if (e == CUBLAS_STATUS_SUCCESS && !well) e = CUBLAS_STATUS_EXECUTION_FAILED;
        if (now < *us) *us = now;
    }
    if (e != CUBLAS_STATUS_SUCCESS) (void)cudaGetLastError(); /* the others may run */
    return e;
}

/* Takes the fastest of the library's choices. One that fails is passed over. */
static cublasStatus_t choose_algorithm(gpu *g, algorithm *c, const operands *o)
{
    cublasLtMatmulHeuristicResult_t all[CANDIDATES];
    double least = INFINITY;
    int found;
    cublasStatus_t e = ask(g, c, &o->scales, CANDIDATES, all, &found);
    if (e != CUBLAS_STATUS_SUCCESS) return e;
    e = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < found; i++) {
        algorithm one = *c;
        double us;
        one.algo = all[i].algo;
        if (all[i].state != CUBLAS_STATUS_SUCCESS ||
            time_algorithm(g, &one, o, &us) != CUBLAS_STATUS_SUCCESS || us >= least)
            continue;
        least = us;
        e = CUBLAS_STATUS_SUCCESS;
        c->algo = one.algo;
        c->state = ALGORITHM_TIMED;
    }
    return e;
}

/* Multiplies by the algorithm for the rounded number of rows, or by one for exactly m. */
static gpu_status multiply(gpu *g, const algorithm *of, const operands *o)
{
    algorithm wanted = *of;
    enter(g);
    algorithm *c = algorithm_of(g, &wanted);
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    if (g->times && c->state != ALGORITHM_TIMED) e = choose_algorithm(g, c, o);
    else if (c->state == ALGORITHM_UNKNOWN) e = find_algorithm(g, c, &o->scales);
    if (e == CUBLAS_STATUS_SUCCESS) e = run_algorithm(g, c, o);
    /* An algorithm for more rows may not support m rows. */
    if (e != CUBLAS_STATUS_SUCCESS && wanted.m != o->m && !g->invariant) {
        wanted.m = o->m;
        e = find_algorithm(g, &wanted, &o->scales);
        if (e == CUBLAS_STATUS_SUCCESS) e = run_algorithm(g, &wanted, o);
    }
    if (e == CUBLAS_STATUS_SUCCESS) return gpu_launched(g, "product");
    snprintf(g->why, sizeof g->why, "product [%zu, %zu] by [%zu, %zu]: cublasLt returned %d", o->m,
             of->k, of->n, of->k, (int)e);
    return e == CUBLAS_STATUS_NOT_SUPPORTED ? GPU_UNSUPPORTED : GPU_LOST;
}

bool gpu_library_times(gpu *g, bool on)
{
    g->times = on && !g->invariant;
    return g->times;
}

gpu_status gpu_library_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                               gpu_type y_type)
{
    algorithm wanted = algorithm();
    wanted.n = w->n;
    wanted.k = w->k;
    wanted.m = rounded_rows(g, m);
    wanted.type = w->type;
    wanted.y_type = y_type;
    wanted.alignment = alignment_of(g, w->data, x, y);
    const operands o = {w->data, x, m, y, {NULL, NULL}};
    return multiply(g, &wanted, &o);
}

/* ---- e4m3 by e4m3 ---------------------------------------------------------------------------- */

enum { FIRST_NARROW = 89 /* compute capability with products of e4m3 */ };

static algorithm of_floats(const gpu *g, const gpu_floats *f, const void *y, gpu_type y_type,
                           library_scales scales)
{
    algorithm a = algorithm();
    a.n = f->n;
    a.k = f->k;
    a.m = rounded_rows(g, f->m);
    a.y_type = y_type;
    a.scales = scales;
    a.alignment = alignment_of(g, f->w, f->x, y);
    return a;
}

/* Whether the library has such a product. Its refusal is remembered, as its algorithm is. */
static bool has_product(gpu *g, const gpu_floats *f, const void *y, gpu_type y_type,
                        library_scales scales)
{
    algorithm wanted = of_floats(g, f, y, y_type, scales), *c = algorithm_of(g, &wanted);
    const scales_at at = {f->w_scales, f->x_scales};
    if (c->state == ALGORITHM_UNKNOWN && find_algorithm(g, c, &at) != CUBLAS_STATUS_SUCCESS)
        c->state = ALGORITHM_REFUSED;
    return c->state != ALGORITHM_REFUSED;
}

/* The way in which the library multiplies; false: it does not. Sums without scales may be too large
 * for f16. */
static bool find_way(gpu *g, const gpu_floats *f, const void *y, gpu_type y_type,
                     library_scales *out)
{
    *out = f->by_group ? SCALES_GROUPS : SCALES_ROWS;
    if (has_product(g, f, y, y_type, *out)) return true;
    *out = SCALES_NONE;
    return !f->by_group && y_type != GPU_F16 && has_product(g, f, y, y_type, *out);
}

gpu_scaled gpu_library_scales(gpu *g, const gpu_floats *f, const void *y, gpu_type y_type)
{
    library_scales way;
    enter(g);
    if (!find_way(g, f, y, y_type, &way)) return GPU_SCALED_NEVER;
    return way == SCALES_NONE ? GPU_SCALED_AFTER : GPU_SCALED_HERE;
}

gpu_status gpu_library_floats(gpu *g, const gpu_floats *f, void *y, gpu_type y_type)
{
    library_scales way;
    enter(g);
    if (!find_way(g, f, y, y_type, &way)) return GPU_UNSUPPORTED;
    algorithm wanted = of_floats(g, f, y, y_type, way);
    const operands o = {f->w, f->x, f->m, y, {f->w_scales, f->x_scales}};
    return multiply(g, &wanted, &o);
}

void gpu_probe_library(gpu *g, gpu_facts *facts)
{
    enum { SIDE = 1024 };
    if (facts->compute < FIRST_NARROW) return;
    gpu_floats f = gpu_floats();
    const uint8_t *bytes = (const uint8_t *)g->workspace; /* an address, which nothing reads */
    f.n = f.k = f.m = SIDE;
    f.w = f.x = bytes;
    f.w_scales = f.x_scales = (const float *)g->workspace;
    facts->narrow_rows = facts->narrow_groups = true;
    for (int type = GPU_F32; type <= GPU_BF16; type++) {
        library_scales way;
        f.by_group = false;
        facts->narrow_rows &= find_way(g, &f, bytes, (gpu_type)type, &way);
        f.by_group = true;
        facts->narrow_groups &= find_way(g, &f, bytes, (gpu_type)type, &way);
    }
}

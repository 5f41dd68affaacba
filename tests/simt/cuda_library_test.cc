/* kernels/cuda/library.cu over a library that multiplies nothing and says how long that took: which
 * of its algorithms are taken, and when it is asked. */
#include "kernels/cuda/device.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALGOS = 10, FIRST_RUNS = 3, NEVER = -1 };

/* The library. An algorithm's first runs take `more` microseconds than the others. */
static struct library {
    int n; /* algorithms that it names, the first one first */
    double us[ALGOS], more[ALGOS][FIRST_RUNS];
    unsigned good[ALGOS];      /* runs before it fails */
    bool is_bad[ALGOS];        /* by its state */
    uint64_t most_rows[ALGOS]; /* more are not supported; 0: any are */
    unsigned runs[ALGOS];
    unsigned asked, named, alive; /* named: of the last answer; alive: descriptors */
    unsigned waits;
    int last; /* the algorithm of the last product */
    double clock, marked;
} lib;

struct fake_product {
    int scale_mode;
};
struct fake_layout {
    uint64_t columns;
};
struct fake_wish {
    int unused;
};

template <class T> static cublasStatus_t make(T **out)
{
    *out = (T *)calloc(1, sizeof **out);
    lib.alive++;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t forget(T *p)
{
    free(p);
    lib.alive--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t,
                                        cudaDataType_t)
{
    return make(out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) { return forget(p); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t)
{
    if (what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE) memcpy(&p->scale_mode, value, sizeof(int));
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t, uint64_t,
                                          uint64_t columns, int64_t)
{
    cublasStatus_t e = make(out);
    (*out)->columns = columns;
    return e;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p) { return forget(p); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) { return make(out); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return forget(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *found)
{
    int n = lib.n < most ? lib.n : most;
    for (int i = 0; i < n; i++) {
        out[i].algo.data[0] = (uint64_t)i;
        out[i].state = lib.is_bad[i] ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    *found = n;
    lib.asked++;
    lib.named = (unsigned)n;
    return n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                              cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t of_b,
                              const void *, const void *, cublasLtMatrixLayout_t, void *,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *algo, void *,
                              size_t, cudaStream_t)
{
    int i = (int)algo->data[0];
    if (lib.runs[i] >= lib.good[i]) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (lib.most_rows[i] && of_b->columns > lib.most_rows[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
    lib.clock += lib.us[i] + (lib.runs[i] < FIRST_RUNS ? lib.more[i][lib.runs[i]] : 0.0);
    lib.runs[i]++;
    lib.last = i;
    return CUBLAS_STATUS_SUCCESS;
}

/* The functions of device.cu that library.cu calls. */
gpu_status gpu_mark(gpu *)
{
    lib.marked = lib.clock;
    return GPU_OK;
}
gpu_status gpu_elapsed(gpu *, double *us)
{
    *us = lib.clock - lib.marked;
    lib.waits++;
    return GPU_OK;
}
gpu_status gpu_launched(gpu *, const char *) { return GPU_OK; }

/* ---- the tests ------------------------------------------------------------------------------- */

static unsigned n_failed;

static void judge(bool holds, const char *what)
{
    n_failed += !holds;
    printf("%s  %s\n", holds ? "PASS" : "FAIL", what);
}

/* A gpu beside a library of `n` algorithms, which take 20, 19, 18 … microseconds. */
static gpu *open_gpu(int n)
{
    lib = library();
    lib.n = n;
    lib.last = NEVER;
    for (int i = 0; i < ALGOS; i++) lib.us[i] = 20.0 - i, lib.good[i] = ~0u;
    return (gpu *)calloc(1, sizeof(gpu));
}

static void close_gpu(gpu *g)
{
    judge(lib.alive == 0, "  its descriptors are destroyed");
    free(g);
}

alignas(256) static char memory[1024];

/* The algorithm of a product of m rows. */
static int multiply(gpu *g, size_t m, size_t n = 64)
{
    gpu_matrix w = gpu_matrix();
    w.data = memory;
    w.n = n;
    w.k = 32;
    w.type = GPU_BF16;
    lib.last = NEVER;
    bool ok = gpu_library_product(g, &w, memory, m, memory, GPU_F32) == GPU_OK;
    return ok ? lib.last : NEVER;
}

static int multiply_floats(gpu *g, size_t m, bool by_group)
{
    gpu_floats f = gpu_floats();
    f.n = 64;
    f.k = 256;
    f.m = m;
    f.by_group = by_group;
    f.w = f.x = (const uint8_t *)memory;
    f.w_scales = f.x_scales = (const float *)memory;
    lib.last = NEVER;
    if (gpu_library_scales(g, &f, memory, GPU_F32) == GPU_SCALED_NEVER) return NEVER;
    bool ok = gpu_library_floats(g, &f, memory, GPU_F32) == GPU_OK;
    return ok ? lib.last : NEVER;
}

static void first_choice(void)
{
    gpu *g = open_gpu(8);
    judge(multiply(g, 100) == 0 && multiply(g, 97) == 0, "a step takes the first choice");
    judge(lib.asked == 1 && lib.named == 1, "  which it asks for once");
    judge(lib.waits == 0 && lib.runs[1] == 0, "  and times nothing");
    close_gpu(g);
}

static void fastest(void)
{
    gpu *g = open_gpu(8);
    lib.us[3] = 2.0;
    lib.us[5] = 5.0;
    judge(gpu_library_times(g, true), "there are algorithms to time");
    judge(multiply(g, 104) == 3, "the fastest of eight is taken");
    judge(lib.named == 8 && lib.runs[7] > 1, "  of all that the library names");
    unsigned asked = lib.asked, waits = lib.waits;
    judge(multiply(g, 97) == 3 && lib.asked == asked && lib.waits == waits, "  once for a shape");
    judge(!gpu_library_times(g, false), "timing ends");
    judge(multiply(g, 100) == 3 && lib.asked == asked, "  and later steps take it");
    judge(multiply(g, 105) == 0 && lib.waits == waits, "  where their shape was timed");
    close_gpu(g);
}

/* A first run, and one of two others, may be slow. */
static void slow_runs(void)
{
    for (int slow = 1; slow < FIRST_RUNS; slow++) {
        gpu *g = open_gpu(8);
        lib.us[3] = 2.0;
        lib.more[3][0] = lib.more[3][slow] = 100.0;
        (void)gpu_library_times(g, true);
        judge(multiply(g, 104) == 3, "the fastest is taken where two of its runs are slow");
        close_gpu(g);
    }
}

static void chosen_again(void)
{
    gpu *g = open_gpu(8);
    lib.us[2] = 1.0;
    judge(multiply(g, 64) == 0, "a shape that was met before it is timed");
    (void)gpu_library_times(g, true);
    judge(multiply(g, 64) == 2, "  is timed all the same");
    close_gpu(g);
}

static void failing(void)
{
    gpu *g = open_gpu(8);
    lib.us[1] = 1.0, lib.good[1] = 0;
    lib.us[3] = 1.0, lib.good[3] = 2; /* the last timed run fails */
    lib.us[2] = 2.0, lib.is_bad[2] = true;
    lib.us[4] = 4.0;
    (void)gpu_library_times(g, true);
    judge(multiply(g, 16) == 4, "algorithms that fail are passed over");
    judge(lib.runs[2] == 0, "  and those that the library warns of are not run");
    for (unsigned &n : lib.good) n = 0;
    judge(multiply(g, 24) == NEVER, "where all fail the product fails");
    for (unsigned &n : lib.good) n = ~0u;
    (void)gpu_library_times(g, false);
    judge(multiply(g, 24) == 0, "  and a later one takes the first choice");
    close_gpu(g);
}

static void rows_in_between(void)
{
    gpu *g = open_gpu(2);
    lib.us[1] = 1.0;
    lib.most_rows[1] = 198;
    (void)gpu_library_times(g, true);
    judge(multiply(g, 197) == 1, "fewer rows than their class has are timed as they are");
    (void)gpu_library_times(g, false);
    unsigned asked = lib.asked;
    judge(multiply(g, 193) == 1 && lib.asked == asked, "  and are of one class with others");
    close_gpu(g);
}

static void invariant(void)
{
    gpu *g = open_gpu(8);
    g->invariant = true;
    judge(!gpu_library_times(g, true), "in invariant mode nothing is timed");
    judge(multiply(g, 100) == 0 && lib.waits == 0 && lib.named == 1, "  and the first is taken");
    close_gpu(g);
}

static void floats(void)
{
    for (int by_group = 0; by_group < 2; by_group++) {
        gpu *g = open_gpu(8);
        lib.us[6] = 3.0;
        (void)gpu_library_times(g, true);
        judge(multiply_floats(g, 256, by_group) == 6, "products of e4m3 are timed");
        (void)gpu_library_times(g, false);
        unsigned asked = lib.asked;
        judge(multiply_floats(g, 256, by_group) == 6 && lib.asked == asked, "  and remembered");
        close_gpu(g);
    }
    gpu *g = open_gpu(0);
    (void)gpu_library_times(g, true);
    judge(multiply_floats(g, 256, true) == NEVER && multiply_floats(g, 256, false) == NEVER,
          "what the library refuses stays refused");
    close_gpu(g);
}

/* Five products of a model, each with the classes up to 8,192 rows. */
static void many_shapes(void)
{
    gpu *g = open_gpu(2);
    lib.us[1] = 1.0;
    for (int timing = 1; timing >= 0; timing--) {
        unsigned asked = lib.asked, n = 0;
        (void)gpu_library_times(g, timing);
        for (size_t of_w = 1; of_w <= 5; of_w++)
            for (size_t m = 0; m < 8192;) {
                m = gpu_rounded_rows(m + 1);
                n += multiply(g, m, of_w * 1024) == 1;
            }
        if (!timing)
            judge(n == 5 * 64 && lib.asked == asked, "all shapes of a model are remembered");
    }
    close_gpu(g);
}

int main(void)
{
    first_choice();
    fastest();
    slow_runs();
    chosen_again();
    failing();
    rows_in_between();
    invariant();
    floats();
    many_shapes();
    return n_failed != 0;
}

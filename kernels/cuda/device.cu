/* A GPU: memory, copies, the stream, the library's products, and the plugin's table. */
#include "kernels/cuda/cuda_sums.h"
#include "kernels/cuda/simt.cuh"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WORKSPACE_BYTES = 32 << 20,
    ALGORITHMS = 512, /* algorithms of the library that are remembered, by shape */
};

/* The library's algorithm for one shape. m is part of the shape, because the best algorithm depends
 * on it; it is rounded, because asking is slow and steps have every number of rows. */
typedef struct algorithm {
    size_t n, k, m;
    gpu_type type, y_type;
    uint32_t alignment; /* in bytes, of all three: rows of experts begin anywhere */
    bool known;
    cublasLtMatmulAlgo_t algo;
} algorithm;

struct gpu {
    int ordinal;
    uint32_t n_sms;
    cudaStream_t stream;
    cublasLtHandle_t library;
    void *workspace;
    cudaEvent_t events[2]; /* of gpu_mark and gpu_elapsed */
    cudaEvent_t notes[2];
    cudaStream_t copies[2];         /* the lanes UP and DOWN */
    cudaEvent_t reached[GPU_LANES]; /* of gpu_order: how far a lane has come */
    bool invariant;
    char why[256];
    algorithm algorithms[ALGORITHMS];
};

/* Makes the gpu's device current: the first thing that every function which calls CUDA does. The
 * current device belongs to the thread, the thread that opened the gpu need not be the one that
 * uses it, and launches, memory and events go to the current device. */
static void enter(const gpu *g)
{
    int current;
    if (cudaGetDevice(&current) == cudaSuccess && current == g->ordinal) return;
    (void)cudaSetDevice(g->ordinal); /* the next call shows a failure */
}

cudaStream_t gpu_stream(const gpu *g)
{
    enter(g);
    return g->stream;
}
uint32_t gpu_sms(const gpu *g) { return g->n_sms; }

static gpu_status fail(gpu *g, const char *what, cudaError_t e)
{
    if (e == cudaSuccess) return GPU_OK;
    snprintf(g->why, sizeof g->why, "%s: %s (%s)", what, cudaGetErrorString(e),
             cudaGetErrorName(e));
    (void)cudaGetLastError(); /* clears an error of memory; others are sticky */
    return e == cudaErrorMemoryAllocation ? GPU_NO_MEMORY : GPU_LOST;
}

gpu_status gpu_launched(gpu *g, const char *what)
{
    enter(g); /* errors are the current device's */
    return fail(g, what, cudaPeekAtLastError());
}

void gpu_allow_shared(gpu *g, const void *kernel, size_t bytes)
{
    if (bytes <= 48 * 1024) return;
    enter(g); /* the attribute is per device */
    /* The launch shows a failure. */
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* ---- open and close -------------------------------------------------------------------------- */

static void gpu_close(gpu *g)
{
    if (!g) return;
    enter(g);
    if (g->library) cublasLtDestroy(g->library);
    if (g->workspace) cudaFree(g->workspace);
    for (int i = 0; i < 2; i++) {
        if (g->events[i]) cudaEventDestroy(g->events[i]);
        if (g->notes[i]) cudaEventDestroy(g->notes[i]);
    }
    for (int i = 0; i < GPU_LANES; i++)
        if (g->reached[i]) cudaEventDestroy(g->reached[i]);
    for (int i = 0; i < 2; i++)
        if (g->copies[i]) cudaStreamDestroy(g->copies[i]);
    if (g->stream) cudaStreamDestroy(g->stream);
    free(g);
}

static gpu_status set_up(gpu *g, uint32_t ordinal, gpu_facts *facts)
{
    cudaDeviceProp p;
    size_t free_bytes, bytes;
    g->ordinal = (int)ordinal;
    gpu_status s = fail(g, "cudaSetDevice", cudaSetDevice((int)ordinal));
    if (s == GPU_OK)
        s = fail(g, "cudaGetDeviceProperties", cudaGetDeviceProperties(&p, (int)ordinal));
    if (s == GPU_OK && p.major < 8) {
        snprintf(g->why, sizeof g->why, "%.64s has compute capability %d.%d: 8.0 is needed", p.name,
                 p.major, p.minor);
        return GPU_UNSUPPORTED;
    }
    if (s == GPU_OK)
        s = fail(g, "stream", cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    for (int i = 0; s == GPU_OK && i < 2; i++)
        s = fail(g, "event", cudaEventCreateWithFlags(&g->notes[i], cudaEventDisableTiming));
    for (int i = 0; s == GPU_OK && i < 2; i++)
        s = fail(g, "stream", cudaStreamCreateWithFlags(&g->copies[i], cudaStreamNonBlocking));
    for (int i = 0; s == GPU_OK && i < GPU_LANES; i++)
        s = fail(g, "event", cudaEventCreateWithFlags(&g->reached[i], cudaEventDisableTiming));
    if (s == GPU_OK) s = fail(g, "workspace", cudaMalloc(&g->workspace, WORKSPACE_BYTES));
    if (s == GPU_OK) s = fail(g, "cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &bytes));
    if (s != GPU_OK) return s;
    if (cublasLtCreate(&g->library) != CUBLAS_STATUS_SUCCESS) {
        snprintf(g->why, sizeof g->why, "cublasLtCreate failed");
        return GPU_UNSUPPORTED;
    }
    *facts = gpu_facts();
    snprintf(facts->name, sizeof facts->name, "%.127s", p.name);
    facts->n_sms = g->n_sms = (uint32_t)p.multiProcessorCount;
    facts->compute = (uint32_t)(p.major * 10 + p.minor);
    facts->bytes = bytes;
    facts->free_bytes = free_bytes;
    facts->shared_bytes = p.sharedMemPerBlockOptin;
    return GPU_OK;
}

static gpu_status gpu_open(uint32_t ordinal, gpu **out, gpu_facts *facts, char *why, size_t n)
{
    gpu *g = (gpu *)calloc(1, sizeof *g);
    if (!g) {
        snprintf(why, n, "out of memory");
        return GPU_NO_MEMORY;
    }
    gpu_status s = set_up(g, ordinal, facts);
    if (s == GPU_OK) {
        *out = g;
        return s;
    }
    snprintf(why, n, "%s", g->why);
    gpu_close(g);
    return s;
}

static const char *gpu_why(const gpu *g) { return g->why; }

static void gpu_set_invariant(gpu *g, bool on)
{
    g->invariant = on;
    for (int i = 0; i < ALGORITHMS; i++) g->algorithms[i].known = false;
}
bool gpu_is_invariant(const gpu *g) { return g->invariant; }

/* ---- memory ---------------------------------------------------------------------------------- */

static gpu_status gpu_alloc(gpu *g, size_t bytes, void **out)
{
    enter(g);
    gpu_status s = fail(g, "cudaMalloc", cudaMalloc(out, bytes ? bytes : 1));
    if (s == GPU_OK) s = fail(g, "cudaMemset", cudaMemsetAsync(*out, 0, bytes, g->stream));
    return s;
}

static void gpu_release(gpu *g, void *device)
{
    enter(g);
    cudaFree(device);
}

static gpu_status gpu_alloc_host(gpu *g, size_t bytes, void **out)
{
    enter(g);
    return fail(g, "cudaHostAlloc", cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault));
}

static void gpu_release_host(gpu *g, void *host)
{
    enter(g);
    cudaFreeHost(host);
}

static gpu_status gpu_copy_in(gpu *g, void *device, const void *host, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    enter(g);
    return fail(g, "copy to the device",
                cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, g->stream));
}

static gpu_status gpu_copy_out(gpu *g, void *host, const void *device, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    enter(g);
    return fail(g, "copy to the host",
                cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, g->stream));
}

static cudaStream_t lane_of(const gpu *g, gpu_lane lane)
{
    return lane == GPU_LANE_STREAM ? g->stream : g->copies[lane - GPU_LANE_UP];
}

static gpu_status gpu_copy_up(gpu *g, void *device, const void *host, size_t bytes)
{
    enter(g);
    return fail(
        g, "copy of pages to the device",
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, lane_of(g, GPU_LANE_UP)));
}

static gpu_status gpu_copy_down(gpu *g, void *host, const void *device, size_t bytes)
{
    enter(g);
    return fail(
        g, "copy of pages to the host",
        cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, lane_of(g, GPU_LANE_DOWN)));
}

static gpu_status gpu_order(gpu *g, gpu_lane first, gpu_lane then)
{
    enter(g);
    gpu_status s = fail(g, "order", cudaEventRecord(g->reached[first], lane_of(g, first)));
    if (s != GPU_OK) return s;
    return fail(g, "order", cudaStreamWaitEvent(lane_of(g, then), g->reached[first], 0));
}

static gpu_status gpu_wait(gpu *g)
{
    enter(g);
    return fail(g, "wait", cudaStreamSynchronize(g->stream));
}

static gpu_status gpu_note(gpu *g, uint32_t number)
{
    enter(g);
    return fail(g, "note", cudaEventRecord(g->notes[number], g->stream));
}

static gpu_status gpu_await(gpu *g, uint32_t number)
{
    enter(g);
    return fail(g, "await", cudaEventSynchronize(g->notes[number]));
}

/* The result of a query: whether what was asked for is over. */
static gpu_status is_over(gpu *g, cudaError_t e, bool *over)
{
    *over = e == cudaSuccess;
    if (e == cudaErrorNotReady) (void)cudaGetLastError(); /* no error, but CUDA keeps it as one */
    return e == cudaErrorNotReady ? GPU_OK : fail(g, "wait", e);
}

static gpu_status gpu_reached(gpu *g, uint32_t number, bool *reached)
{
    enter(g);
    return is_over(g, cudaEventQuery(g->notes[number]), reached);
}

static gpu_status gpu_poll(gpu *g, bool *idle)
{
    enter(g);
    return is_over(g, cudaStreamQuery(g->stream), idle);
}

static void *gpu_stream_of(gpu *g) { return g->stream; }

static gpu_status gpu_copy(gpu *g, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    enter(g);
    return fail(g, "copy on the device",
                cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->stream));
}

static gpu_status gpu_clear(gpu *g, void *device, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    enter(g);
    return fail(g, "clearing memory", cudaMemsetAsync(device, 0, bytes, g->stream));
}

static gpu_status gpu_mark(gpu *g)
{
    gpu_status s = GPU_OK;
    enter(g);
    for (int i = 0; s == GPU_OK && i < 2; i++)
        if (!g->events[i]) s = fail(g, "event", cudaEventCreate(&g->events[i]));
    return s == GPU_OK ? fail(g, "mark", cudaEventRecord(g->events[0], g->stream)) : s;
}

static gpu_status gpu_elapsed(gpu *g, double *us)
{
    float ms = 0.0f;
    enter(g);
    gpu_status s = fail(g, "mark", cudaEventRecord(g->events[1], g->stream));
    if (s == GPU_OK) s = fail(g, "mark", cudaEventSynchronize(g->events[1]));
    if (s == GPU_OK) s = fail(g, "mark", cudaEventElapsedTime(&ms, g->events[0], g->events[1]));
    *us = (double)ms * 1000.0;
    return s;
}

/* ---- memory that other gpus reach ------------------------------------------------------------ */

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((gpu_handle *)0)->bytes), "a handle's bytes");

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = text; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    return hash;
}

/* Names this process among those of all hosts: processes of two containers may have one number, and
 * the same addresses. False where that cannot be told. */
static bool name_process(uint64_t *host, uint64_t *process)
{
    char boot[64] = "", space[96] = "", text[160];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool known = f && fread(boot, 1, sizeof boot - 1, f) > 0;
    if (f) fclose(f);
    known = known && readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0;
    snprintf(text, sizeof text, "%s %ld", space, (long)getpid());
    *host = hash_text(boot);
    *process = hash_text(text);
    return known;
}

static gpu_status gpu_share(gpu *g, void *device, gpu_handle *out)
{
    cudaIpcMemHandle_t ipc;
    enter(g);
    *out = gpu_handle();
    cudaError_t e = cudaIpcGetMemHandle(&ipc, device);
    if (e != cudaSuccess) {
        (void)fail(g, "sharing memory", e);
        return GPU_UNSUPPORTED;
    }
    memcpy(out->bytes, &ipc, sizeof ipc);
    bool known = name_process(&out->host, &out->process);
    out->address = (uint64_t)(uintptr_t)device;
    out->ordinal = (uint32_t)g->ordinal;
    out->is_there = known;
    return GPU_OK;
}

/* Whether memory is this process's own. */
static bool is_own(const gpu_handle *from)
{
    uint64_t host, process;
    return name_process(&host, &process) && from->host == host && from->process == process;
}

static bool is_near(const gpu_handle *from)
{
    uint64_t host, process;
    return name_process(&host, &process) && from->host == host;
}

static gpu_status gpu_reach(gpu *g, const gpu_handle *from, void **out)
{
    cudaIpcMemHandle_t ipc;
    cudaError_t e = cudaSuccess;
    enter(g);
    if (!is_near(from)) {
        snprintf(g->why, sizeof g->why, "another gpu's memory is on another host");
        return GPU_UNSUPPORTED;
    }
    if (is_own(from)) {
        *out = (void *)(uintptr_t)from->address;
        if (from->ordinal != (uint32_t)g->ordinal)
            e = cudaDeviceEnablePeerAccess((int)from->ordinal, 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled) e = cudaSuccess, (void)cudaGetLastError();
    } else {
        memcpy(&ipc, from->bytes, sizeof ipc);
        e = cudaIpcOpenMemHandle(out, ipc, cudaIpcMemLazyEnablePeerAccess);
    }
    if (e == cudaSuccess) return GPU_OK;
    (void)fail(g, "reaching another gpu's memory", e);
    return GPU_UNSUPPORTED;
}

static void gpu_unreach(gpu *g, const gpu_handle *from, void *device)
{
    enter(g);
    if (!is_own(from)) cudaIpcCloseMemHandle(device);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

struct gpu_graph {
    cudaGraphExec_t exec;
};

static gpu_status gpu_capture(gpu *g)
{
    enter(g);
    return fail(g, "capture", cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
}

static void gpu_forget(gpu_graph *graph)
{
    if (!graph) return;
    if (graph->exec) cudaGraphExecDestroy(graph->exec);
    free(graph);
}

static gpu_status gpu_captured(gpu *g, gpu_graph **out)
{
    cudaGraph_t graph = NULL;
    gpu_graph *made = (gpu_graph *)calloc(1, sizeof *made);
    enter(g);
    cudaError_t e = cudaStreamEndCapture(g->stream, &graph);
    if (e == cudaSuccess && !made) e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) e = cudaGraphInstantiate(&made->exec, graph, 0);
    if (e == cudaSuccess)
        e = cudaGraphUpload(made->exec, g->stream); /* running out of memory shows here */
    if (graph) cudaGraphDestroy(graph);
    *out = made;
    if (e == cudaSuccess) return GPU_OK;
    (void)fail(g, "capture", e);
    gpu_forget(made);
    *out = NULL;
    return GPU_UNSUPPORTED;
}

static gpu_status gpu_replay(gpu *g, gpu_graph *graph)
{
    enter(g);
    return fail(g, "graph", cudaGraphLaunch(graph->exec, g->stream));
}

gpu_status gpu_read(gpu *g, void *host, const void *device, size_t bytes)
{
    gpu_status s = gpu_copy_out(g, host, device, bytes);
    return s == GPU_OK ? gpu_wait(g) : s;
}

/* ---- products by the library ----------------------------------------------------------------- */

static cudaDataType_t data_type(gpu_type t)
{
    return t == GPU_BF16 ? CUDA_R_16BF : t == GPU_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* In invariant mode, algorithms are those for this many rows, however many there are. */
enum { INVARIANT_ROWS = 128 };

/* Rounds m above 64 up to the next of eight steps between powers of two. */
static size_t rounded_rows(const gpu *g, size_t m)
{
    size_t step = 8;
    if (g->invariant) return INVARIANT_ROWS;
    while (step * 16 <= m) step *= 2;
    return m <= 64 ? m : (m + step - 1) / step * step;
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

/* The library stores matrices by columns: y^T [n, m] = (W^T)^T [n, k] x^T [k, m]. */
static cublasStatus_t make_shapes(const algorithm *c, size_t m, shapes *s)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t type = data_type(c->type);
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
    return e;
}

/* Asks the library for the algorithm of a shape, with c->m rows; once for each shape. */
static cublasStatus_t find_algorithm(gpu *g, algorithm *c)
{
    shapes s = {NULL, NULL, NULL, NULL};
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t best;
    size_t workspace = WORKSPACE_BYTES;
    int found = 0;
    uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t e = make_shapes(c, c->m, &s);
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
        e = cublasLtMatmulAlgoGetHeuristic(g->library, s.product, s.w, s.x, s.y, s.y, wish, 1,
                                           &best, &found);
    if (wish) cublasLtMatmulPreferenceDestroy(wish);
    forget_shapes(&s);
    if (e != CUBLAS_STATUS_SUCCESS) return e;
    if (found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    c->algo = best.algo;
    c->known = true;
    return e;
}

/* The alignment of all operands in bytes. In invariant mode it is at most 16, so that an expert's
 * result does not depend on the rows it has. */
static uint32_t alignment_of(const gpu *g, const void *w, const void *x, const void *y)
{
    uintptr_t all = (uintptr_t)w | (uintptr_t)x | (uintptr_t)y | (g->invariant ? 16 : 256);
    return (uint32_t)(all & ~(all - 1));
}

static algorithm *algorithm_of(gpu *g, const algorithm *c)
{
    size_t hash = c->n * 31 + c->k * 17 + c->m * 0x9e3779b1u + (size_t)c->y_type + c->alignment;
    algorithm *at = &g->algorithms[(hash ^ hash >> 15) % ALGORITHMS];
    if (at->known && at->n == c->n && at->k == c->k && at->m == c->m && at->type == c->type &&
        at->y_type == c->y_type && at->alignment == c->alignment)
        return at;
    *at = *c;
    return at;
}

static cublasStatus_t run_algorithm(gpu *g, const algorithm *c, const gpu_matrix *w, const void *x,
                                    size_t m, void *y)
{
    shapes s = {NULL, NULL, NULL, NULL};
    const float one = 1.0f, zero = 0.0f;
    cublasStatus_t e = make_shapes(c, m, &s);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmul(g->library, s.product, &one, w->data, s.w, x, s.x, &zero, y, s.y, y, s.y,
                           &c->algo, g->workspace, WORKSPACE_BYTES, g->stream);
    forget_shapes(&s);
    return e;
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
    enter(g);
    algorithm *c = algorithm_of(g, &wanted);
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    if (!c->known) e = find_algorithm(g, c);
    if (e == CUBLAS_STATUS_SUCCESS) e = run_algorithm(g, c, w, x, m, y);
    /* An algorithm for more rows may not support m rows. */
    if (e != CUBLAS_STATUS_SUCCESS && wanted.m != m && !g->invariant) {
        wanted.m = m;
        e = find_algorithm(g, &wanted);
        if (e == CUBLAS_STATUS_SUCCESS) e = run_algorithm(g, &wanted, w, x, m, y);
    }
    if (e == CUBLAS_STATUS_SUCCESS) return gpu_launched(g, "product");
    snprintf(g->why, sizeof g->why, "product [%zu, %zu] by [%zu, %zu]: cublasLt returned %d", m,
             w->k, w->n, w->k, (int)e);
    return e == CUBLAS_STATUS_NOT_SUPPORTED ? GPU_UNSUPPORTED : GPU_LOST;
}

#include "kernels/cuda/table.inc"

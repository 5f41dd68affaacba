/* A GPU: memory, copies, the stream, and the plugin's table. */
#include "kernels/cuda/device.cuh"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaStream_t gpu_stream(gpu *g)
{
    enter(g);
    g->chained = false;
    return queue_on_stream(g);
}
cudaStream_t gpu_stream_early(gpu *g, bool *early)
{
    enter(g);
    *early = g->chained;
    g->chained = g->early;
    return queue_on_stream(g);
}
uint32_t gpu_sms(const gpu *g) { return g->n_sms; }
uint32_t gpu_compute(const gpu *g) { return g->compute; }

static gpu_status fail(gpu *g, const char *what, cudaError_t e)
{
    if (e == cudaSuccess) return GPU_OK;
    snprintf(g->why, sizeof g->why, "%s: %s (%s)", what, cudaGetErrorString(e),
             cudaGetErrorName(e));
    (void)cudaGetLastError(); /* clears an error of memory; others are sticky */
    return e == cudaErrorMemoryAllocation ? GPU_NO_MEMORY : GPU_LOST;
}

uint32_t gpu_enter(gpu *g)
{
    enter(g);
    return (uint32_t)g->ordinal;
}

gpu_status gpu_refuse(gpu *g, const char *what, const char *why)
{
    snprintf(g->why, sizeof g->why, "%s: %s", what, why);
    return GPU_UNSUPPORTED;
}

/* Reports the outcome e of what was queued since the last call. While launches are traced, an event
 * marks its end. */
static gpu_status end_queued(gpu *g, const char *what, cudaError_t e)
{
    gpu_status s = fail(g, what, e);
    launch_trace *t = g->trace;
    if (s != GPU_OK || !g->traces) return s;
    uint32_t n = t->n_queued;
    t->n_queued = 0;
    if (n == 0 || g->captures) return s;
    if (t->n == GPU_TRACED_MOST) {
        t->overflowed = true;
        return s;
    }
    t->of[t->n].name = what;
    t->of[t->n].n = n;
    g->chained = false; /* an event is now in front of the next kernel */
    return fail(g, "trace", cudaEventRecord(t->ends[t->n++], g->stream));
}

static void forget_trace(launch_trace *t)
{
    if (!t) return;
    if (t->begin) cudaEventDestroy(t->begin);
    for (int i = 0; i < GPU_TRACED_MOST && t->ends[i]; i++) cudaEventDestroy(t->ends[i]);
    free(t);
}

gpu_status gpu_launched(gpu *g, const char *what)
{
    enter(g); /* errors are the current device's */
    return end_queued(g, what, cudaPeekAtLastError());
}

gpu_status gpu_allow_shared(gpu *g, const void *kernel, size_t bytes)
{
    uint32_t at = 0;
    if (bytes <= 48 * 1024) return GPU_OK;
    while (at < g->n_allowed && g->allowed[at] != kernel) at++;
    if (at < g->n_allowed) return GPU_OK;
    enter(g); /* the attribute is per device */
    gpu_status s =
        fail(g, "shared memory of a kernel",
             cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    if (s == GPU_OK && at < ALLOWED) g->allowed[g->n_allowed++] = kernel;
    return s;
}

/* ---- code ------------------------------------------------------------------------------------ */

static const struct {
    const void *(*kernel)(void);
    bool wide;
} files[] = {
#define CODE(file)      {gpu_code_of_##file, false},
#define WIDE_CODE(file) {gpu_code_of_##file, true},
#include "kernels/cuda/code.inc"
#undef WIDE_CODE
#undef CODE
};

#if CUDART_VERSION >= 12050
/* Functions of the driver, since CUDA 12.4. */
typedef struct driver {
    decltype(&cuFuncGetModule) module_of;
    decltype(&cuModuleGetFunctionCount) count;
    decltype(&cuModuleEnumerateFunctions) list;
    decltype(&cuFuncLoad) load;
} driver;

template <class F> static bool find_in_driver(const char *name, F *out)
{
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t e =
        cudaGetDriverEntryPointByVersion(name, (void **)out, 12040, cudaEnableDefault, &found);
    (void)cudaGetLastError();
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

/* Loads all kernels of the file of this one. */
static CUresult load_file(const driver *d, CUfunction kernel)
{
    CUmodule module;
    unsigned n = 0;
    CUresult e = d->module_of(&module, kernel);
    if (e == CUDA_SUCCESS) e = d->count(&n, module);
    CUfunction *all = (CUfunction *)calloc(n + 1, sizeof *all);
    if (e == CUDA_SUCCESS && !all) e = CUDA_ERROR_OUT_OF_MEMORY;
    if (e == CUDA_SUCCESS) e = d->list(all, n, module);
    for (unsigned i = 0; e == CUDA_SUCCESS && i < n; i++) e = d->load(all[i]);
    free(all);
    return e;
}

/* Loads the code of all kernels. CUDA would load a kernel's when it is first launched, which may
 * wait for all that runs: a step would take milliseconds longer, and a kernel that waits for those
 * of other ranks would be waited for. Drivers before CUDA 12.4 still do. */
static gpu_status load_code(gpu *g)
{
    driver d;
    if (!find_in_driver("cuFuncGetModule", &d.module_of) ||
        !find_in_driver("cuModuleGetFunctionCount", &d.count) ||
        !find_in_driver("cuModuleEnumerateFunctions", &d.list) ||
        !find_in_driver("cuFuncLoad", &d.load))
        return GPU_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        cudaFunction_t kernel;
        if (files[i].wide && g->compute != 90) continue;
        gpu_status s = fail(g, "code of kernels", cudaGetFuncBySymbol(&kernel, files[i].kernel()));
        if (s != GPU_OK) return s;
        CUresult e = load_file(&d, kernel);
        if (e == CUDA_SUCCESS) continue;
        snprintf(g->why, sizeof g->why, "code of kernels: the driver returned %d", (int)e);
        return e == CUDA_ERROR_OUT_OF_MEMORY ? GPU_NO_MEMORY : GPU_LOST;
    }
    return GPU_OK;
}
#else
static gpu_status load_code(gpu *g)
{
    (void)g, (void)files; /* kernels are loaded when they are first launched */
    return GPU_OK;
}
#endif

/* Graphs have kernels that start early since CUDA 12.3. */
static void gpu_set_early(gpu *g, bool on)
{
    int driver = 0;
    bool can = g->compute >= 90 && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030;
    g->early = on && can;
    g->chained = false;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void gpu_close(gpu *g)
{
    if (!g) return;
    enter(g);
    forget_trace(g->trace);
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
    g->few = {GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, GPU_FEW_OF_EXPERT, GPU_STAGED_ROWS};
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
    g->n_sms = (uint32_t)p.multiProcessorCount;
    g->compute = (uint32_t)(p.major * 10 + p.minor);
    gpu_set_early(g, true);
    if (s == GPU_OK) s = load_code(g); /* which takes memory */
    if (s == GPU_OK) s = fail(g, "workspace", cudaMalloc(&g->workspace, WORKSPACE_BYTES));
    if (s == GPU_OK) s = fail(g, "cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &bytes));
    if (s != GPU_OK) return s;
    if (cublasLtCreate(&g->library) != CUBLAS_STATUS_SUCCESS) {
        snprintf(g->why, sizeof g->why, "cublasLtCreate failed");
        return GPU_UNSUPPORTED;
    }
    *facts = gpu_facts();
    snprintf(facts->name, sizeof facts->name, "%.127s", p.name);
    facts->n_sms = g->n_sms;
    facts->compute = g->compute;
    facts->bytes = bytes;
    facts->free_bytes = free_bytes;
    facts->shared_bytes = p.sharedMemPerBlockOptin;
    gpu_probe_library(g, facts);
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
    for (int i = 0; i < ALGORITHMS; i++) g->algorithms[i].state = ALGORITHM_UNKNOWN;
}
bool gpu_is_invariant(const gpu *g) { return g->invariant; }

static void gpu_set_narrow(gpu *g, bool on) { g->narrow = on; }
bool gpu_is_narrow(const gpu *g) { return g->narrow; }
static void gpu_set_few(gpu *g, const gpu_few *few) { g->few = *few; }
gpu_few gpu_few_of(const gpu *g) { return g->few; }

/* ---- memory ---------------------------------------------------------------------------------- */

static gpu_status gpu_alloc(gpu *g, size_t bytes, void **out)
{
    enter(g);
    gpu_status s = fail(g, "cudaMalloc", cudaMalloc(out, bytes ? bytes : 1));
    if (s == GPU_OK)
        s = end_queued(g, "clearing memory", cudaMemsetAsync(*out, 0, bytes, gpu_stream(g)));
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
    return end_queued(g, "copy to the device",
                      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, gpu_stream(g)));
}

static gpu_status gpu_copy_out(gpu *g, void *host, const void *device, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    return end_queued(g, "copy to the host",
                      cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, gpu_stream(g)));
}

/* Whether the driver took the whole batch, or why it did not; an older one has no such call. A
 * trace counts only a batch that was taken. */
static cudaError_t copy_at_once(gpu *g, const gpu_copies *c)
{
#if CUDART_VERSION >= 12080
    uint32_t n_queued = g->traces ? g->trace->n_queued : 0;
    cudaMemcpyAttributes all = {};
    size_t first = 0; /* the attributes are those of all copies */
    all.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
#if CUDART_VERSION >= 13000
    cudaError_t e =
        cudaMemcpyBatchAsync(c->to, c->from, c->bytes, c->n, &all, &first, 1, gpu_stream(g));
#else
    size_t failed;
    cudaError_t e = cudaMemcpyBatchAsync(c->to, (void **)c->from, c->bytes, c->n, &all, &first, 1,
                                         &failed, gpu_stream(g));
#endif
    if (e != cudaSuccess && g->traces) g->trace->n_queued = n_queued;
    return e;
#else
    (void)g, (void)c;
    return cudaErrorNotSupported;
#endif
}

static gpu_status gpu_copy_batch(gpu *g, const gpu_copies *c, bool out)
{
    if (c->n == 0) return GPU_OK;
    enter(g);
    cudaError_t e = copy_at_once(g, c);
    if (e != cudaErrorNotSupported && e != cudaErrorCallRequiresNewerDriver)
        return end_queued(g, out ? "copies to the host" : "copies to the device", e);
    (void)cudaGetLastError();
    for (size_t i = 0; i < c->n; i++) {
        gpu_status s = out ? gpu_copy_out(g, c->to[i], c->from[i], c->bytes[i])
                           : gpu_copy_in(g, c->to[i], c->from[i], c->bytes[i]);
        if (s != GPU_OK) return s;
    }
    return GPU_OK;
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
    g->chained = false;
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
    return end_queued(g, "copy on the device",
                      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu_stream(g)));
}

static gpu_status gpu_clear(gpu *g, void *device, size_t bytes)
{
    if (bytes == 0) return GPU_OK;
    return end_queued(g, "clearing memory", cudaMemsetAsync(device, 0, bytes, gpu_stream(g)));
}

gpu_status gpu_mark(gpu *g)
{
    gpu_status s = GPU_OK;
    enter(g);
    for (int i = 0; s == GPU_OK && i < 2; i++)
        if (!g->events[i]) s = fail(g, "event", cudaEventCreate(&g->events[i]));
    return s == GPU_OK ? fail(g, "mark", cudaEventRecord(g->events[0], g->stream)) : s;
}

gpu_status gpu_elapsed(gpu *g, double *us)
{
    float ms = 0.0f;
    enter(g);
    gpu_status s = fail(g, "mark", cudaEventRecord(g->events[1], g->stream));
    if (s == GPU_OK) s = fail(g, "mark", cudaEventSynchronize(g->events[1]));
    if (s == GPU_OK) s = fail(g, "mark", cudaEventElapsedTime(&ms, g->events[0], g->events[1]));
    *us = (double)ms * 1000.0;
    return s;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

struct gpu_graph {
    cudaGraphExec_t exec;
};

static gpu_status gpu_capture(gpu *g)
{
    /* The first kernel of a graph waits for all that runs before the graph. */
    gpu_status s =
        fail(g, "capture", cudaStreamBeginCapture(gpu_stream(g), cudaStreamCaptureModeThreadLocal));
    g->captures = s == GPU_OK;
    return s;
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
    cudaError_t e = cudaStreamEndCapture(gpu_stream(g), &graph);
    g->captures = false;
    if (g->traces) g->trace->n_queued = 0;
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
    return end_queued(g, "graph", cudaGraphLaunch(graph->exec, gpu_stream(g)));
}

/* ---- launches, timed ------------------------------------------------------------------------- */

/* Thousands of events take milliseconds to make, so they are kept for the next trace. */
static gpu_status make_trace(gpu *g)
{
    launch_trace *t = (launch_trace *)calloc(1, sizeof *t);
    if (!t) return fail(g, "trace", cudaErrorMemoryAllocation);
    gpu_status s = fail(g, "trace", cudaEventCreate(&t->begin));
    for (int i = 0; s == GPU_OK && i < GPU_TRACED_MOST; i++)
        s = fail(g, "trace", cudaEventCreate(&t->ends[i]));
    if (s == GPU_OK) g->trace = t;
    else forget_trace(t);
    return s;
}

static gpu_status gpu_trace(gpu *g)
{
    enter(g);
    gpu_status s = g->trace ? GPU_OK : make_trace(g);
    if (s == GPU_OK) s = fail(g, "trace", cudaEventRecord(g->trace->begin, gpu_stream(g)));
    if (s != GPU_OK) return s;
    g->trace->n = g->trace->n_queued = 0;
    g->trace->overflowed = false;
    g->traces = true;
    return s;
}

static gpu_status gpu_traced(gpu *g, gpu_launches *out)
{
    const launch_trace *t = g->trace;
    bool fits = !t->overflowed;
    cudaEvent_t from = t->begin;
    gpu_status s = gpu_wait(g);
    g->traces = false;
    for (uint32_t i = 0; s == GPU_OK && i < t->n; i++) {
        float ms = 0.0f;
        s = fail(g, "trace", cudaEventElapsedTime(&ms, from, t->ends[i]));
        from = t->ends[i];
        fits = gpu_launches_add(out, t->of[i].name, t->of[i].n, 1e3 * ms) && fits;
    }
    if (s != GPU_OK || fits) return s;
    snprintf(g->why, sizeof g->why, "trace: more launches or names than there is room for");
    return GPU_UNSUPPORTED;
}

extern "C" __attribute__((visibility("default"))) uint32_t octavo_cuda_runtime(void)
{
    return CUDART_VERSION;
}

#include "kernels/cuda/table.inc"

/* kernels/cuda, private: what device.cu and library.cu know of a gpu. Neither is compiled for tests
 * on the CPU. */
#ifndef KERNELS_CUDA_DEVICE_CUH
#define KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/narrow.cuh"

#include <cublasLt.h>

enum {
    WORKSPACE_BYTES = 32 << 20,
    ALGORITHMS = 4096, /* algorithms of the library that are remembered, by shape */
    ALLOWED = 32,      /* kernels that are remembered: a model's pages and heads have a few */
};

/* The scales that the library applies in a product of e4m3: none, one for each row of W and of x,
 * or one for each 128 columns of a row. PLAIN: the operands have 16 bits, or 32. */
enum library_scales { SCALES_PLAIN, SCALES_NONE, SCALES_ROWS, SCALES_GROUPS };

/* KNOWN: the library's own first choice. TIMED: the fastest of its choices here. REFUSED: it has
 * none for the shape, which only products of e4m3 remember. */
enum algorithm_state { ALGORITHM_UNKNOWN, ALGORITHM_KNOWN, ALGORITHM_TIMED, ALGORITHM_REFUSED };

/* The library's algorithm for one shape. m is part of the shape, because the best algorithm depends
 * on it; it is rounded, because asking is slow and steps have every number of rows. */
typedef struct algorithm {
    size_t n, k, m;
    gpu_type type, y_type;
    library_scales scales;
    uint32_t alignment; /* in bytes, of all three: rows of experts begin anywhere */
    algorithm_state state;
    cublasLtMatmulAlgo_t algo;
} algorithm;

/* Launches and copies on the stream since gpu_trace. */
typedef struct launch_trace {
    cudaEvent_t begin;
    cudaEvent_t ends[GPU_TRACED_MOST]; /* [n] */
    struct {
        const char *name;
        uint32_t n;
    } of[GPU_TRACED_MOST];
    uint32_t n;
    uint32_t n_queued; /* behind the last end */
    bool overflowed;
} launch_trace;

struct gpu {
    int ordinal;
    uint32_t n_sms, compute;
    cudaStream_t stream;
    cublasLtHandle_t library;
    void *workspace;
    cudaEvent_t events[2]; /* of gpu_mark and gpu_elapsed */
    cudaEvent_t notes[2];
    cudaStream_t copies[2];         /* the lanes UP and DOWN */
    cudaEvent_t reached[GPU_LANES]; /* of gpu_order: how far a lane has come */
    bool invariant, narrow;
    /* Whether kernels may start early (LAUNCH_EARLY), and whether the last one was launched so. */
    bool early, chained;
    gpu_few few;
    bool times; /* products time the algorithms of a new shape (gpu_library_times) */
    const void *allowed[ALLOWED]; /* kernels that have been given their shared memory */
    uint32_t n_allowed;
    launch_trace *trace; /* of the last gpu_trace, whose events the next one uses; or NULL */
    bool traces;         /* between gpu_trace and gpu_traced */
    bool captures;       /* launches are recorded, not made */
    char why[256];
    algorithm algorithms[ALGORITHMS];
};

/* Makes the gpu's device current: the first thing that every function which calls CUDA does. The
 * current device belongs to the thread, the thread that opened the gpu need not be the one that
 * uses it, and launches, memory and events go to the current device. */
static inline void enter(const gpu *g)
{
    int current;
    if (cudaGetDevice(&current) == cudaSuccess && current == g->ordinal) return;
    (void)cudaSetDevice(g->ordinal); /* the next call shows a failure */
}

/* The stream, for a kernel or a copy that follows, which a trace then counts. */
static inline cudaStream_t queue_on_stream(gpu *g)
{
    if (g->traces) g->trace->n_queued++;
    return g->stream;
}

/* device.cu: mark and elapsed of the table. */
gpu_status gpu_mark(gpu *g);
gpu_status gpu_elapsed(gpu *g, double *us);

/* library.cu: sets which products of e4m3 the library has. */
void gpu_probe_library(gpu *g, gpu_facts *facts);

#endif

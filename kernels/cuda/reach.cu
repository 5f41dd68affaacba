/* Memory that other gpus reach: share, reach and unreach of the table. It is host code, which tests
 * compile over a CUDA runtime of their own (tests/simt/runtime.cc). */
#include "kernels/cuda/cuda_sums.h"
#include "kernels/cuda/simt.cuh"

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((gpu_handle *)0)->bytes), "a handle's bytes");

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = text; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    return hash;
}

static const char UNNAMED[] = "/proc does not say which process this is";

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

static gpu_status refuse(gpu *g, const char *what, cudaError_t e)
{
    (void)cudaGetLastError(); /* CUDA keeps it as the thread's error */
    return gpu_refuse(g, what, cudaGetErrorString(e));
}

gpu_status gpu_share(gpu *g, void *device, gpu_handle *out)
{
    cudaIpcMemHandle_t ipc;
    uint32_t ordinal = gpu_enter(g);
    static const char what[] = "sharing memory";
    *out = gpu_handle();
    cudaError_t e = cudaIpcGetMemHandle(&ipc, device);
    if (e != cudaSuccess) return refuse(g, what, e);
    if (!name_process(&out->host, &out->process)) return gpu_refuse(g, what, UNNAMED);
    memcpy(out->bytes, &ipc, sizeof ipc);
    out->address = (uint64_t)(uintptr_t)device;
    out->ordinal = ordinal;
    out->is_there = true;
    return GPU_OK;
}

enum place { HERE, NEAR, AWAY, UNKNOWN };

static place place_of(const gpu_handle *from)
{
    uint64_t host, process;
    if (!name_process(&host, &process)) return UNKNOWN;
    if (from->host != host) return AWAY;
    return from->process == process ? HERE : NEAR;
}

/* The handle comes from another rank, so its address is checked before a kernel reads there. */
static gpu_status reach_here(gpu *g, const gpu_handle *from, uint32_t ordinal, void **out)
{
    static const char what[] = "reaching another gpu's memory";
    void *there = (void *)(uintptr_t)from->address;
    cudaPointerAttributes of;
    cudaError_t e = cudaPointerGetAttributes(&of, there);
    if (e == cudaSuccess &&
        (of.type != cudaMemoryTypeDevice || (uint32_t)of.device != from->ordinal))
        return gpu_refuse(g, what, "the handle's address is not in memory of the handle's device");
    if (e == cudaSuccess && from->ordinal != ordinal)
        e = cudaDeviceEnablePeerAccess((int)from->ordinal, 0);
    if (e == cudaErrorPeerAccessAlreadyEnabled) e = cudaSuccess, (void)cudaGetLastError();
    if (e != cudaSuccess) return refuse(g, what, e);
    *out = there;
    return GPU_OK;
}

gpu_status gpu_reach(gpu *g, const gpu_handle *from, void **out)
{
    static const char what[] = "reaching memory of another process";
    uint32_t ordinal = gpu_enter(g);
    cudaIpcMemHandle_t ipc;
    switch (place_of(from)) {
    case HERE: return reach_here(g, from, ordinal, out);
    case NEAR: break;
    case AWAY: return gpu_refuse(g, what, "it is on another host");
    default: return gpu_refuse(g, what, UNNAMED);
    }
    memcpy(&ipc, from->bytes, sizeof ipc);
    cudaError_t e = cudaIpcOpenMemHandle(out, ipc, cudaIpcMemLazyEnablePeerAccess);
    return e == cudaSuccess ? GPU_OK : refuse(g, what, e);
}

void gpu_unreach(gpu *g, const gpu_handle *from, void *device)
{
    (void)gpu_enter(g);
    if (place_of(from) == NEAR) (void)cudaIpcCloseMemHandle(device);
}

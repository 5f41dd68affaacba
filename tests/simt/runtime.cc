/* Emulates the calls that kernels/cuda/reach.cu makes. Memory whose handle is asked for moves to a
 * file without a name, at the addresses that it has; a handle says under which name /proc has that
 * file while the process lives. Blocks of less than a page, and those of strict.cc, which lie close
 * together, are within reach of their own process alone. */
#include "tests/simt/runtime.h"
#include "tests/simt/device.h"

#include <cuda_runtime.h>

#include <fcntl.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, NO_FILE = -1 };

/* Whether blocks of a page or more have their pages for themselves. */
#ifdef OCTAVO_SIMT_STRICT
static const bool has_pages = false;
#else
static const bool has_pages = true;
#endif

struct block {
    size_t bytes;
    uint32_t ordinal;
    bool on_host;
    int file;
};

struct written_handle {
    uint64_t magic, inode, bytes;
    int32_t process, file;
};
static const uint64_t MAGIC = 0x53494d545f495043u;
static_assert(sizeof(written_handle) <= sizeof(cudaIpcMemHandle_t), "");

thread_local simt_current_device simt_current;
static std::mutex lock; /* ranks are threads, or processes */
static std::map<uintptr_t, block> blocks;
static std::map<uintptr_t, size_t> mapped; /* of other processes */

static size_t whole(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

void simt_note_memory(void *p, size_t bytes, uint32_t ordinal, bool on_host)
{
    std::lock_guard<std::mutex> held(lock);
    blocks[(uintptr_t)p] = block{bytes, ordinal, on_host, NO_FILE};
}

void simt_forget_memory(void *p)
{
    std::lock_guard<std::mutex> held(lock);
    auto found = blocks.find((uintptr_t)p);
    if (found == blocks.end()) return;
    const block &b = found->second;
    if (b.file != NO_FILE) { /* the allocator gets memory of its own back */
        if (mmap(p, whole(b.bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                 -1, 0) == MAP_FAILED)
            abort();
        close(b.file);
    }
    blocks.erase(found);
}

uint64_t simt_mapped(void)
{
    std::lock_guard<std::mutex> held(lock);
    return mapped.size();
}

/* Moves memory to a file. */
static bool publish(void *p, block *b)
{
    const size_t bytes = whole(b->bytes);
    b->file = memfd_create("simt", MFD_CLOEXEC);
    if (b->file < 0) return false;
    bool moved = ftruncate(b->file, (off_t)bytes) == 0 &&
                 pwrite(b->file, p, b->bytes, 0) == (ssize_t)b->bytes &&
                 mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, b->file, 0) == p;
    if (moved) return true;
    close(b->file);
    b->file = NO_FILE;
    return false;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorDeviceUninitialized: return "invalid device context";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "invalid argument";
    }
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *device)
{
    std::lock_guard<std::mutex> held(lock);
    auto found = blocks.find((uintptr_t)device);
    if (!simt_current.shares) return cudaErrorNotSupported;
    if (found == blocks.end() || found->second.on_host) return cudaErrorInvalidValue;
    block &b = found->second;
    bool can = has_pages && b.bytes >= PAGE;
    if (can && b.file == NO_FILE && !publish(device, &b)) return cudaErrorNotSupported;
    struct stat of = {};
    if (b.file != NO_FILE) fstat(b.file, &of);
    written_handle h = {MAGIC, of.st_ino, b.bytes, getpid(), b.file};
    memset(out, 0, sizeof *out);
    memcpy(out->reserved, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    written_handle h;
    memcpy(&h, handle.reserved, sizeof h);
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    if (h.magic != MAGIC) return cudaErrorInvalidResourceHandle;
    if (h.process == getpid()) return cudaErrorDeviceUninitialized; /* as CUDA has it */
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)h.process, (int)h.file);
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorInvalidResourceHandle;
    struct stat of = {};
    bool is = fstat(file, &of) == 0 && of.st_ino == h.inode && (size_t)of.st_size == whole(h.bytes);
    void *p =
        is ? mmap(NULL, whole(h.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (p == MAP_FAILED) return cudaErrorInvalidResourceHandle;
    std::lock_guard<std::mutex> held(lock);
    mapped[(uintptr_t)p] = whole(h.bytes);
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *device)
{
    std::lock_guard<std::mutex> held(lock);
    auto found = mapped.find((uintptr_t)device);
    if (found == mapped.end()) return cudaErrorInvalidValue;
    munmap(device, found->second);
    mapped.erase(found);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p)
{
    std::lock_guard<std::mutex> held(lock);
    *out = {cudaMemoryTypeUnregistered, -2};
    auto after = blocks.upper_bound((uintptr_t)p);
    if (after == blocks.begin()) return cudaSuccess;
    const auto &at = *--after;
    if ((uintptr_t)p < at.first + at.second.bytes)
        *out = {at.second.on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice,
                (int)at.second.ordinal};
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags)
{
    const char *devices = getenv("OCTAVO_TEST_DEVICES");
    if (device < 0 || device >= (devices ? devices[0] - '0' : 1)) return cudaErrorInvalidDevice;
    if (flags != 0 || (uint32_t)device == simt_current.ordinal) return cudaErrorInvalidValue;
    return cudaSuccess;
}

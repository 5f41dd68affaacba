/* The declarations of the CUDA runtime that kernels/cuda/reach.cu uses; runtime.cc defines the
 * functions. Names and values are NVIDIA's. */
#ifndef TESTS_SIMT_FAKE_RUNTIME_CUDA_RUNTIME_H
#define TESTS_SIMT_FAKE_RUNTIME_CUDA_RUNTIME_H

#include <stddef.h>

typedef enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorNotSupported = 801,
} cudaError_t;

typedef struct cudaIpcMemHandle_t {
    char reserved[64];
} cudaIpcMemHandle_t;

typedef enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
} cudaMemoryType;

typedef struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
} cudaPointerAttributes;

enum { cudaIpcMemLazyEnablePeerAccess = 1 };

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *device);
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *device);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *p);
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags);

#endif

/* The declarations of cublasLt.h, and of the CUDA runtime that it includes, which
 * kernels/cuda/library.cu uses. cuda_library_test defines the functions. Names and values of
 * statuses are NVIDIA's. */
#ifndef TESTS_SIMT_FAKE_LIBRARY_CUBLASLT_H
#define TESTS_SIMT_FAKE_LIBRARY_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#define CUBLAS_VERSION 130000

typedef enum cudaError_t { cudaSuccess } cudaError_t;
typedef struct fake_queue *cudaStream_t;
typedef struct fake_event *cudaEvent_t;
inline cudaError_t cudaGetDevice(int *out)
{
    *out = 0;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }

typedef enum cudaDataType_t { CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3 } cudaDataType_t;
typedef enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;
typedef enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum cublasComputeType_t { CUBLAS_COMPUTE_32F } cublasComputeType_t;

typedef struct fake_library *cublasLtHandle_t;
typedef struct fake_product *cublasLtMatmulDesc_t;
typedef struct fake_layout *cublasLtMatrixLayout_t;
typedef struct fake_wish *cublasLtMatmulPreference_t;
typedef struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

enum { CUBLASLT_REDUCTION_SCHEME_NONE };
enum {
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4,
    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3,
};
typedef enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA,
    CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
} cublasLtMatmulDescAttributes_t;
typedef enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
} cublasLtMatmulPreferenceAttributes_t;

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t line);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *found);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t product, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t of_a, const void *b,
                              cublasLtMatrixLayout_t of_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream);

#endif

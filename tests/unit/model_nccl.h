/* Ranks whose comm is on the device: emulated GPUs and a fake NCCL, for tests of the backend. */
#ifndef TESTS_UNIT_MODEL_NCCL_H
#define TESTS_UNIT_MODEL_NCCL_H

#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/fake/nccl.h"
#include "tests/simt/device.h"

#include <dlfcn.h>

#ifndef FAKE_NCCL
#define FAKE_NCCL "libfake_nccl.so" /* the build gives its path */
#endif

enum { RANKS = 2, LONG_US = 60000000 };

/* The comm and the GPU of each rank, as a worker holds them. */
static struct {
    comm *comm;
    gpu *gpu;
} nccl_ranks[RANKS];

/* Rank 0 sends the NCCL id to all ranks over the group that they already have. */
static inline status meet(comm *group, comm *nccl, error *err)
{
    char id[512];
    float n = (float)comm_own_address(nccl).n, all[RANKS];
    RETURN_IF_ERROR(comm_all_gather(group, &n, 1, all));
    comm_address first = {id, (size_t)all[0]};
    if (first.n == 0 || first.n > sizeof id) return status_make(STATUS_INVALID, "no id");
    if (comm_rank(group) == 0) memcpy(id, comm_own_address(nccl).bytes, first.n);
    RETURN_IF_ERROR(comm_broadcast(group, id, first.n, 0));
    return comm_connect(nccl, &first, LONG_US, err);
}

static inline status make_rank(void *ctx, comm *group, backend *out, error *err)
{
    backend_cuda_options o = *(const backend_cuda_options *)ctx;
    gpu_facts facts;
    char why[64];
    int rank = comm_rank(group);
    if (o.api->open(0, &nccl_ranks[rank].gpu, &facts, why, sizeof why) != GPU_OK)
        return error_set(err, STATUS_UNAVAILABLE, "%s", why);
    comm_options c = {.kind = "nccl",
                      .rank = rank,
                      .size = RANKS,
                      .stream = o.api->stream(nccl_ranks[rank].gpu),
                      .library = FAKE_NCCL};
    RETURN_IF_ERROR(comm_create(&c, &nccl_ranks[rank].comm, err));
    RETURN_IF_ERROR(meet(group, nccl_ranks[rank].comm, err));
    o.common.group = nccl_ranks[rank].comm;
    o.gpu = nccl_ranks[rank].gpu;
    o.gpu_facts = &facts;
    return backend_cuda_create(&o, out, err);
}

/* pass.make_ranks. */
static inline status make_ranks(const backend_cuda_options *o, uint32_t n, backend *out, error *err)
{
    backend_cuda_options each = *o;
    each.common.n_threads = 1;
    backend_ranks_options all = {.n_ranks = n, .make = make_rank, .ctx = &each};
    return backend_ranks_create(&all, out, err);
}

/* Closes what the ranks of a backend that was destroyed have left. */
static inline void leave(void)
{
    for (int r = 0; r < RANKS; r++) {
        comm_destroy(nccl_ranks[r].comm);
        octavo_cuda_api(GPU_API_VERSION)->close(nccl_ranks[r].gpu);
    }
}

/* Opens the fake NCCL and has it answer as `how` says. Close it by dlclose. */
static inline void *open_nccl(fake_nccl_behaviour how)
{
    void (*behave)(fake_nccl_behaviour);
    void *library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL), *found;
    assert_non_null(library);
    found = dlsym(library, "fake_nccl_behave");
    memcpy(&behave, &found, sizeof behave);
    behave(how);
    return library;
}

#endif

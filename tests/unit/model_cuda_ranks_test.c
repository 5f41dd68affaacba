/* Ranks that add up on their devices (model/cuda/ranks.c): emulated GPUs and a fake NCCL, which
 * also sums in rank order. The bits equal those of sums through the host. */
#include "tests/unit/model_pass.h"

#include "kernels/cuda/cuda_kernels.h"
#include "tests/fake/nccl.h"
#include "tests/simt/device.h"

#include <dlfcn.h>

enum { TOKENS = 30, RANKS = 2, LONG_US = 60000000 };

#define GOLDEN "tests/golden/models/"

static const pass two = {.dir = GOLDEN "qwen3_f32",
                         .kv_type = KERN_KV_BF16,
                         .bf16 = true,
                         .page_tokens = 16,
                         .layers_per_group = 1,
                         .chunk = 12,
                         .n_threads = 2,
                         .n_ranks = RANKS,
                         .mass_rows = 4,
                         .layer_step = 1,
                         .max_model_len = 64,
                         .gpu_kv = GPU_KV_BF16};

/* The comm and the GPU of each rank, as a worker holds them. */
static struct {
    comm *comm;
    gpu *gpu;
} ranks[RANKS];

/* Rank 0 sends the NCCL id to all ranks over the group that they already have. */
static status meet(comm *group, comm *nccl, error *err)
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

static status make_rank(void *ctx, comm *group, backend *out, error *err)
{
    backend_cuda_options o = *(const backend_cuda_options *)ctx;
    gpu_facts facts;
    char why[64];
    int rank = comm_rank(group);
    if (o.api->open(0, &ranks[rank].gpu, &facts, why, sizeof why) != GPU_OK)
        return error_set(err, STATUS_UNAVAILABLE, "%s", why);
    comm_options c = {.kind = "nccl",
                      .rank = rank,
                      .size = RANKS,
                      .stream = o.api->stream(ranks[rank].gpu),
                      .library = FAKE_NCCL};
    RETURN_IF_ERROR(comm_create(&c, &ranks[rank].comm, err));
    RETURN_IF_ERROR(meet(group, ranks[rank].comm, err));
    o.common.group = ranks[rank].comm;
    o.gpu = ranks[rank].gpu;
    o.gpu_facts = &facts;
    return backend_cuda_create(&o, out, err);
}

static status make_ranks(const backend_cuda_options *o, uint32_t n, backend *out, error *err)
{
    backend_cuda_options each = *o;
    each.common.n_threads = 1;
    backend_ranks_options all = {.n_ranks = n, .make = make_rank, .ctx = &each};
    return backend_ranks_create(&all, out, err);
}

static void leave(void)
{
    for (int r = 0; r < RANKS; r++) {
        comm_destroy(ranks[r].comm);
        octavo_cuda_api(GPU_API_VERSION)->close(ranks[r].gpu);
    }
}

static void sums_on_the_device_are_those_of_the_host(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *override;
    } models[] = {{GOLDEN "qwen3_f32", NULL},
                  {GOLDEN "internlm2_long_bf16", "vocab_size=63"},
                  {GOLDEN "mixtral_f32", "head_dim=32"}};
    void (*behave)(fake_nccl_behaviour);
    void *library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL), *found;
    assert_non_null(library);
    found = dlsym(library, "fake_nccl_behave");
    memcpy(&behave, &found, sizeof behave);
    behave(FAKE_SYNCHRONOUS);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        pass p = two;
        uint32_t tokens[TOKENS];
        p.dir = models[i].dir;
        p.override = models[i].override;
        p.gpu = octavo_cuda_api(GPU_API_VERSION);
        random_tokens(tokens, TOKENS, 32);
        pass_result host = run(&p, tokens, TOKENS);
        p.make_ranks = make_ranks;
        pass_result device = run(&p, tokens, TOKENS);
        leave();
        size_t bytes = (size_t)TOKENS * host.config.vocab_size * sizeof(float);
        assert_memory_equal(host.logits, device.logits, bytes);
        assert_int_equal(host.mass_floats, device.mass_floats);
        assert_memory_equal(host.mass, device.mass, host.mass_floats * sizeof(float));
        result_free(&host);
        result_free(&device);
        assert_int_equal(simt_allocations(), 0);
    }
    dlclose(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_on_the_device_are_those_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

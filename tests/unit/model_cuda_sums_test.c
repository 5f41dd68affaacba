/* Sums over ranks on their devices (model/cuda/peers.c), whose ranks are processes: emulated GPUs
 * whose memory they map, and a fake NCCL between processes. */
#include "tests/unit/comm_processes.h"

#include "model/cuda/cuda.h"
#include "tests/simt/device.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#ifndef FAKE_NCCL_PROCESSES
#define FAKE_NCCL_PROCESSES "libfake_nccl_processes.so" /* the build gives its path */
#endif

enum { KINDS = 5, LONG_ROW = 2048 };

/* What a rank shares in place of its handle. */
typedef enum handle_kind { TRUE_HANDLE, JUNK, NO_PROCESS, OTHER_FILE, OTHER_HOST, NO_MEMORY } kind;

static gpu *own_gpu; /* of the process */
static gpu_facts own_facts;
static gpu_api own_api;
static kind shares;

static gpu_status share_otherwise(gpu *g, void *device, gpu_handle *out)
{
    gpu_status s = octavo_cuda_api(GPU_API_VERSION)->share(g, device, out);
    /* As tests/simt/runtime.cc writes it: magic, inode, bytes; process, file. */
    uint64_t inode;
    int32_t process = -7;
    memcpy(&inode, out->bytes + 8, sizeof inode);
    inode++;
    switch (shares) {
    case JUNK: memset(out->bytes, 0xee, sizeof out->bytes); break;
    case NO_PROCESS: memcpy(out->bytes + 24, &process, sizeof process); break;
    case OTHER_FILE: memcpy(out->bytes + 8, &inode, sizeof inode); break;
    case OTHER_HOST: out->host++; break;
    case NO_MEMORY: out->is_there = 0; break;
    default: break;
    }
    return s;
}

static status make_nccl(processes *all, int rank, comm **out, error *err)
{
    char why[64] = "", devices[] = {(char)('0' + all->size), '\0'};
    setenv("OCTAVO_TEST_DEVICES", devices, 1);
    own_api = *octavo_cuda_api(GPU_API_VERSION);
    if (own_api.open((uint32_t)rank, &own_gpu, &own_facts, why, sizeof why) != GPU_OK)
        return error_set(err, STATUS_UNAVAILABLE, "%s", why);
    comm_options o = {.kind = "nccl",
                      .rank = rank,
                      .size = all->size,
                      .stream = own_api.stream(own_gpu),
                      .library = FAKE_NCCL_PROCESSES};
    return comm_create(&o, out, err);
}

static cuda_device device_of(comm *c)
{
    return (cuda_device){.api = &own_api, .g = own_gpu, .facts = own_facts, .group = c};
}

static void leave(processes *all, cuda_device *d)
{
    cuda_peers_destroy(d);
    cuda_pack_destroy(d, &d->stage);
    CHECK(all, simt_mapped() == 0);
    CHECK(all, simt_allocations() == 0);
    CHECK(all, d->allocated == 0);
    own_api.close(own_gpu);
}

/* ---- a sum ----------------------------------------------------------------------------------- */

static float value(uint64_t rank, uint64_t which, uint64_t i)
{
    uint64_t x = (rank * 31 + which) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return (float)(int32_t)(x >> 32) * 0x1p-30f;
}

static float rounded(float v, gpu_type type)
{
    return type == GPU_BF16 ? bf16_to_f32(bf16_from_f32(v)) : v;
}

/* Rows of few kinds: row i is of kind (i + shift) % KINDS. */
typedef struct rows {
    size_t m, d, shift;
    gpu_type type;
    float *x, *normed; /* [m, d] what comes out, normed as f32 */
} rows;

static void fill(const rows *r, uint64_t rank, uint64_t which, float *out)
{
    for (size_t i = 0; i < r->m; i++)
        for (size_t k = 0; k < r->d; k++)
            out[i * r->d + k] = value(rank, which, (i + r->shift) % KINDS * r->d + k);
}

static void *on_device(cuda_device *d, const void *host, size_t bytes)
{
    void *p = NULL;
    if (own_api.alloc(d->g, bytes, &p) != GPU_OK) abort();
    if (host && own_api.copy_in(d->g, p, host, bytes) != GPU_OK) abort();
    return p;
}

/* x += the sum over ranks, and its norm: as forward.c does it. */
static status sum_up(cuda_device *d, rows *r)
{
    size_t values = r->m * r->d, bytes = values * sizeof(float);
    float *host = malloc(bytes);
    fill(r, (uint64_t)comm_rank(d->group), 1, host);
    float *delta = on_device(d, host, bytes), *w;
    fill(r, 0, 2, host);
    float *x = on_device(d, host, bytes);
    for (size_t k = 0; k < r->d; k++) host[k] = value(0, 3, k);
    w = on_device(d, host, r->d * sizeof(float));
    void *out = on_device(d, NULL, values * gpu_type_bytes(r->type));
    status s;
    if (cuda_peers_take(d, r->m, r->d, r->type)) {
        s = cuda_peers_sum(d, (gpu_sums){.x = x,
                                         .delta = delta,
                                         .adds = true,
                                         .weight = w,
                                         .eps = 1e-5f,
                                         .m = r->m,
                                         .d = r->d,
                                         .out = out,
                                         .type = r->type});
    } else {
        s = cuda_sum(d, delta, values);
        if (status_ok(s))
            s = cuda_status(own_api.norm(d->g, x, delta, w, 1e-5f, r->m, r->d, out, r->type));
    }
    if (status_ok(s)) s = cuda_status(own_api.copy_out(d->g, r->x, x, bytes));
    if (status_ok(s))
        s = cuda_status(own_api.copy_out(d->g, host, out, values * gpu_type_bytes(r->type)));
    if (status_ok(s)) s = cuda_wait(d);
    for (size_t i = 0; i < values; i++)
        r->normed[i] = r->type == GPU_BF16 ? bf16_to_f32(((uint16_t *)(void *)host)[i]) : host[i];
    void *const all[] = {delta, x, w, out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) own_api.release(d->g, all[i]);
    free(host);
    return s;
}

/* How many values of x differ from sums in rank order that travel in r's type. */
static size_t count_wrong(const rows *r, int ranks)
{
    size_t n = 0;
    for (size_t i = 0; i < r->m; i++)
        for (size_t k = 0; k < r->d; k++) {
            size_t at = (i + r->shift) % KINDS * r->d + k;
            float sum = rounded(value(0, 1, at), r->type);
            for (uint64_t rank = 1; rank < (uint64_t)ranks; rank++)
                sum += rounded(value(rank, 1, at), r->type);
            float due = value(0, 2, at) + rounded(sum, r->type);
            n += memcmp(&due, &r->x[i * r->d + k], sizeof due) != 0;
        }
    return n;
}

static rows make_rows(size_t m, size_t d, gpu_type type)
{
    return (rows){m, d, 0, type, malloc(m * d * sizeof(float)), malloc(m * d * sizeof(float))};
}

static void free_rows(rows *r)
{
    free(r->x);
    free(r->normed);
}

/* ---- ranks that reach each other ------------------------------------------------------------- */

/* Whole rows, and parts of rows. What is larger is NCCL's. */
static void add_up_body(processes *all, comm *c, int rank)
{
    static const struct {
        size_t m, d;
        gpu_type type;
        bool taken;
    } sizes[] = {{1, 64, GPU_BF16, true},
                 {70, 100, GPU_BF16, true},
                 {150, 2048, GPU_BF16, true},
                 {9, 1028, GPU_F32, true},
                 {1025, 1024, GPU_F32, false}};
    cuda_device d = device_of(c);
    (void)rank;
    CHECK(all, status_ok(cuda_peers_create(&d, false)));
    CHECK(all, simt_mapped() == (uint64_t)all->size - 1);
    CHECK(all, strstr(d.sums, "by kernels"));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rows r = make_rows(sizes[i].m, sizes[i].d, sizes[i].type);
        CHECK(all, cuda_peers_take(&d, r.m, r.d, r.type) == sizes[i].taken);
        CHECK(all, !sizes[i].taken || status_ok(sum_up(&d, &r)));
        CHECK(all, !sizes[i].taken || count_wrong(&r, all->size) == 0);
        free_rows(&r);
    }
    leave(all, &d);
}

static void processes_add_up_in_each_others_memory(void **state)
{
    (void)state;
    processes_run_with(make_nccl, 2, add_up_body, NULL);
    processes_run_with(make_nccl, 4, add_up_body, NULL);
}

/* ---- a row's bits ---------------------------------------------------------------------------- */

typedef struct invariant_case {
    bool reached;
    size_t d;
    gpu_type type;
    const char *told;
} invariant_case;

/* 600 rows of 2,048 values are added up by parts, and of f32 in two calls; 64 rows are neither. */
static void invariant_body(processes *all, comm *c, int rank)
{
    static const size_t sizes[] = {600, 64, 7, 1};
    const invariant_case *k = all->ctx;
    cuda_device d = device_of(c);
    (void)rank;
    if (!k->reached) simt_refuse_shares(SIMT_REFUSE_ALL);
    CHECK(all, status_ok(cuda_peers_create(&d, true)));
    CHECK(all, strstr(d.sums, k->told));
    rows first = make_rows(KINDS, k->d, k->type);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        rows r = make_rows(sizes[n], k->d, k->type);
        size_t bytes = k->d * sizeof(float);
        r.shift = n;
        CHECK(all, cuda_peers_take(&d, r.m, r.d, r.type) == k->reached);
        CHECK(all, status_ok(sum_up(&d, &r)));
        if (n == 0) {
            memcpy(first.x, r.x, KINDS * bytes);
            memcpy(first.normed, r.normed, KINDS * bytes);
            CHECK(all, !k->reached || count_wrong(&first, all->size) == 0);
        }
        size_t differ = 0;
        for (size_t i = 0; i < r.m; i++) {
            size_t kind_at = (i + n) % KINDS * k->d;
            differ += memcmp(r.x + i * k->d, first.x + kind_at, bytes) != 0 ||
                      memcmp(r.normed + i * k->d, first.normed + kind_at, bytes) != 0;
        }
        CHECK(all, differ == 0);
        free_rows(&r);
    }
    free_rows(&first);
    leave(all, &d);
}

static void bits_do_not_depend_on_other_rows(void **state)
{
    (void)state;
    static const char gathered[] =
        "gathered by NCCL, added up in rank order (sharing memory: operation not supported)";
    invariant_case cases[] = {{true, LONG_ROW, GPU_F32, "by kernels"},
                              {true, LONG_ROW, GPU_BF16, "by kernels"},
                              {false, LONG_ROW, GPU_F32, gathered}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        processes_run_with(make_nccl, i == 2 ? 4 : 3, invariant_body, &cases[i]);
}

/* Rows whose length the kernel does not take are gathered into the memory that has the flags, which
 * no kernel may read behind that. */
static void odd_rows_body(processes *all, comm *c, int rank)
{
    cuda_device d = device_of(c);
    rows r = make_rows(5, 102, GPU_F32);
    (void)rank;
    CHECK(all, status_ok(cuda_peers_create(&d, true)));
    CHECK(all, strstr(d.sums, "by kernels") && cuda_peers_exchanges(&d, 64));
    CHECK(all, !cuda_peers_take(&d, r.m, r.d, r.type));
    CHECK(all, status_ok(sum_up(&d, &r)));
    CHECK(all, count_wrong(&r, all->size) == 0);
    CHECK(all, !cuda_peers_exchanges(&d, 64));
    free_rows(&r);
    leave(all, &d);
}

static void rows_that_no_kernel_takes(void **state)
{
    (void)state;
    processes_run_with(make_nccl, 3, odd_rows_body, NULL);
}

/* More ranks than a kernel reads are gathered, too. */
static void ranks_beyond_eight(void **state)
{
    (void)state;
    invariant_case many = {false, 64, GPU_BF16, "more than 8 ranks"};
    processes_run_with(make_nccl, 9, invariant_body, &many);
    assert_true(cuda_peers_bytes(9, true) == cuda_peers_bytes(8, false));
    assert_int_equal(cuda_peers_bytes(9, false), 0);
    assert_int_equal(cuda_peers_bytes(1, true), 0);
    assert_int_equal(cuda_peers_bytes(2, false) % (2 << 20), 0);
}

/* ---- a rank that is lost --------------------------------------------------------------------- */

typedef struct lost_case { /* in memory of all ranks */
    bool invariant;
    _Atomic int n_done; /* ranks that have added up once */
} lost_case;

typedef struct stopper {
    processes *all;
    const cuda_device *d;
    _Atomic bool over;
} stopper;

/* As a backend that is interrupted: first the comm, by which ranks see that sums are wrong. */
static void *stop_when_lost(void *arg)
{
    stopper *s = arg;
    while (!s->over && !s->all->lost) short_sleep();
    if (s->all->lost) comm_abort(s->d->group);
    if (s->all->lost) cuda_peers_stop(s->d);
    return NULL;
}

static void lost_body(processes *all, comm *c, int rank)
{
    cuda_device d = device_of(c);
    stopper s = {.all = all, .d = &d};
    pthread_t thread;
    rows r = make_rows(3, 64, GPU_BF16);
    lost_case *k = all->ctx;
    CHECK(all, status_ok(cuda_peers_create(&d, k->invariant)));
    pthread_create(&thread, NULL, stop_when_lost, &s);
    CHECK(all, status_ok(sum_up(&d, &r)));
    k->n_done++;
    while (rank == all->size - 1 && k->n_done < all->size) short_sleep();
    if (rank == all->size - 1) raise(SIGKILL);
    CHECK(all, !status_ok(sum_up(&d, &r)));
    s.over = true;
    pthread_join(thread, NULL);
    free_rows(&r);
    leave(all, &d);
}

static void a_lost_process_ends_the_sums_of_the_others(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        lost_case *k = shared_memory(sizeof *k);
        k->invariant = i;
        processes_run_with(make_nccl, 2 + 2 * i, lost_body, k);
        munmap(k, sizeof *k);
    }
}

/* ---- ranks that end one after the other ------------------------------------------------------ */

/* The last rank may read the others' memory until it ends. all->ctx: ranks that freed theirs. */
static void end_body(processes *all, comm *c, int rank)
{
    _Atomic int *n_freed = all->ctx;
    cuda_device d = device_of(c);
    CHECK(all, status_ok(cuda_peers_create(&d, false)));
    for (int i = 0; rank == all->size - 1 && i < 20; i++) short_sleep();
    CHECK(all, rank < all->size - 1 || *n_freed == 0);
    cuda_peers_destroy(&d);
    ++*n_freed;
    leave(all, &d);
}

static void no_rank_frees_what_another_reads(void **state)
{
    (void)state;
    _Atomic int *n_freed = shared_memory(sizeof *n_freed);
    processes_run_with(make_nccl, 3, end_body, n_freed);
    assert_int_equal(*n_freed, 3);
    munmap(n_freed, sizeof *n_freed);
}

/* ---- handles --------------------------------------------------------------------------------- */

typedef struct handle_case {
    kind shares;
    const char *why; /* as rank 0 is told */
    bool invariant;
} handle_case;

/* Rank 1's handle leads nowhere: nobody waits for flags, and NCCL adds up, or gathers. */
static void handle_body(processes *all, comm *c, int rank)
{
    const handle_case *k = all->ctx;
    cuda_device d = device_of(c);
    rows r = make_rows(2, 64, GPU_F32);
    own_api.share = share_otherwise;
    shares = rank == 1 ? k->shares : TRUE_HANDLE;
    CHECK(all, status_ok(cuda_peers_create(&d, k->invariant)));
    CHECK(all, k->invariant ? cuda_peers_gather(&d) : !d.peers);
    bool by_other = rank == 1 && k->shares != NO_MEMORY;
    const char *why = by_other ? "another rank does not reach all devices" : k->why;
    process_check(all, strstr(d.sums, "by NCCL"), d.sums, __LINE__);
    process_check(all, strstr(d.sums, why), d.sums, __LINE__);
    CHECK(all, simt_mapped() == 0);
    CHECK(all, status_ok(sum_up(&d, &r)));
    CHECK(all, count_wrong(&r, 2) == 0);
    free_rows(&r);
    leave(all, &d);
}

static void handles_that_lead_nowhere(void **state)
{
    (void)state;
#define OF_PROCESS "rank 0 does not reach rank 1: reaching memory of another process: "
#define NO_HANDLE  OF_PROCESS "invalid resource handle"
    handle_case cases[] = {
        {JUNK, NO_HANDLE, false},
        {JUNK, NO_HANDLE, true},
        {NO_PROCESS, NO_HANDLE, false},
        {OTHER_FILE, NO_HANDLE, false},
        {OTHER_HOST, OF_PROCESS "it is on another host", false},
        {NO_MEMORY, "does not reach rank 1: it shares no memory; its own log says why", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        processes_run_with(make_nccl, 2, handle_body, &cases[i]);
}

/* In place of the C library's, which kernels/cuda/reach.cu asks for the process's namespace. */
static bool proc_is_hidden;
ssize_t readlink(const char *path, char *out, size_t n)
{
    if (!proc_is_hidden) return readlinkat(AT_FDCWD, path, out, n);
    errno = ENOENT;
    return -1;
}

/* Handles of this process, which name addresses. */
static void addresses_that_lead_nowhere(void **state)
{
    (void)state;
    static const char wrong[] =
        "reaching another gpu's memory: the handle's address is not in memory "
        "of the handle's device";
    const gpu_api *api = octavo_cuda_api(GPU_API_VERSION);
    gpu *g[2];
    gpu_facts facts;
    gpu_handle h;
    char why[64];
    void *memory, *host, *there = NULL;
    setenv("OCTAVO_TEST_DEVICES", "2", 1);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(api->open(i, &g[i], &facts, why, sizeof why), GPU_OK);
    assert_int_equal(api->alloc(g[1], 1 << 16, &memory), GPU_OK);
    assert_int_equal(api->alloc_host(g[1], 64, &host), GPU_OK);
    assert_int_equal(api->share(g[1], memory, &h), GPU_OK);
    assert_int_equal(api->reach(g[0], &h, &there), GPU_OK);
    assert_ptr_equal(there, memory);
    api->unreach(g[0], &h, there);
    for (int i = 0; i < 5; i++) {
        gpu_handle bad = h;
        if (i == 0) bad.address = (uint64_t)(uintptr_t)why;
        if (i == 1) bad.address += 1 << 16;
        if (i == 2) bad.ordinal = 0; /* of another device */
        if (i == 3) bad.ordinal = UINT32_MAX;
        if (i == 4) bad.address = (uint64_t)(uintptr_t)host;
        there = NULL;
        assert_int_equal(api->reach(g[0], &bad, &there), GPU_UNSUPPORTED);
        assert_string_equal(api->why(g[0]), wrong);
        assert_null(there);
    }
    /* A process that /proc does not name neither shares nor reaches. */
    proc_is_hidden = true;
    gpu_handle unnamed;
    assert_int_equal(api->share(g[1], memory, &unnamed), GPU_UNSUPPORTED);
    assert_string_equal(api->why(g[1]), "sharing memory: /proc does not say which process this is");
    assert_int_equal(unnamed.is_there, 0);
    assert_int_equal(api->reach(g[0], &h, &there), GPU_UNSUPPORTED);
    assert_non_null(strstr(api->why(g[0]), "/proc does not say which process this is"));
    proc_is_hidden = false;
    assert_int_equal(api->share(g[1], memory, &unnamed), GPU_OK);
    /* A handle without memory behind it. */
    assert_int_equal(api->share(g[1], why, &h), GPU_UNSUPPORTED);
    assert_string_equal(api->why(g[1]), "sharing memory: invalid argument");
    assert_int_equal(h.is_there, 0);
    api->release(g[1], memory);
    api->release_host(g[1], host);
    for (int i = 0; i < 2; i++) api->close(g[i]);
    unsetenv("OCTAVO_TEST_DEVICES");
    assert_int_equal(simt_allocations(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_add_up_in_each_others_memory),
        cmocka_unit_test(bits_do_not_depend_on_other_rows),
        cmocka_unit_test(rows_that_no_kernel_takes),
        cmocka_unit_test(ranks_beyond_eight),
        cmocka_unit_test(a_lost_process_ends_the_sums_of_the_others),
        cmocka_unit_test(no_rank_frees_what_another_reads),
        cmocka_unit_test(handles_that_lead_nowhere),
        cmocka_unit_test(addresses_that_lead_nowhere),
    };
    return cmocka_run_group_tests_name("CUDA sums over processes", tests, NULL, NULL);
}

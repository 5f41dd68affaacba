/* A CUDA backend whose pool lies in device and host memory (model/cuda/window.h), over the emulated
 * GPU: a prompt with more K and V than the device holds has the bits of one that is all on it, the
 * device's memory has its bound, and copies run beside kernels as planned. */
#include "tests/unit/model_pass.h"

#include "model/cuda/window.h"
#include "tests/simt/device.h"

#define GOLDEN "tests/golden/models/"

enum { TOKENS = 90, VOCAB = 63 };

static const pass shape = {.dir = GOLDEN "qwen3_f32",
                           .override = "num_hidden_layers=4",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .heads_per_group = 1,
                           .chunk = 32,
                           .mass_rows = 8,
                           .layer_step = 1,
                           .n_threads = 1,
                           .max_model_len = 128,
                           .gpu_kv = GPU_KV_BF16};

/* The pass with on_host cells in host memory and room for `room` on the device. */
static pass beyond(pass p, uint64_t cell_bytes, uint64_t room, uint64_t on_host)
{
    p.kv_bytes = room * cell_bytes;
    p.kv_host = on_host * cell_bytes;
    return p;
}

/* ---- the same bits --------------------------------------------------------------------------- */

static void check_bits(pass p, uint64_t cell_bytes, uint64_t room, uint64_t on_host)
{
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB);
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    pass far = beyond(p, cell_bytes, room, on_host);
    pass_result here = run(&p, tokens, TOKENS), there = run(&far, tokens, TOKENS);
    assert_memory_equal(here.logits, there.logits,
                        sizeof(float) * TOKENS * there.config.vocab_size);
    assert_int_equal(here.mass_floats, there.mass_floats);
    assert_memory_equal(here.mass, there.mass, sizeof(float) * here.mass_floats);
    assert_true(here.mass_floats > 0);
    result_free(&here);
    result_free(&there);
    assert_int_equal(simt_allocations(), 0);
}

/* 4 layers of 2 heads, 6 blocks: 48 cells. The device has few of them beside two windows; then a
 * model with layers that read a window, and all heads in a group. */
static void a_prompt_beyond_the_device(void **state)
{
    (void)state;
    check_bits(shape, 2048, 32, 56);
    pass p = shape;
    p.dir = GOLDEN "gemma3_layers_bf16";
    p.override = NULL;
    p.heads_per_group = 0;
    p.page_tokens = 32;
    check_bits(p, 4096, 10, 12);
}

/* ---- what the device holds, and when --------------------------------------------------------- */

/* 16 layers of 2 heads hold 360 KB of K and V of this prompt, of which the device has room for 74
 * KB. */
enum { LAYERS = 16, CELL = 2048, ROOM = 36, ON_HOST = LAYERS * 2 * 8 };
enum { EVENTS = 4096, COST = 40000 }; /* COST: of attention, in the time that a byte takes */

/* A device that keeps count of memory and of a clock for each lane: a copy takes its bytes, the
 * attention of a layer COST, and all else nothing. */
static struct {
    const gpu_api *real;
    gpu_api api;
    uint64_t bytes, most;
    struct block {
        void *at;
        size_t bytes;
    } blocks[1024];
    size_t n_blocks;
    uint64_t clock[GPU_LANES], busy[GPU_LANES];
    size_t issued; /* copies up and attentions so far */
    struct event {
        uint64_t start, end;
        size_t issue;
    } uploads[EVENTS], attentions[EVENTS]; /* uploads: the first copy of each layer, its tables */
    size_t n_uploads, n_attentions;
} device;

static gpu_status count_alloc(gpu *g, size_t bytes, void **out)
{
    gpu_status s = device.real->alloc(g, bytes, out);
    device.bytes += bytes;
    if (device.bytes > device.most) device.most = device.bytes;
    assert_in_range(device.n_blocks, 0, 1023);
    device.blocks[device.n_blocks++] = (struct block){*out, bytes};
    return s;
}

static void count_release(gpu *g, void *block)
{
    for (size_t i = 0; block && i < device.n_blocks; i++) {
        if (device.blocks[i].at != block) continue;
        device.bytes -= device.blocks[i].bytes;
        device.blocks[i] = device.blocks[--device.n_blocks];
    }
    device.real->release(g, block);
}

static struct event spend(gpu_lane lane, uint64_t cost)
{
    struct event e = {device.clock[lane], device.clock[lane] + cost, device.issued++};
    device.clock[lane] = e.end;
    device.busy[lane] += cost;
    return e;
}

/* Whether the address is in the block with the pages, the only one of that size. */
static bool is_page(const void *at)
{
    const uint8_t *p = at;
    for (size_t i = 0; i < device.n_blocks; i++) {
        const uint8_t *first = device.blocks[i].at;
        if (device.blocks[i].bytes == ROOM * CELL && p >= first) return p < first + ROOM * CELL;
    }
    return false;
}

static gpu_status log_copy_up(gpu *g, void *to, const void *from, size_t bytes)
{
    struct event e = spend(GPU_LANE_UP, bytes);
    assert_in_range(device.n_uploads, 0, EVENTS - 1);
    if (!is_page(to)) device.uploads[device.n_uploads++] = e;
    return device.real->copy_up(g, to, from, bytes);
}

static gpu_status log_copy_down(gpu *g, void *to, const void *from, size_t bytes)
{
    (void)spend(GPU_LANE_DOWN, bytes);
    return device.real->copy_down(g, to, from, bytes);
}

static gpu_status log_order(gpu *g, gpu_lane first, gpu_lane then)
{
    if (device.clock[first] > device.clock[then]) device.clock[then] = device.clock[first];
    return device.real->order(g, first, then);
}

static gpu_status log_attention(gpu *g, const gpu_attention *a)
{
    assert_in_range(device.n_attentions, 0, EVENTS - 1);
    device.attentions[device.n_attentions++] = spend(GPU_LANE_STREAM, COST);
    return device.real->attention(g, a);
}

static const gpu_api *logged_device(void)
{
    memset(&device, 0, sizeof device);
    device.real = octavo_cuda_api(GPU_API_VERSION);
    device.api = *device.real;
    device.api.alloc = count_alloc;
    device.api.release = count_release;
    device.api.copy_up = log_copy_up;
    device.api.copy_down = log_copy_down;
    device.api.order = log_order;
    device.api.attention = log_attention;
    return &device.api;
}

static pass deep(void)
{
    pass p = shape;
    p.override = "num_hidden_layers=16";
    p.mass_rows = 0;
    p.chunk = 45;
    return p;
}

/* A layer's upload is issued and begins before the attention of the layer before it ends, and not
 * before that of the one before it has. */
static void check_overlap(uint32_t steps)
{
    assert_int_equal(device.n_attentions, steps * LAYERS);
    assert_int_equal(device.n_uploads, device.n_attentions);
    for (size_t i = 0; i + 1 < device.n_uploads; i++) {
        if ((i + 1) % LAYERS == 0) continue; /* the next step's */
        const struct event *up = &device.uploads[i + 1], *before = &device.attentions[i];
        assert_true(up->issue < before->issue && up->start < before->end);
        if (i % LAYERS > 0) assert_true(up->start >= device.attentions[i - 1].end);
    }
    uint64_t one_by_one = device.busy[0] + device.busy[1] + device.busy[2];
    assert_true(device.busy[GPU_LANE_UP] > 4 * COST);
    assert_true(device.clock[GPU_LANE_STREAM] < one_by_one - device.busy[GPU_LANE_UP] * 3 / 4);
}

/* The device has weights, step buffers, two layers of the pool and the cells that stay, and beside
 * them only a step's arrays. */
static void the_device_holds_two_layers_at_a_time(void **state)
{
    (void)state;
    enum { ARRAYS = 64 << 10 };
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB);
    pass p = deep();
    error err = {{0}};
    model_config config;
    assert_true(status_ok(model_config_load(p.dir, &p.override, 1, &config, &err)));
    gpu_facts facts = {.n_sms = 2, .shared_bytes = 163 << 10, .free_bytes = 1 << 30};
    backend_cuda_options o = {
        .common = {.dir = p.dir,
                   .config = &config,
                   .dummy = true,
                   .weight_type = DTYPE_BF16,
                   .geometry = {.page_tokens = 16, .layers_per_group = 1, .heads_per_group = 1},
                   .kv_bytes = ROOM * CELL,
                   .kv_host_bytes = (uint64_t)ON_HOST * CELL,
                   .max_rows = p.chunk,
                   .max_seqs = 2,
                   .max_model_len = p.max_model_len},
        .kv = GPU_KV_BF16,
        .gpu_facts = &facts};
    backend_measures m;
    if (!status_ok(backend_cuda_measure(&o, 1, &m, &err))) fail_msg("%s", err.text);
    uint64_t of_layer = (m.n_pages + LAYERS - 1) / LAYERS * m.page_bytes;
    assert_true(m.page_bytes == CELL && backend_pool_bytes(&m) <= ROOM * CELL);
    assert_true(backend_pool_bytes(&m) >= 2 * of_layer);
    assert_true(m.n_pages * m.page_bytes > 6 * backend_pool_bytes(&m));
    p = beyond(p, CELL, ROOM, ON_HOST);
    p.gpu = logged_device();
    pass_result r = run(&p, tokens, TOKENS);
    uint64_t holds = m.weight_bytes + m.step_bytes + backend_pool_bytes(&m);
    print_message("device: %llu bytes at most, %llu of them weights, step buffers and pages\n",
                  (unsigned long long)device.most, (unsigned long long)holds);
    assert_true(device.most >= holds && device.most <= holds + ARRAYS);
    assert_int_equal(device.bytes, 0);
    check_overlap(TOKENS / p.chunk);
    result_free(&r);
}

/* ---- decoding -------------------------------------------------------------------------------- */

enum { DECODED = 34 };

/* Tokens one by one: the CPU attends to full pages in host memory, and only the pages that are
 * written come up. Logits are those of a pool on the device, but for rounding. Returns the bytes
 * that came up. */
static uint64_t check_decoding(pass p, uint64_t cell_bytes, uint64_t room, uint64_t on_host)
{
    uint32_t tokens[DECODED];
    random_tokens(tokens, DECODED, VOCAB);
    p.mass_rows = 0;
    p.chunk = 1;
    pass far = beyond(p, cell_bytes, room, on_host);
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    pass_result here = run(&p, tokens, DECODED);
    far.gpu = logged_device();
    pass_result there = run(&far, tokens, DECODED);
    double e = nmse(there.logits, here.logits, (size_t)DECODED * here.config.vocab_size);
    print_message("%s, format %u: NMSE %.1e\n", p.dir, p.gpu_kv, e);
    assert_true(p.batch_invariant ? e == 0 : e > 0 && e < 1e-5);
    result_free(&there);
    result_free(&here);
    return device.busy[GPU_LANE_UP];
}

static void decoding_reads_host_memory(void **state)
{
    (void)state;
    pass p = shape;
    p.bf16 = false;
    uint64_t up = check_decoding(p, 2048, 20, 30);
    p.batch_invariant = true; /* every page comes up */
    assert_true(up < check_decoding(p, 2048, 20, 30) * 3 / 4);
    p.batch_invariant = false;
    p.gpu_kv = GPU_KV_INT8;
    check_decoding(p, 1088, 20, 30);
    p.gpu_kv = GPU_KV_E4M3;
    p.heads_per_group = 2;
    p.layers_per_group = 2;
    check_decoding(p, 4096, 9, 8);
    p = shape;
    p.override = NULL;
    p.dir = GOLDEN "gemma3_layers_bf16"; /* layers with a sliding window take their pages up */
    check_decoding(p, 2048, 10, 12);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void sizes(void **state)
{
    (void)state;
    static const uint32_t layers[] = {1, 2, 3, 24, 80};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        pkv_geometry g = {.page_tokens = 16,
                          .n_layers = layers[i],
                          .n_kv_heads = 2,
                          .layers_per_group = 1,
                          .heads_per_group = 1};
        for (uint64_t room = 1; room < 4000; room += 37) {
            for (uint64_t host = 1; host < 9000; host += 311) {
                cuda_window_sizes s, more;
                uint64_t n = cuda_window_cells(&g, room, host);
                if (n == 0) {
                    assert_false(cuda_window_fit(&g, host, room, &s));
                    continue;
                }
                assert_true(cuda_window_fit(&g, n, room, &s));
                assert_true(s.n_here >= 1 && s.n_here + 2 * (uint64_t)s.n_frames <= room);
                assert_true((uint64_t)s.n_frames * layers[i] >= n && n - s.n_here <= host);
                assert_false(cuda_window_fit(&g, n + 1, room, &more) &&
                             n + 1 - more.n_here <= host);
            }
        }
    }
}

static status_code made_with(pass p, bool on_gpu, char out[512])
{
    error err = {{0}};
    backend b;
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    assert_true(status_ok(model_config_load(p.dir, &p.override, 1, &config, &err)));
    backend_cuda_options o = {
        .common = {.dir = p.dir,
                   .config = &config,
                   .dummy = true,
                   .n_threads = 1,
                   .group = group,
                   .geometry = {.page_tokens = 16, .layers_per_group = 1, .heads_per_group = 1},
                   .kv_bytes = p.kv_bytes,
                   .kv_host_bytes = p.kv_host,
                   .max_rows = 32,
                   .max_seqs = 2,
                   .max_model_len = 128},
        .api = octavo_cuda_api(GPU_API_VERSION)};
    status s = p.n_ranks ? backend_cuda_ranks_create(&o, p.n_ranks, &b, &err)
               : on_gpu  ? backend_cuda_create(&o, &b, &err)
                         : backend_cpu_create(&o.common, &b, &err);
    assert_false(status_ok(s));
    snprintf(out, 512, "%s", err.text);
    comm_destroy(group);
    assert_int_equal(simt_allocations(), 0);
    return s.code;
}

static void refusals(void **state)
{
    (void)state;
    char why[512];
    pass p = beyond(shape, 2048, 16, 94);
    assert_int_equal(made_with(p, true, why), STATUS_INVALID);
    assert_non_null(strstr(why, "kv-memory: 32768 bytes on the device hold 16 pages; two layers"));
    p = beyond(shape, 2048, 40, 94);
    assert_int_equal(made_with(p, false, why), STATUS_UNSUPPORTED);
    assert_non_null(strstr(why, "kv-host: only a GPU's pool"));
    p.n_ranks = 2;
    assert_int_equal(made_with(p, true, why), STATUS_UNSUPPORTED);
    assert_non_null(strstr(why, "kv-host: needs one rank"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_beyond_the_device),
        cmocka_unit_test(the_device_holds_two_layers_at_a_time),
        cmocka_unit_test(decoding_reads_host_memory),
        cmocka_unit_test(sizes),
        cmocka_unit_test(refusals),
    };
    simt_be_late(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

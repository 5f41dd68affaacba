/* Launches that a GPU times by name (gpu_api.trace), over the emulator: which ones a decode step
 * has, launched one by one and as a graph, and that their times add up. */
#include "tests/unit/model_cuda_steps.h"

typedef struct named {
    const char *name;
    uint32_t n;
} named;

static void check_names(const gpu_launches *got, const named *want, uint32_t n)
{
    for (uint32_t i = 0; i < got->n || i < n; i++) {
        if (i >= n) fail_msg("beyond the %u names: %s", n, got->of[i].name);
        if (i >= got->n) fail_msg("%s is missing", want[i].name);
        if (strcmp(got->of[i].name, want[i].name) != 0 || got->of[i].n != want[i].n)
            fail_msg("name %u: %s %u, not %s %u", i, got->of[i].name, got->of[i].n, want[i].name,
                     want[i].n);
        if (!(got->of[i].us > 0)) fail_msg("%s takes no time", got->of[i].name);
    }
}
#define CHECK_NAMES(got, ...)                                                                      \
    check_names(got, (const named[]){__VA_ARGS__},                                                 \
                (uint32_t)(sizeof((const named[]){__VA_ARGS__}) / sizeof(named)))

/* ---- a step of the backend ------------------------------------------------------------------- */

enum { LAYERS = 2 };

/* The launches of one step behind STEPS others. */
static gpu_launches trace_step(house *h, const kind *k, uint64_t step, bool one_by_one)
{
    gpu_launches out = {.n = 0};
    error err = {{0}};
    assert_true(status_ok(backend_cuda_trace(&h->backend, one_by_one, &err)));
    take_step(h, k, step, 1);
    assert_true(status_ok(backend_cuda_traced(&h->backend, &out, &err)));
    return out;
}

static void warm_up(house *h, const kind *k)
{
    simt_refuse_captures(SIMT_REFUSE_NONE);
    take_step(h, k, 1, PROMPT);
    for (uint64_t step = 2; step < 2 + STEPS; step++) take_step(h, k, step, 1);
}

/* The same names where the device lets kernels start early; none does so while it is timed. */
static void of_a_dense_step(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        kind k = {.n_layers = LAYERS, .n_seqs = FEW, .quant_bits = i % 2 ? 8 : 0};
        simt_have_compute(i < 2 ? 80 : 90);
        simt_be_late(i < 2);
        house h = open_house(&k);
        warm_up(&h, &k);
        simt_counts before = simt_counted();
        gpu_launches graph = trace_step(&h, &k, 2 + STEPS, false);
        CHECK_NAMES(&graph, {"copy to the device", 2}, {"graph", 1}, {"copy to the host", 1});
        assert_int_equal(simt_counted().replays - before.replays, 1);
        before = simt_counted();
        gpu_launches alone = trace_step(&h, &k, 3 + STEPS, true);
        CHECK_NAMES(&alone, {"copy to the device", 2}, {"embed", 1}, {"angles", 1},
                    {"norm", 1 + 2 * LAYERS}, {"product of few rows", 4 * LAYERS + 1},
                    {"heads", LAYERS}, {"decode attention", LAYERS}, {"merge of attention", LAYERS},
                    {"gate", LAYERS}, {"draws", 1}, {"copy to the host", 1});
        assert_int_equal(simt_counted().replays - before.replays, 0);
        assert_int_equal(simt_counted().early - before.early, 0);
        /* The emulated clock counts what kernels ask for: the same as in the graph, but for a slot
         * more of each sequence. */
        double sum = 0, all = 0;
        for (uint32_t n = 1; n + 1 < alone.n; n++) sum += alone.of[n].us;
        assert_float_equal(sum, graph.of[1].us, 0.01 * sum);
        for (uint32_t n = 0; n < alone.n; n++) all += alone.of[n].us;
        assert_true(all > sum);
        before = simt_counted();
        take_step(&h, &k, 4 + STEPS, 1);
        assert_int_equal(simt_counted().replays - before.replays, 1);
        close_house(&h);
    }
    simt_be_late(0);
    simt_have_compute(80);
}

/* Two kernels that route rows to experts have one name. */
static void of_a_sparse_step(void **state)
{
    (void)state;
    kind k = {.n_layers = LAYERS, .n_seqs = FEW, .experts = true};
    house h = open_house(&k);
    warm_up(&h, &k);
    gpu_launches alone = trace_step(&h, &k, 2 + STEPS, true);
    CHECK_NAMES(&alone, {"copy to the device", 2}, {"embed", 1}, {"angles", 1},
                {"norm", 1 + 2 * LAYERS}, {"product of few rows", 5 * LAYERS + 1},
                {"heads", LAYERS}, {"decode attention", LAYERS}, {"merge of attention", LAYERS},
                {"routing", 2 * LAYERS}, {"gate", LAYERS}, {"sum of experts", LAYERS}, {"draws", 1},
                {"copy to the host", 1});
    close_house(&h);
}

/* Masses of all sequences are one launch in a layer, norms of keys and of values one each. */
static void of_a_measured_step(void **state)
{
    (void)state;
    kind k = {.n_layers = LAYERS, .n_seqs = FEW, .measured = true, .mixture = true, .norms = true};
    house h = open_house(&k);
    warm_up(&h, &k);
    gpu_launches graph = trace_step(&h, &k, 2 + STEPS, false);
    CHECK_NAMES(&graph, {"copy to the device", 2}, {"clearing memory", 1}, {"graph", 1},
                {"copy to the host", 2});
    gpu_launches alone = trace_step(&h, &k, 3 + STEPS, true);
    CHECK_NAMES(&alone, {"copy to the device", 2}, {"clearing memory", 1}, {"embed", 1},
                {"angles", 1}, {"norm", 1 + 2 * LAYERS}, {"product of few rows", 4 * LAYERS + 1},
                {"heads", LAYERS}, {"decode attention", LAYERS}, {"merge of attention", LAYERS},
                {"mass of what attention kept", LAYERS}, {"norms", 2 * LAYERS}, {"gate", LAYERS},
                {"draws", 1}, {"copy to the host", 2});
    close_house(&h);
}

/* A shape's second step is captured: what is recorded meanwhile is not launched. */
static void of_a_captured_step(void **state)
{
    (void)state;
    kind k = {.n_layers = LAYERS, .n_seqs = FEW};
    simt_refuse_captures(SIMT_REFUSE_NONE);
    house h = open_house(&k);
    take_step(&h, &k, 1, PROMPT);
    take_step(&h, &k, 2, 1);
    simt_counts before = simt_counted();
    gpu_launches graph = trace_step(&h, &k, 3, false);
    assert_int_equal(simt_counted().captures - before.captures, 1);
    CHECK_NAMES(&graph, {"copy to the device", 2}, {"graph", 1}, {"copy to the host", 1});
    close_house(&h);
}

static void of_ranks_is_refused(void **state)
{
    (void)state;
    kind k = {.n_layers = 1, .n_seqs = FEW, .ranks = true};
    error err = {{0}};
    void *library = open_nccl(FAKE_WELL);
    house h = open_house(&k);
    assert_int_equal(backend_cuda_trace(&h.backend, true, &err).code, STATUS_UNSUPPORTED);
    assert_string_equal(err.text, "launches are timed on one GPU of this process");
    close_house(&h);
    dlclose(library);
}

/* ---- the device ------------------------------------------------------------------------------ */

enum { SIDE = 64 };

typedef struct device {
    const gpu_api *api;
    gpu *g;
    void *x, *y;
} device;

static device open_device(void)
{
    device d = {.api = octavo_cuda_api(GPU_API_VERSION)};
    gpu_facts facts;
    char why[64];
    simt_refuse_captures(SIMT_REFUSE_NONE);
    assert_int_equal(d.api->open(0, &d.g, &facts, why, sizeof why), GPU_OK);
    assert_int_equal(d.api->alloc(d.g, SIDE * SIDE * 4, &d.x), GPU_OK);
    assert_int_equal(d.api->alloc(d.g, SIDE * SIDE * 4, &d.y), GPU_OK);
    return d;
}

static void close_device(device *d)
{
    d->api->release(d->g, d->x);
    d->api->release(d->g, d->y);
    d->api->close(d->g);
}

static void gate(const device *d)
{
    assert_int_equal(d->api->gate(d->g, d->x, 1, SIDE, false, d->y, GPU_BF16), GPU_OK);
}

/* Times add up to the clock's, and what was there before the trace is none of it. A product of the
 * library, copies on the device and a whole graph are launches, too. */
static void times_add_up(void **state)
{
    (void)state;
    static uint8_t host[SIDE];
    for (int late = 0; late < 2; late++) {
        device d = open_device();
        gpu_matrix w = {.n = SIDE, .k = SIDE, .type = GPU_BF16, .data = d.x};
        gpu_launches all = {.n = 0};
        gpu_graph *graph;
        void *to[] = {host, host + SIDE / 2};
        const void *from[] = {d.y, d.x};
        size_t bytes[] = {SIDE / 2, SIDE / 2};
        const gpu_copies batch = {.to = to, .from = from, .bytes = bytes, .n = 2};
        double us = 0, sum = 0;
        simt_be_late(late);
        gate(&d);
        assert_int_equal(d.api->mark(d.g), GPU_OK);
        assert_int_equal(d.api->trace(d.g), GPU_OK);
        gate(&d);
        assert_int_equal(d.api->clear(d.g, d.y, 0), GPU_OK); /* nothing is launched */
        assert_int_equal(d.api->copy(d.g, d.y, d.x, SIDE), GPU_OK);
        assert_int_equal(d.api->clear(d.g, d.y, SIDE), GPU_OK);
        assert_int_equal(d.api->product(d.g, &w, d.y, GPU_FEW_ROWS + 1, d.y, GPU_F32, NULL),
                         GPU_OK);
        assert_int_equal(d.api->capture(d.g), GPU_OK);
        gate(&d);
        gate(&d);
        assert_int_equal(d.api->captured(d.g, &graph), GPU_OK);
        assert_int_equal(d.api->replay(d.g, graph), GPU_OK);
        gate(&d);
        assert_int_equal(d.api->copy_in(d.g, d.y, host, SIDE), GPU_OK);
        assert_int_equal(d.api->copy_out(d.g, host, d.y, SIDE), GPU_OK);
        assert_int_equal(d.api->copy_batch(d.g, &batch, true), GPU_OK);
        assert_int_equal(d.api->elapsed(d.g, &us), GPU_OK);
        assert_int_equal(d.api->traced(d.g, &all), GPU_OK);
        CHECK_NAMES(&all, {"gate", 2}, {"copy on the device", 1}, {"clearing memory", 1},
                    {"product", 1}, {"graph", 1}, {"copy to the device", 1},
                    {"copy to the host", 1}, {"copies to the host", 1});
        assert_float_equal(all.of[4].us, all.of[0].us, 1e-9); /* two gates each */
        for (uint32_t i = 0; i < all.n; i++) sum += all.of[i].us;
        assert_float_equal(sum, us, 1e-9);
        gate(&d); /* behind the trace */
        d.api->forget(graph);
        simt_be_late(0);
        close_device(&d);
    }
}

/* A second trace adds to what the first one found. One that does not fit says so, and does not
 * stand in the way of the next one; nor does one that was never ended. */
static void one_after_the_other(void **state)
{
    (void)state;
    device d = open_device();
    gpu_launches all = {.n = 0};
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(d.api->trace(d.g), GPU_OK);
        gate(&d);
        assert_int_equal(d.api->traced(d.g, &all), GPU_OK);
        CHECK_NAMES(&all, {"gate", (uint32_t)i});
    }
    for (int more = 0; more < 2; more++) {
        gpu_launches many = {.n = 0};
        assert_int_equal(d.api->trace(d.g), GPU_OK);
        for (int i = 0; i < GPU_TRACED_MOST + more; i++) gate(&d);
        assert_int_equal(d.api->traced(d.g, &many), more ? GPU_UNSUPPORTED : GPU_OK);
        assert_int_equal(many.of[0].n, GPU_TRACED_MOST);
    }
    assert_non_null(strstr(d.api->why(d.g), "more launches or names than there is room for"));
    assert_int_equal(d.api->trace(d.g), GPU_OK);
    gate(&d);
    assert_int_equal(d.api->traced(d.g, &all), GPU_OK);
    CHECK_NAMES(&all, {"gate", 3});
    for (int late = 0; late < 2; late++) {
        simt_be_late(late);
        assert_int_equal(d.api->trace(d.g), GPU_OK);
        gate(&d);
        assert_int_equal(d.api->trace(d.g), GPU_OK);
        gate(&d);
        assert_int_equal(d.api->traced(d.g, &all), GPU_OK);
        CHECK_NAMES(&all, {"gate", 4 + (uint32_t)late});
    }
    simt_be_late(0);
    assert_int_equal(d.api->trace(d.g), GPU_OK);
    gate(&d);
    close_device(&d);
}

static void as_many_names_as_there_is_room_for(void **state)
{
    (void)state;
    char names[GPU_LAUNCHES_MOST + 1][12];
    gpu_launches all = {.n = 0};
    for (int i = 0; i <= GPU_LAUNCHES_MOST; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        assert_int_equal(gpu_launches_add(&all, names[i], 1, 1), i < GPU_LAUNCHES_MOST);
    }
    assert_true(gpu_launches_add(&all, "63", 2, 3));
    assert_int_equal(all.n, GPU_LAUNCHES_MOST);
    assert_int_equal(all.of[63].n, 3);
    assert_float_equal(all.of[63].us, 4, 0);
}

int main(void)
{
    simt_have_sms(1); /* then few tiles are unused, whose blocks take the emulator long */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_dense_step),     cmocka_unit_test(of_a_sparse_step),
        cmocka_unit_test(of_a_measured_step),  cmocka_unit_test(of_a_captured_step),
        cmocka_unit_test(of_ranks_is_refused), cmocka_unit_test(times_add_up),
        cmocka_unit_test(one_after_the_other), cmocka_unit_test(as_many_names_as_there_is_room_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

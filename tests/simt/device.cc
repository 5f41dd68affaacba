/* The first half of the kernel table on the CPU: device memory is the host's, work is done at once
 * or when it is waited for, and the library's product is three loops. */
#include "tests/simt/device.h"
#include "tests/fake/nccl.h"
#include "tests/simt/group.h"
#include "tests/simt/runtime.h"
#include "tests/simt/strict.h"

#include <atomic>
#include <deque>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

/* The launches of a trace, as kernels/cuda/device.cuh has them. The emulated clock at the end of a
 * launch is noted once all work in front of it is done. */
struct launch_trace {
    double begin;
    struct launch {
        const char *name;
        uint32_t n;
        double end;
    };
    std::deque<launch> of;
    uint32_t n_queued;
    bool overflowed;
};

struct gpu {
    fake_stream stream; /* given out as its stream, for the fake NCCL */
    char why[256];
    uint64_t number; /* counts those that were opened */
    uint32_t ordinal;
    bool lost, invariant, narrow, times;
    bool early, chained; /* as in kernels/cuda/device.cuh */
    gpu_few few;
    uint32_t compute;
    double us, marked; /* the clock */
    struct lane {
        std::deque<std::function<void()>> queue; /* queued work */
        uint64_t n_done;
    } lanes[GPU_LANES];
    uint64_t noted[2];  /* counts of work on the stream */
    gpu_graph *capture; /* the capture in progress */
    bool broken;        /* the capture failed */
    launch_trace *trace;
};

struct gpu_graph {
    std::vector<std::function<void()>> work;
};

static int left_to_fail = -1;               /* launches until the device is lost; -1: never */
static std::atomic<uint64_t> n_allocations; /* atomic, since ranks are threads */
static std::atomic<uint64_t> n_opened;      /* likewise */
static struct {
    std::atomic<uint64_t> launches, early, captures, replays, collectives, copies_in, bytes_in,
        copies_out, bytes_out, waits, settled, timed, timed_rows;
} counts; /* simt_counts, and atomic likewise */
static int refuse_captures, refuse_shares, is_late, is_eager, is_idle, has_times;
static size_t shared_bytes = 163 << 10;
static uint64_t free_bytes = (uint64_t)1 << 30;
static uint32_t compute = 80, n_sms = 2;

void simt_fail_after(int launches) { left_to_fail = launches; }
void simt_refuse_captures(int which) { refuse_captures = which; }
void simt_refuse_shares(int which) { refuse_shares = which; }
void simt_have_shared(size_t bytes) { shared_bytes = bytes; }
void simt_have_sms(uint32_t n) { n_sms = n; }
void simt_have_memory(uint64_t bytes) { free_bytes = bytes; }
void simt_have_compute(uint32_t capability) { compute = capability; }
void simt_be_late(int late) { is_late = late; }
void simt_be_idle(int idle) { is_idle = idle; }
void simt_time_library(int on) { has_times = on; }
void simt_copy_early(int early) { is_eager = early; }
simt_counts simt_counted(void)
{
    return {counts.launches,    counts.early,     counts.captures, counts.replays,
            counts.collectives, counts.copies_in, counts.bytes_in, counts.copies_out,
            counts.bytes_out,   counts.waits,     counts.settled,  counts.timed,
            counts.timed_rows};
}
uint64_t simt_allocations(void) { return n_allocations; }

static gpu_status check(gpu *g)
{
    if (left_to_fail == 0) g->lost = true;
    if (left_to_fail >= 0) left_to_fail--;
    if (!g->lost) return GPU_OK;
    snprintf(g->why, sizeof g->why, "the device is lost, as the test wants it");
    return GPU_LOST;
}

/* Makes the gpu the current device of the thread, as cudaSetDevice does. */
uint32_t gpu_enter(gpu *g)
{
    bool some = refuse_shares == SIMT_REFUSE_SOME && g->number % 2;
    simt_current = {g->ordinal, refuse_shares != SIMT_REFUSE_ALL && !some};
    return g->ordinal;
}

gpu_status gpu_refuse(gpu *g, const char *what, const char *why)
{
    snprintf(g->why, sizeof g->why, "%s: %s", what, why);
    return GPU_UNSUPPORTED;
}

static void enqueue(gpu *g, const std::function<void()> &work)
{
    if (g->capture) g->capture->work.push_back(work);
    else if (is_late) g->lanes[GPU_LANE_STREAM].queue.push_back(work);
    else work();
}

static gpu_status end_queued(gpu *g, const char *what)
{
    gpu_status s = check(g);
    launch_trace *t = g->trace;
    if (s != GPU_OK || !t) return s;
    uint32_t n = t->n_queued;
    t->n_queued = 0;
    if (n == 0 || g->capture) return s;
    if (t->of.size() == GPU_TRACED_MOST) {
        t->overflowed = true;
        return s;
    }
    t->of.push_back({what, n, 0.0});
    launch_trace::launch *last = &t->of.back();
    g->chained = false;
    enqueue(g, [=]() { last->end = g->us; });
    return s;
}

gpu_status gpu_launched(gpu *g, const char *what) { return end_queued(g, what); }

bool simt_count_launch(void)
{
    counts.launches++;
    return !is_idle;
}

void simt_chain_launch(gpu *g, bool early)
{
    counts.early += early && g->chained;
    g->chained = early && g->early;
}

void simt_submit(gpu *g, const std::function<void()> &work)
{
    if (g->trace) g->trace->n_queued++;
    enqueue(g, work);
}

void simt_pass_time(gpu *g, const simt_work &asked)
{
    double copied = (double)asked.bytes / SIMT_GB_S * 1e-3;
    double multiplied = (double)asked.operations / SIMT_TFLOP_S * 1e-6;
    g->us += copied > multiplied ? copied : multiplied;
}

static void pass_bus_time(gpu *g, size_t bytes) { g->us += (double)bytes / SIMT_BUS_GB_S * 1e-3; }

/* The total that a lane will have done once its queue is empty. */
static uint64_t lane_end(const gpu *g, gpu_lane lane)
{
    return g->lanes[lane].n_done + g->lanes[lane].queue.size();
}

/* Does queued work of a lane until the total done is `until`. Work that waits for another lane does
 * that lane's first. */
static void do_queued(gpu *g, gpu_lane lane, uint64_t until)
{
    while (g->lanes[lane].n_done < until) {
        std::function<void()> work = g->lanes[lane].queue.front();
        work();
        g->lanes[lane].queue.pop_front();
        g->lanes[lane].n_done++;
    }
}

/* Only what the stream waits for is done on other lanes. */
static void catch_up(gpu *g) { do_queued(g, GPU_LANE_STREAM, lane_end(g, GPU_LANE_STREAM)); }

static void catch_up_all(gpu *g)
{
    for (int lane = 0; lane < GPU_LANES; lane++)
        do_queued(g, (gpu_lane)lane, lane_end(g, (gpu_lane)lane));
}

/* Refuses a call that a graph cannot contain. */
static gpu_status check_alone(gpu *g)
{
    g->broken |= g->capture != NULL;
    if (g->capture) return GPU_LOST;
    catch_up(g);
    return check(g);
}

/* fake_stream.submit. */
static void submit_call(void *ctx, void (*run)(const void *call), const void *call, size_t bytes)
{
    const unsigned char *from = (const unsigned char *)call;
    std::vector<unsigned char> copy(from, from + bytes);
    counts.collectives++;
    simt_submit((gpu *)ctx, [=]() { run(copy.data()); });
}

/* ---- code ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    const void *(*kernel)(void);
} files[] = {
#define CODE(file)      {#file, gpu_code_of_##file},
#define WIDE_CODE(file) CODE(file)
#include "kernels/cuda/code.inc"
#undef WIDE_CODE
#undef CODE
};

void simt_check_code(const char *file)
{
    const char *folder = strstr(file, "kernels/cuda/"), *end = strrchr(file, '.');
    if (!folder || !end) return; /* a test's own kernel */
    std::string name(folder + strlen("kernels/cuda/"), end);
    for (const auto &f : files)
        if (name == f.name && f.kernel()) return;
    simt_refuse("a kernel of a file that code.inc does not have");
}

static gpu_status gpu_open(uint32_t ordinal, gpu **out, gpu_facts *facts, char *why, size_t n)
{
    const char *devices = getenv("OCTAVO_TEST_DEVICES");
    if (ordinal >= (devices ? (uint32_t)(devices[0] - '0') : 1)) {
        snprintf(why, n, "invalid device ordinal");
        return GPU_UNSUPPORTED;
    }
    const char *capability = getenv("OCTAVO_TEST_COMPUTE"), *name = getenv("OCTAVO_TEST_NAME");
    if (getenv("OCTAVO_TEST_IDLE")) is_idle = 1;
    *out = new gpu();
    (*out)->number = n_opened++;
    (*out)->ordinal = ordinal;
    (*out)->few = {GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, GPU_FEW_OF_EXPERT, GPU_STAGED_ROWS};
    (*out)->stream.submit = submit_call;
    (*out)->stream.ctx = *out;
    *facts = gpu_facts();
    snprintf(facts->name, sizeof facts->name, "%s", name ? name : "simt");
    facts->n_sms = n_sms;
    facts->compute = (*out)->compute =
        capability ? (uint32_t)strtoul(capability, NULL, 10) : compute;
    (*out)->early = (*out)->compute >= 90;
    simt_probe_narrow(*out, facts);
    facts->shared_bytes = shared_bytes;
    facts->bytes = facts->free_bytes = free_bytes;
    return GPU_OK;
}

static void gpu_close(gpu *g)
{
    delete g->trace;
    delete g;
}
static const char *gpu_why(const gpu *g) { return g->why; }
static void gpu_set_invariant(gpu *g, bool on) { g->invariant = on; }
bool gpu_is_invariant(const gpu *g) { return g->invariant; }
static void gpu_set_narrow(gpu *g, bool on) { g->narrow = on; }
bool gpu_is_narrow(const gpu *g) { return g->narrow; }
static void gpu_set_few(gpu *g, const gpu_few *few) { g->few = *few; }
gpu_few gpu_few_of(const gpu *g) { return g->few; }
static void gpu_set_early(gpu *g, bool on)
{
    g->early = on && g->compute >= 90;
    g->chained = false;
}

static gpu_status gpu_alloc(gpu *g, size_t bytes, void **out)
{
    if (g->capture) return check_alone(g);
    *out = simt_alloc(bytes);
    if (!*out) return GPU_NO_MEMORY;
    simt_note_memory(*out, bytes, g->ordinal, false);
    n_allocations++;
    return GPU_OK;
}
static void gpu_release(gpu *g, void *device)
{
    catch_up_all(g);
    if (device) n_allocations--;
    simt_forget_memory(device);
    simt_free(device);
}
/* Host memory is not for kernels to read, since it is far away. */
static gpu_status gpu_alloc_host(gpu *g, size_t bytes, void **out)
{
    if (g->capture) return check_alone(g);
    *out = malloc(bytes ? bytes : 1);
    if (!*out) return GPU_NO_MEMORY;
    memset(*out, 0xff, bytes); /* memory is not zeroed */
    simt_note_memory(*out, bytes, g->ordinal, true);
    n_allocations++;
    return GPU_OK;
}
static void gpu_release_host(gpu *g, void *host)
{
    catch_up_all(g);
    if (host) n_allocations--;
    simt_forget_memory(host);
    free(host);
}

/* Copies, often to memory of the device. */
static void put(void *device, const void *from, size_t bytes)
{
    memcpy(device, from, bytes);
    simt_note_written(device, bytes);
}

static gpu_status gpu_copy_in(gpu *g, void *device, const void *host, size_t bytes)
{
    g->chained = false;
    if (bytes)
        simt_submit(g, [=]() {
            put(device, host, bytes);
            pass_bus_time(g, bytes);
        });
    counts.copies_in++;
    counts.bytes_in += bytes;
    return end_queued(g, "copy to the device");
}
static gpu_status gpu_copy_out(gpu *g, void *host, const void *device, size_t bytes)
{
    g->chained = false;
    if (bytes)
        simt_submit(g, [=]() {
            memcpy(host, device, bytes);
            pass_bus_time(g, bytes);
        });
    counts.copies_out++;
    counts.bytes_out += bytes;
    return end_queued(g, "copy to the host");
}
/* The last copy is made first, because the order is not promised. */
static gpu_status gpu_copy_batch(gpu *g, const gpu_copies *c, bool out)
{
    std::vector<void *> to(c->to, c->to + c->n);
    std::vector<const void *> from(c->from, c->from + c->n);
    std::vector<size_t> bytes(c->bytes, c->bytes + c->n);
    if (c->n == 0) return GPU_OK;
    g->chained = false;
    simt_submit(g, [=]() {
        for (size_t i = to.size(); i-- > 0;) {
            put(to[i], from[i], bytes[i]);
            pass_bus_time(g, bytes[i]);
        }
    });
    (out ? counts.copies_out : counts.copies_in)++;
    for (size_t n : bytes) (out ? counts.bytes_out : counts.bytes_in) += n;
    return end_queued(g, out ? "copies to the host" : "copies to the device");
}
/* A lane of copies is late as the stream is, or early: as soon as what it waits for allows. */
static gpu_status enter_lane(gpu *g, gpu_lane lane, const std::function<void()> &work)
{
    if (g->capture) return check_alone(g);
    if (!is_late) work();
    else g->lanes[lane].queue.push_back(work);
    if (is_eager && lane != GPU_LANE_STREAM) do_queued(g, lane, lane_end(g, lane));
    return check(g);
}
static gpu_status gpu_copy_up(gpu *g, void *device, const void *host, size_t bytes)
{
    return enter_lane(g, GPU_LANE_UP, [=]() { put(device, host, bytes); });
}
static gpu_status gpu_copy_down(gpu *g, void *host, const void *device, size_t bytes)
{
    return enter_lane(g, GPU_LANE_DOWN, [=]() { memcpy(host, device, bytes); });
}
static gpu_status gpu_order(gpu *g, gpu_lane first, gpu_lane then)
{
    uint64_t until = lane_end(g, first);
    g->chained = false;
    return enter_lane(g, then, [=]() { do_queued(g, first, until); });
}
static gpu_status gpu_wait(gpu *g)
{
    counts.waits++;
    return check_alone(g);
}
static gpu_status gpu_note(gpu *g, uint32_t number)
{
    if (g->capture) return check_alone(g);
    g->noted[number] = lane_end(g, GPU_LANE_STREAM);
    return check(g);
}
static gpu_status gpu_await(gpu *g, uint32_t number)
{
    if (g->capture) return check_alone(g);
    counts.waits++;
    do_queued(g, GPU_LANE_STREAM, g->noted[number]);
    return check(g);
}
static gpu_status gpu_reached(gpu *g, uint32_t number, bool *reached)
{
    *reached = true;
    return gpu_await(g, number);
}
static gpu_status gpu_poll(gpu *g, bool *idle)
{
    counts.waits++;
    *idle = true; /* collectives wait in the stream's order */
    return check_alone(g);
}
static void *gpu_stream_of(gpu *g) { return &g->stream; }

static gpu_status gpu_copy(gpu *g, void *to, const void *from, size_t bytes)
{
    g->chained = false;
    if (bytes)
        simt_submit(g, [=]() {
            put(to, from, bytes);
            simt_pass_time(g, {2 * bytes, 0});
        });
    return end_queued(g, "copy on the device");
}
static gpu_status gpu_clear(gpu *g, void *device, size_t bytes)
{
    g->chained = false;
    if (bytes)
        simt_submit(g, [=]() {
            memset(device, 0, bytes);
            simt_pass_time(g, {bytes, 0});
        });
    return end_queued(g, "clearing memory");
}
static gpu_status gpu_mark(gpu *g)
{
    enqueue(g, [=]() { g->marked = g->us; });
    return check(g);
}
static gpu_status gpu_elapsed(gpu *g, double *us)
{
    catch_up(g);
    *us = g->us - g->marked;
    return check(g);
}

uint32_t gpu_compute(const gpu *g) { return g->compute; }
uint32_t gpu_sms(const gpu *g)
{
    (void)g;
    return 2;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static gpu_status gpu_capture(gpu *g)
{
    snprintf(g->why, sizeof g->why, "no captures, as the test wants it");
    if (refuse_captures == SIMT_REFUSE_ALL) return GPU_UNSUPPORTED;
    if (refuse_captures == SIMT_REFUSE_SOME && g->number % 2) return GPU_UNSUPPORTED;
    g->capture = new gpu_graph();
    g->chained = false;
    g->broken = refuse_captures == SIMT_REFUSE_AT_END;
    return GPU_OK;
}

static void gpu_forget(gpu_graph *graph) { delete graph; }

static gpu_status gpu_captured(gpu *g, gpu_graph **out)
{
    *out = g->capture;
    g->capture = NULL;
    if (g->trace) g->trace->n_queued = 0;
    g->chained = false;
    counts.captures += !g->broken;
    if (!g->broken) return GPU_OK;
    gpu_forget(*out);
    *out = NULL;
    snprintf(g->why, sizeof g->why, "the device was waited for in a capture");
    return GPU_UNSUPPORTED;
}

static gpu_status gpu_replay(gpu *g, gpu_graph *graph)
{
    for (const std::function<void()> &work : graph->work) enqueue(g, work);
    if (g->trace) g->trace->n_queued++;
    g->chained = false;
    counts.replays++;
    return end_queued(g, "graph");
}

static gpu_status gpu_trace(gpu *g)
{
    catch_up(g); /* queued work notes its end in the trace before */
    delete g->trace;
    launch_trace *t = g->trace = new launch_trace();
    g->chained = false;
    enqueue(g, [=]() { t->begin = g->us; });
    return check(g);
}

static gpu_status gpu_traced(gpu *g, gpu_launches *out)
{
    catch_up(g);
    double from = g->trace->begin;
    bool fits = !g->trace->overflowed;
    for (const launch_trace::launch &l : g->trace->of) {
        fits = gpu_launches_add(out, l.name, l.n, l.end - from) && fits;
        from = l.end;
    }
    delete g->trace;
    g->trace = NULL;
    gpu_status s = check(g);
    if (s != GPU_OK || fits) return s;
    snprintf(g->why, sizeof g->why, "trace: more launches or names than there is room for");
    return GPU_UNSUPPORTED;
}

static float element(const void *x, gpu_type type, size_t at)
{
    if (type == GPU_F32) return ((const float *)x)[at];
    return type == GPU_BF16 ? to_float(((const bf16 *)x)[at]) : to_float(((const f16 *)x)[at]);
}

static void multiply(const gpu_matrix *w, const void *x, size_t m, void *y, gpu_type y_type)
{
    enum { SIDE_BY_SIDE = 8 };
    const size_t across = (m + SIDE_BY_SIDE - 1) / SIDE_BY_SIDE * SIDE_BY_SIDE;
    std::vector<float> row(w->k), xs(w->k * across); /* a column of x behind the other */
    for (size_t r = 0; r < m; r++)
        for (size_t k = 0; k < w->k; k++) xs[k * across + r] = element(x, w->type, r * w->k + k);
    for (size_t n = 0; n < w->n; n++) {
        for (size_t k = 0; k < w->k; k++) row[k] = element(w->data, w->type, n * w->k + k);
        for (size_t first = 0; first < m; first += SIDE_BY_SIDE) {
            float sums[SIDE_BY_SIDE] = {0.0f};
            for (size_t k = 0; k < w->k; k++)
                for (size_t i = 0; i < SIDE_BY_SIDE; i++)
                    sums[i] += xs[k * across + first + i] * row[k];
            for (size_t i = 0; i < SIDE_BY_SIDE && first + i < m; i++) {
                size_t at = (first + i) * w->n + n;
                if (y_type == GPU_F32) ((float *)y)[at] = sums[i];
                else if (y_type == GPU_BF16) ((bf16 *)y)[at] = from_float<bf16>(sums[i]);
                else ((f16 *)y)[at] = from_float<f16>(sums[i]);
            }
        }
    }
    simt_note_written(y, m * w->n * (y_type == GPU_F32 ? 4 : 2));
}

bool gpu_library_times(gpu *g, bool on)
{
    counts.settled += on;
    g->times = on && has_times && !g->invariant;
    return g->times;
}

gpu_status gpu_library_product(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                               gpu_type y_type)
{
    gpu_matrix own = *w;
    counts.timed += g->times;
    counts.timed_rows += g->times ? m : 0;
    bool is_done = simt_count_launch();
    simt_submit(g, [=]() {
        if (is_done) multiply(&own, x, m, y, y_type);
        simt_pass_time(g, {own.n * own.k * gpu_type_bytes(own.type), 2 * m * own.n * own.k});
    });
    return end_queued(g, "product");
}

extern "C" __attribute__((visibility("default"))) uint32_t octavo_cuda_runtime(void)
{
    const char *runtime = getenv("OCTAVO_TEST_RUNTIME");
    return runtime ? (uint32_t)strtoul(runtime, NULL, 10) : 13000;
}

#include "kernels/cuda/table.inc"

/* Measures the limits of this machine, which reported speeds are compared with. */
#include "kernels/context.h"

#include <string.h>

enum {
    READ_BYTES = 512 << 20, /* larger than the caches of one tenant */
    SLICE_BYTES = 32 << 20, /* timed by itself: some slice may run undisturbed by other processes */
    STREAMS = 8,            /* for each thread; a single stream gets two thirds of the rate */
    REPEATS = 3,            /* the best slice counts: other processes can only slow it */
    BURST_ROUNDS = 1 << 18,
};

typedef struct measurement {
    const kern_context *kc;
    const uint64_t *slice;
    double (*burst)(size_t rounds, float *sink);
    double *operations; /* [threads] */
    float *sinks;       /* [threads] */
} measurement;

/* Sums a share over all its streams, line by line. */
static void read_share(void *ctx, size_t from, size_t to, unsigned thread)
{
    const measurement *m = ctx;
    (void)thread;
    size_t stream_words = SLICE_BYTES / sizeof(uint64_t) / m->kc->n_threads / STREAMS / 8 * 8;
    for (size_t share = from; share < to; share++) {
        const uint64_t *base = m->slice + share * STREAMS * stream_words;
        uint64_t sums[STREAMS] = {0}, sum = 0;
        for (size_t at = 0; at < stream_words; at += 8)
            for (size_t s = 0; s < STREAMS; s++) sums[s] += base[s * stream_words + at];
        for (size_t s = 0; s < STREAMS; s++) sum += sums[s];
        m->sinks[share] += (float)sum;
    }
}

static void burst_share(void *ctx, size_t from, size_t to, unsigned thread)
{
    const measurement *m = ctx;
    (void)thread;
    for (size_t share = from; share < to; share++)
        m->operations[share] = m->burst(BURST_ROUNDS, &m->sinks[share]);
}

static double best_read_gb_s(measurement *m, const uint64_t *data)
{
    double best = 0;
    for (size_t at = 0; at < (size_t)REPEATS * READ_BYTES; at += SLICE_BYTES) {
        m->slice = data + at % READ_BYTES / sizeof *data;
        int64_t start_ns = clock_now_ns();
        thread_pool_for(m->kc->pool, m->kc->n_threads, 1, read_share, m);
        double rate = (double)SLICE_BYTES / (double)(clock_now_ns() - start_ns);
        if (rate > best) best = rate;
    }
    return best;
}

/* Returns the best rate in billions of operations a second. */
static double best_burst(measurement *m, double (*burst)(size_t rounds, float *sink))
{
    double best = 0;
    m->burst = burst;
    for (int i = 0; i < REPEATS * READ_BYTES / SLICE_BYTES; i++) {
        int64_t start_ns = clock_now_ns();
        thread_pool_for(m->kc->pool, m->kc->n_threads, 1, burst_share, m);
        int64_t burst_ns = clock_now_ns() - start_ns;
        double operations = 0;
        for (unsigned t = 0; t < m->kc->n_threads; t++) operations += m->operations[t];
        if (operations / (double)burst_ns > best) best = operations / (double)burst_ns;
    }
    return best;
}

/* Pages that were never written are all one page of zeros. */
static bool map_data(kern_context *kc)
{
    if (kc->read.data) return true;
    void *data = alloc_pages(READ_BYTES);
    if (!data) return false;
    memset(data, 1, READ_BYTES);
    kc->read = (kern_buffer){data, READ_BYTES};
    return true;
}

status kern_measure_limits(kern_context *kc, kern_limits *out)
{
    *out = (kern_limits){0};
    measurement m = {.kc = kc};
    m.operations = alloc_zeroed(NULL, kc->n_threads, sizeof *m.operations);
    m.sinks = alloc_zeroed(NULL, kc->n_threads, sizeof *m.sinks);
    bool ok = m.operations && m.sinks && map_data(kc);
    if (ok) {
        out->read_gb_s = best_read_gb_s(&m, kc->read.data);
        out->fma_gflop_s = best_burst(&m, kc->isa.fma_burst);
        double dot_gflop_s = kc->isa.dot_burst ? best_burst(&m, kc->isa.dot_burst) : 0;
        out->dot_gflop_s = dot_gflop_s > out->fma_gflop_s ? dot_gflop_s : out->fma_gflop_s;
        if (kc->isa.pair_burst) out->pair_gop_s = best_burst(&m, kc->isa.pair_burst);
        out->int_gop_s = best_burst(&m, kc->isa.int_burst);
    }
    alloc_free(NULL, m.operations);
    alloc_free(NULL, m.sinks);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "memory to read for the measurement");
}

kern_limit kern_attention_limit(const kern_context *kc, kern_kv_format format,
                                const kern_limits *limits)
{
    switch (kern_attention_way(&kc->isa, format)) {
    case KERN_ATTN_BY_DOTS: return (kern_limit){"dot", limits->dot_gflop_s};
    case KERN_ATTN_BY_INTS: return (kern_limit){"int16", limits->pair_gop_s};
    default: return (kern_limit){"fma", limits->fma_gflop_s};
    }
}

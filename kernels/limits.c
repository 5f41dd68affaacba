/* What this machine can do, measured: the scale for every speed that is reported. */
#include "kernels/context.h"

#include <string.h>

enum {
    READ_BYTES = 512 << 20, /* larger than the caches of one tenant */
    STREAMS = 8,            /* for each thread: one stream alone gets two thirds */
    REPEATS = 5,            /* the best counts: others only ever take away */
    BURST_ROUNDS = 1 << 20,
};

typedef struct measurement {
    const kern_context *kc;
    const uint64_t *data;
    double *operations; /* [threads] */
    float *sinks;       /* [threads] */
} measurement;

/* Thread `from` sums its share, all streams line by line. */
static void read_share(void *ctx, size_t from, size_t to, unsigned thread)
{
    const measurement *m = ctx;
    (void)thread;
    size_t stream_words = READ_BYTES / sizeof(uint64_t) / m->kc->n_threads / STREAMS / 8 * 8;
    for (size_t share = from; share < to; share++) {
        const uint64_t *base = m->data + share * STREAMS * stream_words;
        uint64_t sums[STREAMS] = {0};
        for (size_t at = 0; at < stream_words; at += 8)
            for (size_t s = 0; s < STREAMS; s++) sums[s] += base[s * stream_words + at];
        uint64_t sum = 0;
        for (size_t s = 0; s < STREAMS; s++) sum += sums[s];
        m->sinks[share] += (float)sum;
    }
}

static void burst_share(void *ctx, size_t from, size_t to, unsigned thread)
{
    const measurement *m = ctx;
    (void)thread;
    for (size_t share = from; share < to; share++)
        m->operations[share] = m->kc->isa.fma_burst(BURST_ROUNDS, &m->sinks[share]);
}

status kern_measure_limits(kern_context *kc, kern_limits *out)
{
    *out = (kern_limits){0};
    uint64_t *data = alloc_pages(READ_BYTES);
    measurement m = {.kc = kc, .data = data};
    m.operations = alloc_zeroed(NULL, kc->n_threads, sizeof *m.operations);
    m.sinks = alloc_zeroed(NULL, kc->n_threads, sizeof *m.sinks);
    bool ok = data && m.operations && m.sinks;
    if (ok) memset(data, 1, READ_BYTES);

    for (int i = 0; ok && i < REPEATS; i++) {
        int64_t start_ns = clock_now_ns();
        thread_pool_for(kc->pool, kc->n_threads, 1, read_share, &m);
        int64_t read_ns = clock_now_ns() - start_ns;
        double rate = (double)READ_BYTES / (double)read_ns;
        if (rate > out->read_gb_s) out->read_gb_s = rate;

        start_ns = clock_now_ns();
        thread_pool_for(kc->pool, kc->n_threads, 1, burst_share, &m);
        int64_t burst_ns = clock_now_ns() - start_ns;
        double operations = 0;
        for (unsigned t = 0; t < kc->n_threads; t++) operations += m.operations[t];
        rate = operations / (double)burst_ns;
        if (rate > out->fma_gflop_s) out->fma_gflop_s = rate;
    }
    alloc_pages_free(data, READ_BYTES);
    alloc_free(NULL, m.operations);
    alloc_free(NULL, m.sinks);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "memory to read for the measurement");
}

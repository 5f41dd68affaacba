/* Sums and gathers over ranks in device memory (gpu_sums): ranks are threads, each with a gpu of
 * its own on device 0. The sums must be those of rank order, bit for bit, on all ranks. */
#include "kernels/cuda/cuda_sums.h"
#include "tests/cuda/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, CALLS = 5 };

typedef struct shape {
    size_t m, d;
    gpu_type type;
    bool adds, parts; /* parts: each rank adds up a part of each row */
    bool post;        /* the sum has a norm of its own */
} shape;

typedef struct world {
    check *c;
    const shape *s;
    size_t values, room, once;
    gpu *gpus[RANKS];
    gpu_handle handles[RANKS];
    pthread_barrier_t met;
    float *deltas;          /* [CALLS, RANKS, values] */
    float *weight, *post;   /* [d] */
    float *x[RANKS];        /* [values] as the rank has it in the end */
    float *normed[RANKS];   /* likewise */
    float *start;           /* [values] */
    float *gathered[RANKS]; /* [CALLS, RANKS, values] */
    _Atomic int n_trouble;  /* calls that failed */
} world;

typedef struct rank_arg {
    world *w;
    uint32_t rank;
} rank_arg;

static void *alloc_here(world *w, gpu *g, const void *host, size_t bytes)
{
    void *device = NULL;
    w->n_trouble += w->c->api->alloc(g, bytes, &device) != GPU_OK;
    if (host) w->n_trouble += w->c->api->copy_in(g, device, host, bytes) != GPU_OK;
    w->n_trouble += w->c->api->wait(g) != GPU_OK;
    return device;
}

static void meet(world *w, uint32_t rank, uint8_t *memory, gpu_meeting *out)
{
    const gpu_api *api = w->c->api;
    size_t flags = gpu_sums_bytes(w->room), calls = gpu_sums_flags() * sizeof(uint32_t);
    w->n_trouble += api->share(w->gpus[rank], memory, &w->handles[rank]) != GPU_OK;
    pthread_barrier_wait(&w->met);
    *out = (gpu_meeting){.rank = rank, .ranks = RANKS, .room = w->room};
    out->once = w->once;
    out->calls = (uint32_t *)(void *)(memory + flags + calls);
    for (uint32_t r = 0; r < RANKS; r++) {
        void *there = memory;
        if (r != rank) w->n_trouble += api->reach(w->gpus[rank], &w->handles[r], &there) != GPU_OK;
        out->copies[r] = there;
        out->flags[r] = (uint32_t *)(void *)((uint8_t *)there + flags);
    }
}

/* Sizes of gathers, in words of 16 bytes and of 4. */
static size_t bytes_of_gather(const world *w, int call)
{
    return (w->values - (size_t)call % w->values) * sizeof(float);
}

static void *rank_main(void *arg)
{
    const rank_arg *a = arg;
    world *w = a->w;
    const gpu_api *api = w->c->api;
    gpu *g = w->gpus[a->rank];
    size_t bytes = w->values * sizeof(float);
    void *stop, *out_host = malloc(bytes), *poison = malloc(bytes);
    memset(poison, 0xff, bytes); /* NaN */
    w->n_trouble += api->alloc_host(g, sizeof(uint32_t), &stop) != GPU_OK;
    memset(stop, 0, sizeof(uint32_t));
    uint8_t *memory = alloc_here(w, g, NULL,
                                 gpu_sums_bytes(w->room) +
                                     (gpu_sums_flags() + GPU_SUM_BLOCKS) * sizeof(uint32_t));
    float *delta = alloc_here(w, g, NULL, bytes), *x = alloc_here(w, g, w->start, bytes);
    float *all = alloc_here(w, g, NULL, RANKS * bytes);
    gpu_sums s = {.x = x,
                  .delta = delta,
                  .adds = w->s->adds,
                  .post = alloc_here(w, g, w->post, w->s->d * sizeof(float)),
                  .weight = alloc_here(w, g, w->weight, w->s->d * sizeof(float)),
                  .eps = 1e-5f,
                  .m = w->s->m,
                  .d = w->s->d,
                  .out = alloc_here(w, g, poison, bytes),
                  .type = w->s->type};
    void *const device[] = {
        memory, delta, x, all, s.out, (void *)(uintptr_t)s.weight, (void *)(uintptr_t)s.post};
    if (!w->s->post) s.post = NULL;
    meet(w, a->rank, memory, &s.meeting);
    s.meeting.stop = stop;
    for (int call = 0; call < CALLS; call++) { /* without waiting in between */
        const float *from = w->deltas + ((size_t)call * RANKS + a->rank) * w->values;
        w->n_trouble += api->copy_in(g, delta, from, bytes) != GPU_OK;
        size_t some = bytes_of_gather(w, call);
        w->n_trouble += api->exchange(g, &s.meeting, delta, some, all) != GPU_OK;
        float *to = w->gathered[a->rank] + (size_t)call * RANKS * w->values;
        w->n_trouble += api->copy_out(g, to, all, RANKS * some) != GPU_OK;
        w->n_trouble += api->sums(g, &s) != GPU_OK;
    }
    w->n_trouble += api->copy_out(g, w->x[a->rank], x, bytes) != GPU_OK;
    w->n_trouble += api->copy_out(g, out_host, s.out, w->values * gpu_type_bytes(s.type)) != GPU_OK;
    w->n_trouble += api->wait(g) != GPU_OK;
    check_widen(out_host, w->values, s.type, w->normed[a->rank]);
    pthread_barrier_wait(&w->met); /* others may still read this rank's memory */
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) api->release(g, device[i]);
    api->release_host(g, stop);
    free(out_host), free(poison);
    return NULL;
}

static void norm_row(const float *x, size_t d, const float *weight, float *out)
{
    double square = 0;
    for (size_t i = 0; i < d; i++) square += (double)x[i] * x[i];
    for (size_t i = 0; i < d; i++)
        out[i] = x[i] * (float)(1 / sqrt(square / (double)d + 1e-5)) * weight[i];
}

/* Rounds to what travels. */
static float rounded(float v, gpu_type type)
{
    uint32_t narrow;
    if (type != GPU_BF16) return v;
    check_narrow(&v, 1, type, &narrow);
    check_widen(&narrow, 1, type, &v);
    return v;
}

/* The x and its norm that the calls lead to. */
static void add_up(const world *w, float *x, float *normed)
{
    const shape *s = w->s;
    float *sums = check_memory(w->values, sizeof(float));
    memcpy(x, w->start, w->values * sizeof *x);
    for (int call = 0; call < CALLS; call++) {
        for (size_t i = 0; i < w->values; i++) {
            sums[i] = 0;
            for (size_t r = 0; r < RANKS; r++) {
                float v = w->deltas[((size_t)call * RANKS + r) * w->values + i];
                sums[i] = r ? sums[i] + rounded(v, s->type) : rounded(v, s->type);
            }
            sums[i] = rounded(sums[i], s->type);
        }
        for (size_t at = 0; s->post && at < w->values; at += s->d)
            norm_row(sums + at, s->d, w->post, sums + at);
        for (size_t i = 0; i < w->values; i++) x[i] = s->adds ? x[i] + sums[i] : sums[i];
    }
    for (size_t at = 0; at < w->values; at += s->d) norm_row(x + at, s->d, w->weight, normed + at);
    free(sums);
}

static world make_world(check *c, const shape *s)
{
    world w = {.c = c, .s = s, .values = s->m * s->d, .room = s->m * s->d * sizeof(float)};
    w.once = s->parts ? 0 : w.room;
    w.deltas = check_memory(CALLS * RANKS * w.values, sizeof(float));
    w.weight = check_memory(s->d, sizeof(float));
    w.post = check_memory(s->d, sizeof(float));
    w.start = check_memory(w.values, sizeof(float));
    check_fill(c, w.deltas, CALLS * RANKS * w.values);
    check_fill(c, w.weight, s->d);
    check_fill(c, w.post, s->d);
    check_fill(c, w.start, w.values);
    for (int r = 0; r < RANKS; r++) {
        w.x[r] = check_memory(w.values, sizeof(float));
        w.normed[r] = check_memory(w.values, sizeof(float));
        w.gathered[r] = check_memory(CALLS * RANKS * w.values, sizeof(float));
    }
    return w;
}

static void run_ranks(world *w)
{
    pthread_t threads[RANKS];
    rank_arg args[RANKS];
    pthread_barrier_init(&w->met, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        gpu_facts facts;
        char why[256];
        check_ok(w->c, w->c->api->open(0, &w->gpus[r], &facts, why, sizeof why));
        args[r] = (rank_arg){w, r};
    }
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, rank_main, &args[r]) != 0) abort();
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++) w->c->api->close(w->gpus[r]);
    pthread_barrier_destroy(&w->met);
}

static void free_world(world *w)
{
    for (int r = 0; r < RANKS; r++) free(w->x[r]), free(w->normed[r]), free(w->gathered[r]);
    free(w->deltas), free(w->weight), free(w->post), free(w->start);
}

/* The number of ranks that have other bits than rank 0. */
static uint32_t count_others(const world *w)
{
    uint32_t n = (uint32_t)w->n_trouble;
    for (int r = 1; r < RANKS; r++)
        n += memcmp(w->x[0], w->x[r], w->values * sizeof(float)) != 0 ||
             memcmp(w->normed[0], w->normed[r], w->values * sizeof(float)) != 0;
    return n;
}

/* How many calls of ranks did not gather what all ranks gave. */
static uint32_t count_not_gathered(const world *w)
{
    uint32_t n = 0;
    for (size_t r = 0; r < RANKS; r++)
        for (size_t call = 0; call < CALLS; call++)
            for (size_t from = 0; from < RANKS; from++) {
                size_t bytes = bytes_of_gather(w, (int)call), of_call = call * RANKS * w->values;
                const float *got = w->gathered[r] + of_call + from * (bytes / sizeof(float));
                n += memcmp(got, w->deltas + of_call + from * w->values, bytes) != 0;
            }
    return n;
}

static void check_shape(check *c, const shape *s)
{
    static const char *const names[GPU_TYPES] = {"f32", "bf16", "f16"};
    world w = make_world(c, s);
    float *x = check_memory(w.values, sizeof(float)), *normed = check_memory(w.values, 4);
    run_ranks(&w);
    add_up(&w, x, normed);
    char name[96];
    uint32_t differ = count_others(&w);
    for (size_t i = 0; !s->post && i < w.values; i++) differ += memcmp(&x[i], &w.x[0][i], 4) != 0;
    snprintf(name, sizeof name, "sums of %d ranks, %zu rows of %zu, %s%s%s%s", RANKS, s->m, s->d,
             names[s->type], s->post ? ", normed" : "", s->adds ? ", added" : "",
             s->parts ? ", by parts" : "");
    check_row(c, name, &(float){0}, &(float){(float)differ}, 1, 0.0);
    float not_gathered = (float)count_not_gathered(&w);
    check_row(c, "  gathers in between", &(float){0}, &not_gathered, 1, 0.0);
    if (s->post) check_row(c, "  the sums", x, w.x[0], w.values, 1e-11);
    check_row(c, "  their norms", normed, w.normed[0], w.values, s->type == GPU_F32 ? 1e-11 : 1e-4);
    free_world(&w);
    free(x), free(normed);
}

/* The bits of a row depend neither on the number of rows nor on its place: rows of KINDS kinds, of
 * which a step has many, up to numbers that ranks add up by parts. */
static void check_places(check *c, gpu_type type, bool post)
{
    enum { KINDS = 5, D = 64, ARRAYS = 1 + CALLS * RANKS, ROW = D * sizeof(float) };
    static const size_t sizes[] = {600, 64, 7, 1};
    float rows[ARRAYS][KINDS][D], norms[2][D], x[KINDS][D], normed[KINDS][D];
    uint32_t differ = 0;
    check_fill(c, &rows[0][0][0], sizeof rows / sizeof(float));
    check_fill(c, &norms[0][0], sizeof norms / sizeof(float));
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        const shape s = {sizes[n], D, type, true, false, post};
        world w = make_world(c, &s);
        memcpy(w.weight, norms[0], ROW);
        memcpy(w.post, norms[1], ROW);
        w.once = 64 * D * gpu_sum_element(type); /* 600 rows go by parts */
        for (size_t i = 0; i < ARRAYS; i++)
            for (size_t at = 0; at < s.m; at++)
                memcpy((i ? w.deltas + (i - 1) * w.values : w.start) + at * D,
                       rows[i][(at + n) % KINDS], ROW);
        run_ranks(&w);
        differ += count_others(&w);
        for (size_t at = 0; at < s.m; at++) {
            size_t kind = (at + n) % KINDS;
            if (n == 0 && at < KINDS) {
                memcpy(x[kind], w.x[0] + at * D, ROW);
                memcpy(normed[kind], w.normed[0] + at * D, ROW);
            }
            differ += memcmp(x[kind], w.x[0] + at * D, ROW) != 0 ||
                      memcmp(normed[kind], w.normed[0] + at * D, ROW) != 0;
        }
        free_world(&w);
    }
    check_row(c, "sums of a row among 1, 7, 64 and 600", &(float){0}, &(float){(float)differ}, 1,
              0.0);
}

/* Checks sums of what a library has gathered from all ranks: added up in rank order. */
static void check_gathered(check *c)
{
    enum { N = 1003, SHARES = 9 };
    gpu *g;
    gpu_facts facts;
    char why[256];
    void *all, *out;
    float *from = check_memory(SHARES * N, sizeof(float)), sums[N], got[N];
    check_fill(c, from, SHARES * N);
    for (size_t i = 0; i < N; i++) {
        sums[i] = from[i];
        for (size_t r = 1; r < SHARES; r++) sums[i] += from[r * N + i];
    }
    check_ok(c, c->api->open(0, &g, &facts, why, sizeof why));
    check_ok(c, c->api->alloc(g, SHARES * N * sizeof(float), &all));
    check_ok(c, c->api->alloc(g, sizeof got, &out));
    check_ok(c, c->api->copy_in(g, all, from, SHARES * N * sizeof(float)));
    check_ok(c, c->api->sum_gathered(g, all, SHARES, N, out));
    check_ok(c, c->api->copy_out(g, got, out, sizeof got));
    check_ok(c, c->api->wait(g));
    check_row(c, "sums of what was gathered", &(float){0},
              &(float){(float)memcmp(sums, got, sizeof sums)}, 1, 0.0);
    c->api->release(g, all), c->api->release(g, out);
    c->api->close(g);
    free(from);
}

void check_ranks(check *c)
{
    static const shape all[] = {
        {1, 64, GPU_BF16, true, false, false},    {1, 4096, GPU_BF16, true, false, false},
        {70, 100, GPU_BF16, true, false, false},  {5, 1028, GPU_F32, true, false, false},
        {3, 8192, GPU_F32, false, false, false},  {9, 256, GPU_F16, true, false, false},
        {2, 16384, GPU_BF16, true, false, false}, {1, 20, GPU_BF16, false, false, false},
        {70, 100, GPU_BF16, true, true, false},   {5, 1028, GPU_F32, true, true, false},
        {130, 8192, GPU_BF16, true, true, false}, {1, 4, GPU_F16, false, true, false},
        {3, 1536, GPU_BF16, true, false, true},   {70, 100, GPU_F32, true, true, true},
        {2, 16384, GPU_BF16, true, true, true},   {9, 256, GPU_F16, true, false, true},
        {5, 100, GPU_BF16, false, false, true},
    };
    check_gathered(c);
#ifndef OCTAVO_SIMT
    if (c->small) { /* a sanitizer lets one kernel run at a time, and these wait for each other */
        printf("sums over ranks are left out\n");
        return;
    }
#endif
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!c->small || all[i].d <= 4096) check_shape(c, &all[i]);
    check_places(c, GPU_BF16, false);
    check_places(c, GPU_F32, true);
}

/* Sums over ranks in device memory (gpu_sums): ranks are threads, each with a gpu of its own on
 * device 0. The sums must be those of rank order, bit for bit, on all ranks. */
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
} shape;

typedef struct world {
    check *c;
    const shape *s;
    size_t values, room;
    gpu *gpus[RANKS];
    gpu_handle handles[RANKS];
    pthread_barrier_t met;
    float *deltas;         /* [CALLS, RANKS, values] */
    float *weight;         /* [d] */
    float *x[RANKS];       /* [values] as the rank has it in the end */
    float *normed[RANKS];  /* likewise */
    const float *start;    /* [values] */
    _Atomic int n_trouble; /* calls that failed */
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
    out->once = w->s->parts ? 0 : w->room;
    out->calls = (uint32_t *)(void *)(memory + flags + calls);
    for (uint32_t r = 0; r < RANKS; r++) {
        void *there = memory;
        if (r != rank) w->n_trouble += api->reach(w->gpus[rank], &w->handles[r], &there) != GPU_OK;
        out->copies[r] = there;
        out->flags[r] = (uint32_t *)(void *)((uint8_t *)there + flags);
    }
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
    gpu_sums s = {.x = x,
                  .delta = delta,
                  .adds = w->s->adds,
                  .weight = alloc_here(w, g, w->weight, w->s->d * sizeof(float)),
                  .eps = 1e-5f,
                  .m = w->s->m,
                  .d = w->s->d,
                  .out = alloc_here(w, g, poison, bytes),
                  .type = w->s->type};
    meet(w, a->rank, memory, &s.meeting);
    s.meeting.stop = stop;
    for (int call = 0; call < CALLS; call++) { /* without waiting in between */
        const float *from = w->deltas + ((size_t)call * RANKS + a->rank) * w->values;
        w->n_trouble += api->copy_in(g, delta, from, bytes) != GPU_OK;
        w->n_trouble += api->sums(g, &s) != GPU_OK;
    }
    w->n_trouble += api->copy_out(g, w->x[a->rank], x, bytes) != GPU_OK;
    w->n_trouble += api->copy_out(g, out_host, s.out, w->values * gpu_type_bytes(s.type)) != GPU_OK;
    w->n_trouble += api->wait(g) != GPU_OK;
    check_widen(out_host, w->values, s.type, w->normed[a->rank]);
    pthread_barrier_wait(&w->met); /* others may still read this rank's memory */
    void *const device[] = {memory, delta, x, s.out, (void *)(uintptr_t)s.weight};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) api->release(g, device[i]);
    api->release_host(g, stop);
    free(out_host), free(poison);
    return NULL;
}

/* The x and its norm that the calls lead to. */
static void add_up(const world *w, float *x, float *normed)
{
    gpu_type travels = w->s->type == GPU_BF16 ? GPU_BF16 : GPU_F32;
    memcpy(x, w->start, w->values * sizeof *x);
    for (int call = 0; call < CALLS; call++)
        for (size_t i = 0; i < w->values; i++) {
            float sum = 0;
            for (int r = 0; r < RANKS; r++) {
                uint32_t narrow;
                float v = w->deltas[((size_t)call * RANKS + (size_t)r) * w->values + i];
                check_narrow(&v, 1, travels, &narrow);
                check_widen(&narrow, 1, travels, &v);
                sum = r ? sum + v : v;
            }
            uint32_t narrow;
            if (w->s->parts) check_narrow(&sum, 1, travels, &narrow);
            if (w->s->parts) check_widen(&narrow, 1, travels, &sum);
            x[i] = w->s->adds ? x[i] + sum : sum;
        }
    for (size_t row = 0; row < w->s->m; row++) {
        const float *from = x + row * w->s->d;
        double square = 0;
        for (size_t i = 0; i < w->s->d; i++) square += (double)from[i] * from[i];
        for (size_t i = 0; i < w->s->d; i++)
            normed[row * w->s->d + i] =
                from[i] * (float)(1 / sqrt(square / (double)w->s->d + 1e-5)) * w->weight[i];
    }
}

static void check_shape(check *c, const shape *s)
{
    static const char *const names[GPU_TYPES] = {"f32", "bf16", "f16"};
    world w = {.c = c, .s = s, .values = s->m * s->d, .room = s->m * s->d * sizeof(float)};
    w.deltas = check_memory(CALLS * RANKS * w.values, sizeof(float));
    w.weight = check_memory(s->d, sizeof(float));
    float *start = check_memory(w.values, sizeof(float));
    float *x = check_memory(w.values, sizeof(float)), *normed = check_memory(w.values, 4);
    check_fill(c, w.deltas, CALLS * RANKS * w.values);
    check_fill(c, w.weight, s->d);
    check_fill(c, start, w.values);
    w.start = start;
    pthread_t threads[RANKS];
    rank_arg args[RANKS];
    pthread_barrier_init(&w.met, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        gpu_facts facts;
        char why[256];
        check_ok(c, c->api->open(0, &w.gpus[r], &facts, why, sizeof why));
        w.x[r] = check_memory(w.values, sizeof(float));
        w.normed[r] = check_memory(w.values, sizeof(float));
        args[r] = (rank_arg){&w, r};
    }
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, rank_main, &args[r]) != 0) abort();
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    add_up(&w, x, normed);
    char name[96];
    uint32_t differ = 0;
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < w.values; i++) differ += memcmp(&x[i], &w.x[r][i], 4) != 0;
        differ += memcmp(w.normed[0], w.normed[r], w.values * sizeof(float)) != 0;
    }
    snprintf(name, sizeof name, "sums of %d ranks, %zu rows of %zu, %s%s%s", RANKS, s->m, s->d,
             names[s->type], s->adds ? ", added" : "", s->parts ? ", by parts" : "");
    check_row(c, name, &(float){0}, &(float){(float)differ + (float)w.n_trouble}, 1, 0.0);
    check_row(c, "  their norms", normed, w.normed[0], w.values, s->type == GPU_F32 ? 1e-11 : 1e-4);
    for (int r = 0; r < RANKS; r++) c->api->close(w.gpus[r]), free(w.x[r]), free(w.normed[r]);
    pthread_barrier_destroy(&w.met);
    free(w.deltas), free(w.weight), free(start), free(x), free(normed);
}

void check_ranks(check *c)
{
    static const shape all[] = {
        {1, 64, GPU_BF16, true, false},    {1, 4096, GPU_BF16, true, false},
        {70, 100, GPU_BF16, true, false},  {5, 1028, GPU_F32, true, false},
        {3, 8192, GPU_F32, false, false},  {9, 256, GPU_F16, true, false},
        {2, 16384, GPU_BF16, true, false}, {1, 20, GPU_BF16, false, false},
        {70, 100, GPU_BF16, true, true},   {5, 1028, GPU_F32, true, true},
        {130, 8192, GPU_BF16, true, true}, {1, 4, GPU_F16, false, true},
    };
#ifndef OCTAVO_SIMT
    if (c->small) { /* a sanitizer lets one kernel run at a time, and these wait for each other */
        printf("sums over ranks are left out\n");
        return;
    }
#endif
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!c->small || all[i].d <= 4096) check_shape(c, &all[i]);
}

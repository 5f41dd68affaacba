/* Times the launches of a decode step on a GPU, by name. The step makes them one by one, and is
 * timed as a graph as well. */
#include "cli/bench/bench_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_STEPS = 3 }; /* the second one of a shape is captured */

typedef struct traced {
    gpu_launches alone, graph; /* of all rounds */
} traced;

/* Adds the launches of one step. The step in front of it keeps the device busy while they are made,
 * so that the device waits for none of them. */
static status trace_step(bench *b, bool one_by_one, gpu_launches *out, error *err)
{
    RETURN_IF_ERROR(bench_seqs_decode(&b->seqs, NULL, err));
    RETURN_IF_ERROR(backend_cuda_trace(&b->model.backend, one_by_one, err));
    status st = bench_seqs_decode(&b->seqs, NULL, err);
    if (status_ok(st)) st = bench_seqs_settle(&b->seqs, err);
    status ended = backend_cuda_traced(&b->model.backend, out, status_ok(st) ? err : NULL);
    return status_ok(st) ? ended : st;
}

static status trace_rounds(bench *b, traced *out, error *err)
{
    gpu_launches unused = {.n = 0}; /* the first trace takes its time to begin */
    for (int i = 0; i < WARM_STEPS; i++) RETURN_IF_ERROR(bench_seqs_decode(&b->seqs, NULL, err));
    RETURN_IF_ERROR(trace_step(b, true, &unused, err));
    for (uint32_t i = 0; i < b->rounds; i++) {
        RETURN_IF_ERROR(trace_step(b, false, &out->graph, err));
        RETURN_IF_ERROR(trace_step(b, true, &out->alone, err));
    }
    return STATUS_IS_OK;
}

/* ---- what is told ---------------------------------------------------------------------------- */

/* The launches whose names begin with `name`; all of them with "". */
static gpu_launch add_up(const gpu_launches *all, const char *name)
{
    gpu_launch sum = {.name = name};
    for (uint32_t i = 0; i < all->n; i++) {
        if (strncmp(all->of[i].name, name, strlen(name)) != 0) continue;
        sum.n += all->of[i].n;
        sum.us += all->of[i].us;
    }
    return sum;
}

static int compare_launches(const void *a, const void *b)
{
    double x = ((const gpu_launch *)a)->us, y = ((const gpu_launch *)b)->us;
    return (x < y) - (x > y);
}

static void take_means(gpu_launches *all, uint32_t rounds)
{
    for (uint32_t i = 0; i < all->n; i++) {
        all->of[i].n /= rounds; /* every step has the same launches */
        all->of[i].us /= rounds;
    }
    qsort(all->of, all->n, sizeof *all->of, compare_launches);
}

static void put_launches(strbuf *out, const gpu_launches *all, double us)
{
    for (uint32_t i = 0; i < all->n; i++)
        strbuf_printf(out, "%s{\"name\":\"%s\",\"launches\":%u,\"us\":%.6g,\"share\":%.6g}",
                      i ? "," : "", all->of[i].name, all->of[i].n, all->of[i].us,
                      all->of[i].us / us);
}

/* Parts of a step for which the limits say how long they take at least. */
typedef struct part {
    const char *title, *key, *launches;
    bench_work work;
} part;

static void tell(bench *b, uint32_t batch, uint32_t context, const traced *t,
                 const kern_limits *limits)
{
    gpu_launch alone = add_up(&t->alone, ""), graph = add_up(&t->graph, "");
    bench_work w = bench_decode_work(b, batch, context);
    const part parts[] = {
        {"all products",
         "products",
         "product",
         {.weight_bytes = w.weight_bytes, .weight_flops = w.weight_flops}},
        {"decode attention",
         "attention",
         "decode attention",
         {.kv_bytes = w.kv_bytes, .attention_flops = w.attention_flops}},
    };
    strbuf *rows = &b->report.rows;
    bench_report_row(&b->report, "launches");
    strbuf_printf(rows, ",\"batch\":%u,\"tokens\":%u,\"us\":%.6g,\"graph_us\":%.6g", batch, context,
                  alone.us, graph.us);
    if (!b->as_json) {
        printf("%23s launches by name %16s %10s %7s\n", "", "launches", "us", "share");
        for (uint32_t i = 0; i < t->alone.n; i++)
            printf("%23s %-24s %8u %10.1f %5.1f %%\n", "", t->alone.of[i].name, t->alone.of[i].n,
                   t->alone.of[i].us, 100 * t->alone.of[i].us / alone.us);
        printf("%23s %-24s %8u %10.1f\n", "", "one by one", alone.n, alone.us);
        printf("%23s %-24s %8u %10.1f %+5.1f %%\n", "", "as a graph", graph.n, graph.us,
               100 * graph.us / alone.us - 100);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double us = add_up(&t->alone, parts[i].launches).us;
        double least = 1e6 * bench_least_s(b, &parts[i].work, limits);
        strbuf_printf(rows, ",\"%s_us\":%.6g,\"%s_least_us\":%.6g", parts[i].key, us, parts[i].key,
                      least);
        if (!b->as_json && us > 0) /* else they have other names */
            printf("%23s %s: %.1f us, of which %.0f %% at the limits\n", "", parts[i].title, us,
                   100 * least / us);
    }
    strbuf_puts(rows, ",\"launches\":[");
    put_launches(rows, &t->alone, alone.us);
    strbuf_puts(rows, "],\"graph\":[");
    put_launches(rows, &t->graph, graph.us);
    strbuf_puts(rows, "]}");
}

status bench_launches(bench *b, uint32_t batch, uint32_t context, error *err)
{
    traced t = {.alone = {.n = 0}};
    kern_limits limits;
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, batch, context, err));
    status st = trace_rounds(b, &t, err);
    if (status_ok(st)) st = bench_limits(b, &limits, err);
    RETURN_IF_ERROR(bench_seqs_close(&b->seqs, status_ok(st) ? err : NULL));
    RETURN_IF_ERROR(st);
    take_means(&t.alone, b->rounds);
    take_means(&t.graph, b->rounds);
    tell(b, batch, context, &t, &limits);
    return STATUS_IS_OK;
}

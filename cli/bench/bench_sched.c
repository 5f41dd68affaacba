/* Times sched_step on invented results, and the pages of a sequence. */
#include "cli/bench/bench_sched.h"

#include "cli/bench/bench_drive.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROMPT_TOKENS = 64,
    STEPS_PER_ROUND = 100,
    ROUNDS_MAX = 64,
    PAGES_TOKENS = 4096, /* tokens appended and closed together when pages are timed */
};

static int compare_ns(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, compare_ns);
    return v[n / 2];
}

static status time_steps(bench_drive *d, uint32_t n_running, uint32_t rounds, uint32_t max_new,
                         double *us, error *err)
{
    static const uint32_t prompt[PROMPT_TOKENS];
    double per_seq[ROUNDS_MAX];
    for (uint32_t i = 0; i < n_running; i++)
        RETURN_IF_ERROR(bench_drive_add(d, prompt, PROMPT_TOKENS, max_new, 0, err));
    RETURN_IF_ERROR(bench_drive_settle(d, n_running, err));
    for (uint32_t r = 0; r < rounds; r++) {
        int64_t ns = 0;
        for (int i = 0; i < STEPS_PER_ROUND; i++) {
            RETURN_IF_ERROR(bench_drive_turn(d, err));
            ns += d->step_ns;
        }
        per_seq[r] = (double)ns / 1e3 / STEPS_PER_ROUND / n_running;
    }
    *us = bench_median(per_seq, rounds);
    return STATUS_IS_OK;
}

/* Times taking and giving back the pages of one sequence. */
static double time_pages(const pkv_geometry *g, uint32_t rounds)
{
    uint32_t pages = PAGES_TOKENS / g->page_tokens * pkv_groups(g);
    pkv_options o = {.geometry = *g, .n_pages = pages + 1, .max_seqs = 1};
    pkv *kv = NULL;
    double ns[ROUNDS_MAX] = {0};
    if (!status_ok(pkv_create(&o, &kv))) return 0;
    for (uint32_t r = 0; r < rounds; r++) {
        uint32_t hit, token = 0;
        pkv_seq_open(kv, 0, PKV_HEAD, &token, 0, 0, PAGES_TOKENS, &hit);
        int64_t start = clock_now_ns();
        pkv_seq_append(kv, 0, PAGES_TOKENS);
        pkv_seq_close(kv, 0);
        ns[r] = (double)(clock_now_ns() - start) / pages;
        pkv_take_deltas(kv);
    }
    pkv_destroy(kv);
    return bench_median(ns, rounds);
}

status bench_sched(const pkv_geometry *geometry, uint32_t n_running, uint32_t rounds,
                   bench_sched_cost *out, error *err)
{
    if (rounds > ROUNDS_MAX) rounds = ROUNDS_MAX;
    /* All prompts are through after fewer steps than there are sequences. */
    uint32_t max_new = (rounds + 1) * STEPS_PER_ROUND + n_running;
    uint32_t length = PROMPT_TOKENS + max_new;
    uint32_t pages = (length / geometry->page_tokens + 1) * pkv_groups(geometry);
    sched_options o = {
        .geometry = *geometry,
        .n_pages = n_running * pages + 1,
        .max_seqs = n_running,
        .prefill_chunk = 512,
        .max_model_len = length,
        .max_requests = n_running,
    };
    bench_drive d;
    RETURN_IF_ERROR(bench_drive_create(&o, n_running, false, &d, err));
    status st = time_steps(&d, n_running, rounds, max_new, &out->us_per_seq_step, err);
    bench_drive_destroy(&d);
    out->ns_per_page = time_pages(geometry, rounds < 5 ? 5 : rounds);
    return st;
}

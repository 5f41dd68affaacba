/* Times sched_step on invented results. */
#include "cli/bench/bench_sched.h"

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

/* A backend that has computed nothing: every draw gives token 1. */
typedef struct fake_backend {
    step_seq_result *seqs;
    step_sample *samples;
    step_result result;
} fake_backend;

static void answer_step(fake_backend *f, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        f->seqs[i] = (step_seq_result){.samples = f->samples, .n_samples = plan->seqs[i].n_samples};
    f->result = (step_result){
        .step = plan->step, .seqs = f->seqs, .n_seqs = plan->n_seqs, .checksum = plan->checksum};
}

/* Runs one step and adds the time inside sched_step to *ns. */
static const step_plan *time_step(sched *s, fake_backend *f, const step_plan *last, int64_t *ns)
{
    sched_event event = {.kind = SCHED_RESULT, .result = &f->result};
    answer_step(f, last);
    int64_t start = clock_now_ns();
    const step_plan *plan = sched_step(s, start / 1000, &event, 1);
    *ns += clock_now_ns() - start;
    return plan;
}

static status time_steps(sched *s, const pkv_geometry *geometry, uint32_t n_running,
                         uint32_t rounds, uint32_t max_new, double *us, error *err)
{
    fake_backend f = {.seqs = calloc(n_running, sizeof *f.seqs),
                      .samples = calloc(1, sizeof *f.samples)};
    sched_event *adds = calloc(n_running, sizeof *adds);
    sched_request *requests = calloc(n_running, sizeof *requests);
    retention_limits limits = {*geometry, PROMPT_TOKENS};
    uint32_t prompt[PROMPT_TOKENS] = {0};
    double per_seq[ROUNDS_MAX];
    uint32_t n_rounds = 0;
    if (f.seqs && f.samples && adds && requests) {
        f.samples[0].token = 1;
        for (uint32_t i = 0; i < n_running; i++) {
            requests[i] =
                (sched_request){.id = i + 1,
                                .prompt = prompt,
                                .n_prompt = PROMPT_TOKENS,
                                .max_new_tokens = max_new,
                                .n = 1,
                                .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1}};
            retention_parse(NULL, &limits, &requests[i].policy, NULL);
            adds[i] = (sched_event){.kind = SCHED_ADD, .add = &requests[i]};
        }
        int64_t ignored = 0;
        const step_plan *plan = sched_step(s, 0, adds, n_running);
        /* Steps until all prompts are through and each step is one token of every sequence. */
        while (plan->n_seqs && (plan->n_seqs < n_running || plan->n_tokens > n_running))
            plan = time_step(s, &f, plan, &ignored);
        for (; plan->n_seqs == n_running && n_rounds < rounds; n_rounds++) {
            int64_t ns = 0;
            for (int i = 0; i < STEPS_PER_ROUND && plan->n_seqs == n_running; i++)
                plan = time_step(s, &f, plan, &ns);
            per_seq[n_rounds] = (double)ns / 1e3 / STEPS_PER_ROUND / n_running;
        }
    }
    free(f.seqs);
    free(f.samples);
    free(adds);
    free(requests);
    *us = bench_median(per_seq, n_rounds);
    return n_rounds == rounds ? STATUS_IS_OK
                              : error_set(err, STATUS_INTERNAL,
                                          "the scheduler did not keep %u running", n_running);
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
        pkv_seq_open(kv, 0, &token, 0, 0, PAGES_TOKENS, &hit);
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
    uint32_t max_new = (rounds + 1) * STEPS_PER_ROUND;
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
    sched *s;
    RETURN_IF_ERROR(sched_create(&o, &s, err));
    status st = time_steps(s, geometry, n_running, rounds, max_new, &out->us_per_seq_step, err);
    sched_destroy(s);
    out->ns_per_page = time_pages(geometry, rounds < 5 ? 5 : rounds);
    return st;
}

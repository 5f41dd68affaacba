/* Draws against the CPU's sampler: the same tokens, ranks and most likely tokens for all
 * parameters. */
#include "tests/cuda/check.h"

#include "base/hash.h"
#include "model/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HISTORY = 24, BANNED = 2, BIASED = 3 };

typedef struct asked {
    const char *name;
    sample_params params;
    bool ties; /* ties among the logits */
} asked;

/* Edits for the kernel at each draw; the CPU's sampler got the same parameters once. */
static void make_edits(const sample_params *p, uint32_t sample_index, const uint32_t *history,
                       uint32_t n_history, gpu_edit *edits, gpu_draw *d)
{
    uint32_t n = 0;
    d->n_banned = sample_index < p->min_tokens ? p->n_stop_ids : 0;
    for (uint32_t i = 0; i < d->n_banned; i++) edits[n++].token = p->stop_ids[i];
    d->n_biased = p->n_bias;
    for (uint32_t i = 0; i < p->n_bias; i++) edits[n++] = (gpu_edit){p->bias_ids[i], 0, p->bias[i]};
    if (p->presence_penalty == 0 && p->frequency_penalty == 0 && p->repetition_penalty == 1) return;
    uint32_t first = n;
    for (uint32_t i = 0; i < n_history; i++) {
        uint32_t at = first;
        while (at < n && edits[at].token != history[i]) at++;
        if (at == n) edits[n++] = (gpu_edit){history[i], 0, 0.0f};
        edits[at].outputs += i >= HISTORY / 2;
    }
    d->n_seen = n - first;
}

static void check_drawn(check *c, const char *name, const step_sample *due, const gpu_drawn *got,
                        uint32_t n)
{
    float *x = check_memory((size_t)n * 64, 4), *y = check_memory((size_t)n * 64, 4);
    for (uint32_t i = 0; i < n; i++) {
        float *a = x + (size_t)i * 64, *b = y + (size_t)i * 64;
        a[0] = (float)due[i].token, b[0] = (float)got[i].token;
        a[1] = (float)due[i].rank, b[1] = (float)got[i].rank;
        a[2] = (float)due[i].n_top, b[2] = (float)got[i].n_top;
        a[63] = (float)due[i].undefined, b[63] = (float)got[i].undefined;
        for (uint32_t t = 0; t < due[i].n_top && t < got[i].n_top; t++)
            a[3 + t] = (float)due[i].top_ids[t], b[3 + t] = (float)got[i].top_ids[t];
    }
    char text[96];
    snprintf(text, sizeof text, "%u draws: tokens, ranks, %s", n, name);
    check_row(c, text, x, y, (size_t)n * 64, 0.0);
    if (due[0].n_top == 0) {
        free(x), free(y);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] = due[i].logprob, y[i] = got[i].logprob;
        memcpy(x + n + (size_t)i * 20, due[i].top_logprobs, due[i].n_top * 4);
        memcpy(y + n + (size_t)i * 20, got[i].top_logprobs, due[i].n_top * 4);
        for (uint32_t t = due[i].n_top; t < 20; t++) x[n + i * 20 + t] = y[n + i * 20 + t] = 0.0f;
    }
    check_row(c, "  logprobs", x, y, (size_t)n * 21, 1e-12);
    free(x), free(y);
}

/* Behind the draws are one that is not used and one of the other kind, which must leave their
 * results as they are. In front of the results is that of a step before. */
enum { OTHERS = 2, BEFORE = 3, NOT_USED = 0, DRAWN_BEFORE = 1, OTHER_KIND = 2 };

static void make_others(gpu_draw *draws, uint32_t n, bool by_parts)
{
    for (uint32_t i = 0; i < n; i++) draws[i].by_parts = by_parts;
    draws[n] = (gpu_draw){.row = GPU_NO_DRAW, .by_parts = by_parts, .result = NOT_USED};
    draws[n + 1] = draws[0];
    draws[n + 1].by_parts = !by_parts;
    draws[n + 1].result = OTHER_KIND;
}

/* Fetches the results in the order of the draws, which is not their own. */
static void fetch_drawn(check *c, const gpu_drawn *from, gpu_drawn *out, uint32_t n)
{
    static const gpu_drawn none;
    gpu_drawn *all = check_memory(BEFORE + n, sizeof *all);
    check_fetch(c, all, from, (BEFORE + n) * sizeof *all);
    float other = memcmp(&all[NOT_USED], &none, sizeof none) != 0 ||
                  memcmp(&all[OTHER_KIND], &none, sizeof none) != 0;
    for (uint32_t i = 0; i < n; i++) out[i] = all[BEFORE + n - 1 - i];
    check_row(c, "  no result of other draws", &(float){0}, &other, 1, 0.0);
    free(all);
}

/* The same draws by ranks that have a part of each row: `job` draws from whole rows. The last rank
 * may have few tokens, or none. */
static void check_parts(check *c, const char *name, const gpu_sampling *job, gpu_draw *draws,
                        const float *logits, const step_sample *due)
{
    enum { RANKS = 3 };
    uint32_t n_all = job->n, n = n_all - OTHERS, vocab = job->n_vocab, slice = (vocab + 1) / 2 + 3;
    gpu_part *all = check_output(c, RANKS * n_all * sizeof *all);
    make_others(draws, n, true);
    gpu_draw *by_parts = check_device(c, draws, n_all * sizeof *draws);
    float *part = check_memory((size_t)n * slice, sizeof *part);
    float *parts = check_output(c, (size_t)RANKS * n * slice * sizeof *parts);
    float *scratch = check_output(c, (size_t)n_all * slice * sizeof *scratch);
    float *joined = check_output(c, (size_t)n * vocab * sizeof *joined);
    float *got = check_memory((size_t)n * vocab, sizeof *got);
    gpu_drawn *drawn = check_memory(n, sizeof *drawn);
    for (uint32_t r = 0; r < RANKS; r++) {
        gpu_sampling mine = *job;
        mine.first = r * slice < vocab ? r * slice : vocab;
        mine.n_vocab = vocab - mine.first < slice ? vocab - mine.first : slice;
        mine.stride = slice;
        mine.scratch = scratch;
        mine.draws = by_parts;
        for (size_t i = 0; i < (size_t)n * slice; i++)
            part[i] = i % slice < mine.n_vocab ? logits[i / slice * vocab + mine.first + i % slice]
                                               : 1e9f; /* padding, which no draw may see */
        float *there = parts + (size_t)r * n * slice;
        check_ok(c, c->api->copy_in(c->g, there, part, (size_t)n * slice * sizeof *part));
        check_ok(c, c->api->wait(c->g));
        mine.logits = there;
        check_ok(c, c->api->draw_parts(c->g, &mine, all + (size_t)r * n_all));
    }
    check_ok(c, c->api->decide(c->g, all, RANKS, n_all, by_parts, job->drawn));
    fetch_drawn(c, job->drawn, drawn, n);
    check_drawn(c, name, due, drawn, n);
    check_ok(c, c->api->join(c->g, parts, n, slice, vocab, joined));
    check_fetch(c, got, joined, (size_t)n * vocab * sizeof *got);
    float same = memcmp(got, logits, (size_t)n * vocab * sizeof *got) == 0, yes = 1;
    check_row(c, "  rows joined of parts", &yes, &same, 1, 0.0);
    void *const device[] = {all, by_parts, parts, scratch, joined};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(part), free(got), free(drawn);
}

static void check_asked(check *c, const asked *a, uint32_t vocab, uint32_t n)
{
    static const uint32_t stops[BANNED] = {3, 9}, biased[BIASED] = {5, 17, 3};
    static const float bias[BIASED] = {4.0f, -2.0f, 1.0f};
    sample_params p = a->params;
    uint32_t history[HISTORY];
    for (int i = 0; i < HISTORY; i++) history[i] = rng_u32(&c->random) % 20;
    p.stop_ids = stops, p.bias_ids = biased, p.bias = bias;
    float *logits = check_memory((size_t)n * vocab, 4);
    check_fill(c, logits, (size_t)n * vocab);
    for (size_t i = 0; i < (size_t)n * vocab; i++)
        logits[i] = a->ties ? rintf(2.0f * logits[i]) : 3.0f * logits[i];
    logits[1] = -INFINITY;
    if (p.n_logprobs < 0) logits[2] = NAN;
    sampler *s;
    step_open open = {.params = &p,
                      .history = history,
                      .n_history = HISTORY,
                      .n_prompt = HISTORY / 2,
                      .n_most = HISTORY + n};
    if (!status_ok(sampler_create(1, vocab, c->pool, &s)) || !status_ok(sampler_open(s, &open)))
        abort();
    sampler_draw *draws = check_memory(n, sizeof *draws);
    step_sample *due = check_memory(n, sizeof *due);
    gpu_draw *mine = check_memory(n + OTHERS, sizeof *mine);
    gpu_drawn *got = check_memory(n, sizeof *got);
    /* Odd sequences take their last token from an earlier draw. */
    enum { EDITS = HISTORY + BANNED + BIASED };
    gpu_edit edits[2 * EDITS] = {{0}};
    gpu_drawn *drawn = check_memory(BEFORE + n, sizeof *drawn);
    drawn[DRAWN_BEFORE].token = history[HISTORY - 1];
    for (uint32_t i = 0; i < n; i++) {
        draws[i] = (sampler_draw){
            .choice = i, .sample_index = 4, .logits = logits + (size_t)i * vocab, .out = &due[i]};
        mine[i] = (gpu_draw){
            .key = hash_mix64(p.seed + 0x9e3779b97f4a7c15ull * ((uint64_t)i + 1)),
            .row = i,
            .sample_index = 4,
            .given = GPU_NO_TOKEN,
            .top_k = p.top_k,
            .temperature = p.temperature,
            .top_p = p.top_p,
            .log_min_p = p.min_p > 0 ? logf(p.min_p) : -INFINITY,
            .presence = p.presence_penalty,
            .frequency = p.frequency_penalty,
            .repetition = p.repetition_penalty,
            .n_logprobs = p.n_logprobs,
            .result = BEFORE + n - 1 - i,
        };
        gpu_edit *at = edits + (i % 2) * EDITS;
        memset(at, 0, EDITS * sizeof *at);
        make_edits(&p, 4, history, HISTORY - i % 2, at, &mine[i]);
        mine[i].first_edit = (uint32_t)(at - edits);
        mine[i].last = i % 2 && mine[i].n_seen ? 1 + DRAWN_BEFORE : 0;
    }
    make_others(mine, n, false);
    sampler_run(s, draws, n);
    gpu_sampling job = {.logits = check_device(c, logits, (size_t)n * vocab * 4),
                        .n_vocab = vocab,
                        .stride = vocab,
                        .n = n + OTHERS,
                        .draws = check_device(c, mine, (n + OTHERS) * sizeof *mine),
                        .edits = check_device(c, edits, sizeof edits),
                        .scratch = check_output(c, (size_t)(n + OTHERS) * vocab * 4),
                        .drawn = check_device(c, drawn, (BEFORE + n) * sizeof *drawn)};
    check_ok(c, c->api->sample(c->g, &job));
    fetch_drawn(c, job.drawn, got, n);
    check_drawn(c, a->name, due, got, n);
    bool limits = p.top_k || p.top_p < 1 || p.min_p > 0;
    if (!limits && p.n_logprobs < 0) check_parts(c, a->name, &job, mine, logits, due);
    const void *device[] = {job.logits, job.draws, job.edits, job.scratch, job.drawn};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        c->api->release(c->g, (void *)(uintptr_t)device[i]);
    sampler_destroy(s);
    free(logits), free(draws), free(due), free(mine), free(got), free(drawn);
}

void check_sample(check *c)
{
#define PLAIN                                                                                      \
    .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1, .seed = 7
    static const asked all[] = {
        {"as they are", {PLAIN}, false},
        {"greedy", {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1}, true},
        {"penalties, biases, no limits",
         {PLAIN, .presence_penalty = 0.5f, .frequency_penalty = 0.3f, .min_tokens = 9,
          .n_stop_ids = BANNED, .n_bias = BIASED},
         true},
        {"greedy, logprobs", {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = 5}, true},
        {"top k", {PLAIN, .top_k = 12}, false},
        {"top k of ties", {PLAIN, .top_k = 12}, true},
        {"top p",
         {.temperature = 0.7f, .top_p = 0.8f, .repetition_penalty = 1.0f, .n_logprobs = 20},
         false},
        {"top p of ties",
         {.temperature = 1.5f, .top_p = 0.6f, .repetition_penalty = 1.0f, .n_logprobs = 0},
         true},
        {"min p, top k, top p",
         {.temperature = 1.3f,
          .top_p = 0.9f,
          .min_p = 0.02f,
          .top_k = 30,
          .repetition_penalty = 1.0f,
          .n_logprobs = -1},
         false},
        {"penalties, biases, stops banned",
         {.temperature = 0.9f,
          .top_p = 0.95f,
          .presence_penalty = 0.5f,
          .frequency_penalty = 0.3f,
          .repetition_penalty = 1.2f,
          .n_logprobs = 2,
          .min_tokens = 9,
          .n_stop_ids = BANNED,
          .n_bias = BIASED},
         false},
    };
#undef PLAIN
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_asked(c, &all[i], c->small ? 331 : 128256, c->small ? 6 : 64);
}

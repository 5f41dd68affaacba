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

/* How a row's logits lie: no two alike; the same, but so near that each token of the set has its
 * chance; few values; one value; a quarter of the tokens, which is top_k, above all others; or only
 * the last eighth may be drawn, which is one rank's. */
typedef enum lie { APART, NEAR, TIES, EQUAL, STEP, LAST } lie;

typedef struct asked {
    const char *name;
    sample_params params;
    lie lie;
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
    for (uint32_t i = 0; i < n; i++)
        draws[i].by_parts = by_parts ? gpu_draw_by_parts(&draws[i]) : 0;
    draws[n] = (gpu_draw){.row = GPU_NO_DRAW, .by_parts = draws[0].by_parts, .result = NOT_USED};
    draws[n + 1] = draws[0];
    draws[n + 1].by_parts = by_parts ? 0 : gpu_draw_by_parts(&draws[0]);
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

/* Ranks that have a part of each row, on one device. What they gather are arrays of one behind the
 * other, which each writes to its place. */
enum { RANKS_MOST = 5 };

typedef struct world {
    uint32_t ranks, slice;
    gpu_sampling jobs[RANKS_MOST];
    gpu_part *parts;
    gpu_opening *openings;
    gpu_bins *bins, *next;
    gpu_search *searches;
} world;

/* Has the ranks find what each of them draws within the limits. */
static void draw_limited(check *c, const world *w, uint32_t kinds)
{
    uint32_t n = w->jobs[0].n, behind = 0;
    for (uint32_t round = 0; round <= GPU_ROUNDS; round++) {
        bool ends = round == GPU_ROUNDS;
        if (!ends && !(kinds & GPU_KIND_OF_ROUND(round))) continue;
        for (uint32_t r = 0; r < w->ranks; r++) {
            gpu_joint j = {.rank = r,
                           .ranks = w->ranks,
                           .openings = w->openings,
                           .bins = w->bins,
                           .searches = w->searches + r * n,
                           .round = ends ? behind : round};
            if (ends) check_ok(c, c->api->draw_kept(c->g, &w->jobs[r], &j, w->parts + r * n));
            else check_ok(c, c->api->search(c->g, &w->jobs[r], &j, w->next + r * n));
        }
        behind = round + 1;
        if (!ends)
            check_ok(c, c->api->copy(c->g, w->bins, w->next, w->ranks * n * sizeof *w->bins));
    }
}

/* The same draws by such ranks: `job` draws from whole rows. The last ranks may have few tokens, or
 * none. */
static void check_parts(check *c, const char *name, uint32_t ranks, uint32_t slice,
                        const gpu_sampling *job, gpu_draw *draws, const float *logits,
                        const step_sample *due)
{
    uint32_t n_all = job->n, n = n_all - OTHERS, vocab = job->n_vocab;
    make_others(draws, n, true);
    world w = {.ranks = ranks,
               .slice = slice,
               .parts = check_output(c, ranks * n_all * sizeof *w.parts),
               .openings = check_output(c, ranks * n_all * sizeof *w.openings),
               .bins = check_output(c, ranks * n_all * sizeof *w.bins),
               .next = check_output(c, ranks * n_all * sizeof *w.next),
               .searches = check_output(c, ranks * n_all * sizeof *w.searches)};
    gpu_draw *by_parts = check_device(c, draws, n_all * sizeof *draws);
    float *part = check_memory((size_t)n * slice, sizeof *part);
    float *rows = check_output(c, (size_t)ranks * n * slice * sizeof *rows);
    float *scratch = check_output(c, (size_t)ranks * n_all * slice * sizeof *scratch);
    float *joined = check_output(c, (size_t)n * vocab * sizeof *joined);
    float *got = check_memory((size_t)n * vocab, sizeof *got);
    gpu_drawn *drawn = check_memory(n, sizeof *drawn);
    for (uint32_t r = 0; r < ranks; r++) {
        gpu_sampling mine = *job;
        mine.first = r * slice < vocab ? r * slice : vocab;
        mine.n_vocab = vocab - mine.first < slice ? vocab - mine.first : slice;
        mine.stride = slice;
        mine.scratch = scratch + (size_t)r * n_all * slice;
        mine.draws = by_parts;
        for (size_t i = 0; i < (size_t)n * slice; i++)
            part[i] = i % slice < mine.n_vocab ? logits[i / slice * vocab + mine.first + i % slice]
                                               : 1e9f; /* padding, which no draw may see */
        float *there = rows + (size_t)r * n * slice;
        check_ok(c, c->api->copy_in(c->g, there, part, (size_t)n * slice * sizeof *part));
        check_ok(c, c->api->wait(c->g));
        mine.logits = there;
        w.jobs[r] = mine;
        check_ok(c, c->api->draw_parts(c->g, &mine, w.parts + (size_t)r * n_all,
                                       w.openings + (size_t)r * n_all));
    }
    if (draws[0].by_parts & GPU_LIMITED) draw_limited(c, &w, draws[0].by_parts);
    check_ok(c, c->api->decide(c->g, w.parts, ranks, n_all, by_parts, job->drawn));
    fetch_drawn(c, job->drawn, drawn, n);
    char text[96];
    snprintf(text, sizeof text, "%s, %u parts", name, ranks);
    check_drawn(c, text, due, drawn, n);
    check_ok(c, c->api->join(c->g, rows, n, slice, vocab, joined));
    check_fetch(c, got, joined, (size_t)n * vocab * sizeof *got);
    float same = memcmp(got, logits, (size_t)n * vocab * sizeof *got) == 0, yes = 1;
    check_row(c, "  rows joined of parts", &yes, &same, 1, 0.0);
    void *const device[] = {w.parts,  w.openings, w.bins,  w.next, w.searches,
                            by_parts, rows,       scratch, joined};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    free(part), free(got), free(drawn);
}

static float logit_of(lie how, float x, uint32_t token, uint32_t vocab)
{
    if (how == EQUAL) return 1;
    if (how == STEP) return token % 4 == 1 ? 1.0f : 0.9f;
    if (how == LAST && token < vocab - vocab / 8) return -INFINITY;
    if (how == NEAR || how == LAST) return 0.2f * x;
    return how == TIES ? rintf(2.0f * x) : 3.0f * x;
}

static void check_asked(check *c, const asked *a, uint32_t vocab, uint32_t n)
{
    static const uint32_t stops[BANNED] = {3, 9}, biased[BIASED] = {5, 17, 3};
    static const float bias[BIASED] = {4.0f, -2.0f, 1.0f};
    sample_params p = a->params;
    uint32_t history[HISTORY];
    for (int i = 0; i < HISTORY; i++) history[i] = rng_u32(&c->random) % 20;
    p.stop_ids = stops, p.bias_ids = biased, p.bias = bias;
    if (a->lie == STEP) p.top_k = (vocab + 2) / 4;
    float *logits = check_memory((size_t)n * vocab, 4);
    check_fill(c, logits, (size_t)n * vocab);
    for (size_t i = 0; i < (size_t)n * vocab; i++)
        logits[i] = logit_of(a->lie, logits[i], (uint32_t)(i % vocab), vocab);
    logits[1] = -INFINITY;
    if (p.n_logprobs < 0) logits[2] = NAN;
    for (uint32_t i = 0; p.n_logprobs < 0 && i < vocab; i++) /* a row that has no softmax */
        logits[vocab + i] = i % 2 ? NAN : -INFINITY;
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
    if (p.n_logprobs < 0) {
        check_parts(c, a->name, 3, (vocab + 1) / 2 + 3, &job, mine, logits, due);
        check_parts(c, a->name, RANKS_MOST, vocab / RANKS_MOST + 1, &job, mine, logits, due);
    }
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
#define CUT(p)                                                                                     \
    .temperature = 1.2f, .top_p = p, .repetition_penalty = 1.0f, .n_logprobs = -1, .seed = 7
    static const asked all[] = {
        {"as they are", {PLAIN}, APART},
        {"greedy", {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1}, TIES},
        {"greedy with limits",
         {.top_p = 0.5f, .top_k = 9, .repetition_penalty = 1.3f, .n_logprobs = -1},
         TIES},
        {"penalties, biases, no limits",
         {PLAIN, .presence_penalty = 0.5f, .frequency_penalty = 0.3f, .min_tokens = 9,
          .n_stop_ids = BANNED, .n_bias = BIASED},
         TIES},
        {"greedy, logprobs", {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = 5}, TIES},
        {"top k", {PLAIN, .top_k = 12}, APART},
        {"top k of ties", {PLAIN, .top_k = 12}, TIES},
        {"top k of one", {PLAIN, .top_k = 1}, TIES},
        {"the longest list", {PLAIN, .top_k = GPU_LIST_MOST}, APART},
        {"top k beyond a list", {PLAIN, .top_k = GPU_LIST_MOST + 1}, APART},
        {"top k of all", {PLAIN, .top_k = 1000000}, APART},
        {"top k beyond a list, ties", {PLAIN, .top_k = 100}, TIES},
        {"min p", {PLAIN, .min_p = 0.05f}, APART},
        {"the last tokens", {PLAIN, .top_k = 20}, LAST},
        {"the likeliest of the last tokens", {PLAIN, .top_k = 1}, LAST},
        {"top p of the last tokens", {CUT(0.9f)}, LAST},
        {"top k and top p of the last tokens", {CUT(0.9f), .top_k = 50}, LAST},
        {"no top p", {CUT(0.0f)}, TIES},
        {"least top p", {CUT(1e-6f)}, APART},
        {"half of equal tokens", {CUT(0.5f)}, EQUAL},
        {"half of equal tokens in a list", {CUT(0.5f), .top_k = 30}, EQUAL},
        {"half of equal tokens beyond a list", {CUT(0.5f), .top_k = 90}, EQUAL},
        {"nine tenths of equal tokens", {CUT(0.9f)}, EQUAL},
        {"few of equal tokens", {CUT(0.004f)}, EQUAL},
        {"few of equal tokens in a list", {CUT(0.004f), .top_k = 30}, EQUAL},
        {"a quarter of the tokens", {PLAIN}, STEP},
        {"min p, near", {CUT(1.0f), .min_p = 0.8f}, NEAR},
        {"top p, near", {CUT(0.02f)}, NEAR},
        {"min p, top p, near", {CUT(0.5f), .min_p = 0.8f}, NEAR},
        {"top k, min p, top p, near", {CUT(0.5f), .top_k = 64, .min_p = 0.8f}, NEAR},
        {"top k beyond a list, top p, near", {CUT(0.05f), .top_k = 70}, NEAR},
        {"top p, ties", {CUT(0.6f)}, TIES},
        {"top p, apart", {CUT(0.8f)}, APART},
        {"most of top p", {CUT(0.9999f), .min_p = 0.001f}, APART},
        {"top k, top p", {CUT(0.7f), .top_k = 40}, APART},
        {"top k, top p of ties", {CUT(0.7f), .top_k = 40}, TIES},
        {"top k beyond a list, top p", {CUT(0.95f), .top_k = 120, .min_p = 0.0001f}, APART},
        {"top k beyond a list, top p, ties", {CUT(0.7f), .top_k = 70}, TIES},
        {"top p",
         {.temperature = 0.7f, .top_p = 0.8f, .repetition_penalty = 1.0f, .n_logprobs = 20},
         APART},
        {"top p of ties",
         {.temperature = 1.5f, .top_p = 0.6f, .repetition_penalty = 1.0f, .n_logprobs = 0},
         TIES},
        {"min p, top k, top p",
         {.temperature = 1.3f,
          .top_p = 0.9f,
          .min_p = 0.02f,
          .top_k = 30,
          .repetition_penalty = 1.0f,
          .n_logprobs = -1},
         APART},
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
         APART},
        {"penalties, biases, top p",
         {CUT(0.9f), .presence_penalty = 0.5f, .frequency_penalty = 0.3f, .min_tokens = 9,
          .n_stop_ids = BANNED, .n_bias = BIASED},
         TIES},
    };
#undef CUT
#undef PLAIN
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_asked(c, &all[i], c->small ? 331 : 128256, c->small ? 6 : 64);
}

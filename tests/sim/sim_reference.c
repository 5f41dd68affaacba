/* One request at a time on plain arrays: no pages to share, no scheduler, nothing to replay. */
#include "tests/sim/sim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One group's cache: the folds of its full pages, and of the page being filled. */
typedef struct ref_table {
    uint64_t *pages; // [max_pages]
    uint32_t n_full, fill;
    uint64_t full; // fold over the full pages
    uint64_t last;
} ref_table;

typedef struct ref_state {
    ref_table *tables; // [groups]
    uint64_t *storage;
    uint32_t groups, max_pages;
} ref_state;

static ref_state state_create(uint32_t groups, uint32_t max_pages)
{
    ref_state s = {.groups = groups, .max_pages = max_pages};
    s.tables = calloc(groups, sizeof *s.tables);
    s.storage = calloc((size_t)groups * max_pages, sizeof *s.storage);
    if (!s.tables || !s.storage) abort();
    for (uint32_t g = 0; g < groups; g++) s.tables[g].pages = s.storage + (size_t)g * max_pages;
    return s;
}

static void state_copy(ref_state *to, const ref_state *from)
{
    for (uint32_t g = 0; g < from->groups; g++) {
        uint64_t *pages = to->tables[g].pages;
        memcpy(pages, from->tables[g].pages, from->tables[g].n_full * sizeof *pages);
        to->tables[g] = from->tables[g];
        to->tables[g].pages = pages;
    }
}

static void state_free(ref_state *s)
{
    free(s->tables);
    free(s->storage);
}

/* Runs one row; contents [groups] receives what it stored. Returns the row's state after all
 * groups. */
static uint64_t run_row(ref_state *s, uint32_t page_tokens, uint32_t token, uint32_t position,
                        uint64_t *contents)
{
    uint64_t x = sim_embed(token, position);
    for (uint32_t g = 0; g < s->groups; g++) {
        ref_table *t = &s->tables[g];
        uint64_t attended = t->fill > 0 ? sim_fold(t->full, t->last) : t->full;
        uint64_t content = sim_content(x, g, attended);
        if (contents) contents[g] = content;
        t->last = sim_fold(t->fill > 0 ? t->last : 0, content);
        if (++t->fill == page_tokens) {
            t->pages[t->n_full++] = t->last;
            t->full = sim_fold(t->full, t->last);
            t->fill = 0;
        }
        x = sim_next(x, content);
    }
    return x;
}

/* ---- chunkkv in the words of methods.md section 0 -------------------------------------------- */

static float score_of(const ref_state *s, const pkv_geometry *g, const uint64_t *contents,
                      uint32_t n_prompt, uint32_t rows, uint32_t layer, uint32_t page)
{
    float sum = 0;
    for (uint32_t head = 0; head < g->n_kv_heads; head++) {
        uint32_t group = pkv_group_of(g, layer, head);
        const ref_table *t = &s->tables[group];
        uint64_t seen = 0;
        for (uint32_t i = n_prompt - rows; i < n_prompt; i++) {
            seen = sim_fold(seen, contents[(size_t)i * s->groups + group]);
        }
        sum += sim_mass(page < t->n_full ? t->pages[page] : t->last, seen, layer, head);
    }
    return sum;
}

static uint32_t drop_pages(ref_table *t, const bool *keep)
{
    uint32_t left = 0, n = t->n_full;
    t->full = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!keep[i]) continue;
        t->pages[left] = t->pages[i];
        t->full = sim_fold(t->full, t->pages[left]);
        left++;
    }
    t->n_full = left;
    return n - left;
}

static uint64_t retain(ref_state *s, const pkv_geometry *g, const retention_policy *policy,
                       const uint64_t *contents, uint32_t n_prompt)
{
    uint32_t size = g->page_tokens, all = (n_prompt + size - 1) / size, protected = 0;
    uint32_t window = policy->window < n_prompt ? policy->window : n_prompt;
    /* A ratio in hundredths times a length is often whole, and rounded to just below. */
    uint32_t budget =
        policy->tokens ? policy->tokens : (uint32_t)floor(policy->ratio * n_prompt + 1e-6);
    bool *keep = calloc(all, sizeof *keep), *forced = calloc(all, sizeof *forced);
    float *scores = calloc(all, sizeof *scores);
    if (!keep || !forced || !scores) abort();
    for (uint32_t i = 0; i < all; i++) {
        uint32_t from = i * size, to = from + size;
        forced[i] = from < policy->sinks || to > n_prompt - window || to > n_prompt;
        protected += forced[i];
    }
    uint32_t n_keep = budget / size > protected + 1 ? budget / size : protected + 1;
    if (n_keep > all) n_keep = all;

    uint64_t dropped = 0;
    for (uint32_t first = 0; first < g->n_layers; first += policy->reuse_layers) {
        memcpy(keep, forced, all * sizeof *keep);
        for (uint32_t i = 0; i < all; i++) {
            scores[i] = score_of(s, g, contents, n_prompt, window, first, i);
        }
        for (uint32_t k = protected; k < n_keep; k++) {
            uint32_t best = all;
            for (uint32_t i = 0; i < all; i++) {
                if (!keep[i] && (best == all || scores[i] > scores[best])) best = i;
            }
            keep[best] = true;
        }
        uint32_t last = first + policy->reuse_layers;
        if (last > g->n_layers) last = g->n_layers;
        for (uint32_t layer = first; layer < last; layer += g->layers_per_group) {
            for (uint32_t head = 0; head < g->n_kv_heads; head += g->heads_per_group) {
                dropped += drop_pages(&s->tables[pkv_group_of(g, layer, head)], keep);
            }
        }
    }
    free(keep);
    free(forced);
    free(scores);
    return dropped;
}

sim_answer sim_reference(const pkv_geometry *geometry, const sched_request *r)
{
    uint32_t size = geometry->page_tokens, groups = pkv_groups(geometry);
    uint32_t rows = r->n_prompt + r->max_new_tokens;
    sim_answer a = {.tokens = calloc((size_t)r->n * r->max_new_tokens, sizeof *a.tokens),
                    .logits = calloc(r->n_prompt, sizeof *a.logits)};
    uint64_t *contents = calloc((size_t)r->n_prompt * groups, sizeof *contents);
    if (!a.tokens || !a.logits || !contents) abort();
    ref_state prompt = state_create(groups, rows / size + 1);
    ref_state line = state_create(groups, rows / size + 1);
    uint64_t x_prompt = 0, history = 0;
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        x_prompt = run_row(&prompt, size, r->prompt[i], i, contents + (size_t)i * groups);
        a.logits[i] = sim_logit(x_prompt);
        if (sim_has_penalties(&r->params)) history = sim_fold(history, r->prompt[i]);
    }
    if (r->policy.schedule == RETENTION_SCHEDULE_PROMPT) {
        a.pages_dropped = retain(&prompt, geometry, &r->policy, contents, r->n_prompt);
    }
    for (uint32_t c = 0; c < r->n; c++) {
        uint32_t *tokens = a.tokens + (size_t)c * r->max_new_tokens;
        uint64_t x = x_prompt, seen = history;
        state_copy(&line, &prompt);
        for (uint32_t i = 0; i < r->max_new_tokens; i++) {
            tokens[i] = sim_token(x, seen, r->params.seed, c, i);
            if (sim_has_penalties(&r->params)) seen = sim_fold(seen, tokens[i]);
            x = run_row(&line, size, tokens[i], r->n_prompt + i, NULL);
        }
    }
    state_free(&prompt);
    state_free(&line);
    free(contents);
    return a;
}

void sim_answer_free(sim_answer *a)
{
    free(a->tokens);
    free(a->logits);
    *a = (sim_answer){0};
}

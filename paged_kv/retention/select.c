/* score -> candidates -> allocator -> keep bitmaps. */
#include "paged_kv/retention/method.h"
#include <assert.h>
#include <string.h>

measure_spec retention_measure(const retention_policy *policy)
{
    if (policy->score != RETENTION_SCORE_WINDOW) return (measure_spec){.kind = MEASURE_NONE};
    return (measure_spec){
        .kind = MEASURE_MASS, .rows = policy->window, .layer_step = policy->reuse_layers};
}

static uint32_t pages_for(uint32_t tokens, uint32_t page_tokens)
{
    return tokens / page_tokens + (tokens % page_tokens != 0);
}

status retention_budget_for(const retention_policy *policy, uint32_t page_tokens, uint32_t n_prompt,
                            retention_budget *out, error *err)
{
    uint32_t all = pages_for(n_prompt, page_tokens);
    *out = (retention_budget){.pages = all, .protected_pages = all, .kept_pages = all};
    if (policy->schedule == RETENTION_SCHEDULE_NEVER) return STATUS_IS_OK;

    uint32_t sinks = smaller(pages_for(policy->sinks, page_tokens), all);
    /* The pages that the window touches; without a window the last page, when partial. */
    uint32_t last = all - (n_prompt - smaller(policy->window, n_prompt)) / page_tokens;
    uint32_t budget = retention_budget_tokens(policy, n_prompt) / page_tokens;
    out->protected_pages = smaller(all - last, sinks) + last;
    pkv_geometry g = {.page_tokens = page_tokens};
    RETURN_IF_ERROR(retention_check_budget(policy, &g, n_prompt, err));
    uint32_t least = out->protected_pages + 1;
    out->kept_pages = smaller(all, budget > least ? budget : least);
    out->raised = budget < out->kept_pages;
    return STATUS_IS_OK;
}

/* Who shares one choice: a run of layers, scored at its lowest, and a run of KV heads. */
typedef struct retention_group {
    uint32_t layer_from, layer_to; // [from, to)
    uint32_t head_from, head_to;
    uint32_t measured_layer; // index of layer_from among the measured layers
} retention_group;

static void retention_score_window(const measure_result *m, const retention_group *scope,
                                   uint32_t first, uint32_t n, float *scores)
{
    size_t layer_size = (size_t)m->n_kv_heads * m->stride;
    const float *layer = m->values + scope->measured_layer * layer_size; // [n_kv_heads, stride]
    for (uint32_t i = 0; i < n; i++)
        scores[i] = layer[(size_t)scope->head_from * m->stride + first + i];
    for (uint32_t h = scope->head_from + 1; h < scope->head_to; h++) {
        for (uint32_t i = 0; i < n; i++) scores[i] += layer[(size_t)h * m->stride + first + i];
    }
}

/* Scores are asked for in pieces that fit the stack, and asked for again in each pass: selecting
 * needs no memory. */
enum { PIECE = 256 };

typedef struct candidates {
    const measure_result *measures;
    const retention_group *scope;
    uint32_t first, end; // pages
} candidates;

/* Ascending keys for ascending scores. Both zeros are one score; a NaN comes before everything. */
static uint32_t key_of(float score)
{
    if (score != score) return 0;
    if (score == 0) score = 0; /* -0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

/* The keys of the piece from `at` on; returns how many. */
static uint32_t keys_from(const candidates *c, uint32_t at, uint32_t keys[PIECE])
{
    float scores[PIECE];
    uint32_t n = c->end - at < PIECE ? c->end - at : PIECE;
    retention_score_window(c->measures, c->scope, at, n, scores);
    for (uint32_t i = 0; i < n; i++) keys[i] = key_of(scores[i]);
    return n;
}

/* Keeps the `want` candidates (0 < want < all) with the greatest keys, of equal ones the first.
 * Radix selection: one byte of the want-th greatest key in each pass. */
static void keep_best(const candidates *c, uint32_t want, uint64_t *keep)
{
    uint32_t keys[PIECE], threshold = 0, known = 0; /* bits of threshold found so far */
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0};
        for (uint32_t at = c->first, n; at < c->end; at += n) {
            n = keys_from(c, at, keys);
            for (uint32_t i = 0; i < n; i++) {
                if ((keys[i] & known) == threshold) counts[keys[i] >> shift & 255]++;
            }
        }
        uint32_t byte = 255;
        for (; counts[byte] < want; byte--) want -= counts[byte];
        threshold |= byte << shift;
        known |= UINT32_C(255) << shift;
    }
    /* `want` is now how many of the keys equal to the threshold stay. */
    for (uint32_t at = c->first, n; at < c->end; at += n) {
        n = keys_from(c, at, keys);
        for (uint32_t i = 0; i < n; i++) {
            bool stays = keys[i] > threshold || (keys[i] == threshold && want > 0);
            want -= stays && keys[i] == threshold;
            if (stays) keep[(at + i) / 64] |= UINT64_C(1) << (at + i) % 64;
        }
    }
}

static void keep_range(uint64_t *keep, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) keep[i / 64] |= UINT64_C(1) << i % 64;
}

/* One choice over a table of budget->pages pages. */
static void choose(const retention_policy *policy, const retention_budget *budget,
                   uint32_t page_tokens, uint32_t kept_pages, const measure_result *measures,
                   const retention_group *scope, uint64_t *keep)
{
    uint32_t n = budget->pages, free_picks = kept_pages - budget->protected_pages;
    uint32_t sinks = policy->sinks / page_tokens + (policy->sinks % page_tokens != 0);
    if (sinks > budget->protected_pages) sinks = budget->protected_pages;
    candidates c = {
        .measures = measures,
        .scope = scope,
        .first = sinks,
        .end = n - (budget->protected_pages - sinks),
    };
    keep_range(keep, 0, c.first);
    keep_range(keep, c.end, n);
    if (free_picks >= c.end - c.first) keep_range(keep, c.first, c.end);
    else if (free_picks > 0) keep_best(&c, free_picks, keep);
}

static status check(const retention_policy *policy, const pkv *kv, uint32_t seq,
                    const retention_budget *budget, const measure_result *m, error *err)
{
    const pkv_geometry *g = pkv_get_geometry(kv);
    for (uint32_t i = 0; i < pkv_groups(g); i++) {
        if (pkv_seq_table(kv, seq, i).n_pages != budget->pages)
            return error_set(err, STATUS_INTERNAL,
                             "retention: the tables do not hold the prompt whole");
    }
    if (budget->kept_pages == budget->pages) return STATUS_IS_OK;
    if (!m || !m->values || m->n_layers != runs_of(g->n_layers, policy->reuse_layers) ||
        m->n_kv_heads != g->n_kv_heads || m->stride < budget->pages)
        return error_set(err, STATUS_INTERNAL, "retention: the measures do not fit the sequence");
    return STATUS_IS_OK;
}

/* The scope's choice, made in its first group's row, goes to all of its groups. */
static void copy_choice(const pkv_geometry *g, const retention_group *scope,
                        const retention_selection *out)
{
    const uint64_t *row =
        out->keep + (size_t)pkv_group_of(g, scope->layer_from, scope->head_from) * out->words;
    for (uint32_t l = scope->layer_from; l < scope->layer_to; l += g->layers_per_group) {
        for (uint32_t h = scope->head_from; h < scope->head_to; h += g->heads_per_group) {
            uint64_t *to = out->keep + (size_t)pkv_group_of(g, l, h) * out->words;
            if (to != row) memcpy(to, row, out->words * sizeof *row);
        }
    }
}

status retention_select(const retention_policy *policy, const pkv *kv, uint32_t seq,
                        uint32_t n_prompt, const measure_result *measures, retention_selection *out,
                        error *err)
{
    const pkv_geometry *g = pkv_get_geometry(kv);
    retention_budget budget;
    out->pages_dropped = 0;
    out->budget_raised = false;
    if (policy->schedule != RETENTION_SCHEDULE_NEVER &&
        (policy->score != RETENTION_SCORE_WINDOW || policy->unit != RETENTION_UNIT_PAGE ||
         policy->pool != RETENTION_POOL_NONE || policy->scope != RETENTION_SCOPE_LAYER))
        return error_set(err, STATUS_INTERNAL, "retention: not by the older way");
    RETURN_IF_ERROR(retention_budget_for(policy, g->page_tokens, n_prompt, &budget, err));
    RETURN_IF_ERROR(check(policy, kv, seq, &budget, measures, err));
    assert((uint64_t)out->words * 64 >= budget.pages);

    uint32_t n_runs = runs_of(g->n_layers, policy->reuse_layers), step = policy->reuse_layers;
    uint32_t heads = retention_scopes[policy->scope].heads(g), n_shares = g->n_kv_heads / heads;
    for (uint32_t i = 0; i < n_runs * n_shares; i++) {
        uint32_t layer = i / n_shares * step, head = i % n_shares * heads;
        retention_group scope = {
            .layer_from = layer,
            .layer_to = g->n_layers - layer < step ? g->n_layers : layer + step,
            .head_from = head,
            .head_to = head + heads,
            .measured_layer = i / n_shares,
        };
        uint32_t kept = budget.kept_pages;
        uint64_t *row = out->keep + (size_t)pkv_group_of(g, layer, head) * out->words;
        choose(policy, &budget, g->page_tokens, kept, measures, &scope, row);
        copy_choice(g, &scope, out);
        uint32_t tables = runs_of(scope.layer_to - layer, g->layers_per_group) *
                          runs_of(heads, g->heads_per_group);
        out->pages_dropped += (budget.pages - kept) * tables;
    }
    out->budget_raised = budget.raised;
    return STATUS_IS_OK;
}

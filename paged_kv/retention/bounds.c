/* The most that a selection can leave, known before anything is measured. Used by admission. */
#include "paged_kv/retention/method.h"

/* The most protected slots of a table, or pages with a protected slot. The window may end anywhere
 * in a page. */
static uint64_t protected_most(const retention_policy *policy, uint32_t page_tokens,
                               uint32_t n_prompt, uint32_t len)
{
    if (retention_variants[policy->variant].kvpress) return policy->unit == RETENTION_UNIT_PAGE;
    uint64_t sinks = smaller(policy->sinks, len);
    uint64_t window = smaller(retention_window_of(policy, n_prompt), len);
    if (policy->unit != RETENTION_UNIT_PAGE) return sinks + window < len ? sinks + window : len;
    uint64_t tail = window > 1 ? (window + page_tokens - 2) / page_tokens + 1 : 1;
    return (sinks + page_tokens - 1) / page_tokens + tail;
}

static uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The most tokens that n tables with `budget` tokens each hold together after the selection. */
static uint64_t tokens_most(const retention_policy *policy, uint32_t page_tokens, uint32_t n_prompt,
                            uint32_t len, uint32_t budget, uint32_t n)
{
    bool page = policy->unit == RETENTION_UNIT_PAGE;
    uint64_t size = page ? page_tokens : policy->unit == RETENTION_UNIT_CHUNK ? policy->chunk : 1;
    uint64_t fixed = protected_most(policy, page_tokens, n_prompt, len), most;
    if (policy->unit == RETENTION_UNIT_CHUNK)
        most = most_of((uint64_t)n * budget, n * fixed + size);
    else most = n * most_of(page ? budget - budget % size : budget, (fixed + 1) * size);
    if (retention_variants[policy->variant].kvpress) {
        uint32_t chunks = runs_of(len, (uint32_t)size);
        most = most_of(most, n * size * retention_mean_chunks(policy, n_prompt, chunks));
    }
    /* Each table may have a partial page, which counts whole. */
    return least_of(most, n * (page ? runs_of(len, page_tokens) * size : len));
}

static uint64_t pages_of(uint64_t tokens, uint32_t page_tokens)
{
    return (tokens + page_tokens - 1) / page_tokens;
}

/* The most pages of n tables that hold `tokens` together, in whole pages when `full`, and `grown`
 * more tokens each. */
static uint64_t pages_most(uint64_t tokens, uint32_t n, uint32_t grown, bool full, uint32_t size,
                           uint64_t longest)
{
    uint64_t pages =
        n == 1 || full ? pages_of(tokens, size) : (tokens + (uint64_t)n * (size - 1)) / size;
    if (grown > 0)
        pages = n == 1 ? pages_of(tokens + grown, size) : pages + n * pages_of(grown, size);
    return least_of(pages, n * pages_of(longest, size));
}

/* The most pages that the last `window` of n slots touch; they may end anywhere in a page. */
static uint64_t window_pages(uint32_t window, uint32_t n, uint32_t page_tokens)
{
    uint64_t touched = ((uint64_t)window + page_tokens - 2) / page_tokens + 1;
    return least_of(touched, pages_of(n, page_tokens));
}

retention_bound retention_bound_at(const retention_policy *policy, const pkv_geometry *g,
                                   uint32_t n_layers, uint32_t n_prompt, uint32_t point)
{
    uint32_t step = policy->reuse_layers, end = pkv_filled_layers(g, n_layers);
    uint32_t n_scopes = runs_of(retention_selecting_layers(g, g->n_layers), step);
    uint32_t selecting = retention_selecting_layers(g, end);
    uint32_t size = g->page_tokens, head_groups = pkv_head_groups(g);
    const retention_allocator_row *row = &retention_allocators[policy->allocator];
    retention_phase phase = retention_phase_at(policy, n_prompt, point);
    bool all = !retention_selects(policy);
    uint32_t len = phase.growth ? n_prompt : point, grown = 0;
    if (phase.growth) grown = retention_growths[policy->growth].allowance(policy, point - n_prompt);

    uint32_t joint = row->joint && !all ? head_groups : 1;
    retention_bound bound = {0};
    for (uint32_t i = 0; i * step < selecting; i++) {
        uint32_t budget = all ? 0 : row->tokens(policy, n_prompt, i, n_scopes);
        uint64_t tokens = all ? len : tokens_most(policy, size, n_prompt, len, budget, joint);
        uint64_t longest = least_of(least_of(tokens, len) + grown, point);
        bool full = policy->unit == RETENTION_UNIT_PAGE && !all;
        uint32_t layers = smaller(step, selecting - i * step);
        uint64_t tables = pages_most(tokens, joint, grown, full, size, longest);
        uint64_t longest_pages = pages_of(longest, size);
        uint32_t times = head_groups / joint * runs_of(layers, g->layers_per_group);
        bound.pages += tables * times;
        /* Heads that compete for pages may leave them all to those of one share. */
        uint64_t of_share = least_of(tables, head_groups / pkv_shares(g) * longest_pages);
        bound.even_pages += (joint == 1 ? tables : of_share * pkv_shares(g)) * times;
        bound.longest_pages = larger(bound.longest_pages, (uint32_t)longest_pages);
        bound.longest = larger(bound.longest, (uint32_t)longest);
    }
    for (uint32_t l = 0; l < end; l += g->layers_per_group) {
        if (pkv_window_of(g, l) == 0) continue;
        uint64_t pages = window_pages(pkv_window_of(g, l), point, size);
        bound.pages += pages * head_groups;
        bound.even_pages += pages * head_groups;
        bound.longest_pages = larger(bound.longest_pages, (uint32_t)pages);
        bound.longest = larger(bound.longest, smaller(pkv_window_of(g, l), point));
    }
    return bound;
}

void retention_forced(const retention_policy *policy, uint32_t n_prompt, uint32_t len, bool *forced)
{
    bool joint = policy->growth == RETENTION_GROWTH_JOINT;
    bool none = !retention_selects(policy) || retention_variants[policy->variant].kvpress;
    if (policy->schedule != RETENTION_SCHEDULE_DECODE || !joint) len = n_prompt;
    uint32_t from = len - smaller(len, retention_window_of(policy, n_prompt));
    uint32_t size = policy->unit == RETENTION_UNIT_PAGE ? larger(1, policy->page_tokens) : 1;
    for (uint32_t page = 0; page < n_prompt; page += size) {
        /* A page that is not full stays: it takes the next token. */
        bool stays = !none && (page < policy->sinks || page + size > from || page + size > len);
        for (uint32_t i = page; i < n_prompt && i - page < size; i++) forced[i] = stays;
    }
}

/* Parsing checked the budget in slots. The number of pages that the window touches depends on where
 * the prompt ends. */
status retention_check_budget(const retention_policy *policy, const pkv_geometry *geometry,
                              uint32_t n_prompt, error *err)
{
    if (policy->tokens == 0 || !retention_selects(policy) || policy->unit != RETENTION_UNIT_PAGE ||
        retention_variants[policy->variant].kvpress)
        return STATUS_IS_OK;
    uint32_t size = geometry->page_tokens, all = runs_of(n_prompt, size);
    uint32_t sinks = smaller(policy->sinks, n_prompt);
    uint32_t window = smaller(retention_window_of(policy, n_prompt), n_prompt);
    uint32_t tail = all - (n_prompt - window) / size;
    uint32_t fixed = smaller(all - tail, runs_of(sinks, size)) + tail;
    if (policy->tokens / size >= fixed) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "retention.%stokens is %u: below the %u protected pages of %u tokens (sinks "
                     "%u, window %u, the last partial page)",
                     policy->growth == RETENTION_GROWTH_JOINT ? "" : "prefill.", policy->tokens,
                     fixed, size, policy->sinks, window);
}

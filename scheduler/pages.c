/* The most pages that a sequence takes, from what its policies promise (retention_bound_at). The
 * bound is in closed form, since there may be as many retention points as tokens. Between points
 * tables grow with the sequence; what selections keep never shrinks from one point to the next, so
 * the last point counts for all. */
#include "scheduler/pages.h"
#include "scheduler/sched_internal.h"

bool sched_keeps_pages(const retention_policy *p)
{
    bool pages = p->unit == RETENTION_UNIT_PAGE || !retention_selects(p);
    return pages && !p->contiguous && p->allocator != RETENTION_ALLOCATOR_HYBRID &&
           (p->growth == RETENTION_GROWTH_JOINT || p->decode_unit == RETENTION_UNIT_PAGE);
}

const sched_turn *sched_turn_at(const sched_turn *turns, uint32_t length)
{
    while (turns->end <= length) turns++;
    return turns;
}

sched_turn sched_turn_of(const sched_request *r)
{
    sched_turn turn = {.n_prompt = input_of(r), .end = UINT32_MAX, .policy = r->policy};
    retention_policy_resolve(&turn.policy, r->max_new_tokens);
    return turn;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

sched_points sched_points_in(const sched_turn *turn, uint32_t from, uint32_t to)
{
    const retention_policy *p = &turn->policy;
    uint32_t n = turn->n_prompt;
    sched_points run = {.first = retention_next_point(p, n, from)};
    run.last = run.second = run.third = run.first;
    if (run.first > to) return run;
    run.second = retention_next_point(p, n, run.first);
    if (run.second > to) return run;
    run.third = retention_next_point(p, n, run.second);
    uint32_t gap = run.third > to ? to - run.second : run.third - run.second;
    uint32_t near = retention_next_point(p, n, to > gap ? to - gap - 1 : 0);
    run.last = near <= to ? larger(run.second, near) : run.second;
    for (uint32_t at; (at = retention_next_point(p, n, run.last)) <= to;) run.last = at;
    return run;
}

uint32_t sched_groups_of(const sched *s, uint32_t n_layers)
{
    const pkv_geometry *g = &s->options.geometry;
    return pkv_filled_groups(g, n_layers) * pkv_head_groups(g);
}

/* Pages that the tables of `groups` KV groups take to grow from `from` to `to`. Not aligned: slots
 * were taken out, so the fill of the last pages is not known. */
static uint64_t growth(const sched *s, uint32_t groups, bool aligned, uint32_t from, uint32_t to)
{
    return (uint64_t)groups *
           (aligned ? pages_of(s, to) - pages_of(s, from) : pages_of(s, to - from));
}

/* Pages that tables take to grow from a selection at `from` to `to`. A sequence that comes back
 * from the host tier in between starts with partly filled pages, which takes one page more for each
 * group. */
static uint64_t growth_after(const sched *s, uint32_t groups, bool aligned, uint32_t from,
                             uint32_t to)
{
    return growth(s, groups, aligned, from, to) + (aligned || from == to ? 0 : groups);
}

pkv_grain sched_grain_of(const sched *s, uint32_t n_layers)
{
    const pkv_geometry *g = &s->options.geometry;
    return pkv_filled_groups(g, n_layers) < pkv_layer_groups(g) ? PKV_LAYER : PKV_ALL;
}

/* The grain of the tables that the policy selects in. */
static pkv_grain selecting_grain(const sched *s, uint32_t n_layers, const retention_policy *policy)
{
    pkv_grain own = sched_grain_of(s, n_layers),
              needed = retention_grain(policy, &s->options.geometry);
    return own > needed ? own : needed;
}

uint32_t sched_cells_of(const sched *s, uint32_t n_layers, const retention_policy *policy)
{
    pkv_geometry at = pkv_geometry_at(&s->options.geometry, selecting_grain(s, n_layers, policy));
    return s->groups / pkv_groups(&at);
}

uint64_t sched_passing_of(const sched *s, uint32_t n_layers, const retention_policy *policy,
                          uint64_t pages)
{
    bool by_head = selecting_grain(s, n_layers, policy) == PKV_HEAD;
    uint32_t shares = by_head ? pkv_shares(&s->options.geometry) : 1;
    return pages * sched_cells_of(s, n_layers, policy) * shares;
}

static void raise(sched_peak *peak, uint64_t pages)
{
    if (peak->most < pages) peak->most = pages;
}

static void walk_turn(const sched *s, uint32_t n_layers, const sched_turn *turn,
                      uint64_t first_growth, uint32_t to, const sched_points *run, sched_peak *peak)
{
    uint32_t groups = sched_groups_of(s, n_layers);
    const pkv_geometry *g = &s->options.geometry;
    const retention_policy *p = &turn->policy;
    bool whole = sched_keeps_pages(p);
    peak->held += first_growth;
    peak->even += first_growth;
    raise(peak, peak->even);
    if (run->first > to) return;

    retention_bound bound = retention_bound_at(p, g, n_layers, turn->n_prompt, run->first);
    uint32_t longest = bound.longest_pages, next = run->second < to ? run->second : to;
    raise(peak, bound.even_pages + growth_after(s, groups, whole, run->first, next));
    if (run->last > run->first) {
        bound = retention_bound_at(p, g, n_layers, turn->n_prompt, run->last);
        longest = larger(longest, bound.longest_pages);
        uint32_t gap = (run->third < to ? run->third : to) - run->second;
        raise(peak, bound.even_pages + (uint64_t)groups * (pages_of(s, gap) + !whole));
    }
    uint64_t grown = growth_after(s, groups, whole, run->last, to);
    peak->held = bound.pages + grown;
    peak->even = bound.even_pages + grown;
    raise(peak, peak->even);
    peak->after = bound.even_pages;
    uint64_t passing = sched_passing_of(s, n_layers, p, longest);
    if (!whole && peak->passing < passing) peak->passing = passing;
}

sched_peak sched_peak_of(const sched *s, uint32_t n_layers, const sched_turn *turns,
                         uint32_t n_turns, uint32_t from, uint64_t held, uint32_t to)
{
    sched_peak peak = {.most = held, .held = held, .even = held};
    bool aligned = true;
    uint32_t start = 0, groups = sched_groups_of(s, n_layers);
    for (uint32_t i = 0; i < n_turns && start < to; start = turns[i++].end) {
        const sched_turn *turn = &turns[i];
        bool whole = sched_keeps_pages(&turn->policy);
        if (turn->end > from) {
            uint32_t end = turn->end < to ? turn->end : to, at = start > from ? start : from;
            sched_points run = sched_points_in(turn, at, end);
            uint32_t first = run.first < end ? run.first : end;
            if (!whole && retention_next_point(&turn->policy, turn->n_prompt, start) <= at)
                aligned = false;
            uint64_t grown = at > from ? growth_after(s, groups, aligned, at, first)
                                       : growth(s, groups, aligned, at, first);
            walk_turn(s, n_layers, turn, grown, end, &run, &peak);
        }
        if (!whole && retention_next_point(&turn->policy, turn->n_prompt, start) <= turn->end)
            aligned = false;
    }
    return peak;
}

/* Without a retention point after the prompt's end the choices share the full pages of what is
 * kept, and each has a tail of its own: the last partial page and the generated tokens. A request
 * of several choices runs all layers. */
static uint64_t with_tails(const sched *s, const sched_turn *turn, const sched_peak *prompt,
                           uint32_t max_new_tokens, uint32_t n)
{
    bool aligned = prompt->after == 0 || sched_keeps_pages(&turn->policy);
    uint64_t size = s->page_tokens, fill = aligned ? turn->n_prompt % size : 0;
    uint64_t tail = (fill + max_new_tokens - 1 + size - 1) / size + !aligned;
    uint64_t tails = max_new_tokens > 1 ? n * tail : tail;
    return prompt->even + (tails - (fill > 0)) * s->groups;
}

uint64_t sched_peak_alone(const sched *s, uint32_t n_layers, const sched_turn *turns,
                          uint32_t n_turns, uint32_t max_new_tokens, uint32_t n)
{
    const sched_turn *turn = &turns[n_turns - 1];
    uint32_t rows = turn->n_prompt + max_new_tokens - 1;
    sched_peak prompt = sched_peak_of(s, n_layers, turns, n_turns, 0, 0, turn->n_prompt);
    sched_peak life = sched_peak_of(s, n_layers, turns, n_turns, 0, 0, rows);
    uint64_t after;
    if (n == 1) after = life.most;
    else if (retention_has_sums(&turn->policy) ||
             retention_next_point(&turn->policy, turn->n_prompt, turn->n_prompt) <= rows)
        after = n * life.most;
    else after = with_tails(s, turn, &prompt, max_new_tokens, n);
    return (after > prompt.most ? after : prompt.most) + life.passing;
}

sched_need sched_need_of(const pkv_geometry *geometry, uint32_t n_layers,
                         const retention_policy *policy, uint32_t n_prompt, uint32_t max_new_tokens)
{
    const sched s = {.options = {.geometry = *geometry},
                     .groups = pkv_groups(geometry),
                     .page_tokens = geometry->page_tokens};
    sched_turn turn = {.n_prompt = n_prompt, .end = UINT32_MAX, .policy = *policy};
    retention_policy_resolve(&turn.policy, max_new_tokens);
    n_prompt = turn.n_prompt = retention_input_tokens(policy, n_prompt);
    uint32_t rows = n_prompt + max_new_tokens - 1;
    sched_peak prompt = sched_peak_of(&s, n_layers, &turn, 1, 0, 0, n_prompt);
    sched_peak rest = sched_peak_of(&s, n_layers, &turn, 1, n_prompt, prompt.held, rows);
    return (sched_need){.peak = sched_peak_alone(&s, n_layers, &turn, 1, max_new_tokens, 1),
                        .kept = prompt.held,
                        .most = rest.most + rest.passing,
                        .positions = sched_positions_of(&s, &turn, 1, rows + 1)};
}

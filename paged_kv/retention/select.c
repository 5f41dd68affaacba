/* A selection at a retention point: scopes and their budgets. */
#include "paged_kv/retention/select.h"
#include <string.h>

enum { ARRAYS = 7 }; /* arrays of a selector beside the keys */

size_t retention_scratch_floats(const pkv_geometry *geometry, uint32_t max_slots)
{
    return ((size_t)ARRAYS + geometry->n_kv_heads) * max_slots;
}

/* Converts tokens to the units that budgets are counted in. */
static uint64_t in_units(const contest *t, uint64_t tokens)
{
    return t->unit == RETENTION_UNIT_PAGE ? tokens / t->size : tokens;
}
static uint32_t held_units(const contest *t)
{
    return t->unit == RETENTION_UNIT_PAGE ? t->n_units : t->n;
}

/* ---- one scope, or the heads of a layer that compete ----------------------------------------- */

/* The number of chunks to select besides the protected slots. */
static uint32_t chunk_picks(selector *c, const contest *t, uint64_t budget, uint64_t fixed)
{
    uint64_t want = budget > fixed ? (budget - fixed) / t->size : 0;
    c->out->budget_raised |= want == 0;
    return want > 0 ? (uint32_t)want : 1;
}

/* The number of units that one table selects besides the protected ones. */
static uint32_t picks(selector *c, const contest *t)
{
    if (c->phase.variant->kvpress) {
        uint32_t all = retention_mean_chunks(c->policy, c->n_prompt, t->n_units);
        return all > t->fixed ? all - t->fixed : 1;
    }
    if (t->unit == RETENTION_UNIT_CHUNK) return chunk_picks(c, t, t->budget, t->fixed);
    uint32_t budget = (uint32_t)in_units(t, t->budget), least = t->fixed + !c->phase.growth;
    c->out->budget_raised |= least > budget;
    return larger(budget, least) - t->fixed;
}

/* Selects `want` units. With a score of two stages, its first stage selects up to half of `budget`,
 * its second stage the rest. */
static void select_units(selector *c, contest *t, uint32_t want, uint32_t budget)
{
    contest_score(c, t);
    if (c->phase.score->refine) {
        uint32_t half = budget / 2, first = half > t->fixed ? smaller(want, half - t->fixed) : 0;
        want -= rank_select(t->keys, t->n_units, first);
        contest_refine(c, t);
    }
    rank_select(t->keys, t->n_units, want);
    contest_close(t);
}

/* The units that allocator `adaptive` guarantees to a head. */
static uint32_t sure_of(const selector *c, const contest *t)
{
    bool chunks = t->unit == RETENTION_UNIT_CHUNK;
    double share = (double)c->policy->floor;
    uint32_t sure = retention_floor(chunks ? share * t->budget / t->size
                                           : share * (double)in_units(t, t->budget));
    uint32_t fixed = chunks ? t->fixed / t->size : t->fixed;
    return sure > fixed ? sure - fixed : 0;
}

static void select_alone(selector *c, contest *t)
{
    contest_protect(c, t);
    select_units(c, t, picks(c, t), t->budget);
}

/* The contest of one of the competing heads; its keys follow those of the heads before it. */
static contest head_contest(const selector *c, const contest *first, uint32_t head, uint32_t *keys)
{
    contest t = *first;
    t.head_from = head;
    t.head_to = head + 1;
    t.group = first->group + head;
    t.keys = keys;
    contest_open(c, &t);
    return t;
}

/* The number of units that all heads select together. */
static uint32_t joint_picks(selector *c, const contest *first)
{
    uint32_t n_heads = c->geometry->n_kv_heads, want = 0;
    uint64_t fixed = 0;
    for (uint32_t h = 0; h < n_heads; h++) {
        contest t = head_contest(c, first, h, NULL);
        contest_protect(c, &t);
        fixed += t.fixed;
        if (t.unit != RETENTION_UNIT_CHUNK) want += picks(c, &t);
    }
    if (first->unit != RETENTION_UNIT_CHUNK) return want;
    return chunk_picks(c, first, (uint64_t)n_heads * first->budget, fixed);
}

/* Every head selects its guaranteed best units; the rest of the units are the best of all heads. */
static void select_jointly(selector *c, const contest *first)
{
    uint32_t n_heads = c->geometry->n_kv_heads, *keys = c->keys, want = joint_picks(c, first);
    for (uint32_t h = 0; h < n_heads; h++) {
        contest t = head_contest(c, first, h, keys);
        contest_protect(c, &t);
        contest_score(c, &t);
        want -= rank_select(keys, t.n_units, smaller(want, sure_of(c, &t)));
        keys += t.n_units;
    }
    rank_select(c->keys, (uint32_t)(keys - c->keys), want);
    keys = c->keys;
    for (uint32_t h = 0; h < n_heads; h++) {
        contest t = head_contest(c, first, h, keys);
        contest_protect(c, &t);
        uint32_t own = 0;
        for (uint32_t u = 0; u < t.n_units; u++) own += keys[u] == KEY_SELECTED;
        /* The first stage decided how many units the head gets; now both stages select them. */
        if (c->phase.score->refine) select_units(c, &t, own, t.fixed + own);
        else contest_close(&t);
        keys += t.n_units;
    }
}

/* ---- tables that share a selection ----------------------------------------------------------- */

static bool same_slots(const selector *c, uint32_t group, uint32_t leader)
{
    uint32_t n = table_kept(c, leader);
    if (group / c->parts == leader / c->parts || table_kept(c, group) == 0) return true;
    if (table_kept(c, group) != n) return false;
    for (uint32_t i = 0; n != c->len && i < n; i++) {
        if (table_position(c, group, i) != table_position(c, leader, i)) return false;
    }
    return true;
}

/* Copies the selection of the scope's first table to all tables of the scope. */
static status copy_selection(const selector *c, uint32_t layer_from, uint32_t layer_to,
                             uint32_t head_from, uint32_t head_to, error *err)
{
    const pkv_geometry *g = c->geometry;
    uint32_t leader = pkv_group_of(g, layer_from, head_from);
    size_t words = c->out->words;
    for (uint32_t l = layer_from; l < layer_to; l += g->layers_per_group) {
        if (pkv_window_of(g, l) > 0) continue;
        for (uint32_t h = head_from; h < head_to; h += g->heads_per_group) {
            uint32_t group = pkv_group_of(g, l, h);
            if (group == leader) continue;
            if (!same_slots(c, group, leader)) {
                return error_set(err, STATUS_INVALID,
                                 "retention.scope: tables that would share a selection hold "
                                 "different tokens");
            }
            memcpy(c->out->keep + group * words, c->out->keep + leader * words,
                   words * sizeof *c->out->keep);
        }
    }
    return STATUS_IS_OK;
}

/* ---- all scopes ------------------------------------------------------------------------------ */

static status check_measures(const selector *c, uint32_t longest, uint32_t n_layers, error *err)
{
    const measure_result *m = c->measures;
    if (c->phase.kind == MEASURE_NONE) return STATUS_IS_OK;
    bool novel = m && (m->novelty || !c->phase.score->novelty);
    if (novel && m->values && m->n_layers == n_layers && m->n_kv_heads == c->geometry->n_kv_heads &&
        m->stride >= longest)
        return STATUS_IS_OK;
    return error_set(err, STATUS_INTERNAL, "retention: the measures do not fit the sequence");
}

/* Sets the budget of the generated tokens plus the prompt's kept slots. */
static void add_prompt_slots(const selector *c, contest *t)
{
    t->budget = retention_growths[c->policy->growth].allowance(c->policy, c->len - c->n_prompt);
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t at = t->positions ? table_position(c, t->group, i) : i;
        t->budget += at < c->n_prompt;
    }
}

static contest contest_of(const selector *c, uint32_t index, uint32_t head, uint32_t heads)
{
    const retention_policy *policy = c->policy;
    uint32_t below = index * policy->reuse_layers;
    uint32_t layer = retention_selecting_layer(c->geometry, below);
    uint32_t selecting = retention_selecting_layers(c->geometry, c->geometry->n_layers);
    contest t = {
        .layer_index = index,
        .head_from = head,
        .head_to = head + heads,
        .group = pkv_group_of(c->geometry, layer, head),
        .unit = c->phase.unit,
        .pool = c->phase.growth ? RETENTION_POOL_NONE : policy->pool,
        .keys = c->keys,
    };
    if (policy->allocator == RETENTION_ALLOCATOR_HYBRID && !c->phase.growth) {
        bool lower = below < runs_of(selecting, 2);
        t.unit = lower ? RETENTION_UNIT_CHUNK : RETENTION_UNIT_TOKEN;
        if (lower) t.pool = RETENTION_POOL_NONE;
    }
    contest_open(c, &t);
    if (c->phase.growth) add_prompt_slots(c, &t);
    else
        t.budget = retention_allocators[policy->allocator].tokens(
            policy, c->n_prompt, index, runs_of(selecting, policy->reuse_layers));
    return t;
}

static uint32_t heads_of(const selector *c, bool joint)
{
    return joint ? c->geometry->n_kv_heads : 1;
}

/* Whether the scope of `t`, or all competing heads, of which `t` is the first, hold more than they
 * may keep. */
static bool exceeds_budget(const selector *c, const contest *t, bool joint)
{
    uint64_t held = 0;
    for (uint32_t h = 0; h < heads_of(c, joint); h++) {
        contest head = joint ? head_contest(c, t, h, NULL) : *t;
        held += held_units(&head);
    }
    return held > heads_of(c, joint) * in_units(t, t->budget);
}

/* Selects in the scope of `t`, or in all competing heads, of which `t` is the first. Keeps
 * everything where the budget is not exceeded. */
static status select_scope(selector *c, contest *t, bool joint, uint32_t n_layers, error *err)
{
    uint32_t heads = heads_of(c, joint), longest = 0;
    for (uint32_t h = 0; h < heads; h++) {
        contest head = joint ? head_contest(c, t, h, NULL) : *t;
        longest = larger(longest, c->by_slot ? head.n : head.n_units);
        keep_range(head.keep, 0, head.n);
    }
    if (!exceeds_budget(c, t, joint)) return STATUS_IS_OK;
    RETURN_IF_ERROR(check_measures(c, longest, n_layers, err));
    memset(t->keep, 0, heads * c->out->words * sizeof *t->keep);
    if (joint) select_jointly(c, t);
    else select_alone(c, t);
    return STATUS_IS_OK;
}

/* The first slot that a table of a layer with a sliding window keeps: pages that no later row reads
 * are given up whole. */
static uint32_t window_start(const selector *c, uint32_t layer, uint32_t group)
{
    const pkv_geometry *g = c->geometry;
    uint32_t n = table_kept(c, group), first = n - smaller(n, pkv_window_of(g, layer));
    return first - first % g->page_tokens;
}

static void keep_windows(const selector *c, uint32_t layer)
{
    uint32_t from = pkv_group_of(c->geometry, layer, 0);
    for (uint32_t group = from; group < from + pkv_head_groups(c->geometry); group++)
        keep_range(c->out->keep + (size_t)group * c->out->words, window_start(c, layer, group),
                   table_kept(c, group));
}

static bool keeps_all_of_windows(const selector *c, uint32_t layer)
{
    uint32_t from = pkv_group_of(c->geometry, layer, 0), to = from + pkv_head_groups(c->geometry);
    for (uint32_t group = from; group < to; group++)
        if (window_start(c, layer, group) > 0) return false;
    return true;
}

static bool is_joint(const selector *c)
{
    return retention_allocators[c->policy->allocator].joint && !c->phase.growth;
}

/* Selects in run `index` of reuse_layers selecting layers: the first layer's selection is that of
 * all. */
static status select_run(selector *c, uint32_t index, uint32_t n_scopes, error *err)
{
    const pkv_geometry *g = c->geometry;
    bool joint = is_joint(c);
    uint32_t sharing = retention_scopes[c->phase.scope].heads(g), n_heads = g->n_kv_heads;
    uint32_t first = index * c->policy->reuse_layers;
    uint32_t end = smaller(retention_selecting_layers(g, g->n_layers),
                           first + smaller(g->n_layers, c->policy->reuse_layers));
    uint32_t layer = retention_selecting_layer(g, first);
    uint32_t layer_to = retention_selecting_layer(g, end - 1) + 1;
    for (uint32_t head = 0; head < n_heads; head += joint ? n_heads : sharing) {
        contest t = contest_of(c, index, head, sharing);
        RETURN_IF_ERROR(select_scope(c, &t, joint, n_scopes, err));
    }
    for (uint32_t head = 0; head < n_heads; head += sharing)
        RETURN_IF_ERROR(copy_selection(c, layer, layer_to, head, head + sharing, err));
    return STATUS_IS_OK;
}

/* Sets *longest to the slots of the longest table; returns whether the caller's arrays have room
 * for it. */
static bool has_room(const pkv *kv, uint32_t seq, const retention_selection *out, uint32_t *longest)
{
    const pkv_geometry *g = pkv_get_geometry(kv);
    *longest = 0;
    for (uint32_t i = 0; i < pkv_groups(pkv_seq_geometry(kv, seq)); i++)
        *longest = larger(*longest, pkv_seq_table(kv, seq, i).kept_tokens);
    return (uint64_t)out->words * 64 >= *longest &&
           out->n_scratch >= retention_scratch_floats(g, *longest);
}

static selector selector_of(const retention_policy *policy, const pkv_geometry *geometry,
                            const pkv *kv, uint32_t seq, uint32_t n_prompt,
                            const measure_result *measures, retention_selection *out,
                            uint32_t longest)
{
    uint32_t len = pkv_seq_length(kv, seq);
    float *at = out->scratch;
    selector c = {
        .policy = policy,
        .geometry = geometry,
        .kv = kv,
        .seq = seq,
        .parts = pkv_groups(geometry) / pkv_groups(pkv_seq_geometry(kv, seq)),
        .n_prompt = n_prompt,
        .len = len,
        .phase = retention_phase_at(policy, n_prompt, len),
        .measures = measures,
        .rows = larger(1, retention_rows_at(policy, n_prompt, len)),
        .q_heads = measures ? larger(1, measures->q_heads) : 1,
        .scores = at,
        .more = at + longest,
        .pooled = at + 2 * (size_t)longest,
        .sum = at + 3 * (size_t)longest,
        .second_sum = at + 4 * (size_t)longest,
        .positions = (uint32_t *)(at + 5 * (size_t)longest),
        .order = (uint32_t *)(at + 6 * (size_t)longest),
        .keys = (uint32_t *)(at + ARRAYS * (size_t)longest),
        .out = out,
    };
    uint32_t window = retention_window_of(policy, n_prompt);
    if (c.phase.growth) window = smaller(policy->beta2, len - n_prompt);
    c.sinks = c.phase.growth ? n_prompt : policy->sinks;
    c.window_from = len - smaller(window, len);
    c.protects = !c.phase.variant->kvpress;
    c.by_slot = c.phase.kind == MEASURE_NONE || retention_by_slot(policy, &c.phase);
    return c;
}

status retention_select(const retention_policy *policy, const pkv *kv, uint32_t seq,
                        uint32_t n_prompt, const measure_result *measures, retention_selection *out,
                        error *err)
{
    pkv_grain own = pkv_seq_grain(kv, seq);
    const pkv_geometry at =
        pkv_geometry_at(pkv_get_geometry(kv), own > out->grain ? own : out->grain);
    const pkv_geometry *g = &at;
    uint32_t groups = pkv_groups(g), longest;
    out->gives_up = out->budget_raised = false;
    if (!has_room(kv, seq, out, &longest))
        return error_set(err, STATUS_INTERNAL, "retention: no room for tables of %u slots",
                         longest);
    memset(out->keep, 0, (size_t)groups * out->words * sizeof *out->keep);
    selector c = selector_of(policy, g, kv, seq, n_prompt, measures, out, longest);
    bool selects = c.phase.growth || retention_selects(policy);
    uint32_t n_scopes = runs_of(retention_selecting_layers(g, g->n_layers), policy->reuse_layers);
    for (uint32_t l = 0; selects && l < g->n_layers; l += g->layers_per_group)
        if (pkv_window_of(g, l) > 0) keep_windows(&c, l);
    for (uint32_t i = 0; selects && i < n_scopes; i++) {
        if (out->cancelled && atomic_load(out->cancelled))
            return error_set(err, STATUS_ABORTED, "retention: the selection was cancelled");
        RETURN_IF_ERROR(select_run(&c, i, n_scopes, err));
    }
    for (uint32_t i = 0; i < groups; i++) {
        uint32_t n = table_kept(&c, i), kept = 0;
        uint64_t *row = out->keep + (size_t)i * out->words;
        if (!selects) keep_range(row, 0, n);
        for (uint32_t w = 0; w < out->words; w++) kept += (uint32_t)__builtin_popcountll(row[w]);
        out->gives_up |= kept < n;
    }
    return STATUS_IS_OK;
}

bool retention_keeps_all(const retention_policy *policy, const pkv *kv, uint32_t seq,
                         uint32_t n_prompt)
{
    const pkv_geometry *whole = pkv_get_geometry(kv);
    pkv_grain own = pkv_seq_grain(kv, seq), grain = retention_grain(policy, whole);
    const pkv_geometry g = pkv_geometry_at(whole, own > grain ? own : grain);
    uint64_t no_keep;
    float no_scratch;
    retention_selection none = {.keep = &no_keep, .scratch = &no_scratch};
    selector c = selector_of(policy, &g, kv, seq, n_prompt, NULL, &none, 0);
    if (c.phase.growth) return false;
    if (!retention_selects(policy)) return true;
    for (uint32_t l = 0; l < g.n_layers; l += g.layers_per_group)
        if (pkv_window_of(&g, l) > 0 && !keeps_all_of_windows(&c, l)) return false;
    uint32_t runs = runs_of(retention_selecting_layers(&g, g.n_layers), policy->reuse_layers);
    uint32_t sharing = retention_scopes[c.phase.scope].heads(&g);
    uint32_t step = is_joint(&c) ? g.n_kv_heads : sharing;
    for (uint32_t i = 0; i < runs; i++)
        for (uint32_t head = 0; head < g.n_kv_heads; head += step) {
            contest t = contest_of(&c, i, head, sharing);
            if (exceeds_budget(&c, &t, is_joint(&c))) return false;
        }
    return true;
}

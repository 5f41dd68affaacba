/* The selection as docs/retention.md defines it, word for word and slowly. */
#include "paged_kv/retention/method.h"
#include "tests/unit/paged_kv_retention_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t runs(uint32_t n, uint32_t length) { return (n + length - 1) / length; }

typedef struct definition {
    retention_fx *fx;
    const retention_policy *policy;
    uint32_t n_prompt, len, layer_index;
    bool decode, growth, summed;
    retention_score score;
    retention_variant variant;
    uint32_t window, sinks; // window, sinks: protected positions
    uint32_t rows;
} definition;

/* One table by itself. */
typedef struct one {
    uint32_t head_from, head_to, group, n;
    retention_unit unit;
    bool pools;
    uint32_t size, n_units, fixed;
    double budget;
    uint32_t position[FX_SLOTS], by_position[FX_SLOTS]; // by slot; slots by position
                                                        // order of position
    bool is_protected[FX_SLOTS], stays[FX_SLOTS];
    float score[FX_SLOTS], second[FX_SLOTS]; // of units
    bool candidate[FX_SLOTS];
} one;

static uint32_t exact_floor(double x)
{
    return (uint32_t)(fabs(x - round(x)) < 1e-6 ? round(x) : floor(x));
}

static uint32_t budget_of(const definition *d)
{
    const retention_policy *p = d->policy;
    return p->tokens ? p->tokens : exact_floor(p->ratio * d->n_prompt);
}

static bool in_window(const definition *d, const one *t, uint32_t slot)
{
    return t->position[slot] + d->window >= d->len;
}

/* The values of one slot, as in section 4. */
typedef struct value {
    float a, b, novelty, position; // first and second measure
} value;

static float mean_of(const definition *d, const value *v)
{
    return v->a / ((float)d->rows * (float)d->fx->measures.q_heads);
}
static float expected_of(const definition *d, const value *v)
{
    return v->a / (float)d->fx->measures.q_heads * v->b;
}
static float negated_of(const definition *d, const value *v)
{
    (void)d;
    return -v->a;
}
static float novelty_of(const definition *d, const value *v)
{
    (void)d;
    return v->novelty;
}
static float position_of(const definition *d, const value *v)
{
    (void)d;
    return v->position;
}

static const struct {
    retention_score score;
    float (*of)(const definition *d, const value *v);
} definitions[] = {
    {RETENTION_SCORE_CRITICAL, mean_of},   {RETENTION_SCORE_EXPECTED, expected_of},
    {RETENTION_SCORE_KNORM, negated_of},   {RETENTION_SCORE_KEYDIFF, negated_of},
    {RETENTION_SCORE_NOVELTY, novelty_of}, {RETENTION_SCORE_RECENCY, position_of},
};

/* Other scores are those of the code's own row, since these tests are about what follows from a
 * score. Sums from the kernels are scores already. */
static float score_of(const definition *d, const value *v)
{
    for (size_t i = 0; i < sizeof definitions / sizeof definitions[0]; i++)
        if (definitions[i].score == d->score) return definitions[i].of(d, v);
    const score_input in = {.first = &v->a, .second = &v->b, .n = 1, .rows = d->rows};
    float score;
    retention_scores[d->score]->score(&in, &score);
    return score;
}

/* Section 2, steps 1 and 2, for one head; `second`: the score that ranks the rest of the budget. */
static void head_scores(const definition *d, const one *t, uint32_t head, float *out, float *second)
{
    const retention_policy *p = d->policy;
    float raw[FX_SLOTS], q_heads = (float)d->fx->measures.q_heads;
    for (uint32_t i = 0; i < t->n; i++) {
        float a = *fx_value(d->fx, 0, d->layer_index, head, i);
        float b = *fx_value(d->fx, 1, d->layer_index, head, i);
        uint32_t position = t->position[i];
        raw[i] = score_of(d, &(value){a, b, d->fx->novelty[position], (float)position});
        if (d->variant == RETENTION_VARIANT_MEAN) raw[i] = a / ((float)d->rows * q_heads);
    }
    memcpy(out, raw, t->n * sizeof *out);
    if (t->pools && p->pool != RETENTION_POOL_NONE && !d->growth) {
        uint32_t list[FX_SLOTS], n = 0;
        for (uint32_t i = 0; i < t->n; i++)
            if (!in_window(d, t, t->by_position[i])) list[n++] = t->by_position[i];
        for (int64_t i = 0; i < n; i++) {
            float best = NAN, sum = 0;
            for (int64_t j = i - p->kernel / 2; j <= i + p->kernel / 2; j++) {
                if (j < 0 || j >= n) continue;
                float v = raw[list[j]];
                sum += v;
                if (!(best >= v)) best = isnan(v) ? best : v;
            }
            out[list[i]] = p->pool == RETENTION_POOL_MAX ? best : sum / (float)p->kernel;
        }
    }
    for (uint32_t i = 0; second && i < t->n; i++) {
        second[i] = (out[i] + 1e-4f) * (*fx_value(d->fx, 1, d->layer_index, head, i) / q_heads);
        if (d->score == RETENTION_SCORE_NOVELTY)
            second[i] = *fx_value(d->fx, 0, d->layer_index, head, i);
    }
}

static void mean_window(const definition *d, const one *t, float *scores)
{
    float best = 0, other[FX_SLOTS];
    for (uint32_t h = 0; h < d->fx->geometry.n_kv_heads; h++) {
        head_scores(d, t, h, other, NULL);
        for (uint32_t i = 0; i < t->n; i++)
            if (!in_window(d, t, i) && other[i] > best) best = other[i];
    }
    for (uint32_t i = 0; i < t->n; i++)
        if (in_window(d, t, i)) scores[i] = best + 1;
}

/* Pages are units of slots, other units are of positions. */
static uint32_t unit_slot(const one *t, uint32_t at)
{
    return t->unit == RETENTION_UNIT_PAGE ? at : t->by_position[at];
}

/* Section 2, steps 3 and 4. */
static void unit_scores(const definition *d, one *t)
{
    float head[FX_SLOTS], second[FX_SLOTS], sum[FX_SLOTS], sum2[FX_SLOTS];
    bool page_mass =
        t->unit == RETENTION_UNIT_PAGE && d->policy->pool == RETENTION_POOL_NONE &&
        d->variant == RETENTION_VARIANT_PLAIN &&
        (d->score == RETENTION_SCORE_LAST || (d->score == RETENTION_SCORE_WINDOW && !d->summed));
    for (uint32_t h = t->head_from; h < t->head_to; h++) {
        head_scores(d, t, h, head, second);
        if (d->variant == RETENTION_VARIANT_MEAN) mean_window(d, t, head);
        for (uint32_t i = 0; i < t->n; i++) {
            sum[i] = h == t->head_from ? head[i] : sum[i] + head[i];
            sum2[i] = h == t->head_from ? second[i] : sum2[i] + second[i];
        }
    }
    for (uint32_t u = 0; u < t->n_units; u++) {
        uint32_t n = 0;
        bool page_protected = false;
        for (uint32_t at = u * t->size; at < (u + 1) * t->size && at < t->n; at++) {
            uint32_t i = unit_slot(t, at);
            bool open = !t->is_protected[i];
            page_protected |= t->unit == RETENTION_UNIT_PAGE && !open;
            for (uint32_t j = u * t->size; j < (u + 1) * t->size && j < t->n; j++)
                open |= d->variant == RETENTION_VARIANT_ALG3 && t->unit == RETENTION_UNIT_CHUNK &&
                        in_window(d, t, unit_slot(t, j));
            if (!open) continue;
            t->score[u] = n == 0 ? sum[i] : t->score[u] + sum[i];
            t->second[u] = sum2[i];
            n++;
        }
        if (t->unit == RETENTION_UNIT_PAGE && (u + 1) * t->size > t->n) page_protected = true;
        if (d->variant == RETENTION_VARIANT_MEAN) t->score[u] /= (float)n;
        if (page_mass) t->score[u] = sum[u];
        t->candidate[u] = n > 0 && !page_protected;
        if (page_protected) t->fixed++;
        for (uint32_t i = u * t->size; page_protected && i < (u + 1) * t->size && i < t->n; i++)
            t->stays[i] = true;
    }
}

static void open_one(const definition *d, one *t)
{
    const retention_fx *fx = d->fx;
    t->n = pkv_seq_table(fx->kv, 0, t->group).kept_tokens;
    t->size = t->unit == RETENTION_UNIT_PAGE    ? fx->geometry.page_tokens
              : t->unit == RETENTION_UNIT_CHUNK ? d->policy->chunk
                                                : 1;
    t->n_units = runs(t->n, t->size);
    for (uint32_t i = 0; i < t->n; i++) {
        t->position[i] = pkv_seq_position(fx->kv, 0, t->group, i);
        uint32_t at = i; /* insertion sort */
        for (; at > 0 && t->position[t->by_position[at - 1]] > t->position[i]; at--)
            t->by_position[at] = t->by_position[at - 1];
        t->by_position[at] = i;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        t->is_protected[i] = d->variant != RETENTION_VARIANT_MEAN &&
                             (t->position[i] < d->sinks || in_window(d, t, i));
        t->stays[i] = t->is_protected[i];
        if (t->unit != RETENTION_UNIT_PAGE) t->fixed += t->is_protected[i];
    }
}

/* Step 7: takes the best candidate of n tables; false when there is none. */
static bool take_best(one *tables, uint32_t n, bool second)
{
    one *best = NULL;
    uint32_t at = 0;
    for (uint32_t h = 0; h < n; h++) {
        one *t = &tables[h];
        for (uint32_t u = 0; u < t->n_units; u++) {
            if (!t->candidate[u]) continue;
            float a = second ? t->second[u] : t->score[u];
            float b = best ? (second ? best->second[at] : best->score[at]) : 0;
            if (best && !(a > b) && !(isnan(b) && !isnan(a))) continue;
            best = t;
            at = u;
        }
    }
    if (!best) return false;
    best->candidate[at] = false;
    for (uint32_t i = at * best->size; i < (at + 1) * best->size && i < best->n; i++)
        best->stays[unit_slot(best, i)] = true;
    return true;
}

/* CriticalKV over Ada-KV: the heads win shares of `want` by the first score, in addition to what
 * they have; then each fills its share again, half of its budget by the first score and the rest by
 * the second. */
static void select_own_shares(one *tables, uint32_t n, double want)
{
    for (; want > 0 && take_best(tables, n, false); want--) continue;
    for (uint32_t h = 0; h < n; h++) {
        one *t = &tables[h];
        uint32_t own = 0;
        for (uint32_t i = 0; i < t->n; i++) {
            if (!t->stays[i] || t->is_protected[i]) continue;
            own++;
            t->stays[i] = false;
        }
        for (uint32_t u = 0; u < t->n_units; u++)
            t->candidate[u] = !t->is_protected[unit_slot(t, u)];
        double first = fmin(own, fmax(0, floor((t->fixed + own) / 2.0) - t->fixed));
        for (; own > 0 && first > 0 && take_best(t, 1, false); first--) own--;
        for (; own > 0 && take_best(t, 1, true); own--) continue;
    }
}

static double units_of(const one *t, double tokens)
{
    return t->unit == RETENTION_UNIT_PAGE ? floor(tokens / t->size) : tokens;
}

/* Steps 5 to 7 for tables that share n times the budget. */
static void compete(definition *d, one *tables, uint32_t n)
{
    double held = 0, fixed = 0, budget = n * units_of(tables, tables->budget), want = 0;
    for (uint32_t h = 0; h < n; h++) {
        held += tables[h].unit == RETENTION_UNIT_PAGE ? tables[h].n_units : tables[h].n;
        fixed += tables[h].fixed;
    }
    if (held <= budget) {
        for (uint32_t h = 0; h < n; h++) memset(tables[h].stays, 1, tables[h].n);
        return;
    }
    if (d->variant == RETENTION_VARIANT_MEAN) {
        double share =
            d->policy->tokens ? (double)d->policy->tokens / d->n_prompt : d->policy->ratio;
        want = fmax(exact_floor(tables->n_units * share), fixed + 1) - fixed;
    } else if (tables->unit == RETENTION_UNIT_CHUNK) {
        want = floor((budget - fixed) / tables->size);
        d->fx->want_raised |= want < 1;
        want = fmax(1, want);
    } else {
        for (uint32_t h = 0; h < n; h++) {
            double least = tables[h].fixed + (d->growth ? 0 : 1);
            d->fx->want_raised |= least > budget / n;
            want += fmax(budget / n, least) - tables[h].fixed;
        }
    }
    for (uint32_t h = 0; n > 1 && h < n; h++) {
        double sure = exact_floor((double)d->policy->floor * budget / n), mine = tables[h].fixed;
        if (tables->unit == RETENTION_UNIT_CHUNK) {
            sure = exact_floor((double)d->policy->floor * tables[h].budget / tables->size);
            mine = floor(mine / tables->size);
        }
        for (; sure > mine && want > 0 && take_best(&tables[h], 1, false); sure--) want--;
    }
    bool staged = d->score == RETENTION_SCORE_CRITICAL || d->score == RETENTION_SCORE_NOVELTY;
    if (n > 1 && staged) {
        select_own_shares(tables, n, want);
        return;
    }
    double first = want;
    if (staged) first = fmin(want, fmax(0, floor(tables->budget / 2) - fixed));
    for (; want > 0 && first > 0 && take_best(tables, n, false); first--) want--;
    for (; want > 0 && take_best(tables, n, true); want--) continue;
}

/* Section 3: PyramidKV. */
static double pyramid(const definition *d, uint32_t index, uint32_t n)
{
    double b = budget_of(d), w = d->window, t = d->n_prompt;
    if (d->policy->window_half) w = fmin(d->policy->window, floor(b / 2));
    else w = d->policy->window;
    if (t < 2 * (b - w) || n == 1 || b <= w) return b;
    double min = floor((b - w) / d->policy->beta), max = 2 * (b - w) - min;
    if (max >= t - w) {
        max = t - w;
        min = 2 * (b - w) - max;
    }
    return w + max - index * floor((max - min) / (n - 1));
}

static definition define_phase(retention_fx *fx, const retention_policy *p, uint32_t n_prompt)
{
    definition d = {.fx = fx, .policy = p, .n_prompt = n_prompt, .len = pkv_seq_length(fx->kv, 0)};
    d.decode = d.len > n_prompt;
    d.growth = d.decode && p->growth != RETENTION_GROWTH_JOINT;
    bool other = d.decode && p->decode_score != RETENTION_SCORE_NONE;
    d.score = other ? p->decode_score : p->score;
    d.variant = other ? RETENTION_VARIANT_PLAIN : p->variant;
    d.sinks = d.growth ? n_prompt : p->sinks;
    d.window = p->window_half && p->window > budget_of(&d) / 2 ? budget_of(&d) / 2 : p->window;
    d.rows = p->rows ? p->rows : d.window;
    if (d.growth) d.window = d.len - n_prompt < p->beta2 ? d.len - n_prompt : p->beta2;
    if (d.decode && p->schedule == RETENTION_SCHEDULE_DECODE && d.rows > p->interval)
        d.rows = p->interval;
    if (d.rows > d.len) d.rows = d.len;
    d.summed = d.decode && p->schedule == RETENTION_SCHEDULE_DECODE && d.rows > 1;
    uint32_t before = (d.len - 1) / p->recurrent_chunk * p->recurrent_chunk;
    if (p->schedule == RETENTION_SCHEDULE_CHUNK && d.rows > d.len - before) d.rows = d.len - before;
    return d;
}

static double allowance(const retention_policy *p, double t)
{
    if (p->growth == RETENTION_GROWTH_SLIDE || p->horizon <= p->beta2) return p->beta1 + p->beta2;
    double at = fmin(fmax(t, p->beta2), p->horizon) - p->beta2;
    return p->beta2 + floor(at * p->beta1 / (p->horizon - p->beta2));
}

/* The tables of one run of layers that starts at `layer`. */
static void define_run(definition *d, uint32_t layer)
{
    const retention_policy *p = d->policy;
    const pkv_geometry *g = &d->fx->geometry;
    uint32_t heads = g->n_kv_heads, selecting = 0, below = 0;
    for (uint32_t l = 0; l < g->n_layers; l++) {
        selecting += !pkv_window_of(g, l);
        below += l < layer && !pkv_window_of(g, l);
    }
    uint32_t n_scopes = runs(selecting, p->reuse_layers), nth = below / p->reuse_layers, shared = 0;
    retention_scope scope = d->growth ? p->decode_scope : p->scope;
    uint32_t step = scope == RETENTION_SCOPE_HEAD ? 1 : heads, n = heads / step;
    one *tables = calloc(n, sizeof *tables);
    assert_non_null(tables);
    d->layer_index = nth;
    for (uint32_t i = 0; i < n; i++) {
        one *t = &tables[i];
        t->head_from = i * step;
        t->head_to = t->head_from + step;
        t->group = pkv_group_of(g, layer, t->head_from);
        t->unit = d->growth ? p->decode_unit : p->unit;
        t->pools = true;
        t->budget = budget_of(d);
        if (d->growth) t->budget = allowance(p, d->len - d->n_prompt);
        else if (p->allocator == RETENTION_ALLOCATOR_PYRAMID ||
                 p->allocator == RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE)
            t->budget = pyramid(d, nth, n_scopes);
        else if (p->allocator == RETENTION_ALLOCATOR_HYBRID) {
            bool lower = nth * p->reuse_layers < (selecting + 1) / 2;
            t->unit = lower ? RETENTION_UNIT_CHUNK : RETENTION_UNIT_TOKEN;
            t->pools = !lower;
        }
        open_one(d, t);
        for (uint32_t j = 0; d->growth && j < t->n; j++) t->budget += t->position[j] < d->n_prompt;
        unit_scores(d, t);
    }
    bool joint = p->allocator == RETENTION_ALLOCATOR_ADAPTIVE ||
                 p->allocator == RETENTION_ALLOCATOR_PYRAMID_ADAPTIVE;
    if (joint && !d->growth) compete(d, tables, n);
    else
        for (uint32_t i = 0; i < n; i++) compete(d, &tables[i], 1);
    for (uint32_t l = layer; l < g->n_layers && shared < p->reuse_layers; l++) {
        if (pkv_window_of(g, l)) continue;
        shared++;
        for (uint32_t h = 0; h < heads; h++) {
            uint64_t *row = d->fx->want + pkv_group_of(g, l, h) * FX_WORDS;
            for (uint32_t i = 0; i < tables[h / step].n; i++)
                row[i / 64] |= (uint64_t)tables[h / step].stays[i] << i % 64;
        }
    }
    free(tables);
}

/* Pages that hold one of the last `window` positions. */
static void define_windows(const definition *d, uint32_t layer)
{
    const retention_fx *fx = d->fx;
    const pkv_geometry *g = &fx->geometry;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        uint32_t group = pkv_group_of(g, layer, h), size = g->page_tokens;
        uint64_t *row = d->fx->want + group * FX_WORDS;
        uint32_t n = pkv_seq_table(fx->kv, 0, group).kept_tokens;
        for (uint32_t i = 0; i < n; i++) {
            if (pkv_seq_position(fx->kv, 0, group, i) + g->window < d->len) continue;
            for (uint32_t k = i / size * size; k < n && k < (i / size + 1) * size; k++)
                row[k / 64] |= UINT64_C(1) << k % 64;
        }
    }
}

void fx_define(retention_fx *fx, const retention_policy *policy, uint32_t n_prompt)
{
    definition d = define_phase(fx, policy, n_prompt);
    memset(fx->want, 0, sizeof fx->want);
    fx->want_raised = false;
    for (uint32_t l = 0, nth = 0; l < fx->geometry.n_layers; l++) {
        if (pkv_window_of(&fx->geometry, l) > 0) define_windows(&d, l);
        else if (nth++ % policy->reuse_layers == 0) define_run(&d, l);
    }
}

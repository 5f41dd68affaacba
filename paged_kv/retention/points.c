/* The points at which a policy selects, and the measures it needs there. */
#include "paged_kv/retention/method.h"

void retention_policy_resolve(retention_policy *policy, uint32_t max_new_tokens)
{
    if (policy->horizon == 0) policy->horizon = max_new_tokens;
}

/* ---- schedules ------------------------------------------------------------------------------- */

static uint32_t never_selects(const retention_policy *policy, uint32_t n_prompt, uint32_t least,
                              uint32_t from)
{
    (void)policy;
    (void)n_prompt;
    (void)least;
    (void)from;
    return UINT32_MAX;
}

static uint32_t at_prompt(const retention_policy *policy, uint32_t n_prompt, uint32_t least,
                          uint32_t from)
{
    (void)policy;
    return from < n_prompt && n_prompt > least ? n_prompt : UINT32_MAX;
}

/* The first from + i * step, i = 1, 2, …, that is more than `least`. */
static uint32_t next_step(uint32_t from, uint32_t step, uint32_t least)
{
    uint64_t steps = least > from ? (least - from) / step + 1 : 1;
    uint64_t point = from + steps * step;
    return point < UINT32_MAX ? (uint32_t)point : UINT32_MAX;
}

static uint32_t at_chunks(const retention_policy *policy, uint32_t n_prompt, uint32_t least,
                          uint32_t from)
{
    uint32_t chunk = policy->recurrent_chunk;
    uint32_t point = next_step(from - from % chunk, chunk, least);
    return point < n_prompt ? point : at_prompt(policy, n_prompt, least, from);
}

static uint32_t at_decode(const retention_policy *policy, uint32_t n_prompt, uint32_t least,
                          uint32_t from)
{
    uint32_t point = at_prompt(policy, n_prompt, least, from), interval = policy->interval;
    if (point != UINT32_MAX) return point;
    uint32_t generated = from > n_prompt ? from - n_prompt : 0;
    return next_step(n_prompt + generated - generated % interval, interval, least);
}

const retention_schedule_row retention_schedules[] = {
    [RETENTION_SCHEDULE_NEVER] = {{"never", "everything stays"}, never_selects},
    [RETENTION_SCHEDULE_PROMPT] = {{"prompt", "once, at the end of the prompt"}, at_prompt},
    [RETENTION_SCHEDULE_CHUNK] = {{"chunk", "at every `recurrent_chunk` tokens of the prompt, and "
                                            "at its end"},
                                  at_chunks},
    [RETENTION_SCHEDULE_DECODE] = {{"decode", "at the end of the prompt, then every `interval` "
                                              "generated tokens"},
                                   at_decode},
    [RETENTION_SCHEDULE_INPUT] = {{"input", "the prompt is cut before it is computed"},
                                  never_selects},
};

/* ---- growth: SCOPE's allowances -------------------------------------------------------------- */

static uint32_t slide(const retention_policy *policy, uint32_t t)
{
    (void)t;
    return policy->beta1 + policy->beta2;
}

static uint32_t grows(const retention_policy *policy, uint32_t t)
{
    uint32_t from = policy->beta2, to = policy->horizon;
    if (to <= from) return slide(policy, t);
    uint64_t at = t < from ? from : smaller(t, to);
    return from + (uint32_t)((at - from) * policy->beta1 / (to - from));
}

static uint32_t every_token(const retention_policy *policy)
{
    (void)policy;
    return 1;
}

static uint32_t every_growth(const retention_policy *policy)
{
    if (policy->horizon <= policy->beta2) return 1;
    return larger(1, (policy->horizon - policy->beta2) / policy->beta1);
}

const retention_growth_row retention_growths[] = {
    [RETENTION_GROWTH_JOINT] = {{"joint", "prompt and answer share a budget"}, NULL, NULL},
    [RETENTION_GROWTH_SLIDE] = {{"slide", "a fixed budget"}, slide, every_token},
    [RETENTION_GROWTH_ADAPTIVE] = {{"adaptive", "a growing budget"}, grows, every_token},
    [RETENTION_GROWTH_DISCONTINUOUS] = {{"discontinuous", "a growing budget, selections in bursts"},
                                        grows,
                                        every_growth},
};

/* The number of generated tokens given up by the k-th selection at the latest. It never falls with
 * k, so selections happen where it grows. */
static uint64_t given_up(const retention_policy *policy, uint64_t k)
{
    const retention_growth_row *growth = &retention_growths[policy->growth];
    uint32_t t = (uint32_t)(k * growth->every(policy)), allowance = growth->allowance(policy, t);
    return t > allowance ? t - allowance : 0;
}

static uint32_t next_growth_point(const retention_policy *policy, uint32_t n_prompt, uint32_t from)
{
    uint64_t every = retention_growths[policy->growth].every(policy);
    uint64_t low = (from - n_prompt) / every, high = (UINT32_MAX - 1 - n_prompt) / every;
    uint64_t now = given_up(policy, low);
    if (low >= high || given_up(policy, high) <= now) return UINT32_MAX;
    while (high - low > 1) { /* low: selection `low` gives up no more than at `from` */
        uint64_t middle = low + (high - low) / 2;
        if (given_up(policy, middle) > now) high = middle;
        else low = middle;
    }
    return n_prompt + (uint32_t)(high * every);
}

/* ---- points ---------------------------------------------------------------------------------- */

/* The most tokens of a table that are within the budget of every table. */
static uint32_t always_fits(const retention_policy *policy, uint32_t n_prompt)
{
    enum { PAGE_TOKENS_MOST = 256 };
    uint32_t least = retention_allocators[policy->allocator].least(policy, n_prompt);
    if (policy->unit != RETENTION_UNIT_PAGE) return least;
    if (policy->page_tokens > 0) return least - least % policy->page_tokens;
    return least < PAGE_TOKENS_MOST ? 0 : least - (PAGE_TOKENS_MOST - 1);
}

uint32_t retention_next_point(const retention_policy *policy, uint32_t n_prompt, uint32_t from)
{
    uint32_t point = UINT32_MAX;
    if (retention_selects(policy)) {
        point = retention_schedules[policy->schedule].next_point(
            policy, n_prompt, always_fits(policy, n_prompt), from);
    }
    if (point != UINT32_MAX || policy->growth == RETENTION_GROWTH_JOINT) return point;
    return next_growth_point(policy, n_prompt, larger(from, n_prompt));
}

/* ---- measures -------------------------------------------------------------------------------- */

static uint32_t policy_rows(const retention_policy *policy, uint32_t n_prompt)
{
    return policy->rows > 0 ? policy->rows : retention_window_of(policy, n_prompt);
}

retention_phase retention_phase_at(const retention_policy *policy, uint32_t n_prompt,
                                   uint32_t point)
{
    bool decode = point > n_prompt, other = decode && policy->decode_score != RETENTION_SCORE_NONE;
    bool growth = decode && policy->growth != RETENTION_GROWTH_JOINT;
    retention_variant variant = other ? RETENTION_VARIANT_PLAIN : policy->variant;
    retention_phase phase = {
        .score = retention_scores[other ? policy->decode_score : policy->score],
        .variant = &retention_variants[variant],
        .unit = growth ? policy->decode_unit : policy->unit,
        .scope = growth ? policy->decode_scope : policy->scope,
        .growth = growth,
    };
    phase.kind = phase.variant->kind != MEASURE_NONE ? phase.variant->kind : phase.score->kind;
    phase.summed = decode && !growth && policy->schedule == RETENTION_SCHEDULE_DECODE &&
                   phase.score->rows == RETENTION_ROWS_POLICY &&
                   smaller(policy_rows(policy, n_prompt), policy->interval) > 1;
    return phase;
}

/* The rows since the point before `point`: earlier rows are no longer measured. */
static uint32_t rows_since_point(const retention_policy *policy, uint32_t n_prompt, uint32_t point)
{
    if (policy->schedule == RETENTION_SCHEDULE_CHUNK)
        return (point - 1) % policy->recurrent_chunk + 1;
    bool decode = point > n_prompt && policy->schedule == RETENTION_SCHEDULE_DECODE;
    return decode ? policy->interval : point;
}

uint32_t retention_rows_at(const retention_policy *policy, uint32_t n_prompt, uint32_t point)
{
    retention_phase phase = retention_phase_at(policy, n_prompt, point);
    if (phase.growth) return phase.score->rows != RETENTION_ROWS_NONE;
    switch (phase.score->rows) {
    case RETENTION_ROWS_NONE: return 0;
    case RETENTION_ROWS_LAST: return 1;
    case RETENTION_ROWS_ALL: return point;
    case RETENTION_ROWS_POLICY: break;
    }
    return smaller(policy_rows(policy, n_prompt), rows_since_point(policy, n_prompt, point));
}

bool retention_has_sums(const retention_policy *policy)
{
    if (retention_scores[policy->score]->rows == RETENTION_ROWS_ALL) return true;
    const uint32_t any_prompt = INT32_MAX; /* a budget given as a ratio is then at its largest */
    return retention_phase_at(policy, any_prompt, any_prompt + 1).summed;
}

/* A chunk may be short, so tables that keep as many chunks may differ. Layers with a sliding window
 * take part in no selection. */
bool retention_suits_retrieval(const retention_policy *policy, const pkv_geometry *geometry)
{
    if (policy->growth != RETENTION_GROWTH_JOINT) return false;
    if (!retention_selects(policy)) return true;
    return policy->schedule != RETENTION_SCHEDULE_DECODE &&
           policy->allocator == RETENTION_ALLOCATOR_UNIFORM &&
           policy->unit != RETENTION_UNIT_CHUNK && !retention_has_sums(policy) &&
           retention_selecting_layers(geometry, geometry->n_layers) == geometry->n_layers;
}

bool retention_wants_novelty(const retention_policy *policy)
{
    return retention_scores[policy->score]->novelty;
}

bool retention_by_slot(const retention_policy *policy, const retention_phase *phase)
{
    return phase->summed || phase->growth || phase->unit != RETENTION_UNIT_PAGE ||
           !phase->score->page_mass || phase->kind != MEASURE_MASS || phase->variant->kvpress ||
           policy->pool != RETENTION_POOL_NONE;
}

/* The measure of a score that sums all rows, or the last rows of an interval, over several
 * steps. */
static measure_spec summed(measure_spec spec, uint32_t from, uint32_t to, uint32_t first,
                           uint32_t point)
{
    if (to <= first) return (measure_spec){.kind = MEASURE_NONE};
    bool starts = first > 0 && from <= first;
    spec.rows = to - larger(from, first);
    spec.sum = starts ? MEASURE_SUM_START : MEASURE_SUM_ADD;
    spec.by_slot = true;
    spec.silent = to != point;
    return spec;
}

/* Slots of a unit of the prompt's selection. */
static uint32_t unit_tokens(const retention_policy *policy)
{
    if (policy->unit == RETENTION_UNIT_CHUNK) return policy->chunk;
    return policy->unit == RETENTION_UNIT_TOKEN ? 1 : larger(1, policy->page_tokens);
}

measure_spec retention_measure_rows(const retention_policy *policy, uint32_t n_prompt,
                                    uint32_t from, uint32_t to)
{
    uint32_t point = retention_next_point(policy, n_prompt, from);
    retention_phase phase = retention_phase_at(policy, n_prompt, to);
    measure_spec spec = {
        .kind = phase.kind,
        .second = phase.score->second,
        .rows = larger(1, retention_rows_at(policy, n_prompt, to)),
        .layer_step = policy->reuse_layers,
        .by_slot = retention_by_slot(policy, &phase),
        .sum = MEASURE_SUM_STEP,
        .sinks = policy->sinks,
        .window = retention_window_of(policy, n_prompt),
        .chunk = unit_tokens(policy),
    };
    if (phase.score == retention_scores[RETENTION_SCORE_PROJECTION] && !phase.growth) {
        spec.bias = policy->bias;
        spec.theta = policy->theta == 1.0f ? 0.0f : policy->theta;
    }
    if (phase.score->rows == RETENTION_ROWS_ALL) return summed(spec, from, to, 0, point);
    if (phase.summed && point != UINT32_MAX)
        return summed(spec, from, to, point - spec.rows, point);
    spec.novelty = retention_wants_novelty(policy) && from < n_prompt;
    return to == point ? spec : (measure_spec){.kind = MEASURE_NONE, .novelty = spec.novelty};
}

static uint32_t measure_bits(measure_spec spec)
{
    if (spec.kind == MEASURE_NONE) return 0;
    uint32_t second = spec.second == MEASURE_NONE ? 0 : UINT32_C(1) << spec.second;
    return UINT32_C(1) << spec.kind | second | (spec.sum == MEASURE_SUM_STEP ? 0 : MEASURES_SUMS);
}

uint32_t retention_measures(const retention_policy *policy, uint32_t n_prompt)
{
    uint32_t bits = retention_wants_novelty(policy) ? MEASURES_NOVELTY : 0;
    /* The first selection of the prompt and the first of the answer; later ones measure the
     * same. */
    uint32_t points[] = {retention_next_point(policy, n_prompt, 0),
                         retention_next_point(policy, n_prompt, n_prompt)};
    for (int i = 0; i < 2; i++)
        if (points[i] != UINT32_MAX)
            bits |=
                measure_bits(retention_measure_rows(policy, n_prompt, points[i] - 1, points[i]));
    /* Rows are summed from the first one on, even if no selection follows. */
    if (retention_has_sums(policy))
        bits |= measure_bits(retention_measure_rows(policy, n_prompt, n_prompt - 1, n_prompt));
    return bits;
}

const char *retention_measure_name(uint32_t bits)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } rows[] = {
        {1 << MEASURE_MASS, "attention mass"},
        {1 << MEASURE_RAW, "raw scores"},
        {1 << MEASURE_PROJECTION, "projections on the output"},
        {1 << MEASURE_PROJECTION_OUTSIDE, "projections outside the window"},
        {1 << MEASURE_PROJECTION_POOLED, "projections of pooled attention"},
        {1 << MEASURE_EXPECTED, "expected attention"},
        {1 << MEASURE_VALUE_WEIGHT, "norms of weighted values"},
        {1 << MEASURE_VALUE_NORM, "norms of values"},
        {1 << MEASURE_KEY_NORM, "norms of keys"},
        {1 << MEASURE_KEY_COSINE, "directions of keys"},
        {MEASURES_NOVELTY, "novelty"},
        {MEASURES_SUMS, "running sums"},
        {MEASURES_READS, "what rows read by retrieval"},
        {MEASURES_BESIDE, "attention mass beside another measure"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (bits & rows[i].bit) return rows[i].name;
    return "nothing";
}

uint32_t retention_rows_together(const retention_policy *policy, uint32_t n_prompt, uint32_t point)
{
    if (retention_phase_at(policy, n_prompt, point).score->rows != RETENTION_ROWS_POLICY) return 0;
    return point > n_prompt ? 0 : retention_rows_at(policy, n_prompt, point);
}

uint32_t retention_hit_limit(const retention_policy *policy, uint32_t n_prompt)
{
    if (retention_has_sums(policy) || retention_wants_novelty(policy)) return 0;
    uint32_t point = retention_next_point(policy, n_prompt, 0);
    if (point == UINT32_MAX) return UINT32_MAX;
    uint32_t rows = larger(1, retention_rows_at(policy, n_prompt, point));
    return point > rows ? point - rows : 0;
}

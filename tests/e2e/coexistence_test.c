/* Every retention method that a geometry allows runs beside all others and beside requests that
 * keep everything. A request's tokens, logprobs and kept tokens are the same alone or beside
 * others, in a pool with room or one that swaps or replays, with prefix hits or without, on one
 * rank or two, on pages of 16, 8 or 4 bits (with a 16-bit residual and without). Each pair of
 * settings occurs in some run, except that a residual excludes prefix hits. */
#include "tests/e2e/house.h"

enum { PROMPT = 150, OUTPUTS = 80, PLAIN = 4, MOST = 64, CHUNK = 256 };

static uint32_t n_outputs(void) { return is_light() ? OUTPUTS / 2 : OUTPUTS; }

typedef struct answer {
    uint32_t n;
    uint32_t tokens[OUTPUTS];
    float logprobs[OUTPUTS];
    double kept_tokens;
    uint32_t cached_tokens;
} answer;

/* ---- settings, and runs that meet each pair of them ------------------------------------------ */

enum { RANKS, HEADS, PAGE, FORMAT, PREFILL, CACHE, POOL, FACTORS, LEVELS_MAX = 3 };
enum { ROOMY, SWAPS, REPLAYS };

static const uint32_t levels[FACTORS][LEVELS_MAX + 1] = {
    [RANKS] = {2, 1, 2}, // how many, and which
    [HEADS] = {2, 4, 1},
    [PAGE] = {2, 16, 32},
    [FORMAT] = {3, KERN_KV_BF16, KERN_KV_INT8, KERN_KV_INT4}, // pages of the last one have 32
    [PREFILL] = {2, CHUNK, 301},
    [CACHE] = {2, 0, 1},
    [POOL] = {3, ROOMY, SWAPS, REPLAYS},
};

typedef struct run {
    uint32_t level[FACTORS];
} run;

/* Pairs (factor, level) x (factor, level) that no run has covered yet. */
typedef struct pairs {
    bool met[FACTORS][LEVELS_MAX][FACTORS][LEVELS_MAX];
} pairs;

static uint32_t count_new(const pairs *p, const run *r)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < FACTORS; a++)
        for (uint32_t b = a + 1; b < FACTORS; b++) n += !p->met[a][r->level[a]][b][r->level[b]];
    return n;
}

static void meet(pairs *p, const run *r)
{
    for (uint32_t a = 0; a < FACTORS; a++)
        for (uint32_t b = a + 1; b < FACTORS; b++) p->met[a][r->level[a]][b][r->level[b]] = true;
}

/* The best of many random runs. */
static run draw(rng *random, const pairs *p)
{
    run best = {{0}};
    uint32_t most = 0;
    for (uint32_t i = 0; i < 500; i++) {
        run r;
        for (uint32_t f = 0; f < FACTORS; f++) r.level[f] = rng_below(random, levels[f][0]);
        uint32_t n = count_new(p, &r);
        if (n <= most) continue;
        most = n;
        best = r;
    }
    return best;
}

static uint32_t value(const run *r, uint32_t factor)
{
    return levels[factor][1 + r->level[factor]];
}

static setting setting_of(const run *r)
{
    bool roomy = value(r, POOL) == ROOMY;
    kern_kv_format format = (kern_kv_format)value(r, FORMAT);
    const uint64_t blocks[] = {// 16 tokens of the demo model
                               [KERN_KV_BF16] = 32768,
                               [KERN_KV_INT8] = 17408,
                               [KERN_KV_INT4] = 10240};
    uint64_t block = blocks[format];
    bool has_residual = kern_kv_has_grids(format) && value(r, PAGE) == 32;
    return (setting){
        .kv_type = format,
        .kv_residual = has_residual ? 64 : 0,
        .prefill_chunk = value(r, PREFILL),
        .layers_per_group = 1,
        .heads_per_group = value(r, HEADS),
        .page_tokens = kern_kv_has_grids(format) ? 32 : value(r, PAGE),
        .max_model_len = 512,
        .kv_bytes = (roomy ? 2000 : 40) * block,
        .swap_bytes = value(r, POOL) == SWAPS ? 2000 * block : 0,
        .prefix_cache = value(r, CACHE) && !has_residual,
        .n_ranks = value(r, RANKS) > 1 ? value(r, RANKS) : 0,
    };
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The retention field for this method; NULL: the geometry does not allow the method. */
static json_t *retention_of(const retention_preset *p, uint32_t heads_per_group)
{
    const retention_policy *d = &p->defaults;
    bool apart = heads_per_group == 1;
    if (d->growth != RETENTION_GROWTH_JOINT)
        return json_pack("{s:s, s:{s:s, s:f}, s:{s:s, s:i, s:i}}", "method", p->name, "prefill",
                         "method", "chunkkv", "ratio", 0.4, "decode", "scope",
                         apart ? "head" : "layer", "beta1", 8, "beta2", 6);
    if (d->gather_tokens)
        return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "method", p->name, "scope",
                         apart ? "head" : "layer", "tokens", 64, "sinks", 8, "window", 8,
                         "recurrent_chunk", 64, "gather_tokens", 80, "query_tokens", 6);
    if (d->contiguous)
        return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i}", "method", p->name, "scope",
                         apart && d->scope == RETENTION_SCOPE_HEAD ? "head" : "layer", "tokens", 64,
                         "sinks", 8, "window", 8, "recurrent_chunk", 64);
    json_t *r = json_pack("{s:s}", "method", p->name);
    if (p->needs_budget) json_object_set_new(r, "ratio", json_real(0.4));
    if (d->scope == RETENTION_SCOPE_LAYER || apart) return r;
    if (d->allocator == RETENTION_ALLOCATOR_ADAPTIVE) { /* between heads that share a table */
        json_decref(r);
        return NULL;
    }
    json_object_set_new(r, "scope", json_string("layer"));
    return r;
}

/* Half of the requests sample, with penalties, so that histories have to be restored too. */
static engine_stream *submit(house *h, json_t *retention, uint32_t i)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    uint32_t tokens[PROMPT];
    rng random = rng_seed(90); /* all share one prompt's pages */
    for (uint32_t t = 0; t < PROMPT; t++) tokens[t] = rng_below(&random, 1000);
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = PROMPT - i % 3 * 5;
    r.max_tokens = n_outputs();
    r.ignore_eos = true;
    r.logprobs = 0;
    if (i % 2) {
        r.temperature = 0.9f;
        r.has_seed = true;
        r.seed = i;
        r.frequency_penalty = 0.3f;
    }
    r.retention = retention;
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("%s: %s", retention ? json_dumps(retention, 0) : "no retention", err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    memset(a, 0, sizeof *a);
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.has_token) {
            a->tokens[a->n] = out.sample.token;
            a->logprobs[a->n++] = out.sample.logprob;
        }
        if (out.report) a->kept_tokens = out.report->kept_tokens;
        if (out.finish != ENGINE_FINISH_NONE) a->cached_tokens = out.usage.cached_tokens;
    }
    engine_stream_release(s);
}

/* ---- alone ----------------------------------------------------------------------------------- */

/* The answers of every method, followed by those of PLAIN requests. */
typedef struct answers {
    const char *method[MOST]; // NULL = the geometry does not allow the method
    answer of[MOST];
    uint32_t n;
} answers;

static json_t *nth_retention(uint32_t i, uint32_t heads)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    return i < n ? retention_of(&presets[i], heads) : NULL;
}

static uint32_t n_methods(void)
{
    size_t n;
    retention_presets(&n);
    assert_true(n + PLAIN <= MOST);
    return (uint32_t)n;
}

static void answer_alone(const run *like, answers *out)
{
    run r = *like;
    r.level[PREFILL] = r.level[CACHE] = r.level[POOL] = 0;
    setting s = setting_of(&r);
    house h = open_house(&s);
    *out = (answers){.n = n_methods() + PLAIN};
    for (uint32_t i = 0; i < out->n; i++) {
        json_t *retention = nth_retention(i, s.heads_per_group);
        if (!retention && i < n_methods()) continue;
        size_t n;
        out->method[i] = i < n_methods() ? retention_presets(&n)[i].name : "nothing";
        read_answer(submit(&h, retention, i), &out->of[i]);
        assert_int_equal(out->of[i].n, n_outputs());
        double most = strcmp(out->method[i], "full") == 0 ? PROMPT + OUTPUTS : PROMPT + OUTPUTS / 4;
        if (retention && out->of[i].kept_tokens > most)
            fail_msg("%s keeps %g tokens", out->method[i], out->of[i].kept_tokens);
    }
    assert_int_equal(engine_get_stats(h.engine).sched.preemptions, 0);
    close_house(&h);
}

/* ---- beside others --------------------------------------------------------------------------- */

static void assert_same(const char *run_name, const char *method, const answer *alone,
                        const answer *got)
{
    if (alone->n == got->n && memcmp(alone->tokens, got->tokens, sizeof got->tokens) == 0 &&
        memcmp(alone->logprobs, got->logprobs, sizeof got->logprobs) == 0 &&
        alone->kept_tokens == got->kept_tokens)
        return;
    uint32_t at = 0;
    while (at < OUTPUTS && alone->tokens[at] == got->tokens[at] &&
           alone->logprobs[at] == got->logprobs[at])
        at++;
    fail_msg("%s: %s differs from token %u on; it kept %g tokens, not %g", run_name, method, at,
             got->kept_tokens, alone->kept_tokens);
}

static sched_stats answer_in_a_crowd(const run *r, const answers *alone)
{
    setting s = setting_of(r);
    house h = open_house(&s);
    engine_stream *streams[MOST] = {0};
    answer got;
    char name[128];
    snprintf(name, sizeof name,
             "tp %u, %u heads, %s pages of %u, residual %u, chunks of %u, cache %u, pool %u",
             value(r, RANKS), s.heads_per_group, kern_kv_name(s.kv_type), s.page_tokens,
             s.kv_residual, s.prefill_chunk, s.prefix_cache, value(r, POOL));
    shut_gate(&h);
    for (uint32_t i = 0; i < alone->n; i++)
        if (alone->method[i]) streams[i] = submit(&h, nth_retention(i, s.heads_per_group), i);
    open_gate(&h);
    for (uint32_t i = 0; i < alone->n; i++) {
        if (!streams[i]) continue;
        read_answer(streams[i], &got);
        assert_same(name, alone->method[i], &alone->of[i], &got);
    }
    /* A plain request is unaffected by what the others dropped. */
    uint32_t last = alone->n - 1;
    read_answer(submit(&h, NULL, last), &got);
    assert_same(name, "a hit behind them", &alone->of[last], &got);
    uint32_t prompt = PROMPT - last % 3 * 5;
    if (value(r, POOL) == ROOMY)
        assert_int_equal(got.cached_tokens,
                         s.prefix_cache ? (prompt - 1) / s.page_tokens * s.page_tokens : 0);
    sched_stats stats = engine_get_stats(h.engine).sched;
    close_house(&h);
    print_message("%s: %llu preemptions, %llu swapped, %llu tokens computed again\n", name,
                  (unsigned long long)stats.preemptions, (unsigned long long)stats.swaps_out,
                  (unsigned long long)stats.replayed_tokens);
    if (value(r, POOL) == ROOMY) assert_int_equal(stats.preemptions, 0);
    return stats;
}

static void all_methods_coexist(void **state)
{
    (void)state;
    rng random = rng_seed(2026);
    pairs met = {0};
    static answers alone[2][2][2][3]; // by rank, heads, page, format
    uint64_t swapped = 0, replayed = 0, gathered = 0;
    uint32_t n_runs = 0;
    /* Under a sanitizer the first runs, which meet most pairs. */
    uint32_t most = is_light() ? 6 : UINT32_MAX;
    for (run r = draw(&random, &met); count_new(&met, &r) > 0 && n_runs < most;
         r = draw(&random, &met), n_runs++) {
        answers *a = &alone[r.level[RANKS]][r.level[HEADS]][r.level[PAGE]][r.level[FORMAT]];
        if (a->n == 0) answer_alone(&r, a);
        sched_stats stats = answer_in_a_crowd(&r, a);
        if (value(&r, POOL) == SWAPS) swapped += stats.swaps_in;
        else replayed += stats.replayed_tokens;
        gathered += stats.pages.pages_gathered;
        meet(&met, &r);
    }
    print_message(
        "%u runs, %llu sequences back from the host tier, %llu tokens computed again, %llu "
        "pages moved to fuller runs\n",
        n_runs, (unsigned long long)swapped, (unsigned long long)replayed,
        (unsigned long long)gathered);
    assert_true(n_runs >= 6 && swapped > 0 && replayed > 0 && gathered > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_methods_coexist)};
    return cmocka_run_group_tests_name("coexistence", tests, NULL, NULL);
}

/* Requests of three methods share one pool of cells: `full` has a table for all layers, chunkkv one
 * for each layer, snapkv one for each KV head. The same arrivals run three times:
 *   - in a pool that never fills, to learn how many cells they use on average: the pool of the
 *     other two runs has as many / 0.97, so the load is 97 % of it;
 *   - with each sequence at its own grain;
 *   - with one grain, the finest, for all sequences.
 * Checked:
 *   - no request waits while there are free the cells that it needs, those that running requests
 *     take to compute their prompts, and 5 % of the pool. A request needs what computing its known
 *     tokens takes at most (sched_need_of). It does not wait for pages when it waits for a slot, or
 *     for tokens of the step, and none starts in a step that preempts.
 *   - the tokens of finished requests per step are at least 95 % of those with one grain.
 *   - after every step the mirror has the tables of the pool.
 * The backend computes nothing: tokens are hashes, measures are noise.
 *
 *   sharing_test [seed]      OCTAVO_SOAK=SEED runs 10^5 requests instead of 2,100 */
#include "scheduler/scheduler.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 1000, MAX_SEQS = 256, EVENTS_MAX = 512, ADDS_MAX = 16, PREFIXES = 8, WINDOW = 32 };
enum { FULL, CHUNKKV, SNAPKV, METHODS };
enum { LOAD_PERCENT = 97, SLACK_PERCENT = 5, GOODPUT_PERCENT = 95 };

typedef struct load_shape {
    pkv_geometry geometry;
    uint32_t prompt_pages; // median
    uint32_t outputs;      // mean
    uint32_t at_once;      // requests that would run at once, if none had to wait
    uint32_t n_short;      // requests in a short test
    uint32_t n_soak;
} load_shape;

static const load_shape shapes[] = {
    {.geometry = {.page_tokens = 16,
                  .n_layers = 4,
                  .n_kv_heads = 4,
                  .layers_per_group = 1,
                  .heads_per_group = 1},
     .prompt_pages = 24,
     .outputs = 48,
     .at_once = 64,
     .n_short = 1500,
     .n_soak = 80000},
    {.geometry = {.page_tokens = 128,
                  .n_layers = 4,
                  .n_kv_heads = 4,
                  .layers_per_group = 1,
                  .heads_per_group = 1},
     .prompt_pages = 16,
     .outputs = 64,
     .at_once = 64,
     .n_short = 600,
     .n_soak = 20000},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct asked {
    uint32_t at; // step of its arrival
    uint32_t method, n_prompt, n_outputs;
    uint32_t prefix, n_shared; // tokens that its prompt shares with others
    uint64_t need;             // cells for its prompt
    /* While it runs. */
    uint32_t n_tokens, last_step;
    bool started, ended;
} asked;

typedef struct load {
    uint64_t seed;
    const load_shape *shape;
    uint32_t n, chunk, max_len, max_outputs;
    retention_policy policies[METHODS];
    asked *asked; // [n]
} load;

static void fail(const load *l, uint32_t step, const char *what)
{
    fprintf(stderr, "sharing: seed %" PRIu64 ", pages of %u, step %u: %s\n", l->seed,
            l->shape->geometry.page_tokens, step, what);
    exit(1);
}

static void *need(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) abort();
    return p;
}

/* ---- requests -------------------------------------------------------------------------------- */

static const char *const methods[METHODS] = {
    [FULL] = "{\"method\": \"full\"}",
    [CHUNKKV] = "{\"method\": \"chunkkv\", \"ratio\": 0.3, \"window\": 32}",
    [SNAPKV] = "{\"method\": \"snapkv\", \"ratio\": 0.3, \"window\": 32}",
};

static void read_policy(const load *l, const char *text, retention_policy *out)
{
    retention_limits limits = {l->shape->geometry, l->chunk, 0};
    json_t *json = NULL;
    error err = {{0}};
    bool ok = status_ok(json_read_text("sharing", text, strlen(text), &json, &err)) &&
              status_ok(retention_parse(json, &limits, out, &err));
    json_decref(json);
    if (!ok) fail(l, 0, err.text);
}

static uint32_t spread(rng *r, double median, double sigma, uint32_t least, uint32_t most)
{
    double x = median * exp(sigma * rng_normal(r));
    return x < least ? least : x > most ? most : (uint32_t)x;
}

/* Arrivals are a Poisson process, in steps. */
static load make_load(const load_shape *shape, uint64_t seed, uint32_t n)
{
    uint32_t page = shape->geometry.page_tokens, most_pages = 4 * shape->prompt_pages;
    load l = {.seed = seed, .shape = shape, .n = n, .chunk = 32 * page};
    l.max_outputs = 8 * shape->outputs;
    l.max_len = most_pages * page + l.max_outputs;
    for (uint32_t m = 0; m < METHODS; m++) read_policy(&l, methods[m], &l.policies[m]);
    l.asked = need(n, sizeof *l.asked);
    rng r = rng_seed(seed);
    double at = 0;
    for (uint32_t i = 0; i < n; i++) {
        asked *a = &l.asked[i];
        double u = (double)(rng_u64(&r) >> 11) * 0x1p-53;
        at += -log(1 - u) * shape->outputs / shape->at_once;
        a->at = (uint32_t)at;
        a->method = rng_below(&r, METHODS);
        a->n_prompt = spread(&r, shape->prompt_pages * (double)page, 0.5, page, most_pages * page);
        a->n_outputs = spread(&r, shape->outputs * 0.73, 0.8, 1, l.max_outputs);
        a->prefix = rng_below(&r, PREFIXES);
        a->n_shared = rng_below(&r, 2) ? a->n_prompt / 4 : 0;
        a->need = sched_need_of(&shape->geometry, 0, &l.policies[a->method], a->n_prompt, 1).peak;
    }
    return l;
}

static void write_prompt(const load *l, uint32_t i, uint32_t *tokens)
{
    const asked *a = &l->asked[i];
    for (uint32_t t = 0; t < a->n_prompt; t++) {
        uint64_t of = t < a->n_shared ? a->prefix : (uint64_t)PREFIXES + i;
        tokens[t] = (uint32_t)(hash_mix64(of << 32 | t) % VOCAB);
    }
}

/* ---- one run --------------------------------------------------------------------------------- */

typedef struct outcome {
    uint64_t steps, tokens, preemptions, hits;
    double used;                     // cells in use on average
    double waited;                   // steps until the first rows, on average
    uint32_t ended_at[PKV_HEAD + 1]; // `full` requests, by their grain at their end
    /* The most cells that were free beside what a waiting request needed, as a share of the pool;
     * plain: what running requests are owed counts as free. */
    double excess, plain_excess;
} outcome;

typedef struct run {
    load *load;
    sched *s;
    pkv_mirror *mirror;
    uint32_t n_pages, step, n_arrived, n_ended, first_live, n_events;
    sched_event events[EVENTS_MAX];
    sched_request adds[ADDS_MAX]; // of this step
    uint32_t *prompts;            // [ADDS_MAX, max_len]
    uint32_t n_adds;
    float *noise;          // values of any measure
    step_seq_result *seqs; // [MAX_SEQS]
    step_sample *samples;
    step_result result;
    double used_sum, waited_sum;
    outcome out;
} run;

/* Grain at which the scheduler's sequences are opened, whatever it asks for: the linker wraps
 * pkv_seq_open. */
static pkv_grain least_grain;

status __real_pkv_seq_open(pkv *p, uint32_t seq, pkv_grain grain, const uint32_t *tokens,
                           uint32_t max_hit, uint64_t salt, uint32_t expect_tokens,
                           uint32_t *hit_tokens);
status __wrap_pkv_seq_open(pkv *p, uint32_t seq, pkv_grain grain, const uint32_t *tokens,
                           uint32_t max_hit, uint64_t salt, uint32_t expect_tokens,
                           uint32_t *hit_tokens);

status __wrap_pkv_seq_open(pkv *p, uint32_t seq, pkv_grain grain, const uint32_t *tokens,
                           uint32_t max_hit, uint64_t salt, uint32_t expect_tokens,
                           uint32_t *hit_tokens)
{
    if (grain < least_grain) grain = least_grain;
    return __real_pkv_seq_open(p, seq, grain, tokens, max_hit, salt, expect_tokens, hit_tokens);
}

static uint32_t budget_of(const load *l) { return l->chunk + MAX_SEQS; }

static size_t noise_floats(const load *l)
{
    const pkv_geometry *g = &l->shape->geometry;
    return (size_t)2 * g->n_layers * g->n_kv_heads * l->max_len;
}

static void run_create(run *r, load *l, uint32_t n_pages)
{
    *r = (run){.load = l, .n_pages = n_pages};
    sched_options o = {.geometry = l->shape->geometry,
                       .n_pages = n_pages,
                       .n_host_pages = n_pages / 2,
                       .max_seqs = MAX_SEQS,
                       .prefill_chunk = l->chunk,
                       .max_model_len = l->max_len,
                       .max_requests = l->n,
                       .prefix_cache = true};
    error err;
    if (!status_ok(sched_create(&o, &r->s, &err))) fail(l, 0, err.text);
    if (!status_ok(pkv_mirror_create(&o.geometry, n_pages, MAX_SEQS, NULL, &r->mirror))) abort();
    r->prompts = need((size_t)ADDS_MAX * l->max_len, sizeof *r->prompts);
    r->seqs = need(MAX_SEQS, sizeof *r->seqs);
    r->samples = need(step_most_draws(MAX_SEQS), sizeof *r->samples);
    size_t n = 2 * noise_floats(l);
    r->noise = need(n, sizeof *r->noise);
    for (size_t i = 0; i < n; i++) r->noise[i] = (float)(hash_mix64(i) >> 40) * 0x1p-24f;
    for (uint32_t i = 0; i < l->n; i++) {
        l->asked[i].n_tokens = l->asked[i].last_step = 0;
        l->asked[i].started = l->asked[i].ended = false;
    }
}

static void run_destroy(run *r)
{
    sched_destroy(r->s);
    pkv_mirror_destroy(r->mirror);
    free(r->prompts);
    free(r->seqs);
    free(r->samples);
    free(r->noise);
}

static void add_event(run *r, sched_event event)
{
    if (r->n_events == EVENTS_MAX) fail(r->load, r->step, "the test has too many events");
    r->events[r->n_events++] = event;
}

static void arrive(run *r)
{
    load *l = r->load;
    r->n_adds = 0;
    while (r->n_arrived < l->n && l->asked[r->n_arrived].at <= r->step && r->n_adds < ADDS_MAX) {
        uint32_t i = r->n_arrived++, *prompt = r->prompts + (size_t)r->n_adds * l->max_len;
        const asked *a = &l->asked[i];
        write_prompt(l, i, prompt);
        sched_request *q = &r->adds[r->n_adds++];
        *q = (sched_request){.id = i,
                             .arrival = i,
                             .prompt = prompt,
                             .n_prompt = a->n_prompt,
                             .max_new_tokens = l->max_outputs,
                             .n = 1,
                             .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                             .policy = l->policies[a->method]};
        error err;
        if (!status_ok(sched_check(r->s, q, &err))) fail(l, r->step, err.text);
        add_event(r, (sched_event){.kind = SCHED_ADD, .add = q});
    }
}

/* ---- the backend ----------------------------------------------------------------------------- */

static measure_result measure(const run *r, const step_seq *q)
{
    const pkv_geometry *g = &r->load->shape->geometry;
    pkv_mirror_extent extent = pkv_mirror_extent_of(r->mirror, q->seq, UINT32_MAX);
    size_t at = hash_mix64(q->request) % noise_floats(r->load);
    return (measure_result){.values = r->noise + at,
                            .n_layers = measure_layers(g, q->measure.layer_step),
                            .n_kv_heads = g->n_kv_heads,
                            .stride = q->measure.by_slot ? extent.most_kept : extent.most_pages,
                            .q_heads = 1};
}

static void compute(run *r, const step_plan *plan)
{
    load *l = r->load;
    if (!status_ok(pkv_mirror_apply(r->mirror, plan->deltas.words, plan->deltas.n_words)))
        fail(l, r->step, "the mirror refuses the deltas");
    if (pkv_mirror_checksum(r->mirror) != plan->checksum)
        fail(l, r->step, "the mirror has other tables");
    uint32_t n_samples = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        r->seqs[i] =
            (step_seq_result){.samples = r->samples + n_samples, .n_samples = q->n_samples};
        for (uint32_t j = 0; j < q->n_samples; j++) {
            uint64_t key = q->request << 32 | q->sample_index;
            r->samples[n_samples++] = (step_sample){.token = (uint32_t)(hash_mix64(key) % VOCAB)};
        }
        if (q->measure.kind != MEASURE_NONE) r->seqs[i].measure = measure(r, q);
    }
    r->result = (step_result){
        .step = plan->step, .seqs = r->seqs, .n_seqs = plan->n_seqs, .checksum = plan->checksum};
    add_event(r, (sched_event){.kind = SCHED_RESULT, .result = &r->result});
}

static void take_tokens(run *r, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        asked *a = &r->load->asked[q->request];
        if (q->n_samples == 0 || ++a->n_tokens < a->n_outputs) continue;
        a->ended = true;
        r->n_ended++;
        r->out.tokens += a->n_prompt + a->n_tokens;
        if (a->method == FULL) r->out.ended_at[pkv_mirror_grain(r->mirror, q->seq)]++;
        add_event(r, (sched_event){.kind = SCHED_END, .request = q->request, .finished = true});
    }
}

/* ---- who waits ------------------------------------------------------------------------------- */

/* Cells that a running request takes to compute its prompt. Rows whose selection is not made yet
 * hold whole blocks; a selection of tokens copies the pages that others hold too. */
static uint64_t owed_to(const load *l, const step_seq *q)
{
    const asked *a = &l->asked[q->request];
    const pkv_geometry *g = &l->shape->geometry;
    uint32_t length = q->position + q->n_tokens;
    if (length > a->n_prompt) return 0;
    uint32_t blocks = (length + g->page_tokens - 1) / g->page_tokens;
    if (length == a->n_prompt && a->method == SNAPKV) blocks -= a->n_shared / g->page_tokens;
    uint64_t held = (uint64_t)pkv_groups(g) * blocks;
    return a->need > held ? a->need - held : 0;
}

/* The cells that a waiting request needs; a preempted one computes its tokens too. */
static uint64_t need_of(const load *l, const asked *a)
{
    if (a->n_tokens == 0) return a->need;
    return sched_need_of(&l->shape->geometry, 0, &l->policies[a->method], a->n_prompt,
                         a->n_tokens + 1)
        .peak;
}

/* The first request in line; requests run in order of arrival, so nothing else delays it. In a step
 * with tokens to spare, whoever has no share waits. */
static const asked *first_in_line(run *r)
{
    load *l = r->load;
    while (r->first_live < r->n_arrived && l->asked[r->first_live].ended) r->first_live++;
    for (uint32_t i = r->first_live; i < r->n_arrived; i++) {
        const asked *a = &l->asked[i];
        if (!a->ended && !(a->started && a->last_step == r->step)) return a;
    }
    return NULL;
}

static void check_line(run *r, const step_plan *plan, const sched_stats *now)
{
    const load *l = r->load;
    bool preempts = now->preemptions != r->out.preemptions;
    r->out.preemptions = now->preemptions;
    if (preempts || plan->n_tokens + WINDOW > budget_of(l) || now->running == MAX_SEQS) return;
    const asked *first = first_in_line(r);
    if (!first) return;
    double pool = r->n_pages - 1, owed = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) owed += (double)owed_to(l, &plan->seqs[i]);
    double beside = (double)now->pages.free + now->pages.cached - (double)need_of(l, first);
    r->out.plain_excess = fmax(r->out.plain_excess, beside / pool);
    r->out.excess = fmax(r->out.excess, (beside - owed) / pool);
    if ((beside - owed) * 100 > pool * SLACK_PERCENT)
        fail(l, r->step, "a request waits although its pages are there");
}

/* ---- running --------------------------------------------------------------------------------- */

static void note_shares(run *r, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        asked *a = &r->load->asked[plan->seqs[i].request];
        if (!a->started) r->waited_sum += r->step - a->at;
        a->started = true;
        a->last_step = r->step;
    }
}

static void turn(run *r)
{
    r->step++;
    arrive(r);
    const step_plan *plan = sched_step(r->s, (int64_t)r->step * 20000, r->events, r->n_events);
    r->n_events = 0;
    note_shares(r, plan);
    sched_stats now = sched_get_stats(r->s);
    check_line(r, plan, &now);
    r->used_sum += now.pages.used;
    if (r->step % 1024 == 0) {
        const char *wrong = sched_check_integrity(r->s);
        if (wrong) fail(r->load, r->step, wrong);
    }
    if (sched_plan_empty(plan)) return;
    compute(r, plan);
    take_tokens(r, plan);
}

/* The average of what is used counts the time in which requests arrive. */
static outcome run_all(load *l, uint32_t n_pages, pkv_grain grain)
{
    run r;
    uint32_t last = l->asked[l->n - 1].at;
    least_grain = grain;
    run_create(&r, l, n_pages);
    while (r.n_ended < l->n) {
        turn(&r);
        if (r.step == last) r.out.used = r.used_sum / last;
        if (r.step > 20 * last + 10000) fail(l, r.step, "does not come to an end");
    }
    r.out.steps = r.step;
    r.out.waited = r.waited_sum / l->n;
    r.out.hits = sched_get_stats(r.s).pages.hit_tokens;
    run_destroy(&r);
    return r.out;
}

static double goodput(const outcome *o) { return (double)o->tokens / (double)o->steps; }

static void print_outcome(const char *what, const outcome *o, uint32_t n_pages)
{
    printf("  %-12s %u cells, %.1f %% used, %.1f tokens a step in %" PRIu64 " steps, %" PRIu64
           " preemptions, first rows after %.1f steps, %" PRIu64 " tokens hit\n",
           what, n_pages - 1, 100 * o->used / (n_pages - 1), goodput(o), o->steps, o->preemptions,
           o->waited, o->hits);
    printf("  %-12s free beside the need of the first in line: %.2f %%, without what is owed "
           "%.2f %%; full requests ended with one table %u, by layer %u, by head %u\n",
           "", 100 * o->plain_excess, 100 * o->excess, o->ended_at[PKV_ALL], o->ended_at[PKV_LAYER],
           o->ended_at[PKV_HEAD]);
}

static void share_pool(const load_shape *shape, uint64_t seed, uint32_t n)
{
    load l = make_load(shape, seed, n);
    uint32_t roomy =
        pkv_groups(&shape->geometry) * (l.max_len / shape->geometry.page_tokens + 1) * MAX_SEQS;
    outcome alone = run_all(&l, roomy, PKV_ALL);
    if (alone.preemptions > 0) fail(&l, 0, "a pool that never fills was full");
    uint32_t n_pages = 1 + (uint32_t)(alone.used * 100 / LOAD_PERCENT);
    outcome mixed = run_all(&l, n_pages, PKV_ALL), one = run_all(&l, n_pages, PKV_HEAD);
    printf("pages of %u, %u requests\n", shape->geometry.page_tokens, n);
    print_outcome("room for all", &alone, roomy);
    print_outcome("own grains", &mixed, n_pages);
    print_outcome("one grain", &one, n_pages);
    fflush(stdout);
    if (goodput(&mixed) * 100 < goodput(&one) * GOODPUT_PERCENT)
        fail(&l, 0, "grains of their own cost too much goodput");
    free(l.asked);
}

int main(int argc, char **argv)
{
    const char *soak = getenv("OCTAVO_SOAK");
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : soak ? strtoull(soak, NULL, 10) : 1;
    for (uint32_t i = 0; i < SHAPES; i++)
        share_pool(&shapes[i], seed, soak ? shapes[i].n_soak : shapes[i].n_short);
    return 0;
}

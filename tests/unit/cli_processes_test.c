/* Ranks in processes of their own, as `--workers local` has them, against one rank: every family,
 * every preset, 2, 4 and 8 ranks, with cached prefixes, swaps and preemptions; all in f32. A few
 * rows of the array as a rule, all with OCTAVO_SOAK. */
#include "tests/e2e/house.h"

#include "cli/cli.h"
#include "cli/workers.h"

#include <math.h>

enum { REQUESTS = 8, PROMPT_MAX = 120, OUTPUTS = 80, VOCAB = 60, TOP = SAMPLE_LOGPROBS_MAX };
enum { PAGE_TOKENS = 16, RANKS_MAX = 8, SCARCE_PAGES = 22, KEPT_MAX = 1 << 14 };

typedef struct answer {
    uint32_t n;
    step_sample outputs[OUTPUTS];
    uint32_t cached_tokens;
    char kept[KEPT_MAX]; /* positions, as reported */
} answer;

/* ---- requests -------------------------------------------------------------------------------- */

/* The nth preset, as suits these prompts, and layers of which some have a window: they share no
 * choices with others, and positions stay. NULL: nothing is dropped. */
static json_t *retention_of(uint32_t nth, bool windows)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n), *p = &presets[nth % (n + 1)];
    if (nth % (n + 1) == n || (windows && p->defaults.contiguous)) return NULL;
    json_t *r = json_pack("{s:s, s:s}", "method", p->name, "report", "positions");
    if (p->defaults.growth != RETENTION_GROWTH_JOINT) {
        json_object_set_new(r, "prefill",
                            json_pack("{s:s, s:i}", "method", "snapkv", "tokens", 48));
        json_object_set_new(r, "decode", json_pack("{s:i, s:i}", "beta1", 8, "beta2", 6));
    } else if (p->defaults.contiguous) {
        json_object_set_new(r, "tokens", json_integer(48));
        json_object_set_new(r, "sinks", json_integer(8));
        json_object_set_new(r, "window", json_integer(8));
        json_object_set_new(r, "recurrent_chunk", json_integer(48));
    } else if (p->needs_budget) {
        json_object_set_new(r, "ratio", json_real(0.4));
    }
    if (windows && p->defaults.reuse_layers > 1)
        json_object_set_new(r, "reuse_layers", json_integer(1));
    return r;
}

/* All begin alike, and then each goes its own way. */
static engine_stream *submit(house *h, uint32_t i, uint32_t first_preset, bool windows)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    uint32_t tokens[PROMPT_MAX];
    rng shared = rng_seed(3), own = rng_seed(50 + i);
    for (uint32_t t = 0; t < PROMPT_MAX; t++) tokens[t] = rng_below(t < 40 ? &shared : &own, VOCAB);
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = PROMPT_MAX - i;
    r.max_tokens = OUTPUTS;
    r.ignore_eos = true;
    r.logprobs = TOP;
    r.retention = retention_of(first_preset + i, windows);
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("%s: %s", r.retention ? json_dumps(r.retention, 0) : "", err.text);
    r.prompt_token_ids = NULL; /* the test's own */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    *a = (answer){0};
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.has_token) a->outputs[a->n++] = out.sample;
        if (out.finish == ENGINE_FINISH_NONE) continue;
        a->cached_tokens = out.usage.cached_tokens;
        const char *kept = out.report && out.report->kept_json ? out.report->kept_json : "";
        assert_true(strlen(kept) < sizeof a->kept);
        snprintf(a->kept, sizeof a->kept, "%s", kept);
    }
    engine_stream_release(s);
}

static void ask(house *h, uint32_t first_preset, bool windows, answer *answers)
{
    engine_stream *streams[REQUESTS];
    shut_gate(h);
    for (uint32_t i = 0; i < REQUESTS; i++) streams[i] = submit(h, i, first_preset, windows);
    open_gate(h);
    for (uint32_t i = 0; i < REQUESTS; i++) read_answer(streams[i], &answers[i]);
}

/* ---- what is near enough --------------------------------------------------------------------- */

/* log-probability of a token by a sample's list; NaN: not in it. */
static double logprob_of(const step_sample *s, uint32_t token)
{
    for (uint32_t k = 0; k < s->n_top; k++)
        if (s->top_ids[k] == token) return (double)s->top_logprobs[k];
    return NAN;
}

typedef struct distance {
    double squares, of; /* differences, and what they are differences of */
    uint32_t n_ties;    /* answers that went on otherwise from a tie */
} distance;

static void add_distance(distance *d, const step_sample *want, const step_sample *got)
{
    uint32_t n_met = 0;
    for (uint32_t k = 0; k < want->n_top; k++) {
        double a = (double)want->top_logprobs[k], b = logprob_of(got, want->top_ids[k]);
        if (isnan(b)) continue; /* the last of two lists may be others */
        d->squares += (a - b) * (a - b);
        d->of += a * a;
        n_met++;
    }
    assert_true(n_met + 3 >= want->n_top);
}

/* Up to the first token that is another one, which has to be a tie. */
static void compare(const char *what, uint32_t i, const answer *want, const answer *got,
                    distance *d)
{
    assert_int_equal(want->n, OUTPUTS);
    assert_int_equal(got->n, OUTPUTS);
    for (uint32_t t = 0; t < OUTPUTS; t++) {
        const step_sample *w = &want->outputs[t], *g = &got->outputs[t];
        add_distance(d, w, g);
        if (w->token == g->token) continue;
        double nats = logprob_of(w, w->token) - logprob_of(w, g->token);
        if (!(nats <= 1e-4))
            fail_msg("%s: request %u, token %u: %u, by %.2e less likely than %u", what, i, t,
                     g->token, nats, w->token);
        d->n_ties++;
        return;
    }
    if (strcmp(want->kept, got->kept) != 0)
        fail_msg("%s: request %u keeps %s, not %s", what, i, got->kept, want->kept);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const char *const models[] = {
    "llama3_rope_f32",   "mistral_f32",         "mistral_window_f32", "qwen2_window_bf16",
    "qwen3_layers_bf16", "mixtral_window_bf16", "mixtral_three_bf16", "qwen3_moe_f32",
    "qwen2_moe_f32",     "internlm2_f32",       "phi3_long_bf16",     "gemma3_f32"};
enum { MODELS = sizeof models / sizeof *models, ROWS = 4 /* of a model: REQUESTS presets each */ };

typedef enum pool { ROOMY, SWAPS, REPLAYS, POOLS } pool;

static workers *groups[RANKS_MAX + 1]; /* by how many ranks; started when first needed */

static status make_processes(const backend_cpu_options *o, uint32_t n_ranks, backend *out,
                             error *err)
{
    static const workers_flags local = {.where = "local"};
    const workers_device cpu = {"cpu", 0, kern_kv_name(o->kv_type)};
    backend_cpu_facts facts;
    if (!groups[n_ranks])
        RETURN_IF_ERROR(workers_create(&local, &cpu, &n_ranks, &groups[n_ranks], err));
    return workers_make_backend(groups[n_ranks], o, NULL, 0, out, &facts, err);
}

/* Of the numbers of ranks that the model can be cut for, one after the other; 0: there is none. */
static uint32_t nth_ranks(const model_config *c, uint32_t nth)
{
    uint32_t can[RANKS_MAX], n = 0;
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
        if (status_ok(model_ranks_check(c, ranks, NULL))) can[n++] = ranks;
    return n > 0 ? can[nth % n] : 0;
}

static setting setting_of(const char *name, model_config *c)
{
    static char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    assert_true(status_ok(model_config_load(dir, NULL, 0, c, NULL)));
    return (setting){.dir = dir,
                     .prefill_chunk = 256,
                     .kv_type = KERN_KV_F32,
                     .layers_per_group = 1,
                     .heads_per_group = 1,
                     .page_tokens = PAGE_TOKENS,
                     .max_model_len = 200,
                     .kv_bytes = 16 << 20};
}

/* So few pages that they run short as answers grow. Tables are of single heads, and a rank keeps
 * room for the pages of all. */
static uint64_t scarce_bytes(const model_config *c, uint32_t n_ranks)
{
    uint64_t page = 2 * (uint64_t)c->head_dim * PAGE_TOKENS * sizeof(float);
    uint64_t tables = (uint64_t)c->n_layers * c->n_kv_heads;
    return SCARCE_PAGES * tables * page * n_ranks;
}

typedef struct totals {
    distance d;
    uint64_t swaps, replays, hits;
    uint32_t n_rows;
} totals;

static void check_row(uint32_t model, uint32_t nth, totals *all)
{
    static answer want[REQUESTS], got[REQUESTS];
    char what[192];
    model_config c;
    uint32_t first_preset = nth * REQUESTS;
    pool p = (pool)((model + nth) % POOLS);
    setting s = setting_of(models[model], &c);
    s.n_ranks = nth_ranks(&c, model / 3 + nth);
    if (s.n_ranks == 0) return;
    all->n_rows++;
    uint32_t n_ranks = s.n_ranks;
    s.n_ranks = 0;
    house alone = open_house(&s);
    ask(&alone, first_preset, c.window > 0, want);
    close_house(&alone);

    s.n_ranks = n_ranks;
    s.make_ranks = make_processes;
    s.prefix_cache = p != SWAPS;
    if (p != ROOMY) s.kv_bytes = scarce_bytes(&c, s.n_ranks);
    if (p == SWAPS) s.swap_bytes = 16 << 20;
    snprintf(what, sizeof what, "%s, presets from %u, %u processes, pool %u", models[model],
             first_preset, s.n_ranks, p);
    house h = open_house(&s);
    for (int round = 0; round < (p == ROOMY ? 2 : 1); round++) {
        ask(&h, first_preset, c.window > 0, got);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            compare(what, i, &want[i], &got[i], &all->d);
            all->hits += got[i].cached_tokens;
        }
    }
    sched_stats stats = engine_get_stats(h.engine).sched;
    all->swaps += stats.swaps_out;
    all->replays += stats.preemptions - stats.swaps_out;
    close_house(&h);
}

static void processes_answer_as_one(void **state)
{
    (void)state;
    totals all = {0};
    size_t n_presets;
    retention_presets(&n_presets);
    assert_true(n_presets + 1 <= ROWS * REQUESTS);
    bool soak = getenv("OCTAVO_SOAK") != NULL;
    for (uint32_t m = 0; m < MODELS; m++)
        for (uint32_t nth = 0; nth < ROWS; nth++)
            if (soak || (m < 9 && m % 3 == 1 && nth == m / 3)) check_row(m, nth, &all);
    double nmse = all.d.squares / all.d.of;
    print_message("%u rows: NMSE %.2e, %u ties, %llu swaps, %llu replays, %llu tokens cached\n",
                  all.n_rows, nmse, all.d.n_ties, (unsigned long long)all.swaps,
                  (unsigned long long)all.replays, (unsigned long long)all.hits);
    assert_true(nmse < 1e-9);
    assert_true(all.swaps > 0 && all.replays > 0 && all.hits > 0);
}

static int stop_workers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) workers_destroy(groups[i]);
    return 0;
}

/* Workers are this very executable. */
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0) return cli_worker(argc - 1, argv + 1);
    comm *c = NULL;
    error err = {{0}};
    if (!status_ok(comm_create(&(comm_options){.kind = "ucx", .size = 1}, &c, &err))) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    comm_destroy(c);
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_answer_as_one)};
    return cmocka_run_group_tests_name("processes", tests, NULL, stop_workers);
}

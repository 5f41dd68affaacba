/* Ranks in processes, as `--workers local` starts them, against one rank in f32: whole rows of
 * logits, log-probabilities, tokens, and what is kept; and against ranks in threads, bit for bit.
 * With OCTAVO_SOAK: every model and preset at 2 ranks, each with cached prefixes, swaps and
 * replays, and at all other numbers of ranks that divide the model; otherwise a few of these rows.
 * cli_processes_test MODEL runs all rows of one model. */
#include "tests/e2e/house.h"

#include "cli/cli.h"
#include "cli/workers/workers.h"

#include <math.h>

enum { REQUESTS = 8, PROMPT_MAX = 120, OUTPUTS = 80, VOCAB = 60, TOP = SAMPLE_LOGPROBS_MAX };
enum { PAGE_TOKENS = 16, RANKS_MAX = 8, SCARCE_PAGES = 22, KEPT_MAX = 1 << 14 };
enum { VOCAB_MOST = 64, TOKENS_MAX = PROMPT_MAX + OUTPUTS, PRESETS_MAX = 64 };

typedef struct answer {
    uint32_t n;
    step_sample outputs[OUTPUTS];
    uint32_t cached_tokens;
    double dropped;      /* tokens, of those that a table had */
    char kept[KEPT_MAX]; /* positions, as reported */
} answer;

/* ---- logits ---------------------------------------------------------------------------------- */

/* For each token of each request: the outcome of its row. */
typedef struct record {
    float logits[REQUESTS][TOKENS_MAX][VOCAB_MOST];
    bool has[REQUESTS][TOKENS_MAX];
    uint32_t n_again, n_changed; /* rows computed more than once, and with other bits */
} record;

/* A backend that asks for the logits of every share that draws, beyond what the engine wants. */
typedef struct scribe {
    backend inner;
    record *record;
    step_plan plan;
    step_seq seqs[HOUSE_SEQS];
    step_result result;
    uint32_t whose[2 * HOUSE_SEQS]; /* by sequence number: length of its prompt */
} scribe;

static const backend_info *scribe_info(void *ctx)
{
    scribe *s = ctx;
    return s->inner.ops->info(s->inner.ctx);
}

static status scribe_submit(void *ctx, const step_plan *plan)
{
    scribe *s = ctx;
    if (plan->n_seqs > HOUSE_SEQS) abort();
    for (uint32_t i = 0; i < plan->n_opens; i++) {
        if (plan->opens[i].seq >= 2 * HOUSE_SEQS) abort();
        s->whose[plan->opens[i].seq] = plan->opens[i].n_prompt;
    }
    s->plan = *plan;
    s->plan.seqs = s->seqs;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        s->seqs[i] = plan->seqs[i];
        s->seqs[i].want_logits = plan->seqs[i].n_samples > 0;
    }
    return s->inner.ops->submit(s->inner.ctx, &s->plan);
}

/* Prompts have different lengths, which identify the requests. Positions may have been reassigned,
 * so rows are counted back from the one that draws. */
static void write_down(scribe *s, const step_seq *share, const float *logits)
{
    uint32_t n_prompt = s->whose[share->seq], request = PROMPT_MAX - n_prompt;
    uint32_t vocab = scribe_info(s)->vocab_size;
    if (request >= REQUESTS) return; /* the doorman */
    uint32_t stop = n_prompt + share->sample_index;
    if (stop > TOKENS_MAX || stop < share->n_tokens || vocab > VOCAB_MOST) abort();
    for (uint32_t t = stop - share->n_tokens; t < stop; t++, logits += vocab) {
        float *row = s->record->logits[request][t];
        bool *has = &s->record->has[request][t];
        s->record->n_again += *has;
        s->record->n_changed += *has && memcmp(row, logits, vocab * sizeof *row) != 0;
        if (!*has) memcpy(row, logits, vocab * sizeof *row);
        *has = true;
    }
}

static status scribe_collect(void *ctx, const step_result **out)
{
    scribe *s = ctx;
    const step_result *r;
    RETURN_IF_ERROR(s->inner.ops->collect(s->inner.ctx, &r));
    s->result = *r;
    s->result.logits = NULL;
    s->result.n_logit_rows = 0;
    *out = &s->result;
    if (!status_ok(r->status)) return STATUS_IS_OK;
    const float *logits = r->logits;
    for (uint32_t i = 0; i < s->plan.n_seqs; i++) {
        if (!s->seqs[i].want_logits) continue;
        write_down(s, &s->seqs[i], logits);
        logits += (size_t)s->seqs[i].n_tokens * scribe_info(s)->vocab_size;
    }
    return STATUS_IS_OK;
}

static void scribe_interrupt(void *ctx)
{
    scribe *s = ctx;
    s->inner.ops->interrupt(s->inner.ctx);
}

static void scribe_destroy(void *ctx)
{
    scribe *s = ctx;
    s->inner.ops->destroy(s->inner.ctx);
    free(s);
}

static backend scribe_create(backend inner, record *r)
{
    static const backend_ops ops = {
        .info = scribe_info,
        .submit = scribe_submit,
        .collect = scribe_collect,
        .interrupt = scribe_interrupt,
        .destroy = scribe_destroy,
    };
    scribe *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->inner = inner;
    s->record = r;
    return (backend){&ops, s};
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The nth preset, with values for these prompts; with windows in some layers positions stay. NULL:
 * nothing is dropped. Answers of reform have other prompts (tests/e2e/reform_test.c). */
static json_t *retention_of(uint32_t nth, bool windows)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n), *p = &presets[nth % (n + 1)];
    if (nth % (n + 1) == n || (windows && p->defaults.contiguous)) return NULL;
    if (p->defaults.gather_tokens) return NULL;
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
    } else if (p->defaults.schedule == RETENTION_SCHEDULE_INPUT) {
        /* Nothing is cut, since prompts are identified by their length. */
        json_object_set_new(r, "tokens", json_integer(PROMPT_MAX));
    } else if (p->needs_budget) {
        json_object_set_new(r, "ratio", json_real(0.4));
    }
    if (strncmp(p->name, "andpro", 6) == 0) { /* these numbers travel to workers */
        json_object_set_new(r, "bias", json_real(0.7));
        json_object_set_new(r, "theta", json_real(5));
    }
    return r;
}

/* All prompts share a beginning, then differ. */
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
    r.prompt_token_ids = NULL; /* it belongs to the test */
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
        if (out.report) a->dropped = out.report->logical_tokens - out.report->kept_tokens;
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

/* ---- tolerances ------------------------------------------------------------------------------ */

/* The log-probability of a token in a sample's list; NaN: not in it. */
static double logprob_of(const step_sample *s, uint32_t token)
{
    for (uint32_t k = 0; k < s->n_top; k++)
        if (s->top_ids[k] == token) return (double)s->top_logprobs[k];
    return NAN;
}

typedef struct distance {
    double squares, of; /* sums of squares: of differences, and of the expected values */
} distance;

static double nmse_of(const distance *d) { return d->squares / d->of; }

static void add_difference(distance *d, float want, float got)
{
    double a = (double)want, b = (double)got;
    d->squares += (a - b) * (a - b);
    d->of += a * a;
}

/* False when the most likely tokens differ. */
static bool add_logprobs(distance *d, const step_sample *want, const step_sample *got)
{
    uint32_t n_met = 0;
    assert_int_equal(want->n_top, TOP);
    for (uint32_t k = 0; k < want->n_top; k++) {
        float b = (float)logprob_of(got, want->top_ids[k]);
        if (isnan(b)) continue; /* the ends of the two lists may differ */
        add_difference(d, want->top_logprobs[k], b);
        n_met++;
    }
    return n_met + 3 >= want->n_top;
}

/* Distance over the first n tokens; prompts may have been cached, answers are always computed. */
static distance logits_distance(uint32_t request, uint32_t n, uint32_t vocab, const record *want,
                                const record *got)
{
    distance d = {0};
    for (uint32_t t = 0; t < n; t++) {
        bool has = want->has[request][t] && got->has[request][t];
        assert_true(has || t + 1 < PROMPT_MAX - request);
        for (uint32_t i = 0; has && i < vocab; i++)
            add_difference(&d, want->logits[request][t][i], got->logits[request][t][i]);
    }
    return d;
}

/* Compares two answers up to the first token that differs, which must be a tie. */
typedef struct likeness {
    distance logits, logprobs;
    double worst;    /* the largest NMSE of logits among the answers */
    uint32_t n_ties; /* answers that differ after a tie */
} likeness;

typedef struct outcome {
    answer answers[REQUESTS];
    record record;
} outcome;

static uint32_t common_tokens(const char *what, uint32_t i, const answer *want, const answer *got,
                              likeness *l)
{
    for (uint32_t t = 0; t < OUTPUTS; t++) {
        const step_sample *w = &want->outputs[t], *g = &got->outputs[t];
        if (!add_logprobs(&l->logprobs, w, g))
            fail_msg("%s: request %u, token %u: others are likely", what, i, t);
        if (w->token == g->token) continue;
        double nats = logprob_of(w, w->token) - logprob_of(w, g->token);
        if (!(nats <= 1e-4))
            fail_msg("%s: request %u, token %u: %u, by %.2e less likely than %u", what, i, t,
                     g->token, nats, w->token);
        l->n_ties++;
        return t;
    }
    return OUTPUTS;
}

static void compare(const char *what, uint32_t i, uint32_t vocab, const outcome *due,
                    const outcome *is, likeness *l)
{
    const answer *want = &due->answers[i], *got = &is->answers[i];
    assert_int_equal(want->n, OUTPUTS);
    assert_int_equal(got->n, OUTPUTS);
    uint32_t common = common_tokens(what, i, want, got, l);
    uint32_t rows = PROMPT_MAX - i - 1 + (common < OUTPUTS ? common + 1 : OUTPUTS);
    distance d = logits_distance(i, rows, vocab, &due->record, &is->record);
    if (!(nmse_of(&d) < 1e-9)) fail_msg("%s: request %u: NMSE %.2e", what, i, nmse_of(&d));
    if (nmse_of(&d) > l->worst) l->worst = nmse_of(&d);
    l->logits.squares += d.squares;
    l->logits.of += d.of;
    if (common == OUTPUTS && strcmp(want->kept, got->kept) != 0)
        fail_msg("%s: request %u keeps %s, not %s", what, i, got->kept, want->kept);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* One model of each family that two ranks can share, all with room for the answers. */
static const char *const positions = "max_position_embeddings=256";
static const char *const models[] = {
    "llama3_rope_f32", "mistral_f32",   "qwen2_window_bf16", "qwen3_layers_bf16", "mixtral_f32",
    "qwen3_moe_f32",   "qwen2_moe_f32", "internlm2_f32",     "phi3_f32",          "gemma3_f32"};
enum {
    MODELS = sizeof models / sizeof *models,
    ROWS = 4 /* REQUESTS presets each */
};

typedef enum pool { ROOMY, SWAPS, REPLAYS, POOLS } pool;

static workers *groups[RANKS_MAX + 1]; /* by number of ranks; started when first needed */

static record *now_written; /* receives the logits of the next backend */

static status recorded(status made, backend *b)
{
    if (status_ok(made)) *b = scribe_create(*b, now_written);
    return made;
}

static status make_alone(const backend_options *o, uint32_t n_ranks, backend *out, error *err)
{
    (void)n_ranks;
    return recorded(backend_cpu_create(o, out, err), out);
}

static status make_threads(const backend_options *o, uint32_t n_ranks, backend *out, error *err)
{
    return recorded(backend_cpu_ranks_create(o, n_ranks, out, err), out);
}

static status make_processes(const backend_options *o, uint32_t n_ranks, backend *out, error *err)
{
    /* A busy machine may let eight processes wait for seconds. */
    static const workers_flags local = {.where = "local", .silence_ms = 60000};
    const workers_device cpu = {.name = "cpu", .kv_type = kern_kv_name(o->kv_type)};
    backend_facts facts;
    if (!groups[n_ranks])
        RETURN_IF_ERROR(workers_create(&local, &cpu, &n_ranks, &groups[n_ranks], err));
    return recorded(workers_make_backend(groups[n_ranks], o, &positions, 1, out, &facts, err), out);
}

static setting setting_of(const char *name, model_config *c)
{
    static char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    assert_true(status_ok(model_config_load(dir, &positions, 1, c, NULL)));
    return (setting){.dir = dir,
                     .override = positions,
                     .prefill_chunk = 256,
                     .kv_type = KERN_KV_F32,
                     .precision = KERN_PRECISION_HIGH,
                     .layers_per_group = 1,
                     .heads_per_group = 1,
                     .page_tokens = PAGE_TOKENS,
                     .max_model_len = 200,
                     .kv_bytes = 16 << 20};
}

/* So few pages that they run short as answers grow. Tables are of single heads, and each rank keeps
 * room for the pages of all heads. */
static uint64_t scarce_bytes(const model_config *c, uint32_t n_ranks)
{
    uint64_t page = 2 * (uint64_t)c->head_dim * PAGE_TOKENS * sizeof(float);
    uint64_t tables = (uint64_t)c->n_layers * c->n_kv_heads;
    return SCARCE_PAGES * tables * page * n_ranks;
}

typedef struct totals {
    likeness like;
    uint64_t swaps, replays, hits;
    double dropped[PRESETS_MAX];
    uint32_t n_rows, n_again;
} totals;

/* The answers with enough pages, from one rank or from threads: REQUESTS presets from the
 * first_preset-th on. */
static void answer_in_peace(setting s, const model_config *c, uint32_t first_preset, outcome *out)
{
    now_written = &out->record;
    memset(&out->record, 0, sizeof out->record);
    s.make_ranks = s.n_ranks > 0 ? make_threads : make_alone;
    house h = open_house(&s);
    ask(&h, first_preset, c->window > 0, out->answers);
    close_house(&h);
}

/* The outcome must have the bits of ranks in threads, which add in rank order. */
static void expect_bits_of_threads(const char *what, uint32_t vocab, const outcome *threads,
                                   const outcome *is)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const answer *due = &threads->answers[i], *got = &is->answers[i];
        bool same = strcmp(due->kept, got->kept) == 0;
        for (uint32_t t = 0; t < OUTPUTS; t++) {
            const step_sample *a = &due->outputs[t], *b = &got->outputs[t];
            same &= a->token == b->token && a->logprob == b->logprob &&
                    !memcmp(a->top_logprobs, b->top_logprobs, sizeof a->top_logprobs);
        }
        for (uint32_t t = 0; t < TOKENS_MAX; t++)
            if (threads->record.has[i][t] && is->record.has[i][t])
                same &= !memcmp(threads->record.logits[i][t], is->record.logits[i][t],
                                vocab * sizeof(float));
        if (!same) fail_msg("%s: request %u: other bits than ranks in threads", what, i);
    }
}

typedef struct row_spec {
    const char *name;
    const model_config *config;
    uint32_t first_preset;
    pool pool;
    setting setting; /* with n_ranks */
    const outcome *alone, *threads;
} row_spec;

static void check_round(const char *what, const row_spec *r, const outcome *is, totals *all)
{
    size_t n_presets;
    retention_presets(&n_presets);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        compare(what, i, r->config->vocab_size, r->alone, is, &all->like);
        all->hits += is->answers[i].cached_tokens;
        all->dropped[(r->first_preset + i) % (n_presets + 1)] += is->answers[i].dropped;
    }
    expect_bits_of_threads(what, r->config->vocab_size, r->threads, is);
}

/* In a pool with room the second round hits the prefixes of the first. */
static void check_row(const row_spec *r, totals *all)
{
    static outcome is;
    char what[192];
    setting s = r->setting;
    s.make_ranks = make_processes;
    s.prefix_cache = true;
    if (r->pool != ROOMY) s.kv_bytes = scarce_bytes(r->config, s.n_ranks);
    if (r->pool == SWAPS) s.swap_bytes = 16 << 20;
    snprintf(what, sizeof what, "%s, presets from %u, %u processes, pool %u", r->name,
             r->first_preset, s.n_ranks, r->pool);
    now_written = &is.record;
    memset(&is.record, 0, sizeof is.record);
    house h = open_house(&s);
    for (int round = 0; round < (r->pool == ROOMY ? 2 : 1); round++) {
        ask(&h, r->first_preset, r->config->window > 0, is.answers);
        check_round(what, r, &is, all);
    }
    if (is.record.n_changed > 0)
        fail_msg("%s: %u rows came out otherwise from a cache or when computed again", what,
                 is.record.n_changed);
    sched_stats stats = engine_get_stats(h.engine).sched;
    all->swaps += stats.swaps_out;
    all->replays += stats.preemptions - stats.swaps_out;
    all->n_again += is.record.n_again;
    all->n_rows++;
    close_house(&h);
}

static void print_totals(const char *what, const totals *all)
{
    print_message("%s: %u rows: NMSE of logits %.2e, worst answer %.2e, of log-probabilities %.2e; "
                  "%u ties, %llu swaps, %llu replays, %llu tokens cached, %u computed again\n",
                  what, all->n_rows, nmse_of(&all->like.logits), all->like.worst,
                  nmse_of(&all->like.logprobs), all->like.n_ties, (unsigned long long)all->swaps,
                  (unsigned long long)all->replays, (unsigned long long)all->hits, all->n_again);
    assert_true(nmse_of(&all->like.logprobs) < 1e-9);
    assert_true(all->swaps > 0 && all->replays > 0 && all->hits > 0);
}

static void a_few_rows(void)
{
    static const struct {
        const char *model;
        uint32_t nth, n_ranks;
        pool pool;
    } rows[] = {{"mistral_f32", 0, 2, SWAPS},
                {"qwen3_layers_bf16", 1, 8, REPLAYS},
                {"qwen3_moe_f32", 2, 4, ROOMY}};
    static outcome alone, threads;
    totals all = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        model_config c;
        row_spec r = {.name = rows[i].model, .config = &c, .alone = &alone, .threads = &threads};
        r.setting = setting_of(r.name, &c);
        r.first_preset = rows[i].nth * REQUESTS;
        r.pool = rows[i].pool;
        answer_in_peace(r.setting, &c, r.first_preset, &alone);
        r.setting.n_ranks = rows[i].n_ranks;
        answer_in_peace(r.setting, &c, r.first_preset, &threads);
        check_row(&r, &all);
    }
    print_totals("few", &all);
}

/* Every number of ranks that divides the model; every pool with two and three ranks. */
static void check_model(const char *name, uint32_t m, double *dropped)
{
    static outcome alone, threads;
    totals all = {0};
    model_config c;
    row_spec r = {.name = name, .config = &c, .alone = &alone, .threads = &threads};
    r.setting = setting_of(name, &c);
    for (uint32_t nth = 0; nth < ROWS; nth++) {
        r.first_preset = nth * REQUESTS;
        r.setting.n_ranks = 0;
        answer_in_peace(r.setting, &c, r.first_preset, &alone);
        for (uint32_t n = 2; n <= RANKS_MAX; n++) {
            if (!status_ok(model_ranks_check(&c, n, NULL))) continue;
            r.setting.n_ranks = n;
            answer_in_peace(r.setting, &c, r.first_preset, &threads);
            for (r.pool = ROOMY; r.pool < POOLS; r.pool++)
                if (n < 4 || r.pool == (m + nth + n) % POOLS) check_row(&r, &all);
        }
    }
    print_totals(name, &all);
    for (uint32_t i = 0; i < PRESETS_MAX; i++) dropped[i] += all.dropped[i];
}

static void every_family_is_there(void)
{
    for (size_t i = 0; i < model_family_count(); i++) {
        bool met = false;
        for (uint32_t m = 0; m < MODELS; m++) {
            model_config c;
            setting_of(models[m], &c);
            met |= strcmp(c.architecture, model_family_architecture(i)) == 0 &&
                   status_ok(model_ranks_check(&c, 2, NULL));
        }
        if (!met) fail_msg("no model of %s for two ranks", model_family_architecture(i));
    }
}

static void processes_answer_as_one(void **state)
{
    const char *only = *state;
    double dropped[PRESETS_MAX] = {0};
    size_t n_presets;
    const retention_preset *presets = retention_presets(&n_presets);
    assert_true(n_presets + 1 <= ROWS * REQUESTS && n_presets < PRESETS_MAX);
    every_family_is_there();
    if (!only && !getenv("OCTAVO_SOAK")) {
        a_few_rows();
        return;
    }
    uint32_t n_checked = 0;
    for (uint32_t m = 0; m < MODELS; m++) {
        if (only && strcmp(models[m], only) != 0) continue;
        check_model(models[m], m, dropped);
        n_checked++;
    }
    assert_true(n_checked > 0);
    for (size_t i = 0; i < n_presets && !only; i++)
        if (!(dropped[i] > 0) && strcmp(presets[i].name, "full") != 0)
            fail_msg("%s never dropped anything", presets[i].name);
}

static int stop_workers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) workers_destroy(groups[i]);
    return 0;
}

/* The workers are this executable. */
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return cli_worker(&(cli_line){.argc = argc - 1, .argv = argv + 1});
    comm *c = NULL;
    error err = {{0}};
    if (!status_ok(comm_create(&(comm_options){.kind = "ucx", .size = 1}, &c, &err))) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    comm_destroy(c);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(processes_answer_as_one, argc > 1 ? argv[1] : NULL)};
    return cmocka_run_group_tests_name("processes", tests, NULL, stop_workers);
}

#include "cli/bench/bench_calls.h"

#include "cli/bench/bench_drive.h"
#include "cli/bench/bench_sched.h"

#include <stdlib.h>

enum {
    PROMPT_TOKENS = 128,
    SESSION_TOKENS = 16,
    STEPS_PER_ROUND = 40,
    STATS_PER_ROUND = 20,
    ROUNDS_MAX = 64,
    CHUNK = 8192,
};

typedef bench_calls_options sizes;

/* Pages of one sequence of n tokens, and of the token after them. */
static uint64_t pages_of(const sizes *o, uint32_t n)
{
    return (n / o->geometry.page_tokens + UINT64_C(1)) * pkv_groups(&o->geometry);
}

/* A pool of so many; one that is too large is refused where it is made. */
static uint32_t pool_of(uint64_t pages)
{
    return pages < UINT32_MAX ? (uint32_t)pages + 1 : UINT32_MAX;
}

/* n prompts, one behind the other. Each begins with a token of its own, `first` and up, so that no
 * two share a prefix. */
static uint32_t *make_prompts(uint32_t first, uint32_t n, uint32_t n_tokens)
{
    uint32_t *tokens = calloc((size_t)n * n_tokens, sizeof *tokens);
    for (uint32_t i = 0; tokens && i < n; i++)
        for (uint32_t t = 0; t < n_tokens; t++)
            tokens[(size_t)i * n_tokens + t] = t == 0 ? first + i : t;
    return tokens;
}

static double us_between(int64_t start_ns, int64_t end_ns)
{
    return (double)(end_ns - start_ns) / 1e3;
}

/* ---- rows of decoding sequences -------------------------------------------------------------- */

/* Steps that n prompts of PROMPT_TOKENS take, and those that are timed. */
static uint32_t tokens_to_decode(const sizes *o)
{
    return 64 + o->running * PROMPT_TOKENS / CHUNK + (o->rounds + 1) * STEPS_PER_ROUND;
}

/* With room for `more` pages. */
static sched_options decode_options(const sizes *o, uint64_t more)
{
    uint32_t length = PROMPT_TOKENS + tokens_to_decode(o);
    return (sched_options){.geometry = o->geometry,
                           .n_pages = pool_of(o->running * pages_of(o, length) + more),
                           .max_seqs = o->running,
                           .prefill_chunk = CHUNK,
                           .max_model_len = length,
                           .max_requests = o->running,
                           .max_in_flight = 2,
                           .prefix_cache = true};
}

static status add_decodes(const sizes *o, bench_drive *d, const uint32_t *prompts, error *err)
{
    for (uint32_t i = 0; i < o->running; i++)
        RETURN_IF_ERROR(bench_drive_add(d, prompts + (size_t)i * PROMPT_TOKENS, PROMPT_TOKENS,
                                        tokens_to_decode(o), 0, err));
    return bench_drive_settle(d, o->running, err);
}

/* Times steps of decodes. mirror_us may be NULL. */
static status time_turns(const sizes *o, bench_drive *d, double *step_us, double *mirror_us,
                         error *err)
{
    double step[ROUNDS_MAX], mirror[ROUNDS_MAX];
    for (uint32_t r = 0; r < o->rounds; r++) {
        int64_t step_ns = 0, mirror_ns = 0;
        for (int i = 0; i < STEPS_PER_ROUND; i++) {
            RETURN_IF_ERROR(bench_drive_turn(d, err));
            step_ns += d->step_ns;
            mirror_ns += d->mirror_ns;
        }
        step[r] = us_between(0, step_ns) / STEPS_PER_ROUND;
        mirror[r] = us_between(0, mirror_ns) / STEPS_PER_ROUND;
    }
    *step_us = bench_median(step, o->rounds);
    if (mirror_us) *mirror_us = bench_median(mirror, o->rounds);
    return STATUS_IS_OK;
}

static double time_stats(const sizes *o, const bench_drive *d)
{
    double us[ROUNDS_MAX];
    uint64_t seen = 0;
    for (uint32_t r = 0; r < o->rounds; r++) {
        int64_t start = clock_now_ns();
        for (int i = 0; i < STATS_PER_ROUND; i++) seen += sched_get_stats(d->sched).running;
        us[r] = us_between(start, clock_now_ns()) / STATS_PER_ROUND;
    }
    return seen > 0 ? bench_median(us, o->rounds) : 0;
}

static status time_decodes(const sizes *o, double *us, error *err)
{
    bench_drive d;
    sched_options so = decode_options(o, 0);
    uint32_t *prompts = make_prompts(0, o->running, PROMPT_TOKENS);
    if (!prompts) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = bench_drive_create(&so, so.max_requests, true, &d, err);
    if (status_ok(st)) {
        st = add_decodes(o, &d, prompts, err);
        if (status_ok(st))
            st = time_turns(o, &d, &us[BENCH_CALL_STEP], &us[BENCH_CALL_MIRROR], err);
        if (status_ok(st)) us[BENCH_CALL_STATS] = time_stats(o, &d);
        bench_drive_destroy(&d);
    }
    free(prompts);
    return st;
}

/* ---- rows of idle sessions ------------------------------------------------------------------- */

static status make_sessions(const sizes *o, bench_drive *d, const uint32_t *prompts, error *err)
{
    for (uint32_t i = 0; i < o->sessions; i++)
        RETURN_IF_ERROR(bench_drive_add(d, prompts + (size_t)i * SESSION_TOKENS, SESSION_TOKENS, 1,
                                        1 + i, err));
    RETURN_IF_ERROR(bench_drive_finish(d, err));
    uint32_t made = sched_get_stats(d->sched).sessions_idle;
    if (made == o->sessions) return STATUS_IS_OK;
    return error_set(err, STATUS_INTERNAL, "%u of %u sessions are idle", made, o->sessions);
}

static status time_sessions(const sizes *o, double *us, error *err)
{
    bench_drive d;
    sched_options so = decode_options(o, o->sessions * pages_of(o, SESSION_TOKENS));
    so.max_requests += o->sessions;
    so.max_sessions = o->sessions;
    so.session_ttl_us = INT64_C(3600) * 1000000;
    uint32_t *prompts = make_prompts(0, o->running, PROMPT_TOKENS);
    uint32_t *firsts = make_prompts(o->running, o->sessions, SESSION_TOKENS);
    status st = prompts && firsts ? bench_drive_create(&so, so.max_requests, false, &d, err)
                                  : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(st)) {
        st = make_sessions(o, &d, firsts, err);
        if (status_ok(st)) st = add_decodes(o, &d, prompts, err);
        if (status_ok(st)) st = time_turns(o, &d, &us[BENCH_CALL_STEP_SESSIONS], NULL, err);
        if (status_ok(st)) us[BENCH_CALL_STATS_SESSIONS] = time_stats(o, &d);
        bench_drive_destroy(&d);
    }
    free(prompts);
    free(firsts);
    return st;
}

/* ---- rows of one long sequence --------------------------------------------------------------- */

/* Closes a published sequence and opens it again with a hit. */
static status time_hit(const sizes *o, pkv *kv, uint64_t salt, const uint32_t *tokens,
                       double *close_us, double *open_us)
{
    uint32_t n = o->long_tokens, hit;
    RETURN_IF_ERROR(pkv_seq_open(kv, 0, PKV_ALL, tokens, 0, salt, n, &hit));
    RETURN_IF_ERROR(pkv_seq_append(kv, 0, n));
    pkv_seq_publish(kv, 0, tokens, n);
    pkv_take_deltas(kv);
    int64_t start = clock_now_ns();
    pkv_seq_close(kv, 0);
    int64_t closed = clock_now_ns();
    pkv_take_deltas(kv);
    int64_t again = clock_now_ns();
    RETURN_IF_ERROR(pkv_seq_open(kv, 0, PKV_ALL, tokens, n - 1, salt, n, &hit));
    int64_t opened = clock_now_ns();
    *close_us = us_between(start, closed);
    *open_us = us_between(again, opened);
    pkv_seq_close(kv, 0);
    pkv_take_deltas(kv);
    return hit + o->geometry.page_tokens >= n ? STATUS_IS_OK
                                              : status_make(STATUS_INTERNAL, "no prefix hit");
}

/* Swaps a sequence out that was not published, and in again: every page is copied. */
static status time_swap(const sizes *o, pkv *kv, const uint32_t *tokens, double *out_us,
                        double *in_us)
{
    uint32_t n = o->long_tokens, hit, swap;
    RETURN_IF_ERROR(pkv_seq_open(kv, 0, PKV_ALL, tokens, 0, 0, n, &hit));
    RETURN_IF_ERROR(pkv_seq_append(kv, 0, n));
    pkv_take_deltas(kv);
    int64_t start = clock_now_ns();
    RETURN_IF_ERROR(pkv_seq_swap_out(kv, 0, &swap));
    int64_t out = clock_now_ns();
    pkv_take_deltas(kv);
    int64_t back = clock_now_ns();
    RETURN_IF_ERROR(pkv_swap_in(kv, swap, 0, tokens, n));
    int64_t in = clock_now_ns();
    *out_us = us_between(start, out);
    *in_us = us_between(back, in);
    pkv_seq_close(kv, 0);
    pkv_take_deltas(kv);
    return STATUS_IS_OK;
}

static status time_rounds(const sizes *o, pkv *kv, const uint32_t *tokens, double *us)
{
    enum { ROWS = 4 };
    double rounds[ROWS][ROUNDS_MAX];
    for (uint32_t r = 0; r < o->rounds; r++) {
        RETURN_IF_ERROR(time_hit(o, kv, 1 + r, tokens, &rounds[0][r], &rounds[1][r]));
        RETURN_IF_ERROR(time_swap(o, kv, tokens, &rounds[2][r], &rounds[3][r]));
    }
    for (int i = 0; i < ROWS; i++) us[BENCH_CALL_CLOSE + i] = bench_median(rounds[i], o->rounds);
    return STATUS_IS_OK;
}

static status time_long(const sizes *o, const uint32_t *tokens, double *us, error *err)
{
    uint32_t pages = pool_of(pages_of(o, o->long_tokens));
    pkv_options po = {.geometry = o->geometry,
                      .n_pages = pages,
                      .n_host_pages = pages - 1,
                      .max_seqs = 1,
                      .prefix_cache = true};
    pkv *kv = NULL;
    status st = pkv_create(&po, &kv);
    if (status_ok(st)) st = time_rounds(o, kv, tokens, us);
    pkv_destroy(kv);
    if (status_ok(st)) return st;
    return error_set(err, st.code, "a sequence of %u tokens: %s", o->long_tokens,
                     st.message ? st.message : status_text(st.code));
}

/* A request of the long prompt, which is cached, lacks pages as long as another one decodes. Turns
 * have one step in flight: then admission is tried in every one. */
static status time_blocked(const sizes *o, bench_drive *d, const uint32_t *tokens, double *us,
                           error *err)
{
    double rounds[ROUNDS_MAX];
    uint32_t decode = 8 + o->rounds * STEPS_PER_ROUND;
    RETURN_IF_ERROR(bench_drive_add(d, tokens, o->long_tokens, 1, 0, err));
    RETURN_IF_ERROR(bench_drive_finish(d, err));
    RETURN_IF_ERROR(bench_drive_add(d, tokens + 1, PROMPT_TOKENS, decode, 0, err));
    RETURN_IF_ERROR(bench_drive_settle(d, 1, err));
    RETURN_IF_ERROR(
        bench_drive_add(d, tokens, o->long_tokens, o->geometry.page_tokens + 1, 0, err));
    for (uint32_t r = 0; r < o->rounds; r++) {
        int64_t ns = 0;
        for (int i = 0; i < STEPS_PER_ROUND; i++) {
            RETURN_IF_ERROR(bench_drive_turn(d, err));
            ns += d->step_ns;
        }
        rounds[r] = us_between(0, ns) / STEPS_PER_ROUND;
    }
    *us = bench_median(rounds, o->rounds);
    if (sched_get_stats(d->sched).waiting == 1) return STATUS_IS_OK;
    return error_set(err, STATUS_INTERNAL, "the head of line was not blocked");
}

static status time_head(const sizes *o, const uint32_t *tokens, double *us, error *err)
{
    /* Exactly what the long request takes when it runs alone. */
    uint32_t length = o->long_tokens + o->geometry.page_tokens + 1;
    sched_options so = {.geometry = o->geometry,
                        .n_pages = pool_of(pages_of(o, length - 2)),
                        .max_seqs = 2,
                        .prefill_chunk = CHUNK,
                        .max_model_len = length > 4096 ? length : 4096,
                        .max_requests = 3,
                        .prefix_cache = true};
    bench_drive d;
    RETURN_IF_ERROR(bench_drive_create(&so, so.max_requests, false, &d, err));
    status st = time_blocked(o, &d, tokens, us, err);
    bench_drive_destroy(&d);
    return st;
}

status bench_calls(const bench_calls_options *options, double *us, error *err)
{
    bench_calls_options o = *options;
    if (o.rounds > ROUNDS_MAX) o.rounds = ROUNDS_MAX;
    RETURN_IF_ERROR(time_decodes(&o, us, err));
    RETURN_IF_ERROR(bench_arrivals(&o, &us[BENCH_CALL_ARRIVALS], err));
    RETURN_IF_ERROR(bench_select(&o, "chunkkv", &us[BENCH_CALL_SELECT_LAYERS], err));
    RETURN_IF_ERROR(bench_select(&o, "snapkv", &us[BENCH_CALL_SELECT_HEADS], err));
    RETURN_IF_ERROR(time_sessions(&o, us, err));
    uint32_t *tokens = make_prompts(0, 1, o.long_tokens + 1);
    if (!tokens) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = time_long(&o, tokens, us, err);
    if (status_ok(st)) st = time_head(&o, tokens, &us[BENCH_CALL_BLOCKED], err);
    free(tokens);
    return st;
}

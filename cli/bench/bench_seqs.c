/* Step plans that the bench writes itself. */
#include "cli/bench/bench_seqs.h"

#include <stdlib.h>

static status step_failed(status s, error *err)
{
    return error_set(err, s.code, "step: %s", s.message ? s.message : status_text(s.code));
}

static status submit_plan(bench_seqs *b, step_plan *plan, error *err)
{
    plan->step = ++b->step;
    plan->checksum = pkv_checksum(b->kv);
    status s = b->backend->ops->submit(b->backend->ctx, plan);
    if (!status_ok(s)) return step_failed(s, err);
    b->n_in_flight++;
    return STATUS_IS_OK;
}

static status collect_step(bench_seqs *b, const step_result **out, error *err)
{
    const step_result *result = NULL;
    b->n_in_flight--;
    status s = b->backend->ops->collect(b->backend->ctx, &result);
    if (status_ok(s)) s = result->status;
    if (status_ok(s)) b->measure_us += result->measure_us;
    if (out) *out = result;
    return status_ok(s) ? s : step_failed(s, err);
}

status bench_seqs_settle(bench_seqs *b, error *err)
{
    status first = STATUS_IS_OK;
    while (b->n_in_flight > 0) {
        status s = collect_step(b, NULL, status_ok(first) ? err : NULL);
        if (status_ok(first)) first = s;
    }
    return first;
}

static status run_plan(bench_seqs *b, step_plan *plan, const step_result **out, error *err)
{
    RETURN_IF_ERROR(bench_seqs_settle(b, err));
    RETURN_IF_ERROR(submit_plan(b, plan, err));
    return collect_step(b, out, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum { SOURCE_TOKENS = 512 };

/* Computes the prompt whose pages are the sources. The pool may reuse them later: what
 * it writes there is keys and values, too. */
static status make_sources(bench_seqs *b, error *err)
{
    const pkv_geometry *g = &b->info->geometry;
    uint32_t tokens = SOURCE_TOKENS < b->max_rows ? SOURCE_TOKENS : b->max_rows;
    uint32_t pages = tokens / g->page_tokens;
    if ((uint64_t)(pages + 1) * pkv_groups(g) >= b->info->n_pages)
        pages = 1, tokens = g->page_tokens;
    b->sources = calloc(pages, sizeof *b->sources);
    if (!b->sources) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    RETURN_IF_ERROR(bench_seqs_open(b, 1, 0, err));
    RETURN_IF_ERROR(bench_seqs_step(b, tokens, false, NULL, NULL, err));
    pkv_table_view table = pkv_seq_table(b->kv, 0, 0);
    for (uint32_t p = 0; p < pages; p++) b->sources[b->n_sources++] = table.pages[p];
    return bench_seqs_close(b, err);
}

status bench_seqs_create(loaded_model *m, bench_seqs *out, error *err)
{
    const backend_info *info = m->backend.ops->info(m->backend.ctx);
    *out = (bench_seqs){.backend = &m->backend,
                        .info = info,
                        .max_rows = info->max_rows,
                        .grain = pkv_grain_fit(&info->geometry, PKV_ALL),
                        .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1}};
    pkv_options o = {
        .geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = info->max_seqs};
    status s = pkv_create(&o, &out->kv);
    out->tokens = calloc(info->max_rows, sizeof *out->tokens);
    out->shares = calloc(2 * (size_t)info->max_seqs, sizeof *out->shares);
    out->none = calloc(info->max_seqs, sizeof *out->none);
    out->opens = calloc(info->max_seqs, sizeof *out->opens);
    if (!status_ok(s) || !out->tokens || !out->none || !out->shares || !out->opens) {
        bench_seqs_destroy(out);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    rng r = rng_seed(1);
    for (uint32_t i = 0; i < info->max_rows; i++) out->tokens[i] = rng_below(&r, info->vocab_size);
    s = make_sources(out, err);
    if (!status_ok(s)) bench_seqs_destroy(out);
    return s;
}

void bench_seqs_destroy(bench_seqs *b)
{
    pkv_destroy(b->kv);
    free(b->sources);
    free(b->tokens);
    free(b->none);
    free(b->shares);
    free(b->opens);
    free(b->moves);
    *b = (bench_seqs){0};
}

/* ---- contexts -------------------------------------------------------------------------------- */

static status add_move(bench_seqs *b, size_t *n, pkv_move move)
{
    if (*n == b->moves_capacity) {
        size_t capacity = b->moves_capacity ? 2 * b->moves_capacity : 1024;
        pkv_move *grown = realloc(b->moves, capacity * sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "moves");
        b->moves = grown;
        b->moves_capacity = capacity;
    }
    b->moves[(*n)++] = move;
    return STATUS_IS_OK;
}

/* Lists moves that copy the sources in turn to every page of the open sequences. */
static status list_moves(bench_seqs *b, size_t *n)
{
    for (uint32_t s = 0; s < b->n_open; s++) {
        pkv_table_view table = pkv_seq_table(b->kv, s, 0);
        for (uint32_t i = 0; i < table.n_pages; i++) {
            uint32_t source = b->sources[*n % b->n_sources];
            if (table.pages[i] == source) continue;
            pkv_move move = {.grain = b->grain,
                             .src_page = source,
                             .dst_page = table.pages[i],
                             .n_slots = b->info->geometry.page_tokens,
                             .fresh = 1};
            RETURN_IF_ERROR(add_move(b, n, move));
        }
    }
    return STATUS_IS_OK;
}

status bench_seqs_open(bench_seqs *b, uint32_t n, uint32_t context, error *err)
{
    b->n_open = n;
    for (uint32_t s = 0; s < n; s++) {
        uint32_t hit;
        status st = pkv_seq_open(b->kv, s, b->grain, b->tokens, 0, 0, context, &hit);
        if (status_ok(st) && context) st = pkv_seq_append(b->kv, s, context);
        /* The last cells of the pool are not whole pages. */
        if (status_ok(st) && pkv_seq_grain(b->kv, s) != b->grain)
            st = status_make(STATUS_NO_PAGES, NULL);
        if (!status_ok(st)) {
            b->n_open = pkv_seq_is_open(b->kv, s) ? s + 1 : s;
            RETURN_IF_ERROR(bench_seqs_close(b, err));
            return error_set(err, st.code, "%u sequences of %u tokens: %s", n, context,
                             status_text(st.code));
        }
        b->opens[s] = (step_open){.seq = s, .params = &b->params};
    }
    size_t n_moves = 0;
    if (!status_ok(list_moves(b, &n_moves)))
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    step_plan plan = {.deltas = pkv_take_deltas(b->kv), .opens = b->opens, .n_opens = n};
    plan.deltas.moves = b->moves;
    plan.deltas.n_moves = n_moves;
    return run_plan(b, &plan, NULL, err);
}

status bench_seqs_flush(bench_seqs *b, error *err)
{
    step_plan plan = {.deltas = pkv_take_deltas(b->kv)};
    return run_plan(b, &plan, NULL, err);
}

status bench_seqs_close(bench_seqs *b, error *err)
{
    for (uint32_t s = 0; s < b->n_open; s++) pkv_seq_close(b->kv, s);
    b->n_open = 0;
    return bench_seqs_flush(b, err);
}

status bench_seqs_fill_pool(bench_seqs *b, error *err)
{
    const pkv_geometry *g = &b->info->geometry;
    uint64_t tokens = (uint64_t)(b->info->n_pages - 1) / pkv_groups(g) * g->page_tokens;
    RETURN_IF_ERROR(bench_seqs_open(b, 1, (uint32_t)tokens, err));
    return bench_seqs_close(b, err);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Makes the next step's plan: n_tokens more for each open sequence, or, with a step in flight, the
 * token that it draws. */
static status make_plan(bench_seqs *b, uint32_t n_tokens, bool draw, const measure_spec *measure,
                        step_plan *plan, error *err)
{
    bool ahead = b->n_in_flight > 0;
    step_seq *shares = b->shares + b->step % 2 * b->info->max_seqs;
    uint32_t rows = 0;
    for (uint32_t s = 0; s < b->n_open; s++) {
        uint32_t position = pkv_seq_length(b->kv, s);
        status st = pkv_seq_append(b->kv, s, n_tokens);
        if (!status_ok(st)) return error_set(err, st.code, "the pool has no more pages");
        shares[s] = (step_seq){.seq = s,
                               .request = s + 1,
                               .first_token = rows,
                               .n_tokens = n_tokens,
                               .position = position,
                               .n_samples = draw ? 1 : 0,
                               .token_from = ahead ? 1 + s : 0};
        if (measure) shares[s].measure = *measure;
        if (n_tokens == 1) {
            shares[s].retrieval = b->retrieval;
            shares[s].n_prompt = b->n_prompt;
        }
        rows += n_tokens;
    }
    *plan = (step_plan){.deltas = pkv_take_deltas(b->kv),
                        .seqs = shares,
                        .n_seqs = b->n_open,
                        .tokens = ahead ? b->none : b->tokens,
                        .n_tokens = rows};
    return STATUS_IS_OK;
}

status bench_seqs_step(bench_seqs *b, uint32_t n_tokens, bool draw, const measure_spec *measure,
                       const step_result **out, error *err)
{
    step_plan *plan = &b->plans[b->step % 2];
    RETURN_IF_ERROR(bench_seqs_settle(b, err));
    RETURN_IF_ERROR(make_plan(b, n_tokens, draw, measure, plan, err));
    return run_plan(b, plan, out, err);
}

status bench_seqs_decode(bench_seqs *b, const measure_spec *measure, error *err)
{
    step_plan *plan = &b->plans[b->step % 2];
    RETURN_IF_ERROR(make_plan(b, 1, true, measure, plan, err));
    RETURN_IF_ERROR(submit_plan(b, plan, err));
    return b->n_in_flight < b->info->max_in_flight ? STATUS_IS_OK : collect_step(b, NULL, err);
}

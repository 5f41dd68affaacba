/* The cost of retention for one prompt: measuring, selecting, and giving up pages. */
#include "cli/bench/bench_retention.h"
#include "cli/bench/bench_sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Costs of one prompt, in milliseconds. */
typedef struct cost {
    double measure, select, give_up;
} cost;

typedef struct method_cost {
    cost rounds[BENCH_ROUNDS_MAX];
    measure_result mass; // by page, of the last chunk; its values are in `values`
    float *values;
    uint64_t slots_moved, pages_dropped;
    double jaccard; // mean overlap of what neighbouring layers keep
} method_cost;

static double elapsed_ms(int64_t start_ns) { return (double)(clock_now_ns() - start_ns) / 1e6; }

/* Mean over neighbouring layer groups and all head groups of |I and J| / |I or J| of the slots they
 * keep; 1 with a single layer group. */
static double neighbours_jaccard(const pkv_geometry *g, const retention_selection *c)
{
    uint32_t heads = pkv_head_groups(g), n = pkv_groups(g);
    double sum = 0;
    for (uint32_t i = heads; i < n; i++) {
        const uint64_t *a = c->keep + (size_t)(i - heads) * c->words,
                       *b = c->keep + (size_t)i * c->words;
        uint64_t both = 0, any = 0;
        for (uint32_t w = 0; w < c->words; w++) {
            both += (uint64_t)__builtin_popcountll(a[w] & b[w]);
            any += (uint64_t)__builtin_popcountll(a[w] | b[w]);
        }
        sum += any ? (double)both / (double)any : 1;
    }
    return n > heads ? sum / (n - heads) : 1;
}

enum { SELECTIONS = 9 }; /* selections in a round: their median counts */

/* Cuts the tables as finely as the policy selects, selects, gives up the rest, and has the backend
 * make the moves. */
static status time_selection(bench *b, uint32_t tokens, const retention_policy *policy,
                             const measure_result *measures, retention_selection *c,
                             method_cost *out, cost *now, error *err)
{
    pkv *kv = b->seqs.kv;
    double times[SELECTIONS];
    int64_t start = clock_now_ns();
    status cut = pkv_seq_split(kv, 0, retention_grain(policy, &b->seqs.info->geometry), 0);
    if (!status_ok(cut)) return error_set(err, cut.code, "split: %s", status_text(cut.code));
    double split_ms = elapsed_ms(start);
    const pkv_geometry *g = pkv_seq_geometry(kv, 0);
    for (int i = 0; i < SELECTIONS; i++) {
        start = clock_now_ns();
        RETURN_IF_ERROR(retention_select(policy, kv, 0, tokens, measures, c, err));
        times[i] = elapsed_ms(start);
    }
    now->select = bench_median(times, SELECTIONS);
    pkv_counts before = pkv_count(kv);
    start = clock_now_ns();
    for (uint32_t i = 0; i < pkv_groups(g); i++) {
        status st = pkv_seq_keep(kv, 0, i, c->keep + (size_t)i * c->words, policy->contiguous);
        if (!status_ok(st)) return error_set(err, st.code, "keep: %s", status_text(st.code));
    }
    RETURN_IF_ERROR(bench_seqs_flush(&b->seqs, err));
    now->give_up = split_ms + elapsed_ms(start);
    pkv_counts after = pkv_count(kv);
    out->slots_moved = after.slots_moved - before.slots_moved;
    out->pages_dropped = after.pages_dropped - before.pages_dropped;
    out->jaccard = neighbours_jaccard(g, c);
    return STATUS_IS_OK;
}

/* Runs the last chunk of the prompt. The pages before it are copies. */
static status run_chunk(bench *b, uint32_t tokens, uint32_t chunk, const measure_spec *spec,
                        const step_result **out, error *err)
{
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, tokens - chunk, err));
    return bench_seqs_step(&b->seqs, chunk, true, spec, out, err);
}

enum { PAIRS = 5 }; /* pairs of steps in a round: the median of their differences counts */

/* On a GPU, measuring runs between a step's kernels, so its cost is the difference between steps
 * without and with it, taken in turn on the last chunk. */
static status measure_on_gpu(bench *b, uint32_t tokens, uint32_t chunk, const measure_spec *spec,
                             double *ms, error *err)
{
    double extra[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        double of[2];
        for (int with = 0; with < 2; with++) {
            RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, tokens - chunk, err));
            int64_t start = clock_now_ns();
            RETURN_IF_ERROR(bench_seqs_step(&b->seqs, chunk, true, with ? spec : NULL, NULL, err));
            of[with] = elapsed_ms(start);
            RETURN_IF_ERROR(bench_seqs_close(&b->seqs, err));
        }
        extra[i] = of[1] - of[0];
    }
    *ms = bench_median(extra, PAIRS);
    return STATUS_IS_OK;
}

/* Keeps the page mass by which pages are selected. It is measured once, because it costs a whole
 * chunk. */
static status keep_mass(bench *b, uint32_t tokens, uint32_t chunk, const measure_spec *spec,
                        method_cost *out, error *err)
{
    if (out->values) return STATUS_IS_OK;
    const step_result *result;
    RETURN_IF_ERROR(run_chunk(b, tokens, chunk, spec, &result, err));
    out->mass = result->seqs[0].measure;
    size_t n = (size_t)out->mass.n_layers * out->mass.n_kv_heads * out->mass.stride;
    out->values = calloc(n, sizeof *out->values);
    if (!out->values) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    memcpy(out->values, out->mass.values, n * sizeof *out->values);
    out->mass.values = out->values;
    return bench_seqs_close(&b->seqs, err);
}

/* On a CPU page mass is part of attention and is timed there; other measures are a pass of their
 * own, which the backend times in the last chunk of the prompt. Leaves the sequence open. */
static status measure_prompt(bench *b, uint32_t tokens, const retention_policy *policy,
                             bench_mass *mass, method_cost *out, measure_result *measures,
                             cost *now, error *err)
{
    uint32_t chunk = b->model.prefill_chunk < tokens ? b->model.prefill_chunk : tokens;
    measure_spec spec = retention_measure_rows(policy, tokens, tokens - chunk, tokens);
    *measures = (measure_result){0};
    if (spec.kind == MEASURE_NONE) return bench_seqs_open(&b->seqs, 1, tokens, err);
    if (b->model.gpu) RETURN_IF_ERROR(measure_on_gpu(b, tokens, chunk, &spec, &now->measure, err));
    if (!spec.by_slot) {
        RETURN_IF_ERROR(keep_mass(b, tokens, chunk, &spec, out, err));
        *measures = out->mass;
        RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, tokens, err));
        return mass ? bench_mass_time(mass, &spec, &now->measure, err) : STATUS_IS_OK;
    }
    const step_result *result;
    RETURN_IF_ERROR(run_chunk(b, tokens, chunk, &spec, &result, err));
    if (!b->model.gpu) now->measure = (double)result->measure_us / 1e3;
    *measures = result->seqs[0].measure;
    return STATUS_IS_OK;
}

static status one_round(bench *b, uint32_t tokens, const retention_policy *policy, bench_mass *mass,
                        retention_selection *c, method_cost *out, cost *now, error *err)
{
    measure_result measures;
    RETURN_IF_ERROR(measure_prompt(b, tokens, policy, mass, out, &measures, now, err));
    RETURN_IF_ERROR(time_selection(b, tokens, policy, &measures, c, out, now, err));
    return bench_seqs_close(&b->seqs, err);
}

/* Runs all methods in turn, so that a slow moment of the machine does not hit one method alone. */
static status run_rounds(bench *b, uint32_t tokens, const bench_method *methods, size_t n,
                         bench_mass *mass, method_cost *costs, error *err)
{
    const pkv_geometry *g = &b->seqs.info->geometry;
    retention_selection c = {.words = tokens / 64 + 1,
                             .n_scratch = retention_scratch_floats(g, tokens)};
    c.keep = calloc((size_t)pkv_groups(g) * c.words, sizeof *c.keep);
    c.scratch = calloc(c.n_scratch, sizeof *c.scratch);
    status st =
        c.keep && c.scratch ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < b->rounds; i++)
        for (size_t m = 0; m < n && status_ok(st); m++)
            st = one_round(b, tokens, &methods[m].policy, mass, &c, &costs[m], &costs[m].rounds[i],
                           err);
    free(c.keep);
    free(c.scratch);
    return st;
}

static void put_method(bench *b, uint32_t tokens, double prefill_ms, const bench_method *m,
                       const method_cost *costs)
{
    double measure_ms[BENCH_ROUNDS_MAX], select_ms[BENCH_ROUNDS_MAX], give_up[BENCH_ROUNDS_MAX],
        all[BENCH_ROUNDS_MAX];
    for (uint32_t i = 0; i < b->rounds; i++) {
        const cost *r = &costs->rounds[i];
        measure_ms[i] = r->measure;
        select_ms[i] = r->select;
        give_up[i] = r->give_up;
        all[i] = r->measure + r->select + r->give_up;
    }
    size_t n = b->rounds;
    double extra = bench_median(all, n);
    double low = all[0], high = all[n - 1]; /* bench_median has sorted them */
    double parts[] = {bench_median(measure_ms, n), bench_median(select_ms, n),
                      bench_median(give_up, n)};
    if (!b->as_json)
        printf("%-28s %7u %9.3f %9.3f %9.3f %9.3f %9.3f %8.3f %8.4f %9llu %8.2f\n", m->text, tokens,
               parts[0], parts[1], parts[2], low, high, extra, 100 * extra / prefill_ms,
               (unsigned long long)costs->slots_moved, costs->jaccard);
    bench_report_row(&b->report, "cost");
    strbuf_puts(&b->report.rows, ",\"method\":");
    strbuf_json_string(&b->report.rows, m->text, strlen(m->text));
    strbuf_printf(&b->report.rows,
                  ",\"tokens\":%u,\"prefill_ms\":%.6g,\"measure_ms\":%.6g,\"choose_ms\":%.6g,"
                  "\"give_up_ms\":%.6g,\"extra_ms\":%.6g,\"extra_ms_low\":%.6g,"
                  "\"extra_ms_high\":%.6g,\"share_of_prefill\":%.4g,"
                  "\"slots_moved\":%llu,\"pages_dropped\":%llu,\"jaccard\":%.4g}",
                  tokens, prefill_ms, parts[0], parts[1], parts[2], extra, low, high,
                  extra / prefill_ms, (unsigned long long)costs->slots_moved,
                  (unsigned long long)costs->pages_dropped, costs->jaccard);
}

static status time_chunk(bench *b, uint32_t from, uint32_t tokens, double *ms, error *err)
{
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, from, err));
    int64_t start = clock_now_ns();
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, tokens, false, NULL, NULL, err));
    *ms = elapsed_ms(start);
    return bench_seqs_close(&b->seqs, err);
}

/* Chunks differ only by the tokens that their rows attend to, whose number grows evenly, so the
 * first and the last chunk give the mean of all. */
static status time_prefill(bench *b, uint32_t tokens, double *ms, error *err)
{
    uint32_t chunk = b->model.prefill_chunk < tokens ? b->model.prefill_chunk : tokens;
    double first, last;
    RETURN_IF_ERROR(time_chunk(b, 0, chunk, &first, err)); /* warms caches and pages */
    RETURN_IF_ERROR(time_chunk(b, 0, chunk, &first, err));
    RETURN_IF_ERROR(time_chunk(b, tokens - chunk, chunk, &last, err));
    *ms = (first + last) / 2 * tokens / chunk;
    if (!b->as_json)
        printf("\nprefill of %u tokens: %.0f ms (%u tokens at its begin %.0f ms, at its end %.0f "
               "ms)\n",
               tokens, *ms, chunk, first, last);
    return STATUS_IS_OK;
}

status bench_cost(bench *b, uint32_t tokens, const bench_method *methods, size_t n, error *err)
{
    double prefill_ms;
    RETURN_IF_ERROR(time_prefill(b, tokens, &prefill_ms, err));
    bench_mass *mass = NULL;
    if (!b->model.gpu) RETURN_IF_ERROR(bench_mass_create(b, tokens, &mass, err));
    method_cost *costs = calloc(n, sizeof *costs);
    status st = costs ? run_rounds(b, tokens, methods, n, mass, costs, err)
                      : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(st) && !b->as_json)
        printf("\n%-28s %7s %9s %9s %9s %9s %9s %8s %8s %9s %8s\n", "method (ms of one prompt)",
               "tokens", "measure", "select", "give up", "all: min", "max", "median", "% of all",
               "moved", "jaccard");
    for (size_t i = 0; i < n && status_ok(st); i++)
        put_method(b, tokens, prefill_ms, &methods[i], &costs[i]);
    for (size_t i = 0; i < n && costs; i++) free(costs[i].values);
    free(costs);
    bench_mass_destroy(mass);
    return st;
}

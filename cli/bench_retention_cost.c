/* The last chunk of a prompt, plain and measured in turn; then the choice and what carrying it out
 * moves. */
#include "cli/bench_retention.h"
#include "cli/bench_sched.h"

#include <stdio.h>
#include <stdlib.h>

/* Of one chunk, in ms. */
typedef struct chunk_times {
    double chunk, choose, give_up;
    uint64_t slots_moved, pages_dropped;
    double jaccard; // of what neighbouring layers keep, mean
} chunk_times;

static double elapsed_ms(int64_t start_ns) { return (double)(clock_now_ns() - start_ns) / 1e6; }

/* |I and J| / |I or J| of neighbouring layer groups' slots, mean over all of them and all head
 * groups; 1 with a single one. */
static double neighbours_jaccard(const pkv_geometry *g, const retention_choice_out *c)
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

/* Chooses, gives up, and has the backend make the moves. */
static status choose(bench *b, uint32_t tokens, const retention_policy *policy,
                     const measure_result *measures, retention_choice_out *c, chunk_times *out,
                     error *err)
{
    const pkv_geometry *g = &b->seqs.info->geometry;
    pkv *kv = b->seqs.kv;
    int64_t start = clock_now_ns();
    RETURN_IF_ERROR(retention_choose(policy, kv, 0, tokens, measures, c, err));
    out->choose = elapsed_ms(start);
    pkv_counts before = pkv_count(kv);
    start = clock_now_ns();
    for (uint32_t i = 0; i < pkv_groups(g); i++) {
        status st = pkv_seq_keep(kv, 0, i, c->keep + (size_t)i * c->words, policy->contiguous);
        if (!status_ok(st)) return error_set(err, st.code, "keep: %s", status_text(st.code));
    }
    RETURN_IF_ERROR(bench_seqs_flush(&b->seqs, err));
    out->give_up = elapsed_ms(start);
    pkv_counts after = pkv_count(kv);
    out->slots_moved = after.slots_moved - before.slots_moved;
    out->pages_dropped = after.pages_dropped - before.pages_dropped;
    out->jaccard = neighbours_jaccard(g, c);
    return STATUS_IS_OK;
}

/* The pages before the chunk are copies. Without a policy nothing is measured or given up. */
static status last_chunk(bench *b, uint32_t tokens, const retention_policy *policy,
                         chunk_times *out, error *err)
{
    uint32_t chunk = b->model.prefill_chunk < tokens ? b->model.prefill_chunk : tokens;
    const pkv_geometry *g = &b->seqs.info->geometry;
    *out = (chunk_times){0};
    RETURN_IF_ERROR(bench_seqs_open(&b->seqs, 1, tokens - chunk, err));
    measure_spec spec = {0};
    if (policy) spec = retention_measure_rows(policy, tokens, tokens - chunk, tokens);
    const step_result *result;
    int64_t start = clock_now_ns();
    RETURN_IF_ERROR(bench_seqs_step(&b->seqs, chunk, true, policy ? &spec : NULL, &result, err));
    out->chunk = elapsed_ms(start);
    if (policy) {
        retention_choice_out c = {.words = tokens / 64 + 1,
                                  .n_scratch = retention_scratch_floats(g, tokens)};
        c.keep = calloc((size_t)pkv_groups(g) * c.words, sizeof *c.keep);
        c.scratch = calloc(c.n_scratch, sizeof *c.scratch);
        status st = c.keep && c.scratch
                        ? choose(b, tokens, policy, &result->seqs[0].measure, &c, out, err)
                        : error_set(err, STATUS_NO_MEMORY, "out of memory");
        free(c.keep);
        free(c.scratch);
        RETURN_IF_ERROR(st);
    }
    return bench_seqs_close(&b->seqs, err);
}

static status bench_method_cost(bench *b, uint32_t tokens, double prefill_ms, const bench_method *m,
                                error *err)
{
    double measure[BENCH_ROUNDS_MAX], choose_ms[BENCH_ROUNDS_MAX], give_up[BENCH_ROUNDS_MAX],
        all[BENCH_ROUNDS_MAX];
    chunk_times on = {0}, off;
    for (uint32_t i = 0; i < b->rounds; i++) {
        RETURN_IF_ERROR(last_chunk(b, tokens, NULL, &off, err));
        RETURN_IF_ERROR(last_chunk(b, tokens, &m->policy, &on, err));
        measure[i] = on.chunk - off.chunk;
        choose_ms[i] = on.choose;
        give_up[i] = on.give_up;
        all[i] = measure[i] + on.choose + on.give_up;
    }
    size_t n = b->rounds;
    double extra = bench_median(all, n);
    double low = all[0], high = all[n - 1]; /* bench_median has sorted them */
    double parts[] = {bench_median(measure, n), bench_median(choose_ms, n),
                      bench_median(give_up, n)};
    if (!b->as_json)
        printf("%-28s %7u %9.2f %9.3f %9.3f %9.2f %9.2f %8.2f %8.3f %9llu %8.2f\n", m->text, tokens,
               parts[0], parts[1], parts[2], low, high, extra, 100 * extra / prefill_ms,
               (unsigned long long)on.slots_moved, on.jaccard);
    bench_start_row(b, "cost");
    strbuf_puts(&b->json, ",\"method\":");
    strbuf_json_string(&b->json, m->text, strlen(m->text));
    strbuf_printf(&b->json,
                  ",\"tokens\":%u,\"prefill_ms\":%.6g,\"measure_ms\":%.6g,\"choose_ms\":%.6g,"
                  "\"give_up_ms\":%.6g,\"extra_ms\":%.6g,\"extra_ms_low\":%.6g,"
                  "\"extra_ms_high\":%.6g,\"share_of_prefill\":%.4g,"
                  "\"slots_moved\":%llu,\"pages_dropped\":%llu,\"jaccard\":%.4g}",
                  tokens, prefill_ms, parts[0], parts[1], parts[2], extra, low, high,
                  extra / prefill_ms, (unsigned long long)on.slots_moved,
                  (unsigned long long)on.pages_dropped, on.jaccard);
    return STATUS_IS_OK;
}

status bench_cost(bench *b, uint32_t tokens, const bench_method *methods, size_t n, error *err)
{
    double prefill_ms;
    bench_print_head(b);
    RETURN_IF_ERROR(bench_prefill(b, tokens, 0, &prefill_ms, err));
    if (!b->as_json)
        printf("\n%-28s %7s %9s %9s %9s %9s %9s %8s %8s %9s %8s\n", "method (ms of one prompt)",
               "tokens", "measure", "choose", "give up", "all: min", "max", "median", "% of all",
               "moved", "jaccard");
    for (size_t i = 0; i < n; i++)
        RETURN_IF_ERROR(bench_method_cost(b, tokens, prefill_ms, &methods[i], err));
    return STATUS_IS_OK;
}

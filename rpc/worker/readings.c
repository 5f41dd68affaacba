/* Packs and unpacks what a rank counted of rows that read by retrieval: its part of each row's
 * reading (paged_kv/retrieval/reading.h). */
#include "rpc/worker/codec.h"

#include <string.h>

enum {
    SHARES = 3, /* doubles of a row: recall_sum, least_recall, most_missed */
    AUDITS_MAX = INT32_MAX / WORKER_RANKS_MAX, /* of a row at one rank: ranks are added up */
};

static ProtobufCBinaryData borrow(const void *p, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Joins the readings of all sequences. NULL: memory is out, or there are none. */
static const retrieval_reading *join(const step_result *r, size_t n, arena *a)
{
    retrieval_reading *all = arena_alloc_array(a, n, sizeof *all), *out = all;
    for (uint32_t i = 0; all && i < r->n_seqs; i++) {
        uint32_t some = r->seqs[i].n_readings;
        if (some > 0) memcpy(out, r->seqs[i].readings, some * sizeof *out);
        out += some;
    }
    return all;
}

static status pack_values(const retrieval_reading *rows, size_t n, arena *a, result_message *out)
{
    uint64_t *tokens = arena_alloc_array(a, n, sizeof *tokens);
    uint64_t *blocks = arena_alloc_array(a, n, sizeof *blocks);
    double *shares = arena_alloc_array(a, n * SHARES, sizeof *shares);
    if (!tokens || !blocks || !shares) return status_make(STATUS_NO_MEMORY, "readings");
    bool has_shares = false;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = rows[i].tokens;
        blocks[i] = rows[i].blocks;
        memcpy(shares + i * SHARES,
               (double[]){rows[i].recall_sum, rows[i].least_recall, rows[i].most_missed},
               SHARES * sizeof *shares);
        has_shares |= rows[i].audits > 0 || rows[i].exams > 0;
    }
    out->reading_tokens = tokens;
    out->reading_blocks = blocks;
    out->n_reading_tokens = out->n_reading_blocks = n;
    if (has_shares) out->reading_shares = borrow(shares, n * SHARES * sizeof *shares);
    return columns_pack(&result_reading_columns, rows, n, out, a);
}

status readings_pack(const step_plan *plan, const step_result *r, arena *a, result_message *out)
{
    size_t n = 0, n_seqs = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        n += r->seqs[i].n_readings;
        n_seqs += plan->seqs[i].retrieval.block_tokens > 0;
    }
    if (n_seqs == 0) return STATUS_IS_OK;
    uint32_t *rows = arena_alloc_array(a, n_seqs, sizeof *rows);
    const retrieval_reading *all = join(r, n, a);
    if (!rows || !all) return status_make(STATUS_NO_MEMORY, "readings");
    out->reading_rows = rows;
    for (uint32_t i = 0; i < r->n_seqs; i++)
        if (plan->seqs[i].retrieval.block_tokens)
            rows[out->n_reading_rows++] = r->seqs[i].n_readings;
    return n > 0 ? pack_values(all, n, a, out) : STATUS_IS_OK;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static status check_most(const char *name, uint64_t value, uint64_t most, error *err)
{
    if (value <= most) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %llu is above %llu", name, (unsigned long long)value,
                     (unsigned long long)most);
}

/* NaN is no share either. */
static status check_share(const char *name, double value, double most, error *err)
{
    if (value >= 0 && value <= most) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %g is not 0 to %g", name, value, most);
}

/* Checks that the numbers of a row could be those of a rank, and so that nothing that is added up
 * or divided later leaves its range. */
static status check_row(const retrieval_reading *row, const retrieval_spec *spec,
                        const result_source *source, error *err)
{
    const pkv_geometry *g = &source->info->geometry;
    uint64_t lists = (uint64_t)g->n_layers * rank_kv_heads(g, source->size), n = row->lists;
    uint32_t size = spec->block_tokens;
    if (row->context == 0) return error_set(err, STATUS_INVALID, "reading_context: 0");
    RETURN_IF_ERROR(check_most("reading_context", row->context, source->info->max_positions, err));
    RETURN_IF_ERROR(check_most("reading_lists", n, lists, err));
    RETURN_IF_ERROR(check_most("reading_selections", row->selections, n, err));
    RETURN_IF_ERROR(check_most("reading_tokens", row->tokens, n * row->context, err));
    RETURN_IF_ERROR(
        check_most("reading_blocks", row->blocks, n * ((row->context - 1) / size + 1), err));
    RETURN_IF_ERROR(check_most("reading_exams", row->exams, n, err));
    RETURN_IF_ERROR(check_most("reading_failed", row->failed, row->exams, err));
    RETURN_IF_ERROR(check_most("reading_audits", row->audits, AUDITS_MAX, err));
    RETURN_IF_ERROR(check_share("reading_shares: recall", row->recall_sum, row->audits, err));
    RETURN_IF_ERROR(check_share("reading_shares: least recall", row->least_recall, 1, err));
    return check_share("reading_shares: missed", row->most_missed, 1, err);
}

/* Counts the rows of the plan's sequences: each has at most as many as tokens. */
static status count_rows(const result_message *m, const step_plan *plan, size_t *n, error *err)
{
    size_t n_seqs = 0;
    *n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n_seqs += plan->seqs[i].retrieval.block_tokens > 0;
    if (n_seqs != m->n_reading_rows)
        return error_set(err, STATUS_INVALID, "reading_rows: %zu values, %zu sequences read so",
                         m->n_reading_rows, n_seqs);
    n_seqs = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->retrieval.block_tokens == 0) continue;
        uint32_t rows = m->reading_rows[n_seqs++];
        RETURN_IF_ERROR(check_most("reading_rows", rows, s->n_tokens, err));
        *n += rows;
    }
    return STATUS_IS_OK;
}

static status check_counts(const result_message *m, size_t n, error *err)
{
    if (m->n_reading_tokens != n || m->n_reading_blocks != n)
        return error_set(err, STATUS_INVALID,
                         "reading_tokens, reading_blocks: %zu and %zu values, there should be %zu",
                         m->n_reading_tokens, m->n_reading_blocks, n);
    if (m->reading_shares.len == 0 || m->reading_shares.len == n * SHARES * sizeof(double))
        return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "reading_shares: %zu bytes of %zu rows",
                     m->reading_shares.len, n);
}

static void read_values(const result_message *m, size_t i, retrieval_reading *row)
{
    double shares[SHARES] = {0};
    if (m->reading_shares.len)
        memcpy(shares, m->reading_shares.data + i * sizeof shares, sizeof shares);
    row->tokens = m->reading_tokens[i];
    row->blocks = m->reading_blocks[i];
    row->recall_sum = shares[0];
    row->least_recall = shares[1];
    row->most_missed = shares[2];
}

status readings_unpack(const result_message *m, const result_source *source, arena *a,
                       step_seq_result *seqs, error *err)
{
    const step_plan *plan = source->plan;
    size_t n, at = 0, seq = 0;
    RETURN_IF_ERROR(count_rows(m, plan, &n, err));
    RETURN_IF_ERROR(check_counts(m, n, err));
    retrieval_reading *rows = arena_alloc_array(a, n, sizeof *rows);
    if (!rows) return error_set(err, STATUS_NO_MEMORY, "result: out of memory");
    RETURN_IF_ERROR(columns_unpack(&result_reading_columns, m, rows, n, err));
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const retrieval_spec *spec = &plan->seqs[i].retrieval;
        if (spec->block_tokens == 0) continue;
        seqs[i].n_readings = m->reading_rows[seq++];
        if (seqs[i].n_readings) seqs[i].readings = rows + at;
        for (uint32_t k = 0; k < seqs[i].n_readings; k++, at++) {
            read_values(m, at, &rows[at]);
            RETURN_IF_ERROR(check_row(&rows[at], spec, source, err));
        }
    }
    return STATUS_IS_OK;
}

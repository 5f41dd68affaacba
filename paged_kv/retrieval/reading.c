#include "paged_kv/retrieval/reading.h"

void retrieval_join_reading(retrieval_reading *row, const retrieval_reading *part)
{
    row->lists += part->lists;
    row->selections += part->selections;
    row->tokens += part->tokens;
    row->blocks += part->blocks;
    row->exams += part->exams;
    row->failed += part->failed;
    if (part->most_missed > row->most_missed) row->most_missed = part->most_missed;
    if (part->audits > 0 && (row->audits == 0 || part->least_recall < row->least_recall))
        row->least_recall = part->least_recall;
    row->audits += part->audits;
    row->recall_sum += part->recall_sum;
}

double retrieval_mean_tokens(const retrieval_reading *row)
{
    return row->lists ? (double)row->tokens / row->lists : row->context;
}

void retrieval_add_reading(retrieval_totals *totals, const retrieval_reading *row)
{
    totals->rows++;
    totals->context += row->context;
    totals->selections += row->selections;
    totals->tokens += retrieval_mean_tokens(row);
    totals->blocks += row->lists ? (double)row->blocks / row->lists : 0;
    totals->exams += row->exams;
    totals->failed += row->failed;
    if (row->most_missed > totals->most_missed) totals->most_missed = row->most_missed;
    if (row->audits == 0) return;
    if (totals->audits == 0 || row->least_recall < totals->least_recall)
        totals->least_recall = row->least_recall;
    totals->audited++;
    totals->audits += row->audits;
    totals->recall_sum += row->recall_sum;
}

static double mean(double sum, uint64_t n) { return n ? sum / (double)n : 0; }

void retrieval_report_json(const retrieval_totals *totals, strbuf *out)
{
    strbuf_printf(out,
                  "{\"rows\": %llu, \"context_tokens\": %.10g, \"read_tokens\": %.10g, "
                  "\"read_blocks\": %.10g, \"selections\": %llu, \"audited_rows\": %llu",
                  (unsigned long long)totals->rows, mean((double)totals->context, totals->rows),
                  mean(totals->tokens, totals->rows), mean(totals->blocks, totals->rows),
                  (unsigned long long)totals->selections, (unsigned long long)totals->audited);
    if (totals->audited > 0)
        strbuf_printf(out, ", \"recall\": %.10g, \"least_recall\": %.10g",
                      mean(totals->recall_sum, totals->audits), totals->least_recall);
    if (totals->exams > 0)
        strbuf_printf(out, ", \"missed_at_most\": %.10g, \"above_epsilon\": %llu",
                      totals->most_missed, (unsigned long long)totals->failed);
    strbuf_putc(out, '}');
}

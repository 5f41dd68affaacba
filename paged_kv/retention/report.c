/* The report of a response: what its retention kept and dropped. */
#include "paged_kv/retention/retention.h"
#include <stdlib.h>
#include <string.h>

/* Slots may be in any order: the positions that a table holds are sorted as bits. */
static void put_ranges(const pkv *kv, uint32_t seq, uint32_t group, uint32_t cut_at, uint32_t cut,
                       uint64_t *bits, strbuf *out)
{
    uint32_t len = pkv_seq_length(kv, seq) + cut, n = pkv_seq_table(kv, seq, group).kept_tokens;
    memset(bits, 0, (len / 64 + 1) * sizeof *bits);
    for (uint32_t slot = 0; slot < n; slot++) {
        uint32_t at = pkv_seq_position(kv, seq, group, slot);
        if (at >= cut_at) at += cut;
        bits[at / 64] |= UINT64_C(1) << at % 64;
    }
    const char *comma = "";
    for (uint32_t from = 0, to; from < len; from = to + 1) {
        for (to = from; to < len && (bits[to / 64] >> to % 64 & 1); to++) continue;
        if (to == from) continue;
        strbuf_printf(out, "%s[%u, %u]", comma, from, to);
        comma = ", ";
    }
}

void retention_kept_json(const pkv *kv, uint32_t seq, uint32_t cut_at, uint32_t cut, strbuf *out)
{
    const pkv_geometry *g = pkv_get_geometry(kv);
    uint32_t head_groups = pkv_head_groups(g), n = pkv_groups(g);
    size_t words = ((size_t)pkv_seq_length(kv, seq) + cut) / 64 + 1;
    uint64_t *bits = malloc(words * sizeof *bits);
    out->failed |= !bits;
    strbuf_putc(out, '[');
    for (uint32_t i = 0; bits && i < n; i++) {
        uint32_t layer = i / head_groups * g->layers_per_group;
        uint32_t last = layer + g->layers_per_group - 1;
        uint32_t head = i % head_groups * g->heads_per_group;
        strbuf_printf(out, "%s{\"layers\": [%u, %u], \"heads\": [%u, %u], \"ranges\": [",
                      i > 0 ? ", " : "", layer, last < g->n_layers ? last : g->n_layers - 1, head,
                      head + g->heads_per_group - 1);
        put_ranges(kv, seq, i, cut_at, cut, bits, out);
        strbuf_puts(out, "]}");
    }
    strbuf_putc(out, ']');
    free(bits);
}

void retention_report_json(const retention_report *report, strbuf *out)
{
    strbuf_puts(out, "{\"method\": ");
    strbuf_json_string(out, report->method, strlen(report->method));
    strbuf_printf(out, ", \"logical_tokens\": %u, \"kept_tokens\": %.10g, \"pages_dropped\": %llu",
                  report->logical_tokens, report->kept_tokens,
                  (unsigned long long)report->pages_dropped);
    strbuf_printf(out, ", \"budget_raised\": %s, \"scoring_ms\": %.3f",
                  report->budget_raised ? "true" : "false", report->scoring_ms);
    if (report->session[0]) {
        strbuf_puts(out, ", \"session\": ");
        strbuf_json_string(out, report->session, strlen(report->session));
    }
    if (report->kept_json) {
        strbuf_puts(out, ", \"kept\": ");
        strbuf_puts(out, report->kept_json);
    }
    strbuf_putc(out, '}');
}

/* The report of a response: what its retention kept and dropped. */
#include "paged_kv/retention/retention.h"
#include <stdlib.h>
#include <string.h>

/* The first of bits [from, n) that is `set`, or n. Bits from n on are clear, and bits[n / 64] is
 * there. */
static uint32_t find_bit(const uint64_t *bits, uint32_t from, uint32_t n, bool set)
{
    while (from < n) {
        uint64_t left = (set ? bits[from / 64] : ~bits[from / 64]) >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
        from = from / 64 * 64 + 64;
    }
    return n;
}

/* Writes the digits of v before `end`; returns where they begin. */
static char *put_digits(char *end, uint32_t v)
{
    do *--end = (char)('0' + v % 10);
    while (v /= 10);
    return end;
}

/* Without printf, because a report may have millions of ranges. */
static void put_range(uint32_t from, uint32_t to, strbuf *out)
{
    char text[sizeof "[4294967295, 4294967295]"], *end = text + sizeof text, *at = end;
    *--at = ']';
    at = put_digits(at, to);
    *--at = ' ';
    *--at = ',';
    at = put_digits(at, from);
    *--at = '[';
    strbuf_append(out, at, (size_t)(end - at));
}

/* Slots may be in any order: the positions that a table holds are sorted as bits. A table may have
 * as many ranges as half its tokens, and the engine's thread writes them. */
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
    for (uint32_t from = find_bit(bits, 0, len, true), to; from < len;
         from = find_bit(bits, to, len, true)) {
        to = find_bit(bits, from, len, false);
        if (out->size > 0) strbuf_puts(out, ", ");
        put_range(from, to, out);
    }
}

static void put_entry(const pkv_geometry *g, uint32_t layer, uint32_t head, uint32_t n_heads,
                      const strbuf *ranges, strbuf *out)
{
    uint32_t last = layer + g->layers_per_group - 1;
    strbuf_printf(out, "%s{\"layers\": [%u, %u], \"heads\": [%u, %u], \"ranges\": [",
                  layer + head > 0 ? ", " : "", layer, last < g->n_layers ? last : g->n_layers - 1,
                  head, head + n_heads - 1);
    strbuf_append(out, ranges->data, ranges->size);
    strbuf_puts(out, "]}");
}

/* Writes the ranges of each head group of a layer group, the first of which is `group`. */
static void put_layer(const pkv_geometry *g, uint32_t group, const strbuf *ranges, strbuf *out)
{
    uint32_t n = pkv_head_groups(g), layer = group / n * g->layers_per_group;
    bool equal = true;
    for (uint32_t h = 1; h < n; h++)
        equal &=
            ranges[h].size == ranges[0].size &&
            (ranges[0].size == 0 || memcmp(ranges[h].data, ranges[0].data, ranges[0].size) == 0);
    for (uint32_t h = 0; h < (equal ? 1 : n); h++)
        put_entry(g, layer, h * g->heads_per_group, equal ? g->n_kv_heads : g->heads_per_group,
                  &ranges[h], out);
}

void retention_kept_json(const pkv *kv, uint32_t seq, uint32_t cut_at, uint32_t cut, strbuf *out)
{
    /* Layers are listed one by one, also those that share a table. */
    const pkv_geometry *own = pkv_seq_geometry(kv, seq), *all = pkv_get_geometry(kv);
    bool whole = own->layers_per_group > all->layers_per_group;
    const pkv_geometry at = whole ? pkv_geometry_at(all, PKV_LAYER) : *own, *g = &at;
    uint32_t heads = pkv_head_groups(g), n = pkv_groups(g);
    size_t words = ((size_t)pkv_seq_length(kv, seq) + cut) / 64 + 1;
    uint64_t *bits = malloc(words * sizeof *bits);
    strbuf *ranges = calloc(heads, sizeof *ranges);
    out->failed |= !bits || !ranges;
    strbuf_putc(out, '[');
    for (uint32_t i = 0; !out->failed && i < n; i += heads) {
        for (uint32_t h = 0; h < heads; h++) {
            strbuf_clear(&ranges[h]);
            put_ranges(kv, seq, whole ? 0 : i + h, cut_at, cut, bits, &ranges[h]);
            out->failed |= ranges[h].failed;
        }
        put_layer(g, i, ranges, out);
    }
    strbuf_putc(out, ']');
    for (uint32_t h = 0; ranges && h < heads; h++) strbuf_destroy(&ranges[h]);
    free(ranges);
    free(bits);
}

void retention_same_json(const pkv_geometry *geometry, const uint32_t *tokens, uint32_t n,
                         strbuf *out)
{
    strbuf_printf(out, "[{\"layers\": [0, %u], \"heads\": [0, %u], \"ranges\": [",
                  geometry->n_layers - 1, geometry->n_kv_heads - 1);
    for (uint32_t i = 0, to; i < n; i = to) {
        for (to = i + 1; to < n && tokens[to] == tokens[to - 1] + 1; to++) continue;
        if (i > 0) strbuf_puts(out, ", ");
        put_range(tokens[i], tokens[to - 1] + 1, out);
    }
    strbuf_puts(out, "]}]");
}

retention_fields retention_fields_of(const retention_policy *policy)
{
    if (policy->schedule != RETENTION_SCHEDULE_CHUNK) return (retention_fields){.tokens = 0};
    return (retention_fields){.tokens = policy->tokens,
                              .recurrent_chunk = policy->recurrent_chunk,
                              .sinks = policy->sinks,
                              .window = policy->window,
                              .gather_tokens = policy->gather_tokens};
}

static void put_fields(const retention_fields *f, strbuf *out)
{
    strbuf_puts(out, ", \"fields\": {");
    if (f->tokens) strbuf_printf(out, "\"tokens\": %u, ", f->tokens);
    strbuf_printf(out, "\"recurrent_chunk\": %u, \"sinks\": %u, \"window\": %u", f->recurrent_chunk,
                  f->sinks, f->window);
    if (f->gather_tokens) strbuf_printf(out, ", \"gather_tokens\": %u", f->gather_tokens);
    strbuf_putc(out, '}');
}

static void put_gathering(const retention_gathering *g, strbuf *out)
{
    strbuf_printf(out,
                  ", \"reform\": {\"layers_run\": %u, \"read_tokens\": %u, \"reused_tokens\": %u, "
                  "\"reading_kept_tokens\": %.10g, \"gathered_tokens\": %u, "
                  "\"recomputed_tokens\": %u, ",
                  g->layers, g->read, g->reused, g->kept, g->gathered, g->recomputed);
    strbuf_printf(out, "\"read_ms\": %.3f, \"gather_ms\": %.3f, \"recompute_ms\": %.3f}",
                  g->read_ms, g->gather_ms, g->recompute_ms);
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
    if (report->fields.recurrent_chunk) put_fields(&report->fields, out);
    if (report->has_gathering) put_gathering(&report->gathering, out);
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

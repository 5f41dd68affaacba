/* Overlap of layers, recall of needles, agreement with the full cache. */
#include "quality/score/findings.h"
#include "quality/score/kept.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 4096 };

/* ---- kept sets ------------------------------------------------------------------------------- */

/* Jaccard index of two tables; NaN when neither holds a token. */
static double jaccard(const kept_table *a, const kept_table *b, uint32_t words)
{
    uint64_t both = 0, either = 0;
    for (uint32_t w = 0; w < words; w++) {
        both += (uint64_t)__builtin_popcountll(a->bits[w] & b->bits[w]);
        either += (uint64_t)__builtin_popcountll(a->bits[w] | b->bits[w]);
    }
    return either ? (double)both / (double)either : NAN;
}

/* Compares the tables of the same heads for each pair of layers and takes the mean over heads.
 * `empty` is the value of two tables without tokens; NaN values are left out. */
static void compare_layers(const kept_sets *s, uint32_t n_layers, double empty, float *out)
{
    for (uint32_t a = 0; a < s->n_layers; a++)
        for (uint32_t b = a; b < s->n_layers; b++) {
            double sum = 0;
            size_t n = 0;
            for (size_t i = 0; i < s->n; i++)
                for (size_t k = 0; kept_covers(&s->tables[i], a) && k < s->n; k++) {
                    if (!kept_covers(&s->tables[k], b) ||
                        s->tables[k].first_head != s->tables[i].first_head)
                        continue;
                    double one = jaccard(&s->tables[i], &s->tables[k], s->words);
                    if (isnan(one)) one = empty;
                    if (isnan(one)) continue;
                    sum += one;
                    n++;
                }
            float mean = n ? (float)(sum / (double)n) : NAN;
            out[a * n_layers + b] = out[b * n_layers + a] = mean;
        }
}

static void forget_forced(kept_sets *s, const bool *forced)
{
    for (uint32_t p = 0; p < s->n_tokens; p++)
        for (size_t i = 0; forced[p] && i < s->n; i++)
            s->tables[i].bits[p / 64] &= ~(UINT64_C(1) << p % 64);
}

static void recall_needles(const kept_sets *s, const bool *needle, findings *out)
{
    uint32_t n_needle = 0;
    for (uint32_t p = 0; needle && p < s->n_tokens; p++) n_needle += needle[p];
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        double whole = 0, share = 0;
        size_t n = 0;
        for (size_t i = 0; n_needle && i < s->n; i++) {
            if (!kept_covers(&s->tables[i], layer)) continue;
            uint32_t kept = 0;
            for (uint32_t p = 0; p < s->n_tokens; p++)
                kept += needle[p] && kept_has(s->tables[i].bits, p);
            whole += kept == n_needle;
            share += (double)kept / n_needle;
            n++;
        }
        out->needle_whole[layer] = n ? (float)(whole / (double)n) : NAN;
        out->needle_share[layer] = n ? (float)(share / (double)n) : NAN;
    }
}

static bool make_room(findings *m, uint32_t n_layers)
{
    m->n_layers = n_layers;
    m->jaccard = calloc((size_t)n_layers * n_layers, sizeof *m->jaccard);
    m->unforced = calloc((size_t)n_layers * n_layers, sizeof *m->unforced);
    m->needle_whole = calloc(n_layers, sizeof *m->needle_whole);
    m->needle_share = calloc(n_layers, sizeof *m->needle_share);
    return m->jaccard && m->unforced && m->needle_whole && m->needle_share;
}

status findings_of_kept(const char *kept_json, uint32_t n_prompt, const bool *needle,
                        const bool *forced, findings *out, error *err)
{
    kept_sets sets;
    *out = (findings){0};
    RETURN_IF_ERROR(kept_sets_read(kept_json, n_prompt, &sets, err));
    status st = make_room(out, sets.n_layers) ? STATUS_IS_OK
                                              : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(st)) {
        compare_layers(&sets, sets.n_layers, 1, out->jaccard); /* empty sets are equal */
        recall_needles(&sets, needle, out);
        forget_forced(&sets, forced);
        compare_layers(&sets, sets.n_layers, NAN, out->unforced);
    }
    kept_sets_destroy(&sets);
    if (!status_ok(st)) findings_destroy(out);
    return st;
}

void findings_destroy(findings *m)
{
    free(m->jaccard);
    free(m->unforced);
    free(m->needle_whole);
    free(m->needle_share);
    analysis_destroy(&m->attention);
    *m = (findings){0};
}

/* ---- agreement ------------------------------------------------------------------------------- */

double findings_divergence(const step_sample *full, const step_sample *own)
{
    const double least = 1e-9;
    double sum = 0, rest_full = 1, rest_own = 1;
    for (uint32_t i = 0; i < full->n_top; i++)
        for (uint32_t k = 0; k < own->n_top; k++) {
            if (full->top_ids[i] != own->top_ids[k]) continue;
            double p = exp((double)full->top_logprobs[i]), q = exp((double)own->top_logprobs[k]);
            sum += p * ((double)full->top_logprobs[i] - (double)own->top_logprobs[k]);
            rest_full -= p;
            rest_own -= q;
        }
    if (rest_full < least) rest_full = least;
    if (rest_own < least) rest_own = least;
    sum += rest_full * log(rest_full / rest_own);
    return sum > 0 ? sum : 0; /* rounding alone can make it negative */
}

void findings_agree(const step_sample *full, size_t n_full, const step_sample *own, size_t n_own,
                    findings *out)
{
    double sum = 0;
    out->n_compared = out->n_agreed = 0;
    for (size_t i = 0; i < n_full && i < n_own; i++) {
        bool equal = full[i].token == own[i].token;
        sum += findings_divergence(&full[i], &own[i]);
        out->n_compared++;
        out->n_agreed += equal;
        if (!equal) break; /* from here on the texts differ */
    }
    out->divergence = out->n_compared ? (float)(sum / out->n_compared) : NAN;
}

/* ---- needles in tokens ----------------------------------------------------------------------- */

static void mark_needle(const size_t *ends, uint32_t n_tokens, size_t from, size_t to, bool *needle)
{
    for (uint32_t i = 0; i < n_tokens; i++) {
        size_t start = i ? ends[i - 1] : 0;
        if (start < to && ends[i] > from) needle[i] = true;
    }
}

size_t findings_find_needles(const tokenizer *t, const uint32_t *tokens, uint32_t n_tokens,
                             const char *const *texts, size_t n_texts, bool *needle)
{
    strbuf text = {0};
    size_t found = 0, *ends = calloc(n_tokens, sizeof *ends);
    for (uint32_t i = 0; ends && i < n_tokens; i++) {
        const char *bytes;
        size_t n;
        if (status_ok(tok_token_bytes(t, tokens[i], &bytes, &n))) strbuf_append(&text, bytes, n);
        ends[i] = text.size;
    }
    for (size_t k = 0; ends && text.data && k < n_texts; k++) {
        size_t n = strlen(texts[k]);
        const char *at = memmem(text.data, text.size, texts[k], n);
        if (!at) continue;
        found++;
        size_t from = (size_t)(at - text.data);
        mark_needle(ends, n_tokens, from, from + n, needle);
    }
    free(ends);
    strbuf_destroy(&text);
    return found;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void write_floats(strbuf *out, const char *name, const float *values, size_t n)
{
    strbuf_printf(out, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        if (isnan(values[i])) strbuf_puts(out, i ? ",null" : "null");
        else strbuf_printf(out, i ? ",%.4g" : "%.4g", (double)values[i]);
    }
    strbuf_putc(out, ']');
}

bool findings_any(const findings *m)
{
    return m->n_layers || m->n_compared || m->attention.n_layers;
}

void findings_write(const findings *m, strbuf *out)
{
    strbuf_printf(out, "{\"layers\":%u,\"compared\":%u,\"agreed\":%u", m->n_layers, m->n_compared,
                  m->n_agreed);
    if (m->n_compared) strbuf_printf(out, ",\"divergence\":%.4g", (double)m->divergence);
    if (m->attention.n_layers) {
        strbuf_puts(out, ",\"attention\":");
        analysis_write(&m->attention, out);
    }
    if (m->n_layers) {
        size_t n = m->n_layers;
        strbuf_putc(out, ',');
        write_floats(out, "jaccard", m->jaccard, n * n);
        strbuf_putc(out, ',');
        write_floats(out, "chosen", m->unforced, n * n);
        strbuf_putc(out, ',');
        write_floats(out, "needle_whole", m->needle_whole, n);
        strbuf_putc(out, ',');
        write_floats(out, "needle_share", m->needle_share, n);
    }
    strbuf_putc(out, '}');
}

static void read_floats(const json_t *json, const char *name, float *out, size_t n)
{
    const json_t *list = json_object_get(json, name);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        out[i] = json_is_number(v) ? (float)json_number_value(v) : NAN;
    }
}

bool findings_read(const json_t *json, findings *out)
{
    *out = (findings){0};
    json_int_t layers = json_integer_value(json_object_get(json, "layers"));
    out->n_compared = (uint32_t)json_integer_value(json_object_get(json, "compared"));
    out->n_agreed = (uint32_t)json_integer_value(json_object_get(json, "agreed"));
    const json_t *divergence = json_object_get(json, "divergence");
    out->divergence = json_is_number(divergence) ? (float)json_number_value(divergence) : NAN;
    if (!analysis_read(json_object_get(json, "attention"), &out->attention)) return false;
    if (layers <= 0 || layers > LAYERS_MAX) return true;
    if (!make_room(out, (uint32_t)layers)) {
        findings_destroy(out);
        return false;
    }
    size_t n = out->n_layers;
    read_floats(json, "jaccard", out->jaccard, n * n);
    read_floats(json, "chosen", out->unforced, n * n);
    read_floats(json, "needle_whole", out->needle_whole, n);
    read_floats(json, "needle_share", out->needle_share, n);
    return true;
}

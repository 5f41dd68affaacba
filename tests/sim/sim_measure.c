/* Measures of the hash model: pure functions of contents, by page or by slot. */
#include "tests/sim/sim.h"
#include <string.h>

static uint64_t mixed(uint64_t a, uint64_t b, uint32_t kind, uint32_t layer, uint32_t head)
{
    return hash_mix64(a ^ sim_fold(b, (uint64_t)kind << 16 | layer << 8 | head));
}

/* Coarse values: ties are common, and must go to the earlier slot; and sums are exact. */
static float coarse(uint64_t bits) { return (float)(bits >> 59) / 8.0f; }

static bool is_of_rows(measure_kind kind)
{
    return kind >= MEASURE_MASS && kind <= MEASURE_EXPECTED;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

size_t sim_measure_floats(const pkv_geometry *g, uint32_t max_slots)
{
    return (size_t)2 * g->n_layers * g->n_kv_heads * max_slots;
}

static void by_page(const pkv_geometry *g, const measure_spec *spec, const sim_table *t,
                    uint32_t layer, uint32_t head, float *values)
{
    uint64_t rows = 0;
    for (uint32_t s = t->n - spec->rows; s < t->n; s++) rows = sim_fold(rows, t->content[s]);
    for (uint32_t from = 0; from < t->n; from += g->page_tokens) {
        uint64_t page = 0;
        for (uint32_t s = from; s < t->n && s < from + g->page_tokens; s++)
            page = sim_fold(page, t->content[s]);
        *values++ = coarse(mixed(page, rows, spec->kind, layer, head));
    }
}

/* The sum over the rows for a slot; a row sees the slots up to its own. */
static float rows_sum(const measure_spec *spec, const sim_table *t, uint32_t slot, uint32_t layer,
                      uint32_t head, float sum)
{
    for (uint32_t r = larger(t->n - spec->rows, slot); r < t->n; r++)
        sum += coarse(mixed(t->content[slot], t->content[r], spec->kind, layer, head));
    return sum;
}

static void by_slot(const pkv_geometry *g, const measure_spec *spec, uint32_t n_rows,
                    const sim_table *t, uint32_t layer, uint32_t head, float *values)
{
    uint32_t per = sim_sums_of(g);
    uint32_t at = layer % g->layers_per_group * g->heads_per_group + head % g->heads_per_group;
    for (uint32_t s = 0; s < t->n; s++) {
        float *sum = &t->sums[(size_t)s * per + at], first = 0;
        bool fresh = spec->sum == MEASURE_SUM_START || s >= t->n - n_rows;
        if (spec->sum != MEASURE_SUM_STEP && !fresh) first = *sum;
        float value = rows_sum(spec, t, s, layer, head, first);
        if (spec->sum != MEASURE_SUM_STEP) *sum = value;
        values[s] = value;
    }
}

static void of_slots(measure_kind kind, const sim_table *t, uint32_t layer, uint32_t head,
                     float *values)
{
    for (uint32_t s = 0; s < t->n; s++)
        values[s] = coarse(mixed(t->content[s], 0, kind, layer, head)) - 1;
}

const char *sim_measure(const pkv_geometry *g, const measure_spec *spec, uint32_t n_rows,
                        const sim_table *tables, float *values, measure_result *out)
{
    measure_spec of_rows = *spec;
    uint32_t step = spec->layer_step, stride = 0, n_groups = pkv_groups(g);
    if (of_rows.rows > n_rows) of_rows.rows = n_rows;
    if (step == 0 || spec->rows == 0) return "a measure of no rows or layers";
    if (!spec->by_slot && (spec->kind != MEASURE_MASS || spec->sum != MEASURE_SUM_STEP))
        return "a measure by page of something other than a step's mass";
    if (spec->sum != MEASURE_SUM_STEP && !is_of_rows(spec->kind)) return "sums without rows";
    for (uint32_t i = 0; i < n_groups; i++) stride = larger(stride, tables[i].n);
    if (!spec->by_slot) stride = (stride + g->page_tokens - 1) / g->page_tokens;
    uint32_t leaders[64], n_leaders = 0;
    for (uint32_t l = 0, nth = 0; l < g->n_layers; l++)
        if (pkv_window_of(g, l) == 0 && nth++ % step == 0) leaders[n_leaders++] = l;
    *out = (measure_result){.n_layers = larger(1, n_leaders),
                            .n_kv_heads = g->n_kv_heads,
                            .stride = stride,
                            .q_heads = 1};
    if (!spec->silent) out->values = values;
    for (uint32_t kinds = 0; kinds < 2; kinds++) {
        measure_kind kind = kinds ? spec->second : spec->kind;
        for (uint32_t i = 0; kind != MEASURE_NONE && i < n_leaders; i++) {
            uint32_t l = leaders[i];
            for (uint32_t h = 0; h < g->n_kv_heads; h++, values += stride) {
                const sim_table *t = &tables[pkv_group_of(g, l, h)];
                if (!is_of_rows(kind)) of_slots(kind, t, l, h, values);
                else if (spec->by_slot) by_slot(g, &of_rows, n_rows, t, l, h, values);
                else by_page(g, &of_rows, t, l, h, values);
            }
        }
    }
    return NULL;
}

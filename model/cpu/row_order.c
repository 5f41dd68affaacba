#include "model/cpu/row_order.h"

#include <stdlib.h>
#include <string.h>

status row_order_create(row_order *out, uint32_t max_seqs, uint32_t max_rows)
{
    *out = (row_order){.place = calloc(max_seqs, sizeof *out->place),
                       .first_row = calloc(max_seqs, sizeof *out->first_row),
                       .moved = calloc(max_rows, sizeof *out->moved),
                       .keys = calloc(max_seqs, sizeof *out->keys)};
    bool ok = out->place && out->first_row && out->moved && out->keys;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "step buffers");
}

void row_order_free(row_order *o)
{
    free(o->place);
    free(o->first_row);
    free(o->moved);
    free(o->keys);
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts by layers, most first, and shares of as many layers as the plan has them. */
static void sort_shares(row_order *o, const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t layers = plan->seqs[i].n_layers;
        o->keys[i] = (uint64_t)(layers ? UINT32_MAX - layers : 0) << 32 | i;
    }
    qsort(o->keys, plan->n_seqs, sizeof *o->keys, compare_keys);
}

void row_order_set(row_order *o, const step_plan *plan)
{
    bool leaves = false;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        leaves |= plan->seqs[i].n_layers > 0;
        o->place[i] = i;
        o->first_row[i] = plan->seqs[i].first_token;
    }
    o->tokens = plan->tokens;
    if (!leaves) return;
    sort_shares(o, plan);
    o->tokens = o->moved;
    for (uint32_t place = 0, row = 0; place < plan->n_seqs; place++) {
        uint32_t i = (uint32_t)o->keys[place];
        const step_seq *s = &plan->seqs[i];
        o->place[i] = place;
        o->first_row[i] = row;
        memcpy(o->moved + row, plan->tokens + s->first_token, s->n_tokens * sizeof *o->moved);
        row += s->n_tokens;
    }
}

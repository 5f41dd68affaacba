/* The order of a step's rows in the forward pass (private to model/). Rows that leave early
 * (step_seq.n_layers) come last, those that run fewer layers behind those that run more, so that
 * each layer's rows are the first ones and nothing moves where rows leave. */
#ifndef MODEL_CPU_ROW_ORDER_H
#define MODEL_CPU_ROW_ORDER_H

#include "backend/backend.h"

typedef struct row_order {
    uint32_t *place;        // [max_seqs] of each of the plan's shares among the pass's sequences
    uint32_t *first_row;    // [max_seqs] of each of the plan's shares in the pass
    const uint32_t *tokens; // of the plan, in the order of the pass
    uint32_t *moved;        // [max_rows]: those tokens, unless they are the plan's own
    uint64_t *keys;         // [max_seqs] scratch
} row_order;

status row_order_create(row_order *out, uint32_t max_seqs, uint32_t max_rows);
void row_order_free(row_order *o);
/* Orders a plan, whose tokens must stay as long as the order is used. */
void row_order_set(row_order *o, const step_plan *plan);

#endif

#include "rpc/worker/codec.h"

#include <stddef.h>
#include <string.h>

/* ---- the tables ------------------------------------------------------------------------------ */

#define LIST(field) offsetof(plan_message, n_##field), offsetof(plan_message, field)
#define SEQ(field, type, at, usual, most)                                                          \
    {                                                                                              \
#field, type, offsetof(step_seq, at), LIST(field), usual, most, false                      \
    }
#define MEASURE(field, type, most) SEQ(measure_##field, type, measure.field, 0, most)
#define RETRIEVAL(field, most)     SEQ(retrieval_##field, COLUMN_U32, retrieval.field, 0, most)

static const column seq_columns[] = {
    {"seq", COLUMN_U32, offsetof(step_seq, seq), LIST(seq), 0, UINT32_MAX, true},
    SEQ(rows, COLUMN_U32, n_tokens, 1, UINT32_MAX),
    SEQ(samples, COLUMN_U32, n_samples, 1, UINT32_MAX),
    SEQ(position, COLUMN_U32, position, 0, UINT32_MAX),
    SEQ(sample_index, COLUMN_U32, sample_index, 0, UINT32_MAX),
    SEQ(choice, COLUMN_U32, choice, 0, UINT32_MAX),
    SEQ(want_logits, COLUMN_BOOL, want_logits, 0, 1),
    SEQ(want_scores, COLUMN_U32, want_scores, 0, 1 + SAMPLE_LOGPROBS_MAX),
    SEQ(next_token, COLUMN_U32, next_token, 0, UINT32_MAX),
    SEQ(n_uncounted, COLUMN_U32, n_uncounted, 0, UINT32_MAX),
    SEQ(token_from, COLUMN_U32, token_from, 0, UINT32_MAX),
    MEASURE(kind, COLUMN_U32, MEASURE_KINDS - 1),
    MEASURE(second, COLUMN_U32, MEASURE_KINDS - 1),
    MEASURE(rows, COLUMN_U32, UINT32_MAX),
    MEASURE(layer_step, COLUMN_U32, UINT32_MAX),
    MEASURE(by_slot, COLUMN_BOOL, 1),
    MEASURE(sum, COLUMN_U32, MEASURE_SUM_ADD),
    MEASURE(silent, COLUMN_BOOL, 1),
    MEASURE(novelty, COLUMN_BOOL, 1),
    MEASURE(sinks, COLUMN_U32, UINT32_MAX),
    MEASURE(window, COLUMN_U32, UINT32_MAX),
    MEASURE(chunk, COLUMN_U32, UINT32_MAX),
    MEASURE(bias, COLUMN_U32, UINT32_MAX), /* bias, theta: the bits of a float */
    MEASURE(theta, COLUMN_U32, UINT32_MAX),
    MEASURE(beside, COLUMN_BOOL, 1),
    RETRIEVAL(block_tokens, RETRIEVAL_BLOCK_MOST),
    RETRIEVAL(representative, RETRIEVAL_REPRESENTATIVES - 1),
    RETRIEVAL(representative_num, RETRIEVAL_KEYS_MOST),
    RETRIEVAL(heads, RETRIEVAL_HEAD_MODES - 1),
    RETRIEVAL(group_heads, INT32_MAX),
    RETRIEVAL(initial_tokens, INT32_MAX),
    RETRIEVAL(local_tokens, INT32_MAX),
    RETRIEVAL(top_blocks, INT32_MAX),
    RETRIEVAL(preselect_blocks, INT32_MAX),
    RETRIEVAL(observed_rows, RETRIEVAL_OBSERVED),
    RETRIEVAL(dense_layers, INT32_MAX),
    RETRIEVAL(layer_step, INT32_MAX),
    RETRIEVAL(token_step, INT32_MAX),
    RETRIEVAL(audit, INT32_MAX),
    RETRIEVAL(epsilon, UINT32_MAX), /* the bits of a float */
    SEQ(n_prompt, COLUMN_U32, n_prompt, 0, INT32_MAX),
    SEQ(note, COLUMN_U32, note, 0, STEP_NOTES_MOST - 1),
    SEQ(n_layers, COLUMN_U32, n_layers, 0, INT32_MAX),
    SEQ(n_embeds, COLUMN_U32, n_embeds, 0, EMBED_HEADS_MOST),
    SEQ(pooling, COLUMN_U32, pooling, 0, POOLING_SUM),
    SEQ(n_mask_words, COLUMN_U32, n_mask_words, 0, UINT32_MAX),
};
_Static_assert(sizeof(retrieval_spec) == 15 * sizeof(uint32_t), "each field has a column");

#define MOVE_USUALLY(field, type, usual, most)                                                     \
    {                                                                                              \
        "move_" #field, type, offsetof(pkv_move, field), LIST(move_##field), usual, most, false    \
    }
#define MOVE(field, type, most) MOVE_USUALLY(field, type, 0, most)

static const column move_columns[] = {
    {"move_kind", COLUMN_U32, offsetof(pkv_move, kind), LIST(move_kind), 0, PKV_MOVE_IN, true},
    MOVE_USUALLY(grain, COLUMN_U32, PKV_HEAD, PKV_HEAD),
    MOVE(group, COLUMN_U32, UINT32_MAX),
    MOVE(src_page, COLUMN_U32, UINT32_MAX),
    MOVE(src_slot, COLUMN_U32, UINT32_MAX),
    MOVE(dst_page, COLUMN_U32, UINT32_MAX),
    MOVE(dst_slot, COLUMN_U32, UINT32_MAX),
    MOVE(n_slots, COLUMN_U32, UINT32_MAX),
    MOVE(rotate, COLUMN_ZIGZAG, UINT32_MAX),
    MOVE(fresh, COLUMN_U32, 1),
};

#define READING(field)                                                                             \
    {                                                                                              \
        "reading_" #field, COLUMN_U32, offsetof(retrieval_reading, field),                         \
            offsetof(result_message, n_reading_##field),                                           \
            offsetof(result_message, reading_##field), 0, UINT32_MAX, false                        \
    }

static const column reading_columns[] = {
    {"reading_context", COLUMN_U32, offsetof(retrieval_reading, context),
     offsetof(result_message, n_reading_context), offsetof(result_message, reading_context), 0,
     UINT32_MAX, true},
    READING(lists),
    READING(selections),
    READING(audits),
    READING(exams),
    READING(failed),
};

_Static_assert(sizeof(measure_kind) == 4 && sizeof(measure_sum) == 4 &&
                   sizeof(pkv_move_kind) == 4 && sizeof(pkv_grain) == 4 &&
                   sizeof(retrieval_representative) == 4 && sizeof(retrieval_heads) == 4,
               "an enum is read as a u32");

const column_table plan_seq_columns = {seq_columns, sizeof seq_columns / sizeof *seq_columns,
                                       sizeof(step_seq)};
const column_table plan_move_columns = {move_columns, sizeof move_columns / sizeof *move_columns,
                                        sizeof(pkv_move)};
const column_table result_reading_columns = {
    reading_columns, sizeof reading_columns / sizeof *reading_columns, sizeof(retrieval_reading)};

/* ---- a value --------------------------------------------------------------------------------- */

static uint32_t read_value(const column *c, const uint8_t *field)
{
    uint32_t v;
    if (c->type == COLUMN_BOOL) return *(const bool *)field;
    memcpy(&v, field, sizeof v);
    return c->type == COLUMN_ZIGZAG ? v << 1 ^ -(v >> 31) : v;
}

static void write_value(const column *c, uint8_t *field, uint32_t v)
{
    if (c->type == COLUMN_BOOL) {
        *(bool *)field = v != 0;
        return;
    }
    if (c->type == COLUMN_ZIGZAG) v = v >> 1 ^ -(v & 1);
    memcpy(field, &v, sizeof v);
}

/* ---- a list ---------------------------------------------------------------------------------- */

static bool is_needed(const column *c, const uint8_t *first, size_t stride, size_t n)
{
    if (c->is_always_there) return n > 0;
    for (size_t i = 0; i < n; i++)
        if (read_value(c, first + i * stride) != c->usual) return true;
    return false;
}

status columns_pack(const column_table *t, const void *structs, size_t n, void *message, arena *a)
{
    for (const column *c = t->columns; c < t->columns + t->n; c++) {
        const uint8_t *first = (const uint8_t *)structs + c->at;
        if (!is_needed(c, first, t->struct_bytes, n)) continue;
        uint32_t *values = arena_alloc_array(a, n, sizeof *values);
        if (!values) return status_make(STATUS_NO_MEMORY, "a message's lists");
        for (size_t i = 0; i < n; i++) values[i] = read_value(c, first + i * t->struct_bytes);
        memcpy((uint8_t *)message + c->n, &n, sizeof n);
        memcpy((uint8_t *)message + c->values, &values, sizeof values);
    }
    return STATUS_IS_OK;
}

status columns_unpack(const column_table *t, const void *message, void *structs, size_t n,
                      error *err)
{
    for (const column *c = t->columns; c < t->columns + t->n; c++) {
        uint8_t *first = (uint8_t *)structs + c->at;
        size_t have;
        const uint32_t *values;
        memcpy(&have, (const uint8_t *)message + c->n, sizeof have);
        memcpy(&values, (const uint8_t *)message + c->values, sizeof values);
        if (have != 0 && have != n)
            return error_set(err, STATUS_INVALID, "%s: %zu values, there should be %zu", c->name,
                             have, n);
        for (size_t i = 0; i < n; i++) {
            uint32_t v = have ? values[i] : c->usual;
            if (v > c->most)
                return error_set(err, STATUS_INVALID, "%s: %u is above %u", c->name, v, c->most);
            write_value(c, first + i * t->struct_bytes, v);
        }
    }
    return STATUS_IS_OK;
}

/* The parts of a method as tables of functions. A new choice is one row here and in the enum of
 * retention.h; a new method is a row in presets.c and, when nothing measures what it needs, one
 * score function. */
#ifndef PAGED_KV_RETENTION_METHOD_H
#define PAGED_KV_RETENTION_METHOD_H

#include "paged_kv/retention/retention.h"

/* Who shares one choice: a run of layers, scored at its lowest, and a run of KV heads. */
typedef struct retention_group {
    uint32_t layer_from, layer_to; // [from, to)
    uint32_t head_from, head_to;
    uint32_t measured_layer; // index of layer_from among the measured layers
} retention_group;

/* Scores pages [first, first + n) of a scope's table; higher stays. A NaN comes last. */
typedef void (*retention_score_fn)(const measure_result *m, const retention_group *scope,
                                   uint32_t first, uint32_t n, float *scores);
typedef struct retention_score_row {
    retention_choice choice;
    measure_kind measure;
    retention_score_fn score; // NULL for `none`
} retention_score_row;
extern const retention_score_row retention_scores[];

void retention_score_window(const measure_result *m, const retention_group *scope, uint32_t first,
                            uint32_t n, float *scores);

/* How many pages scope `index` of n_scopes may keep, when `kept_pages` is the mean. */
typedef struct retention_allocator_row {
    retention_choice choice;
    uint32_t (*pages)(uint32_t kept_pages, uint32_t index, uint32_t n_scopes);
} retention_allocator_row;
extern const retention_allocator_row retention_allocators[];

/* KV heads that share a choice. */
typedef struct retention_scope_row {
    retention_choice choice;
    uint32_t (*heads)(const pkv_geometry *geometry);
} retention_scope_row;
extern const retention_scope_row retention_scopes[];

typedef struct retention_schedule_row {
    retention_choice choice;
    uint32_t (*next_point)(uint32_t n_prompt, uint32_t from);
} retention_schedule_row;
extern const retention_schedule_row retention_schedules[];

#endif

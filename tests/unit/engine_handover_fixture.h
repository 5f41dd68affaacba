/* A computed prompt for the tests of its record: two tables, of which one has single slots. */
#ifndef TESTS_UNIT_ENGINE_HANDOVER_FIXTURE_H
#define TESTS_UNIT_ENGINE_HANDOVER_FIXTURE_H

#include "engine/handover.h"

#include <stdlib.h>
#include <string.h>

enum { HO_PAGE = 16, HO_TOKENS = 40, HO_CELL = 24, HO_CELLS = 3 + 2 };

typedef struct ho_prompt {
    pkv_geometry geometry;
    handover_terms terms;
    uint32_t tokens[HO_TOKENS + 1], stop_ids[2], bases[2][3], slots[HO_PAGE];
    pkv_image_table tables[2];
    sched_export export;
    step_sample first;
} ho_prompt;

static inline void ho_make(ho_prompt *p)
{
    *p = (ho_prompt){.geometry = {.page_tokens = HO_PAGE,
                                  .n_layers = 2,
                                  .n_kv_heads = 1,
                                  .layers_per_group = 1,
                                  .heads_per_group = 1},
                     .stop_ids = {3, 9},
                     .bases = {{0, 16, 32}, {0, 32}},
                     .first = {.token = 5, .logprob = -0.5f, .rank = 2, .n_top = 1}};
    p->first.top_ids[0] = 7;
    p->first.top_logprobs[0] = -0.25f;
    for (uint32_t i = 0; i < HO_TOKENS; i++) p->tokens[i] = i % 11;
    p->tokens[HO_TOKENS] = p->first.token;
    for (uint32_t i = 0; i < HO_PAGE; i++) p->slots[i] = 2 * i;
    p->tables[0] = (pkv_image_table){.kept = HO_TOKENS, .bases = p->bases[0]};
    p->tables[1] = (pkv_image_table){
        .kept = HO_PAGE + 8, .slot_pages = 1, .bases = p->bases[1], .slots = p->slots};
    p->export = (sched_export){
        .image = {.grain = PKV_LAYER, .length = HO_TOKENS, .dropped = true, .tables = p->tables},
        .tokens = p->tokens,
        .n_cells = HO_CELLS,
        .n_tokens = HO_TOKENS,
        .pages_dropped = 3};
    p->export.image.grain = pkv_grain_fit(&p->geometry, PKV_LAYER);
    p->terms = (handover_terms){.geometry = &p->geometry,
                                .cell_bytes = HO_CELL,
                                .vocab_size = 11,
                                .identity = 6,
                                .policy = 1,
                                .sampling = 2,
                                .greedy = true,
                                .banned = p->stop_ids,
                                .tokens = p->tokens,
                                .n_tokens = HO_TOKENS};
}

/* The whole record (malloc'd), with K and V that count up. */
static inline uint8_t *ho_record(const ho_prompt *p, size_t *n)
{
    *n = handover_size(&p->terms, &p->export);
    uint8_t *bytes = malloc(*n);
    uint8_t *cells = handover_write(&p->terms, &p->export, &p->first, bytes);
    for (size_t i = 0; i < (size_t)HO_CELLS * HO_CELL; i++) cells[i] = (uint8_t)i;
    return bytes;
}

#endif

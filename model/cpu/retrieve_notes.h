/* What the rows of a request read by that was decided in an earlier step (private to model/): the
 * blocks of the row that selected last, where other rows follow it (token_step).
 *
 * It belongs to a request's number in plans (step_seq.note) and a choice of it, not to a sequence
 * in the pool: so it is there when the sequence comes back from the host tier. Choices part at the
 * prompt's end, before any of them selects. A number that goes to another request keeps its memory,
 * whose content is written anew before it is read. */
#ifndef MODEL_CPU_RETRIEVE_NOTES_H
#define MODEL_CPU_RETRIEVE_NOTES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct retrieve_notes retrieve_notes;

/* Which list: one for each layer and each run of KV heads that select together. */
typedef struct retrieve_note {
    uint32_t note, choice;
    uint32_t layer, list;
    uint32_t n_lists; // in a layer
    uint32_t room;    // the most blocks that any such list may have
} retrieve_note;

status retrieve_notes_create(uint32_t n_layers, retrieve_notes **out);
void retrieve_notes_destroy(retrieve_notes *notes);

/* Keeps the n blocks of a row that selected, which saw n_slots. Replaces the list before.
 * The first list of a layer with other n_lists or room makes the choice's other lists unknown. */
status retrieve_notes_keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n);
/* The list that was kept, if it is that of a row that saw n_slots; else NULL. */
const uint32_t *retrieve_notes_find(const retrieve_notes *notes, const retrieve_note *at,
                                    uint32_t n_slots, uint32_t *n);

#endif

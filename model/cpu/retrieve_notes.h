/* Keeps what an earlier step decided for the rows of a request (private to model/): the blocks of
 * the row that selected last, where other rows follow it (token_step), and what the prompt's end
 * attended to.
 *
 * A note belongs to a request's number in plans (step_seq.note), not to a sequence in the pool: so
 * it is there when the sequence comes back from the host tier, and for every choice that is forked.
 * Only the lists are a choice's own: choices part at the prompt's end, before any of them selects.
 * A plan that changes a number's spec in between finds nothing.
 *
 * All notes together take at most as many bytes as were said when they were created: what would be
 * more is STATUS_LIMIT. Those of a request are at most retrieval_kept_bytes, so that a scheduler
 * which adds these up never gets there. */
#ifndef MODEL_CPU_RETRIEVE_NOTES_H
#define MODEL_CPU_RETRIEVE_NOTES_H

#include "base/status.h"
#include "paged_kv/retrieval/retrieval.h"

#include <stddef.h>
#include <stdint.h>

typedef struct retrieve_notes retrieve_notes;

/* Names a list: there is one for each layer and each run of KV heads that select together. */
typedef struct retrieve_note {
    uint32_t note, choice;
    uint32_t layer, list;
    uint32_t n_lists; // in a layer
    const retrieval_spec *spec;
} retrieve_note;

/* most_bytes: 0 = without limit. */
status retrieve_notes_create(uint32_t n_layers, uint64_t most_bytes, retrieve_notes **out);
void retrieve_notes_destroy(retrieve_notes *notes);

/* Gives up what is kept under a number, if anything is. */
void retrieve_notes_end(retrieve_notes *notes, uint32_t note);
/* Bytes that all of them take. */
uint64_t retrieve_notes_bytes(const retrieve_notes *notes);

/* Keeps the n > 0 blocks of a row that selected, which saw n_slots. Replaces the list before. The
 * first list with another spec or n_lists makes the choice's other lists unknown. */
status retrieve_notes_keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n);
/* The list that was kept, if it is that of a row that saw n_slots and selected by the same spec;
 * else NULL. */
const uint32_t *retrieve_notes_find(const retrieve_notes *notes, const retrieve_note *at,
                                    uint32_t n_slots, uint32_t *n);

/* Bits that a layer's rows have from the prompt's end. */
typedef enum retrieve_bits_kind {
    RETRIEVE_LEFT_OUT, // blocks that are no candidates: a row is a run of KV heads
    RETRIEVE_SLOTS, // slots whose keys stand for their blocks: a row is a KV head, a block begins
                    // with a word
    RETRIEVE_BITS_KINDS,
} retrieve_bits_kind;

typedef struct retrieve_bits {
    retrieve_bits_kind kind;
    uint32_t note, layer;
    uint32_t row, n_rows; // in a layer
    size_t n_words;       // of a row
    const retrieval_spec *spec;
} retrieve_bits;

/* Makes room for a row, which the caller writes to *out; the bits are unknown. The first row with
 * another spec, n_rows or n_words makes the others unknown too. */
status retrieve_notes_write(retrieve_notes *notes, const retrieve_bits *at, uint64_t **out);
/* Gives the request's slots a tag, by which representatives that were made of them are known. Some
 * of its rows were written before. */
void retrieve_notes_tag(retrieve_notes *notes, uint32_t note, uint64_t tag);
uint64_t retrieve_notes_tag_of(const retrieve_notes *notes, uint32_t note);
/* NULL: such a row was never written. */
const uint64_t *retrieve_notes_read(const retrieve_notes *notes, const retrieve_bits *at);

#endif

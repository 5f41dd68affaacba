#include "model/cpu/retrieve_notes.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The lists of one choice: [layers, n_lists] times the slots that the row saw, the number of blocks
 * and the blocks. 0 slots: no list. */
typedef struct choice_lists {
    uint32_t n_lists, room;
    uint32_t *values;
} choice_lists;

/* [layers, n_rows, n_words] */
typedef struct bit_rows {
    uint32_t n_rows;
    size_t n_words;
    uint64_t *words;
} bit_rows;

typedef struct request_note {
    choice_lists *choices;
    uint32_t n_choices;
    bit_rows bits[RETRIEVE_BITS_KINDS];
    uint64_t tag;
} request_note;

struct retrieve_notes {
    uint32_t n_layers;
    request_note *requests; /* [n_requests], by number */
    uint32_t n_requests;
};

enum { HEAD = 2 };

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "blocks of earlier rows"); }

status retrieve_notes_create(uint32_t n_layers, retrieve_notes **out)
{
    retrieve_notes *notes = calloc(1, sizeof *notes);
    if (!notes) return no_memory();
    notes->n_layers = n_layers;
    *out = notes;
    return STATUS_IS_OK;
}

void retrieve_notes_destroy(retrieve_notes *notes)
{
    if (!notes) return;
    for (uint32_t i = 0; i < notes->n_requests; i++) {
        for (uint32_t c = 0; c < notes->requests[i].n_choices; c++)
            free(notes->requests[i].choices[c].values);
        free(notes->requests[i].choices);
        for (int kind = 0; kind < RETRIEVE_BITS_KINDS; kind++)
            free(notes->requests[i].bits[kind].words);
    }
    free(notes->requests);
    free(notes);
}

/* Makes an array of zeroed elements long enough for the index. */
static bool reach(void **array, uint32_t *n, uint32_t index, size_t size)
{
    if (index < *n) return true;
    uint32_t more = index + 1 > 2 * *n ? index + 1 : 2 * *n;
    uint8_t *grown = alloc_resize(NULL, *array, more, size);
    if (!grown) return false;
    memset(grown + *n * size, 0, (more - *n) * size);
    *array = grown;
    *n = more;
    return true;
}

static size_t list_at(const retrieve_note *at)
{
    return ((size_t)at->layer * at->n_lists + at->list) * (HEAD + (size_t)at->room);
}

/* Much of a long list's room is never touched, and then takes no memory. */
static bool fit(const retrieve_notes *notes, const retrieve_note *at, choice_lists *lists)
{
    if (lists->values && lists->n_lists == at->n_lists && lists->room == at->room) return true;
    free(lists->values);
    lists->values =
        calloc((size_t)notes->n_layers * at->n_lists, (HEAD + (size_t)at->room) * sizeof(uint32_t));
    lists->n_lists = at->n_lists;
    lists->room = at->room;
    return lists->values != NULL;
}

static bool reach_request(retrieve_notes *notes, uint32_t note)
{
    return reach((void **)&notes->requests, &notes->n_requests, note, sizeof *notes->requests);
}

status retrieve_notes_keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n)
{
    assert(at->layer < notes->n_layers && at->list < at->n_lists);
    if (n > at->room) return status_make(STATUS_INVALID, "plan: a row beyond the longest sequence");
    if (!reach_request(notes, at->note)) return no_memory();
    request_note *request = &notes->requests[at->note];
    if (!reach((void **)&request->choices, &request->n_choices, at->choice,
               sizeof *request->choices))
        return no_memory();
    choice_lists *lists = &request->choices[at->choice];
    if (!fit(notes, at, lists)) return no_memory();
    uint32_t *list = lists->values + list_at(at);
    list[0] = n_slots;
    list[1] = n;
    memcpy(list + HEAD, blocks, n * sizeof *blocks);
    return STATUS_IS_OK;
}

const uint32_t *retrieve_notes_find(const retrieve_notes *notes, const retrieve_note *at,
                                    uint32_t n_slots, uint32_t *n)
{
    if (at->note >= notes->n_requests) return NULL;
    const request_note *request = &notes->requests[at->note];
    if (at->choice >= request->n_choices) return NULL;
    const choice_lists *lists = &request->choices[at->choice];
    if (!lists->values || lists->n_lists != at->n_lists || lists->room != at->room) return NULL;
    const uint32_t *list = lists->values + list_at(at);
    *n = list[1];
    return list[0] == n_slots ? list + HEAD : NULL;
}

static size_t bits_at(const retrieve_bits *at)
{
    return ((size_t)at->layer * at->n_rows + at->row) * at->n_words;
}

uint64_t *retrieve_notes_write(retrieve_notes *notes, const retrieve_bits *at)
{
    if (!reach_request(notes, at->note)) return NULL;
    bit_rows *bits = &notes->requests[at->note].bits[at->kind];
    if (!bits->words || bits->n_rows != at->n_rows || bits->n_words != at->n_words) {
        free(bits->words);
        size_t rows = (size_t)notes->n_layers * at->n_rows;
        *bits =
            (bit_rows){at->n_rows, at->n_words, calloc(rows, at->n_words * sizeof *bits->words)};
        if (!bits->words) return NULL;
    }
    return bits->words + bits_at(at);
}

const uint64_t *retrieve_notes_read(const retrieve_notes *notes, const retrieve_bits *at)
{
    if (at->note >= notes->n_requests) return NULL;
    const bit_rows *bits = &notes->requests[at->note].bits[at->kind];
    if (!bits->words || bits->n_rows != at->n_rows || bits->n_words != at->n_words) return NULL;
    return bits->words + bits_at(at);
}

void retrieve_notes_tag(retrieve_notes *notes, uint32_t note, uint64_t tag)
{
    assert(note < notes->n_requests);
    notes->requests[note].tag = tag;
}

uint64_t retrieve_notes_tag_of(const retrieve_notes *notes, uint32_t note)
{
    return note < notes->n_requests ? notes->requests[note].tag : 0;
}

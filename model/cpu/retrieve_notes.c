#include "model/cpu/retrieve_notes.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept_list {
    uint32_t n_slots; /* that the row saw; 0: no list */
    uint32_t n, room;
    uint32_t *blocks; /* [room], the first n */
} kept_list;

/* The lists of one choice, [layers, n_lists]. */
typedef struct choice_lists {
    retrieval_spec spec;
    uint32_t n_lists;
    kept_list *lists;
} choice_lists;

/* [layers, n_rows, n_words] */
typedef struct bit_rows {
    retrieval_spec spec;
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

/* Specs are compared by their bytes. */
_Static_assert(sizeof(retrieval_spec) == 15 * sizeof(uint32_t), "a spec has no padding");

static bool same_spec(const retrieval_spec *a, const retrieval_spec *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "blocks of earlier rows"); }

status retrieve_notes_create(uint32_t n_layers, retrieve_notes **out)
{
    retrieve_notes *notes = calloc(1, sizeof *notes);
    if (!notes) return no_memory();
    notes->n_layers = n_layers;
    *out = notes;
    return STATUS_IS_OK;
}

static void free_lists(const retrieve_notes *notes, choice_lists *choice)
{
    size_t n = choice->lists ? (size_t)notes->n_layers * choice->n_lists : 0;
    for (size_t i = 0; i < n; i++) free(choice->lists[i].blocks);
    free(choice->lists);
    choice->lists = NULL;
}

void retrieve_notes_destroy(retrieve_notes *notes)
{
    if (!notes) return;
    for (uint32_t i = 0; i < notes->n_requests; i++) {
        for (uint32_t c = 0; c < notes->requests[i].n_choices; c++)
            free_lists(notes, &notes->requests[i].choices[c]);
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

static bool is_fit(const choice_lists *choice, const retrieve_note *at)
{
    return choice->lists && choice->n_lists == at->n_lists && same_spec(&choice->spec, at->spec);
}

static kept_list *list_of(const choice_lists *choice, const retrieve_note *at)
{
    return choice->lists + (size_t)at->layer * at->n_lists + at->list;
}

static bool fit(const retrieve_notes *notes, const retrieve_note *at, choice_lists *choice)
{
    if (is_fit(choice, at)) return true;
    free_lists(notes, choice);
    choice->lists = calloc((size_t)notes->n_layers * at->n_lists, sizeof *choice->lists);
    choice->spec = *at->spec;
    choice->n_lists = at->n_lists;
    return choice->lists != NULL;
}

/* Room for n blocks, and for no more than a few times as many. */
static bool fit_list(kept_list *list, uint32_t n)
{
    if (n <= list->room && list->room / 4 <= n) return true;
    uint32_t *blocks = alloc_resize(NULL, list->blocks, n, sizeof *blocks);
    if (!blocks) return false;
    list->blocks = blocks;
    list->room = n;
    return true;
}

static bool reach_request(retrieve_notes *notes, uint32_t note)
{
    return reach((void **)&notes->requests, &notes->n_requests, note, sizeof *notes->requests);
}

status retrieve_notes_keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n)
{
    assert(at->layer < notes->n_layers && at->list < at->n_lists && n > 0);
    if (!reach_request(notes, at->note)) return no_memory();
    request_note *request = &notes->requests[at->note];
    if (!reach((void **)&request->choices, &request->n_choices, at->choice,
               sizeof *request->choices))
        return no_memory();
    choice_lists *choice = &request->choices[at->choice];
    if (!fit(notes, at, choice)) return no_memory();
    kept_list *list = list_of(choice, at);
    if (!fit_list(list, n)) return no_memory();
    memcpy(list->blocks, blocks, n * sizeof *blocks);
    list->n_slots = n_slots;
    list->n = n;
    return STATUS_IS_OK;
}

const uint32_t *retrieve_notes_find(const retrieve_notes *notes, const retrieve_note *at,
                                    uint32_t n_slots, uint32_t *n)
{
    if (at->note >= notes->n_requests) return NULL;
    const request_note *request = &notes->requests[at->note];
    if (at->choice >= request->n_choices || !is_fit(&request->choices[at->choice], at)) return NULL;
    const kept_list *list = list_of(&request->choices[at->choice], at);
    *n = list->n;
    return list->n_slots == n_slots ? list->blocks : NULL;
}

static bool bits_fit(const bit_rows *bits, const retrieve_bits *at)
{
    return bits->words && bits->n_rows == at->n_rows && bits->n_words == at->n_words &&
           same_spec(&bits->spec, at->spec);
}

static size_t bits_at(const retrieve_bits *at)
{
    return ((size_t)at->layer * at->n_rows + at->row) * at->n_words;
}

uint64_t *retrieve_notes_write(retrieve_notes *notes, const retrieve_bits *at)
{
    if (!reach_request(notes, at->note)) return NULL;
    bit_rows *bits = &notes->requests[at->note].bits[at->kind];
    if (!bits_fit(bits, at)) {
        free(bits->words);
        size_t rows = (size_t)notes->n_layers * at->n_rows;
        *bits = (bit_rows){.spec = *at->spec,
                           .n_rows = at->n_rows,
                           .n_words = at->n_words,
                           .words = calloc(rows, at->n_words * sizeof *bits->words)};
        if (!bits->words) return NULL;
    }
    return bits->words + bits_at(at);
}

const uint64_t *retrieve_notes_read(const retrieve_notes *notes, const retrieve_bits *at)
{
    if (at->note >= notes->n_requests) return NULL;
    const bit_rows *bits = &notes->requests[at->note].bits[at->kind];
    return bits_fit(bits, at) ? bits->words + bits_at(at) : NULL;
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

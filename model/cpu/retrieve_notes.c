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
    uint64_t most_bytes, bytes;
    request_note **requests; /* [n_requests], by number; NULL: nothing is kept */
    uint32_t n_requests;
};

/* Specs are compared by their bytes. */
_Static_assert(sizeof(retrieval_spec) == 15 * sizeof(uint32_t), "a spec has no padding");

static bool same_spec(const retrieval_spec *a, const retrieval_spec *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

status retrieve_notes_create(uint32_t n_layers, uint64_t most_bytes, retrieve_notes **out)
{
    retrieve_notes *notes = calloc(1, sizeof *notes);
    if (!notes) return status_make(STATUS_NO_MEMORY, "notes of retrieval");
    notes->n_layers = n_layers;
    notes->most_bytes = most_bytes;
    *out = notes;
    return STATUS_IS_OK;
}

uint64_t retrieve_notes_bytes(const retrieve_notes *notes) { return notes->bytes; }

/* ---- memory that is counted ------------------------------------------------------------------ */

/* Makes an array of `from` elements one of `to`, the new ones zeroed. */
static status resize(retrieve_notes *notes, void **array, size_t from, size_t to, size_t size)
{
    uint64_t bytes = notes->bytes - from * size + to * size;
    if (to > from && notes->most_bytes && bytes > notes->most_bytes)
        return status_make(STATUS_LIMIT, "retrieval: a plan keeps more than the backend's share");
    uint8_t *grown = alloc_resize(NULL, *array, to, size);
    if (!grown) return status_make(STATUS_NO_MEMORY, "what retrieval keeps for later rows");
    if (to > from) memset(grown + from * size, 0, (to - from) * size);
    *array = grown;
    notes->bytes = bytes;
    return STATUS_IS_OK;
}

static void give_up(retrieve_notes *notes, void **array, size_t n, size_t size)
{
    if (!*array) return;
    free(*array);
    *array = NULL;
    notes->bytes -= n * size;
}

static size_t lists_of(const retrieve_notes *notes, const choice_lists *choice)
{
    return (size_t)notes->n_layers * choice->n_lists;
}

static size_t words_of(const retrieve_notes *notes, const bit_rows *bits)
{
    return (size_t)notes->n_layers * bits->n_rows * bits->n_words;
}

static void free_lists(retrieve_notes *notes, choice_lists *choice)
{
    size_t n = choice->lists ? lists_of(notes, choice) : 0;
    for (size_t i = 0; i < n; i++) {
        kept_list *list = &choice->lists[i];
        give_up(notes, (void **)&list->blocks, list->room, sizeof *list->blocks);
    }
    give_up(notes, (void **)&choice->lists, n, sizeof *choice->lists);
}

void retrieve_notes_end(retrieve_notes *notes, uint32_t note)
{
    if (note >= notes->n_requests || !notes->requests[note]) return;
    request_note *r = notes->requests[note];
    for (uint32_t i = 0; i < r->n_choices; i++) free_lists(notes, &r->choices[i]);
    give_up(notes, (void **)&r->choices, r->n_choices, sizeof *r->choices);
    for (int kind = 0; kind < RETRIEVE_BITS_KINDS; kind++) {
        bit_rows *bits = &r->bits[kind];
        give_up(notes, (void **)&bits->words, words_of(notes, bits), sizeof *bits->words);
    }
    give_up(notes, (void **)&notes->requests[note], 1, sizeof *r);
}

void retrieve_notes_destroy(retrieve_notes *notes)
{
    if (!notes) return;
    for (uint32_t i = 0; i < notes->n_requests; i++) retrieve_notes_end(notes, i);
    free(notes->requests);
    free(notes);
}

/* Finds the request's notes, or makes them. Numbers are small, so the array of pointers is not
 * among the counted bytes. */
static status reach_request(retrieve_notes *notes, uint32_t note, request_note **out)
{
    if (note >= notes->n_requests) {
        uint32_t n = note + 1 > 2 * notes->n_requests ? note + 1 : 2 * notes->n_requests;
        request_note **grown = alloc_resize(NULL, notes->requests, n, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "notes of retrieval");
        for (uint32_t i = notes->n_requests; i < n; i++) grown[i] = NULL;
        notes->requests = grown;
        notes->n_requests = n;
    }
    request_note **at = &notes->requests[note];
    if (!*at) RETURN_IF_ERROR(resize(notes, (void **)at, 0, 1, sizeof **at));
    *out = *at;
    return STATUS_IS_OK;
}

static status reach_choice(retrieve_notes *notes, request_note *r, uint32_t index)
{
    if (index < r->n_choices) return STATUS_IS_OK;
    RETURN_IF_ERROR(
        resize(notes, (void **)&r->choices, r->n_choices, index + 1, sizeof *r->choices));
    r->n_choices = index + 1;
    return STATUS_IS_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static bool is_fit(const choice_lists *choice, const retrieve_note *at)
{
    return choice->lists && choice->n_lists == at->n_lists && same_spec(&choice->spec, at->spec);
}

static kept_list *list_of(const choice_lists *choice, const retrieve_note *at)
{
    return choice->lists + (size_t)at->layer * at->n_lists + at->list;
}

static status fit(retrieve_notes *notes, const retrieve_note *at, choice_lists *choice)
{
    if (is_fit(choice, at)) return STATUS_IS_OK;
    free_lists(notes, choice);
    choice->spec = *at->spec;
    choice->n_lists = at->n_lists;
    return resize(notes, (void **)&choice->lists, 0, lists_of(notes, choice),
                  sizeof *choice->lists);
}

/* Gives a list room for n blocks, and for no more than a few times as many. */
static status fit_list(retrieve_notes *notes, kept_list *list, uint32_t n)
{
    if (n <= list->room && list->room / 4 <= n) return STATUS_IS_OK;
    RETURN_IF_ERROR(resize(notes, (void **)&list->blocks, list->room, n, sizeof *list->blocks));
    list->room = n;
    return STATUS_IS_OK;
}

status retrieve_notes_keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                           const uint32_t *blocks, uint32_t n)
{
    assert(at->layer < notes->n_layers && at->list < at->n_lists && n > 0);
    request_note *request;
    RETURN_IF_ERROR(reach_request(notes, at->note, &request));
    RETURN_IF_ERROR(reach_choice(notes, request, at->choice));
    choice_lists *choice = &request->choices[at->choice];
    RETURN_IF_ERROR(fit(notes, at, choice));
    kept_list *list = list_of(choice, at);
    RETURN_IF_ERROR(fit_list(notes, list, n));
    memcpy(list->blocks, blocks, n * sizeof *blocks);
    list->n_slots = n_slots;
    list->n = n;
    return STATUS_IS_OK;
}

static const request_note *request_of(const retrieve_notes *notes, uint32_t note)
{
    return note < notes->n_requests ? notes->requests[note] : NULL;
}

const uint32_t *retrieve_notes_find(const retrieve_notes *notes, const retrieve_note *at,
                                    uint32_t n_slots, uint32_t *n)
{
    const request_note *request = request_of(notes, at->note);
    if (!request || at->choice >= request->n_choices || !is_fit(&request->choices[at->choice], at))
        return NULL;
    const kept_list *list = list_of(&request->choices[at->choice], at);
    *n = list->n;
    return list->n_slots == n_slots ? list->blocks : NULL;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static bool bits_fit(const bit_rows *bits, const retrieve_bits *at)
{
    return bits->words && bits->n_rows == at->n_rows && bits->n_words == at->n_words &&
           same_spec(&bits->spec, at->spec);
}

static size_t bits_at(const retrieve_bits *at)
{
    return ((size_t)at->layer * at->n_rows + at->row) * at->n_words;
}

status retrieve_notes_write(retrieve_notes *notes, const retrieve_bits *at, uint64_t **out)
{
    request_note *request;
    RETURN_IF_ERROR(reach_request(notes, at->note, &request));
    bit_rows *bits = &request->bits[at->kind];
    if (!bits_fit(bits, at)) {
        give_up(notes, (void **)&bits->words, words_of(notes, bits), sizeof *bits->words);
        *bits = (bit_rows){.spec = *at->spec, .n_rows = at->n_rows, .n_words = at->n_words};
        RETURN_IF_ERROR(
            resize(notes, (void **)&bits->words, 0, words_of(notes, bits), sizeof *bits->words));
    }
    *out = bits->words + bits_at(at);
    return STATUS_IS_OK;
}

const uint64_t *retrieve_notes_read(const retrieve_notes *notes, const retrieve_bits *at)
{
    const request_note *request = request_of(notes, at->note);
    if (!request) return NULL;
    const bit_rows *bits = &request->bits[at->kind];
    return bits_fit(bits, at) ? bits->words + bits_at(at) : NULL;
}

void retrieve_notes_tag(retrieve_notes *notes, uint32_t note, uint64_t tag)
{
    assert(request_of(notes, note));
    notes->requests[note]->tag = tag;
}

uint64_t retrieve_notes_tag_of(const retrieve_notes *notes, uint32_t note)
{
    const request_note *request = request_of(notes, note);
    return request ? request->tag : 0;
}

#include "model/cuda/retrieve_lists.h"

#include <stdlib.h>
#include <string.h>

/* The lists of one choice, [layers, lists, room] on the device. */
typedef struct choice {
    retrieval_spec spec;
    uint32_t n_slots; /* that the row saw; 0: none is kept */
    uint32_t room;
    uint32_t *blocks;
    size_t bytes;
} choice;

typedef struct request {
    choice *choices;
    uint32_t n_choices;
    choice end; /* what the prompt's end decided; n_slots: of the prompt */
} request;

struct cuda_lists {
    request *requests; /* [n_requests], by number */
    uint32_t n_requests;
    uint64_t bytes;   /* of all lists */
    uint32_t **given; /* [n_given] lists that were given up, which steps in flight may read */
    size_t n_given, capacity;
};

/* Specs are compared by their bytes. */
_Static_assert(sizeof(retrieval_spec) == 15 * sizeof(uint32_t), "a spec has no padding");

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "blocks of earlier rows"); }

status cuda_lists_create(cuda_lists **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? STATUS_IS_OK : no_memory();
}

void cuda_lists_destroy(backend_cuda *b, cuda_lists *lists)
{
    if (!lists) return;
    for (uint32_t i = 0; i < lists->n_requests; i++) {
        const request *r = &lists->requests[i];
        for (uint32_t c = 0; c < r->n_choices; c++)
            if (r->choices[c].blocks) b->device.api->release(b->device.g, r->choices[c].blocks);
        if (r->end.blocks) b->device.api->release(b->device.g, r->end.blocks);
        free(r->choices);
    }
    for (size_t i = 0; i < lists->n_given; i++)
        b->device.api->release(b->device.g, lists->given[i]);
    free(lists->given);
    free(lists->requests);
    free(lists);
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

/* Takes the choice's lists from it, to be released before a later step. */
static bool give_up(cuda_lists *lists, choice *c)
{
    if (lists->n_given == lists->capacity) {
        size_t more = 2 * lists->capacity + 16;
        uint32_t **grown = alloc_resize(NULL, lists->given, more, sizeof *grown);
        if (!grown) return false;
        lists->given = grown;
        lists->capacity = more;
    }
    if (c->blocks) lists->given[lists->n_given++] = c->blocks;
    lists->bytes -= c->bytes;
    *c = (choice){0};
    return true;
}

status cuda_lists_end(backend_cuda *b, cuda_lists *lists, const uint32_t *notes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (notes[i] >= lists->n_requests) continue;
        request *r = &lists->requests[notes[i]];
        for (uint32_t c = 0; c < r->n_choices; c++)
            if (!give_up(lists, &r->choices[c])) return no_memory();
        if (!give_up(lists, &r->end)) return no_memory();
        free(r->choices);
        *r = (request){0};
    }
    if (lists->n_given == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_wait(&b->device));
    while (lists->n_given > 0) b->device.api->release(b->device.g, lists->given[--lists->n_given]);
    return STATUS_IS_OK;
}

/* Rows of this step may read the lists that are replaced. */
static status fit(backend_cuda *b, cuda_lists *lists, choice *c, uint32_t room, size_t n_lists)
{
    void *grown;
    size_t bytes = n_lists * room * sizeof *c->blocks;
    if (c->room == room && c->bytes == bytes) return STATUS_IS_OK;
    if (!give_up(lists, c)) return no_memory();
    /* A block whose keys were chosen has a mark beside its bits: up to as much again. */
    if (lists->bytes + bytes > 2 * b->info.note_bytes)
        return status_make(STATUS_LIMIT, "plan: more blocks of earlier rows than are kept");
    RETURN_IF_GPU_ERROR(b->device.api->alloc(b->device.g, bytes, &grown));
    *c = (choice){.room = room, .blocks = grown, .bytes = bytes};
    lists->bytes += bytes;
    return STATUS_IS_OK;
}

status cuda_lists_keep(backend_cuda *b, cuda_lists *lists, const step_seq *s, gpu_sparse_row *row)
{
    const pkv_geometry *g = &b->info.geometry;
    size_t n_lists = (size_t)g->n_layers * (g->n_kv_heads / row->together);
    if (!reach((void **)&lists->requests, &lists->n_requests, s->note, sizeof *lists->requests))
        return no_memory();
    request *r = &lists->requests[s->note];
    if (!reach((void **)&r->choices, &r->n_choices, s->choice, sizeof *r->choices))
        return no_memory();
    choice *c = &r->choices[s->choice];
    RETURN_IF_ERROR(fit(b, lists, c, row->n_list, n_lists));
    c->spec = s->retrieval;
    c->n_slots = row->n_slots;
    row->kept = c->blocks;
    row->kept_room = c->room;
    return STATUS_IS_OK;
}

status cuda_lists_find(const cuda_lists *lists, const step_seq *s, uint32_t selected_at,
                       gpu_sparse_row *row)
{
    const request *r = s->note < lists->n_requests ? &lists->requests[s->note] : NULL;
    const choice *c = r && s->choice < r->n_choices ? &r->choices[s->choice] : NULL;
    if (!c || c->n_slots != selected_at || memcmp(&c->spec, &s->retrieval, sizeof c->spec) != 0)
        return status_make(STATUS_INVALID, "plan: a row that follows no selection of the past");
    row->kept = c->blocks;
    row->kept_room = c->room;
    return STATUS_IS_OK;
}

/* ---- the prompt's end ------------------------------------------------------------------------ */

/* The parts of what is kept, in words of 32 bits: marks, slots, blocks that are left out. */
typedef struct end_words {
    size_t marks, chosen, left_out;
} end_words;

static end_words end_words_of(const backend_cuda *b, const step_seq *s)
{
    const pkv_geometry *g = &b->info.geometry;
    const retrieval_spec *spec = &s->retrieval;
    size_t blocks = s->n_prompt / spec->block_tokens, of_heads = g->n_layers * g->n_kv_heads;
    size_t lists = (size_t)g->n_layers * (g->n_kv_heads / retrieval_heads_together(spec, g));
    end_words n = {0};
    if (spec->representative == RETRIEVAL_DYNAMIC) {
        n.marks = of_heads * blocks * (sizeof(gpu_tile_mark) / sizeof(uint32_t));
        n.chosen = of_heads * blocks * ((spec->block_tokens + 31) / 32);
    }
    if (retrieval_left_out(spec, s->n_prompt) > 0) n.left_out = lists * ((blocks + 31) / 32);
    return n;
}

static cuda_prompt_end parts_of(const end_words *n, uint32_t *words)
{
    return (cuda_prompt_end){.left_out = n->left_out ? words + n->marks + n->chosen : NULL,
                             .chosen = n->chosen ? words + n->marks : NULL,
                             .marks = n->marks ? (gpu_tile_mark *)(void *)words : NULL};
}

status cuda_lists_observe(backend_cuda *b, cuda_lists *lists, const step_seq *s,
                          cuda_prompt_end *out)
{
    end_words n = end_words_of(b, s);
    size_t words = n.marks + n.chosen + n.left_out;
    *out = (cuda_prompt_end){0};
    if (words == 0) return STATUS_IS_OK;
    if (!reach((void **)&lists->requests, &lists->n_requests, s->note, sizeof *lists->requests))
        return no_memory();
    choice *end = &lists->requests[s->note].end;
    bool same = memcmp(&end->spec, &s->retrieval, sizeof end->spec) == 0;
    if (!same && !give_up(lists, end)) return no_memory();
    RETURN_IF_ERROR(fit(b, lists, end, 1, words));
    end->spec = s->retrieval;
    end->n_slots = s->n_prompt;
    *out = parts_of(&n, end->blocks);
    return STATUS_IS_OK;
}

status cuda_lists_observed(const backend_cuda *b, const cuda_lists *lists, const step_seq *s,
                           cuda_prompt_end *out)
{
    end_words n = end_words_of(b, s);
    *out = (cuda_prompt_end){0};
    if (n.marks + n.chosen + n.left_out == 0) return STATUS_IS_OK;
    const choice *end = s->note < lists->n_requests ? &lists->requests[s->note].end : NULL;
    if (!end || end->n_slots != s->n_prompt ||
        memcmp(&end->spec, &s->retrieval, sizeof end->spec) != 0)
        return status_make(STATUS_INVALID, "plan: a row behind a prompt that was not measured");
    *out = parts_of(&n, end->blocks);
    return STATUS_IS_OK;
}

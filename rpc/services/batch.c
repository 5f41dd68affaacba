/* Gathers outputs that are ready and sorts them by choice (batch.h). */
#include "rpc/services/batch.h"

enum { BLOCK_BYTES = 4096 };

static bool is_error(const generation_output *o) { return o->out.finish == ENGINE_FINISH_ERROR; }

/* Whether an output must have a message of its own. */
static bool is_alone(const generation_output *o) { return is_error(o) || o->out.progress.phase; }

/* Errors go last: an error ends the whole call, and tokens that came before it are still sent. */
static bool goes_before(const generation_output *a, const generation_output *b)
{
    if (is_error(a) != is_error(b)) return is_error(b);
    return a->index < b->index;
}

/* Puts an output behind those of its choice. */
static void insert(output_batch *b, const generation_output *o)
{
    uint32_t at = b->n++;
    for (; at > 0 && goes_before(o, b->outputs[at - 1]); at--) b->outputs[at] = b->outputs[at - 1];
    b->outputs[at] = o;
}

static bool read_outputs(output_batch *b, generation *g)
{
    generation_output o;
    b->n = b->at = 0;
    if (!generation_read(g, &o)) return true;
    arena_init(&b->memory, BLOCK_BYTES, 0);
    b->outputs = arena_alloc_array(&b->memory, BATCH_OUTPUTS, sizeof *b->outputs);
    if (!b->outputs) return false;
    do {
        generation_output *kept = arena_alloc(&b->memory, sizeof *kept);
        char *text = arena_strndup(&b->memory, o.out.text, o.out.text_bytes);
        if (!kept || !text) return false;
        *kept = o;
        kept->out.text = text;
        insert(b, kept);
    } while (b->n < BATCH_OUTPUTS && generation_read(g, &o));
    return true;
}

status batch_next(output_batch *b, generation *g, output_run *out)
{
    *out = (output_run){0};
    if (batch_is_empty(b)) {
        batch_destroy(b);
        if (!read_outputs(b, g)) return status_make(STATUS_NO_MEMORY, NULL);
        if (b->n == 0) return STATUS_IS_OK;
    }
    uint32_t from = b->at++;
    const generation_output *first = b->outputs[from];
    while (b->at < b->n && !is_alone(first) && !goes_before(first, b->outputs[b->at])) b->at++;
    *out = (output_run){b->outputs + from, b->at - from};
    return STATUS_IS_OK;
}

bool batch_is_empty(const output_batch *b) { return b->at == b->n; }

void batch_destroy(output_batch *b)
{
    arena_destroy(&b->memory);
    *b = (output_batch){0};
}

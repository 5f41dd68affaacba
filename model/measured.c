#include "model/measured.h"

#include <assert.h>
#include <stdlib.h>

static void free_values(const measured *m, measured_block *block)
{
    if (!m->release) free(block->values);
    else if (block->values) m->release(m->ctx, block->values);
    block->values = NULL;
    block->capacity = 0;
}

static void remove_block(const measured *m, measured_block **link)
{
    measured_block *block = *link;
    *link = block->next;
    free_values(m, block);
    free(block);
}

/* Takes one block without holders off the list, and frees the other such blocks. */
static measured_block *take_free(measured *m)
{
    measured_block *found = NULL;
    for (measured_block **link = &m->first; *link;) {
        if (atomic_load(&(*link)->holders) > 0) {
            link = &(*link)->next;
        } else if (found) {
            remove_block(m, link);
        } else {
            found = *link;
            *link = found->next;
        }
    }
    return found;
}

status measured_reserve(measured *m, size_t n)
{
    measured_block *block = take_free(m);
    if (!block) block = calloc(1, sizeof *block);
    if (!block) return status_make(STATUS_NO_MEMORY, "measures");
    block->next = m->first;
    m->first = block;
    if (n <= block->capacity) return STATUS_IS_OK;
    free_values(m, block);
    block->values =
        m->alloc ? m->alloc(m->ctx, n) : alloc_resize(NULL, NULL, n, sizeof *block->values);
    if (!block->values) return status_make(STATUS_NO_MEMORY, "measures");
    block->capacity = n;
    return STATUS_IS_OK;
}

void measured_destroy(measured *m)
{
    while (m->first) {
        assert(atomic_load(&m->first->holders) == 0);
        remove_block(m, &m->first);
    }
}

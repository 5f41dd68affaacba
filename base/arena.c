#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)16)
/* Blocks double up to this size, so that waste stays small. */
#define BLOCK_BYTES_MAX ((size_t)4 << 20)

struct arena_block {
    arena_block *next;
    size_t size; /* bytes of data */
    size_t used;
    size_t pad; /* keeps data 16-byte aligned */
    uint8_t data[];
};
_Static_assert(sizeof(arena_block) % 16 == 0, "data must be 16-byte aligned");

void arena_init(arena *a, size_t block_bytes, size_t limit_bytes)
{
    *a = (arena){.block_bytes = block_bytes > ALIGNMENT ? block_bytes : ALIGNMENT,
                 .limit_bytes = limit_bytes};
}

static arena_block *add_block(arena *a, size_t need)
{
    size_t room = a->limit_bytes > 0 ? a->limit_bytes - a->total_bytes : SIZE_MAX;
    size_t size = a->block_bytes > need ? a->block_bytes : need;
    if (size > room) size = need;
    if (size > room || size > SIZE_MAX - sizeof(arena_block)) return NULL;

    arena_block *block = malloc(sizeof *block + size);
    if (!block) a->starved = true;
    if (!block) return NULL;
    block->size = size;
    block->used = 0;
    block->next = a->head;
    a->head = block;
    a->total_bytes += size;
    if (a->block_bytes < BLOCK_BYTES_MAX / 2) a->block_bytes *= 2;
    return block;
}

void *arena_alloc(arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    size_t need = (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    if (need == 0) need = ALIGNMENT;
    arena_block *block = a->head;
    if (!block || block->size - block->used < need) block = add_block(a, need);
    if (!block) return NULL;
    void *ptr = block->data + block->used;
    block->used += need;
    return memset(ptr, 0, need);
}

void *arena_alloc_array(arena *a, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : arena_alloc(a, bytes);
}

char *arena_strndup(arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (copy && n > 0) memcpy(copy, s, n);
    return copy;
}

void arena_reset(arena *a)
{
    arena_block *keep = a->head;
    for (arena_block *b = a->head; b; b = b->next)
        if (b->size > keep->size) keep = b;
    for (arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        if (b != keep) free(b);
    }
    a->head = keep;
    a->total_bytes = keep ? keep->size : 0;
    if (!keep) return;
    keep->next = NULL;
    keep->used = 0;
}

void arena_destroy(arena *a)
{
    if (!a) return;
    for (arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
    a->total_bytes = 0;
}

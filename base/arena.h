/* Bump allocation with one free.
 *
 *   block:  [ used ........... | free ................ ]   -> older block -> ...
 *
 * Allocations are zeroed and 16-byte aligned. An arena is used by one thread at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct arena_block arena_block;

typedef struct arena {
    arena_block *head;
    size_t block_bytes; /* size of the next block: doubles up to 4 MiB */
    size_t limit_bytes; /* cap on the sum of all blocks; 0 = none */
    size_t total_bytes; /* sum of all blocks */
    bool starved;       /* memory was out before the limit was reached */
} arena;

void arena_init(arena *a, size_t block_bytes, size_t limit_bytes);
/* NULL when the limit is reached or memory is out. 0 bytes give a valid, non-NULL pointer. */
void *arena_alloc(arena *a, size_t bytes);
void *arena_alloc_array(arena *a, size_t n, size_t size); /* overflow-checked */
char *arena_strndup(arena *a, const char *s, size_t n);   /* NUL added */
/* Forgets every allocation, keeps the largest block for reuse. */
void arena_reset(arena *a);
void arena_destroy(arena *a);

#endif

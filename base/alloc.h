/* The allocator that is passed to modules, so that a test can count allocations or fail the
 * i-th. */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stddef.h>

/* `resize` follows realloc: ptr NULL allocates, size 0 frees and returns NULL. */
typedef struct allocator {
    void *(*resize)(void *ctx, void *ptr, size_t size);
    void *ctx;
} allocator;

/* malloc/realloc/free. A NULL `const allocator *` means this one everywhere. */
extern const allocator allocator_default;

/* n * size bytes, zeroed; NULL when out of memory or when n * size overflows. */
void *alloc_zeroed(const allocator *a, size_t n, size_t size);
/* Grows or shrinks to n * size bytes (new bytes undefined); NULL leaves `ptr` as it was. */
void *alloc_resize(const allocator *a, void *ptr, size_t n, size_t size);
void alloc_free(const allocator *a, void *ptr);

/* Page-aligned, zeroed anonymous memory from the kernel, in huge pages where it is large. For
 * weights, KV pages and scratch that live as long as the engine. NULL when refused. */
void *alloc_pages(size_t bytes);
void alloc_pages_free(void *ptr, size_t bytes);

/* Addresses for memory that is given back piece by piece: like alloc_pages, but in small pages, and
 * not counted against memory until it is written. Freed by alloc_pages_free. */
void *alloc_reserve(size_t bytes);
/* Gives back the memory of whole small pages of a reservation: they are zeros when they are read
 * next. */
void alloc_reserve_drop(void *ptr, size_t bytes);

#endif

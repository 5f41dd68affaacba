#include "base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_PAGE ((size_t)4096)
#define HUGE_PAGE  ((size_t)2 << 20)

static void *default_resize(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    if (size > 0) return realloc(ptr, size);
    free(ptr);
    return NULL;
}

const allocator allocator_default = {default_resize, NULL};

static const allocator *or_default(const allocator *a) { return a ? a : &allocator_default; }

void *alloc_resize(const allocator *a, void *ptr, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    /* Never resize to 0 bytes: that would free, and NULL would no longer mean that ptr is
     * unchanged. */
    a = or_default(a);
    return a->resize(a->ctx, ptr, bytes > 0 ? bytes : 1);
}

void *alloc_zeroed(const allocator *a, size_t n, size_t size)
{
    void *ptr = alloc_resize(a, NULL, n, size);
    if (ptr) memset(ptr, 0, n * size);
    return ptr;
}

void alloc_free(const allocator *a, void *ptr)
{
    if (!ptr) return;
    a = or_default(a);
    a->resize(a->ctx, ptr, 0);
}

/* 0 when the sum overflows. */
static size_t round_to_pages(size_t bytes)
{
    if (bytes == 0) return SMALL_PAGE;
    if (bytes > SIZE_MAX - 2 * HUGE_PAGE) return 0;
    return (bytes + SMALL_PAGE - 1) & ~(SMALL_PAGE - 1);
}

void *alloc_pages(size_t bytes)
{
    size_t size = round_to_pages(bytes);
    if (size == 0) return NULL;
    /* A huge page must start on its own boundary: maps one huge page more and unmaps what lies
     * outside. */
    size_t slack = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    void *map =
        mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    if (slack == 0) return map;

    uint8_t *from = map;
    size_t head = (HUGE_PAGE - (uintptr_t)from % HUGE_PAGE) % HUGE_PAGE;
    if (head > 0) munmap(from, head);
    if (slack > head) munmap(from + head + size, slack - head);
    madvise(from + head, size, MADV_HUGEPAGE); /* where huge pages are off, small ones do */
    return from + head;
}

void alloc_pages_free(void *ptr, size_t bytes)
{
    if (ptr) munmap(ptr, round_to_pages(bytes));
}

void *alloc_reserve(size_t bytes)
{
    size_t size = round_to_pages(bytes);
    if (size == 0) return NULL;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    madvise(map, size, MADV_NOHUGEPAGE); /* a huge page would come back whole with its first byte */
    return map;
}

void alloc_reserve_drop(void *ptr, size_t bytes) { madvise(ptr, bytes, MADV_DONTNEED); }

/* The smaller and the larger of two numbers, and sizes rounded up. */
#ifndef BASE_MINMAX_H
#define BASE_MINMAX_H

#include <stddef.h>
#include <stdint.h>

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
/* a / b rounded up, where a + b does not overflow. */
static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
/* Rounds up to a cache line, the alignment of scratch for vectors. */
static inline size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

#endif

/* The monotonic clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_us(void);
int64_t clock_now_ns(void);

#endif

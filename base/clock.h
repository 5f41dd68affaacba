/* The monotonic clock, and the processor's time of a thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_us(void);
int64_t clock_now_ns(void);

/* The time for which the calling thread has had a core so far. Time in which it waited, or in which
 * other threads had its core, does not count. */
int64_t clock_thread_ns(void);

#endif

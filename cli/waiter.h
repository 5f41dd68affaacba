/* What a reading loop sleeps on: streams with something to read, Ctrl-C, and perhaps more input.
 *
 * Ctrl-C (and SIGTERM) is taken by a thread of its own: while armed, the first one is noted and
 * wakes the loop, which winds up; otherwise, and at the second, the process ends at once with
 * status 130. */
#ifndef CLI_WAITER_H
#define CLI_WAITER_H

#include "base/base.h"

typedef struct waiter waiter;

/* Before any other thread is started: the signals are blocked in this thread and in all it will
 * start. */
status waiter_create(waiter **out, error *err);
void waiter_destroy(waiter *w);
void waiter_arm(waiter *w, bool armed);
bool waiter_interrupted(const waiter *w);
/* An engine_notify. Any thread. */
void waiter_notify(void *w);
/* Sleeps until notified (since the last call), interrupted, `fd` (-1 = none) is readable, or
 * timeout_ms have passed. */
void waiter_wait(waiter *w, int fd, int timeout_ms);

#endif

/* The waiting of a reading loop: for streams with something to read, for Ctrl-C, and perhaps for
 * more input.
 *
 * A thread of its own takes Ctrl-C (and SIGTERM). While the waiter is armed, the first signal is
 * noted and wakes the loop, which ends its work in order; the second signal, or a signal while the
 * waiter is not armed, ends the process at once with status 130. */
#ifndef CLI_WAITER_H
#define CLI_WAITER_H

#include "base/base.h"

typedef struct waiter waiter;

/* To be called before any other thread starts: it blocks the signals in this thread and in all
 * threads that it will start. */
status waiter_create(waiter **out, error *err);
void waiter_destroy(waiter *w);
void waiter_arm(waiter *w, bool armed);
bool waiter_interrupted(const waiter *w);
/* Forgets that Ctrl-C was pressed. False: SIGTERM came, which is not forgotten. */
bool waiter_resume(waiter *w);
/* An engine_notify. Any thread. */
void waiter_notify(void *w);
/* Sleeps until notified (since the last call), interrupted, `fd` (-1 = none) is readable, or
 * timeout_ms have passed. */
void waiter_wait(waiter *w, int fd, int timeout_ms);

#endif

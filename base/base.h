/* base: the module that all others depend on.
 *
 * What     status values, allocators, arenas, JSON, files, hashes, random numbers, time, half-width
 *          floats, UTF-8 and the thread pool. base depends on libc, pthreads and jansson only.
 * Owner    the creator of an object destroys it; every *_destroy accepts NULL.
 * Threads  everything here is free of hidden state: calls on distinct objects never interfere.
 * Units    sizes in bytes, times in microseconds of the monotonic clock.
 * Errors   status by value (status.h); loaders add an `error` with the place and the reason. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include "base/alloc.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/logits.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "base/threads.h"
#include "base/utf8.h"

#endif

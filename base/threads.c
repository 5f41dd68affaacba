#include "base/threads.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MAX 1024
#define CACHE_LINE  64
/* How long a worker spins: longer than the gaps between the loops of one forward pass, too short to
 * be noticed. */
#define SPIN_NS 100000

/* How the pieces of a loop are handed out.
 *
 * `tickets` holds (loop number << 32) | pieces not yet taken. A thread takes pieces by compare and
 * swap, so threads need no check-in: the caller does not wait for a thread that sleeps through a
 * loop, and a thread that arrives late finds 0 pieces. The swap fails when a new loop began
 * meanwhile, because its number differs; so a thread that saw pieces and then took one has read the
 * fields of that same loop. The caller writes those fields only after `done` has reached the count
 * of pieces, when no thread holds one. */
struct thread_pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t tickets;
    _Alignas(CACHE_LINE) _Atomic uint32_t done; /* pieces of this loop finished */
    _Atomic uint32_t caller_sleeps;
    _Alignas(CACHE_LINE) _Atomic uint32_t round; /* workers wait for it to change */
    _Atomic uint32_t n_sleeping;                 /* workers in, or about to enter, the futex */
    _Atomic uint32_t stop;
    /* The present loop. Atomic because a late worker may read the fields while the next loop is
     * written. */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_pieces;
    _Atomic size_t n, grain;
    _Atomic uint32_t shares; /* 2 * threads: pieces are taken in runs; 0: one by one */
    _Atomic thread_fn fn;
    _Atomic(void *) ctx;

    _Alignas(CACHE_LINE) unsigned n_threads;
    uint32_t loop;          /* number of the loop; caller only */
    int64_t spin_ns;        /* 0: sleep at once */
    struct worker *workers; /* n_threads - 1 */
};

struct worker {
    thread_pool *pool;
    pthread_t handle;
    unsigned thread;
    int core; /* -1: not pinned */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, unsigned n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, (int)n, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *word differs from `seen`. False when the time is over first. */
static bool spin_while(_Atomic uint32_t *word, uint32_t seen, int64_t spin_ns)
{
    if (spin_ns == 0) return atomic_load_explicit(word, memory_order_acquire) != seen;
    int64_t end = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
        cpu_relax();
        if (i % 64 != 0) continue;
        int64_t now = clock_now_ns();
        if (end == 0) end = now + spin_ns;
        else if (now > end) return false;
    }
}

/* How many of the `left` pieces of a loop a thread takes at once. A loop in runs gives out three
 * quarters of its pieces in one long run for each thread, because each run starts slowly; then a
 * thread takes half of its share of what is left, so that all threads end together. */
static uint32_t run_length(uint32_t left, uint32_t pieces, uint32_t shares)
{
    if (shares == 0) return 1;
    uint32_t threads = shares / 2, first = pieces / 4 * 3 / threads;
    if (left > pieces - first * threads) return first;
    return left > shares ? left / shares : 1;
}

/* Takes pieces until none is left. */
static void take_pieces(thread_pool *pool, unsigned thread)
{
    uint32_t finished = 0, n_pieces = 0;
    uint64_t t = atomic_load_explicit(&pool->tickets, memory_order_acquire);
    while ((uint32_t)t > 0) {
        /* Acquire, so that fields of a later loop make the swap below see that loop's tickets. */
        uint32_t pieces = atomic_load_explicit(&pool->n_pieces, memory_order_acquire);
        size_t n = atomic_load_explicit(&pool->n, memory_order_acquire);
        size_t grain = atomic_load_explicit(&pool->grain, memory_order_acquire);
        thread_fn fn = atomic_load_explicit(&pool->fn, memory_order_acquire);
        void *ctx = atomic_load_explicit(&pool->ctx, memory_order_acquire);
        uint32_t shares = atomic_load_explicit(&pool->shares, memory_order_acquire);
        uint32_t taken = run_length((uint32_t)t, pieces, shares);
        if (!atomic_compare_exchange_weak_explicit(&pool->tickets, &t, t - taken,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        size_t from = (size_t)(pieces - (uint32_t)t) * grain, items = taken * grain;
        fn(ctx, from, n - from < items ? n : from + items, thread);
        n_pieces = pieces;
        finished += taken;
        t = atomic_load_explicit(&pool->tickets, memory_order_acquire);
    }
    /* `done` is written only now, once for each thread. No new loop can have begun in between. */
    if (finished == 0) return;
    uint32_t before = atomic_fetch_add(&pool->done, finished);
    if (before + finished == n_pieces && atomic_load(&pool->caller_sleeps))
        futex_wake(&pool->done, 1);
}

static void pin_to(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set); /* if refused, it runs unpinned, only slower */
}

void thread_set_name(const char *name) { pthread_setname_np(pthread_self(), name); }

bool thread_set_patient(bool patient)
{
    static const struct sched_param none = {0};
    int from = patient ? SCHED_OTHER : SCHED_BATCH, to = patient ? SCHED_BATCH : SCHED_OTHER;
    return sched_getscheduler(0) == from && sched_setscheduler(0, to, &none) == 0;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    thread_pool *pool = w->pool;
    thread_set_name("oct-compute");
    if (w->core >= 0) pin_to(w->core);
    uint32_t seen = 0;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        if (!spin_while(&pool->round, seen, pool->spin_ns)) {
            atomic_fetch_add(&pool->n_sleeping, 1);
            while (atomic_load(&pool->round) == seen) futex_wait(&pool->round, seen);
            atomic_fetch_sub(&pool->n_sleeping, 1);
        }
        seen = atomic_load_explicit(&pool->round, memory_order_acquire);
        take_pieces(pool, w->thread);
    }
    return NULL;
}

/* The i-th core of the mask, counting round; -1 when unknown. */
static int allowed_core(const cpu_set_t *set, unsigned i)
{
    int count = CPU_COUNT(set);
    int skip = count > 0 ? (int)(i % (unsigned)count) : -1;
    for (int core = 0; core < CPU_SETSIZE && skip >= 0; core++)
        if (CPU_ISSET(core, set) && skip-- == 0) return core;
    return -1;
}

/* Starts the workers with all signals blocked, because the main thread handles them. */
static status start_workers(thread_pool *pool, bool pin)
{
    cpu_set_t cores;
    if (!pin || sched_getaffinity(getpid(), sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    unsigned wanted = pool->n_threads;
    pool->n_threads = 1;
    for (unsigned i = 1; i < wanted; i++) {
        struct worker *w = &pool->workers[i - 1];
        *w = (struct worker){.pool = pool, .thread = i, .core = allowed_core(&cores, i)};
        if (pthread_create(&w->handle, NULL, worker_main, w) != 0) break;
        pool->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (pool->n_threads == wanted) return STATUS_IS_OK;
    return status_make(STATUS_NO_MEMORY, "cannot start worker threads");
}

status thread_pool_create(const thread_pool_options *options, thread_pool **out)
{
    unsigned allowed = cpu_count_allowed();
    unsigned n_threads = options && options->n_threads > 0 ? options->n_threads : allowed;
    if (n_threads > THREADS_MAX) return status_make(STATUS_INVALID, "too many threads");

    thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool) return status_make(STATUS_NO_MEMORY, "no memory for the thread pool");
    *pool = (thread_pool){.n_threads = n_threads, .spin_ns = n_threads > allowed ? 0 : SPIN_NS};
    pool->workers = alloc_zeroed(NULL, n_threads, sizeof *pool->workers);
    if (!pool->workers) {
        free(pool);
        return status_make(STATUS_NO_MEMORY, "no memory for the thread pool");
    }
    status result = start_workers(pool, options && options->pin);
    if (!status_ok(result)) {
        thread_pool_destroy(pool);
        return result;
    }
    *out = pool;
    return STATUS_IS_OK;
}

void thread_pool_destroy(thread_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->round, 1);
    futex_wake(&pool->round, INT_MAX);
    for (unsigned i = 1; i < pool->n_threads; i++) pthread_join(pool->workers[i - 1].handle, NULL);
    alloc_free(NULL, pool->workers);
    free(pool);
}

unsigned thread_pool_size(const thread_pool *pool) { return pool->n_threads; }

static void wait_for_pieces(thread_pool *pool, uint32_t n_pieces)
{
    int64_t spin_ns = pool->spin_ns;
    for (;;) {
        uint32_t done = atomic_load_explicit(&pool->done, memory_order_acquire);
        if (done == n_pieces) return;
        if (spin_while(&pool->done, done, spin_ns)) continue;
        atomic_store(&pool->caller_sleeps, 1);
        while ((done = atomic_load(&pool->done)) != n_pieces) futex_wait(&pool->done, done);
        atomic_store(&pool->caller_sleeps, 0);
        return;
    }
}

static void run_loop(thread_pool *pool, size_t n, size_t grain, uint32_t shares, thread_fn fn,
                     void *ctx)
{
    if (n == 0) return;
    if (grain == 0) grain = 1;
    size_t pieces = n / grain + (n % grain != 0);
    if (pieces == 1 || pool->n_threads == 1 || pieces > UINT32_MAX) {
        for (size_t from = 0; from < n; from += grain)
            fn(ctx, from, n - from < grain ? n : from + grain, 0);
        return;
    }
    uint32_t n_pieces = (uint32_t)pieces;
    atomic_store_explicit(&pool->done, 0, memory_order_release);
    atomic_store_explicit(&pool->n_pieces, n_pieces, memory_order_release);
    atomic_store_explicit(&pool->n, n, memory_order_release);
    atomic_store_explicit(&pool->grain, grain, memory_order_release);
    atomic_store_explicit(&pool->shares, shares, memory_order_release);
    atomic_store_explicit(&pool->fn, fn, memory_order_release);
    atomic_store_explicit(&pool->ctx, ctx, memory_order_release);
    uint64_t loop = ++pool->loop;
    atomic_store_explicit(&pool->tickets, loop << 32 | n_pieces, memory_order_release);
    atomic_fetch_add(&pool->round, 1);
    /* Wakes one worker for each piece but the caller's own. */
    if (atomic_load(&pool->n_sleeping) > 0)
        futex_wake(&pool->round, n_pieces - 1 < INT_MAX ? n_pieces - 1 : INT_MAX);
    take_pieces(pool, 0);
    wait_for_pieces(pool, n_pieces);
}

void thread_pool_for(thread_pool *pool, size_t n, size_t grain, thread_fn fn, void *ctx)
{
    run_loop(pool, n, grain, 0, fn, ctx);
}

void thread_pool_for_runs(thread_pool *pool, size_t n, thread_fn fn, void *ctx)
{
    if (pool->n_threads == 1 && n > 0) fn(ctx, 0, n, 0);
    else run_loop(pool, n, 1, 2 * pool->n_threads, fn, ctx);
}

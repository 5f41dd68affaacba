/* Fibers that are the threads of a block (simt.h). */
#include "tests/simt/device.h"
#include "tests/simt/group.h"
#include "tests/simt/strict.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum {
    STACK_BYTES = (64 << 10) + 1152, /* by no power of two: tops share no lines of a cache */
    SHARED_UNASKED = 48 << 10,       /* without gpu_allow_shared */
    GRID_MOST = 65535,               /* along y and z */
    LANE_BYTES = 64,
    LARGE = 64 << 10,
};

/* An asynchronous copy of 16 bytes. */
struct copying {
    void *to;
    const void *from;
    bool there;
    unsigned group;
};

struct fiber {
    void *sp; /* while it is not running */
    unsigned char *stack;
    bool awaits; /* it is ahead of await_previous */
    unsigned n_groups;
    std::vector<copying> copies;
};

/* A set of threads of the block: lanes of each warp, and the warps that have some. */
struct thread_set {
    uint32_t lanes[THREADS_MOST / WARP], warps;
};
static_assert(THREADS_MOST / WARP <= 32, "a bit for each warp");

/* Threads that wait for each other, all of them at one line. */
struct barrier {
    unsigned arrived, first;
    int line;
};

simt_place simt_now;
simt_view simt_seen;
simt_work simt_asked;
__thread bool simt_here;

/* Threads that no launch needs go on in the next one. Their stacks are one mapping. */
struct fiber_list {
    std::vector<fiber> of_thread;
    unsigned char *stacks = NULL;
};

static fiber_list fibers;
static std::vector<fiber_list> spare; /* for ranks that run while others wait in their launches */
static void *scheduler_sp;
/* Threads that can go on, and threads that wait for other ranks. The running one is in neither. */
static thread_set ready, spinning;
static unsigned n_left; /* of the block's threads, those that have not returned */
static barrier of_block, of_warp[THREADS_MOST / WARP], of_group[THREADS_MOST / GROUP];
static unsigned char lanes[2][THREADS_MOST * LANE_BYTES]; /* by the parity of the exchange */
static unsigned round_of[THREADS_MOST];
static uint32_t phase, n_launches;
alignas(128) static unsigned char shared_memory[SHARED_BYTES];
static std::map<const void *, size_t> allowed_shared;
static std::mutex one; /* ranks are threads, and this state is static */
static const std::function<void()> *current;

unsigned char *simt_shared(void) { return shared_memory; }

void simt_refuse(const char *why)
{
    const simt_job *job = simt_seen.job;
    fprintf(stderr, "simt: %s: %s\n", job ? job->name : "host", why);
    abort();
}

/* Saves the registers that a function call must preserve, and switches stacks. */
extern "C" void simt_switch(void **from, void *to);
asm(".text\n.globl simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");

static unsigned thread_number(void) { return simt_now.thread_at.x; }

static fiber *running(void) { return &fibers.of_thread[thread_number()]; }

/* Adds threads first to first + n - 1, which are whole warps. */
static void add_warps(thread_set *set, unsigned first, unsigned n)
{
    for (unsigned w = first / WARP; w < (first + n) / WARP; w++) {
        set->lanes[w] = UINT32_MAX;
        set->warps |= 1u << w;
    }
}

static void remove_thread(thread_set *set, unsigned i)
{
    const unsigned w = i / WARP;
    set->lanes[w] &= ~(1u << i % WARP);
    if (set->lanes[w] == 0) set->warps &= ~(1u << w);
}

static unsigned find_first(uint32_t bits) { return (unsigned)__builtin_ctz(bits); }

/* The first bit that is set behind bit `at`, or else the first one of all. */
static unsigned find_next(uint32_t bits, unsigned at)
{
    const uint32_t behind = bits & ~1u << at;
    return find_first(behind ? behind : bits);
}

/* The thread that runs after this one, where some are ready. A warp goes on for as long as it can:
 * so warps are as far apart as barriers let them, which shows where one is missing, and the stacks
 * in use stay in the cache. */
static unsigned find_ready(void)
{
    const unsigned me = thread_number(), own = me / WARP;
    if (ready.lanes[own]) return own * WARP + find_next(ready.lanes[own], me % WARP);
    const unsigned next = find_next(ready.warps, own);
    return next * WARP + find_first(ready.lanes[next]);
}

/* Leaves the running stack for thread i's. */
static void run_thread(void **from, unsigned i)
{
    fiber *f = &fibers.of_thread[i];
    remove_thread(&ready, i);
    simt_seen.stack = f->stack;
    simt_seen.ahead = f->awaits;
    simt_now.thread_at.x = i;
    simt_switch(from, f->sp);
}

/* The next thread that is ready runs; where none is, run_block decides. */
static void yield(void)
{
    void **own = &running()->sp;
    if (ready.warps) run_thread(own, find_ready());
    else simt_switch(own, scheduler_sp);
}

static void fiber_main(void)
{
    for (;;) { /* a turn for each block */
        (*current)();
        if (running()->awaits) simt_refuse("a thread ends that never called await_previous");
        n_left--;
        yield();
    }
}

static fiber make_fiber(unsigned char *stack)
{
    fiber f = fiber();
    f.stack = stack;
    void **top = (void **)(stack + STACK_BYTES - 64);
    *--top = NULL;               /* alignment: as after a call */
    *--top = (void *)fiber_main; /* simt_switch returns to it */
    for (int i = 0; i < 6; i++) *--top = NULL;
    f.sp = top;
    return f;
}

/* Makes what the list lacks of n fibers. With large pages the processor holds the translations of
 * all stacks of a block. */
static void make_fibers(fiber_list *list, size_t n)
{
    const size_t bytes = (size_t)THREADS_MOST * STACK_BYTES;
    if (!list->stacks) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) abort();
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        list->stacks = (unsigned char *)p;
    }
    for (size_t i = list->of_thread.size(); i < n; i++)
        list->of_thread.push_back(make_fiber(list->stacks + i * STACK_BYTES));
}

/* ---- barriers and exchanges ------------------------------------------------------------------ */

/* Whether this thread is the last of n. All must be at the same line. */
static bool arrive(barrier *b, unsigned n, int line)
{
    if (b->arrived == 0) {
        b->first = thread_number();
        b->line = line;
    } else if (b->line != line) {
        fprintf(stderr, "simt: lines %d and %d, threads %u and %u\n", line, b->line,
                thread_number(), b->first);
        simt_refuse("threads meet that stand at different places");
    }
    if (++b->arrived < n) return false;
    b->arrived = 0;
    return true;
}

/* All n threads from `first` on have arrived: those that wait can go on behind the running one. */
static void release(unsigned first, unsigned n)
{
    add_warps(&ready, first, n);
    remove_thread(&ready, thread_number());
}

void simt_sync_block(int line)
{
    const unsigned n = simt_now.block.x;
    if (arrive(&of_block, n, line)) {
        simt_seen.now = ++phase;
        release(0, n);
    } else yield();
}

const unsigned char *simt_exchange(const void *mine, size_t bytes, int line, simt_join *join)
{
    const unsigned me = thread_number(), warp = me / WARP;
    unsigned char *all = lanes[round_of[me]++ % 2] + (size_t)warp * WARP * LANE_BYTES;
    unsigned char *own = all + (size_t)(me % WARP) * LANE_BYTES;
    assert(bytes <= LANE_BYTES);
    if (bytes == 4) memcpy(own, mine, 4); /* most are a word or an address */
    else if (bytes == 8) memcpy(own, mine, 8);
    else memcpy(own, mine, bytes);
    if (arrive(&of_warp[warp], WARP, line)) {
        if (join) join(all);
        release(warp * WARP, WARP);
    } else yield();
    return all;
}

/* PTX, "Matrix Fragments for mma.m16n8k16": A's registers are its quarters (rows 0-7 and 8-15 of
 * columns 0-7, then those of columns 8-15), B's are its upper and lower half. */
template <class T> static void multiply_fragments(unsigned char *all)
{
    float a[16][16], b[16][8], d[16][8] = {{0}};
    for (unsigned lane = 0; lane < WARP; lane++) {
        T of[12];
        memcpy(of, all + lane * LANE_BYTES, sizeof of);
        for (unsigned i = 0; i < 12; i++) {
            unsigned side = lane / 4, along = lane % 4 * 2 + i % 2;
            if (i < 8) a[side + i / 2 % 2 * 8][along + i / 4 * 8] = to_float(of[i]);
            else b[along + (i - 8) / 2 * 8][side] = to_float(of[i]);
        }
    }
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column];
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned i = 0; i < 4; i++)
            memcpy(all + lane * LANE_BYTES + i * sizeof(float),
                   &d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2], sizeof(float));
}

void simt_multiply_bf16(unsigned char *all) { multiply_fragments<bf16>(all); }
void simt_multiply_f16(unsigned char *all) { multiply_fragments<f16>(all); }

void simt_meet_group(int line, const std::function<void()> &last)
{
    const unsigned group = thread_number() / GROUP;
    if (arrive(&of_group[group], GROUP, line)) {
        last();
        release(group * GROUP, GROUP);
    } else yield();
}

void simt_spin(void)
{
    const unsigned me = thread_number();
    spinning.lanes[me / WARP] |= 1u << me % WARP;
    spinning.warps |= 1u << me / WARP;
    yield();
}

void simt_await_previous(void) { running()->awaits = simt_seen.ahead = false; }

/* Lets other ranks run their kernels, which need all that is static here. This launch then goes on
 * as if it had just begun: accesses from before are compared with those that follow only where
 * other ranks reach the memory (ranks.cc), and what was in shared memory is gone. */
static void let_others_run(void)
{
    static const useconds_t NAP_US = 50;
    const simt_place place = simt_now;
    const simt_view view = simt_seen;
    const barrier block = of_block;
    std::vector<barrier> warps(of_warp, of_warp + THREADS_MOST / WARP);
    std::vector<unsigned> rounds(round_of, round_of + THREADS_MOST);
    const std::function<void()> *body = current;
    const thread_set spinners = spinning;
    const unsigned left = n_left;
    spinning = thread_set();
    const simt_work asked = simt_asked;
    fiber_list own = std::move(fibers);
    fibers = fiber_list();
    if (!spare.empty()) {
        fibers = std::move(spare.back());
        spare.pop_back();
    }
    one.unlock();
    usleep(NAP_US);
    one.lock();
    spare.push_back(std::move(fibers));
    fibers = std::move(own);
    current = body;
    n_left = left;
    ready = spinners;
    spinning = thread_set();
    simt_asked = asked;
    std::copy(rounds.begin(), rounds.end(), round_of);
    std::copy(warps.begin(), warps.end(), of_warp);
    of_block = block;
    simt_now = place;
    simt_seen = view;
    memset(shared_memory, 0xff, simt_seen.job->shared);
    simt_seen.launch = simt_seen.block = simt_seen.now = ++phase;
    simt_block_runs();
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

void simt_copy_async(void *shared, const void *global, bool there)
{
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0)
        simt_refuse("a copy of 16 bytes that is not aligned");
    if ((uintptr_t)shared - (uintptr_t)shared_memory >= SHARED_BYTES)
        simt_refuse("a copy to elsewhere than shared memory");
    simt_touch(shared, 16, SIMT_COPY);
    if (there && simt_seen.ahead) simt_touch(global, 16, SIMT_READ); /* it may read at once */
    memset(shared, 0xff, 16);
    simt_asked.bytes += there ? 16 : 0;
    running()->copies.push_back(copying{shared, global, there, running()->n_groups});
}

void simt_copy_commit(void) { running()->n_groups++; }

void simt_copy_wait(unsigned left)
{
    fiber *f = running();
    size_t kept = 0;
    for (const copying &c : f->copies) {
        if (c.group + left >= f->n_groups) {
            f->copies[kept++] = c;
            continue;
        }
        if (c.there) simt_touch(c.from, 16, SIMT_READ);
        simt_touch(c.to, 16, SIMT_ARRIVE);
        if (c.there) memcpy(c.to, c.from, 16);
        else memset(c.to, 0, 16);
    }
    f->copies.resize(kept);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Runs the fibers in turn until all have returned. Where none is ready before, some thread never
 * reached a barrier. */
static void run_block(unsigned n)
{
    memset(&of_block, 0, sizeof of_block);
    memset(of_warp, 0, sizeof of_warp);
    memset(of_group, 0, sizeof of_group);
    memset(round_of, 0, sizeof round_of);
    for (unsigned i = 0; i < n; i++) {
        fiber &f = fibers.of_thread[i];
        f.awaits = simt_seen.job->early;
        f.n_groups = 0;
        f.copies.clear();
    }
    n_left = n;
    add_warps(&ready, 0, n);
    while (n_left > 0) {
        if (ready.warps) {
            unsigned first = find_first(ready.warps);
            run_thread(&scheduler_sp, first * WARP + find_first(ready.lanes[first]));
        } else if (spinning.warps) {
            let_others_run();
        } else {
            fprintf(stderr, "simt: %u of %u threads\n", n_left, n);
            simt_refuse("threads wait at a barrier for the rest");
        }
    }
}

gpu_status gpu_allow_shared(gpu *g, const void *kernel, size_t bytes)
{
    (void)g;
    std::lock_guard<std::mutex> held(one);
    if (bytes > SHARED_BYTES) simt_refuse("more shared memory than a block can have");
    size_t &allowed = allowed_shared[kernel];
    if (allowed < bytes) allowed = bytes;
    return GPU_OK;
}

/* Refuses launches that a device would refuse. */
static void check_job(const simt_job &job)
{
    const dim3 &b = job.block, &g = job.grid;
    if (b.x == 0 || b.x % WARP != 0 || b.x > THREADS_MOST || b.y != 1 || b.z != 1)
        simt_refuse("a block of no whole warps, or of too many");
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > INT32_MAX || g.y > GRID_MOST || g.z > GRID_MOST)
        simt_refuse("a grid without blocks, or with too many");
    auto allowed = allowed_shared.find(job.kernel);
    if (job.shared > SHARED_UNASKED &&
        (allowed == allowed_shared.end() || allowed->second < job.shared))
        simt_refuse("more shared memory than was asked for");
    if (job.args_bytes > 4096) simt_refuse("more than 4 KiB of arguments");
}

simt_work simt_work_of_threads(dim3 grid, dim3 block)
{
    return {(uint64_t)grid.x * grid.y * grid.z * block.x * SIMT_THREAD_BYTES, 0};
}

simt_work simt_run(const simt_job &job, const std::function<void()> &body)
{
    std::lock_guard<std::mutex> held(one);
    simt_here = true;
    simt_seen.job = &job;
    check_job(job);
    make_fibers(&fibers, job.block.x);
    current = simt_seen.body = &body;
    simt_now.grid = job.grid;
    simt_now.block = job.block;
    simt_now.thread_at = dim3(0, 0, 0); /* its x is the running thread's */
    simt_seen.stack_bytes = STACK_BYTES;
    simt_seen.launch = phase + 1;
    simt_seen.g = job.g;
    simt_seen.launch_number = ++n_launches;
    simt_seen.block_number = 0;
    simt_asked = simt_work_of_threads(job.grid, job.block);
    for (unsigned z = 0; z < job.grid.z; z++)
        for (unsigned y = 0; y < job.grid.y; y++)
            for (unsigned x = 0; x < job.grid.x; x++) {
                /* A block does not see what an earlier block left in shared memory. */
                memset(shared_memory, 0xff, job.shared);
                simt_now.block_at = dim3(x, y, z);
                simt_seen.block = simt_seen.now = ++phase;
                simt_seen.block_number++;
                simt_block_runs();
                run_block(job.block.x);
                simt_group_ends(job.block.x);
                simt_block_ends();
            }
    simt_launch_ends();
    simt_seen.job = NULL;
    simt_here = false;
    return simt_asked;
}

#ifndef OCTAVO_SIMT_STRICT
void *simt_alloc(size_t bytes)
{
    /* Whole pages of larger blocks may move to a file (runtime.cc). */
    size_t unit = bytes < 4096 ? 256 : 4096, rounded = (bytes + unit - 1) / unit * unit;
    void *p = aligned_alloc(unit, rounded ? rounded : unit);
    if (p && rounded < LARGE) memset(p, 0, rounded);
    else if (p)
        (void)madvise(p, rounded, MADV_DONTNEED); /* zeros, page by page where one is used */
    return p;
}

void simt_free(void *p) { free(p); }
#endif

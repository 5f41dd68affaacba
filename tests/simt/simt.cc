/* Fibers that are the threads of a block (simt.h). */
#include "tests/simt/group.h"
#include "tests/simt/strict.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <vector>

enum {
    STACK_BYTES = 128 << 10,
    SHARED_UNASKED = 48 << 10, /* without gpu_allow_shared */
    GRID_MOST = 65535,         /* along y and z */
    LANE_BYTES = 64,
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
    bool done;
    bool at_block, at_warp, spins;
    int line; /* of the barrier or exchange where it waits */
    unsigned n_groups;
    std::vector<copying> copies;
};

struct barrier {
    unsigned arrived, generation;
};

simt_place simt_now;
simt_view simt_seen;
thread_local bool simt_here;

struct fiber_list : std::vector<fiber> {
    ~fiber_list()
    {
        for (fiber &f : *this) free(f.stack);
    }
};

static fiber_list fibers;
static fiber *running;
static void *scheduler_sp;
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

static void yield(void) { simt_switch(&running->sp, scheduler_sp); }

static void fiber_main(void)
{
    for (;;) {
        (*current)();
        running->done = true;
        yield();
    }
}

static void prepare(fiber *f)
{
    void **top = (void **)(f->stack + STACK_BYTES - 64);
    *--top = NULL;               /* alignment: as after a call */
    *--top = (void *)fiber_main; /* simt_switch returns to it */
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->sp = top;
    f->done = f->at_block = f->at_warp = f->spins = false;
    f->n_groups = 0;
    f->copies.clear();
}

/* ---- barriers and exchanges ------------------------------------------------------------------ */

/* Returns true to the last thread that arrives. */
static bool arrive(barrier *b, unsigned of)
{
    if (++b->arrived < of) return false;
    b->arrived = 0;
    b->generation++;
    return true;
}

static void wait_at(const barrier *b, unsigned generation, bool *flag)
{
    *flag = true;
    while (b->generation == generation) yield();
    *flag = false;
}

static unsigned thread_number(void) { return simt_now.thread_at.x; }

/* Checks that all of these threads wait at the line where the last one is. */
static void check_lines(unsigned first, unsigned n, int line)
{
    for (unsigned i = first; i < first + n; i++)
        if (fibers[i].line != line) {
            fprintf(stderr, "simt: lines %d and %d, threads %u and %u\n", line, fibers[i].line,
                    thread_number(), i);
            simt_refuse("threads meet that stand at different places");
        }
}

void simt_sync_block(int line)
{
    unsigned generation = of_block.generation;
    running->line = line;
    if (arrive(&of_block, simt_now.block.x)) {
        check_lines(0, simt_now.block.x, line);
        simt_seen.now = ++phase;
    }
    wait_at(&of_block, generation, &running->at_block);
}

const unsigned char *simt_exchange(const void *mine, size_t bytes, int line)
{
    unsigned me = thread_number(), warp = me / WARP, generation = of_warp[warp].generation;
    unsigned char *all = lanes[round_of[me]++ % 2];
    assert(bytes <= LANE_BYTES);
    memcpy(all + (size_t)me * LANE_BYTES, mine, bytes);
    running->line = -line;
    if (arrive(&of_warp[warp], WARP)) check_lines(warp * WARP, WARP, -line);
    wait_at(&of_warp[warp], generation, &running->at_warp);
    return all + (size_t)warp * WARP * LANE_BYTES;
}

void simt_meet_group(int line, const std::function<void()> &last)
{
    unsigned group = thread_number() / GROUP, generation = of_group[group].generation;
    running->line = -line;
    if (of_group[group].arrived + 1 == GROUP) {
        check_lines(group * GROUP, GROUP, -line);
        last();
    }
    arrive(&of_group[group], GROUP);
    wait_at(&of_group[group], generation, &running->at_warp);
}

void simt_spin(void)
{
    running->spins = true;
    yield();
    running->spins = false;
}

/* Lets other ranks run their kernels, which need all that is static here. This launch then goes on
 * as if it had just begun: accesses from before are compared with those that follow only where
 * other ranks reach the memory (ranks.cc), and what was in shared memory is gone. */
static void let_others_run(void)
{
    static const useconds_t NAP_US = 50;
    fiber_list own;
    const simt_place place = simt_now;
    const simt_view view = simt_seen;
    const barrier block = of_block;
    std::vector<barrier> warps(of_warp, of_warp + THREADS_MOST / WARP);
    std::vector<unsigned> rounds(round_of, round_of + THREADS_MOST);
    const std::function<void()> *body = current;
    own.swap(fibers);
    one.unlock();
    usleep(NAP_US);
    one.lock();
    own.swap(fibers);
    current = body;
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
    memset(shared, 0xff, 16);
    running->copies.push_back(copying{shared, global, there, running->n_groups});
}

void simt_copy_commit(void) { running->n_groups++; }

void simt_copy_wait(unsigned left)
{
    size_t kept = 0;
    for (const copying &c : running->copies) {
        if (c.group + left >= running->n_groups) {
            running->copies[kept++] = c;
            continue;
        }
        if (c.there) simt_touch(c.from, 16, SIMT_READ);
        simt_touch(c.to, 16, SIMT_ARRIVE);
        if (c.there) memcpy(c.to, c.from, 16);
        else memset(c.to, 0, 16);
    }
    running->copies.resize(kept);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Runs the fibers in turn until all are done. A round without progress means that some thread never
 * reached a barrier. */
static void run_block(unsigned n)
{
    memset(&of_block, 0, sizeof of_block);
    memset(of_warp, 0, sizeof of_warp);
    memset(of_group, 0, sizeof of_group);
    memset(round_of, 0, sizeof round_of);
    for (unsigned i = 0; i < n; i++) prepare(&fibers[i]);
    for (unsigned left = n, stuck = 0; left > 0;) {
        left = 0;
        unsigned waiting = 0, spinning = 0;
        for (unsigned i = 0; i < n; i++) {
            fiber *f = &fibers[i];
            if (f->done) continue;
            running = f;
            simt_seen.stack = f->stack;
            simt_now.thread_at = dim3(i, 0, 0);
            simt_switch(&scheduler_sp, f->sp);
            left += !f->done;
            waiting += f->at_block || f->at_warp;
            spinning += !f->done && f->spins;
        }
        unsigned arrived = of_block.arrived;
        for (unsigned w = 0; w < n / WARP; w++) arrived += of_warp[w].arrived;
        for (unsigned i = 0; i < n / GROUP; i++) arrived += of_group[i].arrived;
        if (spinning > 0 && waiting + spinning == left && arrived == waiting) let_others_run();
        stuck = left > 0 && waiting == left && arrived == left ? stuck + 1 : 0;
        if (stuck > 2) {
            fprintf(stderr, "simt: %u of %u threads\n", left, n);
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

void simt_run(const simt_job &job, const std::function<void()> &body)
{
    std::lock_guard<std::mutex> held(one);
    simt_here = true;
    simt_seen.job = &job;
    check_job(job);
    for (size_t i = fibers.size(); i < job.block.x; i++) {
        fiber f = fiber();
        f.stack = (unsigned char *)aligned_alloc(64, STACK_BYTES);
        if (!f.stack) abort();
        fibers.push_back(f);
    }
    current = simt_seen.body = &body;
    simt_now.grid = job.grid;
    simt_now.block = job.block;
    simt_seen.stack_bytes = STACK_BYTES;
    simt_seen.launch = phase + 1;
    simt_seen.g = job.g;
    simt_seen.launch_number = ++n_launches;
    simt_seen.block_number = 0;
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
    running = NULL;
    simt_seen.job = NULL;
    simt_here = false;
}

#ifndef OCTAVO_SIMT_STRICT
void *simt_alloc(size_t bytes)
{
    size_t rounded = (bytes + 255) / 256 * 256;
    void *p = aligned_alloc(256, rounded ? rounded : 256);
    if (p) memset(p, 0, rounded);
    return p;
}

void simt_free(void *p) { free(p); }
#endif

/* Fibers that are the threads of a block (simt.h). */
#include "kernels/cuda/simt.cuh"

#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { STACK_BYTES = 128 << 10, SHARED_BYTES = 232448, THREADS_MOST = 1024, LANE_BYTES = 64 };

struct fiber {
    void *sp; /* while it does not run */
    unsigned char *stack;
    bool done;
    unsigned waits_for; /* generation of the barrier it stands at */
    bool at_block, at_warp;
};

struct barrier {
    unsigned arrived, generation;
};

simt_place simt_now;

struct fiber_list : std::vector<fiber> {
    ~fiber_list()
    {
        for (fiber &f : *this) free(f.stack);
    }
};

static fiber_list fibers;
static fiber *running;
static void *scheduler_sp;
static barrier of_block, of_warp[THREADS_MOST / WARP];
static unsigned char lanes[2][THREADS_MOST * LANE_BYTES]; /* by the parity of the exchange */
static unsigned turn_of[THREADS_MOST];
alignas(128) static unsigned char shared_memory[SHARED_BYTES];
static const std::function<void()> *current;

unsigned char *simt_shared(void) { return shared_memory; }

/* Saves what a function call must keep and changes stacks. */
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
    *--top = (void *)fiber_main; /* where simt_switch returns to */
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->sp = top;
    f->done = f->at_block = f->at_warp = false;
}

static void wait_at(barrier *b, unsigned of, bool *flag)
{
    unsigned generation = b->generation;
    *flag = true;
    if (++b->arrived == of) {
        b->arrived = 0;
        b->generation++;
    }
    while (b->generation == generation) yield();
    *flag = false;
}

static unsigned thread_number(void) { return simt_now.thread_at.x; }

void simt_sync_block(void) { wait_at(&of_block, simt_now.block.x, &running->at_block); }

const unsigned char *simt_exchange(const void *mine, size_t bytes)
{
    unsigned me = thread_number(), warp = me / WARP;
    unsigned char *all = lanes[turn_of[me]++ % 2];
    assert(bytes <= LANE_BYTES);
    memcpy(all + (size_t)me * LANE_BYTES, mine, bytes);
    wait_at(&of_warp[warp], WARP, &running->at_warp);
    return all + (size_t)warp * WARP * LANE_BYTES;
}

/* Runs the fibers in turn until all are done. A round in which nobody gets further is a barrier
 * that somebody never reached. */
static void run_block(unsigned n)
{
    memset(&of_block, 0, sizeof of_block);
    memset(of_warp, 0, sizeof of_warp);
    memset(turn_of, 0, sizeof turn_of);
    for (unsigned i = 0; i < n; i++) prepare(&fibers[i]);
    for (unsigned left = n, stuck = 0; left > 0;) {
        left = 0;
        unsigned waiting = 0;
        for (unsigned i = 0; i < n; i++) {
            fiber *f = &fibers[i];
            if (f->done) continue;
            running = f;
            simt_now.thread_at = dim3(i, 0, 0);
            simt_switch(&scheduler_sp, f->sp);
            left += !f->done;
            waiting += f->at_block || f->at_warp;
        }
        unsigned arrived = of_block.arrived;
        for (unsigned w = 0; w < n / WARP; w++) arrived += of_warp[w].arrived;
        stuck = left > 0 && waiting == left && arrived == left ? stuck + 1 : 0;
        if (stuck > 2) {
            fprintf(stderr, "simt: %u of %u threads wait at a barrier for the rest\n", left, n);
            abort();
        }
    }
}

void simt_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body)
{
    static std::mutex one; /* ranks are threads, and this is all static */
    std::lock_guard<std::mutex> held(one);
    assert(block.x % WARP == 0 && block.x <= THREADS_MOST && block.y == 1 && block.z == 1);
    assert(shared <= SHARED_BYTES);
    for (size_t i = fibers.size(); i < block.x; i++) {
        fiber f = fiber();
        f.stack = (unsigned char *)aligned_alloc(64, STACK_BYTES);
        if (!f.stack) abort();
        fibers.push_back(f);
    }
    current = &body;
    simt_now.grid = grid;
    simt_now.block = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                /* What a block leaves behind is not the next one's. */
                memset(shared_memory, 0xff, shared);
                simt_now.block_at = dim3(x, y, z);
                run_block(block.x);
            }
}

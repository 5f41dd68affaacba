/* Checks every access of a kernel (strict.h). */
#include "tests/simt/strict.h"
#include "tests/simt/group.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static const size_t ARENA = (size_t)8 << 30, ALIGNMENT = 256;

/* For a byte: its last writer and the readers since, with phases (simt_view). */
struct cell {
    uint32_t written, read;
    uint16_t writer, reader;
    uint8_t atomic : 1;   /* written by an atomic */
    uint8_t live : 1;     /* written by a kernel of LAUNCH_EARLY, the library, or a copy */
    uint8_t pending;      /* written by a copy that was not waited for */
    uint8_t other_blocks; /* read by more than one block of the launch */
    uint8_t remote;       /* read as memory that several ranks reach */
};

enum { MANY = 0xffff };

static bool is_same(const cell &a, const cell &b) { return memcmp(&a, &b, sizeof a) == 0; }

static unsigned char *arena;
static uint8_t *valid; /* [ARENA / 8] a bit for each allocated byte */
static cell *cells;    /* [ARENA] */
static size_t arena_used;
static std::map<uintptr_t, size_t> blocks;
static std::mutex allocating;        /* ranks are threads */
static cell *of_static, *of_dynamic; /* [bytes of .bss], [SHARED_BYTES] */
static uint32_t *unfenced;           /* [SHARED_BYTES] its writer's fences when it was written */
static uint32_t fences[THREADS_MOST];

extern unsigned char __executable_start[], __bss_start[], _end[];

/* ---- memory ---------------------------------------------------------------------------------- */

static void *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        printf("SKIPPED: no room for the addresses of strict checks\n");
        exit(0);
    }
    return p;
}

static void mark(size_t at, size_t n, bool is)
{
    memset(valid + at / 8, is ? 0xff : 0, n / 8); /* `at` is a multiple of ALIGNMENT */
    if (n % 8) valid[(at + n) / 8] = (uint8_t)(is ? (1u << n % 8) - 1 : 0);
}

/* Gives whole pages of the memory back to the system. */
static void give_back(void *p, size_t bytes)
{
    uintptr_t from = ((uintptr_t)p + 4095) / 4096 * 4096, to = ((uintptr_t)p + bytes) / 4096 * 4096;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Never returns the same address twice, so that uses after a release are found. */
void *simt_alloc(size_t bytes)
{
    std::lock_guard<std::mutex> held(allocating);
    if (!arena) {
        arena = (unsigned char *)reserve(ARENA);
        valid = (uint8_t *)reserve(ARENA / 8 + sizeof(uint32_t));
        cells = (cell *)reserve(ARENA * sizeof *cells);
        of_static = (cell *)reserve((size_t)(_end - __bss_start) * sizeof *of_static);
        of_dynamic = (cell *)reserve(SHARED_BYTES * sizeof *of_dynamic);
        unfenced = (uint32_t *)reserve(SHARED_BYTES * sizeof *unfenced);
    }
    size_t at = arena_used, whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    if (whole > ARENA - at) return NULL;
    arena_used += whole;
    mark(at, bytes, true);
    blocks[(uintptr_t)arena + at] = bytes;
    return arena + at;
}

void simt_free(void *p)
{
    std::lock_guard<std::mutex> held(allocating);
    auto found = blocks.find((uintptr_t)p);
    if (!p) return;
    if (found == blocks.end()) abort();
    size_t at = (size_t)((unsigned char *)p - arena), bytes = found->second;
    mark(at, bytes, false);
    give_back(p, bytes);
    give_back(cells + at, bytes * sizeof *cells);
    blocks.erase(found);
}

/* ---- checking -------------------------------------------------------------------------------- */

static void refuse(const char *why, const void *p, size_t n, unsigned other)
{
    const dim3 &b = simt_now.block_at;
    fprintf(stderr, "simt: %s: %s: %zu bytes at %p, thread %u", simt_seen.job->name, why, n, p,
            simt_now.thread_at.x);
    if (other != MANY) fprintf(stderr, " and thread %u", other);
    fprintf(stderr, ", block (%u, %u, %u); code at +%zx\n", b.x, b.y, b.z,
            (size_t)((unsigned char *)__builtin_return_address(0) - __executable_start));
    abort();
}

/* Reports an access that conflicts with an earlier one, with no barrier between them. `p` is the
 * address of the access's n bytes, c the cell of the one at `at`. */
static void judge_byte(cell *c, simt_access how, const void *p, size_t n, const void *at)
{
    const uint16_t me = how == SIMT_OPERAND ? (uint16_t)MANY : (uint16_t)simt_now.thread_at.x;
    const simt_view &view = simt_seen;
    const bool writes = how != SIMT_READ && how != SIMT_READ_ONLY && how != SIMT_OPERAND;
    if (c->written >= view.launch) {
        bool both_atomic = c->atomic && how == SIMT_ATOMIC;
        if (how == SIMT_READ_ONLY) refuse("read-only path to what is written", p, n, c->writer);
        if (c->written < view.block && !both_atomic) refuse("race with a block", p, n, MANY);
        if (c->written == view.now && c->writer != me && !both_atomic)
            refuse("race with a write", p, n, c->writer);
    }
    if (how == SIMT_READ_ONLY && view.job->early && c->live)
        refuse("read-only path to what a kernel before may write", p, n, MANY);
    bool was_read = c->read >= view.launch;
    if (writes && was_read) {
        if (c->other_blocks || c->read < view.block) refuse("race with a block", p, n, MANY);
        if (c->read == view.now && c->reader != me) refuse("race with a read", p, n, c->reader);
    }
    if (writes && c->remote && !simt_may_write(at))
        refuse("another rank may still read there", p, n, MANY);
    if (writes) {
        c->written = view.now;
        c->writer = me;
        c->atomic = how == SIMT_ATOMIC;
        c->live = view.job->early;
        c->pending = how == SIMT_COPY;
        return;
    }
    c->other_blocks = was_read && (c->other_blocks || c->read < view.block);
    c->reader = was_read && c->read == view.now && c->reader != me ? (uint16_t)MANY : me;
    c->read = view.now;
}

static void judge_shared_byte(cell *c, simt_access how, const void *p, size_t n, const void *at)
{
    bool reads =
        how == SIMT_READ || how == SIMT_READ_ONLY || how == SIMT_ATOMIC || how == SIMT_OPERAND;
    bool written = c->written >= simt_seen.block;
    if (reads && !written) refuse("shared memory that no thread wrote", p, n, MANY);
    if (written && c->pending && how != SIMT_ARRIVE)
        refuse("a copy is under way there", p, n, c->writer);
    if (!written && c->read < simt_seen.block) *c = cell(); /* other blocks have their own */
    judge_byte(c, how, p, n, at);
}

/* Judges an access byte by byte. What holds for one holds for the next one with the same past,
 * except where other ranks reach the memory. */
template <void judge_one(cell *, simt_access, const void *, size_t, const void *)>
static inline void judge_all(cell *c, size_t n, simt_access how, const void *p)
{
    cell before = c[0], after = before;
    judge_one(&after, how, p, n, p);
    c[0] = after;
    for (size_t i = 1; i < n; i++) {
        if (!is_same(c[i], before) || before.remote) {
            before = after = c[i];
            judge_one(&after, how, p, n, (const char *)p + i);
        }
        c[i] = after;
    }
}

static void judge(cell *c, size_t n, simt_access how, const void *p)
{
    judge_all<judge_byte>(c, n, how, p);
}

static void judge_shared(cell *c, size_t n, simt_access how, const void *p)
{
    judge_all<judge_shared_byte>(c, n, how, p);
}

/* Reports an access ahead of await_previous to what kernels before may touch. */
static void judge_ahead(const cell *c, size_t n, simt_access how, const void *p)
{
    const bool reads = how == SIMT_READ || how == SIMT_READ_ONLY;
    for (size_t i = 0; i < n; i++)
        if (!reads || c[i].live) refuse("ahead of await_previous", p, n, MANY);
}

/* The same of a read of memory that several ranks reach. */
static void judge_remote(cell *c, size_t n, const void *p)
{
    for (size_t i = 0; i < n; i++) {
        if (!simt_may_read(c[i].written, c[i].writer))
            refuse("no flag says that another rank has written there", p, n, MANY);
        if (i % 4 == 0) simt_note_read((const char *)p + i);
        c[i].remote = 1;
    }
    judge(c, n, SIMT_READ, p);
}

/* Notes what the threads write, and whether they have fenced what wgmma reads. */
static void judge_fences(size_t at, size_t n, simt_access how, const void *p)
{
    if (how == SIMT_WRITE || how == SIMT_ATOMIC || how == SIMT_ARRIVE)
        std::fill_n(unfenced + at, n, fences[simt_now.thread_at.x]);
    if (how != SIMT_OPERAND) return;
    for (size_t i = at; i < at + n; i++) {
        uint16_t writer = of_dynamic[i].writer;
        if (unfenced[i] == fences[writer])
            refuse("wgmma reads what its writer has not fenced", p, n, writer);
    }
}

void simt_fence_operands(void) { fences[simt_now.thread_at.x]++; }

bool simt_written_since(const void *p, size_t n, uint32_t phase)
{
    const cell *c = of_dynamic + ((const unsigned char *)p - simt_shared());
    for (size_t i = 0; i < n; i++)
        if (c[i].written > phase) return true;
    return false;
}

static bool is_in(const void *p, size_t n, const void *from, size_t bytes)
{
    uintptr_t at = (uintptr_t)p - (uintptr_t)from;
    return at < bytes && n <= bytes - at;
}

void simt_note_written(const void *p, size_t n)
{
    if (!is_in(p, n, arena, arena ? ARENA : 0)) return;
    cell *c = cells + ((const unsigned char *)p - arena);
    for (size_t i = 0; i < n; i++) c[i].live = 1;
}

static bool is_valid(size_t at, size_t n)
{
    uint32_t bits; /* of 32 bytes from a multiple of 8 on */
    if (n <= 16) {
        const uint32_t due = (1u << n) - 1;
        memcpy(&bits, valid + at / 8, sizeof bits);
        return (bits >> at % 8 & due) == due;
    }
    for (size_t i = at; i < at + n; i++)
        if (!(valid[i / 8] >> i % 8 & 1)) return false;
    return true;
}

/* An access elsewhere than to the thread's own stack. */
static void touch_memory(const void *p, size_t n, simt_access how)
{
    bool reads = how == SIMT_READ || how == SIMT_READ_ONLY;
    if (!simt_here || n == 0) return;
    if (reads && is_in(p, n, &simt_now, sizeof simt_now)) return; /* threadIdx and the like */
    if (arena && is_in(p, 1, arena, ARENA)) {
        size_t at = (size_t)((const unsigned char *)p - arena);
        if (!is_valid(at, n)) refuse("outside of what is allocated", p, n, MANY);
        if (simt_seen.ahead) judge_ahead(cells + at, n, how, p);
        if (how == SIMT_REMOTE) judge_remote(cells + at, n, p);
        else if (how != SIMT_FLAG) judge(cells + at, n, how, p);
        return;
    }
    const unsigned char *dynamic = simt_shared();
    if (is_in(p, 1, dynamic, SHARED_BYTES)) {
        if (!is_in(p, n, dynamic, simt_seen.job->shared))
            refuse("outside of shared memory", p, n, MANY);
        judge_shared(of_dynamic + ((const unsigned char *)p - dynamic), n, how, p);
        judge_fences((size_t)((const unsigned char *)p - dynamic), n, how, p);
        return;
    }
    /* A kernel's only variables are shared ones. */
    if (is_in(p, n, __bss_start, (size_t)(_end - __bss_start))) {
        judge_shared(of_static + ((const unsigned char *)p - __bss_start), n, how, p);
        return;
    }
    if (reads && is_in(p, n, simt_seen.job->args, simt_seen.job->args_bytes)) return;
    if (reads && is_in(p, n, simt_seen.body, sizeof *simt_seen.body)) return;
    if (reads && is_in(p, n, __executable_start, (size_t)(_end - __executable_start))) return;
    refuse("memory of the host", p, n, MANY);
}

static inline void touch(const void *p, size_t n, simt_access how)
{
    if (!is_in(p, n, simt_seen.stack, simt_seen.stack_bytes)) touch_memory(p, n, how);
}

void simt_touch(const void *p, size_t n, simt_access how) { touch(p, n, how); }

/* ---- entry points for the compiler ----------------------------------------------------------- */

extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);
void __tsan_read_range(void *, size_t);
void __tsan_write_range(void *, size_t);

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *p, size_t n) { touch(p, n, SIMT_READ); }
void __tsan_write_range(void *p, size_t n) { touch(p, n, SIMT_WRITE); }

#define HOOKS(n)                                                                                   \
    void __tsan_read##n(void *);                                                                   \
    void __tsan_write##n(void *);                                                                  \
    void __tsan_unaligned_read##n(void *);                                                         \
    void __tsan_unaligned_write##n(void *);                                                        \
    void __tsan_volatile_read##n(void *);                                                          \
    void __tsan_volatile_write##n(void *);                                                         \
    void __tsan_read##n(void *p) { touch(p, n, SIMT_READ); }                                       \
    void __tsan_write##n(void *p) { touch(p, n, SIMT_WRITE); }                                     \
    void __tsan_unaligned_read##n(void *p) { touch(p, n, SIMT_READ); }                             \
    void __tsan_unaligned_write##n(void *p) { touch(p, n, SIMT_WRITE); }                           \
    void __tsan_volatile_read##n(void *p) { touch(p, n, SIMT_READ); }                              \
    void __tsan_volatile_write##n(void *p) { touch(p, n, SIMT_WRITE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
}

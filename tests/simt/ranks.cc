/* Whether kernels of several ranks are in order where they reach each other's memory (strict.h). A
 * flag that is raised releases what earlier launches of the gpu did, and what its block did before
 * the last barrier. The thread that has seen the flag acquires that, its block at the next barrier,
 * and later launches of its gpu. */
#include "tests/simt/strict.h"

#include <algorithm>
#include <map>
#include <vector>

/* Phases from `first` on belong to this block, up to the next entry's. */
struct turn {
    uint32_t first, launch, block;
    const gpu *g;
};

/* Something that a thread did in a phase: a write, a read, a flag raised. */
struct event {
    const gpu *g;
    uint32_t launch, block, phase;
    uint16_t thread;
};

/* A flag seen in a phase by a thread of the running block. */
struct seen {
    event raised;
    uint32_t phase;
    uint16_t thread;
};

/* The flags that a gpu's kernels have seen: in the running block, in other blocks of the launch,
 * and in earlier launches. */
struct knowledge {
    std::vector<seen> of_block;
    std::vector<event> of_launch, earlier;
};

static std::vector<turn> turns;
static std::map<const gpu *, knowledge> known;
static std::map<const void *, event> flags;
/* The last reads by each gpu's blocks, for all four bytes that load_shared has read. */
static std::map<uintptr_t, std::vector<event>> reads;

static uint16_t self(void) { return (uint16_t)simt_now.thread_at.x; }

static event happens(uint32_t phase, uint16_t thread)
{
    turn asked = {phase, 0, 0, NULL};
    auto after = std::upper_bound(turns.begin(), turns.end(), asked,
                                  [](const turn &a, const turn &b) { return a.first < b.first; });
    if (after == turns.begin()) return event{NULL, 0, 0, phase, thread};
    const turn &t = *--after;
    return event{t.g, t.launch, t.block, phase, thread};
}

static event happens_now(void) { return happens(simt_seen.now, self()); }

static bool is_released(const event &e, const event &flag)
{
    if (e.g != flag.g) return false;
    if (e.launch != flag.launch) return e.launch < flag.launch;
    if (e.block != flag.block) return false;
    return e.phase < flag.phase || (e.phase == flag.phase && e.thread == flag.thread);
}

/* Whether it is in order before what the running thread does now. */
static bool is_before(const event &e)
{
    if (!e.g || e.g == simt_seen.g) return true;
    const knowledge &own = known[simt_seen.g];
    for (const event &flag : own.earlier)
        if (is_released(e, flag)) return true;
    for (const seen &s : own.of_block)
        if ((s.phase < simt_seen.now || s.thread == self()) && is_released(e, s.raised))
            return true;
    return false;
}

void simt_block_runs(void)
{
    turns.push_back(
        turn{simt_seen.now, simt_seen.launch_number, simt_seen.block_number, simt_seen.g});
}

void simt_block_ends(void)
{
    knowledge &own = known[simt_seen.g];
    for (const seen &s : own.of_block) own.of_launch.push_back(s.raised);
    own.of_block.clear();
}

/* Only the flags of a gpu's last launch are kept; they release what the other launches did. */
void simt_launch_ends(void)
{
    knowledge &own = known[simt_seen.g];
    for (const event &flag : own.of_launch) {
        bool is_old = false;
        auto kept = std::remove_if(own.earlier.begin(), own.earlier.end(), [&](const event &e) {
            is_old |= e.g == flag.g && e.launch > flag.launch;
            return e.g == flag.g && e.launch < flag.launch;
        });
        own.earlier.erase(kept, own.earlier.end());
        if (!is_old) own.earlier.push_back(flag);
    }
    own.of_launch.clear();
}

void simt_release(const void *flag) { flags[flag] = happens_now(); }

void simt_acquire(const void *flag)
{
    auto raised = flags.find(flag);
    if (raised == flags.end()) return;
    known[simt_seen.g].of_block.push_back(seen{raised->second, simt_seen.now, self()});
}

bool simt_may_read(uint32_t written, uint16_t writer)
{
    return is_before(happens(written, writer));
}

void simt_note_read(const void *p)
{
    std::vector<event> &of = reads[(uintptr_t)p / 4];
    const event now = happens_now();
    for (event &e : of)
        if (e.g == now.g && e.block == now.block) {
            e = now;
            return;
        }
    of.push_back(now);
}

bool simt_may_write(const void *p)
{
    auto of = reads.find((uintptr_t)p / 4);
    if (of == reads.end()) return true;
    return std::all_of(of->second.begin(), of->second.end(), is_before);
}

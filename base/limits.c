/* The limits of this process: processors, memory, and what a cgroup allows of both. */
#include "base/cgroup.h"
#include "base/threads.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes the main thread's affinity mask, because the calling thread may be pinned to one core. */
unsigned cpu_count_allowed(void)
{
    unsigned count = 1;
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
        count = (unsigned)CPU_COUNT(&set);
    } else { /* there are more cores than a cpu_set_t has bits */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        if (online > 1) count = (unsigned)online;
    }
    double quota;
    if (cgroup_cpu_quota("", &quota) && ceil(quota) < count) count = (unsigned)ceil(quota);
    return count > 0 ? count : 1;
}

/* Bytes of a line of /proc/meminfo; UINT64_MAX when there is none. */
static uint64_t read_meminfo(const char *root, const char *key)
{
    char path[PATH_MAX], line[256];
    uint64_t bytes = UINT64_MAX;
    if ((size_t)snprintf(path, sizeof path, "%s/proc/meminfo", root) >= sizeof path) return bytes;
    FILE *f = fopen(path, "re");
    if (!f) return bytes;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0) bytes = (uint64_t)strtoull(line + n, NULL, 10) * 1024;
    fclose(f);
    return bytes;
}

memory_bound memory_bound_of(const char *root, uint64_t address_space)
{
    uint64_t group;
    memory_bound best = {read_meminfo(root, "MemTotal:"), "this machine"};
    if (address_space < best.bytes) best = (memory_bound){address_space, "RLIMIT_AS"};
    if (cgroup_memory_limit(root, &group) && group < best.bytes)
        best = (memory_bound){group, "the memory cgroup"};
    return best;
}

size_t memory_available_bytes(void)
{
    uint64_t best = read_meminfo("", "MemAvailable:"), group;
    if (best == UINT64_MAX) /* no /proc: takes free memory, without page cache */
        best = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (cgroup_memory_left("", &group) && group < best) best = group;
    return best;
}

#include "base/cgroup.h"
#include "base/threads.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The main thread's mask: the calling thread may be pinned to one core. */
unsigned cpu_count_allowed(void)
{
    unsigned count = 1;
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
        count = (unsigned)CPU_COUNT(&set);
    } else { /* more cores than a cpu_set_t has bits */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        if (online > 1) count = (unsigned)online;
    }
    double quota;
    if (cgroup_cpu_quota("", &quota) && ceil(quota) < count) count = (unsigned)ceil(quota);
    return count > 0 ? count : 1;
}

size_t memory_available_bytes(void)
{
    uint64_t best = UINT64_MAX, group;
    FILE *f = fopen("/proc/meminfo", "re");
    if (f) {
        char line[256];
        while (fgets(line, sizeof line, f))
            if (strncmp(line, "MemAvailable:", 13) == 0)
                best = (uint64_t)strtoull(line + 13, NULL, 10) * 1024;
        fclose(f);
    }
    if (best == UINT64_MAX) /* no /proc: what is free, page cache not counted */
        best = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (cgroup_memory_left("", &group) && group < best) best = group;
    return best;
}

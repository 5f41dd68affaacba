#include "base/cgroup.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 1024

/* Reads the first line of folder/name. */
static bool read_line(const char *folder, const char *name, char line[LINE_MAX_BYTES])
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, LINE_MAX_BYTES, f) != NULL;
    fclose(f);
    return ok;
}

static bool read_number(const char *folder, const char *name, uint64_t *value)
{
    char line[LINE_MAX_BYTES], *end;
    if (!read_line(folder, name, line) || line[0] < '0' || line[0] > '9') return false;
    *value = strtoull(line, &end, 10);
    return end != line;
}

/* The value behind `key` in a file of "key value" lines; 0 when there is none. */
static uint64_t read_stat(const char *folder, const char *name, const char *key)
{
    char path[PATH_MAX], line[LINE_MAX_BYTES];
    uint64_t value = 0;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ' ') value = strtoull(line + n, NULL, 10);
    fclose(f);
    return value;
}

/* Finds the process's group below the mount in /proc/self/cgroup, whose lines are
 * "id:controllers:/path". The line of v2 has no controllers. */
static bool own_group(const char *root, const char *controller, char *group, size_t group_size)
{
    char path[PATH_MAX], line[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':');
        char *group_path = names ? strchr(names + 1, ':') : NULL;
        if (!group_path) continue;
        *group_path++ = 0;
        names++;
        if (!controller) {
            found = names[0] == 0;
        } else {
            for (char *save, *name = strtok_r(names, ",", &save); name && !found;
                 name = strtok_r(NULL, ",", &save))
                found = strcmp(name, controller) == 0;
        }
        if (found) found = (size_t)snprintf(group, group_size, "%s", group_path) < group_size;
    }
    fclose(f);
    return found;
}

/* Called for a group and each of its ancestors. */
typedef void (*visit_fn)(const char *folder, void *best);

/* Visits the process's group and all its ancestors. In a container the path may name a group
 * outside the mount, so the mount itself is always visited last. */
static void visit_groups(const char *root, const char *controller, visit_fn visit, void *best)
{
    char group[PATH_MAX], folder[2 * PATH_MAX];
    if (!own_group(root, controller, group, sizeof group)) return;
    for (;;) {
        snprintf(folder, sizeof folder, "%s/sys/fs/cgroup/%s%s", root, controller ? controller : "",
                 group);
        visit(folder, best);
        char *slash = strrchr(group, '/');
        if (!slash || group[0] == 0) break;
        *slash = 0;
    }
}

static void cpu_v2(const char *folder, void *best)
{
    char line[LINE_MAX_BYTES];
    double quota, period, *cores = best;
    if (!read_line(folder, "cpu.max", line) || sscanf(line, "%lf %lf", &quota, &period) != 2)
        return;
    if (quota > 0 && period > 0 && (*cores == 0 || quota / period < *cores))
        *cores = quota / period;
}

static void cpu_v1(const char *folder, void *best)
{
    uint64_t quota, period;
    double *cores = best;
    if (!read_number(folder, "cpu.cfs_quota_us", &quota)) return; /* -1 is "no limit" */
    if (!read_number(folder, "cpu.cfs_period_us", &period) || quota == 0 || period == 0) return;
    if (*cores == 0 || (double)quota / (double)period < *cores)
        *cores = (double)quota / (double)period;
}

static void keep_less(uint64_t *best, uint64_t bytes)
{
    if (bytes < *best) *best = bytes;
}

static uint64_t left_of(uint64_t limit, uint64_t usage, uint64_t reclaimable)
{
    usage = usage > reclaimable ? usage - reclaimable : 0;
    return limit > usage ? limit - usage : 0;
}

/* False for "max", which means no limit. */
static bool limit_v2(const char *folder, uint64_t *limit)
{
    return read_number(folder, "memory.max", limit);
}

/* False for a number beyond all memory, which means no limit. */
static bool limit_v1(const char *folder, uint64_t *limit)
{
    return read_number(folder, "memory.limit_in_bytes", limit) && *limit <= INT64_MAX / 2;
}

static void memory_v2(const char *folder, void *best)
{
    uint64_t limit, usage;
    if (!limit_v2(folder, &limit) || !read_number(folder, "memory.current", &usage)) return;
    keep_less(best, left_of(limit, usage, read_stat(folder, "memory.stat", "inactive_file")));
}

static void memory_v1(const char *folder, void *best)
{
    uint64_t limit, usage;
    if (!limit_v1(folder, &limit) || !read_number(folder, "memory.usage_in_bytes", &usage)) return;
    keep_less(best, left_of(limit, usage, read_stat(folder, "memory.stat", "total_inactive_file")));
}

static void memory_limit_v2(const char *folder, void *best)
{
    uint64_t limit;
    if (limit_v2(folder, &limit)) keep_less(best, limit);
}

static void memory_limit_v1(const char *folder, void *best)
{
    uint64_t limit;
    if (limit_v1(folder, &limit)) keep_less(best, limit);
}

bool cgroup_cpu_quota(const char *root, double *cores)
{
    double best = 0;
    visit_groups(root, NULL, cpu_v2, &best);
    visit_groups(root, "cpu", cpu_v1, &best);
    if (best > 0) *cores = best;
    return best > 0;
}

bool cgroup_memory_left(const char *root, uint64_t *bytes)
{
    uint64_t best = UINT64_MAX;
    visit_groups(root, NULL, memory_v2, &best);
    visit_groups(root, "memory", memory_v1, &best);
    if (best < UINT64_MAX) *bytes = best;
    return best < UINT64_MAX;
}

bool cgroup_memory_limit(const char *root, uint64_t *bytes)
{
    uint64_t best = UINT64_MAX;
    visit_groups(root, NULL, memory_limit_v2, &best);
    visit_groups(root, "memory", memory_limit_v1, &best);
    if (best < UINT64_MAX) *bytes = best;
    return best < UINT64_MAX;
}

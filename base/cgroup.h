/* The CPU and memory limits that control groups (v2 and v1, every ancestor) set for this
 * process. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* `root` is the prefix of /proc and /sys/fs/cgroup: "" for the machine, a folder in tests. */

/* CPU time in cores, fractions included. False when no group limits it. */
bool cgroup_cpu_quota(const char *root, double *cores);
/* Bytes until the tightest limit. File cache that is not in active use counts as free: the kernel
 * gives it up before it refuses an allocation. False when no group limits memory. */
bool cgroup_memory_left(const char *root, uint64_t *bytes);
/* The tightest limit. False when no group limits memory. */
bool cgroup_memory_limit(const char *root, uint64_t *bytes);

#endif

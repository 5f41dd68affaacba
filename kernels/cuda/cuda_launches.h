/* cuda_launches: what the launches of some work on a device took, by name.
 *
 * What     sums that gpu_api.traced fills. A name is the one by which a kernel's launcher reports
 *          its errors; launchers of several kernels give them one name.
 * Owner    values are the caller's; names are the plugin's, and constant.
 * Threads  values and functions without state: any.
 * Units    microseconds of the device. */
#ifndef KERNELS_CUDA_CUDA_LAUNCHES_H
#define KERNELS_CUDA_CUDA_LAUNCHES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { GPU_LAUNCHES_MOST = 64, GPU_TRACED_MOST = 4096 };

/* Launches of one name. */
typedef struct gpu_launch {
    const char *name;
    uint32_t n;
    double us;
} gpu_launch;

/* Names in the order of their first launches; empty where it is all zeros. */
typedef struct gpu_launches {
    gpu_launch of[GPU_LAUNCHES_MOST];
    uint32_t n;
} gpu_launches;

/* Adds n launches of a name, which took `us` together; false: there is no room for the name. */
static inline bool gpu_launches_add(gpu_launches *all, const char *name, uint32_t n, double us)
{
    uint32_t at = 0;
    while (at < all->n && strcmp(all->of[at].name, name) != 0) at++;
    if (at == GPU_LAUNCHES_MOST) return false;
    if (at == all->n) {
        all->of[at].name = name;
        all->of[at].n = 0;
        all->of[at].us = 0;
        all->n++;
    }
    all->of[at].n += n;
    all->of[at].us += us;
    return true;
}

#endif

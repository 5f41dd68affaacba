/* A CUDA driver with OCTAVO_TEST_DEVICES devices (default 1): all that model/cuda/find.c needs. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("OCTAVO_TEST_DRIVER_FAILS") ? 100 : 0;
}

int cuDeviceGetCount(int *count)
{
    const char *n = getenv("OCTAVO_TEST_DEVICES");
    *count = n ? n[0] - '0' : 1;
    return 0;
}

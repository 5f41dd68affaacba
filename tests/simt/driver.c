/* A CUDA driver with OCTAVO_TEST_DEVICES devices (default 1), of CUDA OCTAVO_TEST_DRIVER (default
 * 13000, which is 13.0): all that model/cuda/find.c needs. */
#include <stdlib.h>

enum { NO_DEVICE = 100 };

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDriverGetVersion(int *version);
int cuGetErrorString(int code, const char **text);

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("OCTAVO_TEST_DRIVER_FAILS") ? NO_DEVICE : 0;
}

int cuDeviceGetCount(int *count)
{
    const char *n = getenv("OCTAVO_TEST_DEVICES");
    *count = n ? n[0] - '0' : 1;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    const char *release = getenv("OCTAVO_TEST_DRIVER");
    *version = release ? (int)strtol(release, NULL, 10) : 13000;
    return 0;
}

int cuGetErrorString(int code, const char **text)
{
    *text = "no CUDA-capable device is detected";
    return code == NO_DEVICE ? 0 : 1;
}

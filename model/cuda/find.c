/* Finds the plugin. A driver is looked for first: opening the plugin costs a second and 150 MB. */
#include "kernels/cuda/cuda_kernels.h"
#include "model/model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "liboctavo_cuda.so"

/* Functions of the driver's API: both return 0 on success. */
typedef int driver_init_fn(unsigned flags);
typedef int driver_count_fn(int *count);

static void *symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

static status find_driver(int *n, error *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return error_set(err, STATUS_UNAVAILABLE, "no CUDA driver on this machine (%s)", dlerror());
    driver_init_fn *init;
    driver_count_fn *count;
    void *symbols[] = {symbol(driver, "cuInit"), symbol(driver, "cuDeviceGetCount")};
    memcpy(&init, &symbols[0], sizeof init);
    memcpy(&count, &symbols[1], sizeof count);
    int code = init && count ? init(0) : -1;
    *n = 0;
    if (code == 0) code = count(n);
    if (code != 0)
        return error_set(err, STATUS_UNAVAILABLE, "the CUDA driver does not start (error %d)",
                         code);
    if (*n <= 0) return error_set(err, STATUS_UNAVAILABLE, "the CUDA driver shows no device");
    return STATUS_IS_OK;
}

/* Opens the plugin beside the executable, where the build puts it, or else on the loader's path. */
static void *open_plugin(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof PLUGIN);
    if (n > 0) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        memcpy(slash ? slash + 1 : path, PLUGIN, sizeof PLUGIN);
        if (access(path, F_OK) == 0) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
}

uint32_t backend_cuda_devices(void)
{
    int n;
    return status_ok(find_driver(&n, NULL)) ? (uint32_t)n : 0;
}

status backend_cuda_find(const gpu_api **out, error *err)
{
    int n;
    RETURN_IF_ERROR(find_driver(&n, err));
    void *plugin = open_plugin();
    if (!plugin) return error_set(err, STATUS_UNAVAILABLE, PLUGIN ": %s", dlerror());
    gpu_api_fn *entry;
    void *found = symbol(plugin, GPU_API_SYMBOL);
    memcpy(&entry, &found, sizeof entry);
    *out = entry ? entry(GPU_API_VERSION) : NULL;
    if (*out) return STATUS_IS_OK;
    return error_set(err, STATUS_UNAVAILABLE, PLUGIN " is of another version");
}

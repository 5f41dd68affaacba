/* Finds the plugin. A driver is looked for first: opening the plugin costs a second and 150 MB. */
#include "kernels/cuda/cuda_kernels.h"
#include "model/model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "liboctavo_cuda.so"

/* Functions of the driver's API: all return 0 on success. */
typedef int driver_init_fn(unsigned flags);
typedef int driver_number_fn(int *number);
typedef int driver_text_fn(int code, const char **text);

enum { RELEASE = 1000, MINOR = 10 }; /* CUDA 12.9 is 12090 */

static void *symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

static status refuse_driver(void *driver, int code, error *err)
{
    driver_text_fn *text_of;
    void *found = symbol(driver, "cuGetErrorString");
    const char *text = NULL;
    memcpy(&text_of, &found, sizeof text_of);
    if (text_of && text_of(code, &text) != 0) text = NULL;
    return error_set(err, STATUS_UNAVAILABLE, "the CUDA driver does not start (error %d%s%s)", code,
                     text ? ": " : "", text ? text : "");
}

/* *n: the devices that the driver shows; *release: the newest CUDA that it runs, or 0. */
static status find_driver(int *n, int *release, error *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return error_set(err, STATUS_UNAVAILABLE, "no CUDA driver on this machine (%s)", dlerror());
    driver_init_fn *init;
    driver_number_fn *count, *version;
    void *symbols[] = {symbol(driver, "cuInit"), symbol(driver, "cuDeviceGetCount"),
                       symbol(driver, "cuDriverGetVersion")};
    memcpy(&init, &symbols[0], sizeof init);
    memcpy(&count, &symbols[1], sizeof count);
    memcpy(&version, &symbols[2], sizeof version);
    int code = init && count ? init(0) : -1;
    *n = *release = 0;
    if (code == 0) code = count(n);
    if (code != 0) return refuse_driver(driver, code, err);
    if (*n <= 0) return error_set(err, STATUS_UNAVAILABLE, "the CUDA driver shows no device");
    if (version && version(release) != 0) *release = 0;
    return STATUS_IS_OK;
}

/* Refuses a driver that is older than the CUDA that the plugin was built with, whose first call
 * would fail. Drivers run all runtimes of their major release and of those before. */
static status check_release(void *plugin, int release, error *err)
{
    static const int needs[] = {[11] = 450, [12] = 525, [13] = 580};
    gpu_runtime_fn *runtime;
    void *found = symbol(plugin, GPU_RUNTIME_SYMBOL);
    memcpy(&runtime, &found, sizeof runtime);
    int built = runtime ? (int)runtime() : 0, major = built / RELEASE;
    if (release == 0 || release / RELEASE >= major) return STATUS_IS_OK;
    char driver[32] = "";
    if ((size_t)major < sizeof needs / sizeof *needs)
        snprintf(driver, sizeof driver, " (%d)", needs[major]);
    return error_set(err, STATUS_UNSUPPORTED,
                     "the CUDA driver is of CUDA %d.%d, and " PLUGIN " was built with CUDA %d.%d: "
                     "it needs a driver of CUDA %d%s or newer, or to be built with CUDA %d",
                     release / RELEASE, release % RELEASE / MINOR, major, built % RELEASE / MINOR,
                     major, driver, release / RELEASE);
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
    int n, release;
    return status_ok(find_driver(&n, &release, NULL)) ? (uint32_t)n : 0;
}

status backend_cuda_find(const gpu_api **out, error *err)
{
    int n, release;
    RETURN_IF_ERROR(find_driver(&n, &release, err));
    void *plugin = open_plugin();
    if (!plugin) return error_set(err, STATUS_UNAVAILABLE, PLUGIN ": %s", dlerror());
    RETURN_IF_ERROR(check_release(plugin, release, err));
    gpu_api_fn *entry;
    void *found = symbol(plugin, GPU_API_SYMBOL);
    memcpy(&entry, &found, sizeof entry);
    *out = entry ? entry(GPU_API_VERSION) : NULL;
    if (*out) return STATUS_IS_OK;
    return error_set(err, STATUS_UNAVAILABLE, PLUGIN " is of another version");
}

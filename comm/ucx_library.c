/* Opens UCX and keeps it from changing what belongs to the process. */
#include "comm/ucx_library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* By default UCX, while it is loaded, would overwrite the code of libc's mmap, munmap and madvise
 * even if other threads are running there; it would take over SIGSEGV, SIGBUS, SIGFPE, SIGILL and
 * SIGHUP, so that a crash ends in UCX's report and not in a core file; and it would log to stdout,
 * which is for answers. Later it would wait for a TCP connection in connect(), which only the
 * kernel ends, after minutes. Only environment variables prevent that, and they can be written
 * safely only before there are threads. Variables that the operator has set are kept. */
__attribute__((constructor)) static void set_environment(void)
{
    setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_DEBUG_SIGNO", "0", 0);
    setenv("UCX_LOG_LEVEL", "fatal", 0);
    setenv("UCX_TCP_CONN_NB", "y", 0);
}

static status find_symbol(void *library, const char *name, void *out, error *err)
{
    void *found = dlsym(library, name);
    memcpy(out, &found, sizeof found);
    if (found) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "comm: UCX here has no %s", name);
}

status ucx_library_open(ucx_library *out, error *err)
{
    const int how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    void *ucp = dlopen("libucp.so.0", how), *ucs = ucp ? dlopen("libucs.so.0", how) : NULL;
    if (!ucs) {
        const char *why = dlerror();
        return error_set(err, STATUS_UNSUPPORTED, "comm: no UCX here: %s", why ? why : "");
    }
#define FIND_UCP(name) RETURN_IF_ERROR(find_symbol(ucp, #name, &out->name, err));
#define FIND_UCS(name) RETURN_IF_ERROR(find_symbol(ucs, #name, &out->name, err));
    UCP_FUNCTIONS(FIND_UCP)
    UCS_FUNCTIONS(FIND_UCS)
#undef FIND_UCP
#undef FIND_UCS
    return STATUS_IS_OK;
}

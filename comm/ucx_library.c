/* Opens UCX without letting it into what belongs to the process: signals and stdout. */
#include "comm/ucx_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

enum { SIGNALS_MAX = 32 };

/* UCX handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGHUP from the moment it is loaded: a crash
 * would end in its report in place of ours, or of a core file. All is put back as it was. */
static void *open_quietly(const char *file)
{
    struct sigaction before[SIGNALS_MAX];
    bool known[SIGNALS_MAX] = {false};
    for (int s = 1; s < SIGNALS_MAX; s++) known[s] = sigaction(s, NULL, &before[s]) == 0;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (int s = 1; s < SIGNALS_MAX; s++)
        if (known[s] && s != SIGKILL && s != SIGSTOP) sigaction(s, &before[s], NULL);
    return library;
}

static status find(void *library, const char *name, void *out, error *err)
{
    *(void **)out = dlsym(library, name);
    if (*(void **)out) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "comm: UCX here has no %s", name);
}

status ucx_library_open(ucx_library *out, error *err)
{
    void *ucp = open_quietly("libucp.so.0"), *ucs = ucp ? open_quietly("libucs.so.0") : NULL;
    if (!ucs) {
        const char *why = dlerror();
        return error_set(err, STATUS_UNSUPPORTED, "comm: no UCX here: %s", why ? why : "");
    }
#define FIND_UCP(name) RETURN_IF_ERROR(find(ucp, #name, &out->name, err));
#define FIND_UCS(name) RETURN_IF_ERROR(find(ucs, #name, &out->name, err));
    UCP_FUNCTIONS(FIND_UCP)
    UCS_FUNCTIONS(FIND_UCS)
#undef FIND_UCP
#undef FIND_UCS
    /* Its log goes to stdout, which is for answers, and says nothing that a status does not. */
    if (!getenv("UCX_LOG_LEVEL")) out->ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    return STATUS_IS_OK;
}

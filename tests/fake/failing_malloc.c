/* Makes one chosen allocation fail: one of the program, or of jansson on its behalf, or, with
 * FAILING_MALLOC_OF, one of the library whose file name contains that text. For LD_PRELOAD.
 *
 * FAILING_MALLOC names a file of two 64-bit integers. The first counts down with each allocation,
 * and the allocation that takes it from 0 to -1 fails; below 0 none fails. The second counts the
 * failures. Other libraries' allocations always succeed: gRPC and libraries like glib end the
 * process by design when memory is out. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct control {
    _Atomic int64_t left, failed;
} control;

typedef struct range {
    uintptr_t from, to;
} range;

static control *shared;
static range watched[2]; /* the program, a library */
static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);

static int find_ranges(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    (void)ctx;
    const char *library = getenv("FAILING_MALLOC_OF");
    bool program = info->dlpi_name[0] == '\0' && !library;
    if (!program && !strstr(info->dlpi_name, library ? library : "libjansson")) return 0;
    range *r = &watched[program ? 0 : 1];
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) *r = (range){from, from + p->p_memsz};
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAILING_MALLOC");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    dl_iterate_phdr(find_ranges, NULL);
    if (p != MAP_FAILED) shared = p;
}

static bool fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    bool watches = false;
    for (int i = 0; i < 2; i++) watches |= at >= watched[i].from && at < watched[i].to;
    if (!shared || !watches || atomic_load(&shared->left) < 0) return false;
    if (atomic_fetch_sub(&shared->left, 1) != 0) return false;
    atomic_fetch_add(&shared->failed, 1);
    errno = ENOMEM;
    return true;
}

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

void *malloc(size_t n)
{
    if (!real_malloc) *(void **)&real_malloc = next("malloc");
    return fails(__builtin_return_address(0)) ? NULL : real_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    if (!real_calloc) *(void **)&real_calloc = next("calloc");
    return fails(__builtin_return_address(0)) ? NULL : real_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    if (!real_realloc) *(void **)&real_realloc = next("realloc");
    return fails(__builtin_return_address(0)) ? NULL : real_realloc(p, n);
}

char *strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = fails(__builtin_return_address(0)) ? NULL : malloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

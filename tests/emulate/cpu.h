/* Included before the list of ISAs where kernels are emulated: any CPU with AVX2 then seems to have
 * every later extension, enabled by the system. */
#ifndef TESTS_EMULATE_CPU_H
#define TESTS_EMULATE_CPU_H

#include <cpuid.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline bool emulated_cpu_has(const char *feature)
{
    __builtin_cpu_init();
    bool base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return base && (strncmp(feature, "avx512", 6) == 0 || strcmp(feature, "avx2") == 0 ||
                    strcmp(feature, "fma") == 0);
}

/* Every bit of every leaf is set. */
static inline int emulated_cpuid(unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    *a = *b = *c = *d = ~0u;
    return 1;
}

#define __builtin_cpu_supports(feature)           emulated_cpu_has(feature)
#define __get_cpuid_count(leaf, part, a, b, c, d) emulated_cpuid(a, b, c, d)
#define syscall(...)                              0L

#endif

/* kernels, private: which instruction set a context takes that names none. Threads: any; nothing is
 * kept between calls. */
#ifndef KERNELS_CHOOSE_H
#define KERNELS_CHOOSE_H

#include "base/base.h"

enum { KERN_ISAS_MOST = 8 }; /* rows that the table in context.c may have */

/* The processor by CPUID; zeros where there is none. */
typedef struct kern_cpu {
    char vendor[13];
    unsigned family, model;
} kern_cpu;

kern_cpu kern_cpu_here(void);
/* The instruction set that is never the default on a CPU of a measured model, "" where there is
 * none. NULL: the model was not measured. */
const char *kern_cpu_slow_isa(const kern_cpu *cpu);

/* The least times of one small product of each type, on one thread. */
typedef struct kern_isa_times {
    bool runs;
    double bf16_ns, int8_ns;
} kern_isa_times;

/* times [n], n = kern_isa_count(): slow to fast, as the table has them. Takes milliseconds; fails
 * for want of memory or a thread pool. */
status kern_isa_measure(kern_isa_times *times, size_t n);
/* The last instruction set that is no slower than the one chosen before it, both types taken
 * together, or only by what timings differ by chance; n where none runs. */
size_t kern_isa_fastest(const kern_isa_times *times, size_t n);
/* The default's row: for a measured model by the table, for another one by measurement. */
status kern_isa_choose(const kern_cpu *cpu, size_t *out);

#endif

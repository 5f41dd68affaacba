/* Shared by the kernel tests: a context for each ISA that this CPU runs. */
#ifndef TESTS_UNIT_KERNELS_FIXTURE_H
#define TESTS_UNIT_KERNELS_FIXTURE_H

#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last ISA that has kernels of the kind under test; later ones would only take time. */
#ifndef FIXTURE_LAST_ISA
#define FIXTURE_LAST_ISA ""
#endif

#ifndef FIXTURE_PRECISION
#define FIXTURE_PRECISION KERN_PRECISION_STANDARD
#endif

enum { FIXTURE_THREADS = 2, FIXTURE_ISAS = 8 };

typedef struct fixture {
    thread_pool *pool, *single;       /* of two threads, of one thread */
    kern_context *isas[FIXTURE_ISAS]; /* on `pool`; [0] is the reference */
    kern_context *high[FIXTURE_ISAS]; /* the same with high precision */
    size_t n_isas;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    *state = f;
    if (!status_ok(
            thread_pool_create(&(thread_pool_options){.n_threads = FIXTURE_THREADS}, &f->pool)) ||
        !status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &f->single)))
        return -1;
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool available;
        const char *name = kern_isa_at(i, &available);
        if (!available) {
            printf("skipped: %s (this CPU lacks it)\n", name);
            continue;
        }
        kern_options options = {.pool = f->pool, .isa = name, .precision = FIXTURE_PRECISION};
        if (!status_ok(kern_create(&options, &f->isas[f->n_isas], NULL))) return -1;
        options.precision = KERN_PRECISION_HIGH;
        if (!status_ok(kern_create(&options, &f->high[f->n_isas++], NULL))) return -1;
        if (strcmp(name, FIXTURE_LAST_ISA) == 0) break;
    }
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < f->n_isas; i++) {
        kern_destroy(f->isas[i]);
        kern_destroy(f->high[i]);
    }
    thread_pool_destroy(f->pool);
    thread_pool_destroy(f->single);
    free(f);
    return 0;
}

#endif

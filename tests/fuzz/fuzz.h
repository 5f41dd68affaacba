/* A fuzz target: one function over hostile bytes, built twice.
 *
 * With -DOCTAVO_FUZZ=ON (clang) libFuzzer drives it; in every other build replay_main.c runs it
 * over its committed corpus as an ordinary test. A target returns 0 always, states its property at
 * the top and checks it with FUZZ_CHECK: crashes are found by the sanitizers anyway. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: property broken: %s\n", __FILE__, __LINE__, #condition);       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif

/* `octavo bench kernels [--device cuda] [--rows N] [--dtype T] …`. Returns the exit status. */
#ifndef CLI_BENCH_BENCH_KERNELS_H
#define CLI_BENCH_BENCH_KERNELS_H

#include "cli/cli.h"

int cli_bench_kernels(cli_line *line);

#endif

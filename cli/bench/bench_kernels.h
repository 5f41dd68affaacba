/* `octavo bench kernels [--device cuda] [--rows N] [--dtype T] …`. argv[0] is ignored; returns the
 * exit status. */
#ifndef CLI_BENCH_BENCH_KERNELS_H
#define CLI_BENCH_BENCH_KERNELS_H

int cli_bench_kernels(int argc, char **argv);

#endif

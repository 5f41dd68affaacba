/* `octavo bench`: which of the three. */
#include "cli/bench_kernels.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

int cli_bench(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "kernels") == 0) return cli_bench_kernels(argc - 1, argv + 1);
    if (strcmp(what, "engine") == 0) return cli_bench_engine(argc - 1, argv + 1);
    if (strcmp(what, "serve") == 0) return cli_bench_serve(argc - 1, argv + 1);
    bool help = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    fputs(
        "usage: octavo bench kernels|engine|serve [flags]      octavo bench engine --help\n\n"
        "  kernels  each kernel alone, on cold operands\n"
        "  engine   prefill and decode of a whole model, scheduler, retention, memory\n"
        "  serve    load on a server: latencies, throughput, and whether all answers are whole\n\n"
        "The first two print the share of this machine's limits, measured in the same run.\n",
        help ? stdout : stderr);
    return help ? CLI_OK : CLI_USAGE;
}

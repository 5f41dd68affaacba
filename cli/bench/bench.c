/* `octavo bench`: finds the benchmark that is named and runs it. */
#include "cli/bench/bench_kernels.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} benches[] = {
    {"kernels", cli_bench_kernels, "each kernel alone, on cold operands"},
    {"engine", cli_bench_engine,
     "prefill and decode of a whole model; what the engine thread costs"},
    {"retention", cli_bench_retention,
     "what methods cost a prefill; concurrency and decoding at depth"},
    {"retrieval", cli_bench_retrieval,
     "decoding over long contexts that reads few blocks, beside full attention"},
    {"reform", cli_bench_reform, "reading a long text for embeddings, beside h2o-recurrent"},
    {"grammar", cli_bench_grammar,
     "forms of answers: compiling JSON Schemas, masks, following texts"},
    {"comm", cli_bench_comm, "sums over ranks, as processes and as threads"},
#ifdef OCTAVO_RPC
    {"workers", cli_bench_workers, "ranks in other processes beside ranks in threads"},
#endif
    {"serve", cli_bench_serve,
     "load on a server: latencies, throughput, and whether all answers are whole"},
    {"quality", cli_bench_quality, "what retention costs in answers: tasks, methods, budgets"},
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

int cli_bench(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < N_BENCHES; i++)
        if (strcmp(what, benches[i].name) == 0) return benches[i].run(argc - 1, argv + 1);
    bool help = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    FILE *out = help ? stdout : stderr;
    fputs("usage: octavo bench WHAT [flags]      octavo bench WHAT --help\n\n", out);
    for (size_t i = 0; i < N_BENCHES; i++)
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].about);
    fputs("\nThe first four print the share of this machine's limits, measured in the same run.\n",
          out);
    return help ? CLI_OK : CLI_USAGE;
}

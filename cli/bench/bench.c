/* `octavo bench`: the table of benchmarks, each a command of its own. */
#include "cli/bench/bench_kernels.h"
#include "cli/commands.h"

#include <stdio.h>

static const cli_command benches[] = {
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

const cli_command *cli_benches(size_t *n)
{
    *n = N_BENCHES;
    return benches;
}

int cli_bench(cli_line *line)
{
    const char *what = line->argc > 1 ? line->argv[1] : "";
    bool help = cli_is_help(what);
    if (!help && *what) return cli_run_command("octavo bench", benches, N_BENCHES, line);
    FILE *out = help ? stdout : stderr;
    fputs("usage: octavo bench WHAT [flags]      octavo bench WHAT --help\n\n", out);
    for (size_t i = 0; i < N_BENCHES; i++)
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].summary);
    fputs("\nThe first four print the share of this machine's limits, measured in the same run.\n",
          out);
    return help && cli_finish_output("octavo bench") ? CLI_OK : help ? CLI_FAILED : CLI_USAGE;
}

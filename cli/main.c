/* octavo is one executable with one table of commands. */
#include "cli/cli.h"
#include "cli/nearest.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
#ifdef OCTAVO_RPC
    {"serve", cli_serve, "a model behind OpenAI-compatible HTTP and gRPC"},
    {"worker", cli_worker, "one rank of a model, for a command with --workers"},
#endif
    {"run", cli_run, "answer a prompt, hold a chat, or run a file of prompts as one batch"},
    {"score", cli_score, "logits of token sequences, or the perplexity of a text"},
    {"tokenize", cli_tokenize, "JSON strings in, token ids out, one a line"},
    {"detokenize", cli_detokenize, "token ids in, JSON strings out, one a line"},
    {"inspect", cli_inspect, "what a model folder holds, and whether it can be run"},
    {"plan", cli_plan, "the memory that a model needs, and how many sequences fit"},
    {"heads", cli_heads, "the heads of a model that find what a question needs (REFORM)"},
    {"methods", cli_methods, "the retention methods: which pages of the KV cache stay"},
    {"bench", cli_bench, "kernels or the whole engine, beside the limits of this machine"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *out)
{
    fputs("octavo: serves large language models from a paged KV cache that can drop pages\n"
          "\n"
          "usage: octavo COMMAND [flags]      octavo COMMAND --help      octavo --version\n"
          "\n",
          out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "example:\n"
          "  octavo run --model models/demo --prompt 'O Romeo, Romeo' --max-tokens 40\n"
          "  octavo run --model models/demo --prompts questions.jsonl \\\n"
          "      --retention chunkkv:0.25 > answers.jsonl\n"
          "\n"
          "Exit status: 0 on success, 1 on a failure, 2 when the command line is wrong.\n",
          out);
}

static int complain_unknown(const char *name)
{
    nearest near;
    nearest_start(&near, name, strlen(name));
    for (int i = 0; i < COMMANDS; i++)
        nearest_try(&near, commands[i].name, strlen(commands[i].name));
    fprintf(stderr, "octavo: unknown command '%.64s'", name);
    if (near.best) fprintf(stderr, ": did you mean %s?", near.best);
    fputs(" (see octavo --help)\n", stderr);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    /* The process finds out that a reader went away when writing to it fails, and then ends its
     * work in order. */
    signal(SIGPIPE, SIG_IGN);
    /* A write to a file at its size limit (a log, a cache) is to fail, too, without a signal. */
    signal(SIGXFSZ, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return cli_finish_output("octavo") ? CLI_OK : CLI_FAILED;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        puts("octavo " OCTAVO_VERSION);
        return cli_finish_output("octavo") ? CLI_OK : CLI_FAILED;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return commands[i].run(argc - 1, argv + 1);
    if (!*name) help(stderr);
    return *name ? complain_unknown(name) : CLI_USAGE;
}

#include "cli/commands.h"
#include "cli/nearest.h"

#include <stdio.h>
#include <string.h>

static const cli_command commands[] = {
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
    {"completion", cli_completion, "what makes bash, zsh or fish complete octavo's flags"},
    {"man", cli_man, "manual pages, made from the flags' tables"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

const cli_command *cli_commands(size_t *n)
{
    *n = N_COMMANDS;
    return commands;
}

bool cli_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int cli_run_command(const char *program, const cli_command *all, size_t n, cli_line *line)
{
    const char *name = line->argv[1];
    nearest near;
    nearest_start(&near, name, strlen(name));
    for (size_t i = 0; i < n; i++) {
        cli_line rest = {.argc = line->argc - 1, .argv = line->argv + 1};
        if (strcmp(all[i].name, name) == 0) {
            int result = all[i].run(&rest);
            config_destroy(&rest.config);
            return result;
        }
        nearest_try(&near, all[i].name, strlen(all[i].name));
    }
    fprintf(stderr, "%s: unknown command '%.64s'", program, name);
    if (near.best) fprintf(stderr, ": did you mean %s?", near.best);
    fprintf(stderr, " (see %s --help)\n", program);
    return CLI_USAGE;
}

/* ---- the tables of all ----------------------------------------------------------------------- */

typedef struct looking {
    const cli_command *command;
    cli_each each;
    void *ctx;
} looking;

static void pass_on(const arg_command *tables, void *ctx)
{
    const looking *l = ctx;
    l->each(l->command, tables, l->ctx);
}

static void look_at(const cli_command *all, size_t n, cli_each each, void *ctx)
{
    for (size_t i = 0; i < n; i++) {
        char *argv[] = {(char *)all[i].name, NULL};
        looking l = {&all[i], each, ctx};
        cli_line line = {.argc = 1, .argv = argv, .look = pass_on, .look_ctx = &l};
        if (all[i].run != cli_bench) all[i].run(&line);
    }
}

void cli_look_at_all(cli_each each, void *ctx)
{
    size_t n;
    const cli_command *benches = cli_benches(&n);
    look_at(commands, N_COMMANDS, each, ctx);
    look_at(benches, n, each, ctx);
}

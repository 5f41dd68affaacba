/* octavo is one executable with one table of commands (commands.c). */
#include "cli/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A standard stream that the caller has closed would be the next file that the process opens: a log
 * would go into a cache, and a batch would read an event. It becomes one whose use fails with a
 * reason. */
static void occupy_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* main would be too late: constructors of libraries (UCX) open files before it. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_all)(void) = occupy_closed_streams;

static void help(FILE *out)
{
    size_t n;
    const cli_command *commands = cli_commands(&n);
    fputs("octavo: serves large language models from a paged KV cache that can drop pages\n"
          "\n"
          "usage: octavo COMMAND [flags]      octavo COMMAND --help      octavo --version\n"
          "\n",
          out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "example:\n"
          "  octavo run --model models/demo --prompt 'O Romeo, Romeo' --max-tokens 40\n"
          "  octavo run --model models/demo --prompts questions.jsonl \\\n"
          "      --retention chunkkv:0.25 > answers.jsonl\n"
          "\n"
          "Exit status: 0 on success, 1 on a failure, 2 when the command line cannot be read.\n",
          out);
}

int main(int argc, char **argv)
{
    /* The process finds out that a reader went away when writing to it fails, and then ends its
     * work in order. */
    signal(SIGPIPE, SIG_IGN);
    /* A write to a file at its size limit (a log, a cache) is to fail, too, without a signal. */
    signal(SIGXFSZ, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "";
    if (cli_is_help(name) || strcmp(name, "help") == 0) {
        help(stdout);
        return cli_finish_output("octavo") ? CLI_OK : CLI_FAILED;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        puts("octavo " OCTAVO_VERSION);
        return cli_finish_output("octavo") ? CLI_OK : CLI_FAILED;
    }
    if (*name) {
        size_t n;
        const cli_command *commands = cli_commands(&n);
        cli_line line = {.argc = argc, .argv = argv};
        return cli_run_command("octavo", commands, n, &line);
    }
    help(stderr);
    return CLI_USAGE;
}

/* Help, complaints and the end of output, which are the same for every command. */
#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int cli_complain(const char *command, int exit_status, const char *text)
{
    fprintf(stderr, "%s: %s\n", command, text);
    return exit_status;
}

/* Flags of every command. args_parse answers --help itself. */
static const arg_flag common_flags[] = {
    {.name = "help", .also = "-h", .help = "print this text"},
};
enum { GROUPS_MAX = 12 };

bool cli_parse(const arg_command *own, cli_line *line, const char **operand, int *exit_status)
{
    error err = {{0}};
    strbuf help = {0};
    bool wants_help = false;
    arg_group groups[GROUPS_MAX];
    arg_command with_common = *own;
    const arg_command *command = &with_common;
    assert(own->n_groups < GROUPS_MAX);
    if (own->n_groups) memcpy(groups, own->groups, own->n_groups * sizeof *groups);
    groups[own->n_groups] = (arg_group){"All commands", common_flags, 1, &wants_help};
    with_common.groups = groups;
    with_common.n_groups++;
    if (line->look) {
        line->look(command, line->look_ctx);
        *exit_status = CLI_OK;
        return false;
    }
    switch (args_parse(command, line->argc, line->argv, operand, &err)) {
    case ARG_OUTCOME_RUN: return true;
    case ARG_OUTCOME_HELP:
        args_help(command, &help);
        if (help.data) fwrite(help.data, 1, help.size, stdout);
        strbuf_destroy(&help);
        *exit_status = cli_finish_output(command->name) ? CLI_OK : CLI_FAILED;
        return false;
    case ARG_OUTCOME_WRONG: break;
    }
    fprintf(stderr, "%s: %s (see %s --help)\n", command->name, err.text, command->name);
    *exit_status = CLI_USAGE;
    return false;
}

static const char start_of_line[] = "\r\033[K";

void cli_draw_bar(const char *what, uint64_t done, uint64_t total)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1] = {0};
    double share = (double)done / (double)total;
    memset(bar, '-', WIDTH);
    memset(bar, '#', (size_t)(share * WIDTH));
    fprintf(stderr, "%s%s [%s] %.0f %%", start_of_line, what, bar, 100 * share);
}

void cli_clear_bar(void) { fputs(start_of_line, stderr); }

bool cli_finish_output(const char *command)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return true;
    if (errno != EPIPE) cli_complain(command, CLI_FAILED, "cannot write to stdout");
    return false;
}

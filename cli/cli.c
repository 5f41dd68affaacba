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

/* ---- flags of every command ------------------------------------------------------------------ */

typedef struct common_flags {
    bool help; // args_parse answers it itself
    const char *config;
    bool quiet;
} common_flags;

static const arg_flag common_table[] = {
    ARG_ROW("help", NULL, ARG_SWITCH, common_flags, help, "print this text", .also = "-h"),
    ARG_ROW("config", "FILE", ARG_TEXT, common_flags, config,
            "take the flags that are not given from this YAML file, by their names, such as "
            "\"max-batch: 8\""),
    ARG_ROW("quiet", NULL, ARG_SWITCH, common_flags, quiet,
            "print no progress and no notes about what runs; warnings and errors stay"),
};

/* A command without flags of its own has nothing for a file to give. */
static size_t common_of(const arg_command *own) { return own->quiet ? 3 : own->n_groups ? 2 : 1; }

typedef struct parsing {
    common_flags flags;
    cli_line *line;
} parsing;

/* arg_command.settings */
static status read_config(void *ctx, const arg_settings **out, error *err)
{
    parsing *p = ctx;
    if (!p->flags.config) return STATUS_IS_OK;
    RETURN_IF_ERROR(config_read(p->flags.config, &p->line->config, err));
    *out = &p->line->config.settings;
    return STATUS_IS_OK;
}

static int print_help(const arg_command *command)
{
    strbuf help = {0};
    args_help(command, &help);
    if (help.data) fwrite(help.data, 1, help.size, stdout);
    strbuf_destroy(&help);
    return cli_finish_output(command->name) ? CLI_OK : CLI_FAILED;
}

bool cli_parse(const arg_command *own, cli_line *line, const char **operand, int *exit_status)
{
    enum { GROUPS_MAX = 12 };
    error err = {{0}};
    parsing p = {.line = line};
    arg_group groups[GROUPS_MAX];
    arg_command command = *own;
    assert(own->n_groups < GROUPS_MAX);
    if (own->n_groups) memcpy(groups, own->groups, own->n_groups * sizeof *groups);
    groups[own->n_groups] = (arg_group){"All commands", common_table, common_of(own), &p.flags};
    command.groups = groups;
    command.n_groups++;
    command.settings = read_config;
    command.settings_ctx = &p;
    *exit_status = CLI_OK;
    if (line->look) {
        line->look(&command, line->look_ctx);
        return false;
    }
    switch (args_parse(&command, line->argc, line->argv, operand, &err)) {
    case ARG_OUTCOME_RUN:
        if (own->quiet) *own->quiet = p.flags.quiet;
        return true;
    case ARG_OUTCOME_HELP: *exit_status = print_help(&command); return false;
    case ARG_OUTCOME_WRONG: break;
    }
    fprintf(stderr, "%s: %s (see %s --help)\n", command.name, err.text, command.name);
    *exit_status = CLI_USAGE;
    return false;
}

/* ---- output ---------------------------------------------------------------------------------- */

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

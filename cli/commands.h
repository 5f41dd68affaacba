/* The table of commands (private to cli/), and what walks it. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli.h"

typedef struct cli_command {
    const char *name;
    int (*run)(cli_line *line);
    const char *summary;
} cli_command;

const cli_command *cli_commands(size_t *n);
/* The commands behind `octavo bench`. */
const cli_command *cli_benches(size_t *n);

/* Runs the command that line->argv[1] names; an unknown one is refused with the nearest name.
 * program: "octavo" or "octavo bench". */
int cli_run_command(const char *program, const cli_command *commands, size_t n, cli_line *line);
bool cli_is_help(const char *word);

/* Calls `each` for every command that has flags of its own, those of `octavo bench` too. The tables
 * are there during the call. */
typedef void (*cli_each)(const cli_command *c, const arg_command *tables, void *ctx);
void cli_look_at_all(cli_each each, void *ctx);

#endif

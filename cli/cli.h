/* Shared by the commands (private to cli/). A command takes its command line and returns the exit
 * status of the process. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/config.h"

enum {
    CLI_OK = 0,
    CLI_FAILED = 1, // a request failed, or the command could not do its work
    CLI_USAGE = 2,  // the command line is wrong
    CLI_INTERRUPTED = 130,
};

/* A command's arguments, and what parsing them leaves for it. */
typedef struct cli_line {
    int argc;
    char **argv; // [0] is the command's name
    /* Where not NULL, cli_parse gives the command's tables to it, and the command ends. Completion
     * and manual pages read the tables of all commands in this way. */
    void (*look)(const arg_command *command, void *ctx);
    void *look_ctx;
    /* The file that --config names. Flags borrow from it; the maker of the line destroys it. */
    config_file config;
} cli_line;

int cli_serve(cli_line *line);  // only when the servers are built
int cli_worker(cli_line *line); // only when the servers are built
int cli_run(cli_line *line);
int cli_score(cli_line *line);
int cli_heads(cli_line *line);
int cli_tokenize(cli_line *line);
int cli_detokenize(cli_line *line);
int cli_inspect(cli_line *line);
int cli_methods(cli_line *line);
int cli_plan(cli_line *line);
int cli_bench(cli_line *line);
int cli_completion(cli_line *line);
int cli_man(cli_line *line);
int cli_bench_comm(cli_line *line);
int cli_bench_workers(cli_line *line); // only when the servers are built
int cli_bench_engine(cli_line *line);
int cli_bench_retention(cli_line *line);
int cli_bench_grammar(cli_line *line);
int cli_bench_retrieval(cli_line *line);
int cli_bench_reform(cli_line *line);
int cli_bench_serve(cli_line *line);
int cli_bench_quality(cli_line *line);

/* Parses the command line, and answers --help and errors itself. True: go on. False: return
 * *exit_status. */
bool cli_parse(const arg_command *command, cli_line *line, const char **operand, int *exit_status);
/* Prints "octavo run: what went wrong" on stderr. Returns exit_status. */
int cli_complain(const char *command, int exit_status, const char *text);
/* Flushes stdout. False, with a complaint unless the reader has just gone away, when not all that
 * was written arrived. */
bool cli_finish_output(const char *command);

/* Draws a bar on the terminal of stderr, in place of the line that it has. total > 0. */
void cli_draw_bar(const char *what, uint64_t done, uint64_t total);
void cli_clear_bar(void);

#endif

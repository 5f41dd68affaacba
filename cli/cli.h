/* Shared by the commands (private to cli/). A command takes its own arguments (argv[0] is its name)
 * and returns the exit status of the process. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/args.h"

enum {
    CLI_OK = 0,
    CLI_FAILED = 1, // a request failed, or the command could not do its work
    CLI_USAGE = 2,  // the command line is wrong
    CLI_INTERRUPTED = 130,
};

int cli_serve(int argc, char **argv);  // only when the servers are built
int cli_worker(int argc, char **argv); // only when the servers are built
int cli_run(int argc, char **argv);
int cli_score(int argc, char **argv);
int cli_heads(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_detokenize(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_methods(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_bench_comm(int argc, char **argv);
int cli_bench_workers(int argc, char **argv); // only when the servers are built
int cli_bench_engine(int argc, char **argv);
int cli_bench_retention(int argc, char **argv);
int cli_bench_grammar(int argc, char **argv);
int cli_bench_retrieval(int argc, char **argv);
int cli_bench_reform(int argc, char **argv);
int cli_bench_serve(int argc, char **argv);
int cli_bench_quality(int argc, char **argv);

/* Parses the command line, and answers --help and errors itself. True: go on. False: return
 * *exit_status. */
bool cli_parse(const arg_command *command, int argc, char **argv, const char **operand,
               int *exit_status);
/* Prints "octavo run: what went wrong" on stderr. Returns exit_status. */
int cli_complain(const char *command, int exit_status, const char *text);
/* Flushes stdout. False, with a complaint unless the reader has just gone away, when not all that
 * was written arrived. */
bool cli_finish_output(const char *command);

/* Draws a bar on the terminal of stderr, in place of the line that it has. total > 0. */
void cli_draw_bar(const char *what, uint64_t done, uint64_t total);
void cli_clear_bar(void);

#endif

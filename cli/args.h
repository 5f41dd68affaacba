/* Command-line flags: a flag is a row of a table. An error is one line that names the flag.
 *
 * A command describes its flags in groups; each group writes into one struct by offset. `--flag
 * value` and `--flag=value` mean the same, under the flag's name or one of its aliases; "--" ends
 * the flags. Numbers have a range, sizes take K, M, G and T. */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include "base/base.h"

typedef enum arg_kind {
    ARG_SWITCH, // bool: takes no value
    ARG_TEXT,   // const char *, borrowed from argv
    ARG_OPTION, // const char *: one of `choices`
    ARG_COUNT,  // uint32_t in [min, max]
    ARG_WHOLE,  // uint64_t in [min, max]
    ARG_BYTES,  // uint64_t in [min, max]: 4096, 512M, 1.5G
    ARG_LIST,   // arg_list: the flag may be repeated
    ARG_FIELD,  // json_t **: the value becomes a member of a JSON object, see `field`
} arg_kind;

/* How a JSON member is written on the command line. */
typedef enum arg_json {
    ARG_JSON_WHOLE,   // an integer in [min, max]
    ARG_JSON_NUMBER,  // a number in [min, max]
    ARG_JSON_TRUE,    // a switch
    ARG_JSON_TEXT,    // a string
    ARG_JSON_STRINGS, // a list of strings: the flag may be repeated
} arg_json;

typedef struct arg_list {
    const char **items; // malloc'd; the strings are borrowed from argv
    size_t n;
} arg_list;

/* Adds a borrowed text at the end; false: memory is out. */
bool arg_list_add(arg_list *list, const char *text);

typedef struct arg_flag {
    const char *name;  // without "--"
    const char *value; // what help calls the value; NULL for switches
    /* Aliases as they are typed, between spaces, such as "-t --threads-of-other-engine": names of
     * other engines' flags that mean the same. NULL = none. */
    const char *also;
    const char *help; // one line
    arg_kind kind;
    size_t offset;       // of the target in the group's struct
    double min, max;     // numbers, inclusive
    bool above_min;      // ARG_JSON_NUMBER: min itself is out of range
    const char *initial; // the value when the flag is not given (shown in help); NULL = left alone
    const char *const *options; // ARG_OPTION: NULL-terminated
    const char *field;          // ARG_FIELD: the member's name
    arg_json json;              // ARG_FIELD
} arg_flag;

/* A row for the member of a struct; more initialisers may follow, such as .min = 1, .max = 16. */
#define ARG_ROW(flag_name, flag_value, flag_kind, type, member, flag_help, ...)                    \
    {                                                                                              \
        .name = flag_name, .value = flag_value, .kind = flag_kind,                                 \
        .offset = offsetof(type, member), .help = flag_help, __VA_ARGS__                           \
    }

typedef struct arg_group {
    const char *title; // "Sampling"
    const arg_flag *flags;
    size_t n_flags;
    void *target; // zeroed by the caller
} arg_group;

/* A value for a flag from elsewhere than the command line, such as a file. */
typedef struct arg_setting {
    const char *name; // without "--"
    const char *value;
    uint32_t line;
    bool item; // one of a list
} arg_setting;

typedef struct arg_settings {
    const char *source; // "octavo.yaml"
    arg_setting *items;
    size_t n;
} arg_settings;

typedef struct arg_command {
    const char *name;  // "octavo run"
    const char *usage; // "--model DIR (--prompt TEXT | …) [flags]"
    const char *about; // paragraphs for --help
    const arg_group *groups;
    size_t n_groups;
    const char *operand;   // the name of the one operand that must be given, or NULL
    bool operand_optional; // the operand may be left out
    /* The flag of which the operand is the value: `serve DIR` is `serve --model DIR`. The operand
     * may then be left out. NULL = none. */
    const char *operand_flag;
    /* Prefix of the environment variables that stand in for flags that are not given: with
     * "OCTAVO_", OCTAVO_MAX_BATCH stands in for --max-batch. A switch takes 1 or 0 there, a list
     * one value. NULL = the environment is not read. A flag of the first group must take a value:
     * --help shows the first of them as the example. */
    const char *environment;
    /* Gives the settings that stand in for flags which neither the command line nor the environment
     * gives. It is called once, when the flags have the values of both; the flags borrow from what
     * it gives. NULL = there are none. */
    status (*settings)(void *ctx, const arg_settings **out, error *err);
    void *settings_ctx;
    bool *quiet; // receives --quiet, which commands have that print more than results and errors
} arg_command;

typedef enum arg_outcome {
    ARG_OUTCOME_RUN,
    ARG_OUTCOME_HELP,  // --help was given
    ARG_OUTCOME_WRONG, // the command line is wrong; err says how
} arg_outcome;

/* Parses a command line; argv[0] is skipped. *operand receives the operand when the command has
 * one that is no flag's value. Values from the environment are borrowed from it. */
arg_outcome args_parse(const arg_command *command, int argc, char **argv, const char **operand,
                       error *err);
/* Appends the text of --help (args_help.c). */
void args_help(const arg_command *command, strbuf *out);
/* Append its parts: what a flag does; how the environment sets flags of a command that reads it. */
void args_flag_text(const arg_command *command, const arg_flag *f, strbuf *out);
void args_environment_text(const arg_command *command, strbuf *out);

bool args_takes_value(const arg_flag *f);
bool args_is_list(const arg_flag *f); // may be given more than once
enum { ARG_VARIABLE_BYTES_MAX = 128 };
/* Writes the name of the variable that stands in for a flag: "max-batch" with "OCTAVO_" is
 * OCTAVO_MAX_BATCH. */
void args_name_variable(const char *prefix, const char *flag, char *name, size_t size);

/* Converts "512M" to bytes; false when the text is no size. */
bool args_read_bytes(const char *text, uint64_t *out);

#endif

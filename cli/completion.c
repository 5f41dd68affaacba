/* `octavo completion`: scripts by which shells complete the commands and flags of the tables. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

static const char name[] = "octavo completion";

/* The kinds of completions that a shell offers for a value. */
typedef enum value_kind {
    VALUE_NONE, // a switch
    VALUE_FREE, // nothing is offered
    VALUE_OPTION,
    VALUE_FILE,
} value_kind;

static bool names_file(const char *value)
{
    static const char *const files[] = {"PATH", "DIR", "FILE", "FOLDER", "OUT"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(value, files[i]) == 0) return true;
    return false;
}

static value_kind kind_of(const arg_flag *f)
{
    if (!args_takes_value(f)) return VALUE_NONE;
    if (f->options) return VALUE_OPTION;
    return names_file(f->value) ? VALUE_FILE : VALUE_FREE;
}

static bool takes_file(const arg_command *c) { return c->operand && names_file(c->operand); }

/* The words behind "octavo": "serve", "bench serve". */
static const char *words_of(const arg_command *c) { return strchr(c->name, ' ') + 1; }

/* Calls `put` for each way to write a flag, with its dashes. */
static void each_word(const arg_flag *f, void (*put)(const char *word, size_t n, void *ctx),
                      void *ctx)
{
    char own[ARG_VARIABLE_BYTES_MAX];
    int n = snprintf(own, sizeof own, "--%s", f->name);
    put(own, (size_t)n, ctx);
    for (const char *also = f->also; also && *also;) {
        size_t size = strcspn(also, " ");
        put(also, size, ctx);
        also += size + strspn(also + size, " ");
    }
}

static void put_options(strbuf *out, const arg_flag *f)
{
    for (const char *const *o = f->options; *o; o++)
        strbuf_printf(out, "%s%s", o == f->options ? "" : " ", *o);
}

/* Appends the part of a help text that stands before its details, with `special` characters behind
 * `escape`. */
static void put_summary(strbuf *out, const char *help, const char *special, const char *escape)
{
    for (const char *at = help; *at; at++) {
        if (*at == ';' || (*at == ':' && at[1] == ' ') || (*at == ' ' && at[1] == '(')) break;
        if (*at == '\'') strbuf_puts(out, "'\\''");
        else if (strchr(special, *at)) strbuf_printf(out, "%s%c", escape, *at);
        else strbuf_putc(out, *at);
    }
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void put_spaced(const char *word, size_t n, void *ctx)
{
    strbuf_putc(ctx, ' ');
    strbuf_append(ctx, word, n);
}

typedef struct alternatives {
    strbuf *out;
    bool any;
} alternatives;

static void put_alternative(const char *word, size_t n, void *ctx)
{
    alternatives *a = ctx;
    strbuf_puts(a->out, a->any ? "|" : "        ");
    strbuf_append(a->out, word, n);
    a->any = true;
}

/* One case of the flags that take any value, or any file. */
static void put_bash_kind(strbuf *out, const arg_command *c, value_kind kind, const char *how)
{
    alternatives a = {out, false};
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++)
            if (kind_of(&c->groups[g].flags[i]) == kind)
                each_word(&c->groups[g].flags[i], put_alternative, &a);
    if (a.any) strbuf_printf(out, ") how=%s ;;\n", how);
}

static void put_bash(const cli_command *of, const arg_command *c, void *ctx)
{
    (void)of;
    strbuf *out = ctx;
    strbuf_printf(out, "    '%s')\n        flags='", words_of(c));
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++)
            each_word(&c->groups[g].flags[i], put_spaced, out);
    strbuf_printf(out, "'\n        operand=%s\n        case $previous in\n",
                  takes_file(c) ? "files" : "nothing");
    put_bash_kind(out, c, VALUE_FILE, "files");
    put_bash_kind(out, c, VALUE_FREE, "nothing");
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++) {
            const arg_flag *f = &c->groups[g].flags[i];
            alternatives a = {out, false};
            if (kind_of(f) != VALUE_OPTION) continue;
            each_word(f, put_alternative, &a);
            strbuf_puts(out, ") how=words words='");
            put_options(out, f);
            strbuf_puts(out, "' ;;\n");
        }
    strbuf_puts(out, "        esac\n        ;;\n");
}

static void put_names(strbuf *out, const cli_command *all, size_t n)
{
    for (size_t i = 0; i < n; i++) strbuf_printf(out, "%s%s", i ? " " : "", all[i].name);
}

static void write_bash(strbuf *out)
{
    size_t n, n_benches;
    const cli_command *commands = cli_commands(&n), *benches = cli_benches(&n_benches);
    strbuf_puts(out, "# Completes octavo in bash. `octavo completion bash` wrote it.\n"
                     "_octavo() {\n"
                     "    local word=$2 previous=$3 command=${COMP_WORDS[1]} at=2\n"
                     "    local how=flags words= flags= operand=nothing\n"
                     "    # --flag=value is three words here.\n"
                     "    [[ $word == = ]] && word=\n"
                     "    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
                     "    [[ ${COMP_WORDS[COMP_CWORD]} == = ]] && previous=${COMP_WORDS[COMP_CWORD "
                     "- 1]}\n"
                     "    if [[ $command == bench ]]; then\n"
                     "        command=\"bench ${COMP_WORDS[2]}\" at=3\n"
                     "    fi\n"
                     "    if ((COMP_CWORD == 1)); then\n"
                     "        how=words words='");
    put_names(out, commands, n);
    strbuf_puts(out, " --help --version'\n    elif ((COMP_CWORD < at)); then\n"
                     "        how=words words='");
    put_names(out, benches, n_benches);
    strbuf_puts(out, " --help'\n    else\n    case $command in\n");
    cli_look_at_all(put_bash, out);
    strbuf_puts(out, "    esac\n    fi\n"
                     "    [[ $how == flags && $word != -* ]] && how=$operand\n"
                     "    case $how in\n"
                     "    flags) mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\") ;;\n"
                     "    words) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\") ;;\n"
                     "    files)\n"
                     "        compopt -o filenames 2>/dev/null\n"
                     "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                     "        ;;\n"
                     "    esac\n"
                     "}\n"
                     "complete -F _octavo octavo\n");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

typedef struct zsh_flag {
    strbuf *out;
    const arg_flag *flag;
} zsh_flag;

static void put_zsh_word(const char *word, size_t n, void *ctx)
{
    const zsh_flag *z = ctx;
    const arg_flag *f = z->flag;
    value_kind kind = kind_of(f);
    strbuf_printf(z->out, " \\\n            '%s%.*s%s[", args_is_list(f) ? "*" : "", (int)n, word,
                  kind != VALUE_NONE && n > 2 && word[1] == '-' ? "=" : "");
    put_summary(z->out, f->help, "[]", "\\");
    strbuf_putc(z->out, ']');
    if (kind != VALUE_NONE) {
        strbuf_putc(z->out, ':');
        for (const char *at = f->value; *at; at++)
            strbuf_printf(z->out, "%s%c", strchr(":[]", *at) ? "\\" : "", *at);
        strbuf_putc(z->out, ':');
    }
    if (kind == VALUE_FILE) strbuf_puts(z->out, "_files");
    if (kind == VALUE_FREE) strbuf_putc(z->out, ' ');
    if (kind == VALUE_OPTION) {
        strbuf_putc(z->out, '(');
        put_options(z->out, f);
        strbuf_putc(z->out, ')');
    }
    strbuf_putc(z->out, '\'');
}

static void put_zsh(const cli_command *of, const arg_command *c, void *ctx)
{
    (void)of;
    strbuf *out = ctx;
    strbuf_printf(out, "    '%s')\n        _arguments", words_of(c));
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++)
            each_word(&c->groups[g].flags[i], put_zsh_word,
                      &(zsh_flag){out, &c->groups[g].flags[i]});
    if (c->operand)
        strbuf_printf(out, " \\\n            ':%s:%s'", c->operand, takes_file(c) ? "_files" : " ");
    strbuf_puts(out, "\n        ;;\n");
}

static void put_zsh_names(strbuf *out, const cli_command *all, size_t n)
{
    strbuf_puts(out, "        names=(");
    for (size_t i = 0; i < n; i++) {
        strbuf_printf(out, "\n            '%s:", all[i].name);
        put_summary(out, all[i].summary, ":", "\\");
        strbuf_putc(out, '\'');
    }
    strbuf_puts(out, ")\n        _describe command names\n        return\n");
}

static void write_zsh(strbuf *out)
{
    size_t n, n_benches;
    const cli_command *commands = cli_commands(&n), *benches = cli_benches(&n_benches);
    strbuf_puts(out, "#compdef octavo\n"
                     "# Completes octavo in zsh. `octavo completion zsh` wrote it.\n"
                     "_octavo() {\n"
                     "    local -a names\n"
                     "    local command=$words[2]\n"
                     "    if ((CURRENT == 2)); then\n");
    put_zsh_names(out, commands, n);
    strbuf_puts(out, "    elif [[ $command == bench ]] && ((CURRENT == 3)); then\n");
    put_zsh_names(out, benches, n_benches);
    strbuf_puts(out, "    elif [[ $command == bench ]]; then\n"
                     "        command=\"bench $words[3]\"\n"
                     "        shift words\n"
                     "        ((CURRENT--))\n"
                     "    fi\n"
                     "    shift words\n"
                     "    ((CURRENT--))\n"
                     "    case $command in\n");
    cli_look_at_all(put_zsh, out);
    /* Sourced, it registers itself; in a folder of fpath, zsh runs it to complete. */
    strbuf_puts(out, "    esac\n"
                     "}\n"
                     "if [[ $funcstack[1] == _octavo ]]; then\n"
                     "    _octavo \"$@\"\n"
                     "else\n"
                     "    compdef _octavo octavo\n"
                     "fi\n");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void put_fish_word(const char *word, size_t n, void *ctx)
{
    const char *dashes = word[1] == '-' ? "-l" : n == 2 ? "-s" : "-o";
    size_t skip = word[1] == '-' ? 2 : 1;
    strbuf_printf(ctx, " %s %.*s", dashes, (int)(n - skip), word + skip);
}

/* fish escapes a quote in quotes by a backslash, not as other shells do. */
static void put_fish_text(strbuf *out, const char *text)
{
    strbuf plain = {0};
    put_summary(&plain, text, "", "");
    for (const char *at = plain.data; at && at < plain.data + plain.size; at++) {
        if (strncmp(at, "'\\''", 4) == 0) strbuf_puts(out, "\\'"), at += 3;
        else strbuf_putc(out, *at);
    }
    strbuf_destroy(&plain);
}

/* The condition that a flag of this command comes next. `bench serve` is not `serve`. */
static void put_fish_condition(strbuf *out, const arg_command *c)
{
    const char *words = words_of(c), *within = strchr(words, ' ');
    const char *of_bench = within ? "and" : "and not";
    strbuf_printf(out,
                  "complete -c octavo -n '__fish_seen_subcommand_from %s; %s "
                  "__fish_seen_subcommand_from bench'",
                  within ? within + 1 : words, of_bench);
}

static void put_fish(const cli_command *of, const arg_command *c, void *ctx)
{
    (void)of;
    strbuf *out = ctx;
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_flags; i++) {
            const arg_flag *f = &c->groups[g].flags[i];
            value_kind kind = kind_of(f);
            put_fish_condition(out, c);
            each_word(f, put_fish_word, out);
            if (kind == VALUE_FILE) strbuf_puts(out, " -r -F");
            if (kind == VALUE_FREE) strbuf_puts(out, " -x");
            if (kind == VALUE_OPTION) {
                strbuf_puts(out, " -x -a '");
                put_options(out, f);
                strbuf_putc(out, '\'');
            }
            strbuf_puts(out, " -d '");
            put_fish_text(out, f->help);
            strbuf_puts(out, "'\n");
        }
    if (!takes_file(c)) return;
    put_fish_condition(out, c);
    strbuf_puts(out, " -F\n");
}

static void put_fish_names(strbuf *out, const char *condition, const cli_command *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        strbuf_printf(out, "complete -c octavo -n '%s' -a %s -d '", condition, all[i].name);
        put_fish_text(out, all[i].summary);
        strbuf_puts(out, "'\n");
    }
}

static void write_fish(strbuf *out)
{
    size_t n, n_benches;
    const cli_command *commands = cli_commands(&n), *benches = cli_benches(&n_benches);
    strbuf condition = {0};
    strbuf_puts(out, "# Completes octavo in fish. `octavo completion fish` wrote it.\n"
                     "complete -c octavo -f\n");
    put_fish_names(out, "__fish_use_subcommand", commands, n);
    strbuf_puts(&condition, "__fish_seen_subcommand_from bench; and not "
                            "__fish_seen_subcommand_from ");
    put_names(&condition, benches, n_benches);
    if (!condition.failed) put_fish_names(out, condition.data, benches, n_benches);
    strbuf_destroy(&condition);
    cli_look_at_all(put_fish, out);
}

/* ---- the command ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*write)(strbuf *out);
} shells[] = {{"bash", write_bash}, {"zsh", write_zsh}, {"fish", write_fish}};

int cli_completion(cli_line *line)
{
    const char *shell;
    const arg_command command = {
        .name = name,
        .usage = "bash | zsh | fish",
        .about = "Prints the script by which a shell completes octavo's commands, flags and their "
                 "values.\n"
                 "Installed packages have these scripts where shells look for them. Without one:\n"
                 "\n"
                 "  source <(octavo completion bash)\n"
                 "  source <(octavo completion zsh)\n"
                 "  octavo completion fish | source",
        .operand = "SHELL",
    };
    int result;
    if (!cli_parse(&command, line, &shell, &result)) return result;
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].name, shell) != 0) continue;
        strbuf out = {0};
        shells[i].write(&out);
        bool failed = out.failed;
        if (!failed) fwrite(out.data, 1, out.size, stdout);
        strbuf_destroy(&out);
        if (failed) return cli_complain(name, CLI_FAILED, "out of memory");
        return cli_finish_output(name) ? CLI_OK : CLI_FAILED;
    }
    return cli_complain(name, CLI_USAGE, "the shell must be bash, zsh or fish");
}

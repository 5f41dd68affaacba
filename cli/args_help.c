/* Writes the help of a command from its tables. */
#include "cli/args.h"

#include <string.h>

#define FLAG_WIDTH 30 /* column of the help text */
#define TEXT_WIDTH 100

static void pad(strbuf *out, size_t n)
{
    for (size_t i = 0; i < n; i++) strbuf_putc(out, ' ');
}

/* Wraps the words of text: the first line starts at `column`, later lines are indented by
 * `indent`. */
static void wrap(strbuf *out, const char *text, size_t indent, size_t column)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > indent && column + 1 + n > TEXT_WIDTH) {
            strbuf_putc(out, '\n');
            pad(out, indent);
            column = indent;
        } else if (column > indent) {
            strbuf_putc(out, ' ');
            column++;
        }
        strbuf_append(out, text, n);
        column += n;
        text += n + strspn(text + n, " ");
    }
    strbuf_putc(out, '\n');
}

void args_flag_text(const arg_command *command, const arg_flag *f, strbuf *out)
{
    strbuf_puts(out, f->help);
    for (const char *const *c = f->options; c && *c; c++)
        strbuf_printf(out, "%s%s", c == f->options ? ": " : ", ", *c);
    if (f->initial) strbuf_printf(out, " (default %s)", f->initial);
    if (command->operand_flag && strcmp(command->operand_flag, f->name) == 0)
        strbuf_printf(out, "; %s alone means the same", f->value);
}

static void put_aliases(const arg_flag *f, strbuf *out)
{
    for (const char *also = f->also; also && *also;) {
        size_t n = strcspn(also, " ");
        strbuf_printf(out, "%s%.*s", also == f->also ? " [also " : ", ", (int)n, also);
        also += n + strspn(also + n, " ");
    }
    if (f->also) strbuf_putc(out, ']');
}

static void help_of_flag(const arg_command *command, const arg_flag *f, strbuf *out)
{
    strbuf left = {0}, right = {0};
    strbuf_printf(&left, "  --%s%s%s", f->name, f->value ? " " : "", f->value ? f->value : "");
    args_flag_text(command, f, &right);
    put_aliases(f, &right);
    if (!left.failed && !right.failed) {
        strbuf_append(out, left.data, left.size);
        if (left.size >= FLAG_WIDTH) strbuf_putc(out, '\n');
        pad(out, left.size >= FLAG_WIDTH ? FLAG_WIDTH : FLAG_WIDTH - left.size);
        wrap(out, right.data, FLAG_WIDTH, FLAG_WIDTH);
    }
    strbuf_destroy(&left);
    strbuf_destroy(&right);
}

/* The example is the command's first flag that takes a value. */
void args_environment_text(const arg_command *command, strbuf *out)
{
    char name[ARG_VARIABLE_BYTES_MAX];
    const arg_flag *f = command->groups[0].flags;
    while (!args_takes_value(f)) f++;
    args_name_variable(command->environment, f->name, name, sizeof name);
    strbuf_printf(out,
                  "Every flag can be set in the environment: --%s %s as %s=%s. The command line "
                  "wins; a switch takes 1 or 0, a list one value.",
                  f->name, f->value, name, f->value);
}

void args_help(const arg_command *command, strbuf *out)
{
    strbuf_printf(out, "usage: %s %s\n\n%s\n", command->name, command->usage, command->about);
    for (size_t g = 0; g < command->n_groups; g++) {
        strbuf_printf(out, "\n%s:\n", command->groups[g].title);
        for (size_t i = 0; i < command->groups[g].n_flags; i++)
            help_of_flag(command, &command->groups[g].flags[i], out);
    }
    if (!command->environment) return;
    strbuf text = {0};
    args_environment_text(command, &text);
    strbuf_putc(out, '\n');
    if (!text.failed) wrap(out, text.data, 0, 0);
    strbuf_destroy(&text);
}

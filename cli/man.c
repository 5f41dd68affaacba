/* `octavo man`: manual pages of the commands, made from their tables. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char name[] = "octavo man";

/* ---- roff ------------------------------------------------------------------------------------ */

/* Appends text in which no character is roff's. */
static void put_text(strbuf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\') strbuf_puts(out, "\\e");
        else if (text[i] == '-') strbuf_puts(out, "\\-");
        else if (text[i] == '\'') strbuf_puts(out, "\\(aq");
        else if (text[i] == '`') strbuf_puts(out, "\\(ga");
        else if (text[i] == '^') strbuf_puts(out, "\\(ha");
        else if (text[i] == '~') strbuf_puts(out, "\\(ti");
        else if (text[i] == '.' && (i == 0 || text[i - 1] == '\n')) strbuf_puts(out, "\\&.");
        else strbuf_putc(out, text[i]);
    }
}

static void put_string(strbuf *out, const char *text) { put_text(out, text, strlen(text)); }

/* Appends the paragraphs of a command: lines that begin with a space are shown as they are, others
 * are filled. */
static void put_about(strbuf *out, const char *about)
{
    bool as_is = false, paragraph = false; // a heading begins the first one
    while (*about) {
        size_t n = strcspn(about, "\n");
        bool indented = *about == ' ';
        if (n == 0) {
            paragraph = true;
        } else {
            if (as_is && !indented) strbuf_puts(out, ".fi\n.RE\n");
            if (paragraph) strbuf_puts(out, ".PP\n");
            if (indented && !as_is) strbuf_puts(out, ".RS\n.nf\n");
            as_is = indented;
            paragraph = false;
            size_t skip = strspn(about, " ");
            put_text(out, about + skip, n - skip);
            strbuf_putc(out, '\n');
        }
        about += n + (about[n] == '\n');
    }
    if (as_is) strbuf_puts(out, ".fi\n.RE\n");
}

/* Appends "octavo-bench-serve" for "octavo bench serve". */
static void put_page_name(strbuf *out, const char *command)
{
    for (; *command; command++) strbuf_putc(out, *command == ' ' ? '-' : *command);
}

static void put_head(strbuf *out, const char *command, const char *summary)
{
    strbuf_puts(out, ".TH \"");
    for (const char *at = command; *at; at++)
        strbuf_putc(out, *at == ' ' ? '-' : *at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    strbuf_puts(out, "\" 1 \"\" \"octavo " OCTAVO_VERSION "\" \"User Commands\"\n.SH NAME\n");
    strbuf name_text = {0};
    put_page_name(&name_text, command);
    if (!name_text.failed) put_text(out, name_text.data, name_text.size);
    out->failed |= name_text.failed;
    strbuf_destroy(&name_text);
    strbuf_puts(out, " \\- ");
    put_string(out, summary);
    strbuf_puts(out, "\n.SH SYNOPSIS\n");
}

static void put_flag(strbuf *out, const arg_command *c, const arg_flag *f)
{
    strbuf_puts(out, ".TP\n\\fB\\-\\-");
    put_string(out, f->name);
    strbuf_puts(out, "\\fR");
    for (const char *also = f->also; also && *also;) {
        size_t n = strcspn(also, " ");
        strbuf_puts(out, ", \\fB");
        put_text(out, also, n);
        strbuf_puts(out, "\\fR");
        also += n + strspn(also + n, " ");
    }
    if (f->value) {
        strbuf_puts(out, " \\fI");
        put_string(out, f->value);
        strbuf_puts(out, "\\fR");
    }
    strbuf_putc(out, '\n');
    strbuf text = {0};
    args_flag_text(c, f, &text);
    if (!text.failed) put_text(out, text.data, text.size);
    out->failed |= text.failed;
    strbuf_destroy(&text);
    strbuf_putc(out, '\n');
}

static void put_page(strbuf *out, const cli_command *of, const arg_command *c)
{
    put_head(out, c->name, of->summary);
    strbuf_puts(out, "\\fB");
    put_string(out, c->name);
    strbuf_puts(out, "\\fR ");
    put_string(out, c->usage);
    strbuf_puts(out, "\n.SH DESCRIPTION\n");
    put_about(out, c->about);
    strbuf_puts(out, ".SH OPTIONS\n");
    for (size_t g = 0; g < c->n_groups; g++) {
        strbuf_puts(out, ".SS ");
        put_string(out, c->groups[g].title);
        strbuf_putc(out, '\n');
        for (size_t i = 0; i < c->groups[g].n_flags; i++) put_flag(out, c, &c->groups[g].flags[i]);
    }
    if (c->environment) {
        strbuf text = {0};
        strbuf_puts(out, ".SH ENVIRONMENT\n");
        args_environment_text(c, &text);
        if (!text.failed) put_text(out, text.data, text.size);
        out->failed |= text.failed;
        strbuf_destroy(&text);
        strbuf_putc(out, '\n');
    }
    strbuf_puts(out, ".SH SEE ALSO\n\\fBoctavo\\fR(1)\n");
}

/* ---- octavo(1) ------------------------------------------------------------------------------- */

static void put_commands(strbuf *out, const char *before, const cli_command *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        strbuf_puts(out, ".TP\n\\fB");
        put_string(out, before);
        put_string(out, all[i].name);
        strbuf_puts(out, "\\fR(1)\n");
        put_string(out, all[i].summary);
        strbuf_putc(out, '\n');
    }
}

static void put_overview(strbuf *out)
{
    size_t n, n_benches;
    const cli_command *commands = cli_commands(&n), *benches = cli_benches(&n_benches);
    put_head(out, "octavo",
             "serves large language models from a paged KV cache that can drop pages");
    strbuf_puts(out, "\\fBoctavo\\fR \\fICOMMAND\\fR [flags]\n.SH COMMANDS\n");
    put_commands(out, "octavo-", commands, n);
    strbuf_puts(out, ".SH BENCHMARKS\n");
    put_commands(out, "octavo-bench-", benches, n_benches);
    strbuf_puts(out, ".SH EXIT STATUS\n0 on success, 1 on a failure, 2 when the command line "
                     "cannot be read.\n");
}

/* ---- the command ----------------------------------------------------------------------------- */

typedef struct man_flags {
    const char *out;
} man_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("out", "DIR", ARG_TEXT, man_flags, out,
            "write the pages of all commands into this folder, which is made where it is missing"),
};

typedef struct pages {
    const char *wanted; // "serve", "bench-serve"; NULL: all, into `folder`
    const char *folder;
    bool found, failed;
} pages;

/* Writes a page as octavo-NAME.1, or to stdout. */
static void write_page(pages *p, const char *command, const strbuf *text)
{
    strbuf path = {0};
    FILE *file = stdout;
    if (p->failed) return;
    if (!p->wanted) {
        strbuf_printf(&path, "%s/", p->folder);
        put_page_name(&path, command);
        strbuf_puts(&path, ".1");
        file = path.failed ? NULL : fopen(path.data, "w");
    }
    bool fine = file && !text->failed && fwrite(text->data, 1, text->size, file) == text->size;
    if (file && file != stdout && fclose(file) != 0) fine = false;
    if (!fine) fprintf(stderr, "%s: cannot write %s\n", name, path.data ? path.data : "the page");
    p->failed |= !fine;
    strbuf_destroy(&path);
}

static void take_command(const cli_command *of, const arg_command *c, void *ctx)
{
    pages *p = ctx;
    strbuf page = {0};
    put_page_name(&page, strchr(c->name, ' ') + 1);
    bool wanted = !p->wanted || (page.data && strcmp(page.data, p->wanted) == 0);
    strbuf_clear(&page);
    if (wanted) {
        p->found = true;
        put_page(&page, of, c);
        write_page(p, c->name, &page);
    }
    strbuf_destroy(&page);
}

static int write_pages(pages *p)
{
    if (!p->wanted || strcmp(p->wanted, "octavo") == 0) {
        strbuf page = {0};
        p->found = true;
        put_overview(&page);
        write_page(p, "octavo", &page);
        strbuf_destroy(&page);
    }
    cli_look_at_all(take_command, p);
    if (p->found) return p->failed || !cli_finish_output(name) ? CLI_FAILED : CLI_OK;
    fprintf(stderr, "%s: '%.64s' is no command such as serve or bench-serve\n", name, p->wanted);
    return CLI_USAGE;
}

int cli_man(cli_line *line)
{
    man_flags f = {0};
    const char *wanted;
    const arg_group group = {"Flags", flags_table, sizeof flags_table / sizeof flags_table[0], &f};
    const arg_command command = {
        .name = name,
        .usage = "[COMMAND | --out DIR]",
        .about = "Prints the manual page of octavo, or of a command such as serve or bench-serve. "
                 "Installed\n"
                 "packages have these pages. Without one:\n"
                 "\n"
                 "  octavo man serve | man -l -",
        .groups = &group,
        .n_groups = 1,
        .operand = "COMMAND",
        .operand_optional = true,
    };
    int result;
    if (!cli_parse(&command, line, &wanted, &result)) return result;
    if (f.out && wanted)
        return cli_complain(name, CLI_USAGE, "COMMAND and --out exclude each other");
    if (f.out) mkdir(f.out, 0777); /* opening the first page tells a failure */
    return write_pages(&(pages){.wanted = f.out    ? NULL
                                          : wanted ? wanted
                                                   : "octavo",
                                .folder = f.out});
}

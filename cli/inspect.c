/* `octavo inspect` and `octavo methods`: what is there to choose from. */
#include "cli/cli.h"
#include "model/model.h"
#include "paged_kv/retention/retention.h"

#include <stdio.h>
#include <string.h>

int cli_inspect(int argc, char **argv)
{
    const char *dir;
    const arg_command command = {
        .name = "octavo inspect",
        .usage = "DIR",
        .about =
            "Tells what a Hugging Face model folder holds, one \"key: value\" a line, and names "
            "whatever\nthis build cannot run.",
        .operand = "DIR",
    };
    int result;
    if (!cli_parse(&command, argc, argv, &dir, &result)) return result;
    strbuf out = {0};
    error err = {{0}};
    status st = model_inspect(dir, &out, &err);
    if (out.size) fwrite(out.data, 1, out.size, stdout);
    strbuf_destroy(&out);
    bool written = cli_finish_output(command.name);
    if (!status_ok(st)) return cli_complain(command.name, CLI_FAILED, err.text);
    return written ? CLI_OK : CLI_FAILED;
}

typedef struct methods_flags {
    bool json;
} methods_flags;

static const arg_flag methods_table[] = {
    ARG_ROW("json", NULL, ARG_SWITCH, methods_flags, json, "print a JSON array of objects"),
};

static void print_json(const retention_preset *rows, size_t n)
{
    strbuf out = {0};
    for (size_t i = 0; i < n; i++) {
        const retention_preset *p = &rows[i];
        strbuf_puts(&out, i ? ",\n {\"method\":" : "[{\"method\":");
        strbuf_json_string(&out, p->name, strlen(p->name));
        strbuf_puts(&out, ",\"summary\":");
        strbuf_json_string(&out, p->summary, strlen(p->summary));
        strbuf_puts(&out, ",\"source\":");
        strbuf_json_string(&out, p->source, strlen(p->source));
        strbuf_printf(&out, ",\"needs_budget\":%s,\"sinks\":%u,\"window\":%u,\"reuse_layers\":%u}",
                      p->needs_budget ? "true" : "false", p->defaults.sinks, p->defaults.window,
                      p->defaults.reuse_layers);
    }
    strbuf_puts(&out, "]\n");
    if (!out.failed) fwrite(out.data, 1, out.size, stdout);
    strbuf_destroy(&out);
}

static void print_table(const retention_preset *rows, size_t n)
{
    printf("%-12s %-16s %5s %6s %6s  %s\n", "method", "budget", "sinks", "window", "layers",
           "what");
    for (size_t i = 0; i < n; i++) {
        const retention_preset *p = &rows[i];
        printf("%-12s %-16s %5u %6u %6u  %s\n", p->name, p->needs_budget ? "ratio or tokens" : "-",
               p->defaults.sinks, p->defaults.window, p->defaults.reuse_layers, p->summary);
        if (*p->source) printf("%50s(%s)\n", "", p->source);
    }
    puts("\nsinks: first tokens always kept; window: last tokens always kept, and the queries that "
         "score;\nlayers: how many share one choice (reuse_layers). A request asks for one by\n"
         "  \"retention\": {\"method\": \"chunkkv\", \"ratio\": 0.25}");
}

int cli_methods(int argc, char **argv)
{
    methods_flags f = {0};
    const arg_group group = {"Flags", methods_table, sizeof methods_table / sizeof methods_table[0],
                             &f};
    const arg_command command = {
        .name = "octavo methods",
        .usage = "[--json]",
        .about = "The retention methods a request may name, with their defaults.",
        .groups = &group,
        .n_groups = 1,
    };
    int result;
    if (!cli_parse(&command, argc, argv, NULL, &result)) return result;
    size_t n;
    const retention_preset *rows = retention_presets(&n);
    if (f.json) print_json(rows, n);
    else print_table(rows, n);
    return cli_finish_output(command.name) ? CLI_OK : CLI_FAILED;
}

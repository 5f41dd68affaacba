/* `octavo tokenize` and `octavo detokenize`: JSON lines through the tokenizer alone. */
#include "cli/cli.h"
#include "cli/lines.h"
#include "model/model.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct text_flags {
    const char *dir;
    bool add_special, skip_special;
} text_flags;

static const arg_flag tokenize_flags[] = {
    ARG_ROW("model", "DIR", ARG_TEXT, text_flags, dir, "the folder with tokenizer.json",
            .also = "-m"),
    ARG_ROW("add-special", NULL, ARG_SWITCH, text_flags, add_special,
            "add what the tokenizer puts around a prompt (BOS and such)"),
};

static const arg_flag detokenize_flags[] = {
    ARG_ROW("model", "DIR", ARG_TEXT, text_flags, dir, "the folder with tokenizer.json",
            .also = "-m"),
    ARG_ROW("skip-special", NULL, ARG_SWITCH, text_flags, skip_special, "leave out special tokens"),
};

/* Converts one input line and appends the output line. */
typedef status (*convert_line)(const tokenizer *t, const text_flags *f, const json_t *doc,
                               strbuf *out, error *err);

static status to_ids(const tokenizer *t, const text_flags *f, const json_t *doc, strbuf *out,
                     error *err)
{
    if (!json_is_string(doc)) return error_set(err, STATUS_INVALID, "must be a JSON string");
    tok_ids ids = {0};
    status st =
        tok_encode(t, json_string_value(doc), json_string_length(doc), f->add_special, &ids, err);
    strbuf_putc(out, '[');
    for (size_t i = 0; status_ok(st) && i < ids.n; i++)
        strbuf_printf(out, i ? ",%u" : "%u", ids.ids[i]);
    strbuf_putc(out, ']');
    tok_ids_destroy(&ids);
    return st;
}

static status to_text(const tokenizer *t, const text_flags *f, const json_t *doc, strbuf *out,
                      error *err)
{
    size_t n = json_array_size(doc);
    if (!json_is_array(doc))
        return error_set(err, STATUS_INVALID, "must be a JSON array of token ids");
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    status st = STATUS_IS_OK;
    for (size_t i = 0; status_ok(st) && i < n; i++) {
        const json_t *v = json_array_get(doc, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            st = error_set(err, STATUS_INVALID, "[%zu]: must be a token id", i);
        else ids[i] = (uint32_t)id;
    }
    strbuf text = {0};
    if (status_ok(st)) st = tok_decode(t, ids, n, f->skip_special, &text, err);
    if (status_ok(st)) strbuf_json_string(out, text.data ? text.data : "", text.size);
    if (text.failed) st = error_set(err, STATUS_NO_MEMORY, "out of memory");
    strbuf_destroy(&text);
    free(ids);
    return st;
}

/* A line that cannot be converted gives null, so that output line n always answers input line n. */
static bool convert_text(const char *name, const tokenizer *t, const text_flags *f,
                         convert_line how, line_reader *in, line_outcome got, const char *line,
                         size_t n, strbuf *out)
{
    error err = {{0}};
    json_t *doc = NULL;
    status st = got == LINE_READ ? json_read_text("not JSON", line, n, &doc, &err)
                                 : error_set(&err, STATUS_LIMIT, "longer than 16 MiB");
    strbuf_clear(out);
    if (status_ok(st)) st = how(t, f, doc, out, &err);
    if (status_ok(st) && out->failed) st = error_set(&err, STATUS_NO_MEMORY, "out of memory");
    json_decref(doc);
    if (status_ok(st)) {
        fwrite(out->data, 1, out->size, stdout);
    } else {
        fputs("null", stdout);
        fprintf(stderr, "%s: line %llu: %s\n", name, (unsigned long long)in->number, err.text);
    }
    putchar('\n');
    return status_ok(st);
}

static int convert_lines(const char *name, const tokenizer *t, const text_flags *f,
                         convert_line how)
{
    line_reader in;
    error err = {{0}};
    if (!status_ok(lines_open(&in, "-", &err))) return cli_complain(name, CLI_FAILED, err.text);
    strbuf out = {0};
    bool all_well = true;
    while (!ferror(stdout)) {
        char *line;
        size_t n;
        line_outcome got = lines_next(&in, false, &line, &n);
        if (got == LINE_LATER) {
            /* All input so far is answered. A program that writes a line waits for its answer, so
             * it is flushed. */
            fflush(stdout);
            got = lines_next(&in, true, &line, &n);
        }
        if (got == LINE_END) break;
        if (got == LINE_FAILED) {
            lines_failure(&in, &err);
            cli_complain(name, CLI_FAILED, err.text);
            all_well = false;
            break;
        }
        all_well &= convert_text(name, t, f, how, &in, got, line, n, &out);
    }
    strbuf_destroy(&out);
    lines_close(&in);
    return cli_finish_output(name) && all_well ? CLI_OK : CLI_FAILED;
}

static int run_tool(const arg_command *command, const text_flags *f, convert_line how,
                    cli_line *line)
{
    int result;
    if (!cli_parse(command, line, NULL, &result)) return result;
    if (!f->dir) return cli_complain(command->name, CLI_USAGE, "--model is missing");
    tokenizer *t;
    error err = {{0}};
    if (!status_ok(model_tokenizer_load(f->dir, &t, &err)))
        return cli_complain(command->name, CLI_FAILED, err.text);
    result = convert_lines(command->name, t, f, how);
    tok_destroy(t);
    return result;
}

int cli_tokenize(cli_line *line)
{
    text_flags f = {0};
    const arg_group group = {"Flags", tokenize_flags,
                             sizeof tokenize_flags / sizeof tokenize_flags[0], &f};
    const arg_command command = {
        .name = "octavo tokenize",
        .usage = "DIR [--add-special] < STRINGS > IDS",
        .about =
            "Reads one JSON string a line, writes one JSON array of token ids a line. Special "
            "tokens\n"
            "written out in the text are recognised. A line that is no JSON string gives null.",
        .groups = &group,
        .n_groups = 1,
        .operand = "DIR",
        .operand_flag = "model",
    };
    return run_tool(&command, &f, to_ids, line);
}

int cli_detokenize(cli_line *line)
{
    text_flags f = {0};
    const arg_group group = {"Flags", detokenize_flags,
                             sizeof detokenize_flags / sizeof detokenize_flags[0], &f};
    const arg_command command = {
        .name = "octavo detokenize",
        .usage = "DIR [--skip-special] < IDS > STRINGS",
        .about = "Reads one JSON array of token ids a line, writes one JSON string a line. Bytes "
                 "that are "
                 "not\nUTF-8 become U+FFFD. A line that is no array of token ids gives null.",
        .groups = &group,
        .n_groups = 1,
        .operand = "DIR",
        .operand_flag = "model",
    };
    return run_tool(&command, &f, to_text, line);
}

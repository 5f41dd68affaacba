/* `octavo inspect`: prints what a model folder holds. */
#include "cli/inspect.h"
#include "cli/cli.h"
#include "cli/plan_sizes.h"

#include <stdio.h>

static status measure_default(const char *path, uint64_t memory, loaded_model *model,
                              plan_answer *out, error *err)
{
    model_flags flags = {0};
    const arg_group group = model_flags_group(&flags);
    const arg_command defaults = {.groups = &group, .n_groups = 1};
    if (args_parse(&defaults, 0, NULL, NULL, err) != ARG_OUTCOME_RUN)
        return status_make(STATUS_INVALID, NULL);
    flags.dir = path;
    flags.device = "cpu";
    RETURN_IF_ERROR(model_describe(&flags, model, err));
    plan_question q = {.model = model,
                       .n_devices = 1,
                       .memory = memory,
                       .context = model->max_model_len,
                       .chunk = flags.prefill_chunk,
                       .sequences = flags.max_batch};
    return plan_measure(&q, out, err);
}

void inspect_room(const char *path, uint64_t memory, strbuf *out)
{
    loaded_model model;
    plan_answer a;
    error err = {{0}};
    char bytes[32], tokens[32];
    if (!status_ok(measure_default(path, memory, &model, &a, &err))) {
        strbuf_printf(out, "fits here: no: %s\n", err.text);
        return;
    }
    format_bytes(bytes, sizeof bytes, a.measures.weight_bytes);
    strbuf_printf(out, "total size: %s of weights in memory\n", bytes);
    format_bytes(bytes, sizeof bytes, memory);
    if (!a.measures.fits || a.short_of || a.tokens == 0)
        strbuf_printf(out, "fits here: no: %s of memory are free\n", bytes);
    else
        strbuf_printf(out,
                      "fits here: yes: %s of memory are free, and the KV pool would have room for "
                      "%s tokens\n",
                      bytes, plan_number(a.tokens, tokens));
}

int cli_inspect(cli_line *line)
{
    const char *dir;
    const arg_command command = {
        .name = "octavo inspect",
        .usage = "PATH",
        .about = "Prints what a Hugging Face model folder or a GGUF file holds, one \"key: value\" "
                 "a line,\n"
                 "lists what this build cannot run, and says how large the weights are and whether "
                 "they fit\n"
                 "the memory that this machine has free. octavo plan says more.",
        .operand = "PATH",
    };
    int result;
    if (!cli_parse(&command, line, &dir, &result)) return result;
    strbuf out = {0};
    error err = {{0}};
    status st = model_inspect(dir, &out, &err);
    if (status_ok(st)) inspect_room(dir, memory_available_bytes(), &out);
    if (out.size) fwrite(out.data, 1, out.size, stdout);
    strbuf_destroy(&out);
    bool written = cli_finish_output(command.name);
    if (!status_ok(st)) return cli_complain(command.name, CLI_FAILED, err.text);
    return written ? CLI_OK : CLI_FAILED;
}

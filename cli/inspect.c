/* `octavo inspect`: prints what a model folder holds. */
#include "cli/cli.h"
#include "model/model.h"

#include <stdio.h>

int cli_inspect(cli_line *line)
{
    const char *dir;
    const arg_command command = {
        .name = "octavo inspect",
        .usage = "PATH",
        .about = "Prints what a Hugging Face model folder or a GGUF file holds, one \"key: value\" "
                 "a line, and\n"
                 "lists what this build cannot run.",
        .operand = "PATH",
    };
    int result;
    if (!cli_parse(&command, line, &dir, &result)) return result;
    strbuf out = {0};
    error err = {{0}};
    status st = model_inspect(dir, &out, &err);
    if (out.size) fwrite(out.data, 1, out.size, stdout);
    strbuf_destroy(&out);
    bool written = cli_finish_output(command.name);
    if (!status_ok(st)) return cli_complain(command.name, CLI_FAILED, err.text);
    return written ? CLI_OK : CLI_FAILED;
}

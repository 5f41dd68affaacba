/* Llama 3.1 and 3.2: {"name": …, "parameters": {…}}, with semicolons between several calls, and in
 * some answers a tag before them. */
#include "rpc/openai/tools/tools.h"

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    return tool_read_objects(r, text, n, last, "<|python_tag|>", false);
}

static const tool_form form = {
    .before_name = "{\"name\": \"",
    .before_arguments = "\", \"parameters\": ",
    .after_arguments = "}",
    .begin = "",
    .separator = "; ",
    .end = "",
};

const tool_parser tool_parser_llama3_json = {
    .name = "llama3_json",
    .help = "Llama 3.1 and 3.2: an object with name and parameters",
    .mark = "\"parameters\": dictionary of argument name and its value",
    .special = true,
    .form = &form,
    .read = read,
};

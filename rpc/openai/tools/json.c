/* Calls as plain JSON: {"name": …, "arguments": {…}}, several of them, or a list. For models that
 * are told to answer so by their prompt. */
#include "rpc/openai/tools/tools.h"

static size_t read(tool_reader *r, const char *text, size_t n, bool last)
{
    return tool_read_objects(r, text, n, last, "", true);
}

static const tool_form form = {
    .before_name = "{\"name\": \"",
    .before_arguments = "\", \"arguments\": ",
    .after_arguments = "}",
    .begin = "[",
    .separator = ", ",
    .end = "]",
};

const tool_parser tool_parser_json = {
    .name = "json",
    .help = "the answer is an object with name and arguments, several of them, or a list",
    .form = &form,
    .read = read,
};

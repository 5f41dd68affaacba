/* The table of formats of tool calls. */
#include "rpc/openai/tools/tools.h"

#include <string.h>

enum { N_PARSERS = 6 };

/* The order decides where a template tells several formats. */
static const tool_parser *const parsers[N_PARSERS] = {
    &tool_parser_deepseek, &tool_parser_mistral,     &tool_parser_hermes,
    &tool_parser_pythonic, &tool_parser_llama3_json, &tool_parser_json,
};

const tool_parser *const *tool_parsers(size_t *n)
{
    *n = N_PARSERS;
    return parsers;
}

const tool_parser *tool_parser_find(const char *name)
{
    for (size_t i = 0; i < N_PARSERS; i++)
        if (strcmp(parsers[i]->name, name) == 0) return parsers[i];
    return NULL;
}

const tool_parser *tool_parser_of(const chat_template *t)
{
    for (size_t i = 0; i < N_PARSERS; i++) {
        const tool_parser *p = parsers[i];
        if (p->mark && tmpl_mentions(t, p->mark) && !(p->unless && tmpl_mentions(t, p->unless)))
            return p;
    }
    return NULL;
}

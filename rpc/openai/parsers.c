/* Which parser takes a chat's text apart: what a flag names, or what the chat template tells. */
#include "rpc/openai/internal.h"

#include "rpc/openai/reasoning.h"
#include "rpc/openai/tools/tools.h"

#include <string.h>

static bool is_word(const char *name, const char *word) { return name && strcmp(name, word) == 0; }

static bool is_auto(const char *name) { return !name || is_word(name, "auto"); }

static status refuse_tool_parser(const char *name, error *err)
{
    size_t n;
    const tool_parser *const *rows = tool_parsers(&n);
    strbuf names = {0};
    for (size_t i = 0; i < n; i++) strbuf_printf(&names, ", %s", rows[i]->name);
    status s = error_set(err, STATUS_INVALID, "--tool-call-parser: '%.64s' is none of auto, none%s",
                         name, names.data ? names.data : "");
    strbuf_destroy(&names);
    return s;
}

static status refuse_reasoning_parser(const char *name, error *err)
{
    size_t n;
    const reasoning_parser *rows = reasoning_parsers(&n);
    strbuf names = {0};
    for (size_t i = 0; i < n; i++) strbuf_printf(&names, ", %s", rows[i].name);
    status s = error_set(err, STATUS_INVALID, "--reasoning-parser: '%.64s' is none of auto, none%s",
                         name, names.data ? names.data : "");
    strbuf_destroy(&names);
    return s;
}

status openai_check_parsers(const rpc_options *o, error *err)
{
    const char *name = o->tool_call_parser;
    if (!is_auto(name) && !is_word(name, "none") && !tool_parser_find(name))
        return refuse_tool_parser(name, err);
    name = o->reasoning_parser;
    if (!is_auto(name) && !is_word(name, "none") && !reasoning_parser_find(name))
        return refuse_reasoning_parser(name, err);
    return STATUS_IS_OK;
}

void openai_choose_parsers(service *s)
{
    const char *name = s->o.tool_call_parser;
    const chat_template *chat = s->o.model.chat;
    if (is_auto(name)) s->tool_parser = chat ? tool_parser_of(chat) : NULL;
    else s->tool_parser = tool_parser_find(name);
    s->leaves_calls = is_word(name, "none");
    name = s->o.reasoning_parser;
    if (is_auto(name)) s->reasoning_parser = chat ? reasoning_parser_of(chat) : NULL;
    else s->reasoning_parser = reasoning_parser_find(name);
}

/* Looks into a compiled template: the names that it uses and the texts that it writes. */
#include "text/chat_template/ast.h"

static bool uses_name(const node *n, text name);

static bool list_uses_name(const node_list *nodes, text name)
{
    for (uint32_t i = 0; i < nodes->n; i++)
        if (uses_name(nodes->items[i], name)) return true;
    return false;
}

static bool keywords_use_name(const keyword_list *keywords, text name)
{
    for (uint32_t i = 0; i < keywords->n; i++)
        if (uses_name(keywords->items[i].value, name)) return true;
    return false;
}

/* The parser has bounded how deep nodes nest. */
static bool uses_name(const node *n, text name)
{
    if (!n) return false;
    if (n->kind == NODE_NAME && n->name.n == name.n && memcmp(n->name.s, name.s, name.n) == 0)
        return true;
    return uses_name(n->a, name) || uses_name(n->b, name) || uses_name(n->c, name) ||
           list_uses_name(&n->items, name) || list_uses_name(&n->orelse, name) ||
           keywords_use_name(&n->keywords, name);
}

bool tmpl_uses(const chat_template *t, const char *name)
{
    return uses_name(t->body, (text){name, strlen(name)});
}

bool tmpl_mentions(const chat_template *t, const char *words)
{
    return t->source.n && memmem(t->source.s, t->source.n, words, strlen(words));
}

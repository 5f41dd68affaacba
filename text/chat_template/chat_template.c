/* Compiling and rendering: the functions of the public header. */
#include "text/chat_template/exec.h"
#include <stdlib.h>

enum {
    SOURCE_MAX = 1 << 20,
    COMPILE_MEMORY = 64 << 20,
    DEFAULT_MAX_OUTPUT = 16 << 20,
    DEFAULT_MAX_MEMORY = 256 << 20,
    DEFAULT_MAX_STEPS = 10000000,
};

status tmpl_compile(const char *source, size_t n, chat_template **out, error *err)
{
    *out = NULL;
    if (n > SOURCE_MAX)
        return error_set(err, STATUS_LIMIT, "chat_template: longer than %d bytes", SOURCE_MAX);
    chat_template *t = calloc(1, sizeof *t);
    if (!t) return error_set(err, STATUS_NO_MEMORY, "chat_template: out of memory");
    arena_init(&t->mem, 64 << 10, COMPILE_MEMORY);
    parser p = {.mem = &t->mem, .err = err};
    status s = lex_init(&p.lex, &t->mem, source, n, err);
    t->source = (text){p.lex.s, p.lex.n};
    if (status_ok(s)) s = parse_template(&p, &t->body);
    if (!status_ok(s)) {
        tmpl_destroy(t);
        return s;
    }
    *out = t;
    return STATUS_IS_OK;
}

void tmpl_destroy(chat_template *t)
{
    if (!t) return;
    arena_destroy(&t->mem);
    free(t);
}

/* Takes the caller's variables. `tools` and `documents` are none when absent, as Hugging Face
 * passes them. */
static bool take_vars(render *r, const json_t *vars)
{
    static const char *const always[] = {"tools", "documents"};
    value v;
    if (!value_from_json(r, vars, &v)) return false;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        text name = {always[i], strlen(always[i])};
        if (!dict_get_text(r, v.dict, name) && !dict_set(r, v.dict, value_text(name), value_none()))
            return false;
    }
    r->vars = v.dict;
    return true;
}

status tmpl_render(const chat_template *t, const json_t *vars, int64_t now_unix,
                   const tmpl_limits *limits, strbuf *out, error *err)
{
    tmpl_limits l = limits ? *limits : (tmpl_limits){0};
    arena mem;
    if (!json_is_object(vars))
        return error_set(err, STATUS_INVALID, "chat_template: the variables are no JSON object");
    arena_init(&mem, 64 << 10, l.max_memory ? l.max_memory : DEFAULT_MAX_MEMORY);
    size_t before = out->size, room = l.max_output ? l.max_output : DEFAULT_MAX_OUTPUT;
    render r = {
        .mem = &mem,
        .steps_left = l.max_steps ? l.max_steps : DEFAULT_MAX_STEPS,
        .out = out,
        .out_limit = room > SIZE_MAX - before ? SIZE_MAX : before + room,
        .now_unix = now_unix,
        .line = 1,
        .err = err,
    };
    bool ok = take_vars(&r, vars) && exec_template(&r, t->body);
    arena_destroy(&mem);
    if (ok) return STATUS_IS_OK;
    if (out->data) {
        out->size = before;
        out->data[before] = '\0';
    }
    return status_make(r.failed, status_text(r.failed));
}

/* Fails a render, counts its steps, builds strings. */
#include "text/chat_template/render.h"
#include "text/chat_template/ast.h"
#include <stdarg.h>
#include <stdio.h>

bool render_fail(render *r, status_code code, const char *fmt, ...)
{
    if (r->failed != STATUS_OK) return false;
    char message[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    r->failed = lex_fail(r->err, code, r->line, "%s", message).code;
    return false;
}

bool render_fail_text(render *r, text message)
{
    return render_fail(r, STATUS_INVALID, "%.*s", message.n > 399 ? 399 : (int)message.n,
                       message.s);
}

bool render_step(render *r, size_t work)
{
    uint64_t cost = 1 + work / 64;
    if (cost > r->steps_left) {
        r->steps_left = 0;
        return render_fail(r, STATUS_LIMIT, "the template takes too many steps");
    }
    r->steps_left -= cost;
    return true;
}

bool render_enter(render *r)
{
    if (r->depth >= TMPL_MAX_DEPTH)
        return render_fail(r, STATUS_LIMIT, "nesting deeper than %d levels", TMPL_MAX_DEPTH);
    r->depth++;
    return true;
}

void *render_alloc(render *r, size_t n, size_t size)
{
    void *p = arena_alloc_array(r->mem, n, size);
    if (!p && r->mem->starved) render_fail(r, STATUS_NO_MEMORY, "out of memory");
    else if (!p) render_fail(r, STATUS_LIMIT, "the template needs too much memory");
    return p;
}

bool render_write(render *r, text t)
{
    if (t.n > r->out_limit - r->out->size)
        return render_fail(r, STATUS_LIMIT, "the output is too long");
    strbuf_append(r->out, t.s, t.n);
    if (r->out->failed) return render_fail(r, STATUS_NO_MEMORY, "out of memory");
    return true;
}

builder builder_new(render *r) { return (builder){.r = r}; }

void builder_add(builder *b, text t)
{
    if (b->failed || t.n == 0) return;
    if (t.n > b->capacity - b->n) {
        size_t larger = b->capacity ? b->capacity * 2 : 32;
        while (larger - b->n < t.n) larger *= 2;
        char *s = larger > UINT32_MAX ? NULL : render_alloc(b->r, larger, 1);
        if (!s) {
            render_fail(b->r, STATUS_LIMIT, "a string is too long");
            b->failed = true;
            return;
        }
        if (b->n) memcpy(s, b->s, b->n);
        b->s = s;
        b->capacity = larger;
    }
    memcpy(b->s + b->n, t.s, t.n);
    b->n += t.n;
}

void builder_char(builder *b, char c) { builder_add(b, (text){&c, 1}); }

void builder_code_point(builder *b, uint32_t cp)
{
    uint8_t s[4];
    builder_add(b, (text){(char *)s, utf8_encode(cp, s)});
}

void builder_printf(builder *b, const char *fmt, ...)
{
    char s[64];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(s, sizeof s, fmt, args);
    va_end(args);
    builder_add(b, (text){s, (size_t)n < sizeof s ? (size_t)n : sizeof s - 1});
}

bool builder_finish(builder *b, value *out)
{
    if (b->failed || !render_step(b->r, b->n)) return false;
    *out = value_text((text){b->s ? b->s : "", b->n});
    return true;
}

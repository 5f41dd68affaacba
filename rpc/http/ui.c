/* The page at / for people, and the data that it shows. Its files lie in ui/ and become part of the
 * binary. They hold nothing of anybody and need no key; the data behind them does: a client's key
 * sees its own requests, an administrator's key all. */
#include "rpc/http/internal.h"

#include <string.h>

/* Puts a file into the program, as name[] up to name_end. */
#define EMBED(name, file)                                                                          \
    __asm__(".section .rodata\n" #name ":\n.incbin \"" UI_FOLDER "/" file "\"\n" #name             \
            "_end:\n.byte 0\n.previous\n");                                                        \
    extern const char name[] __attribute__((visibility("hidden")));                                \
    extern const char name##_end[] __attribute__((visibility("hidden")))

EMBED(ui_html, "page.html");
EMBED(ui_css, "page.css");
EMBED(ui_js, "page.js");

/* The page runs no script and loads nothing but its own files, whatever an answer's text holds. */
bool ui_add_headers(struct MHD_Response *r)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
         "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-cache"},
    };
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        if (MHD_add_response_header(r, headers[i][0], headers[i][1]) != MHD_YES) return false;
    return true;
}

static void reply_file(http_exchange *x, const char *type, const char *text, const char *end)
{
    strbuf body = {0};
    strbuf_append(&body, text, (size_t)(end - text));
    ((exchange *)x)->is_page = true;
    http_reply(x, 200, type, &body);
    strbuf_destroy(&body);
}

void route_ui(http_exchange *x) { reply_file(x, "text/html; charset=utf-8", ui_html, ui_html_end); }
void route_ui_css(http_exchange *x)
{
    reply_file(x, "text/css; charset=utf-8", ui_css, ui_css_end);
}
void route_ui_js(http_exchange *x)
{
    reply_file(x, "text/javascript; charset=utf-8", ui_js, ui_js_end);
}

/* ---- the data -------------------------------------------------------------------------------- */

/* The identity whose requests the sender may see; NULL = everybody's. */
static const char *sees(const http_exchange *x, char identity[SERVICE_IDENTITY_BYTES])
{
    if (service_is_admin(x->service, x->authorization)) return NULL;
    service_identity(x->service, x->authorization, identity);
    return identity;
}

void route_ui_overview(http_exchange *x)
{
    strbuf body = {0};
    char identity[SERVICE_IDENTITY_BYTES];
    service_overview(x->service, sees(x, identity), &body);
    http_reply(x, 200, "application/json", &body);
    strbuf_destroy(&body);
}

void route_ui_pages(http_exchange *x)
{
    strbuf body = {0};
    char identity[SERVICE_IDENTITY_BYTES];
    openai_error err;
    if (service_pages(x->service, sees(x, identity), x->rest, &body)) {
        http_reply(x, 200, "application/json", &body);
    } else {
        error why = {{0}};
        openai_error_from(x->service,
                          error_set(&why, STATUS_NOT_FOUND, "no request with this id is running"),
                          &why, &err);
        http_reply_error(x, &err);
    }
    strbuf_destroy(&body);
}

bool http_is_ui(const http_route *route)
{
    return route->handle == route_ui || route->handle == route_ui_css ||
           route->handle == route_ui_js || route->handle == route_ui_overview ||
           route->handle == route_ui_pages;
}

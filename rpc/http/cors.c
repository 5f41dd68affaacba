/* Cross-origin requests (CORS): which pages' scripts may read answers, as browsers ask it.
 *
 * Without --cors-origin no header is sent, and browsers keep answers from pages of other origins.
 * Keys go in the Authorization header, never in cookies, so no answer allows credentials. */
#include "rpc/http/internal.h"

#include <string.h>

enum { ASKED_BYTES_MAX = 1024 };

/* An origin is a scheme and a host, perhaps with a port: no path, no blank. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    if (strcmp(text, "*") == 0) return true;
    if (!host || host == text || !host[3] || strchr(host + 3, '/')) return false;
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == ',') return false;
    return true;
}

status cors_check(const rpc_options *o, error *err)
{
    for (size_t i = 0; i < o->n_cors_origins; i++)
        if (!is_origin(o->cors_origins[i]))
            return error_set(err, STATUS_INVALID,
                             "--cors-origin: '%.64s' must be like https://example.org, or *",
                             o->cors_origins[i]);
    return STATUS_IS_OK;
}

/* The origin that an answer names: the request's own when it is allowed, "*" when all are. */
static const char *allowed_origin(const exchange *e)
{
    const rpc_options *o = &e->server->service->o;
    const char *origin = o->n_cors_origins ? http_header(&e->x, "origin") : NULL;
    for (size_t i = 0; origin && i < o->n_cors_origins; i++) {
        if (strcmp(o->cors_origins[i], "*") == 0) return "*";
        if (strcmp(o->cors_origins[i], origin) == 0) return o->cors_origins[i];
    }
    return NULL;
}

static bool add(struct MHD_Response *r, const char *name, const char *value)
{
    return MHD_add_response_header(r, name, value) == MHD_YES;
}

bool cors_add_headers(const exchange *e, struct MHD_Response *r)
{
    const char *origin = allowed_origin(e);
    /* Caches must not show one origin's answer to another. */
    bool varies = e->server->service->o.n_cors_origins && !(origin && *origin == '*');
    if (varies && !add(r, "Vary", "Origin")) return false;
    return !origin || (add(r, "Access-Control-Allow-Origin", origin) &&
                       add(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After"));
}

/* Header names, with commas and blanks between them. */
static bool are_names(const char *text)
{
    static const char others[] = "-_, ";
    size_t n = 0;
    for (; text[n]; n++) {
        char c = text[n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if ((!letter && !strchr(others, c)) || n == ASKED_BYTES_MAX) return false;
    }
    return n > 0;
}

/* A browser asks for the headers that its page's script sets; clients' libraries set many. */
static bool add_permissions(const exchange *e, struct MHD_Response *r)
{
    const char *asked = http_header(&e->x, "access-control-request-headers");
    if (!add(r, "Allow", e->allow)) return false;
    if (!allowed_origin(e)) return true;
    return add(r, "Access-Control-Allow-Methods", e->allow) &&
           add(r, "Access-Control-Max-Age", "600") &&
           (!asked || !are_names(asked) || add(r, "Access-Control-Allow-Headers", asked));
}

void cors_answer_options(exchange *e)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (r && !add_permissions(e, r)) {
        MHD_destroy_response(r);
        r = NULL;
    }
    exchange_send(e, 200, r);
}

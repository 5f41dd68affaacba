/* Errors in the form that Anthropic's clients expect. */
#include "rpc/anthropic/anthropic.h"

#include <string.h>

typedef struct error_row {
    unsigned status;
    const char *type;
} error_row;

/* The type of each HTTP status; others are errors of the server. */
static const error_row rows[] = {
    {400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
    {404, "not_found_error"},       {405, "invalid_request_error"}, {413, "request_too_large"},
    {415, "invalid_request_error"}, {429, "rate_limit_error"},      {503, "overloaded_error"},
};

void anthropic_put_error(const openai_error *e, const char *id, strbuf *out)
{
    const char *type = "api_error";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == e->status) type = rows[i].type;
    strbuf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    strbuf_json_string(out, e->message, strlen(e->message));
    strbuf_putc(out, '}');
    if (id && *id) {
        strbuf_puts(out, ",\"request_id\":");
        strbuf_json_string(out, id, strlen(id));
    }
    strbuf_putc(out, '}');
}

/* How a report names methods and their columns, in a table and in JSON. */
#include "quality/report/report.h"

#include <string.h>

void report_put_text(strbuf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '|') strbuf_putc(out, '\\');
        strbuf_putc(out, text[i]);
    }
}

void report_put_method(strbuf *out, const variant *v)
{
    report_put_text(out, v->method, v->label_chars);
}

void report_begin_column(const results *r, uint32_t column, bool first, strbuf *out)
{
    const variant *v = &r->variants->items[column];
    strbuf_puts(out, first ? "\n{\"method\":" : ",\n{\"method\":");
    strbuf_json_string(out, v->method, strlen(v->method));
    strbuf_printf(out, ",\"budget\":\"%s\"", v->budget);
}

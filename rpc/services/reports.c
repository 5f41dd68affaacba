#include "rpc/services/reports.h"

#include <stdlib.h>
#include <string.h>

bool reports_init(reports *r, uint32_t n)
{
    *r = (reports){.list = calloc(n, sizeof *r->list), .n = n};
    return r->list != NULL;
}

void reports_destroy(reports *r)
{
    for (uint32_t i = 0; r->list && i < r->n; i++) free(r->list[i].kept_json);
    free(r->list);
    *r = (reports){0};
}

bool reports_keep(reports *r, uint32_t index, const retention_report *report)
{
    if (!report) return true;
    retention_report *kept = &r->list[index];
    *kept = *report;
    r->n_given++;
    if (!report->kept_json) return true;
    kept->kept_json = strdup(report->kept_json);
    return kept->kept_json != NULL;
}

static void add_report(const retention_report *report, size_t room, strbuf *out)
{
    size_t before = out->size;
    if (report->method) retention_report_json(report, out);
    if (report->method && report->kept_json && out->size - before > room) {
        char left_out[] = "null";
        retention_report counts = *report;
        counts.kept_json = left_out;
        out->size = before;
        retention_report_json(&counts, out);
    }
    if (report->method && out->size - before <= room) return;
    out->size = before;
    strbuf_puts(out, "null");
}

void reports_json(const reports *r, size_t max_bytes, strbuf *out)
{
    enum { LEAST = sizeof ",null" - 1 };
    size_t start = out->size;
    strbuf_putc(out, '[');
    for (uint32_t i = 0; i < r->n; i++) {
        if (i) strbuf_putc(out, ',');
        /* Leaves room for the shortest form of all following reports. */
        size_t taken = out->size - start + (size_t)(r->n - i - 1) * LEAST + 1;
        add_report(&r->list[i], taken < max_bytes ? max_bytes - taken : 0, out);
    }
    strbuf_putc(out, ']');
}

bool reports_send(rpc_call *c, const reports *r)
{
    if (r->n_given == 0) return true;
    strbuf text = {0};
    reports_json(r, REPORTS_BYTES_MAX, &text);
    bool ok = !text.failed && call_add_trailer(c, "octavo-report", text.data, text.size);
    strbuf_destroy(&text);
    return ok;
}

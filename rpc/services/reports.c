#include "rpc/services/reports.h"

#include <stdlib.h>
#include <string.h>

bool reports_init(reports *r, uint32_t n)
{
    *r = (reports){.list = calloc(n, sizeof *r->list),
                   .readings = calloc(n, sizeof *r->readings),
                   .has_reading = calloc(n, sizeof *r->has_reading),
                   .n = n};
    return r->list && r->readings && r->has_reading;
}

void reports_destroy(reports *r)
{
    for (uint32_t i = 0; r->list && i < r->n; i++) free(r->list[i].kept_json);
    free(r->list);
    free(r->readings);
    free(r->has_reading);
    *r = (reports){0};
}

bool reports_keep(reports *r, uint32_t index, const engine_output *last)
{
    const retention_report *report = last->report;
    if (last->reading) {
        r->readings[index] = *last->reading;
        r->has_reading[index] = true;
        r->n_readings++;
    }
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

static void add_reading(const reports *r, uint32_t i, size_t room, strbuf *out)
{
    size_t before = out->size;
    if (r->has_reading[i]) retrieval_report_json(&r->readings[i], out);
    if (r->has_reading[i] && out->size - before <= room) return;
    out->size = before;
    strbuf_puts(out, "null");
}

/* Appends the array of one kind of reports. */
static void add_array(const reports *r, bool readings, size_t max_bytes, strbuf *out)
{
    enum { LEAST = sizeof ",null" - 1 };
    size_t start = out->size;
    strbuf_putc(out, '[');
    for (uint32_t i = 0; i < r->n; i++) {
        if (i) strbuf_putc(out, ',');
        /* Leaves room for the shortest form of all following reports. */
        size_t taken = out->size - start + (size_t)(r->n - i - 1) * LEAST + 1;
        size_t room = taken < max_bytes ? max_bytes - taken : 0;
        if (readings) add_reading(r, i, room, out);
        else add_report(&r->list[i], room, out);
    }
    strbuf_putc(out, ']');
}

void reports_json(const reports *r, size_t max_bytes, strbuf *out)
{
    add_array(r, false, max_bytes, out);
}

void reports_readings_json(const reports *r, size_t max_bytes, strbuf *out)
{
    add_array(r, true, max_bytes, out);
}

static bool send_array(rpc_call *c, const reports *r, bool readings)
{
    strbuf text = {0};
    add_array(r, readings, readings ? READINGS_BYTES_MAX : REPORTS_BYTES_MAX, &text);
    bool ok =
        !text.failed && call_add_trailer(c, readings ? "octavo-retrieval-report" : "octavo-report",
                                         text.data, text.size);
    strbuf_destroy(&text);
    return ok;
}

bool reports_send(rpc_call *c, const reports *r)
{
    return (r->n_given == 0 || send_array(c, r, false)) &&
           (r->n_readings == 0 || send_array(c, r, true));
}

#include "cli/bench/bench_report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void bench_report_row(bench_report *r, const char *what)
{
    strbuf_printf(&r->rows, "%s{\"what\":\"%s\"", r->n_rows++ ? ",\n " : "", what);
}

static bool write_file(const char *path, const strbuf *text)
{
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(text->data, 1, text->size, f) == text->size;
    if (f && fclose(f) != 0) ok = false;
    return ok;
}

status bench_report_write(const bench_report *r, bool to_stdout, const char *out, error *err)
{
    strbuf all = {0};
    strbuf_putc(&all, '{');
    strbuf_append(&all, r->head.data, r->head.size);
    strbuf_puts(&all, ",\"rows\":[\n ");
    strbuf_append(&all, r->rows.data, r->rows.size);
    strbuf_puts(&all, "]}\n");
    bool failed = all.failed || r->head.failed || r->rows.failed;
    status st = failed ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
    if (status_ok(st) && to_stdout) fwrite(all.data, 1, all.size, stdout);
    if (status_ok(st) && out && !write_file(out, &all))
        st = error_set(err, STATUS_IO, "%s: %s", out, strerror(errno));
    strbuf_destroy(&all);
    return st;
}

void bench_report_destroy(bench_report *r)
{
    strbuf_destroy(&r->head);
    strbuf_destroy(&r->rows);
}

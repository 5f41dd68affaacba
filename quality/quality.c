/* A run, from its options to its results. */
#include "quality/quality.h"

#include "quality/campaign.h"
#include "quality/report/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Writes the settings that shape prompts and answers, which a resumed run must share. Methods,
 * budgets, tasks, lengths and samples are not among them: more of them change no prompt. */
static void put_settings(const quality_options *o, const source_list *sources, strbuf *out)
{
    uint64_t text = 0;
    for (size_t i = 0; i < sources->text.n_lines; i++)
        text = hash_bytes(sources->text.lines[i], strlen(sources->text.lines[i]), text);
    strbuf_puts(out, "\"octavo_quality\":1,\"model\":");
    strbuf_json_string(out, o->model, strlen(o->model));
    strbuf_puts(out, ",\"setup\":");
    strbuf_json_string(out, o->setup, strlen(o->setup));
    strbuf_printf(out,
                  ",\"identity\":\"%016llx\",\"seed\":%llu,\"questions\":%u,\"turns\":%u,"
                  "\"chat\":%s,\"haystack\":\"%016llx\"",
                  (unsigned long long)o->identity, (unsigned long long)o->seed, o->questions,
                  o->turns, o->chat ? "true" : "false", (unsigned long long)text);
}

static status write_results(const quality_options *o, const char *text, size_t n, error *err)
{
    char path[1024];
    RETURN_IF_ERROR(file_join(path, sizeof path, o->out, "results.json", err));
    FILE *file = fopen(path, "we");
    if (!file) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    bool ok = fwrite(text, 1, n, file) == n;
    ok &= fclose(file) == 0;
    return ok ? STATUS_IS_OK : error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
}

static status report_results(campaign *c, const char *settings, strbuf *table, error *err)
{
    results r;
    strbuf json = {0};
    records_sort(&c->records);
    RETURN_IF_ERROR(results_create(&c->records, c->o->seed, c->o->turns, &r, err));
    status st = report_table(&r, table, err);
    if (status_ok(st)) st = report_json(&r, settings, &json, err);
    if (status_ok(st)) st = write_results(c->o, json.data, json.size, err);
    if (status_ok(st)) st = plots_write(&r, c->o->out, err);
    strbuf_destroy(&json);
    results_destroy(&r);
    return st;
}

static status check_report(const quality_options *o, error *err)
{
    char path[1024];
    RETURN_IF_ERROR(file_join(path, sizeof path, o->out, "records.jsonl", err));
    if (!o->report || file_exists(path)) return STATUS_IS_OK;
    return error_set(err, STATUS_NOT_FOUND, "--report: %s: is not there", path);
}

static status run_campaign(campaign *c, strbuf *settings, strbuf *table, error *err)
{
    const quality_options *o = c->o;
    strbuf header = {0};
    RETURN_IF_ERROR(check_report(o, err));
    put_settings(o, &c->sources, settings);
    strbuf_printf(&header, "{%s}", settings->data ? settings->data : "");
    status st = settings->failed || header.failed
                    ? error_set(err, STATUS_NO_MEMORY, "out of memory")
                    : records_open(o->out, o->resume || o->report, header.data, &c->sources,
                                   &c->variants, &c->records, err);
    strbuf_destroy(&header);
    RETURN_IF_ERROR(st);
    if (!o->report) st = campaign_run(c, err);
    /* Answers so far are reported even if the run failed. */
    error own = {{0}};
    status reported = report_results(c, settings->data, table, &own);
    if (status_ok(st) && !status_ok(reported)) return error_set(err, reported.code, "%s", own.text);
    return st;
}

status quality_run(const quality_options *o, strbuf *table, error *err)
{
    campaign c = {.o = o};
    strbuf settings = {0};
    if (o->turns > 1 && !o->sessions)
        return error_set(err, STATUS_INVALID, "--turns: the engine keeps no sessions");
    if (o->turns > 1 && o->probe)
        return error_set(err, STATUS_INVALID, "--analyses: does not go with --turns 2");
    RETURN_IF_ERROR(sources_create(o, &c.sources, err));
    status st = variants_create(o->methods, o->n_methods, o->budgets, &c.variants, err);
    for (size_t i = 0; status_ok(st) && o->turns > 1 && i < c.variants.n; i++)
        if (c.variants.items[i].rag)
            st = error_set(err, STATUS_INVALID,
                           "--turns: %s has no cache that a second turn could go on from",
                           c.variants.items[i].method);
    if (status_ok(st)) st = run_campaign(&c, &settings, table, err);
    records_close(&c.records);
    variants_destroy(&c.variants);
    sources_destroy(&c.sources);
    strbuf_destroy(&settings);
    return st;
}

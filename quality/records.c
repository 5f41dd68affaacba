/* Writes records as lines, and reads them back. */
#include "quality/records.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = INT32_MAX, ANSWER_BYTES_MAX = 400 };

static const char *const arm_names[ARMS] = {"single", "first", "session", "fresh", "full"};

const char *record_arm_name(record_arm arm) { return arm_names[arm]; }

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* ---- in memory ------------------------------------------------------------------------------- */

static status keep_record(record_store *s, record *r, error *err)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 256;
        record *grown = realloc(s->items, capacity * sizeof *grown);
        if (!grown) {
            findings_destroy(&r->findings);
            return out_of_memory(err);
        }
        s->items = grown;
        s->capacity = capacity;
    }
    s->items[s->n++] = *r;
    return STATUS_IS_OK;
}

static int compare_numbers(uint32_t a, uint32_t b) { return a < b ? -1 : a > b; }

static int compare_records(const void *a, const void *b)
{
    const record *x = a, *y = b;
    int order = compare_numbers(x->row, y->row);
    if (!order) order = compare_numbers(x->column, y->column);
    if (!order) order = compare_numbers(x->arm, y->arm);
    if (!order) order = compare_numbers(x->document, y->document);
    if (!order) order = compare_numbers(x->question, y->question);
    return order;
}

void records_sort(record_store *s)
{
    if (s->n) qsort(s->items, s->n, sizeof *s->items, compare_records);
}

bool records_done(const record_store *s, const record *key)
{
    return s->n_loaded && bsearch(key, s->items, s->n_loaded, sizeof *s->items, compare_records);
}

const record *records_cell(const record_store *s, uint32_t row, uint32_t column, record_arm arm,
                           size_t *n)
{
    size_t low = 0, high = s->n;
    record key = {.row = row, .column = column, .arm = arm};
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_records(&s->items[middle], &key) < 0) low = middle + 1;
        else high = middle;
    }
    size_t end = low;
    while (end < s->n && s->items[end].row == row && s->items[end].column == column &&
           s->items[end].arm == arm)
        end++;
    *n = end - low;
    return s->items ? s->items + low : NULL;
}

const char *records_refused(const record_store *s, uint32_t row, uint32_t column)
{
    for (size_t i = 0; i < s->n_refusals; i++)
        if (s->refusals[i].row == row && s->refusals[i].column == column)
            return s->refusals[i].reason;
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_key(record_store *s, uint32_t row, uint32_t column)
{
    const source *from = &s->sources->items[row];
    const variant *v = &s->variants->items[column];
    strbuf_clear(&s->line);
    strbuf_puts(&s->line, "{\"task\":");
    strbuf_json_string(&s->line, from->name, strlen(from->name));
    strbuf_printf(&s->line, ",\"length\":%u,\"method\":", from->length);
    strbuf_json_string(&s->line, v->method, strlen(v->method));
    strbuf_printf(&s->line, ",\"budget\":\"%s\"", v->budget);
}

static status put_line(record_store *s, error *err)
{
    strbuf_puts(&s->line, "}\n");
    if (s->line.failed) return out_of_memory(err);
    if (fwrite(s->line.data, 1, s->line.size, s->file) == s->line.size) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: %s", s->path, strerror(errno));
}

status records_add(record_store *s, record *r, const char *answer, const char *session, error *err)
{
    put_key(s, r->row, r->column);
    strbuf_printf(&s->line,
                  ",\"doc\":%u,\"q\":%u,\"arm\":\"%s\",\"score\":%.6g,\"kept\":%.6g,"
                  "\"logical\":%.6g",
                  r->document, r->question, arm_names[r->arm], (double)r->score, (double)r->kept,
                  (double)r->logical);
    if (r->depth >= 0) strbuf_printf(&s->line, ",\"depth\":%.4g", (double)r->depth);
    if (*session) {
        strbuf_puts(&s->line, ",\"session\":");
        strbuf_json_string(&s->line, session, strlen(session));
    }
    if (r->right) strbuf_printf(&s->line, ",\"right\":\"%llx\"", (unsigned long long)r->right);
    if (findings_any(&r->findings)) {
        strbuf_puts(&s->line, ",\"measures\":");
        findings_write(&r->findings, &s->line);
    }
    strbuf_puts(&s->line, ",\"answer\":");
    strbuf_json_string(&s->line, answer, strnlen(answer, ANSWER_BYTES_MAX));
    status st = put_line(s, err);
    if (status_ok(st)) return keep_record(s, r, err);
    findings_destroy(&r->findings);
    return st;
}

/* A refusal is not written: a resumed run tries the cell again. */
status records_refuse(record_store *s, uint32_t row, uint32_t column, const char *reason,
                      error *err)
{
    if (records_refused(s, row, column)) return STATUS_IS_OK;
    refusal *grown = realloc(s->refusals, (s->n_refusals + 1) * sizeof *grown);
    if (!grown) return out_of_memory(err);
    s->refusals = grown;
    char *copy = strdup(reason);
    if (!copy) return out_of_memory(err);
    grown[s->n_refusals++] = (refusal){row, column, copy};
    return STATUS_IS_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "";
}

static float number_of(const json_t *line, const char *key, float fallback)
{
    const json_t *v = json_object_get(line, key);
    return json_is_number(v) ? (float)json_number_value(v) : fallback;
}

/* False when the line answers a prompt that this run does not ask. */
static bool read_key(const record_store *s, const json_t *line, record *r)
{
    json_int_t length = json_integer_value(json_object_get(line, "length"));
    const char *name = text_of(line, "task"), *arm = text_of(line, "arm");
    const char *method = text_of(line, "method"), *budget = text_of(line, "budget");
    uint32_t row = 0, column = 0, a = 0;
    const source *rows = s->sources->items;
    while (row < s->sources->n && (rows[row].length != length || strcmp(rows[row].name, name) != 0))
        row++;
    const variant *v = s->variants->items;
    while (column < s->variants->n &&
           (strcmp(v[column].method, method) != 0 || strcmp(v[column].budget, budget) != 0))
        column++;
    while (a < ARMS && strcmp(arm_names[a], arm) != 0) a++;
    r->row = row;
    r->column = column;
    r->arm = (record_arm)a;
    return row < s->sources->n && column < s->variants->n && a < ARMS;
}

static status read_line(record_store *s, const json_t *line, error *err)
{
    record r = {0};
    if (!read_key(s, line, &r)) return STATUS_IS_OK;
    r.document = (uint32_t)json_integer_value(json_object_get(line, "doc"));
    r.question = (uint32_t)json_integer_value(json_object_get(line, "q"));
    r.score = number_of(line, "score", 0);
    r.kept = number_of(line, "kept", 0);
    r.logical = number_of(line, "logical", 0);
    r.depth = number_of(line, "depth", -1);
    r.right = strtoull(text_of(line, "right"), NULL, 16);
    r.continued = strcmp(text_of(line, "session"), "continued") == 0;
    if (!findings_read(json_object_get(line, "measures"), &r.findings)) return out_of_memory(err);
    return keep_record(s, &r, err);
}

/* The name of the first setting that two head lines have unlike; NULL: there is none. */
static const char *find_unlike(const json_t *before, const json_t *now)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)now, name, value)
    {
        const json_t *other = json_object_get(before, name);
        if (!other || !json_equal(value, other)) return name;
    }
    return NULL;
}

/* Says which setting the file was made by another value of. */
static status refuse_settings(const char *path, const char *head, const char *settings, error *err)
{
    error why;
    json_t *before = NULL, *now = NULL;
    (void)json_read_text("", head, strlen(head), &before, &why);
    (void)json_read_text("", settings, strlen(settings), &now, &why);
    const char *name = find_unlike(before, now);
    const json_t *values[] = {name ? json_object_get(before, name) : NULL,
                              name ? json_object_get(now, name) : NULL};
    char *texts[] = {json_dumps(values[0], JSON_ENCODE_ANY),
                     json_dumps(values[1], JSON_ENCODE_ANY)};
    status st = error_set(err, STATUS_INVALID,
                          "%s: was made by other settings: %s was %.160s, now it is %.160s", path,
                          name ? name : "one", texts[0] ? texts[0] : "another",
                          texts[1] ? texts[1] : "unknown");
    free(texts[0]);
    free(texts[1]);
    json_decref(before);
    json_decref(now);
    return st;
}

/* Reads lines up to the last whole one; *whole receives their bytes. */
static status read_lines(record_store *s, char *text, size_t size, const char *header,
                         size_t *whole, error *err)
{
    for (size_t at = 0, number = 1; at < size; number++) {
        char *end = memchr(text + at, '\n', size - at);
        if (!end) break; /* cut off while it was being written */
        *end = 0;
        if (number == 1 && strcmp(text, header) != 0)
            return refuse_settings(s->path, text, header, err);
        if (number > 1) {
            json_t *line = NULL;
            RETURN_IF_ERROR(
                json_read_text(s->path, text + at, (size_t)(end - text) - at, &line, err));
            status st = read_line(s, line, err);
            json_decref(line);
            RETURN_IF_ERROR(st);
        }
        at = (size_t)(end - text) + 1;
        *whole = at;
    }
    return STATUS_IS_OK;
}

static status load_records(record_store *s, const char *header, size_t *whole, error *err)
{
    char *text;
    size_t size;
    RETURN_IF_ERROR(file_read(s->path, FILE_BYTES_MAX, &text, &size, err));
    status st = read_lines(s, text, size, header, whole, err);
    free(text);
    records_sort(s);
    s->n_loaded = s->n;
    return st;
}

static status open_file(record_store *s, bool resume, const char *header, error *err)
{
    size_t whole = 0;
    bool there = file_exists(s->path);
    if (there && !resume)
        return error_set(err, STATUS_INVALID,
                         "%s: is there already: --resume goes on with it, or give another --out",
                         s->path);
    if (there) RETURN_IF_ERROR(load_records(s, header, &whole, err));
    if (there && truncate(s->path, (off_t)whole) != 0)
        return error_set(err, STATUS_IO, "%s: %s", s->path, strerror(errno));
    FILE *file = fopen(s->path, "ae");
    if (!file) return error_set(err, STATUS_IO, "%s: %s", s->path, strerror(errno));
    s->file = file;
    if (whole == 0 && fprintf(file, "%s\n", header) < 0)
        return error_set(err, STATUS_IO, "%s: %s", s->path, strerror(errno));
    return STATUS_IS_OK;
}

status records_open(const char *folder, bool resume, const char *header, const source_list *sources,
                    const variant_list *variants, record_store *out, error *err)
{
    *out = (record_store){.sources = sources, .variants = variants};
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return error_set(err, STATUS_IO, "--out: %s: %s", folder, strerror(errno));
    RETURN_IF_ERROR(file_join(out->path, sizeof out->path, folder, "records.jsonl", err));
    status st = open_file(out, resume, header, err);
    if (!status_ok(st)) records_close(out);
    return st;
}

void records_close(record_store *s)
{
    if (s->file) fclose(s->file);
    for (size_t i = 0; i < s->n; i++) findings_destroy(&s->items[i].findings);
    for (size_t i = 0; i < s->n_refusals; i++) free(s->refusals[i].reason);
    free(s->items);
    free(s->refusals);
    strbuf_destroy(&s->line);
    *s = (record_store){0};
}

/* Makes the rows of the results from flags. */
#include "quality/tasks/sources.h"

#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTHS_MAX = 32, TEMPLATE_BYTES_MAX = 1 << 20 };

/* The least score of the full cache with which other methods are compared. */
static const float answers_known = 0.9f;

typedef struct length_list {
    uint32_t items[LENGTHS_MAX];
    size_t n;
} length_list;

source *sources_add(source_list *out)
{
    source *grown = realloc(out->items, (out->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    out->items = grown;
    grown[out->n] = (source){0};
    return &grown[out->n++];
}

static status read_lengths(const char *text, uint32_t most, length_list *out, error *err)
{
    while (*text) {
        uint64_t value = 0;
        const char *end = number_read_whole(text, &value);
        if (!end || (*end && *end != ',') || value == 0 || value > most)
            return error_set(err, STATUS_INVALID,
                             "--lengths: '%.40s': numbers of tokens from 1 to %u", text, most);
        if (out->n == LENGTHS_MAX)
            return error_set(err, STATUS_LIMIT, "--lengths: more than %d", LENGTHS_MAX);
        out->items[out->n++] = (uint32_t)value;
        text = end + (*end == ',');
    }
    return STATUS_IS_OK;
}

static status add_task(source_list *out, const task *t, const length_list *lengths, error *err)
{
    for (size_t i = 0; i < lengths->n; i++) {
        source *s = sources_add(out);
        if (!s) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        snprintf(s->name, sizeof s->name, "%s", t->name);
        s->length = lengths->items[i];
        s->task = t;
        s->scorer = t->scorer;
        s->max_new_tokens = t->max_new_tokens;
        s->raw = t->raw;
        s->between = t->between;
        s->floor = answers_known;
    }
    return STATUS_IS_OK;
}

static status add_tasks(const quality_options *o, source_list *out, error *err)
{
    length_list lengths = {0};
    uint32_t most = o->max_length ? o->max_length : o->max_tokens;
    RETURN_IF_ERROR(read_lengths(o->lengths, most, &lengths, err));
    for (const char *text = o->tasks; text && *text;) {
        size_t n = strcspn(text, ",");
        const task *t = task_find(text, n);
        if (!t)
            return error_set(err, STATUS_INVALID, "--tasks: '%.*s' is unknown (see --help)",
                             (int)(n < 40 ? n : 40), text);
        RETURN_IF_ERROR(add_task(out, t, &lengths, err));
        text += n + (text[n] == ',');
    }
    return STATUS_IS_OK;
}

static status add_files(const quality_options *o, source_list *out, error *err)
{
    json_t *templates = NULL;
    status st = STATUS_IS_OK;
    if (o->templates) st = json_read_file(o->templates, TEMPLATE_BYTES_MAX, &templates, err);
    for (size_t i = 0; status_ok(st) && i < o->n_data; i++)
        st = sources_add_file(o, o->data[i], templates, out, err);
    json_decref(templates);
    return st;
}

status sources_create(const quality_options *o, source_list *out, error *err)
{
    *out = (source_list){0};
    status st = STATUS_IS_OK;
    if (o->haystack) {
        st = haystack_load(o->haystack, &out->text, err);
        out->has_text = status_ok(st);
    }
    if (status_ok(st)) st = add_tasks(o, out, err);
    if (status_ok(st)) st = add_files(o, out, err);
    if (status_ok(st) && out->n == 0)
        st = error_set(err, STATUS_INVALID, "one of --tasks and --data must be given");
    if (!status_ok(st)) sources_destroy(out);
    return st;
}

void sources_destroy(source_list *s)
{
    for (size_t i = 0; i < s->n; i++) {
        for (size_t k = 0; k < s->items[i].n_documents; k++)
            document_destroy(&s->items[i].documents[k]);
        free(s->items[i].documents);
    }
    free(s->items);
    haystack_destroy(&s->text);
    *s = (source_list){0};
}

void quality_list_tasks(strbuf *out)
{
    const task *t;
    for (size_t i = 0; (t = task_at(i)) != NULL; i++)
        strbuf_printf(out, "  %-16s %s\n", t->name, t->summary);
}

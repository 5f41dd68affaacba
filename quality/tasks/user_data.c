/* Reads a user's JSON lines in the shapes of LongBench, GSM8K and InfiniteBench. */
#include "quality/tasks/sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 30, GSM8K_SHOTS = 8 };

/* How a dataset is asked and scored, as in its benchmark's configuration. */
typedef struct dataset {
    const char *name;
    scorer_kind scorer;
    uint32_t max_new_tokens;
} dataset;

static const dataset longbench[] = {
    {"narrativeqa", SCORER_F1, 128},
    {"qasper", SCORER_F1, 128},
    {"multifieldqa_en", SCORER_F1, 64},
    {"hotpotqa", SCORER_F1, 32},
    {"2wikimqa", SCORER_F1, 32},
    {"musique", SCORER_F1, 32},
    {"gov_report", SCORER_ROUGE_L, 512},
    {"qmsum", SCORER_ROUGE_L, 512},
    {"multi_news", SCORER_ROUGE_L, 512},
    {"trec", SCORER_FIRST_LINE_CLASS, 64},
    {"triviaqa", SCORER_FIRST_LINE_F1, 32},
    {"samsum", SCORER_FIRST_LINE_ROUGE, 128},
    {"passage_count", SCORER_COUNT, 32},
    {"passage_retrieval_en", SCORER_RETRIEVAL, 32},
    {"lcc", SCORER_EDIT, 64},
    {"repobench-p", SCORER_EDIT, 64},
};

static const dataset infinitebench[] = {
    {"passkey", SCORER_FIRST_NUMBER, 6},
    {"number_string", SCORER_FIRST_NUMBER, 12},
    {"kv_retrieval", SCORER_MATCH_ALL, 50},
    {"longbook_qa_eng", SCORER_F1, 40},
    {"longbook_choice_eng", SCORER_CHOICE, 40},
    {"longbook_sum_eng", SCORER_ROUGE_L, 1200},
    {"longdialogue_qa_eng", SCORER_MATCH_PART, 40},
    {"math_find", SCORER_FIRST_NUMBER, 3},
    {"code_debug", SCORER_CHOICE, 5},
};

typedef struct shape shape;

typedef status (*read_lines)(const quality_options *o, const shape *s, const char *file,
                             const json_t *templates, json_t **lines, size_t n, source_list *out,
                             error *err);

struct shape {
    const char *name;
    read_lines read;
    const dataset *datasets;
    size_t n_datasets;
};

/* ---- parts of a line ------------------------------------------------------------------------- */

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text ? text : "";
}

/* Adds a string, a number, or an array of them. */
static void add_references(document *d, string_list *list, const json_t *value)
{
    size_t i;
    json_t *item;
    if (json_is_array(value)) {
        json_array_foreach(value, i, item) add_references(d, list, item);
    } else if (json_is_string(value)) {
        document_add(d, list,
                     document_copy(d, json_string_value(value), json_string_length(value)));
    } else if (json_is_integer(value)) {
        document_add(d, list, document_format(d, "%lld", (long long)json_integer_value(value)));
    } else if (json_is_real(value)) {
        document_add(d, list, document_format(d, "%.10g", json_real_value(value)));
    }
}

/* Fills {context} and {input} into the template. The text up to the end of what depends on the
 * context alone becomes the document, so that questions about one context could share it. */
static const char *fill_template(document *d, const char *template, const char *context,
                                 const char *input)
{
    static const char context_mark[] = "{context}", input_mark[] = "{input}";
    const char *mark = strstr(template, context_mark);
    const char *rest = mark ? mark + strlen(context_mark) : template;
    if (mark) {
        strbuf_append(&d->text, template, (size_t)(mark - template));
        d->context_from = d->text.size;
        strbuf_puts(&d->text, context);
        d->context_to = d->text.size;
    }
    const char *place = strstr(rest, input_mark);
    if (!place) return document_copy(d, rest, strlen(rest));
    return document_format(d, "%.*s%s%s", (int)(place - rest), rest, input,
                           place + strlen(input_mark));
}

static const char *template_of(const json_t *templates, const json_t *line, const char *name)
{
    const char *own = json_string_value(json_object_get(line, "template"));
    if (!own) own = json_string_value(json_object_get(templates, name));
    return own ? own : "{context}\n\n{input}";
}

/* InfiniteBench's choices: lists the options behind the question; their letters are right answers,
 * too. */
static const char *with_options(document *d, question *q, const json_t *line, const char *text)
{
    const json_t *options = json_object_get(line, "options");
    size_t i;
    json_t *option;
    if (json_array_size(options) == 0 || !q) return text;
    for (size_t k = 0, n = q->references.n; k < n; k++)
        json_array_foreach((json_t *)options, i, option)
        {
            if (i < 26 && json_is_string(option) &&
                strcmp(json_string_value(option), q->references.items[k]) == 0)
                document_add(d, &q->references, document_format(d, "%c", (char)('A' + (char)i)));
        }
    json_array_foreach((json_t *)options, i, option)
    {
        if (i < 26 && json_is_string(option))
            text = document_format(d, "%s\n%c. %s", text, (char)('A' + (char)i),
                                   json_string_value(option));
    }
    return document_format(d, "%s\nAnswer:", text);
}

static void read_document(const shape *s, const json_t *templates, const json_t *line,
                          const char *name, document *d)
{
    const char *context = text_of(line, "context"), *input = text_of(line, "input");
    document_init(d);
    const char *text = fill_template(d, template_of(templates, line, name), context, input);
    question *q = document_ask(d, text, document_copy(d, input, strlen(input)));
    if (!q) return;
    const json_t *answers = json_object_get(line, "answers");
    add_references(d, &q->references, answers ? answers : json_object_get(line, "answer"));
    add_references(d, &d->classes, json_object_get(line, "all_classes"));
    if (s->datasets == infinitebench) q->text = with_options(d, q, line, q->text);
}

/* ---- lines with a context each --------------------------------------------------------------- */

static const dataset *find_dataset(const shape *s, const char *name)
{
    for (size_t i = 0; i < s->n_datasets; i++)
        if (strcmp(s->datasets[i].name, name) == 0) return &s->datasets[i];
    return NULL;
}

/* The name of a line's dataset: LongBench has it in the line, InfiniteBench in the file's name. */
static const char *dataset_name(const json_t *line, const char *file)
{
    const char *own = json_string_value(json_object_get(line, "dataset"));
    return own ? own : file;
}

static source *source_for(source_list *out, size_t first, const char *name)
{
    for (size_t i = first; i < out->n; i++)
        if (strcmp(out->items[i].name, name) == 0) return &out->items[i];
    source *s = sources_add(out);
    if (s) snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

static status add_line(const shape *s, const json_t *templates, const json_t *line,
                       const char *name, source *to, error *err)
{
    const dataset *set = find_dataset(s, name);
    if (!set)
        return error_set(err, STATUS_UNSUPPORTED, "dataset '%.60s': no %s scorer is known for it",
                         name, s->name);
    to->scorer = set->scorer;
    to->max_new_tokens = set->max_new_tokens;
    document *grown = realloc(to->documents, (to->n_documents + 1) * sizeof *grown);
    if (!grown) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    to->documents = grown;
    document *d = &grown[to->n_documents++];
    read_document(s, templates, line, name, d);
    if (d->failed || d->text.failed) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (d->questions[0].references.n == 0)
        return error_set(err, STATUS_INVALID, "answers: must hold at least one");
    return STATUS_IS_OK;
}

static status read_contexts(const quality_options *o, const shape *s, const char *file,
                            const json_t *templates, json_t **lines, size_t n, source_list *out,
                            error *err)
{
    size_t first = out->n;
    for (size_t i = 0; i < n; i++) {
        const char *name = dataset_name(lines[i], file);
        source *to = source_for(out, first, name);
        if (!to) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        if (to->n_documents == o->samples) continue;
        status st = add_line(s, templates, lines[i], name, to, err);
        if (!status_ok(st)) {
            error_prefix(err, "line %zu", i + 1);
            return st;
        }
    }
    return STATUS_IS_OK;
}

/* ---- GSM8K: the first lines are the examples of all others ----------------------------------- */

static status read_gsm8k(const quality_options *o, const shape *s, const char *file,
                         const json_t *templates, json_t **lines, size_t n, source_list *out,
                         error *err)
{
    (void)s;
    (void)templates;
    if (n <= GSM8K_SHOTS)
        return error_set(err, STATUS_INVALID, "fewer than %d lines: the first %d are examples",
                         GSM8K_SHOTS + 1, GSM8K_SHOTS);
    source *to = source_for(out, out->n, file);
    if (to) to->documents = calloc(1, sizeof *to->documents);
    if (!to || !to->documents) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    to->scorer = SCORER_ANSWER_NUMBER;
    to->max_new_tokens = 256;
    to->independent = true;
    to->n_documents = 1;
    document *d = &to->documents[0];
    document_init(d);
    for (size_t i = 0; i < n && d->n_questions < o->samples; i++) {
        const char *asked = text_of(lines[i], "question"), *answer = text_of(lines[i], "answer");
        const char *number = strstr(answer, "####");
        if (!*asked || !number)
            return error_set(err, STATUS_INVALID,
                             "line %zu: must have a question, and an answer with ####", i + 1);
        number += 4 + strspn(number + 4, " ");
        int worked = (int)(strstr(answer, "####") - answer);
        if (i < GSM8K_SHOTS) {
            strbuf_printf(&d->text, "Question: %s\nAnswer: %.*sThe answer is %s.\n\n", asked,
                          worked, answer, number);
            d->context_to = d->text.size;
            continue;
        }
        question *q = document_ask(d, document_format(d, "Question: %s\nAnswer:", asked),
                                   document_copy(d, asked, strlen(asked)));
        if (q) document_add(d, &q->references, document_copy(d, number, strlen(number)));
    }
    return d->failed || d->text.failed ? error_set(err, STATUS_NO_MEMORY, "out of memory")
                                       : STATUS_IS_OK;
}

/* ---- a file ---------------------------------------------------------------------------------- */

static const shape shapes[] = {
    {"longbench", read_contexts, longbench, sizeof longbench / sizeof longbench[0]},
    {"infinitebench", read_contexts, infinitebench, sizeof infinitebench / sizeof infinitebench[0]},
    {"gsm8k", read_gsm8k, NULL, 0},
};

static status parse_lines(char *text, size_t size, json_t ***out, size_t *n, error *err)
{
    size_t most = 1;
    for (size_t i = 0; i < size; i++) most += text[i] == '\n';
    json_t **lines = calloc(most, sizeof *lines);
    *out = lines;
    if (!lines) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    size_t number = 0;
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        number++;
        if (line[strspn(line, " \t\r")]) {
            status st = json_read_text("not JSON", line, strlen(line), &lines[*n], err);
            *n += status_ok(st);
            if (status_ok(st) && !json_is_object(lines[*n - 1]))
                st = error_set(err, STATUS_INVALID, "must be an object");
            if (!status_ok(st)) {
                error_prefix(err, "line %zu", number);
                return st;
            }
        }
        line = end ? end + 1 : NULL;
    }
    return STATUS_IS_OK;
}

/* Makes "hotpotqa" of "dir/hotpotqa.jsonl". */
static void file_title(const char *path, size_t n, char out[64])
{
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    size_t end = from;
    while (end < n && path[end] != '.') end++;
    snprintf(out, 64, "%.*s", (int)(end - from), path + from);
}

static status read_file(const quality_options *o, const char *path, const shape *s,
                        const json_t *templates, source_list *out, error *err)
{
    char title[64];
    file_title(path, strlen(path), title);
    char *text;
    size_t size, n = 0;
    json_t **lines = NULL;
    RETURN_IF_ERROR(file_read(path, FILE_BYTES_MAX, &text, &size, err));
    status st = parse_lines(text, size, &lines, &n, err);
    if (status_ok(st)) st = s->read(o, s, title, templates, lines, n, out, err);
    if (!status_ok(st)) error_prefix(err, "--data: %.200s", path);
    for (size_t i = 0; i < n; i++) json_decref(lines[i]);
    free(lines);
    free(text);
    return st;
}

status sources_add_file(const quality_options *o, const char *spec, const json_t *templates,
                        source_list *out, error *err)
{
    const char *colon = strrchr(spec, ':');
    for (size_t i = 0; colon && i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(colon + 1, shapes[i].name) != 0) continue;
        char *path = strndup(spec, (size_t)(colon - spec));
        if (!path) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        status st = read_file(o, path, &shapes[i], templates, out, err);
        free(path);
        return st;
    }
    return error_set(err, STATUS_INVALID,
                     "--data: '%.80s': must be FILE:SHAPE (longbench, infinitebench or gsm8k)",
                     spec);
}

/* Makes the variants that are compared from flags. */
#include "quality/methods.h"

#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUDGETS_MAX = 32, VARIANTS_MAX = 512 };

static const char rag_name[] = "rag-bm25";

typedef struct budget {
    char text[BUDGET_TEXT_MAX];
    double ratio;
    uint32_t tokens;
} budget;

typedef struct budget_list {
    budget items[BUDGETS_MAX];
    size_t n;
} budget_list;

/* A number of at most 1 with a point, or "1", is a ratio; a whole number above 1 counts tokens. */
static status read_budget(const char *text, size_t n, budget *out, error *err)
{
    if (n == 0 || n >= sizeof out->text)
        return error_set(err, STATUS_INVALID, "--budgets: '%.*s' is no budget", (int)(n & 63),
                         text);
    memcpy(out->text, text, n);
    out->text[n] = 0;
    double value = 0;
    const char *end = number_read(out->text, &value);
    bool whole_text = end && !*end;
    if (whole_text && value > 0 && value <= 1) {
        out->ratio = value;
        return STATUS_IS_OK;
    }
    if (whole_text && value > 1 && value <= INT32_MAX && value == floor(value)) {
        out->tokens = (uint32_t)value;
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "--budgets: '%s' is neither a ratio in (0, 1] nor a number of tokens",
                     out->text);
}

static status read_budgets(const char *text, budget_list *out, error *err)
{
    while (*text) {
        if (out->n == BUDGETS_MAX)
            return error_set(err, STATUS_LIMIT, "--budgets: more than %d", BUDGETS_MAX);
        size_t n = strcspn(text, ",");
        budget *b = &out->items[out->n++];
        *b = (budget){0};
        RETURN_IF_ERROR(read_budget(text, n, b, err));
        text += n + (text[n] == ',');
    }
    return STATUS_IS_OK;
}

/* ---- one method ------------------------------------------------------------------------------ */

typedef struct method {
    const char *label;
    size_t label_chars;
    json_t *fields; // "method" and overrides, or NULL for rag-bm25
    bool takes_budget;
} method;

static bool has(const json_t *object, const char *key) { return json_object_get(object, key); }

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* The object that takes the budget: a method with two policies has an object for the prompt's. */
static json_t *budget_place(json_t *fields)
{
    json_t *prefill = json_object_get(fields, "prefill");
    return json_is_object(prefill) ? prefill : fields;
}

/* Reads NAME, NAME={…} or NAME:RATIO. */
static status read_method(const char *text, method *out, error *err)
{
    size_t n = strcspn(text, "=");
    *out = (method){.label = text, .takes_budget = true};
    if (!text[n] && strchr(text, ':')) {
        RETURN_IF_ERROR(retention_read_text("--method", text, &out->fields, err));
    } else if (text[n]) {
        RETURN_IF_ERROR(
            json_read_text("--method", text + n + 1, strlen(text + n + 1), &out->fields, err));
        if (!json_is_object(out->fields))
            return error_set(err, STATUS_INVALID,
                             "--method: '%.40s': an object must follow the =", text);
    } else {
        out->fields = json_object();
    }
    if (!out->fields) return out_of_memory(err);
    bool budgeted = has(out->fields, "ratio") || has(out->fields, "tokens");
    bool rag = n == strlen(rag_name) && memcmp(text, rag_name, n) == 0;
    out->label_chars = has(out->fields, "method") ? n : strlen(text);
    if (!rag && !has(out->fields, "method") &&
        json_object_set_new(out->fields, "method", json_stringn(text, n)))
        return out_of_memory(err);
    const char *name = json_string_value(json_object_get(out->fields, "method"));
    const retention_preset *preset = name ? retention_find(name) : NULL;
    if (!rag && !preset)
        return error_set(err, STATUS_INVALID, "--method: '%.40s' is unknown (see octavo methods)",
                         name ? name : text);
    json_t *place = budget_place(out->fields);
    budgeted |= has(place, "ratio") || has(place, "tokens");
    /* A method with two policies takes the budget for its prompt. */
    const char *within = json_string_value(json_object_get(place, "method"));
    const retention_preset *taker =
        place == out->fields || !within ? preset : retention_find(within);
    out->takes_budget = !budgeted && (rag || (taker && taker->fields & RETENTION_FIELD_BUDGET));
    return STATUS_IS_OK;
}

static bool is_rag(const method *m) { return !has(m->fields, "method"); }

/* ---- methods times budgets ------------------------------------------------------------------- */

static status add_variant(variant_list *out, const variant *v, error *err)
{
    for (size_t i = 0; i < out->n; i++)
        if (strcmp(out->items[i].method, v->method) == 0 &&
            strcmp(out->items[i].budget, v->budget) == 0) {
            json_decref(v->retention);
            return STATUS_IS_OK; /* a repeated method and budget */
        }
    if (out->n == VARIANTS_MAX) {
        json_decref(v->retention);
        return error_set(err, STATUS_LIMIT, "more than %d methods times budgets", VARIANTS_MAX);
    }
    out->items[out->n++] = *v;
    return STATUS_IS_OK;
}

static status add_budget(variant_list *out, const method *m, const budget *b, error *err)
{
    variant v = {.method = m->label,
                 .label_chars = (uint32_t)m->label_chars,
                 .rag = is_rag(m),
                 .ratio = b->ratio,
                 .tokens = b->tokens};
    memcpy(v.budget, b->text, sizeof v.budget);
    if (v.rag) return add_variant(out, &v, err);
    v.retention = json_copy_whole(m->fields);
    json_t *place = v.retention ? budget_place(v.retention) : NULL;
    bool failed = !v.retention;
    if (b->ratio > 0) failed |= json_object_set_new(place, "ratio", json_real(b->ratio)) != 0;
    if (b->tokens > 0) failed |= json_object_set_new(place, "tokens", json_integer(b->tokens)) != 0;
    if (!failed) return add_variant(out, &v, err);
    json_decref(v.retention);
    return out_of_memory(err);
}

static status add_method(variant_list *out, const method *m, const budget_list *budgets, error *err)
{
    if (m->takes_budget) {
        for (size_t i = 0; i < budgets->n; i++)
            RETURN_IF_ERROR(add_budget(out, m, &budgets->items[i], err));
        return STATUS_IS_OK;
    }
    budget own = {.text = "-"};
    if (is_rag(m)) {
        own.ratio = json_number_value(json_object_get(m->fields, "ratio"));
        own.tokens = (uint32_t)json_integer_value(json_object_get(m->fields, "tokens"));
        return add_budget(out, m, &own, err);
    }
    return add_budget(out, m, &own, err);
}

static status add_text(variant_list *out, const char *text, const budget_list *budgets, error *err)
{
    method m;
    status st = read_method(text, &m, err);
    if (status_ok(st)) st = add_method(out, &m, budgets, err);
    json_decref(m.fields);
    return st;
}

static status add_all(variant_list *out, const budget_list *budgets, error *err)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    for (size_t i = 0; i < n; i++) RETURN_IF_ERROR(add_text(out, presets[i].name, budgets, err));
    return STATUS_IS_OK;
}

status variants_create(const char *const *methods, size_t n_methods, const char *budgets,
                       variant_list *out, error *err)
{
    budget_list list = {0};
    *out = (variant_list){calloc(VARIANTS_MAX, sizeof *out->items), 0};
    if (!out->items) return out_of_memory(err);
    status st = read_budgets(budgets, &list, err);
    if (status_ok(st)) st = add_text(out, "full", &list, err);
    if (status_ok(st) && n_methods == 0) st = add_all(out, &list, err);
    for (size_t i = 0; status_ok(st) && i < n_methods; i++)
        st = strcmp(methods[i], "all") == 0 ? add_all(out, &list, err)
                                            : add_text(out, methods[i], &list, err);
    if (!status_ok(st)) variants_destroy(out);
    return st;
}

void variants_destroy(variant_list *v)
{
    for (size_t i = 0; i < v->n; i++) json_decref(v->items[i].retention);
    free(v->items);
    *v = (variant_list){0};
}

uint32_t variant_budget(const variant *v, uint32_t n)
{
    return v->tokens ? v->tokens : (uint32_t)(v->ratio * (double)n + 1e-6);
}

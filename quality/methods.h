/* The methods and budgets of the command line, and their product (private to quality/). */
#ifndef QUALITY_METHODS_H
#define QUALITY_METHODS_H

#include "engine/engine.h"

enum { BUDGET_TEXT_MAX = 24 };

/* A column of the comparison: a method with a budget. The first column is always "full". */
typedef struct variant {
    const char *method;   // as in --method; identifies the method in records
    uint32_t label_chars; // length of its prefix that tables, drawings and files show: LABEL of
                          // LABEL={"method":NAME,…}, else all of it
    char budget[BUDGET_TEXT_MAX]; // "0.1", "512", or "-" when the method takes none from the list
    double ratio;                 // the budget, or 0
    uint32_t tokens;              // the budget, or 0
    json_t *retention;            // the request's "retention"; NULL = none
    bool rag;                     // shortens the prompt instead of the cache
} variant;

typedef struct variant_list {
    variant *items;
    size_t n;
} variant_list;

/* Makes all variants. methods: NAME, NAME={…} with overrides, NAME:RATIO,
 * LABEL={"method":NAME,…}, "rag-bm25", or "all"; none = all presets. budgets: "0.05,0.1,512". The
 * names are borrowed. */
status variants_create(const char *const *methods, size_t n_methods, const char *budgets,
                       variant_list *out, error *err);
void variants_destroy(variant_list *v);
/* Tokens that a variant keeps of a prompt of n tokens. */
uint32_t variant_budget(const variant *v, uint32_t n);

#endif

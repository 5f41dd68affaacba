/* Methods and budgets of the command line, and their product (private to quality/). */
#ifndef QUALITY_METHODS_H
#define QUALITY_METHODS_H

#include "engine/engine.h"

enum { BUDGET_TEXT_MAX = 24 };

/* One column of the comparison. The first is always "full". */
typedef struct variant {
    const char *method;           // as --method has it; records know it by this
    uint32_t label_chars;         // of it, that tables, drawings and files call it: LABEL of
                                  // LABEL={"method":NAME,…}, else all
    char budget[BUDGET_TEXT_MAX]; // "0.1", "512", or "-" when the method takes none from the list
    double ratio;                 // of the budget, or 0
    uint32_t tokens;              // of the budget, or 0
    json_t *retention;            // what the request says; NULL = nothing
    bool rag;                     // a shorter prompt instead of a smaller cache
} variant;

typedef struct variant_list {
    variant *items;
    size_t n;
} variant_list;

/* methods: NAME, NAME={…} with overrides, LABEL={"method":NAME,…}, "rag-bm25", or "all"; none =
 * all presets. budgets: "0.05,0.1,512". Names stay borrowed. */
status variants_create(const char *const *methods, size_t n_methods, const char *budgets,
                       variant_list *out, error *err);
void variants_destroy(variant_list *v);
/* Tokens that a variant keeps of a prompt of n. */
uint32_t variant_budget(const variant *v, uint32_t n);

#endif

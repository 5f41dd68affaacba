/* Measures of a selection that need no scored answer (private to quality/). */
#ifndef QUALITY_SCORE_FINDINGS_H
#define QUALITY_SCORE_FINDINGS_H

#include "quality/score/analyses.h"

typedef struct findings {
    uint32_t n_layers; // 0 = the positions are not known
    float *jaccard;    // [n_layers, n_layers] of the kept prompt tokens, mean over heads' tables
    float *unforced;   // the same without forced tokens; NaN where no token was free
    /* For the tokens that hold the needle, mean over the layer's tables: whether all of them are
     * kept, and the share that is kept. NaN when there is no needle. */
    float *needle_whole, *needle_share; // [n_layers]
    /* Comparison with the full cache's answer, up to and including the first token that differs. */
    uint32_t n_compared, n_agreed;
    float divergence;   // mean over the compared tokens
    analysis attention; // empty unless --analyses asks for it
} findings;

/* Compares the kept tokens of layers and heads. kept_json is the report's "kept". needle [n_prompt]
 * marks the needle's tokens, or is NULL. forced [n_prompt] marks tokens that stay whatever is
 * measured. */
status findings_of_kept(const char *kept_json, uint32_t n_prompt, const bool *needle,
                        const bool *forced, findings *out, error *err);
/* A lower bound of KL(full, own): over the tokens that both list among their likeliest, with all
 * other tokens as one. */
double findings_divergence(const step_sample *full, const step_sample *own);
void findings_agree(const step_sample *full, size_t n_full, const step_sample *own, size_t n_own,
                    findings *out);
void findings_destroy(findings *m);

/* Whether there is anything to write. */
bool findings_any(const findings *m);
/* Writes them as a member of a record's line. */
void findings_write(const findings *m, strbuf *out);
/* Reads them back. NULL or JSON of another type gives empty findings. False when memory is out. */
bool findings_read(const json_t *json, findings *out);

/* Marks the tokens whose bytes hold any of the texts; returns how many texts were found. */
size_t findings_find_needles(const tokenizer *t, const uint32_t *tokens, uint32_t n_tokens,
                             const char *const *texts, size_t n_texts, bool *needle);

#endif

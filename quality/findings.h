/* What can be said of a choice without judging an answer (private to quality/). */
#ifndef QUALITY_FINDINGS_H
#define QUALITY_FINDINGS_H

#include "quality/analyses.h"

typedef struct findings {
    uint32_t n_layers; // 0 = the positions are not known
    float *jaccard;    // [n_layers, n_layers] of the kept prompt tokens, mean over heads' tables
    float *chosen;     // likewise, of those that nothing forced; NaN where there are none
    /* Of the tokens that hold the needle, mean over the layer's tables: whether all are kept, and
     * the share that is. NaN when there is no needle. */
    float *needle_whole, *needle_share; // [n_layers]
    /* Against the full cache's answer, up to and with the first token that differs. */
    uint32_t n_compared, n_agreed;
    float divergence;   // mean over those tokens
    analysis attention; // where --analyses asks for it
} findings;

/* kept_json: the report's "kept". needle: [n_prompt], or NULL. forced: [n_prompt], the tokens that
 * stay whatever is measured. */
status findings_of_kept(const char *kept_json, uint32_t n_prompt, const bool *needle,
                        const bool *forced, findings *out, error *err);
/* A lower bound of KL(full, own): over the tokens that both name among their likeliest, all others
 * as one. */
double findings_divergence(const step_sample *full, const step_sample *own);
void findings_agree(const step_sample *full, size_t n_full, const step_sample *own, size_t n_own,
                    findings *out);
void findings_destroy(findings *m);

/* Whether there is anything to write. */
bool findings_any(const findings *m);
/* As a member of a record's line. */
void findings_write(const findings *m, strbuf *out);
/* NULL or another type gives none. False when memory is out. */
bool findings_read(const json_t *json, findings *out);

/* Marks the tokens whose bytes hold any of the texts; how many texts were found. */
size_t findings_find_needles(const tokenizer *t, const uint32_t *tokens, uint32_t n_tokens,
                             const char *const *texts, size_t n_texts, bool *needle);

#endif

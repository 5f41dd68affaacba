/* The effect of an eviction on attention, and where heavy hitters lie (private to quality/).
 *
 * A probe (model/probe.h) runs prompt and answer with the full cache. Then the rows of the answer
 * attend once over all tokens and once over those that the method kept of the prompt: the same
 * queries, keys and values, with the softmax over what is left. So a layer's figures tell what its
 * own selection costs, and nothing of what earlier layers have lost.
 *
 * Heavy hitters are the 15 % of the tokens seen with the most attention, summed over a layer's
 * query heads and over the steps of the answer so far. Step 1 is the prompt's last row. */
#ifndef QUALITY_SCORE_ANALYSES_H
#define QUALITY_SCORE_ANALYSES_H

#include "engine/engine.h"
#include "model/probe.h"

enum {
    HEAVY_STEPS = 4, // steps 1, 300 and 500, if the answer has them, and its last step
    HEAVY_PROMPT_BINS = 20,
    HEAVY_ANSWER_BINS = 10,
    HEAVY_BINS = HEAVY_PROMPT_BINS + HEAVY_ANSWER_BINS,
};

#define HEAVY_SHARE 0.15

/* Each value is a row [n_layers], with NaN where a layer has no figure. The first four are 0, 0, 1
 * and 0 where everything is kept. */
typedef enum analysis_row {
    ANALYSIS_KV_L1,            // share of the 1-norms of the prompt's K and V that was evicted
    ANALYSIS_ATTENTION_L1,     // sum over tokens of |a - a^|, mean over query heads and rows
    ANALYSIS_ATTENTION_COSINE, // of a and a^
    ANALYSIS_LOSS,             // |y - y^| / |y| of a query head's output, before o_proj
    ANALYSIS_OUTPUT_COSINE,    // of y and y^
    ANALYSIS_HEAVY_KEPT,       // share of the last step's heavy hitters that the method still had
    ANALYSIS_ANSWER,           // [HEAVY_STEPS] share of the answer among heavy hitters
    ANALYSIS_SEEN = ANALYSIS_ANSWER + HEAVY_STEPS, // [HEAVY_STEPS] and among all tokens
    ANALYSIS_HEAVY = ANALYSIS_SEEN + HEAVY_STEPS,  // [HEAVY_STEPS, HEAVY_BINS] of a bin's tokens,
                                                   // the share that are heavy hitters
    ANALYSIS_KEPT = ANALYSIS_HEAVY + HEAVY_STEPS * HEAVY_BINS, // [HEAVY_BINS] share that is kept
    ANALYSIS_ROWS = ANALYSIS_KEPT + HEAVY_BINS,
} analysis_row;

enum { ANALYSIS_MEASURES = ANALYSIS_HEAVY_KEPT + 1 };

typedef struct analysis {
    uint32_t n_layers; // 0 = not analysed
    uint32_t n_rows;   // rows of the answer that were compared; 0 for the full cache
    uint32_t n_steps;  // steps of the method's own answer
    float *values;     // [ANALYSIS_ROWS, n_layers]
} analysis;

typedef struct analysis_input {
    model_probe *probe;
    const uint32_t *prompt;
    uint32_t n_prompt;
    const step_sample *full, *own; // answers of the full cache and of the method
    size_t n_full, n_own;
    const char *kept_json; // the report's "kept" after the method's answer; NULL: the full cache
    uint32_t n_logical;    // tokens that kept_json covers
} analysis_input;

/* Analyses one answer. Leaves *out empty when there is no answer. */
status analysis_run(const analysis_input *in, analysis *out, error *err);
void analysis_destroy(analysis *a);

/* Writes the analysis as a JSON value for the line of a record. */
void analysis_write(const analysis *a, strbuf *out);
/* Reads it back. NULL or JSON of another type gives an empty analysis. False when memory is out. */
bool analysis_read(const json_t *json, analysis *out);

/* ---- the arithmetic -------------------------------------------------------------------------- */

typedef struct row_change {
    double attention_l1, attention_cosine, loss, output_cosine;
} row_change;

/* Compares a row of attention with what it becomes without the evicted tokens. weights [n] sum to
 * 1, values are [n, head_dim]. The first n_choosable tokens stay if they have a bit in `kept`, all
 * later tokens stay. False when no token that stays has weight. */
bool analysis_change(const double *weights, uint32_t n, const float *values, uint32_t head_dim,
                     const uint64_t *kept, uint32_t n_choosable, row_change *out);
/* Marks the heavy hitters of sums [n]: a share of n, rounded up; the earlier of equal ones first.
 * False when memory is out. */
bool analysis_heavy(const double *sums, uint32_t n, double share, bool *heavy);

#endif

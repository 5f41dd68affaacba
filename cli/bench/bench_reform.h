/* The parts of `octavo bench reform`: reading a text chunk by chunk, timed by a few steps. */
#ifndef CLI_BENCH_BENCH_REFORM_H
#define CLI_BENCH_BENCH_REFORM_H

#include "cli/bench/bench_model.h"

/* One prompt through the model. */
typedef struct reform_pass {
    uint32_t tokens;
    retention_policy policy;
    const embed_head *embeds; // [n_embeds] of every row
    uint32_t n_embeds;
    uint32_t n_layers; // that rows run, 0 = all; pages are those of these layers
    /* A computed step is computed with all layers too, right behind, because a machine's speed
     * changes within minutes. So pages are those of all layers. */
    bool with_all;
    uint32_t computed; // steps to compute; the others change page tables only. 0 = none
} reform_pass;

typedef struct reform_cost {
    uint32_t steps, computed; // of the pass
    double compute_s;         // all steps, estimated from the computed ones
    double whole_s;           // where with_all: the same with all layers and without embeddings
    double select_s;          // the scheduler, selections among it: measured as a whole
    double move_s;            // page moves of steps that were not computed
    uint32_t most_pages;      // held at once
} reform_cost;

/* Runs the pass over the real scheduler. A step's time for each of its rows is linear in the slots
 * that the rows read, so the computed steps, which are spread evenly, give a line, and the line
 * gives the others. The first two steps that measure attention are computed too; what they take
 * beyond the line counts for each such step. Every page of the pool must hold keys and values. */
status reform_pass_run(bench *b, const reform_pass *pass, reform_cost *out, error *err);

#endif

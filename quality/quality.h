/* quality: what retention costs in answers.
 *
 * What     generates the long-context tasks of the papers offline and by seed (or reads a user's
 *          LongBench, GSM8K or InfiniteBench lines), asks them under methods x budgets x lengths
 *          through an engine, scores the answers as the sources do, and writes a table, JSON and
 *          SVG drawings. All methods see the same prompts, while their blocks are in the prefix
 *          cache.
 * Owner    borrows the engine, its tokenizer and the probe; everything else is its own.
 * Threads  quality_run belongs to one thread; `notify` is called by the engine's.
 * Units    tokens; ratios are shares kept; scores are in [0, 1].
 * Errors   a cell that the engine refuses is part of the result, with the reason. What ends a run
 *          is an error; what was answered until then is on disk, and `resume` goes on from there.
 */
#ifndef QUALITY_QUALITY_H
#define QUALITY_QUALITY_H

#include "engine/engine.h"
#include "model/probe.h"

/* What the caller sleeps and stops by. */
typedef struct quality_hooks {
    engine_notify notify; // given to every request, with ctx
    void (*wait)(void *ctx, int timeout_ms);
    bool (*stopped)(void *ctx);
    void (*progress)(void *ctx, const char *text); // about once a second; the last ends a line
    void *ctx;
} quality_hooks;

typedef struct quality_options {
    engine *engine;
    const tokenizer *tokenizer;
    const char *model;          // its name in the results
    uint64_t identity;          // of its weights: a run is resumed only with the same
    const char *setup;          // and with the same types and geometry, said here
    pkv_geometry geometry;      // of its KV cache
    uint32_t max_tokens;        // of prompt and answer: the model's, or less
    uint32_t in_flight;         // requests kept in the engine
    bool sessions;              // the engine keeps them
    const char *const *methods; // NAME, NAME={…}, LABEL={"method":…}, "rag-bm25" or "all"
    size_t n_methods;           // 0 = all
    const char *budgets;        // "0.05,0.1,512"
    const char *tasks;          // "demo_niah,vt"; NULL = none
    const char *lengths;        // "1024,2048"
    uint32_t samples;           // prompts of each task and length
    uint32_t questions;         // at most, about one document
    uint32_t measured;          // documents of each task and length looked at more closely
    model_probe *probe; // NULL, or looks at the attention of the measured documents' first prompts
    uint32_t turns;     // 1, or 2: the second question of a session
    uint64_t seed;
    bool chat;               // prompts go through the chat template
    const char *haystack;    // a text file; NULL = noise
    const char *const *data; // FILE:SHAPE
    size_t n_data;
    const char *templates; // JSON: dataset to prompt, with {context} and {input}; NULL = ours
    const char *out;       // the folder for results; made when missing
    bool resume;
    bool report; // asks nothing: the results of what is there
    quality_hooks hooks;
} quality_options;

/* Appends the names and summaries of the generated tasks, one a line. */
void quality_list_tasks(strbuf *out);

/* Runs everything; the table goes to `table`. */
status quality_run(const quality_options *options, strbuf *table, error *err);

#endif

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
 * Errors   a cell that the engine refuses is part of the result, with the reason. An error ends the
 *          run; answers until then are on disk, and `resume` goes on from there. */
#ifndef QUALITY_QUALITY_H
#define QUALITY_QUALITY_H

#include "engine/engine.h"
#include "model/probe.h"

/* The caller's functions: to be notified, to wait, to stop the run, and to show its progress. */
typedef struct quality_hooks {
    engine_notify notify; // given to every request, with ctx
    void (*wait)(void *ctx, int timeout_ms);
    bool (*stopped)(void *ctx);
    /* About once a second; the last text ends a line. May be NULL. */
    void (*progress)(void *ctx, const char *text);
    void *ctx;
} quality_hooks;

typedef struct quality_options {
    engine *engine;
    const tokenizer *tokenizer;
    const char *model;     // its name in the results
    uint64_t identity;     // of the model's weights: a resumed run must have the same
    const char *setup;     // the types and geometry, in words: a resumed run must have the same
    pkv_geometry geometry; // of the KV cache
    uint32_t max_tokens;   // of prompt and answer: the model's limit, or less
    uint32_t max_length;   // the same of generated prompts, also those that only methods can be
                           // asked whose positions close up; 0 = max_tokens
    uint32_t in_flight;    // requests kept in the engine
    bool sessions;         // the engine keeps sessions
    const char *const *methods; // NAME, NAME={…}, NAME:RATIO, LABEL={"method":…}, "rag-bm25", "all"
    size_t n_methods;           // 0 = all
    const char *budgets;        // "0.05,0.1,512"
    const char *tasks;          // "demo_niah,vt"; NULL = none
    const char *lengths;        // "1024,2048"
    uint32_t samples;           // prompts of each task and length
    uint32_t questions;         // most questions about one document
    uint32_t measured;          // documents of each task and length that are measured, too
    model_probe *probe; // NULL, or analyses the attention of the measured documents' first prompts
    uint32_t turns;     // 1, or 2: a session with a second question
    uint64_t seed;
    bool chat;               // prompts go through the chat template
    const char *haystack;    // a text file; NULL = noise
    const char *const *data; // FILE:SHAPE
    size_t n_data;
    const char *templates; // JSON: dataset to prompt, with {context} and {input}; NULL = built in
    const char *out;       // folder for results; made when missing
    bool resume;
    bool report; // ask nothing, only report the results in the folder
    quality_hooks hooks;
} quality_options;

/* Appends the names and summaries of the generated tasks, one on each line. */
void quality_list_tasks(strbuf *out);

/* Runs everything; appends the table to `table`. */
status quality_run(const quality_options *options, strbuf *table, error *err);

#endif

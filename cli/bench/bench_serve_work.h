/* The prompts that `octavo bench serve` sends (private to it). Request i of a workload is a
 * function of the seed and i alone, so only a trace or a text is kept in memory. */
#ifndef CLI_BENCH_BENCH_SERVE_WORK_H
#define CLI_BENCH_BENCH_SERVE_WORK_H

#include "base/base.h"

typedef struct work_options {
    const char *kind;               // "random", "prefix", "text", "trace"
    const char *file;               // for "text" and "trace"
    bool words;                     // prompts as text instead of token ids
    uint32_t input_len, output_len; // tokens; output_len 0 = as in the trace, else 128
    double range_ratio;             // lengths are uniform in len * (1 +- ratio)
    uint32_t prefixes, prefix_len; // "prefix": how many, and their tokens before input_len own ones
    uint32_t distinct;             // request i is request i mod distinct; 0 = all differ
    uint32_t vocab;                // token ids are below it
    uint32_t scale, block_tokens;  // "trace": divisor of lengths; tokens of a block
    bool whole_blocks;             // "trace": all of a request's blocks whole, and one token more
    uint64_t seed;
} work_options;

typedef struct work work;

status work_create(const work_options *o, work **out, error *err);
void work_destroy(work *w);
/* The number of requests: a trace's lines; 0 = endless. */
uint64_t work_count(const work *w);
/* Seconds after the start at which request i of the trace came. */
double work_arrival_s(const work *w, uint64_t i);

typedef struct work_item {
    uint32_t output_len;
    uint32_t input_len; // tokens; 0 = not known here
} work_item;

/* Appends the prompt of request i as a JSON value: a string or an array of token ids. */
work_item work_prompt(const work *w, uint64_t i, strbuf *out);

#endif

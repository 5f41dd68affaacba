/* The lines that `octavo run` prints for a choice. Scripts read these lines: members may be added,
 * none renamed. */
#ifndef CLI_RUN_OUTPUT_H
#define CLI_RUN_OUTPUT_H

#include "engine/engine.h"

/* A choice while its tokens arrive. */
typedef struct run_choice {
    strbuf text;
    uint32_t *token_ids; // malloc'd
    size_t n_tokens, capacity;
    strbuf logprobs; // members of logprobs.content, when they were asked for
    bool failed;     // out of memory
} run_choice;

void run_choice_destroy(run_choice *c);
/* Adds one output to its choice. want_logprobs: describe its token, too. */
void run_choice_take(run_choice *c, const engine_output *out, const tokenizer *t,
                     bool want_logprobs);

/* Writes the line of a choice that has ended well or was aborted; `last` is its last output. id is
 * a JSON string or number. prompt: its logprobs are written if it has some. Lines end with a
 * newline. */
void run_line(strbuf *line, const json_t *id, const run_choice *c, const engine_output *last,
              bool want_logprobs, const engine_prompt *prompt, const tokenizer *t);
/* Writes {"id", "error": {"message", "line"}}; line_number 0 = there is no file. */
void run_error_line(strbuf *line, const json_t *id, const char *message, uint64_t line_number);

/* Appends a model's text as a terminal may be given it: control characters but tabs and line ends
 * become '?', since a prompt could make a model write those that steer the terminal. */
void run_terminal_text(strbuf *out, const char *text, size_t n);

/* Write a short summary of a report for people, one line. */
void run_report_text(strbuf *out, const retention_report *report);
void run_reading_text(strbuf *out, const retrieval_totals *reading);

#endif

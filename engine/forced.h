/* forced: tokens that the form of an answer leaves no choice about (private to engine/).
 *
 * Where a form lets one text alone come next, an answer takes the tokens that the tokenizer divides
 * this text into, as far as no token could begin that reaches past the text. They need no draw, so
 * that a step computes all of them at once. A tokenizer that puts a blank before every text has
 * none. */
#ifndef ENGINE_FORCED_H
#define ENGINE_FORCED_H

#include "engine/grammar/grammar.h"
#include "text/tokenizer.h"

/* The forced tokens behind those that a choice has. All zero: they have not been looked for. */
typedef struct forced_run {
    tok_ids ids;
    size_t at; // ids before it have been taken
    bool known;
} forced_run;

/* Looks for the tokens behind the text that the matcher has read. Where memory is out, or the text
 * cannot be divided, there are none. */
void forced_find(const tokenizer *t, grammar_matcher *m, forced_run *run);
/* Follows a token of the answer: the next one of the run, or another, which ends the run. */
void forced_take(forced_run *run, uint32_t token);
void forced_destroy(forced_run *run);
/* Returns how many of n forced tokens a choice takes with a drawn one. `room`: outputs that fit
 * into its stream's ring before the drawn token is there; it keeps room for that one, for the next
 * draw and for an end. `left`: tokens that the answer may have behind the drawn one; the last of
 * them ends it, and is drawn. */
uint32_t forced_count(uint32_t n, uint32_t room, uint32_t left);

static inline uint32_t forced_left(const forced_run *run)
{
    return (uint32_t)(run->ids.n - run->at);
}

#endif

/* form: what an answer is held to, from a request's fields to the masks of its draws (private to
 * engine/).
 *
 * A form is compiled by the thread that prepares the request, and kept for requests with the same
 * one. The engine thread follows each choice's tokens and gives the plan a mask for each share that
 * draws. */
#ifndef ENGINE_FORM_H
#define ENGINE_FORM_H

#include "base/sha256.h"
#include "engine/engine.h"
#include "engine/grammar/grammar.h"

#include <pthread.h>

struct engine_stream;

enum { FORMS_KEPT = 64, FORMS_FAILED = 64 };
#define FORMS_BYTES_MAX ((size_t)256 << 20) // that the kept forms take, masks included

typedef struct kept_form {
    uint64_t hash, used; // used: when it was last asked for
    grammar_kind kind;
    bool compact;
    char *text;
    size_t n;
    grammar *grammar; // NULL: free
} kept_form;

/* A form that cannot be compiled, so that it is not tried again. */
typedef struct failed_form {
    char key[SHA256_HEX_BYTES]; // of kind, white space and text; "": free
    status_code code;
    error err;
} failed_form;

/* Compiled forms, and the vocabulary that they are for. All zero at the beginning. */
typedef struct form_cache {
    pthread_mutex_t lock;
    grammar_vocab *vocab; // made for the first form
    kept_form kept[FORMS_KEPT];
    uint64_t clock;
    failed_form failed[FORMS_FAILED];
    uint32_t n_failed; // ever; the next one replaces number n_failed % FORMS_FAILED
    /* Streams whose form is not compiled while as many threads compile as may; linked by
     * place.newer. */
    struct engine_stream *parked, *last_parked;
    uint32_t n_compiling;
    /* Engine thread: the masks of the steps in flight, by the lowest bit of their number. */
    uint32_t *masks[2];
    size_t room[2]; // in words
} form_cache;

void form_cache_destroy(form_cache *c);

/* Reads one of the fields that give a form. */
status form_read(const char *where, const char *key, const json_t *value, engine_form *out,
                 error *err);
bool form_copy(const engine_form *from, engine_form *to);
void form_destroy(engine_form *f);

/* Before a stream is prepared: takes one of the turns to compile, where its form is not compiled
 * yet. All threads but one may compile, so that other requests find one that tokenizes. */
typedef enum form_turn {
    FORM_TURN_NONE,   // needs none
    FORM_TURN_TAKEN,  // form_pass_turn gives it back
    FORM_TURN_PARKED, // there was none: the stream now waits for form_pass_turn
} form_turn;
form_turn form_take_turn(engine *e, struct engine_stream *s);
/* Gives a turn to the stream that waits longest, which the caller prepares; NULL: none waits, and
 * the turn is given back. */
struct engine_stream *form_pass_turn(engine *e);
/* Takes the stream out if it is parked; the caller gets the reference that came with it. */
bool form_take_back(engine *e, struct engine_stream *s);
/* Compiles the request's form, where it has one, and sets a matcher for each choice. */
status form_prepare(engine *e, struct engine_stream *s, error *err);
/* Gives the plan of the last sched_step call its masks. */
void form_mask_plan(engine *e, const step_plan *plan);
/* Whether the form, allowed_token_ids and bad_words let the answer of a prepared stream begin with
 * this token, which another server drew. */
bool form_may_begin(engine *e, struct engine_stream *s, uint32_t token);
/* Follows a token that was drawn or forced; `finish` is what it does to the choice otherwise. */
engine_finish form_take(engine *e, struct engine_stream *s, uint32_t choice, uint32_t token,
                        engine_finish finish);
/* How many forced tokens a choice may take at once behind the last one, which did not end it, and
 * the tokens; they are valid until it takes one. */
uint32_t form_forced(engine *e, struct engine_stream *s, uint32_t choice, const uint32_t **tokens);

#endif

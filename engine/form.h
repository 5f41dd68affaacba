/* form: what an answer is held to, from a request's fields to the masks of its draws (private to
 * engine/).
 *
 * A form is compiled by the thread that prepares the request, and kept for requests with the same
 * one. The engine thread follows each choice's tokens and gives the plan a mask for each share that
 * draws. */
#ifndef ENGINE_FORM_H
#define ENGINE_FORM_H

#include "engine/engine.h"
#include "engine/grammar/grammar.h"

#include <pthread.h>

struct engine_stream;

enum { FORMS_KEPT = 64 };
#define FORMS_BYTES_MAX ((size_t)256 << 20) // that the kept forms take, masks included

typedef struct kept_form {
    uint64_t hash, used; // used: when it was last asked for
    grammar_kind kind;
    bool compact;
    char *text;
    size_t n;
    grammar *grammar; // NULL: free
} kept_form;

/* Compiled forms, and the vocabulary that they are for. All zero at the beginning. */
typedef struct form_cache {
    pthread_mutex_t lock;
    grammar_vocab *vocab; // made for the first form
    kept_form kept[FORMS_KEPT];
    uint64_t clock;
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

/* Compiles the request's form, where it has one, and sets a matcher for each choice. */
status form_prepare(engine *e, struct engine_stream *s, error *err);
/* Gives the plan of the last sched_step call its masks. */
void form_mask_plan(engine *e, const step_plan *plan);
/* Follows a token that was drawn; `finish` is what it does to the choice otherwise. */
engine_finish form_take(engine *e, struct engine_stream *s, uint32_t choice, uint32_t token,
                        engine_finish finish);

#endif

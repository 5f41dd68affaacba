/* Shared by the tests of grammars: what a form allows, and why a source is refused. */
#ifndef ENGINE_GRAMMAR_FIXTURE_H
#define ENGINE_GRAMMAR_FIXTURE_H

#include "engine/grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static grammar *make(grammar_kind kind, const char *text)
{
    grammar_source source = {.kind = kind, .text = text, .n = strlen(text)};
    grammar *g = NULL;
    error err = {{0}};
    status s = grammar_create(&source, NULL, &g, &err);
    if (!status_ok(s)) print_error("%s\n  %s\n", text, err.text);
    assert_true(status_ok(s));
    return g;
}

static bool allows(grammar *g, const char *text)
{
    grammar_matcher *m = grammar_matcher_create(g);
    assert_non_null(m);
    bool ok = status_ok(grammar_accept_bytes(m, text, strlen(text))) && grammar_may_end(m);
    grammar_matcher_destroy(m);
    return ok;
}

/* Texts that are allowed, NULL, texts that are not, NULL. */
static void check(grammar_kind kind, const char *source, const char *const *texts)
{
    grammar *g = make(kind, source);
    for (bool allowed = true;; texts++) {
        if (!*texts && !allowed) break;
        if (!*texts) allowed = false;
        else if (allows(g, *texts) != allowed)
            fail_msg("%s\n  %s %s", source, allowed ? "refuses" : "allows", *texts);
    }
    grammar_release(g);
}
#define CHECK(kind, source, ...) check(GRAMMAR_##kind, source, (const char *const[]){__VA_ARGS__})
#define SCHEMA(source, ...)      CHECK(JSON_SCHEMA, source, __VA_ARGS__)

static void refuses(grammar_kind kind, const char *source, status_code code, const char *message)
{
    grammar_source s = {.kind = kind, .text = source, .n = strlen(source)};
    grammar *g = NULL;
    error err = {{0}};
    assert_int_equal(grammar_create(&s, NULL, &g, &err).code, code);
    assert_null(g);
    if (!strstr(err.text, message)) fail_msg("'%s' has no '%s'", err.text, message);
}

#endif

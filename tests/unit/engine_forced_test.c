/* Forced tokens: those that the tokenizer divides a forced text into, as far as they are sure. */
#include "engine/forced.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    tokenizer *tokenizer;
    grammar_vocab *vocab;
} fixture;

static int load(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_true(status_ok(tok_load("models/demo", &f->tokenizer, NULL)));
    uint32_t n = tok_vocab_size(f->tokenizer);
    grammar_token *tokens = calloc(n, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t t = 0; t < n; t++) {
        const char *bytes;
        size_t size;
        if (tok_is_special(f->tokenizer, t)) continue;
        if (status_ok(tok_token_bytes(f->tokenizer, t, &bytes, &size)))
            tokens[t] = (grammar_token){bytes, (uint32_t)size};
    }
    assert_true(status_ok(grammar_vocab_create(tokens, n, &f->vocab)));
    free(tokens);
    *state = f;
    return 0;
}

static int unload(void **state)
{
    fixture *f = *state;
    grammar_vocab_destroy(f->vocab);
    tok_destroy(f->tokenizer);
    free(f);
    return 0;
}

static grammar_matcher *match(const fixture *f, const char *regex)
{
    const grammar_source source = {GRAMMAR_REGEX, regex, strlen(regex), false};
    grammar *g = NULL;
    error err;
    assert_true(status_ok(grammar_create(&source, f->vocab, &g, &err)));
    grammar_matcher *m = grammar_matcher_create(g);
    grammar_release(g);
    assert_non_null(m);
    return m;
}

/* The run behind `before` has these tokens: those of `text`. */
static void expect_run(const fixture *f, const char *regex, const char *before, const char *text)
{
    forced_run run = {0};
    tok_ids ids = {0};
    grammar_matcher *m = match(f, regex);
    assert_true(status_ok(grammar_accept_bytes(m, before, strlen(before))));
    forced_find(f->tokenizer, m, &run);
    assert_true(run.known);
    assert_true(status_ok(tok_encode(f->tokenizer, text, strlen(text), false, &ids, NULL)));
    assert_int_equal(run.ids.n, ids.n);
    if (ids.n) assert_memory_equal(run.ids.ids, ids.ids, ids.n * sizeof *ids.ids);
    tok_ids_destroy(&ids);
    forced_destroy(&run);
    grammar_matcher_destroy(m);
}

static void a_text_gives_its_tokens(void **state)
{
    expect_run(*state, "wherefore art thou", "", "wherefore art thou");
    expect_run(*state, "wherefore art thou", "where", "fore art thou");
    expect_run(*state, "a|b", "", "");
    expect_run(*state, "the number(x)?", "", "the number");
    expect_run(*state, "the number(x)?", "the number", ""); // the answer may end here
}

/* "The number" and "The numbers" are other tokens behind "The". */
static void a_token_that_may_reach_past_the_text_is_drawn(void **state)
{
    expect_run(*state, "The number(s|!)", "", "The");
    expect_run(*state, "The number(x|!)", "", "The number");
}

/* The tokenizer reads a special token in its name, and composes characters; an answer has bytes. */
static void tokens_of_another_text_are_none(void **state)
{
    expect_run(*state, "thou <\\|im_end\\|> art", "", "thou ");
    expect_run(*state, "thou e\xcc\x81 art", "", "thou ");
}

static void a_run_is_followed(void **state)
{
    const fixture *f = *state;
    forced_run run = {0};
    grammar_matcher *m = match(f, "wherefore art thou");
    forced_find(f->tokenizer, m, &run);
    uint32_t n = forced_left(&run);
    assert_in_range(n, 3, 20);
    for (uint32_t i = 0; i + 1 < n; i++) {
        forced_take(&run, run.ids.ids[i]);
        assert_true(run.known && forced_left(&run) == n - 1 - i);
    }
    forced_take(&run, run.ids.ids[n - 1]);
    assert_true(!run.known && forced_left(&run) == 0);
    forced_find(f->tokenizer, m, &run);
    forced_take(&run, run.ids.ids[0] + 1);
    assert_true(!run.known && forced_left(&run) == 0);
    forced_destroy(&run);
    grammar_matcher_destroy(m);
}

/* A run stops where the ring has room for three outputs more, or before the last token of the
 * answer, whichever comes first. */
static void a_run_ends_where_the_answer_or_the_ring_does(void **state)
{
    (void)state;
    assert_int_equal(forced_count(8, 100, 100), 8);
    assert_int_equal(forced_count(8, 11, 100), 8);
    assert_int_equal(forced_count(8, 10, 100), 7);
    assert_int_equal(forced_count(8, 4, 100), 1);
    assert_int_equal(forced_count(8, 3, 100), 0);
    assert_int_equal(forced_count(8, 0, 100), 0);
    assert_int_equal(forced_count(8, 100, 6), 5);
    assert_int_equal(forced_count(8, 7, 4), 3);
    assert_int_equal(forced_count(8, 6, 4), 3);
    assert_int_equal(forced_count(8, 5, 4), 2);
    assert_int_equal(forced_count(8, 100, 1), 0);
    assert_int_equal(forced_count(8, 100, 0), 0);
    assert_int_equal(forced_count(0, 100, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_gives_its_tokens),
        cmocka_unit_test(a_token_that_may_reach_past_the_text_is_drawn),
        cmocka_unit_test(tokens_of_another_text_are_none),
        cmocka_unit_test(a_run_is_followed),
        cmocka_unit_test(a_run_ends_where_the_answer_or_the_ring_does),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

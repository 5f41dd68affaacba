/* bad_words: which tokens are forbidden, as vLLM counts them. */
#include "engine/bad_words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 1024, WORDS = VOCAB / 32 };

static int load(void **state)
{
    tokenizer *t = NULL;
    assert_true(status_ok(tok_load("models/demo", &t, NULL)));
    *state = t;
    return 0;
}

static int unload(void **state)
{
    tok_destroy(*state);
    return 0;
}

static tok_ids ids_of(const tokenizer *t, const char *text)
{
    tok_ids ids = {0};
    assert_true(status_ok(tok_encode(t, text, strlen(text), false, &ids, NULL)));
    return ids;
}

static bad_words make(const tokenizer *t, json_t *texts)
{
    bad_words b;
    assert_true(status_ok(bad_words_create(t, texts, &b, NULL)));
    json_decref(texts);
    return b;
}

/* The forbidden tokens behind an answer of these tokens. */
static uint32_t banned_after(const bad_words *b, const uint32_t *answer, size_t n,
                             uint32_t mask[WORDS])
{
    bad_words_tail tail = {0};
    uint32_t banned = 0;
    memset(mask, 255, WORDS * sizeof *mask);
    for (size_t i = 0; i < n; i++) assert_true(bad_words_take(b, &tail, answer[i]));
    bad_words_ban(b, &tail, mask, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) banned += !(mask[i / 32] >> i % 32 & 1);
    free(tail.ids);
    return banned;
}

static bool is_banned(const uint32_t *mask, uint32_t id) { return !(mask[id / 32] >> id % 32 & 1); }

/* A text is forbidden where it begins a word and where it does not. */
static void a_single_token_is_always_forbidden(void **state)
{
    uint32_t mask[WORDS], other[] = {7, 9, 11};
    bad_words b = make(*state, json_pack("[s]", " \t king"));
    tok_ids bare = ids_of(*state, "king"), blank = ids_of(*state, " king");
    assert_int_equal(blank.n, 1);
    if (bare.n == 1) {
        assert_int_equal(banned_after(&b, other, 3, mask), 2);
        assert_true(is_banned(mask, bare.ids[0]) && is_banned(mask, blank.ids[0]));
        assert_int_equal(banned_after(&b, NULL, 0, mask), 2);
    }
    tok_ids_destroy(&bare);
    tok_ids_destroy(&blank);
    bad_words_destroy(&b);
}

static void the_last_token_is_forbidden_behind_the_others(void **state)
{
    static const char text[] = "wherefore art thou Romeo";
    uint32_t mask[WORDS], answer[64] = {5, 6};
    tok_ids ids = ids_of(*state, text);
    bad_words b = make(*state, json_pack("[s]", text));
    size_t before = ids.n - 1;
    assert_in_range(ids.n, 3, 60);
    memcpy(answer + 2, ids.ids, before * sizeof *answer);
    for (size_t n = 0; n < before + 2; n++) assert_int_equal(banned_after(&b, answer, n, mask), 0);
    assert_int_equal(banned_after(&b, answer, before + 2, mask), 1);
    assert_true(is_banned(mask, ids.ids[before]));
    assert_int_equal(banned_after(&b, answer + 2, before, mask), 1);
    answer[2]++;
    assert_int_equal(banned_after(&b, answer, before + 2, mask), 0);
    tok_ids_destroy(&ids);
    bad_words_destroy(&b);
}

static void odd_texts(void **state)
{
    uint32_t mask[WORDS];
    bad_words none = make(*state, NULL), empty = make(*state, json_array()),
              blanks = make(*state, json_pack("[s]", "  \n "));
    assert_int_equal(banned_after(&none, NULL, 0, mask), 0);
    assert_int_equal(banned_after(&empty, NULL, 0, mask), 0);
    assert_int_equal(banned_after(&blanks, NULL, 0, mask), 0);
    /* A token that the model's vocabulary does not reach is no place in the mask. */
    bad_words far = make(*state, json_pack("[s]", "a"));
    uint32_t small = 0;
    bad_words_ban(&far, &(bad_words_tail){0}, &small, 1);
    bad_words_destroy(&none);
    bad_words_destroy(&empty);
    bad_words_destroy(&blanks);
    bad_words_destroy(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_token_is_always_forbidden),
        cmocka_unit_test(the_last_token_is_forbidden_behind_the_others),
        cmocka_unit_test(odd_texts),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

/* The record of a computed prompt: back as it was, or refused by name. */
#include "tests/unit/engine_handover_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* Reads the record by the terms: NULL, or why not. */
static const char *read_by(const handover_terms *terms, const uint8_t *bytes, size_t n)
{
    takeover t = {0};
    const char *why = handover_read(terms, bytes, n, &t);
    alloc_free(NULL, t.tables);
    return why;
}

static void comes_back_as_it_was(void **state)
{
    (void)state;
    ho_prompt p;
    size_t n;
    takeover t = {0};
    ho_make(&p);
    p.bases[1][0] = 77; /* means nothing, because the page's slots have positions */
    uint8_t *bytes = ho_record(&p, &n);
    assert_true(n <= handover_most(&p.terms));
    assert_null(handover_read(&p.terms, bytes, n, &t));
    assert_int_equal(t.handed.n_tokens, HO_TOKENS);
    assert_memory_equal(t.handed.tokens, p.tokens, sizeof(uint32_t) * HO_TOKENS);
    assert_int_equal(t.handed.first_token, 5);
    assert_int_equal(t.handed.pages_dropped, 3);
    assert_int_equal(t.handed.image.grain, p.export.image.grain);
    assert_true(t.handed.image.dropped && !t.handed.image.contiguous);
    assert_false(t.handed.foreign);
    assert_int_equal(t.tables[1].kept, HO_PAGE + 8);
    assert_memory_equal(t.tables[0].bases, p.bases[0], sizeof p.bases[0]);
    assert_int_equal(t.tables[1].bases[0], 0);
    assert_int_equal(t.tables[1].bases[1], p.bases[1][1]);
    assert_memory_equal(t.tables[1].slots, p.slots, sizeof p.slots);
    assert_int_equal(t.first.token, 5);
    assert_int_equal(t.first.rank, 2);
    assert_int_equal(t.first.n_top, 1);
    assert_int_equal(t.first.top_ids[0], 7);
    assert_true(t.first.logprob == -0.5f && t.first.top_logprobs[0] == -0.25f);
    for (size_t i = 0; i < (size_t)HO_CELLS * HO_CELL; i++)
        assert_int_equal(t.cells[i], (uint8_t)i);
    assert_ptr_equal(t.cells + (size_t)HO_CELLS * HO_CELL, bytes + n);
    alloc_free(NULL, t.tables);
    /* Where K and V differ by rounding, the record is good for its request alone. */
    p.terms.identity++;
    assert_null(handover_read(&p.terms, bytes, n, &t));
    assert_true(t.handed.foreign);
    alloc_free(NULL, t.tables);
    free(bytes);
}

static void another_request_is_refused_by_name(void **state)
{
    (void)state;
    ho_prompt p, other;
    size_t n;
    ho_make(&p);
    uint8_t *bytes = ho_record(&p, &n);
    handover_terms terms = p.terms;
    terms.policy = 7;
    assert_non_null(strstr(read_by(&terms, bytes, n), "another retention"));
    terms = p.terms;
    terms.sampling = 7;
    assert_non_null(strstr(read_by(&terms, bytes, n), "sampling"));
    terms = p.terms;
    terms.cell_bytes = 48;
    assert_non_null(strstr(read_by(&terms, bytes, n), "these pages"));
    ho_make(&other);
    other.geometry.page_tokens = 32;
    assert_non_null(strstr(read_by(&other.terms, bytes, n), "these pages"));
    ho_make(&other);
    other.tokens[39] = 1;
    assert_non_null(strstr(read_by(&other.terms, bytes, n), "another prompt"));
    terms = p.terms;
    terms.n_tokens--;
    assert_non_null(strstr(read_by(&terms, bytes, n), "another prompt"));
    free(bytes);
}

/* A peer's numbers of the first token come into the answer. */
static void numbers_that_are_none_are_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ho_prompt p;
        size_t n;
        ho_make(&p);
        if (i == 0) p.first.top_logprobs[0] = NAN;
        if (i == 1) p.first.logprob = NAN;
        if (i == 2) p.first.rank = p.terms.vocab_size + 1;
        if (i == 3) p.first.top_ids[0] = p.terms.vocab_size;
        uint8_t *bytes = ho_record(&p, &n);
        assert_non_null(strstr(read_by(&p.terms, bytes, n), "damaged"));
        free(bytes);
    }
}

/* min_tokens, which the prefill server leaves out, changes no greedy draw but that of a stop token,
 * and no logprobs but those of a draw with a mask. */
static void banned_tokens_change_some_draws(void **state)
{
    (void)state;
    ho_prompt p;
    size_t n;
    ho_make(&p);
    uint8_t *bytes = ho_record(&p, &n);
    handover_terms terms = p.terms;
    terms.n_banned = 2;
    assert_null(read_by(&terms, bytes, n));
    terms.bans_shown = true;
    assert_non_null(strstr(read_by(&terms, bytes, n), "other sampling parameters"));
    terms.n_banned = 0; /* nothing is missing from the mask */
    assert_null(read_by(&terms, bytes, n));
    terms.n_banned = 2;
    terms.bans_shown = false;
    terms.greedy = false;
    assert_non_null(read_by(&terms, bytes, n));
    terms.n_banned = 0;
    assert_null(read_by(&terms, bytes, n));
    free(bytes);
    p.first.token = 9;
    bytes = ho_record(&p, &n);
    terms.greedy = true;
    terms.n_banned = 2;
    assert_non_null(read_by(&terms, bytes, n)); /* a stop token */
    terms.n_banned = 0;
    assert_null(read_by(&terms, bytes, n));
    free(bytes);
}

/* Every cut, and every change of a byte before K and V, is refused or leaves an image that fits. */
static void damage_is_refused(void **state)
{
    (void)state;
    ho_prompt p;
    size_t n, refused = 0;
    ho_make(&p);
    uint8_t *bytes = ho_record(&p, &n), *copy = malloc(n);
    size_t before = n - (size_t)HO_CELLS * HO_CELL;
    for (size_t i = 0; i < n; i++) {
        memcpy(copy, bytes, i);
        assert_non_null(read_by(&p.terms, copy, i));
    }
    memcpy(copy, bytes, n);
    for (size_t i = 0; i < before; i++) {
        takeover t = {0};
        copy[i] ^= 0xff;
        if (handover_read(&p.terms, copy, n, &t)) refused++;
        else assert_true(pkv_image_fits(&p.geometry, &t.handed.image));
        alloc_free(NULL, t.tables);
        copy[i] ^= 0xff;
    }
    assert_true(refused > before / 2);
    free(copy);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was),
        cmocka_unit_test(another_request_is_refused_by_name),
        cmocka_unit_test(numbers_that_are_none_are_refused),
        cmocka_unit_test(banned_tokens_change_some_draws),
        cmocka_unit_test(damage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

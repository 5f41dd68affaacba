/* Scorers, by examples worked out by hand from the benchmarks' definitions. */
#include "quality/report/stats.h"
#include "quality/score/scorers.h"
#include "quality/score/word_scores.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double score(scorer_kind kind, const char *answer, const char *a, const char *b)
{
    const char *items[] = {a, b};
    string_list references = {items, b ? 2 : 1, 2}, none = {0};
    return scorer_score(kind, answer, &references, &none);
}

static void matching(void **state)
{
    (void)state;
    assert_float_equal(score(SCORER_EXACT, " 48213\n", "48213", NULL), 1, 0);
    assert_float_equal(score(SCORER_EXACT, "48213.", "48213", NULL), 0, 0);
    assert_float_equal(score(SCORER_MATCH_ALL, "It is ABC, and x", "abc", "def"), 0.5, 0);
    assert_float_equal(score(SCORER_MATCH_PART, "It is ABC, and x", "abc", "def"), 1, 0);
    assert_float_equal(score(SCORER_MATCH_PART, "nothing", "abc", "def"), 0, 0);
    assert_float_equal(score(SCORER_FIRST_NUMBER, "it is 71432, not 9", "71432", NULL), 1, 0);
    assert_float_equal(score(SCORER_FIRST_NUMBER, "9, not 71432", "71432", NULL), 0, 0);
    assert_float_equal(score(SCORER_RETRIEVAL, "Paragraph 12 or 7", "Paragraph 12", NULL), 0.5, 0);
    assert_float_equal(score(SCORER_COUNT, "there are 3", "3", NULL), 1, 0);
    assert_float_equal(score(SCORER_COUNT, "none", "3", NULL), 0, 0);
}

static void numbers(void **state)
{
    (void)state;
    assert_float_equal(
        score(SCORER_ANSWER_NUMBER, "3 * 4 = 12. The answer is 1,012. Next: 7", "1012", NULL), 1,
        0);
    assert_float_equal(score(SCORER_ANSWER_NUMBER, "so 5, then 12.", "12", NULL), 1, 0);
    assert_float_equal(score(SCORER_ANSWER_NUMBER, "The answer is -4", "-4", NULL), 1, 0);
    assert_float_equal(score(SCORER_ANSWER_NUMBER, "12.50", "12.5", NULL), 1, 0);
    assert_float_equal(score(SCORER_ANSWER_NUMBER, "The answer is 12, not 13", "13", NULL), 0, 0);
    assert_float_equal(score(SCORER_ANSWER_NUMBER, "no number", "13", NULL), 0, 0);

    const char *text =
        "Answer_9: 1 + 2. The answer is 3.\nAnswer_10: the answer is 9.\nAnswer_11: 4";
    assert_true(scorer_numbered(text, 0, "3"));
    assert_false(scorer_numbered(text, 0, "9"));
    assert_true(scorer_numbered(text, 1, "9"));
    assert_false(scorer_numbered(text, 2, "4")); /* no "answer is" */
    assert_float_equal(score(SCORER_NUMBERED, text, "3", "8"), 0.5, 0);
    /* The answer of the next question does not count for this one. */
    assert_false(scorer_numbered("Answer_9: none\nAnswer_10: the answer is 3", 0, "3"));
}

static void words(void **state)
{
    (void)state;
    /* 2 common words of 3 and 4: 2 * 2 / 7; articles, case and punctuation are ignored. */
    assert_float_equal(score(SCORER_F1, "The cat, a dog sat", "cat dog ran far", NULL), 4.0 / 7,
                       1e-9);
    assert_float_equal(score(SCORER_F1, "cat cat", "cat", NULL), 2.0 / 3, 1e-9);
    assert_float_equal(score(SCORER_F1, "", "cat", NULL), 0, 0);
    assert_float_equal(score(SCORER_F1, "fish", "cat", "the fish"), 1, 1e-9);
    assert_float_equal(score(SCORER_FIRST_LINE_F1, "\ncat\nmore words", "cat", NULL), 1, 1e-9);

    /* "police killed the gunman" / "police kill the gunman": 3 of 4 words on both sides. */
    assert_float_equal(
        score(SCORER_ROUGE_L, "police kill the gunman", "police killed the gunman", NULL), 0.75,
        1e-9);
    /* In order: "b a" and "a b" have one common word. */
    assert_float_equal(score(SCORER_ROUGE_L, "b a", "a b", NULL), 0.5, 1e-9);
    /* Two sentences: each may match another, and a word counts once; 3 hits of 3 and 4 words: r =
     * 1, p = 0.75, beta = 0.75. */
    double r = 1, p = 0.75, beta = p / r;
    assert_float_equal(score(SCORER_ROUGE_L, "c d. a b", "a b. c", NULL),
                       (1 + beta * beta) * r * p / (r + beta * beta * p), 1e-9);
    assert_float_equal(score(SCORER_ROUGE_L, "", "a", NULL), 0, 0);

    assert_float_equal(byte_similarity("abcd", 4, "abxd", 4), 0.75, 1e-9);
    assert_float_equal(byte_similarity("", 0, "", 0), 1, 0);
    assert_float_equal(score(SCORER_EDIT, "\n# no\nx = 1\ny", "x = 2", NULL), 0.8, 1e-9);
    assert_float_equal(score(SCORER_EDIT, "```\n// no", "x = 2", NULL), 0, 0);
}

static void classes(void **state)
{
    (void)state;
    const char *names[] = {"City", "Big City", "Food"}, *right[] = {"Big City"};
    string_list all = {names, 3, 3}, reference = {right, 1, 1};
    /* "City" occurs too, but only inside the right class. */
    assert_float_equal(scorer_score(SCORER_CLASS, "a Big City", &reference, &all), 1, 0);
    assert_float_equal(scorer_score(SCORER_CLASS, "Big City or Food", &reference, &all), 0.5, 0);
    assert_float_equal(scorer_score(SCORER_CLASS, "Food", &reference, &all), 0, 0);
    assert_float_equal(scorer_score(SCORER_FIRST_LINE_CLASS, "Food\nBig City", &reference, &all), 0,
                       0);
    assert_float_equal(score(SCORER_CHOICE, "A or rather B.", "the sea", "B"), 1, 0);
    assert_float_equal(score(SCORER_CHOICE, "A", "the sea", "B"), 0, 0);
    assert_float_equal(score(SCORER_CHOICE, "the sea", "the sea", "B"), 1, 0);
}

/* ---- intervals ------------------------------------------------------------------------------- */

static void wilson(void **state)
{
    (void)state;
    stat_value values[10];
    for (uint32_t i = 0; i < 10; i++) values[i] = (stat_value){i, i < 8};
    stat_mean m = stat_wilson(values, 10);
    assert_float_equal(m.mean, 0.8, 1e-6);
    assert_float_equal(m.low, 0.4901625, 1e-4);
    assert_float_equal(m.high, 0.9433178, 1e-4);

    /* Ten prompts of two contexts, equal within a context, count like about two prompts. */
    for (uint32_t i = 0; i < 10; i++) values[i] = (stat_value){i / 5, i < 5};
    stat_mean alone = stat_wilson(values, 10);
    for (uint32_t i = 0; i < 10; i++) values[i].cluster = i;
    stat_mean apart = stat_wilson(values, 10);
    assert_true(alone.high - alone.low > 1.5 * (apart.high - apart.low));

    for (uint32_t i = 0; i < 10; i++) values[i] = (stat_value){i, 1};
    m = stat_wilson(values, 10);
    assert_true(m.high >= 1 && m.low > 0.6 && m.low < 0.8);
    assert_int_equal(stat_wilson(values, 0).n, 0);
}

static void bootstrap(void **state)
{
    (void)state;
    stat_value values[200];
    for (uint32_t i = 0; i < 200; i++) values[i] = (stat_value){i, (float)(i % 2)};
    stat_mean m = stat_bootstrap(values, 200, 1), again = stat_bootstrap(values, 200, 1);
    /* 1.96 * sqrt(0.25 / 200) = 0.069 */
    assert_float_equal(m.mean, 0.5, 1e-6);
    assert_float_equal(m.low, 0.431, 0.012);
    assert_float_equal(m.high, 0.569, 0.012);
    assert_true(m.low == again.low && m.high == again.high);

    /* Contexts are resampled whole: four contexts of one value each give a wide interval. */
    for (uint32_t i = 0; i < 200; i++) values[i] = (stat_value){i / 50, (float)(i / 50 % 2)};
    m = stat_bootstrap(values, 200, 1);
    assert_int_equal(m.n_clusters, 4);
    assert_true(m.low <= 0 && m.high >= 1);

    for (uint32_t i = 0; i < 200; i++) values[i].cluster = 0;
    assert_true(isnan(stat_bootstrap(values, 200, 1).low));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching), cmocka_unit_test(numbers), cmocka_unit_test(words),
        cmocka_unit_test(classes),  cmocka_unit_test(wilson),  cmocka_unit_test(bootstrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

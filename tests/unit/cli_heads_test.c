/* The parts of `octavo heads`: samples, ranks and the choice of heads. */
#include "cli/heads_search.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- samples --------------------------------------------------------------------------------- */

static tokenizer *open_tokenizer(void)
{
    tokenizer *t;
    error err = {{0}};
    if (!status_ok(tok_load("models/demo", &t, &err))) fail_msg("%s", err.text);
    return t;
}

/* The text of the tokens [from, to) that are gold or not, as `gold` says. */
static void texts_of(const tokenizer *t, const heads_sample *s, bool gold, strbuf *out)
{
    for (uint32_t i = 0; i < s->n_context; i++)
        if (s->gold[i] == gold) tok_decode(t, &s->ids.ids[i], 1, true, out, NULL);
}

static void check_sample(const tokenizer *t, heads_task task, const char *begin, uint32_t n_lines)
{
    rng r = rng_seed(5);
    heads_sample s = {.gold = NULL};
    error err = {{0}};
    for (uint32_t n = 600; n < 4000; n *= 2) {
        strbuf gold = {0}, rest = {0};
        if (!status_ok(heads_sample_make(task, t, n, &r, NULL, 0, &s, &err)))
            fail_msg("%s", err.text);
        assert_in_range(s.ids.n, n - 100, n + 16);
        assert_in_range(s.ids.n - s.n_context, 5, 100);
        texts_of(t, &s, true, &gold);
        texts_of(t, &s, false, &rest);
        uint32_t lines = 0;
        for (const char *c = gold.data; *c; c++) lines += *c == '\n';
        assert_int_equal(lines, n_lines);
        assert_non_null(strstr(gold.data, begin));
        /* The others' facts are no gold. */
        assert_non_null(strstr(rest.data, begin));
        strbuf_destroy(&gold);
        strbuf_destroy(&rest);
    }
    heads_sample_destroy(&s);
}

static void gold_tokens_are_the_facts(void **state)
{
    (void)state;
    tokenizer *t = open_tokenizer();
    check_sample(t, HEADS_PATTERN, "The value corresponding to the id ", 1);
    check_sample(t, HEADS_MULTI_HOP, " earns a living as a ", 2);
    tok_destroy(t);
}

/* A tokenizer drops characters that it has no tokens for. */
static void a_tokenizer_that_drops_text_ends_the_sample(void **state)
{
    (void)state;
    static const char json[] = "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\","
                               "\"vocab\":{\"Q\":0},\"merges\":[]}}";
    static const char *const lines[] = {"none", "QQQ", "none"};
    rng r = rng_seed(5);
    heads_sample s = {.gold = NULL};
    error err = {{0}};
    tokenizer *t;
    assert_true(status_ok(tok_load_text("q", json, sizeof json - 1, &t, &err)));
    for (size_t n_lines = 0; n_lines < 2; n_lines++) {
        status st = heads_sample_make(HEADS_PATTERN, t, 600, &r, lines, n_lines, &s, &err);
        assert_int_equal(st.code, STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, "makes no tokens"));
    }
    assert_true(status_ok(heads_sample_make(HEADS_PATTERN, t, 600, &r, lines, 3, &s, &err)));
    assert_in_range(s.ids.n, 590, 620);
    heads_sample_destroy(&s);
    tok_destroy(t);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The definition: ranks by the mean over ten tokens before and nine behind, earlier ones first. */
static double naive_rank(const float *found, const bool *gold, int n)
{
    double sum = 0, *mean = calloc((size_t)n, sizeof *mean);
    int n_gold = 0;
    for (int i = 0; i < n; i++) {
        int from = i < 10 ? 0 : i - 10, to = i + 10 < n ? i + 10 : n;
        for (int j = from; j < to; j++) mean[i] += (double)found[j] / (to - from);
    }
    for (int i = 0; i < n; i++) {
        if (!gold[i]) continue;
        n_gold++;
        for (int j = 0; j < n; j++) sum += mean[j] > mean[i] + 1e-9;
    }
    free(mean);
    return sum / n_gold / n;
}

static void ranks_are_the_definitions(void **state)
{
    (void)state;
    enum { N = 300 };
    float found[N], smooth[N];
    bool gold[N];
    uint64_t order[N];
    rng r = rng_seed(8);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            gold[i] = rng_below(&r, 9) == 0;
            found[i] = (float)rng_below(&r, 1 << 24) / (1 << 23) - 1;
        }
        gold[0] = true;
        double is = heads_rank(found, gold, N, smooth, order), due = naive_rank(found, gold, N);
        if (fabs(is - due) > 2.0 / N) fail_msg("%f, not %f", is, due);
    }
    for (int i = 0; i < N; i++) {
        gold[i] = i >= 100 && i < 110;
        found[i] = gold[i] ? 1 : -0.5f;
    }
    /* The mean over 20 tokens is as high around the gold ones as there. */
    assert_true(heads_rank(found, gold, N, smooth, order) < 20.0 / N);
    for (int i = 0; i < N; i++) found[i] = -found[i];
    assert_true(heads_rank(found, gold, N, smooth, order) > 1 - 20.0 / N);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static void pattern_heads_are_not_deep(void **state)
{
    (void)state;
    /* Ten layers: those from 7 on are too deep. */
    const heads_score scores[] = {
        {{9, EMBED_Q, 0}, {0.01, 0.04}}, {{6, EMBED_V, 0}, {0.3, 0.05}},
        {{7, EMBED_K, 1}, {0.02, 0.4}},  {{1, EMBED_Q, 3}, {0.2, 0.01}},
        {{2, EMBED_V, 2}, {0.5, 0.03}},
    };
    heads_choice c = heads_choose(scores, 5, 10);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.scores[0], 3); /* although it is the best of the other task, too */
    assert_int_equal(c.scores[1], 1);
    assert_int_equal(c.scores[2], 4);
    assert_int_equal(c.scores[3], 0);
    assert_true(c.tasks[1] == HEADS_PATTERN && c.tasks[2] == HEADS_MULTI_HOP);
    c = heads_choose(scores, 3, 10);
    assert_int_equal(c.n, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gold_tokens_are_the_facts),
        cmocka_unit_test(a_tokenizer_that_drops_text_ends_the_sample),
        cmocka_unit_test(ranks_are_the_definitions),
        cmocka_unit_test(pattern_heads_are_not_deep),
    };
    return cmocka_run_group_tests_name("cli_heads", tests, NULL, NULL);
}

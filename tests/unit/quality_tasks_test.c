/* Generated documents have the requested length, are the same for the same seed, and contain the
 * right answers. */
#include "quality/bm25.h"
#include "quality/tasks/tasks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A tokenizer that counts four bytes as a token. */
static status count_quarters(void *ctx, const char *text, size_t n, uint32_t *tokens, error *err)
{
    (void)text;
    (void)err;
    ++*(unsigned *)ctx;
    *tokens = (uint32_t)(n + 3) / 4;
    return STATUS_IS_OK;
}

static document fit(const task *t, const task_context *ctx, uint64_t seed)
{
    document d;
    error err = {{0}};
    unsigned calls = 0;
    if (!status_ok(task_fit(t, ctx, seed, count_quarters, &calls, &d, &err)))
        fail_msg("%s: %s", t->name, err.text);
    assert_in_range(calls, 1, 40);
    return d;
}

static haystack text;

/* Each needle of a question occurs once in the text. */
static void check_needles(const task *t, const document *d, const question *q)
{
    for (size_t i = 0; i < q->needles.n; i++) {
        const char *at = strstr(d->text.data, q->needles.items[i]);
        if (!at) fail_msg("%s: the text lacks '%s'", t->name, q->needles.items[i]);
        if (strstr(at + 1, q->needles.items[i]))
            fail_msg("%s: the text has '%s' twice", t->name, q->needles.items[i]);
        size_t from = (size_t)(at - d->text.data);
        assert_in_range(from, d->context_from, d->context_to);
    }
}

static void check_document(const task *t, const task_context *ctx, const document *d)
{
    assert_in_range(d->n_questions, 1, ctx->max_questions);
    uint32_t tokens = (uint32_t)(document_longest(d) + 3) / 4 + t->max_new_tokens;
    /* One more unit would not have fitted; the longest units are lines of a text and story
     * problems. */
    assert_in_range(tokens, ctx->target_tokens - 200, ctx->target_tokens);
    for (size_t i = 0; i < d->n_questions; i++) {
        const question *q = &d->questions[i];
        assert_true(q->references.n > 0);
        check_needles(t, d, q);
        for (size_t k = 0; k < i; k++)
            if (strcmp(d->questions[k].text, q->text) == 0)
                fail_msg("%s: asks '%s' twice", t->name, q->text);
        /* The answer that the references spell scores as right. */
        strbuf answer = {0};
        for (size_t k = 0; k < q->references.n; k++)
            strbuf_printf(&answer, k ? " %s" : "%s", q->references.items[k]);
        assert_float_equal(scorer_score(t->scorer, answer.data, &q->references, &d->classes), 1, 0);
        strbuf_destroy(&answer);
    }
}

static void all_tasks_fit(void **state)
{
    (void)state;
    const task *t;
    for (size_t i = 0; (t = task_at(i)) != NULL; i++) {
        if (t->least_size == 0) continue; /* its length is fixed */
        for (int with_text = 0; with_text < 2; with_text++) {
            task_context ctx = {with_text ? &text : NULL, 8, 3000};
            document a = fit(t, &ctx, 5), b = fit(t, &ctx, 5), c = fit(t, &ctx, 6);
            check_document(t, &ctx, &a);
            assert_string_equal(a.text.data, b.text.data);
            assert_string_not_equal(a.text.data, c.text.data);
            document_destroy(&a);
            document_destroy(&b);
            document_destroy(&c);
        }
    }
}

/* Hidden lines are at the requested depth, the first and the last place included. */
static void hidden_lines(void **state)
{
    (void)state;
    document d;
    rng r = rng_seed(2);
    const hidden hide[] = {{"last", 3}, {"first", 0}, {"second", 1}, {"third", 1}};
    document_init(&d);
    haystack_write(&d, NULL, &r, 3, hide, 4);
    strbuf wanted = {0};
    strbuf_printf(&wanted, "first\n%s\nsecond\nthird\n%s\n%s\nlast\n", haystack_noise,
                  haystack_noise, haystack_noise);
    assert_string_equal(d.text.data, wanted.data);
    strbuf_destroy(&wanted);
    document_destroy(&d);

    hidden slots[16];
    haystack_slots(&r, 4, slots, 16, true);
    for (int i = 0; i < 16; i++) assert_in_range(slots[i].slot, i ? slots[i - 1].slot : 0, 4);
    assert_int_equal(slots[0].slot, 0);
    assert_int_equal(slots[15].slot, 4);
}

static void numbered_questions(void **state)
{
    (void)state;
    const task *t = task_find("longgen_30", strlen("longgen_30"));
    assert_non_null(t);
    task_context ctx = {NULL, 1, 8000};
    document d = fit(t, &ctx, 3);
    assert_int_equal(d.questions[0].references.n, 30);
    assert_non_null(strstr(d.text.data, "Question_38:"));
    assert_null(strstr(d.text.data, "Question_39:"));
    strbuf answer = {0};
    for (int i = 0; i < 30; i++)
        strbuf_printf(&answer, "Answer_%d: The answer is %s.\n", 9 + i,
                      d.questions[0].references.items[i]);
    string_list none = {0};
    assert_float_equal(scorer_score(t->scorer, answer.data, &d.questions[0].references, &none), 1,
                       0);
    strbuf_destroy(&answer);
    document_destroy(&d);

    error err;
    unsigned calls = 0;
    ctx.target_tokens = 2000;
    status st = task_fit(t, &ctx, 3, count_quarters, &calls, &d, &err);
    assert_int_equal(st.code, STATUS_LIMIT);
}

/* The word counts of the list show which words are common. */
static void common_words(void **state)
{
    (void)state;
    const task *t = task_find("cwe", 3);
    task_context ctx = {NULL, 1, 6000};
    document d = fit(t, &ctx, 9);
    const question *q = &d.questions[0];
    assert_int_equal(q->references.n, 10);
    for (size_t i = 0; i < 10; i++) {
        char word[64];
        size_t n = 0;
        int length = snprintf(word, sizeof word, " %s ", q->references.items[i]);
        for (const char *s = d.text.data + d.context_from; (s = strstr(s, word)) != NULL; s++) n++;
        assert_true(length > 0);
        assert_in_range(n, 29, 30); /* the last word of the list has no blank after it */
    }
    document_destroy(&d);
}

/* ---- words that the demo model knows --------------------------------------------------------- */

static void demo_wording(void **state)
{
    (void)state;
    task_context ctx = {NULL, 16, 2000};
    document d = fit(task_find("demo_kv", 7), &ctx, 1);
    assert_memory_equal(d.text.data, "<|im_start|>user\nJSON data:\n{\"", 30);
    assert_memory_equal(d.text.data + d.text.size - 3, "\"}\n", 3);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "Key: \"%s\"<|im_end|>\n<|im_start|>assistant\n",
             d.questions[0].query);
    assert_string_equal(d.questions[0].text, wanted);
    document_destroy(&d);
}

/* Among 4,000 keys of four letters one in about 115 has another's letters, and cannot be asked for:
 * another key is. */
static void a_long_list_of_keys_has_its_question(void **state)
{
    (void)state;
    const task *t = task_find("demo_kv", 7);
    const task_context ctx = {NULL, 1, 1 << 16};
    for (uint64_t seed = 0; seed < 200; seed++) {
        rng r = rng_seed(seed);
        document d;
        document_init(&d);
        t->make(t, &ctx, &r, 4000, &d);
        assert_false(d.failed);
        assert_int_equal(d.n_questions, 1);
        check_needles(t, &d, &d.questions[0]);
        document_destroy(&d);
    }
}

static void unknown_name(void **state)
{
    (void)state;
    assert_null(task_find("nia", 3));
    assert_non_null(task_find("vt,cwe", 2));
}

/* ---- BM25 ------------------------------------------------------------------------------------ */

static void bm25(void **state)
{
    (void)state;
    tokenizer *t;
    error err = {{0}};
    if (!status_ok(tok_load("models/demo", &t, &err))) fail_msg("%s", err.text);
    strbuf context = {0}, chosen = {0};
    for (int i = 0; i < 400; i++) strbuf_printf(&context, "%s\n", haystack_noise);
    size_t at = context.size / 2;
    char line[] = "The magic number for Kiwi is 48213.";
    memcpy(context.data + at, line, sizeof line - 1);
    /* One chunk fits: the chunk with the name. */
    assert_true(status_ok(
        bm25_choose(t, context.data, context.size, "KIWI", BM25_CHUNK_TOKENS, &chosen, &err)));
    assert_non_null(strstr(chosen.data, "Kiwi"));
    size_t one = chosen.size;
    strbuf_clear(&chosen);
    /* With room for everything, the result is the text. */
    assert_true(
        status_ok(bm25_choose(t, context.data, context.size, "KIWI", 1 << 20, &chosen, &err)));
    assert_int_equal(chosen.size, context.size);
    assert_memory_equal(chosen.data, context.data, context.size);
    assert_true(one < context.size / 8);
    strbuf_destroy(&chosen);
    strbuf_destroy(&context);
    tok_destroy(t);
}

static int setup(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/octavo-haystack-XXXXXX", P_tmpdir);
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) return -1;
    for (int i = 0; i < 500; i++) fprintf(f, "Line %d of a play.\n\n", i);
    fclose(f);
    error err;
    status st = haystack_load(path, &text, &err);
    unlink(path);
    return status_ok(st) && text.n_lines == 500 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    haystack_destroy(&text);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tasks_fit),
        cmocka_unit_test(hidden_lines),
        cmocka_unit_test(numbered_questions),
        cmocka_unit_test(common_words),
        cmocka_unit_test(demo_wording),
        cmocka_unit_test(a_long_list_of_keys_has_its_question),
        cmocka_unit_test(unknown_name),
        cmocka_unit_test(bm25),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Merging against its definition, for words of lengths around the switch between its two
 * algorithms; and the limit on a pattern's cost. */
#include "tests/unit/model_folder.h"
#include "text/tokenizer.h"
#include "text/tokenizer/bpe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { LETTERS = 3, TOKENS = 60, WORD_MAX = 150 };

typedef struct merges {
    tok_bpe_model model;
    uint32_t left[TOKENS], right[TOKENS]; /* halves of token id >= LETTERS, whose rank is id */
} merges;

/* Tokens 0 to 2 are letters, every other token joins two earlier ones. */
static void make_merges(merges *m, rng *r)
{
    assert_true(tok_bpe_create(&m->model, TOKENS));
    for (uint32_t i = 0; i < LETTERS; i++) m->model.byte_id['a' + i] = i;
    for (uint32_t id = LETTERS; id < TOKENS; id++) {
        bool again = true;
        while (again) {
            m->left[id] = rng_u32(r) % id;
            m->right[id] = rng_u32(r) % (id < 12 ? LETTERS : id);
            again = false;
            for (uint32_t k = LETTERS; k < id; k++)
                again = again || (m->left[k] == m->left[id] && m->right[k] == m->right[id]);
        }
        tok_bpe_add_merge(&m->model, m->left[id], m->right[id], id, id);
    }
}

/* Merges the leftmost pair of the lowest rank, again and again. */
static size_t merge_plainly(const merges *m, uint32_t *ids, size_t n)
{
    for (uint32_t id = LETTERS; id < TOKENS; id++) {
        for (size_t i = 0; i + 1 < n; i++) {
            if (ids[i] != m->left[id] || ids[i + 1] != m->right[id]) continue;
            ids[i] = id;
            memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
            n--;
            id = LETTERS - 1; /* a lower rank may have become possible */
            break;
        }
    }
    return n;
}

static void merges_are_the_plain_ones(void **state)
{
    (void)state;
    rng r = rng_seed(7);
    for (unsigned round = 0; round < 20; round++) {
        merges m = {0};
        tok_bpe_scratch scratch;
        make_merges(&m, &r);
        assert_true(tok_bpe_scratch_create(&scratch, 1000));
        tok_ids ids = {0};
        for (size_t n = 1; n <= WORD_MAX; n++) {
            uint8_t word[WORD_MAX];
            uint32_t due[WORD_MAX];
            unsigned letters = 1 + rng_u32(&r) % LETTERS;
            for (size_t i = 0; i < n; i++) due[i] = rng_u32(&r) % letters;
            for (size_t i = 0; i < n; i++) word[i] = (uint8_t)('a' + due[i]);
            size_t n_due = merge_plainly(&m, due, n);
            for (unsigned again = 0; again < 2; again++) { /* the second time from the cache */
                ids.n = 0;
                assert_true(tok_bpe_encode_word(&m.model, &scratch, word, n, &ids));
                assert_int_equal(ids.n, n_due);
                assert_memory_equal(ids.ids, due, n_due * sizeof *due);
            }
        }
        tok_ids_destroy(&ids);
        tok_bpe_scratch_destroy(&scratch);
        tok_bpe_destroy(&m.model);
    }
}

/* A tokenizer of the letters x and y whose text is split by a pattern. */
static tokenizer *split_by(const char *pattern)
{
    strbuf json = {0};
    error err = {""};
    tokenizer *t;
    strbuf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,\"y\":1},\"merges\":[]},"
                       "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","
                       "\"pattern\":{\"Regex\":");
    strbuf_json_string(&json, pattern, strlen(pattern));
    strbuf_puts(&json, "}},\"decoder\":{\"type\":\"Fuse\"}}");
    if (!status_ok(tok_load_text("f", json.data, json.size, &t, &err))) fail_msg("%s", err.text);
    strbuf_destroy(&json);
    return t;
}

static status encode_x(const tokenizer *t, size_t n, size_t *n_ids, error *err)
{
    char *text = malloc(n);
    tok_ids ids = {0};
    assert_non_null(text);
    memset(text, 'x', n);
    status s = tok_encode(t, text, n, false, &ids, err);
    *n_ids = ids.n;
    tok_ids_destroy(&ids);
    free(text);
    return s;
}

/* Patterns of quadratic cost, one by backtracking and one by retrying, and one whose cost doubles
 * with every letter: a short text is split, a long one is refused before it takes seconds. */
static void what_patterns_cost_is_capped(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        size_t easy;
    } rows[] = {{"x*y|x", 1000}, {"x++y|x", 1000}, {"(?:x*)*y|x", 10}, {"x(?=x*y)|x", 1000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tokenizer *t = split_by(rows[i].pattern);
        size_t n;
        error err = {""};
        assert_true(status_ok(encode_x(t, rows[i].easy, &n, &err)));
        assert_int_equal(n, rows[i].easy);
        assert_int_equal(encode_x(t, 100000, &n, &err).code, STATUS_LIMIT);
        assert_int_equal(n, 0);
        assert_non_null(strstr(err.text, "too hard for the tokenizer's split pattern"));
        tok_destroy(t);
    }
    tokenizer *t = split_by("x+y?");
    size_t n;
    error err = {""};
    assert_true(status_ok(encode_x(t, 1000000, &n, &err)));
    assert_int_equal(n, 1000000);
    tok_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_the_plain_ones),
        cmocka_unit_test(what_patterns_cost_is_capped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

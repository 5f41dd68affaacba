/* Rows are scored inside the backend, with the bits that the logits of the same step give. */
#include "base/logits.h"
#include "tests/unit/model_pass.h"

enum { TOKENS = 150, TOPS = 5 };

static const pass usual = {.dir = "models/demo",
                           .kv_type = KERN_KV_F32,
                           .quant_group = 32,
                           .page_tokens = 16,
                           .layers_per_group = 1,
                           .chunk = TOKENS,
                           .want_scores = 1 + TOPS};

static void expect_scores(const pass *p)
{
    uint32_t tokens[TOKENS], top_ids[TOPS];
    float tops[TOPS];
    random_tokens(tokens, TOKENS, 1000);
    pass_result r = run(p, tokens, TOKENS);
    for (uint32_t i = 0; i < TOKENS; i++) {
        const step_sample *s = &r.scores[i];
        uint32_t next = i + 1 < TOKENS ? tokens[i + 1] : 0, n_top = p->want_scores - 1;
        logit_score due = logits_score(r.logits + (size_t)i * r.config.vocab_size,
                                       r.config.vocab_size, next, n_top, top_ids, tops);
        assert_int_equal(s->token, next);
        assert_int_equal(s->rank, due.rank);
        assert_int_equal(s->n_top, n_top);
        assert_memory_equal(&s->logprob, &due.logprob, sizeof(float));
        assert_memory_equal(s->top_ids, top_ids, n_top * sizeof *top_ids);
        assert_memory_equal(s->top_logprobs, tops, n_top * sizeof *tops);
    }
    result_free(&r);
}

static void scores_are_those_of_the_logits(void **state)
{
    (void)state;
    pass p = usual;
    static const uint32_t chunks[] = {TOKENS, 64, 65, 1};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        p.chunk = chunks[i];
        for (p.n_threads = 1; p.n_threads <= 3; p.n_threads += 2) expect_scores(&p);
    }
    p.want_scores = 1; /* no other shares beside it */
    expect_scores(&p);
}

/* Every rank computes a part of the logits; the scores of rank 0 count. */
static void ranks_score_too(void **state)
{
    (void)state;
    pass p = usual;
    p.n_ranks = 2;
    expect_scores(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(ranks_score_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

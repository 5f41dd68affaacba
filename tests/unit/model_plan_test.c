/* model/plan.c: a plan that may come from another process is refused where a backend would index
 * out of bounds, and the message says what is wrong. Each row changes one field of a good plan. */
#include "model/plan.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PROMPT = 300, SEQ = 1 };

static const pkv_geometry geometry = {
    .page_tokens = 16, .n_layers = 2, .n_kv_heads = 2, .layers_per_group = 1, .heads_per_group = 1};
static const backend_info info = {
    .max_seqs = 4,
    .max_rows = 512,
    .max_in_flight = 2,
    .vocab_size = 50,
    .n_heads = 4,
    .head_dim = 8,
    .geometry = {.page_tokens = 16,
                 .n_layers = 2,
                 .n_kv_heads = 2,
                 .layers_per_group = 1,
                 .heads_per_group = 1},
    .retrieves = (1 << RETRIEVAL_MEAN) | (1 << RETRIEVAL_DYNAMIC) | RETRIEVAL_NEEDS_HISTORY,
};
static uint32_t tokens[512];

/* A share that computes the slots from .. to - 1 of a prompt of PROMPT tokens. */
typedef struct trial {
    step_seq seq;
    step_plan plan;
    uint32_t to;
    bool uneven; /* this table has a page less */
    uint32_t table;
    const backend_info *info;
} trial;

static trial good(uint32_t from, uint32_t to)
{
    trial t = {.seq = {.seq = SEQ,
                       .n_tokens = to - from,
                       .retrieval = {.block_tokens = 16,
                                     .representative_num = 1,
                                     .group_heads = 1,
                                     .local_tokens = 16,
                                     .top_blocks = 2,
                                     .observed_rows = 128,
                                     .layer_step = 1,
                                     .token_step = 1},
                       .n_prompt = PROMPT},
               .plan = {.n_seqs = 1, .n_tokens = to - from, .tokens = tokens},
               .to = to,
               .info = &info};
    return t;
}

static status check(trial *t)
{
    pkv *kv;
    pkv_mirror *m;
    uint32_t hit;
    const pkv_options options = {.geometry = geometry, .n_pages = 512, .max_seqs = 4};
    assert_true(status_ok(pkv_create(&options, &kv)));
    assert_true(status_ok(pkv_mirror_create(&geometry, 512, 4, NULL, &m)));
    assert_true(status_ok(pkv_seq_open(kv, SEQ, PKV_HEAD, tokens, 0, 0, t->to, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, SEQ, t->to)));
    if (t->uneven) {
        uint64_t all_but_first = ~(uint64_t)1;
        pkv_seq_drop(kv, SEQ, t->table, &all_but_first);
    }
    pkv_deltas deltas = pkv_take_deltas(kv);
    assert_true(status_ok(pkv_mirror_apply(m, deltas.words, deltas.n_words)));
    t->plan.seqs = &t->seq;
    status s = plan_check(t->info, m, &t->plan);
    pkv_mirror_destroy(m);
    pkv_destroy(kv);
    return s;
}

static void refused(trial t, status_code code, const char *why)
{
    status s = check(&t);
    assert_int_equal(s.code, code);
    assert_string_equal(s.message, why);
}

static void good_plans_pass(void **state)
{
    (void)state;
    static const uint32_t cuts[][2] = {{0, 100}, {100, PROMPT}, {PROMPT, PROMPT + 32}, {290, 332}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        trial t = good(cuts[i][0], cuts[i][1]);
        assert_true(status_ok(check(&t)));
    }
    trial whole = good(PROMPT - 128, PROMPT);
    whole.seq.retrieval.representative = RETRIEVAL_DYNAMIC;
    assert_true(status_ok(check(&whole)));
}

static void shares_that_do_not_fit(void **state)
{
    (void)state;
    static const char tiles[] = "plan: sequences do not tile the tokens";
    trial t = good(0, 100);
    t.plan.n_seqs = 5;
    refused(t, STATUS_LIMIT, "plan: more sequences or tokens than the backend takes");
    t = good(0, 100);
    t.seq.seq = 4;
    refused(t, STATUS_INVALID, tiles);
    t = good(0, 100);
    t.seq.first_token = 1;
    refused(t, STATUS_INVALID, tiles);
    t = good(0, 100);
    t.plan.n_tokens = 101;
    refused(t, STATUS_INVALID, tiles);
    t = good(0, 100);
    t.to = 99;
    refused(t, STATUS_INVALID, "plan: a table without slots for its tokens");
    t = good(0, 100);
    t.seq.want_scores = 1;
    t.seq.next_token = 50;
    refused(t, STATUS_INVALID, "plan: a next token outside the vocabulary");
    t = good(0, 100);
    tokens[99] = 50;
    refused(t, STATUS_INVALID, "plan: a token outside the vocabulary");
    tokens[99] = 0;
}

/* Penalties count tokens of the share itself. */
static void tokens_to_count_that_a_share_has_not(void **state)
{
    (void)state;
    static const char why[] =
        "plan: more tokens to be counted than a share has, or one that is not drawn yet";
    trial t = good(0, 100);
    t.seq.n_uncounted = 100;
    assert_true(status_ok(check(&t)));
    t.seq.n_uncounted = 101;
    refused(t, STATUS_INVALID, why);
    t = good(99, 100);
    t.seq.token_from = 1;
    assert_true(status_ok(check(&t)));
    t.seq.n_uncounted = 1;
    refused(t, STATUS_INVALID, why);
}

static void retrievals_that_cannot_be_made(void **state)
{
    (void)state;
    trial t = good(PROMPT, PROMPT + 33);
    refused(t, STATUS_INVALID, "plan: more rows that read by retrieval than a share may have");
    t = good(PROMPT, PROMPT + 1);
    t.seq.retrieval.representative = RETRIEVAL_QUEST;
    refused(t, STATUS_INVALID, "plan: a retrieval that is not to be had");
    t = good(PROMPT, PROMPT + 1);
    t.seq.measure = (measure_spec){.kind = MEASURE_MASS, .rows = 2, .layer_step = 1};
    refused(t, STATUS_INVALID, "plan: a measure of rows that read by retrieval");
    t.seq.measure = (measure_spec){.kind = MEASURE_MASS, .rows = 1, .layer_step = 1};
    assert_true(status_ok(check(&t)));
    t.seq.measure.by_slot = true;
    refused(t, STATUS_INVALID, "plan: a measure of rows that read by retrieval");
    t.seq.measure.by_slot = false;
    backend_info lacking = info;
    lacking.lacks = MEASURES_READS;
    t.info = &lacking;
    refused(t, STATUS_INVALID, "plan: a measure of rows that read by retrieval");
    t = good(PROMPT - 1, PROMPT);
    t.seq.measure =
        (measure_spec){.kind = MEASURE_RAW, .rows = 1, .layer_step = 1, .by_slot = true};
    t.seq.measure.beside = true;
    assert_true(status_ok(check(&t)));
    lacking.lacks = MEASURES_BESIDE;
    t.info = &lacking;
    refused(t, STATUS_INVALID, "plan: a mass beside a measure, which this backend does not have");
    t = good(PROMPT - 1, PROMPT);
    t.uneven = true;
    refused(t, STATUS_INVALID, "plan: a retrieval in tables of different lengths");

    static const char apart[] =
        "plan: the last rows of a prompt that are not together, and alone, in a share";
    static const uint32_t cuts[][2] = {{PROMPT - 127, PROMPT}, {PROMPT - 128, PROMPT + 1}};
    for (size_t i = 0; i < 2; i++) {
        t = good(cuts[i][0], cuts[i][1]);
        t.seq.retrieval.representative = RETRIEVAL_DYNAMIC;
        refused(t, STATUS_INVALID, apart);
    }
    static const char room[] = "plan: a retrieval that keeps more than the backend has room for";
    t = good(PROMPT, PROMPT + 1);
    t.seq.retrieval.token_step = 2;
    t.seq.note = STEP_NOTES_MOST;
    refused(t, STATUS_INVALID, room);
    t.seq.note = 1;
    t.seq.choice = 4;
    refused(t, STATUS_INVALID, room);
}

/* A share that leaves after a layer, with every head that it may embed. */
static trial leaving(void)
{
    static const embed_head heads[] = {{0, EMBED_Q, 3}, {1, EMBED_K, 1}, {1, EMBED_V, 0}};
    trial t = good(0, 100);
    t.seq.retrieval = (retrieval_spec){0};
    t.seq.n_layers = 1;
    t.seq.embeds = heads;
    t.seq.n_embeds = 3;
    return t;
}

static void rows_that_cannot_leave_early(void **state)
{
    (void)state;
    trial t = leaving();
    assert_true(status_ok(check(&t)));
    t.seq.n_layers = 3;
    refused(t, STATUS_INVALID, "plan: rows that run more layers than the model has");
    static const char behind[] =
        "plan: rows that leave early and ask for what comes behind all layers";
    t = leaving();
    t.seq.n_samples = 1;
    refused(t, STATUS_INVALID, behind);
    t = leaving();
    t.seq.want_logits = true;
    refused(t, STATUS_INVALID, behind);
    t = leaving();
    t.seq.want_scores = 1;
    refused(t, STATUS_INVALID, behind);
    t = leaving();
    t.seq.measure.novelty = true;
    refused(t, STATUS_INVALID, behind);
    t = leaving();
    t.seq.retrieval = good(0, 100).seq.retrieval;
    refused(t, STATUS_INVALID, behind);
}

/* Only tables of the layers that run need slots for the rows. */
static void tables_behind_the_exit_may_be_short(void **state)
{
    (void)state;
    static const char slots[] = "plan: a table without slots for its tokens";
    trial t = leaving();
    t.uneven = true;
    t.table = 2; /* of the second layer */
    assert_true(status_ok(check(&t)));
    t.seq.n_layers = 2;
    refused(t, STATUS_INVALID, slots);
    t.seq.n_layers = 0;
    refused(t, STATUS_INVALID, slots);
    t = leaving();
    t.uneven = true;
    t.table = 1;
    refused(t, STATUS_INVALID, slots);
}

static void embeddings_that_cannot_be_made(void **state)
{
    (void)state;
    static const struct {
        embed_head head;
        const char *why;
    } rows[] = {
        {{2, EMBED_Q, 0}, "plan: an embedding of a layer that is not run"},
        {{UINT32_MAX, EMBED_Q, 0}, "plan: an embedding of a layer that is not run"},
        {{0, EMBED_Q, 4}, "plan: an embedding of a head that the model does not have"},
        {{0, EMBED_K, 2}, "plan: an embedding of a head that the model does not have"},
        {{0, EMBED_V, UINT32_MAX}, "plan: an embedding of a head that the model does not have"},
        {{0, EMBED_KINDS, 0}, "plan: an embedding of an unknown kind"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        trial t = leaving();
        t.seq.embeds = &rows[i].head;
        t.seq.n_embeds = 1;
        t.seq.n_layers = i % 2;
        refused(t, STATUS_INVALID, rows[i].why);
    }
    trial t = leaving();
    t.seq.n_embeds = EMBED_HEADS_MOST + 1;
    refused(t, STATUS_INVALID, "plan: embeddings of more heads than a share may have");
    static embed_head many[EMBED_HEADS_MOST];
    backend_info wide = info, none = info;
    wide.head_dim = 512;
    t = leaving();
    t.info = &wide;
    t.seq.embeds = many;
    t.seq.n_embeds = EMBED_HEADS_MOST;
    refused(t, STATUS_LIMIT, "plan: more bytes of embeddings than a step may have");
    none.n_heads = 0;
    t = leaving();
    t.info = &none;
    refused(t, STATUS_INVALID, "plan: embeddings or early exit, which this backend does not have");
}

/* An allocator that fails from a chosen call on. */
typedef struct last_calls {
    uint32_t left;
} last_calls;

static void *resize_while_left(void *ctx, void *p, size_t size)
{
    last_calls *calls = ctx;
    if (size == 0) {
        free(p);
        return NULL;
    }
    if (calls->left == 0) return NULL;
    calls->left--;
    return realloc(p, size);
}

/* Follows a plan that opens a sequence, with a number of allocations that succeed. */
static status follow(uint32_t allocations, bool torn, bool other)
{
    last_calls calls = {.left = 2};
    const allocator alloc = {resize_while_left, &calls};
    const pkv_options options = {.geometry = geometry, .n_pages = 512, .max_seqs = 4};
    pkv *kv;
    pkv_mirror *m;
    uint32_t hit;
    assert_true(status_ok(pkv_create(&options, &kv)));
    assert_true(status_ok(pkv_mirror_create(&geometry, 512, 4, &alloc, &m)));
    assert_true(status_ok(pkv_seq_open(kv, SEQ, PKV_HEAD, tokens, 0, 0, PROMPT, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, SEQ, PROMPT)));
    step_plan plan = {.deltas = pkv_take_deltas(kv), .checksum = pkv_checksum(kv) + other};
    plan.deltas.n_words -= torn;
    calls.left = allocations;
    status s = plan_follow(m, &plan);
    pkv_mirror_destroy(m);
    pkv_destroy(kv);
    return s;
}

/* The plan behind one that was not followed counts on its tables, so each failure is one that ends
 * the backend. */
static void tables_that_do_not_follow_end_the_backend(void **state)
{
    (void)state;
    status s = {0};
    uint32_t n = 0;
    for (; !status_ok(s = follow(n, false, false)); n++) {
        assert_int_equal(s.code, STATUS_UNAVAILABLE);
        assert_string_equal(s.message, "page tables: out of memory");
    }
    assert_true(n >= 2);
    s = follow(n, true, false);
    assert_int_equal(s.code, STATUS_INTERNAL);
    assert_string_equal(s.message, "delta log: APPEND is cut off");
    s = follow(n, false, true);
    assert_int_equal(s.code, STATUS_INTERNAL);
    assert_string_equal(s.message, "page tables differ from the coordinator's");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_that_do_not_follow_end_the_backend),
        cmocka_unit_test(good_plans_pass),
        cmocka_unit_test(shares_that_do_not_fit),
        cmocka_unit_test(tokens_to_count_that_a_share_has_not),
        cmocka_unit_test(retrievals_that_cannot_be_made),
        cmocka_unit_test(rows_that_cannot_leave_early),
        cmocka_unit_test(tables_behind_the_exit_may_be_short),
        cmocka_unit_test(embeddings_that_cannot_be_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The notes that a backend keeps of requests that read by retrieval: a list or bits are found again
 * by the request, choice, layer and spec that wrote them alone. */
#include "model/cpu/retrieve_notes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { LAYERS = 3 };

static const retrieval_spec spec = {.block_tokens = 16,
                                    .representative_num = 1,
                                    .group_heads = 1,
                                    .local_tokens = 16,
                                    .top_blocks = 100000,
                                    .observed_rows = 128,
                                    .layer_step = 1,
                                    .token_step = 2};

static retrieve_notes *open_notes(void)
{
    retrieve_notes *notes;
    assert_true(status_ok(retrieve_notes_create(LAYERS, 0, &notes)));
    return notes;
}

static void assert_found(const retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots,
                         uint32_t first, uint32_t n)
{
    uint32_t got;
    const uint32_t *blocks = retrieve_notes_find(notes, at, n_slots, &got);
    assert_non_null(blocks);
    assert_int_equal(got, n);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(blocks[i], first + i);
}

static void keep(retrieve_notes *notes, const retrieve_note *at, uint32_t n_slots, uint32_t first,
                 uint32_t n)
{
    uint32_t blocks[1000];
    for (uint32_t i = 0; i < n; i++) blocks[i] = first + i;
    assert_true(status_ok(retrieve_notes_keep(notes, at, n_slots, blocks, n)));
}

static void lists_of_each_choice_and_layer(void **state)
{
    (void)state;
    retrieve_notes *notes = open_notes();
    for (uint32_t i = 0; i < 5 * LAYERS * 2; i++) {
        retrieve_note at = {i % 5, i % 2, i / 5 % LAYERS, i / 15, 2, &spec};
        keep(notes, &at, 50 + i, 7 * i, 1 + 31 * i);
    }
    for (uint32_t i = 0; i < 5 * LAYERS * 2; i++) {
        uint32_t n;
        retrieve_note at = {i % 5, i % 2, i / 5 % LAYERS, i / 15, 2, &spec};
        assert_found(notes, &at, 50 + i, 7 * i, 1 + 31 * i);
        assert_null(retrieve_notes_find(notes, &at, 51 + i, &n));
        keep(notes, &at, 99, i, 1);
        assert_found(notes, &at, 99, i, 1);
    }
    retrieve_notes_destroy(notes);
}

/* A plan that came from elsewhere may change what a number stands for between two steps. */
static void another_spec_finds_nothing(void **state)
{
    (void)state;
    retrieve_notes *notes = open_notes();
    retrieval_spec other = spec;
    uint32_t n;
    other.block_tokens = 32;
    retrieve_note at = {.note = 1, .n_lists = 2, .spec = &spec};
    keep(notes, &at, 50, 0, 4);
    at.spec = &other;
    assert_null(retrieve_notes_find(notes, &at, 50, &n));
    at.list = 1;
    keep(notes, &at, 51, 0, 4);
    at.list = 0;
    assert_null(retrieve_notes_find(notes, &at, 50, &n));
    at.n_lists = 4;
    assert_null(retrieve_notes_find(notes, &at, 50, &n));
    at.note = 100;
    assert_null(retrieve_notes_find(notes, &at, 50, &n));

    retrieve_bits bits = {.kind = RETRIEVE_SLOTS, .note = 1, .n_rows = 2, .n_words = 5};
    bits.spec = &spec;
    assert_null(retrieve_notes_read(notes, &bits));
    uint64_t *words;
    assert_true(status_ok(retrieve_notes_write(notes, &bits, &words)));
    words[4] = 17;
    assert_int_equal(retrieve_notes_read(notes, &bits)[4], 17);
    bits.spec = &other;
    assert_null(retrieve_notes_read(notes, &bits));
    retrieve_notes_destroy(notes);
}

/* Writes all that a backend of one rank may be told to keep for a request. */
static status keep_all(retrieve_notes *notes, const retrieval_spec *s, const pkv_geometry *g,
                       uint32_t note, uint32_t n_prompt, uint32_t n_most, uint32_t choices)
{
    uint32_t n_lists = g->n_kv_heads / retrieval_heads_together(s, g), blocks[4096];
    uint32_t all = (n_most + s->block_tokens - 1) / s->block_tokens;
    uint32_t n = all < retrieval_most_blocks(s) ? all : retrieval_most_blocks(s);
    for (uint32_t i = 0; i < n; i++) blocks[i] = i;
    for (uint32_t i = 0; s->token_step > 1 && i < choices * g->n_layers * n_lists; i++) {
        retrieve_note at = {.note = note,
                            .choice = i % choices,
                            .layer = i / choices % g->n_layers,
                            .list = i / choices / g->n_layers,
                            .n_lists = n_lists,
                            .spec = s};
        RETURN_IF_ERROR(retrieve_notes_keep(notes, &at, n_prompt, blocks, n));
    }
    uint64_t *words;
    size_t prompt = n_prompt / s->block_tokens;
    retrieve_bits left_out = {.note = note, .n_rows = n_lists, .n_words = (prompt + 63) / 64};
    left_out.kind = RETRIEVE_LEFT_OUT;
    left_out.spec = s;
    if (retrieval_left_out(s, n_prompt) > 0)
        RETURN_IF_ERROR(retrieve_notes_write(notes, &left_out, &words));
    if (s->representative != RETRIEVAL_DYNAMIC || prompt == 0) return STATUS_IS_OK;
    retrieve_bits slots = left_out;
    slots.kind = RETRIEVE_SLOTS;
    slots.n_rows = g->n_kv_heads;
    slots.n_words = prompt * ((s->block_tokens + 63) / 64);
    return retrieve_notes_write(notes, &slots, &words);
}

static retrieval_spec random_spec(rng *r)
{
    retrieval_spec s = spec;
    s.block_tokens = 16 << rng_below(r, 4);
    s.representative = rng_below(r, 2) ? RETRIEVAL_DYNAMIC : RETRIEVAL_QUEST;
    s.heads = rng_below(r, 2) ? RETRIEVAL_SEPARATE : RETRIEVAL_SHARED;
    s.top_blocks = 1 + rng_below(r, 60);
    s.preselect_blocks = rng_below(r, 2) * (1 + rng_below(r, 30));
    s.token_step = 1 + rng_below(r, 20);
    return s;
}

static void a_request_keeps_what_is_predicted_at_most(void **state)
{
    (void)state;
    rng r = rng_seed(5);
    const pkv_geometry g = {.page_tokens = 16, .n_layers = LAYERS, .n_kv_heads = 4};
    for (int round = 0; round < 300; round++) {
        retrieval_spec s = random_spec(&r);
        uint32_t n_prompt = 1 + rng_below(&r, 3000), n_most = n_prompt + rng_below(&r, 3000);
        uint32_t choices = 1 + rng_below(&r, 9), note = rng_below(&r, 20);
        uint64_t most = retrieval_kept_bytes(&s, &g, n_prompt, n_most, choices);
        if (!retrieval_keeps(&s)) {
            assert_int_equal(most, 0);
            continue;
        }
        retrieve_notes *notes;
        assert_true(status_ok(retrieve_notes_create(LAYERS, most, &notes)));
        assert_true(status_ok(keep_all(notes, &s, &g, note, n_prompt, n_most, choices)));
        assert_true(retrieve_notes_bytes(notes) <= most);
        /* Nothing is left of it for the number's next request. */
        retrieve_notes_end(notes, note);
        retrieve_notes_end(notes, note);
        assert_int_equal(retrieve_notes_bytes(notes), 0);
        assert_true(status_ok(keep_all(notes, &s, &g, note + 1, n_prompt, n_most, choices)));
        retrieve_notes_destroy(notes);
    }
}

/* A coordinator that plans more than it was told gets an error, and memory stays within bounds. */
static void more_than_the_share_is_refused(void **state)
{
    (void)state;
    const pkv_geometry g = {.page_tokens = 16, .n_layers = LAYERS, .n_kv_heads = 4};
    uint64_t most = 3 * retrieval_kept_bytes(&spec, &g, 2000, 2500, 2);
    retrieve_notes *notes;
    assert_true(status_ok(retrieve_notes_create(LAYERS, most, &notes)));
    uint32_t n = 0;
    status s = STATUS_IS_OK;
    while (status_ok(s) && n < 10) {
        s = keep_all(notes, &spec, &g, n++, 2000, 2500, 2);
        assert_true(retrieve_notes_bytes(notes) <= most);
    }
    assert_int_equal(s.code, STATUS_LIMIT);
    assert_in_range(n, 4, 5);
    for (uint32_t i = 0; i < n; i++) retrieve_notes_end(notes, i);
    assert_int_equal(retrieve_notes_bytes(notes), 0);
    assert_true(status_ok(keep_all(notes, &spec, &g, 7, 2000, 2500, 2)));
    retrieve_notes_destroy(notes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_each_choice_and_layer),
        cmocka_unit_test(another_spec_finds_nothing),
        cmocka_unit_test(a_request_keeps_what_is_predicted_at_most),
        cmocka_unit_test(more_than_the_share_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

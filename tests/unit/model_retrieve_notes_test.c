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
    assert_true(status_ok(retrieve_notes_create(LAYERS, &notes)));
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
    uint64_t *words = retrieve_notes_write(notes, &bits);
    assert_non_null(words);
    words[4] = 17;
    assert_int_equal(retrieve_notes_read(notes, &bits)[4], 17);
    bits.spec = &other;
    assert_null(retrieve_notes_read(notes, &bits));
    retrieve_notes_destroy(notes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_each_choice_and_layer),
        cmocka_unit_test(another_spec_finds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A long hit of the prefix cache is taken in portions, and blocks change between two of them. */
#include "tests/unit/paged_kv_grain_fixture.h"

enum { BLOCKS = 3 };

/* Computes the tokens without a hit and publishes them. */
static void publish_tokens(grain_fixture *f, uint32_t seq, const uint32_t *tokens, uint32_t n)
{
    uint32_t hit;
    assert_true(status_ok(pkv_seq_open(f->kv, seq, PKV_HEAD, tokens, 0, 0, 0, &hit)));
    grow(f, seq, n);
    pkv_seq_publish(f->kv, seq, tokens, n);
}

/* After a flush the number of the sequence's last block may be another block's, whose children are
 * those of other tokens, even where the next tokens are the same. */
static void a_block_of_other_tokens_ends_the_hit(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t tokens[BLOCKS * P] = {[0] = 5}, others[BLOCKS * P] = {[0] = 6}, hit;
    begin(&f, 2, 2, 30, 1);
    publish_tokens(&f, 0, tokens, P);
    assert_true(
        status_ok(pkv_seq_open_some(f.kv, 1, PKV_HEAD, tokens, BLOCKS * P, 0, 0, f.groups, &hit)));
    assert_int_equal(hit, P);
    uint32_t last = f.kv->seqs[1].cursor;
    pkv_flush(f.kv);
    publish_tokens(&f, 2, others, BLOCKS * P);
    assert_int_equal(f.kv->blocks[last].generation % 2, 1); /* the number is in use again */
    assert_true(status_ok(pkv_seq_hit_more(f.kv, 1, tokens, BLOCKS * P, 2 * f.groups, &hit)));
    assert_int_equal(hit, 0);
    assert_int_equal(pkv_seq_length(f.kv, 1), P);
    check_pool(&f);
    end(&f);
}

static void *refuse_memory(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    (void)ptr;
    (void)size;
    return NULL;
}

/* The lists of a sequence that was opened for one block have no room for more. */
static void a_portion_without_memory_takes_nothing(void **state)
{
    (void)state;
    grain_fixture f;
    uint32_t tokens[BLOCKS * P] = {[0] = 5}, hit, more = 1;
    begin(&f, 2, 2, 30, 1);
    publish_tokens(&f, 0, tokens, BLOCKS * P);
    assert_true(status_ok(pkv_seq_open(f.kv, 1, PKV_HEAD, tokens, P, 0, 0, &hit)));
    assert_int_equal(hit, P);
    uint64_t before = pkv_checksum(f.kv);
    allocator good = f.kv->alloc;
    f.kv->alloc.resize = refuse_memory;
    status st = pkv_seq_hit_more(f.kv, 1, tokens, BLOCKS * P, BLOCKS * f.groups, &more);
    f.kv->alloc = good;
    assert_int_equal(st.code, STATUS_NO_MEMORY);
    assert_int_equal(more, 0);
    assert_int_equal(pkv_seq_length(f.kv, 1), P);
    assert_true(pkv_checksum(f.kv) == before);
    check_pool(&f);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_portion_without_memory_takes_nothing),
        cmocka_unit_test(a_block_of_other_tokens_ends_the_hit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks that the prefix cache lost and that are loaded: what their sequence and others do
 * meanwhile. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GROUPS = 2, BLOCK = 16, KEYS_MOST = 256 };

/* The keys that are outside. */
typedef struct outside {
    pkv_key keys[KEYS_MOST];
    uint32_t n;
    bool all;
} outside;

static bool has_block(void *ctx, const pkv_key *key)
{
    const outside *o = ctx;
    if (o->all) return true;
    for (uint32_t i = 0; i < o->n; i++)
        if (memcmp(&o->keys[i], key, sizeof *key) == 0) return true;
    return false;
}

static void forget_blocks(void *ctx, const pkv_key *keys, uint32_t n)
{
    outside *o = ctx;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t at = o->n; at-- > 0;)
            if (memcmp(&o->keys[at], &keys[i], sizeof *keys) == 0) o->keys[at] = o->keys[--o->n];
}

static fixture *begin_with(outside *o, uint32_t blocks)
{
    *o = (outside){0};
    sched_options options = small_options();
    options.prefill_chunk = 100;
    options.n_pages = 1 + GROUPS * blocks;
    options.prefix_cache = true;
    options.has_block = has_block;
    options.forget_blocks = forget_blocks;
    options.has_block_ctx = o;
    options.lost_most = 64;
    return begin(options);
}

/* All that left the cache is outside now. */
static uint32_t keep_lost(fixture *f, outside *o)
{
    pkv_lost lost = sched_take_lost(f->s);
    assert_true(o->n + lost.n <= KEYS_MOST);
    memcpy(o->keys + o->n, lost.keys, lost.n * sizeof *lost.keys);
    o->n += lost.n;
    return lost.n;
}

/* Runs a request of that many prompt tokens and one token to its end. */
static void run(fixture *f, outside *o, uint64_t id, uint32_t first, uint32_t n_prompt)
{
    sched_request r = request(f, id, first, n_prompt, 1);
    add(f, &r);
    step(f);
    keep_lost(f, o);
    assert_null(sched_next_load(f->s));
    finish_choice(f, id);
    step(f);
}

/* The blocks of tokens [0, 64) have left memory for those of another request, in a pool of 8. */
static fixture *begin_lost(outside *o)
{
    fixture *f = begin_with(o, 8);
    run(f, o, 1, 0, 64);
    run(f, o, 2, 300, 100);
    run(f, o, 3, 600, 100);
    assert_true(o->n >= 4);
    return f;
}

static void give_back(fixture *f, const sched_load *load, uint32_t n)
{
    post(f, (sched_event){.kind = SCHED_LOADED, .load = load, .n_loaded = n});
}

static const sched_load *take_only(fixture *f)
{
    const sched_load *load = sched_next_load(f->s);
    assert_non_null(load);
    assert_null(sched_next_load(f->s));
    return load;
}

static void is_loaded_instead_of_computed(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request r = request(f, 4, 0, 70, 5);
    add(f, &r);
    assert_string_equal(step(f), ""); /* deltas alone */
    assert_non_null(f->plan);
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 4);
    for (uint32_t i = 0; i < 4 * GROUPS; i++) { /* pages of its own */
        assert_in_range(load->cells[i], 1, 8 * GROUPS + 1);
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(load->cells[i], load->cells[j]);
    }
    assert_string_equal(step(f), "");
    assert_null(sched_next_load(f->s));
    give_back(f, load, 4);
    assert_string_equal(step(f), "4@64+6*");
    assert_int_equal(describe(f, 4, 0).cached_tokens, 64);
    assert_int_equal(sched_get_stats(f->s).loaded_tokens, 64);
    assert_string_equal(step(f), "4@70+1*");
    assert_int_equal(sched_get_stats(f->s).prompt_loaded_tokens, 64);
    assert_int_equal(sched_get_stats(f->s).prompt_hit_tokens, 0);
    /* Another request hits them in memory. */
    sched_request again = request(f, 5, 0, 65, 5);
    add(f, &again);
    assert_string_equal(step(f), "4@71+1* 5@64+1*");
    end(f, 4, 0);
    end(f, 5, 0);
    step(f);
    finish(f);
}

static void the_rest_is_computed(void **state)
{
    (void)state;
    for (uint32_t good = 0; good < 4; good++) {
        outside o;
        char want[32];
        fixture *f = begin_lost(&o);
        sched_request r = request(f, 4, 0, 70, 5);
        add(f, &r);
        step(f);
        give_back(f, take_only(f), good);
        snprintf(want, sizeof want, "4@%u+%u*", good * BLOCK, 70 - good * BLOCK);
        assert_string_equal(step(f), want);
        assert_int_equal(describe(f, 4, 0).cached_tokens, good * BLOCK);
        end(f, 4, 0);
        step(f);
        finish(f);
    }
}

/* At least one token of a prompt is computed, and a chain ends where a block is missing. */
static void only_a_chain_from_the_hit_on(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request r = request(f, 4, 0, 64, 5);
    add(f, &r);
    step(f);
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 3);
    pkv_key second = load->keys[1];
    give_back(f, load, 3);
    assert_string_equal(step(f), "4@48+16*");
    end(f, 4, 0);
    step(f);
    run(f, &o, 5, 1000, 100);
    run(f, &o, 6, 1300, 100);
    for (uint32_t i = 0; i < o.n; i++)
        if (memcmp(&o.keys[i], &second, sizeof second) == 0) o.keys[i] = (pkv_key){{0}};
    sched_request again = request(f, 7, 0, 70, 5), salted = request(f, 8, 0, 70, 5);
    add(f, &again);
    step(f);
    load = take_only(f);
    assert_int_equal(load->n_blocks, 1);
    give_back(f, load, 1);
    assert_string_equal(step(f), "7@16+54*");
    end(f, 7, 0);
    step(f);
    salted.salt = 5;
    add(f, &salted);
    assert_string_equal(step(f), "8@0+70*");
    assert_null(sched_next_load(f->s));
    end(f, 8, 0);
    step(f);
    finish(f);
}

static void others_go_on(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request a = request(f, 4, 900, 10, 8), b = request(f, 5, 0, 70, 5);
    add(f, &a);
    assert_string_equal(step(f), "4@0+10*");
    add(f, &b);
    assert_string_equal(step(f), "4@10+1*");
    const sched_load *load = take_only(f);
    assert_string_equal(step(f), "4@11+1*");
    assert_string_equal(step(f), "4@12+1*");
    give_back(f, load, 4);
    assert_string_equal(step(f), "4@13+1* 5@64+6*");
    end(f, 4, 0);
    end(f, 5, 0);
    step(f);
    finish(f);
}

/* Requests 4 and 5 decode and 6, the last in rank, waits for a load of 4 of the 8 blocks, or has
 * been given up meanwhile. Pages run short: 5 gives way, so that 4 goes on until its end. Then 5
 * takes pages again, still before the load ends. */
static void pages_run_short_during_a_load(void **state)
{
    (void)state;
    for (int given_up = 0; given_up < 2; given_up++) {
        outside o;
        fixture *f = begin_lost(&o);
        sched_request a = request(f, 4, 900, 8, 60), b = request(f, 5, 2000, 8, 60),
                      c = request(f, 6, 0, 70, 5);
        add(f, &a);
        add(f, &b);
        assert_string_equal(step(f), "4@0+8* 5@0+8*");
        add(f, &c);
        assert_string_equal(step(f), "4@8+1* 5@8+1*");
        const sched_load *load = take_only(f);
        assert_int_equal(load->n_blocks, 4);
        if (given_up) end(f, 6, 0);
        for (uint32_t at = 9; at < 64; at++) {
            char alone[32], both[32];
            snprintf(alone, sizeof alone, "4@%u+1*", at);
            snprintf(both, sizeof both, "4@%u+1* 5@%u+1*", at, at);
            assert_string_equal(step(f), at < 32 ? both : alone);
        }
        assert_int_equal(describe(f, 4, 0).preemptions, 0);
        assert_int_equal(describe(f, 5, 0).preemptions, 1);
        end(f, 4, 0);
        step(f);
        assert_true(f->plan->n_seqs > 0);
        assert_int_equal(f->plan->seqs[0].request, 5);
        end(f, 5, 0);
        give_back(f, load, 4);
        if (!given_up) end(f, 6, 0);
        step(f);
        step(f);
        assert_int_equal(used_pages(f), 0);
        finish(f);
    }
}

/* The one sequence beside the load keeps its pages while it lacks one, as nobody could use them,
 * and goes on as soon as the load ends. */
static void the_only_one_waits_with_its_pages(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request a = request(f, 4, 900, 30, 60), b = request(f, 5, 0, 70, 5);
    add(f, &a);
    assert_string_equal(step(f), "4@0+30*");
    add(f, &b);
    assert_string_equal(step(f), "4@30+1*");
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 4);
    for (uint32_t at = 31; at < 64; at++) assert_true(*step(f));
    for (int i = 0; i < 3; i++) assert_string_equal(step(f), "");
    assert_int_equal(describe(f, 4, 0).preemptions, 0);
    give_back(f, load, 4);
    assert_string_equal(step(f), "4@64+1*");
    assert_int_equal(describe(f, 5, 0).preemptions, 1);
    end(f, 4, 0);
    end(f, 5, 0);
    step(f);
    finish(f);
}

/* The pages of a request that is given up are not used by others while they are written. */
static void pages_stay_until_the_end(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request r = request(f, 4, 0, 70, 5);
    add(f, &r);
    step(f);
    const sched_load *load = take_only(f);
    end(f, 4, SCHED_ALL_CHOICES);
    step(f);
    assert_int_equal(used_pages(f), 4 * GROUPS);
    step(f);
    assert_int_equal(used_pages(f), 4 * GROUPS);
    give_back(f, load, 4);
    step(f);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* Long chains come in portions, half of the blocks that the pool tells of at once. A flush between
 * two of them changes no name: the request goes on, for itself. */
static void comes_in_portions(void **state)
{
    (void)state;
    pkv_key keys[2][12];
    for (int flushes = 0; flushes < 2; flushes++) {
        const uint32_t want[] = {5, 5, 2};
        uint32_t n = 0;
        outside o = {.all = true};
        sched_options options = small_options();
        options.has_block = has_block;
        options.has_block_ctx = &o;
        options.lost_most = 9;
        fixture *f = begin(options);
        sched_request r = request(f, 4, 0, 200, 5);
        add(f, &r);
        for (int i = 0; i < 3; i++) {
            assert_string_equal(step(f), "");
            const sched_load *load = take_only(f);
            assert_int_equal(load->n_blocks, want[i]);
            memcpy(keys[flushes] + n, load->keys, want[i] * sizeof keys[0][0]);
            n += want[i];
            if (flushes && i == 0) post(f, (sched_event){.kind = SCHED_FLUSH});
            give_back(f, load, want[i]);
        }
        assert_string_equal(step(f), "4@192+8*");
        assert_int_equal(describe(f, 4, 0).cached_tokens, 192);
        end(f, 4, 0);
        step(f);
        finish(f);
    }
    assert_memory_equal(keys[0], keys[1], sizeof keys[0]);
}

/* Four blocks are in the cache, four more outside: the hit comes first, in four portions. */
static void follows_a_hit_in_portions(void **state)
{
    (void)state;
    outside o = {0};
    sched_options options = small_options();
    options.prefill_chunk = 200;
    options.prefix_cache = true;
    options.hand_out_slots = 4; /* a block is a portion */
    options.has_block = has_block;
    options.has_block_ctx = &o;
    options.lost_most = 64;
    fixture *f = begin(options);
    run(f, &o, 1, 0, 64);
    o.all = true;
    sched_request r = request(f, 3, 0, 134, 5);
    add(f, &r);
    const sched_load *load = NULL;
    uint32_t n_steps = 0;
    for (; !load && n_steps < 10; n_steps++) {
        assert_string_equal(step(f), "");
        load = sched_next_load(f->s);
    }
    assert_in_range(n_steps, 4, 6);
    assert_non_null(load);
    assert_int_equal(load->n_blocks, 4);
    assert_int_equal(describe(f, 3, 0).cached_tokens, 64);
    give_back(f, load, 4);
    assert_string_equal(step(f), "3@128+6*");
    assert_int_equal(describe(f, 3, 0).cached_tokens, 128);
    assert_int_equal(sched_get_stats(f->s).loaded_tokens, 64);
    end(f, 3, 0);
    step(f);
    finish(f);
}

/* Request 1 grows while a selection of request 2 is made on another thread, and 3 waits for 5 of
 * its 12 blocks. The pool then has room for 5 more of them or for the selection, not for both: the
 * selection has its pages, and nothing of 2 is computed again. */
static void leaves_what_is_set_aside(void **state)
{
    (void)state;
    outside o = {0};
    sched_options options = small_options();
    options.prefill_chunk = 200;
    options.n_pages = 1 + GROUPS * 23;
    options.has_block = has_block;
    options.has_block_ctx = &o;
    options.lost_most = 9;
    options.hand_out_slots = 1;
    fixture *f = begin(options);
    const char *policy = "{\"method\": \"snapkv\", \"tokens\": 40, \"window\": 16}";
    sched_request a = request(f, 1, 900, 16, 116), c = request(f, 3, 0, 200, 5),
                  b = with_policy(f, 2, 2000, 64, 20, policy);
    add(f, &a);
    step(f);
    add(f, &b);
    step(f);
    step(f);
    sched_selection *selection = sched_next_selection(f->s);
    assert_non_null(selection);
    o.all = true;
    add(f, &c);
    step(f);
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 5);
    for (int i = 0; i < 96; i++) step(f);
    give_back(f, load, 5);
    step(f);
    assert_null(sched_next_load(f->s));
    sched_selection_run(selection);
    post(f, (sched_event){.kind = SCHED_SELECTED, .selection = selection});
    for (int i = 0; i < 12; i++) step(f);
    assert_int_equal(describe(f, 2, 0).preemptions, 0);
    for (uint64_t id = 1; id <= 3; id++) end(f, id, 0);
    step(f);
    step(f);
    finish(f);
}

/* A request that starts again loads what it has generated too, but these are no prompt tokens. */
static void counts_prompt_tokens(void **state)
{
    (void)state;
    outside o = {0};
    sched_options options = small_options();
    options.has_block = has_block;
    options.has_block_ctx = &o;
    options.lost_most = 64;
    fixture *f = begin(options);
    sched_request r = request(f, 4, 0, 40, 60);
    add(f, &r);
    for (int i = 0; i < 30; i++) step(f);
    assert_string_equal(step(f), "4@69+1*");
    o.all = true;
    post(f, (sched_event){.kind = SCHED_FLUSH});
    answer(f, status_make(STATUS_IO, NULL));
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
    assert_string_equal(step(f), "");
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 4);
    give_back(f, load, 4);
    assert_string_equal(step(f), "4@64+6*");
    assert_int_equal(sched_get_stats(f->s).loaded_tokens, 40);
    end(f, 4, 0);
    step(f);
    finish(f);
}

static void distrust(fixture *f, uint64_t id)
{
    post(f, (sched_event){.kind = SCHED_END, .request = id, .choice = 0, .distrusted = true});
}

/* The model's numbers for a request that has loaded its prompt are not finite: the next request of
 * the same prompt computes all of it, and finds nothing in memory or outside. What others have lost
 * stays outside. */
static void is_forgotten_with_its_chain(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    uint32_t before = o.n;
    sched_request r = request(f, 4, 0, 70, 5), again = request(f, 5, 0, 70, 5),
                  other = request(f, 6, 300, 99, 5);
    add(f, &r);
    step(f);
    give_back(f, take_only(f), 4);
    assert_string_equal(step(f), "4@64+6*");
    keep_lost(f, &o);
    before = o.n;
    distrust(f, 4);
    add(f, &again);
    assert_string_equal(step(f), "5@0+70*");
    assert_null(sched_next_load(f->s));
    assert_int_equal(o.n, before - 4);
    end(f, 5, 0);
    step(f);
    add(f, &other);
    step(f);
    const sched_load *load = take_only(f);
    assert_int_equal(load->n_blocks, 6);
    give_back(f, load, 6);
    assert_string_equal(step(f), "6@96+3*");
    end(f, 6, 0);
    step(f);
    finish(f);
}

/* Two requests have one prompt. The second loads blocks when the first one's numbers turn out not
 * to be finite: what comes is not used. */
static void a_load_under_way_is_not_used(void **state)
{
    (void)state;
    for (int is_back = 0; is_back < 2; is_back++) {
        outside o;
        fixture *f = begin_lost(&o);
        sched_request a = request(f, 4, 900, 10, 8), b = request(f, 5, 0, 70, 5);
        add(f, &a);
        step(f);
        add(f, &b);
        step(f);
        const sched_load *load = take_only(f);
        if (is_back) give_back(f, load, load->n_blocks);
        distrust(f, 4); /* whichever prompt it had */
        if (!is_back) give_back(f, load, load->n_blocks);
        assert_string_equal(step(f), "5@0+70*");
        assert_int_equal(describe(f, 5, 0).cached_tokens, 0);
        end(f, 5, 0);
        step(f);
        finish(f);
    }
}

/* A hit is taken in portions while the chain is distrusted: the request goes on with what it has,
 * for itself, and asks for no block outside behind it. */
static void nothing_is_loaded_behind_a_distrusted_hit(void **state)
{
    (void)state;
    outside o = {0};
    sched_options options = small_options();
    options.prefill_chunk = 200;
    options.prefix_cache = true;
    options.hand_out_slots = 4; /* a block is a portion */
    options.has_block = has_block;
    options.forget_blocks = forget_blocks;
    options.has_block_ctx = &o;
    options.lost_most = 64;
    fixture *f = begin(options);
    run(f, &o, 1, 0, 64);
    sched_request bad = request(f, 2, 0, 66, 5), r = request(f, 3, 0, 134, 5);
    add(f, &bad);
    for (int i = 0; i < 8; i++) step(f);
    o.all = true;
    add(f, &r);
    step(f);
    distrust(f, 2);
    const char *trace = "";
    for (int i = 0; i < 30 && !*trace; i++) trace = step(f);
    assert_string_equal(trace, "3@16+118*");
    assert_null(sched_next_load(f->s));
    end(f, 3, 0);
    step(f);
    finish(f);
}

/* A request that ends before its load was fetched leaves none. */
static void is_dropped(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request r = request(f, 4, 0, 70, 5);
    add(f, &r);
    step(f);
    end(f, 4, 0);
    step(f);
    assert_null(sched_next_load(f->s));
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* No request hits after a flush what was loaded before it. */
static void a_flush_meanwhile(void **state)
{
    (void)state;
    outside o;
    fixture *f = begin_lost(&o);
    sched_request r = request(f, 4, 0, 70, 5), b = request(f, 5, 0, 70, 5);
    add(f, &r);
    step(f);
    const sched_load *load = take_only(f);
    o.n = 0;
    post(f, (sched_event){.kind = SCHED_FLUSH});
    give_back(f, load, 4);
    assert_string_equal(step(f), "4@64+6*");
    end(f, 4, 0);
    step(f);
    add(f, &b);
    assert_string_equal(step(f), "5@0+70*");
    end(f, 5, 0);
    step(f);
    finish(f);
}

/* Memory fails at any allocation: the tokens are computed, or the request waits. */
static void memory_fails(void **state)
{
    (void)state;
    for (long at = 0; at < 12; at++) {
        outside o;
        fixture *f = begin_lost(&o);
        sched_request r = request(f, 4, 0, 70, 5);
        step(f);
        f->heap.fail_at = f->heap.calls + at;
        add(f, &r);
        step(f);
        f->heap.fail_at = -1;
        const sched_load *load = sched_next_load(f->s);
        if (load) give_back(f, load, 2);
        step(f);
        end(f, 4, 0);
        step(f);
        step(f);
        assert_int_equal(used_pages(f), 0);
        finish(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_loaded_instead_of_computed),
        cmocka_unit_test(the_rest_is_computed),
        cmocka_unit_test(only_a_chain_from_the_hit_on),
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(pages_run_short_during_a_load),
        cmocka_unit_test(the_only_one_waits_with_its_pages),
        cmocka_unit_test(pages_stay_until_the_end),
        cmocka_unit_test(comes_in_portions),
        cmocka_unit_test(follows_a_hit_in_portions),
        cmocka_unit_test(leaves_what_is_set_aside),
        cmocka_unit_test(counts_prompt_tokens),
        cmocka_unit_test(is_forgotten_with_its_chain),
        cmocka_unit_test(a_load_under_way_is_not_used),
        cmocka_unit_test(nothing_is_loaded_behind_a_distrusted_hit),
        cmocka_unit_test(is_dropped),
        cmocka_unit_test(a_flush_meanwhile),
        cmocka_unit_test(memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

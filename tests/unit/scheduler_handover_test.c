/* Prompts that one scheduler computes and another goes on from. A page of all groups is 2 cells.
 * Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 50, PAGES = 4, FIRST = 500, LONG_PROMPT = 140, LONG_PAGES = 9 };

/* A pool of so many blocks. */
static sched_options pool_of(uint32_t blocks)
{
    sched_options o = small_options();
    o.prefill_chunk = 200;
    o.n_pages = 1 + 2 * blocks;
    o.n_host_pages = 0;
    o.prefix_cache = false;
    return o;
}

/* Request 1 computes its prompt, draws its first token and ends, beside request 2. */
static void end_prompt(fixture *f)
{
    sched_request a = request(f, 1, 0, PROMPT, 1), b = request(f, 2, 700, 1, 40);
    a.hands_over = true;
    add(f, &a);
    add(f, &b);
    step(f);
    finish_choice(f, 1);
    step(f);
}

static void take_export(fixture *f, const sched_export *x)
{
    post(f, (sched_event){.kind = SCHED_EXPORTED, .exported = x});
    step(f);
}

static void end_and_finish(fixture *f, uint64_t id)
{
    end(f, id, 0);
    step(f);
    finish(f);
}

/* ---- out ------------------------------------------------------------------------------------- */

static void what_is_exported_stays_until_it_was_read(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(40));
    end_prompt(f);
    assert_true(describe(f, 1, 0).hands_over);
    const sched_export *x = sched_next_export(f->s);
    assert_non_null(x);
    assert_null(sched_next_export(f->s));
    assert_int_equal(x->request, 1);
    assert_int_equal(x->n_tokens, PROMPT);
    assert_int_equal(x->n_cells, 2 * PAGES);
    assert_int_equal(x->tokens[PROMPT - 1], PROMPT - 1);
    assert_int_equal(x->tokens[PROMPT], FIRST);
    assert_int_equal(x->image.length, PROMPT);
    step(f);
    assert_int_equal(used_pages(f), 2 * (PAGES + 1));
    take_export(f, x);
    assert_int_equal(used_pages(f), 2);
    end_and_finish(f, 2);
}

/* A step parks one page of all groups. The end says at once that an export will follow. */
static void an_export_follows_long_tables(void **state)
{
    (void)state;
    sched_options o = pool_of(40);
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    end_prompt(f);
    assert_true(describe(f, 1, 0).hands_over);
    const sched_export *x = NULL;
    for (uint32_t n = 1; n < PAGES; n++) {
        assert_null(sched_next_export(f->s));
        assert_non_null(strstr(step(f), "2@"));
    }
    x = sched_next_export(f->s);
    assert_non_null(x);
    assert_int_equal(x->n_cells, 2 * PAGES);
    /* Nor does a step give up more of them. */
    uint32_t used = used_pages(f);
    take_export(f, x);
    for (uint32_t n = 1; n < PAGES; n++) {
        assert_int_equal(used_pages(f), used - 2 * n);
        step(f);
    }
    assert_int_equal(used_pages(f), used - 2 * PAGES);
    end_and_finish(f, 2);
}

/* Wherever memory is out, a promised export comes, and may be one of nothing. */
static void memory_may_be_out(void **state)
{
    (void)state;
    uint32_t n_without = 0;
    bool failed = true;
    for (long fail_at = 0; failed; fail_at++) {
        fixture *f = begin(pool_of(40));
        sched_request a = request(f, 1, 0, PROMPT, 1), b = request(f, 2, 700, 10, 40);
        a.hands_over = true;
        add(f, &a);
        add(f, &b);
        step(f);
        finish_choice(f, 1);
        f->heap.calls = 0;
        f->heap.fail_at = fail_at;
        step(f);
        failed = f->heap.calls > fail_at;
        f->heap.fail_at = -1;
        bool promised = describe(f, 1, 0).hands_over;
        const sched_export *x = sched_next_export(f->s);
        assert_int_equal(x != NULL, promised);
        n_without += x && !x->image.tables;
        if (x) assert_int_equal(x->n_cells, x->image.tables ? 2 * PAGES : 0);
        if (x) take_export(f, x);
        step(f);
        assert_int_equal(used_pages(f), 2);
        end_and_finish(f, 2);
    }
    assert_true(n_without >= 2); /* parking, and the lists of the export */
}

static void no_other_end_exports(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(40));
    sched_request a = request(f, 1, 0, PROMPT, 1);
    a.hands_over = true;
    add(f, &a);
    step(f);
    end(f, 1, 0); /* it was aborted */
    step(f);
    assert_false(describe(f, 1, 0).hands_over);
    assert_null(sched_next_export(f->s));
    finish(f);
}

/* Tables with a token behind the prompt are not those of the prompt alone. */
static void an_end_while_the_next_row_is_computed_exports_nothing(void **state)
{
    (void)state;
    fixture *f = begin(pool_of(40));
    sched_request a = request(f, 1, 0, PROMPT, 9);
    a.hands_over = true;
    add(f, &a);
    step(f);
    assert_string_equal(step(f), "1@50+1*");
    finish_choice(f, 1);
    step_in_flight(f);
    assert_false(describe(f, 1, 0).hands_over);
    step(f);
    assert_null(sched_next_export(f->s));
    finish(f);
}

/* ---- in -------------------------------------------------------------------------------------- */

/* The export of request 1 of another scheduler. */
typedef struct arrival {
    uint32_t tokens[LONG_PROMPT], bases[LONG_PAGES];
    pkv_image_table tables[2];
    sched_handed handed;
    sched_request request;
} arrival;

static void make_arrival(arrival *a, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < LONG_PROMPT; i++) a->tokens[i] = i;
    for (uint32_t i = 0; i < LONG_PAGES; i++) a->bases[i] = 16 * i;
    for (uint32_t i = 0; i < 2; i++)
        a->tables[i] = (pkv_image_table){.kept = n_tokens, .bases = a->bases};
    a->handed = (sched_handed){
        .image = {.grain = PKV_LAYER, .length = n_tokens, .tables = a->tables},
        .tokens = a->tokens,
        .n_tokens = n_tokens,
        .first_token = FIRST,
    };
}

static void add_taker_of(fixture *f, arrival *a, uint32_t n_tokens)
{
    make_arrival(a, n_tokens);
    a->handed.image.grain = pkv_grain_fit(&f->geometry, PKV_LAYER);
    a->request = request(f, 1, 0, n_tokens, 9);
    a->request.handed = &a->handed;
    add(f, &a->request);
}

static void add_taker(fixture *f, arrival *a) { add_taker_of(f, a, PROMPT); }

static const char *fill(fixture *f, const sched_load *load, uint32_t n)
{
    post(f, (sched_event){.kind = SCHED_LOADED, .load = load, .n_loaded = n});
    return step(f);
}

static void it_goes_on_from_what_came(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin(pool_of(40));
    add_taker(f, &a);
    step(f);
    const sched_load *load = sched_next_load(f->s);
    assert_non_null(load);
    assert_null(load->keys);
    assert_int_equal(load->request, 1);
    assert_int_equal(load->n_cells, 2 * PAGES);
    assert_int_equal(used_pages(f), 2 * PAGES);
    assert_string_equal(fill(f, load, 1), "1@50+1*");
    assert_int_equal(describe(f, 1, 0).cached_tokens, PROMPT);
    end_and_finish(f, 1);
}

/* Pages from a server whose K and V differ by rounding serve their own request alone, and no event
 * tells of their blocks; the next request of the prompt computes it. */
static void what_is_foreign_enters_no_cache(void **state)
{
    (void)state;
    for (int foreign = 0; foreign < 2; foreign++) {
        arrival a;
        sched_options o = pool_of(40);
        o.prefix_cache = true;
        fixture *f = begin(o);
        sched_request again = request(f, 2, 0, PROMPT, 9);
        add_taker(f, &a);
        a.handed.foreign = foreign;
        step(f);
        assert_string_equal(fill(f, sched_next_load(f->s), 1), "1@50+1*");
        for (uint32_t i = 51; i < 64; i++) step(f); /* blocks of the answer are its own, too */
        add(f, &again);
        assert_non_null(strstr(step(f), foreign ? "2@0+50*" : "2@48+2*"));
        end(f, 2, 0);
        end_and_finish(f, 1);
    }
}

static void what_was_not_filled_is_computed(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin(pool_of(40));
    add_taker(f, &a);
    step(f);
    assert_string_equal(fill(f, sched_next_load(f->s), 0), "1@0+50*");
    end_and_finish(f, 1);
}

/* While another request has the pages, it waits as others do; then it is filled. */
static void it_waits_while_the_pool_is_full(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin(pool_of(9)); /* 4 pages are free, and request 2 is to have one of them */
    sched_request b = request(f, 2, 700, 70, 20);
    add(f, &b);
    step(f);
    add_taker(f, &a);
    for (int i = 0; i < 3; i++) {
        assert_non_null(strstr(step(f), "2@"));
        assert_null(sched_next_load(f->s));
    }
    end(f, 2, 0);
    step(f);
    const sched_load *load = sched_next_load(f->s);
    assert_non_null(load);
    assert_string_equal(fill(f, load, 1), "1@50+1*");
    end_and_finish(f, 1);
}

/* An export of another prompt is dropped. */
static void what_does_not_suit_is_computed(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin(pool_of(40));
    add_taker(f, &a);
    a.handed.n_tokens--;
    assert_string_equal(step(f), "1@0+50*");
    assert_null(sched_next_load(f->s));
    end_and_finish(f, 1);
}

/* Whether a prompt of LONG_PROMPT tokens is taken over whose two tables keep so many of them, page
 * by page: the first pages and, where the last one is not full, the prompt's last page. Where they
 * are scattered, each token's position is listed. */
static bool takes_as(const char *policy, uint32_t kept, uint32_t of_second, bool contiguous,
                     bool scattered)
{
    arrival a;
    fixture *f = begin(pool_of(40));
    make_arrival(&a, LONG_PROMPT);
    uint32_t bases[2][LONG_PAGES], slots[LONG_PROMPT], own[2] = {kept, of_second};
    for (uint32_t i = 0; i < LONG_PROMPT; i++) slots[i] = i;
    for (uint32_t i = 0; i < 2; i++) {
        memcpy(bases[i], a.bases, sizeof bases[i]);
        if (own[i] % 16 > 0) bases[i][own[i] / 16] = LONG_PROMPT / 16 * 16;
        a.tables[i] = (pkv_image_table){.kept = own[i],
                                        .bases = bases[i],
                                        .slots = slots,
                                        .slot_pages = scattered ? (own[i] + 15) / 16 : 0};
    }
    a.handed.image.grain = pkv_grain_fit(&f->geometry, PKV_LAYER);
    a.handed.image.dropped = kept < LONG_PROMPT || of_second < LONG_PROMPT;
    a.handed.image.contiguous = contiguous;
    a.request = with_policy(f, 1, 0, LONG_PROMPT, 9, policy);
    a.request.handed = &a.handed;
    add(f, &a.request);
    step(f);
    const sched_load *load = sched_next_load(f->s);
    if (load) assert_string_equal(fill(f, load, 1), contiguous ? "1@64+1*" : "1@140+1*");
    else assert_non_null(strstr(f->trace, "1@0+140*"));
    end_and_finish(f, 1);
    return load != NULL;
}

static bool takes(const char *policy, uint32_t kept, uint32_t of_second, bool contiguous)
{
    return takes_as(policy, kept, of_second, contiguous, false);
}

/* Everything that counts pages, slots and positions relies on what the method can leave. */
static void more_than_the_method_leaves_is_computed(void **state)
{
    (void)state;
    static const char few[] = "{\"method\": \"streaming\", \"tokens\": 64}",
                      closed[] = "{\"method\": \"streaming\", \"tokens\": 68, "
                                 "\"positions\": \"cache\"}",
                      pages[] = "{\"method\": \"chunkkv\", \"tokens\": 64, \"unit\": \"page\"}",
                      roomy[] = "{\"method\": \"streaming\", \"tokens\": 200, "
                                "\"positions\": \"cache\"}",
                      uneven[] = "{\"method\": \"pyramidkv\", \"tokens\": 64, \"window\": 8}";
    assert_true(takes(few, 64, 64, false));
    assert_true(takes(few, 64, 48, false));
    assert_false(takes(few, 80, 64, false));
    assert_false(takes(few, LONG_PROMPT, LONG_PROMPT, false));
    assert_false(takes(few, 64, 64, true));
    assert_true(takes(closed, 64, 64, true));
    assert_false(takes(closed, 80, 80, true));
    assert_false(takes(closed, 64, 64, false));
    assert_false(takes(closed, LONG_PROMPT, LONG_PROMPT, false));
    assert_true(takes(roomy, LONG_PROMPT, LONG_PROMPT, false)); /* nothing closes up */

    assert_true(takes(pages, 44, 60, false));
    assert_false(takes(pages, 44, 48, false));
    assert_true(takes_as(few, 44, 60, false, true));
    assert_false(takes_as(pages, 44, 60, false, true));

    fixture *f = begin(pool_of(40));
    sched_request r = with_policy(f, 1, 0, LONG_PROMPT, 9, uneven);
    retention_bound bound =
        retention_bound_at(&r.policy, &f->geometry, 0, LONG_PROMPT, LONG_PROMPT);
    finish(f);
    uint32_t longest = bound.longest / 16 * 16, rest = (uint32_t)bound.even_pages * 16 - longest;
    assert_true(rest < longest);
    assert_true(takes(uneven, longest, rest / 16 * 16, false));
    assert_false(takes(uneven, longest, longest, false));
}

static void a_request_may_end_while_it_is_filled(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin(pool_of(40));
    add_taker(f, &a);
    step(f);
    const sched_load *load = sched_next_load(f->s);
    end(f, 1, 0);
    step(f);
    assert_int_equal(used_pages(f), 2 * PAGES); /* they are being written */
    fill(f, load, 1);
    assert_int_equal(used_pages(f), 0);
    finish(f);
}

/* Cells in use beside those of request 2, whose prompt is one token. */
static uint32_t pages_beside(fixture *f)
{
    uint32_t n = 1 + describe(f, 2, 0).output_tokens;
    return used_pages(f) - 2 * ((n + 15) / 16);
}

/* Request 1 takes a prompt over, one page a step, beside request 2. */
static fixture *begin_portions(arrival *a, uint32_t n_tokens)
{
    sched_options o = pool_of(40);
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    sched_request b = request(f, 2, 700, 1, 200);
    add(f, &b);
    step(f);
    add_taker_of(f, a, n_tokens);
    return f;
}

/* Takes n pages of each of the two tables; then a step lists 16 cells. */
static const sched_load *take_in_portions(fixture *f, uint32_t n_pages)
{
    uint32_t used = pages_beside(f);
    for (uint32_t n = 1; n <= 2 * n_pages; n++) {
        assert_non_null(strstr(step(f), "2@"));
        assert_null(sched_next_load(f->s));
        assert_int_equal(pages_beside(f), used + n);
    }
    for (uint32_t n = 0; n < 2 * n_pages; n += 16) {
        assert_null(sched_next_load(f->s));
        assert_non_null(strstr(step(f), "2@"));
    }
    const sched_load *load = sched_next_load(f->s);
    assert_non_null(load);
    assert_int_equal(load->n_cells, 2 * n_pages);
    for (uint32_t i = 0; i < load->n_cells; i++)
        for (uint32_t k = 0; k < i; k++) assert_int_not_equal(load->cells[i], load->cells[k]);
    return load;
}

/* The pages of an arrival are taken in portions, between which others get their tokens. */
static void pages_are_taken_in_portions(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin_portions(&a, LONG_PROMPT);
    const sched_load *load = take_in_portions(f, LONG_PAGES);
    const char *trace = fill(f, load, 1); /* its tables are opened in portions too */
    for (uint32_t n = 0; n < 2 * LONG_PAGES && !strstr(trace, "1@"); n++) trace = step(f);
    assert_non_null(strstr(trace, "1@140+1"));
    end(f, 1, 0);
    end_and_finish(f, 2);
}

/* A prompt whose pages are given up before it starts is still one that came, though it starts from
 * the blocks of request 5 then, which it takes in portions. */
static void what_came_is_not_counted_again_as_a_hit(void **state)
{
    (void)state;
    arrival a;
    sched_options o = pool_of(2 * LONG_PAGES + 1);
    o.prefix_cache = true;
    o.hand_out_slots = 16;
    fixture *f = begin(o);
    sched_request b = request(f, 5, 0, LONG_PROMPT, 60);
    const sched_load *load = NULL;
    add(f, &b);
    step(f);
    add_taker_of(f, &a, LONG_PROMPT);
    for (int i = 0; i < 20 && !load; i++) {
        step(f);
        load = sched_next_load(f->s);
    }
    assert_non_null(load);
    assert_int_equal(used_pages(f), 2 * (2 * LONG_PAGES + 1)); /* 5 has grown by one */
    fill(f, load, 1);
    for (int i = 0; i < 40 && !describe(f, 1, 0).arriving; i++) {
        assert_null(strstr(f->trace, "1@"));
        step(f);
    }
    assert_true(describe(f, 1, 0).arriving);
    for (int i = 0; i < 20 && !strstr(f->trace, "1@"); i++) step(f);
    assert_non_null(strstr(f->trace, "1@128+"));
    assert_int_equal(describe(f, 1, 0).cached_tokens, LONG_PROMPT);
    end(f, 5, 0);
    end_and_finish(f, 1);
}

/* Pages are taken in portions where a table is one of a layer with several heads, too. */
static void pages_of_layers_are_taken_in_portions(void **state)
{
    (void)state;
    arrival a;
    sched_options o = pool_of(80);
    o.geometry.n_kv_heads = 2;
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    sched_request b = request(f, 2, 700, 1, 200);
    add(f, &b);
    step(f);
    add_taker_of(f, &a, LONG_PROMPT);
    assert_int_equal(a.handed.image.grain, PKV_LAYER);
    for (uint32_t n = 1; n <= 2 * LONG_PAGES; n++) {
        assert_non_null(strstr(step(f), "2@"));
        uint32_t beside = 4 * ((1 + describe(f, 2, 0).output_tokens + 15) / 16);
        assert_int_equal(used_pages(f) - beside, 2 * n);
        assert_null(sched_next_load(f->s));
    }
    end(f, 1, 0);
    end_and_finish(f, 2);
}

/* Between two portions other requests leave it its pages: the prompt that arrives later waits. */
static void pages_of_later_portions_are_its_own(void **state)
{
    (void)state;
    arrival a;
    sched_options o = pool_of(9);
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    sched_request b = request(f, 2, 700, 1, 40), c = request(f, 3, 900, 70, 2);
    add(f, &b);
    step(f);
    add_taker(f, &a);
    step(f);
    add(f, &c);
    for (uint32_t n = 1; n < 2 * PAGES; n++) assert_null(strstr(step(f), "3@"));
    step(f);
    const sched_load *load = sched_next_load(f->s);
    assert_non_null(load);
    end(f, 1, 0);
    end(f, 3, 0);
    fill(f, load, 0);
    end_and_finish(f, 2);
}

/* A request that ends between two portions gives up what it has, in portions too. */
static void a_request_may_end_between_portions(void **state)
{
    (void)state;
    for (uint32_t taken = 1; taken <= 2 * PAGES; taken++) {
        arrival a;
        fixture *f = begin_portions(&a, PROMPT);
        uint32_t used = pages_beside(f);
        for (uint32_t n = 0; n < taken; n++) step(f);
        assert_int_equal(pages_beside(f), used + taken);
        end(f, 1, 0);
        memset(&a, 0xff, sizeof a); /* it is borrowed no longer */
        for (uint32_t n = taken; n-- > 0;) {
            step(f);
            assert_null(sched_next_load(f->s));
            assert_int_equal(pages_beside(f), used + n);
        }
        end_and_finish(f, 2);
    }
}

/* An arrival whose request has ended is given up in portions: here one page of a layer a step. */
static void what_came_in_vain_goes_in_portions(void **state)
{
    (void)state;
    arrival a;
    fixture *f = begin_portions(&a, PROMPT);
    const sched_load *load = take_in_portions(f, PAGES);
    end(f, 1, 0);
    step(f);
    uint32_t used = pages_beside(f);
    fill(f, load, 0);
    for (uint32_t n = 1; n < 2 * PAGES; n++) {
        assert_int_equal(pages_beside(f), used - n);
        step(f);
    }
    assert_int_equal(pages_beside(f), used - 2 * PAGES);
    end_and_finish(f, 2);
}

/* So it does where the prompt is computed instead, on other pages meanwhile. */
static void what_was_not_filled_goes_in_portions(void **state)
{
    (void)state;
    arrival a;
    sched_options o = pool_of(40);
    o.hand_out_slots = 4;
    fixture *f = begin(o);
    add_taker(f, &a);
    step(f);
    const sched_load *load = sched_next_load(f->s);
    assert_int_equal(used_pages(f), 2 * PAGES);
    assert_string_equal(fill(f, load, 0), "1@0+50*");
    for (uint32_t n = 1; n < 2 * PAGES; n++) {
        assert_int_equal(used_pages(f), 2 * PAGES + 2 * PAGES - n);
        step(f);
    }
    assert_int_equal(used_pages(f), 2 * PAGES);
    end_and_finish(f, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_exported_stays_until_it_was_read),
        cmocka_unit_test(an_export_follows_long_tables),
        cmocka_unit_test(memory_may_be_out),
        cmocka_unit_test(no_other_end_exports),
        cmocka_unit_test(an_end_while_the_next_row_is_computed_exports_nothing),
        cmocka_unit_test(it_goes_on_from_what_came),
        cmocka_unit_test(what_is_foreign_enters_no_cache),
        cmocka_unit_test(what_was_not_filled_is_computed),
        cmocka_unit_test(it_waits_while_the_pool_is_full),
        cmocka_unit_test(what_does_not_suit_is_computed),
        cmocka_unit_test(more_than_the_method_leaves_is_computed),
        cmocka_unit_test(a_request_may_end_while_it_is_filled),
        cmocka_unit_test(pages_are_taken_in_portions),
        cmocka_unit_test(what_came_is_not_counted_again_as_a_hit),
        cmocka_unit_test(pages_of_layers_are_taken_in_portions),
        cmocka_unit_test(pages_of_later_portions_are_its_own),
        cmocka_unit_test(a_request_may_end_between_portions),
        cmocka_unit_test(what_came_in_vain_goes_in_portions),
        cmocka_unit_test(what_was_not_filled_goes_in_portions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

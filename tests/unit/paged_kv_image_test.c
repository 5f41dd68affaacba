/* Images: a sequence of one pool goes on in another, at the same grain or a finer one. */
#include "tests/unit/paged_kv_grain_fixture.h"
#include "tests/unit/paged_kv_whole.h"

enum { TABLES = GROUPS_MOST, CELLS = CELLS_MOST };

static const pkv_grain grains[] = {PKV_ALL, PKV_LAYER, PKV_HEAD};

static uint32_t list_cells(const grain_fixture *f, uint32_t parked, uint32_t first, uint32_t n,
                           uint32_t *to)
{
    pkv_image_table tables[TABLES];
    pkv_image image = pkv_parked_image(f->kv, parked, tables);
    return pkv_list_cells(f->kv, &image, first, n, to);
}

/* Copies the slots of an image's cells, which both pools tell in one order. */
static void copy_cells(const grain_fixture *from, uint32_t parked, grain_fixture *to,
                       uint32_t adopted, uint32_t n)
{
    uint32_t here[CELLS], there[CELLS];
    assert_int_equal(list_cells(from, parked, 0, n, here), n);
    for (uint32_t i = 0; i < n;) {
        uint32_t most = 1 + i % 7, more = list_cells(to, adopted, i, most, there + i);
        assert_int_equal(more, most < n - i ? most : n - i);
        i += more;
    }
    for (uint32_t i = 0; i < n; i++)
        memcpy(to->memory[there[i]], from->memory[here[i]], sizeof to->memory[0]);
}

static pkv_image image_of(const grain_fixture *f, uint32_t parked, pkv_image_table *tables)
{
    assert_true(pkv_parked_tables(f->kv, parked) <= TABLES);
    return pkv_parked_image(f->kv, parked, tables);
}

/* Takes n pages of the adopted prompt, or all, in portions of one to three. Pages that the prompt
 * still lacks are not available meanwhile. */
static void take_cells(grain_fixture *f, uint32_t adopted, const pkv_image *image, uint32_t n)
{
    uint32_t available = pkv_available(f->kv), taken = 0, now, most;
    do {
        most = 1 + taken % 3;
        if (most > n - taken) most = n - taken;
        assert_true(status_ok(pkv_adopt_some(f->kv, adopted, image, most, &now)));
        assert_true(now <= most);
        taken += now;
        check_pool(f);
        assert_int_equal(pkv_available(f->kv), available);
    } while (now == most && taken < n);
}

/* Parks a sequence of `a` and opens it in `b`, where it grows on. */
static void move_over(grain_fixture *a, uint32_t seq, grain_fixture *b, uint32_t salt)
{
    pkv_image_table tables[TABLES];
    uint32_t parked, adopted, length = pkv_seq_length(a->kv, seq), used = pkv_count(b->kv).used;
    assert_true(status_ok(park_whole(a->kv, seq, &parked)));
    pkv_image image = image_of(a, parked, tables);
    uint32_t n = (uint32_t)pkv_image_cells(&a->geometry, &image);
    assert_true(pkv_image_fits(&a->geometry, &image));
    assert_true(pkv_image_cost(b->kv, &image) >= n);
    assert_true(status_ok(pkv_adopt(b->kv, &image, salt, false, true, &adopted)));
    assert_int_equal(pkv_count(b->kv).used, used);
    take_cells(b, adopted, &image, UINT32_MAX);
    assert_int_equal(pkv_count(b->kv).used, used + n);
    check_pool(b);
    copy_cells(a, parked, b, adopted, n);
    b->salt[1] = a->salt[seq];
    assert_true(status_ok(unpark_whole(b->kv, adopted, 1, 0)));
    check(b);
    assert_int_equal(pkv_seq_length(b->kv, 1), length);
    grow(b, 1, 5);
    discard_whole(a->kv, parked);
    check(a);
}

static void a_whole_sequence_is_published_there(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        grain_fixture a, b;
        begin(&a, 2, 2, 60, 0);
        begin(&b, 2, 2, 60, 0);
        fill(&a, 0, grains[i], 9, 40);
        move_over(&a, 0, &b, 9);
        publish(&b, 1);
        assert_int_equal(pkv_lookup(b.kv, text(), 45, 9).tokens, 32);
        close_seq(&b, 1);
        end(&a);
        end(&b);
    }
}

static void what_was_dropped_stays_dropped(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 3; i++) {
        grain_fixture a, b;
        begin(&a, 2, 2, 60, 0);
        begin(&b, 2, 2, 60, 0);
        fill(&a, 0, grains[i], 9, 70);
        drop(&a, 0, 0, 0x15); /* pages 0, 2 and 4 stay */
        drop(&a, 0, 1, 0x18);
        move_over(&a, 0, &b, 9);
        assert_true(pkv_seq_has_dropped(b.kv, 1));
        publish(&b, 1);
        assert_int_equal(pkv_lookup(b.kv, text(), 70, 9).tokens, 0);
        end(&a);
        end(&b);
    }
}

/* Single slots are kept, so that a table has a position for each. */
static void slots_keep_their_positions(void **state)
{
    (void)state;
    grain_fixture a, b;
    uint32_t keep[20];
    for (uint32_t i = 0; i < 20; i++) keep[i] = 3 * i + 1;
    begin(&a, 2, 2, 60, 0);
    begin(&b, 2, 2, 60, 0);
    fill(&a, 0, PKV_HEAD, 9, 64);
    assert_true(status_ok(pkv_seq_compact(a.kv, 0, 2, keep, 20)));
    check(&a);
    move_over(&a, 0, &b, 9);
    assert_int_equal(pkv_seq_position(b.kv, 1, 2, 19), 58);
    assert_int_equal(pkv_seq_position(b.kv, 1, 2, 24), 68);
    end(&a);
    end(&b);
}

/* Where the other pool has cells but no runs, the tables become finer. */
static void a_broken_pool_takes_finer_tables(void **state)
{
    (void)state;
    grain_fixture a, b;
    begin(&a, 2, 2, 60, 0);
    begin(&b, 2, 2, 41, 0);
    fill(&a, 0, PKV_ALL, 9, 40);
    fill(&b, 0, PKV_HEAD, 5, 10 * P); /* all cells, of which each second comes free */
    for (uint32_t g = 0; g < 4; g++) drop(&b, 0, g, g % 2 ? 0x155 : 0x2aa);
    move_over(&a, 0, &b, 9);
    assert_int_equal(pkv_seq_grain(b.kv, 1), PKV_HEAD);
    end(&a);
    end(&b);
}

/* Adopts in b what a has of 40 tokens in one table, takes two pages, and then breaks all whole runs
 * of b: another sequence takes free cells rather than those that the cache has in broken runs. */
static uint32_t adopt_in_broken(grain_fixture *a, grain_fixture *b, pkv_image_table *tables,
                                uint32_t *parked, pkv_image *image)
{
    uint32_t adopted, hit;
    begin(a, 2, 2, 60, 0);
    begin(b, 2, 2, 41, 0);
    fill(a, 0, PKV_ALL, 9, 40);
    fill(b, 0, PKV_HEAD, 5, 7 * P);
    publish(b, 0);
    for (uint32_t g = 0; g < 4; g++) drop(b, 0, g, g % 2 ? 0x55 : 0x6a);
    assert_true(status_ok(park_whole(a->kv, 0, parked)));
    *image = image_of(a, *parked, tables);
    assert_true(status_ok(pkv_adopt(b->kv, image, 9, false, true, &adopted)));
    assert_int_equal(pkv_parked_tables(b->kv, adopted), 1);
    take_cells(b, adopted, image, 2);
    assert_true(status_ok(pkv_seq_open(b->kv, 2, PKV_HEAD, text(), 0, 6, 0, &hit)));
    assert_true(status_ok(pkv_seq_append(b->kv, 2, 2 * P)));
    take(b);
    return adopted;
}

static void runs_may_be_broken_between_portions(void **state)
{
    (void)state;
    grain_fixture a, b;
    pkv_image_table tables[TABLES];
    pkv_image image;
    uint32_t parked, adopted = adopt_in_broken(&a, &b, tables, &parked, &image);
    take_cells(&b, adopted, &image, UINT32_MAX);
    assert_int_equal(pkv_parked_tables(b.kv, adopted), b.groups);
    copy_cells(&a, parked, &b, adopted, 12);
    b.salt[1] = a.salt[0];
    pkv_seq_close(b.kv, 2);
    assert_true(status_ok(unpark_whole(b.kv, adopted, 1, 0)));
    check(&b);
    grow(&b, 1, 5);
    discard_whole(a.kv, parked);
    end(&a);
    end(&b);
}

/* Tables that become finer leave nothing wherever the sequence is discarded. */
static void it_may_be_discarded_while_tables_become_finer(void **state)
{
    (void)state;
    for (uint32_t n_calls = 0; n_calls < 6; n_calls++) {
        grain_fixture a, b;
        pkv_image_table tables[TABLES];
        pkv_image image;
        uint32_t parked, n, adopted = adopt_in_broken(&a, &b, tables, &parked, &image);
        for (uint32_t i = 0; i < n_calls; i++) {
            assert_true(status_ok(pkv_adopt_some(b.kv, adopted, &image, 1, &n)));
            assert_int_equal(n, 1);
            check_pool(&b);
            /* Each of the first calls splits one of the two pages. */
            assert_int_equal(pkv_parked_tables(b.kv, adopted), i == 0 ? 1 : b.groups);
        }
        discard_whole(b.kv, adopted);
        check_pool(&b);
        pkv_seq_close(b.kv, 2);
        close_seq(&b, 0);
        assert_int_equal(pkv_count(b.kv).used, 0);
        assert_int_equal(pkv_available(b.kv), 40);
        discard_whole(a.kv, parked);
        end(&a);
        end(&b);
    }
}

static void without_pages_nothing_changes(void **state)
{
    (void)state;
    grain_fixture a, b;
    pkv_image_table tables[TABLES];
    uint32_t parked, adopted = 77;
    begin(&a, 2, 2, 60, 0);
    begin(&b, 2, 2, 9, 0);
    fill(&a, 0, PKV_LAYER, 9, 33);
    assert_true(status_ok(park_whole(a.kv, 0, &parked)));
    pkv_image image = image_of(&a, parked, tables);
    assert_int_equal(pkv_adopt(b.kv, &image, 9, false, true, &adopted).code, STATUS_NO_PAGES);
    assert_int_equal(adopted, 77);
    assert_int_equal(pkv_count(b.kv).used, 0);
    discard_whole(a.kv, parked);
    end(&a);
    end(&b);
}

/* Adopts in b what a has of 33 tokens, three pages in each of four tables. */
static uint32_t adopt_twelve(grain_fixture *a, grain_fixture *b, pkv_image_table *tables,
                             pkv_image *image)
{
    uint32_t parked, adopted;
    fill(a, 0, PKV_HEAD, 9, 33);
    assert_true(status_ok(park_whole(a->kv, 0, &parked)));
    *image = image_of(a, parked, tables);
    assert_true(status_ok(pkv_adopt(b->kv, image, 9, false, true, &adopted)));
    return adopted;
}

/* A prompt that is discarded between two portions gives up the pages that it has and those that it
 * was promised, and takes no more. */
static void it_may_be_discarded_between_portions(void **state)
{
    (void)state;
    for (uint32_t taken = 0; taken < 12; taken++) {
        grain_fixture a, b;
        pkv_image_table tables[TABLES];
        pkv_image image;
        begin(&a, 2, 2, 60, 0);
        begin(&b, 2, 2, 17, 0);
        uint32_t adopted = adopt_twelve(&a, &b, tables, &image);
        assert_int_equal(pkv_count(b.kv).used, 0);
        assert_int_equal(pkv_available(b.kv), 4);
        if (taken > 0) take_cells(&b, adopted, &image, taken);
        assert_int_equal(pkv_count(b.kv).used, taken);
        if (taken % 2) pkv_discard_later(b.kv, adopted);
        else discard_whole(b.kv, adopted);
        assert_int_equal(pkv_available(b.kv), 16 - (taken % 2 ? taken : 0));
        check_pool(&b);
        while (pkv_discards(b.kv) > 0) {
            (void)pkv_discard_some(b.kv, 1);
            check_pool(&b);
        }
        assert_int_equal(pkv_available(b.kv), 16);
        end(&a);
        end(&b);
    }
}

/* A copy of a shared page takes one that was promised: then it says so, as often as it is asked. */
static void others_may_take_what_was_promised(void **state)
{
    (void)state;
    grain_fixture a, b;
    pkv_image_table tables[TABLES];
    pkv_image image;
    uint32_t shared, n, keep[20];
    for (uint32_t i = 0; i < 20; i++) keep[i] = i;
    begin(&a, 2, 2, 60, 0);
    begin(&b, 2, 2, 21, 0);
    fill(&b, 0, PKV_HEAD, 5, 32);
    assert_true(status_ok(pkv_seq_fork_parked(b.kv, 0, &shared)));
    uint32_t adopted = adopt_twelve(&a, &b, tables, &image);
    assert_int_equal(pkv_available(b.kv), 0);
    keep[19] = 25;
    assert_true(status_ok(pkv_seq_compact(b.kv, 0, 0, keep, 20)));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pkv_adopt_some(b.kv, adopted, &image, 12, &n).code, STATUS_NO_PAGES);
    check_pool(&b);
    assert_int_equal(pkv_available(b.kv), 0);
    discard_whole(b.kv, adopted);
    discard_whole(b.kv, shared);
    check_pool(&b);
    end(&a);
    end(&b);
}

static void images_that_no_sequence_has(void **state)
{
    (void)state;
    const pkv_geometry g = {.page_tokens = P,
                            .n_layers = 2,
                            .n_kv_heads = 1,
                            .layers_per_group = 1,
                            .heads_per_group = 1};
    uint32_t bases[2][3] = {{0, 16, 32}, {0, 16, 32}}, slots[P] = {0};
    for (uint32_t i = 0; i < P; i++) slots[i] = 2 * i;
    pkv_image_table t[2] = {{.kept = 40, .bases = bases[0]}, {.kept = 40, .bases = bases[1]}};
    pkv_image image = {.grain = PKV_HEAD, .length = 40, .tables = t};
    assert_true(pkv_image_fits(&g, &image));
    t[1].kept = 39;
    assert_false(pkv_image_fits(&g, &image)); /* a whole one lacks a token */
    image.dropped = true;
    assert_false(pkv_image_fits(&g, &image)); /* the next token would have its position */
    t[1].kept = 32;
    assert_true(pkv_image_fits(&g, &image)); /* a page of its own */
    t[1].kept = 41;
    assert_false(pkv_image_fits(&g, &image)); /* more than there were */
    t[1].kept = 24;
    bases[1][1] = 32; /* 8 tokens of the last page */
    assert_true(pkv_image_fits(&g, &image));
    bases[1][1] = 33;
    assert_false(pkv_image_fits(&g, &image)); /* behind the length */
    bases[1][1] = 8;
    assert_false(pkv_image_fits(&g, &image)); /* a position twice */
    bases[1][1] = 32;
    t[1].slot_pages = 1;
    t[1].slots = slots;
    assert_true(pkv_image_fits(&g, &image));
    slots[3] = 40;
    assert_false(pkv_image_fits(&g, &image));
    slots[3] = slots[2];
    assert_false(pkv_image_fits(&g, &image));
    slots[3] = 6;
    t[1].slot_pages = 3;
    assert_false(pkv_image_fits(&g, &image)); /* more pages than it has */
    t[1].slot_pages = 1;
    image.contiguous = true;
    assert_false(pkv_image_fits(&g, &image)); /* unequally many */
    image.length = 0;
    assert_false(pkv_image_fits(&g, &image));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_sequence_is_published_there),
        cmocka_unit_test(what_was_dropped_stays_dropped),
        cmocka_unit_test(slots_keep_their_positions),
        cmocka_unit_test(a_broken_pool_takes_finer_tables),
        cmocka_unit_test(runs_may_be_broken_between_portions),
        cmocka_unit_test(it_may_be_discarded_while_tables_become_finer),
        cmocka_unit_test(without_pages_nothing_changes),
        cmocka_unit_test(it_may_be_discarded_between_portions),
        cmocka_unit_test(others_may_take_what_was_promised),
        cmocka_unit_test(images_that_no_sequence_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

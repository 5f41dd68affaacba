/* Copies of K and V out of workers and into them: the same bytes as of ranks in threads, beside
 * steps and from several threads. A call without the session, or for cells that the rank does not
 * have, is refused; a lost rank ends the copies. */
#include "rpc/worker/group.h"
#include "rpc/worker/server.h"
#include "tests/unit/cells_of_block.h"
#include "tests/unit/rpc_grpc_client.h"
#include "tests/unit/rpc_worker_fixture.h"

#define CELLS "/octavo.worker.v1.Worker/Cells"

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *site_of(void **state, uint32_t n)
{
    *state = site_create(n);
    return *state;
}

static uint8_t *random_bytes(size_t n, uint64_t seed)
{
    uint8_t *bytes = malloc(n);
    rng r = rng_seed(seed);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)rng_u32(&r);
    return bytes;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void the_bytes_are_those_of_threads(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    backend both[2] = {site_make_sure(s), site_local(s)};
    const backend_info *info = both[0].ops->info(both[0].ctx);
    const backend_info *local = both[1].ops->info(both[1].ctx);
    uint32_t cells[GROUPS_MOST], groups = pkv_groups(&info->geometry);
    size_t n = info->block_bytes;
    assert_true(n > 0);
    assert_int_equal(local->block_bytes, n);
    assert_true(local->block_identity == info->block_identity);
    assert_true(info->kv_identity != 0 && local->kv_identity == info->kv_identity);
    uint8_t *bytes = random_bytes(n, 3), *got[2] = {malloc(n), malloc(n)};
    cells_of_block(info, 1, cells);
    for (int i = 0; i < 2; i++) {
        const backend *b = &both[i];
        assert_true(b->ops->write_cells(b->ctx, cells, groups, bytes));
        assert_true(
            b->ops->read_cells(b->ctx, cells, groups, info->geometry.page_tokens, &got[i], groups));
        assert_memory_equal(got[i], bytes, n);
        assert_true(b->ops->read_cells(b->ctx, cells, groups, 3, &got[i], groups));
    }
    assert_memory_equal(got[0], got[1], n);
    assert_memory_not_equal(got[0], bytes, n);
    for (int i = 0; i < 2; i++) {
        both[i].ops->destroy(both[i].ctx);
        free(got[i]);
    }
    free(bytes);
}

/* Blocks that leave in one step go to places of their own, and each rank is asked once. */
static void blocks_are_read_at_once(void **state)
{
    enum { BLOCKS = 3 };
    site *s = site_of(state, 2);
    site_start(s, false);
    backend b = site_make_sure(s);
    const backend_info *info = b.ops->info(b.ctx);
    uint32_t groups = pkv_groups(&info->geometry), cells[BLOCKS * GROUPS_MOST];
    uint8_t *bytes[BLOCKS], *got[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        bytes[i] = random_bytes(info->block_bytes, 7 + i);
        got[i] = calloc(1, info->block_bytes);
        cells_of_block(info, 3 + i, cells + i * groups);
        assert_true(b.ops->write_cells(b.ctx, cells + i * groups, groups, bytes[i]));
    }
    assert_true(
        b.ops->read_cells(b.ctx, cells, BLOCKS * groups, info->geometry.page_tokens, got, groups));
    for (uint32_t r = 0; r < 2; r++) assert_int_equal(atomic_load(&s->ranks[r].reads), 1);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_memory_equal(got[i], bytes[i], info->block_bytes);
        free(bytes[i]);
        free(got[i]);
    }
    b.ops->destroy(b.ctx);
}

/* The places of a proxy's own call may be several too. */
static void a_rank_gives_to_several_places(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    backend b = site_make_sure(s);
    worker_link *own = &s->group->links[1];
    const backend_info *info = &own->facts.info;
    backend_slice slice = backend_slice_of(info, 1, 2);
    size_t bytes = slice.cell_bytes;
    const uint32_t cells[3] = {slice.cells.first + 8, slice.cells.first + 5,
                               slice.cells.first + 11};
    uint8_t *all_bytes = random_bytes(3 * bytes, 5), *first = calloc(2, bytes),
            *second = calloc(1, bytes), *to[2] = {first, second};
    assert_true(proxy_write_cells(own, cells, 3, all_bytes));
    assert_true(proxy_read_cells(own, cells, 3, info->geometry.page_tokens, to, 2));
    assert_memory_equal(first, all_bytes, 2 * bytes);
    assert_memory_equal(second, all_bytes + 2 * bytes, bytes);
    free(all_bytes);
    free(first);
    free(second);
    b.ops->destroy(b.ctx);
}

typedef struct copier {
    const backend *backend;
    uint32_t number;
    bool good;
} copier;

static void *copy_again_and_again(void *arg)
{
    copier *c = arg;
    const backend *b = c->backend;
    const backend_info *info = b->ops->info(b->ctx);
    uint32_t cells[GROUPS_MOST], groups = pkv_groups(&info->geometry);
    size_t n = info->block_bytes;
    uint8_t *got = malloc(n);
    c->good = got != NULL;
    for (uint64_t i = 0; c->good && i < 8; i++) {
        uint8_t *bytes = random_bytes(n, 100 * c->number + i);
        cells_of_block(info, c->number, cells);
        c->good =
            b->ops->write_cells(b->ctx, cells, groups, bytes) &&
            b->ops->read_cells(b->ctx, cells, groups, info->geometry.page_tokens, &got, groups) &&
            memcmp(got, bytes, n) == 0;
        free(bytes);
    }
    free(got);
    return NULL;
}

/* Threads of a disk and the engine's copy beside a step, whose tokens stay what they are. */
static void threads_copy_beside_steps(void **state)
{
    enum { THREADS = 5 };
    site *s = site_of(state, 2);
    site_start(s, false);
    strbuf alone = {0}, beside = {0};
    backend local = site_local(s);
    pass_run(&local, NULL, &alone);
    local.ops->destroy(local.ctx);
    backend b = site_make_sure(s);
    pthread_t threads[THREADS];
    copier copiers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        copiers[i] = (copier){&b, 20 + i, false}; /* a pass has the first pages */
        assert_int_equal(pthread_create(&threads[i], NULL, copy_again_and_again, &copiers[i]), 0);
    }
    pass_run(&b, NULL, &beside);
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(copiers[i].good);
    }
    assert_int_equal(alone.size, beside.size);
    assert_memory_equal(alone.data, beside.data, alone.size);
    b.ops->destroy(b.ctx);
    strbuf_destroy(&alone);
    strbuf_destroy(&beside);
}

/* ---- who asks for what ----------------------------------------------------------------------- */

static void expect_refused(grpc_client *c, const cells_message *m, const char *word)
{
    client_call *k = client_ask(c, CELLS, NULL, &m->base);
    strbuf got = {0};
    (void)client_read(k, &got);
    assert_int_equal(got.size, 0);
    strbuf_destroy(&got);
    assert_int_not_equal(client_end(k), GRPC_STATUS_OK);
    if (!strstr(k->text, word)) fail_msg("\"%s\" does not say '%s'", k->text, word);
    client_destroy(k);
}

static void only_the_session_gets_its_own_cells(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    grpc_client c = grpc_client_plain(worker_server_port(s->ranks[1].server));
    uint32_t cells[GROUPS_MOST];
    uint8_t byte = 0;
    cells_message m = OCTAVO__WORKER__V1__CELLS_REQUEST__INIT;
    m.cells = cells;
    m.n_cells = 1;
    m.n_slots = 1;
    expect_refused(&c, &m, "session: "); /* there is none, and 0 is none */
    backend b = site_make_sure(s);
    backend_slice own = backend_slice_of(&s->group->links[1].facts.info, 1, 2);
    cells[0] = own.cells.first;
    expect_refused(&c, &m, "session: ");
    m.session = s->group->session + 1;
    expect_refused(&c, &m, "session: ");
    m.session = s->group->session;
    cells[0] = own.cells.first - 1; /* rank 0 has it */
    expect_refused(&c, &m, "is not one of this rank");
    cells[0] = own.cells.first + own.cells.n;
    expect_refused(&c, &m, "is not one of this rank");
    cells[0] = own.cells.first;
    m.n_slots = s->group->links[1].facts.info.geometry.page_tokens + 1;
    expect_refused(&c, &m, "n_slots: 17 of 16");
    m.n_slots = 1;
    m.data = (ProtobufCBinaryData){1, &byte};
    expect_refused(&c, &m, "data: 1 bytes for 1 cells");
    m.n_slots = 0;
    expect_refused(&c, &m, "data: 1 bytes for 1 cells");
    m.n_cells = 0;
    expect_refused(&c, &m, "cells: 0 at once");
    strbuf out = {0};
    pass_run(&b, NULL, &out); /* the session goes on */
    b.ops->destroy(b.ctx);
    strbuf_destroy(&out);
    grpc_client_destroy(&c);
}

/* ---- lost ------------------------------------------------------------------------------------ */

static void a_lost_rank_ends_copies(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, true);
    backend b = site_make_sure(s);
    const backend_info *info = b.ops->info(b.ctx);
    uint32_t cells[GROUPS_MOST], groups = pkv_groups(&info->geometry);
    uint8_t *bytes = random_bytes(info->block_bytes, 1);
    cells_of_block(info, 1, cells);
    worker_server_destroy(s->ranks[1].server);
    s->ranks[1].server = NULL;
    assert_false(b.ops->write_cells(b.ctx, cells, groups, bytes));
    assert_false(b.ops->read_cells(b.ctx, cells, groups, 1, &bytes, groups));
    b.ops->destroy(b.ctx);
    free(bytes);
}

static void an_interrupt_ends_copies(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    backend b = site_make_sure(s);
    const backend_info *info = b.ops->info(b.ctx);
    uint32_t cells[GROUPS_MOST];
    uint8_t *bytes = malloc(info->block_bytes);
    cells_of_block(info, 1, cells);
    b.ops->interrupt(b.ctx);
    assert_false(b.ops->read_cells(b.ctx, cells, pkv_groups(&info->geometry), 1, &bytes,
                                   pkv_groups(&info->geometry)));
    b.ops->destroy(b.ctx);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_bytes_are_those_of_threads, teardown),
        cmocka_unit_test_teardown(blocks_are_read_at_once, teardown),
        cmocka_unit_test_teardown(a_rank_gives_to_several_places, teardown),
        cmocka_unit_test_teardown(threads_copy_beside_steps, teardown),
        cmocka_unit_test_teardown(only_the_session_gets_its_own_cells, teardown),
        cmocka_unit_test_teardown(a_lost_rank_ends_copies, teardown),
        cmocka_unit_test_teardown(an_interrupt_ends_copies, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker_cells", tests, NULL, NULL);
}

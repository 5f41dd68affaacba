/* K and V of cells, copied out of a GPU's pages and into them (model/cuda/cells.c) over an emulated
 * GPU: they have the CPU's layout, whichever heads the rank has. */
#include "model/backend_ranks.h"
#include "model/cuda/backend.h"
#include "tests/simt/device.h"
#include "tests/unit/cells_of_block.h"
#include "tests/unit/model_pass.h"

enum { TOKENS = 44, PAGE = 16, BLOCKS = TOKENS / PAGE, LAST = TOKENS % PAGE };

static const pass model = {.dir = "tests/golden/models/qwen3_f32",
                           .kv_type = KERN_KV_BF16,
                           .bf16 = true,
                           .page_tokens = PAGE,
                           .layers_per_group = 1,
                           .heads_per_group = 1,
                           .chunk = 64,
                           .n_threads = 2,
                           .max_seqs = 2,
                           .max_model_len = 64,
                           .kv_bytes = 4 << 20,
                           .gpu_kv = GPU_KV_BF16};

static const struct {
    kern_kv_format cpu;
    gpu_kv_format gpu;
} formats[] = {{KERN_KV_BF16, GPU_KV_BF16}, {KERN_KV_F16, GPU_KV_F16}, {KERN_KV_INT8, GPU_KV_INT8}};

typedef struct house {
    comm *group;
    model_config config;
    backend b;
    const backend_info *info;
    pkv *kv;
} house;

static house open_house(const pass *p)
{
    house h = {0};
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &h.group, NULL)));
    h.b = open_backend(p, h.group, &h.config);
    h.info = h.b.ops->info(h.b.ctx);
    pkv_options po = {.geometry = h.info->geometry, .n_pages = h.info->n_pages, .max_seqs = 2};
    assert_true(status_ok(pkv_create(&po, &h.kv)));
    return h;
}

static void close_house(house *h)
{
    pkv_destroy(h->kv);
    h->b.ops->destroy(h->b.ctx);
    comm_destroy(h->group);
    assert_int_equal(simt_allocations(), 0);
}

static pass on_gpu(pass p, gpu_kv_format kv)
{
    p.gpu = octavo_cuda_api(GPU_API_VERSION);
    p.gpu_kv = (uint8_t)kv;
    return p;
}

/* Computes the tokens as sequence 0, and lists the cells of its last page. */
static void compute(house *h, const uint32_t *tokens, uint32_t *cells)
{
    uint32_t hit;
    sample_params params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    const step_result *r;
    assert_true(status_ok(pkv_seq_open(h->kv, 0, PKV_ALL, NULL, 0, 0, 64, &hit)));
    assert_true(status_ok(pkv_seq_append(h->kv, 0, TOKENS)));
    step_open open = {.seq = 0, .params = &params};
    step_seq seq = {.n_tokens = TOKENS, .n_samples = 1};
    step_plan plan = {.step = 1,
                      .deltas = pkv_take_deltas(h->kv),
                      .opens = &open,
                      .n_opens = 1,
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = tokens,
                      .n_tokens = TOKENS,
                      .checksum = pkv_checksum(h->kv)};
    assert_true(status_ok(h->b.ops->submit(h->b.ctx, &plan)));
    assert_true(status_ok(h->b.ops->collect(h->b.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("%s", r->status.message);
    for (uint32_t i = 0; i <= BLOCKS; i++)
        pkv_seq_cells(h->kv, 0, i, cells + i * pkv_groups(&h->info->geometry));
}

/* The cells' K and V as the CPU reads them, against those that the CPU has computed. */
static void compare(const kern_context *kc, const house *h, kern_kv_format format,
                    const uint8_t *got, const uint8_t *want, uint32_t n_cells, uint32_t n_slots)
{
    kern_kv_shape shape = {format, PAGE, h->config.head_dim};
    double wrong = 0, all = 0;
    for (uint32_t c = 0; c < n_cells; c++)
        for (uint32_t slot = 0; slot < n_slots; slot++) {
            float x[2][256], y[2][256];
            size_t at = c * kern_kv_tile_bytes(&shape);
            kern_kv_read(kc, &shape, got + at, slot, x[0], x[1]);
            kern_kv_read(kc, &shape, want + at, slot, y[0], y[1]);
            for (uint32_t d = 0; d < 2 * h->config.head_dim; d++) {
                float a = x[d % 2][d / 2], b = y[d % 2][d / 2];
                wrong += (a - b) * (a - b);
                all += b * b;
            }
        }
    if (!(all > 0 && wrong < 1e-3 * all)) fail_msg("K and V differ: %g of %g", wrong, all);
}

/* Cells that are read from a GPU equal those of a CPU but for rounding. Slots behind the
 * tokens are zeros. */
static void cells_have_the_layout_of_the_cpu(void **state)
{
    (void)state;
    kern_context *kc;
    thread_pool *pool;
    thread_pool_options one = {.n_threads = 1};
    assert_true(status_ok(thread_pool_create(&one, &pool)));
    kern_options options = {.pool = pool};
    assert_true(status_ok(kern_create(&options, &kc, NULL)));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        pass p = model, g = on_gpu(model, formats[i].gpu);
        uint32_t tokens[TOKENS], cells[2][(BLOCKS + 1) * GROUPS_MOST];
        p.kv_type = g.kv_type = formats[i].cpu;
        random_tokens(tokens, TOKENS, 32);
        house mine = open_house(&p), its = open_house(&g);
        uint32_t groups = pkv_groups(&mine.info->geometry), n = (BLOCKS + 1) * groups;
        size_t cell = backend_cell_bytes(mine.info);
        assert_int_equal(its.info->block_bytes, mine.info->block_bytes);
        assert_true(its.info->kv_kind != 0 && its.info->kv_kind == mine.info->kv_kind);
        assert_true(its.info->kv_identity != 0 && its.info->kv_identity != mine.info->kv_identity);
        assert_true(its.info->block_identity == 0); /* no disk */
        compute(&mine, tokens, cells[0]);
        compute(&its, tokens, cells[1]);
        uint8_t *want = malloc(n * cell), *got = malloc(n * cell);
        assert_true(mine.b.ops->read_cells(mine.b.ctx, cells[0], n, PAGE, &want, n));
        assert_true(its.b.ops->read_cells(its.b.ctx, cells[1], n, PAGE, &got, n));
        compare(kc, &its, formats[i].cpu, got, want, BLOCKS * groups, PAGE);
        compare(kc, &its, formats[i].cpu, got + BLOCKS * groups * cell,
                want + BLOCKS * groups * cell, groups, LAST);
        uint32_t *last = cells[1] + BLOCKS * groups;
        kern_kv_shape shape = {formats[i].cpu, PAGE, its.config.head_dim};
        uint8_t *due = calloc(groups, cell), *part = malloc(groups * cell);
        memset(part, 0xee, groups * cell); /* another sequence's, behind the tokens */
        for (uint32_t c = 0; c < groups; c++) {
            const uint8_t *from = got + (BLOCKS * groups + c) * cell;
            kern_kv_move(&shape, due + c * cell, 0, from, 0, LAST);
            kern_kv_move(&shape, part + c * cell, 0, from, 0, LAST);
        }
        assert_true(its.b.ops->write_cells(its.b.ctx, last, groups, part));
        assert_true(its.b.ops->read_cells(its.b.ctx, last, groups, LAST, &part, groups));
        assert_memory_equal(part, due, groups * cell);
        free(due);
        free(part);
        free(want);
        free(got);
        close_house(&its);
        close_house(&mine);
    }
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

/* Bytes that are written come back in every format and cut, in batches of the stage, to one place
 * and to two, and touch no other cell. Marks of retrieval, which are those of other keys, go. */
static void what_is_written_comes_back(void **state)
{
    (void)state;
    enum { SOME = 700 };
    for (uint32_t f = 0; f < GPU_KV_FORMATS; f++)
        for (uint32_t whole = 0; whole < 2; whole++) {
            pass p = on_gpu(model, (gpu_kv_format)f);
            p.layers_per_group = whole ? 2 : 1;
            p.heads_per_group = whole ? 0 : 1;
            house h = open_house(&p);
            const backend_cuda *b = h.b.ctx;
            size_t cell = backend_cell_bytes(h.info),
                   n_marks = (size_t)b->cells.n * b->pages.n_tiles;
            uint32_t cells[SOME], n = SOME < b->cells.n - 2 ? SOME : b->cells.n - 2;
            rng r = rng_seed(f);
            uint8_t *bytes = malloc(n * cell), *got = malloc(n * cell);
            assert_int_equal(cell, b->pages.page_bytes);
            assert_true(h.info->kv_kind != 0);
            n = n / 2 * 2;
            for (uint32_t i = 0; i < n; i++) cells[i] = 1 + i;
            for (uint32_t i = n; i-- > 1;) { /* runs, and cells alone */
                uint32_t k = rng_below(&r, 4) ? i : rng_below(&r, i + 1), was = cells[i];
                cells[i] = cells[k];
                cells[k] = was;
            }
            for (size_t i = 0; i < n * cell; i++) bytes[i] = (uint8_t)rng_u32(&r);
            memset(b->pages.data, 0xaa, b->cells.n * b->pages.page_bytes);
            if (b->pages.marks) memset(b->pages.marks, 0xaa, n_marks * sizeof *b->pages.marks);
            simt_counts before = simt_counted();
            assert_true(h.b.ops->write_cells(h.b.ctx, cells, n, bytes));
            simt_counts after = simt_counted();
            assert_int_equal(after.copies_in - before.copies_in, (n + 511) / 512);
            assert_true(h.b.ops->read_cells(h.b.ctx, cells, n, PAGE, &got, n));
            assert_memory_equal(got, bytes, n * cell);
            assert_int_equal(simt_counted().copies_out - before.copies_out, (n + 511) / 512);
            uint8_t *places[2] = {got + n / 2 * cell, got};
            assert_true(h.b.ops->read_cells(h.b.ctx, cells, n, PAGE, places, n / 2));
            assert_memory_equal(got, bytes + n / 2 * cell, n / 2 * cell);
            assert_memory_equal(got + n / 2 * cell, bytes, n / 2 * cell);
            for (uint32_t i = 0; i < b->cells.n; i++) {
                bool written = false;
                for (uint32_t k = 0; k < n; k++) written |= cells[k] == b->cells.first + i;
                const uint8_t *page = b->pages.data + i * b->pages.page_bytes;
                for (size_t at = 0; !written && at < b->pages.page_bytes; at++)
                    assert_int_equal(page[at], 0xaa);
                for (uint32_t t = 0; b->pages.marks && t < b->pages.n_tiles; t++)
                    assert_true((b->pages.marks[i * b->pages.n_tiles + t] == 0) == written);
            }
            free(bytes);
            free(got);
            close_house(&h);
        }
}

/* Ranks on GPUs and on CPUs, as many as divide the heads, cut the same bytes. */
static void ranks_cut_the_bytes_alike(void **state)
{
    (void)state;
    static const uint32_t cuts[][2] = {{1, 1}, {1, 0}, {2, 0}}; /* layers, heads */
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        house h[4];
        uint8_t *bytes = NULL, *got = NULL;
        uint32_t groups = 0, n = 0;
        for (uint32_t on = 0; on < 2; on++)
            for (uint32_t ranks = 1; ranks <= 2; ranks++, n++) {
                pass p = on ? on_gpu(model, GPU_KV_BF16) : model;
                p.layers_per_group = cuts[i][0];
                p.heads_per_group = cuts[i][1];
                p.n_ranks = ranks == 1 ? 0 : ranks;
                h[n] = open_house(&p);
                uint32_t cells[GROUPS_MOST];
                groups = pkv_groups(&h[n].info->geometry);
                size_t block = h[n].info->block_bytes;
                if (!bytes) {
                    bytes = malloc(block);
                    got = malloc(block);
                    rng r = rng_seed(i);
                    for (size_t k = 0; k < block; k++) bytes[k] = (uint8_t)rng_u32(&r);
                }
                assert_int_equal(block, h[0].info->block_bytes);
                assert_true(h[n].info->kv_kind == h[0].info->kv_kind);
                for (uint32_t k = 0; k < n; k++)
                    assert_true(h[n].info->kv_identity != h[k].info->kv_identity);
                cells_of_block(h[n].info, 1, cells);
                assert_true(h[n].b.ops->write_cells(h[n].b.ctx, cells, groups, bytes));
                memset(got, 0, block);
                assert_true(h[n].b.ops->read_cells(h[n].b.ctx, cells, groups, PAGE, &got, groups));
                assert_memory_equal(got, bytes, block);
                if (ranks == 1) continue;
                const backend_ranks *all = h[n].b.ctx;
                uint32_t layers = cuts[i][0];
                for (uint32_t r = 0; r < ranks; r++) {
                    const backend_slice *s = &all->ranks[r].slice;
                    const backend *own = &all->ranks[r].backend;
                    uint8_t *slice = malloc(s->cell_bytes);
                    size_t piece = s->cell_bytes / layers;
                    for (uint32_t c = 0; c < groups; c++) {
                        if (cells[c] - s->cells.first >= s->cells.n) continue;
                        assert_true(own->ops->read_cells(own->ctx, &cells[c], 1, PAGE, &slice, 1));
                        for (uint32_t l = 0; l < layers; l++)
                            assert_memory_equal(
                                slice + l * piece,
                                bytes + ((c * layers + l) * s->n_slices + s->place) * piece, piece);
                    }
                    free(slice);
                }
            }
        free(bytes);
        free(got);
        for (uint32_t k = 0; k < n; k++) {
            pkv_destroy(h[k].kv);
            h[k].b.ops->destroy(h[k].b.ctx);
            comm_destroy(h[k].group);
        }
        assert_int_equal(simt_allocations(), 0);
    }
}

/* A lost device, or one without memory for the copies, gives nothing and leaks nothing. */
static void a_device_may_fail(void **state)
{
    (void)state;
    for (int after = 0; after < 3; after++) {
        pass p = on_gpu(model, GPU_KV_BF16);
        house h = open_house(&p);
        uint32_t cells[GROUPS_MOST], groups = pkv_groups(&h.info->geometry);
        uint8_t *bytes = calloc(1, h.info->block_bytes);
        cells_of_block(h.info, 1, cells);
        if (after) assert_true(h.b.ops->write_cells(h.b.ctx, cells, groups, bytes));
        simt_fail_after(0);
        if (after < 2) assert_false(h.b.ops->write_cells(h.b.ctx, cells, groups, bytes));
        else assert_false(h.b.ops->read_cells(h.b.ctx, cells, groups, PAGE, &bytes, groups));
        simt_fail_after(-1);
        free(bytes);
        close_house(&h);
    }
}

/* A pool that lies in host memory too, whose pages come and go, is not copied. */
static void a_pool_with_a_window_gives_nothing(void **state)
{
    (void)state;
    pass p = on_gpu(model, GPU_KV_BF16);
    p.kv_host = 1 << 20;
    house h = open_house(&p);
    assert_int_equal(h.info->block_bytes, 0);
    assert_true(h.info->kv_identity == 0 && h.info->kv_kind == 0);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_have_the_layout_of_the_cpu),
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(ranks_cut_the_bytes_alike),
        cmocka_unit_test(a_device_may_fail),
        cmocka_unit_test(a_pool_with_a_window_gives_nothing),
    };
    return cmocka_run_group_tests_name("cells of a GPU", tests, NULL, NULL);
}

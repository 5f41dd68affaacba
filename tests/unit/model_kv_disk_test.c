/* Sequences whose K and V are four times as large as memory, with the rest on disk: the bits of
 * those that are all in memory, or a step that fails. */
#include "tests/unit/model_pass.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

enum { TOKENS = 203, PROMPT = 187, BLOCKS = 15, PAGE = 4096 };

/* 4 layers of 4 KV heads: a block has 16 pages, and memory holds one layer's of each block. */
static const pass shape = {
    .dir = "models/demo",
    .kv_type = KERN_KV_BF16,
    .page_tokens = 16,
    .layers_per_group = 1,
    .heads_per_group = 1,
    .chunk = TOKENS,
    .n_threads = 2,
    .n_prompt = PROMPT,
};

static char folder[64];

static pass on_disk(const pass *p, uint32_t groups)
{
    pass out = *p;
    out.kv_disk = folder;
    out.kv_bytes = (uint64_t)BLOCKS * groups / 4 * PAGE;
    return out;
}

static void get_tokens(const pass *p, uint32_t *tokens)
{
    error err;
    model_config config;
    assert_true(status_ok(model_config_load(p->dir, NULL, 0, &config, &err)));
    random_tokens(tokens, TOKENS, config.vocab_size);
}

static void read_spec(const char *text, retrieval_spec *out)
{
    const pkv_geometry g = {.page_tokens = 16,
                            .n_layers = 4,
                            .n_kv_heads = 4,
                            .layers_per_group = 1,
                            .heads_per_group = 1};
    json_t *json;
    error err = {{0}};
    if (!status_ok(json_read_text("test", text, strlen(text), &json, &err)) ||
        !status_ok(retrieval_parse(json, &g, out, &err)))
        fail_msg("%s", err.text);
    json_decref(json);
}

/* The pass has the same bits with a quarter of its pages in memory. */
static backend_tier assert_same(const pass *p, uint32_t groups)
{
    uint32_t tokens[TOKENS];
    get_tokens(p, tokens);
    pass disk = on_disk(p, groups);
    pass_result x = run(p, tokens, TOKENS), y = run(&disk, tokens, TOKENS);
    backend_tier none = {0};
    assert_memory_equal(x.logits, y.logits,
                        (size_t)TOKENS * x.config.vocab_size * sizeof *x.logits);
    assert_memory_equal(x.readings, y.readings, TOKENS * sizeof *x.readings);
    assert_int_equal(x.mass_floats, y.mass_floats);
    if (x.mass) assert_memory_equal(x.mass, y.mass, x.mass_floats * sizeof *x.mass);
    assert_memory_equal(&x.tier, &none, sizeof none);
    backend_tier tier = y.tier;
    assert_true(tier.reads > 0 && tier.writes > 0);
    result_free(&x);
    result_free(&y);
    return tier;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void full_attention(void **state)
{
    (void)state;
    static const kern_kv_format formats[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        pass p = shape;
        p.kv_type = formats[f];
        p.chunk = f % 2 ? 70 : 40;
        p.mass_rows = 3;
        p.layer_step = 1;
        assert_same(&p, 16);
    }
}

/* Reads of the whole context are known before their layer begins. */
static void whole_contexts_are_read_ahead(void **state)
{
    (void)state;
    pass p = shape;
    p.chunk = 40;
    backend_tier tier = assert_same(&p, 16);
    assert_true(tier.ahead > 0);
}

#define FEW "\"block_size\": 16, \"local_windows_len\": 32, \"second_select_num\": 2"
static const char *const methods[] = {
    "{\"method\": \"ktransformers\", " FEW "}",
    "{\"method\": \"quest\", \"audit\": 5, " FEW "}",
    "{\"method\": \"dynamic\", \"anchor_num\": 2, " FEW "}",
    "{\"method\": \"ktransformers\", \"anchor_type\": \"BLOCK_MAX\", \"head_select_mode\": "
    "\"SEPARATE\", \"layer_step\": 2, \"token_step\": 3, " FEW "}",
    "{\"method\": \"quest\", \"anchor_type\": \"FIXED\", \"dense_layer_num\": 1, "
    "\"preselect_block\": true, \"preselect_block_count\": 4, \"block_size\": 32, "
    "\"local_windows_len\": 32, \"second_select_num\": 1}",
    "{\"method\": \"quest\", \"dense_layer_num\": 0, \"epsilon\": 0.3, \"block_size\": 16, "
    "\"local_windows_len\": 16}",
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Prompts in pieces, and answers token by token or many tokens at once. */
static void each_retrieval_method(void **state)
{
    (void)state;
    for (size_t i = 0; i < METHODS; i++) {
        pass p = shape;
        read_spec(methods[i], &p.retrieval);
        p.chunk = i % 2 ? 130 : PROMPT;
        p.kv_type = i % 3 ? KERN_KV_BF16 : KERN_KV_INT8;
        if (SLOW && i % 2) continue;
        assert_same(&p, 16);
        if (SLOW || retrieval_observed_rows(&p.retrieval, PROMPT)) continue;
        p.chunk = 50;
        assert_same(&p, 16);
    }
}

/* Rows that select few blocks need fewer pages of the disk than rows that read all. */
static void few_blocks_are_few_reads(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    uint64_t reads[2];
    get_tokens(&shape, tokens);
    for (uint32_t few = 0; few < 2; few++) {
        pass p = on_disk(&shape, 16);
        p.chunk = 1;
        if (few)
            read_spec("{\"method\": \"ktransformers\", \"block_size\": 16, "
                      "\"local_windows_len\": 16, \"second_select_num\": 1}",
                      &p.retrieval);
        p.n_prompt = 32;
        pass_result r = run(&p, tokens, TOKENS);
        reads[few] = r.tier.reads;
        result_free(&r);
    }
    if (reads[1] >= reads[0] / 2)
        fail_msg("%llu pages instead of %llu", (unsigned long long)reads[1],
                 (unsigned long long)reads[0]);
}

static void sliding_windows(void **state)
{
    (void)state;
    pass p = shape;
    p.dir = "tests/golden/models/gemma3_f32";
    p.kv_type = KERN_KV_F32;
    p.chunk = 64;
    assert_same(&p, 8);
    p.chunk = 11;
    if (!SLOW) assert_same(&p, 8);
}

/* ---- trouble --------------------------------------------------------------------------------- */

typedef enum trouble { READ_EIO, READ_SHORT, READ_FLIP, WRITE_EIO, WRITE_FULL, TROUBLES } trouble;

/* Calls of the system, of which one kind goes wrong from the n-th on, or in the n-th alone. */
typedef struct faults {
    trouble kind;
    bool once;
    uint32_t first;
    _Atomic uint32_t reads, writes;
} faults;

static bool goes_wrong(const faults *f, uint32_t n)
{
    return n == f->first || (n > f->first && !f->once);
}

static ssize_t faulty_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    faults *f = ctx;
    bool wrong = goes_wrong(f, f->reads++) && f->kind <= READ_FLIP;
    if (wrong && f->kind == READ_SHORT) return 100;
    errno = EIO;
    if (wrong && f->kind == READ_EIO) return -1;
    ssize_t got = pread(fd, to, n, at);
    if (wrong && got > 0) ((uint8_t *)to)[(size_t)f->first * 37 % (size_t)got] ^= 4;
    return got;
}

static ssize_t faulty_write(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    faults *f = ctx;
    bool wrong = goes_wrong(f, f->writes++) && f->kind >= WRITE_EIO;
    errno = f->kind == WRITE_EIO ? EIO : ENOSPC;
    return wrong ? -1 : pwrite(fd, from, n, at);
}

/* A step fails by name or has the bits that it should have: there is no third way. */
static void trouble_fails_the_step(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS], n_failed = 0;
    get_tokens(&shape, tokens);
    pass p = shape;
    read_spec(methods[0], &p.retrieval);
    p.chunk = 64;
    pass_result want = run(&p, tokens, TOKENS);
    for (uint32_t i = 0; i < (SLOW ? TROUBLES : 3 * TROUBLES); i++) {
        faults f = {.kind = (trouble)(i % TROUBLES), .once = i % 2, .first = i * i / 3};
        const disk_io io = {faulty_read, faulty_write, NULL, &f};
        pass q = on_disk(&p, 16);
        q.kv_disk_io = &io;
        q.may_fail = true;
        pass_result got = run(&q, tokens, TOKENS);
        assert_memory_equal(got.logits, want.logits,
                            (size_t)got.n_done * want.config.vocab_size * sizeof(float));
        if (!status_ok(got.failure)) {
            n_failed++;
            assert_true(got.failure.code == STATUS_IO || got.failure.code == STATUS_INTERNAL);
            assert_non_null(strstr(got.failure.message, "kv-disk: a page"));
        } else {
            assert_int_equal(got.n_done, TOKENS);
        }
        result_free(&got);
    }
    print_message("%u passes failed\n", n_failed);
    assert_true(n_failed >= (SLOW ? 1 : 4));
    result_free(&want);
}

static void expect_refused(const pass *p, uint64_t disk_bytes, const char *why)
{
    error err = {{0}};
    model_config config;
    backend b;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    assert_true(status_ok(model_config_load(p->dir, NULL, 0, &config, &err)));
    backend_options o = {
        .dir = p->dir,
        .config = &config,
        .kv_type = p->kv_type,
        .weight_type = DTYPE_BF16,
        .group = group,
        .geometry = {.page_tokens = 32, .layers_per_group = 1, .heads_per_group = 1},
        .kv_bytes = p->kv_bytes,
        .kv_disk = p->kv_disk,
        .kv_disk_bytes = disk_bytes,
        .max_rows = 64,
        .max_seqs = 2,
        .max_model_len = 256};
    status st = p->n_ranks ? backend_cpu_ranks_create(&o, p->n_ranks, &b, &err)
                           : backend_cpu_create(&o, &b, &err);
    assert_false(status_ok(st));
    if (!strstr(err.text, why)) fail_msg("'%s' does not say '%s'", err.text, why);
    comm_destroy(group);
}

static void what_cannot_be_had_is_refused(void **state)
{
    (void)state;
    pass p = on_disk(&shape, 16);
    uint64_t bytes = 4 * p.kv_bytes;
    expect_refused(&p, 0, "kv-disk: kv-disk-size is missing");
    expect_refused(&p, 1000, "kv-disk-size: 1000 bytes hold 0 pages of 4096 bytes");
    expect_refused(&p, 2 * bytes,
                   "kv-memory: 245760 bytes hold 60 pages; a layer of a pool of this kv-disk-size "
                   "has 120, which take 491520 bytes");
    p.kv_disk = "/nonexistent/folder";
    expect_refused(&p, bytes, "kv-disk: /nonexistent/folder: No such file");
    p.kv_disk = folder;
    p.kv_type = KERN_KV_INT4;
    expect_refused(&p, bytes, "kv-disk: pages of int4 cannot lie on disk");
    p.kv_type = KERN_KV_BF16;
    p.n_ranks = 2;
    expect_refused(&p, bytes, "kv-disk: a pool on disk needs one rank, and these are 2");
}

static int make_folder(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.36s/octavo-kv-disk-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* It is empty: the file had no name. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention),
        cmocka_unit_test(whole_contexts_are_read_ahead),
        cmocka_unit_test(each_retrieval_method),
        cmocka_unit_test(few_blocks_are_few_reads),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(trouble_fails_the_step),
        cmocka_unit_test(what_cannot_be_had_is_refused),
    };
    return cmocka_run_group_tests_name("kv_disk", tests, make_folder, remove_folder);
}

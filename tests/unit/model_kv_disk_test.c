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

/* Ranks beyond the KV heads store copies of them. */
static pass on_disk(const pass *p, uint32_t groups)
{
    pass out = *p;
    out.kv_disk = folder;
    out.kv_bytes = (uint64_t)BLOCKS * groups / 4 * PAGE * (p->n_ranks > 4 ? p->n_ranks / 4 : 1);
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
    print_message("%llu of %llu pages were read ahead\n", (unsigned long long)tier.ahead,
                  (unsigned long long)tier.reads);
    assert_true(3 * tier.ahead > tier.reads);
}

#define FEW "\"block_size\": 16, \"local_windows_len\": 32, \"second_select_num\": 2"
static const char *const methods[] = {
    "{\"method\": \"ktransformers\", " FEW "}",
    "{\"method\": \"quest\", \"audit\": 5, " FEW "}",
    "{\"method\": \"dynamic\", \"anchor_num\": 2, " FEW "}",
    ("{\"method\": \"ktransformers\", \"anchor_type\": \"BLOCK_MAX\", \"head_select_mode\": "
     "\"SEPARATE\", \"layer_step\": 2, \"token_step\": 3, " FEW "}"),
    ("{\"method\": \"quest\", \"anchor_type\": \"FIXED\", \"dense_layer_num\": 1, "
     "\"preselect_block\": true, \"preselect_block_count\": 4, \"block_size\": 32, "
     "\"local_windows_len\": 32, \"second_select_num\": 1}"),
    ("{\"method\": \"quest\", \"dense_layer_num\": 0, \"epsilon\": 0.3, \"block_size\": 16, "
     "\"local_windows_len\": 16}"),
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

/* A page map has the last row's mass measured. The row reads the pages that it would read without,
 * and the mass has the bits that it has in memory, -1 at pages that were not read. */
static void a_page_map_reads_no_more(void **state)
{
    (void)state;
    enum { ROWS = 144, END = ROWS + 6 };
    uint32_t tokens[TOKENS];
    get_tokens(&shape, tokens);
    for (uint32_t i = 0; i < (SLOW ? 1 : METHODS); i++) {
        pass p = shape;
        uint64_t reads[2];
        read_spec(methods[i], &p.retrieval);
        p.retrieval.audit = 0;
        if (p.retrieval.epsilon > 0) continue; /* such a row reads everything */
        p.chunk = ROWS;
        p.n_prompt = ROWS;
        p.decodes = true;
        p.layer_step = 1;
        pass disk = on_disk(&p, 16);
        for (p.mass_rows = 0; p.mass_rows < 2; p.mass_rows++) {
            disk.mass_rows = p.mass_rows;
            pass_result x = run(&p, tokens, END), y = run(&disk, tokens, END);
            reads[p.mass_rows] = y.reads[END - 1];
            assert_memory_equal(x.logits, y.logits,
                                (size_t)END * x.config.vocab_size * sizeof *x.logits);
            assert_int_equal(x.mass_floats > 0, p.mass_rows);
            assert_int_equal(x.mass_floats, y.mass_floats);
            size_t unread = 0;
            for (size_t k = 0; k < x.mass_floats; k++) unread += x.mass[k] < 0;
            if (p.mass_rows) assert_memory_equal(x.mass, y.mass, x.mass_floats * sizeof *x.mass);
            assert_int_equal(unread > 0, p.mass_rows);
            result_free(&x);
            result_free(&y);
        }
        assert_int_equal(reads[1], reads[0]);
    }
}

/* The pages that the first step behind the prompt read, and the most that a later one read. */
static void count_reads(const pass *p, uint64_t *first, uint64_t *later)
{
    uint32_t tokens[TOKENS];
    get_tokens(p, tokens);
    pass disk = on_disk(p, 16);
    uint32_t n = p->n_prompt + 6;
    pass_result r = run(&disk, tokens, n);
    *first = r.reads[p->n_prompt];
    *later = 0;
    for (uint32_t row = p->n_prompt + 1; row < n; row++)
        if (r.reads[row] > *later) *later = r.reads[row];
    print_message("%llu pages behind the prompt, at most %llu later\n", (unsigned long long)*first,
                  (unsigned long long)*later);
    result_free(&r);
}

/* No step behind the prompt reads everything again: not to make representatives, because the
 * prompt's rows have made them, and not because the step before read everything. Where a prompt was
 * computed for another request, one step reads everything, and no later one. */
static void representatives_are_made_with_the_prompt(void **state)
{
    (void)state;
    enum { ROWS = 144, ALL = 16 * (ROWS / 16), FRAMES = 16 * BLOCKS / 4 };
    static const char *const ways[] = {
        "{\"method\": \"ktransformers\", \"initial_tokens\": 0, \"block_size\": 16, "
        "\"local_windows_len\": 16, \"second_select_num\": 1}",
        "{\"method\": \"dynamic\", \"anchor_num\": 2, \"observed_rows\": 1, "
        "\"initial_tokens\": 0, \"block_size\": 16, \"local_windows_len\": 16, "
        "\"second_select_num\": 1}",
    };
    for (uint32_t i = 0; i < (SLOW ? 1 : 3); i++) {
        pass p = shape;
        uint64_t first, later;
        read_spec(ways[i == 2], &p.retrieval);
        p.chunk = ROWS / 3;
        p.decodes = true;
        p.n_prompt = ROWS;
        p.late = i == 1;
        count_reads(&p, &first, &later);
        if (p.late) assert_true(first >= ALL - FRAMES);
        else assert_in_range(first, 0, FRAMES - 1);
        assert_in_range(later, 0, FRAMES - 1);
    }
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

/* Measures are of the other layers alone: the step whose rows are measured reads as many pages of
 * the windows as without. */
static void a_measure_reads_no_more_of_windows(void **state)
{
    (void)state;
    enum { CHUNK = 11, LAST = (TOKENS - 1) / CHUNK * CHUNK };
    pass p = shape;
    uint32_t tokens[TOKENS];
    uint64_t reads[2];
    p.dir = "tests/golden/models/gemma3_f32";
    p.kv_type = KERN_KV_F32;
    p.chunk = CHUNK;
    p.layer_step = 1;
    get_tokens(&p, tokens);
    for (p.mass_rows = 0; p.mass_rows < 2; p.mass_rows++) {
        pass disk = on_disk(&p, 8);
        pass_result x = run(&p, tokens, TOKENS), y = run(&disk, tokens, TOKENS);
        reads[p.mass_rows] = y.reads[LAST];
        assert_int_equal(x.mass_floats > 0, p.mass_rows);
        assert_int_equal(x.mass_floats, y.mass_floats);
        if (x.mass) assert_memory_equal(x.mass, y.mass, x.mass_floats * sizeof *x.mass);
        result_free(&x);
        result_free(&y);
    }
    assert_true(reads[0] > 0);
    assert_int_equal(reads[1], reads[0]);
}

static backend_options options_of(const pass *p, const model_config *config, uint64_t disk_bytes)
{
    return (backend_options){.dir = p->dir,
                             .config = config,
                             .kv_type = p->kv_type,
                             .weight_type = DTYPE_BF16,
                             .geometry = {.page_tokens = p->page_tokens,
                                          .layers_per_group = 1,
                                          .heads_per_group = p->heads_per_group},
                             .kv_bytes = p->kv_bytes,
                             .kv_disk = p->kv_disk,
                             .kv_disk_bytes = disk_bytes,
                             .max_rows = 64,
                             .max_seqs = 2,
                             .max_model_len = 256};
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ranks with heads of their own, ranks that copy a head, and ranks with a slice of every page. */
static const struct cut {
    uint32_t n_ranks, heads_per_group, groups;
} cuts[] = {{2, 1, 16}, {2, 4, 8}, {4, 1, 16}, {8, 1, 16}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static pass cut_for(const struct cut *c)
{
    pass p = shape;
    p.n_ranks = c->n_ranks;
    p.heads_per_group = c->heads_per_group;
    return p;
}

static void ranks_read_everything(void **state)
{
    (void)state;
    for (size_t c = 0; c < (SLOW ? 1 : CUTS); c++) {
        pass p = cut_for(&cuts[c]);
        p.mass_rows = 3;
        p.layer_step = 1;
        p.chunk = c % 2 ? 70 : 40;
        backend_tier tier = assert_same(&p, cuts[c].groups);
        assert_true(tier.ahead > 0);
    }
}

/* Lists of one rank, and lists of KV heads and query heads that lie on several. */
static void ranks_read_few(void **state)
{
    (void)state;
    static const char *const over_ranks[] = {
        "{\"method\": \"quest\", \"head_select_mode\": \"GROUP\", \"group_heads\": 2, " FEW "}",
        "{\"method\": \"quest\", \"head_select_mode\": \"SHARED\", \"dense_layer_num\": 0, "
        "\"epsilon\": 0.3, \"audit\": 3, \"block_size\": 16, \"local_windows_len\": 16}"};
    for (size_t c = 0; c < (SLOW ? 1 : CUTS); c++)
        for (size_t i = 0; i < METHODS + 2; i++) {
            pass p = cut_for(&cuts[c]);
            read_spec(i < METHODS ? methods[i] : over_ranks[i - METHODS], &p.retrieval);
            p.chunk = i % 2 ? 130 : PROMPT;
            if (SLOW && i % 3) continue;
            assert_same(&p, cuts[c].groups);
        }
}

/* Memory and file of all ranks together are those that were asked for, and those that a server and
 * `octavo plan` count with. */
static void ranks_share_memory_and_disk(void **state)
{
    (void)state;
    for (size_t c = 0; c < CUTS; c++) {
        pass p = cut_for(&cuts[c]);
        p = on_disk(&p, cuts[c].groups);
        model_config config;
        backend_measures m;
        backend_cpu_needs needs;
        backend b = open_backend(&p, NULL, &config);
        backend_facts f = backend_cpu_ranks_describe(&b);
        assert_int_equal(f.disk_bytes, 4 * p.kv_bytes);
        assert_int_equal(f.pool_bytes, p.kv_bytes);
        backend_options o = options_of(&p, &config, 4 * p.kv_bytes);
        uint64_t memory = UINT64_C(1) << 30;
        assert_true(status_ok(backend_cpu_measure(&o, p.n_ranks, memory, 0.6, &m, NULL)));
        assert_int_equal(m.n_pages, b.ops->info(b.ctx)->n_pages);
        assert_int_equal(backend_page_bytes(&m, p.n_ranks) * m.n_pages, f.disk_bytes);
        assert_int_equal(backend_pool_bytes(&m) * p.n_ranks, f.pool_bytes);
        assert_true(status_ok(backend_cpu_need(&o, p.n_ranks, memory, &needs, NULL)));
        assert_int_equal(needs.pool, p.kv_bytes);
        b.ops->destroy(b.ctx);
    }
}

/* Bytes that all ranks have read and written. */
typedef struct moved {
    _Atomic uint64_t read, written;
} moved;

static ssize_t count_read(void *ctx, int fd, void *to, size_t n, off_t at)
{
    ((moved *)ctx)->read += n;
    return pread(fd, to, n, at);
}

static ssize_t count_written(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    ((moved *)ctx)->written += n;
    return pwrite(fd, from, n, at);
}

static void counters_are_of_all_ranks(void **state)
{
    (void)state;
    uint32_t tokens[TOKENS];
    moved all = {0};
    const disk_io io = {count_read, count_written, NULL, &all};
    get_tokens(&shape, tokens);
    pass p = cut_for(&cuts[0]);
    p = on_disk(&p, cuts[0].groups);
    p.kv_disk_io = &io;
    p.chunk = 70;
    pass_result r = run(&p, tokens, TOKENS);
    assert_true(r.tier.reads > 0 && r.tier.writes > 0 && r.tier.hits > 0);
    /* What the last layer began to read ahead is not counted any more. */
    assert_in_range(r.tier.read_bytes, all.read * 3 / 4, all.read);
    assert_in_range(r.tier.written_bytes, all.written * 3 / 4, all.written);
    assert_int_equal(r.tier.read_bytes, r.tier.reads * PAGE);
    result_free(&r);
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
            assert_non_null(strstr(got.why.text, "kv-disk: a page"));
        } else {
            assert_int_equal(got.n_done, TOKENS);
        }
        result_free(&got);
    }
    print_message("%u passes failed\n", n_failed);
    assert_true(n_failed >= (SLOW ? 1 : 4));
    result_free(&want);
}

/* ---- trouble on the disk of one rank --------------------------------------------------------- */

static status make_rank(void *ctx, comm *group, backend *out, error *err)
{
    backend_options o = *(const backend_options *)ctx;
    if (comm_rank(group) != 1) o.kv_disk_io = NULL;
    o.group = group;
    return backend_cpu_create(&o, out, err);
}

/* Makes ranks of which only rank 1 has the disk of the options. */
static status make_ranks(const backend_options *o, uint32_t n, backend *out, error *err)
{
    backend_options own = *o;
    backend_ranks_options all = {.n_ranks = n, .make = make_rank, .ctx = &own};
    return backend_ranks_create(&all, out, err);
}

/* Two ranks that read everything; or few blocks, behind a prompt of which nothing else was asked:
 * its representatives are of more pages than memory holds. */
static pass two_ranks(bool few)
{
    pass p = shape;
    p.n_ranks = 2;
    p.chunk = few ? 17 : 64;
    if (few) read_spec(methods[0], &p.retrieval);
    if (few) p.n_prompt = 8 * p.chunk;
    p.late = few;
    return p;
}

/* Runs the pass with such trouble on the disk of rank 1. */
static pass_result run_with_trouble(const pass *p, const uint32_t *tokens, faults *f)
{
    const disk_io io = {faulty_read, faulty_write, NULL, f};
    pass q = on_disk(p, 16);
    q.kv_disk_io = &io;
    q.make_cpu_ranks = make_ranks;
    return run(&q, tokens, TOKENS);
}

/* Counts the calls of rank 1 where nothing goes wrong. */
static void count_calls(const pass *p, const uint32_t *tokens, uint32_t *reads, uint32_t *writes)
{
    faults none = {.first = UINT32_MAX};
    pass_result r = run_with_trouble(p, tokens, &none);
    *reads = none.reads;
    *writes = none.writes;
    result_free(&r);
}

/* The other ranks do not wait for it for ever, and the message names it. */
static void trouble_of_a_rank_fails_the_step(void **state)
{
    (void)state;
    enum { TIMES = SLOW ? TROUBLES : 5 * TROUBLES };
    uint32_t tokens[TOKENS], n_failed = 0, reads, writes;
    get_tokens(&shape, tokens);
    for (uint32_t few = SLOW; few < 2; few++) {
        pass p = two_ranks(few);
        pass_result want = run(&p, tokens, TOKENS);
        count_calls(&p, tokens, &reads, &writes);
        p.may_fail = true;
        for (uint32_t i = 0; i < TIMES; i++) {
            faults f = {.kind = (trouble)(i % TROUBLES), .once = i % 2};
            f.first = (f.kind >= WRITE_EIO ? writes : reads) * (i + 1) / (TIMES + 1);
            pass_result got = run_with_trouble(&p, tokens, &f);
            assert_memory_equal(got.logits, want.logits,
                                (size_t)got.n_done * want.config.vocab_size * sizeof(float));
            if (!status_ok(got.failure)) {
                n_failed++;
                assert_int_equal(got.failure.code, STATUS_IO);
                assert_ptr_equal(strstr(got.why.text, "kv-disk: rank 1: a page"), got.why.text);
            } else {
                assert_int_equal(got.n_done, TOKENS);
            }
            result_free(&got);
        }
        result_free(&want);
    }
    print_message("%u passes failed\n", n_failed);
    assert_true(n_failed >= TIMES / 2);
}

/* A page that could not be written has stayed in memory: nothing is lost, and all ranks are where
 * the next step finds them. */
static void ranks_go_on_after_trouble(void **state)
{
    (void)state;
    enum { TIMES = SLOW ? 2 : 7 };
    uint32_t tokens[TOKENS], reads, writes;
    get_tokens(&shape, tokens);
    for (uint32_t few = SLOW; few < 2; few++) {
        pass p = two_ranks(few);
        pass_result want = run(&p, tokens, TOKENS);
        count_calls(&p, tokens, &reads, &writes);
        p.repeats = true;
        for (uint32_t i = 0; i < TIMES; i++) {
            faults f = {.kind = WRITE_FULL, .once = true, .first = writes * (i + 1) / (TIMES + 1)};
            pass_result got = run_with_trouble(&p, tokens, &f);
            assert_true(f.writes > f.first);
            assert_memory_equal(got.logits, want.logits,
                                (size_t)TOKENS * want.config.vocab_size * sizeof(float));
            result_free(&got);
        }
        result_free(&want);
    }
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
    backend_options o = options_of(p, &config, disk_bytes);
    o.group = group;
    o.geometry.page_tokens = 32;
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
    p.n_ranks = 2;
    expect_refused(&p, bytes, "kv-disk: pages of int4 cannot lie on disk");
    p.kv_type = KERN_KV_BF16;
    expect_refused(&p, 2 * bytes,
                   "kv-memory: 245760 bytes hold 30 pages a rank; a layer of a pool of this "
                   "kv-disk-size has 60, which take 491520 bytes");
    p.kv_disk = "/nonexistent/folder";
    expect_refused(&p, bytes, "kv-disk: /nonexistent/folder: No such file");
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
        cmocka_unit_test(a_page_map_reads_no_more),
        cmocka_unit_test(representatives_are_made_with_the_prompt),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(a_measure_reads_no_more_of_windows),
        cmocka_unit_test(ranks_read_everything),
        cmocka_unit_test(ranks_read_few),
        cmocka_unit_test(ranks_share_memory_and_disk),
        cmocka_unit_test(counters_are_of_all_ranks),
        cmocka_unit_test(trouble_fails_the_step),
        cmocka_unit_test(trouble_of_a_rank_fails_the_step),
        cmocka_unit_test(ranks_go_on_after_trouble),
        cmocka_unit_test(what_cannot_be_had_is_refused),
    };
    return cmocka_run_group_tests_name("kv_disk", tests, make_folder, remove_folder);
}

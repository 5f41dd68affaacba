/* Tensor-parallel ranks as one backend: near a single rank, the same bits however the work is cut,
 * and ranks that diverge are found. */
#include "model/backend_ranks.h"
#include "tests/unit/cells_of_block.h"
#include "tests/unit/model_pass.h"

#include <pthread.h>
#include <time.h>

enum { TOKENS = 170, VOCAB = 1024 };

/* High precision for compared passes: where x is rounded to bf16, the last bits of f32 decide some
 * roundings. */
static const pass demo = {.dir = "models/demo",
                          .kv_type = KERN_KV_F32,
                          .precision = KERN_PRECISION_HIGH,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .chunk = 64,
                          .n_threads = 2,
                          .mass_rows = 32,
                          .layer_step = 1};

/* ---- against a single rank ------------------------------------------------------------------- */

static uint32_t most_likely(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void expect_near(const pass_result *alone, const pass_result *ranks, const char *what)
{
    uint32_t vocab = alone->config.vocab_size;
    double e = nmse(ranks->logits, alone->logits, (size_t)TOKENS * vocab);
    double of_mass = nmse(ranks->mass, alone->mass, alone->mass_floats);
    print_message("%s: NMSE %.2e, page mass %.2e\n", what, e, of_mass);
    /* bf16 dot products use 16 of the 24 bits of x in high precision. */
    if (!(e < 1e-9) || !(of_mass < 1e-9)) fail_msg("%s: NMSE %.3e, %.3e", what, e, of_mass);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float *a = alone->logits + (size_t)t * vocab, *b = ranks->logits + (size_t)t * vocab;
        uint32_t due = most_likely(a, vocab), is = most_likely(b, vocab);
        if (a[due] - a[is] > 1e-4f) fail_msg("%s: token %u is %u, not %u", what, t, is, due);
    }
}

/* Returns the number of rank counts that the model could be cut for. */
static int check_model(pass p)
{
    uint32_t tokens[TOKENS];
    int n_cuts = 0;
    model_config config;
    assert_true(
        status_ok(model_config_load(p.dir, &p.override, p.override != NULL, &config, NULL)));
    random_tokens(tokens, TOKENS, config.vocab_size);
    pass_result alone = run(&p, tokens, TOKENS);
    for (p.n_ranks = 1; p.n_ranks <= 8; p.n_ranks++) {
        char what[160];
        snprintf(what, sizeof what, "%s, %u ranks", p.dir, p.n_ranks);
        if (!status_ok(model_ranks_check(&config, p.n_ranks, NULL))) continue;
        pass_result ranks = run(&p, tokens, TOKENS);
        assert_int_equal(alone.mass_floats, ranks.mass_floats);
        expect_near(&alone, &ranks, what);
        /* The input of the first layer is not summed over ranks: its mass is exact, unless its
         * query heads are on several ranks. */
        size_t first = alone.mass_floats / alone.config.n_layers;
        if (p.n_ranks <= alone.config.n_kv_heads)
            assert_memory_equal(alone.mass, ranks.mass, first * sizeof(float));
        result_free(&ranks);
        n_cuts++;
    }
    result_free(&alone);
    return n_cuts;
}

static void ranks_are_near_one_alone(void **state)
{
    (void)state;
    assert_int_equal(check_model(demo), 4); /* 1, 2, 4, and 8 with each KV head twice */

    /* More heads, other RoPE, a vocabulary that ranks do not divide, and an odd ffn. */
    static const struct {
        const char *dir, *override;
        int n_cuts;
    } models[] = {{"gqa1_f32", NULL, 2},
                  {"llama3_rope_f32", NULL, 3},
                  {"linear_rope_f16", NULL, 3},
                  {"gqa8_bf16", "intermediate_size=24", 4}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", models[i].dir);
        pass p = demo;
        p.dir = dir;
        p.override = models[i].override;
        assert_int_equal(check_model(p), models[i].n_cuts);
    }
}

/* Where passes are slow, every number of ranks meets the first cut, and each other cut is computed
 * by one number of ranks. */
static void no_cut_of_the_work_changes_a_bit(void **state)
{
    (void)state;
    /* rows of a step, layers and heads of a group, threads */
    static const uint32_t cuts[][4] = {
        {170, 1, 0, 2}, {1, 1, 0, 2}, {64, 2, 2, 2}, {64, 3, 1, 2}, {64, 4, 4, 8}};
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB);
    for (unsigned n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
        pass p = demo;
        p.n_ranks = n_ranks;
        p.mass_rows = 1;
        pass_result whole = run(&p, tokens, TOKENS);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            if (SLOW && i > 0 && n_ranks != 2u << i % 3) continue;
            p.chunk = cuts[i][0];
            p.layers_per_group = cuts[i][1];
            p.heads_per_group = cuts[i][2];
            p.n_threads = cuts[i][3];
            pass_result r = run(&p, tokens, TOKENS);
            if (memcmp(whole.logits, r.logits, (size_t)TOKENS * VOCAB * sizeof(float)) ||
                memcmp(whole.mass, r.mass, whole.mass_floats * sizeof(float)))
                fail_msg("%u ranks, cut %zu: other bits", n_ranks, i);
            result_free(&r);
        }
        result_free(&whole);
    }
}

/* The pages are as many, and the slices together as large, as for a single rank; only copied heads
 * take more. */
static void slices_share_the_memory(void **state)
{
    (void)state;
    for (unsigned n_ranks = 1; n_ranks <= 8; n_ranks *= 2) {
        pass p = demo;
        model_config config;
        p.n_ranks = n_ranks;
        backend b = open_backend(&p, NULL, &config);
        backend_facts f = backend_cpu_ranks_describe(&b);
        size_t copies = n_ranks > config.n_kv_heads ? n_ranks / config.n_kv_heads : 1;
        size_t page = copies * config.n_kv_heads * 2 * config.head_dim * 16 * sizeof(float);
        assert_int_equal(f.page_bytes, page);
        assert_int_equal(b.ops->info(b.ctx)->n_pages, (32 << 20) / page);
        assert_int_equal(f.pool_bytes, 32 << 20);
        assert_int_equal(f.n_threads, n_ranks > 2 ? n_ranks : 2);
        b.ops->destroy(b.ctx);
    }
}

/* Each rank has its slice of the block [groups, layers, n_slices], those that share a head the same
 * one: the bytes lie as one rank stores them. */
static void expect_slices(const backend *group, const uint32_t *cells, const uint8_t *bytes)
{
    const backend_ranks *all = group->ctx;
    uint32_t groups = pkv_groups(&all->info.geometry);
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        const backend_slice *s = &all->ranks[r].slice;
        const backend *b = &all->ranks[r].backend;
        uint8_t *own = malloc(s->cell_bytes);
        for (uint32_t i = 0; i < groups; i++) {
            if (cells[i] - s->cells.first >= s->cells.n) continue;
            assert_true(b->ops->read_cells(b->ctx, &cells[i], 1, 16, &own, 1));
            uint32_t layers = all->info.geometry.layers_per_group;
            size_t piece = s->cell_bytes / layers;
            for (uint32_t l = 0; l < layers; l++)
                assert_memory_equal(own + l * piece,
                                    bytes + ((i * layers + l) * s->n_slices + s->place) * piece,
                                    piece);
        }
        free(own);
    }
}

/* A block that is copied out of all ranks is as large as one rank's alone, comes back into any
 * cells, and is for so many ranks only. */
static void blocks_have_the_slices_of_all_ranks(void **state)
{
    (void)state;
    static const uint32_t cuts[][2] = {{1, 1}, {1, 0}, {2, 2}, {4, 4}}; /* layers, heads */
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        uint64_t identities[4] = {0};
        size_t block = 0;
        for (unsigned n = 0, n_ranks = 1; n < 4; n++, n_ranks *= 2) {
            pass p = demo;
            model_config config;
            p.n_ranks = n_ranks;
            p.layers_per_group = cuts[i][0];
            p.heads_per_group = cuts[i][1];
            backend b = open_backend(&p, NULL, &config);
            const backend_info *info = b.ops->info(b.ctx);
            uint32_t cells[2][GROUPS_MOST], both[2 * GROUPS_MOST];
            uint32_t groups = pkv_groups(&info->geometry);
            if (n == 0) block = info->block_bytes;
            assert_true(block > 0);
            assert_int_equal(info->block_bytes, block);
            identities[n] = info->block_identity;
            for (unsigned j = 0; j < n; j++) assert_true(identities[j] != identities[n]);
            uint8_t *bytes = malloc(4 * block), *got = bytes + 2 * block;
            uint8_t *places[2] = {got + block, got};
            rng r = rng_seed(n_ranks);
            for (size_t j = 0; j < 2 * block; j++) bytes[j] = (uint8_t)rng_u32(&r);
            for (uint32_t k = 0; k < 2; k++) {
                cells_of_block(info, k, cells[k]);
                assert_true(b.ops->write_cells(b.ctx, cells[k], groups, bytes + k * block));
            }
            for (uint32_t k = 0; k < 2; k++) {
                assert_true(b.ops->read_cells(b.ctx, cells[k], groups, 16, &got, groups));
                assert_memory_equal(got, bytes + k * block, block);
                if (n_ranks > 1) expect_slices(&b, cells[k], bytes + k * block);
                memcpy(both + k * groups, cells[k], groups * sizeof *both);
            }
            assert_true(b.ops->read_cells(b.ctx, both, 2 * groups, 16, places, groups));
            for (uint32_t k = 0; k < 2; k++)
                assert_memory_equal(places[k], bytes + k * block, block);
            free(bytes);
            b.ops->destroy(b.ctx);
        }
    }
}

/* ---- ranks that diverge ---------------------------------------------------------------------- */

typedef enum fault {
    NO_FAULT,
    DROPS_ANOTHER_PAGE,
    SENDS_ANOTHER_CHECKSUM,
    DRAWS_ANOTHER_TOKEN,
    COUNTS_ANOTHER_ROW,
    FAILS,
    IS_STUCK,
} fault;

typedef struct group_spec {
    model_config config;
    fault fault;
    bool cannot_be_made, lacks_a_measure;
    uint64_t kv_bytes;
    struct shim *faulty; /* out */
    _Atomic int n_made, n_resting;
    _Atomic int n_early; /* ranks that were destroyed before others rested */
} group_spec;

/* A faulty rank between the group and its CPU backend. */
typedef struct shim {
    backend inner;
    backend_info info;
    fault fault;
    bool faulty_now; /* in the next step */
    step_plan plan;
    uint32_t words[64];
    step_result result;
    step_seq_result seq;
    step_sample sample;
    retrieval_reading reading;
    pthread_mutex_t lock;
    pthread_cond_t released;
    bool interrupted;
    group_spec *group;
} shim;

static const backend_info *shim_info(void *ctx) { return &((shim *)ctx)->info; }

/* Alters the drop, which is the first operation: its code, sequence, group, pages, then a bit for
 * each page. */
static void drop_another_page(shim *s)
{
    if (s->plan.deltas.n_words > sizeof s->words / sizeof *s->words) abort();
    memcpy(s->words, s->plan.deltas.words, s->plan.deltas.n_words * sizeof *s->words);
    s->words[4] ^= 6; /* drops the other of pages 1 and 2 */
    s->plan.deltas.words = s->words;
}

static void await_interrupt(shim *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->interrupted) pthread_cond_wait(&s->released, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static status shim_submit(void *ctx, const step_plan *plan)
{
    shim *s = ctx;
    s->plan = *plan;
    if (s->faulty_now && s->fault == DROPS_ANOTHER_PAGE) drop_another_page(s);
    if (s->faulty_now && s->fault == FAILS) return status_make(STATUS_NO_MEMORY, "a full house");
    if (s->faulty_now && s->fault == IS_STUCK) await_interrupt(s);
    return s->inner.ops->submit(s->inner.ctx, &s->plan);
}

static status shim_collect(void *ctx, const step_result **out)
{
    shim *s = ctx;
    const step_result *r;
    RETURN_IF_ERROR(s->inner.ops->collect(s->inner.ctx, &r));
    s->result = *r;
    if (s->faulty_now && s->fault == SENDS_ANOTHER_CHECKSUM) s->result.checksum++;
    if (s->faulty_now && s->fault == DRAWS_ANOTHER_TOKEN) {
        s->seq = r->seqs[0];
        s->sample = s->seq.samples[0];
        s->sample.token ^= 1;
        s->seq.samples = &s->sample;
        s->result.seqs = &s->seq;
    }
    if (s->faulty_now && s->fault == COUNTS_ANOTHER_ROW) {
        s->seq = r->seqs[0];
        s->seq.readings = &s->reading;
        s->seq.n_readings = 1;
        s->result.seqs = &s->seq;
    }
    *out = &s->result;
    return STATUS_IS_OK;
}

static void shim_interrupt(void *ctx)
{
    shim *s = ctx;
    s->inner.ops->interrupt(s->inner.ctx);
    pthread_mutex_lock(&s->lock);
    s->interrupted = true;
    pthread_cond_signal(&s->released);
    pthread_mutex_unlock(&s->lock);
}

/* The faulty rank rests last. */
static void shim_rest(void *ctx)
{
    shim *s = ctx;
    if (s == s->group->faulty) nanosleep(&(struct timespec){0, 20000000}, NULL);
    s->group->n_resting++;
}

static void shim_destroy(void *ctx)
{
    shim *s = ctx;
    s->group->n_early += s->group->n_resting < s->group->n_made;
    s->inner.ops->destroy(s->inner.ctx);
    pthread_cond_destroy(&s->released);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static const backend_ops shim_ops = {
    .info = shim_info,
    .submit = shim_submit,
    .collect = shim_collect,
    .interrupt = shim_interrupt,
    .rest = shim_rest,
    .destroy = shim_destroy,
};

enum { FAULTY_RANK = 2, RANKS = 4 };

static status make_rank(void *ctx, comm *group, backend *out, error *err)
{
    group_spec *g = ctx;
    bool faulty = comm_rank(group) == FAULTY_RANK;
    if (faulty && g->cannot_be_made) {
        nanosleep(&(struct timespec){0, 20000000}, NULL); /* by now the other ranks wait */
        return error_set(err, STATUS_IO, "rank %d: no such luck", FAULTY_RANK);
    }
    backend_options o = {.dir = demo.dir,
                         .config = &g->config,
                         .kv_type = KERN_KV_F32,
                         .weight_type = DTYPE_F32,
                         .n_threads = 1,
                         .group = group,
                         .geometry = {.page_tokens = 16,
                                      .layers_per_group = 4,
                                      .heads_per_group = g->config.n_kv_heads},
                         .kv_bytes = g->kv_bytes,
                         .max_rows = 64,
                         .max_seqs = 2,
                         .max_model_len = 512};
    backend inner;
    RETURN_IF_ERROR(backend_cpu_create(&o, &inner, err));
    shim *s = calloc(1, sizeof *s);
    *s = (shim){.inner = inner, .fault = faulty ? g->fault : NO_FAULT, .group = g};
    g->n_made++;
    s->info = *inner.ops->info(inner.ctx);
    if (faulty && g->lacks_a_measure) s->info.lacks = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->released, NULL);
    if (faulty) g->faulty = s;
    *out = (backend){&shim_ops, s};
    return STATUS_IS_OK;
}

static status make_group(group_spec *g, backend *out, error *err)
{
    if (!status_ok(model_config_load(demo.dir, NULL, 0, &g->config, err)))
        fail_msg("%s", err->text);
    backend_ranks_options o = {.n_ranks = RANKS, .make = make_rank, .ctx = g};
    return backend_ranks_create(&o, out, err);
}

static void *interrupt_soon(void *arg)
{
    backend *b = arg;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    b->ops->interrupt(b->ctx);
    return NULL;
}

typedef struct driver {
    backend b;
    pkv *kv;
    uint64_t step;
    uint32_t tokens[64];
} driver;

/* One step of sequence 1 over [from, from + n), with a draw. */
static status step(driver *d, uint32_t from, uint32_t n, const step_result **out)
{
    sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    step_open open = {.seq = 1, .params = &greedy};
    assert_true(status_ok(pkv_seq_append(d->kv, 1, n)));
    step_seq seq = {.seq = 1, .n_tokens = n, .position = from, .n_samples = 1};
    step_plan plan = {.step = ++d->step,
                      .deltas = pkv_take_deltas(d->kv),
                      .opens = &open,
                      .n_opens = from == 0,
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = d->tokens + from,
                      .n_tokens = n,
                      .checksum = pkv_checksum(d->kv)};
    assert_true(status_ok(d->b.ops->submit(d->b.ctx, &plan)));
    return d->b.ops->collect(d->b.ctx, out);
}

/* A prompt of four pages, one of which is dropped, and one more token: then the fault. */
static void check_fault(fault what, const char *says)
{
    group_spec g = {.fault = what, .kv_bytes = 4 << 20};
    driver d = {0};
    error err = {{0}};
    uint32_t hit;
    const step_result *r;
    if (!status_ok(make_group(&g, &d.b, &err))) fail_msg("%s", err.text);
    const backend_info *info = d.b.ops->info(d.b.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 2};
    random_tokens(d.tokens, 64, VOCAB);
    assert_true(status_ok(pkv_create(&po, &d.kv)));
    assert_true(status_ok(pkv_seq_open(d.kv, 1, PKV_HEAD, d.tokens, 0, 0, 64, &hit)));
    assert_true(status_ok(step(&d, 0, 63, &r)));
    if (!status_ok(r->status)) fail_msg("%s", r->status.message);
    assert_int_equal(r->seqs[0].n_samples, 1);

    g.faulty->faulty_now = true;
    uint64_t keep = 0xd; /* all but page 1 */
    pkv_seq_drop(d.kv, 1, 0, &keep);
    pthread_t other;
    if (what == IS_STUCK) pthread_create(&other, NULL, interrupt_soon, &d.b);
    status s = step(&d, 63, 1, &r);
    if (what == IS_STUCK) pthread_join(other, NULL);
    assert_int_equal(s.code, what == IS_STUCK ? STATUS_INTERNAL : STATUS_OK);
    status_code due = what == NO_FAULT ? STATUS_OK
                      : what == FAILS  ? STATUS_UNAVAILABLE /* it had no memory */
                                       : STATUS_INTERNAL;
    assert_int_equal(r->status.code, due);
    assert_int_equal(r->n_seqs, what == NO_FAULT);
    if (says && !strstr(r->status.message, says)) fail_msg("%s: %s", says, r->status.message);
    pkv_destroy(d.kv);
    d.b.ops->destroy(d.b.ctx);
}

static void a_rank_that_differs_is_named(void **state)
{
    (void)state;
    check_fault(NO_FAULT, NULL);
    check_fault(DROPS_ANOTHER_PAGE, "rank 2: page tables differ from the coordinator's");
    check_fault(SENDS_ANOTHER_CHECKSUM, "rank 2: page tables differ from the coordinator's");
    check_fault(DRAWS_ANOTHER_TOKEN, "rank 2: samples differ from rank 0's");
    check_fault(COUNTS_ANOTHER_ROW, "rank 2: it counts what other rows read than rank 0");
    check_fault(FAILS, "rank 2: a full house: out of memory");
}

/* The other ranks wait for the hung one in a collective. */
static void an_interrupt_frees_ranks_that_wait(void **state)
{
    (void)state;
    check_fault(IS_STUCK, NULL);
}

/* Ranks agree on the size of the pool, so the others wait for the rank that fails. */
static void a_rank_that_cannot_be_made_is_reported(void **state)
{
    (void)state;
    group_spec g = {.cannot_be_made = true};
    backend b = {0};
    error err = {{0}};
    assert_int_equal(make_group(&g, &b, &err).code, STATUS_IO);
    assert_string_equal(err.text, "rank 2: no such luck");
    assert_null(b.ops);

    g.cannot_be_made = false;
    if (!status_ok(make_group(&g, &b, &err))) fail_msg("%s", err.text);
    b.ops->destroy(b.ctx);
    assert_int_equal(g.n_resting, RANKS); /* of the first group no backend was made */
    g.lacks_a_measure = true;             /* the scheduler would ask it of all ranks */
    assert_int_equal(make_group(&g, &b, &err).code, STATUS_INTERNAL);
    assert_string_equal(err.text, "rank 2: is not like rank 0");
    g.lacks_a_measure = false;
    g.kv_bytes = 4096;
    assert_int_equal(make_group(&g, &b, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "kv-memory: 4096 bytes hold"));
    assert_int_equal(g.n_early, 0);
}

/* A load that would take minutes is interrupted and ends soon. */
static void a_load_is_given_up(void **state)
{
    (void)state;
    const _Atomic bool given_up = true;
    comm *alone;
    model_config c;
    assert_true(status_ok(model_config_load(demo.dir, NULL, 0, &c, NULL)));
    assert_true(status_ok(comm_create(&(comm_options){.kind = "self", .size = 1}, &alone, NULL)));
    backend b = {0};
    error err = {{0}};
    backend_options o = {
        .dir = demo.dir,
        .config = &c,
        .kv_type = KERN_KV_F32,
        .weight_type = DTYPE_F32,
        .n_threads = 1,
        .group = alone,
        .geometry = {.page_tokens = 16, .layers_per_group = 1, .heads_per_group = c.n_kv_heads},
        .kv_bytes = 4 << 20,
        .max_rows = 64,
        .max_seqs = 2,
        .given_up = &given_up};
    assert_int_equal(backend_cpu_create(&o, &b, &err).code, STATUS_ABORTED);
    assert_non_null(strstr(err.text, "given up"));
    comm_destroy(alone);
}

static void impossible_groups_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads, kv_heads, ffn, ranks;
        const char *says;
    } cases[] = {
        {8, 4, 704, 3, "\"num_attention_heads\" 8 cannot be cut for 3 ranks"},
        {8, 4, 704, 16, "16 ranks for 8 query heads"},
        {8, 4, 704, 0, "0 ranks"},
        {8, 4, 700, 8, "\"intermediate_size\" 700 cannot be cut for 8 ranks"},
        {12, 4, 720, 6, "\"num_key_value_heads\" 4 cannot be cut for 6 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config c;
        error err = {{0}};
        assert_true(status_ok(model_config_load(demo.dir, NULL, 0, &c, NULL)));
        c.n_heads = cases[i].heads;
        c.n_kv_heads = cases[i].kv_heads;
        c.ffn = cases[i].ffn;
        backend_options o = {.dir = demo.dir, .config = &c};
        backend b = {0};
        assert_int_equal(backend_cpu_ranks_create(&o, cases[i].ranks, &b, &err).code,
                         STATUS_UNSUPPORTED);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].says, err.text);
        assert_null(b.ops);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_near_one_alone),
        cmocka_unit_test(no_cut_of_the_work_changes_a_bit),
        cmocka_unit_test(slices_share_the_memory),
        cmocka_unit_test(blocks_have_the_slices_of_all_ranks),
        cmocka_unit_test(a_rank_that_differs_is_named),
        cmocka_unit_test(an_interrupt_frees_ranks_that_wait),
        cmocka_unit_test(a_rank_that_cannot_be_made_is_reported),
        cmocka_unit_test(a_load_is_given_up),
        cmocka_unit_test(impossible_groups_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("model_ranks", tests, NULL, NULL);
}

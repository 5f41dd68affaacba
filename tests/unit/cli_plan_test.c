/* The answers of octavo plan for published models, and for models that are then opened. */
#include "cli/inspect.h"
#include "cli/plan_sizes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GIB (UINT64_C(1) << 30)

/* "ref" keeps bf16 as it is; what the best ISA keeps depends on the machine. */
static const model_flags usual = {.isa = "ref",
                                  .load_format = "auto",
                                  .dtype = "auto",
                                  .kv_dtype = "auto",
                                  .device = "cpu",
                                  .quantize = "none",
                                  .scheduling_policy = "fcfs",
                                  .quantize_group = 32,
                                  .threads = 2,
                                  .tp = 1,
                                  .max_batch = 4,
                                  .prefill_chunk = 64};

static void describe(const model_flags *f, loaded_model *m)
{
    error err = {{0}};
    if (!status_ok(model_describe(f, m, &err))) fail_msg("%s", err.text);
}

static plan_answer answer_of(const plan_question *q)
{
    plan_answer a;
    error err = {{0}};
    if (!status_ok(plan_measure(q, &a, &err))) fail_msg("%s", err.text);
    return a;
}

/* ---- published models ------------------------------------------------------------------------ */

typedef struct published {
    const char *path;
    uint64_t parameters, token_bytes; /* token_bytes: with bf16 */
} published;

/* Parameters from Meta's model cards; 16-bit files hold twice as many bytes. */
static const published models[] = {
    {"tests/data/plan/llama-3-8b.json", 8030261248, 131072},
    {"tests/data/plan/llama-3-70b.json", 70553706496, 327680},
};

static void published_sizes(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (size_t r = 0; r < 4; r++) {
            model_flags f = usual;
            loaded_model m;
            f.dir = models[i].path;
            f.tp = ranks[r];
            f.device = "cuda";
            describe(&f, &m);
            m.options.dummy = true; /* the files are not here */
            plan_question q = {.model = &m, .n_devices = f.tp, .memory = 200 * GIB};
            plan_answer a = answer_of(&q);
            assert_true(a.measures.parameters == models[i].parameters);
            uint32_t groups = pkv_groups(&a.measures.geometry);
            assert_int_equal(groups, m.config.n_layers * m.config.n_kv_heads);
            assert_true(a.measures.page_bytes * groups == 16 * models[i].token_bytes);
            assert_true(a.token_bytes == (double)models[i].token_bytes);
            /* Every rank has f32 norms. */
            uint64_t stored = 2 * models[i].parameters, all = a.measures.weight_bytes * f.tp;
            assert_true(all > stored && all < stored + stored / 2000);
            /* The pool and representatives are its share, short of it by less than a page of each
             * group; there is one sum for 256 values. One GPU alone has representatives. */
            uint64_t taken = a.measures.weight_bytes + a.measures.step_bytes;
            uint64_t memory = 200 * GIB - PLAN_GPU_DRIVER_BYTES;
            assert_true(a.measures.step_bytes > 1 << 20 && a.measures.step_bytes < GIB);
            double pool = (double)(a.rank_pool + a.rank_representatives);
            double share = (double)(memory - taken) * MODEL_GPU_POOL_SHARE;
            double block = (double)a.measures.page_bytes * groups;
            block += (double)a.measures.representatives_of_page * groups;
            assert_true(pool <= share && pool > share - block);
            assert_true((a.rank_representatives > 0) == (f.tp == 1));
            assert_true(a.rank_memory == memory && a.rank_sums * 128 == a.rank_pool);
            taken += a.rank_representatives + a.measures.note_bytes + a.measures.scratch_bytes;
            assert_true(a.rank_left == memory - taken - a.rank_pool - a.rank_sums);
            model_close(&m);
        }
    }
}

static plan_answer answer_of_gpu(const char *kv_dtype, uint64_t pool)
{
    model_flags f = usual;
    loaded_model m;
    f.dir = models[1].path;
    f.tp = 8;
    f.kv_memory = pool;
    f.kv_dtype = kv_dtype;
    f.device = "cuda:1";
    describe(&f, &m);
    m.options.dummy = true;
    plan_question q = {.model = &m, .n_devices = 8, .memory = 80 * GIB};
    plan_answer a = answer_of(&q);
    model_close(&m);
    return a;
}

static uint64_t step_bytes_of(uint32_t n_devices, bool batch_invariant)
{
    model_flags f = usual;
    loaded_model m;
    f.dir = models[0].path;
    f.tp = 2;
    f.device = "cuda";
    f.batch_invariant = batch_invariant;
    describe(&f, &m);
    m.options.dummy = true;
    plan_question q = {.model = &m, .n_devices = n_devices, .memory = 160 * GIB / n_devices};
    uint64_t bytes = answer_of(&q).measures.step_bytes;
    model_close(&m);
    return bytes;
}

/* Ranks with a GPU each have 18 MB in which they add up, batch-invariant or not; those on one GPU
 * do not. */
static void memory_of_sums(void **state)
{
    (void)state;
    uint64_t alone = step_bytes_of(1, false), each = step_bytes_of(2, false);
    assert_int_equal(each - alone, 18 << 20);
    assert_int_equal(step_bytes_of(2, true) - step_bytes_of(1, true), 18 << 20);
}

/* A pool of fp8 pages holds twice as many as one of 16 bits, up to one page of each group; int8
 * pages have two 16-bit scales for each token and head. */
static void pages_of_8_bits(void **state)
{
    (void)state;
    static const uint64_t pools[] = {0, 100 * GIB};
    for (size_t i = 0; i < 2; i++) {
        plan_answer wide = answer_of_gpu("auto", pools[i]), half = answer_of_gpu("fp8", pools[i]);
        assert_true(half.token_bytes * 2 == wide.token_bytes);
        uint32_t groups = pkv_groups(&wide.measures.geometry);
        assert_true(half.measures.n_pages / groups / 2 == wide.measures.n_pages / groups);
        assert_true(half.rank_pool - wide.rank_pool <= half.measures.page_bytes * groups);
        plan_answer scaled = answer_of_gpu("int8", pools[i]);
        assert_true(scaled.token_bytes == half.token_bytes * (256 + 4) / 256);
    }
    model_flags f = usual;
    loaded_model m;
    error err;
    f.dir = models[1].path;
    f.device = "cuda";
    f.kv_dtype = "f32";
    assert_int_equal(model_describe(&f, &m, &err).code, STATUS_UNSUPPORTED);
    f.device = "cpu";
    f.kv_dtype = "fp8";
    assert_int_equal(model_describe(&f, &m, &err).code, STATUS_UNSUPPORTED);
}

/* KV heads are copied when there are more ranks than heads: 8 heads on 16 ranks become 16. */
static void copied_heads_count(void **state)
{
    (void)state;
    model_flags f = usual;
    loaded_model m;
    f.dir = models[1].path;
    f.tp = 16;
    describe(&f, &m);
    m.options.dummy = true;
    plan_question q = {.model = &m, .n_devices = 16, .memory = 80 * GIB};
    assert_true(answer_of(&q).token_bytes == 2.0 * (double)models[1].token_bytes);
    model_close(&m);
}

/* ---- models that are opened ------------------------------------------------------------------ */

static void compare(const model_flags *f, const char *what)
{
    loaded_model planned, opened;
    error err = {{0}};
    describe(f, &planned);
    plan_question q = {.model = &planned, .n_devices = 1, .memory = GIB};
    plan_answer a = answer_of(&q);
    if (!status_ok(model_open(f, false, &opened, &err))) fail_msg("%s: %s", what, err.text);
    const backend_info *info = opened.backend.ops->info(opened.backend.ctx);
    const backend_measures *m = &a.measures;
    const struct {
        const char *name;
        uint64_t planned, opened;
    } facts[] = {
        {"weights", m->weight_bytes * f->tp, opened.facts.weight_bytes},
        {"page", m->page_bytes * f->tp, opened.facts.page_bytes},
        {"pool", a.rank_pool * f->tp, opened.facts.pool_bytes},
        {"filling", m->filling_bytes * f->tp, opened.facts.filling_bytes},
        {"swap", backend_host_bytes(m) * f->tp, opened.facts.swap_bytes},
        {"pages", a.pages, info->n_pages - 1},
        {"host pages", m->n_host_pages, info->n_host_pages},
        {"tables", pkv_groups(&m->geometry), pkv_groups(&info->geometry)},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].planned != facts[i].opened)
            fail_msg("%s: %s: planned %llu, is %llu", what, facts[i].name,
                     (unsigned long long)facts[i].planned, (unsigned long long)facts[i].opened);
    assert_memory_equal(&m->geometry, &info->geometry, sizeof info->geometry);
    model_close(&opened);
    model_close(&planned);
}

static void plans_come_true(void **state)
{
    (void)state;
    static const char *const dirs[] = {"models/demo", "tests/golden/models/gemma3_f32",
                                       "tests/golden/models/qwen2_moe_f32"};
    static const char *const weights[] = {"none", "int8", "int4"};
    static const char *const pages[] = {"bf16", "int8", "int4"};
    uint32_t compared = 0;
    for (int d = 0; d < 3; d++)
        for (int w = 0; w < 3; w++)
            for (int k = 0; k < 3; k++)
                for (uint32_t tp = 1; tp <= 2; tp++) {
                    char what[160];
                    model_flags f = usual;
                    f.isa = NULL; /* bf16 may be kept as block floats */
                    f.dir = dirs[d];
                    f.dtype = d > 0 ? "f32" : "auto"; /* tiny models keep their stored type */
                    f.quantize = weights[w];
                    f.kv_dtype = pages[k];
                    f.kv_residual = k == 2 && w == 1 ? 96 : 0; /* for int4 pages */
                    f.no_prefix_cache = f.kv_residual > 0;
                    f.tp = tp;
                    f.kv_memory = (4 << 20) + 12345;
                    f.swap_memory = (1 << 20) + 777;
                    snprintf(what, sizeof what, "%s, %s, %s, tp %u", dirs[d], weights[w], pages[k],
                             tp);
                    if (d > 0 && tp == 2 && w > 0) continue; /* the ranks would cut its groups */
                    compare(&f, what);
                    compared++;
                }
    assert_int_equal(compared, 3 * 3 * 3 * 2 - 2 * 2 * 3);
}

/* A plan may be for another machine, and ranks may run on others: no instruction set need be here.
 * Weights of bf16 are smaller where the CPU has AVX2 alone, in standard precision. */
static void instruction_sets_of_other_machines(void **state)
{
    (void)state;
    model_flags f = usual;
    loaded_model m;
    f.dir = "models/demo";
    for (size_t i = 0; i < kern_isa_count(); i++) {
        bool runs;
        f.isa = kern_isa_at(i, &runs);
        for (int high = 0; high < 2; high++) {
            error err;
            uint64_t config, weights;
            f.precision = high ? "high" : "standard";
            describe(&f, &m);
            plan_question q = {.model = &m, .n_devices = 1, .memory = 64 << 20};
            const double mib = (double)answer_of(&q).measures.weight_bytes / (1 << 20);
            const double least = strcmp(f.isa, "avx2") == 0 && !high ? 4.7 : 6.1;
            if (mib < least || mib > least + 0.1)
                fail_msg("%s, %s: %.3f MiB", f.isa, f.precision, mib);
            if (!status_ok(model_fingerprints(&m.options, &config, &weights, &err)))
                fail_msg("%s: %s", f.isa, err.text);
            model_close(&m);
        }
    }
    f.isa = "z80";
    describe(&f, &m);
    error err;
    plan_answer a;
    plan_question q = {.model = &m, .n_devices = 1, .memory = 64 << 20};
    assert_int_equal(plan_measure(&q, &a, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "isa z80: no such instruction set");
    model_close(&m);
}

/* Without --kv-memory and with little memory: the pool gets its share, swap half of the rest. */
static void shares_of_memory(void **state)
{
    (void)state;
    model_flags f = usual;
    loaded_model m;
    f.dir = "models/demo";
    f.swap_memory = GIB;
    describe(&f, &m);
    plan_question q = {.model = &m, .n_devices = 1, .memory = 64 << 20};
    plan_answer a = answer_of(&q);
    uint64_t left = (64 << 20) - a.measures.weight_bytes, groups = pkv_groups(&a.measures.geometry);
    uint64_t block = a.measures.page_bytes * groups;
    uint64_t beside = a.measures.representatives_of_page * groups;
    assert_true(beside > 0 && a.rank_representatives * block == a.rank_pool * beside);
    assert_true(a.rank_pool == (uint64_t)((double)left * 0.6) / (block + beside) * block);
    assert_true(a.measures.n_host_pages ==
                (left - a.rank_pool - a.rank_representatives) / 2 / block * groups - 1);
    assert_true(a.measures.note_bytes == 1 << 20 && a.measures.scratch_bytes > 100 << 10);
    assert_true(a.rank_left == left - a.rank_pool - a.rank_representatives - a.measures.note_bytes -
                                   a.measures.scratch_bytes);
    q.memory = a.measures.weight_bytes - 1;
    a = answer_of(&q);
    assert_false(a.measures.fits);
    assert_int_equal(a.pages, 0);
    assert_true(a.short_of > 0);
    model_close(&m);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static plan_room room_of(const plan_question *q, plan_answer *a, const char *retention)
{
    retention_limits limits = {a->measures.geometry, q->model->prefill_chunk, 0};
    retention_policy policy;
    error err = {{0}};
    json_t *json = retention ? json_loads(retention, 0, NULL) : NULL;
    status s = retention_parse(json, &limits, &policy, &err);
    if (status_ok(s)) s = plan_fill(q, &policy, a, &err);
    if (!status_ok(s)) fail_msg("%s", err.text);
    json_decref(json);
    return a->room;
}

/* The peak that is reported for one sequence is exactly what the scheduler admits. */
static void check_admission(const plan_answer *a, const plan_question *q, const char *retention)
{
    for (uint32_t spare = 0; spare < 2; spare++) {
        sched_options o = {.geometry = a->measures.geometry,
                           .n_pages = (uint32_t)a->room.need.peak + spare,
                           .max_seqs = 4,
                           .prefill_chunk = 64,
                           .max_model_len = 4096,
                           .max_requests = 4};
        sched *s;
        error err = {{0}};
        static uint32_t prompt[4096];
        sched_request r = {.id = 1,
                           .prompt = prompt,
                           .n_prompt = q->context - q->output,
                           .max_new_tokens = q->output,
                           .n = 1};
        retention_limits limits = {o.geometry, 64, 0};
        json_t *json = retention ? json_loads(retention, 0, NULL) : NULL;
        assert_true(status_ok(retention_parse(json, &limits, &r.policy, &err)));
        if (!status_ok(sched_create(&o, &s, &err))) fail_msg("%s", err.text);
        status st = sched_check(s, &r, &err);
        if (status_ok(st) != (spare == 1))
            fail_msg("%s, %u spare: %s", retention ? retention : "full", spare, err.text);
        sched_destroy(s);
        json_decref(json);
    }
}

static void sequences_that_fit(void **state)
{
    (void)state;
    static const char *const policies[] = {
        NULL,
        "{\"method\": \"chunkkv\", \"ratio\": 0.25}",
        "{\"method\": \"snapkv\", \"ratio\": 0.25, \"scope\": \"layer\"}",
        "{\"method\": \"snapkv\", \"ratio\": 0.25}",
        "{\"method\": \"adakv\", \"ratio\": 0.25}",
        "{\"method\": \"h2o\", \"ratio\": 0.25, \"scope\": \"layer\"}",
        "{\"method\": \"streaming\", \"tokens\": 200}",
        "{\"method\": \"streaming-recurrent\", \"tokens\": 512}",
        "{\"method\": \"scope-slide\", \"prefill\": {\"method\": \"chunkkv\", \"tokens\": 256},"
        " \"decode\": {\"scope\": \"layer\", \"beta1\": 64, \"beta2\": 16}}",
    };
    model_flags f = usual;
    loaded_model m;
    f.dir = "models/demo";
    f.kv_memory = 64 << 20; /* 32,767 pages: 2,047 of each of 4 heads of 4 layers */
    describe(&f, &m);
    plan_question q = {.model = &m, .n_devices = 1, .memory = GIB, .context = 2048, .output = 128};
    plan_answer a = answer_of(&q);
    plan_room full = room_of(&q, &a, NULL);
    assert_int_equal(full.need.peak, 128 * 16);
    assert_int_equal(full.need.kept, 120 * 16);
    assert_int_equal(full.fit, 32767 / 2048);
    assert_int_equal(full.in_prefill, 32767 / 2048);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        plan_room room = room_of(&q, &a, policies[i]);
        assert_true(room.need.kept <= room.need.most);
        assert_true(room.fit >= room.in_prefill && room.fit >= full.fit);
        if (i > 0) assert_true(room.need.most < full.need.most);
        check_admission(&a, &q, policies[i]);
    }
    /* A quarter of 120 pages, and 8 for the output. */
    plan_room chunks = room_of(&q, &a, policies[1]);
    assert_int_equal(chunks.need.kept, 30 * 16);
    assert_int_equal(chunks.need.most, 38 * 16);
    assert_int_equal(chunks.need.peak, 120 * 16);
    assert_int_equal(chunks.fit, (32767 - 1920) / 608 + 1);
    model_close(&m);
}

/* A reading takes pages of the layers that it runs: all, or those that its heads need, two of the
 * demo model's four. The answer takes those of all layers. */
static void readings_take_pages_of_their_layers(void **state)
{
    (void)state;
    static const char reform[] = "{\"method\": \"reform\", \"tokens\": 1024, \"rows\": 32, "
                                 "\"recurrent_chunk\": 1024, \"gather_tokens\": %u%s}";
    static const struct {
        uint32_t gather;
        const char *exit;
        uint64_t peak;
    } cases[] = {
        /* Pages of a table: 1,024 tokens and a chunk of as many, which may begin in the middle of
         * a page. A selection takes 64 for a moment. */
        {600, ", \"exit_layer\": 4", 16 * 129 + 64},
        {600, ", \"exit_layer\": 3", 12 * 129 + 64},
        {600, "", 8 * 129 + 64},
        {1800, "", 16 * (113 + 8)}, /* the answer's, which are more */
        {3968, "", 16 * 256},       /* the prompt is computed whole */
    };
    model_flags f = usual;
    loaded_model m;
    f.dir = "models/demo";
    f.kv_memory = 64 << 20;
    describe(&f, &m);
    assert_int_equal(m.embeds.n, 4);
    plan_question q = {.model = &m, .n_devices = 1, .memory = GIB, .context = 4096, .output = 128};
    plan_answer a = answer_of(&q);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char policy[256];
        snprintf(policy, sizeof policy, reform, cases[i].gather, cases[i].exit);
        plan_room room = room_of(&q, &a, policy);
        if (room.need.peak != cases[i].peak)
            fail_msg("%s: %llu pages", policy, (unsigned long long)room.need.peak);
        assert_true(room.need.kept <= room.need.most && room.need.most <= room.need.peak);
    }
    model_close(&m);
}

static void verdicts(void **state)
{
    (void)state;
    model_flags f = usual;
    loaded_model m;
    f.dir = "models/demo";
    describe(&f, &m);
    static const struct {
        uint64_t memory, kv_bytes;
        uint32_t sequences;
        const char *says;
    } cases[] = {
        {4 << 20, 0, 1, "does not fit: the weights take 6.1 MiB, of 4.0 MiB"},
        {6500000, 0, 1, "does not fit: the weights leave no room for a page of each table"},
        {16 << 20, 12 << 20, 1,
         "does not fit: weights, KV pool and what lies beside it are 4.7 MiB too much"},
        {16 << 20, 4 << 20, 1,
         "does not fit: a sequence of 2,048 tokens takes 2,048 pages, of 2,047"},
        {32 << 20, 9 << 20, 3, "2 of 3 sequences of 2,048 tokens fit at once, the others wait"},
        {32 << 20, 9 << 20, 2, "fits: 2 sequences of 2,048 tokens at once"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char verdict[256];
        m.options.kv_bytes = cases[i].kv_bytes;
        plan_question q = {.model = &m,
                           .n_devices = 1,
                           .memory = cases[i].memory,
                           .context = 2048,
                           .output = 128,
                           .sequences = cases[i].sequences};
        plan_answer a = answer_of(&q);
        room_of(&q, &a, NULL);
        assert_int_equal(plan_verdict(&q, &a, verdict, sizeof verdict), i == 5);
        assert_string_equal(verdict, cases[i].says);
    }
    model_close(&m);
}

static void numbers(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(plan_number(0, out), "0");
    assert_string_equal(plan_number(999, out), "999");
    assert_string_equal(plan_number(1000, out), "1,000");
    assert_string_equal(plan_number(UINT64_MAX, out), "18,446,744,073,709,551,615");
}

/* Checks the words of `inspect` for a model and this much memory. */
static void inspection_says_whether_it_fits(void **state)
{
    (void)state;
    kern_quant floats;
    const kern_options best = {.isa = NULL};
    assert_true(status_ok(kern_block_floats_of(&best, DTYPE_BF16, &floats, NULL)));
    const char *size = floats.bits ? "4.8" : "6.1"; /* of this machine */
    const struct {
        const char *path;
        uint64_t memory;
        const char *text;
    } rows[] = {
        {"models/demo", 1 << 30,
         "total size: %s MiB of weights in memory\nfits here: yes: 1.0 GiB "
         "of memory are free, and the KV pool would have room for "},
        {"models/demo", 1 << 20,
         "total size: %s MiB of weights in memory\nfits here: no: 1.0 MiB "
         "of memory are free\n"},
        {"no/such", 1 << 30, "fits here: no: no/such/config.json: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        strbuf out = {0};
        char text[160];
        snprintf(text, sizeof text, rows[i].text, size);
        inspect_room(rows[i].path, rows[i].memory, &out);
        if (strncmp(out.data, text, strlen(text)) != 0)
            fail_msg("%s, %zu: %s", rows[i].path, (size_t)rows[i].memory, out.data);
        strbuf_destroy(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_8_bits),
        cmocka_unit_test(published_sizes),
        cmocka_unit_test(memory_of_sums),
        cmocka_unit_test(copied_heads_count),
        cmocka_unit_test(plans_come_true),
        cmocka_unit_test(instruction_sets_of_other_machines),
        cmocka_unit_test(shares_of_memory),
        cmocka_unit_test(sequences_that_fit),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(numbers),
        cmocka_unit_test(readings_take_pages_of_their_layers),
        cmocka_unit_test(inspection_says_whether_it_fits),
    };
    return cmocka_run_group_tests_name("cli_plan", tests, NULL, NULL);
}

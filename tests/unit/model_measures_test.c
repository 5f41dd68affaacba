/* The measures of a backend: every kind against a float64 forward pass, running sums for any cut of
 * a prompt and any moves of slots, ranks against a single one, and refused specs. */
#include "tests/unit/model_dense.h"

enum { TOKENS = 100, LAST = 37 }; /* LAST: tokens of the measured share */

/* High precision for compared passes: where x is rounded to bf16, the last bits of f32 decide some
 * roundings. */
static const pass demo = {.dir = "models/demo",
                          .kv_type = KERN_KV_F32,
                          .precision = KERN_PRECISION_HIGH,
                          .page_tokens = 16,
                          .layers_per_group = 1,
                          .heads_per_group = 1,
                          .chunk = TOKENS,
                          .n_threads = 2,
                          .swap_bytes = 8 << 20};

/* ---- a sequence and its backend -------------------------------------------------------------- */

typedef struct driver {
    pass pass;
    model_config config;
    comm *group;
    backend b;
    pkv *kv;
    uint32_t tokens[TOKENS];
    uint32_t done, position; /* tokens computed; RoPE position of the first */
    uint64_t step;
} driver;

static void driver_open(driver *d, const pass *p)
{
    comm_options self = {.kind = "self", .size = 1};
    uint32_t hit;
    *d = (driver){.pass = *p};
    assert_true(status_ok(comm_create(&self, &d->group, NULL)));
    d->b = open_backend(p, d->group, &d->config);
    const backend_info *info = d->b.ops->info(d->b.ctx);
    pkv_options po = {.geometry = info->geometry,
                      .n_pages = info->n_pages,
                      .n_host_pages = info->n_host_pages,
                      .max_seqs = 2};
    random_tokens(d->tokens, TOKENS, d->config.vocab_size);
    assert_true(status_ok(pkv_create(&po, &d->kv)));
    assert_true(status_ok(pkv_seq_open(d->kv, 1, PKV_HEAD, d->tokens, 0, 0, TOKENS, &hit)));
}

static void driver_close(driver *d)
{
    pkv_destroy(d->kv);
    d->b.ops->destroy(d->b.ctx);
    comm_destroy(d->group);
}

/* Computes the next n tokens and returns the step's result. */
static const step_result *try_step(driver *d, uint32_t n, measure_spec spec)
{
    sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    step_open open = {.seq = 1, .params = &greedy};
    assert_true(status_ok(pkv_seq_append(d->kv, 1, n)));
    step_seq seq = {.seq = 1, .n_tokens = n, .position = d->position + d->done, .measure = spec};
    step_plan plan = {.step = ++d->step,
                      .deltas = pkv_take_deltas(d->kv),
                      .opens = &open,
                      .n_opens = d->step == 1,
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = d->tokens + d->done,
                      .n_tokens = n,
                      .checksum = pkv_checksum(d->kv)};
    const step_result *r;
    assert_true(status_ok(d->b.ops->submit(d->b.ctx, &plan)));
    assert_true(status_ok(d->b.ops->collect(d->b.ctx, &r)));
    d->done += n;
    return r;
}

static const measure_result *step(driver *d, uint32_t n, measure_spec spec)
{
    const step_result *r = try_step(d, n, spec);
    if (!status_ok(r->status)) fail_msg("%s", r->status.message);
    return &r->seqs[0].measure;
}

static const measure_spec nothing = {.kind = MEASURE_NONE};

/* ---- every kind ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    measure_kind kind, second;
    float bias, theta;
} specs[] = {
    {"mass", MEASURE_MASS, MEASURE_VALUE_WEIGHT, 0, 0},
    {"raw", MEASURE_RAW, MEASURE_NONE, 0, 0},
    {"projection", MEASURE_PROJECTION, MEASURE_NONE, 0, 0},
    {"projection outside", MEASURE_PROJECTION_OUTSIDE, MEASURE_NONE, 0, 0},
    {"projection pooled", MEASURE_PROJECTION_POOLED, MEASURE_NONE, 0, 0},
    {"projection with b and theta", MEASURE_PROJECTION, MEASURE_KEY_NORM, 0.3f, 4},
    {"projection pooled with b and theta", MEASURE_PROJECTION_POOLED, MEASURE_NONE, -0.2f, 3},
    {"expected", MEASURE_EXPECTED, MEASURE_VALUE_NORM, 0, 0},
    {"value weight", MEASURE_VALUE_WEIGHT, MEASURE_NONE, 0, 0},
    {"value norm", MEASURE_VALUE_NORM, MEASURE_NONE, 0, 0},
    {"key norm", MEASURE_KEY_NORM, MEASURE_KEY_COSINE, 0, 0},
};

enum { SPECS = sizeof specs / sizeof specs[0] };

static bool of_rows(measure_kind kind) { return kind >= MEASURE_MASS && kind <= MEASURE_EXPECTED; }

static measure_spec spec_of(size_t i, uint32_t rows, uint32_t layer_step)
{
    return (measure_spec){.kind = specs[i].kind,
                          .second = specs[i].second,
                          .rows = of_rows(specs[i].kind) ? rows : 0,
                          .layer_step = layer_step,
                          .by_slot = true,
                          .sinks = 4,
                          .window = 9,
                          .chunk = 4,
                          .bias = specs[i].bias,
                          .theta = specs[i].theta};
}

static void naive_future(const dense *m, float *mean_rope)
{
    uint32_t dim = m->config.head_dim;
    float angles[256];
    double sums[256] = {0};
    for (uint32_t i = 0; i < 512; i++) {
        rope_angles(m->inv_freq, dim, m->position + m->n + i, angles);
        for (uint32_t d = 0; d < dim; d++) sums[d] += angles[d];
    }
    for (uint32_t d = 0; d < dim; d++) mean_rope[d] = (float)(sums[d] / 512);
}

static void naive_future_attention(const dense *m, const sequence *s, size_t at,
                                   const measure_spec *spec, double *want)
{
    uint32_t from = m->n - spec->rows;
    float mean_rope[256];
    if (m->position + from < spec->sinks) from = spec->sinks - m->position;
    naive_future(m, mean_rope);
    kern_expected_item it = {.sinks = spec->sinks, .n_rows = m->n - from, .mean_rope = mean_rope};
    it.q = m->unrotated[at] + (size_t)from * s->q_heads * s->shape.head_dim;
    for (uint32_t h = 0; h < s->q_heads; h++) naive_expected(s, &it, h, want);
}

static void naive_weights(const dense *m, uint32_t layer, uint32_t head, const sequence *s,
                          double *want)
{
    const kern_matrix *o = &m->weights.layers[layer].o;
    float *w = malloc(o->n * o->k * sizeof *w);
    for (size_t i = 0; i < o->n; i++) kern_matrix_row(m->kernels, o, i, w + i * o->k);
    for (uint32_t h = 0; h < s->q_heads; h++)
        naive_weight(s, w + (size_t)(head * s->q_heads + h) * s->shape.head_dim, (uint32_t)o->n,
                     o->k, want);
    free(w);
}

/* want [n] of one kind, layer and KV head. */
static void naive_kind(const dense *m, uint32_t layer, uint32_t head, measure_kind kind,
                       const measure_spec *spec, double *want)
{
    const sequence *s = &m->heads[dense_index(m, layer, head)];
    uint32_t dim = s->shape.head_dim;
    kern_rows_item it = {
        .window = spec->window, .chunk = spec->chunk, .bias = spec->bias, .theta = spec->theta};
    double scale;
    memset(want, 0, m->n * sizeof *want);
    switch (kind) {
    case MEASURE_MASS: it.kind = KERN_MEASURE_MASS; break;
    case MEASURE_RAW: it.kind = KERN_MEASURE_RAW; break;
    case MEASURE_PROJECTION: it.kind = KERN_MEASURE_PROJECTION; break;
    case MEASURE_PROJECTION_OUTSIDE: it.kind = KERN_MEASURE_OUTSIDE; break;
    case MEASURE_PROJECTION_POOLED: it.kind = KERN_MEASURE_POOLED; break;
    case MEASURE_EXPECTED:
        naive_future_attention(m, s, dense_index(m, layer, head), spec, want);
        return;
    case MEASURE_VALUE_WEIGHT: naive_weights(m, layer, head, s, want); return;
    case MEASURE_KEY_COSINE: naive_cosines(s, want); return;
    default:
        for (uint32_t j = 0; j < m->n; j++)
            want[j] = norm((kind == MEASURE_KEY_NORM ? s->k : s->v) + (size_t)j * dim, dim);
        return;
    }
    for (uint32_t row = m->n - spec->rows; row < m->n; row++)
        for (uint32_t h = 0; h < s->q_heads; h++) naive_row(s, &it, row, h, want, &scale);
}

/* The f32 forward pass differs from float64 by up to 1e-4 of the largest value. */
static void compare_array(const dense *m, const measure_result *r, uint32_t array,
                          measure_kind kind, const measure_spec *spec, const char *what)
{
    double *want = doubles(m->n);
    const float *got = r->values + (size_t)array * r->n_layers * r->n_kv_heads * r->stride;
    for (uint32_t l = 0; l < r->n_layers; l++)
        for (uint32_t h = 0; h < r->n_kv_heads; h++, got += r->stride) {
            double most = 0;
            naive_kind(m, l * spec->layer_step, h, kind, spec, want);
            for (uint32_t j = 0; j < m->n; j++) most = fmax(most, fabs(want[j]));
            for (uint32_t j = 0; j < m->n; j++)
                if (!(fabs(got[j] - want[j]) <= 1e-4 * most))
                    fail_msg("%s, array %u: layer %u of %u, head %u, slot %u is %.9g, want %.9g",
                             what, array, l, r->n_layers, h, j, got[j], want[j]);
        }
    free(want);
}

static void check_kinds(const pass *p, uint32_t position)
{
    static const uint32_t rows[] = {1, 16, 1000};
    driver d;
    driver_open(&d, p);
    dense m = dense_run(p, d.tokens, TOKENS, position);
    driver_close(&d);
    for (size_t i = 0; i < SPECS; i++) {
        uint32_t layer_step = 1 + i % 2;
        measure_spec spec = spec_of(i, rows[i % 3], layer_step);
        driver_open(&d, p);
        d.position = position;
        /* Expected queries: measured once, over all rows but the sinks. */
        uint32_t last = spec.kind == MEASURE_EXPECTED && position == 0 ? TOKENS : LAST;
        if (last < TOKENS) step(&d, TOKENS - last, nothing);
        const measure_result *r = step(&d, last, spec);
        if (spec.rows > last) spec.rows = last;
        assert_int_equal(r->n_layers, (m.config.n_layers - 1) / layer_step + 1);
        assert_int_equal(r->n_kv_heads, m.config.n_kv_heads);
        assert_int_equal(r->stride, TOKENS);
        assert_int_equal(r->q_heads, m.config.n_heads / m.config.n_kv_heads);
        compare_array(&m, r, 0, spec.kind, &spec, specs[i].name);
        if (spec.second) compare_array(&m, r, 1, spec.second, &spec, specs[i].name);
        driver_close(&d);
    }
    dense_free(&m);
}

static void every_kind_is_as_specified(void **state)
{
    (void)state;
    static const char *const dirs[] = {"gqa1_f32", "gqa8_bf16", "llama3_rope_f32",
                                       "linear_rope_f16"};
    check_kinds(&demo, 0);
    if (getenv("OCTAVO_TESTS_LIGHT")) return; /* other shapes, with the same threads */
    pass p = demo;
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", dirs[i]);
        p.dir = dir;
        p.page_tokens = i % 2 ? 32 : 16;
        check_kinds(&p, i % 2 ? 0 : 55);
    }
}

/* ---- running sums ---------------------------------------------------------------------------- */

static measure_spec sum_of(measure_kind kind, measure_sum sum)
{
    return (measure_spec){.kind = kind, .rows = 1000, .layer_step = 1, .by_slot = true, .sum = sum};
}

static size_t result_floats(const measure_result *m)
{
    return (size_t)m->n_layers * m->n_kv_heads * m->stride;
}

/* The sums over all rows of a prompt cut into steps of `chunk`. */
static float *prompt_sums(const pass *p, measure_kind kind, uint32_t chunk)
{
    driver d;
    float *out = NULL;
    driver_open(&d, p);
    while (d.done < TOKENS) {
        uint32_t n = TOKENS - d.done < chunk ? TOKENS - d.done : chunk;
        measure_spec spec = sum_of(kind, d.done ? MEASURE_SUM_ADD : MEASURE_SUM_START);
        spec.silent = d.done + n < TOKENS;
        const measure_result *r = step(&d, n, spec);
        assert_true(!r->values == spec.silent);
        if (spec.silent) continue;
        out = malloc(result_floats(r) * sizeof *out);
        memcpy(out, r->values, result_floats(r) * sizeof *out);
    }
    driver_close(&d);
    return out;
}

static void no_cut_of_a_prompt_changes_a_sum(void **state)
{
    (void)state;
    static const uint32_t cuts[][4] = {/* chunk, heads of a group, page, threads */
                                       {1, 1, 16, 2},
                                       {64, 2, 16, 1},
                                       {33, 4, 32, 2},
                                       {7, 1, 64, 2}};
    pass p = demo;
    p.chunk = TOKENS;
    size_t floats = (size_t)4 * 4 * TOKENS;
    for (uint32_t k = 0; k < (SLOW ? 1 : 2); k++) {
        measure_kind kind = k ? MEASURE_PROJECTION : MEASURE_MASS;
        float *whole = prompt_sums(&p, kind, TOKENS);
        double total = 0;
        for (size_t i = 0; i < floats; i++) total += whole[i];
        if (k == 0) assert_true(fabs(total - 4 * 8 * TOKENS) < 1e-2); /* layers x query heads */
        for (size_t i = SLOW; i < sizeof cuts / sizeof cuts[0]; i++) {
            pass other = p;
            other.heads_per_group = cuts[i][1];
            other.page_tokens = cuts[i][2];
            other.n_threads = cuts[i][3];
            float *cut = prompt_sums(&other, kind, cuts[i][0]);
            for (size_t j = 0; j < floats; j++)
                if (memcmp(&whole[j], &cut[j], sizeof *cut) != 0)
                    fail_msg("kind %u, cut %zu: value %zu is %.9g, not %.9g", kind, i, j, cut[j],
                             whole[j]);
            free(cut);
        }
        free(whole);
    }
}

/* A random selection: every group gives up slots of its own. */
static void keep_some(driver *d, uint64_t seed, uint32_t holes_of_hundred)
{
    const pkv_geometry *g = pkv_get_geometry(d->kv);
    rng r = rng_seed(seed);
    for (uint32_t group = 0; group < pkv_groups(g); group++) {
        uint64_t keep[TOKENS / 64 + 1] = {0};
        uint32_t n = pkv_seq_table(d->kv, 1, group).kept_tokens;
        for (uint32_t j = 0; j < n; j++)
            if (rng_below(&r, 100) >= holes_of_hundred || j + 1 == n)
                keep[j / 64] |= UINT64_C(1) << j % 64;
        assert_true(status_ok(pkv_seq_keep(d->kv, 1, group, keep, false)));
    }
}

/* Compares acc [layers, heads, TOKENS] of each token with the sum of its slot. */
static void compare_slots(const driver *d, const measure_result *r, const float *acc)
{
    const pkv_geometry *g = pkv_get_geometry(d->kv);
    for (uint32_t l = 0; l < r->n_layers; l++)
        for (uint32_t h = 0; h < r->n_kv_heads; h++) {
            size_t at = (size_t)l * r->n_kv_heads + h;
            uint32_t group = pkv_group_of(g, l, h);
            for (uint32_t j = 0; j < pkv_seq_table(d->kv, 1, group).kept_tokens; j++) {
                uint32_t token = pkv_seq_position(d->kv, 1, group, j);
                const float *got = &r->values[at * r->stride + j],
                            *want = &acc[at * TOKENS + token];
                if (memcmp(got, want, sizeof *got) != 0)
                    fail_msg("after %u tokens: layer %u head %u slot %u, token %u: %.9g, not %.9g",
                             d->done, l, h, j, token, *got, *want);
            }
        }
}

/* Adds the measures of a single row to its tokens' sums. */
static void add_values(const driver *d, const measure_result *r, float *acc)
{
    const pkv_geometry *g = pkv_get_geometry(d->kv);
    for (uint32_t l = 0; l < r->n_layers; l++)
        for (uint32_t h = 0; h < r->n_kv_heads; h++) {
            size_t at = (size_t)l * r->n_kv_heads + h;
            uint32_t group = pkv_group_of(g, l, h);
            for (uint32_t j = 0; j < pkv_seq_table(d->kv, 1, group).kept_tokens; j++)
                acc[at * TOKENS + pkv_seq_position(d->kv, 1, group, j)] +=
                    r->values[at * r->stride + j];
        }
}

/* Selections, copies on write and the host tier move the sums with their slots: `d` keeps sums,
 * `plain` measures the same rows one by one, and the test adds those up. */
static void follow_sums(const pass *p)
{
    driver d, plain;
    driver_open(&d, p);
    driver_open(&plain, p);
    size_t floats = (size_t)d.config.n_layers * d.config.n_kv_heads * TOKENS;
    float *acc = calloc(floats, sizeof *acc);
    measure_spec one = sum_of(MEASURE_MASS, MEASURE_SUM_STEP);
    step(&d, 50, sum_of(MEASURE_MASS, MEASURE_SUM_START));
    while (plain.done < 50) add_values(&plain, step(&plain, 1, one), acc);
    while (d.done < TOKENS) {
        uint32_t swap, done = d.done;
        if (done % 12 == 2 || done == 75) { /* a hole or two, then many */
            keep_some(&d, done, done == 75 ? 40 : 10);
            keep_some(&plain, done, done == 75 ? 40 : 10);
        }
        if (done == 60 || done == 83) { /* to the host tier and back */
            step(&d, 1, sum_of(MEASURE_MASS, MEASURE_SUM_ADD));
            add_values(&plain, step(&plain, 1, one), acc);
            assert_true(status_ok(pkv_seq_swap_out(d.kv, 1, &swap)));
            assert_true(status_ok(pkv_swap_in(d.kv, swap, 1, d.tokens, TOKENS)));
        }
        if (done == 66) { /* a fork shares the last page: the next token copies it */
            assert_true(status_ok(pkv_seq_fork(d.kv, 1, 0, TOKENS)));
        }
        const measure_result *r = step(&d, 1, sum_of(MEASURE_MASS, MEASURE_SUM_ADD));
        add_values(&plain, step(&plain, 1, one), acc);
        compare_slots(&d, r, acc);
    }
    driver_close(&d);
    driver_close(&plain);
    free(acc);
}

static void sums_go_where_their_slots_go(void **state)
{
    (void)state;
    pass p = demo; /* one tile in a page, then four */
    follow_sums(&p);
    p.layers_per_group = p.heads_per_group = 2;
    follow_sums(&p);
}

/* START sets every slot's sum to 0, ADD those of the share's own tokens, whatever the pages held
 * before. */
static void starts_forget(void **state)
{
    (void)state;
    driver d, fresh;
    uint32_t hit;
    driver_open(&d, &demo);
    driver_open(&fresh, &demo);
    step(&d, 64, sum_of(MEASURE_MASS, MEASURE_SUM_START));
    pkv_seq_close(d.kv, 1); /* the next sequence takes its pages, which hold sums */
    d.done = 0;
    assert_true(status_ok(pkv_seq_open(d.kv, 1, PKV_HEAD, d.tokens, 0, 0, TOKENS, &hit)));
    step(&fresh, 40, sum_of(MEASURE_MASS, MEASURE_SUM_START));
    step(&d, 40, sum_of(MEASURE_MASS, MEASURE_SUM_ADD)); /* all slots are its own */
    const measure_result *b = step(&fresh, 40, sum_of(MEASURE_MASS, MEASURE_SUM_ADD));
    const measure_result *a = step(&d, 40, sum_of(MEASURE_MASS, MEASURE_SUM_ADD));
    assert_memory_equal(a->values, b->values, result_floats(a) * sizeof(float));
    a = step(&d, 20, sum_of(MEASURE_MASS, MEASURE_SUM_START));
    b = step(&fresh, 20, sum_of(MEASURE_MASS, MEASURE_SUM_STEP));
    assert_memory_equal(a->values, b->values, result_floats(a) * sizeof(float));
    driver_close(&d);
    driver_close(&fresh);
}

/* ---- pages and slots ------------------------------------------------------------------------- */

/* The slots of a page add up to the page's mass, which attention returns. */
static void slots_add_up_to_pages(void **state)
{
    (void)state;
    driver d;
    float pages[4 * 4 * 7];
    measure_spec spec = {.kind = MEASURE_MASS, .rows = 20, .layer_step = 1};
    driver_open(&d, &demo);
    step(&d, 64, nothing);
    const measure_result *r = step(&d, 36, spec);
    assert_int_equal(r->stride, 7);
    assert_int_equal(r->q_heads, 2);
    memcpy(pages, r->values, sizeof pages);
    driver_close(&d);
    driver_open(&d, &demo);
    step(&d, 64, nothing);
    spec.by_slot = true;
    r = step(&d, 36, spec);
    for (size_t i = 0; i < 4 * 4; i++)
        for (uint32_t page = 0; page < 7; page++) {
            double sum = 0;
            for (uint32_t j = page * 16; j < TOKENS && j < page * 16 + 16; j++)
                sum += r->values[i * TOKENS + j];
            assert_true(fabs(sum - pages[i * 7 + page]) < 1e-5);
        }
    driver_close(&d);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The mass of the last row by page comes beside any other measure, the same as alone, and leaves
 * the other as it is. */
static void mass_comes_beside_another_measure(void **state)
{
    (void)state;
    enum { PAGES = 7, ALL = 4 * 4 * PAGES };
    for (size_t i = 0; i <= SPECS; i++) {
        driver d;
        bool running = i == SPECS;
        float alone[ALL], *own = NULL;
        measure_spec spec = spec_of(running ? 0 : i, 16, 1);
        if (running) {
            spec.second = MEASURE_NONE;
            spec.sum = MEASURE_SUM_START;
            spec.silent = true;
        }
        size_t arrays = running ? 0 : spec.second == MEASURE_NONE ? 1 : 2, floats = 0;
        for (int kind = 0; kind < 3; kind++) {
            measure_spec page = {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1};
            driver_open(&d, &demo);
            step(&d, TOKENS - LAST, nothing);
            spec.beside = kind == 2;
            const measure_result *r = step(&d, LAST, kind == 0 ? page : spec);
            if (kind == 0) memcpy(alone, r->values, sizeof alone);
            if (kind == 1 && arrays) {
                floats = arrays * result_floats(r);
                own = malloc(floats * sizeof *own);
                memcpy(own, r->values, floats * sizeof *own);
            }
            if (kind == 2) {
                assert_int_equal(r->stride, running ? PAGES : TOKENS);
                if (arrays) assert_memory_equal(r->values, own, floats * sizeof *own);
                for (size_t at = 0; at < ALL; at++)
                    assert_true(r->values[floats + at / PAGES * r->stride + at % PAGES] ==
                                alone[at]);
            }
            driver_close(&d);
        }
        free(own);
    }
}

static float *measured(const pass *p, measure_spec spec, bool running, size_t *floats)
{
    driver d;
    driver_open(&d, p);
    measure_spec before = spec;
    before.sum = MEASURE_SUM_START;
    before.silent = true;
    step(&d, TOKENS - LAST, running ? before : nothing);
    if (running) spec.sum = MEASURE_SUM_ADD;
    const measure_result *r = step(&d, LAST, spec);
    *floats = result_floats(r) * ((spec.second ? 2 : 1) + spec.beside);
    float *out = malloc(*floats * sizeof *out);
    memcpy(out, r->values, *floats * sizeof *out);
    for (size_t i = result_floats(r) * (*floats / result_floats(r) - spec.beside); i < *floats; i++)
        if (i % r->stride * 16 >= TOKENS) out[i] = 0; /* a table has fewer pages than slots */
    assert_int_equal(r->q_heads, d.config.n_heads / d.config.n_kv_heads);
    driver_close(&d);
    return out;
}

/* Every other spec is measured by 2 or by 4 ranks where passes are slow. */
static void ranks_measure_what_one_does(void **state)
{
    (void)state;
    for (size_t i = 0; i <= SPECS; i++) {
        bool running = i == SPECS;
        if (SLOW && i % 2 && !running) continue;
        measure_spec spec = spec_of(running ? 2 : i, 16, 1);
        spec.beside = i % 3 == 1; /* behind one array and behind two */
        pass p = demo;
        size_t floats, others;
        float *alone = measured(&p, spec, running, &floats);
        for (p.n_ranks = 2; p.n_ranks <= 8; p.n_ranks *= 2) { /* 8 ranks: each KV head twice */
            if (SLOW && p.n_ranks != 2u << i / 2 % 2) continue;
            float *ranks = measured(&p, spec, running, &others);
            assert_int_equal(floats, others);
            double e = nmse(ranks, alone, floats);
            if (!(e < 1e-9))
                fail_msg("%s, %u ranks: NMSE %.3e", specs[i % SPECS].name, p.n_ranks, e);
            free(ranks);
        }
        free(alone);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void impossible_measures_are_refused(void **state)
{
    (void)state;
    static const measure_spec bad[] = {
        {.kind = MEASURE_KINDS, .rows = 1, .layer_step = 1, .by_slot = true},
        {.kind = (measure_kind)-1, .rows = 1, .layer_step = 1, .by_slot = true},
        {.kind = MEASURE_MASS,
         .second = MEASURE_KINDS,
         .rows = 1,
         .layer_step = 1,
         .by_slot = true},
        {.kind = MEASURE_MASS, .second = MEASURE_RAW, .rows = 1, .layer_step = 1, .by_slot = true},
        {.kind = MEASURE_MASS, .rows = 0, .layer_step = 1, .by_slot = true},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 0, .by_slot = true},
        {.kind = MEASURE_EXPECTED, .rows = 0, .layer_step = 1, .by_slot = true},
        {.kind = MEASURE_KEY_NORM, .layer_step = 0, .by_slot = true},
        {.kind = MEASURE_KEY_NORM, .layer_step = 1},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .beside = true},
        {.kind = MEASURE_RAW, .rows = 1, .layer_step = 1},
        {.kind = MEASURE_MASS, .second = MEASURE_KEY_NORM, .rows = 1, .layer_step = 1},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .sum = MEASURE_SUM_START},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .silent = true, .by_slot = true},
        {.kind = MEASURE_RAW, .rows = 1, .layer_step = 1, .sum = MEASURE_SUM_ADD, .by_slot = true},
        {.kind = MEASURE_MASS,
         .rows = 1,
         .layer_step = 1,
         .sum = MEASURE_SUM_ADD + 1,
         .by_slot = true},
        {.kind = MEASURE_PROJECTION_POOLED, .rows = 1, .layer_step = 1, .by_slot = true},
        {.kind = MEASURE_MASS, .rows = 1, .layer_step = 1, .by_slot = true, .bias = 1},
        {.kind = MEASURE_PROJECTION, .rows = 1, .layer_step = 1, .by_slot = true, .theta = -1},
        {.kind = MEASURE_PROJECTION, .rows = 1, .layer_step = 1, .by_slot = true, .bias = NAN},
    };
    driver d;
    driver_open(&d, &demo);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const step_result *r = try_step(&d, 2, bad[i]);
        if (r->status.code != STATUS_INVALID) fail_msg("spec %zu: %d", i, (int)r->status.code);
    }
    step(&d, 5, spec_of(0, UINT32_MAX, UINT32_MAX)); /* the backend goes on */
    driver_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_as_specified),
        cmocka_unit_test(no_cut_of_a_prompt_changes_a_sum),
        cmocka_unit_test(sums_go_where_their_slots_go),
        cmocka_unit_test(starts_forget),
        cmocka_unit_test(slots_add_up_to_pages),
        cmocka_unit_test(mass_comes_beside_another_measure),
        cmocka_unit_test(ranks_measure_what_one_does),
        cmocka_unit_test(impossible_measures_are_refused),
    };
    return cmocka_run_group_tests_name("model_measures", tests, NULL, NULL);
}

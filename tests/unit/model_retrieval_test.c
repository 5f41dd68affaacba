/* Rows that read few blocks on the CPU backend: against a forward pass in float64, and bit by bit
 * between ways of running the same rows. */
#include "base/half.h"
#include "kernels/represent.h"
#include "tests/unit/model_dense.h"

enum { TOKENS = 203, PROMPT = 187 };

/* Dummy weights: 3 layers, 4 KV heads of 2 query heads. */
static const pass shape = {
    .dir = "tests/golden/models/gqa4_tied_f32",
    .override = "num_key_value_heads=4",
    .kv_type = KERN_KV_F32,
    .precision = KERN_PRECISION_HIGH,
    .page_tokens = 16,
    .layers_per_group = 1,
    .heads_per_group = 1,
    .chunk = TOKENS,
    .n_threads = 2,
    .n_prompt = PROMPT,
};

static const retrieval_spec spec = {.block_tokens = 16,
                                    .representative_num = 1,
                                    .group_heads = 1,
                                    .initial_tokens = 1,
                                    .local_tokens = 20,
                                    .top_blocks = 2,
                                    .observed_rows = 128,
                                    .layer_step = 1,
                                    .token_step = 1,
                                    .audit = 4};

static void get_tokens(const pass *p, uint32_t *tokens)
{
    error err;
    model_config config;
    assert_true(
        status_ok(model_config_load(p->dir, &p->override, p->override != NULL, &config, &err)));
    random_tokens(tokens, TOKENS, config.vocab_size);
}

static pass with(const retrieval_spec *s)
{
    pass p = shape;
    p.retrieval = *s;
    return p;
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static double product(const dense *m, const float *q, const float *k)
{
    double sum = 0;
    for (uint32_t d = 0; d < m->config.head_dim; d++) sum += (double)q[d] * (double)k[d];
    return sum;
}

/* x as bf16, not below it or not above it. */
static double round_up(double x)
{
    float near = bf16_to_f32(bf16_from_f32((float)x));
    return (double)near >= x ? (double)near : (double)near + ldexp(1, ilogb(x) - 7);
}

static double round_down(double x) { return -round_up(-x); }

/* The attention that a KV head's slots have from the prompt's last rows. It is computed once for a
 * pass, when it is first asked for. */
typedef struct observed {
    bool known;
    double mass[PROMPT];
} observed;

static observed seen_masses[16]; /* by layer and KV head */

static const double *masses(const dense *m, uint32_t layer, uint32_t kv_head)
{
    const sequence *of = &m->heads[dense_index(m, layer, kv_head)];
    observed *o = &seen_masses[dense_index(m, layer, kv_head)];
    uint32_t dim = m->config.head_dim;
    double a[PROMPT];
    uint32_t first = PROMPT - m->pass->retrieval.observed_rows;
    for (uint32_t row = first * of->q_heads; !o->known && row < PROMPT * of->q_heads; row++) {
        uint32_t t = row / of->q_heads;
        double sum = 0;
        for (uint32_t j = 0; j <= t; j++) {
            a[j] = exp(product(m, of->q + (size_t)row * dim, of->k + (size_t)j * dim) / sqrt(dim));
            sum += a[j];
        }
        for (uint32_t j = 0; j <= t; j++) o->mass[j] += a[j] / sum;
    }
    o->known = true;
    return o->mass;
}

/* Whether the slot is one of the representative_num of its block with the most mass. */
static bool is_chosen(const dense *m, const double *mass, uint32_t slot)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t better = 0;
    for (uint32_t j = 0; j < s->block_tokens; j++) better += mass[j] > mass[slot];
    return better < s->representative_num;
}

/* The score of one block for one query, by docs/retrieval.md. mass: of the block's slots; NULL
 * where its sum is that of all keys. */
static double score_block(const dense *m, const float *q, const float *keys, const double *mass)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t dim = m->config.head_dim, size = s->block_tokens, n = s->representative_num;
    bool sums = s->representative == RETRIEVAL_MEAN || s->representative == RETRIEVAL_DYNAMIC;
    double score = 0;
    for (uint32_t d = 0; d < dim; d++) {
        double largest = -INFINITY, smallest = INFINITY, sum = 0, x = (double)q[d];
        for (uint32_t i = 0; i < size; i++) {
            double k = (double)keys[(size_t)i * dim + d];
            largest = fmax(largest, k);
            smallest = fmin(smallest, k);
            if (sums && (!mass || is_chosen(m, mass, i))) sum += k;
        }
        for (uint32_t j = 0; s->representative == RETRIEVAL_FIX && j < n; j++)
            sum += (double)keys[(size_t)((2 * j + 1) * size / (2 * n)) * dim + d];
        largest = round_up(largest);
        smallest = s->representative == RETRIEVAL_MAX ? largest : round_down(smallest);
        if (sums || s->representative == RETRIEVAL_FIX)
            score += x * (double)bf16_to_f32(bf16_from_f32((float)sum));
        else score += fmax(x * largest, x * smallest);
    }
    return score;
}

static double score_of(const dense *m, uint32_t layer, uint32_t kv_head, uint32_t t, uint32_t block)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t together = s->heads == RETRIEVAL_SHARED ? m->config.n_kv_heads : s->group_heads;
    uint32_t first = kv_head / together * together, dim = m->config.head_dim;
    bool dynamic = s->representative == RETRIEVAL_DYNAMIC;
    bool is_late = (block + 1) * s->block_tokens > PROMPT;
    double sum = 0;
    for (uint32_t h = first; h < first + together; h++) {
        const sequence *of = &m->heads[dense_index(m, layer, h)];
        const float *keys = of->k + (size_t)block * s->block_tokens * dim;
        const double *mass =
            dynamic && !is_late ? masses(m, layer, h) + (size_t)block * s->block_tokens : NULL;
        for (uint32_t g = 0; g < of->q_heads; g++)
            sum += score_block(m, of->q + ((size_t)t * of->q_heads + g) * dim, keys, mass);
    }
    return dynamic && is_late ? sum * s->representative_num / s->block_tokens : sum;
}

/* The mass of a block and a quarter of one on each side, in the heads that select together. */
static double pooled(const dense *m, uint32_t layer, uint32_t kv_head, uint32_t block)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t together = s->heads == RETRIEVAL_SHARED ? m->config.n_kv_heads : s->group_heads;
    uint32_t size = s->block_tokens, from = block * size - size / 4, to = from + size + size / 2;
    double sum = 0;
    for (uint32_t h = kv_head / together * together, n = 0; n < together; n++)
        for (uint32_t j = from; j < to; j++) sum += masses(m, layer, h + n)[j];
    return sum;
}

/* Whether fewer than preselect_blocks of the prompt's candidates have more mass. */
static bool is_preselected(const dense *m, uint32_t layer, uint32_t kv_head, uint32_t block)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t local = (s->local_tokens + s->block_tokens - 1) / s->block_tokens;
    uint32_t end = PROMPT / s->block_tokens - local, better = 0;
    if (s->preselect_blocks == 0 || block >= end) return true;
    for (uint32_t b = 1; b < end; b++)
        better += pooled(m, layer, kv_head, b) > pooled(m, layer, kv_head, block);
    return better < s->preselect_blocks;
}

static void read_few(const dense *m, uint32_t layer, uint32_t kv_head, uint32_t t, bool *seen)
{
    const retrieval_spec *s = &m->pass->retrieval;
    if (t < m->pass->n_prompt) return;
    t -= (t - m->pass->n_prompt) % s->token_step;
    uint32_t size = s->block_tokens, full = (t + 1) / size;
    uint32_t first = (s->initial_tokens + size - 1) / size;
    uint32_t local = (s->local_tokens + size - 1) / size;
    if (layer < s->dense_layers || full < first + local + s->top_blocks) return;
    uint32_t end = full - local;
    layer -= (layer - s->dense_layers) % s->layer_step;
    double scores[TOKENS];
    for (uint32_t b = first; b < end; b++)
        scores[b] =
            is_preselected(m, layer, kv_head, b) ? score_of(m, layer, kv_head, t, b) : -INFINITY;
    memset(seen + (size_t)first * size, false, (size_t)(end - first) * size);
    for (uint32_t n = 0; n < s->top_blocks; n++) {
        uint32_t best = first;
        for (uint32_t b = first; b < end; b++)
            if (scores[b] > scores[best]) best = b;
        scores[best] = -INFINITY;
        memset(seen + (size_t)best * size, true, size);
    }
}

/* The reading of an audited row, by the float64 softmax over all of its keys. */
static retrieval_reading read_row(const dense *m, uint32_t t)
{
    const retrieval_spec *s = &m->pass->retrieval;
    uint32_t dim = m->config.head_dim, heads = m->config.n_kv_heads;
    uint32_t together = s->heads == RETRIEVAL_SHARED ? heads : s->group_heads;
    retrieval_reading r = {.context = t + 1, .least_recall = 1};
    for (uint32_t i = s->dense_layers * heads; i < m->config.n_layers * heads; i++) {
        bool seen[TOKENS], first = i % heads % together == 0;
        memset(seen, true, sizeof seen);
        read_few(m, i / heads, i % heads, t, seen);
        r.lists += first;
        r.selections += first && (i / heads - s->dense_layers) % s->layer_step == 0 &&
                        (t - PROMPT) % s->token_step == 0;
        for (uint32_t j = 0; j <= t && first; j++) {
            r.tokens += seen[j];
            r.blocks += seen[j] && j % s->block_tokens == 0;
        }
        const sequence *of = &m->heads[i];
        for (uint32_t g = 0; g < of->q_heads; g++) {
            double all = 0, read = 0;
            for (uint32_t j = 0; j <= t; j++) {
                const float *q = of->q + ((size_t)t * of->q_heads + g) * dim;
                double p = exp(product(m, q, of->k + (size_t)j * dim) / sqrt(dim));
                all += p;
                read += seen[j] ? p : 0;
            }
            r.audits++;
            r.recall_sum += read / all;
            r.least_recall = fmin(r.least_recall, read / all);
        }
    }
    return r;
}

static void check_readings(const dense *m, const retrieval_reading *got)
{
    uint32_t audited = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (t < PROMPT) {
            assert_int_equal(got[t].context, 0);
            continue;
        }
        bool is_audited = (t + 1) % m->pass->retrieval.audit == 0;
        retrieval_reading want = read_row(m, t);
        assert_int_equal(got[t].context, want.context);
        assert_int_equal(got[t].lists, want.lists);
        assert_int_equal(got[t].selections, want.selections);
        assert_int_equal(got[t].tokens, want.tokens);
        assert_int_equal(got[t].blocks, want.blocks);
        assert_int_equal(got[t].audits, is_audited ? want.audits : 0);
        if (!is_audited) continue;
        audited++;
        assert_true(want.least_recall < 0.9); /* of a row that reads everything it is 1 */
        assert_true(fabs(got[t].recall_sum - want.recall_sum) < 1e-4 * want.audits);
        assert_true(fabs(got[t].least_recall - want.least_recall) < 1e-4);
    }
    assert_true(audited > 2);
}

static void check_against_oracle(const retrieval_spec *s)
{
    uint32_t tokens[TOKENS];
    pass p = with(s);
    get_tokens(&p, tokens);
    pass_result got = run(&p, tokens, TOKENS);
    memset(seen_masses, 0, sizeof seen_masses);
    dense m = dense_run_reading(&p, tokens, TOKENS, 0, read_few);
    double *want = dense_logits(&m), errors = 0, sum = 0;
    for (size_t i = 0; i < (size_t)TOKENS * m.config.vocab_size; i++) {
        errors += pow((double)got.logits[i] - want[i], 2);
        sum += want[i] * want[i];
    }
    if (!(errors / sum < 1e-9)) fail_msg("NMSE %g", errors / sum);
    check_readings(&m, got.readings);
    free(want);
    dense_free(&m);
    result_free(&got);
}

static void rows_read_what_the_oracle_reads(void **state)
{
    (void)state;
    for (retrieval_representative r = RETRIEVAL_MEAN; r < RETRIEVAL_REPRESENTATIVES; r++) {
        retrieval_spec s = spec;
        s.representative = r;
        s.representative_num = r == RETRIEVAL_FIX ? 5 : r == RETRIEVAL_DYNAMIC ? 2 : 1;
        s.heads = (retrieval_heads)(r % RETRIEVAL_HEAD_MODES);
        s.group_heads = s.heads == RETRIEVAL_GROUP ? 2 : 1;
        if (!SLOW) check_against_oracle(&s);
        s.block_tokens = 32; /* two pages */
        s.dense_layers = 1;
        s.layer_step = 1 + r % 2;
        s.token_step = r == RETRIEVAL_DYNAMIC ? 1 : 2 + 3 * r;
        if (r != RETRIEVAL_MEAN) s.preselect_blocks = 3;
        s.observed_rows = r == RETRIEVAL_FIX ? 1 : 8 * r + 4;
        s.heads = (retrieval_heads)((r + 1) % RETRIEVAL_HEAD_MODES);
        s.group_heads = s.heads == RETRIEVAL_GROUP ? 2 : 1;
        check_against_oracle(&s);
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

static bool same_reading(const retrieval_reading *x, const retrieval_reading *y)
{
    return x->context == y->context && x->lists == y->lists && x->selections == y->selections &&
           x->tokens == y->tokens && x->blocks == y->blocks && x->audits == y->audits &&
           x->recall_sum == y->recall_sum && x->least_recall == y->least_recall &&
           x->exams == y->exams && x->failed == y->failed && x->most_missed == y->most_missed;
}

static void assert_same_bits(const pass *a, const pass *b, bool same)
{
    uint32_t tokens[TOKENS];
    get_tokens(a, tokens);
    pass_result x = run(a, tokens, TOKENS), y = run(b, tokens, TOKENS);
    size_t bytes = (size_t)TOKENS * x.config.vocab_size * sizeof(float);
    assert_int_equal(memcmp(x.logits, y.logits, bytes) == 0, same);
    if (same && a->retrieval.audit == b->retrieval.audit)
        for (uint32_t i = 0; i < TOKENS; i++)
            assert_true(same_reading(&x.readings[i], &y.readings[i]));
    result_free(&x);
    result_free(&y);
}

static const kern_kv_format formats[] = {KERN_KV_F32, KERN_KV_BF16, KERN_KV_INT8, KERN_KV_INT4};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static pass of_format(kern_kv_format format, const retrieval_spec *s)
{
    pass p = with(s);
    p.kv_type = format;
    p.precision = KERN_PRECISION_STANDARD;
    if (format == KERN_KV_INT4) p.page_tokens = 32;
    p.retrieval.block_tokens = 32;
    return p;
}

static void all_blocks_are_full_attention(void **state)
{
    (void)state;
    const retrieval_spec nothing = {0};
    for (size_t f = 0; f < FORMATS; f++) {
        pass few = of_format(formats[f], &spec), full = few;
        few.retrieval.top_blocks = 1;
        full.retrieval = nothing;
        assert_same_bits(&few, &full, false);
        few.retrieval.top_blocks = 4; /* of 7 blocks 1 is initial, 1 local, 1 not full */
        few.kv_residual = full.kv_residual = formats[f] == KERN_KV_INT4 ? 96 : 0;
        assert_same_bits(&few, &full, true);
        few.retrieval.top_blocks = 1;
        few.retrieval.dense_layers = 2;
        full.retrieval = few.retrieval;
        full.retrieval.dense_layers = 1;
        assert_same_bits(&few, &full, false);
    }
}

/* Generated tokens are computed one by one, and many at once when they are computed again. */
static void bits_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) {
        pass whole = of_format(formats[f], &spec);
        whole.retrieval.top_blocks = 1;
        whole.retrieval.representative = (retrieval_representative)f;
        whole.retrieval.representative_num = f == RETRIEVAL_FIX ? 3 : 1;
        whole.retrieval.heads = (retrieval_heads)(f % 2);
        whole.retrieval.layer_step = 1 + (f & 1);
        whole.retrieval.token_step = 1 + 2 * (uint32_t)f;
        whole.kv_residual = formats[f] == KERN_KV_INT4 ? 64 : 0;
        pass cut = whole;
        cut.chunk = 37;
        cut.n_threads = 1;
        assert_same_bits(&whole, &cut, true);
        cut.chunk = 3;
        if (!SLOW) assert_same_bits(&whole, &cut, true);
        cut.chunk = 1;
        if (!SLOW) assert_same_bits(&whole, &cut, true);
    }
}

/* Prompts are measured once all their rows are there, however many steps that took. */
static void bits_do_not_depend_on_the_cut_of_what_is_measured(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) {
        pass whole = of_format(formats[f], &spec);
        whole.retrieval.top_blocks = 1;
        whole.retrieval.preselect_blocks = 2;
        whole.retrieval.representative = f % 2 ? RETRIEVAL_DYNAMIC : RETRIEVAL_QUEST;
        whole.retrieval.representative_num = f % 2 ? 3 : 1;
        whole.retrieval.heads = (retrieval_heads)(f % 2);
        whole.retrieval.layer_step = 1 + (f & 1);
        whole.retrieval.token_step = 1 + 2 * (uint32_t)f;
        whole.kv_residual = formats[f] == KERN_KV_INT4 ? 64 : 0;
        pass cut = whole;
        cut.chunk = 130;
        cut.n_threads = 1;
        assert_same_bits(&whole, &cut, true);
        cut.retrieval.preselect_blocks = 0;
        assert_same_bits(&whole, &cut, false);
        if (f % 2 == 0) continue;
        cut = whole;
        cut.retrieval.representative = RETRIEVAL_FIX;
        assert_same_bits(&whole, &cut, false);
    }
}

static void audits_change_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) {
        pass few = of_format(formats[f], &spec), audited = few;
        few.retrieval.audit = 0;
        audited.retrieval.audit = 1;
        few.kv_residual = audited.kv_residual = formats[f] == KERN_KV_INT4 ? 64 : 0;
        assert_same_bits(&few, &audited, true);
    }
}

/* Each row is checked: the worst of one row says nothing about another. */
static void exams_bound_what_each_row_misses(void **state)
{
    (void)state;
    static const float shares[] = {0.02f, 0.3f, 0.9f, 0.999f};
    bool reads_few = false;
    for (uint32_t i = 0; i < FORMATS * 4; i++) {
        pass p = of_format(formats[i % FORMATS], &spec);
        p.retrieval.representative = RETRIEVAL_QUEST;
        p.retrieval.heads = i & 1 ? RETRIEVAL_SEPARATE : RETRIEVAL_SHARED;
        p.retrieval.top_blocks = i & 2 ? 1000 : 1;
        p.retrieval.audit = 1;
        p.retrieval.epsilon = shares[i / FORMATS];
        uint32_t tokens[TOKENS];
        get_tokens(&p, tokens);
        pass_result got = run(&p, tokens, TOKENS);
        for (uint32_t t = PROMPT; t < TOKENS; t++) {
            const retrieval_reading *r = &got.readings[t];
            assert_true(r->exams > 0 && r->audits > 0);
            assert_true(1 - r->least_recall <= r->most_missed * (1 + 1e-4) + 1e-9);
            assert_true((r->failed > 0) == (r->most_missed > (double)p.retrieval.epsilon));
            reads_few = reads_few || r->tokens < (uint64_t)r->lists * r->context;
        }
        result_free(&got);
    }
    assert_true(reads_few);
}

/* Layers with a sliding window read their window: they neither select nor count. */
static void windows_are_read_as_they_are(void **state)
{
    (void)state;
    const retrieval_spec nothing = {0};
    pass few = of_format(KERN_KV_BF16, &spec);
    few.dir = "tests/golden/models/gemma3_f32";
    few.override = NULL;
    few.retrieval.top_blocks = 1;
    few.retrieval.layer_step = 2;
    pass cut = few, full = few;
    cut.chunk = 29;
    assert_same_bits(&few, &cut, true);
    full.retrieval = nothing;
    assert_same_bits(&few, &full, false);
    few.retrieval.top_blocks = 4;
    assert_same_bits(&few, &full, true);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ranks count what one rank counts, each list and each recall once. */
static void expect_near_readings(const retrieval_reading *want, const retrieval_reading *got)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        const retrieval_reading *x = &want[t], *y = &got[t];
        assert_int_equal(x->context, y->context);
        assert_int_equal(x->lists, y->lists);
        assert_int_equal(x->selections, y->selections);
        assert_int_equal(x->tokens, y->tokens);
        assert_int_equal(x->blocks, y->blocks);
        assert_int_equal(x->audits, y->audits);
        assert_int_equal(x->exams, y->exams);
        assert_int_equal(x->failed, y->failed);
        assert_true(fabs(x->recall_sum - y->recall_sum) <= 1e-4 * x->audits);
        assert_true(fabs(x->least_recall - y->least_recall) < 1e-4);
        assert_true(fabs(x->most_missed - y->most_missed) < 1e-4);
    }
}

/* 4 KV heads of 2 query heads, on 2 and 4 ranks, and on 8 with each KV head twice. A block that is
 * not the one that a single rank selects would show: errors of f32 sums are far smaller. */
static void expect_near_one_rank(pass p)
{
    const retrieval_spec nothing = {0};
    uint32_t tokens[TOKENS];
    get_tokens(&p, tokens);
    pass_result alone = run(&p, tokens, TOKENS);
    size_t n = (size_t)TOKENS * alone.config.vocab_size;
    for (p.n_ranks = 2; p.n_ranks <= 8; p.n_ranks *= 2) {
        pass_result ranks = run(&p, tokens, TOKENS);
        double e = nmse(ranks.logits, alone.logits, n);
        if (!(e < 1e-9)) fail_msg("%u ranks: NMSE %g", p.n_ranks, e);
        expect_near_readings(alone.readings, ranks.readings);
        result_free(&ranks);
    }
    p.n_ranks = 2;
    p.retrieval = nothing;
    pass_result full = run(&p, tokens, TOKENS);
    assert_true(nmse(full.logits, alone.logits, n) > 1e-6);
    result_free(&full);
    result_free(&alone);
}

static pass demo_with(const retrieval_spec *s)
{
    pass p = with(s);
    p.dir = "models/demo";
    p.override = NULL;
    return p;
}

static void ranks_read_what_one_reads(void **state)
{
    (void)state;
    for (retrieval_representative r = RETRIEVAL_MEAN; r < RETRIEVAL_REPRESENTATIVES; r++) {
        retrieval_spec s = spec;
        if (SLOW && r != RETRIEVAL_MAX) continue;
        s.representative = r;
        s.representative_num = r == RETRIEVAL_FIX ? 3 : r == RETRIEVAL_DYNAMIC ? 2 : 1;
        s.heads = (retrieval_heads)((r + 2) % RETRIEVAL_HEAD_MODES);
        s.group_heads = s.heads == RETRIEVAL_GROUP ? 2 : 1;
        s.block_tokens = r == RETRIEVAL_MAX ? 32 : 16;
        s.layer_step = r == RETRIEVAL_QUEST ? 2 : 1;
        expect_near_one_rank(demo_with(&s));
    }
}

/* The masses of all heads decide which blocks are left out, and which keys stand for a block. */
static void ranks_preselect_what_one_does(void **state)
{
    (void)state;
    for (retrieval_heads heads = RETRIEVAL_SHARED; heads < RETRIEVAL_HEAD_MODES; heads++) {
        retrieval_spec s = spec;
        if (SLOW && heads != RETRIEVAL_SHARED) continue;
        s.heads = heads;
        s.group_heads = heads == RETRIEVAL_GROUP ? 2 : 1;
        s.top_blocks = 1;
        s.preselect_blocks = 3;
        s.representative = heads == RETRIEVAL_SEPARATE ? RETRIEVAL_MEAN : RETRIEVAL_DYNAMIC;
        s.representative_num = heads == RETRIEVAL_SEPARATE ? 1 : 3;
        s.token_step = 1 + heads;
        expect_near_one_rank(demo_with(&s));
    }
}

/* The bounds and sums of all heads decide how many blocks are read. */
static void ranks_examine_what_one_does(void **state)
{
    (void)state;
    for (retrieval_heads heads = RETRIEVAL_SHARED; heads < RETRIEVAL_HEAD_MODES; heads++) {
        retrieval_spec s = spec;
        if (SLOW && heads != RETRIEVAL_SHARED) continue;
        s.heads = heads;
        s.group_heads = heads == RETRIEVAL_GROUP ? 2 : 1;
        s.representative = RETRIEVAL_QUEST;
        s.top_blocks = heads == RETRIEVAL_GROUP ? 3 : 1000;
        s.epsilon = 0.99f;
        pass p = with(&s); /* dummy weights attend to many blocks alike */
        p.dir = "tests/golden/models/qwen3_layers_bf16";
        expect_near_one_rank(p);
    }
}

/* Bits of ranks, whatever the cut of the work and of the pages. */
static void ranks_read_the_same_whatever_the_cut(void **state)
{
    (void)state;
    pass whole = of_format(KERN_KV_INT8, &spec);
    whole.dir = "models/demo";
    whole.override = NULL;
    whole.n_ranks = 4;
    whole.retrieval.top_blocks = 1;
    pass cut = whole;
    cut.chunk = 37;
    cut.layers_per_group = 2;
    cut.heads_per_group = 0;
    assert_same_bits(&whole, &cut, true);
    if (SLOW) return;
    whole.retrieval.heads = cut.retrieval.heads = RETRIEVAL_SEPARATE;
    whole.n_ranks = cut.n_ranks = 8;
    assert_same_bits(&whole, &cut, true);
    whole.retrieval.heads = RETRIEVAL_SHARED;
    whole.retrieval.representative = RETRIEVAL_DYNAMIC;
    whole.retrieval.preselect_blocks = 2;
    cut.retrieval = whole.retrieval;
    cut.chunk = 130; /* the rows that are measured are in one step */
    assert_same_bits(&whole, &cut, true);
    whole.retrieval.representative = RETRIEVAL_QUEST;
    whole.retrieval.preselect_blocks = 0;
    whole.retrieval.epsilon = 0.3f;
    whole.retrieval.top_blocks = 1000;
    cut.retrieval = whole.retrieval;
    cut.n_threads = 16;
    assert_same_bits(&whole, &cut, true);
}

/* The call of kern_represent that finds no memory, 1 = the next; 0: none does. */
static unsigned fails_at;

status __real_kern_represent(kern_context *kc, const kern_represent_batch *batch);
status __wrap_kern_represent(kern_context *kc, const kern_represent_batch *batch);
status __wrap_kern_represent(kern_context *kc, const kern_represent_batch *batch)
{
    if (fails_at > 0 && --fails_at == 0) return status_make(STATUS_NO_MEMORY, "test");
    return __real_kern_represent(kc, batch);
}

/* Pages outlive the step that failed: those of the prompt may be the prefix cache's. */
static void a_failure_leaves_no_marks(void **state)
{
    (void)state;
    pass whole = of_format(KERN_KV_BF16, &spec);
    whole.retrieval.top_blocks = 1;
    whole.chunk = PROMPT;
    whole.repeats = true;
    uint32_t tokens[TOKENS];
    get_tokens(&whole, tokens);
    pass_result want = run(&whole, tokens, TOKENS);
    for (unsigned call = 1; call <= 3; call++) { /* each layer's first */
        fails_at = call;
        pass_result got = run(&whole, tokens, TOKENS);
        assert_int_equal(fails_at, 0);
        assert_memory_equal(got.logits, want.logits,
                            (size_t)TOKENS * want.config.vocab_size * sizeof(float));
        result_free(&got);
    }
    result_free(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_read_what_the_oracle_reads),
        cmocka_unit_test(all_blocks_are_full_attention),
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(bits_do_not_depend_on_the_cut_of_what_is_measured),
        cmocka_unit_test(audits_change_nothing),
        cmocka_unit_test(exams_bound_what_each_row_misses),
        cmocka_unit_test(windows_are_read_as_they_are),
        cmocka_unit_test(ranks_read_what_one_reads),
        cmocka_unit_test(ranks_preselect_what_one_does),
        cmocka_unit_test(ranks_examine_what_one_does),
        cmocka_unit_test(ranks_read_the_same_whatever_the_cut),
        cmocka_unit_test(a_failure_leaves_no_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

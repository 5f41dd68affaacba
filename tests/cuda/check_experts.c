/* Experts: routing, products by tiles, and sums. */
#include "tests/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 64, MOST_OF_ROW = 16, NAN_OF_X = 5, NAN_OF_ROUTE = 6, LONE_ROW = 3 };

/* skewed: the first expert has all rows, the second one LONE_ROW alone, the last one none; a NaN is
 * in a row of x and in the logits of another row. narrow: products may be of e4m3 by e4m3. */
typedef struct sparse {
    size_t rows, hidden, ffn, n_experts, of_row;
    check_form form;
    bool norm, shared, skewed, narrow;
} sparse;

/* The layer on the device, and what the host knows of it. */
typedef struct layer {
    const sparse *s;
    weights *ups, *downs;
    float *logits, *x, *switches, *out; /* out: the shared expert's result before the call */
    gpu_experts e;
} layer;

/* The row's experts as model/cpu/experts.c picks them: ascending, with their weights. */
static void route(const float *logits, const sparse *s, uint32_t *chosen, float *shares)
{
    float p[MOST_EXPERTS], max = -INFINITY, sum = 0.0f, of_chosen = 0.0f;
    bool taken[MOST_EXPERTS] = {false};
    for (size_t i = 0; i < s->n_experts; i++) max = fmaxf(max, logits[i]);
    for (size_t i = 0; i < s->n_experts; i++) sum += p[i] = expf(logits[i] - max);
    for (size_t k = 0; k < s->of_row; k++) {
        size_t best = s->n_experts;
        for (size_t i = 0; i < s->n_experts; i++)
            if (!taken[i] && (best == s->n_experts || p[i] > p[best])) best = i;
        taken[best] = true;
    }
    for (size_t i = 0, k = 0; i < s->n_experts; i++) {
        if (!taken[i]) continue;
        chosen[k] = (uint32_t)i;
        of_chosen += shares[k++] = p[i] / sum;
    }
    for (size_t k = 0; s->norm && k < s->of_row; k++) shares[k] /= of_chosen;
}

/* Whether products with w, all of a layer's, are of e4m3 by e4m3. */
static bool is_narrow(const check *c, const sparse *s, const gpu_matrix *w)
{
    enum { FEW = 128, FEW_OF_EXPERT = 16 };
    bool many = s->rows > FEW && s->rows * s->of_row > FEW_OF_EXPERT * s->n_experts;
    bool fits = w->n % 16 == 0 && w->k % 16 == 0 && (w->group == 0 || w->group == 128);
    return s->narrow && c->compute == 90 && s->form.is_float && many && fits;
}

/* The expected result of one row: products, gates and sums of its experts, rounded as operands
 * are. */
static void row_due(const check *c, const layer *l, size_t row, float *due)
{
    const sparse *s = l->s;
    float *wide = check_memory(2 * s->ffn, 4), *act = check_memory(s->ffn, 4);
    float *part = check_memory(s->hidden, 4), *x = check_memory(s->hidden, 4);
    float shares[MOST_OF_ROW];
    uint32_t chosen[MOST_OF_ROW];
    void *raw = check_memory(2 * s->ffn, 4);
    gpu_type type = l->e.gate_up.type;
    float of_shared = 1.0f / (1.0f + expf(-l->switches[row]));
    for (size_t i = 0; i < s->hidden; i++)
        due[i] = s->shared ? l->out[row * s->hidden + i] * of_shared : 0.0f;
    memcpy(x, l->x + row * s->hidden, s->hidden * sizeof *x);
    if (is_narrow(c, s, &l->e.gate_up)) check_round_rows(x, 1, s->hidden, l->e.gate_up.group);
    route(l->logits + row * s->n_experts, s, chosen, shares);
    for (size_t k = 0; k < s->of_row; k++) {
        check_product_due(&l->ups[chosen[k]], x, 1, wide);
        check_narrow(wide, 2 * s->ffn, type, raw);
        check_widen(raw, 2 * s->ffn, type, wide);
        for (size_t i = 0; i < s->ffn; i++)
            act[i] = wide[i] / (1.0f + expf(-wide[i])) * wide[s->ffn + i];
        check_narrow(act, s->ffn, type, raw);
        check_widen(raw, s->ffn, type, act);
        if (is_narrow(c, s, &l->e.down)) check_round_rows(act, 1, s->ffn, l->e.down.group);
        check_product_due(&l->downs[chosen[k]], act, 1, part);
        for (size_t i = 0; i < s->hidden; i++) due[i] += shares[k] * part[i];
    }
    free(wide), free(act), free(part), free(raw), free(x);
}

static gpu_matrix many(check *c, size_t n, size_t k, const sparse *s)
{
    gpu_matrix w = check_matrix(n, k, s->form);
    w.data = check_device(c, NULL, s->n_experts * gpu_matrix_bytes(&w));
    if (w.bits) w.scales = check_device(c, NULL, s->n_experts * gpu_scale_bytes(&w));
    return w;
}

static gpu_matrix nth(const gpu_matrix *w, size_t i)
{
    gpu_matrix one = *w;
    one.data = (uint8_t *)w->data + i * gpu_matrix_bytes(w);
    if (w->bits) one.scales = (uint8_t *)w->scales + i * gpu_scale_bytes(w);
    return one;
}

/* Whether the experts' rows are so many that weights become 16-bit operands. */
static bool is_many(const sparse *s)
{
    enum { FEW_OF_EXPERT = 16 };
    return s->rows * s->of_row > FEW_OF_EXPERT * s->n_experts || s->hidden % 8 || s->ffn % 8;
}

/* Makes an expert's matrix. */
static weights make_weights(check *c, const sparse *s, const gpu_matrix *all, size_t i)
{
    gpu_matrix one = nth(all, i);
    weights w = check_weights(c, all->n, all->k, s->form, &one);
    void *raw = check_memory(all->n * all->k, 4);
    if (s->form.bits && is_many(s) && !is_narrow(c, s, all)) {
        check_narrow(w.values, all->n * all->k, all->type, raw);
        check_widen(raw, all->n * all->k, all->type, w.values);
    }
    free(raw);
    return w;
}

static void fill_logits(check *c, const sparse *s, float *logits)
{
    size_t n = s->n_experts;
    check_fill(c, logits, s->rows * n);
    for (size_t i = 0; i < n; i++) logits[i] = (float)(i / 3); /* ties */
    for (size_t r = 0; s->skewed && r < s->rows; r++) {
        logits[r * n] = 30.0f;
        logits[r * n + 1] = r == LONE_ROW ? 20.0f : -20.0f;
        logits[r * n + n - 1] = -30.0f;
    }
}

static layer make_layer(check *c, const sparse *s)
{
    size_t n = s->rows * s->hidden, entries = s->rows * s->of_row;
    layer l = {.s = s,
               .ups = check_memory(s->n_experts, sizeof *l.ups),
               .downs = check_memory(s->n_experts, sizeof *l.downs),
               .logits = check_memory(s->rows * s->n_experts, 4),
               .x = check_memory(n, 4),
               .switches = check_memory(s->rows, 4),
               .out = check_memory(n, 4)};
    gpu_matrix up = many(c, 2 * s->ffn, s->hidden, s), down = many(c, s->hidden, s->ffn, s);
    size_t element = gpu_type_bytes(up.type);
    for (size_t i = 0; i < s->n_experts; i++) {
        l.ups[i] = make_weights(c, s, &up, i);
        l.downs[i] = make_weights(c, s, &down, i);
    }
    fill_logits(c, s, l.logits);
    check_fill(c, l.x, n);
    check_fill(c, l.switches, s->rows);
    check_fill(c, l.out, n);
    if (s->skewed) {
        l.x[NAN_OF_X * s->hidden + s->hidden - 1] = NAN;
        for (size_t i = 0; i < s->n_experts; i++) l.logits[NAN_OF_ROUTE * s->n_experts + i] = NAN;
    }
    void *raw = check_memory(n, element);
    check_narrow(l.x, n, up.type, raw);
    check_widen(raw, n, up.type, l.x);
    l.e = (gpu_experts){
        .logits = check_device(c, l.logits, s->rows * s->n_experts * 4),
        .n_rows = (uint32_t)s->rows,
        .n_experts = (uint32_t)s->n_experts,
        .of_row = (uint32_t)s->of_row,
        .norm = s->norm,
        .gate_up = up,
        .down = down,
        .x = check_device(c, raw, n * element),
        .switches = s->shared ? check_device(c, l.switches, s->rows * 4) : NULL,
        .out = check_device(c, l.out, n * 4),
        .wide = check_output(c, entries * 2 * s->ffn * element),
        .act = check_output(c, entries * s->ffn * element),
        .part = check_output(c, entries * s->hidden * 4),
        .words = check_output(c, gpu_expert_words(s->rows, s->of_row, s->n_experts) * 4)};
    free(raw);
    return l;
}

static void forget_layer(check *c, layer *l)
{
    const gpu_experts *e = &l->e;
    void *const device[] = {e->gate_up.data,
                            e->gate_up.scales,
                            e->down.data,
                            e->down.scales,
                            (void *)(uintptr_t)e->logits,
                            (void *)(uintptr_t)e->x,
                            (void *)(uintptr_t)e->switches,
                            e->out,
                            e->wide,
                            e->act,
                            e->part,
                            e->words};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) c->api->release(c->g, device[i]);
    for (size_t i = 0; i < l->s->n_experts; i++) {
        check_forget_weights(c, &l->ups[i], false);
        check_forget_weights(c, &l->downs[i], false);
    }
    free(l->ups), free(l->downs), free(l->logits), free(l->x), free(l->switches), free(l->out);
}

static void name_case(char out[96], const sparse *s, const char *what)
{
    static const char *const types[] = {
        [DTYPE_F32] = "f32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "f16"};
    char bits[24] = "";
    if (s->form.is_float) snprintf(bits, sizeof bits, " e4m3 by %u", s->form.group);
    else if (s->form.bits) snprintf(bits, sizeof bits, " int%u by %u", s->form.bits, s->form.group);
    snprintf(out, 96, "%s%zu of %zu experts, %zu rows, %zu, %zu %s%s%s", what, s->of_row,
             s->n_experts, s->rows, s->hidden, s->ffn, types[s->form.type], bits,
             s->narrow ? ", e4m3 x" : "");
}

/* Rows of a NaN must be NaN in every element; they become 1 in both, or 0. */
static void judge_nan(const sparse *s, float *due, float *got)
{
    for (size_t r = NAN_OF_X; r <= NAN_OF_ROUTE; r++)
        for (size_t i = r * s->hidden; i < (r + 1) * s->hidden; i++) {
            got[i] = isnan(got[i]) ? 1.0f : 0.0f;
            due[i] = 1.0f;
        }
}

static void check_layer(check *c, const sparse *s)
{
    static const double limits[] = {[DTYPE_F32] = 1e-10, [DTYPE_BF16] = 1e-7, [DTYPE_F16] = 1e-7};
    size_t n = s->rows * s->hidden;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    char name[96];
    layer l = make_layer(c, s);
    for (size_t r = 0; r < s->rows; r++) row_due(c, &l, r, due + r * s->hidden);
    c->api->set_narrow(c->g, s->narrow);
    check_ok(c, c->api->experts(c->g, &l.e));
    c->api->set_narrow(c->g, false);
    check_fetch(c, got, l.e.out, n * 4);
    if (s->skewed) judge_nan(s, due, got);
    name_case(name, s, "");
    /* An operand of down that is rounded to the other side is so to e4m3, too. */
    check_row(c, name, due, got, n, s->narrow ? 2e-6 : limits[s->form.type]);
    forget_layer(c, &l);
    free(due), free(got);
}

/* In batch-invariant mode a row has the same bits among few rows and among many. */
static void check_alone(check *c, const sparse *s)
{
    enum { FEW = 7 };
    size_t n = s->rows * s->hidden;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    char name[96];
    layer l = make_layer(c, s);
    c->api->set_invariant(c->g, true);
    check_ok(c, c->api->experts(c->g, &l.e));
    check_fetch(c, due, l.e.out, n * 4);
    l.e.n_rows = FEW;
    check_ok(c, c->api->experts(c->g, &l.e));
    check_fetch(c, got, l.e.out, n * 4);
    c->api->set_invariant(c->g, false);
    name_case(name, s, "invariant: ");
    check_row(c, name, due, got, FEW * s->hidden, 0.0);
    forget_layer(c, &l);
    free(due), free(got);
}

/* In batch-invariant mode x keeps its 16 bits. */
static void check_wide_alone(check *c, const sparse *s)
{
    size_t n = s->rows * s->hidden;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    char name[96];
    layer l = make_layer(c, s);
    c->api->set_invariant(c->g, true);
    for (int narrow = 0; narrow < 2; narrow++) {
        c->api->set_narrow(c->g, narrow);
        check_ok(c, c->api->experts(c->g, &l.e));
        check_fetch(c, narrow ? got : due, l.e.out, n * 4);
    }
    c->api->set_narrow(c->g, false);
    c->api->set_invariant(c->g, false);
    name_case(name, s, "invariant: ");
    check_row(c, name, due, got, n, 0.0);
    forget_layer(c, &l);
    free(due), free(got);
}

/* Beyond another number of rows weights become operands, which rounds them. */
static void check_few(check *c)
{
    const sparse s = {30, 64, 32, 8, 4, {DTYPE_BF16, 4, 32, false}, true, false, false, false};
    const gpu_few usual = {GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, GPU_FEW_OF_EXPERT, GPU_STAGED_ROWS},
                  none = {GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, 1, GPU_STAGED_ROWS};
    size_t n = s.rows * s.hidden;
    float *due = check_memory(n, 4), *got = check_memory(n, 4);
    layer l = make_layer(c, &s);
    check_ok(c, c->api->experts(c->g, &l.e));
    check_fetch(c, due, l.e.out, n * 4);
    c->api->set_few(c->g, &none);
    check_ok(c, c->api->experts(c->g, &l.e));
    c->api->set_few(c->g, &usual);
    check_fetch(c, got, l.e.out, n * 4);
    float differs = memcmp(due, got, n * 4) != 0;
    check_row(c, "few rows of experts by the other kernel", due, got, n, 1e-4);
    check_row(c, "  which rounds in another way", &(float){1.0f}, &differs, 1, 0.0);
    forget_layer(c, &l);
    free(due), free(got);
}

/* Products of e4m3 by e4m3, and those beside them that stay in 16 bits. */
static void check_narrow_experts(check *c)
{
    static const check_form by_group = {DTYPE_BF16, 8, 128, true}, by_row = {DTYPE_F16, 8, 0, true};
    const sparse layers[] = {
        /* Seven stages of columns, of which the last one has 16 columns and padding. */
        {150, 784, 48, 4, 2, by_group, true, true, true, true},
        {130, 784, 336, 4, 2, by_row, true, false, true, true},
        /* An even number of stages, in tiles of more than 64 rows and of fewer. */
        {160, 160, 176, 3, 2, {DTYPE_F16, 8, 128, true}, true, false, false, true},
        {161, 240, 32, 40, 4, {DTYPE_BF16, 8, 0, true}, false, false, false, true},
        {160, 240, 32, 40, 4, {DTYPE_BF16, 8, 0, true}, false, false, false, true}, /* too few */
        {128, 144, 48, 4, 2, by_group, true, false, false, true},                   /* likewise */
        {129, 144, 40, 4, 2, by_group, true, false, false, true}, /* gate and up alone */
        {129, 144, 48, 4, 2, {DTYPE_BF16, 8, 64, true}, true, false, false, true}, /* neither */
        {900, 1040, 528, 6, 2, by_group, true, false, true, true}, /* on a GPU alone */
    };
    size_t n = sizeof layers / sizeof *layers - c->small;
    for (size_t i = 0; i < n; i++) check_layer(c, &layers[i]);
    check_wide_alone(c, &layers[2]);
}

void check_experts(check *c)
{
    static const check_form bf16 = {DTYPE_BF16, 0, 0, false}, f16 = {DTYPE_F16, 0, 0, false},
                            f32 = {DTYPE_F32, 0, 0, false}, int4 = {DTYPE_BF16, 4, 32, false};
    const sparse layers[] = {
        /* Few rows of an expert. */
        {5, 64, 48, 8, 2, bf16, true, true, false, false},
        {1, 64, 32, 40, 8, f16, false, false, false, false},
        {30, 64, 32, 8, 4, int4, true, false, false, false},
        {9, 96, 32, 8, 2, {DTYPE_BF16, 8, 32, false}, false, true, true, false},
        {9, 96, 40, 8, 2, {DTYPE_BF16, 8, 64, true}, false, true, false, false},
        /* Many. The last tiles of experts have few rows, and the sides are no multiples of a
         * block's; 22 tiles are two bands. */
        {150, 264, 40, 4, 2, bf16, true, true, true, false},
        {170, 72, 136, 20, 2, f16, true, false, false, false},
        {256, 64, 64, 4, 1, bf16, false, false, true,
         false}, /* two whole tiles of the first expert */
        {150, 264, 40, 4, 2, int4, true, false, true, false},
        {80, 328, 136, 4, 2, {DTYPE_F16, 4, 128, false}, true, false, true, false},
        {80, 328, 40, 4, 2, {DTYPE_BF16, 8, 32, false}, true, false, true, false},
        {80, 200, 136, 4, 2, {DTYPE_F16, 8, 64, false}, true, false, false, false},
        {80, 296, 40, 4, 2, {DTYPE_BF16, 8, 0, true}, true, true, true, false},
        {80, 200, 136, 4, 2, {DTYPE_F16, 8, 32, true}, true, false, false, false},
        {80, 200, 40, 4, 2, {DTYPE_BF16, 8, 64, true}, true, false, false, false},
        {80, 328, 136, 4, 2, {DTYPE_F16, 8, 128, true}, true, false, true, false},
        /* Rows that begin at no multiple of 16 bytes, in both matrices and in one, and f32. */
        {70, 66, 27, 4, 2, bf16, true, false, true, false},
        {70, 66, 40, 4, 2, f16, true, false, false, false},
        {70, 64, 27, 4, 2, bf16, true, true, false, false},
        {70, 66, 27, 4, 2, {DTYPE_BF16, 8, 32, false}, true, false, false, false},
        {70, 66, 27, 4, 2, {DTYPE_F16, 8, 0, true}, true, false, false, false},
        {150, 70, 27, 4, 2, f32, true, true, true, false},
        {3, 64, 32, 4, 2, f32, false, false, false, false},
        {900, 512, 320, 6, 2, bf16, true, false, true, false}, /* on a GPU alone */
    };
    size_t n = sizeof layers / sizeof *layers - c->small;
    for (size_t i = 0; i < n; i++) check_layer(c, &layers[i]);
    const sparse alone[] = {{100, 72, 40, 4, 2, bf16, true, false, false, false},
                            {100, 72, 40, 4, 2, int4, true, false, false, false},
                            {100, 72, 27, 4, 2, bf16, true, false, false, false},
                            {100, 72, 40, 4, 2, f32, true, false, false, false}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) check_alone(c, &alone[i]);
    check_narrow_experts(c);
    check_few(c);
}

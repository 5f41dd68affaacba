/* Moves that rotate keys: a slot moved to another position holds what it would hold had it been
 * computed there. */
#include "model/cpu/kv_moves.h"
#include "tests/unit/model_pass.h"

/* ---- slots ----------------------------------------------------------------------------------- */

enum { DIM = 48, P = 32, TILES = 6 };

static const rope_config ropes[] = {
    {.kind = ROPE_DEFAULT, .theta = 10000},
    {.kind = ROPE_LLAMA3,
     .theta = 500000,
     .factor = 8,
     .low_freq_factor = 1,
     .high_freq_factor = 4,
     .original_max_positions = 32},
};

/* K and V of token i in a tile, its key rotated to a position. */
static void make_slot(kern_context *kc, const rope_config *rope, uint32_t tile, uint32_t i,
                      uint32_t position, float *k, float *v)
{
    float inv_freq[DIM / 2], angles[DIM];
    rng r = rng_seed(tile * 1000 + i);
    for (uint32_t d = 0; d < DIM; d++) {
        k[d] = rng_normal(&r);
        v[d] = rng_normal(&r);
    }
    rope_frequencies(rope, DIM, inv_freq);
    rope_angles(inv_freq, DIM, position, angles);
    kern_rope(kc, k, DIM, angles, 1, 1, DIM);
}

static void check_slot(kern_context *kc, const kv_store *s, const uint8_t *tile, uint32_t slot,
                       const float *k, const float *v)
{
    float tolerance = s->shape.format == KERN_KV_F32 ? 1e-4f : 8e-2f;
    float got_k[DIM], got_v[DIM], stored_k[DIM], stored_v[DIM];
    uint8_t *fresh = malloc(s->tile_bytes);
    kern_kv_write(kc, &s->shape, fresh, 0, k, v);
    kern_kv_read(kc, &s->shape, fresh, 0, stored_k, stored_v);
    free(fresh);
    kern_kv_read(kc, &s->shape, tile, slot, got_k, got_v);
    for (uint32_t d = 0; d < DIM; d++) {
        if (fabsf(got_k[d] - k[d]) > tolerance) fail_msg("%g for %g", got_k[d], k[d]);
        assert_true(got_v[d] == stored_v[d]); /* not rounded twice */
    }
}

static void check_move(kern_context *kc, kern_kv_format type, const rope_config *rope,
                       const pkv_move *m, uint32_t position)
{
    static const pkv_geometry geometry = {.page_tokens = P,
                                          .n_layers = 3,
                                          .n_kv_heads = 2,
                                          .layers_per_group = 3,
                                          .heads_per_group = 2};
    kv_store s;
    float k[DIM], v[DIM];
    kv_store_layout(&s, type, &geometry, DIM, 0, 2);
    s.n_pages = s.n_cells = 3;
    s.data = malloc(s.n_pages * s.page_bytes);
    for (uint32_t t = 0; t < TILES; t++) {
        for (uint32_t i = 0; i < 3 * P; i++) {
            make_slot(kc, rope, t, i, position, k, v);
            kern_kv_write(kc, &s.shape, s.data + i / P * s.page_bytes + t * s.tile_bytes, i % P, k,
                          v);
        }
    }
    kv_move_rotated(&s, kc, rope, m);
    for (uint32_t t = 0; t < TILES; t++) {
        for (uint32_t i = 0; i < 3 * P; i++) {
            uint32_t from = i, at = position;
            if (i / P == m->dst_page && i % P - m->dst_slot < m->n_slots) {
                from = m->src_page * P + m->src_slot + i % P - m->dst_slot;
                at += (uint32_t)m->rotate;
            }
            make_slot(kc, rope, t, from, at, k, v);
            check_slot(kc, &s, s.data + i / P * s.page_bytes + t * s.tile_bytes, i % P, k, v);
        }
    }
    free(s.data);
}

static void a_slot_is_as_if_computed_there(void **state)
{
    (void)state;
    static const pkv_move moves[] = {
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 3, 2, 5, 1, -7, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, 2, 0, 1, 0, 32, -100, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 2, 2, 1, 29, 130, 0},
        {PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 1, 16, 16, 5, 0}, /* inside a page */
    };
    thread_pool *pool;
    kern_context *kc;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    assert_true(status_ok(kern_create(&(kern_options){.pool = pool}, &kc, NULL)));
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++) {
        for (size_t r = 0; r < 2; r++) {
            check_move(kc, KERN_KV_F32, &ropes[r], &moves[i], 120);
            check_move(kc, KERN_KV_BF16, &ropes[r], &moves[i], 120);
            check_move(kc, KERN_KV_INT8, &ropes[r], &moves[i], 120);
        }
    }
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

/* The distance of two keys in the plane of dimensions d and d + DIM / 2, by the first one's length
 * there. */
static double off_in_plane(const float *key, const float *got, uint32_t d)
{
    uint32_t e = d + DIM / 2;
    return hypot(got[d] - key[d], got[e] - key[e]) / hypot(key[d], key[e]);
}

/* A key that a recurrent method keeps is rotated once for each chunk that follows, and rounded to
 * bf16 each time. A rounding moves it by at most 2^-8 of its length, and rotations keep lengths: so
 * after n of them it is within n + 1 roundings of the key computed at its last position. (They may
 * all point the same way: where a plane turns by less than a rounding, the key stays as it is.) */
static void errors_of_many_rotations_only_add_up(void **state)
{
    (void)state;
    enum { ROTATIONS = 64, AT = 4000 };
    static const pkv_geometry geometry = {.page_tokens = P,
                                          .n_layers = 1,
                                          .n_kv_heads = 1,
                                          .layers_per_group = 1,
                                          .heads_per_group = 1};
    const double rounding = 0x1p-8, angles = 1e-3; /* f32 angles of positions in the thousands */
    thread_pool *pool;
    kern_context *kc;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    assert_true(status_ok(kern_create(&(kern_options){.pool = pool}, &kc, NULL)));
    kv_store s;
    float k[DIM], v[DIM], got_k[DIM], got_v[DIM];
    kv_store_layout(&s, KERN_KV_BF16, &geometry, DIM, 0, 1);
    s.n_pages = s.n_cells = 3;
    s.data = malloc(s.n_pages * s.page_bytes);
    for (size_t r = 0; r < 2; r++) {
        uint32_t position = AT, page = 1;
        rng steps = rng_seed(r);
        for (uint32_t i = 0; i < P; i++) {
            make_slot(kc, &ropes[r], 0, i, position, k, v);
            kern_kv_write(kc, &s.shape, s.data + page * s.page_bytes, i, k, v);
        }
        for (uint32_t n = 1; n <= ROTATIONS; n++, page = 3 - page) {
            int32_t by = -(int32_t)rng_below(&steps, 62); /* 0 too: a key in a table's sinks */
            pkv_move m = {PKV_MOVE_SLOTS, PKV_HEAD, 0, page, 0, 3 - page, 0, P, by, 1};
            kv_move_rotated(&s, kc, &ropes[r], &m);
            position += (uint32_t)by;
            for (uint32_t i = 0; i < P; i++) {
                make_slot(kc, &ropes[r], 0, i, position, k, v);
                kern_kv_read(kc, &s.shape, s.data + (3 - page) * s.page_bytes, i, got_k, got_v);
                for (uint32_t d = 0; d < DIM / 2; d++) {
                    double off = off_in_plane(k, got_k, d);
                    if (off > pow(1 + rounding, n + 1) - 1 + angles)
                        fail_msg("%u rotations: %g of the key's length", n, off);
                }
            }
        }
    }
    free(s.data);
    kern_destroy(kc);
    thread_pool_destroy(pool);
}

/* ---- the backend ----------------------------------------------------------------------------- */

enum { TOKENS = 90, FIRST = 80, GIVEN_UP = 20, ROWS = TOKENS - FIRST };

typedef struct driver {
    backend b;
    pkv *kv;
    uint64_t step;
    const uint32_t *tokens;
} driver;

/* One step of a sequence over tokens[from .. from + n), and the logits of its last row. */
static void step(driver *d, uint32_t id, uint32_t from, uint32_t n, float *logits)
{
    sample_params greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    step_open open = {.seq = id, .params = &greedy};
    uint32_t position = pkv_seq_next_position(d->kv, id);
    assert_true(status_ok(pkv_seq_append(d->kv, id, n)));
    step_seq seq = {.seq = id, .n_tokens = n, .position = position, .want_logits = true};
    step_plan plan = {.step = ++d->step,
                      .deltas = pkv_take_deltas(d->kv),
                      .opens = &open,
                      .n_opens = from == 0,
                      .seqs = &seq,
                      .n_seqs = 1,
                      .tokens = d->tokens + from,
                      .n_tokens = n,
                      .checksum = pkv_checksum(d->kv)};
    const step_result *r;
    assert_true(status_ok(d->b.ops->submit(d->b.ctx, &plan)));
    assert_true(status_ok(d->b.ops->collect(d->b.ctx, &r)));
    if (!status_ok(r->status)) fail_msg("%s", r->status.message);
    size_t vocab = d->b.ops->info(d->b.ctx)->vocab_size;
    memcpy(logits, r->logits + (n - 1) * vocab, vocab * sizeof *logits);
}

/* Two sequences drop their beginning: one keeps the positions, the other repositions all tokens.
 * Attention depends on differences of positions, so both continue alike. */
static void check_shift(const char *dir, kern_kv_format kv_type, uint32_t n_ranks, double bar)
{
    pass p = {.dir = dir,
              .kv_type = kv_type,
              .page_tokens = 16,
              .layers_per_group = 1,
              .chunk = FIRST,
              .n_threads = 1,
              .n_ranks = n_ranks};
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    uint32_t tokens[TOKENS], hit;
    driver d = {.b = open_backend(&p, group, &config), .tokens = tokens};
    const backend_info *info = d.b.ops->info(d.b.ctx);
    pkv_options po = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 2};
    assert_true(status_ok(pkv_create(&po, &d.kv)));
    random_tokens(tokens, TOKENS, info->vocab_size);
    float *logits[2];
    for (uint32_t q = 0; q < 2; q++) {
        logits[q] = malloc(info->vocab_size * sizeof(float));
        assert_true(status_ok(pkv_seq_open(d.kv, q, PKV_HEAD, tokens, 0, 0, TOKENS, &hit)));
        step(&d, q, 0, FIRST, logits[q]);
    }
    assert_true(nmse(logits[0], logits[1], info->vocab_size) == 0);
    uint64_t keep[2] = {UINT64_MAX << GIVEN_UP, UINT64_MAX};
    for (uint32_t q = 0; q < 2; q++) {
        for (uint32_t g = 0; g < pkv_groups(&info->geometry); g++)
            assert_true(status_ok(pkv_seq_keep(d.kv, q, g, keep, q == 1)));
    }
    assert_int_equal(pkv_seq_next_position(d.kv, 0), FIRST);
    assert_int_equal(pkv_seq_next_position(d.kv, 1), FIRST - GIVEN_UP);
    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t q = 0; q < 2; q++) step(&d, q, FIRST + i, 1, logits[q]);
        double off = nmse(logits[0], logits[1], info->vocab_size);
        if (!(off < bar)) fail_msg("%s, token %u: NMSE %g", dir, i, off);
    }
    for (uint32_t q = 0; q < 2; q++) free(logits[q]);
    pkv_destroy(d.kv);
    d.b.ops->destroy(d.b.ctx);
    comm_destroy(group);
}

static void all_positions_may_shift(void **state)
{
    (void)state;
    check_shift("tests/golden/models/gqa1_f32", KERN_KV_F32, 0, 1e-9);
    check_shift("tests/golden/models/llama3_rope_f32", KERN_KV_F32, 0, 1e-9);
    check_shift("tests/golden/models/linear_rope_f16", KERN_KV_F32, 0, 1e-9);
    check_shift("tests/golden/models/llama3_rope_f32", KERN_KV_F32, 2, 1e-9);
    check_shift("tests/golden/models/llama3_rope_f32", KERN_KV_BF16, 0, 1e-3);
    check_shift("tests/golden/models/llama3_rope_f32", KERN_KV_INT8, 0, 2e-2);
    check_shift("tests/golden/models/llama3_rope_f32", KERN_KV_INT8, 2, 2e-2);
}

/* Later plans count on a move, so one that cannot be made ends the backend. */
static void lies_are_refused(void **state)
{
    (void)state;
    pass p = {.dir = "tests/golden/models/gqa1_f32",
              .kv_type = KERN_KV_F32,
              .page_tokens = 16,
              .layers_per_group = 1,
              .chunk = 16,
              .n_threads = 1};
    model_config config;
    comm *group;
    comm_options self = {.kind = "self", .size = 1};
    assert_true(status_ok(comm_create(&self, &group, NULL)));
    backend b = open_backend(&p, group, &config);
    uint32_t n_pages = b.ops->info(b.ctx)->n_pages;
    const struct {
        pkv_move move;
        status_code code;
    } cases[] = {
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 0, 16, -255, 0}, STATUS_OK},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 0, 16, -256, 0},
         STATUS_INTERNAL}, /* past the last position */
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 0, 16, 256, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 0, 16, INT32_MIN, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, n_pages, 0, 2, 0, 16, 1, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, n_pages, 0, 16, 1, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 1, 2, 0, 16, 1, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 1, 16, 1, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, 0, 2, 0, UINT32_MAX, 1, 0}, STATUS_INTERNAL},
        {{PKV_MOVE_SLOTS, PKV_HEAD, 0, 1, UINT32_MAX, 2, 0, 16, 1, 0}, STATUS_INTERNAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        step_plan plan = {.step = i + 1, .deltas = {.moves = &cases[i].move, .n_moves = 1}};
        const step_result *r;
        assert_true(status_ok(b.ops->submit(b.ctx, &plan)));
        assert_true(status_ok(b.ops->collect(b.ctx, &r)));
        if (r->status.code != cases[i].code) fail_msg("case %zu: %d", i, r->status.code);
    }
    b.ops->destroy(b.ctx);
    comm_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_is_as_if_computed_there),
        cmocka_unit_test(errors_of_many_rotations_only_add_up),
        cmocka_unit_test(all_positions_may_shift),
        cmocka_unit_test(lies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

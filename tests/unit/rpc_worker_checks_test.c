/* Plans and results from an untrusted peer: each error is named. */
#include "tests/unit/rpc_worker_wire.h"

#include <math.h>

/* ---- errors are named ------------------------------------------------------------------------ */

/* A valid plan of two sequences, one of three tokens, an open and a move. */
typedef struct sound_plan {
    uint32_t seq[2], rows[2], samples[2], position[2], tokens[4], zeros[4], ones[2];
    uint32_t history[2], bias_ids[1];
    float bias[1];
    uint32_t move[1], grain[1];
    open_message open, *opens[1];
    plan_message m;
} sound_plan;

static void make_sound(sound_plan *p)
{
    *p = (sound_plan){.seq = {3, 5}, .rows = {3, 1}, .samples = {0, 1}, .tokens = {1, 2, 3, 4}};
    p->ones[0] = p->ones[1] = 1;
    p->open = (open_message)OCTAVO__WORKER__V1__OPEN__INIT;
    p->open.history = p->history;
    p->open.n_history = 2;
    p->open.bias_ids = p->bias_ids;
    p->open.n_bias_ids = 1;
    p->open.bias = (ProtobufCBinaryData){sizeof p->bias, (uint8_t *)p->bias};
    p->opens[0] = &p->open;
    p->m = (plan_message)OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    p->m.opens = p->opens;
    p->m.n_opens = 1;
    p->m.tokens = p->tokens;
    p->m.n_tokens = 4;
    p->m.seq = p->seq;
    p->m.rows = p->rows;
    p->m.samples = p->samples;
    p->m.position = p->position;
    p->m.n_seq = p->m.n_rows = p->m.n_samples = p->m.n_position = 2;
    p->m.move_kind = p->move;
    p->grain[0] = PKV_HEAD;
    p->m.move_grain = p->grain;
    p->m.n_move_kind = p->m.n_move_grain = 1;
}

/* True when the plan is accepted; otherwise its error is in err. */
static bool is_taken_by(const backend_info *of, const sound_plan *p, error *err)
{
    arena a;
    step_plan out;
    arena_init(&a, 4096, 0);
    bool ok = status_ok(plan_unpack(&p->m, of, &a, &out, err));
    arena_destroy(&a);
    return ok;
}

static bool is_taken(const sound_plan *p, error *err) { return is_taken_by(&info, p, err); }

#define WRONG_PLAN(change, word)                                                                   \
    do {                                                                                           \
        sound_plan p;                                                                              \
        error err = {{0}};                                                                         \
        make_sound(&p);                                                                            \
        change;                                                                                    \
        if (is_taken(&p, &err)) fail_msg("%s: taken", #change);                                    \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)

static void wrong_plans_are_refused_by_field(void **state)
{
    (void)state;
    sound_plan sound;
    error none = {{0}};
    make_sound(&sound);
    if (!is_taken(&sound, &none)) fail_msg("%s", none.text);
    WRONG_PLAN(p.seq[1] = SEQS, "seq: 16");
    WRONG_PLAN(p.seq[1] = p.seq[0], "seq: 3 is there twice");
    WRONG_PLAN(p.m.n_rows = 1, "rows: 1 values");
    WRONG_PLAN(p.rows[0] = 4, "rows: ");
    WRONG_PLAN(p.rows[0] = 2, "rows: ");
    WRONG_PLAN(p.rows[0] = 0, "rows: ");
    WRONG_PLAN(p.rows[0] = UINT32_MAX, "rows: ");
    WRONG_PLAN(p.samples[0] = step_most_draws(SEQS) + 1, "samples: ");
    WRONG_PLAN(p.samples[0] = UINT32_MAX, "samples: ");
    WRONG_PLAN(p.position[0] = 510, "position: 510");
    WRONG_PLAN(p.position[1] = UINT32_MAX, "position: ");
    WRONG_PLAN(p.tokens[2] = VOCAB, "tokens: 1000");
    WRONG_PLAN(p.m.n_tokens = ROWS + 1, "tokens: 65");
    WRONG_PLAN(p.m.n_seq = SEQS + 1, "seq: 17 sequences");
    WRONG_PLAN((p.zeros[0] = 2, p.m.want_logits = p.zeros, p.m.n_want_logits = 2),
               "want_logits: 2");
    WRONG_PLAN((p.zeros[0] = VOCAB, p.m.next_token = p.zeros, p.m.n_next_token = 2,
                p.m.measure_novelty = p.ones, p.m.n_measure_novelty = 2),
               "next_token: 1000");
    WRONG_PLAN((p.zeros[0] = MEASURE_KINDS, p.m.measure_kind = p.zeros, p.m.n_measure_kind = 2),
               "measure_kind: ");
    WRONG_PLAN((p.zeros[0] = 3, p.m.measure_sum = p.zeros, p.m.n_measure_sum = 2), "measure_sum: ");
    WRONG_PLAN((p.ones[1] = 0, p.m.token_from = p.ones, p.m.n_token_from = 2),
               "token_from: 3 tokens, and 2 steps in flight");
    WRONG_PLAN((p.m.token_from = p.ones, p.m.n_token_from = 1), "token_from: 1 values");
    WRONG_PLAN(p.move[0] = 3, "move_kind: 3");
    /* The pool has 54 numbers of cells, 18 for each layer group; the host tier 24, 8 for each. */
    WRONG_PLAN((p.zeros[0] = 54, p.m.move_src_page = p.zeros, p.m.n_move_src_page = 1),
               "move_src_page: 54, there are 54");
    WRONG_PLAN((p.move[0] = PKV_MOVE_OUT, p.zeros[0] = 24, p.m.move_dst_page = p.zeros,
                p.m.n_move_dst_page = 1),
               "move_dst_page: 24, there are 24");
    WRONG_PLAN((p.move[0] = PKV_MOVE_IN, p.zeros[0] = 24, p.m.move_src_page = p.zeros,
                p.m.n_move_src_page = 1),
               "move_src_page: 24, there are 24");
    WRONG_PLAN(p.grain[0] = 3, "move_grain: 3 is above 2");
    WRONG_PLAN((p.grain[0] = PKV_LAYER, p.zeros[0] = 7, p.m.move_src_page = p.zeros,
                p.m.n_move_src_page = 1),
               "move_src_page: 7 begins no page of grain 1");
    WRONG_PLAN((p.grain[0] = PKV_ALL, p.zeros[0] = 18, p.m.move_dst_page = p.zeros,
                p.m.n_move_dst_page = 1),
               "move_dst_page: 18 begins no page of grain 0");
    WRONG_PLAN((p.grain[0] = PKV_ALL, p.move[0] = PKV_MOVE_OUT, p.zeros[0] = 8,
                p.m.move_dst_page = p.zeros, p.m.n_move_dst_page = 1),
               "move_dst_page: 8 begins no page of grain 0");
    WRONG_PLAN((p.zeros[0] = 17, p.m.move_n_slots = p.zeros, p.m.n_move_n_slots = 1),
               "move_n_slots: 17");
    WRONG_PLAN((p.zeros[0] = 6, p.m.move_group = p.zeros, p.m.n_move_group = 1),
               "move_group: 6, there are 6");
    WRONG_PLAN(
        (p.grain[0] = PKV_LAYER, p.zeros[0] = 3, p.m.move_group = p.zeros, p.m.n_move_group = 1),
        "move_group: 3, there are 3");
    WRONG_PLAN(
        (p.grain[0] = PKV_ALL, p.zeros[0] = 1, p.m.move_group = p.zeros, p.m.n_move_group = 1),
        "move_group: 1, there are 1");
    WRONG_PLAN((p.m.n_move_fresh = 2, p.m.move_fresh = p.zeros), "move_fresh: 2 values");
    WRONG_PLAN(p.open.seq = SEQS, "opens.seq: 16");
    WRONG_PLAN(p.open.n_logprobs = 21, "opens.n_logprobs: 21");
    WRONG_PLAN(p.open.n_logprobs = -2, "opens.n_logprobs: -2");
    WRONG_PLAN(p.open.bias.len = 3, "opens.bias: 3 bytes");
    WRONG_PLAN(p.history[1] = VOCAB, "opens.history: 1000");
    WRONG_PLAN(p.m.n_opens = SEQS + 1, "opens: 17");
}

/* A token of a draw is a share's only one, and a backend takes it that takes two steps. */
static void tokens_of_draws_come_alone(void **state)
{
    (void)state;
    error err = {{0}};
    backend_info one = info; /* it takes one step at a time */
    one.max_in_flight = 1;
    sound_plan p;
    make_sound(&p);
    p.rows[0] = p.rows[1] = p.ones[0] = 1;
    p.m.n_tokens = 2;
    p.m.token_from = p.ones;
    p.m.n_token_from = 2;
    if (!is_taken(&p, &err)) fail_msg("%s", err.text);
    assert_false(is_taken_by(&one, &p, &err));
    assert_non_null(strstr(err.text, "token_from: 1 tokens, and 1 steps in flight"));
}

/* Gives the plan's second sequence a sound retrieval; the first has none. */
typedef struct sound_retrieval {
    uint32_t block_tokens[2], representative[2], representative_num[2], heads[2], group_heads[2],
        initial_tokens[2], local_tokens[2], top_blocks[2], observed_rows[2], dense_layers[2],
        layer_step[2], token_step[2], epsilon[2], note[2];
} sound_retrieval;

static void make_reading(sound_plan *p, sound_retrieval *r)
{
    *r = (sound_retrieval){.block_tokens = {0, 32},
                           .representative = {0, RETRIEVAL_FIX},
                           .representative_num = {0, 5},
                           .heads = {0, RETRIEVAL_GROUP},
                           .group_heads = {0, 2},
                           .local_tokens = {0, 1},
                           .top_blocks = {0, 1},
                           .observed_rows = {0, 8},
                           .layer_step = {0, 1},
                           .token_step = {0, 1}};
    make_sound(p);
#define GIVE(field) p->m.retrieval_##field = r->field, p->m.n_retrieval_##field = 2
    GIVE(block_tokens), GIVE(representative), GIVE(representative_num), GIVE(heads);
    GIVE(group_heads), GIVE(initial_tokens), GIVE(local_tokens), GIVE(top_blocks);
    GIVE(observed_rows), GIVE(dense_layers), GIVE(layer_step), GIVE(token_step), GIVE(epsilon);
#undef GIVE
    p->m.note = r->note;
    p->m.n_note = 2;
}

static void wrong_retrievals_are_refused_by_field(void **state)
{
    (void)state;
    sound_plan p;
    sound_retrieval r;
    error err = {{0}};
    make_reading(&p, &r);
    if (!is_taken(&p, &err)) fail_msg("%s", err.text);
#define WRONG(change, word)                                                                        \
    do {                                                                                           \
        err = (error){{0}};                                                                        \
        make_reading(&p, &r);                                                                      \
        change;                                                                                    \
        if (is_taken(&p, &err)) fail_msg("%s: taken", #change);                                    \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)
    WRONG(r.block_tokens[1] = 40, "retrieval.block_tokens is 40: must be a multiple");
    WRONG(r.block_tokens[1] = 1 << 13, "retrieval_block_tokens: 8192 is above 4096");
    WRONG(r.block_tokens[1] = 8, "retrieval.block_tokens is 8, must be between 16 and 4096");
    WRONG(r.representative[1] = RETRIEVAL_REPRESENTATIVES, "retrieval_representative: 5");
    WRONG(r.representative_num[1] = 0, "retrieval.representative_num is 0");
    WRONG(r.representative_num[1] = 33, "retrieval.representative_num is 33: a block has 32");
    WRONG(r.representative_num[1] = 65, "retrieval_representative_num: 65 is above 64");
    WRONG(r.heads[1] = RETRIEVAL_HEAD_MODES, "retrieval_heads: 3");
    WRONG(r.group_heads[1] = 0, "retrieval.group_heads is 0");
    WRONG(r.group_heads[1] = 3, "retrieval.group_heads is 3: must divide");
    WRONG(r.local_tokens[1] = 0, "retrieval.local_windows_len is 0");
    WRONG(r.initial_tokens[1] = UINT32_MAX, "retrieval_initial_tokens: 4294967295");
    WRONG(r.top_blocks[1] = 0, "retrieval.second_block_count is 0");
    WRONG(r.observed_rows[1] = 0, "retrieval.observed_rows is 0");
    WRONG(r.observed_rows[1] = 129, "retrieval_observed_rows: 129 is above 128");
    WRONG(r.dense_layers[1] = LAYERS, "retrieval.dense_layer_num is 6");
    WRONG(r.layer_step[1] = 0, "retrieval.layer_step is 0");
    WRONG(r.layer_step[1] = LAYERS + 1, "retrieval.layer_step is 7: only 6");
    WRONG(r.token_step[1] = 0, "retrieval.token_step is 0");
    WRONG(r.epsilon[1] = 0x7fc00000, "retrieval.epsilon is nan");
    WRONG(r.epsilon[1] = 0x3f000000, "retrieval.epsilon is 0.5: must be");
    WRONG(p.m.n_retrieval_heads = 1, "retrieval_heads: 1 values");
    WRONG(r.note[0] = STEP_NOTES_MOST, "note: 1048576 is above 1048575");
#undef WRONG
    backend_info none = info;
    none.retrieves = 0;
    make_reading(&p, &r);
    assert_false(is_taken_by(&none, &p, &err));
    assert_non_null(strstr(err.text, "retrieval: this backend reads the whole context"));
    none.retrieves = 1 << RETRIEVAL_FIX;
    r.token_step[1] = 4;
    assert_false(is_taken_by(&none, &p, &err));
    assert_non_null(strstr(err.text, "retrieval.token_step is 4: this backend"));
}

/* The lists of heads are joined: n_embeds says where each sequence's begins. What the model has is
 * left to the backend (model/plan.c). */
static void wrong_embeds_are_refused_by_field(void **state)
{
    (void)state;
    sound_plan p;
    error err = {{0}};
    uint32_t counts[2], lists[3];
#define TRY(change)                                                                                \
    do {                                                                                           \
        make_sound(&p);                                                                            \
        err = (error){{0}};                                                                        \
        counts[0] = 1, counts[1] = 2, lists[0] = lists[1] = lists[2] = 0;                          \
        p.m.n_embeds = counts, p.m.n_n_embeds = 2;                                                 \
        p.m.embed_layer = p.m.embed_kind = p.m.embed_head = lists;                                 \
        p.m.n_embed_layer = p.m.n_embed_kind = p.m.n_embed_head = 3;                               \
        change;                                                                                    \
    } while (0)
#define WRONG(change, word)                                                                        \
    do {                                                                                           \
        TRY(change);                                                                               \
        if (is_taken(&p, &err)) fail_msg("%s: taken", #change);                                    \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)
    TRY((void)0);
    if (!is_taken(&p, &err)) fail_msg("%s", err.text);
    WRONG(p.m.n_embed_layer = 2, "embed_layer: 2 values, n_embeds are 3");
    WRONG(p.m.n_embed_kind = 4, "embed_kind: 4 values, n_embeds are 3");
    WRONG(p.m.n_embed_head = 0, "embed_head: 0 values, n_embeds are 3");
    WRONG(counts[1] = 1, "embed_layer: 3 values, n_embeds are 2");
    WRONG(counts[0] = EMBED_HEADS_MOST + 1, "n_embeds: 4097 is above 4096");
    WRONG(p.m.n_ended_notes = 65, "ended_notes: 65, at most 64");
    WRONG(p.m.n_n_embeds = 0, "embed_layer: 3 values, n_embeds are 0");
    WRONG(lists[1] = EMBED_KINDS, "embed_kind: 3, there are 3");
    WRONG((p.m.n_layers = counts, p.m.n_n_layers = 1), "n_layers: 1 values");
    WRONG((counts[0] = UINT32_MAX, p.m.n_layers = counts, p.m.n_n_layers = 2), "n_layers: 42949");
#undef WRONG
#undef TRY
}

static void wrong_masks_are_refused_by_field(void **state)
{
    (void)state;
    uint32_t words = step_mask_words(VOCAB), counts[2] = {words, 0};
    uint32_t *mask = calloc(words, sizeof *mask);
    sound_plan p;
    error err = {{0}};
    for (unsigned i = 0; i < 4; i++) {
        static const char *const expected[] = {NULL, "masks: 0 bytes", "n_mask_words: 1, the",
                                               "n_mask_words: 1 values"};
        make_sound(&p);
        err = (error){{0}};
        counts[0] = i == 2 ? 1 : words;
        p.m.n_mask_words = counts;
        p.m.n_n_mask_words = i == 3 ? 1 : 2;
        p.m.masks = (ProtobufCBinaryData){i == 1 ? 0 : words * sizeof *mask, (uint8_t *)mask};
        assert_int_equal(is_taken(&p, &err), !expected[i]);
        if (expected[i] && !strstr(err.text, expected[i])) fail_msg("\"%s\"", err.text);
    }
    free(mask);
}

static void moves_to_no_host_tier_are_refused(void **state)
{
    (void)state;
    backend_info alone = info;
    alone.n_host_pages = 0;
    sound_plan p;
    error err = {{0}};
    make_sound(&p);
    if (!is_taken_by(&alone, &p, &err)) fail_msg("%s", err.text);
    p.move[0] = PKV_MOVE_OUT;
    assert_false(is_taken_by(&alone, &p, &err));
    assert_non_null(strstr(err.text, "move_dst_page: there is no host tier"));
    p.move[0] = PKV_MOVE_IN;
    assert_false(is_taken_by(&alone, &p, &err));
    assert_non_null(strstr(err.text, "move_src_page: there is no host tier"));
}

/* A valid result of a plan with one draw, one measure, one row of logits and its novelty. */
typedef struct sound_result {
    step_seq seq;
    step_plan plan;
    uint32_t token, rank, n_top, top_id, stride, q_heads, score_rank, score_tops[2];
    float floats[LAYERS * 2 * 4 + VOCAB], wrong[2];
    uint32_t rank_index;
    uint32_t reading_rows, context[2], lists[2], selections[2], audits[2], exams[2], failed[2];
    uint64_t tokens[2], blocks[2];
    double shares[2][3];
    result_message m;
} sound_result;

static ProtobufCBinaryData some_floats(sound_result *s, size_t n)
{
    return (ProtobufCBinaryData){n * sizeof(float), (uint8_t *)s->floats};
}

/* The invalid floats of the result, as a test has set them. */
static ProtobufCBinaryData wrong_floats(sound_result *s)
{
    return (ProtobufCBinaryData){sizeof *s->wrong, (uint8_t *)s->wrong};
}

static void make_sound_result(sound_result *s)
{
    memset(s, 0, sizeof *s);
    s->seq = (step_seq){.n_tokens = 1,
                        .n_samples = 1,
                        .want_logits = true,
                        .want_scores = 1 + 2,
                        .measure = {.kind = MEASURE_MASS, .layer_step = 1, .novelty = true}};
    s->plan = (step_plan){.step = 4, .seqs = &s->seq, .n_seqs = 1, .n_tokens = 1};
    s->rank = s->n_top = s->q_heads = 1;
    s->stride = 4;
    s->m = (result_message)OCTAVO__WORKER__V1__STEP_RESULT__INIT;
    result_message *m = &s->m;
    m->step = 4;
    m->sample_token = &s->token;
    m->sample_rank = &s->rank;
    m->sample_n_top = &s->n_top;
    m->top_id = &s->top_id;
    m->measure_stride = &s->stride;
    m->measure_q_heads = &s->q_heads;
    m->n_sample_token = m->n_sample_rank = m->n_sample_n_top = m->n_top_id = 1;
    m->n_measure_stride = m->n_measure_q_heads = 1;
    m->sample_logprob = m->top_logprob = m->novelty = some_floats(s, 1);
    m->measures = some_floats(s, LAYERS * 2 * 4);
    m->logits = some_floats(s, VOCAB);
    s->score_rank = VOCAB;
    m->score_logprob = some_floats(s, 1);
    m->score_rank = &s->score_rank;
    m->score_top_id = s->score_tops;
    m->score_top_logprob = some_floats(s, 2);
    m->n_score_rank = 1;
    m->n_score_top_id = 2;
}

static bool result_is_taken(const sound_result *s, error *err)
{
    arena a;
    result_store out;
    result_source source = {&s->plan, &info, s->rank_index, 2};
    arena_init(&a, 4096, 0);
    bool ok = status_ok(result_unpack(&s->m, &source, &a, &out, err));
    arena_destroy(&a);
    return ok;
}

#define WRONG_RESULT(change, word)                                                                 \
    do {                                                                                           \
        sound_result s;                                                                            \
        error err = {{0}};                                                                         \
        make_sound_result(&s);                                                                     \
        change;                                                                                    \
        if (result_is_taken(&s, &err)) fail_msg("%s: taken", #change);                             \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)

static void wrong_results_are_refused_by_field(void **state)
{
    (void)state;
    sound_result sound;
    error none = {{0}};
    make_sound_result(&sound);
    if (!result_is_taken(&sound, &none)) fail_msg("%s", none.text);
    WRONG_RESULT(s.m.step = 5, "step: 5");
    WRONG_RESULT(s.m.embeddings = some_floats(&s, 1), "embeddings: 4 bytes, there should be 0");
    const embed_head of_rank_1 = {.layer = 1, .kind = EMBED_K, .head = KV_HEADS - 1};
    WRONG_RESULT((s.seq.embeds = &of_rank_1, s.seq.n_embeds = 1, s.rank_index = 1,
                  s.m.logits.len = 0, s.m.embeddings.len = 2),
                 "embeddings: 2 bytes, there should be 4 values");
    WRONG_RESULT(s.m.pooled = some_floats(&s, 1), "pooled: 4 bytes");
    WRONG_RESULT(s.seq.pooling = POOLING_LAST, "pooled: 0 bytes");
    WRONG_RESULT((s.seq.pooling = POOLING_SUM, s.rank_index = 1, s.m.logits.len = 0,
                  s.m.pooled = some_floats(&s, HIDDEN)),
                 "pooled: "); /* rank 0 alone sends it */
    WRONG_RESULT(s.m.status = STATUS_INTERNAL + 1, "status: ");
    WRONG_RESULT(s.m.compute_us = UINT64_MAX, "compute_us");
    WRONG_RESULT(s.m.model_us = UINT64_MAX, "model_us");
    WRONG_RESULT(s.m.n_sample_token = 0, "sample_token: 0 values");
    WRONG_RESULT(s.m.n_sample_rank = 2, "sample_rank: 2 values");
    WRONG_RESULT(s.token = VOCAB, "sample_token: 1000");
    WRONG_RESULT(s.rank = VOCAB + 1, "sample_rank: 1001");
    WRONG_RESULT(s.n_top = SAMPLE_LOGPROBS_MAX + 1, "sample_n_top: 21");
    uint32_t undefined[2] = {2, 0};
    WRONG_RESULT((s.m.sample_undefined = undefined, s.m.n_sample_undefined = 1),
                 "sample_undefined: 2, ");
    WRONG_RESULT((s.m.sample_undefined = undefined, s.m.n_sample_undefined = 2),
                 "sample_undefined: 2 values");
    WRONG_RESULT(s.n_top = 2, "top_id: 1 values");
    WRONG_RESULT(s.top_id = VOCAB, "top_id: 1000");
    WRONG_RESULT(s.m.top_logprob.len = 3, "top_logprob: 3 bytes");
    WRONG_RESULT(s.m.sample_logprob.len = 8, "sample_logprob: 8 bytes");
    WRONG_RESULT(s.m.n_measure_stride = 0, "measure_stride: 0 values");
    WRONG_RESULT(s.stride = 5, "measures: ");
    WRONG_RESULT(s.stride = 3, "measures: ");
    WRONG_RESULT(s.stride = 0, "measure_stride: 0");
    WRONG_RESULT(s.stride = PAGES + 1, "measure_stride: 51");
    WRONG_RESULT(s.stride = UINT32_MAX, "measure_stride: ");
    WRONG_RESULT(s.q_heads = 0, "measure_q_heads: 0");
    WRONG_RESULT(s.m.novelty.len = 0, "novelty: 0 bytes");
    WRONG_RESULT(s.m.logits.len = 4, "logits: 4 bytes");
    WRONG_RESULT(s.m.score_logprob.len = 0, "score_logprob: 0 bytes");
    WRONG_RESULT(s.m.n_score_rank = 0, "score_rank: 0 values");
    WRONG_RESULT(s.score_rank = VOCAB + 1, "score_rank: 1001");
    WRONG_RESULT(s.m.n_score_top_id = 1, "score_top_id: 1 values");
    WRONG_RESULT(s.score_tops[1] = VOCAB, "score_top_id: 1000");
    WRONG_RESULT(s.m.score_top_logprob.len = 4, "score_top_logprob: 4 bytes");
    WRONG_RESULT(s.seq.want_scores = 0, "score_logprob: 4 bytes");
    WRONG_RESULT((s.wrong[0] = INFINITY, s.m.sample_logprob = wrong_floats(&s)),
                 "sample_logprob: inf is no logarithm of a probability");
    WRONG_RESULT((s.wrong[0] = INFINITY, s.m.top_logprob = wrong_floats(&s)), "top_logprob: inf");
    WRONG_RESULT((s.wrong[0] = INFINITY, s.m.score_logprob = wrong_floats(&s)),
                 "score_logprob: inf");
    WRONG_RESULT((s.wrong[1] = INFINITY, s.m.score_top_logprob = wrong_floats(&s),
                  s.m.score_top_logprob.len = 8),
                 "score_top_logprob: inf");
    WRONG_RESULT(s.rank_index = 1, "logits: "); /* only rank 0 sends logits, */
    WRONG_RESULT((s.rank_index = 1, s.m.logits.len = 0), "score_logprob: "); /* and scores */
}

/* Gives the result the readings of two rows, one audited and one with an exam. */
static void make_readings(sound_result *s)
{
    make_sound_result(s);
    result_message *m = &s->m;
    s->seq.n_tokens = s->plan.n_tokens = 2;
    s->seq.want_logits = false;
    s->seq.want_scores = 0;
    s->seq.measure = (measure_spec){0};
    s->seq.retrieval = (retrieval_spec){.block_tokens = 32};
    m->n_measure_stride = m->n_measure_q_heads = 0;
    m->n_score_rank = m->n_score_top_id = 0;
    m->novelty.len = m->measures.len = m->logits.len = 0;
    m->score_logprob.len = m->score_top_logprob.len = 0;
    s->reading_rows = 2;
    m->reading_rows = &s->reading_rows;
    m->n_reading_rows = 1;
    for (uint32_t i = 0; i < 2; i++) {
        s->context[i] = 100 + i;
        s->lists[i] = LAYERS * KV_HEADS / 2;
        s->selections[i] = 3;
        s->tokens[i] = s->lists[i] * 100;
        s->blocks[i] = s->lists[i] * 4;
    }
    s->audits[0] = 8;
    s->shares[0][0] = 7.5;
    s->shares[0][1] = 0.5;
    s->exams[1] = 3;
    s->failed[1] = 1;
    s->shares[1][2] = 0.25;
#define GIVE(field) m->reading_##field = s->field, m->n_reading_##field = 2
    GIVE(context), GIVE(lists), GIVE(selections), GIVE(audits), GIVE(exams), GIVE(failed);
    GIVE(tokens), GIVE(blocks);
#undef GIVE
    m->reading_shares = (ProtobufCBinaryData){sizeof s->shares, (uint8_t *)s->shares};
}

/* The scheduler adds these numbers up and divides them, and reads as many rows as there are. */
static void wrong_readings_are_refused_by_field(void **state)
{
    (void)state;
    sound_result s;
    error err = {{0}};
    make_readings(&s);
    if (!result_is_taken(&s, &err)) fail_msg("%s", err.text);
    s.m.n_reading_audits = s.m.n_reading_exams = s.m.n_reading_failed = 0; /* all 0 */
    s.m.reading_shares.len = 0;
    if (!result_is_taken(&s, &err)) fail_msg("%s", err.text);
    make_readings(&s);
    s.reading_rows = 1; /* rows of the prompt are not counted */
    s.m.n_reading_context = s.m.n_reading_lists = s.m.n_reading_selections = 1;
    s.m.n_reading_tokens = s.m.n_reading_blocks = s.m.n_reading_audits = 1;
    s.m.n_reading_exams = s.m.n_reading_failed = 1;
    s.m.reading_shares.len = sizeof s.shares[0];
    if (!result_is_taken(&s, &err)) fail_msg("%s", err.text);
#define WRONG(change, word)                                                                        \
    do {                                                                                           \
        err = (error){{0}};                                                                        \
        make_readings(&s);                                                                         \
        change;                                                                                    \
        if (result_is_taken(&s, &err)) fail_msg("%s: taken", #change);                             \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)
    WRONG(s.m.n_reading_rows = 0, "reading_rows: 0 values, 1 sequences read so");
    WRONG(s.seq.retrieval.block_tokens = 0, "reading_rows: 1 values, 0 sequences");
    WRONG(s.reading_rows = 3, "reading_rows: 3 is above 2");
    WRONG(s.reading_rows = 1, "there should be 1");
    WRONG(s.reading_rows = 0, "there should be 0");
    WRONG(s.m.n_reading_context = 1, "reading_context: 1 values");
    WRONG(s.m.n_reading_context = 0, "reading_context: 0");
    WRONG(s.m.n_reading_lists = 3, "reading_lists: 3 values");
    WRONG(s.m.n_reading_tokens = 1, "reading_tokens, reading_blocks: 1 and 2 values");
    WRONG(s.m.n_reading_blocks = 0, "reading_tokens, reading_blocks: 2 and 0 values");
    WRONG(s.m.reading_shares.len -= 8, "reading_shares: 40 bytes of 2 rows");
    WRONG(s.context[1] = 513, "reading_context: 513 is above 512");
    WRONG(s.lists[1] = LAYERS * KV_HEADS / 2 + 1, "reading_lists: 13 is above 12");
    WRONG(s.lists[0] = UINT32_MAX, "reading_lists: 4294967295");
    WRONG(s.selections[0] = 13, "reading_selections: 13 is above 12");
    WRONG(s.tokens[0] = 12 * 100 + 1, "reading_tokens: 1201 is above 1200");
    WRONG(s.tokens[1] = UINT64_MAX, "reading_tokens: ");
    WRONG(s.blocks[0] = 12 * 4 + 1, "reading_blocks: 49 is above 48");
    WRONG(s.audits[0] = UINT32_MAX, "reading_audits: 4294967295");
    WRONG(s.exams[1] = 13, "reading_exams: 13 is above 12");
    WRONG(s.failed[0] = 1, "reading_failed: 1 is above 0");
    WRONG(s.shares[0][0] = 8.5, "reading_shares: recall: 8.5 is not 0 to 8");
    WRONG(s.shares[1][0] = 0.5, "reading_shares: recall: 0.5 is not 0 to 0");
    WRONG(s.shares[0][0] = NAN, "reading_shares: recall: ");
    WRONG(s.shares[0][1] = -0.5, "reading_shares: least recall: -0.5");
    WRONG(s.shares[0][1] = NAN, "reading_shares: least recall: ");
    WRONG(s.shares[1][2] = INFINITY, "reading_shares: missed: inf is not 0 to 1");
#undef WRONG
}

/* A sequence without logprobs is accepted beside sequences that have some. */
static void a_draw_without_a_logprob_is_taken(void **state)
{
    (void)state;
    sound_result s;
    error err = {{0}};
    make_sound_result(&s);
    s.rank = s.n_top = 0;
    s.m.n_top_id = s.m.top_logprob.len = 0;
    s.wrong[0] = NAN;
    s.m.sample_logprob = wrong_floats(&s);
    if (!result_is_taken(&s, &err)) fail_msg("%s", err.text);
    make_sound_result(&s);
    s.wrong[0] = -INFINITY;
    s.m.sample_logprob = wrong_floats(&s);
    if (!result_is_taken(&s, &err)) fail_msg("%s", err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_plans_are_refused_by_field),
        cmocka_unit_test(tokens_of_draws_come_alone),
        cmocka_unit_test(wrong_retrievals_are_refused_by_field),
        cmocka_unit_test(wrong_embeds_are_refused_by_field),
        cmocka_unit_test(wrong_masks_are_refused_by_field),
        cmocka_unit_test(moves_to_no_host_tier_are_refused),
        cmocka_unit_test(wrong_results_are_refused_by_field),
        cmocka_unit_test(wrong_readings_are_refused_by_field),
        cmocka_unit_test(a_draw_without_a_logprob_is_taken),
    };
    return cmocka_run_group_tests_name("rpc_worker_checks", tests, NULL, NULL);
}

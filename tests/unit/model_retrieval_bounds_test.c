/* What requests that read by retrieval make a backend allocate beside its pages is at most what
 * backend_cpu_measure said before, however they ask. */
#include "model/cpu/retrieve.h"
#include "tests/unit/model_pass.h"

#include <pthread.h>

enum { LONGEST = 1600 };

static size_t most_scratch;
static uint64_t most_kept;
static double most_share; /* of what is predicted, over all cases */

/* Ranks go through their layers at once. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

status __real_retrieve_layer(retrieve *r, uint32_t layer, const float *qkv);
status __wrap_retrieve_layer(retrieve *r, uint32_t layer, const float *qkv);
status __wrap_retrieve_layer(retrieve *r, uint32_t layer, const float *qkv)
{
    status s = __real_retrieve_layer(r, layer, qkv);
    size_t scratch = retrieve_scratch_taken(r);
    uint64_t kept = retrieve_note_bytes(r);
    pthread_mutex_lock(&mutex);
    if (scratch > most_scratch) most_scratch = scratch;
    if (kept > most_kept) most_kept = kept;
    pthread_mutex_unlock(&mutex);
    return s;
}

/* Lists all blocks, which are as small as pages. */
static const retrieval_spec greedy = {.block_tokens = 16,
                                      .representative_num = 1,
                                      .heads = RETRIEVAL_SEPARATE,
                                      .group_heads = 1,
                                      .local_tokens = 16,
                                      .top_blocks = 1 << 20,
                                      .observed_rows = 128,
                                      .layer_step = 1,
                                      .token_step = 1,
                                      .audit = 1};

static retrieval_spec exam(retrieval_heads heads)
{
    retrieval_spec s = greedy;
    s.representative = RETRIEVAL_QUEST;
    s.heads = heads;
    s.epsilon = 1e-6f;
    return s;
}

static retrieval_spec follower(retrieval_representative representative, uint32_t step)
{
    retrieval_spec s = greedy;
    s.representative = representative;
    s.representative_num = representative == RETRIEVAL_DYNAMIC ? 16 : 1;
    s.preselect_blocks = 1;
    s.token_step = step;
    return s;
}

static void measure(const backend_options *o, uint32_t ranks, backend_measures *m)
{
    error err;
    status s = backend_cpu_measure(o, ranks, 1 << 30, 0.6, m, &err);
    if (!status_ok(s)) fail_msg("%s", err.text);
}

/* A pool that just holds the tokens, so that no plan has room to spare for longer tables. */
static backend_measures measures_of(pass *p, uint32_t n)
{
    backend_measures m;
    model_config config;
    assert_true(status_ok(model_config_load(p->dir, &p->override, true, &config, NULL)));
    backend_options o = {
        .dir = p->dir,
        .config = &config,
        .dummy = true,
        .kv_type = p->kv_type,
        .weight_type = DTYPE_F32,
        .n_threads = p->n_threads,
        .geometry = {.page_tokens = 16, .layers_per_group = 1, .heads_per_group = 1},
        .kv_bytes = 32 << 20,
        .max_rows = p->chunk,
        .max_seqs = 2,
        .max_model_len = n,
    };
    uint32_t ranks = p->n_ranks ? p->n_ranks : 1;
    measure(&o, ranks, &m);
    p->kv_bytes = o.kv_bytes =
        backend_page_bytes(&m, ranks) * pkv_groups(&m.geometry) * (n / 16 + 1);
    measure(&o, ranks, &m);
    return m;
}

/* n tokens, the last of which read by retrieval. */
static void run_case(const retrieval_spec *spec, unsigned n_ranks, uint32_t n)
{
    uint32_t n_prompt = n - STEP_SPARSE_ROWS;
    pass p = {.dir = "tests/golden/models/gqa4_tied_f32",
              .override = n_ranks ? "intermediate_size=48" : "max_position_embeddings=2048",
              .kv_type = KERN_KV_F32,
              .precision = KERN_PRECISION_HIGH,
              .page_tokens = 16,
              .layers_per_group = 1,
              .heads_per_group = 1,
              .chunk = n,
              .n_threads = 2,
              .n_ranks = n_ranks,
              .n_prompt = n_prompt,
              .retrieval = *spec};
    uint32_t tokens[LONGEST];
    backend_measures m = measures_of(&p, n);
    model_config config;
    assert_true(status_ok(model_config_load(p.dir, &p.override, true, &config, NULL)));
    random_tokens(tokens, n, config.vocab_size);
    most_scratch = 0;
    most_kept = 0;
    pass_result r = run(&p, tokens, n);
    assert_in_range(most_scratch, 1, m.scratch_bytes);
    double share = (double)most_scratch / (double)m.scratch_bytes;
    if (share > most_share) most_share = share;
    uint64_t bound = retrieval_kept_bytes(spec, &m.geometry, n_prompt, n, 1);
    assert_true(most_kept <= bound && bound <= m.note_bytes);
    assert_int_equal(most_kept > 0, retrieval_keeps(spec));
    result_free(&r);
}

static void hostile_rows_take_what_was_planned(void **state)
{
    (void)state;
    const retrieval_spec specs[] = {
        greedy,
        exam(RETRIEVAL_SEPARATE),
        exam(RETRIEVAL_SHARED),
        follower(RETRIEVAL_QUEST, 5),
        follower(RETRIEVAL_DYNAMIC, 1),
        follower(RETRIEVAL_DYNAMIC, 16),
    };
    const unsigned ranks[] = {0, 2, 8}; /* 8: four of them hold the same KV head */
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (size_t j = 0; j < sizeof ranks / sizeof *ranks; j++)
            run_case(&specs[i], ranks[j], ranks[j] ? 192 : LONGEST);
    assert_true(most_share > 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hostile_rows_take_what_was_planned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "tests/unit/engine_fixture.h"

#include "base/logits.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

/* ---- the scripted backend -------------------------------------------------------------------- */

static const backend_info *scripted_info(void *ctx) { return &((scripted *)ctx)->info; }

void nap(void)
{
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
}

static void hang_until_interrupted(scripted *b)
{
    uint32_t before = atomic_load(&b->interrupts);
    atomic_store(&b->collecting, true);
    atomic_store(&b->hanging, true);
    while (atomic_load(&b->interrupts) == before) nap();
    atomic_store(&b->hanging, false);
    atomic_store(&b->collecting, false);
}

static status scripted_submit(void *ctx, const step_plan *plan)
{
    scripted *b = ctx;
    assert_in_range(b->n_plans, 0, b->info.max_in_flight - 1);
    if (atomic_exchange(&b->hang_submit, false)) {
        hang_until_interrupted(b);
        return status_make(STATUS_INTERNAL, "interrupted");
    }
    if (atomic_load(&b->refuse) && b->n_plans > 0) {
        atomic_store(&b->refused, (uint32_t)plan->step);
        return status_make(STATUS_UNAVAILABLE, "one is enough");
    }
    b->plans[b->n_plans++] = plan;
    if (b->n_plans > b->most_plans) b->most_plans = b->n_plans;
    return STATUS_IS_OK;
}

float scripted_logit(uint32_t token, uint32_t position, uint32_t next)
{
    if (token == UNDEFINED) return NAN;
    uint64_t bits = hash_mix64((uint64_t)token << 40 ^ (uint64_t)position << 20 ^ next);
    return (float)(bits >> 40) * 0x1p-20f - 8; /* [-8, 8) */
}

static const step_sample *give_scores(scripted *b, const step_seq *s)
{
    step_sample *scores = b->scores + s->first_token;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        uint32_t token = b->plan->tokens[s->first_token + i];
        for (uint32_t next = 0; next < VOCAB; next++)
            b->logits[next] = scripted_logit(token, s->position + i, next);
        step_sample *out = &scores[i];
        bool last = i + 1 == s->n_tokens;
        out->token = last ? s->next_token : b->plan->tokens[s->first_token + i + 1];
        logit_score score = logits_score(b->logits, VOCAB, out->token, s->want_scores - 1,
                                         out->top_ids, out->top_logprobs);
        out->logprob = score.logprob;
        out->rank = score.rank;
        out->n_top = score.n_top;
    }
    return scores;
}

void scripted_embed(uint32_t token, uint16_t *out)
{
    enum { ONE = 0x3c00 };
    memset(out, 0, 2 * EMBED_DIM * sizeof *out);
    out[token % EMBED_DIM] = out[EMBED_DIM + token % EMBED_DIM] = ONE;
    if (token == UNDEFINED) out[2 * EMBED_DIM - 1] = f16_from_f32(NAN);
}

static const uint16_t *give_embeddings(scripted *b, const step_seq *s, uint32_t *n)
{
    uint16_t *from = b->embeddings + (size_t)*n * 2 * EMBED_DIM;
    for (uint32_t i = 0; i < s->n_tokens; i++)
        scripted_embed(b->plan->tokens[s->first_token + i], from + (size_t)i * 2 * EMBED_DIM);
    *n += s->n_tokens;
    atomic_fetch_add(&b->embedded, s->n_tokens);
    return from;
}

void scripted_state(uint32_t token, uint32_t position, float out[HIDDEN])
{
    out[0] = (float)token;
    out[1] = (float)position;
    out[2] = token == UNDEFINED ? NAN : 1;
}

static const float *give_pooled(scripted *b, const step_seq *s)
{
    float *sum = b->pooled[s - b->plan->seqs];
    memset(sum, 0, sizeof b->pooled[0]);
    for (uint32_t i = s->pooling == POOLING_LAST ? s->n_tokens - 1 : 0; i < s->n_tokens; i++) {
        float one[HIDDEN];
        scripted_state(b->plan->tokens[s->first_token + i], s->position + i, one);
        for (uint32_t j = 0; j < HIDDEN; j++) sum[j] += one[j];
    }
    return sum;
}

/* Keeps what a prompt was, over its steps. */
static void note_prompt(scripted *b, const step_seq *s)
{
    if (s->n_embeds || s->n_layers || s->sample_index) return;
    if (s->position == 0) b->n_drawn = 0;
    for (uint32_t i = 0; i < s->n_tokens && b->n_drawn < SCRIPT_MAX; i++)
        b->drawn[b->n_drawn++] = b->plan->tokens[s->first_token + i];
}

static void give_samples(scripted *b, const step_seq *s, step_seq_result *out, uint32_t *n)
{
    /* A token of the step before is not in the plan. */
    uint32_t last = s->token_from ? b->script[s->sample_index - 1]
                                  : b->plan->tokens[s->first_token + s->n_tokens - 1];
    *out = (step_seq_result){.samples = &b->samples[*n], .n_samples = s->n_samples};
    for (uint32_t j = 0; j < s->n_samples; j++) {
        uint32_t at = s->sample_index < b->n_script ? s->sample_index : b->n_script - 1;
        /* A step that was begun before its sequence's end was known is not at a first token. */
        bool fault = s->sample_index == 0 && atomic_load(&b->faults) > 0;
        if (fault) atomic_fetch_sub(&b->faults, 1);
        b->samples[(*n)++] = (step_sample){.token = b->script[at],
                                           .logprob = -1,
                                           .rank = 1,
                                           .n_top = 1,
                                           .undefined = fault || last == UNDEFINED,
                                           .top_ids = {b->script[at]},
                                           .top_logprobs = {-1}};
    }
}

static status scripted_collect(void *ctx, const step_result **out)
{
    scripted *b = ctx;
    b->plan = b->plans[0];
    b->plans[0] = b->plans[--b->n_plans];
    bool has_rows = b->plan->n_seqs > 0; /* others follow a request's end, which readers know of */
    atomic_store(&b->collecting, has_rows);
    bool hangs = has_rows && atomic_exchange(&b->hang, false);
    uint32_t before = atomic_load(&b->interrupts);
    atomic_store(&b->hanging, hangs);
    while (hangs && atomic_load(&b->interrupts) == before) nap();
    if (has_rows && atomic_load(&b->hold_at) == atomic_load(&b->steps) + 1)
        atomic_store(&b->hold, true);
    while (has_rows && atomic_load(&b->hold)) nap();
    atomic_store(&b->hanging, false);
    atomic_store(&b->collecting, false);
    uint32_t step = has_rows ? atomic_fetch_add(&b->steps, 1) + 1 : 0, n = 0, n_embedded = 0;
    b->result = (step_result){.step = b->plan->step,
                              .seqs = b->seqs,
                              .n_seqs = b->plan->n_seqs,
                              .checksum = b->plan->checksum};
    for (uint32_t i = 0; i < b->plan->n_seqs; i++) {
        const step_seq *s = &b->plan->seqs[i];
        give_samples(b, s, &b->seqs[i], &n);
        assert_false(s->want_logits); /* no whole rows: the backend scores them itself */
        note_prompt(b, s);
        if (s->n_embeds) b->seqs[i].embeddings = give_embeddings(b, s, &n_embedded);
        if (s->pooling) b->seqs[i].pooled = give_pooled(b, s);
        if (s->want_scores) b->seqs[i].scores = give_scores(b, s);
        if (s->measure.kind != MEASURE_NONE)
            b->seqs[i].measure = (measure_result){.values = b->masses,
                                                  .n_layers = b->info.geometry.n_layers,
                                                  .n_kv_heads = 2,
                                                  .stride = 2048 / 16,
                                                  .q_heads = 1,
                                                  .holders = &b->holders};
    }
    b->result.checksum += has_rows && step == atomic_load(&b->lie_at);
    uint32_t fail_at = atomic_load(&b->fail_at);
    bool behind = fail_at > 0 && step == fail_at + 1 && atomic_load(&b->fail_behind);
    bool fails_reading = n_embedded > 0 && atomic_exchange(&b->fail_reading, false);
    if ((has_rows && step == fail_at) || behind || fails_reading) {
        b->result.status = b->failure;
        b->result.n_seqs = 0;
    }
    *out = &b->result;
    return hangs ? status_make(STATUS_INTERNAL, "interrupted") : STATUS_IS_OK;
}

static void scripted_interrupt(void *ctx) { atomic_fetch_add(&((scripted *)ctx)->interrupts, 1); }
static void scripted_destroy(void *ctx) { (void)ctx; }

static bool scripted_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                                uint8_t *const *to, uint32_t each)
{
    scripted *b = ctx;
    (void)cells;
    (void)n_slots;
    for (uint32_t i = 0; i < n; i += each)
        memset(to[i / each], 0, each * backend_cell_bytes(&b->info));
    atomic_fetch_add(&b->reads, 1);
    return !atomic_load(&b->unreadable);
}

static bool scripted_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    scripted *b = ctx;
    (void)cells;
    (void)n;
    (void)from;
    atomic_fetch_add(atomic_load(&b->gone) ? &b->late_writes : &b->writes, 1);
    return !atomic_load(&b->unwritable);
}

static const backend_ops scripted_ops = {
    .info = scripted_info,
    .submit = scripted_submit,
    .collect = scripted_collect,
    .interrupt = scripted_interrupt,
    .destroy = scripted_destroy,
    .read_cells = scripted_read_cells,
    .write_cells = scripted_write_cells,
};

/* ---- the engine ------------------------------------------------------------------------------ */

static void *fixture_resize(void *ctx, void *ptr, size_t size)
{
    fixture *f = ctx;
    if (size == 0) {
        free(ptr);
        return NULL;
    }
    if (atomic_load(&f->no_memory) || atomic_fetch_sub(&f->fail_in, 1) == 0) return NULL;
    return realloc(ptr, size);
}

uint32_t fixture_in_flight = 1;

fixture *fixture_create(void)
{
    fixture *f = calloc(1, sizeof *f);
    error err = {{0}};
    atomic_store(&f->fail_in, -1);
    f->model.info = (backend_info){.name = "scripted",
                                   .vocab_size = VOCAB,
                                   .max_positions = 2048,
                                   .max_rows = MAX_ROWS,
                                   .max_seqs = MAX_SEQS,
                                   .n_pages = 1000,
                                   .max_in_flight = fixture_in_flight,
                                   .n_heads = 4,
                                   .head_dim = EMBED_DIM,
                                   .hidden = HIDDEN,
                                   .geometry = {.page_tokens = 16,
                                                .n_layers = 2,
                                                .n_kv_heads = 2,
                                                .layers_per_group = 1,
                                                .heads_per_group = 2}};
    f->backend = (backend){&scripted_ops, &f->model};
    if (!status_ok(tok_load("models/demo", &f->tokenizer, &err))) fail_msg("%s", err.text);
    strbuf bos = {0}, eos = {0};
    if (!status_ok(tmpl_load("models/demo", &f->chat, &bos, &eos, &err))) fail_msg("%s", err.text);
    strbuf_destroy(&bos);
    strbuf_destroy(&eos);
    f->eos = (uint32_t)tok_find(f->tokenizer, "<|im_end|>", 10);
    f->alloc = (allocator){fixture_resize, f};
    f->options = (engine_options){.backend = &f->backend,
                                  .tokenizer = f->tokenizer,
                                  .chat = f->chat,
                                  .bos = "",
                                  .eos = "<|im_end|>",
                                  .prefill_chunk = 64,
                                  .max_model_len = 2048,
                                  .max_requests = 64,
                                  .prefix_cache = true,
                                  .stop_ids = &f->eos,
                                  .n_stop_ids = 1,
                                  .alloc = &f->alloc};
    return f;
}

void fixture_start(fixture *f)
{
    error err = {{0}};
    if (!status_ok(engine_create(&f->options, &f->engine, &err))) fail_msg("%s", err.text);
}

int fixture_teardown(void **state)
{
    fixture *f = *state;
    atomic_store(&f->model.hold, false); /* a test that failed may have left a step held */
    engine_destroy(f->engine);
    tmpl_destroy(f->chat);
    tok_destroy(f->tokenizer);
    free(f);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

void answer(fixture *f, const char *text)
{
    tok_ids ids = {0};
    assert_true(status_ok(tok_encode(f->tokenizer, text, strlen(text), false, &ids, NULL)));
    memcpy(f->model.script, ids.ids, ids.n * sizeof *ids.ids);
    f->model.script[ids.n] = f->eos;
    f->model.n_script = (uint32_t)ids.n + 1;
    tok_ids_destroy(&ids);
}

engine_request request(const char *json)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    json_t *tree;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    if (!status_ok(json_read_text("test", json, strlen(json), &tree, &err)))
        fail_msg("%s", err.text);
    if (!status_ok(engine_request_parse(tree, "test", NULL, &r, &err))) fail_msg("%s", err.text);
    json_decref(tree);
    return r;
}

engine_stream *submit(fixture *f, const char *json)
{
    engine_request r = request(json);
    engine_stream *s = NULL;
    error err = {{0}};
    if (!status_ok(engine_submit(f->engine, &r, NULL, NULL, &s, &err))) fail_msg("%s", err.text);
    engine_request_destroy(&r);
    return s;
}

reading read_stream(engine_stream *s)
{
    reading r = {.stop_token = -1};
    engine_output out;
    while (engine_stream_wait(s, &out)) {
        if (out.choice == 0) {
            assert_true(utf8_valid((const uint8_t *)out.text, out.text_bytes));
            memcpy(r.text + r.bytes, out.text, out.text_bytes);
            r.bytes += out.text_bytes;
            r.tokens += out.has_token;
        }
        if (out.finish == ENGINE_FINISH_NONE) continue;
        r.ends++;
        r.finish = out.finish;
        r.usage = out.usage;
        r.stop_token = out.stop_token;
        r.error_code = out.error_code;
        if (out.stop_string) snprintf(r.stop_string, sizeof r.stop_string, "%s", out.stop_string);
        if (out.error_text) snprintf(r.error_text, sizeof r.error_text, "%s", out.error_text);
    }
    return r;
}

reading read_all(engine_stream *s)
{
    reading r = read_stream(s);
    engine_stream_release(s);
    return r;
}

status_code expect_refused(fixture *f, const char *json, const char *word)
{
    engine_request r = request(json);
    engine_stream *s = NULL;
    error err = {{0}};
    status st = engine_submit(f->engine, &r, NULL, NULL, &s, &err);
    engine_request_destroy(&r);
    if (status_ok(st)) {
        reading done = read_all(s);
        assert_int_equal(done.finish, ENGINE_FINISH_ERROR);
        memcpy(err.text, done.error_text, sizeof err.text);
        st.code = done.error_code;
    }
    if (!strstr(err.text, word)) fail_msg("%s: \"%s\" does not name '%s'", json, err.text, word);
    return st.code;
}

#include "tests/unit/rpc_worker_fixture.h"

#include <time.h>
#include <unistd.h>

enum { PROMPT = 60, STEPS = 6, PATIENCE = 60000 };

void site_nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* Waits until the other ranks have reached what they are to hold: a failure that comes earlier ends
 * the group before their step has begun. */
static void await_other_holds(const site_rank *r)
{
    for (uint32_t i = 0; i < r->site->n; i++)
        while (i != r->index && atomic_load(&r->site->ranks[i].hold)) site_nap();
}

static void hold(site_rank *r)
{
    atomic_store(&r->holding, true);
    while (!atomic_load(&r->interrupted)) site_nap();
}

/* ---- a rank's backend ------------------------------------------------------------------------ */

static const backend_info *rank_info(void *ctx) { return &((site_rank *)ctx)->info; }

static void note_event(site_rank *r, char what, uint64_t step)
{
    pthread_mutex_lock(&r->lock);
    size_t n = strlen(r->events);
    snprintf(r->events + n, sizeof r->events - n, "%s%c%llu", n ? " " : "", what,
             (unsigned long long)step);
    pthread_mutex_unlock(&r->lock);
}

static status rank_submit(void *ctx, const step_plan *plan)
{
    site_rank *r = ctx;
    note_event(r, 'S', plan->step);
    if (atomic_exchange(&r->hold_submit, false)) hold(r);
    if (!r->ahead) {
        r->plans[0] = plan;
        return r->inner.ops->submit(r->inner.ctx, plan);
    }
    uint64_t in_flight = r->n_submitted - r->n_collected;
    if (in_flight == 2) return status_make(STATUS_INTERNAL, "three steps in flight");
    if (in_flight == 1 && atomic_exchange(&r->refuses, false))
        return status_make(STATUS_LIMIT, "a second step is too much");
    r->plans[r->n_submitted++ % 2] = plan;
    return STATUS_IS_OK;
}

/* Computes a step that was submitted before the draws were made whose tokens it takes. */
static status compute(site_rank *r, const step_plan *plan, const step_result **out)
{
    step_plan now = *plan;
    step_seq seqs[SITE_SEQS];
    uint32_t tokens[SITE_ROWS];
    memcpy(tokens, plan->tokens, plan->n_tokens * sizeof *tokens);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        seqs[i] = plan->seqs[i];
        seqs[i].token_from = 0;
        uint32_t from = plan->seqs[i].token_from;
        if (from) tokens[seqs[i].first_token] = r->drawn[from - 1];
    }
    now.seqs = seqs;
    now.tokens = tokens;
    RETURN_IF_ERROR(r->inner.ops->submit(r->inner.ctx, &now));
    RETURN_IF_ERROR(r->inner.ops->collect(r->inner.ctx, out));
    for (uint32_t i = 0; i < (*out)->n_seqs; i++)
        if ((*out)->seqs[i].n_samples) r->drawn[i] = (*out)->seqs[i].samples[0].token;
    return STATUS_IS_OK;
}

static status run(site_rank *r, const step_plan *plan, const step_result **out)
{
    return r->ahead ? compute(r, plan, out) : r->inner.ops->collect(r->inner.ctx, out);
}

static status fail_step(site_rank *r, const step_plan *plan, const step_result **out)
{
    if (r->end == STEP_ENDED_ALONE) await_other_holds(r);
    else RETURN_IF_ERROR(run(r, plan, out));
    r->failure = (step_result){
        .step = plan->step, .status = status_make(STATUS_NO_MEMORY, "a full house"), .end = r->end};
    *out = &r->failure;
    return STATUS_IS_OK;
}

static status rank_collect(void *ctx, const step_result **out)
{
    site_rank *r = ctx;
    const step_plan *plan = r->plans[r->ahead ? r->n_collected++ % 2 : 0];
    note_event(r, 'C', plan->step);
    if (atomic_exchange(&r->fails, false)) return fail_step(r, plan, out);
    if (atomic_exchange(&r->hold, false)) hold(r);
    return run(r, plan, out);
}

static void rank_interrupt(void *ctx)
{
    site_rank *r = ctx;
    r->inner.ops->interrupt(r->inner.ctx);
    atomic_store(&r->interrupted, true);
}

static void rank_destroy(void *ctx)
{
    site_rank *r = ctx;
    r->inner.ops->destroy(r->inner.ctx);
}

static bool rank_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                            uint8_t *const *to, uint32_t each)
{
    const backend *b = &((site_rank *)ctx)->inner;
    atomic_fetch_add(&((site_rank *)ctx)->reads, 1);
    return b->ops->read_cells(b->ctx, cells, n, n_slots, to, each);
}

static bool rank_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    const backend *b = &((site_rank *)ctx)->inner;
    return b->ops->write_cells(b->ctx, cells, n, from);
}

static const backend_ops rank_ops = {
    .info = rank_info,
    .submit = rank_submit,
    .collect = rank_collect,
    .interrupt = rank_interrupt,
    .read_cells = rank_read_cells,
    .write_cells = rank_write_cells,
    .destroy = rank_destroy,
};

/* ---- a worker's host ------------------------------------------------------------------------- */

static status host_configure(void *ctx, const worker_config *c, worker_address *out, error *err)
{
    site_rank *r = ctx;
    site *s = r->site;
    atomic_fetch_add(&r->sessions, 1);
    if (atomic_exchange(&r->hold_configure, false)) hold(r);
    if (c->config_fingerprint != SITE_FINGERPRINT)
        return error_set(err, STATUS_INVALID, "model: %s has another fingerprint here", c->model);
    if (c->rank != r->index || c->size != s->n || strcmp(c->kv_type, "f32") != 0)
        return error_set(err, STATUS_INVALID, "config: rank %u of %u", c->rank, c->size);
    status st = STATUS_IS_OK;
    pthread_mutex_lock(&s->lock);
    if (!s->comms) st = comm_group_create("threads", (int)c->size, &s->comms, err);
    comm_options o = {
        .kind = "threads", .rank = (int)c->rank, .size = (int)c->size, .group = s->comms};
    comm *made = NULL;
    if (status_ok(st)) st = comm_create(&o, &made, err);
    s->n_comms += status_ok(st);
    r->comm = made;
    pthread_mutex_unlock(&s->lock);
    *out = (worker_address){"here", 4};
    return st;
}

static status host_join(void *ctx, const worker_address *all, uint32_t n, error *err)
{
    (void)ctx;
    for (uint32_t i = 0; i < n; i++)
        if (all[i].n != 4 || memcmp(all[i].bytes, "here", 4) != 0)
            return error_set(err, STATUS_IO, "rank %u: no such address", i);
    return STATUS_IS_OK;
}

static backend_options cpu_options(const site *s)
{
    const worker_config *c = &s->config;
    return (backend_options){
        .dir = c->model,
        .config = &s->model,
        .kv_type = KERN_KV_F32,
        .weight_type = DTYPE_F32,
        .n_threads = 1,
        .geometry = c->geometry,
        .kv_bytes = c->kv_bytes,
        .max_rows = c->max_rows,
        .max_seqs = c->max_seqs,
        .max_model_len = c->max_model_len,
    };
}

static status host_load(void *ctx, backend *out, worker_facts *facts, error *err)
{
    site_rank *r = ctx;
    backend_options o = cpu_options(r->site);
    o.group = r->comm;
    o.kv_bytes = r->site->config.kv_bytes;
    RETURN_IF_ERROR(backend_cpu_create(&o, &r->inner, err));
    r->info = *r->inner.ops->info(r->inner.ctx);
    if (r->ahead) r->info.max_in_flight = 2;
    r->n_submitted = r->n_collected = 0;
    pthread_mutex_lock(&r->lock);
    r->events[0] = '\0';
    pthread_mutex_unlock(&r->lock);
    backend_facts f = backend_cpu_describe(&r->inner);
    *facts = (worker_facts){.n_threads = f.n_threads, .pool_bytes = f.pool_bytes};
    snprintf(facts->device, sizeof facts->device, "cpu, %s", f.isa);
    atomic_store(&r->interrupted, false);
    *out = (backend){&rank_ops, r};
    return STATUS_IS_OK;
}

static void host_abort(void *ctx)
{
    site_rank *r = ctx;
    pthread_mutex_lock(&r->site->lock);
    if (r->comm) comm_abort(r->comm);
    pthread_mutex_unlock(&r->site->lock);
    atomic_store(&r->interrupted, true);
}

static void host_reset(void *ctx)
{
    site_rank *r = ctx;
    site *s = r->site;
    pthread_mutex_lock(&s->lock);
    if (r->comm) {
        comm_destroy(r->comm);
        r->comm = NULL;
        if (--s->n_comms == 0) {
            comm_group_destroy(s->comms);
            s->comms = NULL;
        }
    }
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&r->resets, 1);
}

static bool host_waits(void *ctx, comm_wait *out)
{
    site_rank *r = ctx;
    pthread_mutex_lock(&r->lock);
    bool waits = r->waits;
    r->wait.idle_us += r->longer_us;
    *out = r->wait;
    pthread_mutex_unlock(&r->lock);
    atomic_fetch_add(&r->n_asked, 1);
    return waits;
}

static void log_line(void *ctx, const char *line)
{
    site_rank *r = ctx;
    pthread_mutex_lock(&r->lock);
    size_t n = strlen(r->log);
    snprintf(r->log + n, sizeof r->log - n, "%s\n", line);
    pthread_mutex_unlock(&r->lock);
}

void site_await(site_rank *r, const char *line)
{
    for (int i = 0; i < PATIENCE; i++) {
        pthread_mutex_lock(&r->lock);
        bool found = strstr(r->log, line);
        pthread_mutex_unlock(&r->lock);
        if (found) return;
        site_nap();
    }
    fail_msg("\"%s\" does not say '%s'", r->log, line);
}

void site_await_events(site_rank *r, const char *events)
{
    char got[sizeof r->events];
    for (int i = 0; i < PATIENCE; i++) {
        pthread_mutex_lock(&r->lock);
        snprintf(got, sizeof got, "%s", r->events);
        pthread_mutex_unlock(&r->lock);
        if (strncmp(got, events, strlen(got)) != 0) break;
        if (strcmp(got, events) == 0) return;
        site_nap();
    }
    fail_msg("rank %u: \"%s\", not \"%s\"", r->index, got, events);
}

void site_await_held(site_rank *r)
{
    for (int i = 0; i < PATIENCE && !atomic_load(&r->holding); i++) site_nap();
    if (atomic_load(&r->holding)) return;
    pthread_mutex_lock(&r->lock);
    char log[sizeof r->log];
    snprintf(log, sizeof log, "%s", r->log);
    pthread_mutex_unlock(&r->lock);
    fail_msg("rank %u was never given what it is to hold; its server said: %s", r->index, log);
}

/* ---- a site ---------------------------------------------------------------------------------- */

site *site_create(uint32_t n)
{
    site *s = calloc(1, sizeof *s);
    s->n = n;
    pthread_mutex_init(&s->lock, NULL);
    assert_true(status_ok(model_config_load("models/demo", NULL, 0, &s->model, NULL)));
    s->silence_us = SITE_LONG;
    s->config = (worker_config){
        .model = "models/demo",
        .config_fingerprint = SITE_FINGERPRINT,
        .comm = "threads",
        .device = "cpu",
        .kv_type = "f32",
        .weight_type = "f32",
        .isa = "",
        .cache_dir = "",
        .kv_disk = "",
        .geometry = {.page_tokens = 16,
                     .layers_per_group = 1,
                     .heads_per_group = s->model.n_kv_heads},
        .kv_bytes = 8 << 20,
        .max_rows = SITE_ROWS,
        .max_seqs = SITE_SEQS,
        .max_model_len = 256,
    };
    for (uint32_t i = 0; i < n; i++) {
        s->ranks[i].site = s;
        s->ranks[i].index = i;
        pthread_mutex_init(&s->ranks[i].lock, NULL);
    }
    return s;
}

void site_start_worker(site *s, uint32_t rank, const char *address)
{
    site_rank *r = &s->ranks[rank];
    error err = {{0}};
    worker_server_options o = {
        .address = address,
        .tls = s->tls,
        .version = SITE_VERSION,
        .host = {r, host_configure, host_join, host_load, host_abort, host_reset, host_waits},
        .part_bytes = s->part_bytes,
        .log_line = log_line,
        .log_ctx = r,
    };
    if (!status_ok(worker_server_create(&o, &r->server, &err))) fail_msg("%s", err.text);
    if (strncmp(address, "unix:", 5) == 0) snprintf(r->address, sizeof r->address, "%s", address);
    else snprintf(r->address, sizeof r->address, "127.0.0.1:%u", worker_server_port(r->server));
    s->addresses[rank] = r->address;
}

void site_start(site *s, bool on_unix)
{
    error err = {{0}};
    for (uint32_t i = 0; i < s->n; i++) {
        char path[64];
        snprintf(path, sizeof path, "unix:octavo-test-%d-%u.sock", (int)getpid(), i);
        if (!s->ranks[i].server) site_start_worker(s, i, on_unix ? path : "127.0.0.1:0");
    }
    worker_group_options *o = &s->options;
    o->addresses = s->addresses;
    o->n = s->n;
    if (!o->version) o->version = SITE_VERSION;
    o->config = &s->config;
    o->silence_us = s->silence_us;
    o->patience_us = s->patience_us;
    o->part_bytes = s->part_bytes;
    if (!status_ok(worker_group_create(o, &s->group, &err))) fail_msg("%s", err.text);
}

static const backend_info *made_info(void *ctx)
{
    backend *b = &((site *)ctx)->made;
    return b->ops->info(b->ctx);
}

static status made_submit(void *ctx, const step_plan *plan)
{
    backend *b = &((site *)ctx)->made;
    return b->ops->submit(b->ctx, plan);
}

static status made_collect(void *ctx, const step_result **out)
{
    backend *b = &((site *)ctx)->made;
    return b->ops->collect(b->ctx, out);
}

static void made_interrupt(void *ctx)
{
    backend *b = &((site *)ctx)->made;
    b->ops->interrupt(b->ctx);
}

static void made_destroy(void *ctx)
{
    backend *b = &((site *)ctx)->made;
    b->ops->destroy(b->ctx);
    *b = (backend){0};
}

static bool made_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                            uint8_t *const *to, uint32_t each)
{
    const backend *b = &((site *)ctx)->made;
    return b->ops->read_cells(b->ctx, cells, n, n_slots, to, each);
}

static bool made_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    const backend *b = &((site *)ctx)->made;
    return b->ops->write_cells(b->ctx, cells, n, from);
}

static const backend_ops made_ops = {
    .info = made_info,
    .submit = made_submit,
    .collect = made_collect,
    .interrupt = made_interrupt,
    .read_cells = made_read_cells,
    .write_cells = made_write_cells,
    .destroy = made_destroy,
};

status site_make(site *s, backend *out, error *err)
{
    backend_ranks_options o = {
        .n_ranks = s->n, .driven = true, .make = worker_proxy_make, .ctx = s->group};
    RETURN_IF_ERROR(backend_ranks_create(&o, &s->made, err));
    *out = (backend){&made_ops, s};
    return STATUS_IS_OK;
}

backend site_make_sure(site *s)
{
    backend b;
    error err = {{0}};
    if (!status_ok(site_make(s, &b, &err))) fail_msg("%s", err.text);
    return b;
}

void *make_ranks(void *arg)
{
    making *m = arg;
    backend b;
    m->status = site_make(m->site, &b, &m->why);
    return NULL;
}

void site_destroy(site *s)
{
    if (s->made.ops) {
        fprintf(stderr, "\nthe test failed before it destroyed its ranks: no other test is run\n");
        fflush(NULL);
        _exit(1);
    }
    worker_group_destroy(s->group);
    for (uint32_t i = 0; i < s->n; i++) {
        site_rank *r = &s->ranks[i];
        worker_server_destroy(r->server);
        if (strncmp(r->address, "unix:", 5) == 0) unlink(r->address + 5);
        assert_int_equal(atomic_load(&r->sessions), atomic_load(&r->resets));
        pthread_mutex_destroy(&r->lock);
    }
    assert_null(s->comms);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

backend site_local(site *s)
{
    backend b;
    error err = {{0}};
    backend_options o = cpu_options(s);
    o.n_threads = s->n;
    if (!status_ok(backend_cpu_ranks_create(&o, s->n, &b, &err))) fail_msg("%s", err.text);
    return b;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

enum { SCORE_TOPS = 4 };

void pass_begin(site_pass *p, const backend *b)
{
    const backend_info *info = b->ops->info(b->ctx);
    pkv_options o = {.geometry = info->geometry, .n_pages = info->n_pages, .max_seqs = 4};
    uint32_t hit;
    rng r = rng_seed(5);
    *p = (site_pass){.params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = 3, .seed = 9}};
    assert_true(status_ok(pkv_create(&o, &p->kv)));
    assert_true(status_ok(pkv_seq_open(p->kv, 2, PKV_HEAD, p->tokens, 0, 0, 100, &hit)));
    for (uint32_t i = 0; i < PROMPT; i++) p->tokens[i] = rng_below(&r, info->vocab_size);
    p->open = (step_open){.seq = 2, .params = &p->params};
    /* Ranks give the last heads and the first ones; they are joined in this order. */
    p->embeds[0] = (embed_head){1, EMBED_V, info->geometry.n_kv_heads - 1};
    p->embeds[1] = (embed_head){0, EMBED_Q, 0};
    p->embeds[2] = (embed_head){1, EMBED_Q, info->n_heads - 1};
    p->head_dim = info->head_dim;
    p->hidden = info->hidden;
}

const step_plan *pass_plan(site_pass *p)
{
    uint32_t n = p->step == 0 ? PROMPT : 1;
    assert_true(status_ok(pkv_seq_append(p->kv, 2, n)));
    p->seq = (step_seq){.seq = 2,
                        .n_tokens = n,
                        .position = p->length,
                        .n_samples = 1,
                        .sample_index = p->step,
                        .want_logits = true,
                        .want_scores = 1 + SCORE_TOPS,
                        .next_token = 7,
                        .embeds = p->embeds,
                        .n_embeds = 3,
                        .pooling = p->step % 2 ? POOLING_LAST : POOLING_SUM,
                        .measure = {.kind = MEASURE_MASS, .rows = 2, .layer_step = 1}};
    if (p->retrieval.block_tokens) {
        p->seq.retrieval = p->retrieval;
        p->seq.n_prompt = PROMPT;
        p->seq.note = 1;
        if (p->step > 0) p->seq.measure = (measure_spec){0};
    } else if (p->step % 2 == 1) {
        p->seq.measure.by_slot = true;
        p->seq.measure.second = MEASURE_VALUE_NORM;
    }
    if (p->step > 0) p->tokens[0] = p->token;
    p->length += n;
    p->plan = (step_plan){.step = ++p->step,
                          .deltas = pkv_take_deltas(p->kv),
                          .opens = &p->open,
                          .n_opens = p->step == 1,
                          .seqs = &p->seq,
                          .n_seqs = 1,
                          .tokens = p->tokens,
                          .n_tokens = n,
                          .checksum = pkv_checksum(p->kv)};
    return &p->plan;
}

static void take_reading(const retrieval_reading *r, strbuf *out)
{
    strbuf_printf(out, "%u %u %u %llu %llu %u %a %a %u %u %a", r->context, r->lists, r->selections,
                  (unsigned long long)r->tokens, (unsigned long long)r->blocks, r->audits,
                  r->recall_sum, r->least_recall, r->exams, r->failed, r->most_missed);
}

void pass_take(site_pass *p, const step_result *r, uint32_t vocab, strbuf *out)
{
    if (!status_ok(r->status)) fail_msg("step %u: %s", p->step, r->status.message);
    const step_seq_result *s = &r->seqs[0];
    const measure_result *m = &s->measure;
    assert_int_equal(s->n_samples, 1);
    assert_int_equal(r->n_logit_rows, p->plan.n_tokens);
    size_t floats = (size_t)m->n_layers * m->n_kv_heads * m->stride;
    if (p->seq.measure.second) floats *= 2;
    p->token = s->samples[0].token;
    strbuf_append(out, &p->token, sizeof p->token);
    strbuf_append(out, &s->samples[0].logprob, sizeof(float));
    strbuf_append(out, s->samples[0].top_ids, 3 * sizeof(uint32_t));
    strbuf_append(out, s->samples[0].top_logprobs, 3 * sizeof(float));
    strbuf_append(out, r->logits, (size_t)r->n_logit_rows * vocab * sizeof(float));
    if (floats > 0) strbuf_append(out, m->values, floats * sizeof(float));
    bool reads_few = p->retrieval.block_tokens && p->step > 1;
    assert_int_equal(s->n_readings, reads_few ? p->plan.n_tokens : 0);
    for (uint32_t i = 0; i < s->n_readings; i++) take_reading(&s->readings[i], out);
    strbuf_append(out, s->embeddings,
                  (size_t)p->plan.n_tokens * p->seq.n_embeds * p->head_dim * sizeof(uint16_t));
    strbuf_append(out, s->pooled, p->hidden * sizeof(float));
    for (uint32_t i = 0; i < p->plan.n_tokens; i++) {
        const step_sample *score = &s->scores[i];
        assert_int_equal(score->n_top, SCORE_TOPS);
        strbuf_append(out, &score->token, sizeof score->token);
        strbuf_append(out, &score->rank, sizeof score->rank);
        strbuf_append(out, &score->logprob, sizeof(float));
        strbuf_append(out, score->top_ids, SCORE_TOPS * sizeof(uint32_t));
        strbuf_append(out, score->top_logprobs, SCORE_TOPS * sizeof(float));
    }
}

void pass_end(site_pass *p) { pkv_destroy(p->kv); }

void pass_run(const backend *b, const retrieval_spec *retrieval, strbuf *out)
{
    site_pass p;
    pass_begin(&p, b);
    if (retrieval) p.retrieval = *retrieval;
    for (int i = 0; i < STEPS; i++) {
        const step_result *r = NULL;
        const step_plan *plan = pass_plan(&p);
        assert_true(status_ok(b->ops->submit(b->ctx, plan)));
        status st = b->ops->collect(b->ctx, &r);
        if (!status_ok(st)) fail_msg("step %d: %s", i, st.message);
        pass_take(&p, r, b->ops->info(b->ctx)->vocab_size, out);
    }
    pass_end(&p);
}

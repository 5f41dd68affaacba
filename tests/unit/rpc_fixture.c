/* The scripted engine, and a log that can be read back. */
#include "tests/unit/rpc_fixture.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- the backend ----------------------------------------------------------------------------- */

static const backend_info *script_info(void *ctx) { return &((rpc_fixture *)ctx)->info; }

static status script_submit(void *ctx, const step_plan *plan)
{
    ((rpc_fixture *)ctx)->plan = plan;
    return STATUS_IS_OK;
}

static status script_collect(void *ctx, const step_result **out)
{
    rpc_fixture *f = ctx;
    while (atomic_load(&f->hold)) rpc_fixture_nap();
    uint32_t n = 0;
    f->result = (step_result){.step = f->plan->step,
                              .seqs = f->seqs,
                              .n_seqs = f->plan->n_seqs,
                              .checksum = f->plan->checksum};
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
        const step_seq *s = &f->plan->seqs[i];
        f->seqs[i] = (step_seq_result){.samples = &f->samples[n], .n_samples = s->n_samples};
        for (uint32_t j = 0; j < s->n_samples; j++)
            f->samples[n++] = (step_sample){
                .token = s->sample_index < f->n_script ? f->script[s->sample_index] : f->eos};
    }
    *out = &f->result;
    return STATUS_IS_OK;
}

static void script_nothing(void *ctx) { (void)ctx; }

static const backend_ops script_ops = {
    .info = script_info,
    .submit = script_submit,
    .collect = script_collect,
    .interrupt = script_nothing,
    .destroy = script_nothing,
};

/* ---- life ------------------------------------------------------------------------------------ */

static void make_engine(rpc_fixture *f, uint32_t max_requests)
{
    error err = {{0}};
    f->info = (backend_info){.name = "script",
                             .vocab_size = 1024 + 16,
                             .max_positions = 2048,
                             .max_rows = 64 + RPC_FIXTURE_SEQS,
                             .max_seqs = RPC_FIXTURE_SEQS,
                             .n_pages = 1000,
                             .max_in_flight = 1,
                             .geometry = {.page_tokens = 16,
                                          .n_layers = 2,
                                          .n_kv_heads = 2,
                                          .layers_per_group = 1,
                                          .heads_per_group = 2}};
    f->backend = (backend){&script_ops, f};
    if (!status_ok(tok_load("models/demo", &f->tokenizer, &err))) fail_msg("%s", err.text);
    f->eos = (uint32_t)tok_find(f->tokenizer, "<|im_end|>", 10);
    engine_options o = {.backend = &f->backend,
                        .tokenizer = f->tokenizer,
                        .bos = "",
                        .eos = "",
                        .prefill_chunk = 64,
                        .max_model_len = 2048,
                        .max_requests = max_requests,
                        .prefix_cache = true,
                        .stop_ids = &f->eos,
                        .n_stop_ids = 1,
                        .on_block = rpc_events_on_block,
                        .on_block_ctx = f->events};
    if (!status_ok(engine_create(&o, &f->engine, &err))) fail_msg("%s", err.text);
}

rpc_fixture *rpc_fixture_create(const rpc_fixture_options *o)
{
    rpc_fixture *f = calloc(1, sizeof *f);
    uint32_t max_requests = o->max_requests ? o->max_requests : 64;
    f->log_fd = memfd_create("log", MFD_CLOEXEC);
    assert_true(f->log_fd >= 0);
    assert_true(status_ok(rpc_log_create(f->log_fd, o->log_prompts, &f->log)));
    assert_true(status_ok(rpc_events_create(64, 16, &f->events)));
    make_engine(f, max_requests);
    rpc_fixture_answer(f, "ok");
    const char *names[] = {o->model_name ? o->model_name : "demo", "other"};
    rpc_options ro = {.engine = f->engine,
                      .model = {.names = names,
                                .n_names = 2,
                                .tokenizer = f->tokenizer,
                                .page_tokens = 16,
                                .n_pages = 999,
                                .n_blocks = 333,
                                .max_requests = max_requests,
                                .kv_dtype = "bf16"},
                      .log = f->log,
                      .events = f->events,
                      .api_keys = o->keys,
                      .n_api_keys = o->n_keys,
                      .admin_keys = o->admin_keys,
                      .n_admin_keys = o->n_admin_keys};
    /* The service borrows the names: they must outlive this function. */
    const char **kept = malloc(sizeof names);
    memcpy(kept, names, sizeof names);
    ro.model.names = kept;
    assert_true(status_ok(service_init(&f->service, &ro)));
    return f;
}

void rpc_fixture_destroy(rpc_fixture *f)
{
    const char *const *names = f->service.o.model.names;
    atomic_store(&f->hold, false); /* a test that failed may have left a step held */
    assert_int_equal(atomic_load(&f->service.in_flight), 0);
    for (uint32_t i = 0; i < SERVICE_BUCKETS; i++) assert_null(f->service.live[i]);
    service_destroy(&f->service);
    free((void *)(uintptr_t)names);
    engine_destroy(f->engine);
    rpc_events_destroy(f->events);
    rpc_log_destroy(f->log);
    tok_destroy(f->tokenizer);
    close(f->log_fd);
    free(f);
}

/* ---- work ------------------------------------------------------------------------------------ */

void rpc_fixture_answer(rpc_fixture *f, const char *text)
{
    tok_ids ids = {0};
    assert_true(status_ok(tok_encode(f->tokenizer, text, strlen(text), false, &ids, NULL)));
    assert_true(ids.n <= RPC_FIXTURE_SCRIPT);
    memcpy(f->script, ids.ids, ids.n * sizeof *ids.ids);
    f->n_script = (uint32_t)ids.n;
    tok_ids_destroy(&ids);
}

engine_request rpc_fixture_request(const char *json)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    engine_request r;
    json_t *tree;
    error err = {{0}};
    engine_request_init(&r, &defaults);
    if (!status_ok(json_read_text("test", json, strlen(json), &tree, &err)) ||
        !status_ok(engine_request_parse(tree, "test", NULL, &r, &err)))
        fail_msg("%s", err.text);
    json_decref(tree);
    return r;
}

generation *rpc_fixture_start(rpc_fixture *f, const char *json, uint32_t n, const char *id)
{
    engine_request requests[RPC_FIXTURE_MOST];
    generation *g = NULL;
    error err = {{0}};
    assert_true(n <= sizeof requests / sizeof requests[0]);
    for (uint32_t i = 0; i < n; i++) requests[i] = rpc_fixture_request(json);
    generation_options o = {.id = id, .surface = "test"};
    if (!status_ok(generation_start(&f->service, requests, n, &o, &g, &err)))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n; i++) engine_request_destroy(&requests[i]);
    return g;
}

void rpc_fixture_nap(void)
{
    struct timespec t = {0, 200000};
    nanosleep(&t, NULL);
}

void rpc_fixture_wait_idle(rpc_fixture *f)
{
    while (engine_get_stats(f->engine).n_live > 0) rpc_fixture_nap();
}

json_t *rpc_fixture_log(rpc_fixture *f)
{
    json_t *lines = json_array();
    off_t size = lseek(f->log_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1), *rest = NULL;
    assert_int_equal(pread(f->log_fd, text, (size_t)size, 0), size);
    assert_true(size == 0 || text[size - 1] == '\n');
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_error_t why;
        json_t *tree = json_loads(line, JSON_REJECT_DUPLICATES, &why);
        if (!tree) fail_msg("%s: %s", line, why.text);
        json_array_append_new(lines, tree);
    }
    free(text);
    return lines;
}

/* Generations: started all or none, read in turn, found by id, reported in the log. */
#include "tests/unit/rpc_fixture.h"

/* ---- helpers --------------------------------------------------------------------------------- */

typedef struct reading {
    char text[64][256]; // by index
    size_t bytes[64];
    uint32_t ends[64];
    engine_finish finish[64];
    uint32_t n_ends;
} reading;

static void take(reading *r, const generation_output *o)
{
    assert_true(o->index < 64);
    memcpy(r->text[o->index] + r->bytes[o->index], o->out.text, o->out.text_bytes);
    r->bytes[o->index] += o->out.text_bytes;
    if (o->out.finish == ENGINE_FINISH_NONE) return;
    r->ends[o->index]++;
    r->n_ends++;
    r->finish[o->index] = o->out.finish;
}

static void read_all(generation *g, reading *r)
{
    generation_output o;
    *r = (reading){0};
    while (!generation_ended(g))
        if (generation_read(g, &o)) take(r, &o);
        else rpc_fixture_nap();
    assert_false(generation_read(g, &o));
}

/* The line of a request in the log, the last one with this id. */
static json_t *line_of(json_t *lines, const char *id)
{
    for (size_t i = json_array_size(lines); i-- > 0;) {
        json_t *line = json_array_get(lines, i);
        const char *its = json_string_value(json_object_get(line, "id"));
        if (its && strcmp(its, id) == 0) return line;
    }
    fail_msg("no line of %s", id);
    return NULL;
}

static int64_t number(const json_t *line, const char *key)
{
    assert_true(json_is_integer(json_object_get(line, key)));
    return json_integer_value(json_object_get(line, key));
}

static const char *text(const json_t *line, const char *key)
{
    const char *t = json_string_value(json_object_get(line, key));
    return t ? t : "";
}

static void refused(rpc_fixture *f, engine_request *requests, uint32_t n, const char *id,
                    status_code code, const char *word)
{
    generation *g = NULL;
    error err = {{0}};
    generation_options o = {.id = id, .surface = "test"};
    status st = generation_start(&f->service, requests, n, &o, &g, &err);
    assert_int_equal(st.code, code);
    assert_null(g);
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say '%s'", err.text, word);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void one_request_is_read_and_notified(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    rpc_fixture_answer(f, "Hello, world");
    reading r;
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"secret words\"}", 1, "abc");
    assert_int_equal(atomic_load(&f->service.in_flight), 1);
    assert_string_equal(generation_id(g), "abc");
    read_all(g, &r);
    assert_string_equal(r.text[0], "Hello, world");
    assert_int_equal(r.finish[0], ENGINE_FINISH_STOP);
    assert_true(generation_prompt(g, 0).n_tokens > 0);
    generation_release(g);

    json_t *lines = rpc_fixture_log(f), *line = line_of(lines, "abc");
    assert_int_equal(json_array_size(lines), 1);
    assert_string_equal(text(line, "event"), "request");
    assert_string_equal(text(line, "level"), "info");
    assert_string_equal(text(line, "surface"), "test");
    assert_string_equal(text(line, "finish_reason"), "stop");
    assert_int_equal(number(line, "completion_tokens"), f->n_script + 1);
    assert_true(number(line, "prompt_tokens") > 0);
    assert_int_equal(number(line, "n"), 1);
    static const char *const times[] = {"queue_ms", "ttft_ms", "tpot_ms", "total_ms"};
    for (int i = 0; i < 4; i++)
        assert_true(json_number_value(json_object_get(line, times[i])) >= 0);
    assert_null(json_object_get(line, "prompt"));
    assert_null(json_object_get(line, "output"));
    assert_null(json_object_get(line, "error"));
    assert_null(json_object_get(line, "prompt_index"));
    json_decref(lines);
    rpc_fixture_destroy(f);
}

static void many_prompts_and_choices(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    rpc_fixture_answer(f, "abc def");
    reading r;
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\", \"n\": 2}", 3, "many");
    read_all(g, &r);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(r.ends[i], 1);
        assert_string_equal(r.text[i], "abc def");
    }
    assert_int_equal(r.n_ends, 6);
    generation_release(g);
    json_t *lines = rpc_fixture_log(f);
    assert_int_equal(json_array_size(lines), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *line = json_array_get(lines, i);
        assert_int_equal(number(line, "prompt_index"), i);
        assert_int_equal(number(line, "n"), 2);
        assert_int_equal(number(line, "completion_tokens"), 2 * (f->n_script + 1));
        assert_int_equal(json_array_size(json_object_get(line, "finish_reason")), 2);
    }
    json_decref(lines);
    rpc_fixture_destroy(f);
}

/* More requests than a word of ready bits holds. */
static void they_are_read_in_turn(void **state)
{
    enum { N = RPC_FIXTURE_MOST };
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.max_requests = 2 * N});
    (void)state;
    rpc_fixture_answer(f, "a b c");
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\"}", N, NULL);
    rpc_fixture_wait_idle(f);
    /* The engine counts ends before readers are told of them. A later request that is read to its
     * end shows that they have been. */
    reading later;
    generation *after = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, NULL);
    read_all(after, &later);
    generation_release(after);
    generation_output o;
    for (uint32_t round = 0; round <= f->n_script; round++)
        for (uint32_t i = 0; i < N; i++) {
            assert_false(generation_ended(g));
            assert_true(generation_read(g, &o));
            assert_int_equal(o.request, i);
        }
    assert_true(generation_ended(g));
    generation_release(g);
    rpc_fixture_destroy(f);
}

static void all_or_nothing(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.max_requests = 4});
    (void)state;
    engine_request r[5];
    for (int i = 0; i < 5; i++) r[i] = rpc_fixture_request("{\"prompt\": \"x\"}");
    refused(f, r, 5, "a", STATUS_LIMIT, "prompt");
    refused(f, r, 0, "a", STATUS_INVALID, "prompt");
    r[2].top_p = 0;
    refused(f, r, 3, "a", STATUS_INVALID, "top_p");
    assert_false(service_abort(&f->service, "", "a", 1));
    assert_int_equal(atomic_load(&f->service.in_flight), 0);
    rpc_fixture_wait_idle(f);
    r[2].top_p = 1;
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 3, "a");
    reading all;
    read_all(g, &all);
    generation_release(g);
    for (int i = 0; i < 5; i++) engine_request_destroy(&r[i]);
    rpc_fixture_destroy(f);
}

static void a_full_queue_is_counted_and_logged_once(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.max_requests = 2});
    (void)state;
    engine_request r[2];
    for (int i = 0; i < 2; i++) r[i] = rpc_fixture_request("{\"prompt\": \"x\"}");
    atomic_store(&f->hold, true);
    generation *a = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, "a");
    refused(f, r, 2, "b", STATUS_QUEUE_FULL, "room");
    generation *b = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, "b");
    for (int i = 0; i < 100; i++) refused(f, r, 1, NULL, STATUS_QUEUE_FULL, "2 requests");
    service_tick(&f->service);
    service_tick(&f->service);
    assert_int_equal(atomic_load(&f->service.refused[REFUSED_QUEUE_FULL]), 101);
    json_t *lines = rpc_fixture_log(f);
    assert_int_equal(json_array_size(lines), 1);
    const json_t *line = json_array_get(lines, 0);
    assert_string_equal(text(line, "event"), "refused");
    assert_int_equal(number(line, "queue_full"), 101);
    assert_int_equal(number(line, "draining"), 0);
    json_decref(lines);
    atomic_store(&f->hold, false);
    generation_release(a);
    generation_release(b);
    for (int i = 0; i < 2; i++) engine_request_destroy(&r[i]);
    rpc_fixture_destroy(f);
}

static void count_call(void *ctx) { atomic_fetch_add((_Atomic int *)ctx, 1); }

static void draining_refuses_and_notifies(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    _Atomic int n_notified = 0;
    listener l = {.notify = count_call, .ctx = &n_notified};
    listeners_add(&f->service.state_listeners, &l);
    atomic_store(&f->hold, true);
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, NULL);
    assert_true(service_is_serving(&f->service));
    assert_string_equal(service_state(&f->service), "serving");
    service_drain(&f->service);
    service_drain(&f->service);
    assert_int_equal(atomic_load(&n_notified), 1);
    assert_false(service_is_serving(&f->service));
    assert_string_equal(service_state(&f->service), "draining");
    engine_request r = rpc_fixture_request("{\"prompt\": \"x\"}");
    refused(f, &r, 1, NULL, STATUS_UNAVAILABLE, "shutting down");
    assert_int_equal(atomic_load(&f->service.in_flight), 1);
    engine_request_destroy(&r);
    atomic_store(&f->hold, false);
    reading all;
    read_all(g, &all);
    assert_string_equal(all.text[0], "ok");
    generation_release(g);
    listeners_remove(&f->service.state_listeners, &l);
    rpc_fixture_destroy(f);
}

static generation *start_as(rpc_fixture *f, const char *identity, const char *id)
{
    generation *g;
    error err = {{0}};
    engine_request r = rpc_fixture_request("{\"prompt\": \"x\"}");
    generation_options o = {.id = id, .surface = "test", .identity = identity};
    status st = generation_start(&f->service, &r, 1, &o, &g, &err);
    engine_request_destroy(&r);
    if (!status_ok(st)) fail_msg("%s", err.text);
    return g;
}

/* Two identities may use the same id at once, and neither can end the other's request by it. */
static void ids_are_ones_own(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    reading read;
    atomic_store(&f->hold, true);
    generation *alice = start_as(f, "alice", "job"), *bob = start_as(f, "bob", "job");
    assert_int_equal(service_abort(&f->service, "carol", "job", 3), 0);
    assert_int_equal(service_abort(&f->service, "", "job", 3), 0);
    assert_int_equal(service_abort(&f->service, "bob", "job", 3), 1);
    atomic_store(&f->hold, false);
    read_all(bob, &read);
    assert_int_equal(read.finish[0], ENGINE_FINISH_ABORT);
    read_all(alice, &read);
    assert_int_equal(read.finish[0], ENGINE_FINISH_STOP);
    generation_release(alice);
    generation_release(bob);
    /* An abort without an identity ends the requests of all identities with this id. */
    atomic_store(&f->hold, true);
    alice = start_as(f, "alice", "job");
    bob = start_as(f, "bob", "job");
    assert_int_equal(service_abort(&f->service, NULL, "job", 3), 2);
    atomic_store(&f->hold, false);
    read_all(alice, &read);
    assert_int_equal(read.finish[0], ENGINE_FINISH_ABORT);
    read_all(bob, &read);
    assert_int_equal(read.finish[0], ENGINE_FINISH_ABORT);
    generation_release(alice);
    generation_release(bob);
    rpc_fixture_destroy(f);
}

static void abort_by_id(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    char long_id[200];
    memset(long_id, 'x', sizeof long_id);
    long_id[SERVICE_ID_BYTES_MAX + 1] = '\0';
    engine_request r = rpc_fixture_request("{\"prompt\": \"x\"}");
    refused(f, &r, 1, long_id, STATUS_INVALID, "request_id");
    atomic_store(&f->hold, true);
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\", \"n\": 2}", 2, "me");
    refused(f, &r, 1, "me", STATUS_INVALID, "request_id");
    assert_false(service_abort(&f->service, "", "m", 1));
    assert_false(service_abort(&f->service, "", "me2", 3));
    assert_true(service_abort(&f->service, "", "me", 2));
    atomic_store(&f->hold, false);
    reading all;
    read_all(g, &all);
    for (int i = 0; i < 4; i++) assert_int_equal(all.finish[i], ENGINE_FINISH_ABORT);
    generation_release(g);
    assert_false(service_abort(&f->service, "", "me", 2));
    g = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, "me");
    read_all(g, &all);
    assert_int_equal(all.finish[0], ENGINE_FINISH_STOP);
    generation_release(g);
    engine_request_destroy(&r);
    rpc_fixture_destroy(f);
}

static void ids_made_here_differ(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    generation *a = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, NULL);
    generation *b = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 1, "");
    assert_string_not_equal(generation_id(a), generation_id(b));
    assert_int_equal(strlen(generation_id(a)), 16);
    generation_release(a);
    generation_release(b);
    rpc_fixture_destroy(f);
}

static void the_log_shows_prompts_when_asked(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.log_prompts = true});
    (void)state;
    rpc_fixture_answer(f, "the answer");
    static const char id[] = "a\"}\n{\"b\\\x01\xff";
    reading all;
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"the \\\"question\\\"\"}", 1, id);
    read_all(g, &all);
    generation_release(g);
    json_t *lines = rpc_fixture_log(f), *line = json_array_get(lines, 0);
    assert_string_equal(text(line, "id"), "a\"}\n{\"b\\\x01\xef\xbf\xbd");
    assert_string_equal(text(line, "prompt"), "the \"question\"");
    assert_string_equal(text(line, "output"), "the answer");
    json_decref(lines);
    rpc_fixture_destroy(f);
}

static void what_is_given_up_is_an_abort(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    rpc_fixture_answer(f, "one two three four five six");
    generation *g = rpc_fixture_start(f, "{\"prompt_token_ids\": [1, 2, 3]}", 1, "gone");
    generation_output o;
    while (!generation_read(g, &o)) rpc_fixture_nap();
    generation_release(g);
    json_t *lines = rpc_fixture_log(f), *line = line_of(lines, "gone");
    assert_string_equal(text(line, "finish_reason"), "abort");
    assert_int_equal(number(line, "prompt_tokens"), 3);
    assert_int_equal(number(line, "completion_tokens"), 1);
    json_decref(lines);
    rpc_fixture_wait_idle(f);
    rpc_fixture_destroy(f);
}

static void a_failed_request_gives_its_reason(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    static char json[12000];
    size_t n = (size_t)snprintf(json, sizeof json, "{\"prompt_token_ids\": [1");
    for (int i = 0; i < 2100; i++) n += (size_t)snprintf(json + n, sizeof json - n, ",1");
    snprintf(json + n, sizeof json - n, "]}");
    reading all;
    generation *g = rpc_fixture_start(f, json, 1, "long");
    read_all(g, &all);
    assert_int_equal(all.finish[0], ENGINE_FINISH_ERROR);
    generation_release(g);
    json_t *lines = rpc_fixture_log(f), *line = line_of(lines, "long");
    assert_string_equal(text(line, "level"), "warning");
    assert_string_equal(text(line, "finish_reason"), "error");
    assert_non_null(strstr(text(line, "error"), "2101 tokens"));
    json_decref(lines);
    rpc_fixture_destroy(f);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { WORKERS = 3, ROUNDS = 60 };

typedef struct worker {
    rpc_fixture *f;
    int number;
    _Atomic bool *stop;
    pthread_t thread;
} worker;

/* Starts, reads some, releases: its generations come and go while other threads abort them. */
static void *come_and_go(void *ctx)
{
    worker *w = ctx;
    char id[16];
    snprintf(id, sizeof id, "w%d", w->number);
    for (int i = 0; i < ROUNDS; i++) {
        generation *g = rpc_fixture_start(w->f, "{\"prompt\": \"x\", \"n\": 2}", 2, id);
        generation_output o;
        for (int reads = 0; reads < i % 7 && !generation_ended(g);)
            if (generation_read(g, &o)) reads++;
            else rpc_fixture_nap();
        generation_release(g);
    }
    return NULL;
}

static void *abort_them(void *ctx)
{
    worker *w = ctx;
    char id[16];
    for (int i = 0; !atomic_load(w->stop); i++) {
        snprintf(id, sizeof id, "w%d", i % WORKERS);
        service_abort(&w->f->service, NULL, id, strlen(id));
        rpc_fixture_nap();
    }
    return NULL;
}

static void aborts_race_with_releases(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    _Atomic bool stop = false;
    worker workers[WORKERS], aborter = {.f = f, .stop = &stop};
    assert_int_equal(pthread_create(&aborter.thread, NULL, abort_them, &aborter), 0);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.f = f, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, come_and_go, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i].thread, NULL);
    atomic_store(&stop, true);
    pthread_join(aborter.thread, NULL);
    rpc_fixture_wait_idle(f);
    json_t *lines = rpc_fixture_log(f);
    assert_int_equal(json_array_size(lines), WORKERS * ROUNDS * 2);
    json_decref(lines);
    rpc_fixture_destroy(f);
}

/* notify means that something can be read: a reader that looks only when notified misses
 * nothing. */
static void nothing_is_read_without_a_word(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    _Atomic int n_notified = 0;
    engine_request r = rpc_fixture_request("{\"prompt\": \"x\", \"n\": 2}");
    generation_options o = {.surface = "test", .notify = count_call, .notify_ctx = &n_notified};
    for (int i = 0; i < 20; i++) {
        generation *g;
        generation_output out;
        uint32_t n_ends = 0;
        assert_true(status_ok(generation_start(&f->service, &r, 1, &o, &g, NULL)));
        while (!generation_ended(g)) {
            while (atomic_exchange(&n_notified, 0) == 0) rpc_fixture_nap();
            while (generation_read(g, &out)) n_ends += out.out.finish != ENGINE_FINISH_NONE;
        }
        assert_int_equal(n_ends, 2);
        generation_release(g);
    }
    engine_request_destroy(&r);
    rpc_fixture_destroy(f);
}

static void names_and_retry(void **state)
{
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    (void)state;
    service *s = &f->service;
    assert_true(service_knows_model(s, NULL, 0));
    assert_true(service_knows_model(s, "", 0));
    assert_true(service_knows_model(s, "demo", 4));
    assert_true(service_knows_model(s, "other", 5));
    assert_false(service_knows_model(s, "dem", 3));
    assert_false(service_knows_model(s, "demo2", 5));
    assert_false(service_knows_model(s, "demo\0", 5));
    assert_int_equal(service_retry_after_s(s), 1);
    s->duration_us = 40e6;
    assert_int_equal(service_retry_after_s(s), 10);
    s->duration_us = 4000e6;
    assert_int_equal(service_retry_after_s(s), 60);
    rpc_fixture_destroy(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_is_read_and_notified),
        cmocka_unit_test(many_prompts_and_choices),
        cmocka_unit_test(they_are_read_in_turn),
        cmocka_unit_test(all_or_nothing),
        cmocka_unit_test(a_full_queue_is_counted_and_logged_once),
        cmocka_unit_test(draining_refuses_and_notifies),
        cmocka_unit_test(ids_are_ones_own),
        cmocka_unit_test(abort_by_id),
        cmocka_unit_test(ids_made_here_differ),
        cmocka_unit_test(the_log_shows_prompts_when_asked),
        cmocka_unit_test(what_is_given_up_is_an_abort),
        cmocka_unit_test(a_failed_request_gives_its_reason),
        cmocka_unit_test(aborts_race_with_releases),
        cmocka_unit_test(nothing_is_read_without_a_word),
        cmocka_unit_test(names_and_retry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

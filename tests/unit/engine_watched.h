/* An engine whose backend can hang, fail and be lost, and what it tells of that.
 *
 * The machine's speed does not decide how long a step takes: the time-out is hours, and a test that
 * wants a hung step makes the running step old enough (expire). Only one test waits for the
 * clock. */
#ifndef TESTS_UNIT_ENGINE_WATCHED_H
#define TESTS_UNIT_ENGINE_WATCHED_H

#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

#include <pthread.h>
#include <stdio.h>

enum { PROMPT = 40, PROMPT_BLOCKS = 2 };
#define AGES INT64_C(10000000000) /* microseconds: longer than any test runs */
static const char usual[] =
    "{\"prompt_token_ids\": [%s], \"max_tokens\": %d, \"ignore_eos\": true}";

typedef struct watched {
    fixture f; /* the first member, since the fixture's teardown is used */
    _Atomic uint32_t restarts, cleared, stored;
    _Atomic uint32_t absent; /* this many restarts lack a worker, or memory */
    _Atomic bool lose_next;  /* the next remade backend is lost at once */
    status_code restart_status;
    uint32_t restart_pages, restart_vocab, restart_heads, restart_head_dim;
    uint64_t restart_kv; /* kv_identity */
    pthread_mutex_t lock;
    char trouble[4096]; /* lines of the log */
} watched;

static inline status restart(void *ctx, backend *out, error *err)
{
    watched *w = ctx;
    atomic_fetch_add(&w->restarts, 1);
    if (atomic_load(&w->absent) > 0) {
        bool even = atomic_fetch_sub(&w->absent, 1) % 2 == 0;
        return error_set(err, even ? STATUS_NO_MEMORY : STATUS_UNAVAILABLE,
                         "rank 1: no worker there");
    }
    if (w->restart_status != STATUS_OK)
        return error_set(err, w->restart_status, "no weights any more");
    if (atomic_exchange(&w->lose_next, false)) engine_backend_lost(w->f.engine, "rank 0: gone");
    if (w->restart_pages) w->f.model.info.n_pages = w->restart_pages;
    if (w->restart_kv) w->f.model.info.kv_identity = w->restart_kv;
    if (w->restart_vocab) w->f.model.info.vocab_size = w->restart_vocab;
    if (w->restart_heads) w->f.model.info.n_heads = w->restart_heads;
    if (w->restart_head_dim) w->f.model.info.head_dim = w->restart_head_dim;
    w->f.model.n_plans = 0; /* plans in flight went with the old backend */
    *out = w->f.backend;
    return STATUS_IS_OK;
}

static inline void on_trouble(void *ctx, const char *text)
{
    watched *w = ctx;
    pthread_mutex_lock(&w->lock);
    size_t n = strlen(w->trouble);
    snprintf(w->trouble + n, sizeof w->trouble - n, "%s\n", text);
    pthread_mutex_unlock(&w->lock);
}

static inline void on_block(void *ctx, const pkv_block_event *event)
{
    watched *w = ctx;
    atomic_fetch_add(&w->cleared, event->kind == PKV_CLEARED);
    atomic_fetch_add(&w->stored, event->kind == PKV_BLOCK_STORED);
}

static inline void expect_trouble(watched *w, const char *word)
{
    pthread_mutex_lock(&w->lock);
    bool found = strstr(w->trouble, word);
    pthread_mutex_unlock(&w->lock);
    if (!found) fail_msg("\"%s\" does not say '%s'", w->trouble, word);
}

static inline int setup(void **state)
{
    fixture *plain = fixture_create();
    watched *w = calloc(1, sizeof *w);
    w->f = *plain;
    free(plain);
    fixture *f = &w->f;
    f->backend.ctx = &f->model;
    f->alloc.ctx = f;
    engine_options *o = &f->options;
    o->backend = &f->backend;
    o->tokenizer = f->tokenizer;
    o->stop_ids = &f->eos;
    o->alloc = &f->alloc;
    o->restart = restart;
    o->restart_ctx = w;
    o->on_trouble = on_trouble;
    o->on_trouble_ctx = w;
    o->on_block = on_block;
    o->on_block_ctx = w;
    pthread_mutex_init(&w->lock, NULL);
    *state = w;
    answer(f, "some words");
    return 0;
}

static inline watched *start(void **state, int64_t timeout_us)
{
    watched *w = *state;
    w->f.options.step_timeout_us = timeout_us;
    fixture_start(&w->f);
    return w;
}

static inline const char *ids(uint32_t n, int max_tokens)
{
    static char list[8192], json[10240];
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, i ? ",%u" : "%u", 100 + i);
    snprintf(json, sizeof json, usual, list, max_tokens);
    return json;
}

/* Returns with the lock of a step that is being collected. */
static inline step_watch *lock_step(watched *w)
{
    step_watch *s = &w->f.engine->watch;
    pthread_mutex_lock(&s->lock);
    while (!s->started_us || !atomic_load(&w->f.model.collecting)) {
        pthread_mutex_unlock(&s->lock);
        nap();
        pthread_mutex_lock(&s->lock);
    }
    return s;
}

/* Makes the step in flight, or the next one, AGES old. */
static inline void expire(watched *w)
{
    step_watch *s = lock_step(w);
    if (s->abandoned) s->abandoned_us -= AGES;
    else s->started_us -= AGES;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Number of one of a request's first steps, which is to fail: the answer just read may have left a
 * step that was planned ahead, and one that tells the backend of pages taken back. */
static inline uint32_t one_of_the_next(const fixture *f)
{
    return atomic_load(&f->model.steps) + 1 + fixture_in_flight;
}

static inline void wait_for(watched *w, engine_state state)
{
    while (engine_get_stats(w->f.engine).state != state) nap();
}

/* Expects UNAVAILABLE with the reason for requests while the backend is down. */
static inline void expect_reason(watched *w, const char *word)
{
    char text[ENGINE_TROUBLE_BYTES];
    engine_get_trouble(w->f.engine, text, sizeof text);
    if (*word ? !strstr(text, word) : *text) fail_msg("\"%s\", not %s", text, word);
}

static inline void expect_lost(const reading *r, const char *word)
{
    assert_int_equal(r->finish, ENGINE_FINISH_ERROR);
    assert_int_equal(r->error_code, STATUS_UNAVAILABLE);
    if (!strstr(r->error_text, word)) fail_msg("\"%s\" does not say '%s'", r->error_text, word);
}

static inline void expect_answer(watched *w)
{
    reading r = read_all(submit(&w->f, "{\"prompt\": \"a\"}"));
    assert_int_equal(r.finish, ENGINE_FINISH_STOP);
    assert_string_equal(r.text, "some words");
}

#endif

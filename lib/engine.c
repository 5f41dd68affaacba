/* Engines of octavo.h: a model, opened as `octavo run` opens it, with its engine. */
#include "lib/internal.h"

#include <signal.h>
#include <stdlib.h>

/* Requests that wait or run; one more is refused. As many as `octavo serve` takes. */
enum { REQUESTS_MAX = 4096 };

const char *octavo_version(void) { return OCTAVO_VERSION; }

/* ---- opening --------------------------------------------------------------------------------- */

static void log_trouble(void *ctx, const char *text)
{
    octavo_engine *e = ctx;
    if (e->log) e->log(e->log_ctx, text);
}

static status start_engine(octavo_engine *e, error *err)
{
    const backend_info *info = e->model.backend.ops->info(e->model.backend.ctx);
    e->n_pages = info->n_pages - 1; /* page 0 is never used */
    e->page_tokens = info->geometry.page_tokens;
    e->defaults = model_defaults(&e->model);
    engine_options o = model_engine_options(&e->model, REQUESTS_MAX);
    retention_flags_apply(&e->retention, &o);
    o.restart = model_restart;
    o.restart_ctx = &e->model;
    o.on_trouble = log_trouble;
    o.on_trouble_ctx = e;
    return engine_create(&o, &e->engine, err);
}

static status open_engine(const octavo_engine_options *o, octavo_engine *e, error *err)
{
    const model_listener listener = {.note = o->log, .progress = o->progress, .ctx = o->ctx};
    sigset_t every, before;
    RETURN_IF_ERROR(lib_read_settings(o, e, err));
    /* Threads inherit the mask of the thread that makes them: the program's handlers never run on
     * the library's threads. */
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    status s = model_open_with(&e->flags, true, &listener, &e->model, err);
    if (status_ok(s)) s = start_engine(e, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s;
}

static void free_engine(octavo_engine *e)
{
    model_give_up(&e->model);
    engine_destroy(e->engine);
    model_close(&e->model);
    retention_flags_destroy(&e->retention);
    model_flags_destroy(&e->flags);
    for (size_t i = 0; e->words && e->words[i]; i++) free(e->words[i]);
    free(e->words);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

octavo_status octavo_engine_open(const octavo_engine_options *options, octavo_engine **out,
                                 char *text, size_t text_bytes)
{
    error err = {{0}};
    octavo_engine_options o;
    status s = lib_check_there(out, "out", &err);
    if (status_ok(s)) s = lib_take_struct(options, "engine_options", &o, sizeof o, &err);
    if (!status_ok(s)) return lib_tell(s, &err, text, text_bytes);
    octavo_engine *e = calloc(1, sizeof *e);
    if (!e) return lib_tell(status_make(STATUS_NO_MEMORY, NULL), &err, text, text_bytes);
    pthread_mutex_init(&e->lock, NULL);
    e->n_refs = 1;
    e->log = o.log;
    e->log_ctx = o.ctx;
    s = open_engine(&o, e, &err);
    if (status_ok(s)) *out = e;
    else free_engine(e);
    return lib_tell(s, &err, text, text_bytes);
}

/* ---- the end --------------------------------------------------------------------------------- */

void lib_enter(octavo_request *r)
{
    octavo_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    e->n_refs++;
    r->next = e->requests;
    if (r->next) r->next->previous = r;
    e->requests = r;
    pthread_mutex_unlock(&e->lock);
}

/* Gives a reference back; the last one frees the engine. */
static void drop_engine(octavo_engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool is_last = --e->n_refs == 0;
    pthread_mutex_unlock(&e->lock);
    if (is_last) free_engine(e);
}

void lib_leave(octavo_request *r)
{
    octavo_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    if (r->previous) r->previous->next = r->next;
    else e->requests = r->next;
    if (r->next) r->next->previous = r->previous;
    pthread_mutex_unlock(&e->lock);
    engine_stream_release(r->stream);
    drop_engine(e);
}

void octavo_engine_close(octavo_engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    for (octavo_request *r = e->requests; r; r = r->next) engine_stream_abort(r->stream);
    pthread_mutex_unlock(&e->lock);
    drop_engine(e);
}

/* ---- sessions, and numbers ------------------------------------------------------------------- */

octavo_status octavo_forget_session(octavo_engine *e, const char *session, char *text,
                                    size_t text_bytes)
{
    error err = {{0}};
    engine_request r;
    octavo_params p = octavo_params_init();
    p.session = session ? session : "";
    status s = lib_check_there(e, "engine", &err);
    if (!status_ok(s)) return lib_tell(s, &err, text, text_bytes);
    s = lib_read_params(&p, &e->defaults, &r, &err);
    if (status_ok(s)) s = engine_forget_session(e->engine, &r);
    engine_request_destroy(&r);
    return lib_tell(s, &err, text, text_bytes);
}

octavo_status octavo_get_stats(octavo_engine *e, octavo_stats *out)
{
    if (!e) return OCTAVO_INVALID;
    const engine_stats st = engine_get_stats(e->engine);
    const sched_stats *now = &st.sched;
    const octavo_stats own = {
        .max_model_len = e->model.max_model_len,
        .page_tokens = e->page_tokens,
        .pages = e->n_pages,
        .pages_used = now->pages.used,
        .pages_cached = now->pages.cached,
        .live = st.n_live,
        .running = now->running,
        .waiting = now->waiting,
        .sessions = now->sessions_idle + now->sessions_swapped,
        .working = st.state == ENGINE_WORKING,
        .logical_tokens = now->logical_tokens,
        .kept_tokens = now->kept_tokens,
        .steps = st.steps,
        .prompt_tokens = now->prompt_tokens,
        .generated_tokens = now->generated_tokens,
        .cached_tokens = now->pages.hit_tokens,
        .pages_dropped = now->pages.pages_dropped,
        .preemptions = now->preemptions,
        .requests_finished = st.requests_finished,
        .requests_aborted = st.requests_aborted,
        .requests_failed = st.requests_failed,
    };
    return lib_give_struct(out, &own, sizeof own) ? OCTAVO_OK : OCTAVO_INVALID;
}

/* Streams: the bounded ring between the engine thread and a reader. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    ITEM_TEXT_BYTES = 16, // text bytes of a token for which a ring makes room, if it has texts
    FIRST_ITEMS = 32,     // first capacity: enough for a reader that keeps up
};

/* ---- life ------------------------------------------------------------------------------------ */

/* Prepares the reader for making texts, unless stop strings need them before. */
static bool prepare_texts(engine_stream *s)
{
    const engine_request *r = &s->request;
    if (r->n_stop > 0) return true;
    s->texts = calloc(r->n, sizeof *s->texts);
    if (!s->texts || !strbuf_reserve(&s->read_text, s->engine->text_room)) return false;
    for (uint32_t i = 0; i < r->n; i++) {
        tok_stream_init(&s->texts[i], s->engine->o.tokenizer, r->skip_special_tokens);
        tok_stream_resume(&s->texts[i]); /* the text continues where the prompt ends */
    }
    return true;
}

status stream_create(engine *e, const engine_request *r, engine_stream **out)
{
    engine_stream *s = calloc(1, sizeof *s);
    if (!s) return status_make(STATUS_NO_MEMORY, "stream");
    s->engine = e;
    s->references = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->readable, NULL);
    status st = engine_request_copy(r, &s->request);
    s->choices = calloc(r->n, sizeof *s->choices);
    s->ends = calloc(r->n, sizeof *s->ends);
    if (status_ok(st) && (!s->choices || !s->ends || !prepare_texts(s)))
        st = status_make(STATUS_NO_MEMORY, "stream");
    /* Room for an error of every choice, before the number of outputs is known. */
    if (status_ok(st)) st = stream_make_ring(s, r->n);
    if (!status_ok(st)) {
        stream_unref(s);
        return st;
    }
    for (uint32_t i = 0; i < r->n; i++)
        choice_init(&s->choices[i], e->o.tokenizer, r->skip_special_tokens);
    s->n_alive = s->n_untold = r->n;
    s->n_unread_ends = r->n;
    s->submit_us = clock_now_us();
    *out = s;
    return STATUS_IS_OK;
}

void stream_unref(engine_stream *s)
{
    if (!s || atomic_fetch_sub(&s->references, 1) != 1) return;
    for (uint32_t i = 0; s->choices && i < s->request.n; i++) choice_destroy(&s->choices[i]);
    for (uint32_t i = 0; s->ends && i < s->request.n; i++) free(s->ends[i].report.kept_json);
    session_release(s);
    hand_release(s);
    reform_release(s);
    engine_request_destroy(&s->request);
    pthread_cond_destroy(&s->readable);
    pthread_mutex_destroy(&s->lock);
    strbuf_destroy(&s->blob);
    strbuf_destroy(&s->read_text);
    strbuf_destroy(&s->spare_text);
    strbuf_destroy(&s->map);
    free(s->texts);
    free(s->tokens);
    free(s->stop_ids);
    bad_words_destroy(&s->bad);
    free(s->choices);
    free(s->ends);
    free(s->ring);
    free(s->scores.logprobs);
    free(s->pooled.sum);
    free(s->pooled.values);
    free(s);
}

/* Resizes the ring to `capacity` items and the blob to what they usually carry, so that pushing
 * rarely allocates. */
static bool ring_resize(engine_stream *s, uint32_t capacity)
{
    ring_item *ring = calloc(capacity, sizeof *ring);
    size_t n_top = s->request.logprobs > 0 ? (size_t)s->request.logprobs : 0;
    size_t text = s->texts ? 0 : ITEM_TEXT_BYTES;
    size_t bytes = capacity * (text + n_top * (sizeof(uint32_t) + sizeof(float)));
    if (!ring || !strbuf_reserve(&s->blob, bytes > s->blob.size ? bytes - s->blob.size : 0)) {
        free(ring);
        return false;
    }
    for (uint32_t i = 0; i < s->count; i++) ring[i] = s->ring[(s->head + i) % s->capacity];
    free(s->ring);
    s->ring = ring;
    s->head = 0;
    s->capacity = capacity;
    return true;
}

status stream_make_ring(engine_stream *s, uint32_t limit)
{
    uint32_t first = 2 * s->request.n > FIRST_ITEMS ? 2 * s->request.n : FIRST_ITEMS;
    if (!ring_resize(s, first < limit ? first : limit))
        return status_make(STATUS_NO_MEMORY, "output ring");
    s->limit = limit;
    return STATUS_IS_OK;
}

/* Makes room for one more item, and for the end of every choice after it, so that pushing an end
 * cannot fail. */
static bool ring_reserve(engine_stream *s)
{
    uint32_t wanted = s->count + 1 + s->request.n;
    if (wanted > s->limit) wanted = s->limit;
    if (s->capacity >= wanted) return true;
    uint32_t twice = 2 * s->capacity < s->limit ? 2 * s->capacity : s->limit;
    return ring_resize(s, twice > wanted ? twice : wanted);
}

/* ---- the engine's side ----------------------------------------------------------------------- */

/* Called with the lock held, so that notify is not called after the release. */
static void notify_reader(engine_stream *s)
{
    pthread_cond_signal(&s->readable);
    if (s->notify) s->notify(s->notify_ctx);
}

static void put_item(engine_stream *s, const ring_item *item)
{
    s->ring[(s->head + s->count++) % s->capacity] = *item;
}

/* Removes what has been read from the blob, so that the blob grows only with unread outputs. */
static void blob_compact(engine_stream *s)
{
    if (s->blob_read == 0) return;
    s->blob.size -= s->blob_read;
    memmove(s->blob.data, s->blob.data + s->blob_read, s->blob.size);
    s->blob_read = 0;
}

/* Makes room for a text of n bytes in one of the two buffers. */
static bool text_reserve(engine_stream *s, size_t n)
{
    return s->read_text.capacity > n || s->spare_text.capacity > n ||
           strbuf_reserve(&s->spare_text, n);
}

bool stream_push(engine_stream *s, const ring_item *item, const step_sample *tops, const char *text)
{
    size_t ids = item->n_top * sizeof tops->top_ids[0];
    size_t logprobs = item->n_top * sizeof tops->top_logprobs[0];
    pthread_mutex_lock(&s->lock);
    blob_compact(s);
    bool ok = ring_reserve(s) && text_reserve(s, item->text_bytes) &&
              strbuf_reserve(&s->blob, item->text_bytes + ids + logprobs);
    if (ok) {
        strbuf_append(&s->blob, text, item->text_bytes);
        strbuf_append(&s->blob, tops->top_ids, ids);
        strbuf_append(&s->blob, tops->top_logprobs, logprobs);
        put_item(s, item);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

uint32_t stream_room(engine_stream *s)
{
    pthread_mutex_lock(&s->lock);
    uint32_t room = s->limit - s->count;
    pthread_mutex_unlock(&s->lock);
    return room;
}

void stream_notify(engine_stream *s)
{
    pthread_mutex_lock(&s->lock);
    notify_reader(s);
    pthread_mutex_unlock(&s->lock);
}

void stream_push_progress(engine_stream *s, engine_progress progress)
{
    pthread_mutex_lock(&s->lock);
    s->progress = progress;
    notify_reader(s);
    pthread_mutex_unlock(&s->lock);
}

/* Attaches a choice's end to its last token if that is unread, as clients expect. */
static void attach_end(engine_stream *s, uint32_t choice)
{
    for (uint32_t i = s->count; i-- > 0;) {
        ring_item *item = &s->ring[(s->head + i) % s->capacity];
        if (item->choice != choice) continue;
        item->is_last = true;
        item->held = false;
        return;
    }
    ring_item end = {.choice = choice, .is_last = true};
    put_item(s, &end);
}

void stream_push_end(engine_stream *s, uint32_t choice, const choice_end *end)
{
    pthread_mutex_lock(&s->lock);
    s->ends[choice] = *end;
    attach_end(s, choice);
    notify_reader(s);
    pthread_mutex_unlock(&s->lock);
}

void stream_set_failure(engine_stream *s, status_code code, const char *text)
{
    pthread_mutex_lock(&s->lock);
    bool names_memory = code != STATUS_NO_MEMORY || strstr(text, "memory");
    snprintf(s->failure.text, sizeof s->failure.text, "%s%s",
             names_memory ? "" : "out of memory: ", text);
    pthread_mutex_unlock(&s->lock);
}

void stream_fail(engine_stream *s, status_code code, const char *text)
{
    stream_set_failure(s, code, text);
    engine_finish finish = code == STATUS_ABORTED ? ENGINE_FINISH_ABORT : ENGINE_FINISH_ERROR;
    choice_end end = {.finish = finish, .stop_token = -1, .stop_string = -1, .error_code = code};
    end.timings.total_us = clock_now_us() - s->submit_us;
    end.usage.prompt_tokens = s->n_tokens;
    for (uint32_t i = 0; i < s->request.n; i++) {
        if (s->ends[i].finish != ENGINE_FINISH_NONE) continue;
        s->choices[i].finish = finish;
        end.usage.completion_tokens = s->choices[i].n_tokens;
        engine_count_choice(s->engine, finish);
        stream_push_end(s, i, &end);
    }
}

/* ---- the reader's side ----------------------------------------------------------------------- */

static void fill_end(engine_stream *s, const ring_item *item, engine_output *out)
{
    const choice_end *end = &s->ends[item->choice];
    out->finish = end->finish;
    out->stop_token = end->stop_token;
    out->stop_string = end->stop_string >= 0 ? s->request.stop[end->stop_string] : NULL;
    out->usage = end->usage;
    out->timings = end->timings;
    out->report = end->has_report ? &end->report : NULL;
    out->reading = end->has_reading ? &end->reading : NULL;
    out->transfer = s->request.hands_over || s->request.takes_over ? &s->transfer : NULL;
    out->error_code = end->error_code;
    out->error_text = end->finish == ENGINE_FINISH_ERROR ? s->failure.text : NULL;
    s->n_unread_ends--;
}

/* Copies a text to the reader's buffer. stream_push made room in one of the two. */
static void take_text(engine_stream *s, const char *text, size_t n)
{
    if (s->read_text.capacity <= n) {
        strbuf longer = s->spare_text;
        s->spare_text = s->read_text;
        s->read_text = longer;
        strbuf_clear(&s->spare_text);
    }
    strbuf_append(&s->read_text, text, n);
}

/* Makes a token's text in read_text, which has room for it. */
static void make_text(engine_stream *s, const ring_item *item)
{
    tok_stream *t = &s->texts[item->choice];
    /* Weights may be padded to more ids than the tokenizer has: the extra ids have no text. */
    if (item->finish != ENGINE_FINISH_STOP && item->token < tok_vocab_size(t->t))
        (void)tok_stream_push(t, item->token, &s->read_text);
    if (item->finish != ENGINE_FINISH_NONE) tok_stream_finish(t, &s->read_text);
}

static void take_output(engine_stream *s, engine_output *out)
{
    ring_item item = s->ring[s->head];
    *out = (engine_output){.choice = item.choice, .has_token = item.has_token, .stop_token = -1};
    out->sample.token = item.token;
    out->sample.logprob = item.logprob;
    out->sample.rank = item.rank;
    out->sample.n_top = item.n_top;
    strbuf_clear(&s->read_text);
    if (item.has_token) {
        const char *at = s->blob.data + s->blob_read;
        size_t tops = item.n_top * sizeof(uint32_t);
        if (s->texts) make_text(s, &item);
        else take_text(s, at, item.text_bytes);
        memcpy(out->sample.top_ids, at + item.text_bytes, tops);
        memcpy(out->sample.top_logprobs, at + item.text_bytes + tops, tops);
        s->blob_read += item.text_bytes + 2 * tops;
    }
    out->text = s->read_text.data ? s->read_text.data : "";
    out->text_bytes = s->read_text.size;
    s->head = (s->head + 1) % s->capacity;
    s->count--;
    if (item.is_last) fill_end(s, &item, out);
}

/* Called with the lock held, and releases it. A paused sequence goes on when half the ring is
 * free. */
static void unlock_and_resume(engine_stream *s)
{
    bool resume = s->resume_wanted && s->count <= s->limit / 2;
    if (resume) s->resume_wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (resume) inbox_put(s->engine, INBOX_RESUME, s);
}

static bool can_read(const engine_stream *s) { return s->count > 0 && !s->ring[s->head].held; }

/* Takes a token or an end if there is one, and drops unread progress, which is then out of date;
 * otherwise takes the progress. */
static bool take_any(engine_stream *s, engine_output *out)
{
    engine_progress progress = s->progress;
    s->progress.phase = NULL;
    if (can_read(s)) take_output(s, out);
    else if (progress.phase)
        *out = (engine_output){.progress = progress, .text = "", .stop_token = -1};
    else return false;
    return true;
}

bool engine_stream_read(engine_stream *s, engine_output *out)
{
    pthread_mutex_lock(&s->lock);
    bool got = take_any(s, out);
    unlock_and_resume(s);
    return got;
}

bool engine_stream_wait(engine_stream *s, engine_output *out)
{
    pthread_mutex_lock(&s->lock);
    while (!can_read(s) && !s->progress.phase && s->n_unread_ends > 0)
        pthread_cond_wait(&s->readable, &s->lock);
    bool got = take_any(s, out);
    unlock_and_resume(s);
    return got;
}

void engine_stream_abort(engine_stream *s)
{
    if (atomic_exchange(&s->aborted, true)) return;
    /* A stream that waits for a tokenizer thread, for its turn to compile a form or for its prompt
     * to be fetched, goes to the engine thread at once, which ends it. */
    bool waited = prepare_take_back(s->engine, s) || form_take_back(s->engine, s) ||
                  hand_take_back_fetch(s->engine, s);
    inbox_put(s->engine, waited ? INBOX_ADD : INBOX_ABORT, s);
    if (waited) stream_unref(s);
}

void engine_stream_release(engine_stream *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->notify = NULL;
    pthread_mutex_unlock(&s->lock);
    engine_stream_abort(s);
    stream_unref(s);
}

const char *engine_finish_name(engine_finish f)
{
    static const char *const names[] = {"", "stop", "length", "abort", "error"};
    return names[f];
}

/* Sends a generation's outputs to a client.
 *
 * The engine's thread notifies the exchange's wake; libmicrohttpd's thread reads the outputs. The
 * answer begins when the first output is there, so that an error before it is a plain error. When a
 * client does not read, outputs are not read either, the stream's ring fills, and the engine pauses
 * this sequence and no other; watch.c ends a stream that stalls too long. */
#include "rpc/http/internal.h"

#include <string.h>

enum {
    FRAMES_BYTES = 16 * 1024, // frames gathered for one write
    BLOCK_BYTES = 32 * 1024,
};

/* ---- outputs --------------------------------------------------------------------------------- */

/* True when no more outputs are read: every choice has ended, or one has failed. */
static bool is_over(const exchange *e)
{
    return generation_ended(e->generation) || e->form->error(e->answer);
}

static bool take_one(exchange *e)
{
    generation_output o;
    if (is_over(e) || !generation_read(e->generation, &o)) return false;
    e->form->take(e->answer, e->generation, &o, &e->out);
    if (e->form->error(e->answer)) generation_abort(e->generation);
    return true;
}

static void finish_if_over(exchange *e)
{
    if (!is_over(e)) return;
    e->form->finish(e->answer, &e->out);
    e->ended = true;
}

/* ---- streams --------------------------------------------------------------------------------- */

static ssize_t hand_out(exchange *e, char *buffer, size_t size)
{
    size_t n = e->out.size - e->out_sent;
    if (n > size) n = size;
    memcpy(buffer, e->out.data + e->out_sent, n);
    e->out_sent += n;
    return (ssize_t)n;
}

/* Ends a stream when memory is out: drops the frame that is not whole and appends an error. */
static void end_starved(exchange *e, size_t whole)
{
    e->out.size = whole;
    e->out.failed = false;
    e->last_words = openai_answer_starved(e->answer);
    e->ended = true;
    generation_abort(e->generation);
}

static void take_frames(exchange *e)
{
    size_t whole = 0;
    strbuf_clear(&e->out);
    e->out_sent = 0;
    while (e->out.size < FRAMES_BYTES && take_one(e) && !e->out.failed) whole = e->out.size;
    finish_if_over(e);
    if (e->out.failed) end_starved(e, whole);
}

static ssize_t hand_out_last_words(exchange *e, char *buffer, size_t size)
{
    size_t n = strlen(e->last_words);
    if (n > size) n = size;
    memcpy(buffer, e->last_words, n);
    e->last_words += n;
    return (ssize_t)n;
}

/* libmicrohttpd's callback for more of a stream. 0 = the connection is suspended until more
 * comes. */
static ssize_t read_stream(void *ctx, uint64_t position, char *buffer, size_t size)
{
    exchange *e = ctx;
    (void)position;
    for (;;) {
        http_news news = wake_begin(&e->wake);
        if (news == NEWS_CUT || e->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (news == NEWS_ABORT) generation_abort(e->generation);
        if (e->out_sent < e->out.size) return hand_out(e, buffer, size);
        if (e->last_words && *e->last_words) return hand_out_last_words(e, buffer, size);
        if (e->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        take_frames(e);
        if (e->out.size == 0 && !e->ended && wake_sleep(&e->wake)) return 0;
    }
}

static void start_stream(exchange *e)
{
    static const char *const headers[][2] = {
        {"Content-Type", "text/event-stream; charset=utf-8"},
        {"Cache-Control", "no-cache"},
        {"X-Accel-Buffering", "no"},
    };
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, e, NULL);
    for (size_t i = 0; r && i < sizeof headers / sizeof headers[0]; i++)
        if (MHD_add_response_header(r, headers[i][0], headers[i][1]) != MHD_YES)
            e->out.failed = true;
    pthread_mutex_lock(&e->wake.lock);
    e->wake.sending = true;
    pthread_mutex_unlock(&e->wake.lock);
    exchange_send(e, 200, r);
}

/* ---- before the first byte ------------------------------------------------------------------- */

static void send_whole(exchange *e)
{
    if (e->form->json_bytes) e->json_bytes = e->form->json_bytes(e->answer);
    exchange_send_out(e, 200, e->json_bytes ? "application/octet-stream" : "application/json");
}

/* True when the answer has begun. A stream begins with its first frame, a whole answer when all
 * choices have ended. */
static bool answered(exchange *e)
{
    bool streams = e->form->streams && e->form->streams(e->answer);
    while ((!streams || e->out.size == 0) && take_one(e)) continue;
    const openai_error *why = e->form->error(e->answer);
    if (why) {
        http_reply_error(&e->x, why);
        return true;
    }
    finish_if_over(e);
    if (e->out.failed) {
        generation_abort(e->generation);
        exchange_send(e, 503, NULL);
    } else if (streams && e->out.size) start_stream(e);
    else if (!streams && e->ended) send_whole(e);
    else return false;
    return true;
}

void pump_resumed(exchange *e)
{
    do {
        http_news news = wake_begin(&e->wake);
        if (news == NEWS_CUT) {
            e->failed = true;
            return;
        }
        if (news == NEWS_ABORT) generation_abort(e->generation);
        if (answered(e)) return;
    } while (!wake_sleep(&e->wake));
}

/* ---- life ------------------------------------------------------------------------------------ */

void pump_begin(exchange *e, const answer_form *form, void *answer)
{
    e->form = form;
    e->answer = answer;
    exchange_drop_body(e); /* the request may wait for a long time */
    strbuf_clear(&e->out);
    watch_runs(&e->server->watch, e->connection);
    if (e->stage == STAGE_WORKING) return;
    e->stage = STAGE_WAITING;
    pump_resumed(e);
}

/* ---- OpenAI's answers ------------------------------------------------------------------------ */

static void take_openai(void *answer, const generation *g, const generation_output *o, strbuf *out)
{
    openai_answer_take(answer, g, o, out);
}

static void finish_openai(void *answer, strbuf *out) { openai_answer_finish(answer, out); }
static bool openai_streams(const void *answer) { return openai_answer_streams(answer); }
static void destroy_openai(void *answer) { openai_answer_destroy(answer); }

static const openai_error *error_of_openai(const void *answer)
{
    return openai_answer_error(answer);
}

static const answer_form openai_form_of_answers = {
    .take = take_openai,
    .finish = finish_openai,
    .streams = openai_streams,
    .error = error_of_openai,
    .destroy = destroy_openai,
};

/* ---- embeddings ------------------------------------------------------------------------------ */

static void take_embedding(void *answer, const generation *g, const generation_output *o,
                           strbuf *out)
{
    (void)out;
    openai_embeddings_take(answer, g, o);
}

static void finish_embeddings(void *answer, strbuf *out) { openai_embeddings_finish(answer, out); }
static void destroy_embeddings(void *answer) { openai_embeddings_destroy(answer); }

static const openai_error *error_of_embeddings(const void *answer)
{
    return openai_embeddings_error(answer);
}

static const answer_form embeddings_form = {
    .take = take_embedding,
    .finish = finish_embeddings,
    .error = error_of_embeddings,
    .destroy = destroy_embeddings,
};

/* ---- starting -------------------------------------------------------------------------------- */

_Static_assert((int)HTTP_ID_BYTES_MAX == SERVICE_ID_BYTES_MAX, "a body's id fits an exchange");

/* Starts the generation under the client's id, where a header goes before the body's field, or
 * under a new one if a live generation has it. */
static status start_answer(exchange *e, const openai_call *call, uint32_t *refused, error *err)
{
    service *s = e->server->service;
    char identity[SERVICE_IDENTITY_BYTES];
    trace_headers trace;
    service_identity(s, e->x.authorization, identity);
    if (*call->id && !e->has_own_id) memcpy(e->id, call->id, sizeof e->id);
    generation_options o = {.id = e->id,
                            .surface = "http",
                            .notify = wake_notify,
                            .notify_ctx = &e->wake,
                            .identity = identity,
                            .trace = http_trace(e, &trace),
                            .refused = refused};
    status st = generation_start(s, call->requests, call->n_requests, &o, &e->generation, err);
    if (st.code != STATUS_INVALID || strncmp(err->text, "request_id:", 11) != 0) return st;
    o.id = NULL;
    return generation_start(s, call->requests, call->n_requests, &o, &e->generation, err);
}

/* A stored conversation takes as much memory as one that a client sends. */
static status take_stored(exchange *e, const openai_call *call, error *err)
{
    if (!service_take_body(e->server->service, call->stored_bytes))
        return error_set(err, STATUS_UNAVAILABLE, "too little memory for the stored conversation");
    e->body_taken += call->stored_bytes;
    return STATUS_IS_OK;
}

void http_generate(http_exchange *x, openai_call *call)
{
    exchange *e = (exchange *)x;
    error err = {{0}};
    openai_error why;
    bool embeds = call->vectors.pooling != POOLING_NONE;
    const openai_name *names = openai_names_of(call);
    void *answer = NULL;
    uint32_t n = call->n_requests, refused = 0;
    status st = take_stored(e, call, &err);
    if (status_ok(st)) st = start_answer(e, call, &refused, &err);
    if (status_ok(st)) {
        answer = embeds ? (void *)openai_embeddings_create(x->service, call)
                        : openai_answer_create(x->service, call, generation_id(e->generation));
        if (!answer) st = error_set(&err, STATUS_NO_MEMORY, "out of memory");
    } else openai_call_destroy(call);
    if (!status_ok(st)) {
        openai_error_from(x->service, st, &err, &why);
        if (names) openai_rename(names, &why);
        if (!names || embeds) openai_place_prompt(embeds ? "input" : "prompt", n, refused, &why);
        http_reply_error(x, &why);
        return;
    }
    pump_begin(e, embeds ? &embeddings_form : &openai_form_of_answers, answer);
}

void pump_destroy(exchange *e)
{
    generation_release(e->generation);
    if (e->form) e->form->destroy(e->answer);
}

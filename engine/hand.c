/* Disaggregated prefill: prompts that are handed over to other servers and taken over from them.
 *
 *   out   the scheduler gives the pages of a prompt whose first token was drawn; the thread of this
 *         file makes a record of them, which the transfer holds; then the reader is told by what
 *         name it can be fetched
 *   in    behind its preparation a stream waits for the transfer's fetch. The scheduler takes pages
 *         for what came, this file's thread fills them, and the first token is told
 *
 * Whatever goes wrong on the way in, the prompt is computed here, and the reader is told why. */
#include "engine/internal.h"

#include "base/sha256.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- what a request may ask for -------------------------------------------------------------- */

status hand_check(const engine *e, error *err)
{
    if (!e->o.transfer) return STATUS_IS_OK;
    if (e->info.kv_identity == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv-transfer: the backend '%s' cannot copy K and V out of its pages",
                         e->info.name);
    return STATUS_IS_OK;
}

static status refuse(error *err, const char *what)
{
    return error_set(err, STATUS_INVALID, "kv_transfer_params: %s", what);
}

static status check_handover(const engine *e, const engine_request *r, error *err)
{
    if (transfer_port(e->o.transfer) == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv_transfer_params: do_remote_decode: the server was started without "
                         "--kv-transfer-listen");
    if (r->max_tokens != 1) return refuse(err, "do_remote_decode: max_tokens must be 1");
    return STATUS_IS_OK;
}

static status check_takeover(const engine *e, const engine_request *r, error *err)
{
    if (!transfer_knows(e->o.transfer, r->transfer_host, r->transfer_port))
        return error_set(
            err, STATUS_INVALID,
            "kv_transfer_params: %.80s:%u is none of the servers that this one fetches "
            "from (--kv-transfer-peers)",
            r->transfer_host, r->transfer_port);
    return STATUS_IS_OK;
}

status hand_check_request(const engine *e, const engine_request *r, error *err)
{
    if (!r->hands_over && !r->takes_over) return STATUS_IS_OK;
    if (!e->o.transfer)
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv_transfer_params: the server was started without --kv-transfer-listen "
                         "and --kv-transfer-peers");
    if (r->hands_over && r->takes_over)
        return refuse(err, "do_remote_decode and do_remote_prefill exclude each other");
    if (r->session) return refuse(err, "cannot be combined with session");
    return r->hands_over ? check_handover(e, r, err) : check_takeover(e, r, err);
}

/* Why the request's prompt cannot go from one server to another; NULL: it can. */
static const char *why_not(const engine_stream *s)
{
    const engine_request *r = &s->request;
    if (r->n != 1) return "n is above 1";
    if (r->score_only || r->prompt_logprobs >= 0) return "logprobs of the prompt are asked for";
    if (s->retrieval.block_tokens) return "the answer reads by retrieval";
    return sched_hands_over(&s->policy);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The key under which (identity, cache_salt, id) is held: who does not have all three finds
 * nothing. */
static transfer_key key_of(const engine_request *r, const char *id)
{
    engine_request named = {.identity = r->identity, .cache_salt = r->cache_salt};
    char name[ENGINE_TRANSFER_ID_BYTES + 16];
    uint64_t words[2];
    transfer_key key;
    snprintf(name, sizeof name, "kv-transfer %s", id);
    named.session = name;
    session_key(&named, words);
    memcpy(key.bytes, words, sizeof key.bytes);
    return key;
}

static bool make_id(char out[ENGINE_TRANSFER_ID_BYTES])
{
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return false;
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

status hand_create(engine *e, engine_stream *s)
{
    engine_request *r = &s->request;
    if (r->hands_over) {
        /* Routers leave min_tokens out, set it to 1, or send the client's: the decode server, which
         * has the client's for certain, judges by that whether the first token may be taken. */
        r->min_tokens = 0;
        s->handover = calloc(1, sizeof *s->handover);
        if (!s->handover || !make_id(s->transfer.id))
            return status_make(STATUS_NO_MEMORY, "handover");
        s->handover->key = key_of(r, s->transfer.id);
        s->handover->owner = session_owner(r);
        s->transfer.host = transfer_host(e->o.transfer);
        s->transfer.port = transfer_port(e->o.transfer);
        s->handover->job.stream = s;
    }
    if (r->takes_over) {
        s->takeover = calloc(1, sizeof *s->takeover);
        if (!s->takeover) return status_make(STATUS_NO_MEMORY, "takeover");
        s->takeover->job.stream = s;
    }
    return STATUS_IS_OK;
}

static void note(engine_stream *s, const char *why)
{
    bool out = s->request.hands_over;
    snprintf(s->transfer.note, sizeof s->transfer.note, "%s%s",
             out ? "not held: " : "computed here: ", why);
}

/* The record has been used, or is of no use. */
static void drop_record(engine_stream *s)
{
    takeover *t = s->takeover;
    if (t->bytes) transfer_release(s->engine->o.transfer, t->fetch.owner, t->n);
    free(t->bytes);
    alloc_free(NULL, t->tables);
    t->bytes = NULL;
    t->tables = NULL;
    s->sched_request.handed = NULL;
}

void hand_release(engine_stream *s)
{
    if (s->takeover) drop_record(s);
    free(s->takeover);
    free(s->handover);
}

/* ---- terms ----------------------------------------------------------------------------------- */

static uint64_t add_text(uint64_t hash, const char *text, size_t n)
{
    return hash_bytes(text ? text : "", n, hash_mix64(hash + n));
}

/* Everything that the first token depends on beside the prompt, K and V and what is banned. The
 * seed counts where the client gave one. */
static uint64_t sampling_digest(const engine_stream *s)
{
    const engine_request *r = &s->request;
    const sample_params *p = &s->sched_request.params;
    const float floats[] = {
        p->temperature,       p->top_p, p->min_p, p->presence_penalty, p->frequency_penalty,
        p->repetition_penalty};
    const uint64_t numbers[] = {p->top_k,
                                r->has_seed ? p->seed : 0,
                                r->has_seed,
                                (uint64_t)(int64_t)p->n_logprobs,
                                r->form.given,
                                r->form.compact,
                                (uint64_t)r->form.kind,
                                p->n_bias,
                                r->n_allowed_token_ids};
    uint64_t hash = hash_bytes(numbers, sizeof numbers, hash_bytes(floats, sizeof floats, 0));
    hash = add_text(hash, (const char *)p->bias_ids, p->n_bias * sizeof *p->bias_ids);
    hash = add_text(hash, (const char *)p->bias, p->n_bias * sizeof *p->bias);
    hash = add_text(hash, (const char *)r->allowed_token_ids,
                    r->n_allowed_token_ids * sizeof *r->allowed_token_ids);
    hash = add_text(hash, r->form.text, r->form.given ? r->form.n : 0);
    for (size_t i = 0; i < json_array_size(r->bad_words); i++) {
        const json_t *word = json_array_get(r->bad_words, i);
        hash = add_text(hash, json_string_value(word), json_string_length(word));
    }
    return hash;
}

/* `tokens` gets what the method leaves of the prompt. */
static handover_terms terms_of(const engine *e, const engine_stream *s, const uint32_t *tokens)
{
    const sample_params *p = &s->sched_request.params;
    uint32_t n_banned = p->min_tokens > 0 ? s->n_stop_ids : 0;
    return (handover_terms){
        .geometry = &e->info.geometry,
        .cell_bytes = backend_cell_bytes(&e->info),
        .vocab_size = e->info.vocab_size,
        .identity = e->info.kv_identity,
        .policy = session_policy_digest(&s->policy),
        .sampling = sampling_digest(s),
        .greedy = p->temperature < 1e-5f,
        .banned = s->stop_ids,
        .n_banned = n_banned,
        .bans_shown = s->sched_request.masked && p->n_logprobs >= 0,
        .tokens = tokens,
        .n_tokens = retention_input_tokens(&s->policy, s->n_tokens),
    };
}

/* ---- in: the fetch --------------------------------------------------------------------------- */

/* Takes the record, if it is one that the stream asked for. */
static const char *take_record(engine *e, engine_stream *s)
{
    takeover *t = s->takeover;
    uint32_t n = retention_input_tokens(&s->policy, s->n_tokens);
    uint32_t *tokens = alloc_zeroed(NULL, n, sizeof *tokens);
    if (!tokens) return "memory is out";
    retention_cut(&s->policy, s->tokens, s->n_tokens, tokens);
    handover_terms terms = terms_of(e, s, tokens);
    const char *why = handover_read(&terms, t->bytes, t->n, t);
    if (!why && !form_may_begin(e, s, t->first.token))
        why = "its first token is none that the request allows";
    alloc_free(NULL, tokens);
    return why;
}

static void on_fetched(void *ctx, const transfer_got *got)
{
    engine_stream *s = ctx;
    engine *e = s->engine;
    takeover *t = s->takeover;
    const char *why = got->why;
    t->bytes = got->bytes;
    t->n = got->n;
    if (got->bytes) why = take_record(e, s);
    if (got->bytes && !why) {
        s->sched_request.handed = &t->handed;
        note(s, "its pages are not those that its method leaves, or were given up");
    } else {
        drop_record(s);
        note(s, why);
    }
    inbox_put(e, INBOX_ADD, s);
    stream_unref(s);
}

bool hand_prepare(engine *e, engine_stream *s)
{
    const engine_request *r = &s->request;
    if (!s->handover && !s->takeover) return false;
    const char *why = why_not(s);
    s->transfer.tokens = retention_input_tokens(&s->policy, s->n_tokens);
    note(s, why ? why : "the request ended before");
    if (s->handover) s->sched_request.hands_over = !why;
    if (!s->takeover || why || atomic_load(&s->aborted)) return false;
    transfer_fetch *f = &s->takeover->fetch;
    handover_terms terms = terms_of(e, s, NULL);
    *f = (transfer_fetch){.port = (uint16_t)r->transfer_port,
                          .key = key_of(r, r->transfer_id),
                          .owner = session_owner(r),
                          .most = handover_most(&terms),
                          .done = on_fetched,
                          .ctx = s};
    memcpy(f->host, r->transfer_host, sizeof f->host);
    atomic_fetch_add(&s->references, 1);
    transfer_fetch_begin(e->o.transfer, f);
    atomic_store(&s->takeover->fetches, true);
    /* An abort from before that could not take it back. */
    if (!atomic_load(&s->aborted) || !hand_take_back_fetch(e, s)) return true;
    stream_unref(s);
    return false;
}

bool hand_take_back_fetch(engine *e, engine_stream *s)
{
    takeover *t = s->takeover;
    return t && atomic_load(&t->fetches) && transfer_fetch_take_back(e->o.transfer, &t->fetch);
}

/* ---- the thread that copies ------------------------------------------------------------------ */

enum { CELLS_TOGETHER = 1024 };

/* Reads the first `slots` slots of n cells, from cell `first` on, to `to`. Returns the place behind
 * them, or NULL where the backend fails. */
static uint8_t *read_some(const engine *e, const sched_export *x, uint32_t first, uint32_t n,
                          uint32_t slots, uint8_t *to)
{
    uint32_t cells[CELLS_TOGETHER], some;
    for (; n > 0; n -= some, first += some) {
        some =
            sched_export_cells(e->sched, x, first, n < CELLS_TOGETHER ? n : CELLS_TOGETHER, cells);
        if (!e->backend.ops->read_cells(e->backend.ctx, cells, some, slots, &to, some)) return NULL;
        to += some * backend_cell_bytes(&e->info);
    }
    return to;
}

/* Reads K and V of the export's cells. The last page of a table gives only the slots that the table
 * fills. */
static bool read_cells(const engine *e, const sched_export *x, uint8_t *to)
{
    const pkv_geometry *g = &e->info.geometry;
    pkv_geometry at = pkv_geometry_at(g, x->image.grain);
    uint32_t groups = pkv_groups(g), parts = groups / pkv_groups(&at), size = g->page_tokens;
    for (uint32_t i = 0, first = 0; i < groups; i++) {
        uint32_t kept = x->image.tables[i / parts].kept, full = kept / size, rest = kept % size;
        to = read_some(e, x, first, full, size, to);
        if (to && rest > 0) to = read_some(e, x, first + full, 1, rest, to);
        if (!to) return false;
        first += full + (rest > 0);
    }
    return true;
}

/* Makes the record and has the transfer hold it. NULL, or why not. */
static const char *hold_prompt(engine *e, engine_stream *s, const sched_export *x)
{
    handover *h = s->handover;
    handover_terms terms = terms_of(e, s, NULL);
    if (!x->image.tables) return "memory is out";
    size_t n = handover_size(&terms, x);
    if (!transfer_make_room(e->o.transfer, h->owner, n))
        return "there is no room for it (--kv-transfer-memory)";
    uint8_t *bytes = malloc(n);
    bool read = bytes && read_cells(e, x, handover_write(&terms, x, &h->first, bytes));
    h->bytes = n;
    if (read && transfer_hold(e->o.transfer, &h->key, h->owner, bytes, n)) return NULL;
    free(bytes);
    transfer_release(e->o.transfer, h->owner, n);
    return bytes && !read ? "its pages could not be read" : "memory is out";
}

static void run_job(engine *e, hand_job *job)
{
    engine_stream *s = job->stream;
    if (job->exported) {
        s->handover->why_not = hold_prompt(e, s, job->exported);
        job->good = s->handover->why_not == NULL;
    } else {
        job->good = e->backend.ops->write_cells(e->backend.ctx, job->load->cells,
                                                job->load->n_cells, s->takeover->cells);
    }
    inbox_put_handed(e, job);
}

static hand_job *next_job(hand_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->stop) pthread_cond_wait(&q->arrived, &q->lock);
    hand_job *job = q->first;
    if (job) q->first = job->next;
    if (!q->first) q->last = NULL;
    pthread_mutex_unlock(&q->lock);
    return job;
}

static void *hand_loop(void *arg)
{
    engine *e = arg;
    hand_queue *q = &e->hands;
    thread_set_name("oct-hand");
    for (hand_job *job; (job = next_job(q)) != NULL;) {
        run_job(e, job);
        pthread_mutex_lock(&q->lock);
        q->n_under_way--;
        pthread_cond_signal(&q->done);
        pthread_mutex_unlock(&q->lock);
    }
    return NULL;
}

static void put_job(engine *e, hand_job *job)
{
    hand_queue *q = &e->hands;
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    *(q->last ? &q->last->next : &q->first) = job;
    q->last = job;
    q->n_under_way++;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
}

status hand_start(engine *e)
{
    if (!e->o.transfer) return STATUS_IS_OK;
    if (pthread_create(&e->hands.thread, NULL, hand_loop, e))
        return status_make(STATUS_NO_MEMORY, "hand thread");
    e->hands.thread_started = true;
    return STATUS_IS_OK;
}

void hand_stop(engine *e)
{
    hand_queue *q = &e->hands;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
    if (q->thread_started) pthread_join(q->thread, NULL);
}

/* ---- the engine thread ----------------------------------------------------------------------- */

void hand_note_first(engine_stream *s, const step_sample *first)
{
    handover *h = s->handover;
    if (!h || h->has_first) return;
    h->has_first = true;
    h->first = *first;
}

void hand_await(engine_stream *s)
{
    if (s->handover) s->handover->making = true;
}

static void add_made(engine *e, hand_job *job)
{
    hand_queue *q = &e->hands;
    atomic_fetch_add(&job->stream->references, 1);
    job->next = NULL;
    *(q->made ? &q->last_made->next : &q->made) = job;
    q->last_made = job;
}

void hand_collect(engine *e)
{
    if (!e->o.transfer) return;
    for (const sched_export *x; (x = sched_next_export(e->sched)) != NULL;) {
        engine_stream *s = slots_find(e, x->request);
        assert(s && s->handover && s->handover->has_first); /* its end was not told yet */
        s->handover->job.exported = x;
        add_made(e, &s->handover->job);
    }
}

void hand_add_load(engine *e, const sched_load *load)
{
    engine_stream *s = slots_find(e, load->request);
    assert(s && s->takeover && s->takeover->bytes);
    s->takeover->job.load = load;
    add_made(e, &s->takeover->job);
}

/* Pages that a job reads may be written by moves of the plan that was made with it, and pages that
 * it writes may be read by these. Where two plans are in flight, steps in front may use the pages
 * too, and copies have no order with what a device runs: all that was submitted by then must have
 * been collected. A call that left its plan to the next one has not submitted its moves. */
void hand_begin_copies(engine *e, bool moves)
{
    hand_queue *q = &e->hands;
    bool ordered = moves || engine_in_flight(e) > 1;
    for (hand_job *job = q->made; job; job = job->next) {
        if (job->waits) continue;
        job->waits = true;
        job->after = ordered ? e->n_plans : 0;
    }
    for (hand_job *job; (job = q->made) != NULL && job->waits;) {
        if (job->after > e->n_plans - e->n_in_flight) return;
        q->made = job->next;
        put_job(e, job);
    }
}

/* A record that is still here was of no use: the scheduler could not take its pages. */
void hand_note_rows(engine_stream *s)
{
    if (s->takeover) drop_record(s);
}

static void take_back_export(engine *e, const hand_job *job)
{
    engine_stream *s = job->stream;
    slots_add_event(e, (sched_event){.kind = SCHED_EXPORTED, .exported = job->exported});
    s->handover->making = false;
    s->transfer.held = job->good;
    s->transfer.bytes = job->good ? s->handover->bytes : 0;
    if (job->good) s->transfer.note[0] = '\0';
    else note(s, s->handover->why_not);
    if (!job->good) transfer_note_not_held(e->o.transfer);
}

static void take_back_load(engine *e, const hand_job *job)
{
    engine_stream *s = job->stream;
    slots_add_event(e,
                    (sched_event){.kind = SCHED_LOADED, .load = job->load, .n_loaded = job->good});
    if (!job->good) {
        note(s, "its pages could not be filled");
        return;
    }
    s->transfer.received = true;
    s->transfer.bytes = s->takeover->n;
    s->transfer.note[0] = '\0';
    loop_take_first(e, s, &s->takeover->first);
}

void hand_take_back(engine *e, hand_job *jobs)
{
    for (hand_job *job = jobs, *next; job; job = next) {
        next = job->next;
        engine_stream *s = job->stream;
        if (job->exported) take_back_export(e, job);
        else take_back_load(e, job);
        if (s->takeover) drop_record(s);
        stream_unref(s);
    }
}

bool hand_is_settled(const engine_stream *s) { return !s->handover || !s->handover->making; }

void hand_drop(hand_job *jobs)
{
    for (hand_job *next; jobs; jobs = next) {
        next = jobs->next;
        if (jobs->stream->handover) jobs->stream->handover->making = false;
        stream_unref(jobs->stream);
    }
}

/* Jobs that are not begun are dropped, because the moves before them may never be made. */
void hand_cancel(engine *e)
{
    hand_queue *q = &e->hands;
    hand_drop(q->made);
    q->made = NULL;
    pthread_mutex_lock(&q->lock);
    while (q->n_under_way > 0) pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_lock(&e->inbox.lock);
    hand_job *jobs = e->inbox.handed;
    e->inbox.handed = NULL;
    pthread_mutex_unlock(&e->inbox.lock);
    hand_drop(jobs);
}

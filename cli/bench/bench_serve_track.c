/* Tokens, times and texts of requests, and how they ended. */
#include "cli/bench/bench_serve_track.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS_MAX = 1 << 20 };

/* ---- records --------------------------------------------------------------------------------- */

void track_example(serve_tracker *t, serve_end end, const char *text)
{
    error shown; /* a server's text may hold what steers a terminal */
    if (t->run->example[end][0]) return;
    error_set(&shown, STATUS_IO, "%s", text);
    snprintf(t->run->example[end], sizeof t->run->example[end], "%.159s", shown.text);
}

static bool record_call(serve_tracker *t, const serve_call *call)
{
    serve_run *run = t->run;
    if (run->n_calls == run->capacity) {
        size_t capacity = run->capacity ? run->capacity * 2 : 256;
        serve_call *grown = alloc_resize(NULL, run->calls, capacity, sizeof *grown);
        if (!grown) return false;
        run->calls = grown;
        run->capacity = capacity;
    }
    run->calls[run->n_calls++] = *call;
    return true;
}

static void count_token(serve_tracker *t)
{
    serve_run *run = t->run;
    size_t second = (size_t)((t->now_us - t->start_us) / 1000000);
    t->n_tokens++;
    if (second >= SECONDS_MAX) return;
    if (second >= run->n_seconds) {
        size_t n = second + 64;
        uint32_t *grown = alloc_resize(NULL, run->tokens_by_second, n, sizeof *grown);
        if (!grown) {
            t->no_memory = true;
            return;
        }
        memset(grown + run->n_seconds, 0, (n - run->n_seconds) * sizeof *grown);
        run->tokens_by_second = grown;
        run->n_seconds = n;
    }
    run->tokens_by_second[second]++;
}

static void add_itl(serve_tracker *t, serve_call *call, double seconds)
{
    uint32_t n = call->n_itls;
    if ((n & (n - 1)) == 0) { /* full: 0 or a power of two */
        float *grown = alloc_resize(NULL, call->itls, n ? n * 2 : 1, sizeof *grown);
        if (!grown) {
            t->no_memory = true;
            return;
        }
        call->itls = grown;
    }
    call->itls[call->n_itls++] = (float)seconds;
}

/* ---- equal requests, equal texts ------------------------------------------------------------- */

static text_check *seen_slot(text_check *table, size_t capacity, uint64_t body)
{
    size_t i = body & (capacity - 1);
    while (table[i].body && table[i].body != body) i = (i + 1) & (capacity - 1);
    return &table[i];
}

static bool grow_seen(serve_tracker *t)
{
    size_t capacity = t->seen_capacity ? t->seen_capacity * 2 : 1024;
    text_check *table = alloc_zeroed(NULL, capacity, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < t->seen_capacity; i++)
        if (t->seen[i].body) *seen_slot(table, capacity, t->seen[i].body) = t->seen[i];
    alloc_free(NULL, t->seen);
    t->seen = table;
    t->seen_capacity = capacity;
    return true;
}

static bool text_is_as_before(serve_tracker *t, const serve_request *r)
{
    if (t->n_seen * 2 >= t->seen_capacity && !grow_seen(t)) {
        t->no_memory = true;
        return true;
    }
    text_check *slot = seen_slot(t->seen, t->seen_capacity, r->body_hash);
    if (slot->body) return slot->text == r->call.text_hash;
    *slot = (text_check){r->body_hash, r->call.text_hash};
    t->n_seen++;
    return true;
}

/* ---- a request ------------------------------------------------------------------------------- */

void track_start(serve_tracker *t, serve_request *r)
{
    r->finished = r->has_usage = false;
    r->start_us = r->last_us = t->now_us;
    r->call.start_s = (double)(t->now_us - t->start_us) / 1e6;
    r->call.ttft_s = -1;
    r->call.text_hash = 0xcbf29ce484222325ull;
    if (r->never_read) t->run->never_read_open++;
    else t->running++;
    if (t->running > t->run->peak_running) t->run->peak_running = t->running;
}

void track_token(serve_tracker *t, serve_request *r)
{
    r->call.events++;
    double since = (double)(t->now_us - r->last_us) / 1e6;
    if (r->call.events == 1) r->call.ttft_s = (double)(t->now_us - r->start_us) / 1e6;
    else add_itl(t, &r->call, since);
    r->last_us = t->now_us;
    count_token(t);
}

/* FNV-1a, byte by byte: the hash does not depend on where the pieces of a text were cut. */
void track_text(serve_request *r, const char *text, size_t n)
{
    uint64_t h = r->call.text_hash;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)text[i]) * 0x100000001b3ull;
    r->call.text_hash = h;
}

serve_end track_judge(serve_tracker *t, const serve_request *r)
{
    if (!r->finished) return SERVE_NO_FINISH;
    if (!r->has_usage) return SERVE_NO_USAGE;
    if (r->call.events != r->call.output_tokens) return SERVE_COUNT;
    if (!t->o->keep_eos && r->call.output_tokens != r->want) return SERVE_SHORT;
    return t->o->check && !text_is_as_before(t, r) ? SERVE_DIFFERS : SERVE_OK;
}

void track_end(serve_tracker *t, serve_request *r, serve_end end)
{
    if (r->never_read) {
        t->run->never_read_closed++;
        return;
    }
    r->call.end = end;
    int64_t until = r->call.events ? r->last_us : t->now_us;
    r->call.latency_s = (double)(until - r->start_us) / 1e6;
    if (!record_call(t, &r->call)) {
        t->no_memory = true;
        free(r->call.itls);
    }
    r->call.itls = NULL;
    t->running--;
    t->n_done++;
    if (end != SERVE_OK && end != SERVE_VANISHED) t->n_bad++;
}

void track_destroy(serve_tracker *t) { alloc_free(NULL, t->seen); }

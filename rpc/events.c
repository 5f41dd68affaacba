/* KV events: a ring that the engine thread fills and subscribers read by sequence number. */
#include "rpc/service.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct rpc_events {
    uint32_t capacity, page_tokens;
    kv_event *ring;   // event n is ring[n % capacity]
    uint32_t *tokens; // [capacity, page_tokens]
    listener_list listeners;
    pthread_mutex_t lock;
    uint64_t next; // the sequence number of the next event
    /* Listeners have been called since one of them last read up to the end. Listeners that have not
     * reached the end find newer events without another call. */
    bool notified;
};

status rpc_events_create(uint32_t capacity, uint32_t page_tokens, rpc_events **out)
{
    rpc_events *e = calloc(1, sizeof *e);
    if (!e) return status_make(STATUS_NO_MEMORY, "events");
    *e = (rpc_events){.capacity = capacity, .page_tokens = page_tokens, .next = 1};
    e->ring = calloc(capacity, sizeof *e->ring);
    e->tokens = calloc((size_t)capacity * page_tokens, sizeof *e->tokens);
    pthread_mutex_init(&e->lock, NULL);
    listeners_init(&e->listeners);
    if (!e->ring || !e->tokens) {
        rpc_events_destroy(e);
        return status_make(STATUS_NO_MEMORY, "events");
    }
    *out = e;
    return STATUS_IS_OK;
}

void rpc_events_destroy(rpc_events *e)
{
    if (!e) return;
    listeners_destroy(&e->listeners);
    pthread_mutex_destroy(&e->lock);
    free(e->ring);
    free(e->tokens);
    free(e);
}

static double seconds_since_1970(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void rpc_events_on_block(void *ctx, const pkv_block_event *event)
{
    rpc_events *e = ctx;
    pthread_mutex_lock(&e->lock);
    uint64_t place = e->next % e->capacity;
    kv_event *k = &e->ring[place];
    *k = (kv_event){
        .sequence = e->next++,
        .time = seconds_since_1970(),
        .kind = event->kind == PKV_BLOCK_STORED    ? KV_STORED
                : event->kind == PKV_BLOCK_REMOVED ? KV_REMOVED
                                                   : KV_CLEARED,
        .hash = event->hash,
        .parent = event->parent,
    };
    k->hidden = k->kind == KV_STORED && !event->tokens;
    if (event->tokens)
        memcpy(e->tokens + place * e->page_tokens, event->tokens,
               e->page_tokens * sizeof *e->tokens);
    bool notify = !e->notified;
    e->notified = true;
    pthread_mutex_unlock(&e->lock);
    if (notify) listeners_notify(&e->listeners);
}

uint64_t rpc_events_next(rpc_events *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t next = e->next;
    e->notified = false;
    pthread_mutex_unlock(&e->lock);
    return next;
}

uint64_t rpc_events_oldest(rpc_events *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t oldest = e->next > e->capacity ? e->next - e->capacity : 1;
    pthread_mutex_unlock(&e->lock);
    return oldest;
}

/* Call it with the lock held. */
static status read_event(rpc_events *e, uint64_t sequence, kv_event *out, uint32_t *tokens)
{
    if (sequence >= e->next) {
        e->notified = false;
        return status_make(STATUS_NOT_FOUND, "not yet");
    }
    if (sequence == 0 || e->next - sequence > e->capacity)
        return status_make(STATUS_LIMIT, "no longer kept");
    uint64_t place = sequence % e->capacity;
    *out = e->ring[place];
    if (out->kind != KV_STORED || out->hidden) return STATUS_IS_OK;
    memcpy(tokens, e->tokens + place * e->page_tokens, e->page_tokens * sizeof *tokens);
    out->tokens = tokens;
    return STATUS_IS_OK;
}

status rpc_events_read(rpc_events *e, uint64_t sequence, kv_event *out, uint32_t *tokens)
{
    pthread_mutex_lock(&e->lock);
    status s = read_event(e, sequence, out, tokens);
    pthread_mutex_unlock(&e->lock);
    return s;
}

listener_list *rpc_events_listeners(rpc_events *e) { return &e->listeners; }

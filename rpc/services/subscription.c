#include "rpc/services/subscription.h"

#include <stdlib.h>

typedef struct subscription {
    listener listener;
    kv_event_send send;
    uint64_t next; // the event to send next
    bool over;
    uint32_t tokens[]; // [page_tokens]
} subscription;

static void out_of_range(rpc_call *c, uint64_t wanted)
{
    rpc_events *events = call_service(c)->o.events;
    char text[160];
    snprintf(text, sizeof text,
             "sequence number %llu is not kept: the oldest is %llu, the next one %llu",
             (unsigned long long)wanted, (unsigned long long)rpc_events_oldest(events),
             (unsigned long long)rpc_events_next(events));
    call_finish(c, GRPC_STATUS_OUT_OF_RANGE, text);
}

void subscription_begin(rpc_call *c, uint64_t from, kv_event_send send)
{
    const rpc_options *o = &call_service(c)->o;
    error err = {{0}};
    if (!o->events) {
        call_fail(c, error_set(&err, STATUS_UNSUPPORTED, "this server keeps no KV events"), &err);
        return;
    }
    uint64_t next = rpc_events_next(o->events);
    if (from > next || (from && from < rpc_events_oldest(o->events))) {
        out_of_range(c, from);
        return;
    }
    subscription *s = calloc(1, sizeof *s + o->model.page_tokens * sizeof s->tokens[0]);
    if (!s) {
        call_fail(c, error_set(&err, STATUS_NO_MEMORY, "subscription: out of memory"), &err);
        return;
    }
    s->send = send;
    s->next = from ? from : next;
    s->listener = (listener){.notify = call_wake, .ctx = c};
    call_set_state(c, s);
    listeners_add(rpc_events_listeners(o->events), &s->listener);
    call_accept(c);
}

void subscription_writable(rpc_call *c)
{
    subscription *s = call_state(c);
    if (!s) return;
    const rpc_options *o = &call_service(c)->o;
    while (!s->over && call_can_send(c)) {
        kv_event event;
        status st = rpc_events_read(o->events, s->next, &event, s->tokens);
        if (st.code == STATUS_NOT_FOUND) return;
        if (status_ok(st)) {
            s->next++;
            s->send(c, &event, o->model.page_tokens);
        } else {
            s->over = true;
            out_of_range(c, s->next);
        }
    }
}

void subscription_ended(rpc_call *c)
{
    subscription *s = call_state(c);
    if (!s) return;
    listeners_remove(rpc_events_listeners(call_service(c)->o.events), &s->listener);
    free(s);
}

/* Replays: a reader that missed messages asks for all from a number on. Each gets as much at a time
 * as its connection takes, so that no reader holds up the others or fills the memory. */
#include "rpc/zmq/internal.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

/* A reader that takes nothing for so long is given up. */
enum { STALL_US = 1000000 };

status event_source_load(event_source *source, uint64_t number)
{
    kv_event event;
    RETURN_IF_ERROR(rpc_events_read(source->events, number, &event, source->tokens));
    strbuf_clear(&source->payload);
    if (message_pack(&event, source->page_tokens, &source->payload)) return STATUS_IS_OK;
    strbuf_destroy(&source->payload);
    return status_make(STATUS_NO_MEMORY, "a KV event");
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Reads one part. Returns its size, or -1 when none has come; a longer part than `size` is cut. */
static int read_part(void *socket, void *out, size_t size, bool *more)
{
    int has_more = 0;
    size_t n_more = sizeof has_more;
    int n = zmq_recv(socket, out, size, ZMQ_DONTWAIT);
    if (n >= 0) zmq_getsockopt(socket, ZMQ_RCVMORE, &has_more, &n_more);
    *more = n >= 0 && has_more;
    return n;
}

/* A request is the reader's identity, an empty part and a sequence number. Returns false when none
 * has come; one of another form leaves *form false. */
static bool read_request(void *router, replay *out, bool *form)
{
    uint8_t part[SEQUENCE_BYTES + 1];
    bool more;
    int n = read_part(router, out->identity, sizeof out->identity, &more);
    if (n < 0) return false;
    *form = n <= REPLAY_IDENTITY_MAX && more;
    out->n_identity = (size_t)n;
    for (int i = 0; more; i++) {
        n = read_part(router, part, sizeof part, &more);
        *form &= i == 0 ? n == 0 && more : i == 1 && n == SEQUENCE_BYTES && !more;
        if (i == 1 && *form) out->next = message_get_sequence(part);
    }
    return true;
}

void replays_receive(replays *r, rpc_events *events, int64_t now_us)
{
    bool form;
    while (r->router && r->n < REPLAYS_MAX) {
        replay *item = &r->items[r->n];
        if (!read_request(r->router, item, &form)) return;
        uint64_t oldest = rpc_events_oldest(events);
        if (item->next < oldest) item->next = oldest;
        item->progress_us = now_us;
        r->n += form;
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Sends the reader a message as PUB sends it. The ROUTER socket takes all parts of it or, at the
 * first, none. */
static bool send_message(void *router, const replay *to, const char *topic,
                         const uint8_t sequence[SEQUENCE_BYTES], const void *payload, size_t n)
{
    const int more = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    return zmq_send(router, to->identity, to->n_identity, more) >= 0 &&
           zmq_send(router, "", 0, more) >= 0 &&
           zmq_send(router, topic, strlen(topic), more) >= 0 &&
           zmq_send(router, sequence, SEQUENCE_BYTES, more) >= 0 &&
           zmq_send(router, payload, n, ZMQ_DONTWAIT) >= 0;
}

/* Returns whether the reader has all that it will get. */
static bool send_some(void *router, replay *to, event_source *source, uint64_t end, int64_t now_us)
{
    static const uint8_t end_mark[SEQUENCE_BYTES] = {255, 255, 255, 255, 255, 255, 255, 255};
    uint8_t sequence[SEQUENCE_BYTES];
    for (; to->next < end; to->next++, to->progress_us = now_us) {
        status st = event_source_load(source, to->next);
        if (st.code == STATUS_LIMIT) continue; // it was forgotten in the meantime
        message_put_sequence(to->next, sequence);
        if (!status_ok(st)) return now_us - to->progress_us > STALL_US;
        if (!send_message(router, to, source->topic, sequence, source->payload.data,
                          source->payload.size))
            return errno != EAGAIN || now_us - to->progress_us > STALL_US;
    }
    if (send_message(router, to, "", end_mark, "", 0)) return true;
    return errno != EAGAIN || now_us - to->progress_us > STALL_US;
}

void replays_send(replays *r, event_source *source, uint64_t end, int64_t now_us)
{
    for (size_t i = 0; i < r->n;)
        if (send_some(r->router, &r->items[i], source, end, now_us)) r->items[i] = r->items[--r->n];
        else i++;
}

/* Types and functions that the files of rpc/zmq share (private to it). */
#ifndef RPC_ZMQ_INTERNAL_H
#define RPC_ZMQ_INTERNAL_H

#include "rpc/service.h"
#include "rpc/zmq/publisher.h"

/* ---- the configuration (config.c) ------------------------------------------------------------ */

typedef struct publisher_config {
    json_t *json; // owns the texts below
    bool enabled;
    const char *endpoint; // of PUB
    const char *replay;   // of ROUTER; NULL = none
    const char *topic;
    int hwm; // messages that wait for a reader before it misses some
} publisher_config;

/* Release *out with publisher_config_destroy, also after an error. */
status publisher_config_read(const char *json, bool has_keys, publisher_config *out, error *err);
void publisher_config_destroy(publisher_config *c);
/* vLLM's rule: a wildcard, an IPv6 wildcard or a path is listened on, another address connected
 * to. */
bool publisher_listens(const char *endpoint);

/* ---- messages (message.c) -------------------------------------------------------------------- */

enum { SEQUENCE_BYTES = 8 };

/* Appends the payload of an event to out. False when memory is out. */
bool message_pack(const kv_event *event, uint32_t page_tokens, strbuf *out);
/* On the wire the first event has number 0. */
void message_put_sequence(uint64_t number, uint8_t out[SEQUENCE_BYTES]);
uint64_t message_get_sequence(const uint8_t bytes[SEQUENCE_BYTES]);

/* ---- replays (replay.c) ---------------------------------------------------------------------- */

/* Readers whose replays run at once; more wait in the socket. */
enum { REPLAYS_MAX = 16, REPLAY_IDENTITY_MAX = 255 };

typedef struct replay {
    uint8_t identity[REPLAY_IDENTITY_MAX];
    size_t n_identity;
    uint64_t next;       // the event to send next
    int64_t progress_us; // when a message was last taken
} replay;

typedef struct replays {
    void *router; // NULL = no replays
    replay items[REPLAYS_MAX];
    size_t n;
} replays;

/* ---- readers (readers.c) --------------------------------------------------------------------- */

/* Readers that are connected to one socket; more wait until one has gone. */
enum { READERS_MAX = 64 };

typedef struct readers {
    void *socket, *monitor; // NULL = not watched: a path, or a socket that connects to its reader
    int listener;           // its descriptor, which lives as long as the socket
    uint32_t n;
    bool full;
} readers;

/* Watches a socket before it is bound. `name`: of the monitor, "inproc://...". */
status readers_watch(readers *r, void *context, void *socket, const char *name);
/* Takes what has happened; r->monitor is readable then. True: all places have been taken. */
bool readers_update(readers *r);
/* Ends the watch; to be called before the socket is closed. */
void readers_forget(readers *r);

/* A payload made for one event at a time, and the topic of all, so that a message is the same each
 * time it is sent. */
typedef struct event_source {
    rpc_events *events;
    char *topic;
    uint32_t page_tokens;
    uint32_t *tokens; // [page_tokens]
    strbuf payload;
} event_source;

/* Makes source->payload of event `number` (1, 2, 3, …). Fails as rpc_events_read does. */
status event_source_load(event_source *source, uint64_t number);

/* Takes the requests that have come, as long as there is room for them. */
void replays_receive(replays *r, rpc_events *events, int64_t now_us);
/* Sends each reader what its connection takes of the events before `end`, then the end's marker. */
void replays_send(replays *r, event_source *source, uint64_t end, int64_t now_us);

#endif

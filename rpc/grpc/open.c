/* Bounds the calls that need no key. Anyone who reaches the port may begin them, each takes memory
 * (a Watch about 13 kB) as long as its connection lives, and a connection may have --max-streams
 * calls. So a connection has OPEN_CALLS_MAX of these at once. */
#include "rpc/grpc/internal.h"

#include <grpc/support/alloc.h>
#include <string.h>

static rpc_call **bucket_of(open_calls *o, uint64_t peer) { return &o->first[peer % OPEN_BUCKETS]; }

/* gRPC gives a connection no name but its peer's address, which all clients of a socket in the
 * file system share. 0: it is such a socket. */
static uint64_t peer_of(const rpc_call *c)
{
    char *address = grpc_call_get_peer(c->call);
    bool is_path = strncmp(address, "unix", 4) == 0;
    uint64_t hash = is_path ? 0 : hash_bytes(address, strlen(address), 0) | 1;
    gpr_free(address);
    return hash;
}

bool open_enter(rpc_call *c)
{
    open_calls *o = &c->queue->front->open;
    uint64_t peer = peer_of(c);
    uint32_t n = 0;
    if (!peer) return true;
    pthread_mutex_lock(&o->lock);
    rpc_call **bucket = bucket_of(o, peer);
    for (const rpc_call *other = *bucket; other; other = other->next_open)
        n += other->open_peer == peer;
    bool enters = n < OPEN_CALLS_MAX;
    if (enters) {
        c->open_peer = peer;
        c->next_open = *bucket;
        *bucket = c;
    }
    pthread_mutex_unlock(&o->lock);
    return enters;
}

void open_leave(rpc_call *c)
{
    open_calls *o = &c->queue->front->open;
    if (!c->open_peer) return;
    pthread_mutex_lock(&o->lock);
    rpc_call **at = bucket_of(o, c->open_peer);
    while (*at != c) at = &(*at)->next_open;
    *at = c->next_open;
    pthread_mutex_unlock(&o->lock);
}

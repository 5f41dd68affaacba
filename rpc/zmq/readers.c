/* Bounds how many readers are connected to a socket that listens. libzmq itself has no such bound:
 * each reader takes a descriptor, and one that reads nothing takes room for hwm messages.
 *
 * libzmq tells a monitor which connections it has accepted and which have ended. When all places
 * are taken, the kernel drops what reaches the listening socket, as rpc/grpc/gate.c has it: readers
 * that connect then wait until there is a place. The news comes on another thread, so that some
 * more may be accepted in the meantime. A socket of a path is not watched: the kernel has no such
 * filter for it, and the folder's rights say who may open it. */
#include "rpc/zmq/internal.h"

#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

status readers_watch(readers *r, void *context, void *socket, const char *name)
{
    const int events = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED;
    const int none = 0; /* no bound: libzmq's thread would wait for room in the monitor */
    *r = (readers){.socket = socket, .listener = -1};
    r->monitor = zmq_socket(context, ZMQ_PAIR);
    bool ok = r->monitor && zmq_setsockopt(r->monitor, ZMQ_RCVHWM, &none, sizeof none) == 0 &&
              zmq_setsockopt(r->monitor, ZMQ_LINGER, &none, sizeof none) == 0 &&
              zmq_socket_monitor(socket, name, events) == 0 && zmq_connect(r->monitor, name) == 0;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "a monitor of readers");
}

void readers_forget(readers *r)
{
    if (!r->monitor) return;
    (void)zmq_socket_monitor(r->socket, NULL, 0);
    zmq_close(r->monitor);
    r->monitor = NULL;
}

/* With a filter that accepts no byte, the kernel drops all segments for the listening socket. */
static void drop_segments(const readers *r, bool drop)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_fprog program = {.len = 1, .filter = &nothing};
    const int option = drop ? SO_ATTACH_FILTER : SO_DETACH_FILTER;
    (void)setsockopt(r->listener, SOL_SOCKET, option, &program, sizeof program);
}

/* An event is its number (16 bits) and value (32 bits), and a part with the address. */
static bool take_event(readers *r)
{
    uint8_t bytes[6];
    char address[1];
    uint16_t event;
    int32_t value;
    if (zmq_recv(r->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) != sizeof bytes) return false;
    (void)zmq_recv(r->monitor, address, sizeof address, ZMQ_DONTWAIT);
    memcpy(&event, bytes, sizeof event);
    memcpy(&value, bytes + sizeof event, sizeof value);
    if (event == ZMQ_EVENT_LISTENING) r->listener = value;
    else if (event == ZMQ_EVENT_ACCEPTED) r->n++;
    else if (event == ZMQ_EVENT_DISCONNECTED && r->n > 0) r->n--;
    return true;
}

bool readers_update(readers *r)
{
    if (!r->monitor) return false;
    while (take_event(r)) continue;
    bool full = r->n >= READERS_MAX, filled = full && !r->full;
    if (full != r->full) drop_segments(r, full);
    r->full = full;
    return filled;
}

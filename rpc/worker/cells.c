/* Cells at the coordinator: copies K and V out of a rank's pool, and into it. Each call has a queue
 * of its own, because several threads call at once, and is cancelled when the session fails. */
#include "rpc/worker/group.h"

#include <grpc/support/time.h>
#include <string.h>

enum { CELLS_US = 60000000, UNPACK_FACTOR = 2, UNPACK_EXTRA = 1 << 16 };

struct cells_call {
    unary_call x;
    grpc_completion_queue *queue;
    cells_call *next; // of the link
};

void link_cancel_cells(worker_link *l)
{
    for (cells_call *c = l->copies; c; c = c->next) grpc_call_cancel(c->x.call, NULL);
}

/* Makes the call, so that link_cancel_cells finds it. False: the session has failed. */
static bool begin(worker_link *l, cells_call *c)
{
    worker_group *g = l->group;
    grpc_slice path = grpc_slice_from_static_string("/octavo.worker.v1.Worker/Cells");
    c->queue = grpc_completion_queue_create_for_pluck(NULL);
    pthread_mutex_lock(&g->lock);
    bool ok = !g->failed && !l->interrupted;
    if (ok) {
        c->x.call = grpc_channel_create_call(l->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue,
                                             path, NULL, time_at(clock_now_us() + CELLS_US), NULL);
        c->next = l->copies;
        l->copies = c;
    }
    pthread_mutex_unlock(&g->lock);
    return ok;
}

static void end(worker_link *l, cells_call *c)
{
    worker_group *g = l->group;
    cells_call **at = &l->copies;
    pthread_mutex_lock(&g->lock);
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    pthread_mutex_unlock(&g->lock);
    if (c->x.call) grpc_call_unref(c->x.call);
    grpc_completion_queue_shutdown(c->queue);
    while (grpc_completion_queue_pluck(c->queue, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(c->queue);
}

/* Copies the answer's `bytes` of data to `to`, `each` to one place. */
static bool take_answer(unary_call *x, uint8_t *const *to, size_t each, size_t bytes)
{
    grpc_slice whole;
    arena memory;
    const ProtobufCMessage *m;
    if (!x->incoming || !bytes_read(x->incoming, &whole)) return false;
    size_t n = GRPC_SLICE_LENGTH(whole);
    status st =
        message_unpack(&octavo__worker__v1__cells_reply__descriptor, GRPC_SLICE_START_PTR(whole), n,
                       UNPACK_FACTOR * n + UNPACK_EXTRA, &memory, &m, NULL);
    bool good = status_ok(st);
    if (good) {
        const Octavo__Worker__V1__CellsReply *reply = (const void *)m;
        good = reply->data.len == bytes;
        for (size_t at = 0; good && at < bytes; at += each)
            memcpy(to[at / each], reply->data.data + at, bytes - at < each ? bytes - at : each);
    }
    arena_destroy(&memory);
    grpc_slice_unref(whole);
    return good;
}

/* Asks the rank, and copies the `bytes` of its answer to `to`, `each` to one place. */
static bool ask_cells(worker_link *l, cells_message *m, uint8_t *const *to, size_t each,
                      size_t bytes)
{
    cells_call c = {0};
    bool good = begin(l, &c);
    if (good) {
        m->session = l->group->session;
        good = unary_begin(&c.x, &m->base, &c);
        if (good)
            grpc_completion_queue_pluck(c.queue, &c, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        good = good && c.x.code == GRPC_STATUS_OK && take_answer(&c.x, to, each, bytes);
        unary_end(&c.x);
    }
    end(l, &c);
    return good;
}

static size_t bytes_of(const worker_link *l, uint32_t n)
{
    return n * backend_slice_of(&l->facts.info, l->rank, l->group->o.n).cell_bytes;
}

bool proxy_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                      uint8_t *const *to, uint32_t each)
{
    worker_link *l = ctx;
    cells_message m = OCTAVO__WORKER__V1__CELLS_REQUEST__INIT;
    m.cells = (uint32_t *)(uintptr_t)cells;
    m.n_cells = n;
    m.n_slots = n_slots;
    return ask_cells(l, &m, to, bytes_of(l, each), bytes_of(l, n));
}

bool proxy_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    worker_link *l = ctx;
    cells_message m = OCTAVO__WORKER__V1__CELLS_REQUEST__INIT;
    m.cells = (uint32_t *)(uintptr_t)cells;
    m.n_cells = n;
    m.data = (ProtobufCBinaryData){bytes_of(l, n), (uint8_t *)(uintptr_t)from};
    return ask_cells(l, &m, NULL, 0, 0);
}

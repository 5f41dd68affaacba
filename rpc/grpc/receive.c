/* Unpacks messages of clients into structs. A pool of threads reads the large ones, so that other
 * calls, such as health checks, need not wait for them; the method still gets every message on the
 * queue's thread. */
#include "rpc/grpc/internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <semaphore.h>
#include <stdlib.h>

#define TOO_MANY "request: too many large messages, or too little memory for more"

/* A message on its way through the pool. */
typedef struct large_message {
    work_job job;
    rpc_call *call;
    grpc_byte_buffer *buffer;
    size_t n;
    queue_op read;        // brings it back to the queue's thread
    _Atomic bool is_read; // orders the pool thread's writes before the queue thread's reads
    sem_t taken;          // posted when the queue's thread is done with it
    arena memory;
    const ProtobufCMessage *message;
    status status;
    error err;
} large_message;

static status read_buffer(const rpc_call *c, grpc_byte_buffer *buffer, arena *a,
                          const ProtobufCMessage **out, error *err)
{
    grpc_byte_buffer_reader reader;
    arena_init(a, 0, 0);
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return error_set(err, STATUS_INVALID, "request: its bytes cannot be read");
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    status s = message_unpack(c->method->input, GRPC_SLICE_START_PTR(bytes),
                              GRPC_SLICE_LENGTH(bytes), c->queue->front->unpack_limit, a, out, err);
    grpc_slice_unref(bytes);
    return s;
}

/* Runs on a thread of the pool, and waits until the method has had the message: so at most one
 * unpacked message per thread exists at any time. */
static void read_large(void *owner, bool wanted)
{
    (void)wanted; // always true: the pool stops after the last call
    large_message *l = owner;
    if (atomic_load(&l->call->queue->front->stopping))
        l->status = error_set(&l->err, STATUS_UNAVAILABLE, "the server is stopping");
    else l->status = read_buffer(l->call, l->buffer, &l->memory, &l->message, &l->err);
    grpc_byte_buffer_destroy(l->buffer);
    atomic_store(&l->is_read, true);
    call_post(l->call, &l->read);
    while (sem_wait(&l->taken) != 0) continue;
    arena_destroy(&l->memory); // empty when the method has kept the message
    sem_destroy(&l->taken);
    free(l);
}

static void on_read(void *owner, bool ok)
{
    (void)ok;
    large_message *l = owner;
    rpc_call *c = l->call;
    (void)atomic_load(&l->is_read);
    atomic_fetch_sub(&c->queue->front->large_bytes, l->n);
    call_deliver(c, &l->memory, l->message, l->status, &l->err);
    sem_post(&l->taken); // the pool's thread frees l
    call_unref(c);       // the event's reference
    call_unref(c);       // the job's reference
}

/* Gives a large message to the pool; refuses it when waiting messages take too much memory. */
static status put_large(rpc_call *c, grpc_byte_buffer *buffer, size_t n, error *err)
{
    grpc_front *f = c->queue->front;
    size_t all = atomic_fetch_add(&f->large_bytes, n) + n;
    bool fits = all <= LARGE_MESSAGES * f->o.max_message_bytes;
    large_message *l = fits ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        atomic_fetch_sub(&f->large_bytes, n);
        return fits ? error_set(err, STATUS_NO_MEMORY, "request: out of memory")
                    : error_set(err, STATUS_QUEUE_FULL, TOO_MANY);
    }
    l->call = c;
    l->buffer = buffer;
    l->n = n;
    l->read = (queue_op){on_read, l};
    l->job = (work_job){.run = read_large, .owner = l};
    sem_init(&l->taken, 0, 0);
    call_ref(c);
    work_pool_put(&f->work, &l->job);
    return STATUS_IS_OK;
}

/* Messages of methods that need no key are names, so they are short. They do not count: clients
 * without a key could take the memory of all bodies, and health would be refused once it is
 * taken. */
enum { OPEN_MESSAGE_BYTES = 4096 };

/* Counts the memory of a message until the call ends. Of a call on which the client sends many
 * messages only the latest counts, because they may follow each other for days. */
static bool take_memory(rpc_call *c, size_t n)
{
    service *s = c->queue->front->o.service;
    if (!s || c->method->open) return true;
    if (c->method->client_streams) {
        service_give_body(s, c->body_taken);
        c->body_taken = 0;
    }
    if (!service_take_body(s, n)) return false;
    c->body_taken += n;
    return true;
}

void call_read(rpc_call *c, grpc_byte_buffer *buffer)
{
    size_t n = grpc_byte_buffer_length(buffer);
    error err = {{0}};
    if (c->method->open && n > OPEN_MESSAGE_BYTES) {
        call_refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED,
                    "request: longer than a method without keys takes");
    } else if (!take_memory(c, n)) {
        call_fail(c, error_set(&err, STATUS_QUEUE_FULL, TOO_MANY), &err);
    } else if (buffer->data.raw.compression != GRPC_COMPRESS_NONE) {
        call_refuse(c, GRPC_STATUS_UNIMPLEMENTED, "request: compression is not supported");
    } else if (n >= LARGE_MESSAGE_BYTES && c->queue->front->work.is_made) {
        status s = put_large(c, buffer, n, &err);
        if (status_ok(s)) return;
        call_fail(c, s, &err);
    } else {
        arena a;
        const ProtobufCMessage *m = NULL;
        status s = read_buffer(c, buffer, &a, &m, &err);
        call_deliver(c, &a, m, s, &err);
        arena_destroy(&a);
    }
    grpc_byte_buffer_destroy(buffer);
}

/* Unpacks messages of clients into a capped arena: a few bytes on the wire can become structs of
 * many times their size. */
#include "rpc/grpc/internal.h"

enum { ARENA_BLOCK_BYTES = 4096 };

typedef struct capped {
    arena *arena;
    bool was_refused;
} capped;

static void *capped_alloc(void *ctx, size_t n)
{
    capped *a = ctx;
    void *p = arena_alloc(a->arena, n);
    if (!p) a->was_refused = true;
    return p;
}

static void capped_free(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

status message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                      size_t limit, arena *a, const ProtobufCMessage **out, error *err)
{
    arena_init(a, ARENA_BLOCK_BYTES, limit);
    capped memory = {.arena = a};
    ProtobufCAllocator alloc = {capped_alloc, capped_free, &memory};
    *out = protobuf_c_message_unpack(type, &alloc, n, bytes);
    if (*out) return STATUS_IS_OK;
    if (a->starved) return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    if (memory.was_refused)
        return error_set(err, STATUS_LIMIT, "request: unpacked it takes more than %zu bytes",
                         limit);
    return error_set(err, STATUS_INVALID, "request: not a valid %s message", type->name);
}

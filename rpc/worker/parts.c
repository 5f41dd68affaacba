/* Parts of messages that are too large to be sent at once (codec.h). */
#include "rpc/worker/codec.h"

#include <string.h>

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

part_message part_of(const uint8_t *whole, size_t n, size_t offset, size_t part_bytes)
{
    part_message p = OCTAVO__WORKER__V1__PART__INIT;
    p.whole_bytes = n;
    p.offset = offset;
    /* Drops const for protobuf-c, which does not change what it packs. */
    p.data = (ProtobufCBinaryData){smaller(n - offset, part_bytes),
                                   (uint8_t *)(uintptr_t)(whole + offset)};
    return p;
}

/* Checks the next part. All parts but the last must be full, so that a small first part cannot
 * reserve a large whole, and a peer cannot send parts without end. */
static status check_part(const assembly *a, const part_message *p, const part_sizes *sizes,
                         error *err)
{
    if (a->bytes && p->whole_bytes != a->size)
        return error_set(err, STATUS_INVALID, "part.whole_bytes: %llu, the parts before have %zu",
                         (unsigned long long)p->whole_bytes, a->size);
    if (p->whole_bytes <= sizes->part)
        return error_set(err, STATUS_INVALID, "part.whole_bytes: %llu fit a message, which has %zu",
                         (unsigned long long)p->whole_bytes, sizes->part);
    if (p->whole_bytes > sizes->whole)
        return error_set(err, STATUS_LIMIT, "part.whole_bytes: %llu, at most %zu",
                         (unsigned long long)p->whole_bytes, sizes->whole);
    if (a->bytes && a->have == a->size)
        return error_set(err, STATUS_INVALID, "part.offset: %llu, all %zu bytes have come",
                         (unsigned long long)p->offset, a->size);
    if (p->offset != a->have)
        return error_set(err, STATUS_INVALID, "part.offset: %llu, the next part begins at %zu",
                         (unsigned long long)p->offset, a->have);
    size_t want = smaller((size_t)p->whole_bytes - a->have, sizes->part);
    if (p->data.len != want)
        return error_set(err, STATUS_INVALID, "part.data: %zu bytes, there should be %zu",
                         p->data.len, want);
    return STATUS_IS_OK;
}

status assembly_add(assembly *a, const part_message *p, const part_sizes *sizes, error *err)
{
    RETURN_IF_ERROR(check_part(a, p, sizes, err));
    if (!a->bytes) {
        a->bytes = alloc_pages((size_t)p->whole_bytes);
        if (!a->bytes)
            return error_set(err, STATUS_NO_MEMORY, "part.whole_bytes: no memory for %llu",
                             (unsigned long long)p->whole_bytes);
        a->size = (size_t)p->whole_bytes;
    }
    memcpy(a->bytes + a->have, p->data.data, p->data.len);
    a->have += p->data.len;
    return STATUS_IS_OK;
}

void assembly_clear(assembly *a)
{
    if (a->bytes) alloc_pages_free(a->bytes, a->size);
    *a = (assembly){0};
}

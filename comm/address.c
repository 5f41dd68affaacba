#include "comm/address.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BYTES_MAX = 1 << 16 };

/* Little-endian, like all machines that Octavo runs on. */
typedef struct header {
    char magic[8];
    char kind[8];
    uint32_t version[3];
    uint32_t rank;
    uint32_t size;
    uint32_t bytes; /* bytes after the header */
    uint64_t host;
    uint64_t checksum; /* of the bytes and this header, with checksum as 0 */
} header;

static const char magic[8] = "octcom1";

static uint64_t checksum(const header *h, const void *bytes)
{
    header blank = *h;
    blank.checksum = 0;
    return hash_bytes(bytes, h->bytes, hash_bytes(&blank, sizeof blank, 0));
}

uint64_t address_host(void)
{
    char boot[64]; /* a UUID of the running kernel */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0) close(fd);
    return n > 0 ? hash_bytes(boot, (size_t)n, 0) : 0;
}

status address_write(strbuf *out, const address_origin *from, const void *bytes, size_t n,
                     error *err)
{
    if (n > BYTES_MAX) return error_set(err, STATUS_LIMIT, "comm: an address of %zu bytes", n);
    header h = {.rank = (uint32_t)from->rank, .size = (uint32_t)from->size, .bytes = (uint32_t)n};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.kind, from->kind, strnlen(from->kind, sizeof h.kind));
    memcpy(h.version, from->version, sizeof h.version);
    h.host = address_host();
    h.checksum = checksum(&h, bytes);
    strbuf_append(out, &h, sizeof h);
    strbuf_append(out, bytes, n);
    return out->failed ? error_set(err, STATUS_NO_MEMORY, "comm: out of memory") : STATUS_IS_OK;
}

static status check_origin(const address_origin *own, int rank, const header *h, error *err)
{
    const uint32_t *ours = own->version, *theirs = h->version;
    if (memcmp(theirs, ours, sizeof h->version) != 0)
        return error_set(
            err, STATUS_UNSUPPORTED, "comm: \"%s\" is %u.%u.%u on rank %d, %u.%u.%u on rank %d",
            own->kind, theirs[0], theirs[1], theirs[2], rank, ours[0], ours[1], ours[2], own->rank);
    if (h->rank != (uint32_t)rank || h->size != (uint32_t)own->size)
        return error_set(err, STATUS_INVALID,
                         "comm: the address for rank %d of %d is that of rank %u of %u", rank,
                         own->size, h->rank, h->size);
    return STATUS_IS_OK;
}

status address_read(const address_origin *own, int rank, comm_address framed, comm_address *bytes,
                    uint64_t *host, error *err)
{
    header h;
    bool ours = framed.bytes && framed.n >= sizeof h;
    if (ours) memcpy(&h, framed.bytes, sizeof h);
    if (!ours || memcmp(h.magic, magic, sizeof magic) != 0 ||
        strncmp(h.kind, own->kind, sizeof h.kind) != 0)
        return error_set(err, STATUS_CORRUPT, "comm: the address of rank %d is not one of \"%s\"",
                         rank, own->kind);
    *bytes = (comm_address){(const char *)framed.bytes + sizeof h, framed.n - sizeof h};
    *host = h.host;
    if (h.bytes != bytes->n || h.bytes > BYTES_MAX || h.checksum != checksum(&h, bytes->bytes))
        return error_set(err, STATUS_CORRUPT, "comm: the address of rank %d is damaged", rank);
    return check_origin(own, rank, &h, err);
}

/* A rank's address as it travels: the worker's own, behind a header that says whose it is. UCX
 * reads a worker's address without looking where it ends, so nothing gets there that is not whole
 * and its own. (A checksum keeps out accidents, not forgers: workers know their coordinator.) */
#include "comm/ucx.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { WORKER_BYTES_MAX = 1 << 16 };

/* Little-endian, as all machines that Octavo runs on. */
typedef struct header {
    char magic[8];
    uint32_t ucx[3]; /* major, minor, release */
    uint32_t rank;
    uint32_t size;
    uint32_t bytes; /* of the worker's address, which follows */
    uint64_t host;
    uint64_t checksum; /* of all that follows, and of this header where it is 0 */
} header;

static const char magic[8] = "octucx1";

static uint64_t checksum(const header *h, const void *worker)
{
    header blank = *h;
    blank.checksum = 0;
    return hash_bytes(worker, h->bytes, hash_bytes(&blank, sizeof blank, 0));
}

static void library_version(const ucx *u, uint32_t out[3])
{
    unsigned major, minor, release;
    u->lib.ucp_get_version(&major, &minor, &release);
    out[0] = major, out[1] = minor, out[2] = release;
}

/* Ranks that say the same share cores. */
static uint64_t this_host(void)
{
    char boot[64]; /* of the running kernel: a UUID */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0) close(fd);
    return n > 0 ? hash_bytes(boot, (size_t)n, 0) : 0;
}

status ucx_address_frame(ucx *u, error *err)
{
    ucp_address_t *worker = NULL;
    size_t bytes = 0;
    ucs_status_t got = u->lib.ucp_worker_get_address(u->worker, &worker, &bytes);
    if (got != UCS_OK)
        return error_set(err, STATUS_IO, "comm: UCX has no address: %s",
                         u->lib.ucs_status_string(got));
    header h = {.rank = (uint32_t)u->rank, .size = (uint32_t)u->size, .bytes = (uint32_t)bytes};
    memcpy(h.magic, magic, sizeof magic);
    library_version(u, h.ucx);
    h.host = u->host = this_host();
    h.checksum = checksum(&h, worker);
    strbuf_append(&u->address, &h, sizeof h);
    strbuf_append(&u->address, worker, bytes);
    u->lib.ucp_worker_release_address(u->worker, worker);
    return u->address.failed ? error_set(err, STATUS_NO_MEMORY, "comm: out of memory")
                             : STATUS_IS_OK;
}

static status check_version(const ucx *u, int rank, const header *h, error *err)
{
    uint32_t ours[3];
    library_version(u, ours);
    if (memcmp(h->ucx, ours, sizeof ours) == 0) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "comm: rank %d has UCX %u.%u.%u, rank %d has %u.%u.%u", rank, h->ucx[0],
                     h->ucx[1], h->ucx[2], u->rank, ours[0], ours[1], ours[2]);
}

status ucx_address_open(const ucx *u, int rank, comm_address framed, const void **worker,
                        uint64_t *host, error *err)
{
    header h;
    if (!framed.bytes || framed.n < sizeof h || memcmp(framed.bytes, magic, sizeof magic) != 0)
        return error_set(err, STATUS_CORRUPT, "comm: the address of rank %d is not one of \"ucx\"",
                         rank);
    memcpy(&h, framed.bytes, sizeof h);
    *worker = (const char *)framed.bytes + sizeof h;
    *host = h.host;
    RETURN_IF_ERROR(check_version(u, rank, &h, err));
    if (h.bytes > WORKER_BYTES_MAX || h.bytes != framed.n - sizeof h ||
        h.checksum != checksum(&h, *worker))
        return error_set(err, STATUS_CORRUPT, "comm: the address of rank %d is damaged", rank);
    if (h.rank != (uint32_t)rank || h.size != (uint32_t)u->size)
        return error_set(err, STATUS_INVALID,
                         "comm: the address for rank %d of %d is that of rank %u of %u", rank,
                         u->size, h.rank, h.size);
    return STATUS_IS_OK;
}

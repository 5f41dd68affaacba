/* A rank's address on the wire (private to comm/): the bytes of a library's address behind a header
 * that names the library. Libraries read such bytes without checking where they end, so only whole
 * addresses of the same library are passed on. (The checksum protects from accidents, not from
 * forgers: a worker knows its coordinator by its certificate.) */
#ifndef COMM_ADDRESS_H
#define COMM_ADDRESS_H

#include "comm/comm.h"

typedef struct address_origin {
    const char *kind;    /* at most 7 bytes */
    uint32_t version[3]; /* of the library; the same on all ranks */
    int rank;
    int size;
} address_origin;

/* Appends the framed address. */
status address_write(strbuf *out, const address_origin *from, const void *bytes, size_t n,
                     error *err);
/* Checks the framed address of `rank`, in a group with `own`. *bytes points into framed. */
status address_read(const address_origin *own, int rank, comm_address framed, comm_address *bytes,
                    uint64_t *host, error *err);
/* A digest of the host: ranks with the same digest share their cores. */
uint64_t address_host(void);

#endif

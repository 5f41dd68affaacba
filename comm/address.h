/* A rank's address as it travels (private to comm/): a library's own bytes, behind a header that
 * says whose they are. Libraries read such bytes without looking where they end, so none gets there
 * that are not whole and their own. (A checksum keeps out accidents, not forgers: a worker knows
 * its coordinator by its certificate.) */
#ifndef COMM_ADDRESS_H
#define COMM_ADDRESS_H

#include "comm/comm.h"

typedef struct address_origin {
    const char *kind;    /* at most 7 bytes */
    uint32_t version[3]; /* of the library; ranks have the same one */
    int rank;
    int size;
} address_origin;

/* Appends the framed address. */
status address_write(strbuf *out, const address_origin *from, const void *bytes, size_t n,
                     error *err);
/* Opens what should be the address of `rank`, in a group with `own`. bytes points into framed. */
status address_read(const address_origin *own, int rank, comm_address framed, comm_address *bytes,
                    uint64_t *host, error *err);
/* Ranks that have the same one share their cores. */
uint64_t address_host(void);

#endif

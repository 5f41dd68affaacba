/* The messages of a fetch (private to transfer/): a peer asks for a key, and is answered by a head.
 * Where that says how many bytes there are, the peer takes room for them, says that it takes them,
 * and is sent them; without room it closes the connection, and the record is gone. Numbers are
 * little-endian, as on all machines that the server runs on. */
#ifndef TRANSFER_WIRE_H
#define TRANSFER_WIRE_H

#include "transfer/transfer.h"

#define WIRE_ASKS    "octavo?2"
#define WIRE_ANSWERS "octavo!2"
#define WIRE_TAKES   "octavo+2"

typedef struct wire_ask {
    uint8_t magic[8];
    transfer_key key;
    uint64_t identity;
    uint64_t most; // bytes that the peer takes
} wire_ask;

typedef enum wire_outcome {
    WIRE_SENT,
    WIRE_UNKNOWN, // never held, fetched before, or forgotten
    WIRE_OTHER,   // of another model, or of K and V stored in another way
    WIRE_LONG,    // longer than the peer takes
    WIRE_OUTCOMES,
} wire_outcome;

typedef struct wire_answer {
    uint8_t magic[8];
    uint32_t outcome, zero;
    uint64_t n;    // bytes that follow, once the peer takes them
    uint64_t hash; // of them (hash_bytes, by the identity)
} wire_answer;

typedef struct wire_take {
    uint8_t magic[8];
} wire_take;

_Static_assert(sizeof(wire_ask) == 40 && sizeof(wire_answer) == 32, "messages have no holes");

/* Reads a peer's answer to a request for at most `most` bytes. Returns NULL, and *n bytes follow,
 * or the reason why the peer sends none. */
const char *wire_read_answer(const wire_answer *a, uint64_t most, size_t *n);

#endif

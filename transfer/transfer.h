/* transfer: bytes that one server holds until another fetches them, such as the K and V of a prompt
 * that one has computed and the other goes on from.
 *
 * What     a store of records in memory, each under an unguessable key, for a bounded time and in
 *          bounded memory; a listener from which peers fetch them, each once; and threads that
 *          fetch records of peers that the configuration names.
 * Owner    a record belongs to the store from transfer_hold on; a record that was fetched is the
 *          caller's, and its room too, until transfer_release.
 * Threads  any thread may call every function but transfer_open and transfer_close. `oct-peers`
 *          serves peers, FETCH_THREADS of `oct-fetch` fetch from them and call `done`.
 * Units    bytes; microseconds of the monotonic clock.
 * Errors   a fetch says in one line why it got nothing. Nothing that a peer sends is believed: the
 *          record's length is compared with what the caller can use, and room is taken, before any
 *          byte of it is sent; its bytes are compared with a checksum. The caller checks what they
 *          mean.
 * Wire     TCP without encryption: for a network that clients are not on, as for the traffic of
 *          ranks. wire.h has the messages. */
#ifndef TRANSFER_TRANSFER_H
#define TRANSFER_TRANSFER_H

#include "base/base.h"

typedef struct transfer transfer;

typedef struct transfer_key {
    uint8_t bytes[16];
} transfer_key;

typedef struct transfer_options {
    const char *listen;       // HOST:PORT where peers fetch; NULL = nothing is held
    const char *const *peers; // [n_peers] HOST:PORT of each server that may be fetched from
    uint32_t n_peers;
    /* Stands for all that a record's bytes depend on. Peers of another identity get nothing. */
    uint64_t identity;
    size_t bytes;       // of records that are held or fetched, together
    int64_t ttl_us;     // a record that is not fetched within it is forgotten
    int64_t timeout_us; // a peer that does nothing for so long is given up
} transfer_options;

/* STATUS_INVALID: an address is none. STATUS_IO: it cannot be listened on. */
status transfer_open(const transfer_options *options, transfer **out, error *err);
/* No fetch may be under way (transfer_cancel). NULL is allowed. */
void transfer_close(transfer *t);

/* ---- records that peers fetch ---------------------------------------------------------------- */

/* Where peers reach this server: the host as it was given, and the port that was bound. "" and 0
 * without a listener. */
const char *transfer_host(const transfer *t);
uint16_t transfer_port(const transfer *t);
/* Takes room for a record that is being made for the owner, such as an API key. Where there is
 * none, the oldest held records of the owner of most bytes are forgotten, as long as that one has
 * more than this one will have, so that no owner takes the room of others. False: there is no room.
 */
bool transfer_make_room(transfer *t, uint64_t owner, size_t n);
/* Gives back the owner's room of n bytes for a record that was made and not held, or fetched. */
void transfer_release(transfer *t, uint64_t owner, size_t n);
/* Holds n bytes (malloc'd), for which room was taken, until a peer has fetched them. False: memory
 * is out, or the key is held already; bytes and room are still the caller's. */
bool transfer_hold(transfer *t, const transfer_key *key, uint64_t owner, uint8_t *bytes, size_t n);

/* ---- records of peers ------------------------------------------------------------------------ */

/* Whether the configuration names this peer. Names are compared as they are written. */
bool transfer_knows(const transfer *t, const char *host, uint32_t port);

enum { TRANSFER_HOST_BYTES = 256, TRANSFER_WHY_BYTES = 160 };

/* The result of a fetch: bytes (malloc'd) that the caller owns with their room, or NULL and why. */
typedef struct transfer_got {
    uint8_t *bytes;
    size_t n;
    int64_t us; // from its begin
    char why[TRANSFER_WHY_BYTES];
} transfer_got;

typedef struct transfer_fetch {
    char host[TRANSFER_HOST_BYTES];
    uint16_t port;
    transfer_key key;
    uint64_t owner; // whose room the record takes
    size_t most;    // bytes that the caller can use
    void (*done)(void *ctx, const transfer_got *got);
    void *ctx;
    /* The module's own. */
    struct transfer_fetch *next;
    int64_t begun_us;
    uint32_t peer;
    bool waits; // for a thread
} transfer_fetch;

/* Begins a fetch from a peer that transfer_knows. It stays in place until `done` is called: once,
 * by another thread, or by this one after transfer_cancel. Fetches wait for a free thread; when one
 * is given up because the peer did nothing in time, so are all that wait for the same peer by
 * then. */
void transfer_fetch_begin(transfer *t, transfer_fetch *f);
/* Takes back a fetch for which transfer_fetch_begin has returned and whose memory is still there.
 * True: the fetch waited for a thread, and `done` is not called. False: `done` was called, or soon
 * is, because the fetch waits for its peer no longer. */
bool transfer_fetch_take_back(transfer *t, transfer_fetch *f);
/* Gives up all fetches, also later ones, and returns once each was told. */
void transfer_cancel(transfer *t);

/* ---- numbers --------------------------------------------------------------------------------- */

/* X(field, metric, help) */
#define TRANSFER_COUNTERS(X)                                                                       \
    X(held, "kv_transfer_held_total", "Computed prompts that were held for another server.")       \
    X(not_held, "kv_transfer_not_held_total",                                                      \
      "Computed prompts that could not be held for another server.")                               \
    X(expired, "kv_transfer_expired_total",                                                        \
      "Computed prompts that were held and not fetched in time.")                                  \
    X(displaced, "kv_transfer_displaced_total",                                                    \
      "Computed prompts that were held and made room for those of another API key.")               \
    X(sent, "kv_transfer_sent_total", "Computed prompts that another server fetched.")             \
    X(sent_bytes, "kv_transfer_sent_bytes_total",                                                  \
      "Bytes of computed prompts that another server fetched.")                                    \
    X(send_failures, "kv_transfer_send_failures_total",                                            \
      "Fetches of other servers that were refused, or that broke.")                                \
    X(fetched, "kv_transfer_fetched_total", "Computed prompts fetched from another server.")       \
    X(fetched_bytes, "kv_transfer_fetched_bytes_total",                                            \
      "Bytes of computed prompts fetched from another server.")                                    \
    X(fetch_failures, "kv_transfer_fetch_failures_total",                                          \
      "Prompts that could not be fetched from another server.")

#define TRANSFER_COUNTER_FIELD(field, metric, help) uint64_t field;
typedef struct transfer_counts {
    uint32_t records;            // held now
    uint64_t bytes;              // of room that is taken now
    int64_t sent_us, fetched_us; // summed over what was sent and fetched
    TRANSFER_COUNTERS(TRANSFER_COUNTER_FIELD)
} transfer_counts;
#undef TRANSFER_COUNTER_FIELD

transfer_counts transfer_count(transfer *t);
/* The caller could not make or place a record. */
void transfer_note_not_held(transfer *t);

#endif

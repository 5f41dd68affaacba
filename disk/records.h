/* Records beside a store of blocks: bytes of any length under keys, each in a file of its own.
 *
 * What     a store for what cannot be computed again from nothing, such as the tokens of a session,
 *          or only at a high price, such as the embeddings of a long text. It gives back the bytes
 *          that were put last and whole, or nothing: a file has a checksum and replaces the one
 *          before it by rename, so a sudden end leaves either of the two.
 * Owner    the store owns its thread and files.
 * Threads  any thread may call every function but disk_records_open and disk_records_close. A
 *          thread of the store writes and deletes; disk_record_get and _read alone read a file, in
 *          the thread that calls them.
 * Units    bytes; microseconds, of the clock that goes on while no process runs.
 * Errors   a record that cannot be written leaves the one before it, and one that cannot be read
 *          counts as missing. The first of either is reported, all are counted.
 * Files    a folder in the directory of the blocks, 0700; a file for each record, 0600, whose
 *          name is the key in hexadecimal, and `new`, which is being written. Files of other names
 *          stay as they are. Keys are compared alone. */
#ifndef DISK_RECORDS_H
#define DISK_RECORDS_H

#include "disk/disk.h"

typedef struct disk_records disk_records;

enum { DISK_RECORD_BYTES_MOST = 1 << 30 }; // of one record that is put

typedef struct disk_records_options {
    const char *dir;    // that of a disk_cache which is open, whose lock holds for records too
    const char *folder; // in it; the name of what it has, for the log too. NULL = "sessions"
    const char *one;    // of these, for the log. NULL = "a session"
    /* Stands for all that the bytes depend on. Records of another identity are deleted. */
    uint64_t identity;
    uint32_t most;  // records; one more makes the oldest of the owner that has most go
    uint64_t bytes; // of all files, one that is being written too: likewise; 0 = any
    int64_t ttl_us; // a record that was put so long ago is deleted; 0 = none is
    void (*on_trouble)(void *ctx, const char *text); // as disk_options.on_trouble
    void *on_trouble_ctx;
    const disk_io *io; // NULL = pread, pwrite and fsync
} disk_records_options;

/* STATUS_IO: the directory cannot be used. */
status disk_records_open(const disk_records_options *options, disk_records **out, error *err);
/* Writes what was put, then ends the thread. NULL is allowed. */
void disk_records_close(disk_records *d);

/* From now on the store's thread calls this when it has written or deleted a record, or given it
 * up. NULL ends that. The call may not call the store. When this returns, no earlier one is
 * running. */
void disk_records_on_written(disk_records *d, void (*call)(void *ctx), void *ctx);

/* Has a record written whose bytes stay with the caller until then: the store's thread copies them
 * from the source, part by part. Returns the version that the record will have, or 0: memory is
 * out, or they are too many, and the key keeps what it had. age_us: so long ago it was used. */
uint64_t disk_record_offer(disk_records *d, const disk_key *key, uint64_t owner, uint64_t n,
                           int64_t age_us);
/* Copies bytes at .. at + n of what was offered under the key and this version. False: they are not
 * there any more, and the file stays as it was. The store's thread calls it, without a lock that
 * calls of the store wait for, except disk_records_source. */
typedef bool (*disk_record_copy)(void *ctx, const disk_key *key, uint64_t version, uint64_t at,
                                 void *to, size_t n);
/* Sets the source of what is offered; NULL ends that. When this returns, no call of the source
 * before is running. */
void disk_records_source(disk_records *d, disk_record_copy copy, void *ctx);
/* Waits until what was put or offered last is written, or given up, or until this time of the
 * monotonic clock. */
void disk_record_await(disk_records *d, const disk_key *key, int64_t until_us);
/* Takes bytes at .. at + n, of `all`, of a record that is read. False: no more are wanted. */
typedef bool (*disk_record_take)(void *ctx, uint64_t at, const uint8_t *bytes, size_t n,
                                 uint64_t all);
/* Gives a record's bytes in order to `take`, which keeps none of them unless this returns true:
 * whether they were all taken and were good. Reads the file, so not what waits to be written. */
bool disk_record_read(disk_records *d, const disk_key *key, disk_record_take take, void *ctx);

/* Copies the bytes, which replace those of the key. False: memory is out, or they are too many;
 * the key keeps what it had. */
bool disk_record_put(disk_records *d, const disk_key *key, uint64_t owner, const void *bytes,
                     size_t n);
/* The bytes of a key (malloc'd: the caller frees them) and their version; NULL = none. */
uint8_t *disk_record_get(disk_records *d, const disk_key *key, size_t *n, uint64_t *version);
/* The version of a key's record, another number with each put or offer; 0 = it has no record. Does
 * not read the file. */
uint64_t disk_record_version(disk_records *d, const disk_key *key);
/* Whether what was put or offered last still waits to be written. If it does not, a sudden end
 * leaves it, unless it could not be written. */
bool disk_record_waits(disk_records *d, const disk_key *key);
void disk_record_remove(disk_records *d, const disk_key *key);

/* X(field, metric, help), as DISK_COUNTERS: of a store of sessions, and the same fields of one of
 * their embeddings. */
#define DISK_RECORD_COUNTERS(X)                                                                    \
    X(written, "disk_sessions_written_total", "Sessions written to disk.")                         \
    X(read, "disk_sessions_read_total", "Sessions read back from disk.")                           \
    X(removed, "disk_sessions_removed_total",                                                      \
      "Sessions deleted from disk because they were old, made room, or were asked to go.")         \
    X(damaged, "disk_sessions_damaged_total", "Sessions on disk that were damaged, and deleted.")  \
    X(errors, "disk_sessions_errors_total", "Sessions that could not be written, read or deleted.")
#define DISK_EMBEDDING_COUNTERS(X)                                                                 \
    X(written, "disk_embeddings_written_total", "Embeddings of sessions written to disk.")         \
    X(read, "disk_embeddings_read_total", "Embeddings of sessions read back from disk.")           \
    X(removed, "disk_embeddings_removed_total",                                                    \
      "Embeddings deleted from disk because they were old, made room, or were asked to go.")       \
    X(damaged, "disk_embeddings_damaged_total",                                                    \
      "Embeddings on disk that were damaged, and deleted.")                                        \
    X(errors, "disk_embeddings_errors_total",                                                      \
      "Embeddings that could not be written, read or deleted.")

#define DISK_COUNTER_FIELD(field, metric, help) uint64_t field;
typedef struct disk_record_counts {
    uint32_t records; // that can be read, or wait to be written
    uint32_t waiting; // that wait to be written or deleted
    uint64_t bytes;   // of files
    DISK_RECORD_COUNTERS(DISK_COUNTER_FIELD)
} disk_record_counts;
#undef DISK_COUNTER_FIELD

disk_record_counts disk_record_count(disk_records *d);

#endif

/* disk: blocks of bytes under keys, in a directory that outlives the process.
 *
 * What     a store of equal blocks for a cache. It holds what was put last or read last within a
 *          number of bytes, and gives back the bytes that were put or nothing: each block has a
 *          checksum, so one that was torn, damaged or written for another model counts as missing.
 *          Threads of its own read and write.
 * Owner    the store owns its threads, buffers and files. A disk_read belongs to the caller, who
 *          keeps it in place until its `done` was called.
 * Threads  any thread may call every function but disk_open and disk_close. Of these calls only
 *          disk_flush, which cuts a file short and syncs it, and disk_drain wait for the disk.
 * Units    bytes.
 * Errors   a call of the system that fails turns the store off for good: it reports that once, and
 *          from then on has nothing and takes nothing. No error reaches who asks.
 * Files    `lock` (flock: one process for each directory), `index` (a header, then an entry for
 *          each slot) and `blocks` (the slots), all 0600. A key holds what identifies a block: the
 *          store compares keys alone. */
#ifndef DISK_DISK_H
#define DISK_DISK_H

#include "base/base.h"

#include <sys/types.h>

typedef struct disk_cache disk_cache;

typedef struct disk_key {
    uint8_t bytes[16];
} disk_key;

/* The system's calls for blocks and records, so that a test can make them fail. */
typedef struct disk_io {
    ssize_t (*read)(void *ctx, int fd, void *to, size_t n, off_t at);
    ssize_t (*write)(void *ctx, int fd, const void *from, size_t n, off_t at);
    int (*sync)(void *ctx, int fd);
    void *ctx;
} disk_io;

enum { DISK_BUFFERS_MOST = 256 }; // blocks that wait to be written, at most

typedef struct disk_options {
    /* Made with mode 0700 if it is missing; its parent exists. It belongs to the user of this
     * process, and no other user may write into it. */
    const char *dir;
    uint64_t bytes;     // size of all files, at most
    size_t block_bytes; // of every block
    /* Stands for all that the bytes of a block depend on beside its key. Blocks that were stored
     * under another identity, or with another size, are deleted by disk_open. */
    uint64_t identity;
    /* Gets one line about trouble, for a log. Called by disk_open, disk_flush and the store's
     * threads; the other functions do not wait for it. */
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    const disk_io *io; // NULL = pread, pwrite and fsync
} disk_options;

/* STATUS_UNAVAILABLE: another process holds the directory. STATUS_IO: it cannot be used,
 * or files in it are not a store's (links, another user's, other contents): they stay as they are.
 * STATUS_INVALID: `bytes` are less than a block. */
status disk_open(const disk_options *options, disk_cache **out, error *err);
/* Writes what was put, then ends the threads. No read is under way. NULL is allowed. */
void disk_close(disk_cache *d);

/* Most memory that a store of `bytes` takes: buffers, a block for each thread, and the index once
 * every slot is in use. */
uint64_t disk_memory(uint64_t bytes, size_t block_bytes);

bool disk_has(disk_cache *d, const disk_key *key);
/* How many blocks can wait to be written: as many as 64 MiB hold, but at least 4 and at most
 * DISK_BUFFERS_MOST. */
uint32_t disk_buffers(const disk_cache *d);
/* Counts a block as used now, if it is there: others are forgotten before it. */
void disk_touch(disk_cache *d, const disk_key *key);
/* Begins to store a block: the caller fills the buffer with block_bytes and calls disk_put_end at
 * once. NULL: the block is there already, or all buffers wait to be written and it is left out. */
uint8_t *disk_put_begin(disk_cache *d, const disk_key *key);
void disk_put_end(disk_cache *d, uint8_t *buffer);
/* In place of disk_put_end: the buffer could not be filled, and the block is not stored. */
void disk_put_drop(disk_cache *d, uint8_t *buffer);

/* Reads blocks in order. */
typedef struct disk_read {
    const disk_key *keys; // [n]
    uint32_t n;           // >= 1
    /* Called by threads of the store, several at once, for blocks that were read and checked:
     * `bytes` [block_bytes] is block i. Not for blocks behind the first that is missing, as far as
     * that is known. False: they could not be taken, and the block counts as missing. */
    bool (*take)(void *ctx, uint32_t i, const uint8_t *bytes);
    /* The first n_good blocks were taken; no further call follows. Called by a thread of the store,
     * or by disk_read_begin or disk_drain. */
    void (*done)(void *ctx, uint32_t n_good);
    void *ctx;
    /* The store's own from disk_read_begin to `done`. */
    uint32_t next, missing, n_running;
    struct disk_read *later;
} disk_read;

void disk_read_begin(disk_cache *d, disk_read *r);
/* Ends all reads after the blocks that are being read now, and waits for that. */
void disk_drain(disk_cache *d);
/* Forgets blocks of these keys, those that wait to be written too. A read that is under way may yet
 * take them. A sudden end of the machine does not bring them back. */
void disk_forget(disk_cache *d, const disk_key *keys, uint32_t n);
/* Forgets all blocks, those that are being written too. A sudden end of the machine does not bring
 * them back. */
void disk_flush(disk_cache *d);

/* X(field, metric, help), as PKV_COUNTERS: numbers since disk_open. */
#define DISK_COUNTERS(X)                                                                           \
    X(written, "disk_cache_blocks_written_total", "Blocks of the prefix cache written to disk.")   \
    X(read, "disk_cache_blocks_read_total", "Blocks of the prefix cache read back from disk.")     \
    X(left_out, "disk_cache_blocks_left_out_total",                                                \
      "Blocks that were not written because too many waited for the disk.")                        \
    X(evicted, "disk_cache_blocks_evicted_total", "Blocks that gave their place to others.")       \
    X(damaged, "disk_cache_blocks_damaged_total",                                                  \
      "Blocks on disk that were torn or damaged, and therefore computed again.")                   \
    X(errors, "disk_cache_errors_total", "Calls of the system that failed.")

#define DISK_COUNTER_FIELD(field, metric, help) uint64_t field;
typedef struct disk_counts {
    uint64_t blocks, bytes; // stored now; 0 once the store is off
    uint32_t waiting;       // blocks that wait to be written, or are being filled or written
    bool works;             // the store is not turned off
    DISK_COUNTERS(DISK_COUNTER_FIELD)
} disk_counts;
#undef DISK_COUNTER_FIELD

disk_counts disk_count(disk_cache *d);

#endif

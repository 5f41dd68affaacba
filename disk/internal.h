/* disk, private. A block is in a slot of the file `blocks`. The index of slots lies in memory, and
 * the file `index` has an entry for each slot, from which the next process makes its own. An entry
 * is written behind its block, so at a sudden end it describes what was in the slot before, and the
 * block's checksum tells that this is gone. */
#ifndef DISK_INTERNAL_H
#define DISK_INTERNAL_H

#include "disk/disk.h"

#include <pthread.h>

enum {
    DISK_ALIGN = 4096, // of slots and buffers: O_DIRECT wants it
    DISK_THREADS = 4,
    DISK_SLOTS_MOST = 1 << 24,
    DISK_BUFFER_BYTES = 64 << 20, // for blocks that wait to be written, if they are not very large
    DISK_BUFFERS_LEAST = 4,
    DISK_VERSION = 1,
};

/* ---- calls.c: pread, pwrite and fsync -------------------------------------------------------- */

extern const disk_io calls_system;
/* They return 0 or an errno. */
int calls_write(const disk_io *io, int fd, const void *from, size_t n, off_t at);
int calls_sync(const disk_io *io, int fd);

/* ---- index.c: slots in memory; no I/O, no lock ----------------------------------------------- */

typedef struct disk_slot {
    disk_key key;
    uint64_t checksum;
    uint64_t stamp;        // when it was put: larger is later
    uint32_t next;         // link to the next in its bucket or in the free list
    uint32_t older, newer; // in the order of use
    uint32_t readers;
    bool stored; // it is in its bucket and in the order of use
} disk_slot;

/* A link is a slot + 1, and 0 ends a list, so that zeros are an empty index: memory is taken for
 * the slots and buckets that were used, not for all. */
typedef struct disk_index {
    disk_slot *slots; // [n]
    uint32_t n, n_stored;
    uint32_t n_touched; // the slots from here on are free, and not in the free list
    uint32_t *buckets;  // [mask + 1], links
    uint32_t mask;
    uint32_t free; // link to the first of the free list
    uint32_t oldest, newest;
} disk_index;

#define DISK_NONE UINT32_MAX // no slot

bool index_create(disk_index *x, uint32_t n_slots);
void index_destroy(disk_index *x);
/* The slot of a key, or DISK_NONE. */
uint32_t index_find(const disk_index *x, const disk_key *key);
/* Makes a stored slot the one that was used last. */
void index_touch(disk_index *x, uint32_t slot);
/* Takes a slot for a block that will be put: a free one, else the one that was used longest ago and
 * is not being read, which is forgotten (*evicted). DISK_NONE: all are being read or written. */
uint32_t index_take(disk_index *x, bool *evicted);
/* The block is in the slot; no other slot has its key. */
void index_put(disk_index *x, uint32_t slot, const disk_key *key, uint64_t checksum,
               uint64_t stamp);
/* A slot that was taken is free again. */
void index_give_back(disk_index *x, uint32_t slot);
/* Forgets the block of a slot. The slot is free once it has no readers. */
void index_forget(disk_index *x, uint32_t slot);
void index_read_begin(disk_index *x, uint32_t slot);
void index_read_end(disk_index *x, uint32_t slot);

/* ---- files.c --------------------------------------------------------------------------------- */

typedef struct disk_files {
    int dir, lock, index, blocks;
    size_t block_bytes, slot_bytes;
    uint64_t identity;
    uint32_t n_slots;
    disk_io io;
} disk_files;

/* Opens the files and locks the directory. Files of another identity are emptied (*was_foreign);
 * files that another user or another program wrote are refused and stay as they are. */
status files_open(disk_files *f, const disk_options *o, bool *was_foreign, error *err);
void files_close(disk_files *f);
/* Calls `found` for each entry that is whole, in the order of slots. */
status files_scan(disk_files *f,
                  void (*found)(void *ctx, uint32_t slot, const disk_key *key, uint64_t checksum,
                                uint64_t stamp),
                  void *ctx, error *err);
uint64_t files_checksum(const disk_files *f, const disk_key *key, const uint8_t *block);
/* These return 0, or an errno. buffer is aligned and has slot_bytes. */
int files_read_block(disk_files *f, uint32_t slot, uint8_t *buffer);
int files_write_block(disk_files *f, uint32_t slot, const uint8_t *buffer);
int files_write_entry(disk_files *f, uint32_t slot, const disk_key *key, uint64_t checksum,
                      uint64_t stamp);
/* Makes the entry of a slot that of an empty one; files_sync takes such entries to the disk. */
int files_clear_entry(disk_files *f, uint32_t slot);
int files_sync(disk_files *f);
/* Empties the index file, also on the disk. */
int files_clear(disk_files *f);
/* 0, or ENOENT where the files have been deleted. */
int files_exist(const disk_files *f);

#endif

/* The index of records (private to disk/): which there are, whose, what waits to be written, and
 * how much the files take. The caller holds the lock of the store. */
#ifndef DISK_RECORD_INDEX_H
#define DISK_RECORD_INDEX_H

#include "disk/record_files.h"
#include "disk/record_order.h"

#include <pthread.h>

/* Bytes that wait to be written. The thread that writes them has a reference beside the record. */
typedef struct payload {
    uint32_t references;
    uint64_t n;
    uint8_t bytes[];
} payload;

/* A record that is gone stays until its file is deleted. */
typedef struct record {
    record_place place; // its owner is NULL where it is gone
    record_place room;  // that of its file, by bytes, where these are bounded
    disk_key key;
    uint64_t version;
    int64_t put_us;
    payload *waits; // its bytes, until they are written; NULL: they are in its file
    bool offered;   // its bytes are the source's, until they are written
    uint64_t n_offered;
    uint64_t file_bytes; // of its file, as far as that is known
    bool stored;         // it may have a file
    bool busy;           // the thread writes or deletes its file
    bool due;            // it is in the list of those to be written or deleted
    struct record *next_due;
    struct record *next; // in its bucket
} record;

struct disk_records {
    record_files files;
    const char *one;
    uint32_t most;
    uint64_t bytes_most; // 0 = any
    int64_t ttl_us;
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t source_lock; // held while bytes are copied
    disk_record_copy copy;
    void *copy_ctx;

    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work, done;
    record **buckets; // [mask + 1]
    uint32_t mask, n; // n: records that are not gone
    uint32_t n_due, n_busy;
    uint32_t n_entries; // in the buckets
    record_order order; // by `put_us`, of those that are not gone
    record_order room;  // of files, by their bytes
    uint64_t file_bytes;
    record *first_due, *last_due;
    uint64_t version;
    bool stop, has_reported;
    void (*on_written)(void *ctx);
    void *on_written_ctx;
    disk_record_counts counts;
};

/* NULL: there is none. */
record *records_find(const disk_records *d, const disk_key *key);
record *records_of_place(record_place *p);
record *records_of_room(record_place *p);
bool record_waits(const record *r);
/* The record of a key, gone if it is new. NULL: memory is out. */
record *records_find_or_make(disk_records *d, const disk_key *key);
/* Makes the record the newest one of the owner, with another version. False: memory is out, and all
 * is as before. */
bool records_enter(disk_records *d, record *r, uint64_t owner, int64_t put_us);
void payload_drop(payload *p);
void record_drop_waiting(record *r);
/* Makes the record gone. Its file, if it has one, is still there. */
void records_leave(disk_records *d, record *r);
void records_set_file_bytes(disk_records *d, record *r, uint64_t n);
/* Lists the record for the thread, which will write it or delete its file. */
void records_make_due(disk_records *d, record *r);
/* Forgets a record that is gone and has no file. */
void records_free(disk_records *d, record *r);
/* Makes the record gone and due, and counts that. */
void records_remove(disk_records *d, record *r);

#endif

/* The files of records (private to disk/): their format, and every call of the system. */
#ifndef DISK_RECORD_FILES_H
#define DISK_RECORD_FILES_H

#include "disk/internal.h"
#include "disk/records.h"

/* A record's file without its bytes. */
typedef struct record_facts {
    disk_key key;
    uint64_t owner;
    int64_t put_us;   // when it was put
    uint64_t n_bytes; // behind the header
    uint64_t checksum;
} record_facts;

typedef struct record_files {
    int dir;
    uint64_t identity;
    disk_io io;
} record_files;

status record_files_open(record_files *f, const disk_records_options *o, error *err);
void record_files_close(record_files *f);

typedef enum record_kind { RECORD_GOOD, RECORD_FOREIGN, RECORD_DAMAGED } record_kind;

/* Calls `found` for each file whose name is a key; its header was read, its bytes were not. */
status record_files_scan(record_files *f,
                         void (*found)(void *ctx, const disk_key *key, record_kind kind,
                                       const record_facts *facts),
                         void *ctx, error *err);
/* These return 0 or an errno. Fills the facts' checksum and key. The file is on the disk, whole,
 * before it takes the place of the one before it. */
int record_files_write(record_files *f, const record_facts *facts, const uint8_t *bytes);
/* *bytes is malloc'd; EBADMSG: the file is damaged; ENOENT: there is none. */
int record_files_read(record_files *f, const disk_key *key, record_facts *facts, uint8_t **bytes);
int record_files_delete(record_files *f, const disk_key *key);

#endif

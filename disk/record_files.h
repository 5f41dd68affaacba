/* The files of records (private to disk/): their format, and every call of the system. */
#ifndef DISK_RECORD_FILES_H
#define DISK_RECORD_FILES_H

#include "disk/internal.h"
#include "disk/records.h"

/* The facts in the header of a record's file. */
typedef struct record_facts {
    disk_key key;
    uint64_t owner;
    int64_t put_us;   // when it was put
    uint64_t n_bytes; // behind the header
    uint64_t checksum;
} record_facts;

typedef struct record_files {
    int dir;
    const char *folder; // borrowed
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
enum { RECORD_PART = 256 << 10 }; // bytes are written and read in parts of so many

/* Where bytes to be written come from: those from `at` on, valid until the next call. NULL: they
 * are gone. */
typedef struct record_source {
    const void *(*part)(void *ctx, uint64_t at, size_t n);
    void *ctx;
} record_source;

uint64_t record_file_bytes(uint64_t n_bytes); // of a file

/* These return 0 or an errno. The file is on the disk, whole, before it takes the place of the one
 * before it. ECANCELED: the bytes are gone, and the file is as before. */
int record_files_write(record_files *f, const record_facts *facts, record_source source);
/* Gives all bytes in order to `take`, before it is known whether they are good. ECANCELED: `take`
 * has refused some; EBADMSG: the file is damaged; ENOENT: there is none. */
int record_files_read(record_files *f, const disk_key *key, record_facts *facts,
                      disk_record_take take, void *ctx);
int record_files_delete(record_files *f, const disk_key *key);

#endif

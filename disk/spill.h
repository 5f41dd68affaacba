/* spill: equal pieces of memory that lie in a file while they are not used.
 *
 * What     a file without a name, one place in it for each piece, and threads that write pieces to
 *          their places, give their memory back and read them again. Who decides which pieces are
 *          in memory is the caller.
 * Owner    the caller owns the memory (alloc_reserve) and its jobs, which stay in place until
 *          spill_wait. The spill owns file, threads and a checksum for each piece.
 * Threads  one thread calls all functions. Between spill_begin and spill_wait the pieces of the
 *          jobs belong to the spill's threads (`oct-spill`).
 * Units    bytes; pieces are counted from 0.
 * Errors   a job that fails says which piece and why. A piece is read as it was written or not at
 *          all: its checksum depends on its number.
 * Files    made with mode 0600 in the caller's directory and removed from it at once, so that
 *          nothing is left when the process ends, however it ends. All space is taken when it is
 *          opened, where the file system can. */
#ifndef DISK_SPILL_H
#define DISK_SPILL_H

#include "disk/disk.h"

typedef struct disk_spill disk_spill;

enum { SPILL_ALIGN = 4096 }; // of the memory and the size of a piece

typedef struct spill_options {
    const char *dir; // exists
    uint8_t *memory; // [n_pieces, piece_bytes]
    size_t piece_bytes;
    uint32_t n_pieces;
    const disk_io *io; // NULL = pread and pwrite; sync is not called
} spill_options;

/* STATUS_IO: the directory cannot be used, or has too little room. */
status spill_open(const spill_options *options, disk_spill **out, error *err);
/* Waits for jobs that are under way. NULL is allowed. */
void spill_close(disk_spill *s);

typedef struct spill_leave {
    uint32_t piece;
    bool write; // false: the file has the same bytes, or they are not needed again
} spill_leave;

typedef enum spill_fault {
    SPILL_DONE,
    SPILL_NOT_WRITTEN, // `why` is an errno
    SPILL_NOT_READ,
    SPILL_DAMAGED, // what was read is not what was written last
} spill_fault;

/* Pieces that leave memory one after the other, then pieces that come back. */
typedef struct spill_job {
    const spill_leave *leaving; // [n_leaving]
    uint32_t n_leaving;
    uint32_t first, n_coming; // pieces first .. + n_coming, which were written before
    /* Set by the threads. After a fault the pieces leaving[n_left] and behind are still in memory;
     * of those that were to come the first n_came are there, and no memory is held for others. */
    uint32_t n_left, n_came;
    spill_fault fault;
    int why;
    struct spill_job *next; // the spill's own
} spill_job;

void spill_begin(disk_spill *s, spill_job *jobs, uint32_t n);
/* Waits until all jobs that were begun have ended. */
void spill_wait(disk_spill *s);

#endif

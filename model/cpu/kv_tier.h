/* The pages of a pool that is larger than memory: the rest lies in a file (private to model/). This
 * is the tier below the pool of --kv-disk; the host tier of paged_kv.h, to which whole sequences
 * are swapped, is another. One thread calls all functions.
 *
 * Every page (a cell) has one address for as long as the backend lives, and one place in a file.
 * Memory holds at most n_frames of them; a page without memory must not be read or written. Code
 * that is about to use pages wants them, takes them, uses them, and releases them. So kernels read
 * the addresses that they would read if all pages were in memory.
 *
 * Which page leaves follows from the order of calls alone, never from how fast the disk is: of the
 * pages that only reads of whole contexts (scans) brought in, the one that came last; if there are
 * none, the one that was used longest ago. So a scan that is larger than memory finds most of
 * memory as it left it, and pages that retrieval selects stay. */
#ifndef MODEL_CPU_KV_TIER_H
#define MODEL_CPU_KV_TIER_H

#include "backend/backend.h"
#include "disk/spill.h"

typedef struct kv_tier kv_tier;

typedef struct kv_tier_options {
    const char *dir;
    uint8_t *memory; // [n_cells, page_bytes], from alloc_reserve; borrowed
    size_t page_bytes;
    uint32_t n_cells, n_frames; // n_frames >= 1
    uint32_t n_layers;
    const disk_io *io; // NULL = the system's
} kv_tier_options;

status kv_tier_create(const kv_tier_options *options, kv_tier **out, error *err);
void kv_tier_destroy(kv_tier *t);
/* Bytes of the tables for a pool of n_cells, of which n_frames are in memory. */
uint64_t kv_tier_bytes(uint64_t n_cells, uint64_t n_frames);

/* Why a cell is used. */
typedef enum kv_use {
    KV_SCAN,  // it is read because everything is read
    KV_READ,  // it was selected
    KV_WRITE, // it is read and written
    KV_FRESH, // it is written from slot 0 on, and what it held is not read
} kv_use;

/* The cell, counted from the first that is stored here, is used until kv_tier_release. */
void kv_tier_want(kv_tier *t, uint32_t cell, kv_use use);
/* Brings all wanted cells into memory. STATUS_NO_MEMORY: they are more than memory holds.
 * STATUS_IO: a page could not be read or written; one that could not be read is lost, and
 * STATUS_INTERNAL when it is wanted again. After an error nothing may be used. */
status kv_tier_take(kv_tier *t);
/* Ends the use of all wanted cells. layer: the one that used them, for kv_tier_begin; n_layers: no
 * layer did. */
void kv_tier_release(kv_tier *t, uint32_t layer);
/* The cell will be used soon because everything is read. Called between take and release, before
 * kv_tier_begin. */
void kv_tier_expect(kv_tier *t, uint32_t cell);
/* Begins to read the expected cells, and those that the layer selected or wrote when it was last
 * released, as far as there is room beside the pages in use. Called once between take and release.
 * What a layer scanned is not read again unless it is expected, because that scan may have been the
 * only one. */
void kv_tier_begin(kv_tier *t, uint32_t layer);

/* Counts of the pages and bytes that were moved since the last call. */
backend_tier kv_tier_count(kv_tier *t);

#endif

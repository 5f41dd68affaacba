/* The memory that a store takes, computed before it is opened. */
#include "disk/internal.h"

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t disk_memory(uint64_t bytes, size_t block_bytes)
{
    uint64_t slot = (block_bytes + DISK_ALIGN - 1) / DISK_ALIGN * DISK_ALIGN;
    if (slot == 0) return 0;
    uint64_t few = DISK_BUFFERS_LEAST * slot, many = DISK_BUFFERS_MOST * slot;
    uint64_t buffers = least(few > DISK_BUFFER_BYTES ? few : DISK_BUFFER_BYTES, many);
    uint64_t n_slots = least(bytes / slot, DISK_SLOTS_MOST), n_buckets = 16;
    while (n_buckets < n_slots) n_buckets *= 2;
    return buffers + DISK_THREADS * slot + n_slots * sizeof(disk_slot) +
           n_buckets * sizeof(uint32_t);
}

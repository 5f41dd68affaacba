/* The index: which block is in which slot, and in which order slots were used. */
#include "disk/internal.h"

#include <stdlib.h>
#include <string.h>

bool index_create(disk_index *x, uint32_t n_slots)
{
    uint32_t n_buckets = 16;
    while (n_buckets < n_slots) n_buckets *= 2;
    *x =
        (disk_index){.n = n_slots, .mask = n_buckets - 1, .oldest = DISK_NONE, .newest = DISK_NONE};
    x->slots = calloc(n_slots, sizeof *x->slots);
    x->buckets = calloc(n_buckets, sizeof *x->buckets);
    return x->slots && x->buckets;
}

void index_destroy(disk_index *x)
{
    free(x->slots);
    free(x->buckets);
}

/* Keys are digests, so any of their bytes will do. */
static uint32_t *bucket_of(const disk_index *x, const disk_key *key)
{
    uint32_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    return &x->buckets[hash & x->mask];
}

uint32_t index_find(const disk_index *x, const disk_key *key)
{
    uint32_t link = *bucket_of(x, key);
    while (link != 0 && memcmp(&x->slots[link - 1].key, key, sizeof *key) != 0)
        link = x->slots[link - 1].next;
    return link != 0 ? link - 1 : DISK_NONE;
}

static void order_remove(disk_index *x, uint32_t slot)
{
    disk_slot *s = &x->slots[slot];
    *(s->older != DISK_NONE ? &x->slots[s->older].newer : &x->oldest) = s->newer;
    *(s->newer != DISK_NONE ? &x->slots[s->newer].older : &x->newest) = s->older;
}

/* Enters the slot behind `older`, or as the oldest. */
static void order_insert(disk_index *x, uint32_t slot, uint32_t older)
{
    disk_slot *s = &x->slots[slot];
    s->older = older;
    s->newer = older != DISK_NONE ? x->slots[older].newer : x->oldest;
    *(s->older != DISK_NONE ? &x->slots[s->older].newer : &x->oldest) = slot;
    *(s->newer != DISK_NONE ? &x->slots[s->newer].older : &x->newest) = slot;
}

void index_touch(disk_index *x, uint32_t slot)
{
    order_remove(x, slot);
    order_insert(x, slot, x->newest);
}

static void push_free(disk_index *x, uint32_t slot)
{
    x->slots[slot].next = x->free;
    x->free = slot + 1;
}

void index_give_back(disk_index *x, uint32_t slot) { push_free(x, slot); }

void index_forget(disk_index *x, uint32_t slot)
{
    disk_slot *s = &x->slots[slot];
    if (!s->stored) return;
    uint32_t *link = bucket_of(x, &s->key);
    while (*link != slot + 1) link = &x->slots[*link - 1].next;
    *link = s->next;
    order_remove(x, slot);
    s->stored = false;
    x->n_stored--;
    if (s->readers == 0) push_free(x, slot);
}

void index_read_begin(disk_index *x, uint32_t slot) { x->slots[slot].readers++; }

void index_read_end(disk_index *x, uint32_t slot)
{
    disk_slot *s = &x->slots[slot];
    if (--s->readers == 0 && !s->stored) push_free(x, slot);
}

uint32_t index_take(disk_index *x, bool *evicted)
{
    *evicted = false;
    if (x->free == 0 && x->n_touched < x->n) return x->n_touched++;
    if (x->free == 0) {
        uint32_t slot = x->oldest;
        while (slot != DISK_NONE && x->slots[slot].readers > 0) slot = x->slots[slot].newer;
        if (slot == DISK_NONE) return DISK_NONE;
        index_forget(x, slot);
        *evicted = true;
    }
    uint32_t slot = x->free - 1;
    x->free = x->slots[slot].next;
    return slot;
}

void index_put(disk_index *x, uint32_t slot, const disk_key *key, uint64_t checksum, uint64_t stamp)
{
    disk_slot *s = &x->slots[slot];
    uint32_t *bucket = bucket_of(x, key);
    *s = (disk_slot){
        .key = *key, .checksum = checksum, .stamp = stamp, .next = *bucket, .stored = true};
    *bucket = slot + 1;
    order_insert(x, slot, x->newest);
    x->n_stored++;
}

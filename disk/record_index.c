#include "disk/record_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static record **bucket_of(const disk_records *d, const disk_key *key)
{
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    return &d->buckets[hash_mix64(hash) & d->mask];
}

record *records_find(const disk_records *d, const disk_key *key)
{
    record *r = *bucket_of(d, key);
    while (r && memcmp(&r->key, key, sizeof *key) != 0) r = r->next;
    return r;
}

record *records_of_place(record_place *p)
{
    _Static_assert(offsetof(record, place) == 0, "a place is the beginning of its record");
    return (record *)(void *)p;
}

record *records_of_room(record_place *p)
{
    return (record *)(void *)((char *)p - offsetof(record, room));
}

bool record_waits(const record *r) { return r->waits || r->offered; }

/* The folder may have had more records than there may be. Without memory chains grow longer. */
static void grow_buckets(disk_records *d)
{
    uint32_t n = 2 * (d->mask + 1);
    record **old = d->buckets, **buckets = calloc(n, sizeof(record *));
    if (!buckets) return;
    uint32_t n_old = d->mask + 1;
    d->buckets = buckets;
    d->mask = n - 1;
    for (uint32_t i = 0; i < n_old; i++)
        for (record *r = old[i], *next; r; r = next) {
            record **bucket = bucket_of(d, &r->key);
            next = r->next;
            r->next = *bucket;
            *bucket = r;
        }
    free(old);
}

/* The record of a key, gone if it is new. NULL: memory is out. */
record *records_find_or_make(disk_records *d, const disk_key *key)
{
    record *r = records_find(d, key);
    if (r) return r;
    if (d->n_entries > d->mask && d->mask < UINT32_MAX / 2) grow_buckets(d);
    r = calloc(1, sizeof *r);
    if (!r) return NULL;
    d->n_entries++;
    r->key = *key;
    record **bucket = bucket_of(d, key);
    r->next = *bucket;
    *bucket = r;
    return r;
}

/* False: memory is out, and all is as before. */
bool records_enter(disk_records *d, record *r, uint64_t owner, int64_t put_us)
{
    bool is_new = !r->place.owner;
    if (!record_order_enter(&d->order, &r->place, owner, 1)) return false;
    r->put_us = put_us;
    r->version = ++d->version;
    d->n += is_new;
    return true;
}

void payload_drop(payload *p)
{
    if (p && --p->references == 0) free(p);
}

void record_drop_waiting(record *r)
{
    payload_drop(r->waits);
    r->waits = NULL;
    r->offered = false;
}

void records_leave(disk_records *d, record *r)
{
    record_order_leave(&d->order, &r->place);
    if (r->room.owner) record_order_leave(&d->room, &r->room);
    record_drop_waiting(r);
    d->n--;
}

void records_set_file_bytes(disk_records *d, record *r, uint64_t n)
{
    d->file_bytes += n - r->file_bytes;
    r->file_bytes = n;
}

void records_make_due(disk_records *d, record *r)
{
    if (r->due) return;
    r->due = true;
    r->next_due = NULL;
    *(d->last_due ? &d->last_due->next_due : &d->first_due) = r;
    d->last_due = r;
    d->n_due++;
    pthread_cond_signal(&d->work);
}

void records_free(disk_records *d, record *r)
{
    record **link = bucket_of(d, &r->key);
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    d->n_entries--;
    free(r);
}

/* Nothing is known of it any more once its file is deleted. */
void records_remove(disk_records *d, record *r)
{
    if (!r->place.owner) return;
    records_leave(d, r);
    records_make_due(d, r);
    d->counts.removed++;
}

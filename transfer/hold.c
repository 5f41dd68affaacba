/* Records that wait for a peer, by key, in the order in which they came. */
#include "transfer/internal.h"

#include <stdlib.h>
#include <string.h>

static held_record **bucket_of(hold_store *h, const transfer_key *key)
{
    uint32_t at;
    memcpy(&at, key->bytes, sizeof at);
    return &h->buckets[at % HOLD_BUCKETS];
}

/* The link to the record with the key, or to NULL. Every byte is compared, so that the time says
 * nothing about how much of a key was right. */
static held_record **find(hold_store *h, const transfer_key *key)
{
    held_record **at = bucket_of(h, key);
    for (; *at; at = &(*at)->next_in_bucket) {
        uint8_t difference = 0;
        for (size_t i = 0; i < sizeof key->bytes; i++)
            difference |= (uint8_t)((*at)->key.bytes[i] ^ key->bytes[i]);
        if (difference == 0) break;
    }
    return at;
}

static void unlink_record(transfer *t, held_record *r)
{
    hold_store *h = &t->held;
    held_record **at = find(h, &r->key);
    *at = r->next_in_bucket;
    *(r->older ? &r->older->newer : &h->oldest) = r->newer;
    *(r->newer ? &r->newer->older : &h->newest) = r->older;
    room_unhold(t, r->owner, r->n);
    h->n--;
}

bool hold_makes_room(transfer *t, const room_owner *own, size_t n)
{
    size_t taken = t->room.bytes, most = own->bytes + n;
    for (room_owner *o = t->room.owners; o; o = o->next) o->left = o->bytes;
    for (const held_record *r = t->held.oldest; r; r = r->newer) {
        if (r->owner->left <= most) continue;
        r->owner->left -= r->n;
        taken -= r->n;
    }
    return n <= t->o.bytes && taken <= t->o.bytes - n;
}

held_record *hold_displace(transfer *t)
{
    const room_owner *largest = NULL;
    for (const room_owner *o = t->room.owners; o; o = o->next)
        if (o->held > 0 && (!largest || o->bytes > largest->bytes)) largest = o;
    held_record *r = t->held.oldest;
    while (r->owner != largest) r = r->newer;
    unlink_record(t, r);
    return r;
}

bool transfer_hold(transfer *t, const transfer_key *key, uint64_t owner, uint8_t *bytes, size_t n)
{
    hold_store *h = &t->held;
    held_record *r = malloc(sizeof *r);
    if (!r) return false;
    /* The caller's thread computes the hash, because peers wait for `oct-peers`. */
    *r = (held_record){.key = *key,
                       .bytes = bytes,
                       .n = n,
                       .hash = hash_bytes(bytes, n, t->o.identity),
                       .since_us = clock_now_us()};
    pthread_mutex_lock(&t->lock);
    held_record **at = find(h, key);
    bool is_new = *at == NULL;
    if (is_new) {
        *at = r;
        r->owner = room_owner_of(t, owner);
        room_hold(t, r->owner, n);
        r->older = h->newest;
        *(r->older ? &r->older->newer : &h->oldest) = r;
        h->newest = r;
        h->n++;
    }
    pthread_mutex_unlock(&t->lock);
    if (is_new) TRANSFER_ADD(t, held, 1);
    else free(r);
    return is_new;
}

held_record *hold_take(transfer *t, const wire_ask *ask, wire_outcome *outcome)
{
    hold_store *h = &t->held;
    pthread_mutex_lock(&t->lock);
    held_record *r = *find(h, &ask->key);
    *outcome = !r                               ? WIRE_UNKNOWN
               : ask->identity != t->o.identity ? WIRE_OTHER
               : r->n > ask->most               ? WIRE_LONG
                                                : WIRE_SENT;
    if (*outcome == WIRE_SENT) unlink_record(t, r);
    pthread_mutex_unlock(&t->lock);
    return *outcome == WIRE_SENT ? r : NULL;
}

void hold_free(transfer *t, held_record *r)
{
    pthread_mutex_lock(&t->lock);
    room_give_back(t, r->owner, r->n);
    pthread_mutex_unlock(&t->lock);
    free(r->bytes);
    free(r);
}

void hold_expire(transfer *t, int64_t now_us)
{
    hold_store *h = &t->held;
    for (;;) {
        pthread_mutex_lock(&t->lock);
        held_record *r = h->oldest;
        bool is_old = r && now_us - r->since_us >= t->o.ttl_us;
        if (is_old) unlink_record(t, r);
        pthread_mutex_unlock(&t->lock);
        if (!is_old) return;
        hold_free(t, r);
        TRANSFER_ADD(t, expired, 1);
    }
}

void hold_clear(transfer *t)
{
    for (held_record *r; (r = t->held.oldest) != NULL;) {
        unlink_record(t, r);
        hold_free(t, r);
    }
}

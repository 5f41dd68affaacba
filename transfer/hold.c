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

/* ---- owners ---------------------------------------------------------------------------------- */

/* The link to the owner's entry, or to NULL. */
static hold_owner **find_owner(hold_store *h, uint64_t id)
{
    hold_owner **at = &h->owners;
    while (*at && (*at)->id != id) at = &(*at)->next;
    return at;
}

/* The owner's entry, with n more bytes. NULL when memory is out. */
static hold_owner *add_to_owner(hold_store *h, uint64_t id, size_t n)
{
    hold_owner **at = find_owner(h, id);
    if (!*at && (*at = calloc(1, sizeof **at))) (*at)->id = id;
    if (!*at) return NULL;
    (*at)->n++;
    (*at)->bytes += n;
    return *at;
}

static void take_from_owner(hold_store *h, hold_owner *o, size_t n)
{
    o->bytes -= n;
    if (--o->n > 0) return;
    *find_owner(h, o->id) = o->next;
    free(o);
}

/* ---- records --------------------------------------------------------------------------------- */

static void unlink_record(hold_store *h, held_record *r)
{
    held_record **at = find(h, &r->key);
    *at = r->next_in_bucket;
    *(r->older ? &r->older->newer : &h->oldest) = r->newer;
    *(r->newer ? &r->newer->older : &h->newest) = r->older;
    take_from_owner(h, r->owner, r->n);
    h->n--;
}

/* The oldest record of the owner of most bytes, where that one has more than this owner has with n
 * more; else NULL. */
static held_record *take_of_largest(hold_store *h, uint64_t id, size_t n)
{
    const hold_owner *own = *find_owner(h, id), *largest = NULL;
    for (const hold_owner *o = h->owners; o; o = o->next)
        if (!largest || o->bytes > largest->bytes) largest = o;
    if (!largest || largest == own || largest->bytes <= (own ? own->bytes : 0) + n) return NULL;
    held_record *r = h->oldest;
    while (r->owner != largest) r = r->newer;
    unlink_record(h, r);
    return r;
}

bool transfer_make_room(transfer *t, uint64_t owner, size_t n)
{
    while (!room_take(t, n)) {
        pthread_mutex_lock(&t->held.lock);
        held_record *r = n <= t->o.bytes ? take_of_largest(&t->held, owner, n) : NULL;
        pthread_mutex_unlock(&t->held.lock);
        if (!r) return false;
        hold_free(t, r);
        TRANSFER_ADD(t, displaced, 1);
    }
    return true;
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
    pthread_mutex_lock(&h->lock);
    held_record **at = find(h, key);
    bool is_new = *at == NULL && (r->owner = add_to_owner(h, owner, n)) != NULL;
    if (is_new) {
        *at = r;
        r->older = h->newest;
        *(r->older ? &r->older->newer : &h->oldest) = r;
        h->newest = r;
        h->n++;
    }
    pthread_mutex_unlock(&h->lock);
    if (is_new) TRANSFER_ADD(t, held, 1);
    else free(r);
    return is_new;
}

held_record *hold_take(transfer *t, const wire_ask *ask, wire_outcome *outcome)
{
    hold_store *h = &t->held;
    pthread_mutex_lock(&h->lock);
    held_record *r = *find(h, &ask->key);
    *outcome = !r                               ? WIRE_UNKNOWN
               : ask->identity != t->o.identity ? WIRE_OTHER
               : r->n > ask->most               ? WIRE_LONG
                                                : WIRE_SENT;
    if (*outcome == WIRE_SENT) unlink_record(h, r);
    pthread_mutex_unlock(&h->lock);
    return *outcome == WIRE_SENT ? r : NULL;
}

void hold_free(transfer *t, held_record *r)
{
    transfer_release(t, r->n);
    free(r->bytes);
    free(r);
}

void hold_expire(transfer *t, int64_t now_us)
{
    hold_store *h = &t->held;
    for (;;) {
        pthread_mutex_lock(&h->lock);
        held_record *r = h->oldest;
        bool is_old = r && now_us - r->since_us >= t->o.ttl_us;
        if (is_old) unlink_record(h, r);
        pthread_mutex_unlock(&h->lock);
        if (!is_old) return;
        hold_free(t, r);
        TRANSFER_ADD(t, expired, 1);
    }
}

void hold_clear(transfer *t)
{
    for (held_record *r; (r = t->held.oldest) != NULL;) {
        unlink_record(&t->held, r);
        hold_free(t, r);
    }
}

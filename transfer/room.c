/* The room of all records, and how much of it each owner has. */
#include "transfer/internal.h"

#include <assert.h>
#include <stdlib.h>

/* An owner's records that cannot be forgotten have at most this many times the room that records of
 * that kind leave free. */
enum { SHARE = 3 };

/* The link to the owner's entry, or to NULL. */
static room_owner **find_owner(transfer *t, uint64_t id)
{
    room_owner **at = &t->room.owners;
    while (*at && (*at)->id != id) at = &(*at)->next;
    return at;
}

/* The owner's entry, which may have nothing yet. NULL when memory is out. */
static room_owner *enter_owner(transfer *t, uint64_t id)
{
    room_owner **at = find_owner(t, id);
    if (!*at && (*at = calloc(1, sizeof **at))) (*at)->id = id;
    return *at;
}

static void leave_owner(transfer *t, room_owner *o)
{
    if (o->bytes > 0) return;
    *find_owner(t, o->id) = o->next;
    free(o);
}

room_owner *room_owner_of(transfer *t, uint64_t id)
{
    room_owner *o = *find_owner(t, id);
    assert(o); /* room was taken for it */
    return o;
}

void room_hold(transfer *t, room_owner *o, size_t n)
{
    o->held += n;
    t->room.held += n;
}

void room_unhold(transfer *t, room_owner *o, size_t n)
{
    o->held -= n;
    t->room.held -= n;
}

void room_give_back(transfer *t, room_owner *o, size_t n)
{
    o->bytes -= n;
    t->room.bytes -= n;
    leave_owner(t, o);
}

static bool has_room(const transfer *t, size_t n)
{
    return n <= t->o.bytes && t->room.bytes <= t->o.bytes - n;
}

/* Whether the owner keeps to its share with n more bytes that cannot be forgotten. */
static bool is_in_share(const transfer *t, const room_owner *o, size_t n)
{
    size_t lasting = t->room.bytes - t->room.held, own = o->bytes - o->held + n;
    if (n > t->o.bytes || lasting > t->o.bytes - n) return false;
    size_t left = t->o.bytes - lasting - n;
    return own / SHARE + (own % SHARE != 0) <= left;
}

/* Takes room, from held records of others where they have more. NULL, or why there is none: then
 * nothing was forgotten. The records that made room are added to *forgotten. */
static const char *take(transfer *t, room_owner *o, size_t n, bool fetched, held_record **forgotten)
{
    if (fetched && n <= t->o.bytes && !is_in_share(t, o, n))
        return "there is no room for more prompts of its API key (--kv-transfer-memory)";
    if (!hold_makes_room(t, o, n)) return "there is no room for it (--kv-transfer-memory)";
    while (!has_room(t, n)) {
        held_record *r = hold_displace(t);
        room_give_back(t, r->owner, r->n);
        r->next_in_bucket = *forgotten;
        *forgotten = r;
    }
    o->bytes += n;
    t->room.bytes += n;
    return NULL;
}

static const char *make_room(transfer *t, uint64_t owner, size_t n, bool fetched)
{
    held_record *forgotten = NULL;
    const char *why = "memory is out";
    pthread_mutex_lock(&t->lock);
    room_owner *o = enter_owner(t, owner);
    if (o) why = take(t, o, n, fetched, &forgotten);
    if (o) leave_owner(t, o);
    pthread_mutex_unlock(&t->lock);
    for (held_record *r = forgotten, *next; r; r = next) {
        next = r->next_in_bucket;
        free(r->bytes);
        free(r);
        TRANSFER_ADD(t, displaced, 1);
    }
    return why;
}

const char *room_make_for_fetched(transfer *t, uint64_t owner, size_t n)
{
    return make_room(t, owner, n, true);
}

bool transfer_make_room(transfer *t, uint64_t owner, size_t n)
{
    return make_room(t, owner, n, false) == NULL;
}

void transfer_release(transfer *t, uint64_t owner, size_t n)
{
    pthread_mutex_lock(&t->lock);
    room_give_back(t, room_owner_of(t, owner), n);
    pthread_mutex_unlock(&t->lock);
}

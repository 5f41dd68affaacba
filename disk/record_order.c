#include "disk/record_order.h"

#include <stdlib.h>

struct record_owner {
    uint64_t id;
    uint32_t n;  // records that it has
    uint32_t at; // in the heap
    uint64_t weight;
    record_place *oldest, *newest;
    struct record_owner *next; // in its bucket
};

uint64_t record_owner_id(const record_owner *owner) { return owner->id; }

/* ---- the heap of owners ---------------------------------------------------------------------- */

/* Whether a's oldest record goes before b's. */
static bool goes_before(const record_owner *a, const record_owner *b)
{
    return a->weight != b->weight ? a->weight > b->weight : a->oldest->number < b->oldest->number;
}

static void place_at(record_order *o, record_owner *owner, uint32_t at)
{
    o->heap[at] = owner;
    owner->at = at;
}

static void sift_up(record_order *o, record_owner *owner)
{
    uint32_t at = owner->at;
    for (; at > 0 && goes_before(owner, o->heap[(at - 1) / 2]); at = (at - 1) / 2)
        place_at(o, o->heap[(at - 1) / 2], at);
    place_at(o, owner, at);
}

static void sift_down(record_order *o, record_owner *owner)
{
    uint32_t at = owner->at;
    for (uint32_t child; (child = 2 * at + 1) < o->n_owners; at = child) {
        if (child + 1 < o->n_owners && goes_before(o->heap[child + 1], o->heap[child])) child++;
        if (!goes_before(o->heap[child], owner)) break;
        place_at(o, o->heap[child], at);
    }
    place_at(o, owner, at);
}

/* Puts an owner whose records changed to its place. */
static void settle(record_order *o, record_owner *owner)
{
    sift_up(o, owner);
    sift_down(o, owner);
}

/* ---- owners ---------------------------------------------------------------------------------- */

static record_owner **bucket_of(const record_order *o, uint64_t id)
{
    return &o->buckets[hash_mix64(id) & o->mask];
}

static bool grow(record_order *o)
{
    uint32_t n = o->capacity ? 2 * o->capacity : 16;
    record_owner **heap = alloc_resize(NULL, o->heap, n, sizeof(record_owner *));
    if (heap) o->heap = heap;
    record_owner **buckets = calloc(n, sizeof(record_owner *));
    if (!heap || !buckets) {
        free(buckets);
        return false;
    }
    free(o->buckets);
    o->buckets = buckets;
    o->capacity = n;
    o->mask = n - 1;
    for (uint32_t i = 0; i < o->n_owners; i++) {
        record_owner *owner = o->heap[i], **bucket = bucket_of(o, owner->id);
        owner->next = *bucket;
        *bucket = owner;
    }
    return true;
}

/* The owner, without records if it is new: then it is not in the heap yet. */
static record_owner *owner_of(record_order *o, uint64_t id)
{
    if (o->n_owners == o->capacity && !grow(o)) return NULL;
    record_owner **bucket = bucket_of(o, id), *owner = *bucket;
    while (owner && owner->id != id) owner = owner->next;
    if (owner) return owner;
    owner = calloc(1, sizeof *owner);
    if (!owner) return NULL;
    *owner = (record_owner){.id = id, .at = o->n_owners, .next = *bucket};
    *bucket = owner;
    return owner;
}

static void forget_owner(record_order *o, record_owner *owner)
{
    record_owner **link = bucket_of(o, owner->id), *last = o->heap[--o->n_owners];
    while (*link != owner) link = &(*link)->next;
    *link = owner->next;
    if (last != owner) {
        place_at(o, last, owner->at);
        settle(o, last);
    }
    free(owner);
}

/* ---- records --------------------------------------------------------------------------------- */

static void link_newest(record_order *o, record_place *p, record_owner *owner)
{
    p->owner = owner;
    p->number = ++o->number;
    p->older = o->newest;
    p->own_older = owner->newest;
    p->newer = p->own_newer = NULL;
    *(o->newest ? &o->newest->newer : &o->oldest) = p;
    *(owner->newest ? &owner->newest->own_newer : &owner->oldest) = p;
    o->newest = owner->newest = p;
    owner->n++;
    owner->weight += p->weight;
}

static void unlink_place(record_order *o, record_place *p)
{
    record_owner *owner = p->owner;
    *(p->older ? &p->older->newer : &o->oldest) = p->newer;
    *(p->newer ? &p->newer->older : &o->newest) = p->older;
    *(p->own_older ? &p->own_older->own_newer : &owner->oldest) = p->own_newer;
    *(p->own_newer ? &p->own_newer->own_older : &owner->newest) = p->own_older;
    owner->n--;
    owner->weight -= p->weight;
    p->owner = NULL;
}

bool record_order_enter(record_order *o, record_place *p, uint64_t id, uint64_t weight)
{
    record_owner *owner = owner_of(o, id);
    if (!owner) return false;
    if (p->owner == owner) {
        owner->weight += weight - p->weight;
        p->weight = weight;
        record_order_renew(o, p);
        return true;
    }
    if (p->owner) record_order_leave(o, p);
    bool is_new = owner->n == 0;
    p->weight = weight;
    link_newest(o, p, owner);
    if (is_new) place_at(o, owner, o->n_owners++);
    settle(o, owner);
    return true;
}

void record_order_renew(record_order *o, record_place *p)
{
    record_owner *owner = p->owner;
    unlink_place(o, p);
    link_newest(o, p, owner);
    settle(o, owner);
}

void record_order_leave(record_order *o, record_place *p)
{
    record_owner *owner = p->owner;
    unlink_place(o, p);
    if (owner->n == 0) forget_owner(o, owner);
    else settle(o, owner);
}

record_place *record_order_first(const record_order *o)
{
    return o->n_owners > 0 ? o->heap[0]->oldest : NULL;
}

void record_order_free(record_order *o)
{
    for (uint32_t i = 0; i < o->n_owners; i++) free(o->heap[i]);
    free(o->heap);
    free(o->buckets);
    *o = (record_order){0};
}

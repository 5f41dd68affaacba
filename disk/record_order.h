/* The order in which records make room (private to disk/): the oldest record of the owner that has
 * most goes first, by the weights of its records: 1 for each, or their bytes. Where several owners
 * have equally much, the oldest of all their records goes. A change takes time that grows with the
 * logarithm of the number of owners. The caller holds the lock of the store. */
#ifndef DISK_RECORD_ORDER_H
#define DISK_RECORD_ORDER_H

#include "base/base.h"

typedef struct record_owner record_owner;

/* A record's place in the order, which is a part of the record. Zeroed at first. */
typedef struct record_place {
    record_owner *owner; // NULL: it is not in the order
    uint64_t number;     // larger than the numbers of all older records
    uint64_t weight;
    struct record_place *older, *newer;
    struct record_place *own_older, *own_newer; // of the same owner
} record_place;

/* Zeroed at first; freed by record_order_free. */
typedef struct record_order {
    record_place *oldest, *newest;
    uint64_t number;
    record_owner **buckets; // [mask + 1] owners by id
    uint32_t mask;
    record_owner **heap; // [n_owners]
    uint32_t n_owners, capacity;
} record_order;

/* Makes the record the newest one, and the owner's, with this weight. False: memory is out, and all
 * is as before. */
bool record_order_enter(record_order *o, record_place *p, uint64_t owner, uint64_t weight);
/* Makes a record that is in the order the newest one. */
void record_order_renew(record_order *o, record_place *p);
void record_order_leave(record_order *o, record_place *p);
/* The record that makes room for another; NULL: there is none. */
record_place *record_order_first(const record_order *o);
uint64_t record_owner_id(const record_owner *owner);
/* Frees the owners. The records' places are not touched. */
void record_order_free(record_order *o);

#endif

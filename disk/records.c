/* Records: an index of them in memory, and a thread that writes and deletes their files. */
#include "disk/records.h"
#include "disk/record_files.h"
#include "disk/record_order.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes that wait to be written. The thread that writes them has a reference beside the record. */
typedef struct payload {
    uint32_t references;
    uint64_t n;
    uint8_t bytes[];
} payload;

/* A record that is gone stays until its file is deleted. */
typedef struct record {
    record_place place; // its owner is NULL where it is gone
    disk_key key;
    uint64_t version;
    int64_t put_us;
    payload *waits; // its bytes, until they are written; NULL: they are in its file
    bool stored;    // it may have a file
    bool busy;      // the thread writes or deletes its file
    bool due;       // it is in the list of those to be written or deleted
    struct record *next_due;
    struct record *next; // in its bucket
} record;

struct disk_records {
    record_files files;
    uint32_t most;
    int64_t ttl_us;
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work;
    record **buckets; // [mask + 1]
    uint32_t mask, n; // n: records that are not gone
    uint32_t n_due, n_busy;
    uint32_t n_entries; // in the buckets
    record_order order; // by `put_us`, of those that are not gone
    record *first_due, *last_due;
    uint64_t version;
    bool stop, has_reported;
    void (*on_written)(void *ctx);
    void *on_written_ctx;
    disk_record_counts counts;
};

/* The clock that goes on while no process runs; a change of it makes records older or younger. */
static int64_t wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- the index; the lock is held ------------------------------------------------------------- */

static record **bucket_of(const disk_records *d, const disk_key *key)
{
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    return &d->buckets[hash_mix64(hash) & d->mask];
}

static record *find(const disk_records *d, const disk_key *key)
{
    record *r = *bucket_of(d, key);
    while (r && memcmp(&r->key, key, sizeof *key) != 0) r = r->next;
    return r;
}

static record *record_of(record_place *p)
{
    _Static_assert(offsetof(record, place) == 0, "a place is the beginning of its record");
    return (record *)(void *)p;
}

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
static record *find_or_make(disk_records *d, const disk_key *key)
{
    record *r = find(d, key);
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
static bool enter(disk_records *d, record *r, uint64_t owner, int64_t put_us)
{
    bool is_new = !r->place.owner;
    if (!record_order_enter(&d->order, &r->place, owner)) return false;
    r->put_us = put_us;
    r->version = ++d->version;
    d->n += is_new;
    return true;
}

static void drop_payload(payload *p)
{
    if (p && --p->references == 0) free(p);
}

static void leave(disk_records *d, record *r)
{
    record_order_leave(&d->order, &r->place);
    drop_payload(r->waits);
    r->waits = NULL;
    d->n--;
}

static void make_due(disk_records *d, record *r)
{
    if (r->due) return;
    r->due = true;
    r->next_due = NULL;
    *(d->last_due ? &d->last_due->next_due : &d->first_due) = r;
    d->last_due = r;
    d->n_due++;
    pthread_cond_signal(&d->work);
}

static void free_record(disk_records *d, record *r)
{
    record **link = bucket_of(d, &r->key);
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    d->n_entries--;
    free(r);
}

/* Nothing is known of it any more once its file is deleted. */
static void remove_record(disk_records *d, record *r)
{
    if (!r->place.owner) return;
    leave(d, r);
    make_due(d, r);
    d->counts.removed++;
}

/* ---- trouble --------------------------------------------------------------------------------- */

/* The lock is held, but not during the report. */
static void note_trouble(disk_records *d, const char *what, int why)
{
    char text[160];
    d->counts.errors++;
    if (d->has_reported || !d->on_trouble) return;
    d->has_reported = true;
    snprintf(text, sizeof text,
             "disk cache: a session cannot be %s: %s; further ones are only "
             "counted",
             what, strerror(why));
    pthread_mutex_unlock(&d->lock);
    d->on_trouble(d->on_trouble_ctx, text);
    pthread_mutex_lock(&d->lock);
}

static void note_damage(disk_records *d)
{
    if (d->counts.damaged++ > 0 || !d->on_trouble) return;
    pthread_mutex_unlock(&d->lock);
    d->on_trouble(d->on_trouble_ctx, "disk cache: a session was damaged on disk and is forgotten; "
                                     "further ones are only counted");
    pthread_mutex_lock(&d->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* A file that could not be written leaves the one before it, if there was one. */
static void write_record(disk_records *d, record *r)
{
    payload *p = r->waits;
    record_facts facts = {.key = r->key,
                          .owner = record_owner_id(r->place.owner),
                          .put_us = r->put_us,
                          .n_bytes = p->n};
    uint64_t version = r->version;
    p->references++;
    pthread_mutex_unlock(&d->lock);
    int why = record_files_write(&d->files, &facts, p->bytes);
    pthread_mutex_lock(&d->lock);
    if (why) note_trouble(d, "written", why);
    d->counts.written += !why;
    bool had_file = r->stored;
    r->stored = true; /* a file whose folder could not be synced is there all the same */
    drop_payload(p);
    if (!r->place.owner || r->version != version) return; /* it was put again, or is gone */
    drop_payload(r->waits);
    r->waits = NULL;
    if (why && !had_file) {
        leave(d, r);
        make_due(d, r);
    }
}

static void delete_record(disk_records *d, record *r)
{
    if (!r->stored) return;
    disk_key key = r->key;
    pthread_mutex_unlock(&d->lock);
    int why = record_files_delete(&d->files, &key);
    pthread_mutex_lock(&d->lock);
    if (why) note_trouble(d, "deleted", why);
    r->stored = why != 0;
}

static void run_due(disk_records *d)
{
    record *r = d->first_due;
    d->first_due = r->next_due;
    if (!d->first_due) d->last_due = NULL;
    d->n_due--;
    r->due = false;
    r->busy = true;
    d->n_busy++;
    if (r->waits) write_record(d, r);
    else if (!r->place.owner) delete_record(d, r);
    r->busy = false;
    d->n_busy--;
    if (!r->place.owner && !r->due && !r->stored) free_record(d, r);
    if (d->on_written) d->on_written(d->on_written_ctx);
}

static bool is_old(const disk_records *d, const record *r, int64_t now_us)
{
    return d->ttl_us > 0 && now_us - r->put_us >= d->ttl_us;
}

/* Records go by the rule of sessions in memory, so that no owner pushes out the few of another. */
static void make_room(disk_records *d)
{
    int64_t now = wall_us();
    record_place **oldest = &d->order.oldest;
    while (*oldest && is_old(d, record_of(*oldest), now)) remove_record(d, record_of(*oldest));
    while (d->n > d->most) remove_record(d, record_of(record_order_first(&d->order)));
}

/* Sleeps until there is work, or the oldest record may be due to go. */
static void await_work(disk_records *d)
{
    struct timespec until;
    if (d->ttl_us == 0 || !d->order.oldest) {
        pthread_cond_wait(&d->work, &d->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&d->work, &d->lock, &until);
}

static void *records_loop(void *arg)
{
    disk_records *d = arg;
    thread_set_name("oct-records");
    pthread_mutex_lock(&d->lock);
    for (;;) {
        make_room(d);
        if (d->first_due) run_due(d);
        else if (d->stop) break;
        else await_work(d);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void disk_records_on_written(disk_records *d, void (*call)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&d->lock);
    d->on_written = call;
    d->on_written_ctx = ctx;
    pthread_mutex_unlock(&d->lock);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static payload *copy_payload(const void *bytes, size_t n)
{
    payload *p = malloc(sizeof *p + n);
    if (!p) return NULL;
    *p = (payload){.references = 1, .n = n};
    memcpy(p->bytes, bytes, n);
    return p;
}

static bool put_payload(disk_records *d, const disk_key *key, uint64_t owner_id, payload *p)
{
    record *r = find_or_make(d, key);
    if (!r) return false;
    if (!enter(d, r, owner_id, wall_us())) {
        if (!r->place.owner && !r->due && !r->busy) free_record(d, r);
        return false;
    }
    drop_payload(r->waits);
    r->waits = p;
    make_due(d, r);
    return true;
}

bool disk_record_put(disk_records *d, const disk_key *key, uint64_t owner, const void *bytes,
                     size_t n)
{
    payload *p = n <= DISK_RECORD_BYTES_MOST ? copy_payload(bytes, n) : NULL;
    if (!p) return false;
    pthread_mutex_lock(&d->lock);
    bool is_in = put_payload(d, key, owner, p);
    pthread_mutex_unlock(&d->lock);
    if (!is_in) free(p);
    return is_in;
}

static record *find_live(const disk_records *d, const disk_key *key)
{
    record *r = find(d, key);
    return r && r->place.owner && !is_old(d, r, wall_us()) ? r : NULL;
}

uint64_t disk_record_version(disk_records *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    const record *r = find_live(d, key);
    uint64_t version = r ? r->version : 0;
    pthread_mutex_unlock(&d->lock);
    return version;
}

bool disk_record_waits(disk_records *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    const record *r = find(d, key);
    bool waits = r && r->waits;
    pthread_mutex_unlock(&d->lock);
    return waits;
}

static uint8_t *copy_waiting(const payload *p, size_t *n)
{
    uint8_t *bytes = malloc(p->n + 1);
    if (!bytes) return NULL;
    memcpy(bytes, p->bytes, p->n);
    *n = p->n;
    return bytes;
}

/* Reads the file of a record, without the lock. It is asked for again if it was put meanwhile. */
static uint8_t *read_stored(disk_records *d, const disk_key *key, uint64_t version, size_t *n,
                            bool *again)
{
    record_facts facts;
    uint8_t *bytes = NULL;
    pthread_mutex_unlock(&d->lock);
    int why = record_files_read(&d->files, key, &facts, &bytes);
    pthread_mutex_lock(&d->lock);
    record *r = find_live(d, key);
    *again = r && r->version != version;
    bool is_wanted = r && !*again;
    if (is_wanted && why && why != ENOMEM) {
        if (why == EBADMSG || why == EXDEV) note_damage(d);
        else note_trouble(d, "read", why);
        r = find_live(d, key); /* the lock was given up */
        if (r && r->version == version) remove_record(d, r);
    }
    d->counts.read += is_wanted && !why;
    if (is_wanted && !why) {
        *n = (size_t)facts.n_bytes;
        return bytes;
    }
    free(bytes);
    return NULL;
}

uint8_t *disk_record_get(disk_records *d, const disk_key *key, size_t *n, uint64_t *version)
{
    uint8_t *bytes = NULL;
    pthread_mutex_lock(&d->lock);
    for (bool again = true; again;) {
        const record *r = find_live(d, key);
        again = false;
        if (!r) break;
        *version = r->version;
        if (r->waits) bytes = copy_waiting(r->waits, n);
        else bytes = read_stored(d, key, *version, n, &again);
    }
    pthread_mutex_unlock(&d->lock);
    return bytes;
}

void disk_record_remove(disk_records *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    record *r = find(d, key);
    if (r) remove_record(d, r);
    pthread_mutex_unlock(&d->lock);
}

disk_record_counts disk_record_count(disk_records *d)
{
    pthread_mutex_lock(&d->lock);
    disk_record_counts c = d->counts;
    c.records = d->n;
    c.waiting = d->n_due + d->n_busy;
    pthread_mutex_unlock(&d->lock);
    return c;
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct scan {
    disk_records *records;
    uint32_t n_foreign;
    bool lacks_memory;
} scan;

static void enter_file(void *ctx, const disk_key *key, record_kind kind, const record_facts *facts)
{
    scan *x = ctx;
    disk_records *d = x->records;
    record *r = find_or_make(d, key);
    if (!r) {
        x->lacks_memory = true;
        return;
    }
    r->stored = true;
    if (kind == RECORD_GOOD) {
        int64_t now = wall_us();
        x->lacks_memory |= !enter(d, r, facts->owner, facts->put_us < now ? facts->put_us : now);
        return;
    }
    x->n_foreign += kind == RECORD_FOREIGN;
    make_due(d, r); /* it is gone: its file is deleted */
    if (kind == RECORD_DAMAGED) note_damage(d);
}

static int by_age(const void *a, const void *b)
{
    const record *x = *(record *const *)a, *y = *(record *const *)b;
    return x->put_us < y->put_us ? -1 : x->put_us > y->put_us;
}

/* Files are found in no order. */
static bool sort_records(disk_records *d)
{
    record **all = malloc(((size_t)d->n + 1) * sizeof(record *));
    if (!all) return false;
    uint32_t n = 0;
    for (record_place *p = d->order.oldest; p; p = p->newer) all[n++] = record_of(p);
    qsort(all, n, sizeof *all, by_age);
    for (uint32_t i = 0; i < n; i++) record_order_renew(&d->order, &all[i]->place);
    free(all);
    return true;
}

static status read_files(disk_records *d, error *err)
{
    scan x = {.records = d};
    pthread_mutex_lock(&d->lock);
    status st = record_files_scan(&d->files, enter_file, &x, err);
    bool is_sorted = status_ok(st) && sort_records(d);
    pthread_mutex_unlock(&d->lock);
    RETURN_IF_ERROR(st);
    if (x.lacks_memory || !is_sorted) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (x.n_foreign > 0 && d->on_trouble)
        d->on_trouble(d->on_trouble_ctx, "disk cache: the directory held sessions of another model "
                                         "or of other settings; they are deleted");
    return STATUS_IS_OK;
}

static status fill(disk_records *d, const disk_records_options *o, error *err)
{
    uint32_t n_buckets = 16;
    while (n_buckets < o->most) n_buckets *= 2;
    d->mask = n_buckets - 1;
    d->buckets = calloc(n_buckets, sizeof *d->buckets);
    if (!d->buckets) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    RETURN_IF_ERROR(record_files_open(&d->files, o, err));
    RETURN_IF_ERROR(read_files(d, err));
    if (pthread_create(&d->thread, NULL, records_loop, d))
        return error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
    d->has_thread = true;
    return STATUS_IS_OK;
}

status disk_records_open(const disk_records_options *options, disk_records **out, error *err)
{
    *out = NULL;
    disk_records *d = calloc(1, sizeof *d);
    if (!d) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    d->files.dir = -1;
    d->most = options->most;
    d->ttl_us = options->ttl_us;
    d->on_trouble = options->on_trouble;
    d->on_trouble_ctx = options->on_trouble_ctx;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    status st = fill(d, options, err);
    if (!status_ok(st)) {
        disk_records_close(d);
        return st;
    }
    *out = d;
    return STATUS_IS_OK;
}

/* Files that could not be deleted are tried once more. */
static void free_all(disk_records *d)
{
    for (uint32_t i = 0; d->buckets && i <= d->mask; i++) {
        for (record *r = d->buckets[i], *next; r; r = next) {
            next = r->next;
            if (d->has_thread && !r->place.owner && r->stored)
                record_files_delete(&d->files, &r->key);
            drop_payload(r->waits);
            free(r);
        }
    }
    record_order_free(&d->order);
    free(d->buckets);
}

void disk_records_close(disk_records *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    if (d->has_thread) pthread_join(d->thread, NULL);
    free_all(d);
    record_files_close(&d->files);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

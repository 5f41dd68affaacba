/* The store of records: a thread that writes and deletes their files, and the calls of
 * records.h. */
#include "disk/record_index.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The clock that goes on while no process runs; a change of it makes records older or younger. */
static int64_t wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- trouble --------------------------------------------------------------------------------- */

/* The lock is held, but not during the report. */
static void note_trouble(disk_records *d, const char *what, int why)
{
    char text[160];
    d->counts.errors++;
    if (d->has_reported || !d->on_trouble) return;
    d->has_reported = true;
    snprintf(text, sizeof text, "disk cache: %s cannot be %s: %s; further ones are only counted",
             d->one, what, strerror(why));
    pthread_mutex_unlock(&d->lock);
    d->on_trouble(d->on_trouble_ctx, text);
    pthread_mutex_lock(&d->lock);
}

static void note_damage(disk_records *d)
{
    char text[160];
    if (d->counts.damaged++ > 0 || !d->on_trouble) return;
    snprintf(text, sizeof text,
             "disk cache: %s was damaged on disk and is forgotten; further ones are only counted",
             d->one);
    pthread_mutex_unlock(&d->lock);
    d->on_trouble(d->on_trouble_ctx, text);
    pthread_mutex_lock(&d->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void delete_file(disk_records *d, record *r)
{
    if (!r->stored) return;
    disk_key key = r->key;
    pthread_mutex_unlock(&d->lock);
    int why = record_files_delete(&d->files, &key);
    pthread_mutex_lock(&d->lock);
    if (why) note_trouble(d, "deleted", why);
    r->stored = why != 0;
    if (!why) records_set_file_bytes(d, r, 0);
}

/* Makes room for `need` bytes: files of the owner who has most of them go, and where there are no
 * others, that which r will replace. */
static bool make_space(disk_records *d, record *r, uint64_t need)
{
    while (d->bytes_most > 0 && d->file_bytes + need > d->bytes_most) {
        record_place *first = record_order_first(&d->room);
        record *goes = first ? records_of_room(first) : r;
        if (!goes || !goes->stored) return false;
        if (goes != r) records_remove(d, goes);
        delete_file(d, goes);
        if (goes->stored) return false;
    }
    return true;
}

typedef struct offered_bytes {
    disk_records *records;
    disk_key key;
    uint64_t version;
    uint8_t part[RECORD_PART];
} offered_bytes;

static const void *offered_part(void *ctx, uint64_t at, size_t n)
{
    offered_bytes *o = ctx;
    disk_records *d = o->records;
    pthread_mutex_lock(&d->source_lock);
    bool is_there = d->copy && d->copy(d->copy_ctx, &o->key, o->version, at, o->part, n);
    pthread_mutex_unlock(&d->source_lock);
    return is_there ? o->part : NULL;
}

static const void *payload_part(void *ctx, uint64_t at, size_t n)
{
    (void)n;
    return ((payload *)ctx)->bytes + at;
}

static int write_bytes(disk_records *d, const record_facts *facts, payload *p, uint64_t version)
{
    if (p) return record_files_write(&d->files, facts, (record_source){payload_part, p});
    offered_bytes *o = malloc(sizeof *o);
    if (!o) return ENOMEM;
    o->records = d;
    o->key = facts->key;
    o->version = version;
    int why = record_files_write(&d->files, facts, (record_source){offered_part, o});
    free(o);
    return why;
}

/* Notes the file of a record, which may have been written before its folder could not be synced. */
static void note_file(disk_records *d, record *r, int why, uint64_t n)
{
    if (why != ECANCELED) {
        r->stored = true;
        records_set_file_bytes(d, r, why && r->file_bytes ? r->file_bytes : n);
    }
    if (d->bytes_most == 0 || !r->stored || !r->place.owner) return;
    if (!record_order_enter(&d->room, &r->room, record_owner_id(r->place.owner), r->file_bytes))
        records_remove(d, r);
}

/* A file that could not be written leaves the one before it, if there was one. */
static void write_record(disk_records *d, record *r)
{
    payload *p = r->waits;
    record_facts facts = {.key = r->key,
                          .owner = record_owner_id(r->place.owner),
                          .put_us = r->put_us,
                          .n_bytes = p ? p->n : r->n_offered};
    uint64_t version = r->version, n = record_file_bytes(facts.n_bytes);
    if (p) p->references++;
    if (r->room.owner) record_order_leave(&d->room, &r->room);
    int why = make_space(d, r, n) ? 0 : ENOSPC;
    pthread_mutex_unlock(&d->lock);
    if (!why) why = write_bytes(d, &facts, p, version);
    pthread_mutex_lock(&d->lock);
    if (why && why != ECANCELED) note_trouble(d, "written", why);
    d->counts.written += !why;
    bool had_file = r->stored;
    note_file(d, r, why, n);
    payload_drop(p);
    if (!r->place.owner || r->version != version) return; /* it was put again, or is gone */
    record_drop_waiting(r);
    if (why && !had_file) {
        records_leave(d, r);
        records_make_due(d, r);
    }
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
    if (record_waits(r)) write_record(d, r);
    else if (!r->place.owner) delete_file(d, r);
    r->busy = false;
    d->n_busy--;
    if (!r->place.owner && !r->due && !r->stored) records_free(d, r);
    if (d->on_written) d->on_written(d->on_written_ctx);
    pthread_cond_broadcast(&d->done);
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
    while (*oldest && is_old(d, records_of_place(*oldest), now))
        records_remove(d, records_of_place(*oldest));
    while (d->n > d->most) records_remove(d, records_of_place(record_order_first(&d->order)));
    (void)make_space(d, NULL, 0);
}

/* Sleeps until there is work, at most a second where records go by their age. */
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

/* The record of a key that is put, which waits for nothing. NULL: memory is out, and all is as
 * before. */
static record *enter_key(disk_records *d, const disk_key *key, uint64_t owner_id, int64_t put_us)
{
    record *r = records_find_or_make(d, key);
    if (!r) return NULL;
    if (!records_enter(d, r, owner_id, put_us)) {
        if (!r->place.owner && !r->due && !r->busy) records_free(d, r);
        return NULL;
    }
    record_drop_waiting(r);
    records_make_due(d, r);
    return r;
}

bool disk_record_put(disk_records *d, const disk_key *key, uint64_t owner, const void *bytes,
                     size_t n)
{
    payload *p = n <= DISK_RECORD_BYTES_MOST ? copy_payload(bytes, n) : NULL;
    if (!p) return false;
    pthread_mutex_lock(&d->lock);
    record *r = enter_key(d, key, owner, wall_us());
    if (r) r->waits = p;
    pthread_mutex_unlock(&d->lock);
    if (!r) free(p);
    return r;
}

uint64_t disk_record_offer(disk_records *d, const disk_key *key, uint64_t owner, uint64_t n,
                           int64_t age_us)
{
    if (d->bytes_most > 0 && record_file_bytes(n) > d->bytes_most) return 0;
    pthread_mutex_lock(&d->lock);
    record *r = enter_key(d, key, owner, wall_us() - age_us);
    uint64_t version = r ? r->version : 0;
    if (r) {
        r->offered = true;
        r->n_offered = n;
    }
    pthread_mutex_unlock(&d->lock);
    return version;
}

void disk_records_source(disk_records *d, disk_record_copy copy, void *ctx)
{
    pthread_mutex_lock(&d->source_lock);
    d->copy = copy;
    d->copy_ctx = ctx;
    pthread_mutex_unlock(&d->source_lock);
}

static record *find_live(const disk_records *d, const disk_key *key)
{
    record *r = records_find(d, key);
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
    const record *r = records_find(d, key);
    bool is_waiting = r && record_waits(r);
    pthread_mutex_unlock(&d->lock);
    return is_waiting;
}

void disk_record_await(disk_records *d, const disk_key *key, int64_t until_us)
{
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    pthread_mutex_lock(&d->lock);
    for (const record *r;
         (r = records_find(d, key)) != NULL && record_waits(r) && clock_now_us() < until_us;)
        pthread_cond_timedwait(&d->done, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
}

static uint8_t *copy_waiting(const payload *p, size_t *n)
{
    uint8_t *bytes = malloc(p->n + 1);
    if (!bytes) return NULL;
    memcpy(bytes, p->bytes, p->n);
    *n = p->n;
    return bytes;
}

/* Gives a record's file to `take`, without the lock. A file that cannot be read is deleted. */
static bool read_file(disk_records *d, const disk_key *key, uint64_t version, disk_record_take take,
                      void *ctx)
{
    record_facts facts;
    pthread_mutex_unlock(&d->lock);
    int why = record_files_read(&d->files, key, &facts, take, ctx);
    pthread_mutex_lock(&d->lock);
    record *r = find_live(d, key);
    bool is_same = r && r->version == version;
    if (is_same && why && why != ENOMEM && why != ECANCELED) {
        if (why == EBADMSG || why == EXDEV) note_damage(d);
        else note_trouble(d, "read", why);
        r = find_live(d, key); /* the lock was given up */
        if (r && r->version == version) records_remove(d, r);
    }
    d->counts.read += r && !why;
    return !why;
}

bool disk_record_read(disk_records *d, const disk_key *key, disk_record_take take, void *ctx)
{
    pthread_mutex_lock(&d->lock);
    const record *r = find_live(d, key);
    bool has = r && r->stored && read_file(d, key, r->version, take, ctx);
    pthread_mutex_unlock(&d->lock);
    return has;
}

typedef struct whole_record {
    uint8_t *bytes;
    size_t n;
} whole_record;

static bool take_whole(void *ctx, uint64_t at, const uint8_t *bytes, size_t n, uint64_t all)
{
    whole_record *w = ctx;
    if (at == 0 && all <= DISK_RECORD_BYTES_MOST) w->bytes = malloc((size_t)all + 1);
    if (!w->bytes) return false;
    memcpy(w->bytes + at, bytes, n);
    w->n = (size_t)all;
    return true;
}

/* *again: the record was put meanwhile, so these bytes are not its own any more. */
static uint8_t *read_stored(disk_records *d, const disk_key *key, uint64_t version, size_t *n,
                            bool *again)
{
    whole_record w = {.n = 0};
    bool good = read_file(d, key, version, take_whole, &w);
    const record *r = find_live(d, key);
    *again = r && r->version != version;
    if (good && r && !*again) {
        *n = w.n;
        return w.bytes;
    }
    free(w.bytes);
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
    record *r = records_find(d, key);
    if (r) records_remove(d, r);
    pthread_mutex_unlock(&d->lock);
}

disk_record_counts disk_record_count(disk_records *d)
{
    pthread_mutex_lock(&d->lock);
    disk_record_counts c = d->counts;
    c.records = d->n;
    c.waiting = d->n_due + d->n_busy;
    c.bytes = d->file_bytes;
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
    record *r = records_find_or_make(d, key);
    if (!r) {
        x->lacks_memory = true;
        return;
    }
    r->stored = true;
    if (kind == RECORD_GOOD) {
        int64_t now = wall_us();
        records_set_file_bytes(d, r, record_file_bytes(facts->n_bytes));
        x->lacks_memory |=
            !records_enter(d, r, facts->owner, facts->put_us < now ? facts->put_us : now);
        return;
    }
    x->n_foreign += kind == RECORD_FOREIGN;
    records_make_due(d, r); /* it is gone: its file is deleted */
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
    for (record_place *p = d->order.oldest; p; p = p->newer) all[n++] = records_of_place(p);
    qsort(all, n, sizeof *all, by_age);
    bool good = true;
    for (uint32_t i = 0; i < n; i++) {
        record *r = all[i];
        record_order_renew(&d->order, &r->place);
        if (good && d->bytes_most > 0)
            good = record_order_enter(&d->room, &r->room, record_owner_id(r->place.owner),
                                      r->file_bytes);
    }
    free(all);
    return good;
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
    if (x.n_foreign == 0 || !d->on_trouble) return STATUS_IS_OK;
    char text[160];
    snprintf(text, sizeof text,
             "disk cache: the directory held %s of another model or of other settings; they are "
             "deleted",
             d->files.folder);
    d->on_trouble(d->on_trouble_ctx, text);
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
    d->one = options->one ? options->one : "a session";
    d->most = options->most;
    d->bytes_most = options->bytes;
    d->ttl_us = options->ttl_us;
    d->on_trouble = options->on_trouble;
    d->on_trouble_ctx = options->on_trouble_ctx;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->source_lock, NULL);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
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
            payload_drop(r->waits);
            free(r);
        }
    }
    record_order_free(&d->order);
    record_order_free(&d->room);
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
    pthread_cond_destroy(&d->done);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->source_lock);
    free(d);
}

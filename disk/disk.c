/* The store of blocks: threads that write what was put and read what is asked for. */
#include "disk/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A block that waits to be written, or is being written. */
typedef struct put_buffer {
    uint8_t *bytes; // [slot_bytes], aligned
    disk_key key;
    uint64_t flushes; // of the store when it was put
    bool forgotten;   // after it was put
    struct put_buffer *next;
} put_buffer;

struct disk_cache {
    disk_files files;
    void (*on_trouble)(void *ctx, const char *text);
    void *on_trouble_ctx;
    put_buffer *buffers; // [n_buffers]
    uint32_t n_buffers;
    pthread_t threads[DISK_THREADS];
    uint32_t n_threads;

    /* Held while an entry is written and taken in, and during a flush, so that no entry is written
     * behind one. It is taken before `lock`, under which nothing waits for the disk or the log. */
    pthread_mutex_t entry_lock;
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t work, idle;
    disk_index index;
    put_buffer *free_buffers, *first_put, *last_put;
    uint32_t n_free;
    disk_read *first_read, *last_read; // with blocks that no thread reads yet
    uint32_t n_reads;                  // whose `done` was not called
    uint64_t flushes, stamp;
    bool off, stop;
    disk_counts counts;
};

/* ---- trouble --------------------------------------------------------------------------------- */

static void report(const disk_cache *d, const char *text)
{
    if (d->on_trouble) d->on_trouble(d->on_trouble_ctx, text);
}

/* A call of the system failed: from now on the store has nothing. The lock is held, but not during
 * the report. */
static void turn_off(disk_cache *d, const char *what, int why)
{
    char text[160];
    d->counts.errors++;
    if (d->off) return;
    d->off = true;
    snprintf(text, sizeof text, "disk cache: %s: %s; the prefix cache goes on without disk", what,
             strerror(why));
    pthread_mutex_unlock(&d->lock);
    report(d, text);
    pthread_mutex_lock(&d->lock);
}

/* The lock is held, but not during the report. */
static void note_damage(disk_cache *d, uint32_t slot)
{
    index_forget(&d->index, slot);
    if (d->counts.damaged++ > 0) return;
    pthread_mutex_unlock(&d->lock);
    report(d, "disk cache: a block was torn or damaged and is computed again; further ones are "
              "only counted");
    pthread_mutex_lock(&d->lock);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Whether the store still wants the block. The lock is held. */
static bool is_wanted(const disk_cache *d, const put_buffer *b)
{
    return !d->off && !b->forgotten && b->flushes == d->flushes &&
           index_find(&d->index, &b->key) == DISK_NONE;
}

/* Writes the entry of a block that is in its slot, and takes it into the index. Returns 0 or an
 * errno, and holds the lock then. */
static int enter_put(disk_cache *d, const put_buffer *b, uint32_t slot, uint64_t checksum)
{
    int why = 0;
    pthread_mutex_lock(&d->entry_lock);
    pthread_mutex_lock(&d->lock);
    bool wanted = is_wanted(d, b);
    uint64_t stamp = ++d->stamp;
    pthread_mutex_unlock(&d->lock);
    if (wanted) why = files_write_entry(&d->files, slot, &b->key, checksum, stamp);
    pthread_mutex_lock(&d->lock);
    if (wanted && !why) {
        index_put(&d->index, slot, &b->key, checksum, stamp);
        d->counts.written++;
    } else {
        index_give_back(&d->index, slot);
    }
    pthread_mutex_unlock(&d->entry_lock);
    return why;
}

/* The lock is held, also when it returns. A block that is there already, or was put before a flush,
 * is not written. */
static void write_put(disk_cache *d, put_buffer *b)
{
    bool evicted = false;
    uint32_t slot = is_wanted(d, b) ? index_take(&d->index, &evicted) : DISK_NONE;
    if (slot == DISK_NONE) return;
    d->counts.evicted += evicted;
    pthread_mutex_unlock(&d->lock);
    uint64_t checksum = files_checksum(&d->files, &b->key, b->bytes);
    int why = files_exist(&d->files);
    if (!why) why = files_write_block(&d->files, slot, b->bytes);
    if (!why) {
        why = enter_put(d, b, slot, checksum);
    } else {
        pthread_mutex_lock(&d->lock);
        index_give_back(&d->index, slot);
    }
    if (why) turn_off(d, "a block cannot be written", why);
}

/* The lock is held. */
static void give_back(disk_cache *d, put_buffer *b)
{
    b->next = d->free_buffers;
    d->free_buffers = b;
    d->n_free++;
}

static void run_put(disk_cache *d)
{
    put_buffer *b = d->first_put;
    d->first_put = b->next;
    if (!d->first_put) d->last_put = NULL;
    write_put(d, b);
    give_back(d, b);
}

bool disk_has(disk_cache *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    bool has = !d->off && index_find(&d->index, key) != DISK_NONE;
    pthread_mutex_unlock(&d->lock);
    return has;
}

uint32_t disk_buffers(const disk_cache *d) { return d->n_buffers; }

void disk_touch(disk_cache *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    uint32_t slot = index_find(&d->index, key);
    if (slot != DISK_NONE) index_touch(&d->index, slot);
    pthread_mutex_unlock(&d->lock);
}

uint8_t *disk_put_begin(disk_cache *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    put_buffer *b = NULL;
    bool wanted = !d->off && index_find(&d->index, key) == DISK_NONE;
    if (wanted && d->n_free == 0) d->counts.left_out++;
    else if (wanted) {
        b = d->free_buffers;
        d->free_buffers = b->next;
        d->n_free--;
        b->key = *key;
        b->flushes = d->flushes;
        b->forgotten = false;
    }
    pthread_mutex_unlock(&d->lock);
    return b ? b->bytes : NULL;
}

static put_buffer *buffer_of(disk_cache *d, const uint8_t *bytes)
{
    put_buffer *b = d->buffers;
    while (b->bytes != bytes) b++;
    return b;
}

void disk_put_drop(disk_cache *d, uint8_t *buffer)
{
    put_buffer *b = buffer_of(d, buffer);
    pthread_mutex_lock(&d->lock);
    give_back(d, b);
    pthread_mutex_unlock(&d->lock);
}

void disk_put_end(disk_cache *d, uint8_t *buffer)
{
    put_buffer *b = buffer_of(d, buffer);
    pthread_mutex_lock(&d->lock);
    b->next = NULL;
    *(d->last_put ? &d->last_put->next : &d->first_put) = b;
    d->last_put = b;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads one block and gives it to the reader; false: the block is missing. The lock is held, but
 * not during the read. */
static bool read_one(disk_cache *d, disk_read *r, uint32_t i, uint8_t *buffer)
{
    uint32_t slot = d->off ? DISK_NONE : index_find(&d->index, &r->keys[i]);
    if (slot == DISK_NONE) return false;
    uint64_t checksum = d->index.slots[slot].checksum;
    index_read_begin(&d->index, slot);
    pthread_mutex_unlock(&d->lock);
    int why = files_read_block(&d->files, slot, buffer);
    bool good = !why && files_checksum(&d->files, &r->keys[i], buffer) == checksum;
    bool taken = good && r->take(r->ctx, i, buffer);
    pthread_mutex_lock(&d->lock);
    if (why) turn_off(d, "a block cannot be read", why);
    else if (!good) note_damage(d, slot);
    d->counts.read += taken;
    index_read_end(&d->index, slot);
    return taken;
}

/* Takes the read off the list of those with blocks that no thread reads yet. */
static void unlist_read(disk_cache *d, disk_read *r)
{
    disk_read *before = NULL;
    for (disk_read *x = d->first_read; x != r; x = x->later) before = x;
    *(before ? &before->later : &d->first_read) = r->later;
    if (d->last_read == r) d->last_read = before;
}

/* Chains are used from their beginning, so their first block is to be forgotten last. */
static void touch_blocks(disk_cache *d, const disk_read *r)
{
    for (uint32_t i = r->missing; i-- > 0;) {
        uint32_t slot = index_find(&d->index, &r->keys[i]);
        if (slot != DISK_NONE) index_touch(&d->index, slot);
    }
}

static void end_read(disk_cache *d, disk_read *r)
{
    touch_blocks(d, r);
    pthread_mutex_unlock(&d->lock);
    r->done(r->ctx, r->missing);
    pthread_mutex_lock(&d->lock);
    if (--d->n_reads == 0) pthread_cond_broadcast(&d->idle);
}

static void run_read(disk_cache *d, uint8_t *buffer)
{
    disk_read *r = d->first_read;
    uint32_t i = r->next++;
    r->n_running++;
    if (r->next == r->n) unlist_read(d, r);
    bool good = read_one(d, r, i, buffer);
    if (!good && i < r->missing) r->missing = i;
    if (r->next < r->n && r->next >= r->missing) {
        r->next = r->n;
        unlist_read(d, r);
    }
    r->n_running--;
    if (r->next == r->n && r->n_running == 0) end_read(d, r);
}

void disk_read_begin(disk_cache *d, disk_read *r)
{
    assert(r->n > 0);
    r->next = r->n_running = 0;
    r->missing = r->n;
    r->later = NULL;
    pthread_mutex_lock(&d->lock);
    *(d->last_read ? &d->last_read->later : &d->first_read) = r;
    d->last_read = r;
    d->n_reads++;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
}

void disk_drain(disk_cache *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->first_read) {
        disk_read *r = d->first_read;
        if (r->missing > r->next) r->missing = r->next;
        r->next = r->n;
        unlist_read(d, r);
        if (r->n_running == 0) end_read(d, r);
    }
    while (d->n_reads > 0) pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Reads go first, because a request waits for them, unless half of the buffers wait: the pages that
 * reads fill are those of blocks that are to be written. */
static bool writes_next(const disk_cache *d)
{
    return d->first_put && (!d->first_read || d->n_free < d->n_buffers / 2);
}

static void *disk_loop(void *arg)
{
    disk_cache *d = arg;
    thread_set_name("oct-disk");
    uint8_t *buffer = aligned_alloc(DISK_ALIGN, d->files.slot_bytes);
    pthread_mutex_lock(&d->lock);
    if (!buffer) turn_off(d, "a thread's buffer", ENOMEM);
    for (;;) {
        if (writes_next(d)) run_put(d);
        else if (d->first_read) run_read(d, buffer);
        else if (d->stop) break;
        else pthread_cond_wait(&d->work, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    free(buffer);
    return NULL;
}

/* ---- the whole ------------------------------------------------------------------------------- */

void disk_flush(disk_cache *d)
{
    pthread_mutex_lock(&d->entry_lock);
    pthread_mutex_lock(&d->lock);
    d->flushes++;
    while (d->index.oldest != DISK_NONE) index_forget(&d->index, d->index.oldest);
    pthread_mutex_unlock(&d->lock);
    int why = files_clear(&d->files); /* also when it is off: the next process reads them */
    pthread_mutex_unlock(&d->entry_lock);
    if (!why) return;
    pthread_mutex_lock(&d->lock);
    turn_off(d, "it cannot be emptied", why);
    pthread_mutex_unlock(&d->lock);
}

/* The slot of a block that is forgotten, or DISK_NONE. */
static uint32_t forget_one(disk_cache *d, const disk_key *key)
{
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_buffers; i++) {
        put_buffer *b = &d->buffers[i];
        b->forgotten |= memcmp(&b->key, key, sizeof *key) == 0;
    }
    uint32_t slot = index_find(&d->index, key);
    if (slot != DISK_NONE) index_forget(&d->index, slot);
    pthread_mutex_unlock(&d->lock);
    return slot;
}

/* No entry is written meanwhile, so a slot that is free again still has the entry that is
 * cleared. */
void disk_forget(disk_cache *d, const disk_key *keys, uint32_t n)
{
    int why = 0;
    bool any = false;
    pthread_mutex_lock(&d->entry_lock);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = forget_one(d, &keys[i]);
        if (slot == DISK_NONE || why) continue;
        why = files_clear_entry(&d->files, slot);
        any = true;
    }
    if (any && !why) why = files_sync(&d->files);
    pthread_mutex_unlock(&d->entry_lock);
    if (!why) return;
    pthread_mutex_lock(&d->lock);
    turn_off(d, "blocks cannot be forgotten", why);
    pthread_mutex_unlock(&d->lock);
}

disk_counts disk_count(disk_cache *d)
{
    pthread_mutex_lock(&d->lock);
    disk_counts c = d->counts;
    c.works = !d->off;
    c.blocks = d->off ? 0 : d->index.n_stored;
    c.waiting = d->n_buffers - d->n_free;
    c.bytes = c.blocks * d->files.slot_bytes;
    pthread_mutex_unlock(&d->lock);
    return c;
}

static bool make_buffers(disk_cache *d)
{
    size_t n = DISK_BUFFER_BYTES / d->files.slot_bytes;
    n = n < DISK_BUFFERS_LEAST ? DISK_BUFFERS_LEAST : n > DISK_BUFFERS_MOST ? DISK_BUFFERS_MOST : n;
    d->buffers = calloc(n, sizeof *d->buffers);
    for (; d->buffers && d->n_buffers < n; d->n_buffers++) {
        put_buffer *b = &d->buffers[d->n_buffers];
        b->bytes = aligned_alloc(DISK_ALIGN, d->files.slot_bytes);
        if (!b->bytes) return false;
        memset(b->bytes, 0, d->files.slot_bytes); /* what follows a block is written too */
        b->next = d->free_buffers;
        d->free_buffers = b;
    }
    d->n_free = d->n_buffers;
    return d->buffers != NULL;
}

/* Takes in an entry of the last process. Where two have one key, the later one counts. */
static void take_entry(void *ctx, uint32_t slot, const disk_key *key, uint64_t checksum,
                       uint64_t stamp)
{
    disk_cache *d = ctx;
    uint32_t other = index_find(&d->index, key);
    if (other != DISK_NONE && d->index.slots[other].stamp > stamp) return;
    if (other != DISK_NONE) index_forget(&d->index, other);
    index_put(&d->index, slot, key, checksum, stamp);
    d->index.n_touched = slot + 1;
    if (stamp > d->stamp) d->stamp = stamp;
}

typedef struct stamped {
    uint64_t stamp;
    uint32_t slot;
} stamped;

static int by_stamp(const void *a, const void *b)
{
    uint64_t x = ((const stamped *)a)->stamp, y = ((const stamped *)b)->stamp;
    return x < y ? -1 : x > y;
}

/* Makes the index of what the last process left: in the order in which it was put. */
static status read_index(disk_cache *d, error *err)
{
    disk_index *x = &d->index;
    RETURN_IF_ERROR(files_scan(&d->files, take_entry, d, err));
    stamped *all = malloc(((size_t)x->n_stored + 1) * sizeof *all);
    if (!all) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    uint32_t n = 0;
    x->free = 0;
    for (uint32_t i = x->n_touched; i-- > 0;) {
        if (x->slots[i].stored) all[n++] = (stamped){x->slots[i].stamp, i};
        else index_give_back(x, i);
    }
    qsort(all, n, sizeof *all, by_stamp);
    for (uint32_t i = 0; i < n; i++) index_touch(x, all[i].slot);
    free(all);
    return STATUS_IS_OK;
}

static status fill(disk_cache *d, const disk_options *o, error *err)
{
    bool was_foreign = false;
    RETURN_IF_ERROR(files_open(&d->files, o, &was_foreign, err));
    if (was_foreign)
        report(d, "disk cache: the directory held blocks of another model or of other settings; "
                  "they are deleted");
    if (!index_create(&d->index, d->files.n_slots) || !make_buffers(d))
        return error_set(err, STATUS_NO_MEMORY, "out of memory for %u blocks", d->files.n_slots);
    RETURN_IF_ERROR(read_index(d, err));
    for (; d->n_threads < DISK_THREADS; d->n_threads++)
        if (pthread_create(&d->threads[d->n_threads], NULL, disk_loop, d))
            return error_set(err, STATUS_NO_MEMORY, "cannot start a thread");
    return STATUS_IS_OK;
}

status disk_open(const disk_options *options, disk_cache **out, error *err)
{
    *out = NULL;
    disk_cache *d = calloc(1, sizeof *d);
    if (!d) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    d->on_trouble = options->on_trouble;
    d->on_trouble_ctx = options->on_trouble_ctx;
    pthread_mutex_init(&d->entry_lock, NULL);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->idle, NULL);
    status st = fill(d, options, err);
    if (!status_ok(st)) {
        disk_close(d);
        return st;
    }
    *out = d;
    return STATUS_IS_OK;
}

void disk_close(disk_cache *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    /* A read counts until its thread is back from `done`, so its caller may be here before that. */
    while (d->n_reads > 0) pthread_cond_wait(&d->idle, &d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    for (uint32_t i = 0; i < d->n_threads; i++) pthread_join(d->threads[i], NULL);
    for (uint32_t i = 0; i < d->n_buffers; i++) free(d->buffers[i].bytes);
    free(d->buffers);
    index_destroy(&d->index);
    files_close(&d->files);
    pthread_cond_destroy(&d->idle);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->entry_lock);
    free(d);
}

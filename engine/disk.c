/* The prefix cache on disk: blocks that leave memory are put into the store before the step that
 * takes their pages, and threads of the store read blocks into the pages of sequences that wait for
 * them. */
#include "engine/internal.h"

#include <assert.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(pkv_key) == sizeof(disk_key), "the store compares keys of blocks");

static disk_key key_of(const pkv_key *key)
{
    disk_key k;
    memcpy(&k, key, sizeof k);
    return k;
}

bool disk_has_block(void *ctx, const pkv_key *key)
{
    disk_key k = key_of(key);
    return disk_has(ctx, &k);
}

/* Both kinds of keys are their bytes alone. */
void disk_forget_blocks(void *ctx, const pkv_key *keys, uint32_t n)
{
    disk_forget(ctx, (const disk_key *)(const void *)keys, n);
}

status disk_check(const engine *e, error *err)
{
    if (!e->o.disk) return STATUS_IS_OK;
    if (!e->o.prefix_cache)
        return error_set(err, STATUS_INVALID, "disk-cache: there is no prefix cache");
    if (e->info.block_bytes == 0 || engine_in_flight(e) > 1)
        return error_set(err, STATUS_UNSUPPORTED,
                         "disk-cache: the backend '%s' cannot copy blocks to disk", e->info.name);
    return STATUS_IS_OK;
}

/* Copies n blocks, each to its buffer. */
static bool read_blocks(engine *e, const uint32_t *cells, uint32_t n, uint8_t *const *buffers)
{
    const pkv_geometry *g = &e->info.geometry;
    uint32_t groups = pkv_groups(g);
    return e->backend.ops->read_cells(e->backend.ctx, cells, n * groups, g->page_tokens, buffers,
                                      groups);
}

/* Copies the blocks that have buffers, all that follow one another at once: ranks may be behind
 * connections. Where the backend cannot give them, their buffers are dropped: its ranks are made
 * again then. */
static void fill_buffers(engine *e, const pkv_lost *lost, uint8_t **buffers)
{
    size_t groups = pkv_groups(&e->info.geometry);
    bool gives = true;
    for (uint32_t from = 0, to; from < lost->n; from = to) {
        to = from + 1;
        if (!buffers[from]) continue;
        while (to < lost->n && buffers[to]) to++;
        gives = gives && read_blocks(e, lost->cells + from * groups, to - from, buffers + from);
        for (uint32_t i = from; i < to && !gives; i++) {
            disk_put_drop(e->o.disk, buffers[i]);
            buffers[i] = NULL;
        }
    }
}

/* Stores the blocks that leave memory with the coming step. Where buffers are few, the blocks that
 * left last get them, because they are nearest to the beginning of their chains. All are put in the
 * order in which they left, so that the store forgets children before their parent. */
void disk_save_lost(engine *e)
{
    if (!e->o.disk) return;
    uint8_t *buffers[DISK_BUFFERS_MOST];
    pkv_lost lost = sched_take_lost(e->sched);
    assert(lost.n <= DISK_BUFFERS_MOST);
    for (uint32_t i = lost.n; i-- > 0;) {
        disk_key key = key_of(&lost.keys[i]);
        buffers[i] = disk_put_begin(e->o.disk, &key);
    }
    fill_buffers(e, &lost, buffers);
    for (uint32_t i = 0; i < lost.n; i++) {
        disk_key key = key_of(&lost.keys[i]);
        if (buffers[i]) disk_put_end(e->o.disk, buffers[i]);
        else disk_touch(e->o.disk, &key);
    }
}

/* ---- at the end ------------------------------------------------------------------------------ */

/* Waits for a buffer for the block; *buffer is NULL where the store has the block already. False:
 * there is no time left, or the store is off. */
static bool await_buffer(engine *e, const disk_key *key, int64_t until_us, uint8_t **buffer)
{
    const struct timespec nap = {.tv_nsec = 500000};
    for (;;) {
        disk_counts now = disk_count(e->o.disk);
        if (!now.works || clock_now_us() >= until_us) return false;
        *buffer = NULL;
        if (disk_has(e->o.disk, key)) return true;
        if (now.waiting < disk_buffers(e->o.disk)) *buffer = disk_put_begin(e->o.disk, key);
        if (*buffer) return true;
        nanosleep(&nap, NULL);
    }
}

/* Stores the blocks that only memory has, until this time. Pages of parked sequences hold blocks
 * too, so idle sessions go on from these after the next start. */
void disk_save_cached(engine *e, int64_t until_us)
{
    if (!e->o.disk || until_us == 0 || atomic_load(&e->state) != ENGINE_WORKING) return;
    size_t groups = pkv_groups(&e->info.geometry);
    uint32_t cursor = 0;
    for (pkv_lost some; (some = sched_tell_cached(e->sched, &cursor)).n > 0;) {
        for (uint32_t i = 0; i < some.n; i++) {
            disk_key key = key_of(&some.keys[i]);
            uint8_t *buffer;
            if (!await_buffer(e, &key, until_us, &buffer)) return;
            if (!buffer) {
                disk_touch(e->o.disk, &key);
                continue;
            }
            if (!read_blocks(e, some.cells + i * groups, 1, &buffer)) {
                disk_put_drop(e->o.disk, buffer);
                return;
            }
            disk_put_end(e->o.disk, buffer);
        }
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

typedef struct load_job {
    disk_read read;
    engine *engine;
    const sched_load *load;
    disk_key keys[]; // [load->n_blocks]
} load_job;

static bool take_block(void *ctx, uint32_t i, const uint8_t *bytes)
{
    const load_job *j = ctx;
    const engine *e = j->engine;
    size_t groups = pkv_groups(&e->info.geometry);
    return e->backend.ops->write_cells(e->backend.ctx, j->load->cells + i * groups,
                                       (uint32_t)groups, bytes);
}

static void end_job(void *ctx, uint32_t n_good)
{
    load_job *j = ctx;
    engine *e = j->engine;
    const sched_load *load = j->load;
    alloc_free(e->o.alloc, j);
    inbox_put_loaded(e, (ended_load){load, n_good});
}

static void begin_load(engine *e, const sched_load *load)
{
    load_job *j = alloc_resize(e->o.alloc, NULL, sizeof *j + load->n_blocks * sizeof *j->keys, 1);
    if (!j) {
        inbox_put_loaded(e, (ended_load){load, 0});
        return;
    }
    *j = (load_job){.engine = e, .load = load};
    for (uint32_t i = 0; i < load->n_blocks; i++) j->keys[i] = key_of(&load->keys[i]);
    j->read = (disk_read){
        .keys = j->keys, .n = load->n_blocks, .take = take_block, .done = end_job, .ctx = j};
    disk_read_begin(e->o.disk, &j->read);
}

void disk_begin_loads(engine *e)
{
    if (!e->o.disk && !e->o.transfer) return;
    for (const sched_load *load; (load = sched_next_load(e->sched)) != NULL;) {
        if (load->keys) begin_load(e, load);
        else hand_add_load(e, load);
    }
}

void disk_take_back(engine *e, uint32_t n_loaded)
{
    for (uint32_t i = 0; i < n_loaded; i++)
        slots_add_event(e, (sched_event){.kind = SCHED_LOADED,
                                         .load = e->loaded[i].load,
                                         .n_loaded = e->loaded[i].n_good});
}

void disk_cancel(engine *e)
{
    if (!e->o.disk) return;
    disk_drain(e->o.disk);
    pthread_mutex_lock(&e->inbox.lock);
    e->inbox.n_loaded = 0;
    pthread_mutex_unlock(&e->inbox.lock);
}

/* A disk that keeps blocks which left memory, and answers loads turns later. Between the question
 * whether it has a block and the answer, others may have taken the block's place, or it turns out
 * to be damaged: the load then ends short, and the cells of the blocks behind hold garbage. */
#include "tests/sim/sim_world.h"

static bool chance_of(world_disk *d, uint32_t per, uint32_t of)
{
    return rng_below(&d->random, of) < per;
}

/* The index of the block, or n. */
static uint32_t find(const world_disk *d, const pkv_key *key)
{
    uint32_t i = 0;
    while (i < d->n && memcmp(&d->keys[i], key, sizeof *key) != 0) i++;
    return i;
}

static bool has_block(void *ctx, const pkv_key *key)
{
    const world_disk *d = ctx;
    return find(d, key) < d->n;
}

static void forget(world_disk *d, uint32_t i)
{
    d->n--;
    d->keys[i] = d->keys[d->n];
    memmove(d->blocks + i * d->block_bytes, d->blocks + d->n * d->block_bytes, d->block_bytes);
}

static void forget_blocks(void *ctx, const pkv_key *keys, uint32_t n)
{
    world_disk *d = ctx;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = find(d, &keys[i]);
        if (at < d->n) forget(d, at);
    }
}

void disk_choose(world *w)
{
    world_disk *d = &w->disk;
    sched_options *o = &w->options;
    d->random = rng_seed(w->seed + 5000011);
    d->is_on = o->prefix_cache && o->max_in_flight == 1 && rng_below(&d->random, 2);
    if (!d->is_on) return;
    d->most = chance_of(d, 1, 4) ? 1 + rng_below(&d->random, 8) : 64 + rng_below(&d->random, 200);
    o->has_block = has_block;
    o->forget_blocks = forget_blocks;
    o->has_block_ctx = d;
    o->lost_most = 1 + rng_below(&d->random, chance_of(d, 1, 2) ? 4 : 64);
}

void disk_create(world *w)
{
    world_disk *d = &w->disk;
    if (!d->is_on) return;
    d->block_bytes = w->b.ops->info(w->b.ctx)->block_bytes;
    d->keys = calloc(d->most, sizeof *d->keys);
    d->blocks = calloc(d->most + 1, d->block_bytes); /* the last is one that is compared */
    if (!d->keys || !d->blocks) abort();
}

void disk_destroy(world *w)
{
    free(w->disk.keys);
    free(w->disk.blocks);
}

void disk_flush(world *w) { w->disk.n = 0; }

/* ---- blocks that leave memory ---------------------------------------------------------------- */

/* A key stands for tokens and a salt, so whoever computed them, K and V are the same. */
static void save_block(world *w, const pkv_key *key, const uint32_t *cells)
{
    world_disk *d = &w->disk;
    uint8_t *bytes = d->blocks + d->most * d->block_bytes;
    uint32_t at = find(d, key);
    w->b.ops->read_cells(w->b.ctx, cells, pkv_groups(&w->options.geometry),
                         w->options.geometry.page_tokens, &bytes, pkv_groups(&w->options.geometry));
    if (at < d->n) {
        if (memcmp(d->blocks + at * d->block_bytes, bytes, d->block_bytes) != 0)
            FAIL(w, "a block has left memory with other contents than before");
        return;
    }
    if (chance_of(d, 1, 16)) return; /* left out, for too many wait to be written */
    if (d->n == d->most) forget(d, rng_below(&d->random, d->n));
    d->keys[d->n] = *key;
    memcpy(d->blocks + d->n++ * d->block_bytes, bytes, d->block_bytes);
    w->t->saved++;
}

static uint32_t n_loading(world *w, const world_request *r)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < r->request.n; c++) {
        sched_choice_info info = {0};
        if (r->choices[c].ended) continue;
        sched_describe(w->s, r->request.id, c, &info);
        free(info.report.kept_json);
        n += info.loading;
    }
    return n;
}

void disk_look(world *w)
{
    pkv_lost lost = w->disk.is_on ? sched_take_lost(w->s) : (pkv_lost){0};
    if (lost.n > w->options.lost_most) FAIL(w, "more blocks are told of than agreed");
    uint32_t groups = pkv_groups(&w->options.geometry);
    for (uint32_t i = 0; i < lost.n; i++)
        save_block(w, &lost.keys[i], lost.cells + (size_t)i * groups);
    bool loads = w->disk.is_on || w->hand.is_on;
    for (uint32_t i = w->first_live; loads && i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        r->loading = r->live > 0 ? n_loading(w, r) : 0;
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

bool some_load(const world *w)
{
    bool some = w->disk.n_loads > 0 || some_hand(w);
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) some |= w->requests[i].loading > 0;
    return some;
}

/* Reads the blocks in order up to one that is missing or damaged. */
static uint32_t read_blocks(world_disk *d, const sched_load *load, uint8_t *out)
{
    uint32_t n = 0,
             damaged = chance_of(d, 1, 4) ? rng_below(&d->random, load->n_blocks) : UINT32_MAX;
    for (; n < load->n_blocks; n++) {
        uint32_t at = find(d, &load->keys[n]);
        if (at == d->n) break;
        if (n == damaged) {
            forget(d, at);
            break;
        }
        memcpy(out + n * d->block_bytes, d->blocks + at * d->block_bytes, d->block_bytes);
    }
    return n;
}

static void write_blocks(world *w, world_load *l)
{
    uint32_t groups = pkv_groups(&w->options.geometry);
    for (uint32_t i = 0; i < l->load->n_blocks; i++)
        w->b.ops->write_cells(w->b.ctx, l->load->cells + (size_t)i * groups, groups,
                              l->blocks + i * w->disk.block_bytes);
    l->written = true;
}

/* Some of the requests that wait for a load are aborted meanwhile. */
static void abort_some(world *w)
{
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        if (r->loading && r->abort_at == INT64_MAX && chance_of(&w->disk, 1, 16))
            r->abort_at = w->turn + rng_below(&w->disk.random, 12);
    }
}

void disk_begin_loads(world *w)
{
    world_disk *d = &w->disk;
    uint32_t n_before = d->n_loads;
    for (const sched_load *load; (load = sched_next_load(w->s)) != NULL;) {
        if (!load->keys) {
            hand_begin_load(w, load);
            continue;
        }
        if (d->n_loads == LOADS_MAX) FAIL(w, "the test has too many loads");
        world_load *l = &d->loads[d->n_loads++];
        *l = (world_load){.load = load, .blocks = malloc(load->n_blocks * d->block_bytes)};
        if (!l->blocks) abort();
        memset(l->blocks, 0xbd, load->n_blocks * d->block_bytes);
        l->n_good = read_blocks(d, load, l->blocks);
        l->back_at = w->turn + 1 + rng_below(&d->random, chance_of(d, 1, 8) ? 60 : 6);
        if (chance_of(d, 1, 2)) write_blocks(w, l);
    }
    if (d->n_loads > n_before) abort_some(w);
}

void disk_give_loads(world *w)
{
    world_disk *d = &w->disk;
    uint32_t left = 0, n_waiting = 0;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) n_waiting += w->requests[i].loading;
    for (uint32_t i = 0; i < d->n_loads; i++) {
        world_load *l = &d->loads[i];
        if (w->turn < l->back_at) {
            d->loads[left++] = *l;
            continue;
        }
        if (!l->written) write_blocks(w, l);
        free(l->blocks);
        w->t->loaded += l->n_good;
        w->t->short_loads += l->n_good < l->load->n_blocks;
        add_event(w, (sched_event){.kind = SCHED_LOADED, .load = l->load, .n_loaded = l->n_good});
    }
    w->t->orphan_loads += left < d->n_loads && n_waiting < d->n_loads;
    d->n_loads = left;
}

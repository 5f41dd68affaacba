/* Loads blocks that the prefix cache lost and a store outside the pool still has, such as the disk.
 * A sequence that starts takes pages for them, as for a chunk, and waits while they are filled;
 * then they count as computed. Decodes go on meanwhile, and a block that cannot be had is
 * computed. */
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"

/* A load of a prompt that is taken over takes pages first. */
typedef enum load_state { LOAD_TAKES, LOAD_NEW, LOAD_OUT, LOAD_BACK } load_state;

/* The time of one page is that of listing so many cells. */
enum { CELLS_OF_PAGE = 16 };

struct sched_loading {
    sched_load load; // what the caller sees
    load_state state;
    sched_seq *seq;    // that waits for it; NULL once it is over
    sched_seq *target; // while the caller has the load: its sequence, even one that is over
    uint32_t to;       // tokens of the sequence that may be loaded, those behind this load too
    uint32_t n_good;
    bool distrusted;   // its blocks are to be computed, whatever comes
    uint32_t parked;   // of a prompt that is taken over: the sequence that is filled
    uint32_t n_listed; // of its cells
    sched_loading *earlier, *later;
    pkv_key *keys;           // [n_blocks]
    uint32_t *cells;         // [n_blocks, groups]
    pkv_image_table *tables; // [groups] views of those of `parked`
};

/* How many tokens of an open sequence behind those computed, whole blocks up to `to`, can be loaded
 * at once; `key` is that of the block before them. The pages that a load takes may push as many
 * other blocks out of memory, which are to be told of too (sched_take_lost): so one load has at
 * most half as many blocks as can be told of. */
static uint32_t loadable(const sched *s, const sched_seq *q, pkv_key key, uint32_t to)
{
    uint32_t size = s->page_tokens, from = q->computed, at = from;
    uint32_t most = (s->options.lost_most + 1) / 2 * size;
    for (; at + size <= to && at - from < most; at += size) {
        pkv_key_next(s->kv, &key, q->tokens + at);
        if (!s->options.has_block(s->options.has_block_ctx, &key)) break;
    }
    return at - from;
}

/* Writes the key and the cells of each block. */
static void describe_blocks(const sched *s, const sched_seq *q, pkv_key key, sched_loading *l)
{
    for (uint32_t i = 0; i < l->load.n_blocks; i++) {
        pkv_key_next(s->kv, &key, q->tokens + q->computed + (size_t)i * s->page_tokens);
        l->keys[i] = key;
        pkv_seq_cells(s->kv, q->slot, q->computed / s->page_tokens + i,
                      l->cells + (size_t)i * s->groups);
    }
}

static void link_load(sched *s, sched_loading *l)
{
    *(l->earlier ? &l->earlier->later : &s->first_load) = l;
    s->last_load = l;
}

/* The sequence's tables end with the pages of n blocks. NULL when memory is out, or when the pages
 * may be moved meanwhile, as gathering does with those of a finer grain. */
static sched_loading *make_load(sched *s, sched_seq *q, pkv_key key, uint32_t n)
{
    if (pkv_seq_grain(s->kv, q->slot) != pkv_grain_fit(&s->options.geometry, PKV_ALL)) return NULL;
    size_t cells = (size_t)n * s->groups;
    sched_loading *l = alloc_resize(&s->alloc, NULL,
                                    sizeof *l + n * sizeof *l->keys + cells * sizeof *l->cells, 1);
    if (!l) return NULL;
    *l = (sched_loading){
        .state = LOAD_NEW, .seq = q, .keys = (pkv_key *)(l + 1), .earlier = s->last_load};
    l->cells = (uint32_t *)(l->keys + n);
    l->load = (sched_load){.keys = l->keys, .cells = l->cells, .n_blocks = n};
    describe_blocks(s, q, key, l);
    link_load(s, l);
    return l;
}

bool sched_load_parked(sched *s, sched_seq *q, uint32_t parked, uint32_t n_cells)
{
    size_t cells = n_cells * sizeof(uint32_t), tables = s->groups * sizeof(pkv_image_table);
    sched_loading *l = alloc_resize(&s->alloc, NULL, sizeof *l + tables + cells, 1);
    if (!l) return false;
    *l = (sched_loading){.seq = q, .parked = parked, .earlier = s->last_load};
    l->tables = (pkv_image_table *)(l + 1);
    l->cells = (uint32_t *)(l->tables + s->groups);
    l->load =
        (sched_load){.cells = l->cells, .n_blocks = 1, .n_cells = n_cells, .request = q->entry->id};
    link_load(s, l);
    q->loading = l;
    return true;
}

/* Takes the pages of n more tokens if they are available beside those that are set aside. */
static bool take_pages(sched *s, sched_seq *q, uint32_t n)
{
    uint64_t need = pkv_append_cost(s->kv, q->slot, n) + s->lasting + s->passing;
    return need <= pkv_available(s->kv) && status_ok(sched_append(s, q, n));
}

/* *began: the sequence waits for a load. STATUS_NO_MEMORY: it must be computed again. */
static status begin_load(sched *s, sched_seq *q, pkv_key key, uint32_t to, bool *began)
{
    uint32_t n_tokens = loadable(s, q, key, to);
    *began = false;
    if (n_tokens == 0 || !take_pages(s, q, n_tokens)) return STATUS_IS_OK;
    sched_loading *l = make_load(s, q, key, n_tokens / s->page_tokens);
    if (!l) return sched_cut(s, q, n_tokens);
    l->to = to;
    q->loading = l;
    *began = true;
    return STATUS_IS_OK;
}

status sched_load_begin(sched *s, sched_seq *q, uint32_t to, bool *began)
{
    *began = false;
    /* The key of the last block is unknown where that block has left the cache. */
    if (!s->options.has_block || !pkv_seq_publishes(s->kv, q->slot)) return STATUS_IS_OK;
    return begin_load(s, q, pkv_seq_key(s->kv, q->slot), to, began);
}

static void free_load(sched *s, sched_loading *l)
{
    if (l->seq) l->seq->loading = NULL;
    if (l->parked) sched_discard(s, l->parked);
    *(l->earlier ? &l->earlier->later : &s->first_load) = l->later;
    *(l->later ? &l->later->earlier : &s->last_load) = l->earlier;
    alloc_free(&s->alloc, l);
}

void sched_load_drop(sched *s, sched_seq *q)
{
    sched_loading *l = q->loading;
    if (!l) return;
    l->seq = NULL;
    q->loading = NULL;
    if (l->state != LOAD_OUT) free_load(s, l);
}

bool sched_load_fills(const sched *s, const sched_seq *q)
{
    for (const sched_loading *l = s->first_load; l; l = l->later)
        if (!l->parked && (l->seq == q || (l->state == LOAD_OUT && l->target == q))) return true;
    return false;
}

const sched_load *sched_next_load(sched *s)
{
    sched_loading *l = s->first_load;
    while (l && l->state != LOAD_NEW) l = l->later;
    if (!l) return NULL;
    l->state = LOAD_OUT;
    l->target = l->seq;
    l->target->listed++;
    l->target->entry->listed++;
    return &l->load;
}

/* Ends the load of a prompt that is taken over. This is not put off to sched_apply_loads, because
 * the same call may have events that follow from the prompt's first token. */
static void end_handed(sched *s, sched_loading *l)
{
    sched_seq *q = l->seq;
    uint32_t parked = l->parked;
    bool good = l->n_good == 1;
    l->parked = 0;
    free_load(s, l);
    sched_handed_end(s, q, parked, good);
}

static void list_some(sched *s, sched_loading *l)
{
    uint64_t most = (uint64_t)s->away_left * CELLS_OF_PAGE;
    uint32_t left = l->load.n_cells - l->n_listed, n = left < most ? left : (uint32_t)most;
    pkv_image image = pkv_parked_image(s->kv, l->parked, l->tables);
    l->n_listed += pkv_list_cells(s->kv, &image, l->n_listed, n, l->cells + l->n_listed);
    sched_away_spend(s, n / CELLS_OF_PAGE + (n % CELLS_OF_PAGE != 0));
    if (l->n_listed == l->load.n_cells) l->state = LOAD_NEW;
}

bool sched_load_take_some(sched *s)
{
    sched_loading *l = s->first_load;
    while (l && l->state != LOAD_TAKES) l = l->later;
    if (!l || s->away_left == 0) return false;
    uint32_t most = s->away_left, n;
    const sched_handed *a = l->seq->entry->handed;
    status st = pkv_adopt_some(s->kv, l->parked, &a->image, most, &n);
    sched_away_spend(s, n);
    if (!status_ok(st)) {
        s->looks = true; /* the prompt is computed, where nothing runs in this call */
        end_handed(s, l);
    } else if (n < most) {
        list_some(s, l);
    }
    return true;
}

void sched_take_load(sched *s, const sched_load *load, uint32_t n_loaded)
{
    sched_loading *l = s->first_load;
    while (&l->load != load) l = l->later;
    assert(l->state == LOAD_OUT && n_loaded <= load->n_blocks);
    l->target->listed--;
    l->target->entry->listed--;
    s->has_ended |= s->ended_listed;
    s->ended_listed = false;
    l->state = LOAD_BACK;
    l->n_good = l->distrusted ? 0 : n_loaded;
    if (l->seq && l->parked) end_handed(s, l);
    else if (!l->seq) free_load(s, l);
}

/* The blocks that were filled are computed; the pages of the others are given back. Behind a load
 * that succeeded there may be more, whose pages are taken outside of a plan. */
static status finish_load(sched *s, sched_seq *q, const sched_loading *l)
{
    bool whole = l->n_good == l->load.n_blocks, began;
    uint32_t good = l->n_good * s->page_tokens, n_prompt = q->entry->n_prompt;
    uint32_t rest = n_prompt > q->computed ? n_prompt - q->computed : 0;
    RETURN_IF_ERROR(sched_cut(s, q, l->load.n_blocks * s->page_tokens - good));
    q->computed += good;
    if (q->furthest < q->computed) q->furthest = q->computed;
    if (q->entry->first_planned_us < 0) {
        q->entry->cached_tokens += good;
        q->entry->loaded_tokens += good;
    }
    s->stats.loaded_tokens += good < rest ? good : rest; /* a replay has generated tokens too */
    pkv_seq_publish(s->kv, q->slot, q->tokens, q->computed);
    if (!whole) return STATUS_IS_OK;
    sched_set_aside(s);
    return begin_load(s, q, l->keys[l->load.n_blocks - 1], l->to, &began);
}

void sched_apply_loads(sched *s)
{
    for (sched_loading *l = s->first_load, *later; l; l = later) {
        later = l->later;
        if (l->state != LOAD_BACK) continue;
        sched_seq *q = l->seq;
        q->loading = NULL;
        l->seq = NULL;
        if (!status_ok(finish_load(s, q, l))) sched_replay(s, q);
        free_load(s, l);
    }
}

/* ---- K and V that are wrong ------------------------------------------------------------------ */

/* Blocks of these tokens may be among those that are being loaded, so no load counts. */
static void distrust_loads(sched *s)
{
    for (sched_loading *l = s->first_load; l; l = l->later) {
        if (l->parked) continue; /* another server's */
        l->distrusted = true;
        l->n_good = 0;
    }
}

static void forget_stored(const sched *s, const sched_seq *q)
{
    enum { KEYS_TOGETHER = 1024 };
    pkv_key keys[KEYS_TOGETHER], key = pkv_key_root(q->entry->salt);
    uint32_t n = 0, size = s->page_tokens;
    for (uint32_t at = 0; at + size <= q->n_tokens; at += size) {
        pkv_key_next(s->kv, &key, q->tokens + at);
        keys[n++] = key;
        if (n < KEYS_TOGETHER && at + 2 * size <= q->n_tokens) continue;
        s->options.forget_blocks(s->options.has_block_ctx, keys, n);
        n = 0;
    }
}

void sched_distrust(sched *s, const sched_entry *e, uint32_t choice)
{
    for (uint32_t i = 0; i < e->n; i++) {
        const sched_seq *q = &e->seqs[i];
        if (choice != SCHED_ALL_CHOICES && choice != i) continue;
        pkv_distrust(s->kv, q->tokens, q->n_tokens, e->salt);
        if (s->options.has_block) forget_stored(s, q);
    }
    distrust_loads(s);
}

void sched_loads_destroy(sched *s)
{
    while (s->first_load) free_load(s, s->first_load);
}

const char *sched_load_check(const sched *s)
{
    for (const sched_loading *l = s->first_load; l; l = l->later) {
        const sched_seq *q = l->seq;
        if (!q) continue;
        if (l->parked) {
            if (q->loading != l || q->state != SEQ_WAITING || q->parked || seq_is_over(q))
                return "a prompt that is taken over is not of a sequence that waits for it";
            continue;
        }
        if (q->loading != l || q->state != SEQ_RUNNING || q->flying > 0 || q->selecting ||
            seq_is_over(q))
            return "a load is not of a sequence that waits for it";
        if (pkv_seq_length(s->kv, q->slot) !=
            q->computed + l->load.n_blocks * s->options.geometry.page_tokens)
            return "a load's pages are not those behind its sequence's computed tokens";
    }
    return NULL;
}

#include "model/cpu/kv_tier.h"

#include <stdlib.h>
#include <string.h>

/* Cells that follow one another are read and written together, up to so many bytes. */
enum { RUN_BYTES = 256 << 10 };

/* A cell, in memory or not. The use in hand is that of the cells which are wanted now. */
typedef struct cell_state {
    uint32_t before, after; // neighbours in a list, while the cell is in memory and not in use
    bool resident;          // it is in memory: it has one of the n_frames frames
    bool stored;            // its place in the file has its bytes, unless it is dirty
    bool dirty;             // its bytes in memory are newer than those in the file
    bool writes;            // the use in hand makes it dirty
    bool hot;               // it was selected or written since it came; else scans alone used it
    bool loaded;            // it came by the use in hand, or by kv_tier_begin
    bool wanted;            // it is in use
    bool named;             // the use in hand selected or wrote it
    bool coming;            // kv_tier_expect asked for it
    bool fresh;             // the use in hand needs nothing of what it held
    bool lost;              // it could not be read, so its bytes are gone
} cell_state;

struct kv_tier {
    kv_tier_options o;
    disk_spill *spill;
    cell_state *cells; // [n_cells + 2]: all cells, then the ends of the two lists
    size_t cells_bytes;
    uint32_t hot, cold; // the lists' ends, indices in `cells`: `after` leads to the last one put in
    uint32_t n_resident;
    uint32_t *wanted; // [n_frames]
    uint32_t n_wanted, n_taken;
    bool too_many;
    uint32_t *coming; // [n_frames]
    uint32_t n_coming;
    /* Jobs in hand. */
    uint32_t *missing;    // [n_frames], ascending
    spill_leave *leaving; // [n_frames]
    spill_job *jobs;      // [n_frames]
    uint32_t *entering;   // [n_frames + 1] where in `missing` the cells of each job begin
    uint32_t n_jobs, n_leaving, run_most;
    /* The cells that each layer selected or wrote in the last step. */
    struct used {
        uint32_t *cells;
        uint32_t n, capacity;
    } * used; // [n_layers]
    backend_tier counts;
};

/* ---- the lists of cells that may leave ------------------------------------------------------- */

static void unlink_cell(kv_tier *t, uint32_t cell)
{
    const cell_state *c = &t->cells[cell];
    t->cells[c->before].after = c->after;
    t->cells[c->after].before = c->before;
}

/* Puts the cell behind `at` as seen from the list's end: behind the end itself it is the last. */
static void link_behind(kv_tier *t, uint32_t at, uint32_t cell)
{
    cell_state *c = &t->cells[cell], *end = &t->cells[at];
    c->before = at;
    c->after = end->after;
    t->cells[end->after].before = cell;
    end->after = cell;
}

/* The cell is in memory, and its use has ended. */
static void put_back(kv_tier *t, uint32_t cell)
{
    cell_state *c = &t->cells[cell];
    if (c->hot) link_behind(t, t->hot, cell);
    else if (c->loaded) link_behind(t, t->cold, cell);
    else link_behind(t, t->cells[t->cold].before, cell);
}

/* Takes the cell that leaves out of its list: the cold one that came last, else the hot one that
 * was used longest ago. */
static uint32_t take_victim(kv_tier *t)
{
    uint32_t cell = t->cells[t->cold].after;
    if (cell == t->cold) cell = t->cells[t->hot].before;
    unlink_cell(t, cell);
    return cell;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool must_read(const cell_state *c) { return c->stored && !c->fresh; }

/* Gives a cell that enters a frame: a free one, or that of a cell that the job sends away. */
static void make_room(kv_tier *t, spill_job *j)
{
    if (t->n_resident < t->o.n_frames) {
        t->n_resident++;
        return;
    }
    uint32_t victim = take_victim(t);
    cell_state *c = &t->cells[victim];
    c->resident = c->loaded = c->hot = false;
    t->leaving[t->n_leaving++] = (spill_leave){victim, c->dirty};
    j->n_leaving++;
}

/* Makes jobs of the first n missing cells, which are ascending. There are frames for all: free
 * ones, or those of cells that are not in use. */
static void make_jobs(kv_tier *t, uint32_t n)
{
    t->n_jobs = t->n_leaving = 0;
    for (uint32_t i = 0; i < n;) {
        spill_job *j = &t->jobs[t->n_jobs++];
        uint32_t first = t->missing[i], most = t->run_most;
        bool read = must_read(&t->cells[first]);
        *j = (spill_job){.leaving = t->leaving + t->n_leaving, .first = first};
        t->entering[t->n_jobs - 1] = i;
        for (uint32_t k = 0; i < n && k < most; k++, i++) {
            cell_state *c = &t->cells[t->missing[i]];
            if (must_read(c) != read || (read && t->missing[i] != first + k)) break;
            make_room(t, j);
            c->resident = c->loaded = true;
            c->lost = false;
            j->n_coming += read;
        }
    }
    t->entering[t->n_jobs] = n;
}

static const status faults[] = {
    [SPILL_NOT_WRITTEN] = {STATUS_IO, "kv-disk: a page could not be written to the disk"},
    [SPILL_NOT_READ] = {STATUS_IO, "kv-disk: a page could not be read from the disk"},
    [SPILL_DAMAGED] = {STATUS_IO, "kv-disk: a page that was read from the disk is damaged"},
};

/* Enters what a job that failed has left undone: cells that did not leave stay, and those that did
 * not come are not there. */
static void undo_job(kv_tier *t, uint32_t i)
{
    const spill_job *j = &t->jobs[i];
    uint32_t first = t->entering[i] + j->n_came, end = t->entering[i + 1];
    for (uint32_t n = j->n_left; n < j->n_leaving; n++, t->n_resident++) {
        cell_state *c = &t->cells[j->leaving[n].piece];
        c->resident = true;
        if (!c->wanted) put_back(t, j->leaving[n].piece);
    }
    for (uint32_t n = first; n < end; n++, t->n_resident--)
        t->cells[t->missing[n]].resident = false;
    if (j->fault != SPILL_NOT_WRITTEN) t->cells[t->missing[first]].lost = true;
}

/* Waits for the jobs in hand and enters what they did. */
static status end_jobs(kv_tier *t)
{
    status st = STATUS_IS_OK;
    if (t->n_jobs == 0) return st;
    int64_t start = clock_now_us();
    spill_wait(t->spill);
    t->counts.wait_us += (uint64_t)(clock_now_us() - start);
    for (uint32_t i = 0; i < t->n_jobs; i++) {
        const spill_job *j = &t->jobs[i];
        for (uint32_t n = 0; n < j->n_left; n++) {
            if (!j->leaving[n].write) continue;
            cell_state *c = &t->cells[j->leaving[n].piece];
            c->stored = true;
            c->dirty = false;
            t->counts.writes++;
        }
        t->counts.reads += j->n_came;
        if (j->fault && status_ok(st)) st = faults[j->fault];
        if (j->fault) undo_job(t, i);
    }
    t->n_jobs = 0;
    return st;
}

/* Ends what kv_tier_begin began. Where that failed, the cell is missing as before: reading it
 * again finds out whether it is lost. */
static void end_expected(kv_tier *t)
{
    if (t->n_coming == 0) return;
    uint64_t before = t->counts.reads;
    (void)end_jobs(t);
    t->counts.ahead += t->counts.reads - before;
    for (uint32_t i = 0; i < t->n_coming; i++) {
        cell_state *c = &t->cells[t->coming[i]];
        c->coming = c->lost = false;
        if (c->resident && !c->wanted) put_back(t, t->coming[i]);
    }
    t->n_coming = 0;
}

/* ---- use ------------------------------------------------------------------------------------- */

void kv_tier_want(kv_tier *t, uint32_t cell, kv_use use)
{
    cell_state *c = &t->cells[cell];
    if (!c->wanted) {
        if (t->n_wanted == t->o.n_frames) {
            t->too_many = true;
            return;
        }
        t->wanted[t->n_wanted++] = cell;
        c->wanted = true;
        c->fresh = use == KV_FRESH;
        if (c->resident && !c->coming) unlink_cell(t, cell);
    }
    if (use != KV_SCAN) c->hot = c->named = true;
    if (use == KV_WRITE || use == KV_FRESH) c->writes = true;
}

static int compare_cells(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Cells that follow one another are read together now, and written together when they leave. */
static void sort_cells(uint32_t *cells, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (cells[i - 1] < cells[i]) continue;
        qsort(cells, n, sizeof *cells, compare_cells);
        return;
    }
}

status kv_tier_take(kv_tier *t)
{
    uint32_t n = 0;
    end_expected(t);
    if (t->too_many)
        return status_make(STATUS_NO_MEMORY,
                           "kv-memory: a layer of this step reads more pages than memory holds");
    sort_cells(t->wanted + t->n_taken, t->n_wanted - t->n_taken);
    for (uint32_t i = t->n_taken; i < t->n_wanted; i++) {
        const cell_state *c = &t->cells[t->wanted[i]];
        if (c->lost && !c->fresh)
            return status_make(STATUS_INTERNAL,
                               "kv-disk: a page that was lost on the disk is needed again");
        if (c->resident) t->counts.hits++;
        else t->missing[n++] = t->wanted[i];
    }
    t->n_taken = t->n_wanted;
    make_jobs(t, n);
    spill_begin(t->spill, t->jobs, t->n_jobs);
    return end_jobs(t);
}

/* Notes what was selected or written. A copy that fails for want of memory costs the next step some
 * reads ahead. */
static void note_used(kv_tier *t, uint32_t layer)
{
    struct used *u = &t->used[layer];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_wanted; i++) n += t->cells[t->wanted[i]].named;
    u->n = 0;
    if (n > u->capacity) {
        uint32_t *grown = alloc_resize(NULL, u->cells, n, sizeof *grown);
        if (!grown) return;
        u->cells = grown;
        u->capacity = n;
    }
    for (uint32_t i = 0; i < t->n_wanted; i++)
        if (t->cells[t->wanted[i]].named) u->cells[u->n++] = t->wanted[i];
}

void kv_tier_release(kv_tier *t, uint32_t layer)
{
    if (layer < t->o.n_layers) note_used(t, layer);
    for (uint32_t i = 0; i < t->n_wanted; i++) {
        cell_state *c = &t->cells[t->wanted[i]];
        if (c->resident && c->writes) c->dirty = true;
        c->wanted = c->named = c->fresh = c->writes = false;
        if (c->resident && !c->coming) put_back(t, t->wanted[i]);
        c->loaded = false;
    }
    t->n_wanted = t->n_taken = 0;
    t->too_many = false;
}

void kv_tier_expect(kv_tier *t, uint32_t cell)
{
    cell_state *c = &t->cells[cell];
    if (t->n_coming >= t->o.n_frames - t->n_wanted) return;
    if (c->resident || c->wanted || c->lost || !c->stored || c->coming) return;
    c->coming = true;
    t->coming[t->n_coming++] = cell;
}

void kv_tier_begin(kv_tier *t, uint32_t layer)
{
    const struct used *u = &t->used[layer];
    for (uint32_t i = 0; i < u->n; i++) kv_tier_expect(t, u->cells[i]);
    memcpy(t->missing, t->coming, t->n_coming * sizeof *t->missing);
    sort_cells(t->missing, t->n_coming);
    make_jobs(t, t->n_coming);
    spill_begin(t->spill, t->jobs, t->n_jobs);
}

backend_tier kv_tier_count(kv_tier *t)
{
    backend_tier c = t->counts;
    c.read_bytes = c.reads * t->o.page_bytes;
    c.written_bytes = c.writes * t->o.page_bytes;
    t->counts = (backend_tier){0};
    return c;
}

/* ---- creation -------------------------------------------------------------------------------- */

static uint64_t of_frame(void)
{
    return 4 * sizeof(uint32_t) + sizeof(spill_leave) + sizeof(spill_job);
}

uint64_t kv_tier_bytes(uint64_t n_cells, uint64_t n_frames)
{
    uint64_t of_cell =
        sizeof(cell_state) + sizeof(uint64_t) + sizeof(uint32_t); /* checksum, `used` */
    return n_cells * of_cell + n_frames * of_frame();
}

static status make_tables(kv_tier *t)
{
    size_t n = t->o.n_frames;
    t->cells_bytes = ((size_t)t->o.n_cells + 2) * sizeof *t->cells;
    t->cells = alloc_pages(t->cells_bytes);
    t->wanted = malloc(n * sizeof *t->wanted);
    t->coming = malloc(n * sizeof *t->coming);
    t->missing = malloc(n * sizeof *t->missing);
    t->leaving = malloc(n * sizeof *t->leaving);
    t->jobs = malloc(n * sizeof *t->jobs);
    t->entering = malloc((n + 1) * sizeof *t->entering);
    t->used = calloc(t->o.n_layers, sizeof *t->used);
    if (!t->cells || !t->wanted || !t->coming || !t->missing || !t->leaving || !t->jobs ||
        !t->entering || !t->used)
        return status_make(STATUS_NO_MEMORY, NULL);
    t->hot = t->o.n_cells;
    t->cold = t->hot + 1;
    t->cells[t->hot] = (cell_state){.before = t->hot, .after = t->hot};
    t->cells[t->cold] = (cell_state){.before = t->cold, .after = t->cold};
    t->run_most = RUN_BYTES / t->o.page_bytes > 0 ? (uint32_t)(RUN_BYTES / t->o.page_bytes) : 1;
    return STATUS_IS_OK;
}

status kv_tier_create(const kv_tier_options *options, kv_tier **out, error *err)
{
    kv_tier *t = calloc(1, sizeof *t);
    if (!t) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    t->o = *options;
    status st = make_tables(t);
    if (!status_ok(st)) error_set(err, st.code, "out of memory");
    const spill_options spill = {.dir = options->dir,
                                 .memory = options->memory,
                                 .piece_bytes = options->page_bytes,
                                 .n_pieces = options->n_cells,
                                 .io = options->io};
    if (status_ok(st)) st = spill_open(&spill, &t->spill, err);
    if (status_ok(st)) *out = t;
    else kv_tier_destroy(t);
    return st;
}

void kv_tier_destroy(kv_tier *t)
{
    if (!t) return;
    spill_close(t->spill);
    for (uint32_t l = 0; t->used && l < t->o.n_layers; l++) free(t->used[l].cells);
    alloc_pages_free(t->cells, t->cells_bytes);
    free(t->wanted);
    free(t->coming);
    free(t->missing);
    free(t->leaving);
    free(t->jobs);
    free(t->entering);
    free(t->used);
    free(t);
}

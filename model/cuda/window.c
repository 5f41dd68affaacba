#include "model/cuda/window.h"

#include <stdlib.h>
#include <string.h>

/* Cells that follow one another, in host memory and on the device. */
typedef struct run {
    uint32_t cell, frame, n;
} run;

typedef struct runs {
    run *items;
    size_t n, capacity;
} runs;

/* The copies of a layer of the step in hand: runs [ups, next layer's ups) of `up`, and so on. */
typedef struct layer_copies {
    size_t ups, downs;
} layer_copies;

struct cuda_window {
    cuda_window_options o;
    uint32_t n_layers, n_heads; /* layer groups and head groups */
    uint8_t *host;              /* pinned [cells.n - n_here, page_bytes] */
    uint32_t *number;           /* [cells.n] of cells in host memory: where they are lent, or 0 */
    uint32_t *lent;             /* [2 * n_frames] the cells that have a number */
    bool *is_written;           /* [2 * n_frames] by moves, as in `lent` */
    uint32_t n_lent;
    pkv_table_view *views; /* [n_heads] of the share in hand */
    runs up, down;
    layer_copies *copies; /* [n_layers + 1] */
    /* The tables of a step's layers: for each layer [n_tables, row] numbers, then [n_tables]
     * lengths. The device has those of two layers. */
    uint32_t *tables, *d_tables;
    size_t tables_bytes, d_tables_bytes;
    uint32_t n_tables, row;
    /* Cells that are left in host memory: table t of layer l has left [ends[l * n_tables + t],
     * ends[… + 1]). */
    uint32_t *left, *left_ends;
    size_t n_left, left_capacity, ends_capacity;
};

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t frames_of(const pkv_geometry *g, uint64_t n_cells)
{
    uint64_t layers = pkv_layer_groups(g);
    return (n_cells + layers - 1) / layers;
}

bool cuda_window_fit(const pkv_geometry *g, uint64_t n_cells, uint64_t room, cuda_window_sizes *out)
{
    uint64_t frames = frames_of(g, n_cells);
    /* Cell 0, which is spare, is always on the device. */
    if (room < 2 * frames + 1) return false;
    uint64_t here = room - 2 * frames;
    out->n_here = (uint32_t)(here < n_cells ? here : n_cells);
    out->n_frames = (uint32_t)frames;
    return true;
}

uint64_t cuda_window_cells(const pkv_geometry *g, uint64_t room, uint64_t on_host)
{
    cuda_window_sizes s;
    uint64_t low = on_host, high = on_host + room;
    if (!cuda_window_fit(g, low, room, &s)) return 0;
    while (low < high) { /* the largest pool of which at most on_host cells are not here */
        uint64_t n = high - (high - low) / 2;
        bool fits = cuda_window_fit(g, n, room, &s) && n - s.n_here <= on_host;
        if (fits) low = n;
        else high = n - 1;
    }
    return low;
}

/* ---- creation -------------------------------------------------------------------------------- */

static bool is_here(const cuda_window *w, uint32_t cell) { return cell < w->o.sizes.n_here; }

cuda_window_sizes cuda_window_sizes_of(const cuda_window *w) { return w->o.sizes; }

uint64_t cuda_window_host_bytes(const cuda_window *w)
{
    return (uint64_t)(w->o.cells.n - w->o.sizes.n_here) * w->o.pages->page_bytes;
}

uint8_t *cuda_window_host_page(const cuda_window *w, uint32_t cell)
{
    if (is_here(w, cell)) return NULL;
    return w->host + (size_t)(cell - w->o.sizes.n_here) * w->o.pages->page_bytes;
}

status cuda_window_create(const cuda_window_options *options, cuda_window **out)
{
    cuda_window *w = calloc(1, sizeof *w);
    if (!w) return status_make(STATUS_NO_MEMORY, NULL);
    *out = w;
    w->o = *options;
    w->n_layers = pkv_layer_groups(&w->o.geometry);
    w->n_heads = pkv_head_groups(&w->o.geometry);
    w->number = calloc(w->o.cells.n, sizeof *w->number);
    w->lent = calloc(2 * (size_t)w->o.sizes.n_frames, sizeof *w->lent);
    w->is_written = calloc(2 * (size_t)w->o.sizes.n_frames, sizeof *w->is_written);
    w->views = calloc(w->n_heads, sizeof *w->views);
    w->copies = calloc(w->n_layers + 1, sizeof *w->copies);
    if (!w->number || !w->lent || !w->is_written || !w->views || !w->copies)
        return status_make(STATUS_NO_MEMORY, NULL);
    void *host;
    cuda_device *d = w->o.device;
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, cuda_window_host_bytes(w), &host));
    w->host = host;
    return STATUS_IS_OK;
}

void cuda_window_destroy(cuda_window *w)
{
    if (!w) return;
    cuda_device *d = w->o.device;
    if (w->host) d->api->release_host(d->g, w->host);
    if (w->tables) d->api->release_host(d->g, w->tables);
    if (w->d_tables) d->api->release(d->g, w->d_tables);
    free(w->number);
    free(w->lent);
    free(w->is_written);
    free(w->views);
    free(w->copies);
    free(w->left);
    free(w->left_ends);
    free(w->up.items);
    free(w->down.items);
    free(w);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Gives a cell in host memory the frame after the last one lent, counted from the first of window
 * 0. */
static uint32_t lend_frame(cuda_window *w, uint32_t cell, uint32_t frame)
{
    w->lent[w->n_lent++] = cell;
    return w->number[cell] = w->o.sizes.n_here + frame;
}

static void take_back(cuda_window *w)
{
    for (uint32_t i = 0; i < w->n_lent; i++) w->number[w->lent[i]] = 0;
    w->n_lent = 0;
}

/* Adds a cell to the last run, or as a run of its own from `first` on. */
static bool add_cell(runs *r, size_t first, uint32_t cell, uint32_t frame)
{
    run *last = r->n > first ? &r->items[r->n - 1] : NULL;
    if (last && last->cell + last->n == cell && last->frame + last->n == frame) {
        last->n++;
        return true;
    }
    if (r->n == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 256;
        run *grown = alloc_resize(NULL, r->items, capacity, sizeof *grown);
        if (!grown) return false;
        r->items = grown;
        r->capacity = capacity;
    }
    r->items[r->n++] = (run){cell, frame, 1};
    return true;
}

static status copy_runs(const cuda_window *w, bool up, const run *items, size_t n)
{
    const cuda_device *d = w->o.device;
    for (size_t i = 0; i < n; i++) {
        uint8_t *there = cuda_window_host_page(w, items[i].cell);
        uint8_t *here = w->o.pages->data + (size_t)items[i].frame * w->o.pages->page_bytes;
        size_t bytes = (size_t)items[i].n * w->o.pages->page_bytes;
        RETURN_IF_GPU_ERROR(up ? d->api->copy_up(d->g, here, there, bytes)
                               : d->api->copy_down(d->g, there, here, bytes));
    }
    return STATUS_IS_OK;
}

static status order(const cuda_window *w, gpu_lane first, gpu_lane then)
{
    return cuda_status(w->o.device->api->order(w->o.device->g, first, then));
}

/* ---- a step's plan --------------------------------------------------------------------------- */

gpu_seq cuda_window_seq(const cuda_window *w, uint32_t i, const step_seq *share)
{
    uint32_t table = i * w->n_heads;
    return (gpu_seq){table, share->first_token, share->n_tokens, table, GPU_GRAIN_HEAD};
}

static size_t layer_words(const cuda_window *w) { return (size_t)w->n_tables * (w->row + 1); }

/* Makes room for the step's tables. No step is in flight. */
static status reserve_tables(cuda_window *w, const pkv_mirror *mirror, const step_plan *plan)
{
    cuda_device *d = w->o.device;
    w->n_tables = plan->n_seqs * w->n_heads;
    w->row = 1;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t seq = plan->seqs[i].seq;
        uint32_t n = pkv_mirror_extent_of(mirror, seq, w->o.geometry.n_layers).most_pages;
        if (n > w->row) w->row = n;
    }
    size_t layer = layer_words(w) * sizeof *w->tables;
    void *grown;
    if (w->n_layers * layer > w->tables_bytes) {
        if (w->tables) d->api->release_host(d->g, w->tables);
        w->tables = NULL;
        w->tables_bytes = 0;
        size_t bytes = w->n_layers * (layer + layer / 2);
        RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, bytes, &grown));
        w->tables = grown;
        w->tables_bytes = bytes;
    }
    if (2 * layer <= w->d_tables_bytes) return STATUS_IS_OK;
    if (w->d_tables) d->api->release(d->g, w->d_tables);
    w->d_tables = NULL;
    d->allocated -= w->d_tables_bytes;
    w->d_tables_bytes = 0;
    RETURN_IF_ERROR(cuda_alloc(d, 2 * (layer + layer / 2), &w->d_tables));
    w->d_tables_bytes = 2 * (layer + layer / 2);
    return STATUS_IS_OK;
}

/* Where page `page` of a table is while the layer computes. The rows of the step are the table's
 * last ones: pages from the first of them on are written, and what lies behind the row before them
 * is not read first. */
static status place_page(cuda_window *w, uint32_t layer, const pkv_table_view *t, uint32_t page,
                         uint32_t n_rows, uint32_t *out)
{
    uint32_t cell = t->pages[page] + t->offset - w->o.cells.first;
    uint32_t tokens = w->o.geometry.page_tokens, first_row = t->kept_tokens - n_rows;
    *out = is_here(w, cell) ? cell : w->number[cell];
    if (is_here(w, cell) || *out) return STATUS_IS_OK;
    if (w->n_lent == w->o.sizes.n_frames)
        return status_make(STATUS_NO_MEMORY,
                           "kv-memory: a layer of this step reads more pages in host memory than "
                           "the device's window holds");
    *out = lend_frame(w, cell, w->n_lent + layer % 2 * w->o.sizes.n_frames);
    bool ok = true;
    if (page * tokens < first_row) ok = add_cell(&w->up, w->copies[layer].ups, cell, *out);
    if (ok && (page + 1) * tokens > first_row)
        ok = add_cell(&w->down, w->copies[layer].downs, cell, *out);
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "step buffers");
}

static bool grow(uint32_t **array, size_t *capacity, size_t need)
{
    if (need <= *capacity) return true;
    uint32_t *grown = alloc_resize(NULL, *array, need + need / 2, sizeof *grown);
    if (!grown) return false;
    *array = grown;
    *capacity = need + need / 2;
    return true;
}

/* Fills in a table that leaves pages in host memory. */
static status place_some(cuda_window *w, uint32_t layer, const pkv_table_view *t, uint32_t n_rows,
                         uint32_t *table, uint32_t *length)
{
    uint32_t tokens = w->o.geometry.page_tokens, n = 0;
    if (!grow(&w->left, &w->left_capacity, w->n_left + t->n_pages))
        return status_make(STATUS_NO_MEMORY, "step buffers");
    for (uint32_t page = 0; page < t->n_pages; page++) {
        uint32_t cell = t->pages[page] + t->offset - w->o.cells.first;
        bool is_read_only = (page + 1) * tokens <= t->kept_tokens - n_rows;
        if (is_read_only && !is_here(w, cell)) w->left[w->n_left++] = cell;
        else RETURN_IF_ERROR(place_page(w, layer, t, page, n_rows, &table[n++]));
    }
    *length = t->kept_tokens - (t->n_pages - n) * tokens;
    return STATUS_IS_OK;
}

/* Fills in the layer's tables of share i. Pages of one block go to consecutive frames, because
 * their cells mostly follow one another in host memory. */
static status place_share(cuda_window *w, uint32_t layer, const pkv_mirror *mirror, uint32_t i,
                          const step_seq *share, bool leaves)
{
    uint32_t *tables = w->tables + layer * layer_words(w) + (size_t)i * w->n_heads * w->row;
    uint32_t *lengths =
        w->tables + layer * layer_words(w) + (size_t)w->n_tables * w->row + i * w->n_heads;
    uint32_t longest = 0;
    for (uint32_t h = 0; h < w->n_heads; h++) {
        pkv_table_view *t = &w->views[h];
        *t = pkv_mirror_table(mirror, share->seq, layer * w->n_heads + h);
        lengths[h] = t->kept_tokens;
        if (t->n_pages > longest) longest = t->n_pages;
    }
    for (uint32_t h = 0; leaves && h < w->n_heads; h++) {
        RETURN_IF_ERROR(place_some(w, layer, &w->views[h], share->n_tokens,
                                   &tables[(size_t)h * w->row], &lengths[h]));
        w->left_ends[layer * w->n_tables + i * w->n_heads + h + 1] = (uint32_t)w->n_left;
    }
    for (uint32_t page = 0; !leaves && page < longest; page++) {
        for (uint32_t h = 0; h < w->n_heads; h++) {
            if (page >= w->views[h].n_pages) continue;
            RETURN_IF_ERROR(place_page(w, layer, &w->views[h], page, share->n_tokens,
                                       &tables[(size_t)h * w->row + page]));
        }
    }
    return STATUS_IS_OK;
}

static status place_layers(cuda_window *w, const pkv_mirror *mirror, const step_plan *plan,
                           bool leaves)
{
    w->up.n = w->down.n = w->n_left = 0;
    if (!grow(&w->left_ends, &w->ends_capacity, (size_t)w->n_layers * w->n_tables + 1))
        return status_make(STATUS_NO_MEMORY, "step buffers");
    memset(w->left_ends, 0, ((size_t)w->n_layers * w->n_tables + 1) * sizeof *w->left_ends);
    for (uint32_t l = 0; l < w->n_layers; l++) {
        status s = STATUS_IS_OK;
        /* A sliding window counts slots, so its layers need whole tables. */
        bool some = leaves && !pkv_window_of(&w->o.geometry, l * w->o.geometry.layers_per_group);
        for (uint32_t t = 1; !some && t <= w->n_tables; t++)
            w->left_ends[l * w->n_tables + t] = (uint32_t)w->n_left;
        w->copies[l] = (layer_copies){w->up.n, w->down.n};
        for (uint32_t i = 0; status_ok(s) && i < plan->n_seqs; i++)
            s = place_share(w, l, mirror, i, &plan->seqs[i], some);
        take_back(w);
        RETURN_IF_ERROR(s);
    }
    w->copies[w->n_layers] = (layer_copies){w->up.n, w->down.n};
    return STATUS_IS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static status upload(const cuda_window *w, uint32_t layer)
{
    const cuda_device *d = w->o.device;
    size_t first = w->copies[layer].ups, words = layer_words(w);
    RETURN_IF_GPU_ERROR(d->api->copy_up(d->g, w->d_tables + layer % 2 * words,
                                        w->tables + layer * words, words * sizeof *w->tables));
    return copy_runs(w, true, w->up.items + first, w->copies[layer + 1].ups - first);
}

uint32_t cuda_window_left(const cuda_window *w, uint32_t layer, uint32_t table,
                          const uint32_t **cells)
{
    size_t at = (size_t)(layer / w->o.geometry.layers_per_group) * w->n_tables + table;
    *cells = w->left + w->left_ends[at];
    return w->left_ends[at + 1] - w->left_ends[at];
}

status cuda_window_plan(cuda_window *w, const pkv_mirror *mirror, const step_plan *plan,
                        bool leaves)
{
    RETURN_IF_ERROR(reserve_tables(w, mirror, plan));
    RETURN_IF_ERROR(place_layers(w, mirror, plan, leaves));
    RETURN_IF_ERROR(order(w, GPU_LANE_STREAM, GPU_LANE_UP));
    RETURN_IF_ERROR(order(w, GPU_LANE_DOWN, GPU_LANE_UP));
    return upload(w, 0);
}

/* The stream waits for this layer's upload alone: the next one's begins behind it, when the
 * layer before this one has left the other window. */
status cuda_window_begin(cuda_window *w, uint32_t layer, cuda_layer_kv *kv)
{
    uint32_t group = layer / w->o.geometry.layers_per_group;
    uint32_t *tables = w->d_tables + group % 2 * layer_words(w);
    kv->layer.layer_group = 0;
    kv->tables.pages = tables;
    kv->tables.row = w->row;
    kv->tables.head_groups = w->n_heads;
    kv->lengths = tables + (size_t)w->n_tables * w->row;
    if (layer % w->o.geometry.layers_per_group != 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(order(w, GPU_LANE_UP, GPU_LANE_STREAM));
    if (group + 1 == w->n_layers) return STATUS_IS_OK;
    RETURN_IF_ERROR(order(w, GPU_LANE_DOWN, GPU_LANE_UP));
    return upload(w, group + 1);
}

status cuda_window_end(cuda_window *w, uint32_t layer)
{
    uint32_t of_group = w->o.geometry.layers_per_group, group = layer / of_group;
    bool last = layer + 1 == w->o.geometry.n_layers;
    if (!last && (layer + 1) % of_group != 0) return STATUS_IS_OK;
    size_t first = w->copies[group].downs;
    RETURN_IF_ERROR(order(w, GPU_LANE_STREAM, GPU_LANE_DOWN));
    RETURN_IF_ERROR(copy_runs(w, false, w->down.items + first, w->copies[group + 1].downs - first));
    return last ? order(w, GPU_LANE_DOWN, GPU_LANE_STREAM) : STATUS_IS_OK;
}

status cuda_window_settle(cuda_window *w)
{
    RETURN_IF_ERROR(order(w, GPU_LANE_UP, GPU_LANE_STREAM));
    return order(w, GPU_LANE_DOWN, GPU_LANE_STREAM);
}

/* ---- moves ----------------------------------------------------------------------------------- */

status cuda_window_lend(cuda_window *w, uint32_t cell, bool written, uint32_t *out)
{
    *out = is_here(w, cell) ? cell : w->number[cell];
    if (is_here(w, cell)) return STATUS_IS_OK;
    if (w->n_lent == 0) RETURN_IF_ERROR(order(w, GPU_LANE_STREAM, GPU_LANE_UP));
    if (*out == 0) {
        if (w->n_lent == 2 * w->o.sizes.n_frames) return STATUS_IS_OK;
        w->is_written[w->n_lent] = false;
        *out = lend_frame(w, cell, w->n_lent);
        run one = {cell, *out, 1};
        RETURN_IF_ERROR(copy_runs(w, true, &one, 1));
    }
    if (written) w->is_written[*out - w->o.sizes.n_here] = true;
    return STATUS_IS_OK;
}

status cuda_window_give_back(cuda_window *w)
{
    bool ok = true;
    w->down.n = 0;
    for (uint32_t i = 0; ok && i < w->n_lent; i++)
        if (w->is_written[i]) ok = add_cell(&w->down, 0, w->lent[i], w->o.sizes.n_here + i);
    take_back(w);
    if (!ok) return status_make(STATUS_NO_MEMORY, "step buffers");
    RETURN_IF_ERROR(order(w, GPU_LANE_STREAM, GPU_LANE_DOWN));
    RETURN_IF_ERROR(copy_runs(w, false, w->down.items, w->down.n));
    RETURN_IF_ERROR(cuda_window_settle(w));
    return cuda_wait(w->o.device);
}

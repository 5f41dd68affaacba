#include "model/cuda/retrieve.h"

#include "model/cuda/retrieve_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Rows select in waves of at most so many scores, or one by one. What is kept for requests takes a
 * part of the pool, as on a CPU. */
enum { WAVE_SCORES = 1 << 20, NOTES_PART = 128, NOTES_LEAST = 1 << 20 };

/* ---- beside the pool ------------------------------------------------------------------------- */

size_t cuda_retrieve_of_page(const backend_cuda *b)
{
    size_t of_tile = sizeof(gpu_tile_mark) + 2 * (size_t)b->config.head_dim * sizeof(uint16_t);
    return b->info.retrieves ? b->pages.n_tiles * of_tile : 0;
}

static status make_room(backend_cuda *b, cuda_retrieve *r)
{
    cuda_device *d = &b->device;
    size_t n_tiles = (size_t)b->cells.n * b->pages.n_tiles;
    size_t zeros = (size_t)b->pages.run_heads * b->pages.n_tiles * sizeof *r->no_marks;
    void *host;
    RETURN_IF_ERROR(cuda_alloc(d, n_tiles * sizeof *b->pages.marks, &b->pages.marks));
    RETURN_IF_ERROR(cuda_alloc(d, n_tiles * 2 * b->config.head_dim * sizeof *b->pages.vectors,
                               &b->pages.vectors));
    RETURN_IF_ERROR(cuda_alloc(d, 2 * sizeof *r->job.counts, &r->job.counts));
    RETURN_IF_ERROR(cuda_lists_create(&r->lists));
    if (b->info.n_host_pages == 0) return STATUS_IS_OK;
    RETURN_IF_GPU_ERROR(d->api->alloc_host(d->g, zeros, &host));
    r->no_marks = host;
    memset(host, 0, zeros);
    return STATUS_IS_OK;
}

status cuda_retrieve_create(backend_cuda *b)
{
    if (!b->info.retrieves) return STATUS_IS_OK;
    b->retrieve = calloc(1, sizeof *b->retrieve);
    if (!b->retrieve) return status_make(STATUS_NO_MEMORY, "retrieval");
    b->retrieve->pack.is_double = true;
    /* Lists take up to twice the bytes that requests are counted with (retrieve_lists.c). */
    b->info.note_bytes = b->pool_bytes / NOTES_PART / 2;
    if (b->info.note_bytes < NOTES_LEAST) b->info.note_bytes = NOTES_LEAST;
    return make_room(b, b->retrieve);
}

static void release(backend_cuda *b, void *device)
{
    if (device) b->device.api->release(b->device.g, device);
}

void cuda_retrieve_destroy(backend_cuda *b)
{
    cuda_retrieve *r = b->retrieve;
    release(b, b->pages.marks);
    release(b, b->pages.vectors);
    if (!r) return;
    room *rooms[] = {&r->folded, &r->scores, &r->unmade, &r->blocks, &r->pages_of, &r->lengths_of};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) release(b, rooms[i]->data);
    release(b, r->job.counts);
    if (r->no_marks) b->device.api->release_host(b->device.g, r->no_marks);
    cuda_lists_destroy(b, r->lists);
    cuda_endings_free(b, &r->endings);
    cuda_pack_destroy(&b->device, &r->pack);
    for (int i = 0; i < CUDA_FLIGHTS; i++) free(r->readings[i]);
    free(r->rows);
    free(r->reads);
    free(r->waves);
    free(r);
}

/* A request takes most with the longest table and blocks of one page. Half is added because arrays
 * grow by half. */
uint64_t cuda_retrieve_of_step(const backend_cuda *b)
{
    uint64_t rows = step_most_sparse_rows(b->info.max_seqs), heads = b->local.n_kv_heads;
    uint64_t pages = b->info.max_positions / b->pages.page_tokens + 1, scores = pages * heads;
    if (!b->info.retrieves) return 0;
    if (scores < WAVE_SCORES) scores = WAVE_SCORES;
    uint64_t of_row = heads * (2 * b->config.head_dim + 2 * pages + 1) * sizeof(uint32_t);
    uint64_t sum = rows * of_row + scores * (sizeof(uint32_t) + sizeof(gpu_unmade));
    sum += 3 * sizeof(float) * heads * b->info.max_positions; /* of a prompt's end */
    return sum + sum / 2;
}

status cuda_retrieve_end_notes(backend_cuda *b, const step_plan *plan)
{
    if (!b->retrieve) return STATUS_IS_OK;
    return cuda_lists_end(b, b->retrieve->lists, plan->ended_notes, plan->n_ended_notes);
}

status cuda_retrieve_forget(backend_cuda *b, uint32_t cell, uint32_t n)
{
    const cuda_retrieve *r = b->retrieve;
    if (!r || !r->used) return STATUS_IS_OK;
    assert(n <= b->pages.run_heads);
    gpu_tile_mark *marks = b->pages.marks + (size_t)cell * b->pages.n_tiles;
    return cuda_copies_add(b, false, marks, r->no_marks, n * b->pages.n_tiles * sizeof *marks);
}

/* Kernels in flight may still use the memory. */
static status reserve(backend_cuda *b, room *r, size_t n, size_t size)
{
    cuda_device *d = &b->device;
    if (n <= r->bytes / size) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_wait(d));
    release(b, r->data);
    *r = (room){0};
    n += n / 2;
    RETURN_IF_GPU_ERROR(d->api->alloc(d->g, n * size, &r->data));
    r->bytes = n * size;
    return STATUS_IS_OK;
}

/* ---- the rows of a step ---------------------------------------------------------------------- */

static uint32_t count_rows(const backend_cuda *b, const step_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += cuda_sparse_rows(b, &plan->seqs[i]);
    return n;
}

static bool reserve_rows(const backend_cuda *b, cuda_retrieve *r, uint32_t n)
{
    uint32_t flight = (uint32_t)(b->flight - b->flights);
    if (!r->readings[flight])
        r->readings[flight] = calloc(b->info.max_rows, sizeof *r->readings[flight]);
    if (!r->readings[flight]) return false;
    if (n <= r->capacity) return true;
    free(r->rows);
    free(r->reads);
    free(r->waves);
    r->capacity = 0;
    r->rows = calloc(2 * (size_t)n, sizeof *r->rows);
    r->reads = calloc(2 * (size_t)n * b->info.geometry.n_layers, sizeof *r->reads);
    r->waves = calloc(2 * (size_t)n + 1, sizeof *r->waves);
    if (!r->rows || !r->reads || !r->waves) return false;
    r->capacity = 2 * n;
    return true;
}

static gpu_represent kind_of(const retrieval_spec *spec)
{
    if (spec->representative == RETRIEVAL_QUEST) return GPU_REPRESENT_BOX;
    return spec->representative == RETRIEVAL_MAX ? GPU_REPRESENT_MAX : GPU_REPRESENT_SUM;
}

/* A mark without its number. */
static uint32_t made_of(retrieval_representative made, uint32_t n_keys, uint32_t block_pages)
{
    _Static_assert(1 + RETRIEVAL_REPRESENTATIVES <= 1 << 3 && RETRIEVAL_KEYS_MOST < 1 << 7 &&
                       RETRIEVAL_BLOCK_PAGES < 1 << (GPU_MARK_BITS - 10),
                   "the fields of a mark");
    return 1 + (uint32_t)made + (n_keys << 3) + (block_pages << 10);
}

/* Sets what the prompt's end decided for the row, and what its representatives are made of. Blocks
 * behind the prompt have MEAN's instead of DYNAMIC's. */
static status describe_row(const backend_cuda *b, const step_seq *s, gpu_sparse_row *row)
{
    const retrieval_spec *spec = &s->retrieval;
    cuda_prompt_end end = {0};
    bool dynamic = spec->representative == RETRIEVAL_DYNAMIC;
    row->kind = kind_of(spec);
    row->n_keys = spec->representative == RETRIEVAL_FIX ? spec->representative_num : 0;
    row->n_known = s->n_prompt / spec->block_tokens;
    row->made_chosen = made_of(RETRIEVAL_DYNAMIC, spec->representative_num, row->block_pages);
    row->late_weight = (float)spec->representative_num / (float)spec->block_tokens;
    row->made_of = dynamic
                       ? made_of(RETRIEVAL_MEAN, 1, row->block_pages)
                       : made_of(spec->representative, spec->representative_num, row->block_pages);
    if (row->first < row->end) RETURN_IF_ERROR(cuda_lists_observed(b, b->retrieve->lists, s, &end));
    row->left_out = end.left_out;
    row->chosen = end.chosen;
    row->chosen_marks = end.marks;
    return STATUS_IS_OK;
}

/* Sets where the row's lists come from, and whether they are kept for later rows. */
static status link_row(backend_cuda *b, const step_seq *s, uint32_t i, gpu_sparse_row *row)
{
    const retrieval_spec *spec = &s->retrieval;
    uint32_t n_sparse = cuda_sparse_rows(b, s), in_step = i - (s->n_tokens - n_sparse);
    uint32_t generated = row->n_slots - 1 - s->n_prompt;
    uint32_t behind = generated - retrieval_token_leader(spec, generated);
    if (behind > 0 && behind <= in_step) {
        row->leader = (uint32_t)(row - b->retrieve->rows) - behind;
        return STATUS_IS_OK;
    }
    /* The last of a share's rows that select keeps its lists. */
    row->keeps = behind == 0 && spec->token_step > 1 && n_sparse - in_step <= spec->token_step;
    if (behind > 0) return cuda_lists_find(b->retrieve->lists, s, row->n_slots - behind, row);
    return row->keeps ? cuda_lists_keep(b, b->retrieve->lists, s, row) : STATUS_IS_OK;
}

static status add_row(backend_cuda *b, const step_plan *plan, uint32_t seq, uint32_t i)
{
    cuda_retrieve *r = b->retrieve;
    const step_seq *s = &plan->seqs[seq];
    const retrieval_spec *spec = &s->retrieval;
    uint32_t n_slots = cuda_kept_slots(b, s) - s->n_tokens + i + 1, size = spec->block_tokens;
    uint32_t generated = n_slots - 1 - s->n_prompt;
    uint32_t selected_at = n_slots - (generated - retrieval_token_leader(spec, generated));
    retrieval_extent e = retrieval_extent_of(spec, s->n_prompt, selected_at);
    bool all = retrieval_reads_all(&e);
    gpu_sparse_row *row = &r->rows[r->n_rows++];
    *row = (gpu_sparse_row){
        .seq = seq,
        .row = s->first_token + i,
        .n_slots = n_slots,
        .block_pages = size / b->pages.page_tokens,
        .together = retrieval_heads_together(spec, &b->info.geometry),
        .first = e.first,
        .end = all ? e.first : e.end,
        .top = e.top,
        .leader = GPU_NO_ROW,
        .n_leader = all ? e.n_blocks : e.n_blocks - (e.end - e.first) + e.top,
        .added = ceil_div(selected_at, size),
    };
    row->n_list = row->n_leader + ceil_div(n_slots, size) - row->added;
    row->room = row->n_list;
    RETURN_IF_ERROR(describe_row(b, s, row));
    return link_row(b, s, i, row);
}

/* Says for each row how it reads in a layer. */
static void fill_reads(backend_cuda *b, const step_plan *plan)
{
    cuda_retrieve *r = b->retrieve;
    const pkv_geometry *g = &b->info.geometry;
    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t i = 0; i < r->n_rows; i++) {
            const gpu_sparse_row *row = &r->rows[i];
            uint32_t leader = retrieval_layer_leader(&plan->seqs[row->seq].retrieval, g, layer);
            bool follows = row->leader != GPU_NO_ROW || (row->kept && !row->keeps);
            r->reads[(size_t)layer * r->n_rows + i] =
                (uint8_t)(leader == RETRIEVAL_ALL ? GPU_READS_ALL
                          : leader != layer       ? GPU_READS_ON
                          : follows               ? GPU_FOLLOWS
                                                  : GPU_SELECTS);
        }
}

/* ---- readings -------------------------------------------------------------------------------- */

static void give_readings(backend_cuda *b, const step_plan *plan)
{
    const cuda_retrieve *r = b->retrieve;
    const pkv_geometry *g = &b->info.geometry;
    retrieval_reading *readings = r->readings[b->flight - b->flights];
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const gpu_sparse_row *row = &r->rows[i];
        step_seq_result *result = &b->seq_results[row->seq];
        uint32_t lists = g->n_kv_heads / row->together;
        readings[i] = (retrieval_reading){.context = row->n_slots};
        for (uint32_t layer = 0; layer < g->n_layers; layer++) {
            uint8_t reads = r->reads[(size_t)layer * r->n_rows + i];
            if (reads == GPU_READS_ALL) continue;
            readings[i].lists += lists;
            readings[i].selections += reads == GPU_SELECTS ? lists : 0;
        }
        readings[i].blocks = (uint64_t)readings[i].lists * row->n_list;
        readings[i].tokens =
            (uint64_t)readings[i].lists * cuda_list_slots(row, b->pages.page_tokens);
        if (result->n_readings == 0) result->readings = &readings[i];
        result->n_readings = cuda_sparse_rows(b, &plan->seqs[row->seq]);
    }
}

/* ---- a step's arrays ------------------------------------------------------------------------- */

/* An upper bound of the arrays that lay_out_arrays takes, with the alignment of each. */
static size_t arrays_bytes(const backend_cuda *b, const cuda_batch *batch)
{
    const cuda_retrieve *r = b->retrieve;
    size_t n = r->n_rows, seqs = batch->n_seqs, q_heads = b->local.n_heads / b->local.n_kv_heads;
    size_t prefill = batch->n_rows * q_heads / GPU_PREFILL_ROWS + seqs;
    prefill += n * (q_heads / GPU_PREFILL_ROWS + 1);
    return n * (sizeof *r->rows + b->info.geometry.n_layers + sizeof(gpu_seq)) +
           seqs * (sizeof(gpu_seq) + b->tables.counts[PKV_HEAD] * sizeof(uint32_t)) +
           (2 * (size_t)cuda_forward_tiles(b->forward, batch->n_seqs) + 2 * prefill) *
               sizeof(gpu_tile) +
           9 * 64;
}

static void take_tiles(backend_cuda *b, uint32_t most, size_t prefill, cuda_tiles *t)
{
    cuda_pack *p = &b->retrieve->pack;
    *t = (cuda_tiles){0};
    t->decode = cuda_pack_take(p, most * sizeof(gpu_tile), &t->d_decode);
    t->prefill = cuda_pack_take(p, prefill * sizeof(gpu_tile), &t->d_prefill);
}

/* The sequences without their rows that read few blocks; lengths lie as in the batch. */
static void pack_full(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    cuda_retrieve *r = b->retrieve;
    gpu_seq *seqs = cuda_pack_take(&r->pack, batch->n_seqs * sizeof *seqs, &r->full_seqs);
    size_t n_lengths = (size_t)batch->n_seqs * b->tables.counts[PKV_HEAD], n = 0;
    uint32_t *lengths = cuda_pack_take(&r->pack, n_lengths * sizeof *lengths, &r->full_lengths);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        pkv_grain grain = pkv_mirror_grain(b->mirror, s->seq);
        uint32_t sparse = cuda_sparse_rows(b, s);
        seqs[i] = b->seqs[i];
        seqs[i].n_rows -= sparse;
        seqs[i].lengths = (uint32_t)n;
        for (uint32_t t = 0; t < b->tables.counts[grain]; t++)
            lengths[n++] =
                cuda_tables_view(&b->tables, b->mirror, s->seq, grain, t).kept_tokens - sparse;
    }
    for (uint32_t i = plan->n_seqs; i < batch->n_seqs; i++) {
        seqs[i] = (gpu_seq){b->tables.max_seqs, i, 1, (uint32_t)n, GPU_GRAIN_HEAD};
        for (uint32_t t = 0; t < b->tables.counts[PKV_HEAD]; t++) lengths[n++] = 1;
    }
}

static void pack_lists(backend_cuda *b)
{
    cuda_retrieve *r = b->retrieve;
    uint32_t heads = b->local.n_kv_heads;
    gpu_seq *seqs = cuda_pack_take(&r->pack, r->n_rows * sizeof *seqs, &r->list_seqs);
    for (uint32_t i = 0; i < r->n_rows; i++)
        seqs[i] = (gpu_seq){i * heads, r->rows[i].row, 1, i * heads, GPU_GRAIN_LIST};
}

static status send_arrays(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    cuda_retrieve *r = b->retrieve;
    size_t q_heads = b->local.n_heads / b->local.n_kv_heads;
    size_t n_reads = (size_t)r->n_rows * b->info.geometry.n_layers;
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &r->pack, arrays_bytes(b, batch)));
    gpu_sparse_row *rows = cuda_pack_take(&r->pack, r->n_rows * sizeof *rows, &r->job.rows);
    memcpy(rows, r->rows, r->n_rows * sizeof *rows);
    uint8_t *reads = cuda_pack_take(&r->pack, n_reads, &r->d_reads);
    memcpy(reads, r->reads, n_reads);
    uint32_t most = cuda_forward_tiles(b->forward, batch->n_seqs);
    take_tiles(b, most, batch->n_rows * q_heads / GPU_PREFILL_ROWS + batch->n_seqs, &r->full);
    take_tiles(b, most, r->n_rows * (q_heads / GPU_PREFILL_ROWS + 1), &r->list);
    cuda_add_tiles(b, plan, batch);
    pack_full(b, plan, batch);
    pack_lists(b);
    return cuda_pack_send(&b->device, &r->pack);
}

/* Makes room for what the rows' selections and lists need on the device. */
static status reserve_scratch(backend_cuda *b)
{
    cuda_retrieve *r = b->retrieve;
    size_t heads = b->local.n_kv_heads, scores = 0, most = 0, blocks = 0, n = r->n_rows;
    r->job.most_candidates = r->job.page_stride = r->n_waves = 0;
    for (uint32_t i = 0; i < n; i++) {
        gpu_sparse_row *row = &r->rows[i];
        uint32_t candidates = row->end - row->first;
        uint32_t pages = ceil_div(cuda_most_slots(b, i), b->pages.page_tokens);
        if (i == 0 || scores + candidates * heads > WAVE_SCORES) {
            r->waves[r->n_waves++] = i;
            scores = 0;
        }
        row->first_score = (uint32_t)scores;
        row->first_list = (uint32_t)blocks;
        scores += candidates * heads;
        if (scores > most) most = scores;
        blocks += (size_t)row->room * (heads / row->together);
        if (candidates > r->job.most_candidates) r->job.most_candidates = candidates;
        if (pages > r->job.page_stride) r->job.page_stride = pages;
    }
    r->waves[r->n_waves] = (uint32_t)n;
    if (most > UINT32_MAX || blocks > UINT32_MAX)
        return status_make(STATUS_LIMIT, "plan: more blocks to select among than a step may have");
    size_t folded = n * heads * 2 * b->config.head_dim;
    RETURN_IF_ERROR(reserve(b, &r->folded, folded, sizeof(float)));
    RETURN_IF_ERROR(reserve(b, &r->scores, most, sizeof(uint32_t)));
    RETURN_IF_ERROR(reserve(b, &r->unmade, most, sizeof(gpu_unmade)));
    RETURN_IF_ERROR(reserve(b, &r->blocks, blocks, sizeof(uint32_t)));
    RETURN_IF_ERROR(reserve(b, &r->pages_of, n * heads * r->job.page_stride, sizeof(uint32_t)));
    return reserve(b, &r->lengths_of, n * heads, sizeof(uint32_t));
}

/* Sets what the launches of all layers share. */
static void fill_job(backend_cuda *b, const cuda_batch *batch)
{
    cuda_retrieve *r = b->retrieve;
    gpu_retrieval *job = &r->job;
    job->seqs = batch->seqs;
    job->lengths = batch->lengths;
    job->n_rows = r->n_rows;
    job->folded = r->folded.data;
    job->scores = r->scores.data;
    job->unmade = r->unmade.data;
    job->blocks = r->blocks.data;
    job->pages_of = r->pages_of.data;
    job->lengths_of = r->lengths_of.data;
}

/* ---- a layer --------------------------------------------------------------------------------- */

static gpu_attention with_tiles(const gpu_attention *a, const cuda_tiles *t)
{
    gpu_attention out = *a;
    out.decode = t->d_decode;
    out.prefill = t->d_prefill;
    out.n_decode = t->n_decode;
    out.n_prefill = t->n_prefill;
    out.n_cut = 0;
    out.whole = false;
    return out;
}

static status select_and_gather(const backend_cuda *b, const gpu_retrieval *layer)
{
    const cuda_retrieve *r = b->retrieve;
    for (uint32_t w = 0; cuda_some_row(r, layer->number, GPU_SELECTS) && w < r->n_waves; w++) {
        gpu_retrieval job = *layer;
        job.rows += r->waves[w];
        job.reads += r->waves[w];
        job.n_rows = r->waves[w + 1] - r->waves[w];
        job.follows = false;
        job.selects = true;
        RETURN_IF_GPU_ERROR(b->device.api->retrieve(b->device.g, &job));
    }
    gpu_retrieval all = *layer;
    all.gathers = true;
    return cuda_status(b->device.api->retrieve(b->device.g, &all));
}

static status attend_layer(const backend_cuda *b, uint32_t layer, const gpu_heads *h,
                           const gpu_attention *a)
{
    const cuda_retrieve *r = b->retrieve;
    const gpu_api *api = b->device.api;
    if (!cuda_reads_few(r, layer)) return cuda_status(api->attention(b->device.g, a));
    gpu_retrieval job = r->job;
    job.pages = a->pages;
    job.tables = a->tables;
    job.layer = a->layer;
    job.reads = r->d_reads + (size_t)layer * r->n_rows;
    job.follows = cuda_some_row(r, layer, GPU_FOLLOWS);
    job.kv_heads = a->kv_heads;
    job.q_heads = a->q_heads;
    job.number = layer;
    job.qkv = h->qkv;
    job.bias = h->bias;
    job.norm = h->q_norm;
    job.eps = h->eps;
    job.angles = h->angles;
    RETURN_IF_ERROR(select_and_gather(b, &job));
    gpu_attention full = with_tiles(a, &r->full);
    full.seqs = r->full_seqs;
    full.lengths = r->full_lengths;
    RETURN_IF_GPU_ERROR(api->attention(b->device.g, &full));
    gpu_attention list = with_tiles(a, &r->list);
    list.tables = (gpu_tables){.pages = job.pages_of, .row = job.page_stride};
    list.seqs = r->list_seqs;
    list.lengths = job.lengths_of;
    list.kept = NULL; /* its sequences are rows */
    return cuda_status(api->attention(b->device.g, &list));
}

/* cuda_batch.attend */
static status attend(void *ctx, uint32_t layer, const gpu_heads *h, const gpu_attention *a)
{
    const backend_cuda *b = ctx;
    RETURN_IF_ERROR(attend_layer(b, layer, h, a));
    return cuda_endings_layer(b, &b->retrieve->endings, layer, a);
}

status cuda_retrieve_lay_out(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    cuda_retrieve *r = b->retrieve;
    if (!r) return STATUS_IS_OK;
    uint32_t n = count_rows(b, plan);
    r->n_rows = 0;
    r->used |= n > 0;
    if (r->used)
        RETURN_IF_GPU_ERROR(b->device.api->unmark(b->device.g, &b->pages, &b->tables.device,
                                                  batch->seqs, plan->n_seqs, batch->lengths));
    RETURN_IF_ERROR(cuda_endings_start(b, plan, r->lists, &r->endings));
    if (r->endings.n > 0) {
        batch->wants_lse = true;
        batch->attend = attend;
        batch->ctx = b;
    }
    if (n == 0) return STATUS_IS_OK;
    if (!reserve_rows(b, r, n)) return status_make(STATUS_NO_MEMORY, "rows of retrieval");
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        for (uint32_t t = plan->seqs[i].n_tokens - cuda_sparse_rows(b, &plan->seqs[i]);
             t < plan->seqs[i].n_tokens; t++)
            RETURN_IF_ERROR(add_row(b, plan, i, t));
    fill_reads(b, plan);
    RETURN_IF_ERROR(reserve_scratch(b));
    RETURN_IF_ERROR(send_arrays(b, plan, batch));
    fill_job(b, batch);
    give_readings(b, plan);
    batch->attend = attend;
    batch->ctx = b;
    return STATUS_IS_OK;
}

/* The arrays that a step reads and writes on the device: rows, tiles of attention, measures. */
#include "model/cuda/backend.h"
#include "model/measures.h"
#include "model/plan.h"
#include "model/rope.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- measures -------------------------------------------------------------------------------- */

static const gpu_measure_kind kinds[MEASURE_KINDS] = {
    [MEASURE_MASS] = GPU_MEASURE_MASS,
    [MEASURE_RAW] = GPU_MEASURE_RAW,
    [MEASURE_PROJECTION] = GPU_MEASURE_PROJECTION,
    [MEASURE_PROJECTION_OUTSIDE] = GPU_MEASURE_OUTSIDE,
    [MEASURE_PROJECTION_POOLED] = GPU_MEASURE_POOLED,
    [MEASURE_EXPECTED] = GPU_MEASURE_EXPECTED,
    [MEASURE_VALUE_WEIGHT] = GPU_MEASURE_VALUE_WEIGHT,
    [MEASURE_VALUE_NORM] = GPU_MEASURE_VALUE_NORM,
    [MEASURE_KEY_NORM] = GPU_MEASURE_KEY_NORM,
    [MEASURE_KEY_COSINE] = GPU_MEASURE_KEY_COSINE,
};

static const gpu_sum sums[] = {
    [MEASURE_SUM_STEP] = GPU_SUM_NONE,
    [MEASURE_SUM_START] = GPU_SUM_START,
    [MEASURE_SUM_ADD] = GPU_SUM_ADD,
};

/* Grows memory on the device that kernels in flight may still use. Its content is lost. */
static status reserve(backend_cuda *b, uint8_t **memory, size_t *capacity, size_t bytes)
{
    cuda_device *d = &b->device;
    if (bytes <= *capacity) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_wait(d));
    if (*memory) d->api->release(d->g, *memory);
    *memory = NULL;
    *capacity = 0;
    void *grown;
    RETURN_IF_GPU_ERROR(d->api->alloc(d->g, bytes, &grown));
    *memory = grown;
    *capacity = bytes;
    return STATUS_IS_OK;
}

static float *alloc_pinned(void *ctx, size_t n)
{
    cuda_device *d = ctx;
    void *host;
    return d->api->alloc_host(d->g, n * sizeof(float), &host) == GPU_OK ? host : NULL;
}

static void release_pinned(void *ctx, float *values)
{
    cuda_device *d = ctx;
    d->api->release_host(d->g, values);
}

/* Makes room for results of measures: of the flight's own on the host, where they stay until its
 * next step, and of any step's on the device, which they leave before the next step's kernels. */
static status reserve_results(backend_cuda *b, size_t floats)
{
    measured *host = &b->flight->measured;
    RETURN_IF_ERROR(reserve(b, &b->measures, &b->measures_bytes, floats * sizeof(float)));
    host->alloc = alloc_pinned;
    host->release = release_pinned;
    host->ctx = &b->device;
    return measured_reserve(host, floats);
}

/* Results start as zeros, because layers without measures write nothing. */
status cuda_lay_out_measures(backend_cuda *b, const step_plan *plan)
{
    size_t floats = 0;
    b->is_measuring = false;
    b->n_measured = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        measure_result *m = &b->seq_results[i].measure;
        b->seq_results[i] = (step_seq_result){0};
        if (s->measure.kind == MEASURE_NONE) continue;
        b->is_measuring = true;
        if (s->measure.sum != MEASURE_SUM_STEP) b->has_sums = true;
        if (measures_arrays(&s->measure) == 0) continue;
        m->n_layers = measure_layers(&b->info.geometry, s->measure.layer_step);
        m->n_kv_heads = b->local.n_kv_heads;
        m->stride = plan_longest_table(b->mirror, s->seq, s->measure.by_slot);
        m->q_heads = b->config.n_heads / b->config.n_kv_heads;
        floats += measures_arrays(&s->measure) * plan_measure_floats(m);
    }
    if (floats == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(reserve_results(b, floats));
    RETURN_IF_GPU_ERROR(b->device.api->clear(b->device.g, b->measures, floats * sizeof(float)));
    b->n_measured = floats;
    measured_block *block = b->flight->measured.first;
    const float *at = block->values;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t arrays = measures_arrays(&plan->seqs[i].measure);
        if (arrays == 0) continue;
        b->seq_results[i].measure.values = at;
        b->seq_results[i].measure.holders = &block->holders;
        at += arrays * plan_measure_floats(&b->seq_results[i].measure);
    }
    return STATUS_IS_OK;
}

status cuda_fetch_measures(backend_cuda *b)
{
    size_t bytes = b->n_measured * sizeof(float);
    if (bytes == 0) return STATUS_IS_OK;
    return cuda_status(b->device.api->copy_out(b->device.g, b->flight->measured.first->values,
                                               b->measures, bytes));
}

/* Measures one array of one sequence in one layer. Measures by page and silent sums are computed by
 * slot in the scratch, before the kernel's own part of it. */
static status measure_one(backend_cuda *b, uint32_t seq, measure_kind kind, size_t first,
                          gpu_measure *m)
{
    const measure_spec *spec = &b->plan->seqs[seq].measure;
    const measure_result *r = &b->seq_results[seq].measure;
    m->kind = kinds[kind];
    size_t slots = ((size_t)m->kv_heads * m->longest * sizeof(float) + 255) / 256 * 256;
    RETURN_IF_ERROR(reserve(b, &b->scratch, &b->scratch_bytes, slots + gpu_measure_scratch(m)));
    m->slots = (float *)(void *)b->scratch;
    m->slot_stride = m->longest;
    m->by_page = NULL;
    m->scratch = b->scratch + slots;
    if (!r->values) return cuda_status(b->device.api->measure(b->device.g, m));
    size_t at = (size_t)(r->values - b->flight->measured.first->values) + first;
    float *device = (float *)(void *)b->measures + at;
    if (spec->by_slot) {
        m->slots = device;
        m->slot_stride = r->stride;
    }
    m->by_page = spec->by_slot ? NULL : device;
    m->page_stride = r->stride;
    return cuda_status(b->device.api->measure(b->device.g, m));
}

status cuda_measure_layer(void *ctx, uint32_t layer, gpu_measure *m)
{
    backend_cuda *b = ctx;
    const float *mean_rope = b->mean_ropes;
    for (uint32_t i = 0; i < b->plan->n_seqs; i++) {
        const step_seq *s = &b->plan->seqs[i];
        const measure_spec *spec = &s->measure;
        const measure_result *r = &b->seq_results[i].measure;
        if (spec->kind == MEASURE_NONE) continue;
        m->mean_rope = mean_rope;
        if (spec->kind == MEASURE_EXPECTED) mean_rope += b->config.head_dim;
        uint32_t row = measure_layer_of(&b->info.geometry, layer, spec->layer_step);
        if (row == MEASURE_NO_LAYER) continue;
        m->seq = b->seqs[i];
        m->rows = spec->rows < s->n_tokens ? spec->rows : s->n_tokens;
        if (spec->kind == MEASURE_EXPECTED)
            m->rows = s->n_tokens - measures_first_expected(spec, s->n_tokens, s->position);
        m->longest = plan_longest_table(b->mirror, s->seq, true);
        m->window = spec->window;
        m->chunk = spec->chunk;
        m->add = spec->bias;
        m->theta = spec->theta;
        m->sinks = spec->sinks;
        m->sum = sums[spec->sum];
        size_t first = (size_t)row * r->n_kv_heads * r->stride;
        RETURN_IF_ERROR(measure_one(b, i, spec->kind, first, m));
        m->sum = GPU_SUM_NONE;
        if (spec->second != MEASURE_NONE && r->values)
            RETURN_IF_ERROR(measure_one(b, i, spec->second, first + plan_measure_floats(r), m));
    }
    return STATUS_IS_OK;
}

/* ---- a step's arrays ------------------------------------------------------------------------- */

static size_t count_mean_ropes(const step_plan *plan)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].measure.kind == MEASURE_EXPECTED;
    return n;
}

/* Packs the mean rotation of the positions to come for each sequence with MEASURE_EXPECTED. */
static void pack_mean_ropes(backend_cuda *b, const step_plan *plan)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    uint32_t dim = b->config.head_dim;
    size_t n = count_mean_ropes(plan);
    float *mean_ropes = cuda_pack_take(&b->step, n * dim * sizeof *mean_ropes, &b->mean_ropes);
    if (n == 0) return;
    rope_frequencies(&b->config.rope, dim, inv_freq);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->measure.kind != MEASURE_EXPECTED) continue;
        measures_mean_rope(&b->config.rope, inv_freq, dim, s->position + s->n_tokens, mean_ropes);
        mean_ropes += dim;
    }
}

/* Whether the step can run as a graph: its rows and attention tiles are then padded, so that many
 * steps have one shape. Only steps that decode alone qualify. With several ranks, sums happen
 * between launches, a window has copies there, and a step that measures has launches of its own:
 * none is captured. Moves, patches and logits lie outside the captured part. */
static bool only_decodes(const backend_cuda *b, const step_plan *plan)
{
    bool one = plan->n_seqs > 0 && comm_size(b->device.group) == 1 && !b->window;
    for (uint32_t i = 0; one && i < plan->n_seqs; i++)
        one = plan->seqs[i].n_tokens == 1 && plan->seqs[i].measure.kind == MEASURE_NONE;
    return one;
}

/* A step whose rows read by retrieval has launches of its own too, but its rows and tiles are
 * rounded all the same: what it computes has the bits of a step that reads everything. */
static bool retrieves(const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].retrieval.block_tokens) return true;
    return false;
}

static cuda_batch shape_of(const backend_cuda *b, const step_plan *plan)
{
    cuda_batch batch = {.n_rows = plan->n_tokens,
                        .n_seqs = plan->n_seqs,
                        .tables = b->tables.device,
                        .window = b->window,
                        .rounds = only_decodes(b, plan)};
    batch.repeats = batch.rounds && !retrieves(plan);
    if (!batch.rounds) return batch;
    uint32_t n = cuda_graphs_round(plan->n_seqs, CUDA_SHAPE_STEPS);
    batch.n_rows = batch.n_seqs = n < b->info.max_rows ? n : b->info.max_rows;
    return batch;
}

/* An upper bound of the step's arrays, with the alignment of each. */
static size_t pack_bytes(const backend_cuda *b, const step_plan *plan, const cuda_batch *batch,
                         const pkv_deltas *deltas)
{
    size_t rows = batch->n_rows, seqs = batch->n_seqs, groups = b->tables.counts[PKV_HEAD];
    size_t q_heads = b->local.n_heads / b->local.n_kv_heads;
    size_t prefill = rows * q_heads / GPU_PREFILL_ROWS + seqs;
    return 4 * rows * sizeof(uint32_t) + seqs * sizeof(gpu_seq) +
           count_mean_ropes(plan) * b->config.head_dim * sizeof(float) +
           (seqs * groups + rows + seqs) * sizeof(uint32_t) +
           (cuda_forward_tiles(b->forward) + prefill) * sizeof(gpu_tile) +
           b->tables.n_patches * sizeof(gpu_patch) + b->tables.n_values * sizeof(uint32_t) +
           cuda_moves_bytes(b, deltas) + 16 * 64;
}

/* A step's row arrays, to be filled in. */
typedef struct row_arrays {
    uint32_t *tokens, *draws, *positions, *row_seqs;
    gpu_seq *seqs;
} row_arrays;

static row_arrays take_rows(backend_cuda *b, cuda_batch *batch)
{
    size_t n = batch->n_rows;
    row_arrays a;
    a.tokens = cuda_pack_take(&b->step, n * sizeof *a.tokens, &batch->tokens);
    a.draws = cuda_pack_take(&b->step, n * sizeof *a.draws, &batch->draws);
    a.positions = cuda_pack_take(&b->step, n * sizeof *a.positions, &batch->positions);
    a.row_seqs = cuda_pack_take(&b->step, n * sizeof *a.row_seqs, &batch->row_seqs);
    a.seqs = cuda_pack_take(&b->step, batch->n_seqs * sizeof *a.seqs, &batch->seqs);
    return a;
}

/* Makes each padding row, from `first` on, a sequence of one token in cell 0, which is spare: its
 * tables are those of the finest grain, so that no other cell is written. All have the lengths from
 * index `lengths` on. */
static void pad_rows(const backend_cuda *b, uint32_t first, uint32_t lengths,
                     const cuda_batch *batch, row_arrays *a)
{
    for (uint32_t i = first; i < batch->n_seqs; i++) {
        a->tokens[i] = UINT32_MAX;
        a->draws[i] = a->positions[i] = 0;
        a->row_seqs[i] = i;
        a->seqs[i] = (gpu_seq){b->tables.max_seqs, i, 1, lengths, GPU_GRAIN_HEAD};
    }
}

/* Returns the number of lengths of the plan's sequences, which are packed later. */
static uint32_t pack_rows(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    uint32_t lengths = 0;
    row_arrays a = take_rows(b, batch);
    /* Tokens outside this rank's part of the vocabulary become UINT32_MAX, which gives zeros. */
    for (size_t i = 0; i < plan->n_tokens; i++) {
        a.tokens[i] = plan->tokens[i] - b->slice.first_token;
        if (a.tokens[i] >= b->slice.n_tokens) a.tokens[i] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        pkv_grain grain = pkv_mirror_grain(b->mirror, s->seq);
        a.seqs[i] = b->seqs[i] = b->window
                                     ? cuda_window_seq(b->window, i, s)
                                     : (gpu_seq){b->tables.places[s->seq].first, s->first_token,
                                                 s->n_tokens, lengths, cuda_grain(grain)};
        lengths += b->tables.counts[grain];
        for (uint32_t j = 0; j < s->n_tokens; j++) {
            a.draws[s->first_token + j] = cuda_draw_before(b, s);
            a.positions[s->first_token + j] = s->position + j;
            a.row_seqs[s->first_token + j] = i;
        }
    }
    pad_rows(b, plan->n_seqs, lengths, batch, &a);
    return lengths;
}

/* Packs the n lengths of the plan's sequences, and those of padding rows. They come after the other
 * arrays of a repeated step: their number changes with the grains of the sequences, and graphs need
 * arrays at the same places. */
static void pack_lengths(backend_cuda *b, const step_plan *plan, uint32_t n, cuda_batch *batch)
{
    const cuda_tables *t = &b->tables;
    uint32_t n_padding = batch->n_seqs > plan->n_seqs ? t->counts[PKV_HEAD] : 0;
    uint32_t *at = cuda_pack_take(&b->step, ((size_t)n + n_padding) * sizeof *at, &batch->lengths);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t seq = plan->seqs[i].seq;
        pkv_grain grain = pkv_mirror_grain(b->mirror, seq);
        for (uint32_t table = 0; table < t->counts[grain]; table++)
            *at++ = cuda_tables_view(t, b->mirror, seq, grain, table).kept_tokens;
    }
    for (uint32_t i = 0; i < n_padding; i++) *at++ = 1;
}

/* ---- attention's tiles ----------------------------------------------------------------------- */

/* How a step's attention is cut into tiles. */
typedef struct tiling {
    uint32_t q_heads, part, n_prefill, longest;
} tiling;

bool cuda_goes_by_parts(const backend_cuda *b, uint32_t n_rows)
{
    return !b->invariant && n_rows * (b->local.n_heads / b->local.n_kv_heads) <= GPU_DECODE_ROWS;
}

uint32_t cuda_part_slots(const backend_cuda *b, uint64_t slots, uint32_t longest, bool rounds)
{
    uint32_t part = cuda_forward_part(b->forward, slots, longest);
    if (!rounds) return part;
    if (part < GPU_PART_MIN) part = GPU_PART_MIN;
    return cuda_graphs_round(part / GPU_KV_STEP, CUDA_SHAPE_STEPS) * GPU_KV_STEP;
}

static uint32_t prefill_tiles(const backend_cuda *b, uint32_t q_heads, uint32_t n_tokens)
{
    if (cuda_goes_by_parts(b, n_tokens)) return 0;
    return (n_tokens * q_heads + GPU_PREFILL_ROWS - 1) / GPU_PREFILL_ROWS;
}

static uint32_t slots_of(const backend_cuda *b, const step_seq *s)
{
    return plan_longest_table(b->mirror, s->seq, true);
}

static tiling plan_tiles(const backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    tiling t = {.q_heads = b->local.n_heads / b->local.n_kv_heads};
    uint64_t slots = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        t.n_prefill += prefill_tiles(b, t.q_heads, plan->seqs[i].n_tokens);
        if (!cuda_goes_by_parts(b, plan->seqs[i].n_tokens)) continue;
        uint32_t n = slots_of(b, &plan->seqs[i]);
        slots += n;
        if (n > t.longest) t.longest = n;
    }
    t.n_prefill += (batch->n_seqs - plan->n_seqs) * prefill_tiles(b, t.q_heads, 1);
    t.part = cuda_part_slots(b, slots, t.longest, batch->rounds);
    return t;
}

static void add_tiles(const backend_cuda *b, const tiling *t, uint32_t seq, uint32_t n_tokens,
                      uint32_t length, gpu_tile *decode, gpu_tile *prefill, cuda_batch *batch)
{
    uint32_t parts = (length + t->part - 1) / t->part, first = batch->n_decode;
    bool by_parts = cuda_goes_by_parts(b, n_tokens);
    for (uint32_t p = 0; by_parts && p < parts; p++)
        decode[batch->n_decode++] = (gpu_tile){seq, p * t->part, parts, first};
    for (uint32_t r = 0; !by_parts && r < n_tokens * t->q_heads; r += GPU_PREFILL_ROWS)
        prefill[batch->n_prefill++] = (gpu_tile){.seq = seq, .first = r};
}

static void pack_tiles(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    tiling t = plan_tiles(b, plan, batch);
    uint32_t most = cuda_forward_tiles(b->forward);
    batch->part_slots = t.part;
    batch->whole = t.longest <= t.part;
    gpu_tile *decode = cuda_pack_take(&b->step, most * sizeof *decode, &batch->decode);
    gpu_tile *prefill = cuda_pack_take(&b->step, t.n_prefill * sizeof *prefill, &batch->prefill);
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        add_tiles(b, &t, i, plan->seqs[i].n_tokens, slots_of(b, &plan->seqs[i]), decode, prefill,
                  batch);
    for (uint32_t i = plan->n_seqs; i < batch->n_seqs; i++)
        add_tiles(b, &t, i, 1, 1, decode, prefill, batch);
    /* Padding tiles lie behind every table: they see no slot, and no sequence counts them. */
    uint32_t n = batch->repeats ? cuda_graphs_round(batch->n_decode, CUDA_SHAPE_STEPS) : 0;
    uint32_t beyond = (t.longest / GPU_KV_STEP + 1) * GPU_KV_STEP;
    while (batch->n_decode < n && batch->n_decode < most)
        decode[batch->n_decode++] = (gpu_tile){.seq = 0, .first = beyond, .parts = 2, .part = 0};
    assert(batch->n_decode <= most && batch->n_prefill == t.n_prefill);
}

status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch)
{
    cuda_device *d = &b->device;
    step_plan nothing = {0};
    const step_plan *rows = computes ? plan : &nothing;
    *batch = shape_of(b, rows);
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->step, pack_bytes(b, rows, batch, &plan->deltas)));
    uint32_t n_lengths = pack_rows(b, rows, batch);
    pack_tiles(b, rows, batch);
    pack_lengths(b, rows, n_lengths, batch);
    pack_mean_ropes(b, rows);
    const gpu_patch *d_patches;
    const uint32_t *d_values;
    size_t n = b->tables.n_patches, n_values = b->tables.n_values;
    gpu_patch *patches = cuda_pack_take(&b->step, n * sizeof *patches, &d_patches);
    uint32_t *values = cuda_pack_take(&b->step, n_values * sizeof *values, &d_values);
    if (n) {
        memcpy(patches, b->tables.patches, n * sizeof *patches);
        memcpy(values, b->tables.values, n_values * sizeof *values);
    }
    status moves = cuda_moves_pack(b, &plan->deltas);
    RETURN_IF_ERROR(cuda_pack_send(d, &b->step));
    RETURN_IF_GPU_ERROR(
        d->api->patch(d->g, b->tables.device.pages, d_patches, (uint32_t)n, d_values));
    RETURN_IF_ERROR(moves);
    RETURN_IF_ERROR(cuda_moves_apply(b, &plan->deltas));
    if (!computes || !b->flight->ahead) return STATUS_IS_OK;
    gpu_before before = cuda_before(b);
    uint32_t *tokens = (uint32_t *)(uintptr_t)batch->tokens;
    return cuda_status(d->api->follow(d->g, &before, batch->draws, batch->n_rows, tokens));
}

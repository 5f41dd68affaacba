/* What a step reads on the device and leaves there: rows, tiles of attention, measures. */
#include "model/cuda/backend.h"
#include "model/measures.h"
#include "model/plan.h"
#include "model/rope.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- measures -----------------------------------------------------------------------------------
 */

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

/* Where results will be, zeros on the host: layers that measure nothing write nothing. */
status cuda_lay_out_measures(backend_cuda *b, const step_plan *plan)
{
    size_t floats = 0;
    b->is_measuring = false;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        measure_result *m = &b->seq_results[i].measure;
        b->seq_results[i] = (step_seq_result){0};
        if (s->measure.kind == MEASURE_NONE) continue;
        b->is_measuring = true;
        if (s->measure.sum != MEASURE_SUM_STEP) b->has_sums = true;
        if (measures_arrays(&s->measure) == 0) continue;
        m->n_layers = (b->config.n_layers - 1) / s->measure.layer_step + 1;
        m->n_kv_heads = b->local.n_kv_heads;
        m->stride = plan_longest_table(&b->info, b->mirror, s->seq, s->measure.by_slot);
        m->q_heads = b->config.n_heads / b->config.n_kv_heads;
        floats += measures_arrays(&s->measure) * plan_measure_floats(m);
    }
    if (floats == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->measures, floats * sizeof(float)));
    memset(b->measures.host, 0, floats * sizeof(float));
    const float *at = (const float *)(const void *)b->measures.host;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t arrays = measures_arrays(&plan->seqs[i].measure);
        if (arrays == 0) continue;
        b->seq_results[i].measure.values = at;
        at += arrays * plan_measure_floats(&b->seq_results[i].measure);
    }
    return STATUS_IS_OK;
}

/* Grows; what reads the old one is waited for. */
static status reserve_scratch(backend_cuda *b, size_t bytes)
{
    cuda_device *d = &b->device;
    if (bytes <= b->scratch_bytes) return STATUS_IS_OK;
    RETURN_IF_GPU_ERROR(d->api->wait(d->g));
    if (b->scratch) d->api->release(d->g, b->scratch);
    b->scratch = NULL;
    b->scratch_bytes = 0;
    void *scratch;
    RETURN_IF_GPU_ERROR(d->api->alloc(d->g, bytes, &scratch));
    b->scratch = scratch;
    b->scratch_bytes = bytes;
    return STATUS_IS_OK;
}

/* One array of one sequence in one layer: measured, and on its way to the host. Of silent sums and
 * of pages, what is measured by slot is scratch, before the kernel's own. */
static status measure_one(backend_cuda *b, uint32_t seq, measure_kind kind, size_t first,
                          gpu_measure *m)
{
    const measure_spec *spec = &b->plan->seqs[seq].measure;
    const measure_result *r = &b->seq_results[seq].measure;
    m->kind = kinds[kind];
    size_t slots = ((size_t)m->kv_heads * m->longest * sizeof(float) + 255) / 256 * 256;
    RETURN_IF_ERROR(reserve_scratch(b, slots + gpu_measure_scratch(m)));
    m->slots = (float *)(void *)b->scratch;
    m->slot_stride = m->longest;
    m->by_page = NULL;
    m->scratch = b->scratch + slots;
    if (!r->values) return cuda_status(b->device.api->measure(b->device.g, m));
    size_t at = (size_t)(r->values - (const float *)(const void *)b->measures.host) + first;
    float *device = (float *)(void *)b->measures.device + at;
    if (spec->by_slot) {
        m->slots = device;
        m->slot_stride = r->stride;
    }
    m->by_page = spec->by_slot ? NULL : device;
    m->page_stride = r->stride;
    RETURN_IF_GPU_ERROR(b->device.api->measure(b->device.g, m));
    return cuda_status(b->device.api->copy_out(b->device.g, b->measures.host + at * sizeof(float),
                                               device,
                                               (size_t)r->n_kv_heads * r->stride * sizeof(float)));
}

status cuda_measure_layer(void *ctx, uint32_t layer, gpu_measure *m)
{
    backend_cuda *b = ctx;
    const float *turn = b->turns;
    for (uint32_t i = 0; i < b->plan->n_seqs; i++) {
        const step_seq *s = &b->plan->seqs[i];
        const measure_spec *spec = &s->measure;
        const measure_result *r = &b->seq_results[i].measure;
        if (spec->kind == MEASURE_NONE) continue;
        m->turn = turn;
        if (spec->kind == MEASURE_EXPECTED) turn += b->config.head_dim;
        /* Layers with a window are not chosen for: their values stay zeros. */
        if (layer % spec->layer_step != 0 || (spec->by_slot && m->layer.window)) continue;
        m->seq = b->seqs[i];
        m->rows = spec->rows < s->n_tokens ? spec->rows : s->n_tokens;
        if (spec->kind == MEASURE_EXPECTED)
            m->rows = s->n_tokens - measures_first_expected(spec, s->n_tokens, s->position);
        m->longest = plan_longest_table(&b->info, b->mirror, s->seq, true);
        m->window = spec->window;
        m->chunk = spec->chunk;
        m->sinks = spec->sinks;
        m->sum = sums[spec->sum];
        size_t first = (size_t)layer / spec->layer_step * r->n_kv_heads * r->stride;
        RETURN_IF_ERROR(measure_one(b, i, spec->kind, first, m));
        m->sum = GPU_SUM_NONE;
        if (spec->second != MEASURE_NONE && r->values)
            RETURN_IF_ERROR(measure_one(b, i, spec->second, first + plan_measure_floats(r), m));
    }
    return STATUS_IS_OK;
}

/* ---- a step's arrays ----------------------------------------------------------------------------
 */

static size_t count_turns(const step_plan *plan)
{
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += plan->seqs[i].measure.kind == MEASURE_EXPECTED;
    return n;
}

/* How much positions to come turn by on average, of each sequence that expects queries. */
static void pack_turns(backend_cuda *b, const step_plan *plan)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    uint32_t dim = b->config.head_dim;
    size_t n = count_turns(plan);
    float *turns = cuda_pack_take(&b->step, n * dim * sizeof *turns, &b->turns);
    if (n == 0) return;
    rope_frequencies(&b->config.rope, dim, inv_freq);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->measure.kind != MEASURE_EXPECTED) continue;
        measures_turn(&b->config.rope, inv_freq, dim, s->position + s->n_tokens, turns);
        turns += dim;
    }
}

/* Upper bounds, each array's alignment included. */
static size_t pack_bytes(const backend_cuda *b, const step_plan *plan, const pkv_deltas *deltas)
{
    size_t rows = plan->n_tokens, seqs = plan->n_seqs, groups = b->tables.device.groups;
    size_t q_heads = b->local.n_heads / b->local.n_kv_heads;
    size_t prefill = rows * q_heads / GPU_PREFILL_ROWS + seqs;
    return 3 * rows * sizeof(uint32_t) + seqs * sizeof(gpu_seq) +
           count_turns(plan) * b->config.head_dim * sizeof(float) +
           (seqs * groups + rows + seqs) * sizeof(uint32_t) +
           (cuda_forward_tiles(b->forward) + prefill) * sizeof(gpu_tile) +
           b->tables.n_patches * sizeof(gpu_patch) + b->tables.n_values * sizeof(uint32_t) +
           cuda_moves_bytes(b, deltas) + 16 * 64;
}

static void pack_rows(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    size_t n = plan->n_tokens, groups = b->tables.device.groups;
    uint32_t *tokens = cuda_pack_take(&b->step, n * sizeof *tokens, &batch->tokens);
    uint32_t *positions = cuda_pack_take(&b->step, n * sizeof *positions, &batch->positions);
    uint32_t *row_seqs = cuda_pack_take(&b->step, n * sizeof *row_seqs, &batch->row_seqs);
    gpu_seq *seqs = cuda_pack_take(&b->step, plan->n_seqs * sizeof *seqs, &batch->seqs);
    uint32_t *lengths =
        cuda_pack_take(&b->step, plan->n_seqs * groups * sizeof *lengths, &batch->lengths);
    /* Rows of this rank's part of the vocabulary; the others are no rows. */
    for (size_t i = 0; i < n; i++) {
        tokens[i] = plan->tokens[i] - b->slice.first_token;
        if (tokens[i] >= b->slice.n_tokens) tokens[i] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        seqs[i] = b->seqs[i] =
            (gpu_seq){s->seq, s->first_token, s->n_tokens, (uint32_t)(i * groups)};
        for (uint32_t g = 0; g < groups; g++)
            lengths[i * groups + g] = pkv_mirror_table(b->mirror, s->seq, g).kept_tokens;
        for (uint32_t j = 0; j < s->n_tokens; j++) {
            positions[s->first_token + j] = s->position + j;
            row_seqs[s->first_token + j] = i;
        }
    }
}

static void pack_tiles(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    uint32_t q_heads = b->local.n_heads / b->local.n_kv_heads, longest = 0, n_prefill = 0;
    uint64_t slots = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t n = plan_longest_table(&b->info, b->mirror, plan->seqs[i].seq, true);
        uint32_t packed = plan->seqs[i].n_tokens * q_heads;
        if (packed > GPU_DECODE_ROWS) {
            n_prefill += (packed + GPU_PREFILL_ROWS - 1) / GPU_PREFILL_ROWS;
            continue;
        }
        slots += n;
        if (n > longest) longest = n;
    }
    uint32_t part = batch->part_slots = cuda_forward_part(b->forward, slots, longest);
    uint32_t most = cuda_forward_tiles(b->forward);
    gpu_tile *decode = cuda_pack_take(&b->step, most * sizeof *decode, &batch->decode);
    gpu_tile *prefill = cuda_pack_take(&b->step, n_prefill * sizeof *prefill, &batch->prefill);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t packed = plan->seqs[i].n_tokens * q_heads;
        uint32_t parts =
            (plan_longest_table(&b->info, b->mirror, plan->seqs[i].seq, true) + part - 1) / part;
        uint32_t first = batch->n_decode;
        for (uint32_t r = 0; packed > GPU_DECODE_ROWS && r < packed; r += GPU_PREFILL_ROWS)
            prefill[batch->n_prefill++] = (gpu_tile){.seq = i, .first = r};
        for (uint32_t p = 0; packed <= GPU_DECODE_ROWS && p < parts; p++)
            decode[batch->n_decode++] = (gpu_tile){i, p * part, parts, first};
    }
    assert(batch->n_decode <= most);
}

/* Everything that this step reads goes in one copy; then tables and pages are brought up to date.
 */
status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch)
{
    cuda_device *d = &b->device;
    step_plan nothing = {0};
    const step_plan *rows = computes ? plan : &nothing;
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->step, pack_bytes(b, rows, &plan->deltas)));
    *batch = (cuda_batch){.n_rows = rows->n_tokens, .tables = b->tables.device};
    pack_rows(b, rows, batch);
    pack_tiles(b, rows, batch);
    pack_turns(b, rows);
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
    return cuda_moves_apply(b, &plan->deltas);
}

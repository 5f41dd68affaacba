/* What a step measures beside its attention. Sequences that are measured alike form a group, which
 * one call measures in a layer. */
#include "model/cuda/backend.h"
#include "model/measures.h"
#include "model/plan.h"
#include "model/rope.h"

#include <stdlib.h>

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

status cuda_measuring_create(cuda_measuring *m, uint32_t max_seqs)
{
    m->groups = calloc(max_seqs, sizeof *m->groups);
    m->group_of = calloc(max_seqs, sizeof *m->group_of);
    m->seqs = calloc(max_seqs, sizeof *m->seqs);
    if (m->groups && m->group_of && m->seqs) return STATUS_IS_OK;
    return status_make(STATUS_NO_MEMORY, "measures");
}

void cuda_measuring_destroy(backend_cuda *b)
{
    cuda_measuring *m = &b->measuring;
    const cuda_device *d = &b->device;
    if (m->memory.values) d->api->release(d->g, m->memory.values);
    if (m->memory.scratch) d->api->release(d->g, m->memory.scratch);
    if (m->memory.kept) d->api->release(d->g, m->memory.kept);
    free(m->groups);
    free(m->group_of);
    free(m->seqs);
}

/* ---- groups ---------------------------------------------------------------------------------- */

bool cuda_is_alike(const measure_spec *a, const measure_spec *b)
{
    return a->kind == b->kind && a->second == b->second && a->layer_step == b->layer_step &&
           a->by_slot == b->by_slot && a->sum == b->sum && a->silent == b->silent &&
           a->sinks == b->sinks && a->window == b->window && a->chunk == b->chunk &&
           a->bias == b->bias && a->theta == b->theta;
}

bool cuda_measures_alike(const step_plan *plan)
{
    for (uint32_t i = 1; i < plan->n_seqs; i++)
        if (!cuda_is_alike(&plan->seqs[0].measure, &plan->seqs[i].measure)) return false;
    return true;
}

/* Fills in what the group says of a call. */
static void describe(const measure_spec *spec, gpu_measure *m)
{
    m->kind = kinds[spec->kind];
    m->sum = sums[spec->sum];
    m->window = spec->window;
    m->chunk = spec->chunk;
    m->add = spec->bias;
    m->theta = spec->theta;
    m->sinks = spec->sinks;
    m->out = spec->silent ? GPU_OUT_SUMS : spec->by_slot ? GPU_OUT_SLOTS : GPU_OUT_PAGES;
}

/* Describes the second measure of a spec, which returns its values in the second array. */
static void describe_second(const measure_spec *spec, gpu_measure *m)
{
    m->kind = kinds[spec->second];
    m->sum = GPU_SUM_NONE;
}

static bool has_second(const measure_spec *spec)
{
    return spec->second != MEASURE_NONE && measures_arrays(spec) == 2;
}

/* What a call measures, as far as its scratch depends on it. */
static gpu_measure measure_of(const backend_cuda *b, const measure_spec *spec)
{
    gpu_measure m = {.pages = b->pages,
                     .kv_heads = b->local.n_kv_heads,
                     .q_heads = b->local.n_heads / b->local.n_kv_heads,
                     .o = b->weights.layers[0].o};
    describe(spec, &m);
    return m;
}

/* Sets s->wave and returns the floats of scratch that are the sequence's own. */
static size_t size_scratch(const backend_cuda *b, const measure_spec *spec, gpu_measured *s)
{
    enum { ALIGNMENT = 64 };
    gpu_measure m = measure_of(b, spec);
    s->wave = gpu_measure_wave(&m, s);
    size_t floats = gpu_measure_scratch(&m, s);
    if (has_second(spec)) {
        describe_second(spec, &m);
        size_t second = gpu_measure_scratch(&m, s);
        if (floats < second) floats = second;
    }
    return (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t shared_scratch(const backend_cuda *b, const measure_spec *spec)
{
    gpu_measure m = measure_of(b, spec);
    size_t floats = gpu_measure_shared(&m);
    if (!has_second(spec)) return floats;
    describe_second(spec, &m);
    size_t second = gpu_measure_shared(&m);
    return floats < second ? second : floats;
}

/* The group for a sequence with so much scratch: the last of its kind, if it has room, or a new
 * one. A large sequence has a group of its own. */
static uint32_t find_group(backend_cuda *b, const measure_spec *spec, size_t scratch)
{
    cuda_measuring *m = &b->measuring;
    for (uint32_t i = m->n_groups; i > 0; i--) {
        const cuda_measure_group *group = &m->groups[i - 1];
        if (!cuda_is_alike(&group->spec, spec)) continue;
        if ((group->list.scratch + scratch) * sizeof(float) <= GPU_WEIGHT_BYTES) return i - 1;
        break;
    }
    m->groups[m->n_groups] =
        (cuda_measure_group){.spec = *spec, .list = {.scratch = shared_scratch(b, spec)}};
    return m->n_groups++;
}

/* The result's shape; its values get their place later. */
static measure_result result_of(const backend_cuda *b, const step_seq *s)
{
    return (measure_result){
        .n_layers = measure_layers(&b->info.geometry, s->measure.layer_step),
        .n_kv_heads = b->local.n_kv_heads,
        .stride = plan_longest_table(b->mirror, s->seq, s->measure.by_slot),
        .q_heads = b->config.n_heads / b->config.n_kv_heads,
    };
}

static uint32_t count_rows(const step_seq *s)
{
    const measure_spec *spec = &s->measure;
    if (spec->kind == MEASURE_EXPECTED)
        return s->n_tokens - measures_first_expected(spec, s->n_tokens, s->position);
    return spec->rows < s->n_tokens ? spec->rows : s->n_tokens;
}

/* The most bytes that a layer's attention keeps. Measures of further sequences read K again. */
enum { KEPT_BYTES = 256 << 20 };

/* Returns what attention keeps of a sequence whose rows are decode tiles. Nothing is kept of a
 * sequence that retrieves, whose rows may be other tiles. */
static gpu_kept keep_of(backend_cuda *b, const step_seq *s, uint32_t longest)
{
    cuda_measuring *m = &b->measuring;
    size_t kv_heads = b->local.n_kv_heads, rows = s->n_tokens * (b->local.n_heads / kv_heads);
    bool keeps = s->measure.kind == MEASURE_MASS && s->retrieval.block_tokens == 0 &&
                 cuda_goes_by_parts(b, s->n_tokens);
    gpu_kept k = {.at = m->n_kept,
                  .strips = (longest + GPU_KEPT_STRIP - 1) / GPU_KEPT_STRIP,
                  .slots = s->measure.by_slot};
    size_t floats = gpu_kept_floats(&k, kv_heads, rows);
    floats = (floats + GPU_KEPT_STRIP - 1) / GPU_KEPT_STRIP * GPU_KEPT_STRIP;
    if (!keeps || (m->n_kept + floats) * sizeof(float) > KEPT_BYTES) return (gpu_kept){0};
    m->n_kept += floats;
    return k;
}

static void add_seq(backend_cuda *b, const step_seq *s, uint32_t i)
{
    cuda_measuring *m = &b->measuring;
    measure_result *r = &b->seq_results[i].measure;
    gpu_measured *one = &m->seqs[i];
    uint32_t arrays = measures_arrays(&s->measure);
    *one = (gpu_measured){.seq = b->seqs[i],
                          .longest = plan_longest_table(b->mirror, s->seq, true),
                          .rows = count_rows(s),
                          .mean_rope = m->n_mean_ropes,
                          .values = m->n_values};
    one->kept = keep_of(b, s, one->longest);
    m->n_mean_ropes += s->measure.kind == MEASURE_EXPECTED;
    if (arrays) {
        *r = result_of(b, s);
        one->stride = r->stride;
        m->n_values += arrays * plan_measure_floats(r);
    }
    size_t own = size_scratch(b, &s->measure, one);
    m->group_of[i] = find_group(b, &s->measure, own);
    gpu_measure_add(&m->groups[m->group_of[i]].list, one, own);
    if (s->measure.sum != MEASURE_SUM_STEP) b->has_sums = true;
}

/* ---- a step's arrays ------------------------------------------------------------------------- */

size_t cuda_measures_bytes(const backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    size_t n = 0, expected = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        n += plan->seqs[i].measure.kind != MEASURE_NONE;
        expected += plan->seqs[i].measure.kind == MEASURE_EXPECTED;
    }
    return n * sizeof(gpu_measured) + (n ? batch->n_seqs : 0) * sizeof(gpu_kept) +
           expected * b->config.head_dim * sizeof(float);
}

/* Packs the mean rotation of the positions to come for each sequence with MEASURE_EXPECTED. */
static void pack_mean_ropes(backend_cuda *b, const step_plan *plan)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    uint32_t dim = b->config.head_dim;
    size_t bytes = (size_t)b->measuring.n_mean_ropes * dim * sizeof(float);
    float *mean_ropes = cuda_pack_take(&b->step, bytes, &b->measuring.memory.mean_ropes);
    if (bytes == 0) return;
    rope_frequencies(&b->config.rope, dim, inv_freq);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->measure.kind != MEASURE_EXPECTED) continue;
        measures_mean_rope(&b->config.rope, inv_freq, dim, s->position + s->n_tokens, mean_ropes);
        mean_ropes += dim;
    }
}

/* Packs the sequences group by group. */
static void pack_groups(backend_cuda *b, const step_plan *plan)
{
    cuda_measuring *m = &b->measuring;
    const gpu_measured *device;
    uint32_t n = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        m->groups[g].first = n;
        n += m->groups[g].list.n;
    }
    gpu_measured *host = cuda_pack_take(&b->step, n * sizeof *host, &device);
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].measure.kind != MEASURE_NONE)
            host[m->groups[m->group_of[i]].first++] = m->seqs[i];
    for (uint32_t g = 0; g < m->n_groups; g++)
        m->groups[g].list.seqs = device + m->groups[g].first - m->groups[g].list.n;
}

/* Packs what is kept of each sequence of the batch, nothing of padding rows. */
static void pack_kept(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    cuda_measuring *m = &b->measuring;
    gpu_kept *kept = cuda_pack_take(&b->step, batch->n_seqs * sizeof *kept, &m->memory.kept_of);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        bool is_measured = i < plan->n_seqs && plan->seqs[i].measure.kind != MEASURE_NONE;
        kept[i] = is_measured ? m->seqs[i].kept : (gpu_kept){0};
    }
}

/* Rounds up the slots that the calls of a group go over, so that steps share shapes. */
static void round_slots(cuda_measure_group *group)
{
    enum { SLOTS = 64 };
    uint32_t n = (group->list.longest + SLOTS - 1) / SLOTS;
    group->list.longest = cuda_graphs_round(n, CUDA_SHAPE_STEPS) * SLOTS;
}

void cuda_measures_pack(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    cuda_measuring *m = &b->measuring;
    m->n_groups = m->n_mean_ropes = 0;
    m->n_values = m->n_kept = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        b->seq_results[i] = (step_seq_result){0};
        if (plan->seqs[i].measure.kind != MEASURE_NONE) add_seq(b, &plan->seqs[i], i);
    }
    if (m->n_groups > 1) batch->repeats = false;
    if (m->n_groups == 1 && batch->repeats) round_slots(&m->groups[0]);
    pack_mean_ropes(b, plan);
    pack_groups(b, plan);
    m->memory.kept_of = NULL;
    if (m->n_kept > 0) pack_kept(b, plan, batch);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Grows memory on the device that kernels in flight may still use, by more than is asked for: it
 * waits, and graphs of launches that had the old memory are of no more use. Its content is lost. */
static status reserve(cuda_measuring *m, cuda_device *d, float **memory, size_t *capacity,
                      size_t floats)
{
    if (floats <= *capacity) return STATUS_IS_OK;
    m->n_moved++;
    RETURN_IF_ERROR(cuda_wait(d));
    if (*memory) d->api->release(d->g, *memory);
    *memory = NULL;
    *capacity = 0;
    floats += floats / 2;
    void *grown;
    RETURN_IF_GPU_ERROR(d->api->alloc(d->g, floats * sizeof(float), &grown));
    *memory = grown;
    *capacity = floats;
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

/* Makes room for results: of the flight's own on the host, where they stay until its next step, and
 * of any step's on the device, which they leave before the next step's kernels. These start as
 * zeros, because layers without measures write nothing. */
static status reserve_results(backend_cuda *b)
{
    cuda_measuring *m = &b->measuring;
    measured *host = &b->flight->measured;
    RETURN_IF_ERROR(reserve(m, &b->device, &m->memory.values, &m->values_capacity, m->n_values));
    host->alloc = alloc_pinned;
    host->release = release_pinned;
    host->ctx = &b->device;
    RETURN_IF_ERROR(measured_reserve(host, m->n_values));
    return cuda_status(
        b->device.api->clear(b->device.g, m->memory.values, m->n_values * sizeof(float)));
}

status cuda_measures_reserve(backend_cuda *b, const step_plan *plan)
{
    cuda_measuring *m = &b->measuring;
    for (uint32_t g = 0; g < m->n_groups; g++)
        RETURN_IF_ERROR(reserve(m, &b->device, &m->memory.scratch, &m->scratch_capacity,
                                m->groups[g].list.scratch));
    RETURN_IF_ERROR(reserve(m, &b->device, &m->memory.kept, &m->kept_capacity, m->n_kept));
    if (m->n_values == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(reserve_results(b));
    measured_block *block = b->flight->measured.first;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        if (measures_arrays(&plan->seqs[i].measure) == 0) continue;
        b->seq_results[i].measure.values = block->values + m->seqs[i].values;
        b->seq_results[i].measure.holders = &block->holders;
    }
    return STATUS_IS_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static status measure_group(const backend_cuda *b, const cuda_measure_group *group, uint32_t layer,
                            gpu_measure *m)
{
    const cuda_device *d = &b->device;
    const measure_spec *spec = &group->spec;
    uint32_t row = measure_layer_of(&b->info.geometry, layer, spec->layer_step);
    if (row == MEASURE_NO_LAYER) return STATUS_IS_OK;
    describe(spec, m);
    m->list = group->list;
    m->array = row;
    RETURN_IF_GPU_ERROR(d->api->measure(d->g, m));
    if (!has_second(spec)) return STATUS_IS_OK;
    describe_second(spec, m);
    m->array = measure_layers(&b->info.geometry, spec->layer_step) + row;
    return cuda_status(d->api->measure(d->g, m));
}

static void keep_layer(void *ctx, uint32_t layer, gpu_attention *a)
{
    const backend_cuda *b = ctx;
    const cuda_measuring *m = &b->measuring;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const cuda_measure_group *group = &m->groups[g];
        uint32_t row = measure_layer_of(&b->info.geometry, layer, group->spec.layer_step);
        if (group->list.n_kept == 0 || row == MEASURE_NO_LAYER) continue;
        a->kept = m->memory.kept;
        a->kept_of = m->memory.kept_of;
    }
}

static status measure_layer(void *ctx, uint32_t layer, gpu_measure *m)
{
    const backend_cuda *b = ctx;
    m->mean_ropes = b->measuring.memory.mean_ropes;
    m->values = b->measuring.memory.values;
    m->scratch = b->measuring.memory.scratch;
    for (uint32_t g = 0; g < b->measuring.n_groups; g++)
        RETURN_IF_ERROR(measure_group(b, &b->measuring.groups[g], layer, m));
    return STATUS_IS_OK;
}

void cuda_measures_join(backend_cuda *b, cuda_batch *batch)
{
    const cuda_measuring *m = &b->measuring;
    if (m->n_groups == 0) return;
    batch->wants_lse = true;
    batch->keep = keep_layer;
    batch->measure = measure_layer;
    batch->ctx = b;
    batch->measured = m->groups[0];
    batch->measures = m->memory;
    batch->moved += m->n_moved;
}

status cuda_fetch_measures(backend_cuda *b)
{
    size_t bytes = b->measuring.n_values * sizeof(float);
    if (bytes == 0) return STATUS_IS_OK;
    return cuda_status(b->device.api->copy_out(b->device.g, b->flight->measured.first->values,
                                               b->measuring.memory.values, bytes));
}

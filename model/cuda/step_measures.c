/* Lists the measures that a step makes beside its attention. Measures of one kind form a group, and
 * one call makes all of them in a layer. The list on the device says of each sequence where results
 * go, whether they are sums, and in which layers they are made. */
#include "model/cuda/backend.h"
#include "model/measures.h"
#include "model/plan.h"
#include "model/rope.h"

#include <stdlib.h>
#include <string.h>

/* The most measures of a share. */
enum { MEASURES_OF_SEQ = 2 };

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
    m->groups = calloc(MEASURES_OF_SEQ * (size_t)max_seqs, sizeof *m->groups);
    m->all = calloc(MEASURES_OF_SEQ * (size_t)max_seqs, sizeof *m->all);
    if (m->groups && m->all) return STATUS_IS_OK;
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
    free(m->all);
}

/* ---- groups ---------------------------------------------------------------------------------- */

int cuda_compare_groups(const cuda_measure_group *a, const cuda_measure_group *b)
{
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->sinks != b->sinks) return a->sinks < b->sinks ? -1 : 1;
    if (a->window != b->window) return a->window < b->window ? -1 : 1;
    if (a->chunk != b->chunk) return a->chunk < b->chunk ? -1 : 1;
    if (a->add != b->add) return a->add < b->add ? -1 : 1;
    return a->theta < b->theta ? -1 : a->theta > b->theta;
}

/* An empty group for a measure of a spec: its first or its second one. */
static cuda_measure_group group_for(const measure_spec *spec, measure_kind kind)
{
    bool pooled = kind == MEASURE_PROJECTION_POOLED;
    bool outside = pooled || kind == MEASURE_PROJECTION_OUTSIDE;
    bool projects = outside || kind == MEASURE_PROJECTION;
    return (cuda_measure_group){.kind = kinds[kind],
                                .step = spec->layer_step,
                                .sinks = kind == MEASURE_EXPECTED ? spec->sinks : 0,
                                .window = outside ? spec->window : 0,
                                .chunk = pooled ? spec->chunk : 0,
                                .add = projects ? spec->bias : 0.0f,
                                .theta = projects ? spec->theta : 0.0f};
}

/* Fills in what the group says of a call. */
static void describe(const cuda_measure_group *group, gpu_measure *m)
{
    m->kind = group->kind;
    m->sinks = group->sinks;
    m->window = group->window;
    m->chunk = group->chunk;
    m->add = group->add;
    m->theta = group->theta;
    m->list = group->list;
}

/* The fields of the group's call on which its scratch depends. */
static gpu_measure measure_of(const backend_cuda *b, const cuda_measure_group *group)
{
    gpu_measure m = {.pages = b->pages,
                     .kv_heads = b->local.n_kv_heads,
                     .q_heads = b->local.n_heads / b->local.n_kv_heads,
                     .o = b->weights.layers[0].o};
    describe(group, &m);
    return m;
}

/* The group for a measure with so much scratch: the last of those like it, if it has room, or a new
 * one behind them. A large sequence has a group of its own. Groups are in the order of what they
 * measure, which the order of the shares does not change. */
static uint32_t find_group(backend_cuda *b, const cuda_measure_group *empty, size_t scratch)
{
    cuda_measuring *m = &b->measuring;
    gpu_measure call = measure_of(b, empty);
    uint32_t at = m->n_groups;
    while (at > 0 && cuda_compare_groups(empty, &m->groups[at - 1]) < 0) at--;
    const cuda_measure_group *last = at > 0 ? &m->groups[at - 1] : NULL;
    if (last && cuda_compare_groups(empty, last) == 0 &&
        (last->list.scratch + scratch) * sizeof(float) <= GPU_WEIGHT_BYTES)
        return at - 1;
    memmove(&m->groups[at + 1], &m->groups[at], (m->n_groups++ - at) * sizeof *m->groups);
    for (uint32_t i = 0; i < m->n_all; i++) m->all[i].group += m->all[i].group >= at;
    m->groups[at] = *empty;
    m->groups[at].list.scratch = gpu_measure_shared(&call);
    return at;
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

/* Adds a measure of a share to the group for it. */
static void add_measure(backend_cuda *b, const measure_spec *spec, measure_kind kind,
                        const cuda_measured *like)
{
    enum { ALIGNMENT = 64 };
    cuda_measuring *m = &b->measuring;
    cuda_measured *one = &m->all[m->n_all++];
    cuda_measure_group empty = group_for(spec, kind);
    gpu_measure call = measure_of(b, &empty);
    *one = *like;
    one->of.wave = gpu_measure_wave(&call, &one->of);
    size_t own = gpu_measure_scratch(&call, &one->of);
    own = (own + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint32_t number = find_group(b, &empty, own);
    one->group = number;
    cuda_measure_group *group = &m->groups[number];
    if (group->step != empty.step) group->step = 1;
    gpu_measure_add(&call, &group->list, &one->of, own);
}

/* Adds what a share measures: its second measure has the arrays behind those of the first one. */
static void add_share(backend_cuda *b, const step_seq *s, uint32_t i)
{
    cuda_measuring *m = &b->measuring;
    const measure_spec *spec = &s->measure;
    measure_result *r = &b->seq_results[i].measure;
    uint32_t arrays = measures_arrays(spec);
    cuda_measured one = {.share = i,
                         .of = {.longest = plan_longest_table(b->mirror, s->seq, true),
                                .rows = count_rows(s),
                                .mean_rope = m->n_mean_ropes,
                                .step = spec->layer_step,
                                .sum = sums[spec->sum],
                                .out = spec->silent    ? GPU_OUT_SUMS
                                       : spec->by_slot ? GPU_OUT_SLOTS
                                                       : GPU_OUT_PAGES,
                                .values = m->n_values}};
    one.of.kept = keep_of(b, s, one.of.longest);
    m->n_mean_ropes += spec->kind == MEASURE_EXPECTED;
    if (arrays) {
        *r = result_of(b, s);
        one.of.stride = r->stride;
        m->n_values += arrays * plan_measure_floats(r);
    }
    add_measure(b, spec, spec->kind, &one);
    if (spec->sum != MEASURE_SUM_STEP) b->has_sums = true;
    if (arrays < 2) return;
    one.of.arrays = measure_layers(&b->info.geometry, spec->layer_step);
    one.of.sum = GPU_SUM_NONE;
    add_measure(b, spec, spec->second, &one);
}

/* Makes the calls of a step that repeats equal to those of other steps: sequences that are not
 * measured fill up each list, and few lengths are told apart. A group of which attention kept all
 * has no length. */
static void round_group(cuda_measure_group *group, uint32_t n_seqs)
{
    enum { SLOTS = 64 };
    gpu_measured_list *list = &group->list;
    list->n = n_seqs;
    if (list->longest == 0) return;
    uint32_t n = (list->longest + SLOTS - 1) / SLOTS;
    list->longest = cuda_graphs_round(n, CUDA_SHAPE_STEPS) * SLOTS;
    list->rows = list->wave = list->waves = 1;
}

void cuda_measures_plan(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    cuda_measuring *m = &b->measuring;
    m->n_groups = m->n_all = m->n_mean_ropes = 0;
    m->n_values = m->n_kept = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        b->seq_results[i] = (step_seq_result){0};
        if (plan->seqs[i].measure.kind != MEASURE_NONE) add_share(b, &plan->seqs[i], i);
    }
    if (m->n_groups > CUDA_MEASURE_GROUPS) batch->repeats = false;
    for (uint32_t g = 0; batch->repeats && g < m->n_groups; g++)
        round_group(&m->groups[g], batch->n_seqs);
}

/* ---- a step's arrays ------------------------------------------------------------------------- */

/* Mean rotations of the step, with those of all sequences that a step like it may have. */
static size_t count_ropes(const cuda_measuring *m, const cuda_batch *batch)
{
    return batch->repeats && m->n_mean_ropes > 0 ? batch->n_seqs : m->n_mean_ropes;
}

static size_t count_listed(const cuda_measuring *m)
{
    size_t n = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) n += m->groups[g].list.n;
    return n;
}

size_t cuda_measures_bytes(const backend_cuda *b, const cuda_batch *batch)
{
    const cuda_measuring *m = &b->measuring;
    return count_listed(m) * sizeof(gpu_measured) +
           (m->n_kept ? batch->n_seqs : 0) * sizeof(gpu_kept) +
           count_ropes(m, batch) * b->config.head_dim * sizeof(float);
}

/* Packs the mean rotation of the positions to come for each sequence with MEASURE_EXPECTED. */
static void pack_mean_ropes(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    float inv_freq[MODEL_HEAD_DIM_MAX / 2];
    uint32_t dim = b->config.head_dim;
    size_t n = count_ropes(&b->measuring, batch) * dim;
    float *mean_ropes =
        cuda_pack_take(&b->step, n * sizeof *mean_ropes, &b->measuring.memory.mean_ropes);
    if (n == 0) return;
    memset(mean_ropes, 0, n * sizeof *mean_ropes);
    rope_frequencies(&b->config.rope, dim, inv_freq);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (s->measure.kind != MEASURE_EXPECTED) continue;
        measures_mean_rope(&b->config.rope, inv_freq, dim, s->position + s->n_tokens, mean_ropes);
        mean_ropes += dim;
    }
}

/* Packs the sequences group by group. */
static void pack_groups(backend_cuda *b)
{
    cuda_measuring *m = &b->measuring;
    const gpu_measured *device;
    gpu_measured *host = cuda_pack_take(&b->step, count_listed(m) * sizeof *host, &device), *end;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        gpu_measured_list *list = &m->groups[g].list;
        list->seqs = device;
        device += list->n;
        end = host + list->n;
        for (uint32_t i = 0; i < m->n_all; i++) {
            if (m->all[i].group != g) continue;
            *host = m->all[i].of;
            host++->seq = b->seqs[m->all[i].share];
        }
        while (host < end) *host++ = (gpu_measured){.work = list->work};
    }
}

/* Packs what is kept of each sequence of the batch, nothing of padding rows. */
static void pack_kept(backend_cuda *b, const cuda_batch *batch)
{
    cuda_measuring *m = &b->measuring;
    gpu_kept *kept = cuda_pack_take(&b->step, batch->n_seqs * sizeof *kept, &m->memory.kept_of);
    memset(kept, 0, batch->n_seqs * sizeof *kept);
    for (uint32_t i = 0; i < m->n_all; i++)
        if (m->all[i].of.kept.strips) kept[m->all[i].share] = m->all[i].of.kept;
}

void cuda_measures_pack(backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    cuda_measuring *m = &b->measuring;
    pack_groups(b);
    pack_mean_ropes(b, plan, batch);
    m->memory.kept_of = NULL;
    if (m->n_kept > 0) pack_kept(b, batch);
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
    for (uint32_t i = 0; i < m->n_all; i++) {
        const cuda_measured *one = &m->all[i];
        if (measures_arrays(&plan->seqs[one->share].measure) == 0) continue;
        b->seq_results[one->share].measure.values = block->values + one->of.values;
        b->seq_results[one->share].measure.holders = &block->holders;
    }
    return STATUS_IS_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The number of the layer among those that select, or MEASURE_NO_LAYER. */
static uint32_t selecting_of(const backend_cuda *b, uint32_t layer)
{
    return measure_layer_of(&b->info.geometry, layer, 1);
}

static bool is_due(const cuda_measure_group *group, uint32_t selecting)
{
    return selecting != MEASURE_NO_LAYER && selecting % group->step == 0;
}

static void keep_layer(void *ctx, uint32_t layer, gpu_attention *a)
{
    const backend_cuda *b = ctx;
    const cuda_measuring *m = &b->measuring;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        if (m->groups[g].list.n_kept == 0 || !is_due(&m->groups[g], selecting_of(b, layer)))
            continue;
        a->kept = m->memory.kept;
        a->kept_of = m->memory.kept_of;
    }
}

static status measure_layer(void *ctx, uint32_t layer, gpu_measure *m)
{
    const backend_cuda *b = ctx;
    const cuda_device *d = &b->device;
    const cuda_measuring *all = &b->measuring;
    m->mean_ropes = all->memory.mean_ropes;
    m->values = all->memory.values;
    m->scratch = all->memory.scratch;
    m->selecting = selecting_of(b, layer);
    for (uint32_t g = 0; g < all->n_groups; g++) {
        if (!is_due(&all->groups[g], m->selecting)) continue;
        describe(&all->groups[g], m);
        RETURN_IF_GPU_ERROR(d->api->measure(d->g, m));
    }
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
    batch->n_measured = m->n_groups < CUDA_MEASURE_GROUPS ? m->n_groups : CUDA_MEASURE_GROUPS;
    memcpy(batch->measured, m->groups, batch->n_measured * sizeof *batch->measured);
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

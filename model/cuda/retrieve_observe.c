#include "model/cuda/retrieve_observe.h"

#include "model/plan.h"

#include <stdlib.h>

void cuda_endings_free(backend_cuda *b, cuda_endings *e)
{
    if (e->scratch) b->device.api->release(b->device.g, e->scratch);
    free(e->all);
    *e = (cuda_endings){0};
}

static bool ends(const backend_cuda *b, const step_seq *s)
{
    return s->retrieval.block_tokens && retrieval_observed_rows(&s->retrieval, s->n_prompt) > 0 &&
           plan_longest_table(b->mirror, s->seq, true) == s->n_prompt;
}

/* Floats of the masses and as many keys; then of pooled masses. */
static size_t slots_of(const backend_cuda *b, uint32_t n_prompt)
{
    return (size_t)b->local.n_kv_heads * n_prompt;
}

static status reserve(backend_cuda *b, cuda_endings *e, size_t bytes)
{
    void *grown;
    if (bytes <= e->bytes) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_wait(&b->device)); /* kernels in flight may use it */
    if (e->scratch) b->device.api->release(b->device.g, e->scratch);
    e->scratch = NULL;
    e->bytes = 0;
    RETURN_IF_GPU_ERROR(b->device.api->alloc(b->device.g, bytes, &grown));
    e->scratch = grown;
    e->bytes = bytes;
    return STATUS_IS_OK;
}

status cuda_endings_start(backend_cuda *b, const step_plan *plan, cuda_lists *lists,
                          cuda_endings *e)
{
    uint32_t longest = 0;
    e->n = 0;
    if (e->capacity < plan->n_seqs) {
        free(e->all);
        e->all = calloc(b->info.max_seqs, sizeof *e->all);
        e->capacity = e->all ? b->info.max_seqs : 0;
        if (!e->all) return status_make(STATUS_NO_MEMORY, "prompts that end");
    }
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        if (!ends(b, s)) continue;
        struct cuda_ending ending = {.seq = i};
        RETURN_IF_ERROR(cuda_lists_observe(b, lists, s, &ending.end));
        if (!ending.end.left_out && !ending.end.chosen) continue;
        e->all[e->n++] = ending;
        if (s->n_prompt > longest) longest = s->n_prompt;
    }
    /* A block has 16 tokens or more. */
    return reserve(b, e, slots_of(b, longest) * (2 * sizeof(float) + sizeof(float) / 4));
}

static status observe(const backend_cuda *b, const cuda_endings *e, uint32_t i, uint32_t layer,
                      const gpu_attention *a)
{
    const struct cuda_ending *ending = &e->all[i];
    const step_seq *s = &b->plan->seqs[ending->seq];
    const retrieval_spec *spec = &s->retrieval;
    retrieval_spec plain = *spec;
    plain.preselect_blocks = 0;
    retrieval_extent extent = retrieval_extent_of(&plain, s->n_prompt, s->n_prompt);
    size_t slots = slots_of(b, s->n_prompt);
    float *mass = (float *)(void *)e->scratch;
    gpu_measure m = {.pages = a->pages,
                     .tables = a->tables,
                     .layer = a->layer,
                     .lengths = a->lengths,
                     .one = {.seq = b->seqs[ending->seq],
                             .longest = s->n_prompt,
                             .rows = retrieval_observed_rows(spec, s->n_prompt),
                             .stride = s->n_prompt,
                             .step = 1,
                             .out = GPU_OUT_SLOTS},
                     .kv_heads = a->kv_heads,
                     .q_heads = a->q_heads,
                     .kind = GPU_MEASURE_MASS,
                     .scale = a->scale,
                     .q = a->q,
                     .lse = a->lse,
                     .values = mass};
    gpu_measure_add(&m, &m.list, &m.one, 0);
    RETURN_IF_GPU_ERROR(b->device.api->measure(b->device.g, &m));
    gpu_observed o = {.mass = mass,
                      .n_prompt = s->n_prompt,
                      .block_tokens = spec->block_tokens,
                      .kv_heads = a->kv_heads,
                      .together = retrieval_heads_together(spec, &b->info.geometry),
                      .number = layer,
                      .first = extent.first,
                      .end = extent.end,
                      .n_left = ending->end.left_out ? spec->preselect_blocks : 0,
                      .left_out = ending->end.left_out,
                      .n_chosen = ending->end.chosen ? spec->representative_num : 0,
                      .chosen = ending->end.chosen,
                      .keys = (uint32_t *)(void *)(mass + slots),
                      .pooled = mass + 2 * slots};
    return cuda_status(b->device.api->observe(b->device.g, &o));
}

status cuda_endings_layer(const backend_cuda *b, const cuda_endings *e, uint32_t layer,
                          const gpu_attention *a)
{
    for (uint32_t i = 0; i < e->n; i++) {
        const retrieval_spec *spec = &b->plan->seqs[e->all[i].seq].retrieval;
        if (retrieval_layer_leader(spec, &b->info.geometry, layer) == layer)
            RETURN_IF_ERROR(observe(b, e, i, layer, a));
    }
    return STATUS_IS_OK;
}

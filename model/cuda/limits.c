/* Draws with limits, of ranks that have a part of the vocabulary each: what they gather, and in
 * which order. How many rounds that takes follows from the kinds of draws alone, never from logits,
 * so that nothing passes the host and a graph has it all. */
#include "model/cuda/backend.h"

size_t cuda_limits_bytes(size_t ranks)
{
    return (1 + ranks) * (sizeof(gpu_opening) + sizeof(gpu_bins)) + sizeof(gpu_search);
}

status cuda_limits_create(backend_cuda *b, size_t ranks)
{
    cuda_device *d = &b->device;
    cuda_limits *l = &b->limits;
    size_t n = b->head_rows;
    RETURN_IF_ERROR(cuda_alloc(d, n * sizeof *l->openings, &l->openings));
    RETURN_IF_ERROR(cuda_alloc(d, ranks * n * sizeof *l->openings, &l->all_openings));
    RETURN_IF_ERROR(cuda_alloc(d, n * sizeof *l->bins, &l->bins));
    RETURN_IF_ERROR(cuda_alloc(d, ranks * n * sizeof *l->bins, &l->all_bins));
    return cuda_alloc(d, n * sizeof *l->searches, &l->searches);
}

void cuda_limits_destroy(backend_cuda *b)
{
    const cuda_limits *l = &b->limits;
    void *const all[] = {l->openings, l->all_openings, l->bins, l->all_bins, l->searches};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) b->device.api->release(b->device.g, all[i]);
}

static status gather_words(backend_cuda *b, const void *words, size_t bytes, void *out)
{
    return cuda_gather_here(&b->device, words, bytes / sizeof(float), out);
}

status cuda_limits_draw(backend_cuda *b, const gpu_sampling *job, uint32_t kinds, gpu_part *parts)
{
    const cuda_device *d = &b->device;
    cuda_limits *l = &b->limits;
    gpu_joint j = {.rank = (uint32_t)comm_rank(d->group),
                   .ranks = (uint32_t)comm_size(d->group),
                   .openings = l->all_openings,
                   .bins = l->all_bins,
                   .searches = l->searches};
    uint32_t behind = 0;
    RETURN_IF_ERROR(gather_words(b, l->openings, job->n * sizeof *l->openings, l->all_openings));
    for (; j.round < GPU_ROUNDS; j.round++) {
        if (!(kinds & GPU_KIND_OF_ROUND(j.round))) continue;
        RETURN_IF_GPU_ERROR(d->api->search(d->g, job, &j, l->bins));
        RETURN_IF_ERROR(gather_words(b, l->bins, job->n * sizeof *l->bins, l->all_bins));
        behind = j.round + 1;
    }
    j.round = behind;
    return cuda_status(d->api->draw_kept(d->g, job, &j, parts));
}

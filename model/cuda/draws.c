/* Draws on the device. The sampler keeps parameters and histories; each draw carries a copy. Each
 * of several ranks makes all draws, from the same words on the device: from what every rank finds
 * in its part of a row, or from the whole row where the draw has logprobs.
 *
 * A step that only decodes draws among the launches of its forward pass, which may be a graph: then
 * row i of the batch has draw i, and padding rows have draws that do nothing. Other steps gather
 * the rows that they draw from. */
#include "model/cuda/backend.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(sizeof(gpu_drawn) == sizeof(step_sample), "one layout");
_Static_assert(sizeof(gpu_edit) == sizeof(sampler_edit), "one layout");

/* The arrays of one step's draws in the pack. */
typedef struct draw_arrays {
    uint32_t *rows, *masks; /* NULL where the drawing has none */
    gpu_draw *draws;
    gpu_edit *edits;
    uint32_t *words; /* of the masks, one behind the other */
} draw_arrays;

/* ---- the list -------------------------------------------------------------------------------- */

void cuda_list_draws(backend_cuda *b, const float *row)
{
    cuda_flight *f = b->flight;
    f->n_draws = f->n_rows = 0;
    for (uint32_t i = 0; i < f->plan->n_seqs; i++) {
        const step_seq *s = &f->plan->seqs[i];
        if (!s->n_samples) continue;
        f->rows[f->n_rows++] = i;
        f->drawn_at[i] = f->n_draws;
        f->seq_results[i].samples = &f->samples[f->n_draws];
        f->seq_results[i].n_samples = s->n_samples;
        for (uint32_t j = 0; j < s->n_samples; j++, f->n_draws++)
            f->draws[f->n_draws] = (sampler_draw){.seq = s->seq,
                                                  .choice = s->choice + j,
                                                  .sample_index = s->sample_index,
                                                  .own = j == 0,
                                                  .logits = row,
                                                  .mask = s->n_mask_words ? s->mask : NULL,
                                                  .out = &f->samples[f->n_draws]};
        if (row) row += b->config.vocab_size;
    }
}

/* ---- what goes to the device ----------------------------------------------------------------- */

/* Where `drawn` has the results of a flight. */
static uint32_t first_result(const backend_cuda *b, const cuda_flight *f)
{
    return (uint32_t)(f - b->flights) * step_most_draws(b->info.max_seqs);
}

uint32_t cuda_draw_before(const backend_cuda *b, const step_seq *share)
{
    const cuda_flight *before = &b->flights[b->flight == b->flights];
    if (!share->token_from) return 0;
    return 1 + first_result(b, before) + before->drawn_at[share->token_from - 1];
}

static uint32_t count_edits(const backend_cuda *b)
{
    uint64_t key;
    uint32_t total = 0;
    for (uint32_t i = 0; i < b->flight->n_draws; i++) {
        sampler_edits n;
        (void)sampler_describe(b->sampler, &b->flight->draws[i], &key, NULL, &n);
        total += n.n_banned + n.n_biased + n.n_seen;
    }
    return total;
}

static uint32_t count_masks(const cuda_flight *f)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < f->n_rows; k++) n += f->plan->seqs[f->rows[k]].n_mask_words > 0;
    return n;
}

/* Whether row i of the batch has draw i: all rows decode, none has several draws, and nothing that
 * the host needs comes between the layers and the draws. */
static bool are_in_order(const backend_cuda *b)
{
    const cuda_flight *f = b->flight;
    bool in_order = f->batch.rounds && !f->defers;
    for (uint32_t k = 0; in_order && k < f->n_rows; k++)
        in_order = f->plan->seqs[f->rows[k]].n_samples == 1;
    return in_order;
}

static gpu_draw describe_draw(const backend_cuda *b, const sampler_draw *d, gpu_edit *edits,
                              uint32_t *n_edits)
{
    gpu_draw out = {.sample_index = d->sample_index, .given = GPU_NO_TOKEN};
    sampler_edits n;
    sampler_edit *at = (sampler_edit *)(void *)(edits + *n_edits);
    const sample_params *p = sampler_describe(b->sampler, d, &out.key, at, &n);
    out.first_edit = *n_edits;
    out.n_banned = n.n_banned;
    out.n_biased = n.n_biased;
    out.n_seen = n.n_seen;
    out.top_k = p->top_k;
    out.temperature = p->temperature;
    out.top_p = p->top_p;
    out.log_min_p = p->min_p > 0 ? logf(p->min_p) : -INFINITY;
    out.presence = p->presence_penalty;
    out.frequency = p->frequency_penalty;
    out.repetition = p->repetition_penalty;
    out.n_logprobs = p->n_logprobs;
    bool by_parts = !cuda_is_alone(&b->device) && p->n_logprobs < 0;
    if (by_parts) out.by_parts = gpu_draw_by_parts(&out);
    *n_edits += n.n_banned + n.n_biased + n.n_seen;
    return out;
}

/* Sets the draws of row k, from draws[at] on. */
static void pack_row(const backend_cuda *b, uint32_t k, uint32_t row, uint32_t at,
                     uint32_t *n_edits, draw_arrays *a, cuda_drawing *of)
{
    const cuda_flight *f = b->flight;
    const step_seq *s = &f->plan->seqs[f->rows[k]];
    for (uint32_t j = 0; j < s->n_samples; j++) {
        uint32_t i = f->drawn_at[f->rows[k]] + j;
        gpu_draw *d = &a->draws[at + j];
        *d = describe_draw(b, &f->draws[i], a->edits, n_edits);
        d->row = row % b->head_rows;
        d->result = first_result(b, f) + i;
        /* The sampler's history lacks the token that the step before is still drawing. It was
         * drawn where collect computes this step. */
        if (d->n_seen && !f->defers) d->last = cuda_draw_before(b, s);
        if (d->by_parts) of->by_parts |= d->by_parts;
        else of->whole = true;
    }
}

static void pack_mask(const backend_cuda *b, const step_seq *s, uint32_t *mask, draw_arrays *a)
{
    size_t n = step_mask_words(b->config.vocab_size);
    if (!s->n_mask_words) return;
    *mask = 1 + (uint32_t)(a->words - (uint32_t *)(void *)a->edits);
    memcpy(a->words, s->mask, n * sizeof *a->words);
    a->words += n;
}

/* Fills in the arrays, and what kinds of draws there are. */
static void pack_draws(backend_cuda *b, draw_arrays *a, cuda_drawing *d)
{
    const cuda_flight *f = b->flight;
    uint32_t n_edits = 0, n_draws = 0;
    for (uint32_t i = 0; i < d->n_rows && !d->rows; i++) a->draws[i].row = GPU_NO_DRAW;
    if (a->masks) memset(a->masks, 0, d->n_rows * sizeof *a->masks);
    for (uint32_t k = 0; k < f->n_rows; k++) {
        const step_seq *s = &f->plan->seqs[f->rows[k]];
        uint32_t last = s->first_token + s->n_tokens - 1, row = d->rows ? k : last;
        if (d->rows) a->rows[k] = last;
        pack_row(b, k, row, d->rows ? n_draws : row, &n_edits, a, d);
        n_draws += s->n_samples;
        if (a->masks) pack_mask(b, s, &a->masks[row], a);
    }
}

static size_t bytes_of(size_t n_rows, size_t n_draws)
{
    return 2 * n_rows * sizeof(uint32_t) + n_draws * sizeof(gpu_draw) + 5 * 64;
}

status cuda_draws_reserve(backend_cuda *b, uint32_t n)
{
    return cuda_pack_begin(&b->device, &b->draws, bytes_of(n, n));
}

/* Takes the arrays, those whose sizes do not follow from the shape last. */
static draw_arrays take_arrays(backend_cuda *b, cuda_drawing *d, bool in_order, size_t n_edits,
                               size_t n_masks)
{
    draw_arrays a = {0};
    const uint32_t *d_words;
    size_t words = n_masks * step_mask_words(b->config.vocab_size);
    if (!in_order) a.rows = cuda_pack_take(&b->draws, d->n_rows * sizeof *a.rows, &d->rows);
    if (n_masks) a.masks = cuda_pack_take(&b->draws, d->n_rows * sizeof *a.masks, &d->masks);
    a.draws = cuda_pack_take(&b->draws, d->n_draws * sizeof *a.draws, &d->draws);
    a.edits = cuda_pack_take(&b->draws, n_edits * sizeof *a.edits, &d->edits);
    a.words = cuda_pack_take(&b->draws, words * sizeof *a.words, &d_words);
    return a;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Some rows of a drawing, at most head_rows, and their draws. */
typedef struct chunk {
    uint32_t row, n_rows, first, n;
} chunk;

/* The chunk behind `c`, at first behind one of zeros. */
static chunk next_chunk(const backend_cuda *b, const cuda_drawing *d, const chunk *c)
{
    const cuda_flight *f = b->flight;
    chunk out = {.row = c->row + c->n_rows, .first = c->first + c->n};
    uint32_t left = d->n_rows - out.row;
    out.n_rows = left < b->head_rows ? left : b->head_rows;
    if (!d->rows) out.n = out.n_rows;
    for (uint32_t k = 0; d->rows && k < out.n_rows; k++)
        out.n += f->plan->seqs[f->rows[out.row + k]].n_samples;
    return out;
}

/* Makes whole rows of all ranks' parts. */
static status join_rows(backend_cuda *b, uint32_t n, float **logits)
{
    cuda_device *d = &b->device;
    size_t slice = b->weights.head.n;
    if (cuda_is_alone(d)) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_gather_here(d, *logits, n * slice, b->draw_scratch));
    *logits = b->joined;
    return cuda_status(
        d->api->join(d->g, b->draw_scratch, n, slice, b->config.vocab_size, b->joined));
}

/* Finds this rank's parts of some draws. */
static status draw_parts(backend_cuda *b, const gpu_sampling *job, uint32_t kinds, gpu_part *parts)
{
    RETURN_IF_GPU_ERROR(b->device.api->draw_parts(b->device.g, job, parts, b->limits.openings));
    return kinds & GPU_LIMITED ? cuda_limits_draw(b, job, kinds, parts) : STATUS_IS_OK;
}

/* Makes the chunk's draws from its rows, or the parts of those by parts, head_rows at a time: so
 * many have room in the scratch. */
static status draw_some(backend_cuda *b, const cuda_drawing *d, const chunk *c, bool by_parts,
                        const float *logits)
{
    const gpu_api *api = b->device.api;
    uint32_t slice = (uint32_t)b->weights.head.n, vocab = b->config.vocab_size;
    uint32_t first = b->slice.first_token < vocab ? b->slice.first_token : vocab;
    gpu_sampling job = {.logits = logits,
                        .n_vocab = vocab,
                        .stride = vocab,
                        .edits = d->edits,
                        .scratch = b->draw_scratch,
                        .drawn = b->drawn};
    if (by_parts) {
        job.first = first;
        job.n_vocab = vocab - first < slice ? vocab - first : slice;
        job.stride = slice;
    }
    for (uint32_t done = 0; done < c->n; done += b->head_rows) {
        job.draws = d->draws + c->first + done;
        job.n = c->n - done < b->head_rows ? c->n - done : b->head_rows;
        if (!by_parts) RETURN_IF_GPU_ERROR(api->sample(b->device.g, &job));
        else RETURN_IF_ERROR(draw_parts(b, &job, d->by_parts, b->parts + c->first + done));
    }
    return STATUS_IS_OK;
}

static status draw_chunk(backend_cuda *b, const cuda_drawing *d, const chunk *c)
{
    float *logits;
    if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
    if (d->rows)
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, d->rows + c->row, c->n_rows, &logits));
    else RETURN_IF_ERROR(cuda_forward_logits_from(b->forward, c->row, c->n_rows, &logits));
    if (d->masks)
        RETURN_IF_GPU_ERROR(b->device.api->mask(b->device.g, logits, b->weights.head.n,
                                                b->slice.first_token, d->masks + c->row, c->n_rows,
                                                (const uint32_t *)(const void *)d->edits,
                                                step_mask_words(b->config.vocab_size)));
    if (d->by_parts) RETURN_IF_ERROR(draw_some(b, d, c, true, logits));
    if (!d->whole) return STATUS_IS_OK;
    RETURN_IF_ERROR(join_rows(b, c->n_rows, &logits));
    return draw_some(b, d, c, false, logits);
}

/* Makes the draws of which each rank has its part. */
static status decide(backend_cuda *b, const cuda_drawing *of)
{
    cuda_device *d = &b->device;
    size_t n = of->n_draws;
    RETURN_IF_ERROR(cuda_gather_here(d, (const float *)(const void *)b->parts,
                                     n * sizeof *b->parts / sizeof(float),
                                     (float *)(void *)b->gathered));
    return cuda_status(
        d->api->decide(d->g, b->gathered, (uint32_t)comm_size(d->group), n, of->draws, b->drawn));
}

/* cuda_batch.draw. */
static status make_draws(void *ctx, const cuda_drawing *d)
{
    backend_cuda *b = ctx;
    chunk c = {0};
    while (c.row + c.n_rows < d->n_rows) {
        c = next_chunk(b, d, &c);
        RETURN_IF_ERROR(draw_chunk(b, d, &c));
    }
    return d->by_parts ? decide(b, d) : STATUS_IS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

status cuda_draws_send(backend_cuda *b)
{
    cuda_flight *f = b->flight;
    cuda_drawing *d = &f->batch.drawing;
    cuda_list_draws(b, NULL);
    *d = (cuda_drawing){0};
    if (f->n_rows == 0) return STATUS_IS_OK;
    bool in_order = are_in_order(b);
    d->n_rows = in_order ? f->batch.n_rows : f->n_rows;
    d->n_draws = in_order ? f->batch.n_rows : f->n_draws;
    size_t n_edits = count_edits(b), n_masks = count_masks(f);
    size_t mask = step_mask_words(b->config.vocab_size) * sizeof(uint32_t);
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->draws,
                                    bytes_of(d->n_rows, d->n_draws) + n_edits * sizeof(gpu_edit) +
                                        n_masks * mask));
    draw_arrays a = take_arrays(b, d, in_order, n_edits, n_masks);
    pack_draws(b, &a, d);
    d->moved = b->draws.n_moved;
    f->batch.draw = in_order ? make_draws : NULL;
    f->batch.ctx = b;
    return cuda_pack_send(&b->device, &b->draws);
}

status cuda_draw(backend_cuda *b)
{
    cuda_flight *f = b->flight;
    cuda_device *d = &b->device;
    if (f->n_rows == 0) return STATUS_IS_OK;
    if (!f->batch.draw) RETURN_IF_ERROR(make_draws(b, &f->batch.drawing));
    return cuda_status(d->api->copy_out(d->g, f->host, b->drawn + first_result(b, f),
                                        f->n_draws * sizeof *f->host));
}

void cuda_drawn(backend_cuda *b, cuda_flight *f)
{
    for (uint32_t i = 0; i < f->n_draws; i++) memcpy(f->draws[i].out, f->host + i, sizeof *f->host);
    sampler_count_drawn(b->sampler, f->draws, f->n_draws);
}

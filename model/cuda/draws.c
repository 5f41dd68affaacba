/* Draws on the device. The sampler keeps parameters and histories; each draw carries a copy. Each
 * of several ranks makes all draws, from the same words on the device: from what every rank finds
 * in its part of a row, or from the whole row where the draw has limits or logprobs. */
#include "model/cuda/backend.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(sizeof(gpu_drawn) == sizeof(step_sample), "one layout");
_Static_assert(sizeof(gpu_edit) == sizeof(sampler_edit), "one layout");

/* The arrays of one step's draws, in the pack and on the device. */
typedef struct draw_arrays {
    uint32_t *rows;
    gpu_draw *draws;
    gpu_edit *edits;
    const uint32_t *d_rows;
    const gpu_draw *d_draws;
    const gpu_edit *d_edits;
} draw_arrays;

/* The masks of a step's rows of logits, in the order of the rows. */
typedef struct row_masks {
    uint32_t n, n_words, done; /* done: those that were applied */
    uint32_t *rows;
    const uint32_t *d_rows, *d_words; /* [n], [n, n_words] */
} row_masks;

static row_masks count_masks(const backend_cuda *b)
{
    row_masks m = {.n_words = step_mask_words(b->config.vocab_size)};
    for (uint32_t k = 0; k < b->flight->n_rows; k++)
        m.n += b->plan->seqs[b->flight->rows[k]].n_mask_words > 0;
    return m;
}

static size_t bytes_of_masks(const row_masks *m)
{
    return m->n * (1 + (size_t)m->n_words) * sizeof(uint32_t) + 2 * 64;
}

static void pack_masks(backend_cuda *b, row_masks *m)
{
    uint32_t n = 0;
    m->rows = cuda_pack_take(&b->draws, m->n * sizeof *m->rows, &m->d_rows);
    uint32_t *words =
        cuda_pack_take(&b->draws, m->n * (size_t)m->n_words * sizeof *words, &m->d_words);
    for (uint32_t k = 0; k < b->flight->n_rows; k++) {
        const step_seq *s = &b->plan->seqs[b->flight->rows[k]];
        if (!s->n_mask_words) continue;
        m->rows[n] = k;
        memcpy(words + n++ * (size_t)m->n_words, s->mask, m->n_words * sizeof *words);
    }
}

/* Where this rank's tokens begin. */
static uint32_t first_token(const backend_cuda *b)
{
    return (uint32_t)b->weights.head.n * (uint32_t)comm_rank(b->device.group);
}

/* Masks logits, which have this rank's part of the step's rows [row, end). Rows are asked for in
 * order. */
static status mask_some(backend_cuda *b, row_masks *m, uint32_t row, uint32_t end, float *logits)
{
    uint32_t from = m->done;
    while (m->done < m->n && m->rows[m->done] < end) m->done++;
    if (m->done == from) return STATUS_IS_OK;
    return cuda_status(b->device.api->mask(b->device.g, logits, b->weights.head.n, first_token(b),
                                           m->d_rows + from, row, m->done - from,
                                           m->d_words + from * (size_t)m->n_words, m->n_words));
}

/* ---- the list -------------------------------------------------------------------------------- */

bool cuda_draws_apart(const backend_cuda *b, const sample_params *p)
{
    bool limits = !sampler_is_greedy(p) && (p->top_k || p->top_p < 1 || p->min_p > 0);
    return !cuda_is_alone(&b->device) && p->n_logprobs < 0 && !limits;
}

/* Lists the shares that draw, those that draw by parts first. */
static void list_rows(backend_cuda *b)
{
    cuda_flight *f = b->flight;
    f->n_rows = 0;
    for (int joined = 0; joined < 2; joined++) {
        for (uint32_t i = 0; i < f->plan->n_seqs; i++)
            if (f->plan->seqs[i].n_samples && b->is_apart[f->plan->seqs[i].seq] == !joined)
                f->rows[f->n_rows++] = i;
        if (!joined) f->n_apart = f->n_rows;
    }
}

void cuda_list_draws(backend_cuda *b, const float *row)
{
    cuda_flight *f = b->flight;
    f->n_draws = f->n_apart_draws = 0;
    list_rows(b);
    for (uint32_t k = 0; k < f->n_rows; k++) {
        uint32_t i = f->rows[k];
        const step_seq *s = &f->plan->seqs[i];
        f->drawn_at[i] = f->largest ? k : f->n_draws;
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
        if (k < f->n_apart) f->n_apart_draws = f->n_draws;
    }
}

/* ---- the step before ------------------------------------------------------------------------- */

gpu_before cuda_before(const backend_cuda *b)
{
    const cuda_flight *before = &b->flights[b->flight == b->flights];
    return (gpu_before){(const uint32_t *)(const void *)before->drawn,
                        before->largest ? 1 : sizeof(gpu_drawn) / sizeof(uint32_t)};
}

uint32_t cuda_draw_before(const backend_cuda *b, const step_seq *share)
{
    const cuda_flight *before = &b->flights[b->flight == b->flights];
    return share->token_from ? 1 + before->drawn_at[share->token_from - 1] : 0;
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

static gpu_draw describe_draw(const backend_cuda *b, const sampler_draw *d, uint32_t row,
                              gpu_edit *edits, uint32_t *n_edits)
{
    gpu_draw out = {.row = row, .sample_index = d->sample_index, .given = GPU_NO_TOKEN};
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
    *n_edits += n.n_banned + n.n_biased + n.n_seen;
    return out;
}

/* The row's number among those of its chunk. */
static uint32_t row_of_chunk(const cuda_flight *f, uint32_t row)
{
    return (row < f->n_apart ? row : row - f->n_apart) % CUDA_LOGIT_ROWS;
}

static void pack_rows(backend_cuda *b, uint32_t *rows)
{
    for (uint32_t k = 0; k < b->flight->n_rows; k++) {
        const step_seq *s = &b->plan->seqs[b->flight->rows[k]];
        rows[k] = s->first_token + s->n_tokens - 1;
    }
}

static status pack_draws(backend_cuda *b, draw_arrays *a, row_masks *m)
{
    const cuda_flight *f = b->flight;
    uint32_t n_edits = count_edits(b), n_draws = f->n_draws;
    size_t bytes = f->n_rows * sizeof *a->rows + n_edits * sizeof *a->edits +
                   n_draws * sizeof *a->draws + 3 * 64;
    *m = count_masks(b);
    bytes += bytes_of_masks(m);
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->draws, bytes));
    a->rows = cuda_pack_take(&b->draws, f->n_rows * sizeof *a->rows, &a->d_rows);
    a->draws = cuda_pack_take(&b->draws, n_draws * sizeof *a->draws, &a->d_draws);
    a->edits = cuda_pack_take(&b->draws, n_edits * sizeof *a->edits, &a->d_edits);
    pack_masks(b, m);
    pack_rows(b, a->rows);
    n_edits = 0;
    for (uint32_t k = 0, i = 0; k < f->n_rows; k++) {
        const step_seq *s = &f->plan->seqs[f->rows[k]];
        for (uint32_t end = i + s->n_samples; i < end; i++) {
            a->draws[i] = describe_draw(b, &f->draws[i], row_of_chunk(f, k), a->edits, &n_edits);
            /* The sampler's history lacks the token that the step before is still drawing. It was
             * drawn where collect computes this step. */
            if (a->draws[i].n_seen && !f->defers) a->draws[i].last = cuda_draw_before(b, s);
        }
    }
    return cuda_pack_send(&b->device, &b->draws);
}

/* A chunk of rows, at most CUDA_LOGIT_ROWS, that are drawn from in one way, and its draws. */
typedef struct chunk {
    uint32_t row, n_rows, first, n;
    bool apart;
} chunk;

/* The chunk behind `c`, at first behind one of zeros. */
static chunk next_chunk(const cuda_flight *f, const chunk *c)
{
    chunk out = {.row = c->row + c->n_rows, .first = c->first + c->n};
    out.apart = out.row < f->n_apart;
    uint32_t left = (out.apart ? f->n_apart : f->n_rows) - out.row;
    out.n_rows = left < CUDA_LOGIT_ROWS ? left : CUDA_LOGIT_ROWS;
    for (uint32_t k = 0; k < out.n_rows; k++)
        out.n += f->plan->seqs[f->rows[out.row + k]].n_samples;
    return out;
}

/* Makes the chunk's draws from these logits, or their parts, CUDA_LOGIT_ROWS at a time: so many
 * have room in the scratch. */
static status draw_some(backend_cuda *b, const draw_arrays *a, const chunk *c, const float *logits)
{
    const gpu_api *api = b->device.api;
    uint32_t slice = (uint32_t)b->weights.head.n, vocab = b->config.vocab_size;
    uint32_t first = first_token(b) < vocab ? first_token(b) : vocab;
    for (uint32_t done = 0; done < c->n; done += CUDA_LOGIT_ROWS) {
        gpu_sampling job = {.logits = logits,
                            .n_vocab = vocab,
                            .stride = vocab,
                            .n = c->n - done < CUDA_LOGIT_ROWS ? c->n - done : CUDA_LOGIT_ROWS,
                            .draws = a->d_draws + c->first + done,
                            .edits = a->d_edits,
                            .before = cuda_before(b),
                            .scratch = b->draw_scratch,
                            .out = b->flight->drawn + c->first + done};
        if (!c->apart) {
            RETURN_IF_GPU_ERROR(api->sample(b->device.g, &job));
            continue;
        }
        job.first = first;
        job.n_vocab = vocab - first < slice ? vocab - first : slice;
        job.stride = slice;
        RETURN_IF_GPU_ERROR(api->draw_parts(b->device.g, &job, b->parts + c->first + done));
    }
    return STATUS_IS_OK;
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

/* Makes the draws of which each rank has its part. */
static status decide(backend_cuda *b)
{
    cuda_device *d = &b->device;
    const cuda_flight *f = b->flight;
    size_t n = f->n_apart_draws;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_gather_here(d, (const float *)(const void *)b->parts,
                                     n * sizeof *b->parts / sizeof(float),
                                     (float *)(void *)b->gathered));
    return cuda_status(
        d->api->decide(d->g, b->gathered, (uint32_t)comm_size(d->group), n, f->drawn));
}

/* Copies n draws of `size` bytes each to the host. */
static status send_back(backend_cuda *b, uint32_t n, size_t size)
{
    return cuda_status(
        b->device.api->copy_out(b->device.g, b->flight->host, b->flight->drawn, n * size));
}

static status draw_rows(backend_cuda *b)
{
    draw_arrays a;
    row_masks masks;
    const cuda_flight *f = b->flight;
    RETURN_IF_ERROR(pack_draws(b, &a, &masks));
    chunk c = {0};
    while (c.row + c.n_rows < f->n_rows) {
        c = next_chunk(f, &c);
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, a.d_rows + c.row, c.n_rows, &logits));
        RETURN_IF_ERROR(mask_some(b, &masks, c.row, c.row + c.n_rows, logits));
        if (!c.apart) RETURN_IF_ERROR(join_rows(b, c.n_rows, &logits));
        RETURN_IF_ERROR(draw_some(b, &a, &c, logits));
    }
    RETURN_IF_ERROR(decide(b));
    return send_back(b, f->n_draws, sizeof(gpu_drawn));
}

/* The same where every draw of a single rank is the largest logit of its row. */
static status draw_largest(backend_cuda *b)
{
    const uint32_t *d_rows;
    const gpu_api *api = b->device.api;
    uint32_t *tokens = (uint32_t *)(void *)b->flight->drawn, n_rows = b->flight->n_rows;
    row_masks masks = count_masks(b);
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->draws,
                                    n_rows * sizeof *d_rows + 64 + bytes_of_masks(&masks)));
    pack_rows(b, cuda_pack_take(&b->draws, n_rows * sizeof *d_rows, &d_rows));
    pack_masks(b, &masks);
    RETURN_IF_ERROR(cuda_pack_send(&b->device, &b->draws));
    for (uint32_t row = 0; row < n_rows; row += CUDA_LOGIT_ROWS) {
        uint32_t some = n_rows - row < CUDA_LOGIT_ROWS ? n_rows - row : CUDA_LOGIT_ROWS;
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, d_rows + row, some, &logits));
        RETURN_IF_ERROR(mask_some(b, &masks, row, row + some, logits));
        RETURN_IF_GPU_ERROR(
            api->argmax(b->device.g, logits, some, b->config.vocab_size, tokens + row));
    }
    return send_back(b, n_rows, sizeof *tokens);
}

static bool all_greedy(const backend_cuda *b)
{
    const step_plan *plan = b->plan;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].n_samples && !b->is_greedy[plan->seqs[i].seq]) return false;
    return true;
}

status cuda_draw(backend_cuda *b)
{
    b->flight->largest = cuda_is_alone(&b->device) && all_greedy(b);
    cuda_list_draws(b, NULL);
    if (b->flight->n_rows == 0) return STATUS_IS_OK;
    return b->flight->largest ? draw_largest(b) : draw_rows(b);
}

void cuda_drawn(backend_cuda *b, cuda_flight *f)
{
    const uint32_t *tokens = (const uint32_t *)(const void *)f->host;
    for (uint32_t i = 0, row = 0; i < f->n_draws; i++) {
        row += i > 0 && f->draws[i].own;
        if (f->largest) *f->draws[i].out = (step_sample){.token = tokens[row], .logprob = NAN};
        else memcpy(f->draws[i].out, f->host + i, sizeof(gpu_drawn));
    }
    sampler_count_drawn(b->sampler, f->draws, f->n_draws);
}

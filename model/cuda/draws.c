/* Draws on the device. The sampler keeps parameters and histories; each draw carries a copy. */
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
    for (uint32_t i = 0; i < b->plan->n_seqs; i++)
        m.n += b->plan->seqs[i].n_samples && b->plan->seqs[i].n_mask_words;
    return m;
}

static size_t bytes_of_masks(const row_masks *m)
{
    return m->n * (1 + (size_t)m->n_words) * sizeof(uint32_t) + 2 * 64;
}

static void pack_masks(backend_cuda *b, row_masks *m)
{
    uint32_t row = 0, n = 0;
    m->rows = cuda_pack_take(&b->logits, m->n * sizeof *m->rows, &m->d_rows);
    uint32_t *words =
        cuda_pack_take(&b->logits, m->n * (size_t)m->n_words * sizeof *words, &m->d_words);
    for (uint32_t i = 0; i < b->plan->n_seqs; i++) {
        const step_seq *s = &b->plan->seqs[i];
        if (!s->n_samples) continue;
        if (s->n_mask_words) {
            m->rows[n] = row;
            memcpy(words + n++ * (size_t)m->n_words, s->mask, m->n_words * sizeof *words);
        }
        row++;
    }
}

/* Masks logits, which have the step's rows [row, end). Rows are asked for in order. */
static status mask_some(backend_cuda *b, row_masks *m, uint32_t row, uint32_t end, float *logits)
{
    uint32_t from = m->done;
    while (m->done < m->n && m->rows[m->done] < end) m->done++;
    if (m->done == from) return STATUS_IS_OK;
    return cuda_status(b->device.api->mask(b->device.g, logits, b->config.vocab_size,
                                           m->d_rows + from, row, m->done - from,
                                           m->d_words + from * (size_t)m->n_words));
}

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

static status pack_draws(backend_cuda *b, uint32_t n_rows, draw_arrays *a, row_masks *m)
{
    const cuda_flight *f = b->flight;
    uint32_t n_edits = count_edits(b), n_draws = f->n_draws, row = 0;
    size_t bytes =
        n_rows * sizeof *a->rows + n_edits * sizeof *a->edits + n_draws * sizeof *a->draws + 3 * 64;
    *m = count_masks(b);
    bytes += bytes_of_masks(m);
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->logits, bytes));
    a->rows = cuda_pack_take(&b->logits, n_rows * sizeof *a->rows, &a->d_rows);
    a->draws = cuda_pack_take(&b->logits, n_draws * sizeof *a->draws, &a->d_draws);
    a->edits = cuda_pack_take(&b->logits, n_edits * sizeof *a->edits, &a->d_edits);
    pack_masks(b, m);
    memcpy(a->rows, b->logit_rows, n_rows * sizeof *a->rows);
    n_edits = 0;
    for (uint32_t k = 0; k < f->plan->n_seqs; k++) {
        const step_seq *s = &f->plan->seqs[k];
        for (uint32_t i = f->drawn_at[k], end = i + s->n_samples; i < end; i++) {
            a->draws[i] = describe_draw(b, &f->draws[i], row % CUDA_LOGIT_ROWS, a->edits, &n_edits);
            /* The sampler's history lacks the token that the step before is still drawing. It was
             * drawn where collect computes this step. */
            if (a->draws[i].n_seen && !f->defers) a->draws[i].last = cuda_draw_before(b, s);
        }
        row += s->n_samples > 0;
    }
    return cuda_pack_send(&b->device, &b->logits);
}

/* Makes draws [first, first + n) from these logits, CUDA_LOGIT_ROWS at a time. */
static status draw_some(backend_cuda *b, const draw_arrays *a, const float *logits, uint32_t first,
                        uint32_t n)
{
    for (uint32_t done = 0; done < n; done += CUDA_LOGIT_ROWS) {
        gpu_sampling job = {.logits = logits,
                            .n_vocab = b->config.vocab_size,
                            .n = n - done < CUDA_LOGIT_ROWS ? n - done : CUDA_LOGIT_ROWS,
                            .draws = a->d_draws + first + done,
                            .edits = a->d_edits,
                            .before = cuda_before(b),
                            .scratch = b->draw_scratch,
                            .out = b->flight->drawn + first + done};
        RETURN_IF_GPU_ERROR(b->device.api->sample(b->device.g, &job));
    }
    return STATUS_IS_OK;
}

/* Copies n draws of `size` bytes each to the host. */
static status send_back(backend_cuda *b, uint32_t n, size_t size)
{
    return cuda_status(
        b->device.api->copy_out(b->device.g, b->flight->host, b->flight->drawn, n * size));
}

status cuda_draw(backend_cuda *b, uint32_t n_rows)
{
    draw_arrays a;
    row_masks masks;
    const cuda_flight *f = b->flight;
    RETURN_IF_ERROR(pack_draws(b, n_rows, &a, &masks));
    for (uint32_t row = 0, first = 0; row < n_rows; row += CUDA_LOGIT_ROWS) {
        uint32_t some = n_rows - row < CUDA_LOGIT_ROWS ? n_rows - row : CUDA_LOGIT_ROWS;
        uint32_t end = first, seen = 0;
        while (end < f->n_draws && (seen += f->draws[end].own) <= some) end++;
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, a.d_rows + row, some, &logits));
        RETURN_IF_ERROR(mask_some(b, &masks, row, row + some, logits));
        RETURN_IF_ERROR(draw_some(b, &a, logits, first, end - first));
        first = end;
    }
    return send_back(b, f->n_draws, sizeof(gpu_drawn));
}

status cuda_draw_largest(backend_cuda *b, uint32_t n_rows)
{
    const uint32_t *d_rows;
    uint32_t *tokens = (uint32_t *)(void *)b->flight->drawn;
    row_masks masks = count_masks(b);
    RETURN_IF_ERROR(cuda_pack_begin(&b->device, &b->logits,
                                    n_rows * sizeof *d_rows + 64 + bytes_of_masks(&masks)));
    memcpy(cuda_pack_take(&b->logits, n_rows * sizeof *d_rows, &d_rows), b->logit_rows,
           n_rows * sizeof *d_rows);
    pack_masks(b, &masks);
    RETURN_IF_ERROR(cuda_pack_send(&b->device, &b->logits));
    for (uint32_t row = 0; row < n_rows; row += CUDA_LOGIT_ROWS) {
        uint32_t some = n_rows - row < CUDA_LOGIT_ROWS ? n_rows - row : CUDA_LOGIT_ROWS;
        float *logits;
        if (atomic_load(&b->interrupted)) return status_make(STATUS_INTERNAL, "interrupted");
        RETURN_IF_ERROR(cuda_forward_logits(b->forward, d_rows + row, some, &logits));
        RETURN_IF_ERROR(mask_some(b, &masks, row, row + some, logits));
        RETURN_IF_GPU_ERROR(
            b->device.api->argmax(b->device.g, logits, some, b->config.vocab_size, tokens + row));
    }
    return send_back(b, n_rows, sizeof *tokens);
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

#include "model/cpu/readings.h"

#include "kernels/key_sums.h"
#include "model/cpu/key_view.h"

#include <math.h>
#include <stdlib.h>

/* One KV head of an audited row. */
typedef struct audit {
    const forward_seq *seq;
    uint32_t index; /* of the sequence in the step */
    uint32_t row;   /* of the sequence */
    uint32_t nth;   /* among the step's rows that read by retrieval */
    uint32_t head;
} audit;

struct readings {
    forward_options o;
    const retrieve *lists;
    uint32_t q_heads, qkv_width;
    audit *audits;
    double *missed; /* [audits, q_heads] shares of the mass that are not read */
    size_t n_audits, capacity;
    uint8_t *scratch; /* [threads, thread_bytes], aligned to 64 */
    size_t thread_bytes;
    uint32_t layer;
    const float *qkv;
};

static status no_memory(void) { return status_make(STATUS_NO_MEMORY, "audits of retrieval"); }

status readings_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       const retrieve *lists, readings **out)
{
    readings *r = calloc(1, sizeof *r);
    if (!r) return no_memory();
    r->o = *options;
    r->lists = lists;
    r->q_heads = q_heads;
    r->qkv_width = qkv_width;
    *out = r;
    return STATUS_IS_OK;
}

void readings_destroy(readings *r)
{
    if (!r) return;
    free(r->audits);
    free(r->missed);
    free(r->scratch);
    free(r);
}

static uint32_t rows_of(const forward_seq *s)
{
    return s->retrieval.block_tokens ? s->n_rows - s->dense_rows : 0;
}

void readings_start(const forward_seq *seqs, uint32_t n_seqs, const retrieve *lists)
{
    uint32_t nth = 0;
    for (uint32_t s = 0; s < n_seqs; s++)
        for (uint32_t i = 0; i < rows_of(&seqs[s]); i++, nth++)
            seqs[s].readings[i] = (retrieval_reading){.context = retrieve_slots(lists, nth)};
}

/* ---- audits ---------------------------------------------------------------------------------- */

/* Sums of 2^x relative to the largest x so far. */
typedef struct mass {
    double most, all, unread;
} mass;

static void add_mass(mass *m, double x, bool read)
{
    if (x > m->most) {
        double factor = exp2(m->most - x);
        m->all *= factor;
        m->unread *= factor;
        m->most = x;
    }
    double more = exp2(x - m->most);
    m->all += more;
    if (!read) m->unread += more;
}

static size_t scratch_bytes(const readings *r)
{
    size_t sums = kern_key_sums_bytes(&r->o.store->shape, r->q_heads);
    return (sums + r->q_heads * (sizeof(mass) + sizeof(double)) + 63) & ~(size_t)63;
}

static void run_audit(const readings *r, const audit *a, uint8_t *scratch, double *missed)
{
    const kv_store *store = r->o.store;
    const kern_kv_shape *shape = &store->shape;
    const retrieve_list list = retrieve_list_of(r->lists, a->nth, a->head);
    uint32_t n_slots = retrieve_slots(r->lists, a->nth), page_tokens = shape->page_tokens;
    uint32_t in_block = a->seq->retrieval.block_tokens / page_tokens;
    key_view view = key_view_of(store, r->o.mirror, a->seq, a->index, r->layer, a->head, n_slots);
    kern_key_query query = {.q_heads = r->q_heads, .scale = forward_scale(shape->head_dim)};
    query.q = r->qkv + (size_t)(a->seq->first_row + a->row) * r->qkv_width +
              (size_t)a->head * r->q_heads * shape->head_dim;
    mass *sums = (mass *)(scratch + kern_key_sums_bytes(shape, r->q_heads));
    double *page_sums = (double *)(sums + r->q_heads);
    for (uint32_t h = 0; h < r->q_heads; h++) sums[h] = (mass){.most = -INFINITY};
    kern_key_sums_begin(shape, &query, scratch);
    for (uint32_t page = 0, next = 0; page * page_tokens < n_slots; page++) {
        bool wide;
        const uint8_t *tile = key_view_tile(&view, page, &wide);
        uint32_t left = n_slots - page * page_tokens, n = left < page_tokens ? left : page_tokens;
        while (next < list.n && list.blocks[next] < page / in_block) next++;
        bool read = next < list.n && list.blocks[next] == page / in_block;
        kern_key_sums(r->o.kernels, shape, &query, tile, wide, n, scratch, page_sums);
        for (uint32_t h = 0; h < r->q_heads; h++) add_mass(&sums[h], page_sums[h], read);
    }
    for (uint32_t h = 0; h < r->q_heads; h++) missed[h] = sums[h].unread / sums[h].all;
}

static void audit_range(void *ctx, size_t from, size_t to, unsigned thread)
{
    const readings *r = ctx;
    uint8_t *scratch = r->scratch + thread * r->thread_bytes;
    for (size_t i = from; i < to; i++)
        run_audit(r, &r->audits[i], scratch, r->missed + i * r->q_heads);
}

/* Makes room for one more row's audits. */
static bool reserve_audits(readings *r, size_t more)
{
    if (!r->scratch) {
        r->thread_bytes = scratch_bytes(r);
        r->scratch = aligned_alloc(64, r->thread_bytes * thread_pool_size(r->o.pool));
    }
    size_t n = r->n_audits + more;
    if (n <= r->capacity) return r->scratch != NULL;
    audit *audits = alloc_resize(NULL, r->audits, 2 * n, sizeof *audits);
    if (audits) r->audits = audits;
    double *missed = alloc_resize(NULL, r->missed, 2 * n * r->q_heads, sizeof *missed);
    if (missed) r->missed = missed;
    if (!audits || !missed) return false;
    r->capacity = 2 * n;
    return r->scratch != NULL;
}

/* ---- one layer ------------------------------------------------------------------------------- */

/* Counts the lists of one row and enters its audits. */
static status count_row(readings *r, const forward_seq *seqs, uint32_t index, uint32_t i,
                        uint32_t nth)
{
    const forward_seq *seq = &seqs[index];
    uint32_t heads = r->o.store->n_heads, n_slots = retrieve_slots(r->lists, nth);
    uint32_t size = seq->retrieval.block_tokens;
    retrieval_reading *reading = &seq->readings[i - seq->dense_rows];
    for (uint32_t head = 0; head < heads; head++) {
        retrieve_list list = retrieve_list_of(r->lists, nth, head);
        if (!list.counts) continue;
        reading->lists++;
        reading->selections += list.selected;
        if (seq->retrieval.epsilon > 0) {
            reading->exams++;
            reading->failed += list.missed > (double)seq->retrieval.epsilon;
            if (list.missed > reading->most_missed) reading->most_missed = list.missed;
        }
        reading->blocks += list.n;
        reading->tokens += (uint64_t)(list.n - 1) * size + (n_slots - 1) % size + 1;
    }
    if (!retrieval_is_audited(&seq->retrieval, n_slots)) return STATUS_IS_OK;
    if (!reserve_audits(r, heads)) return no_memory();
    for (uint32_t head = 0; head < heads; head++)
        r->audits[r->n_audits++] =
            (audit){.seq = seq, .index = index, .row = i, .nth = nth, .head = head};
    return STATUS_IS_OK;
}

/* Adds the recalls of a layer, in the order of rows and heads. */
static void take_audits(const readings *r)
{
    for (size_t i = 0; i < r->n_audits; i++) {
        const audit *a = &r->audits[i];
        retrieval_reading *reading = &a->seq->readings[a->row - a->seq->dense_rows];
        for (uint32_t h = 0; h < r->q_heads; h++) {
            double recall = 1 - r->missed[i * r->q_heads + h];
            if (!(recall >= 0)) recall = 0; /* NaN: keys or queries that are no numbers */
            if (reading->audits == 0 || recall < reading->least_recall)
                reading->least_recall = recall;
            reading->audits++;
            reading->recall_sum += recall;
        }
    }
}

status readings_layer(readings *r, uint32_t layer, const forward_seq *seqs, uint32_t n_seqs,
                      const float *qkv)
{
    uint32_t nth = 0;
    r->n_audits = 0;
    r->layer = layer;
    r->qkv = qkv;
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t n = rows_of(&seqs[s]);
        if (n > 0 && retrieve_reads_few(r->lists, &seqs[s], layer))
            for (uint32_t i = 0; i < n; i++)
                RETURN_IF_ERROR(count_row(r, seqs, s, seqs[s].dense_rows + i, nth + i));
        nth += n;
    }
    if (r->n_audits == 0) return STATUS_IS_OK;
    thread_pool_for(r->o.pool, r->n_audits, 1, audit_range, r);
    take_audits(r);
    return STATUS_IS_OK;
}

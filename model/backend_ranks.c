/* A backend that is a group of ranks, each a backend of its own. A rank runs on its own thread, or
 * the caller drives it where it computes elsewhere (model.h). */
#include "model/model.h"

#include "model/embed_room.h"
#include "model/load/tensors.h"
#include "model/measured.h"
#include "model/measures.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank {
    struct backend_ranks *all;
    uint32_t index;
    pthread_t thread;
    comm *comm;
    backend backend; /* ops is NULL until it is made */
    status status;   /* status of making it, then of its last step */
    uint32_t failed; /* order of this failure within the group */
    error why;       /* why it could not be made */
    const step_result *result;
} rank;

typedef struct backend_ranks {
    const backend_ranks_options *options; /* valid while the ranks are made */
    backend_info info;
    comm_group *group;
    rank *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    bool driven;
    uint32_t n_started; /* threads */
    _Atomic bool interrupted;
    _Atomic uint32_t n_failures;

    pthread_mutex_t lock;
    pthread_cond_t ordered, done;
    uint64_t n_orders; /* steps submitted */
    uint32_t n_busy;   /* ranks that are making their backend or running a step */
    bool stop;

    const step_plan *plan; /* submitted, not yet collected */
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    retrieval_reading *readings;  /* [max_rows] */
    measured measures;
    embed_room embeddings;
    char trouble[sizeof(error)]; /* result.status.message */
} backend_ranks;

/* ---- a rank's thread ------------------------------------------------------------------------- */

/* Numbers failures in order: ranks that fail because of another have higher numbers. */
static void count_failure(rank *r)
{
    if (!status_ok(r->status)) r->failed = atomic_fetch_add(&r->all->n_failures, 1);
}

static void make_rank(rank *r)
{
    const backend_ranks_options *o = r->all->options;
    r->status = o->make(o->ctx, r->comm, &r->backend, &r->why);
    count_failure(r);
    if (!status_ok(r->status)) comm_abort(r->comm);
}

static void run_step(rank *r)
{
    const backend *b = &r->backend;
    r->result = NULL;
    r->status = b->ops->submit(b->ctx, r->all->plan);
    if (status_ok(r->status)) r->status = b->ops->collect(b->ctx, &r->result);
    if (status_ok(r->status)) r->status = r->result->status;
    count_failure(r);
    bool alone = !status_ok(r->status) && (!r->result || r->result->end == STEP_ENDED_ALONE);
    if (alone) comm_abort(r->comm); /* the others may be waiting for this rank */
}

static void signal_done(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    if (--all->n_busy == 0) pthread_cond_signal(&all->done);
    pthread_mutex_unlock(&all->lock);
}

static bool await_order(backend_ranks *all, uint64_t n_done)
{
    pthread_mutex_lock(&all->lock);
    while (all->n_orders == n_done && !all->stop) pthread_cond_wait(&all->ordered, &all->lock);
    bool go_on = all->n_orders != n_done;
    pthread_mutex_unlock(&all->lock);
    return go_on;
}

static void destroy_rank(rank *r)
{
    if (r->backend.ops) r->backend.ops->destroy(r->backend.ctx);
    r->backend = (backend){0};
}

static void *rank_main(void *arg)
{
    rank *r = arg;
    thread_set_name("oct-rank");
    make_rank(r);
    bool stays = !r->all->driven;
    signal_done(r->all);
    for (uint64_t n = 0; stays && await_order(r->all, n); n++) {
        run_step(r);
        signal_done(r->all);
    }
    if (stays) destroy_rank(r);
    return NULL;
}

static void await_ranks(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    while (all->n_busy > 0) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

/* ---- ranks driven by the caller -------------------------------------------------------------- */

/* Submits to all ranks, so that they compute at the same time. A failure interrupts all of them. */
static void submit_to_all(backend_ranks *all)
{
    bool ok = true;
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        rank *r = &all->ranks[i];
        r->result = NULL;
        r->status = r->backend.ops->submit(r->backend.ctx, all->plan);
        ok &= status_ok(r->status);
    }
    for (uint32_t i = 0; !ok && i < all->n_ranks; i++)
        all->ranks[i].backend.ops->interrupt(all->ranks[i].backend.ctx);
}

static void collect_from_all(backend_ranks *all)
{
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        rank *r = &all->ranks[i];
        if (!status_ok(r->status)) continue;
        r->status = r->backend.ops->collect(r->backend.ctx, &r->result);
        if (status_ok(r->status)) r->status = r->result->status;
    }
}

/* ---- one result of many ---------------------------------------------------------------------- */

static status trouble(backend_ranks *all, const rank *r, const char *what)
{
    snprintf(all->trouble, sizeof all->trouble, "rank %u: %s", r->index, what);
    return status_make(STATUS_INTERNAL, all->trouble);
}

/* How well a rank's failure explains the group's: a lost rank (3) says most, then an error of its
 * own (2), then losing its peers or following them (1). */
static int weight_of(const rank *r)
{
    if (status_ok(r->status)) return 0;
    if (r->result && r->result->end != STEP_ENDED_ALONE)
        return r->result->end == STEP_ENDED_FIRST ? 2 : 1;
    if (r->status.code == STATUS_IO) return 1;
    return r->status.code == STATUS_UNAVAILABLE ? 3 : 2;
}

/* The rank whose failure is reported, or NULL. Among equals the first to fail. */
static const rank *failed_rank(const backend_ranks *all)
{
    const rank *failed = &all->ranks[0];
    for (uint32_t i = 1; i < all->n_ranks; i++) {
        const rank *r = &all->ranks[i];
        int more = weight_of(r) - weight_of(failed);
        if (more > 0 || (more == 0 && r->failed < failed->failed)) failed = r;
    }
    return status_ok(failed->status) ? NULL : failed;
}

static bool ended_together(const backend_ranks *all)
{
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const step_result *r = all->ranks[i].result;
        if (!r || r->end == STEP_ENDED_ALONE) return false;
    }
    return true;
}

/* The group's status for a step that all ranks have ended together because of this one. */
static status failure_of_all(backend_ranks *all, const rank *r, const char *text)
{
    error err;
    error_set(&err, r->status.code, "%s", text);
    if (!all->driven) error_insert(&err, "rank %u", r->index);
    snprintf(all->trouble, sizeof all->trouble, "%s", err.text);
    return status_make(r->status.code, all->trouble);
}

/* The group's status for a rank's failure. A driven rank's message names the rank already, and a
 * lost one gives STATUS_UNAVAILABLE, so that the whole group is made again. */
static status failure_of(backend_ranks *all, const rank *r)
{
    const char *text = r->status.message ? r->status.message : status_text(r->status.code);
    if (ended_together(all)) return failure_of_all(all, r, text);
    if (!all->driven) return trouble(all, r, text);
    snprintf(all->trouble, sizeof all->trouble, "%s", text);
    bool lost = r->status.code == STATUS_UNAVAILABLE;
    return status_make(lost ? STATUS_UNAVAILABLE : STATUS_INTERNAL, all->trouble);
}

/* Whether two ranks' measures have the same shape, so that they can be joined. */
static bool same_measures(const step_result *a, const step_result *b)
{
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const measure_result *x = &a->seqs[i].measure, *y = &b->seqs[i].measure;
        if (!x->values != !y->values || x->n_layers != y->n_layers ||
            x->n_kv_heads != y->n_kv_heads || x->stride != y->stride)
            return false;
    }
    return true;
}

static bool same_samples(const step_result *a, const step_result *b)
{
    if (a->n_seqs != b->n_seqs) return false;
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        if (x->n_samples != y->n_samples) return false;
        for (uint32_t j = 0; j < x->n_samples; j++)
            if (x->samples[j].token != y->samples[j].token ||
                memcmp(&x->samples[j].logprob, &y->samples[j].logprob, sizeof(float)) != 0)
                return false;
    }
    return true;
}

/* Whether a rank has given its parts of all embeddings. */
static bool has_embeddings(const backend_ranks *all, const rank *r)
{
    for (uint32_t i = 0; i < all->plan->n_seqs; i++) {
        uint32_t heads = embed_heads_of(&all->info, &all->plan->seqs[i], r->index, all->n_ranks);
        if (heads > 0 && !r->result->seqs[i].embeddings) return false;
    }
    return true;
}

/* Whether rank 0 has given what its shares pool. */
static bool has_pooled(const backend_ranks *all)
{
    for (uint32_t i = 0; i < all->plan->n_seqs; i++)
        if (all->plan->seqs[i].pooling && !all->ranks[0].result->seqs[i].pooled) return false;
    return true;
}

/* Whether two ranks counted what the same rows read. */
static bool same_readings(const step_result *a, const step_result *b)
{
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const step_seq_result *x = &a->seqs[i], *y = &b->seqs[i];
        if (x->n_readings != y->n_readings) return false;
        for (uint32_t j = 0; j < x->n_readings; j++)
            if (x->readings[j].context != y->readings[j].context) return false;
    }
    return true;
}

/* Checks that all ranks have done the same step on the same tables. */
static status check_ranks(backend_ranks *all)
{
    const rank *failed = failed_rank(all);
    if (failed) return failure_of(all, failed);
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const rank *r = &all->ranks[i];
        if (r->result->checksum != all->plan->checksum)
            return trouble(all, r, "page tables differ from the coordinator's");
        if (!same_samples(all->ranks[0].result, r->result))
            return trouble(all, r, "samples differ from rank 0's");
        if (!same_measures(all->ranks[0].result, r->result))
            return trouble(all, r, "measures have another shape than rank 0's");
        if (!has_embeddings(all, r)) return trouble(all, r, "embeddings are missing");
        if (!same_readings(all->ranks[0].result, r->result))
            return trouble(all, r, "it counts what other rows read than rank 0");
    }
    if (!has_pooled(all)) return trouble(all, &all->ranks[0], "pooled hidden states are missing");
    return STATUS_IS_OK;
}

/* Whether a measure depends on query heads. Others are equal on all ranks that hold the KV head. */
static bool sums_query_heads(measure_kind kind)
{
    return kind != MEASURE_VALUE_NORM && kind != MEASURE_KEY_NORM && kind != MEASURE_KEY_COSINE;
}

/* Joins array `array` of one sequence's measure into out [layers, all KV heads, stride]. Where a KV
 * head is copied to several ranks, each has measured its own query heads. These are summed in rank
 * order, which is the order of the heads. */
static void join_array(const backend_ranks *all, uint32_t seq, uint32_t array, measure_kind kind,
                       float *out)
{
    const measure_result *m = &all->ranks[0].result->seqs[seq].measure;
    uint32_t heads = all->info.geometry.n_kv_heads;
    uint32_t copies = all->n_ranks * m->n_kv_heads / heads;
    uint32_t parts = sums_query_heads(kind) ? copies : 1;
    for (uint32_t layer = array * m->n_layers; layer < (array + 1) * m->n_layers; layer++) {
        for (uint32_t head = 0; head < heads; head++, out += m->stride) {
            const rank *first = &all->ranks[head / m->n_kv_heads * copies];
            size_t at = ((size_t)layer * m->n_kv_heads + head % m->n_kv_heads) * m->stride;
            memcpy(out, first->result->seqs[seq].measure.values + at, m->stride * sizeof *out);
            for (const rank *r = first + 1; r < first + parts; r++) {
                const float *values = r->result->seqs[seq].measure.values + at;
                for (uint32_t i = 0; i < m->stride; i++) out[i] += values[i];
            }
        }
    }
}

/* Floats in one joined array. */
static size_t joined_floats(const backend_ranks *all, const measure_result *m)
{
    return m->values ? (size_t)m->n_layers * all->info.geometry.n_kv_heads * m->stride : 0;
}

/* Joins the ranks' parts of one share's embeddings into out [n_tokens, n_embeds, head_dim]: each
 * rank's heads come in the order of the share's list. */
static void join_share(const backend_ranks *all, uint32_t seq, uint16_t *out)
{
    const step_seq *s = &all->plan->seqs[seq];
    uint32_t dim = all->info.head_dim;
    for (uint32_t r = 0; r < all->n_ranks; r++) {
        uint32_t heads = embed_heads_of(&all->info, s, r, all->n_ranks), part = 0;
        const uint16_t *from = heads ? all->ranks[r].result->seqs[seq].embeddings : NULL;
        for (uint32_t i = 0; from && i < s->n_embeds; i++) {
            if (embed_rank(all->info.n_heads, all->info.geometry.n_kv_heads, &s->embeds[i],
                           all->n_ranks) != r)
                continue;
            for (size_t t = 0; t < s->n_tokens; t++)
                memcpy(out + (t * s->n_embeds + i) * dim, from + (t * heads + part) * dim,
                       dim * sizeof *out);
            part++;
        }
    }
}

static status join_embeddings(backend_ranks *all)
{
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < all->plan->n_seqs; i++)
        n += (size_t)all->plan->seqs[i].n_tokens * all->plan->seqs[i].n_embeds * all->info.head_dim;
    if (n == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(embed_room_reserve(&all->embeddings, n));
    for (uint32_t i = 0; i < all->plan->n_seqs; i++) {
        const step_seq *s = &all->plan->seqs[i];
        all->seq_results[i].embeddings = s->n_embeds ? all->embeddings.values + at : NULL;
        if (s->n_embeds) join_share(all, i, all->embeddings.values + at);
        at += (size_t)s->n_tokens * s->n_embeds * all->info.head_dim;
    }
    return STATUS_IS_OK;
}

/* Adds up what each rank counted of a sequence's rows, in rank order. */
static const retrieval_reading *join_readings(const backend_ranks *all, uint32_t seq)
{
    const step_seq_result *first = &all->ranks[0].result->seqs[seq];
    retrieval_reading *out = all->readings + all->plan->seqs[seq].first_token;
    for (uint32_t i = 0; i < first->n_readings; i++) {
        out[i] = first->readings[i];
        for (uint32_t r = 1; r < all->n_ranks; r++)
            retrieval_join_reading(&out[i], &all->ranks[r].result->seqs[seq].readings[i]);
    }
    return first->n_readings ? out : NULL;
}

static status join_seqs(backend_ranks *all)
{
    const step_result *first = all->ranks[0].result;
    size_t floats = 0;
    for (uint32_t i = 0; i < first->n_seqs; i++)
        floats += measures_arrays(&all->plan->seqs[i].measure) *
                  joined_floats(all, &first->seqs[i].measure);
    if (floats > 0) RETURN_IF_ERROR(measured_reserve(&all->measures, floats));
    float *at = floats > 0 ? all->measures.first->values : NULL;
    for (uint32_t i = 0; i < first->n_seqs; i++) all->seq_results[i] = first->seqs[i];
    RETURN_IF_ERROR(join_embeddings(all));
    for (uint32_t i = 0; i < first->n_seqs; i++) {
        step_seq_result *s = &all->seq_results[i];
        s->readings = join_readings(all, i);
        if (!s->measure.values) continue;
        const measure_spec *spec = &all->plan->seqs[i].measure;
        s->measure.values = at;
        s->measure.holders = &all->measures.first->holders;
        for (uint32_t array = 0; array < measures_arrays(spec); array++) {
            join_array(all, i, array, measures_kind_of(spec, array), at);
            at += joined_floats(all, &s->measure);
        }
        s->measure.n_kv_heads = all->info.geometry.n_kv_heads;
    }
    return STATUS_IS_OK;
}

static backend_tier sum_tiers(const backend_ranks *all)
{
    backend_tier sum = {0};
    for (uint32_t i = 0; i < all->n_ranks; i++)
        if (all->ranks[i].result) backend_tier_add(&sum, &all->ranks[i].result->tier);
    return sum;
}

static void join_results(backend_ranks *all)
{
    status s = check_ranks(all);
    backend_tier tier = sum_tiers(all);
    if (!status_ok(s)) {
        all->result = (step_result){.step = all->plan->step, .status = s, .tier = tier};
        return;
    }
    all->result = *all->ranks[0].result;
    all->result.seqs = all->seq_results;
    all->result.tier = tier;
    all->result.status = join_seqs(all);
    if (!status_ok(all->result.status)) all->result.n_seqs = 0;
    for (uint32_t i = 1; i < all->n_ranks; i++) {
        const step_result *r = all->ranks[i].result;
        if (r->compute_us > all->result.compute_us) all->result.compute_us = r->compute_us;
        if (r->measure_us > all->result.measure_us) all->result.measure_us = r->measure_us;
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static const backend_info *ranks_info(void *ctx) { return &((backend_ranks *)ctx)->info; }

static status ranks_submit(void *ctx, const step_plan *plan)
{
    backend_ranks *all = ctx;
    assert(!all->plan && "one step in flight");
    all->plan = plan;
    if (all->driven) {
        submit_to_all(all);
        return STATUS_IS_OK;
    }
    pthread_mutex_lock(&all->lock);
    all->n_busy = all->n_ranks;
    all->n_orders++;
    pthread_cond_broadcast(&all->ordered);
    pthread_mutex_unlock(&all->lock);
    return STATUS_IS_OK;
}

static status ranks_collect(void *ctx, const step_result **out)
{
    backend_ranks *all = ctx;
    assert(all->plan);
    if (all->driven) collect_from_all(all);
    else await_ranks(all);
    join_results(all);
    all->plan = NULL;
    *out = &all->result;
    return atomic_load(&all->interrupted) ? status_make(STATUS_INTERNAL, "interrupted")
                                          : STATUS_IS_OK;
}

static void ranks_interrupt(void *ctx)
{
    backend_ranks *all = ctx;
    atomic_store(&all->interrupted, true);
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const backend *b = &all->ranks[i].backend;
        b->ops->interrupt(b->ctx);
    }
}

static void stop_ranks(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    all->stop = true;
    pthread_cond_broadcast(&all->ordered);
    pthread_mutex_unlock(&all->lock);
    for (uint32_t i = 0; i < all->n_started; i++) pthread_join(all->ranks[i].thread, NULL);
}

static void ranks_destroy(void *ctx)
{
    backend_ranks *all = ctx;
    if (!all) return;
    stop_ranks(all);
    for (uint32_t i = 0; all->ranks && i < all->n_ranks; i++) {
        destroy_rank(&all->ranks[i]); // threads have destroyed theirs
        comm_destroy(all->ranks[i].comm);
    }
    comm_group_destroy(all->group);
    pthread_cond_destroy(&all->done);
    pthread_cond_destroy(&all->ordered);
    pthread_mutex_destroy(&all->lock);
    measured_destroy(&all->measures);
    free(all->embeddings.values);
    free(all->seq_results);
    free(all->readings);
    free(all->ranks);
    free(all);
}

static const backend_ops ranks_ops = {
    .info = ranks_info,
    .submit = ranks_submit,
    .collect = ranks_collect,
    .interrupt = ranks_interrupt,
    .destroy = ranks_destroy,
};

/* ---- creation -------------------------------------------------------------------------------- */

static status join_group(backend_ranks *all, error *err)
{
    RETURN_IF_ERROR(comm_group_create("threads", (int)all->n_ranks, &all->group, err));
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        comm_options o = {
            .kind = "threads", .rank = (int)i, .size = (int)all->n_ranks, .group = all->group};
        all->ranks[i] = (rank){.all = all, .index = i};
        RETURN_IF_ERROR(comm_create(&o, &all->ranks[i].comm, err));
    }
    return STATUS_IS_OK;
}

/* Starts the ranks' threads with all signals blocked, because the main thread handles signals. */
static status start_ranks(backend_ranks *all, error *err)
{
    sigset_t every, old;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    all->n_busy = all->n_ranks;
    status result = STATUS_IS_OK;
    while (status_ok(result) && all->n_started < all->n_ranks) {
        rank *r = &all->ranks[all->n_started];
        if (pthread_create(&r->thread, NULL, rank_main, r) == 0) all->n_started++;
        else result = error_set(err, STATUS_NO_MEMORY, "rank %u: cannot start a thread", r->index);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (status_ok(result)) return result;
    comm_abort(all->ranks[0].comm);
    pthread_mutex_lock(&all->lock);
    all->n_busy -= all->n_ranks - all->n_started;
    pthread_mutex_unlock(&all->lock);
    await_ranks(all);
    return result;
}

static status compare_infos(backend_ranks *all, error *err)
{
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const backend *b = &all->ranks[i].backend;
        const backend_info *info = b->ops->info(b->ctx);
        if (i == 0) all->info = *info;
        if (info->identity != all->info.identity)
            return error_set(err, STATUS_INVALID, "rank %u: its weights are not those of rank 0",
                             i);
        if (info->n_pages != all->info.n_pages || info->n_host_pages != all->info.n_host_pages ||
            info->max_rows != all->info.max_rows || info->max_seqs != all->info.max_seqs ||
            info->vocab_size != all->info.vocab_size ||
            info->max_positions != all->info.max_positions ||
            info->max_logit_rows != all->info.max_logit_rows || info->lacks != all->info.lacks ||
            info->retrieves != all->info.retrieves || info->masks != all->info.masks ||
            info->note_bytes != all->info.note_bytes || info->n_heads != all->info.n_heads ||
            info->head_dim != all->info.head_dim || info->hidden != all->info.hidden ||
            memcmp(&info->geometry, &all->info.geometry, sizeof info->geometry) != 0)
            return error_set(err, STATUS_INTERNAL, "rank %u: is not like rank 0", i);
    }
    all->info.max_in_flight = 1;
    return STATUS_IS_OK;
}

static status make_ranks(backend_ranks *all, error *err)
{
    RETURN_IF_ERROR(join_group(all, err));
    RETURN_IF_ERROR(start_ranks(all, err));
    await_ranks(all);
    const rank *failed = failed_rank(all);
    if (failed) {
        if (err) *err = failed->why;
        return failed->status;
    }
    RETURN_IF_ERROR(compare_infos(all, err));
    all->seq_results = calloc(all->info.max_seqs, sizeof *all->seq_results);
    all->readings = calloc(all->info.max_rows, sizeof *all->readings);
    if (!all->seq_results || !all->readings)
        return error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    return STATUS_IS_OK;
}

status backend_ranks_create(const backend_ranks_options *options, backend *out, error *err)
{
    backend_ranks *all = calloc(1, sizeof *all);
    if (!all) return error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->ordered, NULL);
    pthread_cond_init(&all->done, NULL);
    all->options = options;
    all->n_ranks = options->n_ranks;
    all->driven = options->driven;
    all->ranks = calloc(all->n_ranks, sizeof *all->ranks);
    status s = all->ranks ? make_ranks(all, err)
                          : error_set(err, STATUS_NO_MEMORY, "backend: out of memory");
    all->options = NULL;
    if (status_ok(s)) *out = (backend){&ranks_ops, all};
    else ranks_destroy(all);
    return s;
}

/* ---- CPU backends ---------------------------------------------------------------------------- */

static status make_cpu(void *ctx, comm *group, backend *out, error *err)
{
    backend_options o = *(const backend_options *)ctx;
    o.group = group;
    return backend_cpu_create(&o, out, err);
}

status backend_cpu_ranks_create(const backend_options *options, uint32_t n_ranks, backend *out,
                                error *err)
{
    RETURN_IF_ERROR(model_ranks_check(options->config, n_ranks, err));
    backend_options o = *options;
    uint32_t threads = o.n_threads ? o.n_threads : cpu_count_allowed();
    o.n_threads = threads > n_ranks ? threads / n_ranks : 1;
    backend_ranks_options all = {.n_ranks = n_ranks, .make = make_cpu, .ctx = &o};
    return backend_ranks_create(&all, out, err);
}

static backend_facts sum_facts(const backend *b, backend_facts (*of)(const backend *b))
{
    assert(b->ops == &ranks_ops);
    const backend_ranks *all = b->ctx;
    backend_facts sum = of(&all->ranks[0].backend);
    for (uint32_t i = 1; i < all->n_ranks; i++) {
        backend_facts f = of(&all->ranks[i].backend);
        sum.n_threads += f.n_threads;
        sum.weight_bytes += f.weight_bytes;
        sum.page_bytes += f.page_bytes;
        sum.pool_bytes += f.pool_bytes;
        sum.disk_bytes += f.disk_bytes;
        sum.filling_bytes += f.filling_bytes;
        sum.swap_bytes += f.swap_bytes;
        if (f.load_us > sum.load_us) sum.load_us = f.load_us;
        if (!f.from_cache) sum.from_cache = false;
    }
    return sum;
}

backend_facts backend_cpu_ranks_describe(const backend *b)
{
    return sum_facts(b, backend_cpu_describe);
}

/* ---- CUDA backends --------------------------------------------------------------------------- */

static status make_cuda(void *ctx, comm *group, backend *out, error *err)
{
    backend_cuda_options o = *(const backend_cuda_options *)ctx;
    o.common.group = group;
    return backend_cuda_create(&o, out, err);
}

status backend_cuda_ranks_create(const backend_cuda_options *options, uint32_t n_ranks,
                                 backend *out, error *err)
{
    RETURN_IF_ERROR(model_ranks_check(options->common.config, n_ranks, err));
    backend_cuda_options o = *options;
    uint32_t threads = o.common.n_threads ? o.common.n_threads : cpu_count_allowed();
    o.common.n_threads = threads > n_ranks ? threads / n_ranks : 1;
    backend_ranks_options all = {.n_ranks = n_ranks, .make = make_cuda, .ctx = &o};
    return backend_ranks_create(&all, out, err);
}

backend_facts backend_cuda_ranks_describe(const backend *b)
{
    return sum_facts(b, backend_cuda_describe);
}

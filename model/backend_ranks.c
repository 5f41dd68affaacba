/* A backend that is a group of ranks, each a backend of its own. A rank runs on its own thread, or
 * the caller drives it where it computes elsewhere (model.h). */
#include "model/backend_ranks.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- a rank's thread ------------------------------------------------------------------------- */

/* Numbers failures in order: ranks that fail because of another have higher numbers. */
static void count_failure(rank *r)
{
    if (!status_ok(r->status)) r->failed = atomic_fetch_add(&r->all->n_failures, 1);
}

static void note_failure(rank *r, status s)
{
    r->status = s;
    count_failure(r);
    if (!status_ok(s)) comm_abort(r->comm); /* the others may be waiting for this rank */
}

static void make_rank(rank *r)
{
    const backend_ranks_options *o = r->all->options;
    note_failure(r, o->make(o->ctx, r->comm, &r->backend, &r->why));
}

/* The other ranks must not wait for one whose step failed: their kernels may, besides their
 * comms. */
static void interrupt_others(const rank *r)
{
    backend_ranks *all = r->all;
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        const backend *b = &all->ranks[i].backend;
        if (i != r->index && b->ops) b->ops->interrupt(b->ctx);
    }
    pthread_mutex_unlock(&all->lock);
}

static void submit_step(rank *r)
{
    backend_ranks *all = r->all;
    const backend *b = &r->backend;
    uint64_t at = r->n_submitted % FLIGHTS;
    r->submitted[at] = b->ops->submit(b->ctx, all->plans[at]);
    if (!status_ok(r->submitted[at])) {
        note_failure(r, r->submitted[at]);
        interrupt_others(r);
    }
    pthread_mutex_lock(&all->lock);
    r->n_submitted++;
    pthread_cond_signal(&all->done);
    pthread_mutex_unlock(&all->lock);
}

static void collect_step(rank *r)
{
    const backend *b = &r->backend;
    r->result = NULL;
    r->status = r->submitted[r->n_collected % FLIGHTS];
    if (!status_ok(r->status)) return; /* submit_step has told the others */
    r->status = b->ops->collect(b->ctx, &r->result);
    if (status_ok(r->status)) r->status = r->result->status;
    count_failure(r);
    bool alone = !status_ok(r->status) && (!r->result || r->result->end == STEP_ENDED_ALONE);
    if (!alone) return;
    comm_abort(r->comm); /* the others may be waiting for this rank */
    interrupt_others(r);
}

static void signal_done(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    if (--all->n_busy == 0) pthread_cond_signal(&all->done);
    pthread_mutex_unlock(&all->lock);
}

/* The next work of a rank. A backend that takes one step at a time computes in collect, so that is
 * called at once; others have launched everything in submit, and wait in collect. */
typedef enum rank_work { RANK_SUBMITS, RANK_COLLECTS, RANK_ENDS } rank_work;

/* Steps that were submitted to some ranks are so to all before these end: the others would wait. */
static rank_work await_work(const rank *r)
{
    backend_ranks *all = r->all;
    const backend *b = &r->backend;
    bool at_once = b->ops->info(b->ctx)->max_in_flight < FLIGHTS;
    rank_work work = RANK_ENDS;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        bool collects = at_once ? r->n_submitted > r->n_collected : all->n_asked > r->n_collected;
        if (all->n_orders > r->n_submitted) work = RANK_SUBMITS;
        else if (collects) work = RANK_COLLECTS;
        if (work != RANK_ENDS || all->stop) break;
        pthread_cond_wait(&all->ordered, &all->lock);
    }
    pthread_mutex_unlock(&all->lock);
    return work;
}

/* The caller may have asked for the step already, or ask later. */
static void end_collect(rank *r)
{
    backend_ranks *all = r->all;
    pthread_mutex_lock(&all->lock);
    r->n_collected++;
    pthread_cond_signal(&all->done);
    pthread_mutex_unlock(&all->lock);
}

static void destroy_rank(rank *r)
{
    backend own = r->backend;
    pthread_mutex_lock(&r->all->lock);
    r->backend = (backend){0}; /* no other rank interrupts it any more */
    pthread_mutex_unlock(&r->all->lock);
    if (own.ops) own.ops->destroy(own.ctx);
}

/* Rests, and waits until all ranks have rested: none frees memory that another one may still
 * read. */
static void rest_together(rank *r)
{
    backend_ranks *all = r->all;
    const backend *b = &r->backend;
    if (b->ops && b->ops->rest) b->ops->rest(b->ctx);
    pthread_mutex_lock(&all->lock);
    all->n_resting++;
    pthread_cond_broadcast(&all->ordered);
    while (!all->stop || all->n_resting < all->n_started)
        pthread_cond_wait(&all->ordered, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void *rank_main(void *arg)
{
    rank *r = arg;
    thread_set_name("oct-rank");
    make_rank(r);
    bool stays = !r->all->driven;
    signal_done(r->all);
    for (rank_work work; stays && r->backend.ops && (work = await_work(r)) != RANK_ENDS;) {
        if (work == RANK_SUBMITS) {
            submit_step(r);
            continue;
        }
        collect_step(r);
        end_collect(r);
    }
    if (stays) {
        rest_together(r);
        destroy_rank(r);
    }
    return NULL;
}

static void await_ranks(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    while (all->n_busy > 0) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static bool have_submitted(const backend_ranks *all, uint64_t n)
{
    for (uint32_t i = 0; i < all->n_ranks; i++)
        if (all->ranks[i].n_submitted < n) return false;
    return true;
}

static bool have_collected(const backend_ranks *all, uint64_t n)
{
    for (uint32_t i = 0; i < all->n_ranks; i++)
        if (all->ranks[i].n_collected < n) return false;
    return true;
}

/* Has all ranks collect the oldest step in flight. */
static void collect_threads(backend_ranks *all)
{
    pthread_mutex_lock(&all->lock);
    all->n_asked++;
    pthread_cond_broadcast(&all->ordered);
    while (!have_collected(all, all->n_asked)) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

/* ---- ranks driven by the caller -------------------------------------------------------------- */

/* Submits to all ranks, so that they compute at the same time. A failure interrupts all of them. */
static void submit_to_all(backend_ranks *all, const step_plan *plan)
{
    bool ok = true;
    uint64_t at = (all->n_orders - 1) % FLIGHTS;
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        rank *r = &all->ranks[i];
        r->submitted[at] = r->backend.ops->submit(r->backend.ctx, plan);
        ok &= status_ok(r->submitted[at]);
    }
    for (uint32_t i = 0; !ok && i < all->n_ranks; i++)
        all->ranks[i].backend.ops->interrupt(all->ranks[i].backend.ctx);
}

/* A step that was interrupted because the one behind it was not submitted ends with that one's
 * reason. */
static void collect_from_all(backend_ranks *all)
{
    uint64_t at = all->n_asked++ % FLIGHTS, behind = all->n_asked % FLIGHTS;
    bool followed = all->n_orders > all->n_asked;
    for (uint32_t i = 0; i < all->n_ranks; i++) {
        rank *r = &all->ranks[i];
        r->result = NULL;
        r->status = r->submitted[at];
        if (!status_ok(r->status)) continue;
        r->status = r->backend.ops->collect(r->backend.ctx, &r->result);
        if (status_ok(r->status)) r->status = r->result->status;
        else if (followed && !status_ok(r->submitted[behind])) r->status = r->submitted[behind];
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

static const backend_info *ranks_info(void *ctx) { return &((backend_ranks *)ctx)->info; }

static status ranks_submit(void *ctx, const step_plan *plan)
{
    backend_ranks *all = ctx;
    assert(all->n_orders - all->n_asked < all->info.max_in_flight);
    pthread_mutex_lock(&all->lock);
    all->plans[all->n_orders++ % FLIGHTS] = plan;
    pthread_cond_broadcast(&all->ordered);
    /* Where the next plan may come before this one is collected, its deltas do not last longer. */
    bool waits = !all->driven && all->info.max_in_flight > 1;
    while (waits && !have_submitted(all, all->n_orders)) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
    if (all->driven) submit_to_all(all, plan);
    return STATUS_IS_OK;
}

static status ranks_collect(void *ctx, const step_result **out)
{
    backend_ranks *all = ctx;
    assert(all->n_asked < all->n_orders);
    all->plan = all->plans[all->n_asked % FLIGHTS];
    if (all->driven) collect_from_all(all);
    else collect_threads(all);
    ranks_join(all);
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
        if (b->ops) b->ops->interrupt(b->ctx);
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
    if (all->driven && all->ranks) ranks_interrupt(all); // they wait for each other to end
    for (uint32_t i = 0; all->ranks && i < all->n_ranks; i++) {
        if (all->ranks[i].all) destroy_rank(&all->ranks[i]); // threads have destroyed theirs
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
    .read_cells = ranks_read_cells,
    .write_cells = ranks_write_cells,
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
        if (info->max_in_flight < all->info.max_in_flight)
            all->info.max_in_flight = info->max_in_flight;
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
    return STATUS_IS_OK;
}

static status make_ranks(backend_ranks *all, error *err)
{
    RETURN_IF_ERROR(join_group(all, err));
    RETURN_IF_ERROR(start_ranks(all, err));
    await_ranks(all);
    const rank *failed = ranks_failed(all);
    if (failed) {
        if (err) *err = failed->why;
        return failed->status;
    }
    RETURN_IF_ERROR(compare_infos(all, err));
    ranks_know_blocks(all);
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

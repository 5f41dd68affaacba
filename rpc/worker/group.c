/* Makes the ranks of a coordinator's group, and fails them together. */
#include "rpc/worker/group.h"

#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    SILENCE_US = 1500000,
    PATIENCE_US = 5000000,
    SILENCES_MAX = 4,
    RETRY_US = 50000,
    /* Time for a worker to read the weights' headers and the config; heartbeats notice a worker
     * that is gone meanwhile. */
    CONFIGURE_US = 60000000,
    JOIN_US = 60000000,
};
#define LOAD_US INT64_C(14400000000) /* 4 hours: the largest models from a slow store */

int64_t group_silence_us(const worker_group *g)
{
    return g->o.silence_us ? g->o.silence_us : SILENCE_US;
}

size_t group_part_bytes(const worker_group *g)
{
    return g->o.part_bytes ? g->o.part_bytes : part_bytes_usual;
}

void link_prefix(const worker_link *l, error *err)
{
    error_prefix(err, "rank %u (%s)", l->rank, l->address);
}

status group_failure(const worker_group *g, error *err)
{
    if (g->failed_rank == g->o.n) return error_set(err, STATUS_IO, "given up");
    return error_set(err, STATUS_IO, "given up, because rank %u failed", g->failed_rank);
}

void link_count_loss(worker_link *l)
{
    l->up = false;
    if (!l->counted) l->group->n_lost++;
    l->counted = true;
}

void group_fail(worker_group *g, uint32_t rank)
{
    pthread_mutex_lock(&g->lock);
    if (!g->failed) {
        g->failed = true;
        g->failed_rank = rank;
        for (uint32_t i = 0; i < g->o.n; i++) {
            worker_link *l = &g->links[i];
            if (l->asking) grpc_call_cancel(l->asking, NULL);
            if (l->stream.call) grpc_call_cancel(l->stream.call, NULL);
            link_cancel_cells(l);
        }
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
}

/* ---- a session, step by step ----------------------------------------------------------------- */

/* Begins a session. Nothing is left of the last one: its backends have been destroyed. Call it with
 * the lock held. */
static void begin_session(worker_group *g)
{
    do {
        if (getrandom(&g->session, sizeof g->session, 0) != sizeof g->session)
            g->session = hash_mix64((uint64_t)clock_now_ns() ^ (uintptr_t)g);
    } while (g->session == 0);
    g->failed = g->given_up;
    g->failed_rank = g->o.n;
    g->n_made = 0;
    g->n_addresses = 0;
    g->packed_left = 0;
    g->grace_until_us = 0;
    for (uint32_t i = 0; i < g->o.n; i++) {
        free((void *)(uintptr_t)g->addresses[i].bytes);
        g->addresses[i] = (comm_address){0};
    }
}

static void note_arrival(worker_link *l)
{
    worker_group *g = l->group;
    pthread_mutex_lock(&g->lock);
    if (g->n_arrived == 0) begin_session(g);
    g->n_arrived = (g->n_arrived + 1) % g->o.n;
    l->lost = l->in_reach = l->counted = l->interrupted = l->configured = false;
    l->config = *g->o.config;
    l->config.rank = l->rank;
    l->config.size = g->o.n;
    l->config.silence_ms = (uint32_t)(2 * group_silence_us(g) / 1000);
    pthread_mutex_unlock(&g->lock);
}

/* Waits RETRY_US. False when the session has failed meanwhile. */
static bool wait_a_little(worker_group *g)
{
    int64_t us = clock_now_us() + RETRY_US;
    struct timespec until = {us / 1000000, us % 1000000 * 1000};
    pthread_mutex_lock(&g->lock);
    while (!g->failed && clock_now_us() < us) pthread_cond_timedwait(&g->changed, &g->lock, &until);
    bool go_on = !g->failed;
    pthread_mutex_unlock(&g->lock);
    return go_on;
}

/* True when the error says that no process listens at the address. */
static bool is_absent(const error *err)
{
    static const char *const words[] = {"refused", "No such file", "not known"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(err->text, words[i])) return true;
    return false;
}

/* Adds a likely reason to an error: gRPC does not say that a connection broke because of
 * certificates, since a server that refuses one just closes. */
static void explain(const worker_link *l, error *err)
{
    if (is_absent(err) || strstr(err->text, "no answer")) return;
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, "%s",
             l->group->o.tls.cert
                 ? " (it speaks plain text, or a certificate was not signed by the other side's CA)"
                 : " (it may want a certificate)");
}

/* True when the worker has been silent for so long that its process must be stuck. Call it with the
 * lock held. */
static bool is_stuck(worker_link *l, status s, const error *err)
{
    int64_t now = clock_now_us(), most = SILENCES_MAX * group_silence_us(l->group);
    if (s.code == STATUS_IO) return false; /* the session failed before the worker could answer */
    if (s.code != STATUS_UNAVAILABLE || is_absent(err)) l->unheard_since_us = 0;
    else if (l->unheard_since_us == 0) l->unheard_since_us = now;
    if (l->unheard_since_us == 0 || now - l->unheard_since_us < most) return false;
    l->unheard_since_us = 0;
    return true;
}

/* Calls Health first, so that a worker that does not answer is known soon, however long Configure
 * may take. */
static status greet_worker(worker_link *l, error *err)
{
    Octavo__Worker__V1__HealthRequest request = OCTAVO__WORKER__V1__HEALTH_REQUEST__INIT;
    question q = {.path = "/octavo.worker.v1.Worker/Health",
                  .message = &request.base,
                  .answer = &octavo__worker__v1__health_reply__descriptor,
                  .timeout_us = group_silence_us(l->group)};
    answer a;
    status s = link_ask(l, &q, &a, err);
    worker_group *g = l->group;
    if (status_ok(s)) arena_destroy(&a.memory);
    pthread_mutex_lock(&g->lock);
    if (s.code != STATUS_IO) l->up = status_ok(s); // else the session failed before it answered
    bool stuck = is_stuck(l, s, err);
    pthread_mutex_unlock(&g->lock);
    if (stuck && g->o.on_silent) g->o.on_silent(g->o.on_silent_ctx, l->rank);
    if (s.code == STATUS_UNAVAILABLE) explain(l, err);
    return s;
}

static status put_address(worker_link *l, const answer *a, error *err)
{
    const Octavo__Worker__V1__ConfigureReply *reply = (const void *)a->message;
    worker_group *g = l->group;
    size_t n = reply->address.len;
    char version[64];
    text_copy(reply->version.data, reply->version.len, version, sizeof version);
    if (reply->protocol != WORKER_PROTOCOL || strcmp(version, g->o.version) != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "version: the worker is octavo %s with protocol %u, this is octavo %s "
                         "with protocol %d",
                         version, reply->protocol, g->o.version, WORKER_PROTOCOL);
    if (n > WORKER_ADDRESS_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "address: %zu bytes", n);
    void *copy = malloc(n + 1);
    if (!copy) return error_set(err, STATUS_NO_MEMORY, "address: out of memory");
    if (n) memcpy(copy, reply->address.data, n);
    pthread_mutex_lock(&g->lock);
    g->addresses[l->rank] = (comm_address){copy, n};
    g->n_addresses++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return STATUS_IS_OK;
}

/* Repeats a call while the worker serves another coordinator or still frees its last session. */
static status ask_until_free(worker_link *l, const question *q, answer *a, error *err)
{
    worker_group *g = l->group;
    int64_t until = clock_now_us() + (g->o.patience_us ? g->o.patience_us : PATIENCE_US);
    for (;;) {
        status s = link_ask(l, q, a, err);
        if (s.code != STATUS_QUEUE_FULL) return s;
        if (clock_now_us() >= until || !wait_a_little(g))
            return status_make(STATUS_UNAVAILABLE, s.message);
    }
}

static void set_configured(worker_link *l)
{
    pthread_mutex_lock(&l->group->lock);
    l->configured = true;
    pthread_mutex_unlock(&l->group->lock);
}

/* Calls Configure. Heartbeats begin before it: they notice a worker that falls silent meanwhile,
 * and tell a worker that reads for a long time that the coordinator still waits. */
static status configure_worker(worker_link *l, error *err)
{
    configure_message m;
    arena memory;
    answer a;
    arena_init(&memory, MEMORY_BLOCK, 0);
    status s = config_pack(&l->config, l->group->session, l->group->o.version, &memory, &m);
    if (!status_ok(s)) error_set(err, s.code, "Configure: out of memory");
    question q = {.path = "/octavo.worker.v1.Worker/Configure",
                  .message = &m.base,
                  .answer = &octavo__worker__v1__configure_reply__descriptor,
                  .timeout_us = CONFIGURE_US};
    if (status_ok(s)) {
        l->has_session = true;
        heart_listen(l);
        s = ask_until_free(l, &q, &a, err);
    }
    arena_destroy(&memory);
    RETURN_IF_ERROR(s);
    set_configured(l);
    s = put_address(l, &a, err);
    arena_destroy(&a.memory);
    return s;
}

/* Waits for the addresses of all ranks. Checks `ranks` too, since another rank may fail before it
 * calls worker_proxy_make. */
static status await_addresses(worker_group *g, comm *ranks, error *err)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_addresses < g->o.n && !g->failed) {
        int64_t us = clock_now_us() + RETRY_US;
        struct timespec until = {us / 1000000, us % 1000000 * 1000};
        pthread_cond_timedwait(&g->changed, &g->lock, &until);
        if (!status_ok(comm_check(ranks))) break;
    }
    bool complete = g->n_addresses == g->o.n, failed = g->failed;
    pthread_mutex_unlock(&g->lock);
    if (failed) return group_failure(g, err);
    return complete ? STATUS_IS_OK : error_set(err, STATUS_IO, "given up: a rank is not there");
}

static status join_worker(worker_link *l, comm *ranks, error *err)
{
    worker_group *g = l->group;
    RETURN_IF_ERROR(await_addresses(g, ranks, err));
    join_message m = OCTAVO__WORKER__V1__JOIN_REQUEST__INIT;
    ProtobufCBinaryData *all = calloc(g->o.n, sizeof *all);
    if (!all) return error_set(err, STATUS_NO_MEMORY, "Join: out of memory");
    for (uint32_t i = 0; i < g->o.n; i++)
        all[i] = call_bytes(g->addresses[i].bytes, g->addresses[i].n);
    m.session = g->session;
    m.addresses = all;
    m.n_addresses = g->o.n;
    question q = {.path = "/octavo.worker.v1.Worker/Join",
                  .message = &m.base,
                  .answer = &octavo__worker__v1__join_reply__descriptor,
                  .timeout_us = JOIN_US};
    answer a;
    status s = link_ask(l, &q, &a, err);
    if (status_ok(s)) arena_destroy(&a.memory);
    free(all);
    return s;
}

static status load_worker(worker_link *l, error *err)
{
    Octavo__Worker__V1__LoadRequest request = OCTAVO__WORKER__V1__LOAD_REQUEST__INIT;
    request.session = l->group->session;
    question q = {.path = "/octavo.worker.v1.Worker/Load",
                  .message = &request.base,
                  .answer = &octavo__worker__v1__load_reply__descriptor,
                  .timeout_us = LOAD_US};
    answer a;
    RETURN_IF_ERROR(link_ask(l, &q, &a, err));
    status s = load_unpack((const load_message *)a.message, &l->config, &l->facts, err);
    if (!status_ok(s)) error_prefix(err, "Load");
    arena_destroy(&a.memory);
    return s;
}

/* ---- making a rank --------------------------------------------------------------------------- */

static status make_rank(worker_link *l, comm *ranks, error *err)
{
    RETURN_IF_ERROR(link_connect(l, err));
    RETURN_IF_ERROR(greet_worker(l, err));
    RETURN_IF_ERROR(configure_worker(l, err));
    RETURN_IF_ERROR(join_worker(l, ranks, err));
    RETURN_IF_ERROR(load_worker(l, err));
    return stream_open(l, err);
}

/* Called for a rank that failed because it lost its peers: waits until the rank that caused it has
 * failed or was found silent, so that the session's error names that rank. */
static void await_culprit(worker_group *g)
{
    int64_t us = clock_now_us() + group_silence_us(g);
    struct timespec until = {us / 1000000, us % 1000000 * 1000};
    pthread_mutex_lock(&g->lock);
    while (!g->failed && clock_now_us() < us) pthread_cond_timedwait(&g->changed, &g->lock, &until);
    pthread_mutex_unlock(&g->lock);
}

status worker_proxy_make(void *ctx, comm *rank, backend *out, error *err)
{
    worker_group *g = ctx;
    error why = {{0}};
    if (comm_size(rank) != (int)g->o.n)
        return error_set(err, STATUS_INVALID, "workers: %u for %d ranks", g->o.n, comm_size(rank));
    worker_link *l = &g->links[comm_rank(rank)];
    note_arrival(l);
    status s = make_rank(l, rank, &why);
    if (status_ok(s)) {
        *out = (backend){&proxy_ops, l};
        pthread_mutex_lock(&g->lock);
        g->n_made++;
        pthread_mutex_unlock(&g->lock);
        return s;
    }
    if (s.code == STATUS_IO) await_culprit(g);
    group_fail(g, l->rank);
    link_prefix(l, &why);
    if (err) *err = why;
    link_end_session(l);
    return s;
}

/* ---- a group's life -------------------------------------------------------------------------- */

static void init_locks(worker_group *g)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

status worker_group_create(const worker_group_options *o, worker_group **out, error *err)
{
    if (o->n == 0 || o->n > WORKER_RANKS_MAX)
        return error_set(err, STATUS_INVALID, "workers: %u is not 1 to %d", o->n, WORKER_RANKS_MAX);
    worker_group *g = calloc(1, sizeof *g);
    if (!g) return error_set(err, STATUS_NO_MEMORY, "workers: out of memory");
    g->o = *o;
    init_locks(g);
    grpc_keep_quiet();
    grpc_init();
    g->packed = grpc_empty_slice();
    g->steps = grpc_completion_queue_create_for_next(NULL);
    g->beats = grpc_completion_queue_create_for_next(NULL);
    g->links = calloc(o->n, sizeof *g->links);
    g->addresses = calloc(o->n, sizeof *g->addresses);
    status s = g->links && g->addresses
                   ? STATUS_IS_OK
                   : error_set(err, STATUS_NO_MEMORY, "workers: out of memory");
    for (uint32_t i = 0; status_ok(s) && i < o->n; i++)
        g->links[i] = (worker_link){.group = g, .rank = i, .address = o->addresses[i]};
    if (status_ok(s)) s = heart_start(g, err);
    if (status_ok(s)) *out = g;
    else worker_group_destroy(g);
    return s;
}

static void destroy_queue(grpc_completion_queue *q)
{
    grpc_completion_queue_shutdown(q);
    while (grpc_completion_queue_next(q, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(q);
}

void worker_group_destroy(worker_group *g)
{
    if (!g) return;
    heart_stop(g);
    destroy_queue(g->steps);
    destroy_queue(g->beats);
    grpc_slice_unref(g->packed);
    grpc_shutdown();
    for (uint32_t i = 0; g->addresses && i < g->o.n; i++)
        free((void *)(uintptr_t)g->addresses[i].bytes);
    free(g->addresses);
    free(g->links);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void worker_group_give_up(worker_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->given_up = true;
    bool making = g->n_made < g->o.n;
    pthread_mutex_unlock(&g->lock);
    if (making) group_fail(g, g->o.n);
}

worker_counts worker_group_counts(worker_group *g)
{
    pthread_mutex_lock(&g->lock);
    worker_counts c = {.n = g->o.n, .lost = g->n_lost};
    for (uint32_t i = 0; i < g->o.n; i++) c.up += g->links[i].up;
    pthread_mutex_unlock(&g->lock);
    return c;
}

void worker_group_on_loss(worker_group *g, void (*lost)(void *ctx, const char *why), void *ctx)
{
    pthread_mutex_lock(&g->lock);
    g->on_loss = lost;
    g->on_loss_ctx = ctx;
    pthread_mutex_unlock(&g->lock);
}

const worker_facts *worker_group_facts(const worker_group *g, uint32_t rank)
{
    return &g->links[rank].facts.facts;
}

/* The methods that a coordinator calls at a worker, and the checks of their order (server.h). They
 * run on the queue's thread. */
#include "rpc/worker/server.h"

#include "rpc/worker/codes.h"
#include <stdio.h>
#include <string.h>

typedef Octavo__Worker__V1__LoadRequest load_request;
typedef Octavo__Worker__V1__HealthRequest health_request;
typedef Octavo__Worker__V1__ShutdownRequest shutdown_request;

static const char *const states[] = {
    [WORKER_IDLE] = "idle",     [WORKER_CONFIGURED] = "configured", [WORKER_JOINED] = "joined",
    [WORKER_LOADED] = "loaded", [WORKER_ENDING] = "ending",
};

static worker_server *server_of(const rpc_call *c) { return call_context(c); }

static void refuse_call(rpc_call *c, status_code code, const char *text)
{
    call_finish(c, code_to_wire(code), text);
}

/* ---- asking in turn -------------------------------------------------------------------------- */

/* Checks that the call belongs to the worker's session, which goes on. */
static status check_session(const worker_server *s, uint64_t session, error *err)
{
    if (s->session == 0 || session != s->session)
        return error_set(err, STATUS_INVALID, "session: %s",
                         s->session ? "this worker serves another coordinator"
                                    : "there is none, Configure comes first");
    if (s->state == WORKER_ENDING) return error_set(err, STATUS_UNAVAILABLE, "%s", s->why.text);
    return STATUS_IS_OK;
}

static status check_state(const worker_server *s, worker_state want, const char *what, error *err)
{
    if (s->state == want) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: the worker is %s, not %s", what, states[s->state],
                     states[want]);
}

/* Checks that the call belongs to the worker's session, that no other call is unanswered, and that
 * the worker is in state `want`. */
static status check_call(const worker_server *s, uint64_t session, worker_state want,
                         const char *what, error *err)
{
    RETURN_IF_ERROR(check_session(s, session, err));
    if (s->job != JOB_NONE || s->asker)
        return error_set(err, STATUS_INVALID, "%s: the last one has not been answered", what);
    return check_state(s, want, what, err);
}

/* Forgets the call that waited for a job's answer: it has been answered or has ended. Call it with
 * the lock held. */
static void forget_asker(worker_server *s)
{
    s->asker = NULL;
    pthread_cond_signal(&s->work);
}

/* Called when Configure, Join or Load ends. If its answer has not been sent, the coordinator is
 * gone. */
static void asked_ended(rpc_call *c)
{
    worker_server *s = server_of(c);
    pthread_mutex_lock(&s->lock);
    if (s->asker == c) {
        forget_asker(s);
        server_end_session(s, "the coordinator went away");
    }
    pthread_mutex_unlock(&s->lock);
}

/* Refuses the call whose session is over. Call it with the lock held. */
static void refuse_asker(worker_server *s, rpc_call *c)
{
    forget_asker(s);
    refuse_call(c, status_ok(s->status) ? STATUS_UNAVAILABLE : s->status.code, s->why.text);
}

/* True when the job of this call is done and its answer can be sent. If the session is over,
 * refuses the call instead. Call it with the lock held. */
static bool answer_begins(worker_server *s, rpc_call *c)
{
    if (s->asker != c || s->job != JOB_NONE) return false;
    bool over = s->state == WORKER_ENDING;
    if (over) refuse_asker(s, c);
    else forget_asker(s);
    return !over;
}

/* ---- Configure ------------------------------------------------------------------------------- */

/* Begins a session if the worker is idle. Call it with the lock held. */
static status begin_session(worker_server *s, const configure_message *m, error *err)
{
    arena memory;
    worker_config config;
    arena_init(&memory, MEMORY_BLOCK, 0);
    status st = config_unpack(m, s->o.version, &memory, &config, err);
    if (status_ok(st) && m->session == 0)
        st = error_set(err, STATUS_INVALID, "session: it must not be 0");
    if (status_ok(st) && (s->state != WORKER_IDLE || s->stop))
        st = error_set(err, STATUS_QUEUE_FULL, "%s",
                       s->state == WORKER_ENDING ? "this worker's last session is ending"
                                                 : "this worker serves another coordinator");
    if (!status_ok(st)) {
        arena_destroy(&memory);
        return st;
    }
    s->memory = memory;
    s->config = config;
    s->session = m->session;
    s->state = WORKER_CONFIGURED;
    s->last_beat_us = clock_now_us();
    s->last_step = 0;
    s->status = STATUS_IS_OK;
    pthread_cond_signal(&s->watch);
    return STATUS_IS_OK;
}

static void method_configure(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    error err = {{0}};
    pthread_mutex_lock(&s->lock);
    status st = begin_session(s, (const configure_message *)m, &err);
    if (status_ok(st)) server_start_job(s, JOB_CONFIGURE, c);
    else refuse_call(c, st.code, err.text);
    pthread_mutex_unlock(&s->lock);
}

static void configured(rpc_call *c)
{
    worker_server *s = server_of(c);
    Octavo__Worker__V1__ConfigureReply reply = OCTAVO__WORKER__V1__CONFIGURE_REPLY__INIT;
    pthread_mutex_lock(&s->lock);
    if (answer_begins(s, c)) {
        reply.protocol = WORKER_PROTOCOL;
        reply.version = call_bytes(s->o.version, strlen(s->o.version));
        reply.address = call_bytes(s->address.bytes, s->address.n);
        call_reply(c, &reply.base);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- Join ------------------------------------------------------------------------------------ */

/* Copies the addresses into the session's memory and starts the job. Call it with the lock held. */
static status take_addresses(worker_server *s, rpc_call *c, const join_message *m, error *err)
{
    RETURN_IF_ERROR(check_call(s, m->session, WORKER_CONFIGURED, "Join", err));
    worker_address *all;
    RETURN_IF_ERROR(join_unpack(m, s->config.size, &s->memory, &all, err));
    for (uint32_t i = 0; i < s->config.size; i++) {
        all[i].bytes = arena_strndup(&s->memory, all[i].n ? all[i].bytes : "", all[i].n);
        if (!all[i].bytes) return error_set(err, STATUS_NO_MEMORY, "addresses: out of memory");
    }
    s->addresses = all;
    server_start_job(s, JOB_JOIN, c);
    return STATUS_IS_OK;
}

static void method_join(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    error err = {{0}};
    pthread_mutex_lock(&s->lock);
    status st = take_addresses(s, c, (const join_message *)m, &err);
    if (!status_ok(st)) refuse_call(c, st.code, err.text);
    pthread_mutex_unlock(&s->lock);
}

static void joined(rpc_call *c)
{
    worker_server *s = server_of(c);
    Octavo__Worker__V1__JoinReply reply = OCTAVO__WORKER__V1__JOIN_REPLY__INIT;
    pthread_mutex_lock(&s->lock);
    if (answer_begins(s, c)) call_reply(c, &reply.base);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Load ------------------------------------------------------------------------------------ */

static void method_load(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    error err = {{0}};
    pthread_mutex_lock(&s->lock);
    status st = check_call(s, ((const load_request *)m)->session, WORKER_JOINED, "Load", &err);
    if (status_ok(st)) server_start_job(s, JOB_LOAD, c);
    else refuse_call(c, st.code, err.text);
    pthread_mutex_unlock(&s->lock);
}

static void loaded(rpc_call *c)
{
    worker_server *s = server_of(c);
    load_message reply;
    arena memory;
    arena_init(&memory, MEMORY_BLOCK, 0);
    pthread_mutex_lock(&s->lock);
    if (answer_begins(s, c)) {
        if (status_ok(load_pack(&s->facts.info, &s->facts.facts, &memory, &reply)))
            call_reply(c, &reply.base);
        else refuse_call(c, STATUS_NO_MEMORY, "Load: out of memory");
    }
    pthread_mutex_unlock(&s->lock);
    arena_destroy(&memory);
}

/* ---- Step ------------------------------------------------------------------------------------ */

/* The place of the next plan. */
static worker_step *next_step(worker_server *s) { return &s->taken[s->n_taken % STEPS_MOST]; }

/* Takes a part of a plan. True: the plan is complete. */
static status take_part(worker_server *s, const plan_message *m, bool *complete, error *err)
{
    assembly *a = &next_step(s)->parts;
    const part_sizes sizes = {server_part_bytes(s), plan_bytes_max};
    RETURN_IF_ERROR(assembly_add(a, m->part, &sizes, err));
    *complete = a->have == a->size;
    return STATUS_IS_OK;
}

static status take_whole(worker_server *s, rpc_call *c, const plan_message *m, error *err)
{
    worker_step *t = next_step(s);
    arena_destroy(&t->memory);
    t->memory = call_keep_message(c);
    return plan_unpack(m, &s->facts.info, &t->memory, &t->plan, err);
}

/* Checks the order of a plan or a part of a plan. */
static status check_order(worker_server *s, const plan_message *m, error *err)
{
    uint64_t unanswered = s->n_taken - s->n_answered;
    if (unanswered == steps_of(&s->facts.info))
        return error_set(err, STATUS_INVALID, "Step: the last %llu have not been answered",
                         (unsigned long long)unanswered);
    bool begun = next_step(s)->parts.bytes;
    if (!begun && m->step <= s->last_step)
        return error_set(err, STATUS_INVALID, "step: %llu after %llu", (unsigned long long)m->step,
                         (unsigned long long)s->last_step);
    if (begun && (m->step != s->last_step || !m->part))
        return error_set(err, STATUS_INVALID,
                         "part: step %llu comes before the last parts of step %llu",
                         (unsigned long long)m->step, (unsigned long long)s->last_step);
    return STATUS_IS_OK;
}

/* Takes a plan or a part of a plan. Call it with the lock held. */
static status take_plan(worker_server *s, rpc_call *c, const plan_message *m, error *err)
{
    RETURN_IF_ERROR(check_order(s, m, err));
    bool complete = true;
    status st = m->part ? take_part(s, m, &complete, err) : take_whole(s, c, m, err);
    if (!status_ok(st)) {
        error_prefix(err, "plan");
        return st;
    }
    s->last_step = next_step(s)->number = m->step;
    if (!complete) return STATUS_IS_OK;
    s->n_taken++;
    s->asker = c;
    pthread_cond_signal(&s->work);
    return STATUS_IS_OK;
}

/* The coordinator waits for all results before it goes on. Call it with the lock held. */
static status take_wait(worker_server *s, const plan_message *m, error *err)
{
    uint64_t last = s->n_taken ? s->taken[(s->n_taken - 1) % STEPS_MOST].number : 0;
    if (m->step != last || last == 0)
        return error_set(err, STATUS_INVALID, "awaits: step %llu, the last plan is that of %llu",
                         (unsigned long long)m->step, (unsigned long long)last);
    s->n_awaited = s->n_taken;
    pthread_cond_signal(&s->work);
    return STATUS_IS_OK;
}

/* Takes a message of the stream. Call it with the lock held. */
static status take_message(worker_server *s, rpc_call *c, const plan_message *m, error *err)
{
    RETURN_IF_ERROR(check_session(s, m->session, err));
    RETURN_IF_ERROR(check_state(s, WORKER_LOADED, "Step", err));
    if (s->stream && s->stream != c)
        return error_set(err, STATUS_INVALID, "Step: the session has a stream");
    RETURN_IF_ERROR(m->awaits ? take_wait(s, m, err) : take_plan(s, c, m, err));
    s->stream = c;
    return STATUS_IS_OK;
}

static void method_step(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    error err = {{0}};
    pthread_mutex_lock(&s->lock);
    status st = take_message(s, c, (const plan_message *)m, &err);
    if (status_ok(st)) call_receive(c);
    else refuse_call(c, st.code, err.text);
    pthread_mutex_unlock(&s->lock);
}

/* Sends the next part of the result; when it has gone out, `writable` sends another. Call it with
 * the lock held. */
static void send_part(worker_server *s, rpc_call *c)
{
    result_message m = OCTAVO__WORKER__V1__STEP_RESULT__INIT;
    part_message part =
        part_of(s->result_bytes, s->result_size, s->result_sent, server_part_bytes(s));
    m.part = &part;
    if (!call_send(c, &m.base)) return;
    s->result_sent += part.data.len;
    if (s->result_sent < s->result_size) return;
    alloc_pages_free(s->result_bytes, s->result_size);
    s->result_bytes = NULL;
    server_answered(s);
}

/* Packs a result that is to be sent in parts. Call it with the lock held. */
static status cut_result(worker_server *s, const result_message *m, size_t n)
{
    if (n > result_bytes_max)
        return status_make(STATUS_LIMIT, "the result is too large for a message");
    s->result_bytes = alloc_pages(n);
    if (!s->result_bytes) return status_make(STATUS_NO_MEMORY, "no memory for the result");
    s->result_size = n;
    s->result_sent = 0;
    protobuf_c_message_pack(&m->base, s->result_bytes);
    return STATUS_IS_OK;
}

/* Sends the result of a step. A result that is too large for a message makes the step fail. Call it
 * with the lock held. */
static void send_result(worker_server *s, rpc_call *c)
{
    result_message m;
    arena memory;
    arena_init(&memory, MEMORY_BLOCK, 0);
    const step_plan *plan = &s->taken[s->n_answered % STEPS_MOST].plan;
    const result_rank who = {s->config.rank, s->config.size};
    status st = result_pack(plan, s->result, &s->facts.info, who, &memory, &m);
    size_t n = status_ok(st) ? protobuf_c_message_get_packed_size(&m.base) : 0;
    if (n > server_part_bytes(s)) st = cut_result(s, &m, n);
    if (!status_ok(st)) {
        step_result failed = {.step = plan->step, .status = st};
        (void)result_pack(plan, &failed, &s->facts.info, who, &memory, &m);
    }
    s->result = NULL;
    if (s->result_bytes) send_part(s, c);
    else if (call_send(c, &m.base)) server_answered(s);
    arena_destroy(&memory);
    pthread_cond_signal(&s->work);
}

static void stepped(rpc_call *c)
{
    worker_server *s = server_of(c);
    pthread_mutex_lock(&s->lock);
    bool over = s->state == WORKER_ENDING;
    if (s->asker == c && over) {
        if (!s->running) refuse_asker(s, c); // else the step thread wakes the call again
    } else if (s->stream != c || over) {
        refuse_call(c, STATUS_UNAVAILABLE, s->why.text); // the stream's session is over
    } else if (call_can_send(c)) {                       // else `writable` follows
        if (s->result_bytes) send_part(s, c);
        else if (s->result) send_result(s, c);
    }
    pthread_mutex_unlock(&s->lock);
}

static void step_half_closed(rpc_call *c) { call_finish(c, GRPC_STATUS_OK, ""); }

static void step_ended(rpc_call *c)
{
    worker_server *s = server_of(c);
    pthread_mutex_lock(&s->lock);
    if (s->stream == c) {
        s->stream = NULL;
        server_end_session(s, "the coordinator's stream ended");
    }
    if (s->asker == c) forget_asker(s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Health, Shutdown ------------------------------------------------------------------------ */

static void method_health(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    Octavo__Worker__V1__HealthReply reply = OCTAVO__WORKER__V1__HEALTH_REPLY__INIT;
    pthread_mutex_lock(&s->lock);
    uint64_t session = ((const health_request *)m)->session;
    bool ours = session && session == s->session; // other callers do not learn the session's id
    comm_wait where;
    Octavo__Worker__V1__Wait wait = OCTAVO__WORKER__V1__WAIT__INIT;
    if (ours) s->last_beat_us = clock_now_us();
    if (ours && s->host_used && s->o.host.waits && s->o.host.waits(s->o.host.ctx, &where)) {
        wait.round = where.round;
        wait.inside = where.inside;
        wait.peer = (uint32_t)(where.peer + 1);
        wait.idle_us = (uint64_t)where.idle_us;
        reply.wait = &wait;
    }
    reply.state = call_bytes(states[s->state], strlen(states[s->state]));
    reply.session = ours ? session : 0;
    pthread_mutex_unlock(&s->lock);
    call_reply(c, &reply.base);
}

static void reply_shutdown(rpc_call *c)
{
    Octavo__Worker__V1__ShutdownReply reply = OCTAVO__WORKER__V1__SHUTDOWN_REPLY__INIT;
    call_reply(c, &reply.base);
}

/* Ends the session and answers the call when the worker is idle. Call it with the lock held. */
static status await_end(worker_server *s, rpc_call *c, uint64_t session, error *err)
{
    for (size_t i = 0; i < WAITERS_MAX; i++) {
        if (s->waiters[i].call) continue;
        s->waiters[i] = (shutdown_waiter){c, session};
        server_end_session(s, "the coordinator ended it");
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_LIMIT, "Shutdown: %d wait already", WAITERS_MAX);
}

static void method_shut_down(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = server_of(c);
    error err = {{0}};
    uint64_t session = ((const shutdown_request *)m)->session;
    pthread_mutex_lock(&s->lock);
    status st = STATUS_IS_OK;
    if (s->session == 0) reply_shutdown(c);
    else if (session != s->session)
        st = error_set(&err, STATUS_INVALID, "session: this worker serves another coordinator");
    else st = await_end(s, c, session, &err);
    if (!status_ok(st)) refuse_call(c, st.code, err.text);
    pthread_mutex_unlock(&s->lock);
}

static shutdown_waiter *waiter_of(worker_server *s, const rpc_call *c)
{
    for (size_t i = 0; i < WAITERS_MAX; i++)
        if (s->waiters[i].call == c) return &s->waiters[i];
    return NULL;
}

static void shut(rpc_call *c)
{
    worker_server *s = server_of(c);
    pthread_mutex_lock(&s->lock);
    shutdown_waiter *w = waiter_of(s, c);
    if (w && w->session != s->session) {
        w->call = NULL;
        reply_shutdown(c);
    }
    pthread_mutex_unlock(&s->lock);
}

static void shut_ended(rpc_call *c)
{
    worker_server *s = server_of(c);
    pthread_mutex_lock(&s->lock);
    shutdown_waiter *w = waiter_of(s, c);
    if (w) w->call = NULL;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define PATH(name) "/octavo.worker.v1.Worker/" name

static const rpc_method methods[] = {
    {.path = PATH("Configure"),
     .input = &octavo__worker__v1__configure_request__descriptor,
     .message = method_configure,
     .writable = configured,
     .ended = asked_ended},
    {.path = PATH("Join"),
     .input = &octavo__worker__v1__join_request__descriptor,
     .message = method_join,
     .writable = joined,
     .ended = asked_ended},
    {.path = PATH("Load"),
     .input = &octavo__worker__v1__load_request__descriptor,
     .message = method_load,
     .writable = loaded,
     .ended = asked_ended},
    {.path = PATH("Step"),
     .input = &octavo__worker__v1__step_plan__descriptor,
     .client_streams = true,
     .message = method_step,
     .half_closed = step_half_closed,
     .writable = stepped,
     .ended = step_ended},
    {.path = PATH("Health"),
     .input = &octavo__worker__v1__health_request__descriptor,
     .message = method_health},
    {.path = PATH("Cells"),
     .input = &octavo__worker__v1__cells_request__descriptor,
     .message = method_cells},
    {.path = PATH("Shutdown"),
     .input = &octavo__worker__v1__shutdown_request__descriptor,
     .message = method_shut_down,
     .writable = shut,
     .ended = shut_ended},
};

const rpc_service worker_service = {"octavo.worker.v1.Worker", methods,
                                    sizeof methods / sizeof *methods};

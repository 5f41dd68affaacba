/* A worker that takes two steps, and a coordinator that sends it what does not follow from the step
 * in flight, or comes out of turn: the stream ends with an error that says so. */
#include "proto/proto.h"
#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"
#include "tests/unit/rpc_grpc_client.h"
#include "tests/unit/rpc_worker_walk.h"

#define PATH(name) "/octavo.worker.v1.Worker/" name

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

/* The order of backend.h: the draw that gives a token is one of the step in flight, and the only
 * one of its sequence, which goes on with it; nothing there is opened, no rows of logits wait. */
static void what_does_not_follow_is_refused(void **state)
{
    (void)state;
    const backend_info info = {.max_seqs = 6};
    arena a;
    arena_init(&a, 4096, 0);
    step_seq drawn[] = {{.seq = 3, .n_samples = 1}, {.seq = 5, .n_samples = 1}};
    step_seq taken[] = {{.seq = 5, .n_tokens = 1, .token_from = 2}, {.seq = 4, .n_tokens = 1}};
    step_plan before = {.step = 8, .seqs = drawn, .n_seqs = 2};
    step_plan plan = {.step = 9, .seqs = taken, .n_seqs = 2};
    error err = {{0}};
#define RIGHT(of)                                                                                  \
    do {                                                                                           \
        if (!status_ok(plan_check_ahead(&plan, of, &info, &a, &err))) fail_msg("%s", err.text);    \
    } while (0)
#define WRONG(change, of, word)                                                                    \
    do {                                                                                           \
        change;                                                                                    \
        assert_int_equal(plan_check_ahead(&plan, of, &info, &a, &err).code, STATUS_INVALID);       \
        if (!strstr(err.text, word)) fail_msg("%s: \"%s\"", #change, err.text);                    \
    } while (0)
    RIGHT(&before);
    WRONG((void)0, NULL, "token_from: the step before step 9 is not in flight");
    WRONG(before.step = 7, &before, "token_from: the step before step 9 is not in flight");
    before.step = 8;
    WRONG(taken[0].token_from = 1, &before, "token_from: sequence 5 takes one of 1 draws of seq");
    WRONG(taken[0].token_from = 3, &before, "token_from: 3, the step before has 2 shares");
    WRONG(taken[0].token_from = UINT32_MAX, &before, "token_from: 4294967295, the step before");
    taken[0].token_from = 2;
    WRONG(drawn[1].n_samples = 0, &before, "token_from: sequence 5 takes one of 0 draws");
    WRONG(drawn[1].n_samples = 2, &before, "token_from: sequence 5 takes one of 2 draws");
    WRONG((drawn[1].n_samples = 1, taken[1].token_from = 1), &before, "token_from: sequence 4 ");
    taken[1].token_from = 0;
    RIGHT(&before);

    step_open open = {.seq = 2};
    plan.opens = &open;
    plan.n_opens = 1;
    RIGHT(&before);
    WRONG(open.seq = 3, &before, "open: sequence 3, which has a share in the step in flight");
    open.seq = 2;
    WRONG(drawn[0].want_logits = true, &before, "step: it comes behind step 8, whose sequence 3");
    drawn[0].want_logits = false;
    WRONG(drawn[1].want_scores = 1, &before, "step: it comes behind step 8, whose sequence 5");
    drawn[1].want_scores = 0;
    WRONG(drawn[0].measure.novelty = true, &before, "step: it comes behind step 8");
    drawn[0].measure.novelty = false;
    RIGHT(&before);
    WRONG(taken[0].token_from = 0, &before, "token_from: sequence 5 goes on without the token");
    WRONG(drawn[1].n_samples = 2, &before, "seq: 5 has a share behind 2 draws");
    drawn[1].n_samples = 0; /* a prompt that goes on */
    RIGHT(&before);
    open.seq = 5;
    RIGHT(NULL);
    arena_destroy(&a);
#undef RIGHT
#undef WRONG
}

/* A raw client of one worker, and the plans of ranks like this one. */
typedef struct stepping {
    grpc_client client;
    client_call *step;
    backend local;
    walk walk;
    arena memory;
    plan_message m;
    step_seq *seqs; // of the last plan
} stepping;

enum { SESSION = 7 };

static void ask(grpc_client *c, const char *path, const ProtobufCMessage *m)
{
    strbuf answer = {0};
    if (!client_unary(c, path, m, &answer)) fail_msg("%s is refused", path);
    strbuf_destroy(&answer);
}

static void step_begin(stepping *t, site *s)
{
    Octavo__Worker__V1__ConfigureRequest configure = OCTAVO__WORKER__V1__CONFIGURE_REQUEST__INIT;
    Octavo__Worker__V1__Geometry geometry = OCTAVO__WORKER__V1__GEOMETRY__INIT;
    Octavo__Worker__V1__JoinRequest join = OCTAVO__WORKER__V1__JOIN_REQUEST__INIT;
    Octavo__Worker__V1__LoadRequest load = OCTAVO__WORKER__V1__LOAD_REQUEST__INIT;
    ProtobufCBinaryData address = call_bytes("here", 4);
    *t = (stepping){.local = site_local(s)};
    t->client = grpc_client_plain(worker_server_port(s->ranks[0].server));
    configure.protocol = WORKER_PROTOCOL;
    configure.version = call_bytes(SITE_VERSION, strlen(SITE_VERSION));
    configure.session = join.session = load.session = SESSION;
    configure.size = configure.max_rows = configure.max_seqs = 1;
    configure.silence_ms = SITE_LONG / 1000;
    configure.config_fingerprint = SITE_FINGERPRINT;
    configure.kv_type = call_bytes("f32", 3);
    configure.geometry = &geometry;
    join.addresses = &address;
    join.n_addresses = 1;
    ask(&t->client, PATH("Configure"), &configure.base);
    ask(&t->client, PATH("Join"), &join.base);
    ask(&t->client, PATH("Load"), &load.base);
    t->step = client_start(&t->client, PATH("Step"), NULL, 0);
    arena_init(&t->memory, 4096, 0);
    walk_begin(&t->walk, &t->local, 2);
}

/* Makes the next plan; its shares can be changed before it is written. */
static void step_plan_next(stepping *t)
{
    walk_plan(&t->walk);
    t->seqs = t->walk.plans[(t->walk.step - 1) % 2].seqs;
}

static void step_pack(stepping *t)
{
    const step_plan *plan = &t->walk.plans[(t->walk.step - 1) % 2].plan;
    assert_true(status_ok(plan_pack(plan, SESSION, &t->memory, &t->m)));
}

static void step_write(stepping *t)
{
    step_pack(t);
    assert_true(client_write(t->step, &t->m.base));
}

static void step_write_next(stepping *t)
{
    step_plan_next(t);
    step_write(t);
}

static void step_await(stepping *t, uint64_t step)
{
    plan_message m = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    m.session = SESSION;
    m.step = step;
    m.awaits = true;
    (void)client_write(t->step, &m.base);
}

/* Reads the result of a step that is fine. */
static void step_read(stepping *t, uint64_t step)
{
    strbuf bytes = {0};
    arena a;
    const ProtobufCMessage *m;
    if (!client_read(t->step, &bytes)) fail_msg("no result of step %u", (unsigned)step);
    assert_true(
        status_ok(message_unpack(&octavo__worker__v1__step_result__descriptor,
                                 (const uint8_t *)bytes.data, bytes.size, 1 << 24, &a, &m, NULL)));
    assert_int_equal(((const result_message *)m)->step, step);
    assert_int_equal(((const result_message *)m)->status, 0);
    arena_destroy(&a);
    strbuf_destroy(&bytes);
}

/* Returns when the worker is idle. */
static void shut_down(stepping *t)
{
    Octavo__Worker__V1__ShutdownRequest end = OCTAVO__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    strbuf answer = {0};
    end.session = SESSION;
    (void)client_unary(&t->client, PATH("Shutdown"), &end.base, &answer);
    strbuf_destroy(&answer);
}

/* Expects that the worker ends the stream for this reason and is idle again. */
static void step_close_for(stepping *t, grpc_status_code code, const char *word)
{
    assert_int_equal(client_end(t->step), code);
    expect_contains(t->step->text, word);
    client_destroy(t->step);
    shut_down(t);
    grpc_client_destroy(&t->client);
    walk_end(&t->walk);
    arena_destroy(&t->memory);
    t->local.ops->destroy(t->local.ctx);
}

static void step_close(stepping *t, const char *word)
{
    step_close_for(t, GRPC_STATUS_INVALID_ARGUMENT, word);
}

static void tokens_of_no_draw_end_the_stream(void **state)
{
    site *s = site_of(state, 1);
    stepping t;
    site_start(s, false);
    step_begin(&t, s);
    step_plan_next(&t);
    t.seqs[0].n_tokens = 1;
    t.seqs[0].token_from = 1;
    t.walk.plans[0].plan.n_tokens = 1 + t.seqs[1].n_tokens + t.seqs[2].n_tokens;
    step_write(&t);
    step_close(&t, "plan: token_from: the step before step 1 is not in flight");

    static const struct {
        uint32_t from;
        const char *word;
    } wrong[] = {{SHARES + 1, "plan: token_from: 4, the step before has 3 shares"},
                 {UINT32_MAX, "plan: token_from: 4294967295, the step before has 3 shares"},
                 {1, "plan: token_from: sequence 2 takes one of 1 draws of sequence 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        step_begin(&t, s);
        step_write_next(&t);
        step_plan_next(&t);
        t.seqs[0].token_from = wrong[i].from;
        step_write(&t);
        step_close(&t, wrong[i].word);
    }

    step_begin(&t, s);
    step_write_next(&t);
    step_await(&t, 1);
    step_read(&t, 1);
    step_write_next(&t);
    step_close(&t, "plan: token_from: the step before step 2 is not in flight");
    expect_same_bits(s, 2);
}

/* A plan that comes in parts is judged by the one in front of it, too. */
static void tokens_of_no_draw_in_parts_end_the_stream(void **state)
{
    enum { PART = 64 };
    site *s = site_of(state, 1);
    stepping t;
    s->part_bytes = PART;
    site_start(s, false);
    step_begin(&t, s);
    step_write_next(&t);
    step_plan_next(&t);
    t.seqs[1].token_from = SHARES + 1;
    step_pack(&t);
    size_t n = protobuf_c_message_get_packed_size(&t.m.base);
    uint8_t *whole = malloc(n);
    protobuf_c_message_pack(&t.m.base, whole);
    for (size_t at = 0; at < n; at += PART) {
        plan_message m = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
        part_message part = part_of(whole, n, at, PART);
        m.session = SESSION;
        m.step = 2;
        m.part = &part;
        assert_true(client_write(t.step, &m.base));
    }
    step_close(&t, "plan: token_from: 4, the step before has 3 shares");

    step_begin(&t, s);
    step_write_next(&t);
    plan_message m = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    part_message part = part_of(whole, n, 0, PART);
    m.session = SESSION;
    m.step = 2;
    m.part = &part;
    assert_true(client_write(t.step, &m.base));
    step_await(&t, 2); // the rest of its plan has not come
    step_close(&t, "awaits: step 2, the last plan is that of 1");
    free(whole);
}

static void what_is_out_of_turn_ends_the_stream(void **state)
{
    site *s = site_of(state, 1);
    stepping t;
    site_start(s, false);
    atomic_store(&s->ranks[0].hold, true);
    step_begin(&t, s);
    step_write_next(&t);
    step_write_next(&t);
    site_await_held(&s->ranks[0]);
    step_write_next(&t);
    step_close(&t, "Step: the last 2 have not been answered");
    step_begin(&t, s);
    step_await(&t, 0);
    step_close(&t, "awaits: step 0, the last plan is that of 0");
    step_begin(&t, s);
    step_write_next(&t);
    step_await(&t, 2);
    step_close(&t, "awaits: step 2, the last plan is that of 1");

    /* To ask twice changes nothing, nor to ask for what is there. */
    step_begin(&t, s);
    step_write_next(&t);
    step_write_next(&t);
    step_await(&t, 2);
    step_await(&t, 2);
    step_read(&t, 1);
    step_read(&t, 2);
    step_await(&t, 2);
    t.walk.depth = 1;
    for (uint32_t q = 0; q < SHARES; q++) t.walk.drawn[q] = q;
    step_write_next(&t);
    step_await(&t, 3);
    step_read(&t, 3);
    step_await(&t, 9);
    step_close(&t, "awaits: step 9, the last plan is that of 3");
    expect_same_bits(s, 2);
}

/* Another call ends the session while the backend takes a plan. The stream has its answer when the
 * backend returns: until then the plan is in use. */
static void a_session_ends_while_a_plan_is_submitted(void **state)
{
    site *s = site_of(state, 1);
    stepping t;
    site_start(s, false);
    atomic_store(&s->ranks[0].hold_submit, true);
    step_begin(&t, s);
    step_write_next(&t);
    site_await_held(&s->ranks[0]);
    shut_down(&t);
    step_close_for(&t, GRPC_STATUS_UNAVAILABLE, "the coordinator ended it");
    expect_same_bits(s, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_follow_is_refused),
        cmocka_unit_test_teardown(tokens_of_no_draw_end_the_stream, teardown),
        cmocka_unit_test_teardown(tokens_of_no_draw_in_parts_end_the_stream, teardown),
        cmocka_unit_test_teardown(what_is_out_of_turn_ends_the_stream, teardown),
        cmocka_unit_test_teardown(a_session_ends_while_a_plan_is_submitted, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker, turns", tests, NULL, NULL);
}

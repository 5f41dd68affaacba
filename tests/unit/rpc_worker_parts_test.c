/* Plans and results larger than a message travel in parts: they arrive unchanged, and parts that
 * are missing, repeated, out of order, too large or without end are refused by field. */
#include "proto/proto.h"
#include "rpc/grpc/grpc.h"
#include "rpc/worker/codec.h"
#include "tests/unit/rpc_grpc_client.h"
#include "tests/unit/rpc_worker_fixture.h"

#define PATH(name) "/octavo.worker.v1.Worker/" name

enum { PART = 8, SMALL_PART = 64 };

static const part_sizes sizes = {PART, 5 * PART};

/* ---- splitting and joining ------------------------------------------------------------------- */

static void parts_make_up_the_whole(void **state)
{
    (void)state;
    uint8_t whole[5 * PART];
    for (size_t i = 0; i < sizeof whole; i++) whole[i] = (uint8_t)(i * 37);
    for (size_t n = PART + 1; n <= sizeof whole; n++) {
        assembly a = {0};
        size_t n_parts = 0;
        for (size_t at = 0; at < n; n_parts++) {
            error err = {{0}};
            part_message p = part_of(whole, n, at, PART);
            if (!status_ok(assembly_add(&a, &p, &sizes, &err))) fail_msg("%s", err.text);
            at += p.data.len;
            assert_int_equal(a.have, at);
        }
        assert_int_equal(n_parts, (n + PART - 1) / PART);
        assert_int_equal(a.size, n);
        assert_memory_equal(a.bytes, whole, n);
        assembly_clear(&a);
        assert_null(a.bytes);
    }
}

/* Expects a refusal of a part after n_before parts of 3 * PART - 1 bytes. */
static void expect_wrong(size_t n_before, uint64_t whole, uint64_t offset, size_t n,
                         const char *word)
{
    uint8_t bytes[6 * PART] = {0};
    assembly a = {0};
    error err = {{0}};
    for (size_t i = 0; i < n_before; i++) {
        part_message p = part_of(bytes, 3 * PART - 1, i * PART, PART);
        assert_true(status_ok(assembly_add(&a, &p, &sizes, &err)));
    }
    size_t have = a.have;
    part_message p = OCTAVO__WORKER__V1__PART__INIT;
    p.whole_bytes = whole;
    p.offset = offset;
    p.data = (ProtobufCBinaryData){n, bytes};
    assert_false(status_ok(assembly_add(&a, &p, &sizes, &err)));
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say '%s'", err.text, word);
    assert_int_equal(a.have, have);
    assert_true(n_before || !a.bytes); // nothing is allocated for a refused part
    assembly_clear(&a);
}

static void wrong_parts_are_refused_by_field(void **state)
{
    (void)state;
    const size_t n = 3 * PART - 1;
    expect_wrong(0, n, PART, PART, "part.offset: 8, the next part begins at 0");     // missing
    expect_wrong(1, n, 2 * PART, PART - 1, "part.offset: 16, the next part begins"); // missing
    expect_wrong(1, n, 0, PART, "part.offset: 0, the next part begins at 8");        // repeated
    expect_wrong(2, n, PART, PART, "part.offset: 8, the next part begins at 16");    // repeated
    expect_wrong(1, n, UINT64_MAX, PART, "part.offset: 18446744073709551615");
    expect_wrong(1, n + 1, PART, PART, "part.whole_bytes: 24, the parts before have 23");
    expect_wrong(3, n, n, 0, "part.offset: 23, all 23 bytes have come");
    expect_wrong(0, PART, 0, PART, "part.whole_bytes: 8 fit a message");
    expect_wrong(0, 0, 0, 0, "part.whole_bytes: 0 fit a message");
    expect_wrong(0, 5 * PART + 1, 0, PART, "part.whole_bytes: 41, at most 40");
    expect_wrong(0, UINT64_MAX, 0, PART, "part.whole_bytes: 18446744073709551615, at most 40");
    expect_wrong(0, n, 0, PART - 1, "part.data: 7 bytes, there should be 8"); // without end
    expect_wrong(0, n, 0, 0, "part.data: 0 bytes, there should be 8");
    expect_wrong(1, n, PART, PART + 1, "part.data: 9 bytes, there should be 8");
    expect_wrong(2, n, 2 * PART, PART, "part.data: 8 bytes, there should be 7");
}

/* ---- between a coordinator and its workers --------------------------------------------------- */

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *site_of(void **state, uint32_t n, size_t part_bytes)
{
    site *s = *state = site_create(n);
    s->part_bytes = part_bytes;
    site_start(s, false);
    return s;
}

static void expect_same_bits(site *s)
{
    strbuf there = {0}, here = {0};
    backend b = site_make_sure(s), local = site_local(s);
    pass_run(&b, NULL, &there);
    pass_run(&local, NULL, &here);
    assert_int_equal(there.size, here.size);
    assert_memory_equal(there.data, here.data, here.size);
    b.ops->destroy(b.ctx);
    local.ops->destroy(local.ctx);
    strbuf_destroy(&there);
    strbuf_destroy(&here);
}

/* The logits alone take many such parts. */
static void small_parts_give_the_same_bits(void **state)
{
    expect_same_bits(site_of(state, 2, 16 * SMALL_PART));
}

/* A plan of more than 64 MiB: the first sequence has a bias of 0 for millions of ids. */
static void a_plan_above_64_mib_arrives(void **state)
{
    enum { IDS = 14 << 20 };
    site *s = site_of(state, 1, 0);
    backend b = site_make_sure(s);
    site_pass p;
    arena memory;
    plan_message m;
    const step_result *r = NULL;
    pass_begin(&p, &b);
    uint32_t *ids = calloc(IDS, sizeof *ids);
    float *bias = calloc(IDS, sizeof *bias);
    assert_true(ids && bias);
    p.params.bias_ids = ids;
    p.params.bias = bias;
    p.params.n_bias = IDS;
    const step_plan *plan = pass_plan(&p);
    arena_init(&memory, 4096, 0);
    assert_true(status_ok(plan_pack(plan, 1, &memory, &m)));
    assert_true(protobuf_c_message_get_packed_size(&m.base) > part_bytes_usual);
    arena_destroy(&memory);
    assert_true(status_ok(b.ops->submit(b.ctx, plan)));
    status st = b.ops->collect(b.ctx, &r);
    if (!status_ok(st)) fail_msg("%s", st.message);
    assert_true(status_ok(r->status) && r->n_seqs == 1 && r->checksum == plan->checksum);
    b.ops->destroy(b.ctx);
    pass_end(&p);
    free(ids);
    free(bias);
}

/* ---- a hostile coordinator ------------------------------------------------------------------- */

/* A worker of small parts, with a raw client that has come to the point where plans are
 * accepted. */
typedef struct stepping {
    site *site;
    grpc_client client;
    client_call *step;
    plan_message m;
    part_message part;
    uint8_t bytes[3 * SMALL_PART];
} stepping;

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
    *t = (stepping){.site = s, .m = OCTAVO__WORKER__V1__STEP_PLAN__INIT};
    t->client = grpc_client_plain(worker_server_port(s->ranks[0].server));
    configure.protocol = WORKER_PROTOCOL;
    configure.version = call_bytes(SITE_VERSION, strlen(SITE_VERSION));
    configure.session = join.session = load.session = t->m.session = 7;
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
    t->m.step = 1;
}

static void step_write(stepping *t, size_t whole, size_t offset)
{
    t->part = part_of(t->bytes, whole, offset, SMALL_PART);
    t->m.part = &t->part;
    assert_true(client_write(t->step, &t->m.base));
}

/* Expects that the worker ends the stream with this reason and is idle again. */
static void step_close(stepping *t, grpc_status_code code, const char *word)
{
    assert_int_equal(client_end(t->step), code);
    if (!strstr(t->step->text, word)) fail_msg("\"%s\" does not say '%s'", t->step->text, word);
    client_destroy(t->step);
    Octavo__Worker__V1__ShutdownRequest end = OCTAVO__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    strbuf answer = {0};
    end.session = t->m.session;
    (void)client_unary(&t->client, PATH("Shutdown"), &end.base, &answer);
    strbuf_destroy(&answer);
    grpc_client_destroy(&t->client);
}

static void wrong_parts_of_a_plan_end_the_stream(void **state)
{
    const size_t n = 3 * SMALL_PART;
    const grpc_status_code wrong = GRPC_STATUS_INVALID_ARGUMENT;
    site *s = site_of(state, 1, SMALL_PART);
    stepping t;
    step_begin(&t, s);
    step_write(&t, n, SMALL_PART);
    step_close(&t, wrong, "plan: part.offset: 64, the next part begins at 0");
    step_begin(&t, s);
    step_write(&t, n, 0);
    step_write(&t, n, 0);
    step_close(&t, wrong, "plan: part.offset: 0, the next part begins at 64");
    step_begin(&t, s);
    step_write(&t, plan_bytes_max + 1, 0);
    step_close(&t, GRPC_STATUS_OUT_OF_RANGE, "plan: part.whole_bytes: 1073741825, at most");
    step_begin(&t, s);
    step_write(&t, n, 0);
    t.m.step = 2;
    step_write(&t, n, SMALL_PART);
    step_close(&t, wrong, "part: step 2 comes before the last parts of step 1");
    step_begin(&t, s);
    step_write(&t, n, 0);
    t.m.part = NULL;
    assert_true(client_write(t.step, &t.m.base));
    step_close(&t, wrong, "part: step 1 comes before the last parts of step 1");
    expect_same_bits(s);
}

static void parts_that_make_up_no_plan_end_the_stream(void **state)
{
    const size_t n = 3 * SMALL_PART;
    const grpc_status_code wrong = GRPC_STATUS_INVALID_ARGUMENT;
    site *s = site_of(state, 1, SMALL_PART);
    stepping t;
    step_begin(&t, s);
    memset(t.bytes, 0xff, sizeof t.bytes);
    for (size_t at = 0; at < n; at += SMALL_PART) step_write(&t, n, at);
    step_close(&t, wrong, "plan: request: not a valid octavo.worker.v1.StepPlan message");

    /* A valid plan of another step. */
    step_begin(&t, s);
    plan_message inner = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    uint32_t words[3 * SMALL_PART];
    for (size_t i = 0; i < n; i++) words[i] = 1;
    inner.session = 7;
    inner.step = 3;
    inner.words = words;
    inner.n_words = n - 14;
    assert_int_equal(protobuf_c_message_get_packed_size(&inner.base), n);
    protobuf_c_message_pack(&inner.base, t.bytes);
    for (size_t at = 0; at < n; at += SMALL_PART) step_write(&t, n, at);
    step_close(&t, wrong, "part: the parts make up step 3, and came as those of step 1");
    expect_same_bits(s);
}

/* The worker keeps nothing of a plan whose last parts are missing. */
static void a_stream_that_ends_between_parts_is_forgotten(void **state)
{
    site *s = site_of(state, 1, SMALL_PART);
    stepping t;
    step_begin(&t, s);
    step_write(&t, 3 * SMALL_PART, 0);
    client_half_close(t.step);
    step_close(&t, GRPC_STATUS_OK, "");
    expect_same_bits(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_up_the_whole),
        cmocka_unit_test(wrong_parts_are_refused_by_field),
        cmocka_unit_test_teardown(small_parts_give_the_same_bits, teardown),
        cmocka_unit_test_teardown(a_plan_above_64_mib_arrives, teardown),
        cmocka_unit_test_teardown(wrong_parts_of_a_plan_end_the_stream, teardown),
        cmocka_unit_test_teardown(parts_that_make_up_no_plan_end_the_stream, teardown),
        cmocka_unit_test_teardown(a_stream_that_ends_between_parts_is_forgotten, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker_parts", tests, NULL, NULL);
}

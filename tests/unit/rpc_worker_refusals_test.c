/* Peers that are refused, on either side, and the messages: other versions, models and
 * coordinators, unknown clients, garbage, calls out of order. After each refusal the worker serves
 * its coordinator as before. */
#include "proto/proto.h"
#include "rpc/grpc/grpc.h"
#include "tests/unit/rpc_grpc_client.h"
#include "tests/unit/rpc_worker_fixture.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#define TLS      "tests/golden/tls/"
#define PATH(of) "/octavo.worker.v1.Worker/" of

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *site_of(void **state, uint32_t n)
{
    *state = site_create(n);
    return *state;
}

static void expect_refused(site *s, status_code code, const char *word)
{
    backend b;
    error err = {{0}};
    status st = site_make(s, &b, &err);
    if (status_ok(st)) fail_msg("made, though %s", word);
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say '%s'", err.text, word);
    assert_int_equal(st.code, code);
}

static void expect_served(site *s)
{
    strbuf out = {0};
    backend b = site_make_sure(s);
    pass_run(&b, NULL, &out);
    b.ops->destroy(b.ctx);
    strbuf_destroy(&out);
}

/* ---- by name --------------------------------------------------------------------------------- */

static void another_version_is_refused(void **state)
{
    site *s = site_of(state, 2);
    s->options.version = "0.0.2-test";
    site_start(s, false);
    expect_refused(s, STATUS_UNSUPPORTED,
                   "version: the coordinator is octavo 0.0.2-test, this worker octavo 0.0.1-test");
}

static void another_model_is_refused(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    s->config.config_fingerprint = 1;
    expect_refused(s, STATUS_INVALID, "model: models/demo has another fingerprint here");
    s->config.config_fingerprint = SITE_FINGERPRINT;
    expect_served(s);
}

static void another_number_of_ranks_is_refused(void **state)
{
    site *s = site_of(state, 2);
    backend b;
    error err = {{0}};
    site_start(s, false);
    backend_ranks_options o = {
        .n_ranks = 3, .driven = true, .make = worker_proxy_make, .ctx = s->group};
    assert_int_equal(backend_ranks_create(&o, &b, &err).code, STATUS_INVALID);
    if (!strstr(err.text, "workers: 2 for 3 ranks")) fail_msg("%s", err.text);
    expect_served(s);
}

static void a_second_coordinator_is_refused(void **state)
{
    site *s = site_of(state, 1);
    worker_group *first;
    site_start(s, false);
    backend b = site_make_sure(s);
    first = s->group;
    s->patience_us = 1;
    site_start(s, false); // another group
    expect_refused(s, STATUS_UNAVAILABLE, "this worker serves another coordinator");
    b.ops->destroy(b.ctx);
    worker_group_destroy(first);
    expect_served(s);
}

static void no_worker_listens(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, true);
    s->addresses[1] = "unix:octavo-nobody.sock";
    worker_group_destroy(s->group);
    site_start(s, true);
    expect_refused(s, STATUS_UNAVAILABLE, "rank 1 (unix:octavo-nobody.sock): ");
    s->addresses[1] = s->ranks[1].address;
    worker_group_destroy(s->group);
    site_start(s, true);
    expect_served(s);
}

/* ---- certificates ---------------------------------------------------------------------------- */

static void only_those_with_certificates_are_served(void **state)
{
    site *s = site_of(state, 1);
    s->tls = (worker_tls){TLS "server.pem", TLS "server.key", TLS "ca.pem"};
    s->options.tls = (worker_tls){TLS "client.pem", TLS "client.key", TLS "ca.pem"};
    site_start(s, false);
    expect_served(s);

    static const worker_tls wrong[] = {
        {0},
        {TLS "stranger.pem", TLS "stranger.key", TLS "ca.pem"},
        {TLS "client.pem", TLS "client.key", TLS "stranger.pem"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        worker_group_destroy(s->group);
        s->options.tls = wrong[i];
        site_start(s, false);
        expect_refused(s, STATUS_UNAVAILABLE, "certificate");
    }
    worker_group_destroy(s->group);
    s->options.tls = (worker_tls){.cert = TLS "client.pem"};
    site_start(s, false);
    expect_refused(s, STATUS_INVALID, "tls: a certificate, its key and a CA are needed");
}

/* ---- out of turn ----------------------------------------------------------------------------- */

static void expect_call(grpc_client *c, const char *path, const ProtobufCMessage *m,
                        grpc_status_code code, const char *word)
{
    client_call *k = client_ask(c, path, NULL, m);
    strbuf answer = {0};
    (void)client_read(k, &answer);
    strbuf_destroy(&answer);
    assert_int_equal(client_end(k), code);
    if (!strstr(k->text, word)) fail_msg("%s: \"%s\" does not say '%s'", path, k->text, word);
    client_destroy(k);
}

static void calls_out_of_turn_are_refused(void **state)
{
    site *s = site_of(state, 1);
    site_start(s, false);
    grpc_client c = grpc_client_plain(worker_server_port(s->ranks[0].server));
    Octavo__Worker__V1__JoinRequest join = OCTAVO__WORKER__V1__JOIN_REQUEST__INIT;
    Octavo__Worker__V1__LoadRequest load = OCTAVO__WORKER__V1__LOAD_REQUEST__INIT;
    Octavo__Worker__V1__StepPlan plan = OCTAVO__WORKER__V1__STEP_PLAN__INIT;
    Octavo__Worker__V1__ShutdownRequest end = OCTAVO__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    Octavo__Worker__V1__Geometry geometry = OCTAVO__WORKER__V1__GEOMETRY__INIT;
    Octavo__Worker__V1__ConfigureRequest configure = OCTAVO__WORKER__V1__CONFIGURE_REQUEST__INIT;
    const grpc_status_code wrong = GRPC_STATUS_INVALID_ARGUMENT;
    expect_call(&c, PATH("Join"), &join.base, wrong, "session: there is none");
    expect_call(&c, PATH("Load"), &load.base, wrong, "session: there is none");
    expect_call(&c, PATH("Step"), &plan.base, wrong, "session: there is none");
    expect_call(&c, PATH("Shutdown"), &end.base, GRPC_STATUS_OK, "");
    expect_call(&c, PATH("Nothing"), &end.base, GRPC_STATUS_UNIMPLEMENTED, "no method");

    configure.protocol = WORKER_PROTOCOL;
    configure.version = call_bytes(SITE_VERSION, strlen(SITE_VERSION));
    configure.size = configure.max_rows = configure.max_seqs = 1;
    configure.silence_ms = SITE_LONG / 1000;
    configure.config_fingerprint = SITE_FINGERPRINT;
    configure.kv_type = call_bytes("f32", 3);
    configure.geometry = &geometry;
    expect_call(&c, PATH("Configure"), &configure.base, wrong, "session: it must not be 0");
    configure.session = join.session = load.session = plan.session = 7;
    configure.protocol = 0;
    expect_call(&c, PATH("Configure"), &configure.base, GRPC_STATUS_UNIMPLEMENTED, "protocol: ");
    configure.protocol = WORKER_PROTOCOL;
    expect_call(&c, PATH("Configure"), &configure.base, GRPC_STATUS_OK, "");
    expect_call(&c, PATH("Configure"), &configure.base, GRPC_STATUS_ALREADY_EXISTS, "another");
    expect_call(&c, PATH("Load"), &load.base, wrong, "Load: the worker is configured, not joined");
    expect_call(&c, PATH("Step"), &plan.base, wrong, "Step: the worker is configured, not loaded");
    expect_call(&c, PATH("Join"), &join.base, wrong, "addresses: 0 for 1 ranks");
    join.session = 8;
    expect_call(&c, PATH("Join"), &join.base, wrong, "session: this worker serves another");
    ProtobufCBinaryData address = call_bytes("else", 4);
    join.session = 7;
    join.addresses = &address;
    join.n_addresses = 1;
    expect_call(&c, PATH("Join"), &join.base, GRPC_STATUS_ABORTED, "rank 0: no such address");
    site_await(&s->ranks[0], "idle");
    grpc_client_destroy(&c);
    expect_served(s);
}

/* ---- garbage --------------------------------------------------------------------------------- */

static void write_garbage(uint16_t port, uint64_t seed)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    rng r = rng_seed(seed);
    uint8_t bytes[4096];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_return_code(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)rng_u32(&r);
    if (seed % 2) memcpy(bytes, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    close(fd);
}

static void garbage_is_survived(void **state)
{
    site *s = site_of(state, 1);
    site_start(s, false);
    uint16_t port = worker_server_port(s->ranks[0].server);
    for (uint64_t i = 0; i < 6; i++) write_garbage(port, i);
    grpc_client c = grpc_client_plain(port);
    static const char *const paths[] = {PATH("Configure"), PATH("Join"),   PATH("Load"),
                                        PATH("Step"),      PATH("Health"), PATH("Shutdown"),
                                        PATH("Cells")};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        client_call *k = client_start(&c, paths[i], NULL, 0);
        client_write_bytes(k, "\xff\xff\xff\xff", 4);
        assert_int_equal(client_end(k), GRPC_STATUS_INVALID_ARGUMENT);
        client_destroy(k);
    }
    size_t n = (65 << 20);
    char *large = calloc(1, n);
    client_call *k = client_start(&c, PATH("Step"), NULL, 0);
    client_write_bytes(k, large, n);
    assert_int_equal(client_end(k), GRPC_STATUS_RESOURCE_EXHAUSTED);
    client_destroy(k);
    free(large);
    grpc_client_destroy(&c);
    expect_served(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(another_version_is_refused, teardown),
        cmocka_unit_test_teardown(another_model_is_refused, teardown),
        cmocka_unit_test_teardown(another_number_of_ranks_is_refused, teardown),
        cmocka_unit_test_teardown(a_second_coordinator_is_refused, teardown),
        cmocka_unit_test_teardown(no_worker_listens, teardown),
        cmocka_unit_test_teardown(only_those_with_certificates_are_served, teardown),
        cmocka_unit_test_teardown(calls_out_of_turn_are_refused, teardown),
        cmocka_unit_test_teardown(garbage_is_survived, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker_refusals", tests, NULL, NULL);
}

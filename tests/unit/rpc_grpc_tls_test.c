/* TLS: which clients are served, and the errors for unusable files. */
#include "tests/unit/rpc_grpc_fixture.h"

#define FOLDER "tests/golden/tls/"

static void echo(rpc_call *c, const ProtobufCMessage *m) { call_reply(c, m); }
static const rpc_method method = {.path = "/t.T/Echo", .input = TEXT_INPUT, .message = echo};
static const rpc_service test_service = {"t.T", &method, 1};
static const rpc_service *const services[] = {&test_service};

static int setup(void **state)
{
    *state = fixture_make(NULL, 0);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    return 0;
}

static char *pem(const char *name)
{
    char path[128], *out = NULL;
    size_t n;
    error err = {{0}};
    if (!status_ok(file_join(path, sizeof path, FOLDER, name, &err)) ||
        !status_ok(file_read(path, 1 << 16, &out, &n, &err)))
        fail_msg("%s", err.text);
    return out;
}

static void begin(fixture *f, const char *client_ca)
{
    rpc_options *o = &f->core->service.o;
    o->tls_cert = FOLDER "server.pem";
    o->tls_key = FOLDER "server.key";
    o->tls_client_ca = client_ca;
    fixture_start(f, services, 1); // the fixture's client uses plain text
}

/* True when a client with this certificate (NULL = none) is served. */
static bool is_served(fixture *f, const char *name)
{
    char *ca = pem("ca.pem"), *cert = NULL, *key = NULL, file[64];
    if (name) {
        snprintf(file, sizeof file, "%s.pem", name);
        cert = pem(file);
        snprintf(file, sizeof file, "%s.key", name);
        key = pem(file);
    }
    grpc_client c = grpc_client_tls(grpc_front_port(f->front), ca, cert, key);
    text_message m = text_of("hello", 5);
    strbuf answer = {0};
    bool ok = client_unary(&c, "/t.T/Echo", &m.base, &answer);
    strbuf_destroy(&answer);
    grpc_client_destroy(&c);
    free(ca);
    free(cert);
    free(key);
    return ok;
}

static bool plain_is_served(fixture *f)
{
    text_message m = text_of("hello", 5);
    strbuf answer = {0};
    bool ok = client_unary(&f->client, "/t.T/Echo", &m.base, &answer);
    strbuf_destroy(&answer);
    return ok;
}

static void test_tls(void **state)
{
    begin(*state, NULL);
    assert_true(is_served(*state, NULL));
    assert_false(plain_is_served(*state));
}

static void test_mutual_tls(void **state)
{
    begin(*state, FOLDER "ca.pem");
    assert_true(is_served(*state, "client"));
    assert_false(is_served(*state, NULL));
    assert_false(is_served(*state, "stranger"));
}

static void test_bad_files(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *cert, *key, *ca, *want;
    } cases[] = {
        {FOLDER "none.pem", FOLDER "server.key", NULL, "tls-cert: " FOLDER "none.pem"},
        {FOLDER "server.pem", FOLDER "none.key", NULL, "tls-key: " FOLDER "none.key"},
        {FOLDER "README.md", FOLDER "server.key", NULL,
         "tls-cert: " FOLDER "README.md is not a PEM file"},
        {FOLDER "server.pem", FOLDER "server.key", FOLDER "README.md", "tls-client-ca: "},
        {FOLDER "server.pem", FOLDER "client.key", NULL, "grpc: 127.0.0.1:0: the certificate"},
        {FOLDER "server.pem", NULL, NULL, "tls: a certificate and its key are needed"},
        {NULL, NULL, FOLDER "ca.pem", "tls: a certificate and its key are needed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rpc_options *o = &f->core->service.o;
        error err = {{0}};
        o->tls_cert = cases[i].cert;
        o->tls_key = cases[i].key;
        o->tls_client_ca = cases[i].ca;
        assert_false(status_ok(grpc_front_create(&f->core->service, services, 1, &f->front, &err)));
        if (strncmp(err.text, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("want '%s', have '%s'", cases[i].want, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_mutual_tls, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_files, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

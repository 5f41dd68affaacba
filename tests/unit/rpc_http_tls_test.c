/* HTTP over TLS, with certificates made here; clients with and without a certificate. */
#include "tests/unit/rpc_http_fixture.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- certificates ---------------------------------------------------------------------------- */

typedef struct identity {
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    char cert_path[64], key_path[64];
} identity;

/* Writes a new file and stores its path. */
static void write_pem(char *path, size_t size, const char *bytes, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, size, "%.40s/octavo-pem-XXXXXX", tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

/* Signed by `ca`, or self-signed. */
static identity make_identity(const identity *ca)
{
    identity id = {0};
    char pem[8192];
    size_t n = sizeof pem;
    gnutls_x509_privkey_init(&id.key);
    gnutls_x509_privkey_generate(id.key, GNUTLS_PK_ECDSA,
                                 GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
    gnutls_x509_crt_init(&id.crt);
    gnutls_x509_crt_set_key(id.crt, id.key);
    gnutls_x509_crt_set_version(id.crt, 3);
    gnutls_x509_crt_set_serial(id.crt, ca ? "\x02" : "\x01", 1);
    gnutls_x509_crt_set_dn(id.crt, ca ? "CN=leaf" : "CN=ca", NULL);
    gnutls_x509_crt_set_activation_time(id.crt, time(NULL) - 3600);
    gnutls_x509_crt_set_expiration_time(id.crt, time(NULL) + 3600);
    gnutls_x509_crt_set_basic_constraints(id.crt, ca == NULL, -1);
    assert_int_equal(gnutls_x509_crt_sign2(id.crt, ca ? ca->crt : id.crt, ca ? ca->key : id.key,
                                           GNUTLS_DIG_SHA256, 0),
                     0);
    assert_int_equal(gnutls_x509_crt_export(id.crt, GNUTLS_X509_FMT_PEM, pem, &n), 0);
    write_pem(id.cert_path, sizeof id.cert_path, pem, n);
    n = sizeof pem;
    assert_int_equal(gnutls_x509_privkey_export(id.key, GNUTLS_X509_FMT_PEM, pem, &n), 0);
    write_pem(id.key_path, sizeof id.key_path, pem, n);
    return id;
}

static void drop_identity(identity *id)
{
    unlink(id->cert_path);
    unlink(id->key_path);
    gnutls_x509_crt_deinit(id->crt);
    gnutls_x509_privkey_deinit(id->key);
}

typedef struct world {
    fixture *f;
    identity ca, server, client, stranger_ca, stranger;
} world;

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    w->f = fixture_make(64);
    w->ca = make_identity(NULL);
    w->server = make_identity(&w->ca);
    w->client = make_identity(&w->ca);
    w->stranger_ca = make_identity(NULL);
    w->stranger = make_identity(&w->stranger_ca);
    w->f->options.tls_cert = w->server.cert_path;
    w->f->options.tls_key = w->server.key_path;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fixture_destroy(w->f);
    drop_identity(&w->ca);
    drop_identity(&w->server);
    drop_identity(&w->client);
    drop_identity(&w->stranger_ca);
    drop_identity(&w->stranger);
    free(w);
    return 0;
}

/* ---- a client -------------------------------------------------------------------------------- */

/* Sends and reads to the end. False when the server refuses the client. */
static bool ask_tls(const world *w, const identity *client, const char *versions,
                    const char *request, strbuf *out)
{
    gnutls_certificate_credentials_t cred;
    gnutls_session_t tls;
    char part[4096];
    int fd = client_open(w->f);
    gnutls_certificate_allocate_credentials(&cred);
    gnutls_certificate_set_x509_trust(cred, (gnutls_x509_crt_t *)&w->ca.crt, 1);
    if (client)
        gnutls_certificate_set_x509_key(cred, (gnutls_x509_crt_t *)&client->crt, 1, client->key);
    gnutls_init(&tls, GNUTLS_CLIENT);
    gnutls_priority_set_direct(tls, versions, NULL);
    gnutls_credentials_set(tls, GNUTLS_CRD_CERTIFICATE, cred);
    gnutls_session_set_verify_cert(tls, NULL, 0);
    gnutls_transport_set_int(tls, fd);
    int rc;
    do rc = gnutls_handshake(tls);
    while (rc < 0 && !gnutls_error_is_fatal(rc));
    if (rc == 0) gnutls_record_send(tls, request, strlen(request));
    while (rc == 0) {
        ssize_t n = gnutls_record_recv(tls, part, sizeof part);
        if (n > 0) strbuf_append(out, part, (size_t)n);
        else if (n == 0 || gnutls_error_is_fatal((int)n)) break;
    }
    gnutls_deinit(tls);
    gnutls_certificate_free_credentials(cred);
    close(fd);
    return out->size > 0;
}

static const char HEALTH[] = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
static const char STREAM[] =
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 51\r\n\r\n"
    "{\"prompt\": \"x\", \"max_tokens\": 200, \"stream\": true }";

static void answers_over_tls(void **state)
{
    world *w = *state;
    strbuf out = {0};
    fixture_start(w->f);
    assert_true(ask_tls(w, NULL, "NORMAL", HEALTH, &out));
    assert_non_null(strstr(out.data, "serving"));
    strbuf_clear(&out);
    assert_true(ask_tls(w, NULL, "NORMAL:-VERS-ALL:+VERS-TLS1.2", STREAM, &out));
    assert_int_equal(count_of(out.data, "\"text\":\"a\""), 200);
    assert_int_equal(count_of(out.data, "[DONE]"), 1);
    strbuf_clear(&out);
    assert_false(ask_tls(w, NULL, "NORMAL:-VERS-ALL:+VERS-TLS1.1", HEALTH, &out));
    strbuf_destroy(&out);
    /* Plain text is refused. */
    reply r = ask(w->f, HEALTH);
    assert_int_equal(r.status, 0);
    reply_free(&r);
}

static void clients_need_a_certificate(void **state)
{
    world *w = *state;
    strbuf out = {0};
    w->f->options.tls_client_ca = w->ca.cert_path;
    fixture_start(w->f);
    static const char *const versions[] = {"NORMAL", "NORMAL:-VERS-ALL:+VERS-TLS1.2"};
    for (size_t i = 0; i < 2; i++) {
        assert_true(ask_tls(w, &w->client, versions[i], HEALTH, &out));
        assert_non_null(strstr(out.data, "serving"));
        strbuf_clear(&out);
        assert_false(ask_tls(w, NULL, versions[i], HEALTH, &out));
        assert_false(ask_tls(w, &w->stranger, versions[i], HEALTH, &out));
    }
    strbuf_destroy(&out);
}

static void bad_certificates_fail_at_start(void **state)
{
    world *w = *state;
    fixture *f = w->f;
    const struct {
        const char *cert, *key, *ca, *word;
    } rows[] = {
        {"/nonexistent", w->server.key_path, NULL, "/nonexistent"},
        {w->server.cert_path, w->client.key_path, NULL, w->client.key_path},
        {w->server.key_path, w->server.key_path, NULL, "tls: "},
        {w->server.cert_path, w->server.key_path, w->server.key_path, "tls: "},
        {w->server.cert_path, NULL, NULL, "tls: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        error err = {{0}};
        http_server *server = NULL;
        f->options.tls_cert = rows[i].cert;
        f->options.tls_key = rows[i].key;
        f->options.tls_client_ca = rows[i].ca;
        assert_true(status_ok(service_init(&f->service, &f->options)));
        assert_false(status_ok(http_server_create(&f->service, &server, &err)));
        if (!strstr(err.text, rows[i].word)) fail_msg("%s: %s", rows[i].word, err.text);
        service_destroy(&f->service);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers_over_tls, setup, teardown),
        cmocka_unit_test_setup_teardown(clients_need_a_certificate, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_certificates_fail_at_start, setup, teardown),
    };
    signal(SIGPIPE, SIG_IGN); /* as the program does: GnuTLS writes to clients that have left */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

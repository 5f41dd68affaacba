/* Certificates: read and tried at the start, so that a bad one is reported then and not at the
 * first client. */
#include "rpc/http/internal.h"

#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_BYTES_MAX = 1 << 20 };

static gnutls_datum_t datum_of(char *pem)
{
    return (gnutls_datum_t){(unsigned char *)pem, (unsigned)strlen(pem)};
}

static status read_pem(const char *path, char **out, error *err)
{
    size_t n;
    if (!path) return STATUS_IS_OK;
    status st = file_read(path, PEM_BYTES_MAX, out, &n, err);
    if (!status_ok(st)) error_prefix(err, "tls");
    return st;
}

static status try_pair(const rpc_options *o, const http_tls *t, gnutls_certificate_credentials_t c,
                       error *err)
{
    gnutls_datum_t cert = datum_of(t->cert), key = datum_of(t->key);
    int rc = gnutls_certificate_set_x509_key_mem(c, &cert, &key, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        return error_set(err, STATUS_INVALID, "tls: %s and %s: %s", o->tls_cert, o->tls_key,
                         gnutls_strerror(rc));
    if (!t->client_ca) return STATUS_IS_OK;
    gnutls_datum_t ca = datum_of(t->client_ca);
    rc = gnutls_certificate_set_x509_trust_mem(c, &ca, GNUTLS_X509_FMT_PEM);
    if (rc > 0) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "tls: %s: %s", o->tls_client_ca,
                     rc < 0 ? gnutls_strerror(rc) : "holds no certificate");
}

static status load_certificates(const rpc_options *o, http_tls *t, error *err)
{
    RETURN_IF_ERROR(read_pem(o->tls_cert, &t->cert, err));
    RETURN_IF_ERROR(read_pem(o->tls_key, &t->key, err));
    RETURN_IF_ERROR(read_pem(o->tls_client_ca, &t->client_ca, err));
    gnutls_certificate_credentials_t c;
    if (gnutls_certificate_allocate_credentials(&c) < 0)
        return error_set(err, STATUS_NO_MEMORY, "tls: out of memory");
    status st = try_pair(o, t, c, err);
    gnutls_certificate_free_credentials(c);
    return st;
}

status tls_load(const rpc_options *o, http_tls *out, error *err)
{
    *out = (http_tls){0};
    if (!o->tls_cert && !o->tls_key && !o->tls_client_ca) return STATUS_IS_OK;
    if (!o->tls_cert || !o->tls_key)
        return error_set(err, STATUS_INVALID, "tls: needs both a certificate and its key");
    status st = load_certificates(o, out, err);
    if (!status_ok(st)) tls_destroy(out);
    return st;
}

void tls_destroy(http_tls *t)
{
    if (t->key) explicit_bzero(t->key, strlen(t->key));
    free(t->cert);
    free(t->key);
    free(t->client_ca);
    *t = (http_tls){0};
}

void tls_require_client(http_connection *c, gnutls_session_t session)
{
    c->purpose = (gnutls_typed_vdata_st){.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                         .data = (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT};
    gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
    gnutls_session_set_verify_cert2(session, &c->purpose, 1, 0);
}

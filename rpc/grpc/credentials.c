/* TLS and mutual TLS from PEM files. */
#include "rpc/grpc/internal.h"

#include <grpc/grpc_security.h>
#if __has_include(<grpc/credentials.h>)
#include <grpc/credentials.h> // newer gRPC: grpc_security.h no longer includes it
#endif
#include <stdlib.h>
#include <string.h>

static const size_t pem_bytes_max = (size_t)1 << 20;

status pem_read(const char *field, const char *path, char **out, error *err)
{
    size_t n;
    *out = NULL;
    if (!path) return STATUS_IS_OK;
    status s = file_read(path, pem_bytes_max, out, &n, err);
    if (status_ok(s) && !strstr(*out, "-----BEGIN ")) {
        free(*out);
        *out = NULL;
        s = error_set(err, STATUS_INVALID, "%s is not a PEM file", path);
    }
    if (!status_ok(s)) error_prefix(err, "%s", field);
    return s;
}

status credentials_create(const grpc_front_options *o, grpc_server_credentials **out, error *err)
{
    char *cert = NULL, *key = NULL, *ca = NULL;
    *out = NULL;
    if (!o->tls_cert != !o->tls_key || (o->tls_client_ca && !o->tls_cert))
        return error_set(err, STATUS_INVALID, "tls: a certificate and its key are needed");
    status s = pem_read("tls-cert", o->tls_cert, &cert, err);
    if (status_ok(s)) s = pem_read("tls-key", o->tls_key, &key, err);
    if (status_ok(s)) s = pem_read("tls-client-ca", o->tls_client_ca, &ca, err);
    if (status_ok(s)) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = key, .cert_chain = cert};
        *out = cert ? grpc_ssl_server_credentials_create_ex(
                          ca, &pair, 1,
                          ca ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                          NULL)
                    : grpc_insecure_server_credentials_create();
    }
    if (key) explicit_bzero(key, strlen(key));
    free(cert);
    free(key);
    free(ca);
    return s;
}

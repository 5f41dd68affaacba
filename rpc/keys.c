/* Bearer keys. Each key is compared over its full width for every request, so the time taken shows
 * neither which key was close nor how much of it was right. No message or log holds a key. */
#include "rpc/keys.h"

#include "base/sha256.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A key padded with zeros, bytes that no key holds. */
typedef struct padded_key {
    uint8_t bytes[SERVICE_KEY_BYTES_MAX];
} padded_key;

struct service_keys {
    size_t n, n_clients; // the first n_clients keys are clients', the rest administrators'
    padded_key keys[];
};

bool rpc_key_is_valid(const char *key)
{
    size_t n = strnlen(key, SERVICE_KEY_BYTES_MAX + 1);
    if (n == 0 || n > SERVICE_KEY_BYTES_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~') return false;
    return true;
}

static status copy_keys(const char *const *keys, size_t n, padded_key *out)
{
    for (size_t i = 0; i < n; i++) {
        if (!rpc_key_is_valid(keys[i]))
            return status_make(STATUS_INVALID,
                               "an API key must have 1 to 256 visible ASCII characters");
        memcpy(out[i].bytes, keys[i], strlen(keys[i]));
    }
    return STATUS_IS_OK;
}

status service_keys_create(const rpc_options *o, service_keys **out)
{
    size_t n = o->n_api_keys + o->n_admin_keys;
    *out = NULL;
    if (n == 0) return STATUS_IS_OK;
    service_keys *k = calloc(1, sizeof *k + n * sizeof k->keys[0]);
    if (!k) return status_make(STATUS_NO_MEMORY, "keys");
    k->n = n;
    k->n_clients = o->n_api_keys;
    status s = copy_keys(o->api_keys, o->n_api_keys, k->keys);
    if (status_ok(s)) s = copy_keys(o->admin_keys, o->n_admin_keys, k->keys + k->n_clients);
    if (status_ok(s)) *out = k;
    else service_keys_destroy(k);
    return s;
}

void service_keys_destroy(service_keys *k)
{
    if (!k) return;
    explicit_bzero(k->keys, k->n * sizeof k->keys[0]);
    free(k);
}

static bool equal(const padded_key *a, const padded_key *b)
{
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < SERVICE_KEY_BYTES_MAX; i++) difference |= a->bytes[i] ^ b->bytes[i];
    return difference == 0;
}

/* The key in the value of an `authorization` header, or NULL. */
static const char *find_key(const char *authorization, size_t *n)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return NULL;
    const char *sent = authorization + sizeof scheme - 1;
    sent += strspn(sent, " ");
    *n = strnlen(sent, SERVICE_KEY_BYTES_MAX + 1);
    return *n > 0 && *n <= SERVICE_KEY_BYTES_MAX ? sent : NULL;
}

/* The key's place among all, from 1; 0: it is none of them. */
static uint32_t number_of(const service_keys *k, const char *authorization)
{
    size_t n;
    const char *sent = find_key(authorization, &n);
    if (!sent) return 0;
    padded_key given = {{0}};
    memcpy(given.bytes, sent, n);
    size_t number = 0;
    for (size_t i = 0; i < k->n; i++) {
        size_t mask = -(size_t)equal(&given, &k->keys[i]);
        number = (number & ~mask) | ((i + 1) & mask);
    }
    explicit_bzero(&given, sizeof given);
    return (uint32_t)number;
}

uint32_t service_key_count(const service *s) { return s->keys ? (uint32_t)s->keys->n : 0; }

bool service_key_ok(const service *s, const char *authorization, uint32_t *number)
{
    uint32_t found = s->keys ? number_of(s->keys, authorization) : 0;
    if (number) *number = found;
    return !s->keys || found > 0;
}

bool service_is_admin(const service *s, const char *authorization)
{
    return !s->keys || number_of(s->keys, authorization) > s->keys->n_clients;
}

void service_identity(const service *s, const char *authorization, char out[SERVICE_IDENTITY_BYTES])
{
    _Static_assert((int)SERVICE_IDENTITY_BYTES == SHA256_HEX_BYTES, "an identity is a digest");
    size_t n;
    const char *sent = s->keys ? find_key(authorization, &n) : NULL;
    *out = '\0';
    if (!sent) return;
    sha256 h;
    sha256_init(&h);
    sha256_add(&h, sent, n);
    sha256_finish(&h, out);
    explicit_bzero(&h, sizeof h);
}

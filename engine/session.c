/* The keys of a request's session and prefixes: digests that begin with its identity. */
#include "engine/internal.h"

#include "base/sha256.h"

#include <stdlib.h>
#include <string.h>

/* Adds a part with its length before it, so that no two triples give the same bytes. A missing part
 * differs from an empty one. */
static void add_part(sha256 *h, const char *text)
{
    uint64_t n = text ? strlen(text) + 1 : 0;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(n >> 8 * i);
    sha256_add(h, length, sizeof length);
    if (n) sha256_add(h, text, n - 1);
}

/* The first 128 bits of the digest of three parts. */
static void digest_parts(const char *a, const char *b, const char *c, uint64_t out[2])
{
    char hex[SHA256_HEX_BYTES], half[17] = "";
    sha256 h;
    sha256_init(&h);
    add_part(&h, a);
    add_part(&h, b);
    add_part(&h, c);
    sha256_finish(&h, hex);
    for (int i = 0; i < 2; i++) {
        memcpy(half, hex + 16 * i, 16);
        out[i] = strtoull(half, NULL, 16);
    }
}

void session_key(const engine_request *r, uint64_t out[2])
{
    out[0] = out[1] = 0;
    if (r->session) digest_parts(r->identity, r->cache_salt, r->session, out);
}

uint64_t session_owner(const engine_request *r)
{
    uint64_t owner[2];
    digest_parts(r->identity, NULL, NULL, owner);
    return owner[0];
}

uint64_t session_salt(const engine_request *r, bool apart)
{
    uint64_t salt[2];
    const char *identity = apart ? r->identity : NULL;
    if (!identity && !r->cache_salt) return 0;
    digest_parts(identity, r->cache_salt, NULL, salt);
    return salt[0];
}

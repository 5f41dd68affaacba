/* Answers of /v1/responses that the server keeps, so that later requests can go on from them
 * (private to rpc/openai).
 *
 * What     a response has a body, which its key may read, and its own turn: the messages that the
 *          request added and the answer's. It refers to the response before it, whose turns come
 *          first; many may go on from one.
 * Owner    the store owns what is put; response_store_get gives a reference.
 * Bounds   all bodies and turns together have at most bytes_max bytes. Beyond it the API key that
 *          has most loses what it used longest ago; what requests still refer to stays until they
 *          end, up to as many bytes again. What is older than ttl_us is gone.
 * Threads  any thread may call any function; a response does not change once it is put. */
#ifndef RPC_OPENAI_RESPONSES_STORE_H
#define RPC_OPENAI_RESPONSES_STORE_H

#include "rpc/service.h"

typedef struct response_store response_store;
typedef struct stored_response stored_response;

enum {
    RESPONSE_ID_BYTES = 40,   // "resp_", 32 digits, NUL
    RESPONSE_TURNS_MAX = 1024 // of a conversation
};

/* A response to be stored; the store copies it. */
typedef struct response_facts {
    const char *id, *identity;
    stored_response *before; // NULL = none
    const strbuf *body;      // of the answer
    const strbuf *turn;      // messages, a JSON list
    const char *session;     // that holds the conversation's pages; NULL = none
    const char *salt;        // the request's cache_salt; NULL = none
} response_facts;

/* NULL when memory is out. */
response_store *response_store_create(uint64_t bytes_max, int64_t ttl_us);
void response_store_destroy(response_store *t);
/* False when memory is out, or the response alone is beyond bytes_max: it is not kept. */
bool response_store_put(response_store *t, const response_facts *f, int64_t now_us);
/* The response of this identity and id, which counts as used; NULL when there is none, or one of
 * those before it was deleted. */
stored_response *response_store_get(response_store *t, const char *identity, const char *id,
                                    int64_t now_us);
void response_store_release(response_store *t, stored_response *r);
/* False when there is no such response. Later ones that go on from it are not found any more. */
bool response_store_delete(response_store *t, const char *identity, const char *id);
uint64_t response_store_bytes(response_store *t);

/* Texts live as long as the reference. */
const char *stored_body(const stored_response *r, size_t *n);
const char *stored_session(const stored_response *r);
const char *stored_salt(const stored_response *r);
/* The turns of the conversation up to r, the first one first; a count of at most
 * RESPONSE_TURNS_MAX + 1, of which `out` [RESPONSE_TURNS_MAX] gets the last ones. */
size_t stored_turns(const stored_response *r, const stored_response **out);
const char *stored_turn(const stored_response *r, size_t *n);

#endif

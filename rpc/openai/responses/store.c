/* Keeps responses: a table by id, and for each API key a list by time of use.
 *
 * A conversation is a chain of responses, each of which holds a reference to the one before. Using
 * one moves all of its chain to the front, the first turn first, so that the conversations that
 * nobody goes on with leave as a whole. */
#include "rpc/openai/responses/store.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };

typedef struct owner owner;

struct stored_response {
    char id[RESPONSE_ID_BYTES];
    owner *owner;
    stored_response *before;        // a reference
    stored_response *next;          // in its bucket
    stored_response *newer, *older; // in its owner's list
    uint32_t n_references;          // the table's among them
    bool listed;                    // in the table and the list
    bool deleted;
    int64_t used_us;
    size_t bytes; // charged
    char *body, *turn, *session, *salt;
    size_t body_bytes, turn_bytes;
};

struct owner {
    char identity[SERVICE_IDENTITY_BYTES];
    owner *next;
    stored_response *newest, *oldest;
    uint64_t bytes; // of its responses, those that only others refer to among them
};

struct response_store {
    pthread_mutex_t lock;
    uint64_t bytes_max, bytes;
    int64_t ttl_us;
    owner *owners; // as many as there are API keys
    stored_response *buckets[BUCKETS];
};

response_store *response_store_create(uint64_t bytes_max, int64_t ttl_us)
{
    response_store *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->bytes_max = bytes_max;
    t->ttl_us = ttl_us;
    return t;
}

static void free_texts(stored_response *r)
{
    free(r->body);
    free(r->turn);
    free(r->session);
    free(r->salt);
    free(r);
}

/* ---- references ------------------------------------------------------------------------------ */

static void free_response(response_store *t, stored_response *r)
{
    t->bytes -= r->bytes;
    r->owner->bytes -= r->bytes;
    free_texts(r);
}

/* Drops a reference, and those of a chain that nobody refers to any more. */
static void drop(response_store *t, stored_response *r)
{
    while (r && --r->n_references == 0) {
        stored_response *before = r->before;
        free_response(t, r);
        r = before;
    }
}

/* ---- the list of an owner -------------------------------------------------------------------- */

static void leave_list(stored_response *r)
{
    owner *o = r->owner;
    if (r->newer) r->newer->older = r->older;
    else o->newest = r->older;
    if (r->older) r->older->newer = r->newer;
    else o->oldest = r->newer;
}

static void enter_list(stored_response *r, int64_t now_us)
{
    owner *o = r->owner;
    r->used_us = now_us;
    r->newer = NULL;
    r->older = o->newest;
    if (o->newest) o->newest->newer = r;
    else o->oldest = r;
    o->newest = r;
}

/* ---- the table ------------------------------------------------------------------------------- */

static stored_response **bucket_of(response_store *t, const char *id)
{
    return &t->buckets[hash_bytes(id, strlen(id), 0) % BUCKETS];
}

static stored_response *find_response(response_store *t, const char *identity, const char *id)
{
    stored_response *r = *bucket_of(t, id);
    while (r && (strcmp(r->id, id) != 0 || strcmp(r->owner->identity, identity) != 0)) r = r->next;
    return r;
}

static void forget(response_store *t, stored_response *r)
{
    stored_response **at = bucket_of(t, r->id);
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    leave_list(r);
    r->listed = false;
    drop(t, r);
}

static void forget_old(response_store *t, int64_t now_us)
{
    for (owner *o = t->owners; o; o = o->next)
        while (o->oldest && now_us - o->oldest->used_us > t->ttl_us) forget(t, o->oldest);
}

/* The owner that gives up a response next: the one that has most. Where requests still refer to all
 * that it has, so that nothing can be freed, no other owner loses anything for it until the whole
 * is beyond twice the bound. NULL = nobody. */
static owner *next_to_lose(const response_store *t)
{
    owner *most = NULL, *able = NULL;
    for (owner *o = t->owners; o; o = o->next) {
        if (!most || o->bytes > most->bytes) most = o;
        if (o->oldest && (!able || o->bytes > able->bytes)) able = o;
    }
    bool is_held = most && !most->oldest && t->bytes / 2 <= t->bytes_max;
    return is_held ? NULL : able;
}

static void make_room(response_store *t)
{
    owner *o;
    while (t->bytes > t->bytes_max && (o = next_to_lose(t))) forget(t, o->oldest);
}

void response_store_destroy(response_store *t)
{
    if (!t) return;
    for (owner *o = t->owners; o; o = o->next)
        while (o->oldest) forget(t, o->oldest);
    for (owner *o = t->owners, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- putting --------------------------------------------------------------------------------- */

static owner *find_owner(response_store *t, const char *identity)
{
    owner *o = t->owners;
    while (o && strcmp(o->identity, identity) != 0) o = o->next;
    if (o) return o;
    o = calloc(1, sizeof *o);
    if (!o) return NULL;
    snprintf(o->identity, sizeof o->identity, "%s", identity);
    o->next = t->owners;
    t->owners = o;
    return o;
}

static char *copy_bytes(const char *text, size_t n, bool *ok)
{
    char *copy = text && *ok ? malloc(n + 1) : NULL;
    if (!copy) {
        *ok &= !text;
        return NULL;
    }
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

static size_t length_of(const char *text) { return text ? strlen(text) : 0; }

static stored_response *make_response(const response_facts *f)
{
    bool ok = true;
    stored_response *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    snprintf(r->id, sizeof r->id, "%s", f->id);
    r->body_bytes = f->body->size;
    r->turn_bytes = f->turn->size;
    r->body = copy_bytes(f->body->data, r->body_bytes, &ok);
    r->turn = copy_bytes(f->turn->data, r->turn_bytes, &ok);
    r->session = copy_bytes(f->session, length_of(f->session), &ok);
    r->salt = copy_bytes(f->salt, length_of(f->salt), &ok);
    r->bytes =
        sizeof *r + r->body_bytes + r->turn_bytes + length_of(f->session) + length_of(f->salt);
    if (ok) return r;
    free_texts(r);
    return NULL;
}

static void enter(response_store *t, owner *o, stored_response *r, stored_response *before,
                  int64_t now_us)
{
    stored_response **bucket = bucket_of(t, r->id);
    r->owner = o;
    r->n_references = 1;
    r->listed = true;
    r->before = before;
    if (before) before->n_references++;
    r->next = *bucket;
    *bucket = r;
    enter_list(r, now_us);
    t->bytes += r->bytes;
    o->bytes += r->bytes;
}

bool response_store_put(response_store *t, const response_facts *f, int64_t now_us)
{
    stored_response *r = make_response(f);
    if (!r) return false;
    pthread_mutex_lock(&t->lock);
    forget_old(t, now_us);
    owner *o = r->bytes <= t->bytes_max ? find_owner(t, f->identity) : NULL;
    if (o) {
        enter(t, o, r, f->before, now_us);
        make_room(t);
    }
    pthread_mutex_unlock(&t->lock);
    if (o) return true;
    free_texts(r);
    return false;
}

/* ---- using ----------------------------------------------------------------------------------- */

static bool chain_is_whole(const stored_response *r)
{
    for (; r; r = r->before)
        if (r->deleted) return false;
    return true;
}

/* Moves the chain to the front: the last turn in front of the first, which leaves before it. */
static void touch_chain(stored_response *last, int64_t now_us)
{
    const stored_response *chain[RESPONSE_TURNS_MAX];
    size_t n = stored_turns(last, chain);
    if (n > RESPONSE_TURNS_MAX) n = RESPONSE_TURNS_MAX;
    for (size_t i = 0; i < n; i++) {
        stored_response *r = (stored_response *)(uintptr_t)chain[i];
        if (!r->listed) continue;
        leave_list(r);
        enter_list(r, now_us);
    }
}

stored_response *response_store_get(response_store *t, const char *identity, const char *id,
                                    int64_t now_us)
{
    pthread_mutex_lock(&t->lock);
    forget_old(t, now_us);
    stored_response *r = find_response(t, identity, id);
    if (r && !chain_is_whole(r)) r = NULL;
    if (r) {
        r->n_references++;
        touch_chain(r, now_us);
    }
    pthread_mutex_unlock(&t->lock);
    return r;
}

void response_store_release(response_store *t, stored_response *r)
{
    if (!r) return;
    pthread_mutex_lock(&t->lock);
    drop(t, r);
    pthread_mutex_unlock(&t->lock);
}

bool response_store_delete(response_store *t, const char *identity, const char *id)
{
    pthread_mutex_lock(&t->lock);
    stored_response *r = find_response(t, identity, id);
    if (r) {
        r->deleted = true;
        forget(t, r);
    }
    pthread_mutex_unlock(&t->lock);
    return r != NULL;
}

uint64_t response_store_bytes(response_store *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t bytes = t->bytes;
    pthread_mutex_unlock(&t->lock);
    return bytes;
}

/* ---- reading --------------------------------------------------------------------------------- */

const char *stored_body(const stored_response *r, size_t *n)
{
    *n = r->body_bytes;
    return r->body;
}

const char *stored_turn(const stored_response *r, size_t *n)
{
    *n = r->turn_bytes;
    return r->turn;
}

const char *stored_session(const stored_response *r) { return r->session; }
const char *stored_salt(const stored_response *r) { return r->salt; }

size_t stored_turns(const stored_response *r, const stored_response **out)
{
    size_t n = 0;
    for (const stored_response *at = r; at && n <= RESPONSE_TURNS_MAX; at = at->before) n++;
    size_t i = n > RESPONSE_TURNS_MAX ? RESPONSE_TURNS_MAX : n;
    for (; i > 0; r = r->before) out[--i] = r;
    return n;
}

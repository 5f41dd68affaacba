/* The embeddings of sessions on disk. A record is a head, the text's tokens and their embeddings.
 * While a session is in memory the disk's thread copies it from there, part by part, so that nobody
 * waits for the disk; a request that takes the session meanwhile ends that, and what was on disk
 * before stays. */
#include "engine/internal.h"

#include <string.h>

typedef struct text_head {
    uint64_t policy; // a digest of what it was read under
    uint32_t n, dim; // tokens, and the values of each
} text_head;

disk_key reform_disk_key(const uint64_t session[2])
{
    disk_key key;
    _Static_assert(sizeof key == 2 * sizeof *session, "a session's key is that of its record");
    memcpy(&key, session, sizeof key);
    return key;
}

static uint64_t value_bytes(const text_head *h)
{
    return (uint64_t)h->n * h->dim * sizeof(uint16_t);
}

static uint64_t record_bytes(const text_head *h)
{
    return sizeof *h + (uint64_t)h->n * sizeof(uint32_t) + value_bytes(h);
}

/* ---- writing --------------------------------------------------------------------------------- */

static text_head head_of(const reform_store *s, const reform_text *text)
{
    return (text_head){.policy = session_policy_digest(&text->policy), .n = text->n, .dim = s->dim};
}

bool reform_disk_offer(reform_store *s, reform_session *x, int64_t now_us)
{
    disk_key key = reform_disk_key(x->key);
    text_head head = head_of(s, &x->text);
    if (!x->version)
        x->version = disk_record_offer(s->disk, &key, x->owner->id, record_bytes(&head),
                                       now_us - x->used_us);
    return x->version && disk_record_version(s->disk, &key) == x->version &&
           disk_record_waits(s->disk, &key);
}

/* The bytes that a part of a record, at .. at + n, has of what is at first .. first + size. */
typedef struct overlap {
    uint64_t skip; // of what is there
    size_t at, n;  // in the part
} overlap;

static overlap find_overlap(uint64_t at, size_t n, uint64_t first, uint64_t size)
{
    uint64_t from = at > first ? at : first, end = first + size;
    uint64_t to = at + n < end ? at + n : end;
    if (from >= to) return (overlap){.n = 0};
    return (overlap){.skip = from - first, .at = (size_t)(from - at), .n = (size_t)(to - from)};
}

static void put_part(uint8_t *to, uint64_t at, size_t n, uint64_t first, const void *from,
                     uint64_t size)
{
    overlap o = find_overlap(at, n, first, size);
    if (o.n) memcpy(to + o.at, (const uint8_t *)from + o.skip, o.n);
}

bool reform_disk_copy(void *ctx, const disk_key *key, uint64_t version, uint64_t at, void *to,
                      size_t n)
{
    reform_store *s = ctx;
    uint64_t session[2];
    memcpy(session, key, sizeof session);
    pthread_mutex_lock(&s->lock);
    const reform_session *x = reform_store_find(s, session);
    bool is_there = x && x->version == version;
    if (is_there) {
        text_head head = head_of(s, &x->text);
        uint64_t ids = head.n * sizeof *x->text.tokens;
        put_part(to, at, n, 0, &head, sizeof head);
        put_part(to, at, n, sizeof head, x->text.tokens, ids);
        put_part(to, at, n, sizeof head + ids, x->text.values, value_bytes(&head));
    }
    pthread_mutex_unlock(&s->lock);
    return is_there;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A text that is being read for a prompt: its tokens are compared, and the embeddings of those that
 * are the same are taken. */
typedef struct recall {
    text_head head, wanted; // `wanted` has the prompt's tokens
    const uint32_t *tokens;
    uint16_t *values;
    uint32_t n_same, n_seen;
} recall;

static void compare_tokens(recall *r, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += sizeof(uint32_t), r->n_seen++) {
        bool goes_on = r->n_same == r->n_seen && r->n_seen < r->wanted.n;
        if (goes_on && memcmp(bytes + i, &r->tokens[r->n_seen], sizeof(uint32_t)) == 0) r->n_same++;
    }
}

static bool take_part(void *ctx, uint64_t at, const uint8_t *bytes, size_t n, uint64_t all)
{
    recall *r = ctx;
    text_head *head = &r->head;
    if (at == 0) {
        if (n < sizeof *head) return false;
        memcpy(head, bytes, sizeof *head);
        if (head->policy != r->wanted.policy || head->dim != r->wanted.dim) return false;
        if (record_bytes(head) != all) return false;
    }
    /* Parts begin at multiples of a token's bytes. */
    uint64_t ids = (uint64_t)head->n * sizeof(uint32_t);
    overlap tokens = find_overlap(at, n, sizeof *head, ids);
    compare_tokens(r, bytes + tokens.at, tokens.n);
    if (r->n_seen > 0 && r->n_same == 0) return false;
    text_head same = {.n = r->n_same, .dim = head->dim};
    overlap values = find_overlap(at, n, sizeof *head + ids, value_bytes(&same));
    if (values.n) memcpy((uint8_t *)r->values + values.skip, bytes + values.at, values.n);
    return true;
}

bool reform_store_recall(reform_store *s, const reform_claim *claim, const retention_policy *policy,
                         const uint32_t *tokens, uint32_t n, reform_text *text)
{
    if (!s->disk) return false;
    pthread_mutex_lock(&s->lock);
    bool forgotten = claim->forgotten;
    pthread_mutex_unlock(&s->lock);
    disk_key key = reform_disk_key(claim->key);
    recall r = {.wanted = {.policy = session_policy_digest(policy), .n = n, .dim = s->dim},
                .tokens = tokens,
                .values = text->values};
    if (forgotten || !disk_record_read(s->disk, &key, take_part, &r) || r.n_same == 0) return false;
    memcpy(text->tokens, tokens, r.n_same * sizeof *tokens);
    text->n = r.n_same;
    return true;
}

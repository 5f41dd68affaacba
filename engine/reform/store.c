/* The memory of embeddings: a bound over all requests, and what sessions leave for their next
 * turn. */
#include "engine/reform/reform.h"

#include <stdlib.h>
#include <string.h>

void reform_store_init(reform_store *s, const engine_options *o, uint32_t head_dim)
{
    *s = (reform_store){.of_token = reform_token_bytes(o->n_embed_heads, head_dim),
                        .most = o->embed_memory,
                        .max_sessions = o->max_sessions,
                        .ttl_us = o->session_ttl_us,
                        .disk = o->embeddings,
                        .dim = o->n_embed_heads * head_dim};
    pthread_mutex_init(&s->lock, NULL);
    if (s->disk) disk_records_source(s->disk, reform_disk_copy, s);
}

/* ---- with the lock held ---------------------------------------------------------------------- */

static size_t bytes_of(const reform_store *s, const reform_text *text)
{
    return text->capacity * s->of_token;
}

static void free_text(reform_store *s, reform_text *text)
{
    s->used -= bytes_of(s, text);
    free(text->tokens);
    free(text->values);
    *text = (reform_text){.n = 0};
}

static void leave_owner(reform_store *s, const reform_session *x)
{
    reform_owner *o = x->owner, **link = &s->owners;
    o->bytes -= bytes_of(s, &x->text);
    if (--o->n > 0) return;
    while (*link != o) link = &(*link)->next;
    *link = o->next;
    free(o);
}

static void unlink_session(reform_store *s, reform_session *x)
{
    leave_owner(s, x);
    s->idle -= bytes_of(s, &x->text);
    *(x->older ? &x->older->newer : &s->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &s->newest) = x->older;
    s->n_sessions--;
}

static void drop_session(reform_store *s, reform_session *x)
{
    unlink_session(s, x);
    free_text(s, &x->text);
    free(x);
}

/* The session that makes room: that of the owner who has most, by bytes or by number, that was not
 * used for longest. So no owner pushes out the few of another. */
static reform_session *next_to_go(const reform_store *s, bool by_bytes)
{
    reform_session *out = s->oldest;
    for (reform_session *x = out; x; x = x->newer) {
        const reform_owner *a = x->owner, *b = out->owner;
        if (by_bytes ? a->bytes > b->bytes : a->n > b->n) out = x;
    }
    return out;
}

reform_session *reform_store_find(const reform_store *s, const uint64_t key[2])
{
    reform_session *x = s->newest;
    while (x && (x->key[0] != key[0] || x->key[1] != key[1])) x = x->older;
    return x;
}

static bool expire_sessions(reform_store *s, int64_t now_us)
{
    while (s->ttl_us > 0 && s->oldest && now_us - s->oldest->used_us >= s->ttl_us)
        drop_session(s, s->oldest);
    return s->ttl_us > 0 && s->oldest;
}

/* ---- a request's text ------------------------------------------------------------------------ */

void reform_store_destroy(reform_store *s)
{
    if (s->disk) disk_records_source(s->disk, NULL, NULL);
    while (s->oldest) drop_session(s, s->oldest);
    pthread_mutex_destroy(&s->lock);
}

static status check_room(const reform_store *s, size_t need, uint32_t of, error *err)
{
    enum { MIB = 1 << 20 };
    if (of * s->of_token > s->most)
        return error_set(err, STATUS_LIMIT,
                         "prompt: the embeddings of %u tokens take %zu MiB, and all requests may "
                         "have %zu MiB (--embed-memory)",
                         of, (of * s->of_token + MIB - 1) / MIB, s->most / MIB);
    if (s->used - s->idle + need <= s->most) return STATUS_IS_OK;
    return error_set(err, STATUS_QUEUE_FULL,
                     "prompt: the embeddings of %u tokens take %zu MiB, and other requests "
                     "have %zu of the %zu MiB of --embed-memory",
                     of, (of * s->of_token + MIB - 1) / MIB, (s->used - s->idle) / MIB,
                     s->most / MIB);
}

/* Whether the session may leave memory now. Else it has been waited for, without the lock. */
static bool can_leave(reform_store *s, reform_session *x, int64_t until_us)
{
    int64_t now = clock_now_us();
    if (!s->disk || now >= until_us || !reform_disk_offer(s, x, now)) return true;
    disk_key key = reform_disk_key(x->key);
    pthread_mutex_unlock(&s->lock);
    disk_record_await(s->disk, &key, until_us);
    pthread_mutex_lock(&s->lock);
    return false;
}

/* Takes the bytes of n tokens more, for which sessions may have to go: none does in vain. */
static status charge(reform_store *s, uint32_t n, uint32_t of, error *err)
{
    size_t need = n * s->of_token;
    int64_t until = clock_now_us() + REFORM_LEAVE_US;
    for (;;) {
        RETURN_IF_ERROR(check_room(s, need, of, err));
        if (s->used + need <= s->most) break;
        reform_session *x = next_to_go(s, true);
        if (can_leave(s, x, until)) drop_session(s, x);
    }
    s->used += need;
    return STATUS_IS_OK;
}

status reform_store_reserve(reform_store *s, reform_text *text, uint32_t n, error *err)
{
    if (n <= text->capacity) return STATUS_IS_OK;
    pthread_mutex_lock(&s->lock);
    status st = charge(s, n - text->capacity, n, err);
    pthread_mutex_unlock(&s->lock);
    RETURN_IF_ERROR(st);
    size_t of_value = s->of_token - sizeof *text->tokens;
    void *tokens = alloc_resize(NULL, text->tokens, n, sizeof *text->tokens);
    if (tokens) text->tokens = tokens;
    void *values = tokens ? alloc_resize(NULL, text->values, n, of_value) : NULL;
    if (values) text->values = values;
    if (values) {
        text->capacity = n;
        return STATUS_IS_OK;
    }
    pthread_mutex_lock(&s->lock);
    s->used -= (n - text->capacity) * s->of_token;
    pthread_mutex_unlock(&s->lock);
    return error_set(err, STATUS_NO_MEMORY, "prompt: out of memory for its embeddings");
}

void reform_store_release(reform_store *s, reform_text *text)
{
    pthread_mutex_lock(&s->lock);
    free_text(s, text);
    pthread_mutex_unlock(&s->lock);
}

/* ---- sessions -------------------------------------------------------------------------------- */

void reform_store_claim(reform_store *s, reform_claim *claim)
{
    pthread_mutex_lock(&s->lock);
    claim->newer = s->claims;
    if (s->claims) s->claims->older = claim;
    s->claims = claim;
    pthread_mutex_unlock(&s->lock);
}

bool reform_store_take(reform_store *s, const reform_claim *claim, const retention_policy *policy,
                       const uint32_t *tokens, uint32_t n, reform_text *out)
{
    pthread_mutex_lock(&s->lock);
    (void)expire_sessions(s, clock_now_us());
    reform_session *x = claim->forgotten ? NULL : reform_store_find(s, claim->key);
    /* Policies are copied whole, so equal ones have equal bytes. */
    bool has = x && memcmp(&x->text.policy, policy, sizeof *policy) == 0;
    if (has) {
        unlink_session(s, x); // while it still has the text, whose bytes are no longer idle
        *out = x->text;
        free(x);
    }
    pthread_mutex_unlock(&s->lock);
    uint32_t same = 0;
    while (has && same < n && same < out->n && out->tokens[same] == tokens[same]) same++;
    if (has) out->n = same;
    return has;
}

static void end_claim(reform_store *s, reform_claim *claim)
{
    if (claim->older) claim->older->newer = claim->newer;
    else s->claims = claim->newer;
    if (claim->newer) claim->newer->older = claim->older;
}

/* NULL: there is no memory for one that is new. */
static reform_owner *find_owner(reform_store *s, uint64_t id)
{
    reform_owner *o = s->owners;
    while (o && o->id != id) o = o->next;
    if (o) return o;
    o = calloc(1, sizeof *o);
    if (!o) return NULL;
    *o = (reform_owner){.id = id, .next = s->owners};
    s->owners = o;
    return o;
}

/* Takes the text over. False: there is no memory. */
static bool add_session(reform_store *s, const reform_claim *claim, reform_text *text)
{
    while (s->n_sessions >= s->max_sessions) drop_session(s, next_to_go(s, false));
    reform_session *x = calloc(1, sizeof *x);
    reform_owner *owner = x ? find_owner(s, claim->owner) : NULL;
    if (!owner) {
        free(x);
        return false;
    }
    *x = (reform_session){.key = {claim->key[0], claim->key[1]},
                          .used_us = clock_now_us(),
                          .owner = owner,
                          .text = *text,
                          .older = s->newest};
    *text = (reform_text){.n = 0};
    *(s->newest ? &s->newest->newer : &s->oldest) = x;
    s->newest = x;
    s->n_sessions++;
    owner->n++;
    owner->bytes += bytes_of(s, &x->text);
    s->idle += bytes_of(s, &x->text);
    return true;
}

static bool has_all(const reform_text *text, const reform_text *of)
{
    return text->n >= of->n && memcmp(&text->policy, &of->policy, sizeof of->policy) == 0 &&
           memcmp(text->tokens, of->tokens, of->n * sizeof *of->tokens) == 0;
}

/* Ends what the session had. Where that has all of *text and more, the two change places: a request
 * that ran beside another may have been aborted early. */
static void replace_session(reform_store *s, reform_session *before, reform_text *text)
{
    unlink_session(s, before);
    if (has_all(&before->text, text)) {
        reform_text shorter = *text;
        *text = before->text;
        before->text = shorter;
    }
    free_text(s, &before->text);
    free(before);
}

void reform_store_keep(reform_store *s, reform_claim *claim, reform_text *text)
{
    pthread_mutex_lock(&s->lock);
    end_claim(s, claim);
    bool keeps = text->n > 0 && s->max_sessions > 0 && !claim->forgotten;
    reform_session *before = keeps ? reform_store_find(s, claim->key) : NULL;
    if (before) replace_session(s, before, text);
    if (!keeps || !add_session(s, claim, text)) free_text(s, text);
    pthread_mutex_unlock(&s->lock);
}

void reform_store_forget(reform_store *s, const uint64_t key[2])
{
    pthread_mutex_lock(&s->lock);
    reform_session *x = reform_store_find(s, key);
    if (x) drop_session(s, x);
    disk_key on_disk = reform_disk_key(key);
    if (s->disk) disk_record_remove(s->disk, &on_disk);
    for (reform_claim *c = s->claims; c; c = c->newer)
        c->forgotten |= c->key[0] == key[0] && c->key[1] == key[1];
    pthread_mutex_unlock(&s->lock);
}

size_t reform_store_used(reform_store *s)
{
    pthread_mutex_lock(&s->lock);
    size_t used = s->used;
    pthread_mutex_unlock(&s->lock);
    return used;
}

bool reform_store_tend(reform_store *s, int64_t now_us)
{
    pthread_mutex_lock(&s->lock);
    bool left = expire_sessions(s, now_us);
    for (reform_session *x = s->oldest; s->disk && x; x = x->newer) {
        if (x->version) continue;
        if (now_us - x->used_us >= REFORM_IDLE_US) (void)reform_disk_offer(s, x, now_us);
        left |= !x->version;
    }
    pthread_mutex_unlock(&s->lock);
    return left;
}

void reform_store_save(reform_store *s, int64_t until_us)
{
    int64_t now = clock_now_us();
    pthread_mutex_lock(&s->lock);
    for (reform_session *x = s->oldest; s->disk && x; x = x->newer)
        (void)reform_disk_offer(s, x, now);
    for (reform_session *x = s->oldest; s->disk && x && now < until_us; now = clock_now_us()) {
        disk_key key = reform_disk_key(x->key);
        pthread_mutex_unlock(&s->lock);
        disk_record_await(s->disk, &key, until_us);
        pthread_mutex_lock(&s->lock);
        x = s->oldest;
        while (x && !reform_disk_offer(s, x, now)) x = x->newer;
    }
    pthread_mutex_unlock(&s->lock);
}

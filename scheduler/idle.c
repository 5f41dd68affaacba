/* Idle sessions and the keys that live requests claim. Every question that a step may ask costs the
 * same however many sessions are idle, but for a logarithm:
 *
 *   by key     hash tables of the idle sessions and of the requests that claim a key
 *   by age     one list of all, the longest idle first
 *   by owner   a queue for each owner and place, the longest idle first, and for each place a heap
 *              of its queues, so that the owner that has most makes room
 *
 * The number of a session counts those stored before it: the smaller, the longer idle. */
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

static bool same_key(const uint64_t a[2], const uint64_t b[2])
{
    return a[0] == b[0] && a[1] == b[1];
}

/* A key is a digest, an owner's id a part of one; both are mixed again because callers choose what
 * is digested. */
static uint32_t home_of(uint64_t id, uint32_t mask) { return (uint32_t)hash_mix64(id) & mask; }

static uint32_t buckets_for(uint32_t n)
{
    uint32_t size = 16;
    while (size < n) size *= 2;
    return size;
}

bool sched_idle_create(sched *s)
{
    sched_idle *i = &s->idle;
    const allocator *a = &s->alloc;
    uint32_t most = s->options.max_sessions;
    if (most == 0) return true;
    uint32_t n = buckets_for(most), n_claims = buckets_for(s->options.max_requests);
    i->mask = n - 1;
    i->claim_mask = n_claims - 1;
    i->sessions = alloc_zeroed(a, n, sizeof *i->sessions);
    i->owners = alloc_zeroed(a, n, sizeof *i->owners);
    i->claims = alloc_zeroed(a, n_claims, sizeof *i->claims);
    bool ok = i->sessions && i->owners && i->claims;
    for (int place = 0; place < SCHED_PLACES; place++) {
        i->heaps[place].queues = alloc_zeroed(a, most, sizeof *i->heaps[place].queues);
        ok &= i->heaps[place].queues != NULL;
    }
    return ok;
}

void sched_idle_destroy(sched *s)
{
    sched_idle *i = &s->idle;
    alloc_free(&s->alloc, i->sessions);
    alloc_free(&s->alloc, i->owners);
    alloc_free(&s->alloc, i->claims);
    for (int place = 0; place < SCHED_PLACES; place++)
        alloc_free(&s->alloc, i->heaps[place].queues);
}

/* ---- claims ---------------------------------------------------------------------------------- */

sched_entry *sched_idle_claimant(const sched *s, const uint64_t key[2])
{
    sched_entry *e = s->idle.claims[home_of(key[0], s->idle.claim_mask)];
    while (e && !same_key(e->session, key)) e = e->next_claim;
    return e;
}

bool sched_idle_is_claimed(const sched *s, const uint64_t key[2])
{
    return sched_idle_claimant(s, key) != NULL;
}

void sched_idle_claim(sched *s, sched_entry *e)
{
    sched_entry **bucket = &s->idle.claims[home_of(e->session[0], s->idle.claim_mask)];
    e->next_claim = *bucket;
    *bucket = e;
}

void sched_idle_unclaim(sched *s, sched_entry *e)
{
    sched_entry **link = &s->idle.claims[home_of(e->session[0], s->idle.claim_mask)];
    while (*link != e) link = &(*link)->next_claim;
    *link = e->next_claim;
}

/* ---- heaps of queues ------------------------------------------------------------------------- */

/* Whether session a makes room before session b. */
static bool goes_before(const sched_session *a, const sched_session *b)
{
    return a->owner->n != b->owner->n ? a->owner->n > b->owner->n : a->number < b->number;
}

static bool queue_before(const sched_idle_queue *a, const sched_idle_queue *b)
{
    return goes_before(a->oldest, b->oldest);
}

static void heap_put(sched_idle_heap *h, uint32_t at, sched_idle_queue *q)
{
    h->queues[at] = q;
    q->at = at;
}

/* Moves a queue to where its owner's number of sessions and its oldest session place it. */
static void heap_order(sched_idle_heap *h, sched_idle_queue *q)
{
    uint32_t at = q->at;
    for (; at > 0 && queue_before(q, h->queues[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(h, at, h->queues[(at - 1) / 2]);
    for (uint32_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && queue_before(h->queues[child + 1], h->queues[child])) child++;
        if (!queue_before(h->queues[child], q)) break;
        heap_put(h, at, h->queues[child]);
    }
    heap_put(h, at, q);
}

static void heap_remove(sched_idle_heap *h, const sched_idle_queue *q)
{
    sched_idle_queue *last = h->queues[--h->n];
    if (last == q) return;
    heap_put(h, q->at, last);
    heap_order(h, last);
}

static void order_owner(sched *s, sched_owner *o)
{
    for (int place = 0; place < SCHED_PLACES; place++)
        if (o->queues[place].oldest) heap_order(&s->idle.heaps[place], &o->queues[place]);
}

/* ---- queues of owners ------------------------------------------------------------------------ */

static sched_place place_of(const sched_session *session)
{
    return session->swap ? SCHED_IN_TIER : SCHED_IN_POOL;
}

static void count_place(sched *s, sched_place place, bool enters)
{
    uint32_t *n = place == SCHED_IN_TIER ? &s->stats.sessions_swapped : &s->stats.sessions_idle;
    *n += enters ? 1 : UINT32_MAX;
}

/* Sessions enter in order of age, except where an older one follows a younger one to the tier. */
static void enqueue(sched *s, sched_session *session)
{
    sched_place place = place_of(session);
    sched_idle_heap *h = &s->idle.heaps[place];
    sched_idle_queue *q = &session->owner->queues[place];
    if (!q->oldest) heap_put(h, h->n++, q);
    sched_session *before = q->newest;
    while (before && before->number > session->number) before = before->before;
    session->before = before;
    session->after = before ? before->after : q->oldest;
    *(before ? &before->after : &q->oldest) = session;
    *(session->after ? &session->after->before : &q->newest) = session;
    heap_order(h, q);
    count_place(s, place, true);
}

static void dequeue(sched *s, sched_session *session)
{
    sched_place place = place_of(session);
    sched_idle_queue *q = &session->owner->queues[place];
    if (q->oldest == q->newest) heap_remove(&s->idle.heaps[place], q);
    *(session->before ? &session->before->after : &q->oldest) = session->after;
    *(session->after ? &session->after->before : &q->newest) = session->before;
    if (q->oldest) heap_order(&s->idle.heaps[place], q);
    count_place(s, place, false);
}

sched_owner *sched_idle_owner(sched *s, uint64_t id)
{
    sched_owner **bucket = &s->idle.owners[home_of(id, s->idle.mask)], *o = *bucket;
    while (o && o->id != id) o = o->next;
    if (!o) {
        o = alloc_zeroed(&s->alloc, 1, sizeof *o);
        if (!o) return NULL;
        o->id = id;
        o->next = *bucket;
        *bucket = o;
    }
    o->n++;
    order_owner(s, o);
    return o;
}

void sched_idle_release(sched *s, sched_owner *o)
{
    if (--o->n > 0) {
        order_owner(s, o);
        return;
    }
    sched_owner **link = &s->idle.owners[home_of(o->id, s->idle.mask)];
    while (*link != o) link = &(*link)->next;
    *link = o->next;
    alloc_free(&s->alloc, o);
}

/* ---- sessions come and go -------------------------------------------------------------------- */

sched_session *sched_idle_find(const sched *s, const uint64_t key[2])
{
    if (s->options.max_sessions == 0) return NULL;
    sched_session *session = s->idle.sessions[home_of(key[0], s->idle.mask)];
    while (session && !same_key(session->key, key)) session = session->next_in_bucket;
    return session;
}

uint64_t sched_idle_most_tokens(const sched *s)
{
    uint64_t most = (uint64_t)s->options.max_sessions * s->options.max_model_len;
    return most > s->options.max_logical_len ? most : s->options.max_logical_len;
}

void sched_idle_add(sched *s, sched_session *session)
{
    sched_idle *i = &s->idle;
    session->number = i->n_stored++;
    sched_session **bucket = &i->sessions[home_of(session->key[0], i->mask)];
    session->next_in_bucket = *bucket;
    *bucket = session;
    session->older = i->newest;
    *(i->newest ? &i->newest->newer : &i->oldest) = session;
    i->newest = session;
    i->n++;
    i->n_tokens += session->n_tokens;
    enqueue(s, session);
}

void sched_idle_remove(sched *s, sched_session *session)
{
    sched_idle *i = &s->idle;
    dequeue(s, session);
    *(session->older ? &session->older->newer : &i->oldest) = session->newer;
    *(session->newer ? &session->newer->older : &i->newest) = session->older;
    i->n--;
    i->n_tokens -= session->n_tokens;
    sched_session **link = &i->sessions[home_of(session->key[0], i->mask)];
    while (*link != session) link = &(*link)->next_in_bucket;
    *link = session->next_in_bucket;
}

void sched_idle_to_tier(sched *s, sched_session *session, uint32_t swap)
{
    dequeue(s, session);
    session->parked = 0;
    session->swap = swap;
    enqueue(s, session);
}

/* ---- which makes room ------------------------------------------------------------------------ */

sched_session *sched_idle_first(const sched *s, sched_place place)
{
    const sched_idle_heap *h = &s->idle.heaps[place];
    return h->n > 0 ? h->queues[0]->oldest : NULL;
}

sched_session *sched_idle_first_of_all(const sched *s)
{
    sched_session *a = sched_idle_first(s, SCHED_IN_POOL), *b = sched_idle_first(s, SCHED_IN_TIER);
    return !a || (b && goes_before(b, a)) ? b : a;
}

/* Nearly always the first one can. Only where other sequences hold all its pages too, others are
 * looked at. */
sched_session *sched_idle_first_that(const sched *s, sched_place place,
                                     bool (*can_go)(const sched *s, const sched_session *session))
{
    sched_session *found = sched_idle_first(s, place);
    if (!found || can_go(s, found)) return found;
    found = NULL;
    const sched_idle_heap *h = &s->idle.heaps[place];
    for (uint32_t i = 0; i < h->n; i++) {
        sched_session *session = h->queues[i]->oldest;
        while (session && !(found && goes_before(found, session)) && !can_go(s, session))
            session = session->after;
        if (session && !(found && goes_before(found, session))) found = session;
    }
    return found;
}

/* ---- integrity ------------------------------------------------------------------------------- */

static const char *check_queue(const sched *s, const sched_idle_queue *q, sched_place place,
                               uint32_t *n)
{
    const sched_idle_heap *h = &s->idle.heaps[place];
    if (!q->oldest != !q->newest) return "a queue of sessions has one end";
    if (q->oldest && (q->at >= h->n || h->queues[q->at] != q))
        return "a queue of sessions is not in its heap";
    if (q->oldest && q->at > 0 && queue_before(q, h->queues[(q->at - 1) / 2]))
        return "a heap of sessions is out of order";
    const sched_session *last = NULL;
    for (const sched_session *x = q->oldest; x; last = x, x = x->after, (*n)++) {
        if (x->before != last || (last && last->number >= x->number) || place_of(x) != place ||
            *n >= s->idle.n)
            return "a queue of sessions is out of order";
    }
    return q->newest == last ? NULL : "a queue of sessions ends early";
}

static const char *check_owners(const sched *s)
{
    uint32_t n_all = 0, n_queues[SCHED_PLACES] = {0};
    for (uint32_t b = 0; b <= s->idle.mask; b++) {
        for (const sched_owner *o = s->idle.owners[b]; o; o = o->next) {
            uint32_t n = 0;
            for (int place = 0; place < SCHED_PLACES; place++) {
                const char *wrong = check_queue(s, &o->queues[place], (sched_place)place, &n);
                if (wrong) return wrong;
                n_queues[place] += o->queues[place].oldest != NULL;
            }
            if (n == 0 || n != o->n)
                return "an owner has another number of sessions than it counts";
            n_all += n;
        }
    }
    for (int place = 0; place < SCHED_PLACES; place++)
        if (n_queues[place] != s->idle.heaps[place].n) return "a heap has an empty queue";
    return n_all == s->idle.n ? NULL : "a session has no owner";
}

static const char *check_claims(const sched *s)
{
    for (uint32_t b = 0; b <= s->idle.claim_mask; b++) {
        for (const sched_entry *e = s->idle.claims[b]; e; e = e->next_claim) {
            if (!e->claims || e->n != 1) return "a request claims a session that it cannot have";
            if (e->live == 0 && !e->seqs[0].stores)
                return "a session is claimed by a request that ended";
        }
    }
    return NULL;
}

const char *sched_idle_check(const sched *s)
{
    if (s->options.max_sessions == 0) return s->idle.n == 0 ? NULL : "sessions are off";
    if (s->idle.n > s->options.max_sessions) return "there are too many sessions";
    uint32_t n = 0;
    uint64_t n_tokens = 0;
    const sched_session *last = NULL;
    for (const sched_session *x = s->idle.oldest; x; last = x, x = x->newer, n++) {
        n_tokens += x->n_tokens;
        if (!x->parked == !x->swap) return "a session has no pages, or two places";
        uint32_t length =
            x->parked ? pkv_parked_length(s->kv, x->parked) : pkv_swap_length(s->kv, x->swap);
        if (length != x->n_tokens) return "a session has another length than its pages";
        if (sched_idle_find(s, x->key) != x) return "two sessions have one key";
        if (sched_idle_is_claimed(s, x->key)) return "a session is idle and claimed";
        if (x->older != last || (last && (x->idle_us < last->idle_us || x->number <= last->number)))
            return "sessions are out of order";
    }
    if (n != s->idle.n || s->idle.newest != last) return "sessions are miscounted";
    if (n_tokens != s->idle.n_tokens) return "tokens of sessions are miscounted";
    const char *wrong = check_owners(s);
    return wrong ? wrong : check_claims(s);
}

/* Sessions: a request leaves its pages behind for the next turn of its conversation, and the
 * request of that turn continues from them.
 *
 *   idle     no request has it: its pages are parked, or in the host tier
 *   claimed  a live request continues it, or will leave one under its key; its pages are the
 *            request's own, and no other request can have the key meanwhile
 *
 * A request keeps all turns of its session, so that a replay can select at the same points under
 * the same policies. */
#include "scheduler/sched_internal.h"

static bool same_key(const uint64_t a[2], const uint64_t b[2])
{
    return a[0] == b[0] && a[1] == b[1];
}

static sched_session *find_session(const sched *s, const uint64_t key[2])
{
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        if (same_key(s->sessions[i]->key, key)) return s->sessions[i];
    }
    return NULL;
}

static bool is_claimed(const sched *s, const uint64_t key[2])
{
    for (const sched_entry *e = s->claims; e; e = e->next_claim) {
        if (same_key(e->session, key)) return true;
    }
    return false;
}

/* ---- where a request begins ------------------------------------------------------------------ */

/* Whether two turns may share one session. Budgets may differ, but the shape of the tables may not,
 * nor whether running sums lie beside them: pages of a turn without sums are shared, and two
 * sequences would add to one sum. */
static bool same_composition(const retention_policy *a, const retention_policy *b)
{
    return a->preset == b->preset && a->score == b->score && a->variant == b->variant &&
           a->unit == b->unit && a->chunk == b->chunk && a->scope == b->scope &&
           a->allocator == b->allocator && a->schedule == b->schedule &&
           a->contiguous == b->contiguous && a->reuse_layers == b->reuse_layers &&
           a->growth == b->growth && a->decode_score == b->decode_score &&
           a->decode_unit == b->decode_unit && a->decode_scope == b->decode_scope &&
           retention_has_sums(a) == retention_has_sums(b);
}

/* Whether the method's measures end with the prompt. Then it has none of the answer's rows, to
 * which the next turn would have to add. */
static bool measures_end(const retention_policy *p)
{
    if (retention_wants_novelty(p)) return true;
    measure_spec first = retention_measure_rows(p, 2, 0, 1);
    measure_spec later = retention_measure_rows(p, 2, 2, 3);
    return first.sum == MEASURE_SUM_ADD && later.sum != MEASURE_SUM_ADD;
}

/* Whether selections in the answer left tables different that share one selection in a prompt. */
static bool scopes_differ(const retention_policy *p)
{
    return p->growth != RETENTION_GROWTH_JOINT && retention_selects(p) &&
           p->scope != p->decode_scope;
}

/* Whether the request could be computed again from the session's first token, turn by turn. */
static bool session_fits(const sched *s, const sched_session *session, const sched_request *r)
{
    sched_turn turns[SCHED_MAX_TURNS + 1];
    memcpy(turns, session->turns, session->n_turns * sizeof *turns);
    turns[session->n_turns] = sched_turn_of(r);
    return sched_peak_alone(s, turns, session->n_turns + 1, r->max_new_tokens, 1) <
           s->options.n_pages;
}

static bool extends(const sched_session *session, const sched_request *r, uint64_t salt)
{
    return session->salt == salt && session->n_tokens < r->n_prompt &&
           memcmp(session->tokens, r->prompt, session->n_tokens * sizeof *r->prompt) == 0;
}

static const char *why_not(const sched *s, const sched_session *session, const sched_request *r)
{
    const retention_policy *last = &session->turns[session->n_turns - 1].policy;
    uint64_t salt = sched_salt_of(s, r);
    if (!extends(session, r, salt)) return "ignored: the prompt does not extend the session";
    if (!same_composition(last, &r->policy)) return "ignored: made with another retention";
    if (measures_end(last)) return "ignored: the method measures from the first token on";
    if (scopes_differ(last))
        return "ignored: the answer was kept by another scope than prompts are";
    if (r->want_logits || r->want_scores)
        return "ignored: logprobs of the whole prompt are asked for";
    if (!session_fits(s, session, r)) return "ignored: the KV cache is too small for its turns";
    return NULL;
}

sched_session *sched_session_for(const sched *s, const sched_request *r, bool *claims,
                                 const char **session_note)
{
    *claims = false;
    *session_note = NULL;
    if (r->session[0] == 0 && r->session[1] == 0) return NULL;
    sched_session *session = find_session(s, r->session);
    if (s->options.max_sessions == 0) *session_note = "ignored: sessions are off";
    else if (r->n > 1) *session_note = "ignored: n is above 1";
    else if (input_of(r) < r->n_prompt) *session_note = "ignored: the method cuts the prompt";
    else if (is_claimed(s, r->session)) *session_note = "ignored: busy";
    else if (session) *session_note = why_not(s, session, r);
    *claims = !*session_note;
    if (!*claims || !session) return NULL;
    if (session->n_turns == SCHED_MAX_TURNS)
        *session_note = "restarted: the session has had 64 turns";
    return session;
}

/* ---- the list of idle ones ------------------------------------------------------------------- */

/* Counts one more session of this owner; NULL when memory is out. */
static sched_owner *owner_of(sched *s, uint64_t id)
{
    sched_owner *o = s->owners;
    while (o && o->id != id) o = o->next;
    if (!o) {
        o = alloc_zeroed(&s->alloc, 1, sizeof *o);
        if (!o) return NULL;
        *o = (sched_owner){.id = id, .next = s->owners};
        s->owners = o;
    }
    o->n++;
    return o;
}

static void owner_release(sched *s, sched_owner *o)
{
    if (--o->n > 0) return;
    sched_owner **link = &s->owners;
    while (*link != o) link = &(*link)->next;
    *link = o->next;
    alloc_free(&s->alloc, o);
}

static void session_free(sched *s, sched_session *session)
{
    owner_release(s, session->owner);
    alloc_free(&s->alloc, session);
}

static void list(sched *s, sched_session *session)
{
    s->sessions[s->n_sessions++] = session;
    s->stats.sessions_idle += session->parked != 0;
    s->stats.sessions_swapped += session->swap != 0;
}

static void unlist(sched *s, const sched_session *session)
{
    s->stats.sessions_idle -= session->parked != 0;
    s->stats.sessions_swapped -= session->swap != 0;
    uint32_t i = 0;
    while (s->sessions[i] != session) i++;
    s->n_sessions--;
    memmove(s->sessions + i, s->sessions + i + 1, (s->n_sessions - i) * sizeof *s->sessions);
}

static void drop_session(sched *s, sched_session *session)
{
    if (session->swap) {
        pkv_swap_discard(s->kv, session->swap);
        s->stats.swapped_tokens -= session->n_tokens;
    }
    if (session->parked) {
        pkv_parked_discard(s->kv, session->parked);
        sched_unhold(s, session->n_tokens, session->kept);
    }
    unlist(s, session);
    session_free(s, session);
    s->stats.sessions_expired++;
}

void sched_session_take(sched *s, sched_session *session, sched_entry *e)
{
    if (e->session_note) { /* the request begins another session */
        drop_session(s, session);
        return;
    }
    sched_seq *q = e->seqs;
    memcpy(e->turns, session->turns, session->n_turns * sizeof *e->turns);
    memcpy(q->pressure_drops, session->pressure_drops,
           session->n_pressure_drops * sizeof *q->pressure_drops);
    q->n_pressure_drops = session->n_pressure_drops;
    q->computed = q->selected = session->n_tokens;
    q->parked = session->parked;
    q->swap = session->swap;
    q->kept = session->kept;
    e->session_note = "continued";
    unlist(s, session);
    session_free(s, session);
    s->stats.sessions_continued++;
}

void sched_session_unclaim(sched *s, sched_entry *e)
{
    if (!e->claims) return;
    e->claims = false;
    sched_entry **link = &s->claims;
    while (*link != e) link = &(*link)->next_claim;
    *link = e->next_claim;
}

/* ---- leaving one ----------------------------------------------------------------------------- */

static sched_session *session_create(sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    size_t turns = e->n_turns * sizeof(sched_turn);
    size_t words = (size_t)q->n_pressure_drops + q->computed;
    char *at = alloc_zeroed(&s->alloc, 1, sizeof(sched_session) + turns + words * sizeof(uint32_t));
    if (!at) return NULL;
    sched_session *session = (sched_session *)at;
    sched_owner *owner = owner_of(s, e->owner);
    if (!owner) {
        alloc_free(&s->alloc, at);
        return NULL;
    }
    *session = (sched_session){
        .key = {e->session[0], e->session[1]},
        .owner = owner,
        .salt = e->salt,
        .idle_us = s->now_us,
        .turns = (sched_turn *)(session + 1),
        .n_turns = e->n_turns,
        .n_pressure_drops = q->n_pressure_drops,
        .n_tokens = q->computed,
        .kept = q->kept,
    };
    session->pressure_drops = (uint32_t *)(session->turns + e->n_turns);
    session->tokens = session->pressure_drops + q->n_pressure_drops;
    memcpy(session->turns, e->turns, turns);
    session->turns[e->n_turns - 1].end = q->computed;
    memcpy(session->pressure_drops, q->pressure_drops,
           q->n_pressure_drops * sizeof *q->pressure_drops);
    memcpy(session->tokens, q->tokens, q->computed * sizeof *q->tokens);
    return session;
}

/* The session that makes room: of those that `can_go` accepts, the longest idle one of the owner
 * that has most. */
static sched_session *next_to_go(const sched *s,
                                 bool (*can_go)(const sched *s, const sched_session *session))
{
    sched_session *found = NULL;
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        sched_session *session = s->sessions[i];
        if ((!found || session->owner->n > found->owner->n) && can_go(s, session)) found = session;
    }
    return found;
}

static bool any(const sched *s, const sched_session *session)
{
    (void)s;
    (void)session;
    return true;
}

bool sched_session_store(sched *s, sched_seq *q)
{
    sched_session *session = session_create(s, q);
    if (!session) return false;
    if (q->swap) {
        session->swap = q->swap;
        q->swap = 0;
    } else if (!status_ok(pkv_seq_park(s->kv, q->slot, &session->parked))) {
        session_free(s, session);
        return false;
    }
    while (s->n_sessions >= s->options.max_sessions) drop_session(s, next_to_go(s, any));
    list(s, session);
    s->stats.sessions_stored++;
    return true;
}

/* ---- giving way ------------------------------------------------------------------------------ */

void sched_sessions_expire(sched *s)
{
    while (s->n_sessions > 0 && s->now_us - s->sessions[0]->idle_us >= s->options.session_ttl_us)
        drop_session(s, s->sessions[0]);
}

/* Giving the parked pages up frees some, at once or together with others that hold them too. */
static bool can_free(const sched *s, uint32_t parked)
{
    return parked && pkv_parked_look(s->kv, parked).alone > 0;
}

static bool frees_pages(const sched *s, const sched_session *session)
{
    return can_free(s, session->parked);
}

static bool is_swapped(const sched *s, const sched_session *session)
{
    (void)s;
    return session->swap != 0;
}

bool sched_parked_give_way(sched *s, const sched_seq *but)
{
    if (pkv_parked_alone(s->kv) == 0) return false;
    sched_session *session = next_to_go(s, frees_pages);
    if (session) {
        if (!status_ok(pkv_parked_swap_out(s->kv, session->parked, &session->swap))) {
            drop_session(s, session);
            return true;
        }
        session->parked = 0;
        sched_unhold(s, session->n_tokens, session->kept);
        s->stats.sessions_idle--;
        s->stats.sessions_swapped++;
        s->stats.swapped_tokens += session->n_tokens;
        return true;
    }
    for (uint32_t i = s->waiting.n; i-- > 0;) {
        sched_seq *q = s->waiting.seqs[i];
        if (q == but || !can_free(s, q->parked)) continue;
        sched_unhold(s, q->computed, q->kept);
        if (status_ok(pkv_parked_swap_out(s->kv, q->parked, &q->swap))) {
            s->stats.swapped_tokens += q->computed;
        } else {
            pkv_parked_discard(s->kv, q->parked);
            q->computed = 0;
            q->kept = 0;
        }
        q->parked = 0;
        return true;
    }
    return false;
}

bool sched_sessions_leave_tier(sched *s)
{
    sched_session *session = next_to_go(s, is_swapped);
    if (session) drop_session(s, session);
    return session != NULL;
}

void sched_sessions_destroy(sched *s)
{
    for (uint32_t i = 0; i < s->n_sessions; i++) session_free(s, s->sessions[i]);
    s->n_sessions = 0;
}

static const char *check_owners(const sched *s)
{
    for (const sched_owner *o = s->owners; o; o = o->next) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->n_sessions; i++) n += s->sessions[i]->owner == o;
        if (n == 0 || n != o->n) return "an owner has another number of sessions than it counts";
    }
    return NULL;
}

const char *sched_sessions_check(const sched *s)
{
    if (s->n_sessions > s->options.max_sessions) return "there are too many sessions";
    for (uint32_t i = 0; i < s->n_sessions; i++) {
        const sched_session *session = s->sessions[i];
        if (!session->parked == !session->swap) return "a session has no pages, or two places";
        uint32_t length = session->parked ? pkv_parked_length(s->kv, session->parked)
                                          : pkv_swap_length(s->kv, session->swap);
        if (length != session->n_tokens) return "a session has another length than its pages";
        if (find_session(s, session->key) != session) return "two sessions have one key";
        if (is_claimed(s, session->key)) return "a session is idle and claimed";
        if (i > 0 && session->idle_us < s->sessions[i - 1]->idle_us)
            return "sessions are out of order";
    }
    for (const sched_entry *e = s->claims; e; e = e->next_claim) {
        if (!e->claims || e->n != 1) return "a request claims a session that it cannot have";
        if (e->live == 0 && !e->seqs[0].stores)
            return "a session is claimed by a request that ended";
    }
    return check_owners(s);
}

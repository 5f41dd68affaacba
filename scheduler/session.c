/* Sessions: a request leaves its pages behind for the next turn of its conversation, and the
 * request of that turn continues from them.
 *
 *   idle     no request has it: its pages are parked, or in the host tier
 *   claimed  a live request continues it, or will leave one under its key; its pages are the
 *            request's own, and no other request can have the key meanwhile
 *
 * A request keeps all turns of its session, so that a replay can select at the same points under
 * the same policies. */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

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

/* The session's turns, then the request's own; returns their number. */
static uint32_t turns_with(const sched_session *session, const sched_request *r,
                           sched_turn turns[SCHED_MAX_TURNS + 1])
{
    memcpy(turns, session->turns, session->n_turns * sizeof *turns);
    turns[session->n_turns] = sched_turn_of(r);
    return session->n_turns + 1;
}

/* Whether the request could be computed again from the session's first token, turn by turn. */
static bool session_fits(const sched *s, const sched_session *session, const sched_request *r)
{
    sched_turn turns[SCHED_MAX_TURNS + 1];
    uint32_t n = turns_with(session, r, turns);
    return sched_peak_alone(s, 0, turns, n, r->max_new_tokens, 1) <= s->even_pages;
}

/* Whether the request's positions exceed the context when it goes on from the session, whose tables
 * also keep the answer. */
static bool outgrows(const sched *s, const sched_session *session, const sched_request *r)
{
    sched_turn turns[SCHED_MAX_TURNS + 1];
    uint32_t n = turns_with(session, r, turns);
    uint32_t to = turns[n - 1].n_prompt + r->max_new_tokens;
    return sched_positions_of(s, turns, n, to) > s->options.max_model_len;
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
    /* Heads may have given up a new sink or not, and would keep unequal numbers of tokens. */
    if (last->contiguous && r->policy.sinks > last->sinks) return "ignored: made with fewer sinks";
    if (measures_end(last)) return "ignored: the method measures from the first token on";
    if (scopes_differ(last))
        return "ignored: the answer was kept by another scope than prompts are";
    if (r->want_logits || r->want_scores)
        return "ignored: logprobs of the whole prompt are asked for";
    if (!session_fits(s, session, r)) return "ignored: the KV cache is too small for its turns";
    return NULL;
}

static bool has_pages(const sched_session *session) { return session->parked || session->swap; }

/* A session that was kept elsewhere may come from a server with other limits. */
static const char *why_not_saved(const sched *s, const sched_session *session)
{
    for (uint32_t i = 0; i < session->n_turns; i++)
        if (!status_ok(sched_check_turn(s, &session->turns[i], NULL)))
            return "ignored: its turns do not suit this server's limits";
    return session->n_pressure_drops > 0 && !s->pressure.preset
               ? "ignored: it was made under --pressure-retention"
               : NULL;
}

static sched_session session_of(const sched_saved *saved)
{
    return (sched_session){
        .key = {saved->key[0], saved->key[1]},
        .salt = saved->salt,
        .turns = saved->turns,
        .n_turns = saved->n_turns,
        .pressure_drops = saved->pressure_drops,
        .n_pressure_drops = saved->n_pressure_drops,
        .tokens = saved->tokens,
        .n_tokens = saved->n_tokens,
    };
}

sched_session *sched_session_for(const sched *s, const sched_request *r, sched_session *from_saved,
                                 bool *claims, const char **session_note)
{
    *claims = false;
    *session_note = NULL;
    if (r->session[0] == 0 && r->session[1] == 0) return NULL;
    sched_session *session = sched_idle_find(s, r->session);
    if (!session && r->saved) {
        *from_saved = session_of(r->saved);
        session = from_saved;
    }
    if (s->options.max_sessions == 0) *session_note = "ignored: sessions are off";
    else if (r->n > 1) *session_note = "ignored: n is above 1";
    else if (r->retrieval.block_tokens) *session_note = "ignored: the answer reads by retrieval";
    else if (input_of(r) < r->n_prompt) *session_note = "ignored: the method cuts the prompt";
    else if (sched_idle_is_claimed(s, r->session)) *session_note = "ignored: busy";
    else if (session) *session_note = why_not(s, session, r);
    if (session && !*session_note && !has_pages(session)) *session_note = why_not_saved(s, session);
    *claims = !*session_note;
    if (!*claims || !session) return NULL;
    if (session->n_turns == SCHED_MAX_TURNS)
        *session_note = "restarted: the session has had 64 turns";
    else if (outgrows(s, session, r))
        *session_note = "restarted: its positions would exceed the context";
    return session;
}

/* ---- an idle one goes ------------------------------------------------------------------------ */

static void session_free(sched *s, sched_session *session)
{
    sched_idle_release(s, session->owner);
    alloc_free(&s->alloc, session);
}

static void drop_session(sched *s, sched_session *session)
{
    if (session->swap) {
        sched_discard(s, session->swap);
        s->stats.swapped_tokens -= session->n_tokens;
    }
    if (session->parked) {
        sched_discard(s, session->parked);
        sched_remove_kept(s, session->n_tokens, session->kept);
    }
    sched_idle_remove(s, session);
    session_free(s, session);
    s->stats.sessions_expired++;
}

void sched_session_take(sched *s, sched_session *session, sched_entry *e)
{
    bool is_idle = has_pages(session);
    if (e->session_note) { /* the request begins another session */
        if (is_idle) drop_session(s, session);
        return;
    }
    sched_seq *q = e->seqs;
    memcpy(e->turns, session->turns, session->n_turns * sizeof *e->turns);
    memcpy(q->pressure_drops, session->pressure_drops,
           session->n_pressure_drops * sizeof *q->pressure_drops);
    q->n_pressure_drops = session->n_pressure_drops;
    q->selected = session->n_tokens;
    e->session_note = "continued";
    s->stats.sessions_continued++;
    if (!is_idle) { /* its tokens are computed again, or their blocks are found */
        s->stats.sessions_recalled++;
        return;
    }
    q->computed = session->n_tokens;
    q->parked = session->parked;
    q->swap = session->swap;
    sched_moves_to(s, q->parked, q);
    q->kept = session->kept;
    sched_idle_remove(s, session);
    session_free(s, session);
}

void sched_session_unclaim(sched *s, sched_entry *e)
{
    if (!e->claims) return;
    e->claims = false;
    sched_idle_unclaim(s, e);
}

void sched_session_forget(sched *s, const uint64_t key[2])
{
    if (s->options.max_sessions == 0) return;
    sched_session *session = sched_idle_find(s, key);
    sched_entry *e = sched_idle_claimant(s, key);
    if (session) drop_session(s, session);
    if (!e) return;
    e->seqs[0].stores = false; /* a request that claims a key has one choice */
    sched_session_unclaim(s, e);
    e->session_note = "ended: it was deleted";
}

/* ---- leaving one ----------------------------------------------------------------------------- */

/* How many of the sequence's turns, or of its pressure drops, lie within its computed tokens. A
 * choice may end while its tokens are computed again, before it is back where it was. */
static uint32_t turns_within(const sched_seq *q)
{
    uint32_t n = 1;
    while (n < q->entry->n_turns && q->entry->turns[n - 1].end < q->computed) n++;
    return n;
}

static uint32_t drops_within(const sched_seq *q)
{
    uint32_t n = q->n_pressure_drops;
    while (n > 0 && q->pressure_drops[n - 1] > q->computed) n--;
    return n;
}

static sched_session *session_create(sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    uint32_t n_turns = turns_within(q), n_drops = drops_within(q);
    size_t turns = n_turns * sizeof(sched_turn);
    size_t words = (size_t)n_drops + q->computed;
    char *at = alloc_zeroed(&s->alloc, 1, sizeof(sched_session) + turns + words * sizeof(uint32_t));
    if (!at) return NULL;
    sched_session *session = (sched_session *)at;
    sched_turn *to_turns = (sched_turn *)(session + 1);
    uint32_t *to_drops = (uint32_t *)(to_turns + n_turns);
    uint32_t *to_tokens = to_drops + n_drops;
    sched_owner *owner = sched_idle_owner(s, e->owner);
    if (!owner) {
        alloc_free(&s->alloc, at);
        return NULL;
    }
    *session = (sched_session){
        .key = {e->session[0], e->session[1]},
        .owner = owner,
        .salt = e->salt,
        .idle_us = s->now_us,
        .turns = to_turns,
        .pressure_drops = to_drops,
        .tokens = to_tokens,
        .n_turns = n_turns,
        .n_pressure_drops = n_drops,
        .n_tokens = q->computed,
        .kept = q->kept,
    };
    memcpy(to_turns, e->turns, turns);
    to_turns[n_turns - 1].end = q->computed;
    memcpy(to_drops, q->pressure_drops, n_drops * sizeof *to_drops);
    memcpy(to_tokens, q->tokens, q->computed * sizeof *to_tokens);
    return session;
}

void sched_session_tell(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    sched_turn turns[SCHED_MAX_TURNS + 1];
    uint32_t n_turns = turns_within(q);
    if (!s->options.on_session) return;
    memcpy(turns, e->turns, n_turns * sizeof *turns);
    turns[n_turns - 1].end = q->computed;
    sched_saved saved = {
        .key = {e->session[0], e->session[1]},
        .owner = e->owner,
        .salt = e->salt,
        .turns = turns,
        .n_turns = n_turns,
        .pressure_drops = q->pressure_drops,
        .n_pressure_drops = drops_within(q),
        .tokens = q->tokens,
        .n_tokens = q->computed,
    };
    s->options.on_session(s->options.on_session_ctx, &saved);
}

bool sched_session_store(sched *s, sched_seq *q)
{
    sched_session *session = session_create(s, q);
    if (!session) return false;
    session->swap = q->swap;
    session->parked = q->parked;
    q->swap = q->parked = 0;
    while (s->idle.n >= s->options.max_sessions ||
           (s->idle.n > 0 && s->idle.n_tokens + session->n_tokens > sched_idle_most_tokens(s)))
        drop_session(s, sched_idle_first_of_all(s));
    sched_idle_add(s, session);
    s->stats.sessions_stored++;
    return true;
}

/* ---- giving way ------------------------------------------------------------------------------ */

void sched_sessions_expire(sched *s)
{
    int64_t ttl_us = s->options.session_ttl_us;
    while (ttl_us > 0 && s->idle.oldest && s->now_us - s->idle.oldest->idle_us >= ttl_us)
        drop_session(s, s->idle.oldest);
}

/* Giving the parked pages up frees some, at once or together with others that hold them too. */
static bool can_free(const sched *s, uint32_t parked)
{
    return parked && pkv_parked_frees(s->kv, parked);
}

static bool frees_pages(const sched *s, const sched_session *session)
{
    return can_free(s, session->parked);
}

bool sched_parked_give_way(sched *s, const sched_seq *but)
{
    if (pkv_parked_alone(s->kv) == 0 || s->n_giving > 0 || sched_away_frees(s)) return false;
    sched_session *session = sched_idle_first_that(s, SCHED_IN_POOL, frees_pages);
    if (session) {
        if (!status_ok(sched_move_session(s, session))) drop_session(s, session);
        return true;
    }
    for (uint32_t i = s->waiting.n; i-- > 0;) {
        sched_seq *q = s->waiting.seqs[i];
        if (q == but || !can_free(s, q->parked)) continue;
        if (status_ok(sched_move_seq(s, q))) return true;
        sched_discard(s, q->parked);
        sched_remove_kept(s, q->computed, q->kept);
        q->parked = 0;
        q->computed = 0;
        q->kept = 0;
        return true;
    }
    return false;
}

bool sched_sessions_leave_tier(sched *s)
{
    sched_session *session = sched_idle_first(s, SCHED_IN_TIER);
    if (session) drop_session(s, session);
    return session != NULL;
}

void sched_sessions_destroy(sched *s)
{
    for (sched_session *session; (session = s->idle.oldest) != NULL;) {
        sched_idle_remove(s, session);
        session_free(s, session);
    }
    sched_idle_destroy(s);
}

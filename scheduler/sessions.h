/* Sessions: what requests continue and leave behind, and where idle ones are found (private to
 * scheduler/). */
#ifndef SCHEDULER_SESSIONS_H
#define SCHEDULER_SESSIONS_H

#include "scheduler/sched_internal.h"

/* ---- session.c ---- */
/* The session that a request continues, or NULL: an idle one, or *from_saved, which is filled from
 * what the request brings of it. *session_note tells why a session that the request
 * named is not continued. *claims: the request will store its pages under the key. With both a
 * session and *session_note, that session has reached its limit of turns, and the request begins
 * another in its place. */
sched_session *sched_session_for(const sched *s, const sched_request *r, sched_session *from_saved,
                                 bool *claims, const char **session_note);
/* Moves the session's pages to the request, unless it begins another session. An idle session is
 * gone afterwards. */
void sched_session_take(sched *s, sched_session *session, sched_entry *e);
void sched_session_unclaim(sched *s, sched_entry *e);
/* The session is gone, and a request that claims its key leaves none. */
void sched_session_forget(sched *s, const uint64_t key[2]);
/* Turns the pages of a sequence that ended, parked or in the tier, into an idle session. False when
 * that is impossible. */
bool sched_session_store(sched *s, sched_seq *q);
/* Tells the caller what to keep elsewhere of a session that the sequence leaves: before the end of
 * its choice is told, so before long tables are parked. */
void sched_session_tell(const sched *s, const sched_seq *q);
/* Pages are short: moves the parked pages of an idle session to the host tier, or forgets that
 * session: the longest idle one of the owner that has most. When there is none, does so with the
 * parked pages of a waiting sequence other than `but`. Pages that open sequences hold too stay
 * parked, since giving them up frees nothing. False when no parked page can be freed. */
bool sched_parked_give_way(sched *s, const sched_seq *but);
/* Host pages are short: forgets a session in the tier, chosen likewise. */
bool sched_sessions_leave_tier(sched *s);
void sched_sessions_expire(sched *s);
void sched_sessions_destroy(sched *s);

/* ---- idle.c: where sessions are found ---- */
/* False when memory is out. */
bool sched_idle_create(sched *s);
/* Frees the tables; no session is left. */
void sched_idle_destroy(sched *s);
sched_session *sched_idle_find(const sched *s, const uint64_t key[2]);
/* Known tokens that idle sessions may have together: as many as max_sessions of the context's
 * length, or one session of the greatest logical length. */
uint64_t sched_idle_most_tokens(const sched *s);
/* Lists a session that has its key, its owner and its pages; takes it off all lists. */
void sched_idle_add(sched *s, sched_session *session);
void sched_idle_remove(sched *s, sched_session *session);
/* The pages of a listed session have moved to the host tier. */
void sched_idle_to_tier(sched *s, sched_session *session, uint32_t swap);
/* Counts one more session of this owner, NULL when memory is out; and one less. */
sched_owner *sched_idle_owner(sched *s, uint64_t id);
void sched_idle_release(sched *s, sched_owner *o);
/* The session that makes room: the longest idle one of the owner that has most, of those in one
 * place, of all, or of those in one place that `can_go` accepts. NULL when there is none. */
sched_session *sched_idle_first(const sched *s, sched_place place);
sched_session *sched_idle_first_of_all(const sched *s);
sched_session *sched_idle_first_that(const sched *s, sched_place place,
                                     bool (*can_go)(const sched *s, const sched_session *session));
/* Keys that live requests claim. */
bool sched_idle_is_claimed(const sched *s, const uint64_t key[2]);
sched_entry *sched_idle_claimant(const sched *s, const uint64_t key[2]); // NULL: none
void sched_idle_claim(sched *s, sched_entry *e);
void sched_idle_unclaim(sched *s, sched_entry *e);
const char *sched_idle_check(const sched *s);

#endif

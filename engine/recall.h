/* recall: sessions on disk (private to engine/). A turn that ends well leaves a record of its
 * session, from which a later turn makes the session again when memory has it no more. */
#ifndef ENGINE_RECALL_H
#define ENGINE_RECALL_H

#include "engine/engine.h"

/* The record of a request's session (engine_options.sessions). All zero where there is none. */
typedef struct recalled_session {
    sched_saved saved;
    uint8_t *bytes;    /* what it was read from, where drops and tokens are */
    sched_turn *turns; /* [saved.n_turns] */
    uint64_t version;  /* of the record; 0 = there is none */
} recalled_session;

/* sched_options.on_session: writes the session to disk. */
void session_keep(void *engine, const sched_saved *saved);
/* Fills s->recalled from disk and gives it to s->sched_request; nothing if there is none. */
void session_recall(engine *e, engine_stream *s);
/* Recalls again what was put or removed since, nothing of a session that this turn forgets. Engine
 * thread. */
void session_refresh(engine *e, engine_stream *s);
void session_release(engine_stream *s);
/* After sched_step: deletes what is kept of the sessions that it has forgotten. */
void session_delete_forgotten(engine *e);
/* Whether what the request's session left has been written, or never will be. */
bool session_is_kept(const engine *e, const engine_stream *s);
/* Calls inbox_put_written for each session that has been written; ends that. */
void session_watch(engine *e);
void session_unwatch(engine *e);
/* A digest of every field, equal in every process. */
uint64_t session_policy_digest(const retention_policy *policy);
/* The bytes of a session, and back: false where they are not those of a session, or are those of
 * tokens that are not below `vocab_size`. */
bool session_encode(const sched_saved *saved, strbuf *out);
bool session_decode(const uint8_t *bytes, size_t n, uint32_t vocab_size, recalled_session *out);

#endif

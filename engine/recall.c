/* Sessions on disk: the bytes of one, and when they are written and read. A turn that ends well
 * replaces what was kept, so a turn that is aborted leaves the session as it was before. Prepare
 * threads read files, the engine thread only what was put since. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* Every field of a policy but `preset`, which is kept by its name. */
/* clang-format off */
#define POLICY_FIELDS(X) \
    X(score) X(variant) X(unit) X(chunk) X(scope) X(allocator) X(beta) X(floor) X(pool) \
    X(kernel) X(schedule) X(interval) X(recurrent_chunk) X(contiguous) X(ratio) X(tokens) \
    X(sinks) X(window) X(bias) X(theta) X(window_half) X(rows) X(reuse_layers) X(growth) \
    X(decode_score) X(decode_unit) X(decode_scope) X(beta1) X(beta2) X(horizon) X(pressure) \
    X(gather_tokens) X(gather_window) X(query_tokens) X(exit_layer) X(report_positions) X(page_tokens)
/* clang-format on */

_Static_assert(sizeof(retention_policy) == 160, "POLICY_FIELDS has every field of a policy");

#define FIELD_NAME(field)  #field " "
#define FIELD_BYTES(field) +sizeof((retention_policy *)0)->field
#define FIELD_OUT(field)   at = put(at, &p->field, sizeof p->field);
#define FIELD_IN(field)    at = get(at, &p->field, sizeof p->field);

enum {
    NAME_BYTES = 32, // of a preset
    POLICY_BYTES = NAME_BYTES POLICY_FIELDS(FIELD_BYTES),
    TURN_BYTES = 2 * sizeof(uint32_t) + (POLICY_BYTES + 7) / 8 * 8,
};

typedef struct session_head {
    uint64_t layout; // a hash of the fields' names and of their sizes
    uint64_t salt;
    uint32_t n_turns, n_pressure_drops, n_tokens, unused;
} session_head;

static uint64_t layout_of(void)
{
    static const char names[] = POLICY_FIELDS(FIELD_NAME);
    return hash_bytes(names, sizeof names, TURN_BYTES);
}

/* ---- to bytes and back ----------------------------------------------------------------------- */

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
    memcpy(to, from, n);
    return to + n;
}

static const uint8_t *get(const uint8_t *from, void *to, size_t n)
{
    memcpy(to, from, n);
    return from + n;
}

static void put_turn(uint8_t *at, const sched_turn *turn)
{
    const retention_policy *p = &turn->policy;
    char name[NAME_BYTES] = "";
    if (p->preset) memcpy(name, p->preset->name, strnlen(p->preset->name, NAME_BYTES - 1));
    at = put(at, &turn->n_prompt, sizeof turn->n_prompt);
    at = put(at, &turn->end, sizeof turn->end);
    at = put(at, name, sizeof name);
    POLICY_FIELDS(FIELD_OUT)
}

uint64_t session_policy_digest(const retention_policy *policy)
{
    uint8_t bytes[TURN_BYTES] = {0};
    put_turn(bytes, &(sched_turn){.policy = *policy});
    return hash_bytes(bytes, sizeof bytes, layout_of());
}

static bool get_turn(const uint8_t *at, sched_turn *turn)
{
    retention_policy *p = &turn->policy;
    char name[NAME_BYTES];
    *turn = (sched_turn){.n_prompt = 0};
    at = get(at, &turn->n_prompt, sizeof turn->n_prompt);
    at = get(at, &turn->end, sizeof turn->end);
    at = get(at, name, sizeof name);
    name[NAME_BYTES - 1] = '\0';
    POLICY_FIELDS(FIELD_IN)
    p->preset = retention_find(name);
    return p->preset != NULL;
}

bool session_encode(const sched_saved *saved, strbuf *out)
{
    const session_head head = {.layout = layout_of(),
                               .salt = saved->salt,
                               .n_turns = saved->n_turns,
                               .n_pressure_drops = saved->n_pressure_drops,
                               .n_tokens = saved->n_tokens};
    strbuf_append(out, &head, sizeof head);
    for (uint32_t i = 0; i < saved->n_turns; i++) {
        uint8_t turn[TURN_BYTES] = {0};
        put_turn(turn, &saved->turns[i]);
        strbuf_append(out, turn, sizeof turn);
    }
    strbuf_append(out, saved->pressure_drops,
                  saved->n_pressure_drops * sizeof *saved->pressure_drops);
    strbuf_append(out, saved->tokens, saved->n_tokens * sizeof *saved->tokens);
    return !out->failed;
}

/* Whether turns follow each other up to the session's end. */
static bool turns_fit(const sched_turn *turns, const session_head *head)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < head->n_turns; from = turns[i++].end)
        if (turns[i].n_prompt <= from || turns[i].end < turns[i].n_prompt) return false;
    return from == head->n_tokens;
}

static bool numbers_fit(const sched_saved *saved, uint32_t vocab_size)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < saved->n_pressure_drops; last = saved->pressure_drops[i++])
        if (saved->pressure_drops[i] <= last || saved->pressure_drops[i] > saved->n_tokens)
            return false;
    for (uint32_t i = 0; i < saved->n_tokens; i++)
        if (saved->tokens[i] >= vocab_size) return false;
    return true;
}

bool session_decode(const uint8_t *bytes, size_t n, uint32_t vocab_size, recalled_session *out)
{
    session_head head;
    if (n < sizeof head) return false;
    memcpy(&head, bytes, sizeof head);
    if (head.layout != layout_of() || head.n_turns == 0 || head.n_turns > SCHED_MAX_TURNS)
        return false;
    uint64_t words = (uint64_t)head.n_pressure_drops + head.n_tokens;
    uint64_t at = sizeof head + (uint64_t)head.n_turns * TURN_BYTES;
    if (n != at + words * sizeof(uint32_t)) return false;
    sched_turn *turns = alloc_zeroed(NULL, head.n_turns, sizeof *turns);
    bool good = turns != NULL;
    for (uint32_t i = 0; good && i < head.n_turns; i++)
        good = get_turn(bytes + sizeof head + (size_t)i * TURN_BYTES, &turns[i]);
    const uint32_t *drops = (const uint32_t *)(const void *)(bytes + at);
    const sched_saved saved = {.salt = head.salt,
                               .turns = turns,
                               .n_turns = head.n_turns,
                               .pressure_drops = drops,
                               .n_pressure_drops = head.n_pressure_drops,
                               .tokens = drops + head.n_pressure_drops,
                               .n_tokens = head.n_tokens};
    good = good && turns_fit(turns, &head) && numbers_fit(&saved, vocab_size);
    if (!good) {
        free(turns);
        return false;
    }
    out->saved = saved;
    out->turns = turns;
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

static disk_key key_of(const uint64_t session[2])
{
    disk_key key;
    _Static_assert(sizeof key == 2 * sizeof *session, "a session's key is that of its record");
    memcpy(&key, session, sizeof key);
    return key;
}

/* Where memory is out, the session is kept as it was before. */
void session_keep(void *ctx, const sched_saved *saved)
{
    engine *e = ctx;
    strbuf bytes = {0};
    disk_key key = key_of(saved->key);
    if (session_encode(saved, &bytes))
        disk_record_put(e->o.sessions, &key, saved->owner, bytes.data, bytes.size);
    strbuf_destroy(&bytes);
}

/* Not before sched_step, which may have stored the session once more. */
void session_delete_forgotten(engine *e)
{
    for (size_t i = 0; e->o.sessions && i < e->n_events; i++) {
        disk_key key = key_of(e->events[i].session);
        if (e->events[i].kind == SCHED_FORGET) disk_record_remove(e->o.sessions, &key);
    }
}

static void on_written(void *ctx) { inbox_put_written(ctx); }

void session_watch(engine *e)
{
    if (e->o.sessions) disk_records_on_written(e->o.sessions, on_written, e);
}

void session_unwatch(engine *e)
{
    if (e->o.sessions) disk_records_on_written(e->o.sessions, NULL, NULL);
}

bool session_is_kept(const engine *e, const engine_stream *s)
{
    if (!e->o.sessions || !s->request.session || s->reform) return true;
    disk_key key = key_of(s->sched_request.session);
    return !disk_record_waits(e->o.sessions, &key);
}

/* ---- reading --------------------------------------------------------------------------------- */

void session_release(engine_stream *s)
{
    free(s->recalled.bytes);
    free(s->recalled.turns);
    s->recalled = (recalled_session){.version = 0};
    s->sched_request.saved = NULL;
}

/* A record that is whole but cannot be read was written by another version. */
void session_recall(engine *e, engine_stream *s)
{
    if (!e->o.sessions || !s->request.session) return;
    recalled_session *r = &s->recalled;
    disk_key key = key_of(s->sched_request.session);
    size_t n = 0;
    session_release(s);
    r->bytes = disk_record_get(e->o.sessions, &key, &n, &r->version);
    if (!r->bytes) return;
    if (!session_decode(r->bytes, n, e->info.vocab_size, r)) return;
    memcpy(r->saved.key, s->sched_request.session, sizeof r->saved.key);
    r->saved.owner = s->sched_request.owner;
    s->sched_request.saved = &r->saved;
}

/* Whether the session is forgotten in the turn that admits the stream. Its record is deleted at the
 * turn's end. */
static bool is_forgotten_now(const engine *e, const engine_stream *s)
{
    const uint64_t *key = s->sched_request.session;
    for (size_t i = 0; i < e->n_events; i++) {
        const sched_event *event = &e->events[i];
        if (event->kind == SCHED_FORGET && memcmp(event->session, key, 2 * sizeof *key) == 0)
            return true;
    }
    return false;
}

void session_refresh(engine *e, engine_stream *s)
{
    if (!e->o.sessions || !s->request.session) return;
    if (is_forgotten_now(e, s)) {
        session_release(s);
        return;
    }
    disk_key key = key_of(s->sched_request.session);
    if (disk_record_version(e->o.sessions, &key) != s->recalled.version) session_recall(e, s);
}

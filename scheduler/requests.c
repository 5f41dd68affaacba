/* Memory of requests, the map of their ids, the two lists and the slots. */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

int sched_seq_compare(const sched_seq *a, const sched_seq *b)
{
    const sched_entry *x = a->entry, *y = b->entry;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->arrival != y->arrival) return x->arrival < y->arrival ? -1 : 1;
    if (x->serial != y->serial) return x->serial < y->serial ? -1 : 1;
    return a->choice < b->choice ? -1 : a->choice > b->choice;
}

bool sched_seq_is_idle(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    if (seq_known(q) == e->n_prompt + e->max_new_tokens) return true;
    if (e->n_embeds && seq_from(q) == e->n_prompt) return true;
    if (!seq_is_parent(q)) return q->paused || q->ended;
    for (uint32_t i = 0; i < e->n; i++) {
        if (!e->seqs[i].ended && !e->seqs[i].paused) return false;
    }
    return true;
}

/* ---- the map: open addressing, linear probing ------------------------------------------------ */

static uint32_t map_home(const sched *s, uint64_t id)
{
    return (uint32_t)hash_mix64(id + 0x9e3779b97f4a7c15ull) & s->map_mask;
}

/* The index where the id is, or where it would go. */
static uint32_t map_slot(const sched *s, uint64_t id)
{
    uint32_t i = map_home(s, id);
    while (s->map[i] && s->map[i]->id != id) i = (i + 1) & s->map_mask;
    return i;
}

static void map_remove(sched *s, const sched_entry *e)
{
    uint32_t hole = map_slot(s, e->id);
    if (s->map[hole] != e) return; /* a new request of that id has taken its place */
    s->map[hole] = NULL;
    s->n_mapped--;
    for (uint32_t i = (hole + 1) & s->map_mask; s->map[i]; i = (i + 1) & s->map_mask) {
        uint32_t home = map_home(s, s->map[i]->id);
        if (((i - home) & s->map_mask) < ((i - hole) & s->map_mask)) continue;
        s->map[hole] = s->map[i]; /* its probe sequence passes the hole */
        s->map[i] = NULL;
        hole = i;
    }
}

sched_entry *sched_entry_find(const sched *s, uint64_t id) { return s->map[map_slot(s, id)]; }

/* ---- memory: one block for each request ------------------------------------------------------ */

static size_t padded(size_t n, size_t size) { return (n * size + 15) & ~(size_t)15; }

/* The most pressure drops: they come a page of tokens apart, and those of the session count. */
static uint32_t max_pressure_drops_of(const sched *s, const sched_request *r,
                                      const sched_session *session)
{
    uint32_t known = session ? session->n_pressure_drops : 0;
    if (!s->pressure.preset || !r->policy.pressure) return known;
    return known + (input_of(r) + r->max_new_tokens) / s->page_tokens + 1;
}

/* Bytes that a request needs over its life, so that nothing is allocated after it was taken in. */
static size_t bytes_of(const sched_request *r, uint32_t n_turns, uint32_t max_pressure_drops)
{
    size_t n = r->n, tokens = (size_t)input_of(r) + r->max_new_tokens;
    size_t novelty = retention_wants_novelty(&r->policy) ? n * input_of(r) : 0;
    return padded(1, sizeof(sched_entry)) + padded(n, sizeof(sched_seq)) +
           padded(n_turns, sizeof(sched_turn)) + padded(n * max_pressure_drops, sizeof(uint32_t)) +
           padded(n * tokens, sizeof(uint32_t)) + padded(novelty, sizeof(float)) +
           padded(r->params.n_stop_ids, sizeof(uint32_t)) +
           padded(r->params.n_bias, sizeof(uint32_t)) + padded(r->params.n_bias, sizeof(float));
}

/* Grows the buffer without keeping its content. */
static bool scratch_grow(const sched *s, void **scratch, size_t *n, size_t need, size_t size)
{
    if (need <= *n) return true;
    void *grown = alloc_resize(&s->alloc, NULL, need, size);
    if (!grown) return false;
    alloc_free(&s->alloc, *scratch);
    *scratch = grown;
    *n = need;
    return true;
}

/* Makes room for the selections of a request. No table is ever longer than the pool, or than the
 * context. */
static bool scratch_reserve(sched *s, const sched_request *r, const sched_turn *turn)
{
    uint32_t slots = turn->n_prompt + r->max_new_tokens - 1;
    bool selects = retention_next_point(&turn->policy, turn->n_prompt, 0) <= slots;
    if (!selects && !(s->pressure.preset && r->policy.pressure)) return true;
    uint64_t most = (uint64_t)(s->options.n_pages - 1) * s->page_tokens;
    if (most > s->options.max_model_len) most = s->options.max_model_len;
    if (slots > most) slots = (uint32_t)most;
    void *keep = s->keep, *scratch = s->scratch;
    bool ok =
        scratch_grow(s, &keep, &s->n_keep, (size_t)s->groups * (slots / 64 + 1), sizeof *s->keep) &&
        scratch_grow(s, &scratch, &s->n_scratch,
                     retention_scratch_floats(&s->options.geometry, slots), sizeof *s->scratch);
    s->keep = keep;
    s->scratch = scratch;
    return ok;
}

static void *carve_array(char **at, size_t n, size_t size)
{
    void *p = *at;
    *at += padded(n, size);
    return p;
}

static const void *carve_copy(char **at, const void *from, size_t n, size_t size)
{
    void *to = carve_array(at, n, size);
    if (n > 0) memcpy(to, from, n * size);
    return to;
}

static void carve_seqs(sched_entry *e, char **at)
{
    size_t n = e->n, n_tokens = (size_t)e->n_prompt + e->max_new_tokens;
    e->seqs = carve_array(at, n, sizeof *e->seqs);
    uint32_t *pressure_drops = carve_array(at, n * e->max_pressure_drops, sizeof *pressure_drops);
    uint32_t *tokens = carve_array(at, n * n_tokens, sizeof *tokens);
    bool novel = retention_wants_novelty(&e->turns[e->n_turns - 1].policy);
    size_t n_novelty = novel ? n * e->n_prompt : 0;
    float *novelty = carve_array(at, n_novelty, sizeof *novelty);
    memset(novelty, 0, n_novelty * sizeof *novelty);
    for (uint32_t i = 0; i < e->n; i++) {
        e->seqs[i] = (sched_seq){
            .entry = e,
            .choice = i,
            .tokens = tokens + i * n_tokens,
            .novelty = novel ? novelty + (size_t)i * e->n_prompt : NULL,
            .pressure_drops = pressure_drops + (size_t)i * e->max_pressure_drops,
        };
    }
}

static void carve_params(sched_entry *e, char **at)
{
    sample_params *p = &e->params;
    p->stop_ids = carve_copy(at, p->stop_ids, p->n_stop_ids, sizeof *p->stop_ids);
    p->bias_ids = carve_copy(at, p->bias_ids, p->n_bias, sizeof *p->bias_ids);
    p->bias = carve_copy(at, p->bias, p->n_bias, sizeof *p->bias);
}

static bool params_have_penalties(const sample_params *p)
{
    return p->presence_penalty != 0 || p->frequency_penalty != 0 || p->repetition_penalty != 1;
}

/* Makes room in the waiting list for every choice of every live request. */
static bool waiting_reserve(sched *s, uint64_t n)
{
    if (n <= s->waiting.capacity) return true;
    if (n > UINT32_MAX / 2) return false;
    uint32_t capacity = (uint32_t)n * 2;
    sched_seq **seqs = alloc_resize(&s->alloc, s->waiting.seqs, capacity, sizeof *s->waiting.seqs);
    if (!seqs) return false;
    s->waiting.seqs = seqs;
    s->waiting.capacity = capacity;
    return true;
}

uint64_t sched_salt_of(const sched *s, const sched_request *r)
{
    return hash_mix64(r->salt + 0x9e3779b97f4a7c15ull) ^ s->options.salt;
}

/* The order of arrival is kept where it bounds how often a request is passed. Tokenizer threads
 * take short prompts first, so some may have arrived later than the request. */
static void link_arrival(sched *s, sched_entry *e)
{
    if (s->options.policy != SCHED_PRIORITY) return;
    e->earlier = s->latest;
    while (e->earlier && sched_arrived_before(e, e->earlier)) e->earlier = e->earlier->earlier;
    e->later = e->earlier ? e->earlier->later : s->earliest;
    *(e->earlier ? &e->earlier->later : &s->earliest) = e;
    *(e->later ? &e->later->earlier : &s->latest) = e;
}

static void unlink_arrival(sched *s, const sched_entry *e)
{
    if (s->options.policy != SCHED_PRIORITY) return;
    *(e->earlier ? &e->earlier->later : &s->earliest) = e->later;
    *(e->later ? &e->later->earlier : &s->latest) = e->earlier;
}

sched_entry *sched_entry_create(sched *s, const sched_request *r, int64_t now_us)
{
    sched_entry *old = sched_entry_find(s, r->id);
    assert(!old || old->live == 0);
    if (old) map_remove(s, old);
    if (s->n_live == s->options.max_requests || s->n_mapped > s->map_mask / 2) return NULL;
    if (!waiting_reserve(s, s->n_choices + r->n)) return NULL;
    sched_turn turn = sched_turn_of(r);
    bool claims;
    const char *session_note;
    sched_session from_saved,
        *session = sched_session_for(s, r, &from_saved, &claims, &session_note);
    const sched_session *before = session_note ? NULL : session;
    uint32_t n_turns = before ? before->n_turns + 1 : 1;
    uint32_t max_pressure_drops = max_pressure_drops_of(s, r, before);
    if (!scratch_reserve(s, r, &turn)) return NULL;
    if (!sched_notes_reserve(s)) return NULL;
    /* Not zeroed: memory for an answer that may never grow so long stays untouched. */
    char *at = alloc_resize(&s->alloc, NULL, bytes_of(r, n_turns, max_pressure_drops), 1);
    if (!at) return NULL;
    sched_entry *e = carve_array(&at, 1, sizeof *e);
    *e = (sched_entry){
        .id = r->id,
        .rank = s->options.policy == SCHED_PRIORITY ? r->priority : 0,
        .arrival = r->arrival,
        .serial = s->n_arrived++,
        .arrival_us = now_us,
        .first_planned_us = -1,
        .salt = sched_salt_of(s, r),
        .hidden = r->hidden,
        .masked = r->masked,
        .hands_over = r->hands_over,
        .n_prompt = turn.n_prompt,
        .cut = r->n_prompt - turn.n_prompt,
        .max_new_tokens = r->max_new_tokens,
        .n = r->n,
        .max_pressure_drops = max_pressure_drops,
        .live = r->n,
        .want_logits = r->want_logits || r->want_scores,
        .want_scores = r->want_scores,
        .pooling = r->pooling,
        .embeds = r->embeds,
        .n_embeds = r->n_embeds,
        .n_layers = r->n_layers,
        .has_penalties = params_have_penalties(&r->params),
        .params = r->params,
        .n_turns = n_turns,
        .has_sums = retention_has_sums(&turn.policy),
        .retrieval = r->retrieval,
        .note_bytes = sched_note_bytes(s, &r->retrieval, turn.n_prompt, r->max_new_tokens, r->n),
        .session = {r->session[0], r->session[1]},
        .owner = r->owner,
        .claims = claims,
        .session_note = session_note,
    };
    e->turns = carve_array(&at, n_turns, sizeof *e->turns);
    e->turns[n_turns - 1] = turn;
    carve_seqs(e, &at);
    carve_params(e, &at);
    retention_cut(&turn.policy, r->prompt, r->n_prompt, e->seqs[0].tokens);
    e->seqs[0].n_tokens = e->n_prompt;
    e->seqs[0].budget_raised = retention_cut_raises(&turn.policy, r->n_prompt);
    e->handed = sched_handed_for(s, r, e);
    s->stats.sessions_ignored += session_note && !claims;
    if (session) sched_session_take(s, session, e);
    if (claims) sched_idle_claim(s, e);
    e->n_positions = sched_positions_of(s, e->turns, e->n_turns, rows_of(e) + 1);

    s->map[map_slot(s, r->id)] = e;
    s->n_mapped++;
    link_arrival(s, e);
    s->n_live++;
    s->n_choices += r->n;
    return e;
}

static void entry_destroy(sched *s, sched_entry *e)
{
    for (uint32_t i = 0; i < e->n; i++) free(e->seqs[i].final.report.kept_json);
    sched_note_end(s, e);
    sched_watch_end(s, e);
    alloc_free(&s->alloc, e->masses);
    alloc_free(&s->alloc, e);
}

void sched_entries_forget(sched *s)
{
    sched_entry **link = &s->ended;
    while (*link) {
        sched_entry *e = *link;
        map_remove(s, e);
        if (e->n_running > 0 || e->listed > 0) { /* it is still in a step in flight */
            link = &e->next_ended;
            continue;
        }
        *link = e->next_ended;
        entry_destroy(s, e);
    }
}

void sched_entries_destroy(sched *s)
{
    for (sched_entry *e = s->ended, *next; e; e = next) {
        next = e->next_ended;
        map_remove(s, e);
        entry_destroy(s, e);
    }
    for (uint32_t i = 0; s->map && i <= s->map_mask; i++) {
        if (s->map[i]) entry_destroy(s, s->map[i]);
    }
}

/* ---- lists and slots ------------------------------------------------------------------------- */

/* The first index whose sequence does not rank before q. */
static uint32_t list_place(const sched_list *l, const sched_seq *q)
{
    uint32_t low = 0, high = l->n;
    /* Most sequences that arrive rank last. */
    if (high > 0 && sched_seq_compare(l->seqs[high - 1], q) < 0) return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sched_seq_compare(l->seqs[middle], q) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

void sched_list_insert(sched_list *l, sched_seq *q)
{
    assert(l->n < l->capacity);
    uint32_t at = list_place(l, q);
    memmove(l->seqs + at + 1, l->seqs + at, (l->n - at) * sizeof *l->seqs);
    l->seqs[at] = q;
    l->n++;
}

void sched_list_remove(sched_list *l, sched_seq *q)
{
    uint32_t at = list_place(l, q);
    assert(at < l->n && l->seqs[at] == q);
    l->n--;
    memmove(l->seqs + at, l->seqs + at + 1, (l->n - at) * sizeof *l->seqs);
}

void sched_seq_start(sched *s, sched_seq *q)
{
    assert(s->n_free_slots > 0);
    q->slot = s->free_slots[--s->n_free_slots];
    q->state = SEQ_RUNNING;
    q->needs_open = true;
    q->counts_from = 0;
    q->entry->n_running++;
    sched_note_take(s, q->entry);
    sched_list_insert(&s->running, q);
}

void sched_seq_stop(sched *s, sched_seq *q, seq_state state)
{
    assert(!q->arriving && q->hit_to == 0);
    if (pkv_seq_is_open(s->kv, q->slot)) sched_close_tables(s, q);
    s->free_slots[s->n_free_slots++] = q->slot;
    q->entry->n_running--;
    q->needs_open = false;
    sched_list_remove(&s->running, q);
    q->state = state;
}

static sched_list *list_of(sched *s, const sched_seq *q)
{
    return q->state == SEQ_RUNNING ? &s->running : q->state == SEQ_WAITING ? &s->waiting : NULL;
}

/* The sequences leave their lists while their rank changes, because the lists are sorted by it. */
void sched_entry_age(sched *s, sched_entry *e)
{
    for (uint32_t i = 0; i < e->n; i++) {
        sched_list *l = list_of(s, &e->seqs[i]);
        if (l) sched_list_remove(l, &e->seqs[i]);
    }
    e->rank = SCHED_AGED;
    for (uint32_t i = 0; i < e->n; i++) {
        sched_list *l = list_of(s, &e->seqs[i]);
        if (l) sched_list_insert(l, &e->seqs[i]);
    }
}

/* ---- END, PAUSE, RESUME ---------------------------------------------------------------------- */

/* Gives up the pages of a waiting sequence, in the host tier or parked. */
static void give_up_pages(sched *s, sched_seq *q)
{
    if (q->swap) {
        sched_discard(s, q->swap);
        sched_left_tier(s, q);
    }
    if (q->parked) {
        sched_discard(s, q->parked);
        sched_remove_kept(s, q->computed, q->kept);
    }
    q->parked = 0;
    q->kept = 0;
}

/* The sequence's pages become a session: at once, or with the result of the step in flight. */
static void leave_session(sched *s, sched_seq *q)
{
    sched_entry *e = q->entry;
    if (!e->forked || q->computed == 0) return;
    if (q->arriving || (q->leaving && q->way == PKV_GIVE_UP)) return;
    if (q->state == SEQ_RUNNING) q->stores = true;
    else if (!q->swap || !sched_session_store(s, q)) return;
    else sched_session_tell(s, q);
    if (!e->session_note) e->session_note = "stored";
}

static void end_choice(sched *s, sched_seq *q, bool finished)
{
    if (q->ended) return;
    sched_entry *e = q->entry;
    /* A session has what is kept. Without one, a choice that ends before its selection, which is
     * long, has no use for it, and reports that it kept everything. */
    if (finished && (e->claims || e->hands_over)) sched_select_settle(s, e->forked ? q : e->seqs);
    sched_seq *runner = e->forked ? q : e->seqs; /* has list place and pages for q */
    finished = finished && !runner->selecting && !runner->loading;
    bool is_last = e->forked || e->live == 1;
    bool whole = !is_last || sched_forget_ahead(s, runner);
    sched_describe_seq(s, q, &q->final);
    q->final.arriving = false;
    if (finished && e->claims && whole) leave_session(s, q);
    if (finished && whole) sched_promise_export(s, q);
    sched_describe_session(e, &q->final);
    q->ended = true;
    e->live--;
    if (seq_is_over(runner)) sched_select_drop(s, runner);
    if (seq_is_over(runner)) sched_load_drop(s, runner);
    if (seq_is_over(runner) && runner->state == SEQ_WAITING) {
        give_up_pages(s, runner);
        sched_list_remove(&s->waiting, runner);
        runner->state = SEQ_GONE;
    }
    s->has_ended |= seq_is_over(runner) && runner->state == SEQ_RUNNING;
    if (e->live > 0) return;
    if (!q->stores) sched_session_unclaim(s, e);
    unlink_arrival(s, e);
    s->n_live--;
    s->n_choices -= e->n;
    e->next_ended = s->ended;
    s->ended = e;
}

void sched_entry_end(sched *s, sched_entry *e, uint32_t choice, bool finished)
{
    for (uint32_t i = 0; i < e->n; i++) {
        if (choice == SCHED_ALL_CHOICES || choice == i) end_choice(s, &e->seqs[i], finished);
    }
}

void sched_entry_pause(sched_entry *e, uint32_t choice, bool paused, int64_t now_us)
{
    for (uint32_t i = 0; i < e->n; i++) {
        sched_seq *q = &e->seqs[i];
        if (choice != SCHED_ALL_CHOICES && choice != i) continue;
        if (paused && !q->paused) q->paused_us = now_us;
        q->paused = paused;
    }
}

/* The sequence's tables are closed. */
static void reap_seq(sched *s, sched_seq *q)
{
    sched_entry *e = q->entry;
    bool has_pages = q->parked || q->swap;
    if (q->stores && !(has_pages && sched_session_store(s, q))) {
        e->session_note = NULL;
        sched_describe_session(e, &q->final);
    }
    if (q->handing) sched_hand_over(s, q);
    give_up_pages(s, q);
    if (e->claims) sched_session_unclaim(s, e);
    sched_seq_stop(s, q, SEQ_GONE);
}

/* Tells of the session that the sequence leaves, once. */
static void tell_session(sched *s, sched_seq *q)
{
    if (q->stores && !q->told) sched_session_tell(s, q);
    q->told = q->stores;
}

void sched_reap(sched *s)
{
    bool is_left = false;
    for (uint32_t i = s->running.n; s->has_ended && i-- > 0;) {
        sched_seq *q = s->running.seqs[i];
        if (!seq_is_over(q) || q->selecting) continue;
        if (q->listed > 0) {
            s->ended_listed = true;
            continue;
        }
        tell_session(s, q);
        if (sched_leave_waits(s, q)) {
            is_left = true;
            continue;
        }
        (void)sched_leave(s, q, q->stores || q->handing ? PKV_PARK : PKV_GIVE_UP);
        is_left |= q->leaving;
        if (!q->leaving) reap_seq(s, q);
    }
    s->has_ended = is_left;
}

void sched_reap_session(sched *s, const uint64_t key[2])
{
    if (s->options.max_sessions == 0) return;
    sched_entry *e = sched_idle_claimant(s, key);
    sched_seq *q = e && e->live == 0 ? e->seqs : NULL; /* it has one choice */
    if (!q || q->state != SEQ_RUNNING || q->listed > 0 || q->selecting) return;
    if (!q->stores && !q->leaving) return;
    tell_session(s, q);
    sched_leave_all(s, q, q->stores ? PKV_PARK : PKV_GIVE_UP);
    reap_seq(s, q);
}

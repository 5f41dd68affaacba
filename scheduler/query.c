/* Answers to questions about requests and the scheduler: reports, progress, maps, numbers, and a
 * check of its own invariants. None changes what is planned. */
#include "scheduler/fits.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"

void sched_describe_seq(const sched *s, const sched_seq *q, sched_choice_info *out)
{
    const sched_entry *e = q->entry;
    const sched_seq *line = e->forked ? q : e->seqs; /* the choice's sequence */
    bool has_tables = line->state == SEQ_RUNNING;
    uint32_t rows = line->n_tokens > e->n_prompt ? line->n_tokens - 1 : e->n_prompt;
    *out = (sched_choice_info){
        .prompt_tokens = e->n_prompt + e->cut,
        .output_tokens = line->n_tokens - e->n_prompt,
        .cached_tokens = e->cached_tokens,
        .preemptions = line->preemptions,
        .report.method = policy_of(e)->preset->name,
        .report.fields = retention_fields_of(policy_of(e)),
        .report.logical_tokens = (has_tables ? pkv_seq_length(s->kv, line->slot) : rows) + e->cut,
        .report.kept_tokens = sched_kept_tokens(s, line),
        .report.pages_dropped = line->pages_dropped,
        .report.budget_raised = line->budget_raised,
        .report.scoring_ms = (double)line->scoring_us / 1e3,
        .inherited_pages = line == q ? q->inherited_pages : line->pages_dropped,
        .inherited_us = line == q ? q->inherited_us : line->scoring_us,
        .reading = line->reading,
        .selecting = line->selecting != NULL,
        .loading = line->loading != NULL,
        .arriving = line->arriving || line->hit_to > 0,
        .queued_us = e->first_planned_us < 0 ? -1 : e->first_planned_us - e->arrival_us,
    };
    sched_describe_session(e, out);
    if (!has_tables || !policy_of(e)->report_positions) return;
    strbuf json = {0};
    retention_kept_json(s->kv, line->slot, policy_of(e)->sinks, e->cut, &json);
    out->lacks_kept = json.failed;
    if (json.failed) strbuf_destroy(&json);
    else out->report.kept_json = json.data;
}

void sched_describe_session(const sched_entry *e, sched_choice_info *out)
{
    char *text = out->report.session;
    size_t n = e->session_note ? strlen(e->session_note) : 0;
    assert(n < sizeof out->report.session);
    if (n > 0) memcpy(text, e->session_note, n);
    text[n] = '\0';
}

bool sched_prompt_progress(const sched *s, uint64_t request, uint32_t *computed, uint32_t *n_prompt)
{
    const sched_entry *e = sched_entry_find(s, request);
    if (!e || e->forked || e->live == 0) return false;
    *computed = e->seqs[0].furthest;
    *n_prompt = e->n_prompt;
    return *computed < *n_prompt;
}

status sched_describe(const sched *s, uint64_t request, uint32_t choice, sched_choice_info *out)
{
    const sched_entry *e = sched_entry_find(s, request);
    if (!e || choice >= e->n) return status_make(STATUS_NOT_FOUND, "no such request or choice");
    const sched_seq *q = &e->seqs[choice];
    if (!q->ended) {
        sched_describe_seq(s, q, out);
    } else {
        *out = q->final;
        if (q->final.report.kept_json) {
            out->report.kept_json = strdup(q->final.report.kept_json);
            out->lacks_kept = !out->report.kept_json;
        }
    }
    return out->lacks_kept ? status_make(STATUS_NO_MEMORY, NULL) : STATUS_IS_OK;
}

bool sched_draw_map(const sched *s, uint64_t request, sched_sight *out, pkv_map *map)
{
    const sched_entry *e = sched_entry_find(s, request);
    if (!e || e->live == 0) return false;
    const sched_seq *q = sched_seen_choice(e);
    *out = (sched_sight){
        .choice = q->choice,
        .n_choices = e->n,
        .running = q->state == SEQ_RUNNING,
        .swapped = q->state == SEQ_WAITING && q->swap != 0,
        .method = policy_of(e)->preset->name,
        .prompt_tokens = e->n_prompt + e->cut,
        .output_tokens = q->n_tokens - e->n_prompt,
        .cut = e->cut,
        .kept_tokens = sched_kept_tokens(s, q),
        .pages_dropped = q->pages_dropped,
        .reading = e->retrieval.block_tokens > 0 ? &q->reading : NULL,
        .attention = e->measured ? e->masses : NULL,
        .attention_at = e->cut + e->masses_at,
        .unmeasured = e->unmeasured ? retention_measure_name(e->unmeasured) : NULL,
    };
    if (out->running) pkv_seq_map(s->kv, q->slot, map);
    return true;
}

const uint64_t *sched_starved(const sched *s) { return s->is_starved ? &s->starved : NULL; }

sched_stats sched_get_stats(const sched *s)
{
    sched_stats stats = s->stats;
    stats.running = s->running.n;
    stats.waiting = s->waiting.n;
    stats.kept_tokens = pkv_full_tokens(&s->options.geometry, s->held_kept);
    stats.pages = pkv_count(s->kv);
    return stats;
}

/* Counters and gauges fill the whole struct, so a counter that is not in the list does not
 * compile. */
#define ONE_MORE(field, metric, help) +1
enum { N_COUNTERS = 0 SCHED_COUNTERS(ONE_MORE), GAUGE_BYTES = 40 };
_Static_assert(sizeof(sched_stats) ==
                   GAUGE_BYTES + N_COUNTERS * sizeof(uint64_t) + sizeof(pkv_counts),
               "a counter belongs in SCHED_COUNTERS, a number of the moment in GAUGE_BYTES");

void sched_add_counters(sched_stats *sum, const sched_stats *more)
{
#define ADD(field, metric, help) sum->field += more->field;
    SCHED_COUNTERS(ADD)
#undef ADD
    pkv_add_counters(&sum->pages, &more->pages);
}

/* ---- integrity ------------------------------------------------------------------------------- */

static const char *check_seq(const sched *s, const sched_seq *q, bool running)
{
    const sched_entry *e = q->entry;
    if (q->state != (running ? SEQ_RUNNING : SEQ_WAITING))
        return "a listed sequence has another state";
    if (!e->forked && q != e->seqs) return "a choice is listed before its fork";
    if (!running && seq_is_over(q)) return "a sequence that is over waits";
    if (seq_is_over(q) && !s->has_ended && !q->selecting && !(q->listed > 0 && s->ended_listed))
        return "a sequence that is over was forgotten";
    if (!seq_is_over(q) && (e->live == 0 || sched_entry_find(s, e->id) != e))
        return "a live request is lost";
    if (q->n_tokens < e->n_prompt || q->n_tokens > e->n_prompt + e->max_new_tokens)
        return "a sequence has too many or too few tokens";
    if (q->n_pressure_drops > e->max_pressure_drops) return "too many choices under pressure";
    if (q->planned > 0) return "tokens are planned that no step has";
    if (q->flying > 0 && q->listed == 0 && !seq_is_over(q))
        return "rows are in flight, but no step has them";
    if (!running) {
        if (!q->swap && !q->parked && q->computed != 0)
            return "a waiting sequence has computed tokens";
        if (q->swap && q->parked) return "a sequence is parked and in the host tier";
        if (q->parked && pkv_parked_length(s->kv, q->parked) != q->computed)
            return "a parked sequence has another length than it computed";
        if (q->swap && pkv_swap_length(s->kv, q->swap) != q->computed)
            return "a swapped sequence has another length than it computed";
        return NULL;
    }
    if (q->swap || q->parked) return "a running sequence is in the host tier or parked";
    if (q->drop_planned && q->flying != 1) return "a sequence is pressed without a row";
    if (q->slot >= s->options.max_seqs || !pkv_seq_is_open(s->kv, q->slot))
        return "a running sequence has no tables";
    bool may_be_longer = q->loading || seq_is_over(q); /* a load that was dropped */
    if (!may_be_longer && pkv_seq_length(s->kv, q->slot) != seq_from(q))
        return "a sequence's tables have another length than it computed";
    if (seq_from(q) > q->n_tokens + (s->n_in_flight > 1))
        return "a sequence computed tokens it does not know";
    return NULL;
}

static const char *check_lists(const sched *s)
{
    const char *wrong = NULL;
    uint64_t swapped = 0;
    for (uint32_t i = 0; i < s->running.n && !wrong; i++) {
        wrong = check_seq(s, s->running.seqs[i], true);
        if (i > 0 && sched_seq_compare(s->running.seqs[i - 1], s->running.seqs[i]) >= 0)
            return "running sequences are out of order";
    }
    for (uint32_t i = 0; i < s->waiting.n && !wrong; i++) {
        wrong = check_seq(s, s->waiting.seqs[i], false);
        swapped += s->waiting.seqs[i]->swap ? s->waiting.seqs[i]->computed : 0;
        if (i > 0 && sched_seq_compare(s->waiting.seqs[i - 1], s->waiting.seqs[i]) >= 0)
            return "waiting sequences are out of order";
    }
    for (const sched_session *x = s->idle.oldest; x; x = x->newer)
        if (x->swap) swapped += x->n_tokens;
    if (!wrong && swapped != s->stats.swapped_tokens) wrong = "swapped tokens are miscounted";
    return wrong;
}

static const char *check_slots(const sched *s)
{
    uint32_t open = 0, n = s->options.max_seqs;
    for (uint32_t i = 0; i < s->running.n; i++) {
        const sched_seq *q = s->running.seqs[i];
        for (uint32_t j = 0; j < i; j++) {
            if (s->running.seqs[j]->slot == q->slot) return "two sequences share a slot";
        }
    }
    for (uint32_t slot = 0; slot < n; slot++) open += pkv_seq_is_open(s->kv, slot);
    for (uint32_t i = 0; i < s->n_free_slots; i++) {
        if (pkv_seq_is_open(s->kv, s->free_slots[i])) return "a free slot has open tables";
    }
    if (s->n_free_slots + s->running.n != n || open != s->running.n) return "slots are lost";
    return NULL;
}

static const char *check_requests(const sched *s)
{
    uint32_t n_live = 0, n_mapped = 0, n_waiting = 0;
    uint64_t n_choices = 0;
    for (uint32_t i = 0; i <= s->map_mask; i++) {
        const sched_entry *e = s->map[i];
        if (!e) continue;
        n_mapped++;
        if (sched_entry_find(s, e->id) != e) return "a request cannot be found by its id";
        uint32_t live = 0, n_running = 0, listed = 0;
        for (uint32_t j = 0; j < e->n; j++) {
            live += !e->seqs[j].ended;
            n_running += e->seqs[j].state == SEQ_RUNNING;
            n_waiting += e->seqs[j].state == SEQ_WAITING;
            listed += e->seqs[j].listed;
            bool expected = e->forked ? !e->seqs[j].ended : j == 0 && e->live > 0;
            if (expected && e->seqs[j].state != SEQ_RUNNING && e->seqs[j].state != SEQ_WAITING)
                return "a live choice is in no list";
        }
        if (live != e->live || n_running != e->n_running || listed != e->listed)
            return "a request miscounts its choices";
        if (live == 0) continue;
        n_live++;
        n_choices += e->n;
    }
    uint32_t n_linked = 0;
    for (const sched_entry *e = s->earliest, *last = NULL; e; last = e, e = e->later, n_linked++) {
        if (e->live == 0 || e->earlier != last || (last && !sched_arrived_before(last, e)))
            return "live requests are not in the order of their arrival";
    }
    if (n_linked != (s->options.policy == SCHED_PRIORITY ? n_live : 0))
        return "a live request is not in the order of arrival";
    if (n_mapped != s->n_mapped || n_live != s->n_live || n_choices != s->n_choices)
        return "requests are miscounted";
    return n_waiting == s->waiting.n ? NULL : "the waiting list is miscounted";
}

const char *sched_check_integrity(const sched *s)
{
    const char *wrong = check_lists(s);
    if (!wrong) wrong = check_slots(s);
    if (!wrong) wrong = check_requests(s);
    if (!wrong) wrong = sched_idle_check(s);
    if (!wrong) wrong = sched_held_check(s);
    if (!wrong) wrong = sched_blocked_check(s);
    if (!wrong) wrong = sched_select_check(s);
    if (!wrong) wrong = sched_load_check(s);
    if (!wrong) wrong = sched_leave_check(s);
    if (!wrong) wrong = sched_hit_check(s);
    if (!wrong) wrong = sched_away_check(s);
    return wrong ? wrong : pkv_check_integrity(s->kv);
}

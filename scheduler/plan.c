/* Plans a step. Tokens are given out first (decodes, then chunks of prompts and replays), pages
 * after that, both by rank; then waiting sequences are admitted to what is left. Pages are taken in
 * rank order and victims come from the other end, so a preempted sequence holds nothing of this
 * step yet. */
#include "scheduler/sched_internal.h"

/* The first length beyond `from` with a pressure drop. */
static uint32_t next_pressure_drop(const sched_seq *q, uint32_t from)
{
    uint32_t at = UINT32_MAX;
    for (uint32_t i = q->n_pressure_drops; i-- > 0 && q->pressure_drops[i] > from;)
        at = q->pressure_drops[i];
    return at;
}

sched_stop sched_next_stop(const sched_seq *q)
{
    uint32_t from = q->computed, drop = next_pressure_drop(q, from);
    const sched_turn *turn = sched_turn_at(q->entry->turns, from);
    sched_stop stop = {.at = retention_next_point(&turn->policy, turn->n_prompt, from),
                       .kind = STOP_POINT,
                       .turn = turn};
    if (drop < stop.at) {
        stop.at = drop;
        stop.kind = STOP_PRESSURE_DROP;
    }
    if (turn->end < stop.at) {
        stop.at = turn->end;
        stop.kind = STOP_TURN;
    }
    return stop;
}

/* A parent draws for all choices up to the last one that has not ended. */
static uint32_t draws_of(const sched_seq *q)
{
    if (!seq_is_parent(q)) return 1;
    uint32_t n = q->entry->n;
    while (q->entry->seqs[n - 1].ended) n--;
    return n;
}

/* Whether the next row's logits go to the caller: it is a prompt row, and not of a replay. */
static bool wants_logits(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    return e->want_logits && q->computed >= e->logits_sent && q->computed < e->n_prompt;
}

bool sched_seq_lacks_logits(const sched *s, const sched_seq *q)
{
    return s->logit_rows == 0 && wants_logits(q);
}

/* Whether the logits of all rows up to the prompt's end are computed: for the caller, or because
 * the policy asks how novel each token is. */
static bool computes_logits(const sched_seq *q)
{
    return wants_logits(q) || (q->novelty && q->computed < q->entry->n_prompt);
}

/* Draws beside the one for each sequence: a parent at its prompt's end draws for choices that have
 * no slot yet. */
static uint32_t draws_at(const sched_seq *q, uint32_t to)
{
    return seq_is_parent(q) && q->entry->n > 1 && to == q->n_tokens ? draws_of(q) : 0;
}

/* What n rows of the sequence take from the budget. */
static uint64_t cost_of(const sched *s, const sched_seq *q, uint32_t n)
{
    if (!computes_logits(q)) return n;
    return ((uint64_t)n * s->logit_row_cost + PLAIN_ROW_COST - 1) / PLAIN_ROW_COST;
}

void sched_seq_plan(sched *s, sched_seq *q, uint32_t n)
{
    uint64_t cost = cost_of(s, q, n);
    s->budget -= cost < s->budget ? (uint32_t)cost : s->budget;
    q->planned = n;
    s->draws -= draws_at(q, q->computed + n);
    if (wants_logits(q)) s->logit_rows -= n;
}

/* The most rows that the budget and the ration of logits leave for a sequence. */
static uint32_t most_rows(const sched *s, const sched_seq *q)
{
    uint32_t most = s->budget < s->options.prefill_chunk ? s->budget : s->options.prefill_chunk;
    if (computes_logits(q)) most = (uint32_t)((uint64_t)most * PLAIN_ROW_COST / s->logit_row_cost);
    return wants_logits(q) && most > s->logit_rows ? s->logit_rows : most;
}

/* Whether the n rows of a measured window are computed although their logits cost more than the
 * budget. They must be in one step, so they would wait forever if the first prompt of a step could
 * not overdraw it. */
static bool may_overdraw(const sched *s, const sched_seq *q, uint32_t n)
{
    return s->budget >= s->options.prefill_chunk && n <= s->options.prefill_chunk &&
           !(wants_logits(q) && n > s->logit_rows);
}

static uint32_t chunk_of(const sched *s, const sched_seq *q)
{
    const sched_entry *e = q->entry;
    sched_stop stop = sched_next_stop(q);
    uint32_t from = q->computed, to = q->n_tokens;
    if (to > stop.at) to = stop.at;
    /* A chunk of a replay ends where the rows end whose logits the caller already has. */
    if (e->want_logits && from < e->logits_sent && to > e->logits_sent) to = e->logits_sent;
    uint32_t most = most_rows(s, q);
    if (to - from <= most) return to - from;
    to = from + most;
    if (stop.kind != STOP_POINT || stop.at > q->n_tokens) return to - from;
    /* All rows of the measured window must be in one step, so the chunk before it ends where the
     * window begins. */
    const sched_turn *turn = stop.turn;
    uint32_t rows = retention_rows_together(&turn->policy, turn->n_prompt, stop.at);
    uint32_t window = stop.at > rows ? stop.at - rows : 0;
    if (to > window) to = window;
    if (to > from) return to - from;
    return from == window && may_overdraw(s, q, stop.at - from) ? stop.at - from : 0;
}

/* A prompt waits for the next step if the draws left are too few for all its choices. The
 * best-ranked prompt always has enough: n is at most max_seqs. */
uint32_t sched_seq_chunk(const sched *s, const sched_seq *q)
{
    uint32_t n = chunk_of(s, q);
    return draws_at(q, q->computed + n) <= s->draws ? n : 0;
}

/* Whether at most one sequence wants to run. Then no other waits for the end of its step. */
static bool runs_alone(const sched *s)
{
    const sched_list *lists[] = {&s->running, &s->waiting};
    uint32_t n = 0;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < lists[k]->n && n < 2; i++)
            n += !sched_seq_is_idle(lists[k]->seqs[i]);
    return n < 2;
}

/* Decodes go first. A row with logits costs more, so it is no decode even where it is the last. */
static void give_tokens(sched *s)
{
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        bool ready = q->n_tokens - q->computed == 1 && !sched_seq_is_idle(q);
        ready = ready && !computes_logits(q) && draws_at(q, q->n_tokens) <= s->draws;
        sched_seq_plan(s, q, ready);
    }
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (q->planned > 0 || sched_seq_is_idle(q)) continue;
        sched_seq_plan(s, q, sched_seq_chunk(s, q));
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Pages that the selection after a share takes. Copies of pages that others hold too last; the
 * pages that the gathered slots of one table fill are needed only for a moment. */
typedef struct selection_pages {
    uint64_t lasting;
    uint32_t passing;
} selection_pages;

static selection_pages pages_to_select(const sched *s, const sched_seq *q)
{
    sched_stop stop = sched_next_stop(q);
    selection_pages pages = {0};
    if (stop.at != q->computed + q->planned || stop.kind != STOP_POINT) return pages;
    const sched_turn *turn = stop.turn;
    if (sched_keeps_pages(&turn->policy)) return pages; /* pressure drops keep whole pages too */
    retention_bound bound =
        retention_bound_at(&turn->policy, &s->options.geometry, turn->n_prompt, stop.at);
    pages.lasting = q->entry->has_sums ? 0 : pkv_seq_pages_shared(s->kv, q->slot);
    if (pages.lasting > bound.pages) pages.lasting = bound.pages;
    pages.passing = bound.longest_pages;
    return pages;
}

static void reserve_pages(sched *s, const selection_pages *pages)
{
    s->lasting += pages->lasting;
    if (s->passing < pages->passing) s->passing = pages->passing;
}

void sched_reserve(sched *s, const sched_seq *q)
{
    selection_pages pages = pages_to_select(s, q);
    reserve_pages(s, &pages);
}

/* Takes the share's pages if they, and those of the selection after it, are available beside what
 * is set aside in this step. */
static bool take_share(sched *s, sched_seq *q)
{
    selection_pages pages = pages_to_select(s, q);
    uint64_t need = pkv_append_cost(s->kv, q->slot, q->planned) + s->lasting + pages.lasting;
    need += s->passing > pages.passing ? s->passing : pages.passing;
    if (need > pkv_available(s->kv)) return false;
    if (!status_ok(sched_append(s, q, q->planned))) {
        sched_starve(s, q);
        return false;
    }
    reserve_pages(s, &pages);
    return true;
}

/* When pages are short, idle sessions give way first. Then a sequence that agreed to pressure
 * retention gives up pages: its selection needs this step to measure, and meanwhile sequences that
 * lack pages wait. Only then is a sequence preempted. */
static void take_pages(sched *s)
{
    uint32_t i = 0;
    while (i < s->running.n) {
        sched_seq *q = s->running.seqs[i];
        if (q->planned == 0 || take_share(s, q)) {
            i++;
        } else if (sched_parked_give_way(s, NULL)) {
            continue;
        } else if (!q->drop_planned && (s->n_drops_planned > 0 || sched_plan_pressure_drop(s))) {
            q->planned = 0;
            i++;
        } else {
            uint32_t victim = sched_pick_victim(s);
            sched_preempt(s, s->running.seqs[victim]);
            if (victim < i) i--; /* the victim is an idle one of better rank: q has moved up */
        }
    }
}

static void add_open(sched_work *w, sched_seq *q)
{
    const sched_entry *e = q->entry;
    q->needs_open = false;
    w->opens[w->plan.n_opens++] = (step_open){
        .seq = q->slot,
        .choice = q->choice,
        .params = &e->params,
        .history = e->has_penalties ? q->tokens : NULL,
        .n_history = e->has_penalties ? q->n_tokens : 0,
        .n_prompt = e->n_prompt,
        .n_most = e->n_prompt + e->max_new_tokens,
    };
}

static measure_spec measure_of(const sched *s, const sched_seq *q, uint32_t to)
{
    sched_stop stop = sched_next_stop(q);
    if (!q->drop_planned && !(stop.kind == STOP_PRESSURE_DROP && stop.at == to)) {
        const sched_turn *turn = stop.turn;
        return retention_measure_rows(&turn->policy, turn->n_prompt, q->computed, to);
    }
    measure_spec spec = retention_measure_rows(&s->pressure, to, to - 1, to);
    if (spec.rows > 1) spec.rows = 1;
    return spec;
}

void sched_add_share(sched_work *w, sched_seq *q, step_seq share)
{
    share.first_token = w->plan.n_tokens;
    q->share = w->plan.n_seqs++;
    w->planned[q->share] = q;
    w->seqs[q->share] = share;
    w->plan.n_tokens += share.n_tokens;
    q->listed++;
    q->entry->listed++;
}

static void add_share(sched *s, sched_work *w, sched_seq *q, int64_t now_us)
{
    sched_entry *e = q->entry;
    uint32_t to = q->computed + q->planned;
    memcpy(w->tokens + w->plan.n_tokens, q->tokens + q->computed, q->planned * sizeof *q->tokens);
    sched_add_share(w, q,
                    (step_seq){
                        .seq = q->slot,
                        .request = e->id,
                        .choice = q->choice,
                        .n_tokens = q->planned,
                        .position = pkv_seq_next_position(s->kv, q->slot) - q->planned,
                        .n_samples = to == q->n_tokens ? draws_of(q) : 0,
                        .sample_index = q->n_tokens - e->n_prompt,
                        .want_logits = wants_logits(q) && !e->want_scores,
                        .want_scores = wants_logits(q) ? e->want_scores : 0,
                        .next_token = to < q->n_tokens ? q->tokens[to] : 0,
                        .measure = measure_of(s, q, to),
                    });
    if (e->first_planned_us < 0) e->first_planned_us = now_us;
}

void sched_plan_step(sched *s, int64_t now_us)
{
    sched_work *w = next_work(s);
    w->plan.n_seqs = w->plan.n_opens = w->plan.n_tokens = s->n_preempted = s->n_drops_planned = 0;
    w->ahead = s->settled = false;
    s->lasting = s->passing = 0;
    s->draws = s->options.max_seqs;
    s->logit_rows = s->options.max_logit_rows ? s->options.max_logit_rows : UINT32_MAX;
    s->budget = s->options.prefill_chunk + s->options.max_seqs;
    s->logit_row_cost = runs_alone(s) ? PLAIN_ROW_COST : s->options.logit_row_cost;
    give_tokens(s);
    take_pages(s);
    if (s->n_preempted + s->n_drops_planned == 0) {
        sched_admit(s, now_us);
        s->settled = true;
    }
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        /* The open goes with the sequence's first rows. If the step fails, the sequence starts
         * again with another open. */
        if (q->needs_open && q->planned > 0) add_open(w, q);
        if (q->planned == 1) add_share(s, w, q, now_us);
    }
    for (uint32_t i = 0; i < s->running.n; i++) {
        if (s->running.seqs[i]->planned > 1) add_share(s, w, s->running.seqs[i], now_us);
    }
}

const step_plan *sched_close_plan(sched *s)
{
    sched_work *w = next_work(s);
    w->plan.deltas = pkv_take_deltas(s->kv);
    w->plan.checksum = pkv_checksum(s->kv);
    if (sched_plan_empty(&w->plan)) return &w->plan;
    w->plan.step = ++s->last_step;
    s->n_in_flight++;
    s->stats.steps++;
    s->stats.steps_ahead += w->ahead;
    return &w->plan;
}

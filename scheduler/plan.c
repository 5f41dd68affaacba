/* Plans a step. Tokens are given out first (decodes, then chunks of prompts and replays), pages
 * after that, both by rank; then waiting sequences are admitted to what is left. Pages are taken in
 * rank order and victims come from the other end, so a preempted sequence holds nothing of this
 * step yet.
 *
 * The step may be planned while another is in flight (ahead.c). A sequence then goes on from where
 * that step leaves it (seq_from), with the token that it draws there (token_from). */
#include "scheduler/pages.h"
#include "scheduler/portions.h"
#include "scheduler/sched_internal.h"
#include "scheduler/sessions.h"
#include "scheduler/share.h"

/* The first length beyond `from` with a pressure drop. */
static uint32_t next_pressure_drop(const sched_seq *q, uint32_t from)
{
    uint32_t at = UINT32_MAX;
    for (uint32_t i = q->n_pressure_drops; i-- > 0 && q->pressure_drops[i] > from;)
        at = q->pressure_drops[i];
    return at;
}

sched_stop sched_next_stop(const sched_seq *q, uint32_t from)
{
    uint32_t drop = next_pressure_drop(q, from);
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

bool sched_seq_lacks_logits(const sched *s, const sched_seq *q)
{
    return s->logit_rows == 0 && sched_share_wants_logits(q);
}

/* Whether the logits of all rows up to the prompt's end are computed: for the caller, or because
 * the policy asks how novel each token is. */
static bool computes_logits(const sched_seq *q)
{
    return sched_share_wants_logits(q) || (q->novelty && seq_from(q) < q->entry->n_prompt);
}

/* Draws beside the one for each sequence: a parent at its prompt's end draws for choices that have
 * no slot yet. */
static uint32_t draws_at(const sched_seq *q, uint32_t to)
{
    return seq_is_parent(q) && q->entry->n > 1 && to == q->n_tokens ? sched_share_draws(q) : 0;
}

/* Returns the share of the budget that n rows of the sequence take. */
static uint64_t cost_of(const sched *s, const sched_seq *q, uint32_t n)
{
    if (!computes_logits(q)) return n;
    return ((uint64_t)n * s->logit_row_cost + PLAIN_ROW_COST - 1) / PLAIN_ROW_COST;
}

/* How many of the sequence's next n rows read by retrieval. */
static uint32_t sparse_rows_of(const sched_seq *q, uint32_t n)
{
    const sched_entry *e = q->entry;
    uint32_t from = seq_from(q), to = from + n;
    if (e->retrieval.block_tokens == 0 || to <= e->n_prompt) return 0;
    return from > e->n_prompt ? n : to - e->n_prompt;
}

void sched_seq_plan(sched *s, sched_seq *q, uint32_t n)
{
    uint64_t cost = cost_of(s, q, n);
    s->budget -= cost < s->budget ? (uint32_t)cost : s->budget;
    q->planned = n;
    s->draws -= draws_at(q, seq_from(q) + n);
    if (sched_share_wants_logits(q)) s->logit_rows -= n;
    s->sparse_rows -= sparse_rows_of(q, n);
}

/* The most rows that a budget and the ration of logits leave for a sequence. */
static uint32_t most_rows(const sched *s, const sched_seq *q, uint32_t budget)
{
    uint32_t most = budget < s->options.prefill_chunk ? budget : s->options.prefill_chunk;
    if (computes_logits(q)) most = (uint32_t)((uint64_t)most * PLAIN_ROW_COST / s->logit_row_cost);
    return sched_share_wants_logits(q) && most > s->logit_rows ? s->logit_rows : most;
}

/* Whether the n rows of a measured window are computed although their logits cost more than the
 * budget. They must be in one step, so they would wait forever if the first prompt of a step could
 * not overdraw it. */
static bool may_overdraw(const sched *s, const sched_seq *q, uint32_t n, uint32_t budget)
{
    return budget >= s->options.prefill_chunk && n <= s->options.prefill_chunk &&
           !(sched_share_wants_logits(q) && n > s->logit_rows);
}

/* How many of the prompt's last rows are measured for retrieval, while they are not computed. */
static uint32_t observed_rows(const sched_seq *q)
{
    const sched_entry *e = q->entry;
    return seq_from(q) < e->n_prompt ? retrieval_observed_rows(&e->retrieval, e->n_prompt) : 0;
}

static uint32_t chunk_of(const sched *s, const sched_seq *q, uint32_t budget)
{
    const sched_entry *e = q->entry;
    uint32_t from = seq_from(q), known = seq_known(q), to = known;
    sched_stop stop = sched_next_stop(q, from);
    if (to > stop.at) to = stop.at;
    /* A chunk of a replay ends where the rows end that the caller already has the results of. */
    bool gives_rows = e->want_logits || e->pooling || e->n_embeds > 0;
    if (gives_rows && from < e->rows_sent && to > e->rows_sent) to = e->rows_sent;
    if (e->retrieval.block_tokens) {
        uint32_t sparse = from > e->n_prompt ? from : e->n_prompt;
        uint32_t rows = s->sparse_rows < STEP_SPARSE_ROWS ? s->sparse_rows : STEP_SPARSE_ROWS;
        if (to > sparse + rows) to = sparse + rows;
        if (observed_rows(q) > 0 && to > e->n_prompt) to = e->n_prompt;
    }
    uint32_t most = most_rows(s, q, budget);
    if (to - from <= most) return to - from;
    to = from + most;
    /* All rows that are measured must be in one step, so the chunk before them ends where they
     * begin. */
    uint32_t end = stop.at, rows = observed_rows(q);
    if (rows > 0) end = e->n_prompt;
    else if (stop.kind != STOP_POINT || stop.at > known) return to - from;
    else rows = retention_rows_together(&stop.turn->policy, stop.turn->n_prompt, stop.at);
    uint32_t window = end > rows ? end - rows : 0;
    if (to > window) to = window;
    if (to > from) return to - from;
    return from == window && may_overdraw(s, q, end - from, budget) ? end - from : 0;
}

/* A prompt waits for the next step if the draws left are too few for all its choices. The
 * best-ranked prompt always has enough: n is at most max_seqs. */
static uint32_t chunk_within(const sched *s, const sched_seq *q, uint32_t budget)
{
    uint32_t n = chunk_of(s, q, budget);
    return draws_at(q, seq_from(q) + n) <= s->draws ? n : 0;
}

uint32_t sched_seq_chunk(const sched *s, const sched_seq *q)
{
    return chunk_within(s, q, s->budget);
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

static bool can_go_on(const sched_seq *q)
{
    return !q->awaited && !q->selecting && !q->loading && !q->leaving && !q->arriving &&
           !q->hit_to && !sched_seq_is_idle(q);
}

/* Whether a sequence goes on behind tokens that were forced: no prompt, and no replay. */
static bool answers(const sched_seq *q)
{
    return q->computed >= q->entry->n_prompt && q->computed == q->furthest;
}

/* Gives n_answers sequences chunks of their forced tokens. While other chunks wait, a whole
 * prefill chunk is kept for them: a window that is measured in one step may need all of it, and
 * would otherwise wait as long as any answer has forced tokens. The rest of the budget still has a
 * row for each answer, since at most max_seqs sequences run. */
static void give_forced(sched *s, uint32_t n_answers, uint32_t kept)
{
    for (uint32_t i = 0; n_answers > 0 && i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (q->planned > 0 || !can_go_on(q) || !answers(q)) continue;
        uint32_t budget = s->budget;
        if (kept > 0) budget = budget > kept ? (budget - kept) / n_answers : 0;
        sched_seq_plan(s, q, chunk_within(s, q, budget));
        n_answers--;
    }
}

/* Decodes go first, and forced tokens before other chunks, because their readers wait for the draw
 * behind them. A row with logits costs more, so it is no decode even where it is the last. */
static void give_tokens(sched *s)
{
    uint32_t n_answers = 0, n_others = s->waiting.n;
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (!can_go_on(q)) continue;
        bool decodes = seq_known(q) - seq_from(q) == 1 && !computes_logits(q) &&
                       draws_at(q, q->n_tokens) <= s->draws;
        if (decodes) sched_seq_plan(s, q, 1);
        else if (answers(q)) n_answers++;
        else n_others++;
    }
    give_forced(s, n_answers, n_others > 0 ? s->options.prefill_chunk : 0);
    for (uint32_t i = 0; n_others > 0 && i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (q->planned == 0 && can_go_on(q)) sched_seq_plan(s, q, sched_seq_chunk(s, q));
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* Pages that the selection after a share takes. Copies of pages that others hold too last, and
 * requests that start in this step may yet hit the others; the pages that the gathered slots of one
 * table fill are needed only for a moment. */
typedef struct selection_pages {
    uint64_t lasting, if_shared, passing;
    uint64_t as_of; // pkv_shared.as_of of `lasting`
} selection_pages;

pkv_shared sched_pages_shared(sched *s, const sched_seq *q)
{
    uint32_t most = s->looks_left;
    if (q->counts_from == 0) most -= most / 2;
    uint32_t left = most;
    pkv_shared shared = pkv_seq_pages_shared(s->kv, q->slot, &left);
    s->looks_left -= most - left;
    return shared;
}

static selection_pages pages_to_select(sched *s, const sched_seq *q)
{
    uint32_t to = seq_from(q) + q->planned;
    sched_stop stop = sched_next_stop(q, q->planned > 0 ? seq_from(q) : q->computed);
    selection_pages pages = {0};
    if (stop.at != to || stop.kind != STOP_POINT) return pages;
    const sched_turn *turn = stop.turn;
    if (sched_keeps_pages(&turn->policy)) return pages; /* pressure drops keep whole pages too */
    uint32_t n_layers = q->entry->n_layers;
    retention_bound bound =
        retention_bound_at(&turn->policy, &s->options.geometry, n_layers, turn->n_prompt, stop.at);
    if (!q->entry->has_sums) {
        pkv_shared shared = sched_pages_shared(s, q);
        pages.lasting = shared.most < bound.even_pages ? shared.most : bound.even_pages;
        pages.if_shared = bound.even_pages - pages.lasting;
        pages.as_of = shared.as_of;
    }
    pages.passing = sched_passing_of(s, n_layers, &turn->policy, bound.longest_pages);
    return pages;
}

static void add_bound(const sched *s, sched_bounds *sum, uint64_t pages, uint64_t as_of)
{
    if (pages == 0 || as_of == pkv_sharing_changes(s->kv)) return;
    if (sum->pages == 0 || as_of < sum->as_of) sum->as_of = as_of;
    sum->pages += pages;
}

void sched_reserve_lasting(sched *s, uint64_t pages, uint64_t as_of)
{
    s->lasting += pages;
    add_bound(s, &s->uncounted, pages, as_of);
}

static void reserve_pages(sched *s, const selection_pages *pages)
{
    sched_reserve_lasting(s, pages->lasting, pages->as_of);
    s->if_shared += pages->if_shared;
    if (s->passing < pages->passing) s->passing = pages->passing;
}

void sched_reserve(sched *s, const sched_seq *q)
{
    selection_pages pages = pages_to_select(s, q);
    reserve_pages(s, &pages);
}

/* Whether the sequence lacks pages only by bounds of the pages that others hold too, of its own or
 * of those that are selected in. Those of long sequences are counted in portions, and it waits for
 * one whole count of each. */
static bool awaits_counts(sched *s, sched_seq *q, const selection_pages *pages, uint64_t need)
{
    sched_bounds bounds = s->uncounted;
    add_bound(s, &bounds, pages->lasting, pages->as_of);
    if (bounds.pages == 0 || need - bounds.pages > pkv_available(s->kv)) return false;
    if (q->counts_from == 0) q->counts_from = pkv_sharing_changes(s->kv);
    return bounds.as_of < q->counts_from;
}

typedef enum share_fate { SHARE_TAKEN, SHARE_WAITS, SHARE_LACKS } share_fate;

/* Takes the share's pages if they, and those of the selection after it, are available beside what
 * is set aside in this step. */
static share_fate take_share(sched *s, sched_seq *q)
{
    selection_pages pages = pages_to_select(s, q);
    uint64_t need = pkv_append_cost(s->kv, q->slot, q->planned) + s->lasting + pages.lasting;
    need += s->passing > pages.passing ? s->passing : pages.passing;
    if (need > pkv_available(s->kv))
        return awaits_counts(s, q, &pages, need) ? SHARE_WAITS : SHARE_LACKS;
    if (!status_ok(sched_append(s, q, q->planned))) {
        sched_starve(s, q);
        return SHARE_LACKS;
    }
    q->counts_from = 0;
    reserve_pages(s, &pages);
    return SHARE_TAKEN;
}

/* When pages are short, idle sessions give way first. Then a sequence that agreed to pressure
 * retention gives up pages: its selection needs this step to measure, and meanwhile sequences that
 * lack pages wait. Only then is a sequence preempted, though not while a selection reads its
 * tables: it is about to give up pages, and can be preempted afterwards. One that waits for a load
 * is passed over. While a step is in flight, its rows need their pages: a sequence that lacks some
 * waits for the next step, which is then planned with none in flight. It waits too while the tables
 * of another one are being closed, or pages of one without a slot given up, which come free. */
static void take_pages(sched *s)
{
    uint32_t i = 0;
    while (i < s->running.n) {
        sched_seq *q = s->running.seqs[i];
        share_fate fate = q->planned == 0 ? SHARE_TAKEN : take_share(s, q);
        if (fate == SHARE_TAKEN) {
            i++;
        } else if (fate == SHARE_WAITS) {
            q->planned = 0;
            s->lacks_pages = s->looks = true;
            i++;
        } else if (sched_parked_give_way(s, NULL)) {
            continue;
        } else if (s->n_in_flight > 0 || s->n_leaving > 0 || sched_away_frees(s)) {
            q->planned = 0;
            s->lacks_pages = true;
            i++;
        } else if (!q->drop_planned &&
                   (s->n_drops_planned + s->n_pressing > 0 || sched_plan_pressure_drop(s))) {
            q->planned = 0;
            i++;
        } else {
            uint32_t victim = sched_pick_victim(s, i);
            if (victim == s->running.n) {
                sched_forget_pressure_drop(s, q);
                q->planned = 0;
                s->lacks_pages = true;
                i++;
                continue;
            }
            uint32_t n = s->running.n;
            sched_preempt(s, s->running.seqs[victim]);
            /* The victim may be an idle one of better rank: then q has moved up. */
            if (victim < i && s->running.n < n) i--;
        }
    }
}

/* Whether a selection or a fork follows the result of a step in flight. */
static bool awaits_result(sched *s) { return s->n_in_flight > 0 && oldest_work(s)->n_awaited > 0; }

void sched_set_aside(sched *s)
{
    bool awaits = awaits_result(s);
    s->lasting = s->if_shared = s->passing = 0;
    s->uncounted = (sched_bounds){0};
    for (uint32_t i = 0; (awaits || s->n_selecting > 0) && i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        if (q->selecting) sched_select_reserve(s, q);
        if (awaits && q->awaited) sched_reserve(s, q);
    }
}

/* Empties the next work and what a step counts. */
static void begin_plan(sched *s)
{
    sched_work *w = next_work(s);
    w->plan.n_seqs = w->plan.n_opens = w->plan.n_tokens = s->n_preempted = s->n_drops_planned = 0;
    s->looks_left = sched_look_portion(s);
    sched_notes_tell(s, w);
    w->ahead = s->n_in_flight > 0;
    w->has_logits = s->lacks_pages = s->looks = false;
    w->n_awaited = 0;
    sched_set_aside(s);
    s->draws = s->options.max_seqs;
    s->sparse_rows = step_most_sparse_rows(s->options.max_seqs);
    s->logit_rows = s->options.max_logit_rows ? s->options.max_logit_rows : UINT32_MAX;
    s->budget = s->options.prefill_chunk + s->options.max_seqs;
    s->logit_row_cost = runs_alone(s) ? PLAIN_ROW_COST : s->options.logit_row_cost;
    for (uint32_t i = 0; awaits_result(s) && i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        q->left_out |= q->awaited;
    }
}

void sched_plan_step(sched *s, int64_t now_us)
{
    sched_work *w = next_work(s);
    begin_plan(s);
    give_tokens(s);
    take_pages(s);
    if (s->n_preempted + s->n_drops_planned + s->n_pressing == 0 && !s->lacks_pages)
        sched_admit(s, now_us);
    bool has_chunks = false;
    for (uint32_t i = 0; i < s->running.n; i++) {
        sched_seq *q = s->running.seqs[i];
        /* The open goes with the sequence's first rows. If the step fails, the sequence starts
         * again with another open. */
        if (q->needs_open && q->planned > 0) sched_share_open(w, q);
        if (q->planned == 1) sched_share_add(s, w, q, now_us);
        has_chunks |= q->planned > 1;
    }
    for (uint32_t i = 0; has_chunks && i < s->running.n; i++) {
        if (s->running.seqs[i]->planned > 1) sched_share_add(s, w, s->running.seqs[i], now_us);
    }
    sched_watch_plan(s, w);
}

void sched_set_mask(sched *s, uint32_t share, const uint32_t *mask, uint32_t n_words)
{
    sched_work *w = &s->works[(s->first + s->n_in_flight + s->depth - 1) % s->depth];
    w->seqs[share].mask = mask;
    w->seqs[share].n_mask_words = n_words;
}

const step_plan *sched_close_plan(sched *s)
{
    sched_work *w = next_work(s);
    w->plan.deltas = pkv_take_deltas(s->kv);
    w->plan.checksum = pkv_checksum(s->kv);
    if (sched_plan_empty(&w->plan)) return &w->plan;
    w->plan.step = ++s->last_step;
    w->told = true;
    s->n_in_flight++;
    s->stats.steps++;
    s->stats.steps_ahead += w->ahead;
    return &w->plan;
}

/* Conditions on every step: who runs, in which order, and what a plan may hold. */
#include "tests/sim/sim_world.h"

bool in_plan(const step_plan *plan, const world_request *r, uint32_t c)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        if (plan->seqs[i].request == r->request.id && (plan->seqs[i].choice == c || !r->forked))
            return true;
    }
    return false;
}

/* Number of draws in flight for the choice. */
static uint32_t draws_in_flight(const world *w, const world_request *r, uint32_t c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_plans; i++)
        for (uint32_t j = 0; j < w->plans[i]->n_seqs; j++) {
            const step_seq *q = &w->plans[i]->seqs[j];
            n += q->request == r->request.id && q->choice <= c && c < q->choice + q->n_samples;
        }
    return n;
}

static bool ranks_before(const world_request *a, uint32_t choice_a, const world_request *b,
                         uint32_t choice_b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority < b->request.priority;
    if (a->request.arrival != b->request.arrival) return a->request.arrival < b->request.arrival;
    if (a != b) return a < b; /* floats are added in order */
    return choice_a < choice_b;
}

static uint32_t logit_rows_of(const step_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].want_logits || plan->seqs[i].want_scores) n += plan->seqs[i].n_tokens;
    return n;
}

static bool can_run(const world_request *r)
{
    for (uint32_t c = 0; r->live > 0 && c < r->request.n; c++) {
        if (!r->choices[c].ended && !r->choices[c].paused) return true;
    }
    return false;
}

static bool came_before(const world_request *a, const world_request *b)
{
    if (a->request.arrival != b->request.arrival) return a->request.arrival < b->request.arrival;
    return a < b;
}

/* A request has its first share, or waits for its first load or tables. Counts how often those that
 * came before it were passed, and bounds that. *worst: of those that start in this step. */
static void note_start(world *w, world_request *started, const world_request **worst)
{
    if (started->started) return;
    started->started = true;
    if (!*worst || ranks_before(*worst, 0, started, 0)) *worst = started;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        if (r->started || wants_rows(r) || !can_run(r) || !came_before(r, started)) continue;
        uint64_t bound = (uint64_t)w->options.max_passes * (r->older + 1);
        if (++r->passed > bound) FAIL(w, "request %u is passed too often", i);
        w->t->passed++;
    }
}

/* Checks that no request starts before a runnable one of better rank. With ageing the order is not
 * known here; note_start bounds how often it is broken. */
void check_order(world *w, const step_plan *plan)
{
    const world_request *worst = NULL;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        note_start(w, &w->requests[plan->seqs[i].request], &worst);
    for (uint32_t i = w->first_live; i < w->n_arrived; i++)
        if (w->requests[i].loading || w->requests[i].arriving)
            note_start(w, &w->requests[i], &worst);
    if (w->options.max_passes < NEVER_AGED) return;
    for (uint32_t i = w->first_live; worst && i < w->n_arrived; i++) {
        const world_request *r = &w->requests[i];
        bool waits = wants_rows(r) && logit_rows_of(plan) == w->options.max_logit_rows;
        if (!r->started && can_run(r) && ranks_before(r, 0, worst, 0) && !waits)
            FAIL(w, "request %llu starts before %u", (unsigned long long)worst->request.id, i);
    }
}

/* Whether there are slots and pages for all that live at once, each choice as long as it may become
 * and with room for one selection, beside those that the loads fill. */
static bool has_pages_for_all(const world *w)
{
    const pkv_geometry *g = &w->options.geometry;
    if (pkv_shares(g) > 1) return false; /* what is available may be that of one share */
    uint64_t blocks = 0, choices = w->disk.n_loads + w->hand.n_takings;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        const world_request *r = &w->requests[i];
        uint32_t n = r->request.n_prompt + r->request.max_new_tokens;
        blocks += (uint64_t)r->live * 3 * (n / g->page_tokens + 2);
        choices += r->live;
    }
    sched_stats stats = sched_get_stats(w->s);
    return choices <= w->options.max_seqs &&
           blocks * pkv_groups(g) <= stats.pages.free + stats.pages.cached;
}

/* Checks for starvation: a sequence is not passed over for long by sequences of worse rank, since a
 * waiting sequence blocks worse ones from starting and the running ones use up their tokens. Also
 * checks that some sequence runs when one could. */
void check_progress(world *w, const step_plan *plan)
{
    const world_request *worst = NULL;
    uint32_t worst_choice = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const world_request *r = &w->requests[plan->seqs[i].request];
        if (worst && ranks_before(r, plan->seqs[i].choice, worst, worst_choice)) continue;
        worst = r;
        worst_choice = plan->seqs[i].choice;
    }
    bool could_run = false;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        for (uint32_t c = 0; r->live > 0 && c < r->request.n; c++) {
            world_choice *q = &r->choices[c];
            if (q->ended || q->paused || q->n_tokens == r->request.max_new_tokens) continue;
            /* The choice's last token is being drawn. */
            if (q->n_tokens + draws_in_flight(w, r, c) == r->request.max_new_tokens) continue;
            could_run |= !r->selecting && !r->loading && !r->arriving;
            bool due = q->due;
            q->due = false;
            if (r->selecting || r->loading || r->arriving) continue;
            /* Other prompts with logits may take all rows of logits, many steps long. */
            bool waits = wants_rows(r) && logit_rows_of(plan) == w->options.max_logit_rows;
            if (in_plan(plan, r, c)) {
                q->passed_over = 0;
            } else if (!waits && worst && ranks_before(r, c, worst, worst_choice)) {
                /* A step ahead leaves out sequences that wait for the result in flight. */
                bool whole = w->n_plans == 0 && !w->options.pressure && !some_select(w) &&
                             !some_load(w) &&                /* whose pages cannot be had */
                             w->options.hand_out_slots == 0; /* or come free in portions */
                if (due && whole && w->options.max_passes == NEVER_AGED)
                    FAIL(w, "request %u, choice %u was preempted before a worse one", i, c);
                if (++q->passed_over > w->max_passed_over) w->max_passed_over = q->passed_over;
            }
        }
    }
    /* A failed step sets sequences back by as many steps as they have tokens, at most. */
    uint64_t bound = (2 + w->fails) * LONGEST;
    if (w->max_passed_over > bound)
        FAIL(w, "starvation: passed over %llu times", (unsigned long long)bound);
    /* Sequences may wait for pages that a selection is about to give up, or one that is over: the
     * plan has the tables that it gave up now. */
    bool sheds = w->options.hand_out_slots > 0 && plan->deltas.n_words + plan->deltas.n_moves > 0;
    bool idle = plan->n_seqs == 0 && !some_select(w) && !sheds;
    if (could_run && idle && (!some_load(w) || has_pages_for_all(w)))
        FAIL(w, "nothing runs, although a request could");
    w->t->beside_loads += plan->n_seqs > 0 && w->disk.n_loads > 0;
}

/* Chunks must not pass a retention point nor split a window. Skipped for contiguous policies, whose
 * positions are not logical. */
static void check_points(world *w, const world_request *r, const step_seq *q)
{
    const sim_story *story = &r->story;
    const sim_turn *turn = &story->turns[0];
    if (turn->policy.contiguous || story->n_turns == 0) return;
    while (turn->end <= q->position) turn++;
    uint32_t n = turn->n_prompt, to = q->position + q->n_tokens;
    uint32_t start = turn == story->turns ? 0 : turn[-1].end;
    uint32_t point = retention_next_point(&turn->policy, n, q->position);
    if (to > point || to > turn->end) FAIL(w, "a chunk passes a retention point");
    if (point > turn->end || to == point) return;
    uint32_t rows = retention_rows_together(&turn->policy, n, point);
    uint32_t window = point > rows ? point - rows : 0;
    if (to > window && to > start) FAIL(w, "a window is split");
}

/* Checks that rows with logits count for what they cost beside other requests. A measured window is
 * computed whole, whatever it costs. */
static void check_cost(world *w, const step_plan *plan)
{
    uint64_t cost = 0, most = (uint64_t)w->options.prefill_chunk * 100;
    uint64_t row = w->options.logit_row_cost < most ? w->options.logit_row_cost : most;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        bool costly = q->want_logits || q->want_scores || q->measure.novelty;
        if (costly && q->measure.kind != MEASURE_NONE) return;
        cost += (costly && row > 100 ? row : 100) * q->n_tokens;
    }
    w->t->costly += plan->n_seqs > 1 && cost > 100 * plan->n_tokens;
    if (plan->n_seqs > 1 && cost > most + 100 * w->options.max_seqs)
        FAIL(w, "the plan's rows with logits are over its budget");
}

void check_plan(world *w, const step_plan *plan)
{
    uint32_t tokens = 0;
    bool prefills = false;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        const world_request *r = &w->requests[q->request];
        if (q->n_tokens == 0 || q->first_token != tokens)
            FAIL(w, "tokens of the plan are out of order");
        if (q->n_tokens > w->options.prefill_chunk && q->n_tokens > 1)
            FAIL(w, "a chunk is too long");
        if (prefills && q->n_tokens == 1) FAIL(w, "a decode comes after a chunk");
        prefills |= q->n_tokens > 1;
        tokens += q->n_tokens;
        if (q->n_samples > 0 && r->live == 0) FAIL(w, "a dead request samples");
        tally_joined(w, plan, q);
        check_points(w, r, q);
    }
    if (w->options.max_logit_rows && logit_rows_of(plan) > w->options.max_logit_rows)
        FAIL(w, "the plan wants too many logits");
    if (tokens != plan->n_tokens || tokens > w->options.prefill_chunk + w->options.max_seqs)
        FAIL(w, "the plan's tokens are over its budget");
    check_cost(w, plan);
}

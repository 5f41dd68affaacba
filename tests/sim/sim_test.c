/* The scheduler and paged_kv in a simulated world: random arrivals, lengths, shared prefixes,
 * priorities, n, aborts at any moment, pauses, failing steps, page shortage, a host tier that is
 * absent, soon full or large, every method of retention with random fields, sessions of several
 * turns, compression under pressure, a disk for blocks that left memory, and prompts that are
 * handed over and taken over, over geometries, page sizes and prefill chunks. Every token, and what
 * is kept, is compared with the one-at-a-time reference.
 *
 *   sim_test [seed]      one world, verbosely, with one step in flight and with two;
 *                        OCTAVO_SOAK=SEED runs 10^5 requests with each instead of 10^4, in
 *                        worlds from that seed on; a light run 5,000 */
#include "tests/light.h"
#include "tests/sim/sim_world.h"

enum { REQUESTS_PER_WORLD = 500 };

/* ---- the world ------------------------------------------------------------------------------- */

static pkv_geometry random_geometry(world *w)
{
    static const uint32_t all[][3] = {{16, 1, 1}, {16, 4, 2}, {16, 3, 2}, {32, 4, 4},
                                      {16, 2, 4}, {48, 5, 1}, {16, 6, 1}};
    const uint32_t *one = all[rng_below(&w->random, sizeof all / sizeof *all)];
    pkv_geometry g = {.page_tokens = one[0],
                      .n_layers = one[1],
                      .n_kv_heads = one[2],
                      .layers_per_group = 1,
                      .heads_per_group = 1};
    rng shares = rng_seed(w->seed + 4000037); /* some worlds have ranks, with shares of the cells */
    g.n_shares = pkv_shares_for(&g, 1 << rng_below(&shares, 3));
    rng windows = rng_seed(w->seed + 1000003); /* some worlds have sliding windows in some layers */
    if (rng_below(&windows, 4) > 0) return g;
    g.window = 1 + rng_below(&windows, 150);
    for (uint32_t l = 0; l < g.n_layers; l++)
        g.window_layers[0] |= (uint64_t)rng_below(&windows, 2) << l;
    return g;
}

static void world_create(world *w, uint64_t seed, uint32_t depth, uint32_t n_requests, tally *t)
{
    *w = (world){.seed = seed, .random = rng_seed(seed), .n_requests = n_requests, .t = t};
    w->lengths = rng_seed(seed + 5000011);
    w->looks = rng_seed(seed + 6000011);
    sched_options *o = &w->options;
    o->lacks = MEASURES_BESIDE | MEASURES_READS; /* of sim_measure */
    o->geometry = random_geometry(w);
    o->max_model_len = CONTEXT;
    o->max_logical_len = CHOICES_MAX * LONGEST;
    o->max_seqs = between(w, 1, 16);
    o->prefill_chunk = chance(w, 1, 3) ? 16 : chance(w, 1, 2) ? between(w, 17, 64) : 512;
    o->max_requests = 64;
    o->prefix_cache = !chance(w, 1, 8);
    o->max_logit_rows = chance(w, 1, 2) ? 0 : between(w, 1, chance(w, 1, 2) ? 3 : 64);
    rng costs = rng_seed(w->seed + 3000017);
    o->logit_row_cost = rng_below(&costs, 3) ? rng_below(&costs, 3000) : 0;
    o->salt = 7;
    rng policies = rng_seed(w->seed + 2000003);
    o->policy = rng_below(&policies, 4) ? SCHED_PRIORITY : SCHED_FCFS;
    o->max_passes = rng_below(&policies, 2) ? NEVER_AGED : 1 + rng_below(&policies, 8);
    o->max_in_flight = depth;
    rng selections = rng_seed(w->seed + 4000037);
    /* A portion of tables that are split or closed is a page for 4 slots: often a few pages. */
    uint32_t most_slots = rng_below(&selections, 2) ? 3000 : 100;
    o->hand_out_slots = rng_below(&selections, 2) ? 1 + rng_below(&selections, most_slots) : 0;
    w->median_prompt = between(w, 20, 120);
    w->median_output = between(w, 2, 30);
    /* The pool's size ranges from too small for two longest sequences to enough for all. */
    uint32_t groups = pkv_groups(&o->geometry), page = o->geometry.page_tokens;
    uint32_t longest = groups * (o->max_model_len / page + 1);
    uint32_t typical = groups * ((w->median_prompt + w->median_output) / page + 1);
    o->n_pages = 1 + (chance(w, 2, 3) ? longest / 2 + between(w, 0, 4 * typical)
                                      : longest * between(w, 1, 16));
    o->n_host_pages = chance(w, 1, 4)   ? 0
                      : chance(w, 2, 3) ? between(w, groups, typical)
                                        : longest * between(w, 1, 8);
    w->max_live = between(w, 1, 40);
    w->arrival_percent = between(w, 5, 100);
    w->abort_percent = between(w, 0, 15);
    w->pause_permille = chance(w, 1, 2) ? 0 : between(w, 1, 40);
    w->flush_permille = chance(w, 1, 2) ? 0 : between(w, 1, 50);
    w->fail_permille = chance(w, 1, 2) ? 0 : between(w, 1, 20);
    w->check_every = n_requests <= 50 ? 1 : 16;
    w->retain_percent = chance(w, 1, 6) ? 10 : between(w, 60, 97);
    w->session_percent = chance(w, 1, 4) ? 0 : between(w, 5, 60);
    o->max_sessions = between(w, 0, BOOKS);
    o->session_ttl_us = chance(w, 1, 3) ? between(w, 1, 1000000) : 20000000;
    if (chance(w, 1, 2)) {
        w->pressure = random_pressure(w);
        o->pressure = &w->pressure;
    }
    disk_choose(w);
    hand_choose(w);
    error err;
    if (!status_ok(sched_create(o, &w->s, &err))) FAIL(w, "sched_create: %s", err.text);
    w->sim = sim_backend_create(&(sim_options){.geometry = o->geometry,
                                               .n_pages = o->n_pages,
                                               .n_host_pages = o->n_host_pages,
                                               .max_seqs = o->max_seqs,
                                               .max_rows = o->prefill_chunk + o->max_seqs,
                                               .max_model_len = o->max_model_len,
                                               .max_in_flight = depth});
    w->b = sim_backend_as_backend(w->sim);
    disk_create(w);
    hand_create(w);
    w->requests = calloc(n_requests, sizeof *w->requests);
    for (uint32_t p = 0; p < PREFIXES; p++) {
        w->prefixes[p] = calloc(o->max_model_len, sizeof **w->prefixes);
        if (!w->requests || !w->prefixes[p]) abort();
        for (uint32_t i = 0; i < o->max_model_len; i++)
            w->prefixes[p][i] = between(w, 0, SIM_VOCAB - 1);
    }
}

static void world_destroy(world *w)
{
    hand_destroy(w);
    for (uint32_t p = 0; p < PREFIXES; p++) free(w->prefixes[p]);
    for (uint32_t i = 0; i < w->n_requests; i++) {
        for (uint32_t c = 0; c < CHOICES_MAX; c++) free(w->requests[i].choices[c].pressure_drops);
        free(w->requests[i].prompt);
        free(w->requests[i].whole);
        sim_answer_free(&w->requests[i].answer);
    }
    free(w->requests);
    for (uint32_t i = 0; i < BOOKS; i++) {
        free(w->books[i].tokens);
        free(w->books[i].pressure_drops);
    }
    sched_destroy(w->s);
    w->b.ops->destroy(w->b.ctx);
    disk_destroy(w);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void arrive(world *w)
{
    uint32_t id = w->n_arrived++;
    world_request *r = &w->requests[id];
    make_request(w, r, id);
    hand_make(w, r);
    error err;
    if (!status_ok(sched_check(w->s, &r->given, &err))) {
        r->live = 0;
        w->n_refused++;
        return;
    }
    size_t n;
    w->t->by_preset[r->request.policy.preset - retention_presets(&n)]++;
    w->n_retained += retention_selects(&r->request.policy);
    w->t->cuts += r->given.n_prompt > r->request.n_prompt;
    /* Some later requests may be stamped with an earlier arrival. */
    r->older = w->n_live + 3;
    w->n_live++;
    add_event(w, (sched_event){.kind = SCHED_ADD, .add = &r->given});
}

/* Rows of the choice that were planned ahead are discarded. */
static void end_choice(world *w, world_request *r, uint32_t c)
{
    world_choice *q = &r->choices[c];
    q->ended = true;
    for (uint32_t i = 0; i < w->n_plans; i++) {
        /* A parent goes on for its other choices. */
        bool has_rows = in_plan(w->plans[i], r, c), counts = !r->forked && r->live > 1;
        q->in_flight |= has_rows && (counts || !w->ahead[i]);
        w->t->wasted += has_rows && w->ahead[i] && !counts;
    }
    w->n_live -= --r->live == 0;
    add_event(w, (sched_event){.kind = SCHED_END,
                               .request = r->request.id,
                               .choice = c,
                               .finished = q->done && w->turn < r->abort_at,
                               .distrusted = w->turn >= r->abort_at && chance(w, 1, 8)});
}

static void end_all(world *w, world_request *r)
{
    if (chance(w, 1, 2)) {
        for (uint32_t c = 0; c < r->request.n; c++) {
            if (!r->choices[c].ended) end_choice(w, r, c);
        }
        return;
    }
    for (uint32_t c = 0; c < r->request.n; c++) r->choices[c].ended = true;
    r->live = 0;
    w->n_live--;
    add_event(w, (sched_event){.kind = SCHED_END,
                               .request = r->request.id,
                               .choice = SCHED_ALL_CHOICES,
                               .distrusted = chance(w, 1, 8)});
}

static void touch_choice(world *w, world_request *r, uint32_t c)
{
    world_choice *q = &r->choices[c];
    uint64_t id = r->request.id;
    if (q->done && w->turn >= q->end_at && !r->selecting) {
        end_choice(w, r, c);
    } else if (q->paused && w->turn >= q->resume_at) {
        q->paused = false;
        add_event(w, (sched_event){.kind = SCHED_RESUME, .request = id, .choice = c});
    } else if (!q->paused && chance(w, w->pause_permille, 1000)) {
        q->paused = true;
        q->due = false;
        q->passed_over = 0;
        q->resume_at = w->turn + between(w, 1, chance(w, 1, 10) ? 300 : 20);
        add_event(w, (sched_event){.kind = SCHED_PAUSE, .request = id, .choice = c});
    }
}

static void make_events(world *w)
{
    while (w->first_live < w->n_arrived && w->requests[w->first_live].live == 0) w->first_live++;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        if (r->live == 0) continue;
        if (w->turn >= r->abort_at) {
            /* One choice, or all of them. */
            uint32_t c = rng_below(&w->random, r->request.n);
            w->n_aborted++;
            if (r->request.n > 1 && !r->choices[c].ended && chance(w, 1, 2)) {
                end_choice(w, r, c);
                r->abort_at = INT64_MAX;
            } else {
                end_all(w, r);
            }
            continue;
        }
        for (uint32_t c = 0; c < r->request.n; c++) {
            if (!r->choices[c].ended) touch_choice(w, r, c);
        }
    }
    while (w->n_arrived < w->n_requests && w->n_live < w->max_live &&
           chance(w, w->arrival_percent, 100)) {
        arrive(w);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Gives the scheduler the forced tokens behind those that the request's only choice has. */
static void give_forced(world *w, world_request *r)
{
    world_choice *q = &r->choices[0];
    uint32_t n = 0;
    while (sim_is_forced(&r->request, q->n_tokens + n)) n++;
    if (n == 0) return;
    add_event(w, (sched_event){.kind = SCHED_FORCED,
                               .request = r->request.id,
                               .forced = r->answer.tokens + q->n_tokens,
                               .n_forced = n});
    q->n_tokens += n;
    q->due = false; /* a share of several rows waits for what the budget leaves */
    w->tokens += n;
}

static void take_token(world *w, world_request *r, uint32_t c, const step_sample *sample)
{
    world_choice *q = &r->choices[c];
    if (q->ended || q->n_tokens == r->request.max_new_tokens) return;
    uint32_t expected = r->answer.tokens[c * r->request.max_new_tokens + q->n_tokens];
    if (sample->token != expected) {
        FAIL(w,
             "request %llu (%s, prompt %u, n %u), choice %u, output %u: token %u, the reference "
             "has %u",
             (unsigned long long)r->request.id, r->request.policy.preset->name, r->request.n_prompt,
             r->request.n, c, q->n_tokens, sample->token, expected);
    }
    bool gives_rows = wants_rows(r) || r->request.pooling;
    if (gives_rows && r->logit_rows != r->request.n_prompt)
        FAIL(w, "request %llu: %u of %u rows were given before the first token",
             (unsigned long long)r->request.id, r->logit_rows, r->request.n_prompt);
    w->tokens++;
    /* Freshly forked choices may wait for slots, and choices with sums of their own for pages. */
    bool forked = q->n_tokens == 0 && r->request.n > 1;
    q->due = !q->paused && !forked;
    if (++q->n_tokens != q->stop_at) {
        if (r->story.forces) give_forced(w, r);
        return;
    }
    q->done = true;
    q->end_at = w->turn + (chance(w, 1, 8) ? between(w, 1, 5) : 0);
    if (r->story.forces) q->end_at = w->turn; /* its report counts every token as computed */
    if (q->end_at == w->turn) end_choice(w, r, c);
}

static void take_row(world *w, world_request *r, float logit)
{
    uint32_t row = r->logit_rows++;
    if (row >= r->request.n_prompt || logit != r->answer.logits[row])
        FAIL(w, "request %llu: logits of row %u", (unsigned long long)r->request.id, row);
}

/* The sim backend reports a row's logit in place of a score. */
static void take_scores(world *w, world_request *r, const step_seq *share,
                        const step_sample *scores)
{
    for (uint32_t i = 0; i < share->n_tokens; i++) {
        uint32_t next = r->logit_rows + 1;
        if (next < r->request.n_prompt && scores[i].token != r->prompt[next])
            FAIL(w, "request %llu: another token is scored", (unsigned long long)r->request.id);
        take_row(w, r, scores[i].logprob);
    }
}

/* The sim backend gives a share's logits in place of what is pooled of them. */
static void take_pooled(world *w, world_request *r, const step_seq *share, const float *pooled)
{
    bool is_last = r->request.pooling == POOLING_LAST;
    if (share->pooling != r->request.pooling)
        FAIL(w, "request %llu: another pooling", (unsigned long long)r->request.id);
    if (is_last) r->logit_rows = r->request.n_prompt - 1;
    for (uint32_t i = is_last ? share->n_tokens - 1 : 0; i < share->n_tokens; i++)
        take_row(w, r, pooled[i]);
    if (r->logit_rows == r->request.n_prompt) w->t->pooled++;
}

/* The sim backend reports a row's logit in place of an embedding. The engine ends a reading with
 * its last row. */
static void take_embeddings(world *w, world_request *r, const step_seq *share,
                            const uint16_t *embeddings)
{
    float logit;
    for (uint32_t i = 0; i < share->n_tokens; i++, embeddings += 2) {
        memcpy(&logit, embeddings, sizeof logit);
        take_row(w, r, logit);
    }
    if (r->logit_rows < r->request.n_prompt) return;
    w->t->readings++;
    w->t->readings_of_some += r->request.n_layers > 0;
    end_choice(w, r, 0);
}

/* When rows are measured that the request's own policy would not measure, the choice is being
 * compressed because pages are short. Positions are logical then. */
static void find_pressure_drop(world *w, world_request *r, const step_seq *share)
{
    if (!w->options.pressure || share->measure.kind == MEASURE_NONE) return;
    uint32_t from = share->position, to = from + share->n_tokens;
    if (r->request.policy.contiguous || !r->request.policy.pressure) return;
    const sim_turn *turn = r->story.turns;
    while (turn->end <= from) turn++;
    if (retention_measure_rows(&turn->policy, turn->n_prompt, from, to).kind == MEASURE_NONE)
        note_pressure_drop(w, r, share->choice, to);
}

static const step_result *collect(world *w)
{
    const step_result *result = NULL;
    if (!status_ok(w->b.ops->collect(w->b.ctx, &result)) || sim_backend_wrong(w->sim))
        FAIL(w, "%s", sim_backend_wrong(w->sim));
    w->n_collected++;
    w->t->failed_ahead += !status_ok(result->status) && w->n_plans > 1;
    return result;
}

/* Begins copies as the engine does. `moves`: the plan that was submitted last moves pages. */
static void begin_copies(world *w, bool moves)
{
    bool ordered = moves || w->options.max_in_flight > 1;
    w->copies_after = ordered ? w->n_submitted : 0;
    if (!moves || w->options.max_in_flight > 1) disk_begin_loads(w);
    hand_order_exports(w);
}

/* The END that a token caused is delivered in the same call as the RESULT, as the engine does
 * it. */
static void deliver(world *w)
{
    const step_result *result = collect(w);
    const step_plan *plan = w->plans[0];
    /* Copies that waited for the moves of the plan. */
    if (w->options.max_in_flight == 1) begin_copies(w, false);
    const float *logits = result->logits;
    add_event(w, (sched_event){.kind = SCHED_RESULT, .result = result});
    w->plans[0] = w->plans[--w->n_plans];
    w->ahead[0] = w->ahead[w->n_plans];
    bool succeeded = status_ok(result->status);
    const step_plan *failed = w->failed;
    w->failed = !succeeded && w->n_plans > 0 ? plan : NULL;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *share = &plan->seqs[i];
        world_request *r = &w->requests[share->request];
        w->t->outlived += succeeded && failed && !has_seq_of(failed, share);
        if (!succeeded || has_seq_of(failed, share)) { /* the share is planned again later */
            for (uint32_t j = 0; j < share->n_samples; j++)
                r->choices[share->choice + j].due = false;
            logits += succeeded && share->want_logits ? share->n_tokens : 0;
            continue;
        }
        find_pressure_drop(w, r, share);
        if (share->want_logits) {
            for (uint32_t j = 0; r->live > 0 && j < share->n_tokens; j++) take_row(w, r, logits[j]);
            logits += share->n_tokens;
        }
        if (share->n_embeds && r->live > 0)
            take_embeddings(w, r, share, result->seqs[i].embeddings);
        if (share->pooling && r->live > 0) take_pooled(w, r, share, result->seqs[i].pooled);
        if (share->want_scores && r->live > 0) take_scores(w, r, share, result->seqs[i].scores);
        for (uint32_t j = 0; j < share->n_samples; j++) {
            uint32_t c = share->choice + j;
            if (!r->choices[c].ended && share->sample_index != r->choices[c].n_tokens)
                FAIL(w, "request %llu: sample_index", (unsigned long long)r->request.id);
            take_token(w, r, c, &result->seqs[i].samples[j]);
            r->forked = true;
        }
    }
}

/* ---- reports -------------------------------------------------------------------------------- */

/* Checks what is kept at the choice's end, if it was running and none of its rows was in flight. */
static void check_kept(world *w, const world_request *r, uint32_t c, const sched_choice_info *info)
{
    uint32_t at = info->report.logical_tokens - r->story.cut, n = r->request.n_prompt;
    uint32_t rows = n + r->request.max_new_tokens;
    if (!info->report.kept_json || r->choices[c].in_flight || at < n || at >= rows) return;
    w->t->kept_compared++;
    if (sim_hash_text(info->report.kept_json) != r->answer.kept[(size_t)c * rows + at])
        FAIL(w, "request %llu (%s), choice %u: another set is kept at %u tokens",
             (unsigned long long)r->request.id, info->report.method, c, at);
}

static void check_session(world *w, const world_request *r, const sched_event *event,
                          const sched_choice_info *info)
{
    const char *note = info->report.session;
    bool stored = strcmp(note, "stored") == 0 || strcmp(note, "continued") == 0;
    if (r->book == BOOKS || !stored) {
        if (stored) FAIL(w, "a session that no request named");
        return;
    }
    /* A waiting sequence reports all its tokens, however many are computed. */
    uint32_t n = info->report.logical_tokens, known = info->prompt_tokens + info->output_tokens;
    bool unknown = n == known && !r->choices[event->choice].in_flight;
    note_session(w, r, event->finished && !unknown ? n : 0);
}

static void check_report(world *w, const sched_event *event)
{
    const world_request *r = &w->requests[event->request];
    uint32_t rows = r->request.n_prompt + r->request.max_new_tokens;
    sched_choice_info info;
    if (!status_ok(sched_describe(w->s, event->request, event->choice, &info)))
        FAIL(w, "a choice that just ended is unknown");
    uint32_t last = r->request.n_prompt + info.output_tokens - 1;
    uint64_t expected = r->answer.dropped[(size_t)event->choice * rows + last];
    /* An end does not wait for a selection, except for that of a session. */
    bool selected = (event->finished && !info.selecting) ||
                    (w->options.hand_out_slots == 0 && !r->story.forces);
    /* One that was handed out fails if others come to share its pages. Its request is computed
     * again then, and may end before it is selected in. */
    bool was_set_back = w->options.hand_out_slots > 0 && info.preemptions > 0;
    if (was_set_back && info.report.pages_dropped < expected) selected = false;
    if (info.prompt_tokens != r->given.n_prompt ||
        (selected && info.output_tokens > 0 && info.report.pages_dropped != expected))
        FAIL(w, "request %llu: %llu pages dropped, the reference dropped %llu",
             (unsigned long long)event->request, (unsigned long long)info.report.pages_dropped,
             (unsigned long long)expected);
    if (selected) check_kept(w, r, event->choice, &info);
    w->t->beyond_preempted += info.preemptions > 0 && r->request.n_prompt > CONTEXT;
    w->t->readings_preempted += info.preemptions > 0 && r->request.n_embeds > 0;
    w->t->some_preempted += info.preemptions > 0 && r->request.n_layers > 0;
    check_session(w, r, event, &info);
    if (info.hands_over) hand_promise(w, &w->requests[event->request]);
    free(info.report.kept_json);
}

static void check_added(world *w, const sched_event *event)
{
    sched_choice_info info;
    if (!status_ok(sched_describe(w->s, event->add->id, 0, &info)))
        FAIL(w, "a request that was just added is unknown");
    make_answer(w, &w->requests[event->add->id], info.report.session);
    w->t->beyond += event->add->n_prompt > CONTEXT && event->add->policy.contiguous;
    free(info.report.kept_json);
}

static void submit(world *w, const step_plan *plan)
{
    if (w->n_plans > 0) tally_ahead(w, plan);
    check_plan(w, plan);
    /* A failed step computes its prompts anew, so a long one in rows of one token needs as many
     * steps without a failure: they end after a while. */
    if (chance(w, w->fail_permille, 1000) && w->turn < 1000 * (int64_t)w->n_requests) {
        sim_backend_fail_next(w->sim);
        w->fails++;
    }
    if (!status_ok(w->b.ops->submit(w->b.ctx, plan)) || sim_backend_wrong(w->sim))
        FAIL(w, "%s", sim_backend_wrong(w->sim));
    w->ahead[w->n_plans] = w->n_plans > 0;
    w->plans[w->n_plans++] = plan;
    w->n_submitted++;
}

/* Somebody looks at some request, perhaps at none that is live. Where pages may be taken under
 * pressure nobody does, because measures tell of that (find_pressure_drop). */
static void look(world *w)
{
    static pkv_map map;
    sched_sight sight;
    enum { NEWEST = 40 };
    uint32_t n = w->n_arrived < NEWEST ? w->n_arrived : NEWEST;
    uint64_t id = w->n_arrived - rng_below(&w->looks, n + 1); /* perhaps one that is to come */
    if (w->options.pressure || rng_below(&w->looks, 3)) return;
    if (!sched_draw_map(w->s, id, &sight, &map)) return;
    uint32_t known = sight.prompt_tokens + sight.output_tokens;
    if (sight.attention && sight.n_choices == 1 && sight.attention_at >= known)
        FAIL(w, "a token attended that does not exist");
    w->t->watched += sight.attention != NULL;
    sched_watch(w->s, id);
}

/* The first token comes with the load, and what follows from it in the same call. */
static void take_prompts(world *w)
{
    uint32_t requests[TAKINGS_MAX], n = hand_give(w, requests);
    for (uint32_t i = 0; i < n; i++) {
        world_request *r = &w->requests[requests[i]];
        r->forked = true;
        take_token(w, r, 0, &(step_sample){.token = r->handed.first_token, .rank = 1});
        r->choices[0].due = false; /* it does not run yet */
    }
}

static void turn(world *w)
{
    w->turn++;
    w->now_us += between(w, 1, 20000);
    w->n_events = 0;
    /* Events may come before or after the result, and while the step is still in flight. */
    if (chance(w, 1, 2)) make_events(w);
    bool result_first = w->n_plans > 0 && !chance(w, 1, 6);
    if (result_first) deliver(w);
    give_selections(w);
    disk_give_loads(w);
    take_prompts(w);
    if (chance(w, 1, 2)) make_events(w);
    if (chance(w, w->flush_permille, 1000)) {
        add_event(w, (sched_event){.kind = SCHED_FLUSH});
        disk_flush(w);
    }
    look(w);

    const step_plan *plan = sched_step(w->s, w->now_us, w->events, w->n_events);
    take_selections(w);
    disk_look(w);
    for (uint32_t i = 0; i < w->n_events; i++) {
        if (w->events[i].kind == SCHED_ADD) check_added(w, &w->events[i]);
        if (w->events[i].kind == SCHED_END && w->events[i].choice != SCHED_ALL_CHOICES)
            check_report(w, &w->events[i]);
    }
    hand_look(w);
    if (w->turn % w->check_every == 0) {
        const char *wrong = sched_check_integrity(w->s);
        if (wrong) FAIL(w, "%s", wrong);
    }
    if (w->n_plans > 0 && sched_plan_empty(plan)) return; /* wait for the result in flight */
    if (w->n_plans == w->options.max_in_flight) FAIL(w, "a plan while steps are in flight");
    check_progress(w, plan);
    check_order(w, plan);
    bool moves = plan->deltas.n_moves > 0;
    if (!sched_plan_empty(plan)) submit(w, plan);
    begin_copies(w, moves);
}

static void run_world(uint64_t seed, uint32_t depth, uint32_t n_requests, bool verbose, tally *t)
{
    world *w = calloc(1, sizeof *w);
    if (!w) abort();
    world_create(w, seed, depth, n_requests, t);
    int64_t most = 4000 + 2000 * (int64_t)n_requests;
    while (w->n_arrived < w->n_requests || w->n_live > 0 || w->n_plans > 0 ||
           w->n_selections + w->disk.n_loads > 0 || some_hand(w)) {
        if (w->turn > most)
            FAIL(w, "does not come to an end: %u of %u live", w->n_live, w->n_arrived);
        turn(w);
    }
    w->n_arrived = w->n_requests;
    w->now_us += w->options.session_ttl_us;
    int64_t last = w->turn;
    do turn(w);
    while (w->n_plans > 0 || w->n_selections + w->disk.n_loads > 0 || some_hand(w) ||
           w->turn < last + 2);
    sched_stats stats = sched_get_stats(w->s);
    const char *wrong = sched_check_integrity(w->s);
    if (wrong) FAIL(w, "%s", wrong);
    if (stats.pages.host_used != 0 || stats.swapped_tokens != 0)
        FAIL(w, "%u host pages are still used when all is over", stats.pages.host_used);
    if (stats.pages.used != 0 || stats.running != 0 || stats.waiting != 0)
        FAIL(w, "%u pages are still used when all is over", stats.pages.used);
    if (verbose) {
        printf("seed %llu: %u requests (%u refused, %llu retained, %llu aborted), %llu steps (%llu "
               "ahead), %llu tokens, "
               "%llu preemptions, %llu swapped and %llu back, %llu replayed, %llu failed steps, "
               "hits %llu of %llu, %llu pages "
               "dropped, "
               "passed over at most %llu times, %u pages of %u groups, chunk %u, %u seqs\n",
               (unsigned long long)seed, n_requests, w->n_refused,
               (unsigned long long)w->n_retained, (unsigned long long)w->n_aborted,
               (unsigned long long)stats.steps, (unsigned long long)stats.steps_ahead,
               (unsigned long long)w->tokens, (unsigned long long)stats.preemptions,
               (unsigned long long)stats.swaps_out, (unsigned long long)stats.swaps_in,
               (unsigned long long)stats.replayed_tokens, (unsigned long long)w->fails,
               (unsigned long long)stats.pages.hit_tokens,
               (unsigned long long)stats.pages.queried_tokens,
               (unsigned long long)stats.pages.pages_dropped,
               (unsigned long long)w->max_passed_over, w->options.n_pages,
               pkv_groups(&w->options.geometry), w->options.prefill_chunk, w->options.max_seqs);
    }
    tally_add(t, &stats);
    world_destroy(w);
    free(w);
}

int main(int argc, char **argv)
{
    tally t = {0};
    if (argc > 1) {
        uint64_t seed = strtoull(argv[1], NULL, 10);
        for (uint32_t depth = 1; depth <= 2; depth++)
            run_world(seed, depth,
                      argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : REQUESTS_PER_WORLD, true,
                      &t);
        return 0;
    }
    const char *soak = getenv("OCTAVO_SOAK");
    uint32_t total = soak ? 100000 : is_light() ? 5000 : 10000, done = 0;
    static const uint64_t failed_once[] = {30002032};
    uint64_t seed = soak ? strtoull(soak, NULL, 10) : 1;
    printf("worlds from seed %llu on\n", (unsigned long long)seed);
    /* In small worlds every step is followed by a full integrity check. */
    for (int i = 0; i < 20; i++, seed++, done += 25)
        for (uint32_t depth = 1; depth <= 2; depth++) run_world(seed, depth, 25, false, &t);
    for (size_t i = 0; i < sizeof failed_once / sizeof failed_once[0]; i++)
        for (uint32_t depth = 1; depth <= 2; depth++)
            run_world(failed_once[i], depth, REQUESTS_PER_WORLD, false, &t);
    for (; done < total; seed++, done += REQUESTS_PER_WORLD)
        for (uint32_t depth = 1; depth <= 2; depth++)
            run_world(seed, depth, REQUESTS_PER_WORLD, false, &t);
    bool enough = tally_print(&t, done); /* of everything, in 10^4 requests */
    return enough || is_light() ? 0 : 1;
}

/* Random requests: prompts with shared beginnings, any method with any fields, and turns of
 * conversations. */
#include "tests/sim/sim_world.h"
#include <math.h>

uint32_t length(world *w, uint32_t median, uint32_t most)
{
    float x = (float)median * expf(0.8f * rng_normal(&w->random));
    return x < 1 ? 1 : x > (float)most ? most : (uint32_t)x;
}

/* ---- policies -------------------------------------------------------------------------------- */

static void put_part(world *w, strbuf *json, retention_part part)
{
    size_t i = rng_below(&w->random, (uint32_t)retention_part_size(part));
    strbuf_printf(json, ", \"%s\": \"%s\"", retention_part_name(part),
                  retention_part_option(part, i).name);
}

static void put_budget(world *w, strbuf *json)
{
    if (chance(w, 1, 3)) strbuf_printf(json, ", \"tokens\": %u", between(w, 8, 200));
    else strbuf_printf(json, ", \"ratio\": 0.%02u", between(w, 1, 99));
}

/* The presets' default windows and chunks are longer than most prompts here. */
static void put_lengths(world *w, strbuf *json, const retention_policy *defaults)
{
    const pkv_geometry *g = &w->options.geometry;
    uint32_t chunk = w->options.prefill_chunk, most = chunk < 40 ? chunk : 40;
    bool recurrent = defaults->schedule == RETENTION_SCHEDULE_CHUNK;
    if (recurrent || defaults->window > chunk || chance(w, 2, 3))
        strbuf_printf(json, ", \"window\": %u", between(w, chance(w, 1, 9) ? 0 : 1, most));
    if (recurrent || chance(w, 1, 3)) strbuf_printf(json, ", \"sinks\": %u", between(w, 0, 20));
    if (recurrent) strbuf_printf(json, ", \"recurrent_chunk\": %u", between(w, 12, 100));
    if (defaults->schedule == RETENTION_SCHEDULE_DECODE && chance(w, 1, 3))
        strbuf_printf(json, ", \"interval\": %u", between(w, 1, 20));
    uint32_t reuse = between(w, 1, chance(w, 1, 4) ? 3 : 1);
    if (reuse <= g->n_layers) strbuf_printf(json, ", \"reuse_layers\": %u", reuse);
}

/* Rare fields; a method that does not use a field refuses it. */
static void put_rare(world *w, strbuf *json, bool recurrent)
{
    if (chance(w, 1, 10))
        strbuf_printf(json, ", \"positions\": \"%s\"", recurrent ? "original" : "cache");
    if (chance(w, 1, 20)) strbuf_printf(json, ", \"beta\": %u", between(w, 1, 40));
    if (chance(w, 1, 20)) strbuf_printf(json, ", \"floor\": 0.%u", between(w, 0, 9));
    if (chance(w, 1, 10)) strbuf_printf(json, ", \"rows\": %u", between(w, 1, 40));
}

static void put_method(world *w, strbuf *json, const retention_preset *preset)
{
    strbuf_printf(json, "\"method\": \"%s\"", preset->name);
    if (!(preset->fields & (RETENTION_FIELD_PARTS | RETENTION_FIELD_INPUT))) return;
    put_budget(w, json);
    if (preset->fields & RETENTION_FIELD_INPUT) {
        if (chance(w, 1, 2)) strbuf_printf(json, ", \"sinks\": %u", between(w, 0, 8));
        return;
    }
    put_lengths(w, json, &preset->defaults);
    put_rare(w, json, preset->defaults.schedule == RETENTION_SCHEDULE_CHUNK);
    for (uint32_t p = 0; p < RETENTION_PARTS; p++)
        if (chance(w, 1, p == RETENTION_PART_SCOPE ? 3 : 20)) put_part(w, json, (retention_part)p);
}

static const retention_preset *any_preset(world *w)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    return &presets[rng_below(&w->random, (uint32_t)n)];
}

static void put_decode(world *w, strbuf *json)
{
    static const char *const scores[] = {"last",    "projection", "knorm",
                                         "keydiff", "vknorm",     "recency"};
    enum { N = sizeof scores / sizeof *scores };
    strbuf_printf(json, ", \"decode\": {\"beta1\": %u, \"beta2\": %u", between(w, 1, 12),
                  between(w, 1, 12));
    if (chance(w, 1, 3)) strbuf_printf(json, ", \"score\": \"%s\"", scores[between(w, 0, N - 1)]);
    if (chance(w, 1, 2)) strbuf_puts(json, ", \"scope\": \"layer\"");
    strbuf_puts(json, "}");
}

static void put_policy(world *w, strbuf *json, const retention_preset *preset)
{
    strbuf_puts(json, "{");
    put_method(w, json, preset);
    if (preset->fields & RETENTION_FIELD_PHASES) {
        const retention_preset *prefill = any_preset(w);
        if (prefill->fields & (RETENTION_FIELD_PARTS | RETENTION_FIELD_INPUT)) {
            strbuf_puts(json, ", \"prefill\": {");
            put_method(w, json, prefill);
            strbuf_puts(json, "}");
        }
        put_decode(w, json);
    }
    if (chance(w, 1, 2)) strbuf_puts(json, ", \"report\": \"positions\"");
    strbuf_puts(json, "}");
}

static bool parse_policy(world *w, const char *text, retention_policy *out)
{
    retention_limits limits = {w->options.geometry, w->options.prefill_chunk,
                               w->options.max_model_len};
    json_t *json = NULL;
    if (text && !status_ok(json_read_text("sim", text, strlen(text), &json, NULL)))
        FAIL(w, "not JSON: %s", text);
    status st = retention_parse(json, &limits, out, NULL);
    json_decref(json);
    return status_ok(st);
}

static retention_policy random_policy(world *w)
{
    retention_policy policy;
    bool done = false;
    for (uint32_t i = 0; !done && i < 6 && chance(w, w->retain_percent, 100); i++) {
        const retention_preset *preset = any_preset(w);
        for (uint32_t j = 0; !done && j < 3; j++) {
            strbuf json = {0};
            put_policy(w, &json, preset);
            done = parse_policy(w, json.data, &policy);
            strbuf_destroy(&json);
        }
    }
    if (!done && !parse_policy(w, NULL, &policy)) FAIL(w, "\"full\" is refused");
    policy.pressure = chance(w, 3, 4);
    return policy;
}

retention_policy random_pressure(world *w)
{
    char text[80];
    retention_policy policy;
    snprintf(text, sizeof text, "{\"method\": \"chunkkv\", \"ratio\": 0.%u, \"window\": 8}",
             between(w, 2, 8));
    if (!parse_policy(w, text, &policy)) FAIL(w, "no pressure: %s", text);
    return policy;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static uint32_t *new_tokens(void)
{
    uint32_t *tokens = calloc(LONGEST, sizeof *tokens);
    if (!tokens) abort();
    return tokens;
}

static void make_prompt(world *w, world_request *r, uint32_t id)
{
    uint32_t n = length(w, w->median_prompt, w->options.max_model_len - 1), shared = 0;
    const uint32_t *from = NULL;
    if (id > 0 && chance(w, 1, 4)) { /* an earlier prompt, or a prefix of it */
        const world_request *other =
            &w->requests[id - 1 - rng_below(&w->random, id < 20 ? id : 20)];
        from = other->prompt;
        shared = chance(w, 1, 2) ? other->request.n_prompt : between(w, 1, other->request.n_prompt);
        if (shared > CONTEXT - 1) shared = CONTEXT - 1;
        if (chance(w, 1, 2)) n = shared;
    } else if (chance(w, 1, 2)) {
        from = w->prefixes[rng_below(&w->random, PREFIXES)];
        shared = between(w, 1, n);
    }
    if (shared > n) shared = n;
    r->prompt = new_tokens();
    for (uint32_t i = 0; i < n; i++)
        r->prompt[i] = i < shared ? from[i] : between(w, 0, SIM_VOCAB - 1);
    r->request.n_prompt = n;
}

/* The most tokens of prompt and output. */
static uint32_t longest_of(const sched_request *q)
{
    return q->policy.contiguous ? LONGEST : CONTEXT;
}

/* Makes half of the prompts whose positions close up longer than they are, many of them longer than
 * the context. */
static void lengthen(world *w, world_request *r)
{
    if (!r->request.policy.contiguous || rng_below(&w->lengths, 2)) return;
    uint32_t n = r->request.n_prompt, more = rng_below(&w->lengths, 2 * CONTEXT);
    if (more >= LONGEST - n) return;
    for (uint32_t i = n; i < n + more; i++) r->prompt[i] = rng_below(&w->lengths, SIM_VOCAB);
    r->request.n_prompt += more;
}

/* Mostly continues a conversation that left a session. */
static void make_turn(world *w, world_request *r)
{
    r->book = between(w, 0, BOOKS - 1);
    world_book *book = &w->books[r->book];
    r->request.session[0] = r->book + 1;
    r->request.session[1] = w->seed;
    r->request.n = chance(w, 1, 12) && w->options.max_seqs > 1 ? 2 : 1;
    if (book->n_turns == 0 || book->n_turns == SIM_TURNS_MAX - 1 || chance(w, 1, 8)) return;
    uint32_t least = book->n_tokens + 1;
    uint32_t most = (book->asked.contiguous ? LONGEST : CONTEXT) - 1;
    if (least > most) return;
    uint32_t n = least + length(w, 15, 100) - 1;
    r->request.n_prompt = n < most ? n : most;
    memcpy(r->prompt, book->tokens, book->n_tokens * sizeof *r->prompt);
    for (uint32_t i = book->n_tokens; i < r->request.n_prompt; i++)
        r->prompt[i] = between(w, 0, SIM_VOCAB - 1);
    if (chance(w, 1, 8)) return;
    bool pressure = r->request.policy.pressure;
    r->request.policy = book->asked;
    r->request.policy.pressure = pressure;
    if (book->asked.ratio > 0) r->request.policy.ratio = (double)between(w, 1, 100) / 100;
}

/* Applies truncate: keeps the first `sinks` tokens and the last ones, within the budget. */
static void cut_prompt(world_request *r)
{
    const retention_policy *p = &r->request.policy;
    uint32_t n = r->request.n_prompt, budget = p->tokens;
    if (p->tokens == 0) budget = (uint32_t)(p->ratio * n + 1e-6);
    uint32_t left = budget > p->sinks ? budget : p->sinks + 1;
    r->given = r->request;
    if (p->schedule != RETENTION_SCHEDULE_INPUT || left >= n) return;
    r->whole = new_tokens();
    memcpy(r->whole, r->prompt, n * sizeof *r->whole);
    for (uint32_t i = p->sinks; i < left; i++) r->prompt[i] = r->whole[n - left + i];
    r->given.prompt = r->whole;
    r->request.n_prompt = left;
    r->story.cut = n - left;
}

/* Some requests that could be readings are: they end when they have their rows' embeddings. */
static void make_reading(const world *w, sched_request *q, uint32_t id)
{
    static const embed_head head = {0, EMBED_V, 0};
    bool can =
        q->n == 1 && !q->want_logits && !q->want_scores && !retention_wants_novelty(&q->policy);
    if (!can || id % 7) return;
    q->embeds = &head;
    q->n_embeds = 1;
    q->n_layers = id / 7 % w->options.geometry.n_layers;
    q->max_new_tokens = 1;
}

/* Some requests pool their prompt's rows: all of them, or the last. */
static void make_pooling(sched_request *q, uint32_t id)
{
    bool is_cut = q->policy.schedule == RETENTION_SCHEDULE_INPUT;
    if (q->want_logits || q->want_scores || q->n_embeds || is_cut || id % 13) return;
    q->pooling = id % 2 ? POOLING_SUM : POOLING_LAST;
}

/* Some answers have tokens that are forced, none of which ends them. Backends that follow masks
 * have one step in flight. */
static void make_forced(const world *w, world_request *r, uint32_t id)
{
    r->story.forces = w->options.max_in_flight == 1 && r->request.n == 1 && id % 3 == 0;
    while (r->story.forces && sim_is_forced(&r->request, r->choices[0].stop_at - 1))
        r->choices[0].stop_at++;
}

void make_request(world *w, world_request *r, uint32_t id)
{
    make_prompt(w, r, id);
    sched_request *q = &r->request;
    uint32_t most = w->options.max_seqs;
    q->id = id;
    q->arrival = id + (chance(w, 1, 4) ? between(w, 0, 3) : 0); /* slightly out of order */
    q->priority = chance(w, 1, 3) ? (int32_t)between(w, 0, 4) - 2 : 0;
    if (w->options.policy == SCHED_FCFS) q->priority = 0;
    q->n = chance(w, 1, 4) ? between(w, 1, most < CHOICES_MAX ? most : CHOICES_MAX) : 1;
    q->salt = chance(w, 1, 10);
    q->params = (sample_params){.top_p = 1,
                                .repetition_penalty = chance(w, 1, 4) ? 1.5f : 1,
                                .seed = rng_u64(&w->random),
                                .n_logprobs = -1};
    q->policy = random_policy(w);
    q->want_logits = chance(w, 1, 12);
    if (q->want_logits && id % 2) { /* half of these ask for scores instead of logits */
        q->want_logits = false;
        q->want_scores = 1;
    }
    r->book = BOOKS;
    if (chance(w, w->session_percent, 100)) {
        q->salt = 0;
        make_turn(w, r);
    }
    lengthen(w, r);
    q->prompt = r->prompt;
    uint32_t room = longest_of(q) > q->n_prompt ? longest_of(q) - q->n_prompt : 1;
    q->max_new_tokens = length(w, w->median_output, room);
    if (r->book == BOOKS) make_reading(w, q, id);
    r->live = q->n;
    r->abort_at = chance(w, w->abort_percent, 100)
                      ? w->turn + length(w, 10 + w->median_output, 1000)
                      : INT64_MAX;
    for (uint32_t c = 0; c < q->n; c++) {
        r->choices[c].stop_at =
            chance(w, 1, 3) ? between(w, 1, q->max_new_tokens) : q->max_new_tokens;
    }
    if (r->book == BOOKS) make_pooling(q, id);
    cut_prompt(r);
    make_forced(w, r, id);
}

/* ---- what the world expects ----------------------------------------------------------------- */

static void update_answer(world *w, world_request *r)
{
    r->story.pressure = &w->pressure;
    for (uint32_t c = 0; c < r->request.n; c++) {
        r->story.pressure_drops[c] = r->choices[c].pressure_drops;
        r->story.n_pressure_drops[c] = r->choices[c].n_pressure_drops;
    }
    sim_answer_free(&r->answer);
    r->answer = sim_reference(&w->options.geometry, &r->story);
}

void make_answer(world *w, world_request *r, const char *note)
{
    sim_story *story = &r->story;
    const world_book *book = r->book < BOOKS ? &w->books[r->book] : NULL;
    story->request = &r->request;
    if (strcmp(note, "continued") == 0) {
        if (!book || book->n_turns == 0 || r->request.n > 1 || wants_rows(r))
            FAIL(w, "request %llu goes on from nothing", (unsigned long long)r->request.id);
        memcpy(story->turns, book->turns, sizeof story->turns);
        story->n_turns = book->n_turns;
        for (uint32_t i = 0; i < book->n_pressure_drops; i++) {
            if (!r->choices[0].pressure_drops) r->choices[0].pressure_drops = new_tokens();
            r->choices[0].pressure_drops[i] = book->pressure_drops[i];
        }
        r->choices[0].n_pressure_drops = book->n_pressure_drops;
    } else if (strncmp(note, "ignored: ", 9) != 0 && strncmp(note, "restarted: ", 11) != 0 &&
               *note) {
        FAIL(w, "request %llu: session \"%s\"", (unsigned long long)r->request.id, note);
    }
    sim_turn turn = {r->request.n_prompt, UINT32_MAX, r->request.policy};
    retention_policy_resolve(&turn.policy, r->request.max_new_tokens);
    story->turns[story->n_turns++] = turn;
    update_answer(w, r);
}

void note_pressure_drop(world *w, world_request *r, uint32_t choice, uint32_t at)
{
    world_choice *c = &r->choices[choice];
    for (uint32_t i = 0; i < c->n_pressure_drops; i++) {
        if (c->pressure_drops[i] == at) return; /* made again by a replay */
    }
    if (!c->pressure_drops) c->pressure_drops = new_tokens();
    c->pressure_drops[c->n_pressure_drops++] = at;
    w->t->pressure_drops++;
    update_answer(w, r);
}

void note_session(world *w, const world_request *r, uint32_t n_tokens)
{
    world_book *book = &w->books[r->book];
    book->n_turns = 0;
    if (n_tokens == 0 || r->story.n_turns == 0) return;
    if (!book->tokens) {
        book->tokens = new_tokens();
        book->pressure_drops = new_tokens();
    }
    memcpy(book->turns, r->story.turns, sizeof book->turns);
    /* Its last turns are not in it where it ended while it was computed again. */
    book->n_turns = 1;
    while (book->n_turns < r->story.n_turns && book->turns[book->n_turns - 1].end < n_tokens)
        book->n_turns++;
    book->turns[book->n_turns - 1].end = n_tokens;
    book->asked = r->request.policy;
    book->n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++) {
        uint32_t n = r->request.n_prompt;
        book->tokens[i] = i < n ? r->prompt[i] : r->answer.tokens[i - n];
    }
    const world_choice *c = &r->choices[0];
    book->n_pressure_drops = 0;
    for (uint32_t i = 0; i < c->n_pressure_drops; i++)
        if (c->pressure_drops[i] <= n_tokens)
            book->pressure_drops[book->n_pressure_drops++] = c->pressure_drops[i];
}

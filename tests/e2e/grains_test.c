/* Sequences of every grain, on pages of every size, on one rank or two, with K and V of every
 * format: a request's tokens and logprobs are those that it has alone, although it is swapped out
 * or computed again, is one of several choices, or goes on from a session, beside requests of the
 * other grains. Each two of these settings meet in some row of an array (all pairs), except int4
 * with pages of 16 tokens, which a server refuses. */
#include "tests/e2e/house.h"

enum { REQUESTS = 5, PROMPT_MAX = 660, OUTPUTS_MAX = 768, VOCAB = 60, CHOICES = 3, GROUPS = 4 };

/* ---- settings, and rows that meet each pair of them ------------------------------------------ */

enum { GRAIN, PAGE, RANKS, FORMAT, WAY, FACTORS, LEVELS_MAX = 5 };
enum { SWAP, REPLAY, FORK, SESSION };

static const uint32_t levels[FACTORS][LEVELS_MAX + 1] = {
    [GRAIN] = {3, PKV_ALL, PKV_LAYER, PKV_HEAD}, // how many, and which
    [PAGE] = {4, 16, 32, 128, 256},
    [RANKS] = {2, 1, 2},
    [FORMAT] = {5, KERN_KV_F32, KERN_KV_BF16, KERN_KV_F16, KERN_KV_INT8, KERN_KV_INT4},
    [WAY] = {4, SWAP, REPLAY, FORK, SESSION},
};

typedef struct row {
    uint32_t level[FACTORS];
} row;

typedef bool pairs[FACTORS][LEVELS_MAX][FACTORS][LEVELS_MAX];

static uint32_t value(const row *r, uint32_t factor)
{
    return levels[factor][1 + r->level[factor]];
}

static bool is_valid(const row *r)
{
    return value(r, FORMAT) != KERN_KV_INT4 || value(r, PAGE) % 32 == 0;
}

/* Number of pairs in a row that are not met yet; with `now` they become met. */
static uint32_t meet(const row *r, pairs met, bool now)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < FACTORS; a++)
        for (uint32_t b = a + 1; b < FACTORS; b++) {
            bool *pair = &met[a][r->level[a]][b][r->level[b]];
            n += !*pair;
            *pair |= now;
        }
    return n;
}

/* The row that meets most new pairs, the first of those from `from` on; false when none meets
 * any. */
static bool next_row(pairs met, uint32_t from, row *out)
{
    uint32_t all = 1, most = 0;
    for (uint32_t f = 0; f < FACTORS; f++) all *= levels[f][0];
    for (uint32_t i = 0; i < all; i++) {
        row r;
        uint32_t left = (from + i) % all;
        for (uint32_t f = 0; f < FACTORS; left /= levels[f++][0]) r.level[f] = left % levels[f][0];
        uint32_t n = is_valid(&r) ? meet(&r, met, false) : 0;
        if (n <= most) continue;
        most = n;
        *out = r;
    }
    return most > 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A method for each grain that a sequence's tables may have. */
static const char *const methods[] = {
    [PKV_ALL] = "{\"method\": \"full\"}",
    [PKV_LAYER] = "{\"method\": \"chunkkv\", \"ratio\": 0.4, \"window\": 16}",
    [PKV_HEAD] = "{\"method\": \"snapkv\", \"ratio\": 0.4, \"window\": 16}",
};

typedef struct turn {
    pkv_grain grain;
    uint32_t number; // its prompt and seed
    uint32_t n_prompt, outputs, n;
    const char *session;
    const uint32_t *before; // [n_before] the conversation so far, in front of the prompt
    uint32_t n_before;
} turn;

typedef struct answer {
    uint32_t n[CHOICES];
    uint32_t tokens[CHOICES][OUTPUTS_MAX];
    float logprobs[CHOICES][OUTPUTS_MAX];
    double kept_tokens;
    char session[96];
} answer;

static void make_prompt(uint32_t number, uint32_t n, uint32_t *tokens)
{
    rng random = rng_seed(70 + number);
    for (uint32_t t = 0; t < n; t++) tokens[t] = rng_below(&random, VOCAB);
}

/* Choices of one request are greedy, so each of them is the answer of a request with one choice;
 * every second other request samples. */
static engine_stream *submit(house *h, const turn *t)
{
    static const engine_defaults defaults = {.top_p = 1, .repetition_penalty = 1};
    static uint32_t tokens[2 * PROMPT_MAX + OUTPUTS_MAX];
    engine_request r;
    engine_stream *s;
    error err = {{0}};
    if (t->n_before > 0) memcpy(tokens, t->before, t->n_before * sizeof *tokens);
    make_prompt(t->number, t->n_prompt, tokens + t->n_before);
    engine_request_init(&r, &defaults);
    r.prompt_token_ids = tokens;
    r.n_prompt_token_ids = t->n_before + t->n_prompt;
    r.max_tokens = t->outputs;
    r.ignore_eos = true;
    r.logprobs = 0;
    r.n = t->n ? t->n : 1;
    if (t->number % 2 && r.n == 1) {
        r.temperature = 0.9f;
        r.has_seed = true;
        r.seed = t->number;
    }
    r.retention = json_loads(methods[t->grain], 0, NULL);
    r.session = t->session ? strdup(t->session) : NULL;
    if (!status_ok(engine_submit(h->engine, &r, NULL, NULL, &s, &err)))
        fail_msg("%s: %s", methods[t->grain], err.text);
    r.prompt_token_ids = NULL; /* it belongs to the test */
    engine_request_destroy(&r);
    return s;
}

static void read_answer(engine_stream *s, answer *a)
{
    engine_output out;
    memset(a, 0, sizeof *a);
    while (engine_stream_wait(s, &out)) {
        if (out.finish == ENGINE_FINISH_ERROR) fail_msg("%s", out.error_text);
        if (out.has_token) {
            uint32_t at = a->n[out.choice]++;
            a->tokens[out.choice][at] = out.sample.token;
            a->logprobs[out.choice][at] = out.sample.logprob;
        }
        if (!out.report) continue;
        a->kept_tokens = out.report->kept_tokens;
        snprintf(a->session, sizeof a->session, "%s", out.report->session);
    }
    engine_stream_release(s);
}

static void assert_same(const char *what, uint32_t choice, const answer *alone, const answer *got)
{
    uint32_t at = 0, n = alone->n[0];
    while (at < n && at < got->n[choice] && alone->tokens[0][at] == got->tokens[choice][at] &&
           memcmp(&alone->logprobs[0][at], &got->logprobs[choice][at], sizeof(float)) == 0)
        at++;
    if (at < n || got->n[choice] != n)
        fail_msg("%s, choice %u: differs from token %u on", what, choice, at);
    if (choice == 0 && alone->kept_tokens != got->kept_tokens)
        fail_msg("%s: keeps %g tokens, not %g", what, got->kept_tokens, alone->kept_tokens);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Lengths in pages, so that every page size has as many; short ones in tokens, because a window and
 * a swap that pays need some. */
static uint32_t prompt_of(const row *r)
{
    uint32_t page = value(r, PAGE);
    return page < 40 ? 100 + page / 16 : page * 5 / 2;
}

static uint32_t outputs_of(const row *r) { return 3 * value(r, PAGE); }

static setting setting_of(const row *r, uint64_t kv_bytes, uint64_t swap_bytes)
{
    return (setting){.dir = "tests/golden/models/mistral_f32",
                     .override = "max_position_embeddings=4096",
                     .kv_type = (kern_kv_format)value(r, FORMAT),
                     .prefill_chunk = 256,
                     .layers_per_group = 1,
                     .heads_per_group = 1,
                     .page_tokens = value(r, PAGE),
                     .max_model_len = 2 * PROMPT_MAX + 2 * OUTPUTS_MAX,
                     .kv_bytes = kv_bytes,
                     .swap_bytes = swap_bytes,
                     .n_ranks = value(r, RANKS) > 1 ? value(r, RANKS) : 0,
                     .max_sessions = 4};
}

/* Most of the requests are of the row's grain, and run at once; two short ones follow, of the other
 * grains. */
static turn nth_turn(const row *r, uint32_t i)
{
    uint32_t grain = value(r, GRAIN);
    bool is_other = i >= REQUESTS - 2;
    if (is_other) grain = (grain + 1 + i % 2) % 3;
    return (turn){.grain = (pkv_grain)grain,
                  .number = i,
                  .n_prompt = prompt_of(r) - i,
                  .outputs = is_other ? value(r, PAGE) : outputs_of(r)};
}

/* The second turn of the conversation whose first turn was request 0. */
static turn next_turn(const row *r, const answer *first)
{
    static uint32_t words[2 * PROMPT_MAX + OUTPUTS_MAX];
    turn t = nth_turn(r, 0);
    make_prompt(0, t.n_prompt, words);
    memcpy(words + t.n_prompt, first->tokens[0], first->n[0] * sizeof *words);
    t.before = words;
    t.n_before = t.n_prompt + first->n[0];
    t.number = REQUESTS;
    t.n_prompt = 20;
    t.outputs = value(r, PAGE) / 2;
    t.session = "talk";
    return t;
}

typedef struct answers {
    answer of[REQUESTS], second;
} answers;

/* Each request by itself; the first one has a second turn where the row is of sessions. Returns the
 * bytes of a page of the pool. */
static uint64_t answer_alone(const row *r, answers *out)
{
    setting s = setting_of(r, 64 << 20, 0);
    house h = open_house(&s);
    uint64_t bytes = s.kv_bytes / h.backend.ops->info(h.backend.ctx)->n_pages;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        turn t = nth_turn(r, i);
        if (value(r, WAY) == SESSION && i == 0) t.session = "talk";
        read_answer(submit(&h, &t), &out->of[i]);
    }
    if (value(r, WAY) == SESSION) {
        turn t = next_turn(r, &out->of[0]);
        read_answer(submit(&h, &t), &out->second);
        assert_string_equal(out->second.session, "continued");
    }
    assert_int_equal(engine_get_stats(h.engine).sched.preemptions, 0);
    close_house(&h);
    return bytes;
}

/* The first turn runs before the others, so that its session is idle while pages are short. */
static void answer_beside_others(house *h, const row *r, const char *name, const answers *alone)
{
    engine_stream *streams[REQUESTS];
    answer *got = malloc(sizeof *got);
    assert_non_null(got);
    uint32_t first = 0, choices = value(r, WAY) == FORK ? CHOICES : 1;
    if (value(r, WAY) == SESSION) {
        turn t = nth_turn(r, first++);
        t.session = "talk";
        read_answer(submit(h, &t), got);
        assert_same(name, 0, &alone->of[0], got);
    }
    shut_gate(h);
    for (uint32_t i = first; i < REQUESTS; i++) {
        turn t = nth_turn(r, i);
        if (i % 2 == 0) t.n = choices;
        streams[i] = submit(h, &t);
    }
    open_gate(h);
    for (uint32_t i = first; i < REQUESTS; i++) {
        read_answer(streams[i], got);
        for (uint32_t c = 0; c < (i % 2 == 0 ? choices : 1); c++)
            assert_same(name, c, &alone->of[i], got);
    }
    if (value(r, WAY) == SESSION) {
        turn t = next_turn(r, &alone->of[0]);
        read_answer(submit(h, &t), got);
        assert_string_equal(got->session, "continued");
        assert_same(name, 0, &alone->second, got);
    }
    free(got);
}

static void run_row(const row *r)
{
    static answers alone;
    char name[96];
    static const char *const ways[] = {"swap", "replay", "fork", "session"};
    static const char *const grains[] = {"full", "chunkkv", "snapkv"};
    snprintf(name, sizeof name, "%s, pages of %u, tp %u, %s, %s", grains[value(r, GRAIN)],
             value(r, PAGE), value(r, RANKS), kern_kv_name((kern_kv_format)value(r, FORMAT)),
             ways[value(r, WAY)]);
    uint64_t page_bytes = answer_alone(r, &alone);
    /* Two prompts and a little more: requests that start together cannot end together. Choices of
     * one request need more. */
    uint32_t page = value(r, PAGE), blocks = 2 * ((prompt_of(r) + page - 1) / page) + 2;
    if (value(r, WAY) == FORK) blocks *= 2;
    uint64_t kv_bytes = (GROUPS * blocks + 1) * page_bytes;
    setting s = setting_of(r, kv_bytes, value(r, WAY) == REPLAY ? 0 : 4 * kv_bytes);
    house h = open_house(&s);
    answer_beside_others(&h, r, name, &alone);
    sched_stats stats = engine_get_stats(h.engine).sched;
    close_house(&h);
    print_message("%s: %llu preemptions, %llu back from the host tier, %llu tokens again\n", name,
                  (unsigned long long)stats.preemptions, (unsigned long long)stats.swaps_in,
                  (unsigned long long)stats.replayed_tokens);
    if (value(r, WAY) == SWAP || value(r, WAY) == SESSION) assert_true(stats.swaps_in > 0);
    if (value(r, WAY) == REPLAY) assert_true(stats.replayed_tokens > 0);
}

static void every_pair(void **state)
{
    (void)state;
    static pairs met;
    row r;
    uint32_t n = 0;
    while (next_row(met, 69 * n, &r)) {
        run_row(&r);
        meet(&r, met, true);
        n++;
    }
    print_message("%u rows\n", n);
    assert_int_equal(n, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests_name("grains", tests, NULL, NULL);
}

/* Sessions that were kept elsewhere: another scheduler goes on from them as the one that made them
 * would have after a replay. Plans are read as traces. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TURNS_MOST = 64, WORDS = 2048 };

/* A copy of what a scheduler told last. */
typedef struct keeper {
    sched_saved saved;
    sched_turn turns[TURNS_MOST];
    uint32_t drops[WORDS], tokens[WORDS];
    uint32_t n_told;
} keeper;

static void keep(void *ctx, const sched_saved *saved)
{
    keeper *k = ctx;
    assert_true(saved->n_turns <= TURNS_MOST && saved->n_tokens <= WORDS);
    memcpy(k->turns, saved->turns, saved->n_turns * sizeof *k->turns);
    memcpy(k->drops, saved->pressure_drops, saved->n_pressure_drops * sizeof *k->drops);
    memcpy(k->tokens, saved->tokens, saved->n_tokens * sizeof *k->tokens);
    k->saved = *saved;
    k->saved.turns = k->turns;
    k->saved.pressure_drops = k->drops;
    k->saved.tokens = k->tokens;
    k->n_told++;
}

static sched_options options_of(keeper *k)
{
    sched_options o = small_options();
    o.prefill_chunk = 200;
    o.n_pages = 1 + 2 * 40;
    o.max_sessions = 4;
    o.prefix_cache = false;
    o.on_session = keep;
    o.on_session_ctx = k;
    return o;
}

static void run_to_end(fixture *f, uint64_t id, uint32_t n_out)
{
    do step(f);
    while (describe(f, id, 0).output_tokens < n_out);
    finish_choice(f, id);
    step(f);
    step(f);
}

/* A prompt of 90 tokens, `n_out` answers (500), and more. */
static sched_request next_turn(fixture *f, uint64_t id, uint32_t n_out, uint32_t n_new)
{
    sched_request r = request(f, id, 0, 90 + n_out + n_new, 4);
    for (uint32_t i = 0; i < n_out; i++) ((uint32_t *)r.prompt)[90 + i] = 500;
    return of_session(r, 7);
}

/* Leaves a session of 93 tokens, and the scheduler that made it. */
static void make_session(keeper *k, const char *policy)
{
    fixture *f = begin(options_of(k));
    sched_request a = of_session(request(f, 1, 0, 90, 4), 7);
    if (policy) a.policy = with_policy(f, 2, 0, 9, 1, policy).policy;
    a.owner = 77;
    add(f, &a);
    run_to_end(f, 1, 4);
    assert_int_equal(k->n_told, 1);
    assert_int_equal(k->saved.n_tokens, 93);
    assert_int_equal(k->saved.n_turns, 1);
    assert_int_equal(k->saved.owner, 77);
    finish(f);
}

static void another_scheduler_goes_on(void **state)
{
    (void)state;
    keeper k = {.n_told = 0};
    make_session(&k, NULL);
    fixture *f = begin(options_of(&k));
    sched_request b = next_turn(f, 2, 4, 20);
    b.saved = &k.saved;
    add(f, &b);
    assert_string_equal(step(f), "2@0+93");
    assert_string_equal(describe(f, 2, 0).report.session, "continued");
    assert_string_equal(step(f), "2@93+21*");
    run_to_end(f, 2, 4);
    sched_stats stats = sched_get_stats(f->s);
    assert_int_equal(stats.sessions_continued, 1);
    assert_int_equal(stats.sessions_recalled, 1);
    assert_int_equal(stats.replayed_tokens, 0); /* not computed here before */
    assert_int_equal(k.n_told, 2);
    assert_int_equal(k.saved.n_turns, 2);
    assert_int_equal(k.turns[0].end, 93);
    assert_int_equal(k.saved.n_tokens, 117);
    /* The pages of the session in memory are used, whatever a request brings. */
    sched_request c = request(f, 3, 0, 130, 4);
    memcpy((uint32_t *)c.prompt, k.tokens, 117 * sizeof *k.tokens);
    c = of_session(c, 7);
    sched_saved old = {.tokens = k.tokens, .n_tokens = 1, .turns = k.turns, .n_turns = 1};
    c.saved = &old;
    add(f, &c);
    assert_string_equal(step(f), "3@117+13*");
    end(f, 3, 0);
    step(f);
    finish(f);
}

/* The selection of the first turn is made again, over the same rows, and that of the next one over
 * what it left, as in the scheduler that had the pages. */
static void selections_are_made_again(void **state)
{
    (void)state;
    const char *policy = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 10}";
    keeper k = {.n_told = 0};
    make_session(&k, policy);
    fixture *f = begin(options_of(&k));
    sched_request b = next_turn(f, 2, 4, 60);
    b.policy = with_policy(f, 3, 0, 9, 1, policy).policy;
    b.saved = &k.saved;
    add(f, &b);
    assert_string_equal(step(f), "2@0+90m10");
    assert_string_equal(step(f), "2@90+3");
    assert_string_equal(step(f), "2@93+61*m10");
    run_to_end(f, 2, 4);
    assert_int_equal(k.saved.n_turns, 2);
    uint32_t pages = used_pages(f);
    finish(f);

    f = begin(options_of(&k));
    sched_request a = of_session(request(f, 1, 0, 90, 4), 7);
    a.policy = b.policy;
    add(f, &a);
    run_to_end(f, 1, 4);
    sched_request c = next_turn(f, 2, 4, 60);
    c.policy = b.policy;
    add(f, &c);
    run_to_end(f, 2, 4);
    assert_int_equal(used_pages(f), pages); /* without a stop between the turns */
    finish(f);
}

static void reasons_are_given(void **state)
{
    (void)state;
    const char *wide = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 60}";
    const char *narrow = "{\"method\": \"chunkkv\", \"ratio\": 0.5, \"window\": 10}";
    for (int i = 0; i < 5; i++) {
        keeper k = {.n_told = 0};
        make_session(&k, wide);
        sched_options o = options_of(&k);
        const char *note = "continued";
        if (i == 1) o.prefill_chunk = 50;
        if (i == 1) note = "ignored: its turns do not suit this server's limits";
        if (i == 2) k.drops[0] = 93, k.saved.n_pressure_drops = 1;
        if (i == 2) note = "ignored: it was made under --pressure-retention";
        if (i == 3) k.saved.salt++;
        if (i == 3) note = "ignored: the prompt does not extend the session";
        if (i == 4) o.max_sessions = 0;
        if (i == 4) note = "ignored: sessions are off";
        fixture *f = begin(o);
        sched_request b = next_turn(f, 2, 4, 20);
        b.policy = with_policy(f, 3, 0, 9, 1, narrow).policy;
        b.saved = &k.saved;
        add(f, &b);
        step(f);
        assert_string_equal(describe(f, 2, 0).report.session, note);
        end(f, 2, 0);
        step(f);
        finish(f);
    }
}

/* A limit of zero is none. */
static void none_is_too_old(void **state)
{
    (void)state;
    keeper k = {.n_told = 0};
    fixture *f = begin(options_of(&k));
    sched_request a = of_session(request(f, 1, 0, 90, 4), 7);
    add(f, &a);
    run_to_end(f, 1, 4);
    f->now_us += INT64_C(1) << 50;
    step(f);
    step(f);
    assert_int_equal(sched_get_stats(f->s).sessions_idle, 1);
    finish(f);
}

static void a_session_of_64_turns_begins_anew(void **state)
{
    (void)state;
    keeper k = {.n_told = 0};
    make_session(&k, NULL);
    for (uint32_t i = 1; i < TURNS_MOST; i++) k.turns[i] = k.turns[0];
    k.saved.n_turns = TURNS_MOST;
    fixture *f = begin(options_of(&k));
    sched_request b = next_turn(f, 2, 4, 20);
    b.saved = &k.saved;
    add(f, &b);
    assert_string_equal(step(f), "2@0+114*");
    run_to_end(f, 2, 4);
    assert_int_equal(k.saved.n_turns, 1);
    finish(f);
}

/* A session is forgotten while it is idle, while a request has it, and between a request's end and
 * the result that it waits for; it is not told again. */
static void a_session_is_forgotten(void **state)
{
    (void)state;
    const sched_event forget = {.kind = SCHED_FORGET, .session = {7, 0}};
    for (int when = 0; when < 4; when++) {
        keeper k = {.n_told = 0};
        fixture *f = begin(options_of(&k));
        sched_request a = of_session(request(f, 1, 0, 90, 4), 7);
        add(f, &a);
        step(f);
        step(f);
        if (when == 1) post(f, forget);
        if (when == 1) step(f);
        finish_choice(f, 1);
        if (when == 2) post(f, forget);
        step(f);
        assert_string_equal(describe(f, 1, 0).report.session,
                            when == 1 ? "ended: it was deleted" : "stored");
        if (when == 0 || when == 3) step(f);
        if (when == 0) post(f, forget);
        step(f);
        assert_int_equal(k.n_told, when == 0 || when == 3);
        assert_int_equal(sched_get_stats(f->s).sessions_idle, when == 3);
        assert_int_equal(used_pages(f) > 0, when == 3);
        /* The key is free for another. */
        sched_request b = of_session(request(f, 2, 500, 20, 4), 7);
        if (when < 3) {
            add(f, &b);
            run_to_end(f, 2, 4);
            assert_int_equal(k.saved.n_tokens, 23);
        }
        finish(f);
    }
}

static void memory_may_be_short(void **state)
{
    (void)state;
    long n_calls = 1;
    for (long i = 0; i < n_calls; i++) {
        keeper k = {.n_told = 0};
        make_session(&k, NULL);
        fixture *f = begin(options_of(&k));
        long before = f->heap.calls;
        if (i > 0) f->heap.fail_at = before + i - 1;
        sched_request b = next_turn(f, 2, 4, 20);
        b.saved = &k.saved;
        sched_choice_info info;
        add(f, &b);
        for (int t = 0; t < 8; t++) step(f);
        if (status_ok(sched_describe(f->s, 2, 0, &info))) finish_choice(f, 2);
        step(f);
        step(f);
        if (i == 0) n_calls = f->heap.calls - before + 1;
        finish(f);
    }
    assert_true(n_calls > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_scheduler_goes_on),
        cmocka_unit_test(selections_are_made_again),
        cmocka_unit_test(reasons_are_given),
        cmocka_unit_test(none_is_too_old),
        cmocka_unit_test(a_session_of_64_turns_begins_anew),
        cmocka_unit_test(a_session_is_forgotten),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The order in which streams get a tokenizer thread: the queue alone, without threads. */
#include "engine/grammar/internal.h"
#include "engine/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 600 };

typedef struct fixture {
    engine *engine; // its queue and its policy alone are used
    engine_stream *streams[MOST];
    uint32_t n;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->engine = calloc(1, sizeof *f->engine);
    pthread_mutex_init(&f->engine->prepare.lock, NULL);
    pthread_cond_init(&f->engine->prepare.arrived, NULL);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < f->n; i++) {
        json_decref(f->streams[i]->request.messages);
        free(f->streams[i]);
    }
    pthread_cond_destroy(&f->engine->prepare.arrived);
    pthread_mutex_destroy(&f->engine->prepare.lock);
    free(f->engine);
    free(f);
    return 0;
}

static engine_stream *make(fixture *f, int32_t priority)
{
    assert_true(f->n < MOST);
    engine_stream *s = calloc(1, sizeof *s);
    s->arrival = f->n;
    s->request.priority = priority;
    return f->streams[f->n++] = s;
}

static engine_stream *put(fixture *f, size_t bytes, int32_t priority)
{
    engine_stream *s = make(f, priority);
    s->request.prompt = (char *)(uintptr_t) "not read";
    s->request.prompt_bytes = bytes;
    prepare_put(f->engine, s);
    return s;
}

/* The arrival of the next stream. */
static uint64_t next(fixture *f) { return prepare_next(f->engine)->arrival; }

static void end_queue(fixture *f)
{
    f->engine->prepare.stop = true;
    assert_null(prepare_next(f->engine));
    assert_null(f->engine->prepare.last);
    assert_null(f->engine->prepare.shortest);
}

static void a_short_prompt_goes_before_longer_ones(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++) put(f, 4 << 20, 0);
    put(f, 100, 0);
    put(f, 20, 0);
    put(f, 100, 0);
    static const uint64_t order[] = {5, 4, 6, 0, 1, 2, 3}; // equal ones by arrival
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) assert_int_equal(next(f), order[i]);
    end_queue(f);
}

/* A priority counts only where the scheduler reads it. */
static void a_priority_goes_first(void **state)
{
    fixture *f = *state;
    f->engine->o.policy = SCHED_PRIORITY;
    put(f, 10, 1);
    put(f, 1000, -1);
    put(f, 500, -1);
    put(f, 10, 0);
    static const uint64_t by_priority[] = {2, 1, 3, 0};
    for (size_t i = 0; i < 4; i++) assert_int_equal(next(f), by_priority[i]);
    f->engine->o.policy = SCHED_FCFS;
    put(f, 10, 1);
    put(f, 1000, -1);
    assert_int_equal(next(f), 4);
    assert_int_equal(next(f), 5);
    end_queue(f);
}

/* However many short prompts come, at most 8 pass the oldest stream. */
static void the_oldest_is_passed_at_most_8_times(void **state)
{
    fixture *f = *state;
    put(f, 1 << 20, 0);
    put(f, 1 << 20, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            put(f, 5, 0);
            assert_true(next(f) > 1);
        }
        put(f, 5, 0);
        assert_int_equal(next(f), round);
    }
    assert_int_equal(next(f), 18);
    assert_int_equal(next(f), 19);
    end_queue(f);
}

static void a_conversation_is_as_long_as_its_texts(void **state)
{
    fixture *f = *state;
    static const char text[] =
        "[{\"role\": \"user\", \"content\": \"12345678\"}, {\"role\": \"user\", "
        "\"content\": [{\"type\": \"text\", \"text\": \"1234\"}]}]"; // 12
    uint32_t ids[11] = {0};
    engine_stream *chat = make(f, 0), *tokens = make(f, 0);
    chat->request.messages = json_loads(text, 0, NULL);
    tokens->request.prompt_token_ids = ids;
    tokens->request.n_prompt_token_ids = 11;
    prepare_put(f->engine, chat);
    prepare_put(f->engine, tokens);
    put(f, 13, 0);
    put(f, 10, 0);
    static const uint64_t order[] = {3, 1, 0, 2};
    for (size_t i = 0; i < 4; i++) assert_int_equal(next(f), order[i]);
    end_queue(f);
}

/* ---- against a list that is searched from end to end ----------------------------------------- */

typedef struct model {
    engine_stream *left[MOST]; // by arrival
    uint32_t n, n_passed;
} model;

static void model_remove(model *m, uint32_t at)
{
    if (at == 0) m->n_passed = 0;
    memmove(&m->left[at], &m->left[at + 1], (--m->n - at) * sizeof *m->left);
}

static engine_stream *model_next(model *m)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < m->n && m->n_passed < 8; i++) {
        const engine_request *a = &m->left[i]->request, *b = &m->left[best]->request;
        bool is_before = a->priority != b->priority ? a->priority < b->priority
                                                    : a->prompt_bytes < b->prompt_bytes;
        if (is_before) best = i;
    }
    engine_stream *s = m->left[best];
    if (best > 0) m->n_passed++;
    model_remove(m, best);
    return s;
}

static void the_order_is_that_of_a_searched_list(void **state)
{
    fixture *f = *state;
    model m = {0};
    uint64_t random = 1;
    f->engine->o.policy = SCHED_PRIORITY;
    while (f->n < MOST || m.n > 0) {
        random = hash_mix64(random);
        uint32_t what = (uint32_t)(random % 8);
        if (f->n < MOST && (what < 4 || m.n == 0)) {
            m.left[m.n++] = put(f, random >> 8 & 63, (int32_t)(random >> 16 & 3));
        } else if (what < 7 || m.n == 0) {
            assert_ptr_equal(prepare_next(f->engine), model_next(&m));
        } else { // a client has left
            uint32_t at = (uint32_t)(random >> 20) % m.n;
            assert_true(prepare_take_back(f->engine, m.left[at]));
            assert_false(prepare_take_back(f->engine, m.left[at]));
            model_remove(&m, at);
        }
    }
    end_queue(f);
}

/* A stream whose answer has a form. */
static engine_stream *make_formed(fixture *f, const char *regex)
{
    engine_stream *s = make(f, 0);
    s->request.form = (engine_form){.given = true,
                                    .field = "regex",
                                    .kind = GRAMMAR_REGEX,
                                    .text = (char *)(uintptr_t)regex,
                                    .n = strlen(regex)};
    return s;
}

/* With two threads one may compile; the others' streams wait for it in their order. */
static void a_thread_is_left_that_compiles_nothing(void **state)
{
    fixture *f = *state;
    engine *e = f->engine;
    e->o.tokenizer_threads = 2;
    engine_stream *first = make_formed(f, "a+"), *second = make_formed(f, "b+");
    engine_stream *third = make_formed(f, "c+"), *plain = make(f, 0);
    assert_int_equal(form_take_turn(e, first), FORM_TURN_TAKEN);
    assert_int_equal(form_take_turn(e, second), FORM_TURN_PARKED);
    assert_int_equal(form_take_turn(e, third), FORM_TURN_PARKED);
    assert_int_equal(form_take_turn(e, plain), FORM_TURN_NONE);
    assert_ptr_equal(form_pass_turn(e), second);
    assert_ptr_equal(form_pass_turn(e), third);
    assert_null(form_pass_turn(e));
    assert_int_equal(form_take_turn(e, first), FORM_TURN_TAKEN);
    assert_null(form_pass_turn(e));
}

/* An aborted stream does not wait for the forms before it, wherever it stands among the others. */
static void a_parked_stream_can_be_taken_back(void **state)
{
    fixture *f = *state;
    engine *e = f->engine;
    e->o.tokenizer_threads = 2;
    assert_int_equal(form_take_turn(e, make_formed(f, "a+")), FORM_TURN_TAKEN);
    for (int last = 0; last < 2; last++) {
        engine_stream *first = make_formed(f, "b+"), *second = make_formed(f, "c+");
        assert_int_equal(form_take_turn(e, first), FORM_TURN_PARKED);
        assert_int_equal(form_take_turn(e, second), FORM_TURN_PARKED);
        assert_true(form_take_back(e, last ? second : first));
        assert_false(form_take_back(e, last ? second : first));
        engine_stream *third = make_formed(f, "d+"), *aborted = make_formed(f, "e+");
        assert_int_equal(form_take_turn(e, third), FORM_TURN_PARKED);
        atomic_store(&aborted->aborted, true);
        assert_int_equal(form_take_turn(e, aborted), FORM_TURN_NONE);
        assert_ptr_equal(form_pass_turn(e), last ? first : second);
        assert_ptr_equal(form_pass_turn(e), third);
    }
    assert_null(form_pass_turn(e));
    assert_int_equal(e->forms.n_compiling, 0);
}

static void an_aborted_stream_goes_to_the_engine_thread_at_once(void **state)
{
    fixture *f = *state;
    engine *e = f->engine;
    e->o.tokenizer_threads = 2;
    engine_stream *first = make_formed(f, "a+"), *parked = make_formed(f, "b+");
    parked->engine = e;
    parked->references = 2;
    assert_int_equal(form_take_turn(e, first), FORM_TURN_TAKEN);
    assert_int_equal(form_take_turn(e, parked), FORM_TURN_PARKED);
    engine_stream_abort(parked);
    assert_ptr_equal(e->inbox.added.first, parked);
    assert_int_equal(parked->references, 2); // the reader's, and the inbox's in place of the list's
    assert_null(form_pass_turn(e));
}

/* The error of a form that cannot be compiled is kept, under its text and kind. */
static void a_form_that_failed_is_not_compiled_again(void **state)
{
    fixture *f = *state;
    engine *e = f->engine;
    error err = {{0}};
    const grammar_token token = {"a", 1};
    assert_true(status_ok(grammar_vocab_create(&token, 1, &e->forms.vocab)));
    e->o.n_stop_ids = 1;
    engine_stream *wrong = make_formed(f, "(a"), *other = make_formed(f, "(aa"),
                  *right = make_formed(f, "a+");
    assert_int_equal(form_prepare(e, wrong, &err).code, STATUS_INVALID);
    error again = {{0}};
    assert_int_equal(form_prepare(e, wrong, &again).code, STATUS_INVALID);
    assert_string_equal(again.text, err.text);
    e->forms.failed[0].err = (error){"as before"};
    assert_int_equal(form_prepare(e, wrong, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "regex: as before");
    assert_int_equal(form_prepare(e, other, &err).code, STATUS_INVALID);
    assert_string_not_equal(err.text, "regex: as before");
    assert_int_equal(e->forms.n_failed, 2);
    assert_true(status_ok(form_prepare(e, right, &err)));
    assert_int_equal(form_take_turn(e, right), FORM_TURN_NONE); // compiled already
    form_cache_destroy(&e->forms);
}

/* The masks of kept forms grow while answers are held to them. */
static void forms_that_grew_too_large_are_released(void **state)
{
    fixture *f = *state;
    engine *e = f->engine;
    error err = {{0}};
    const grammar_token token = {"a", 1};
    assert_true(status_ok(grammar_vocab_create(&token, 1, &e->forms.vocab)));
    e->o.n_stop_ids = 1;
    engine_stream *grows = make_formed(f, "a+"), *other = make_formed(f, "a*");
    assert_true(status_ok(form_prepare(e, grows, &err)));
    assert_true(status_ok(form_prepare(e, other, &err)));
    assert_int_equal(form_take_turn(e, grows), FORM_TURN_NONE);
    e->forms.kept[0].grammar->parts_bytes = FORMS_BYTES_MAX;
    assert_true(status_ok(form_prepare(e, other, &err)));
    assert_int_equal(form_take_turn(e, other), FORM_TURN_NONE);
    assert_int_equal(form_take_turn(e, grows), FORM_TURN_TAKEN); // it is compiled anew
    form_cache_destroy(&e->forms);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_short_prompt_goes_before_longer_ones),
        TEST(a_priority_goes_first),
        TEST(the_oldest_is_passed_at_most_8_times),
        TEST(a_conversation_is_as_long_as_its_texts),
        TEST(the_order_is_that_of_a_searched_list),
        TEST(a_thread_is_left_that_compiles_nothing),
        TEST(a_parked_stream_can_be_taken_back),
        TEST(an_aborted_stream_goes_to_the_engine_thread_at_once),
        TEST(a_form_that_failed_is_not_compiled_again),
        TEST(forms_that_grew_too_large_are_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

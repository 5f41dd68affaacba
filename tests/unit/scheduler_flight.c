#include "tests/unit/scheduler_flight.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

const step_plan *flight[2];
uint32_t n_flight;

fixture *begin_ahead(sched_options options)
{
    n_flight = 0;
    options.max_in_flight = 2;
    return begin(options);
}

const char *plan(fixture *f)
{
    const step_plan *p = sched_step(f->s, f->now_us, f->events, f->n_events);
    f->n_events = 0;
    assert_null(sched_check_integrity(f->s));
    if (sched_plan_empty(p)) return "";
    assert_true(n_flight < 2);
    flight[n_flight++] = p;
    return trace_of(f, p);
}

void result(fixture *f, status st)
{
    assert_true(n_flight > 0);
    f->plan = flight[0];
    flight[0] = flight[--n_flight];
    answer(f, st);
    post(f, (sched_event){.kind = SCHED_RESULT, .result = &f->result});
}

void fine(fixture *f) { result(f, STATUS_IS_OK); }

void drain(fixture *f)
{
    while (n_flight > 0) {
        fine(f);
        plan(f);
    }
}

void run_two(fixture *f, sched_request *a, sched_request *b)
{
    *a = request(f, 1, 0, 30, 20);
    *b = request(f, 2, 100, 8, 20);
    add(f, a);
    add(f, b);
    assert_string_equal(plan(f), "1@0+30* 2@0+8*");
    assert_string_equal(plan(f), "1@30+1*<1 2@8+1*<2");
    assert_string_equal(plan(f), ""); /* two in flight is the limit */
    fine(f);
    assert_string_equal(plan(f), "1@31+1*<1 2@9+1*<2");
}

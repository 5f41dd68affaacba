/* Sleeping and waking of a connection: no news is lost, and none resumes what does not sleep. */
#include "rpc/http/internal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int n_suspended, n_resumed;

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd);
void __wrap_MHD_resume_connection(struct MHD_Connection *mhd);

void __wrap_MHD_suspend_connection(struct MHD_Connection *mhd)
{
    (void)mhd;
    n_suspended++;
}

void __wrap_MHD_resume_connection(struct MHD_Connection *mhd)
{
    (void)mhd;
    n_resumed++;
}

static int setup(void **state)
{
    static http_wake w;
    n_suspended = n_resumed = 0;
    wake_init(&w, NULL);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    wake_destroy(*state);
    return 0;
}

static void news_before_sleep_keeps_it_awake(void **state)
{
    http_wake *w = *state;
    assert_int_equal(wake_begin(w), NEWS_NONE);
    wake_notify(w);
    assert_false(wake_sleep(w));
    assert_int_equal(n_suspended + n_resumed, 0);
    assert_int_equal(wake_begin(w), NEWS_NONE);
    assert_true(wake_sleep(w));
    assert_int_equal(n_suspended, 1);
}

static void news_in_sleep_wakes_once(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    assert_true(wake_sleep(w));
    wake_notify(w);
    wake_notify(w);
    wake_notify(w);
    assert_int_equal(n_resumed, 1);
    wake_begin(w);
    assert_true(wake_sleep(w));
    assert_int_equal(n_suspended, 2);
}

static void who_is_cut_sleeps_no_more(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    assert_true(wake_sleep(w));
    wake_cut(w);
    assert_int_equal(n_resumed, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wake_begin(w), NEWS_CUT);
        assert_false(wake_sleep(w));
    }
}

static void an_abort_is_told_once(void **state)
{
    http_wake *w = *state;
    wake_begin(w);
    wake_abort(w);
    assert_false(wake_sleep(w));
    assert_int_equal(wake_begin(w), NEWS_ABORT);
    assert_int_equal(wake_begin(w), NEWS_NONE);
    assert_true(wake_sleep(w));
}

/* While another thread works on a request its connection sleeps, whatever comes. */
static void who_is_held_sleeps_on(void **state)
{
    http_wake *w = *state;
    wake_hold(w);
    wake_notify(w);
    assert_true(wake_sleep(w));
    wake_cut(w);
    wake_abort(w);
    assert_true(wake_is_cut(w));
    assert_int_equal(n_resumed, 0);
    wake_release(w);
    assert_int_equal(n_resumed, 1);
    assert_int_equal(wake_begin(w), NEWS_CUT);
}

static void who_is_released_before_it_sleeps_stays_awake(void **state)
{
    http_wake *w = *state;
    wake_hold(w);
    wake_release(w);
    assert_false(wake_sleep(w));
    assert_int_equal(n_suspended + n_resumed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(news_before_sleep_keeps_it_awake, setup, teardown),
        cmocka_unit_test_setup_teardown(news_in_sleep_wakes_once, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_cut_sleeps_no_more, setup, teardown),
        cmocka_unit_test_setup_teardown(an_abort_is_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_held_sleeps_on, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_released_before_it_sleeps_stays_awake, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

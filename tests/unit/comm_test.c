/* comm: the group of one, and groups that cannot be. */
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void self_is_the_identity(void **state)
{
    (void)state;
    comm *c;
    assert_true(status_ok(comm_create(&(comm_options){"self", 0, 1}, &c, NULL)));
    assert_int_equal(comm_rank(c), 0);
    assert_int_equal(comm_size(c), 1);

    float data[3] = {1.5f, -2.0f, 3.25f}, out[3] = {0};
    assert_true(status_ok(comm_all_reduce_sum(c, data, 3)));
    assert_true(data[0] == 1.5f && data[1] == -2.0f && data[2] == 3.25f);
    assert_true(status_ok(comm_all_gather(c, data, 3, out)));
    assert_memory_equal(out, data, sizeof data);
    assert_true(status_ok(comm_all_gather(c, data, 3, data))); // in place
    assert_memory_equal(out, data, sizeof data);
    assert_true(status_ok(comm_broadcast(c, data, sizeof data, 0)));
    assert_memory_equal(out, data, sizeof data);
    assert_int_equal(comm_broadcast(c, data, sizeof data, 1).code, STATUS_INVALID);
    comm_destroy(c);
    comm_destroy(NULL);
}

static void impossible_groups_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        comm_options options;
        status_code code;
        const char *says;
    } cases[] = {
        {{"carrier-pigeon", 0, 1}, STATUS_UNSUPPORTED, "carrier-pigeon"},
        {{NULL, 0, 1}, STATUS_UNSUPPORTED, "unknown kind"},
        {{"self", 0, 2}, STATUS_INVALID, "2 ranks"},
        {{"self", 0, 0}, STATUS_INVALID, "0 ranks"},
        {{"self", 1, 1}, STATUS_INVALID, "rank 1 of 1"},
        {{"self", -1, 1}, STATUS_INVALID, "rank -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm *c = NULL;
        error err = {""};
        assert_int_equal(comm_create(&cases[i].options, &c, &err).code, cases[i].code);
        assert_null(c);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self_is_the_identity),
        cmocka_unit_test(impossible_groups_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Bearer keys: which are accepted, and which cannot be keys. */
#include "tests/unit/rpc_fixture.h"

static void any_of_the_keys_opens(void **state)
{
    (void)state;
    char longest[SERVICE_KEY_BYTES_MAX + 2], header[SERVICE_KEY_BYTES_MAX + 16];
    memset(longest, 'k', sizeof longest);
    longest[SERVICE_KEY_BYTES_MAX] = '\0';
    const char *keys[] = {"first-key", "second", longest};
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.keys = keys, .n_keys = 3});
    const service *s = &f->service;
    assert_true(service_key_ok(s, "Bearer first-key", NULL));
    assert_true(service_key_ok(s, "bearer second", NULL));
    assert_true(service_key_ok(s, "BEARER   second", NULL));
    snprintf(header, sizeof header, "Bearer %s", longest);
    assert_true(service_key_ok(s, header, NULL));
    snprintf(header, sizeof header, "Bearer %sk", longest);
    assert_false(service_key_ok(s, header, NULL));
    longest[SERVICE_KEY_BYTES_MAX - 1] = 'x';
    snprintf(header, sizeof header, "Bearer %s", longest);
    assert_false(service_key_ok(s, header, NULL));

    static const char *const wrong[] = {
        NULL,
        "",
        "Bearer",
        "Bearer ",
        "first-key",
        "Bearer first",
        "Basic second",
        "Bearer first-key2",
        "Bearer second ",
        "Bearersecond",
        "Bearer Second",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (service_key_ok(s, wrong[i], NULL))
            fail_msg("'%s' opened", wrong[i] ? wrong[i] : "(none)");
    rpc_fixture_destroy(f);
}

/* Every spelling of a header stands for the same key, and the digest does not contain the key. */
static void a_key_is_an_identity(void **state)
{
    (void)state;
    const char *keys[] = {"first-key", "second"};
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.keys = keys, .n_keys = 2});
    char a[SERVICE_IDENTITY_BYTES], b[SERVICE_IDENTITY_BYTES];
    service_identity(&f->service, "Bearer first-key", a);
    /* SHA-256 of "first-key". */
    assert_string_equal(a, "9e24b55356ef2a121ab5fd1a3ee8a3c9191e837f3853e399a369e9044ff183f7");
    service_identity(&f->service, "bearer   first-key", b);
    assert_string_equal(a, b);
    service_identity(&f->service, "Bearer second", b);
    assert_string_not_equal(a, b);
    service_identity(&f->service, NULL, b);
    assert_string_equal(b, "");
    rpc_fixture_destroy(f);
    f = rpc_fixture_create(&(rpc_fixture_options){0});
    service_identity(&f->service, "Bearer first-key", b);
    assert_string_equal(b, "");
    rpc_fixture_destroy(f);
}

/* An administrator's key is also a client's, but no client's key is an administrator's. When there
 * is a key of either kind, a call without a key is refused. */
static void administrators_have_keys_of_their_own(void **state)
{
    (void)state;
    const char *keys[] = {"first-key", "second"}, *admins[] = {"root"};
    rpc_fixture_options both = {.keys = keys, .n_keys = 2, .admin_keys = admins, .n_admin_keys = 1};
    rpc_fixture *f = rpc_fixture_create(&both);
    assert_true(service_key_ok(&f->service, "Bearer second", NULL));
    assert_true(service_key_ok(&f->service, "Bearer root", NULL));
    uint32_t number = 99;
    assert_false(service_key_ok(&f->service, "Bearer roo", &number));
    assert_int_equal(number, 0);
    assert_true(service_key_ok(&f->service, "Bearer second", &number));
    assert_int_equal(number, 2);
    assert_true(service_key_ok(&f->service, "Bearer root", &number));
    assert_int_equal(number, service_key_count(&f->service));
    assert_true(service_is_admin(&f->service, "Bearer root"));
    static const char *const others[] = {NULL, "Bearer first-key", "Bearer second", "Bearer roo"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(service_is_admin(&f->service, others[i]));
    rpc_fixture_destroy(f);

    f = rpc_fixture_create(&(rpc_fixture_options){.keys = keys, .n_keys = 2});
    assert_false(service_is_admin(&f->service, "Bearer first-key"));
    rpc_fixture_destroy(f);

    f = rpc_fixture_create(&(rpc_fixture_options){.admin_keys = admins, .n_admin_keys = 1});
    assert_true(service_is_admin(&f->service, "Bearer root"));
    assert_false(service_key_ok(&f->service, NULL, NULL));
    assert_false(service_key_ok(&f->service, "Bearer other", NULL));
    rpc_fixture_destroy(f);
}

static void without_keys_all_is_open(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    assert_true(service_key_ok(&f->service, NULL, NULL));
    uint32_t number = 99;
    assert_true(service_key_ok(&f->service, "Bearer anything", &number));
    assert_int_equal(number, 0);
    assert_true(service_is_admin(&f->service, NULL));
    rpc_fixture_destroy(f);
}

static void some_texts_are_no_keys(void **state)
{
    (void)state;
    char too_long[SERVICE_KEY_BYTES_MAX + 2];
    memset(too_long, 'k', sizeof too_long);
    too_long[sizeof too_long - 1] = '\0';
    const char *bad[] = {"", "two words", "line\n", "\xc3\xa4", too_long};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *keys[] = {"good", bad[i]};
        service s;
        rpc_options o = {.api_keys = keys, .n_api_keys = 2};
        status st = service_init(&s, &o);
        assert_int_equal(st.code, STATUS_INVALID);
        assert_non_null(strstr(st.message, "API key"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_of_the_keys_opens),
        cmocka_unit_test(a_key_is_an_identity),
        cmocka_unit_test(administrators_have_keys_of_their_own),
        cmocka_unit_test(without_keys_all_is_open),
        cmocka_unit_test(some_texts_are_no_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

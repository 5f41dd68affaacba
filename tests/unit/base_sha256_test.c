/* SHA-256 against the examples of FIPS 180-4, in one piece and in many. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, size_t n, size_t step, const char *expected)
{
    sha256 s;
    char hex[SHA256_HEX_BYTES];
    sha256_init(&s);
    for (size_t i = 0; i < n; i += step) sha256_add(&s, text + i, n - i < step ? n - i : step);
    sha256_finish(&s, hex);
    assert_string_equal(hex, expected);
}

static void test_examples(void **state)
{
    (void)state;
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check(two_blocks, 56, 56, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_pieces(void **state)
{
    (void)state;
    static char million[1000000];
    memset(million, 'a', sizeof million);
    const size_t steps[] = {1, 63, 64, 65, 1000, sizeof million};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        check(million, sizeof million, steps[i],
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

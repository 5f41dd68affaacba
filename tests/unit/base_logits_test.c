/* Scores of tokens in rows of logits: sums that no order changes, and lists of the largest. */
#include "base/base.h"
#include "base/logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A row that is read in parts, in any order, has the sum, the ranks and the list of the whole. */
static void test_logits(void **state)
{
    (void)state;
    enum { N = 3000, TOP = 9 };
    float row[N], top_logprobs[TOP];
    uint32_t ids[TOP], of_part[TOP];
    rng r = rng_seed(11);
    double sum = 0;
    for (uint32_t i = 0; i < N; i++) row[i] = floorf(64 * rng_normal(&r)) / 16 - 9;
    for (uint32_t i = 0; i < N; i++) sum += exp((double)row[i]);
    float max = row[logits_argmax(row, N)];
    for (uint32_t cut = 0; cut <= N; cut += 997) {
        logits_sum whole = logits_add_up(row, N, max),
                   back = logits_add_up(row + cut, N - cut, max);
        back.shares += logits_add_up(row, cut, max).shares;
        assert_true(whole.shares == back.shares && !back.is_nan);
        assert_int_equal(logits_greater(row, N, row[7]),
                         logits_greater(row, cut, row[7]) +
                             logits_greater(row + cut, N - cut, row[7]));
    }
    logit_score s = logits_score(row, N, 7, TOP, ids, top_logprobs);
    assert_true(fabs(s.logprob - (row[7] - log(sum))) < 2e-6);
    assert_int_equal(s.n_top, TOP);
    for (uint32_t i = 1; i < TOP; i++) {
        assert_true(row[ids[i]] < row[ids[i - 1]] ||
                    (row[ids[i]] == row[ids[i - 1]] && ids[i] > ids[i - 1]));
        assert_int_equal(logits_greater(row, N, row[ids[i]]) <= i, 1);
    }

    float odd[] = {1, NAN, -INFINITY, 3, NAN};
    assert_int_equal(logits_top(odd, 5, 5, of_part), 5); /* NaN is behind -inf */
    const uint32_t due[] = {3, 0, 2, 1, 4};
    assert_memory_equal(of_part, due, sizeof due);
    assert_true(isnan(logits_score(odd, 5, 3, 0, NULL, NULL).logprob));
    odd[1] = odd[4] = -INFINITY;
    assert_true(logits_score(odd, 5, 2, 0, NULL, NULL).logprob == -INFINITY);
    odd[3] = INFINITY;
    assert_true(isnan(logits_score(odd, 5, 3, 0, NULL, NULL).logprob));
    assert_true(logits_share(-28.0f, 0) == 0 &&
                logits_share(-27.0f, 0) == 1); /* the cut is right */
}

/* Shares are near exponentials, and the same on every machine. A row's sum is that of its shares,
 * of which the floor leaves some out. */
static void test_shares(void **state)
{
    (void)state;
    enum { N = 9001 };
    static float row[N];
    static const struct {
        float logit;
        uint64_t share;
    } due[] = {{0, 1ull << 39},    {-0.5f, 333443760128},
               {-1, 202243866624}, {-9.75f, 32047830},
               {-27, 1},           {-28, 0},
               {-INFINITY, 0},     {NAN, 0}};
    for (size_t i = 0; i < sizeof due / sizeof *due; i++)
        if (logits_share(3 + due[i].logit, 3) != due[i].share)
            fail_msg("the share of %g is %llu", (double)due[i].logit,
                     (unsigned long long)logits_share(3 + due[i].logit, 3));
    rng r = rng_seed(12);
    for (uint32_t i = 0; i < N; i++) {
        row[i] = -32 * rng_unit(&r);
        double share = exp((double)row[i]) * 0x1p39;
        assert_true(fabs((double)logits_share(row[i], 0) - share) <= 0.5 + share * 0x1p-23 ||
                    row[i] < -28);
    }
    row[77] = NAN;
    row[78] = -INFINITY;
    for (uint32_t n = N - 9; n <= N; n++) {
        uint64_t all = 0, upper = 0;
        for (uint32_t i = 0; i < n; i++) {
            all += logits_share(row[i], 0);
            upper += row[i] >= -2 ? logits_share(row[i], 0) : 0;
        }
        assert_true(logits_shares(row, n, 0, -INFINITY) == all);
        assert_true(logits_shares(row, n, 0, -2) == upper && upper < all);
        logits_sum sum = logits_add_up(row, n, 0);
        assert_true(sum.shares == all && sum.is_nan);
    }
    row[77] = 0;
    assert_false(logits_add_up(row, N, 0).is_nan);
    static float flat[1 << 17]; /* whose sum has more bits than a double */
    flat[5] = -27;
    assert_true(logits_shares(flat, 1 << 17, 0, -INFINITY) == (((1ull << 17) - 1) << 39) + 1);
}

/* The list of the largest skips runs that have none of them, also where they hold NaN. */
static void test_top_of_runs(void **state)
{
    (void)state;
    enum { N = 200, TOP = 4 };
    float row[N];
    uint32_t ids[TOP];
    for (uint32_t i = 0; i < N; i++) row[i] = -(float)i;
    row[64] = 1; /* the first of a run, and the last of one */
    row[127] = 2;
    row[130] = 0; /* as large as the first, behind it */
    row[140] = NAN;
    assert_int_equal(logits_top(row, N, TOP, ids), TOP);
    const uint32_t due[] = {127, 64, 0, 130};
    assert_memory_equal(ids, due, sizeof due);
    for (uint32_t i = 0; i < N; i++) row[i] = -(float)i;
    row[128] = 5; /* right behind a run that is skipped */
    assert_int_equal(logits_top(row, N, TOP, ids), TOP);
    const uint32_t behind[] = {128, 0, 1, 2};
    assert_memory_equal(ids, behind, sizeof behind);
    for (uint32_t i = 0; i < N; i++) row[i] = NAN;
    row[150] = -INFINITY;
    row[199] = -3;
    assert_int_equal(logits_top(row, N, TOP, ids), TOP);
    const uint32_t odd[] = {199, 150, 0, 1};
    assert_memory_equal(ids, odd, sizeof odd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_top_of_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

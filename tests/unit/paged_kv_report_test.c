/* The report of a response: the ranges of tokens that stayed, and its members. */
#include "paged_kv/retention/retention.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Ranges that begin and end at multiples of 64 positions, where words of bits end. */
static void reports_list_ranges_at_ends_of_words(void **state)
{
    (void)state;
    const pkv_geometry g = {.page_tokens = 16,
                            .n_layers = 1,
                            .n_kv_heads = 1,
                            .layers_per_group = 1,
                            .heads_per_group = 1,
                            .n_shares = 1};
    pkv_options options = {.geometry = g, .n_pages = 64, .max_seqs = 1};
    pkv *kv;
    uint32_t hit, keep[192], n = 0;
    assert_true(status_ok(pkv_create(&options, &kv)));
    assert_true(status_ok(pkv_seq_open(kv, 0, PKV_HEAD, NULL, 0, 0, 192, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 0, 192)));
    strbuf json = {0};
    retention_kept_json(kv, 0, 0, 0, &json);
    assert_string_equal(json.data,
                        "[{\"layers\": [0, 0], \"heads\": [0, 0], \"ranges\": [[0, 192]]}]");
    for (uint32_t i = 0; i < 192; i++)
        if ((i >= 64 && i < 128) || i == 62 || i == 191) keep[n++] = i;
    assert_true(status_ok(pkv_seq_compact(kv, 0, 0, keep, n)));
    strbuf_clear(&json);
    retention_kept_json(kv, 0, 0, 0, &json);
    assert_string_equal(json.data, "[{\"layers\": [0, 0], \"heads\": [0, 0], \"ranges\": "
                                   "[[62, 63], [64, 128], [191, 192]]}]");
    strbuf_destroy(&json);
    pkv_destroy(kv);
}

static void reports_list_what_stayed(void **state)
{
    (void)state;
    static const pkv_geometry g = {.page_tokens = 16,
                                   .n_layers = 3,
                                   .n_kv_heads = 4,
                                   .layers_per_group = 2,
                                   .heads_per_group = 2};
    pkv *kv;
    uint32_t hit;
    pkv_options options = {.geometry = g, .n_pages = 64, .max_seqs = 1};
    assert_true(status_ok(pkv_create(&options, &kv)));
    assert_true(status_ok(pkv_seq_open(kv, 0, PKV_HEAD, NULL, 0, 0, 70, &hit)));
    assert_true(status_ok(pkv_seq_append(kv, 0, 70)));
    pkv_seq_drop(kv, 0, 0, &(uint64_t){0x19});
    pkv_seq_drop(kv, 0, 3, &(uint64_t){0x10});
    uint32_t keep[] = {3, 4, 69};
    assert_true(status_ok(pkv_seq_compact(kv, 0, 1, keep, 3)));
    /* The last slots move into holes, so the order of slots differs from that of positions. */
    assert_true(status_ok(pkv_seq_keep(kv, 0, 2, (uint64_t[]){~UINT64_C(0x0f), 0x3f}, false)));
    assert_int_equal(pkv_seq_position(kv, 0, 2, 0), 66);
    strbuf json = {0};
    retention_kept_json(kv, 0, 0, 0, &json);
    assert_string_equal(
        json.data, "[{\"layers\": [0, 1], \"heads\": [0, 1], \"ranges\": [[0, 16], [48, 70]]}, "
                   "{\"layers\": [0, 1], \"heads\": [2, 3], \"ranges\": [[3, 5], [69, 70]]}, "
                   "{\"layers\": [2, 2], \"heads\": [0, 1], \"ranges\": [[4, 70]]}, "
                   "{\"layers\": [2, 2], \"heads\": [2, 3], \"ranges\": [[64, 70]]}]");
    /* The client's prompt had 30 more tokens after the first four, which were cut. */
    strbuf_clear(&json);
    retention_kept_json(kv, 0, 4, 30, &json);
    assert_string_equal(
        json.data,
        "[{\"layers\": [0, 1], \"heads\": [0, 1], \"ranges\": [[0, 4], [34, 46], [78, 100]]}, "
        "{\"layers\": [0, 1], \"heads\": [2, 3], \"ranges\": [[3, 4], [34, 35], [99, 100]]}, "
        "{\"layers\": [2, 2], \"heads\": [0, 1], \"ranges\": [[34, 100]]}, "
        "{\"layers\": [2, 2], \"heads\": [2, 3], \"ranges\": [[94, 100]]}]");
    /* (38 * 2 + 3 * 2 + 66 + 6) layer-tokens of 2 heads each / (3 layers * 4 heads) */
    assert_int_equal(pkv_seq_kept(kv, 0), 154 * 2);
    assert_true(fabs(pkv_full_tokens(pkv_get_geometry(kv), 154 * 2) - 154.0 / 6) < 1e-12);

    retention_report report = {.method = "chunkkv",
                               .logical_tokens = 70,
                               .kept_tokens = 38,
                               .pages_dropped = 6,
                               .budget_raised = true,
                               .scoring_ms = 0.25};
    strbuf_clear(&json);
    retention_report_json(&report, &json);
    assert_string_equal(json.data,
                        "{\"method\": \"chunkkv\", \"logical_tokens\": 70, \"kept_tokens\": 38, "
                        "\"pages_dropped\": 6, \"budget_raised\": true, \"scoring_ms\": 0.250}");
    char positions[] = "[{\"ranges\": []}]";
    report.kept_json = positions;
    report.kept_tokens = 154.0 / 6;
    snprintf(report.session, sizeof report.session, "ignored: \"%s\"", "busy");
    strbuf_clear(&json);
    retention_report_json(&report, &json);
    json_t *parsed = json_loads(json.data, 0, NULL);
    assert_non_null(parsed);
    assert_int_equal(json_array_size(json_object_get(parsed, "kept")), 1);
    assert_true(fabs(json_real_value(json_object_get(parsed, "kept_tokens")) - 154.0 / 6) < 1e-6);
    assert_string_equal(json_string_value(json_object_get(parsed, "session")), "ignored: \"busy\"");
    json_decref(parsed);
    strbuf_destroy(&json);
    pkv_destroy(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_list_what_stayed),
        cmocka_unit_test(reports_list_ranges_at_ends_of_words),
    };
    return cmocka_run_group_tests_name("paged_kv_report", tests, NULL, NULL);
}

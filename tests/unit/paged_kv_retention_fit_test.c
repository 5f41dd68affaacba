/* Defaults are lowered to the model's positions; what a request gives is not. */
#include "paged_kv/retention/retention.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static retention_policy parsed(const char *text, uint32_t max_positions)
{
    static const pkv_geometry model = {.page_tokens = 16,
                                       .n_layers = 2,
                                       .n_kv_heads = 2,
                                       .layers_per_group = 1,
                                       .heads_per_group = 1};
    retention_limits limits = {model, 512, max_positions};
    retention_policy policy;
    json_t *json;
    error err;
    if (!status_ok(json_read_text("test", text, strlen(text), &json, &err)) ||
        !status_ok(retention_parse(json, &limits, &policy, &err)))
        fail_msg("%s: %s", text, err.text);
    json_decref(json);
    return policy;
}

static void defaults_fit_and_given_values_stay(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t positions;
        retention_fields want;
    } cases[] = {
        {"{\"method\":\"reform\"}", 0, {32768, 32768, 256, 256, 8192}}, /* not known */
        {"{\"method\":\"reform\"}", 131072, {32768, 32768, 256, 256, 8192}},
        {"{\"method\":\"reform\"}", 40960, {20480, 10240, 256, 256, 8192}},
        {"{\"method\":\"reform\"}", 4096, {2048, 1024, 256, 256, 2048}},
        {"{\"method\":\"reform\"}", 1000, {500, 250, 62, 62, 500}},
        {"{\"method\":\"reform\"}", 8, {4, 2, 1, 1, 4}},
        {"{\"method\":\"infinipot\",\"tokens\":null}", 4096, {2048, 1024, 256, 256, 0}},
        {"{\"method\":\"reform\",\"tokens\":32768,\"recurrent_chunk\":32768,\"sinks\":300,"
         "\"window\":301,\"gather_tokens\":5000}",
         4096,
         {32768, 32768, 300, 301, 5000}},
        /* One of two is given: the other gets no more than is left. */
        {"{\"method\":\"tova-recurrent\",\"tokens\":1024}", 4096, {1024, 1024, 256, 256, 0}},
        {"{\"method\":\"tova-recurrent\",\"tokens\":3500}", 4096, {3500, 596, 256, 256, 0}},
        {"{\"method\":\"tova-recurrent\",\"tokens\":4096}", 4096, {4096, 1024, 256, 256, 0}},
        {"{\"method\":\"tova-recurrent\",\"recurrent_chunk\":64}", 4096, {2048, 64, 256, 256, 0}},
        {"{\"method\":\"tova-recurrent\",\"recurrent_chunk\":3000}",
         4096,
         {1096, 3000, 256, 256, 0}},
        /* A chunk that leaves too little is what admission refuses, not the budget. */
        {"{\"method\":\"tova-recurrent\",\"recurrent_chunk\":32768}",
         4096,
         {513, 32768, 256, 256, 0}},
        {"{\"method\":\"h2o-recurrent\",\"ratio\":0.1}", 4096, {0, 1024, 256, 256, 0}},
        /* Whatever closes its positions up at chunks, and nothing else. */
        {"{\"method\":\"snapkv\",\"tokens\":100,\"schedule\":\"chunk\",\"positions\":\"cache\"}",
         4096,
         {100, 1024, 0, 32, 0}},
        {"{\"method\":\"snapkv\",\"tokens\":100,\"schedule\":\"chunk\"}",
         4096,
         {100, 32768, 0, 32, 0}},
        {"{\"method\":\"h2o-recurrent\",\"positions\":\"original\"}",
         4096,
         {32768, 32768, 256, 256, 0}},
        {"{\"method\":\"reform\",\"positions\":\"original\"}",
         4096,
         {32768, 32768, 256, 256, 2048}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        retention_policy p = parsed(cases[i].text, cases[i].positions);
        retention_fields got = retention_fields_of(&p);
        if (memcmp(&got, &cases[i].want, sizeof got) != 0)
            fail_msg("%s of %u positions: tokens %u, recurrent_chunk %u, sinks %u, window %u, "
                     "gather_tokens %u",
                     cases[i].text, cases[i].positions, got.tokens, got.recurrent_chunk, got.sinks,
                     got.window, got.gather_tokens);
    }
}

static void a_policy_without_chunks_shows_no_fields(void **state)
{
    (void)state;
    retention_policy p = parsed("{\"method\":\"h2o\",\"tokens\":100}", 4096);
    assert_int_equal(retention_fields_of(&p).recurrent_chunk, 0);
}

static void the_report_shows_the_fields(void **state)
{
    (void)state;
    retention_policy p = parsed("{\"method\":\"reform\"}", 4096);
    retention_report report = {.method = "reform", .fields = retention_fields_of(&p)};
    strbuf json = {0};
    retention_report_json(&report, &json);
    assert_non_null(strstr(json.data, "\"fields\": {\"tokens\": 2048, \"recurrent_chunk\": 1024, "
                                      "\"sinks\": 256, \"window\": 256, \"gather_tokens\": 2048}"));
    strbuf_clear(&json);
    p = parsed("{\"method\":\"infinipot\",\"ratio\":0.5}", 4096);
    report.fields = retention_fields_of(&p);
    retention_report_json(&report, &json);
    assert_non_null(strstr(json.data, "\"fields\": {\"recurrent_chunk\": 1024, \"sinks\": 256, "
                                      "\"window\": 256}"));
    strbuf_destroy(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fit_and_given_values_stay),
        cmocka_unit_test(a_policy_without_chunks_shows_no_fields),
        cmocka_unit_test(the_report_shows_the_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

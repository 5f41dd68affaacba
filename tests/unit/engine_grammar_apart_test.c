/* Schemas that are written in other words ("not", "if", dependencies), and "oneOf": an answer never
 * fits two branches, and a schema whose branches cannot be told apart is refused by its place. */
#include "tests/unit/engine_grammar_fixture.h"

/* "not", "if" and dependencies are written in other words; what cannot be is refused. */
static void test_turned_schemas(void **state)
{
    (void)state;
    SCHEMA("{\"type\":[\"string\",\"integer\"],\"not\":{\"type\":\"string\"}}", "12", NULL, "\"a\"",
           NULL);
    SCHEMA("{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]}}", "\"c\"", "\"ab\"", "\"\"",
           NULL, "\"a\"", "\"b\"", NULL);
    SCHEMA("{\"type\":\"number\",\"not\":{\"const\":5}}", "5.1", "55", "-5", "0", NULL, "5", "5.0",
           "5.00", NULL);
    SCHEMA("{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "0.5", "-1.10", NULL, "1",
           "-1.0", "0", NULL);
    SCHEMA("{\"enum\":[1,2,true,null],\"not\":{\"enum\":[2,null]}}", "1", "true", NULL, "2", "null",
           NULL);
    SCHEMA("{\"not\":{\"anyOf\":[{\"type\":[\"object\",\"array\",\"string\",\"number\"]},"
           "{\"const\":true}]}}",
           "false", "null", NULL, "true", "1", "\"\"", NULL);
    SCHEMA("{\"type\":\"string\",\"not\":{\"pattern\":\"^a\",\"minLength\":3}}", "\"b\"", "\"aa\"",
           "\"bcd\"", NULL, "\"abc\"", NULL);
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{}},\"not\":{\"required\":[\"a\",\"b\"]},"
           "\"additionalProperties\":false}",
           "{}", "{\"a\":1}", "{\"b\":1}", NULL, "{\"a\":1,\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"x\",\"y\"]},\"v\":{}},"
           "\"required\":[\"k\"],\"additionalProperties\":false,"
           "\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}}},\"then\":{\"required\":[\"v\"]},"
           "\"else\":{\"properties\":{\"v\":{\"type\":\"null\"}}}}",
           "{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\"}", "{\"k\":\"y\",\"v\":null}", NULL,
           "{\"k\":\"x\"}", "{\"k\":\"y\",\"v\":1}", NULL);
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{},\"c\":{\"type\":[\"null\",\"integer\"]}},"
           "\"additionalProperties\":false,\"dependencies\":{\"a\":[\"b\"],"
           "\"b\":{\"properties\":{\"c\":{\"type\":\"null\"}}}}}",
           "{}", "{\"b\":1}", "{\"c\":1}", "{\"a\":1,\"b\":1,\"c\":null}", NULL, "{\"a\":1}",
           "{\"b\":1,\"c\":1}", NULL);
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"dependentRequired\":{\"b\":[\"a\"]}}",
           "{\"a\":1}", "{\"a\":1,\"b\":2}", NULL, "{\"b\":1}", NULL);
}

/* A value that two branches of "oneOf" allow is refused. */
static void test_one_of(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"object\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],"
           "\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false}",
           "{\"a\":1}", "{\"b\":1}", NULL, "{}", "{\"a\":1,\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"a\":{\"type\":\"string\"}}},"
           "{\"properties\":{\"b\":{\"type\":\"string\"}}}]}",
           "{\"a\":1}", "{\"a\":\"\",\"b\":1}", NULL, "{}", "{\"a\":\"\"}",
           "{\"a\":\"\",\"b\":\"\"}", NULL);
    SCHEMA(
        "{\"oneOf\":[{\"type\":\"integer\",\"minimum\":3},{\"type\":\"integer\",\"maximum\":5}]}",
        "2", "6", NULL, "3", "5", NULL);
    /* Too many ways to leave out the others, but each branch lists other values of "c". */
#define KIND(c)                                                                                    \
    "{\"properties\":{\"c\":{\"enum\":[" #c "]},\"p\":{\"type\":\"object\",\"required\":[\"x\"]}}" \
    "}"
    SCHEMA("{\"type\":\"object\",\"oneOf\":[" KIND(1) "," KIND(2) "," KIND(3) "," KIND(4) "," KIND(
               5) "]}",
           "{\"c\":1}", "{\"c\":5,\"p\":{\"x\":1}}", NULL, "{}", "{\"a\":1}", "{\"c\":6}",
           "{\"p\":{\"x\":1}}", NULL);
    SCHEMA("{\"type\":\"object\",\"oneOf\":[" KIND(1) "," KIND(2) "," KIND(3) "," KIND(
               4) ",{\"properties\":{\"c\":{\"not\":{\"type\":\"integer\",\"enum\":[1,2,3,4]}},"
                  "\"p\":{}}}]}",
           "{\"c\":1}", "{\"c\":5}", "{\"c\":\"\"}", NULL, "{}", "{\"a\":1}", NULL);
#undef KIND
    refuses(GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"required\":[\"a\",\"b\"],\"oneOf\":[{\"required\":[\"a\"]},"
            "{\"required\":[\"b\"]}]}",
            STATUS_INVALID, "no text can satisfy it");
}

/* Branches that words of members tell apart, in the schema or in a branch. */
static void test_branches_of_objects(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"object\",\"oneOf\":[{\"patternProperties\":{\"^a\":{\"type\":\"string\"}}},"
           "{\"patternProperties\":{\"^a\":{\"type\":\"integer\"}}}]}",
           "{\"a\":\"x\"}", "{\"ab\":1}", "{\"ab\":1,\"ac\":2}", NULL, "{}", "{\"b\":1}",
           "{\"a\":null}", "{\"a\":1,\"ab\":\"x\"}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{},\"c\":{}},\"oneOf\":[{"
           "\"patternProperties\":{\"^a\":{\"type\":\"string\"}}},{\"required\":[\"c\"]}]}",
           "{}", "{\"ab\":\"x\"}", "{\"ab\":1,\"c\":1}", NULL, "{\"c\":1}",
           "{\"ab\":\"x\",\"c\":1}", "{\"ab\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"oneOf\":[{\"dependentRequired\":{\"a\":[\"b\"]}},{\"required\":[\"a\"]}]}",
           "{}", "{\"b\":1}", "{\"a\":1}", NULL, "{\"a\":1,\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"oneOf\":[{\"dependencies\":{\"a\":[\"b\"]}},{\"required\":[\"a\"]}]}",
           "{}", "{\"b\":1}", "{\"a\":1}", NULL, "{\"a\":1,\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"oneOf\":[{\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{\"type\":\"null\"}}}}},"
           "{\"required\":[\"b\"]}]}",
           "{}", "{\"a\":1}", "{\"a\":1,\"b\":2}", NULL, "{\"b\":1}", "{\"a\":1,\"b\":null}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"properties\":{"
           "\"a\":{}},\"additionalProperties\":false},{\"required\":[\"a\"]}]}",
           "{}", "{\"a\":1,\"b\":1}", NULL, "{\"a\":1}", "{\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"oneOf\":[{\"propertyNames\":{\"const\":\"a\"}},{\"required\":[\"a\"]}]}",
           "{}", NULL, "{\"a\":1}", "{\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,"
           "\"oneOf\":[{\"if\":{\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]}},{"
           "\"required\":[\"a\"]}]}",
           "{}", "{\"b\":1}", "{\"a\":1}", NULL, "{\"a\":1,\"b\":1}", NULL);
}

/* Elements, texts and types tell branches apart. */
static void test_branches_of_other_types(void **state)
{
    (void)state;
    SCHEMA("{\"oneOf\":[{\"type\":\"array\",\"items\":{\"type\":\"string\"}},{\"type\":\"array\","
           "\"items\":{\"type\":\"integer\"}}]}",
           "[\"a\"]", "[1,2]", NULL, "[]", "[1,\"a\"]", NULL);
    SCHEMA("{\"type\":\"array\",\"oneOf\":[{\"prefixItems\":[{\"type\":\"string\"}]},{"
           "\"prefixItems\":[{\"type\":[\"integer\",\"string\"]}]}]}",
           "[1]", "[1,null]", NULL, "[]", "[\"a\"]", "[null]", NULL);
    SCHEMA("{\"oneOf\":[{\"format\":\"ipv4\"},{\"format\":\"ipv6\"}]}", "\"1.2.3.4\"", "\"::1\"",
           NULL, "\"a\"", "1", NULL);
    SCHEMA("{\"type\":\"string\",\"oneOf\":[{\"format\":\"hostname\"},{\"format\":\"ipv4\"}]}",
           "\"a.b\"", "\"1.2.3\"", NULL, "\"1.2.3.4\"", NULL);
    SCHEMA("{\"type\":\"string\",\"oneOf\":[{\"format\":\"date\"},{\"format\":\"date-time\"}]}",
           "\"2026-11-28\"", "\"2026-11-28T01:02:03Z\"", NULL, "\"2026\"", NULL);
    SCHEMA("{\"type\":[\"string\",\"object\"],\"oneOf\":[{\"required\":[\"a\"],\"properties\":{"
           "\"a\":{\"const\":1}}},{\"required\":[\"a\"],\"properties\":{\"a\":{\"const\":2}}}]}",
           "{\"a\":1}", "{\"a\":2}", NULL, "\"x\"", "{\"a\":3}", "{}", NULL);
    SCHEMA("{\"oneOf\":[{\"required\":[\"a\"],\"properties\":{\"a\":{\"const\":1}},\"minimum\":3},{"
           "\"required\":[\"a\"],\"properties\":{\"a\":{\"const\":2}}}]}",
           "{\"a\":1}", "{\"a\":2}", NULL, "5", "{\"a\":3}", NULL);
    /* null fits the first branch, which names no type, as well. */
    SCHEMA("{\"oneOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"type\":\"null\"}]}",
           "{\"a\":1}", NULL, "null", NULL);
    /* "multipleOf" is not turned around: not all of the second branch can be written. */
    SCHEMA("{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"},\"m\":{\"type\":"
           "\"integer\"}},\"additionalProperties\":false,\"required\":[\"k\"],\"oneOf\":[{"
           "\"properties\":{\"k\":{\"const\":1}}},{\"not\":{\"properties\":{\"k\":{\"const\":1},"
           "\"m\":{\"multipleOf\":2}}}}]}",
           "{\"k\":2}", "{\"k\":1,\"m\":2}", NULL, "{\"k\":1,\"m\":3}", NULL);
    refuses(GRAMMAR_JSON_SCHEMA,
            "{\"properties\":{\"x\":{\"oneOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}}}",
            STATUS_UNSUPPORTED, "\"/properties/x/oneOf\": branch 0 cannot be told apart");
    refuses(GRAMMAR_JSON_SCHEMA,
            "{\"oneOf\":[{\"type\":\"integer\",\"multipleOf\":2},{\"type\":\"integer\","
            "\"multipleOf\":3}]}",
            STATUS_INVALID, "no text can satisfy it");
}

/* "unevaluatedProperties" is for members that no schema of the same value speaks of. */
static void test_unevaluated(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":"
           "false},{\"properties\":{\"b\":{}}}]}",
           "{}", "{\"a\":1}", NULL, "{\"b\":1}", "{\"a\":1,\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}"
           "],\"unevaluatedProperties\":false}",
           "{}", "{\"a\":1,\"b\":1}", NULL, "{\"c\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{}},\"unevaluatedProperties\":false,"
           "\"dependentSchemas\":{\"a\":{\"properties\":{\"b\":{}}}}}",
           "{}", "{\"a\":1}", "{\"a\":1,\"b\":1}", NULL, "{\"b\":1}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"c\":{}},\"unevaluatedProperties\":"
           "false,\"oneOf\":[{\"required\":[\"a\"]},{\"properties\":{\"b\":{\"const\":1}},"
           "\"required\":[\"c\"]}]}",
           "{\"a\":1}", "{\"c\":1}", "{\"c\":1,\"b\":1}", NULL, "{\"a\":1,\"b\":2}",
           "{\"a\":1,\"c\":1}", NULL);
    refuses(GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"unevaluatedProperties\":false,\"not\":{\"properties\":{\"a\":{"
            "\"const\":1}}}}",
            STATUS_UNSUPPORTED, "\"/unevaluatedProperties\"");
    refuses(GRAMMAR_JSON_SCHEMA,
            "{\"type\":\"object\",\"allOf\":[{\"anyOf\":[{\"required\":[\"a\"]},{\"required\":["
            "\"b\"]}],\"unevaluatedProperties\":false}]}",
            STATUS_UNSUPPORTED, "unevaluatedProperties");
}

/* Elements of two schemas are joined one by one. */
static void test_joined_elements(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"array\",\"allOf\":[{\"items\":{\"type\":\"integer\"}},{\"prefixItems\":[{"
           "\"type\":\"number\",\"minimum\":5}]}]}",
           "[]", "[5]", "[7,1]", NULL, "[1]", "[5.5]", "[5,\"a\"]", NULL);
    SCHEMA("{\"type\":\"array\",\"allOf\":[{\"prefixItems\":[{\"type\":\"integer\"},true]},{"
           "\"prefixItems\":[{\"minimum\":2}],\"items\":{\"type\":\"null\"}}]}",
           "[2]", "[3,null,null]", NULL, "[1]", "[2,2]", NULL);
    SCHEMA("{\"type\":\"array\",\"maxItems\":2,\"not\":{\"prefixItems\":[{\"type\":\"string\"}],"
           "\"items\":{\"type\":\"integer\"}}}",
           "[1]", "[\"a\",\"b\"]", NULL, "[\"a\"]", "[\"a\",1]", "[]", NULL);
}

/* Comparing each of many branches with each other is work, also where a branch is "false". */
static void test_many_branches(void **state)
{
    enum { BRANCHES = 10000 };
    static const char head[] = "{\"oneOf\":[true", branch[] = ",false";
    (void)state;
    char *source = malloc(sizeof head + BRANCHES * sizeof branch + 8), *end = source;
    assert_non_null(source);
    end = stpcpy(end, head);
    for (int i = 0; i < BRANCHES; i++) end = stpcpy(end, branch);
    stpcpy(end, "]}");
    refuses(GRAMMAR_JSON_SCHEMA, source, STATUS_LIMIT, "too large");
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turned_schemas),      cmocka_unit_test(test_one_of),
        cmocka_unit_test(test_branches_of_objects), cmocka_unit_test(test_branches_of_other_types),
        cmocka_unit_test(test_unevaluated),         cmocka_unit_test(test_joined_elements),
        cmocka_unit_test(test_many_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Grammars of each kind allow the texts that they describe and no others; sources that are wrong,
 * unsupported or too large are refused with their place; a matcher goes back, is copied, and knows
 * what is forced. */
#include "engine/grammar/internal.h"
#include "tests/unit/engine_grammar_fixture.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

static void test_json_object(void **state)
{
    (void)state;
    CHECK(JSON_OBJECT, "", "{}", "{\"a\":1}", "{ \"a\" : [1, -2.5e+3,\n{\"x\":null}] ,\"b\":true}",
          "{\"\\u12fF\\ud83d\\ude00\":\"\xc3\xa9\"}", NULL, "[]", "{\"a\":01}", "{\"a\"}",
          "{\"a\":1,}", "{\"\\ud800\":1}", " {}", "{} ", "{\"\xff\":1}", NULL);
}

static void test_regex(void **state)
{
    (void)state;
    CHECK(REGEX, "a{2,4}b?|x+", "aa", "aaaab", "xxx", NULL, "a", "aaaaa", "", "ax", NULL);
    CHECK(REGEX, "^[^a-y\\d]+$", "z", "\xc3\xa9", NULL, "a", "5", NULL);
    CHECK(REGEX, "(?:\\w+@\\w+\\.(com|org))", "me@there.org", NULL, "me@there.net", NULL);
    CHECK(REGEX, "\\u00e9|\\x41|[\\]\\-]", "\xc3\xa9", "A", "]", "-", NULL, "e", NULL);
    refuses(GRAMMAR_REGEX, "a(b", STATUS_INVALID, "at byte 3: ')'");
    refuses(GRAMMAR_REGEX, "a(?=b)", STATUS_UNSUPPORTED, "at byte 3");
    refuses(GRAMMAR_REGEX, "(a)\\1", STATUS_UNSUPPORTED, "references to groups");
    refuses(GRAMMAR_REGEX, "\\bword", STATUS_UNSUPPORTED, "word boundaries");
    refuses(GRAMMAR_REGEX, "a{3,2}", STATUS_INVALID, "out of order");
    refuses(GRAMMAR_REGEX, "(a|b)*a(a|b){40}", STATUS_LIMIT, "too large");
}

static void test_choice(void **state)
{
    (void)state;
    CHECK(CHOICE, "[\"yes\",\"no\",\"not now\"]", "yes", "no", "not now", NULL, "n", "not", NULL);
    refuses(GRAMMAR_CHOICE, "[]", STATUS_INVALID, "not empty");
    refuses(GRAMMAR_CHOICE, "[\"a\",1]", STATUS_INVALID, "element 1");
}

static void test_gbnf(void **state)
{
    (void)state;
    CHECK(GBNF,
          "root ::= expr\nexpr ::= expr \"+\" term | term # left recursion\n"
          "term ::= [0-9]+ | \"(\" expr \")\"",
          "1", "1+2+3", "((1)+2)", NULL, "1+", "(1", "", NULL);
    CHECK(GBNF, "root ::= item root | item\nitem ::= \"- \" [^\\n]+ \"\\n\"", "- a\n", "- a\n- b\n",
          NULL, "- \n", "- a", NULL);
    CHECK(GBNF, "root ::= (\"a\" | empty){3,70} \"b\"\nempty ::= \"\"", "b", "aaab", NULL, "a",
          NULL);
    CHECK(GBNF, "root ::= \"a\"{3,70} \"\\x62\"", "aaab", NULL, "aab", "aaa", NULL);
    CHECK(GBNF, "root ::= s s s\ns ::= \"\" | \"x\" s", "", "xxxxxxxx", NULL, "y", NULL);
    refuses(GRAMMAR_GBNF, "root ::= a\nb ::= \"x\"", STATUS_INVALID, "no rule is named `a`");
    refuses(GRAMMAR_GBNF, "a ::= \"x\"", STATUS_INVALID, "`root`");
    refuses(GRAMMAR_GBNF, "root ::= \"a\"\n  \"b", STATUS_INVALID, "line 2");
    refuses(GRAMMAR_GBNF, "root ::= root", STATUS_INVALID, "no text can satisfy it");
}

/* Each schema's references stay within that schema. */
static void test_tagged(void **state)
{
    (void)state;
#define VALUES                                                                                     \
    "\"values\":[{\"begin\":\"<a>\",\"end\":\"</a>\",\"schema\":{\"$ref\":\"#/$defs/"              \
    "x\",\"$defs\":"                                                                               \
    "{\"x\":{\"type\":\"integer\"}}}},{\"begin\":\"b=\",\"schema\":{\"$ref\":\"#/$defs/x\","       \
    "\"$defs\":{\"x\":{\"type\":\"null\"}}}}]"
    CHECK(TAGGED, "{" VALUES "}", "<a>-12</a>", "b=null", NULL, "<a>null</a>", "b=1", "<a>1",
          "<a>1</a>b=null", "", "1", NULL);
    CHECK(TAGGED, "{" VALUES ",\"many\":true,\"begin\":\"[\",\"end\":\"]\",\"separator\":\", \"}",
          "[b=null]", "[<a>1</a>, b=null, <a>2</a>]", NULL, "b=null", "[]", "[b=null,b=null]",
          "[b=null, ]", NULL);
    CHECK(TAGGED, "{" VALUES ",\"many\":true}", "b=null<a>1</a>", "b=null", NULL, "", NULL);
    refuses(GRAMMAR_TAGGED, "[]", STATUS_INVALID, "\"values\" must be an array, not empty");
    refuses(GRAMMAR_TAGGED, "{\"values\":[{}]}", STATUS_INVALID, "values[0]");
    refuses(GRAMMAR_TAGGED, "{\"values\":[{\"begin\":1}]}", STATUS_INVALID, "\"begin\" must be");
    refuses(GRAMMAR_TAGGED,
            "{\"values\":[{\"name\":\"f\",\"schema\":{\"items\":{\"uniqueItems\":true}}}]}",
            STATUS_UNSUPPORTED, "f: \"/items");
    refuses(GRAMMAR_TAGGED, "{", STATUS_CORRUPT, "line 1");
}

/* ---- JSON Schema ----------------------------------------------------------------------------- */

static void test_objects(void **state)
{
    (void)state;
    const char *closed = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},"
                         "\"b\":{\"type\":\"string\"}},\"required\":[\"b\"],"
                         "\"additionalProperties\":false}";
    SCHEMA(closed, "{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{ \"a\" : -1 ,\n\"b\" : \"x\" }", NULL,
           "{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":\"\",\"c\":1}", NULL);
    SCHEMA("{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{}", "{\"aa\":[1]}",
           "{\"a\":1,\"\":2}", NULL, "{\"a\":\"x\"}", "{\"c\":1,\"a\":\"x\"}",
           "{\"\\u0061\":\"x\"}", NULL);
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"},\"minProperties\":2,"
           "\"maxProperties\":3}",
           "{\"a\":null,\"b\":null}", NULL, "{\"a\":null}", "{}",
           "{\"a\":null,\"b\":null,\"c\":null,\"d\":null}", NULL);
    SCHEMA(
        "{\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
        "{}", "{\"x-a\":1}", NULL, "{\"y\":1}", "{\"x-a\":\"\"}", NULL);
    SCHEMA("{\"propertyNames\":{\"pattern\":\"^[a-z]+$\"},\"required\":[\"a\"]}",
           "{\"a\":1,\"b\":2}", NULL, "{\"a\":1,\"B\":2}", NULL);
}

static void test_arrays(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":7}",
           "[1,2]", "[1, 2 ,3,4,5,6,7]", NULL, "[]", "[1]", "[1,2,3,4,5,6,7,8]", "[1,]", NULL);
    SCHEMA("{\"prefixItems\":[{\"const\":\"a\"},{\"type\":\"integer\"}],\"items\":false,"
           "\"minItems\":1}",
           "[\"a\"]", "[\"a\",1]", NULL, "[]", "[1]", "[\"a\",1,2]", NULL);
    SCHEMA("{\"type\":\"array\",\"maxItems\":0}", "[]", NULL, "[1]", NULL);
}

static void test_strings(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":8}", "\"ab\"",
           "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"abcdefgh\"", "\"\\n\\u0041\"", NULL, "\"a\"",
           "\"abcdefghi\"", "\"\\u0041\"", NULL);
    SCHEMA("{\"pattern\":\"^\\\"\\\\\\\\\\n$\"}", "\"\\\"\\\\\\n\"", NULL, "\"\"", NULL);
    SCHEMA("{\"pattern\":\"b\"}", "\"abc\"", "\"b\"", NULL, "\"aa\"", NULL);
    SCHEMA("{\"pattern\":\"^a|b$\",\"maxLength\":3}", "\"axx\"", "\"xb\"", NULL, "\"xa\"",
           "\"axxx\"", NULL);
    SCHEMA("{\"format\":\"date\"}", "\"2024-02-29\"", "\"2000-02-29\"", "\"0010-01-01\"", NULL,
           "\"2023-02-29\"", "\"2024-13-01\"", "\"0000-01-01\"", "\"0000-02-29\"", NULL);
    SCHEMA("{\"format\":\"date-time\"}", "\"2024-01-31T23:59:59.5+01:00\"", NULL, "\"2024-01-31\"",
           NULL);
    SCHEMA("{\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"", NULL, "\"123\"",
           NULL);
    SCHEMA("{\"format\":\"email\"}", "\"a.b@c.de\"", NULL, "\"a@\"", NULL);
    SCHEMA("{\"format\":\"ipv4\"}", "\"10.0.0.255\"", NULL, "\"1.2.3.256\"", NULL);
    SCHEMA("{\"format\":\"ipv6\"}", "\"::1\"", "\"fe80::1:2\"", NULL, "\"1::2::3\"", NULL);
    SCHEMA("{\"format\":\"uri\"}", "\"http://a.b/c?d#e\"", "\"urn:x:y\"", NULL, "\"a b\"", NULL);
    refuses(GRAMMAR_JSON_SCHEMA, "{\"format\":\"iri\"}", STATUS_UNSUPPORTED, "\"/format\"");
}

static void test_numbers(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"minimum\":5,\"maximum\":120}", "5", "9", "77", "99", "120",
           NULL, "4", "121", "-6", "05", "1", "200", NULL);
    SCHEMA("{\"type\":\"integer\",\"minimum\":-15,\"exclusiveMaximum\":3}", "-15", "-1", "0", "2",
           NULL, "3", "-16", "-0", "-20", NULL);
    SCHEMA("{\"minimum\":-1.5,\"maximum\":2.25}", "-1.5", "-1.50", "2.25", "2.2", "2", "0", "-0.1",
           "1.99", NULL, "2.26", "2.251", "-1.51", "3", "-2", NULL);
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.1", "1", "0.001", NULL, "0", "0.0",
           "-1", NULL);
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":7,\"maximum\":50}", "7", "0", "-14", "49", NULL,
           "8", "56", NULL);
    SCHEMA("{\"multipleOf\":0.05}", "0.05", "1.1", "3", "0.100", NULL, "0.01", "0.051", NULL);
}

static void test_combinations(void **state)
{
    (void)state;
    SCHEMA("{\"enum\":[\"a\",1,null,{\"x\":[1,2]}]}", "\"a\"", "1", "null", "{ \"x\" : [1,2] }",
           NULL, "2", "\"b\"", NULL);
    SCHEMA("{\"type\":[\"string\",\"null\"]}", "null", "\"x\"", NULL, "1", NULL);
    SCHEMA("{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
           "{\"properties\":{\"a\":{\"maximum\":5}},\"required\":[\"b\"]}]}",
           "{\"a\":1,\"b\":2}", NULL, "{\"a\":1}", "{\"a\":6,\"b\":2}", NULL);
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
           "\"null\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],"
           "\"additionalProperties\":false}",
           "{\"a\":1}", "{\"b\":null}", "{\"a\":1,\"b\":null}", NULL, "{}", NULL);
    SCHEMA("{\"$ref\":\"#/$defs/"
           "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
           "\"next\":{\"oneOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
           "\"required\":[\"v\",\"next\"],\"additionalProperties\":false}}}",
           "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}", NULL, "{\"v\":1}", NULL);
    SCHEMA("true", "[1,{\"a\":null}]", NULL, "", NULL);
}

/* Patterns that match the same names, in one schema and in two, and words of no standard. */
static void test_joined_schemas(void **state)
{
    (void)state;
    SCHEMA("{\"patternProperties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},"
           "\"b\":{\"type\":\"integer\",\"maximum\":5}},\"additionalProperties\":false}",
           "{\"ab\":4,\"a\":9,\"b\":0}", NULL, "{\"ab\":9}", "{\"ba\":2}", "{\"c\":1}", NULL);
    SCHEMA("{\"allOf\":[{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"x-note\":1},"
           "{\"patternProperties\":{\"^a\":{\"minimum\":3}},\"x-note\":2}],\"type\":\"object\"}",
           "{\"ab\":3,\"c\":\"\"}", "{\"ac\":3.5}", NULL, "{\"ab\":2}", "{\"ab\":3.5}",
           "{\"ac\":2}", NULL);
    SCHEMA("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"c\":{"
           "\"$ref\":\"#/$defs/n\",\"maxProperties\":1}},\"additionalProperties\":false}}}",
           "{\"c\":{\"c\":{\"c\":{}}}}", NULL, "{\"c\":1}", NULL);
    SCHEMA("{\"const\":3,\"enum\":[3,4]}", "3", NULL, "4", NULL);
    SCHEMA("{\"enum\":[[1],[1,2],[3,4],[5,6,7]],\"minItems\":2,\"maxItems\":2,\"items\":{\"$ref\":"
           "\"#/$defs/x\"},\"$defs\":{\"x\":{\"minimum\":3}}}",
           "[3,4]", NULL, "[1]", "[1,2]", "[5,6,7]", NULL);
    SCHEMA("{\"enum\":[{\"a\":1},{\"a\":\"\"},{\"a\":1,\"b\":1},{}],\"required\":[\"a\"],"
           "\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
           "{\"a\":1}", NULL, "{\"a\":\"\"}", "{}", "{\"a\":1,\"b\":1}", NULL);
    SCHEMA(
        "{\"enum\":[{\"a\":1},{\"a\":null},{\"x\":\"\"},{\"x\":2},{\"y\":1}],\"patternProperties\":"
        "{\"^x\":{\"type\":\"string\"}},\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},"
        "{\"type\":\"string\"}]}},\"additionalProperties\":{\"minimum\":3}}",
        "{\"a\":null}", "{\"x\":\"\"}", NULL, "{\"a\":1}", "{\"x\":2}", "{\"y\":1}", NULL);
    SCHEMA("{\"propertyNames\":{\"minLength\":2,\"maxLength\":6},\"properties\":{\"abc\":{\"type\":"
           "\"null\"},\"a\":{}}}",
           "{\"abc\":null}", "{\"ab\":1,\"abd\":1,\"abcdef\":1}", "{\"\xc3\xa9\xc3\xa9\":1}", NULL,
           "{\"abc\":1}", "{\"a\":1}", "{\"b\":1}", "{\"\xc3\xa9\":1}", "{\"abcdefg\":1}", NULL);
    SCHEMA("{\"propertyNames\":{\"maxLength\":1000000000}}", "{\"a long name\":1}", "{\"\":1}",
           NULL, NULL);
    SCHEMA("{\"propertyNames\":false}", "{}", NULL, "{\"a\":1}", NULL);
    SCHEMA("{\"enum\":[3,4,5,6.5,8,9],\"exclusiveMinimum\":3,\"multipleOf\":0.5,\"maximum\":9,"
           "\"exclusiveMaximum\":true}",
           "4", "6.5", "8", NULL, "3", "9", NULL);
}

/* Lists of values beside any other words, also within the elements and members. */
static void test_listed_values(void **state)
{
    (void)state;
    SCHEMA(
        "{\"enum\":[[[1,1]],[[1,2]],[[1,1.0]],[[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]]],\"items\":{"
        "\"uniqueItems\":true}}",
        "[[1,2]]", NULL, "[[1,1]]", "[[1,1.0]]", "[[{\"a\":1,\"b\":2},{\"b\":2,\"a\":1}]]", NULL);
    SCHEMA("{\"enum\":[[1],[2],[2,1],[2,2,2]],\"contains\":{\"const\":2},\"maxContains\":2}", "[2]",
           "[2,1]", NULL, "[1]", "[2,2,2]", NULL);
    SCHEMA("{\"enum\":[{\"a\":[1]},{\"a\":[2,2]},{}],\"properties\":{\"a\":{\"contains\":{"
           "\"minimum\":2},\"minContains\":0,\"maxContains\":1}}}",
           "{\"a\":[1]}", "{}", NULL, "{\"a\":[2,2]}", NULL);
    SCHEMA("{\"enum\":[[1,\"\"],[\"\",1],[1,2],[]],\"prefixItems\":[{\"type\":\"integer\"}],"
           "\"items\":{\"type\":\"string\"}}",
           "[1,\"\"]", "[]", NULL, "[\"\",1]", "[1,2]", NULL);
    SCHEMA("{\"enum\":[[1,2],[1,\"\"]],\"items\":[{}],\"additionalItems\":{\"type\":\"string\"}}",
           "[1,\"\"]", NULL, "[1,2]", NULL);
    SCHEMA("{\"enum\":[[1,2],[1],[3],[2,3]],\"anyOf\":[{\"prefixItems\":[{\"const\":1}]},{"
           "\"contains\":{\"const\":3}}],\"unevaluatedItems\":false}",
           "[1]", "[3]", NULL, "[1,2]", "[2,3]", NULL);
    SCHEMA("{\"enum\":[{\"a\":1},{\"a\":2,\"b\":1},{\"a\":1,\"b\":1},{\"c\":1}],\"if\":{"
           "\"properties\":{"
           "\"a\":{\"const\":1}},\"required\":[\"a\"]},\"else\":{\"properties\":{\"a\":true,\"b\":"
           "true}},"
           "\"unevaluatedProperties\":false}",
           "{\"a\":1}", "{\"a\":2,\"b\":1}", NULL, "{\"a\":1,\"b\":1}", "{\"c\":1}", NULL);
    SCHEMA("{\"enum\":[{\"a\":1},{\"a\":1,\"b\":1},{\"a\":1,\"b\":1,\"c\":1},{\"b\":1},{\"C\":1}],"
           "\"dependentRequired\":{\"a\":[\"b\"]},\"dependentSchemas\":{\"c\":false},"
           "\"propertyNames\":{"
           "\"pattern\":\"^[a-z]$\"}}",
           "{\"a\":1,\"b\":1}", "{\"b\":1}", NULL, "{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}",
           "{\"C\":1}", NULL);
    SCHEMA("{\"enum\":[1,2,4,\"\\u00e9\",\"ab\"],\"not\":{\"type\":\"integer\",\"multipleOf\":2},"
           "\"maxLength\":1}",
           "1", "\"\xc3\xa9\"", NULL, "2", "4", "\"ab\"", NULL);
    SCHEMA("{\"allOf\":[{\"$ref\":\"#/$defs/t\"},{\"oneOf\":[{\"minItems\":1},{\"maxItems\":1}]}],"
           "\"$defs\":{\"t\":{\"enum\":[[],[[]],[[],[]],[[1]]],\"items\":{\"type\":\"array\","
           "\"items\":{"
           "\"$ref\":\"#/$defs/t\"}}}}}",
           "[]", "[[], []]", NULL, "[[]]", "[[1]]", NULL);
    SCHEMA("{\"type\":\"integer\",\"enum\":[1.0,1.5,7],\"maximum\":6}", "1", NULL, "1.5", "7",
           NULL);
    SCHEMA("{\"enum\":[1.0,1.5,7],\"const\":1}", "1", NULL, "1.5", "7", NULL);
    SCHEMA("{\"enum\":[1,2,\"a\",\"b\"],\"if\":{\"type\":\"integer\"},\"then\":{\"minimum\":2},"
           "\"else\":{\"pattern\":\"a\"}}",
           "2", "\"a\"", NULL, "1", "\"b\"", NULL);
    SCHEMA("{\"enum\":[9007199254740993,1],\"maximum\":9007199254740992.0}", "1", NULL,
           "9007199254740993", NULL);
    SCHEMA("{\"enum\":[9007199254740992,9007199254740993,20000000003],\"multipleOf\":8}",
           "9007199254740992", NULL, "20000000003", "9007199254740993", NULL);
    SCHEMA("{\"enum\":[9007199254740992,9007199254740993],\"minimum\":9007199254740993}",
           "9007199254740993", NULL, "9007199254740992", NULL);
    SCHEMA("{\"enum\":[0.3,0.35,1e20,1e-7,0],\"multipleOf\":0.1}", "0.3", "1e+20", "0", NULL,
           "0.35", "1e-07", NULL);
    /* Branches of "oneOf" that a property of a property tells apart, but not where it is null. */
#define KIND(type, word)                                                                           \
    "{\"properties\":{\"l\":{},\"m\":{\"items\":{\"required\":[\"" word                            \
    "\"]}},\"k\":{\"type\":" type ",\"required\":[\"n\"],\"properties\":{\"n\":{\"const\":\"" word \
    "\"}}}}}"
    SCHEMA(
        "{\"type\":\"object\",\"oneOf\":[" KIND("\"object\"", "a") "," KIND("\"object\"", "b") "]}",
        "{\"k\":{\"n\":\"a\"}}", "{\"l\":1,\"k\":{\"n\":\"b\"}}", NULL, "{}", "{\"m\":[]}",
        "{\"k\":{\"n\":\"c\"}}", "{\"k\":{}}", NULL);
    SCHEMA(
        "{\"oneOf\":[{\"type\":[\"object\",\"null\"],\"required\":[\"n\"],\"properties\":{\"n\":{"
        "\"const\":1}}},{\"type\":[\"object\",\"null\"],\"required\":[\"n\"],\"properties\":{\"n\":"
        "{"
        "\"const\":2}}}]}",
        "{\"n\":1}", "{\"n\":2}", NULL, "null", "{\"n\":3}", NULL);
#undef KIND
    /* Branches of "oneOf" that list values in common. */
    SCHEMA("{\"oneOf\":[{\"enum\":[[1],[2],{\"a\":1}]},{\"enum\":[[2],[3],{\"a\":1.0}]},{\"type\":"
           "\"integer\"}]}",
           "[1]", "[3]", "4", NULL, "[2]", "{\"a\":1}", NULL);
    SCHEMA("{\"oneOf\":[{\"enum\":[1,2,3,4]},{\"enum\":[6,7]},{\"multipleOf\":2,\"maximum\":0}],"
           "\"maximum\":6}",
           "1", "2", "6", "0", "-2", NULL, "7", "5", NULL);
}

/* A name that comes twice is one member: the last one, to most readers. */
static void test_different_names(void **state)
{
    (void)state;
    SCHEMA("{\"minProperties\":2}", "{\"a\":1,\"b\":2}", "{\"a\":1,\"a\":2,\"b\":3}",
           "{\"\":1,\"a\":1,\"\":1}", NULL, "{\"a\":1}", "{\"a\":1,\"a\":2}", "{}", NULL);
    SCHEMA("{\"minProperties\":2,\"maxProperties\":2,\"additionalProperties\":{\"type\":\"null\"}}",
           "{\"x\":null,\"y\":null}", NULL, "{\"x\":null,\"x\":null}",
           "{\"x\":null,\"x\":null,\"y\":null}", NULL);
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"],\"minProperties\":4}",
           "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}", "{\"b\":1,\"c\":1,\"d\":1,\"e\":1}", NULL,
           "{\"b\":1,\"c\":1,\"d\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1,\"c\":1}", NULL);
    /* Names whose bytes have sums that are alike, modulo many numbers or all. */
    SCHEMA("{\"minProperties\":2,\"propertyNames\":{\"enum\":[\"a\",\"e\"]}}", "{\"e\":1,\"a\":1}",
           "{\"a\":1,\"e\":1,\"a\":1}", NULL, "{\"a\":1}", "{\"a\":1,\"a\":1}", NULL);
    SCHEMA("{\"minProperties\":3,\"propertyNames\":{\"enum\":[\"ab\",\"ba\",\"c\"]}}",
           "{\"ba\":1,\"c\":1,\"ab\":1}", NULL, "{\"ab\":1,\"c\":1}", "{\"ab\":1,\"c\":1,\"ab\":1}",
           NULL);
    SCHEMA("{\"patternProperties\":{\"^[a-c]$\":{\"type\":\"null\"},\"^x\":{}},\"minProperties\":3,"
           "\"additionalProperties\":false}",
           "{\"a\":null,\"b\":null,\"c\":null}", "{\"a\":null,\"x\":1,\"c\":null}", NULL,
           "{\"a\":null,\"b\":null,\"a\":null}", "{\"a\":1,\"b\":null,\"c\":null}", NULL);
    /* Names of more than 16 characters are told apart by how they start. */
#define START "bcdefghijklmnop" // and one character before it
    SCHEMA("{\"propertyNames\":{\"minLength\":2,\"maxLength\":24},\"minProperties\":2}",
           "{\"ab\":1,\"abc\":2}", "{\"ab\":1,\"a" START "12345678\":2}",
           "{\"a" START "1\":1,\"b" START "\\n\u00e9\":2}", NULL, "{\"ab\":1}",
           "{\"ab\":1,\"ab\":2}", "{\"a\":1,\"bc\":2}", "{\"ab\":1,\"a" START "123456789\":2}",
           "{\"a" START "1\":1,\"a" START "1\":2}", NULL);
    SCHEMA("{\"propertyNames\":{\"minLength\":18},\"minProperties\":2}",
           "{\"a" START "12\":1,\"b" START "12\":1}", NULL,
           "{\"a" START "1\":1,\"b" START "12\":1}", "{\"ab\":1,\"b" START "12\":1}",
           "{\"a" START "12\":1,\"a" START "12\":1}", NULL);
    SCHEMA("{\"properties\":{\"a" START "67\":{\"type\":\"null\"}},\"propertyNames\":{"
           "\"minLength\":17},\"minProperties\":2}",
           "{\"a" START "67\":null,\"a" START "678\":1}", "{\"b" START "678\":1,\"c" START "6\":1}",
           NULL, "{\"b" START "678\":1}", "{\"a" START "67\":1,\"a" START "678\":1}",
           "{\"b" START "67\":1,\"b" START "67\":1}", "{\"b" START "67\":1,\"a" START "\":1}",
           NULL);
#undef START
}

/* Operations of compiling a schema. */
static int64_t work_of(const char *text)
{
    build b;
    error err = {{0}};
    grammar *g = NULL;
    json_t *schema = json_loads(text, 0, NULL);
    assert_non_null(schema);
    build_init(&b, &err);
    uint32_t root = front_schema(&b, schema);
    assert_true(build_ok(&b));
    assert_true(status_ok(link_grammar(&b, root, &g)));
    int64_t work = FUEL - b.fuel;
    grammar_release(g);
    build_destroy(&b);
    json_decref(schema);
    return work;
}

/* The work of telling names apart does not grow with the length that they may have. */
static void test_work_of_different_names(void **state)
{
    (void)state;
    int64_t near = work_of("{\"propertyNames\":{\"maxLength\":40},\"minProperties\":2}");
    int64_t far = work_of("{\"propertyNames\":{\"maxLength\":2000},\"minProperties\":2}");
    assert_true(far < near + near / 10);
}

static void test_unique_items(void **state)
{
    (void)state;
    SCHEMA("{\"items\":{\"enum\":[\"a\",1,1.0,null]},\"uniqueItems\":true}", "[]", "[\"a\"]",
           "[null, 1, \"a\"]", "[1,\"a\"]", NULL, "[1,1]", "[\"a\",null,\"a\"]", "[1,1.0]", "[2]",
           NULL);
    SCHEMA(
        "{\"items\":{\"$ref\":\"#/$defs/x\"},\"uniqueItems\":true,\"minItems\":2,\"$defs\":{\"x\":"
        "{\"type\":\"boolean\"}}}",
        "[true,false]", "[false,true]", NULL, "[true]", "[]", "[true,true]", "[true,false,true]",
        NULL);
    SCHEMA("{\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10],\"minimum\":4},\"uniqueItems\":true,"
           "\"maxItems\":2}",
           "[4,10]", "[5]", NULL, "[4,4]", "[4,5,6]", "[3]", "[4,3]", NULL);
    SCHEMA("{\"items\":{\"type\":\"string\"},\"uniqueItems\":true,\"maxItems\":1}", "[\"x\"]", "[]",
           NULL, "[\"x\",\"y\"]", NULL);
    /* Values and patterns may hold a NUL, which an answer writes as an escape. */
    SCHEMA("{\"enum\":[\"a\\u0000b\"]}", "\"a\\u0000b\"", NULL, "\"a\"", NULL);
    SCHEMA("{\"const\":{\"type\":\"a\\u0000b\"}}", "{\"type\":\"a\\u0000b\"}", NULL,
           "{\"type\":\"a\"}", NULL);
    SCHEMA("{\"type\":\"string\",\"uniqueItems\":true}", "\"x\"", NULL, "[]", NULL);
}

static void test_refused_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        status_code code;
        const char *message;
    } cases[] = {
        {"{\"properties\":{\"a/b\":{\"uniqueItems\":true}}}", STATUS_UNSUPPORTED,
         "\"/properties/a~1b/uniqueItems\""},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
         STATUS_UNSUPPORTED, "\"/uniqueItems\""},
        {"{\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10]},\"uniqueItems\":true}", STATUS_UNSUPPORTED,
         "\"/uniqueItems\""},
        {"{\"items\":{\"enum\":[[1],2]},\"uniqueItems\":true}", STATUS_UNSUPPORTED,
         "\"/uniqueItems\""},
        {"{\"prefixItems\":[{},{}],\"uniqueItems\":true}", STATUS_UNSUPPORTED, "\"/uniqueItems\""},
        {"{\"enum\":[[1,1]],\"uniqueItems\":true}", STATUS_INVALID, "no text can satisfy it"},
        {"{\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":3}", STATUS_INVALID,
         "no text can satisfy it"},
        {"{\"enum\":[[1]],\"prefixItems\":[{\"$dynamicRef\":\"#x\"}]}", STATUS_UNSUPPORTED,
         "\"/prefixItems/0/$dynamicRef\""},
        {"{\"enum\":[[1]],\"items\":{\"anyOf\":[5]}}", STATUS_INVALID, "\"/items/anyOf/0\""},
        {"{\"enum\":[[{}]],\"items\":{\"anyOf\":[{\"const\":1},{\"$ref\":\"#/items\"}]}}",
         STATUS_LIMIT, "nested more than"},
        {"{\"enum\":[[1]],\"anyOf\":[{\"const\":[1]},{\"$ref\":\"#\"}],\"unevaluatedItems\":false}",
         STATUS_LIMIT, "nested more than"},
        {"{\"enum\":5}", STATUS_INVALID, "\"/enum\""},
        {"{\"propertyNames\":{\"type\":\"integer\"},\"minProperties\":1}", STATUS_INVALID,
         "no text can satisfy it"},
        {"{\"minProperties\":10}", STATUS_UNSUPPORTED, "\"/minProperties\""},
        {"{\"not\":{\"multipleOf\":2}}", STATUS_UNSUPPORTED, "\"/not\""},
        {"{\"not\":{\"maxLength\":1e300}}", STATUS_UNSUPPORTED, "\"/not\""},
        {"{\"items\":{\"anyOf\":[{\"if\":{\"multipleOf\":2}}]}}", STATUS_UNSUPPORTED,
         "\"/items/anyOf/0/if\""},
        {"{\"properties\":{\"a\":{\"pattern\":\"(?=x)\"}}}", STATUS_UNSUPPORTED,
         "\"/properties/a/pattern\": at byte 2"},
        {"{\"$ref\":\"#/$defs/missing\"}", STATUS_UNSUPPORTED, "#/$defs/missing"},
        {"{\"$ref\":\"https://example.com/schema\"}", STATUS_UNSUPPORTED, "\"/$ref\""},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", STATUS_LIMIT, "joined with themselves"},
        {"{\"$ref\":\"#\"}", STATUS_INVALID, "no text can satisfy it"},
        {"{\"items\":{\"propertyNames\":{\"pattern\":\"a\",\"maxLength\":90000}}}", STATUS_LIMIT,
         "\"/items"},
        {"{\"propertyNames\":{\"minLength\":50,\"maxLength\":40},\"minProperties\":2}",
         STATUS_INVALID, "no text can satisfy it"},
        {"{\"propertyNames\":{\"pattern\":\"^.{0,2000}$\"},\"minProperties\":2}", STATUS_LIMIT,
         "\"/minProperties\": too large for these names"},
        {"{\"type\":\"float\"}", STATUS_INVALID, "\"/type\""},
        {"{\"type\":\"object\\u0000x\"}", STATUS_INVALID, "\"/type\": must not hold a NUL"},
        {"{\"items\":{\"type\":[\"string\",\"null\\u0000\"]}}", STATUS_INVALID,
         "\"/items/type\": must not hold a NUL"},
        {"{\"anyOf\":[{},{\"$ref\":\"#\\u0000\"}]}", STATUS_INVALID,
         "\"/anyOf/$ref\": must not hold a NUL"},
        {"{\"required\":[\"a\\u0000b\"]}", STATUS_INVALID, "\"/required\": must not hold a NUL"},
        {"{\"dependencies\":{\"a\":[\"b\\u0000\"]}}", STATUS_INVALID,
         "\"/dependencies\": must not hold a NUL"},
        {"{\"properties\":{\"a\":{\"format\":\"date\\u0000\"}}}", STATUS_INVALID,
         "\"/properties/a/format\": must not hold a NUL"},
        {"{\"properties\":{\"const\":{\"required\":[\"a\\u0000b\"]}}}", STATUS_INVALID,
         "\"/properties/const/required\": must not hold a NUL"},
        {"{\"minLength\":-1}", STATUS_INVALID, "\"/minLength\""},
        {"{\"type\":\"string\",\"enum\":[1]}", STATUS_INVALID, "no text can satisfy it"},
        {"[]", STATUS_INVALID, "a schema must be an object"},
        {"{", STATUS_CORRUPT, "schema"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(GRAMMAR_JSON_SCHEMA, cases[i].schema, cases[i].code, cases[i].message);
}

/* Schemas that grow while they are compiled end with an error, or compile, in bounded time. */
static void test_hostile_schemas(void **state)
{
    (void)state;
    strbuf s = {0};
    strbuf_puts(&s, "{\"allOf\":[");
    for (int i = 0; i < 40; i++) // 2^40 alternatives
        strbuf_printf(&s, "%s{\"anyOf\":[{\"minimum\":%d},{\"maximum\":%d}]}", i ? "," : "", i, i);
    strbuf_puts(&s, "]}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "schemas to join");
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"$defs\":{\"a\":{\"required\":[\"a\"");
    for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",\"a\"");
    strbuf_puts(&s, "]}},\"not\":{\"allOf\":[true");
    for (int i = 0; i < 30; i++) strbuf_puts(&s, ",{\"$ref\":\"#/$defs/a\"}"); // 600,000 objects
    strbuf_puts(&s, "]}}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "too many operations");
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"enum\":[1");
    for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",1");
    strbuf_puts(&s, "],\"not\":{\"enum\":[2");
    for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",2"); // 400 million comparisons
    strbuf_puts(&s, "]}}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "too many operations");
    static const char *const beside[][3] = {{"\"properties\":{\"a\":{\"enum\":[2", ",2", "]}}}"},
                                            {"\"required\":[\"a\"", ",\"a\"", "]}"}};
    for (int k = 0; k < 2; k++) { // 400 million comparisons with the objects of a list
        strbuf_clear(&s);
        strbuf_puts(&s, "{\"enum\":[{\"a\":1}");
        for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",{\"a\":1}");
        strbuf_printf(&s, "],%s", beside[k][0]);
        for (int i = 0; i < 20000; i++) strbuf_puts(&s, beside[k][1]);
        strbuf_puts(&s, beside[k][2]);
        refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "too many operations");
    }
    strbuf_clear(&s); // a long name is looked for in many objects
    strbuf_puts(&s, "{\"enum\":[{}");
    for (int i = 0; i < 60000; i++) strbuf_puts(&s, ",{}");
    strbuf_puts(&s, "],\"required\":[\"");
    for (int i = 0; i < 100000; i++) strbuf_puts(&s, "long name ");
    strbuf_puts(&s, "\"]}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "too many operations");
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"enum\":[1");
    for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",1");
    strbuf_puts(&s, "],\"type\":[\"integer\"");
    for (int i = 0; i < 20000; i++) strbuf_puts(&s, ",\"null\"");
    strbuf_puts(&s, "]}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "too many operations");
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"properties\":{\"a\":{}"); // tables of few sets
    for (int i = 0; i < 900; i++)
        strbuf_printf(&s, ",\"p%d\":{\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"}}", i);
    strbuf_puts(&s, "}}");
    SCHEMA(s.data, "{\"p9\":[true],\"p899\":[]}", NULL, "{\"p9\":[true,true]}", NULL);
    strbuf_clear(&s);
    for (int i = 0; i < 1000; i++) strbuf_puts(&s, "{\"items\":");
    strbuf_puts(&s, "{}");
    for (int i = 0; i < 1000; i++) strbuf_puts(&s, "}");
    refuses(GRAMMAR_JSON_SCHEMA, s.data, STATUS_LIMIT, "nested more than");
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"enum\":[");
    for (int i = 0; i < 100000; i++) strbuf_printf(&s, "%s\"value %d\"", i ? "," : "", i * 7919);
    strbuf_puts(&s, "]}");
    SCHEMA(s.data, "\"value 7919\"", NULL, "\"value 7920\"", NULL);
    strbuf_clear(&s);
    strbuf_puts(&s, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 400; i++)
        strbuf_printf(&s, "%s\"p%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    strbuf_puts(&s, "}}");
    SCHEMA(s.data, "{\"p7\":1,\"p399\":2}", NULL, "{\"p7\":1,\"p1\":2}", NULL);
    strbuf_destroy(&s);
}

/* ---- the matcher ----------------------------------------------------------------------------- */

static void test_rollback(void **state)
{
    (void)state;
    grammar *g = make(GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"integer\"}},"
                                           "\"required\":[\"a\"],\"additionalProperties\":false}");
    grammar_matcher *m = grammar_matcher_create(g);
    grammar_release(g); // the matcher holds it
    assert_true(status_ok(grammar_accept_bytes(m, "{\"a\"", 4)));
    assert_true(status_ok(grammar_accept_bytes(m, ":1", 2)));
    assert_int_equal(grammar_accept_bytes(m, "2x", 2).code, STATUS_INVALID);
    assert_int_equal(grammar_accepted(m), 2);
    assert_false(grammar_may_end(m));
    assert_true(status_ok(grammar_accept_bytes(m, "}", 1)));
    assert_true(grammar_may_end(m));
    grammar_rollback(m, 2);
    assert_false(grammar_may_end(m));
    grammar_rollback(m, 1);
    assert_int_equal(grammar_accepted(m), 1);
    assert_true(status_ok(grammar_accept_bytes(m, " : -3 }", 7)));
    assert_true(grammar_may_end(m));
    grammar_rollback(m, 0);
    assert_true(status_ok(grammar_accept_bytes(m, "{\"a\":1}", 7)));
    grammar_matcher_destroy(m);
}

static void test_forced(void **state)
{
    (void)state;
    grammar *g = make(GRAMMAR_REGEX, "name: (red|rose)(, end)?");
    grammar_matcher *m = grammar_matcher_create(g);
    strbuf out = {0};
    size_t settled;
    assert_true(status_ok(grammar_forced(m, 100, &out, &settled)));
    assert_string_equal(out.data, "name: r");
    assert_int_equal(settled, 7); // without a vocabulary no token reaches past it
    strbuf_clear(&out);
    assert_true(status_ok(grammar_forced(m, 3, &out, &settled)));
    assert_string_equal(out.data, "nam");
    assert_true(status_ok(grammar_accept_bytes(m, "name: red", 9)));
    strbuf_clear(&out);
    assert_true(status_ok(grammar_forced(m, 100, &out, &settled)));
    assert_int_equal(out.size, 0); // the answer may end here
    strbuf_destroy(&out);
    grammar_matcher_destroy(m);
    grammar_release(g);
}

/* A text that a grammar reads in a growing number of ways ends the matcher with an error. */
static void test_too_many_readings(void **state)
{
    (void)state;
    grammar *g = make(GRAMMAR_GBNF, "root ::= (a | \"aa\" | root){0,90000}\na ::= \"a\" | a \"a\"");
    grammar_matcher *m = grammar_matcher_create(g);
    status s = STATUS_IS_OK;
    for (int i = 0; i < 2000 && status_ok(s); i++) s = grammar_accept_bytes(m, "a", 1);
    assert_int_equal(s.code, STATUS_LIMIT);
    grammar_rollback(m, 1);
    assert_true(status_ok(grammar_accept_bytes(m, "a", 1)));
    grammar_matcher_destroy(m);
    grammar_release(g);
}

/* A rule that calls itself at its end, as lists in GBNF do, has one reading at any length. */
static void test_long_lists(void **state)
{
    static const char *const sources[] = {
        "root ::= [a-z ] root | \"\"",
        "root ::= item | item \",\" root\nitem ::= [a-z]{1,9}",
        "root ::= \"<\" list \">\"\nlist ::= one | two\n"
        "one ::= \"a,\" list?\ntwo ::= \"b,\" one | \"c\"",
    };
    static const char *const texts[] = {"ab c", "item,", "a,"};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        grammar *g = make(GRAMMAR_GBNF, sources[i]);
        grammar_matcher *m = grammar_matcher_create(g);
        if (i == 2) assert_true(status_ok(grammar_accept_bytes(m, "<", 1)));
        for (int k = 0; k < 5000; k++)
            assert_true(status_ok(grammar_accept_bytes(m, texts[i], strlen(texts[i]))));
        assert_int_equal(grammar_may_end(m), i == 0);
        const char *rest = i == 2 ? "b,a,c>" : "end";
        assert_true(status_ok(grammar_accept_bytes(m, rest, strlen(rest))));
        assert_true(grammar_may_end(m));
        grammar_matcher_destroy(m);
        grammar_release(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_object),     cmocka_unit_test(test_regex),
        cmocka_unit_test(test_choice),          cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_tagged),          cmocka_unit_test(test_objects),
        cmocka_unit_test(test_arrays),          cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),         cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_joined_schemas),  cmocka_unit_test(test_listed_values),
        cmocka_unit_test(test_different_names), cmocka_unit_test(test_work_of_different_names),
        cmocka_unit_test(test_unique_items),    cmocka_unit_test(test_refused_schemas),
        cmocka_unit_test(test_hostile_schemas), cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_forced),          cmocka_unit_test(test_too_many_readings),
        cmocka_unit_test(test_long_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

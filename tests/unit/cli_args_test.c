/* Flags by table: what is accepted, and the messages for what is refused. */
#include "cli/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct options {
    bool fast;
    const char *name, *color;
    uint32_t count;
    uint64_t size, seed;
    arg_list items;
    json_t *fields;
} options;

static const char *const colors[] = {"red", "green", NULL};

static const arg_flag flags[] = {
    ARG_ROW("fast", NULL, ARG_SWITCH, options, fast, "go fast"),
    ARG_ROW("name", "TEXT", ARG_TEXT, options, name, "a name", .also = "-N --full-name"),
    ARG_ROW("color", "C", ARG_OPTION, options, color, "a color", .options = colors,
            .initial = "red"),
    ARG_ROW("count", "N", ARG_COUNT, options, count, "a count", .min = 2, .max = 9, .initial = "4",
            .also = "-c"),
    ARG_ROW("size", "BYTES", ARG_BYTES, options, size, "a size", .min = 1024, .max = 0x1p62),
    ARG_ROW("seed", "N", ARG_WHOLE, options, seed, "a seed", .max = 0x1p64),
    ARG_ROW("item", "X", ARG_LIST, options, items, "an item"),
};

static const arg_flag fields[] = {
    ARG_ROW("top-k", "K", ARG_FIELD, options, fields, "k", .field = "top_k", .json = ARG_JSON_WHOLE,
            .min = -1, .max = 100),
    ARG_ROW("top-p", "P", ARG_FIELD, options, fields, "p", .field = "top_p",
            .json = ARG_JSON_NUMBER, .max = 1),
    ARG_ROW("stop", "TEXT", ARG_FIELD, options, fields, "s", .field = "stop",
            .json = ARG_JSON_STRINGS),
    ARG_ROW("ignore-eos", NULL, ARG_FIELD, options, fields, "i", .field = "ignore_eos",
            .json = ARG_JSON_TRUE),
};

typedef struct parsed {
    options o;
    arg_outcome outcome;
    const char *operand;
    error err;
} parsed;

/* words: split at spaces. operand_flag may be NULL. */
static parsed parse_with(const char *operand_name, const char *operand_flag, const char *words)
{
    parsed p = {.outcome = ARG_OUTCOME_WRONG};
    const arg_group groups[] = {{"Flags", flags, sizeof flags / sizeof flags[0], &p.o},
                                {"Fields", fields, sizeof fields / sizeof fields[0], &p.o}};
    const arg_command command = {.name = "test",
                                 .usage = "[flags]",
                                 .about = "A test.",
                                 .groups = groups,
                                 .n_groups = 2,
                                 .operand = operand_name,
                                 .operand_flag = operand_flag,
                                 .environment = "ARGS_TEST_"};
    static char text[512]; /* the parsed strings point into it */
    char *argv[32] = {text}, *rest = NULL;
    int argc = 1;
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    p.outcome = args_parse(&command, argc, argv, &p.operand, &p.err);
    return p;
}

static parsed parse(const char *operand_name, const char *words)
{
    return parse_with(operand_name, NULL, words);
}

static void drop(parsed *p)
{
    free(p->o.items.items);
    json_decref(p->o.fields);
}

static void refuses(const char *words, const char *message)
{
    parsed p = parse(NULL, words);
    assert_int_equal(p.outcome, ARG_OUTCOME_WRONG);
    assert_string_equal(p.err.text, message);
    drop(&p);
}

static void test_values(void **state)
{
    (void)state;
    parsed p = parse(NULL, "--fast --name=a=b --count 9 --size 1.5K --seed 18446744073709551615 "
                           "--item x --item=--y --color green");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_true(p.o.fast);
    assert_string_equal(p.o.name, "a=b");
    assert_string_equal(p.o.color, "green");
    assert_int_equal(p.o.count, 9);
    assert_int_equal(p.o.size, 1536);
    assert_true(p.o.seed == UINT64_MAX);
    assert_int_equal(p.o.items.n, 2);
    assert_string_equal(p.o.items.items[0], "x");
    assert_string_equal(p.o.items.items[1], "--y");
    drop(&p);

    p = parse(NULL, "");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_int_equal(p.o.count, 4);
    assert_string_equal(p.o.color, "red");
    assert_false(p.o.fast);
    assert_null(p.o.fields);
    drop(&p);
}

static void test_fields(void **state)
{
    (void)state;
    parsed p = parse(NULL, "--top-k -1 --top-p 0.5 --stop a --stop b --ignore-eos");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    char *text = json_dumps(p.o.fields, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"ignore_eos\":true,\"stop\":[\"a\",\"b\"],\"top_k\":-1,"
                              "\"top_p\":0.5}");
    free(text);
    drop(&p);
}

static void test_refusals(void **state)
{
    (void)state;
    refuses("--nope", "unknown flag '--nope'");
    refuses("--nop=1", "unknown flag '--nop'");
    refuses("-x", "unknown flag '-x'");
    refuses("-x=--count", "unknown flag '-x'");
    refuses("--=x", "unknown flag '--'");
    refuses("loose", "unexpected argument 'loose'");
    refuses("--fast=1", "--fast: takes no value");
    refuses("--ignore-eos=1", "--ignore-eos: takes no value");
    refuses("--name", "--name: its value (TEXT) is missing");
    refuses("--count 1", "--count: '1' must be a whole number from 2 to 9");
    refuses("--count 10", "--count: '10' must be a whole number from 2 to 9");
    refuses("--count 3x", "--count: '3x' must be a whole number from 2 to 9");
    refuses("--count -3", "--count: '-3' must be a whole number from 2 to 9");
    refuses("--count 4294967298", "--count: '4294967298' must be a whole number from 2 to 9");
    refuses("--seed 18446744073709551616",
            "--seed: '18446744073709551616' must be a whole number, 0 or more");
    refuses("--size 1023", "--size: '1023' must be a size such as 512M or 4G, 1024 or more");
    refuses("--size 4X", "--size: '4X' must be a size such as 512M or 4G, 1024 or more");
    refuses("--color blue", "--color: 'blue' is not one of red, green");
    refuses("--top-k -2", "--top-k: '-2' must be a whole number from -1 to 100");
    refuses("--top-p nan", "--top-p: 'nan' must be a number from 0 to 1");
    refuses("--top-p 0x1", "--top-p: '0x1' must be a number from 0 to 1");
    refuses("--top-p 1e", "--top-p: '1e' must be a number from 0 to 1");
    refuses("--top-p 1.01", "--top-p: '1.01' must be a number from 0 to 1");
    refuses("--stop \xff", "--stop: is not UTF-8");
}

static void test_aliases(void **state)
{
    (void)state;
    parsed p = parse(NULL, "-N=a -c 3 --full-name b");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_string_equal(p.o.name, "b");
    assert_int_equal(p.o.count, 3);
    drop(&p);
    /* An alias has the dashes that its row says, and errors name the flag. */
    refuses("--N x", "unknown flag '--N'");
    refuses("-full-name x", "unknown flag '-full-name': did you mean --full-name?");
    refuses("-c 99", "--count: '99' must be a whole number from 2 to 9");
    refuses("-c", "--count: its value (N) is missing");
}

static void test_suggestions(void **state)
{
    (void)state;
    refuses("--coun 3", "unknown flag '--coun': did you mean --count?");
    refuses("--cuont=3", "unknown flag '--cuont': did you mean --count?");
    refuses("--top_k 3", "unknown flag '--top_k': did you mean --top-k?");
    refuses("--ingore_eos", "unknown flag '--ingore_eos': did you mean --ignore-eos?");
    refuses("--full-nam x", "unknown flag '--full-nam': did you mean --full-name?");
    refuses("--items x", "unknown flag '--items': did you mean --item?");
    refuses("--conut-er 3", "unknown flag '--conut-er'"); /* four letters away */
    refuses("--sort", "unknown flag '--sort'");           /* two of four letters */
    refuses("--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "unknown flag '--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'");
}

/* The operand is a flag's value: `serve DIR`. */
static void test_operand_flag(void **state)
{
    (void)state;
    parsed p = parse_with("NAME", "name", "--fast here");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_string_equal(p.o.name, "here");
    drop(&p);
    p = parse_with("NAME", "name", "--name=there");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_string_equal(p.o.name, "there");
    drop(&p);
    p = parse_with("NAME", "name", "here -N there");
    assert_string_equal(p.err.text, "unexpected argument 'here': --name is given");
    drop(&p);
    p = parse_with("NAME", "name", "here there");
    assert_string_equal(p.err.text, "unexpected argument 'there'");
    drop(&p);
    setenv("ARGS_TEST_NAME", "elsewhere", 1);
    p = parse_with("NAME", "name", "here");
    assert_string_equal(p.o.name, "here");
    drop(&p);
    unsetenv("ARGS_TEST_NAME");
}

static void test_operand(void **state)
{
    (void)state;
    parsed p = parse("DIR", "here --fast");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_string_equal(p.operand, "here");
    assert_true(p.o.fast);
    drop(&p);
    p = parse("DIR", "-- --fast");
    assert_string_equal(p.operand, "--fast");
    assert_false(p.o.fast);
    drop(&p);
    p = parse("DIR", "--fast");
    assert_string_equal(p.err.text, "DIR is missing");
    drop(&p);
    p = parse("DIR", "a b");
    assert_string_equal(p.err.text, "unexpected argument 'b'");
    drop(&p);
    p = parse("DIR", "--count 99 --help"); /* the first error is the one reported */
    assert_int_equal(p.outcome, ARG_OUTCOME_WRONG);
    drop(&p);
    p = parse("DIR", "--help");
    assert_int_equal(p.outcome, ARG_OUTCOME_HELP);
    drop(&p);
}

static void test_environment(void **state)
{
    (void)state;
    static const char *const set[][2] = {
        {"ARGS_TEST_COUNT", "7"},   {"ARGS_TEST_ITEM", "from there"}, {"ARGS_TEST_FAST", "1"},
        {"ARGS_TEST_TOP_P", "0.5"}, {"ARGS_TEST_NAME", ""},           {"ARGS_TEST_COLOR", "green"},
    };
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) setenv(set[i][0], set[i][1], 1);
    parsed p = parse(NULL, "--item a --item b --color red --ignore-eos");
    assert_int_equal(p.outcome, ARG_OUTCOME_RUN);
    assert_int_equal(p.o.count, 7);
    assert_true(p.o.fast);
    assert_null(p.o.name); /* an empty value is not set */
    assert_string_equal(p.o.color, "red");
    assert_int_equal(p.o.items.n, 2); /* the command line overrides */
    char *text = json_dumps(p.o.fields, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, "{\"ignore_eos\":true,\"top_p\":0.5}");
    free(text);
    drop(&p);
    p = parse(NULL, "");
    assert_int_equal(p.o.items.n, 1);
    assert_string_equal(p.o.items.items[0], "from there");
    assert_string_equal(p.o.color, "green");
    drop(&p);
    setenv("ARGS_TEST_FAST", "0", 1);
    p = parse(NULL, "");
    assert_false(p.o.fast);
    drop(&p);
    setenv("ARGS_TEST_FAST", "yes", 1);
    refuses("", "ARGS_TEST_FAST: 'yes' must be 1 or 0");
    unsetenv("ARGS_TEST_FAST");
    setenv("ARGS_TEST_COUNT", "10", 1);
    refuses("", "ARGS_TEST_COUNT: --count: '10' must be a whole number from 2 to 9");
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) unsetenv(set[i][0]);
}

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},           {"4096", 4096},     {"1k", 1024},           {"512M", 512 << 20},
                {"4G", 4ull << 30}, {"2T", 2ull << 40}, {"1.5GiB", 3ull << 29}, {"3MB", 3 << 20},
                {"0.5K", 512}};
    static const char *const bad[] = {"",   "K",     "-1",   "1KK", "1 K",      "1e3",
                                      "1P", "1..5K", "0x10", "1Kx", "99999999T"};
    uint64_t v;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(args_read_bytes(good[i].text, &v));
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(args_read_bytes(bad[i], &v));
}

static void test_help(void **state)
{
    (void)state;
    const arg_group group = {"Flags", flags, sizeof flags / sizeof flags[0], NULL};
    const arg_command command = {.name = "octavo test",
                                 .usage = "[flags]",
                                 .about = "About.",
                                 .groups = &group,
                                 .n_groups = 1,
                                 .operand = "TEXT",
                                 .operand_flag = "name",
                                 .environment = "ARGS_TEST_"};
    strbuf out = {0};
    args_help(&command, &out);
    assert_non_null(strstr(out.data, "usage: octavo test [flags]\n\nAbout.\n\nFlags:\n"));
    assert_non_null(
        strstr(out.data, "\n  --color C                   a color: red, green (default red)\n"));
    assert_non_null(strstr(out.data, "\n  --fast                      go fast\n"));
    assert_non_null(strstr(out.data, "\n  --name TEXT                 a name; TEXT alone means the "
                                     "same [also -N, --full-name]\n"));
    /* The example is a flag that the command has. */
    assert_non_null(strstr(out.data, "environment: --name TEXT as ARGS_TEST_NAME=TEXT. "));
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_operand),
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_help),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_suggestions), cmocka_unit_test(test_operand_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

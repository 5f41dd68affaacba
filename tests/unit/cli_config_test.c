/* Files of flags: what they give a command, and what is said of files that are wrong. */
#include "cli/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct options {
    bool fast;
    const char *name, *policy;
    uint32_t count;
    arg_list items;
    json_t *fields;
    const char *text; // the file's
    config_file config;
} options;

static const arg_flag flags[] = {
    ARG_ROW("fast", NULL, ARG_SWITCH, options, fast, "go fast"),
    ARG_ROW("name", "TEXT", ARG_TEXT, options, name, "a name", .also = "--full-name"),
    ARG_ROW("policy", "JSON", ARG_TEXT, options, policy, "a policy"),
    ARG_ROW("count", "N", ARG_COUNT, options, count, "a count", .min = 2, .max = 9, .initial = "4"),
    ARG_ROW("item", "X", ARG_LIST, options, items, "an item"),
    ARG_ROW("top-p", "P", ARG_FIELD, options, fields, "p", .field = "top_p",
            .json = ARG_JSON_NUMBER, .max = 1),
};

static status give_settings(void *ctx, const arg_settings **out, error *err)
{
    options *o = ctx;
    RETURN_IF_ERROR(config_parse("f.yaml", o->text, strlen(o->text), &o->config, err));
    *out = &o->config.settings;
    return STATUS_IS_OK;
}

/* words: split at spaces */
static arg_outcome parse(options *o, const char *text, const char *words, error *err)
{
    *o = (options){.text = text};
    const arg_group group = {"Flags", flags, sizeof flags / sizeof flags[0], o};
    const arg_command command = {.name = "test",
                                 .groups = &group,
                                 .n_groups = 1,
                                 .environment = "CONFIG_TEST_",
                                 .settings = give_settings,
                                 .settings_ctx = o};
    static char line[256]; /* the parsed strings point into it */
    char *argv[32] = {line}, *rest = NULL;
    int argc = 1;
    snprintf(line, sizeof line, "%s", words);
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    return args_parse(&command, argc, argv, NULL, err);
}

static void drop(options *o)
{
    config_destroy(&o->config);
    free(o->items.items);
    json_decref(o->fields);
}

static void takes(options *o, const char *text, const char *words)
{
    error err = {{0}};
    if (parse(o, text, words, &err) != ARG_OUTCOME_RUN) fail_msg("%s", err.text);
}

static void refuses(const char *text, const char *message)
{
    options o;
    error err = {{0}};
    assert_int_equal(parse(&o, text, "", &err), ARG_OUTCOME_WRONG);
    assert_string_equal(err.text, message);
    drop(&o);
}

static void a_file_gives_flags(void **state)
{
    (void)state;
    options o;
    takes(&o,
          "# flags\nfast: true\nfull-name: 'a: b'\ncount: 7\nitem: [x, \"y\"]\ntop-p: 0.5\n"
          "policy: {method: chunkkv, ratio: 0.25, keep: [1, no, '2', true]}\n",
          "");
    assert_true(o.fast);
    assert_string_equal(o.name, "a: b");
    assert_int_equal(o.count, 7);
    assert_int_equal(o.items.n, 2);
    assert_string_equal(o.items.items[1], "y");
    assert_string_equal(o.policy,
                        "{\"method\":\"chunkkv\",\"ratio\":0.25,\"keep\":[1,\"no\",\"2\",true]}");
    assert_float_equal(json_real_value(json_object_get(o.fields, "top_p")), 0.5, 0);
    drop(&o);
    takes(&o, "fast: false\nitem:\n  - only\n", "");
    assert_false(o.fast);
    assert_int_equal(o.count, 4);
    assert_string_equal(o.items.items[0], "only");
    drop(&o);
    takes(&o, "# nothing\n", "");
    drop(&o);
    takes(&o, "", "");
    drop(&o);
}

/* The command line wins over the environment, and that over the file. */
static void others_win(void **state)
{
    (void)state;
    options o;
    const char *text = "count: 7\nitem: [x, y]\nname: file\n";
    setenv("CONFIG_TEST_NAME", "environment", 1);
    takes(&o, text, "--count 3 --item z");
    assert_int_equal(o.count, 3);
    assert_int_equal(o.items.n, 1);
    assert_string_equal(o.name, "environment");
    drop(&o);
    unsetenv("CONFIG_TEST_NAME");
    takes(&o, text, "--count 3");
    assert_string_equal(o.name, "file");
    drop(&o);
}

static void errors_say_where(void **state)
{
    (void)state;
    refuses("count: 7\ncuont: 3\n",
            "f.yaml: line 2: unknown flag '--cuont': did you mean --count?");
    refuses("\ncount: 99\n", "f.yaml: line 2: --count: '99' must be a whole number from 2 to 9");
    refuses("count: [3]", "f.yaml: line 1: --count: takes one value, not a list");
    refuses("count: {a: 1}",
            "f.yaml: line 1: --count: '{\"a\":1}' must be a whole number from 2 to 9");
    refuses("fast: yes", "f.yaml: line 1: --fast: 'yes' must be true or false");
    refuses("count:\n", "f.yaml: line 1: count: has no value");
    refuses("count: ~\n", "f.yaml: line 1: count: has no value");
    refuses("count: 3\ncount: 3\n", "f.yaml: line 2: count: is given in line 1 too");
    refuses("name: a\nfull-name: b\n", "f.yaml: line 2: --name: is given twice, under two names");
    refuses("config: x", "f.yaml: line 1: config: belongs on the command line");
    refuses("help: true", "f.yaml: line 1: help: belongs on the command line");
    refuses("- count", "f.yaml: line 1: must be lines of \"flag: value\"");
    refuses("count", "f.yaml: line 1: must be lines of \"flag: value\"");
    refuses("[a]: b", "f.yaml: line 1: the name of a flag must be a text");
    refuses("policy: {[a]: b}", "f.yaml: line 1: a name must be a text");
    refuses("policy: {a: 1,\n a: 2}", "f.yaml: line 2: a name is given twice");
    refuses("count: 3\n---\ncount: 3\n", "f.yaml: line 2: a second document begins");
}

static void hostile_files_end(void **state)
{
    (void)state;
    refuses("a: &a [x]\nb: *a\n", "f.yaml: line 1: anchors, aliases and tags are not taken");
    refuses("count: !!python/object 3", "f.yaml: line 1: anchors, aliases and tags are not taken");
    refuses("name: \"a\\0b\"", "f.yaml: line 1: a value has a NUL");
    refuses("name: \"open\n", "f.yaml: line 2: found unexpected end of stream");
    refuses("name: a\x01", "f.yaml: byte 7: control characters are not allowed");
    refuses("name: \xff\xfe\xff", "f.yaml: byte 6: invalid leading UTF-8 octet");
    enum { DEEP = CONFIG_BYTES_MAX };
    char *text = malloc(DEEP + 16);
    memcpy(text, "policy: ", 8);
    memset(text + 8, '[', DEEP);
    text[8 + DEEP] = '\0';
    refuses(text, "f.yaml: line 1: is nested too deeply");
    for (int i = 8; i + 4 <= DEEP; i += 4) memcpy(text + i, "{a: ", 4);
    refuses(text, "f.yaml: line 1: is nested too deeply");
    memset(text + 8, '{', DEEP);
    refuses(text, "f.yaml: line 1: a name must be a text");
    /* So many names are read in the time that their bytes take. */
    strbuf many = {0};
    for (int i = 0; many.size < DEEP; i++) strbuf_printf(&many, "%x: 1\n", i);
    refuses(many.data, "f.yaml: line 1: unknown flag '--0'");
    strbuf_destroy(&many);
    free(text);
}

static void large_files_are_refused(void **state)
{
    (void)state;
    char path[] = "cli_config_test.XXXXXX";
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    for (int i = 0; i <= CONFIG_BYTES_MAX; i++) fputc('#', file);
    fclose(file);
    config_file c;
    error err = {{0}};
    assert_false(status_ok(config_read(path, &c, &err)));
    assert_non_null(strstr(err.text, path));
    config_destroy(&c);
    assert_int_equal(truncate(path, CONFIG_BYTES_MAX), 0);
    assert_true(status_ok(config_read(path, &c, &err)));
    assert_int_equal(c.settings.n, 0);
    config_destroy(&c);
    remove(path);
    assert_false(status_ok(config_read("no/such.yaml", &c, &err)));
    assert_non_null(strstr(err.text, "no/such.yaml"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_flags),      cmocka_unit_test(others_win),
        cmocka_unit_test(errors_say_where),        cmocka_unit_test(hostile_files_end),
        cmocka_unit_test(large_files_are_refused),
    };
    return cmocka_run_group_tests_name("cli_config", tests, NULL, NULL);
}

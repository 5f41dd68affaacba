/* Chat templates against jinja2: tests/golden/templates (made by tools/make_template_goldens.py),
 * with equal outputs and equal refusals; limits; loading from a folder. With arguments: compares
 * those files instead. */
#include "tests/unit/model_folder.h"
#include "text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char goldens[] = "tests/golden/templates";

/* ---- goldens ---- */

typedef struct tally {
    int compared;
    int different;
} tally;

static void differ(tally *t, const char *file, const json_t *group, const char *what,
                   const char *wanted, const char *got)
{
    if (++t->different > 20) return;
    print_message("%s: %s: %s\n  template: %.300s\n  wanted:   %.600s\n  got:      %.600s\n", file,
                  json_string_value(json_object_get(group, "name")), what,
                  json_string_value(json_object_get(group, "template")), wanted, got);
}

/* "chat_template:LINE: message" -> message. */
static const char *message_of(const char *text)
{
    const char *p = strchr(text, ' ');
    return p ? p + 1 : text;
}

static void compare_case(tally *t, const char *file, const json_t *group, const json_t *item,
                         const json_t *vars, int64_t now)
{
    const json_t *source = json_object_get(group, "template");
    const json_t *wanted = json_object_get(item, "output");
    const char *wanted_error = json_string_value(json_object_get(item, "error"));
    chat_template *compiled;
    strbuf out = {0};
    error err = {""};
    status s = tmpl_compile(json_string_value(source), json_string_length(source), &compiled, &err);
    if (status_ok(s)) s = tmpl_render(compiled, vars, now, NULL, &out, &err);
    t->compared++;
    if (!status_ok(s)) {
        if (wanted) differ(t, file, group, "refused", json_string_value(wanted), err.text);
        else if (json_is_true(json_object_get(item, "exact")) &&
                 strcmp(message_of(err.text), wanted_error) != 0)
            differ(t, file, group, "another refusal", wanted_error, message_of(err.text));
        if (strncmp(err.text, "chat_template:", 14) != 0 || strchr(err.text, '\n'))
            differ(t, file, group, "an error without its place", wanted_error, err.text);
        if (out.size != 0) differ(t, file, group, "output left behind", "", out.data);
    } else if (!wanted) {
        differ(t, file, group, "not refused", wanted_error, out.data ? out.data : "");
    } else if (out.size != json_string_length(wanted) ||
               (out.size && memcmp(out.data, json_string_value(wanted), out.size) != 0)) {
        differ(t, file, group, "another output", json_string_value(wanted),
               out.data ? out.data : "");
    }
    tmpl_destroy(compiled);
    strbuf_destroy(&out);
}

static void compare_file(const char *path, tally *t)
{
    json_t *file;
    error err = {""};
    if (!status_ok(json_read_file(path, 16 << 20, &file, &err))) fail_msg("%s", err.text);
    const json_t *shared = json_object_get(file, "vars");
    int64_t now = json_integer_value(json_object_get(file, "now"));
    size_t i, k;
    json_t *group, *item;
    json_array_foreach(json_object_get(file, "groups"), i, group)
    {
        json_array_foreach(json_object_get(group, "cases"), k, item)
        {
            const json_t *vars = json_object_get(item, "vars");
            compare_case(t, path, group, item, vars ? vars : shared, now);
        }
    }
    json_decref(file);
}

static int is_json(const struct dirent *d) { return strstr(d->d_name, ".json") != NULL; }

static void test_goldens(void **state)
{
    (void)state;
    struct dirent **names;
    tally t = {0};
    int n = scandir(goldens, &names, is_json, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", goldens, names[i]->d_name);
        compare_file(path, &t);
        free(names[i]);
    }
    free(names);
    print_message("%d renderings compared, %d different\n", t.compared, t.different);
    assert_true(t.compared > 2000);
    assert_int_equal(t.different, 0);
}

/* ---- limits ---- */

/* Renders a template without variables; the error's text is left in *err. */
static status render_text(const char *source, const tmpl_limits *limits, strbuf *out, error *err)
{
    chat_template *t;
    json_t *vars = json_object();
    status s = tmpl_compile(source, strlen(source), &t, err);
    if (status_ok(s)) s = tmpl_render(t, vars, 0, limits, out, err);
    tmpl_destroy(t);
    json_decref(vars);
    return s;
}

static void expect_limit(const char *source, const tmpl_limits *limits, const char *text)
{
    strbuf out = {0};
    error err = {""};
    strbuf_puts(&out, "before");
    assert_int_equal(render_text(source, limits, &out, &err).code, STATUS_LIMIT);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    assert_string_equal(out.data, "before");
    strbuf_destroy(&out);
}

static void test_limits(void **state)
{
    (void)state;
    tmpl_limits steps = {.max_steps = 5000}, output = {.max_output = 100};
    tmpl_limits memory = {.max_memory = 1 << 20};
    expect_limit(
        "{% for a in range(100) %}{% for b in range(100) %}{{ a }}{% endfor %}{% endfor %}", &steps,
        "too many steps");
    expect_limit("{% for a in range(200) %}x{% endfor %}", &output, "output is too long");
    expect_limit("{% set x %}{% for a in range(200) %}x{% endfor %}{% endset %}", &output,
                 "output is too long");
    expect_limit("{% set s = 'x' * 100000 %}{% set t = s * 1000 %}", &memory, "too much memory");
    expect_limit("{% set ns = namespace(s='x') %}{% for a in range(64) %}"
                 "{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 NULL, "too much memory");
    expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, "nesting deeper");
    expect_limit("{% set ns = namespace(l=[]) %}{% for a in range(2000) %}"
                 "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
                 NULL, "nesting deeper");
    expect_limit("{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}", NULL, "nesting deeper");
    expect_limit("{{ 9223372036854775807 + 1 }}", NULL, "64 bits");
    expect_limit("{{ 10 ** 30 }}", NULL, "64 bits");
    expect_limit("{{ '%9999d' % 1 }}", NULL, "out of range");
}

static void test_deep_source(void **state)
{
    (void)state;
    static const char *const pieces[] = {"(", "[", "{1:", "-", "not ", "{% if 1 %}", "1+(", "a|f("};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        strbuf source = {0}, out = {0};
        error err = {""};
        if (pieces[i][0] != '{' || pieces[i][1] != '%') strbuf_puts(&source, "{{ ");
        for (int k = 0; k < 20000; k++) strbuf_puts(&source, pieces[i]);
        status s = render_text(source.data, NULL, &out, &err);
        assert_false(status_ok(s));
        strbuf_destroy(&source);
        strbuf_destroy(&out);
    }
    char *big = malloc((1 << 20) + 2);
    chat_template *t;
    error err = {""};
    assert_non_null(big);
    memset(big, 'x', (1 << 20) + 1);
    assert_int_equal(tmpl_compile(big, (1 << 20) + 1, &t, &err).code, STATUS_LIMIT);
    assert_int_equal(tmpl_compile(big, 1 << 20, &t, &err).code, STATUS_OK);
    tmpl_destroy(t);
    free(big);
}

static void expect_refused(const char *source, status_code code, const char *text)
{
    strbuf out = {0};
    error err = {""};
    assert_int_equal(render_text(source, NULL, &out, &err).code, code);
    assert_string_equal(err.text, text);
    strbuf_destroy(&out);
}

static void test_errors_name_the_line(void **state)
{
    (void)state;
    expect_refused("a\nb\n{{ x | foo }}", STATUS_UNSUPPORTED,
                   "chat_template:3: unknown filter 'foo'");
    expect_refused("{% if x is\n foo %}{% endif %}", STATUS_UNSUPPORTED,
                   "chat_template:1: unknown test 'foo'");
    expect_refused("\n\n{% block x %}", STATUS_UNSUPPORTED, "chat_template:3: unknown tag 'block'");
    expect_refused("\n{{ x.frobnicate(1) }}", STATUS_UNSUPPORTED,
                   "chat_template:2: unknown method 'frobnicate'");
    expect_refused("{{ ('y' | safe) | upper }}", STATUS_UNSUPPORTED,
                   "chat_template:1: filter 'upper' of safe text is not supported");
    expect_refused("{{ ('y' | safe) * 2 }}", STATUS_UNSUPPORTED,
                   "chat_template:1: of safe text only '+' is supported");
    expect_refused("{{ ('y' | safe).upper() }}", STATUS_UNSUPPORTED,
                   "chat_template:1: 'upper' of safe text is not supported");
    expect_refused("{{ '{:>3}'.format(1) }}", STATUS_UNSUPPORTED,
                   "chat_template:1: format(): a format specification is not supported");
    expect_refused("{{ '{!a}'.format(1) }}", STATUS_UNSUPPORTED,
                   "chat_template:1: format(): this conversion is not supported");
    expect_refused("{{ '{:{}}'.format(1, 2) }}", STATUS_UNSUPPORTED,
                   "chat_template:1: format(): a field within a field is not supported");
    expect_refused("{{ ('{}' | safe).format(1) }}", STATUS_UNSUPPORTED,
                   "chat_template:1: 'format' of safe text is not supported");
    expect_refused("{{ f(*a) }}", STATUS_UNSUPPORTED,
                   "chat_template:1: '*' in the arguments of a call is not supported");
    expect_refused("{% for x in [1] %}\n{{ x.y.z }}{% endfor %}", STATUS_INVALID,
                   "chat_template:2: 'int object' has no attribute 'y'");
    expect_refused("{{\n\n raise_exception('no\nway') }}", STATUS_INVALID,
                   "chat_template:3: no way");
    expect_refused("\xff", STATUS_CORRUPT, "chat_template:1: the template is not UTF-8");
}

/* ---- loading ---- */

static void write_file(const folder *f, const char *name, const char *content)
{
    folder_write(f, name, content, strlen(content));
}

/* Loads and renders the folder's template; "" when it has none. */
static void expect_loaded(const char *dir, const char *wanted, const char *bos, const char *eos)
{
    chat_template *t;
    strbuf b = {0}, e = {0}, out = {0};
    error err = {""};
    json_t *vars = json_object();
    strbuf_puts(&b, "");
    strbuf_puts(&e, "");
    strbuf_puts(&out, "");
    if (!status_ok(tmpl_load(dir, &t, &b, &e, &err))) fail_msg("%s", err.text);
    assert_int_equal(t != NULL, wanted[0] != '\0');
    if (t) assert_true(status_ok(tmpl_render(t, vars, 0, NULL, &out, &err)));
    assert_string_equal(out.data ? out.data : "", wanted);
    assert_string_equal(b.data ? b.data : "", bos);
    assert_string_equal(e.data ? e.data : "", eos);
    tmpl_destroy(t);
    json_decref(vars);
    strbuf_destroy(&b);
    strbuf_destroy(&e);
    strbuf_destroy(&out);
}

static void expect_load_error(const char *dir, const char *text)
{
    chat_template *t;
    strbuf b = {0}, e = {0};
    error err = {""};
    assert_false(status_ok(tmpl_load(dir, &t, &b, &e, &err)));
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
    strbuf_destroy(&b);
    strbuf_destroy(&e);
}

static void test_load(void **state)
{
    (void)state;
    folder f;
    const char *config = "tokenizer_config.json";
    char jinja[128];
    folder_make(&f);
    snprintf(jinja, sizeof jinja, "%s/chat_template.jinja", f.dir);
    expect_loaded(f.dir, "", "", "");
    write_file(&f, config, "{\"chat_template\": \"{{ 1 + 1 }}\", \"bos_token\": \"<s>\"}");
    expect_loaded(f.dir, "2", "<s>", "");
    write_file(&f, config,
               "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"}, {\"name\": "
               "\"default\", \"template\": \"d\"}], \"eos_token\": {\"content\": \"</s>\"}}");
    expect_loaded(f.dir, "d", "", "</s>");
    write_file(&f, "chat_template.jinja", "from {{ 'file' }}\n");
    expect_loaded(f.dir, "from file", "", "</s>");
    write_file(&f, "chat_template.jinja", "\n{{ x | foo }}");
    expect_load_error(f.dir, "chat_template:2: unknown filter 'foo'");
    unlink(jinja);
    write_file(&f, config, "{\"chat_template\": 5}");
    expect_load_error(f.dir, "'chat_template' is no text");
    write_file(&f, config, "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"t\"}]}");
    expect_load_error(f.dir, "no template named 'default'");
    write_file(&f, config, "{\"bos_token\": 5}");
    expect_load_error(f.dir, "'bos_token'");
    write_file(&f, config, "{");
    expect_load_error(f.dir, config);
    folder_remove(&f);
}

/* Text added to safe text is escaped, but not by `~`, as in jinja2. */
static void test_safe(void **state)
{
    (void)state;
    static const struct {
        const char *source, *due;
    } rows[] = {
        {"{{ ('<' | safe) + '<&\\'\"' }}", "<&lt;&amp;&#39;&#34;"},
        {"{{ '<' + ('<' | safe) }}", "&lt;<"},
        {"{{ '<' ~ ('<' | safe) ~ '<' }}", "<<<"},
        {"{% set a = '<' | safe %}{{ a + ('>' | safe) + '>' }}", "<>&gt;"},
        {"{{ ('ab' | safe)[1:] + '<' }}", "b&lt;"},
        {"{{ ('a' | safe | string) + '<' }}", "a&lt;"},
        {"{{ ('a' | safe | tojson) + '<' }}", "\"a\"<"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strbuf out = {0};
        error err = {""};
        status s = render_text(rows[i].source, NULL, &out, &err);
        if (!status_ok(s)) fail_msg("%s: %s", rows[i].source, err.text);
        assert_string_equal(out.data, rows[i].due);
        strbuf_destroy(&out);
    }
}

static void test_what_a_template_uses(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        bool uses, mentions;
    } rows[] = {
        {"{{ tools }}", true, true},
        {"{% for m in messages %}{{ 'tools' }}{{ m.tools }}{% endfor %}", false, true},
        {"{% if x %}{% elif y %}{% else %}{{ f(a, k=tools | tojson) }}{% endif %}", true, true},
        {"{% macro m(a=tools[0].name) %}{% endmacro %}", true, true},
        {"{%- set x = y if not tools is none else z %}", true, true},
        {"{{ messages }}", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        error err;
        chat_template *t;
        if (!status_ok(tmpl_compile(rows[i].source, strlen(rows[i].source), &t, &err)))
            fail_msg("%s: %s", rows[i].source, err.text);
        if (tmpl_uses(t, "tools") != rows[i].uses) fail_msg("%s", rows[i].source);
        assert_int_equal(tmpl_mentions(t, "tools"), rows[i].mentions);
        tmpl_destroy(t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_errors_name_the_line),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_safe),
        cmocka_unit_test(test_what_a_template_uses),
    };
    if (argc == 1) return cmocka_run_group_tests(tests, NULL, NULL);
    tally t = {0};
    for (int i = 1; i < argc; i++) compare_file(argv[i], &t);
    printf("%d renderings compared, %d different\n", t.compared, t.different);
    return t.different > 0;
}

/* Trace context of clients, which may be hostile, and the settings of traces. */
#include "rpc/otlp/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN   "00f067aa0ba902b7"
#define PARENT "00-" TRACE "-" SPAN "-01"

static const uint8_t trace_bytes[16] = {0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6,
                                        0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36};
static const uint8_t span_bytes[8] = {0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7};

/* ---- trace context --------------------------------------------------------------------------- */

static void add(trace_headers *h, const char *name, const char *value)
{
    trace_headers_add(h, name, strlen(name), value, strlen(value));
}

static bool read_parent(const char *parent, size_t n, trace_context *out)
{
    trace_headers h = {0};
    trace_headers_add(&h, "traceparent", 11, parent, n);
    return trace_context_read(&h, out);
}

static void a_parent_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool sampled;
    } good[] = {
        {PARENT, true},
        {"00-" TRACE "-" SPAN "-00", false},
        {"00-" TRACE "-" SPAN "-03", true},
        {"00-" TRACE "-" SPAN "-fe", false},
        {"01-" TRACE "-" SPAN "-01", true},
        {"cc-" TRACE "-" SPAN "-01-what-comes-later", true},
        {"fe-" TRACE "-" SPAN "-00-", false},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        trace_context c;
        assert_true(read_parent(good[i].text, strlen(good[i].text), &c));
        assert_memory_equal(c.trace, trace_bytes, 16);
        assert_memory_equal(c.span, span_bytes, 8);
        assert_int_equal(c.sampled, good[i].sampled);
        assert_int_equal(c.state_bytes, 0);
    }
}

static void a_malformed_parent_is_left_out(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "00",
        "-",
        "ff-" TRACE "-" SPAN "-01",
        "00-" TRACE "-" SPAN "-01-",
        "00-" TRACE "-" SPAN "-01x",
        "00-" TRACE "-" SPAN "-0",
        "00-" TRACE "-" SPAN "-1",
        "00-" TRACE "-" SPAN "-0g",
        "cc-" TRACE "-" SPAN "-01.what",
        "0x-" TRACE "-" SPAN "-01",
        " 0-" TRACE "-" SPAN "-01",
        " " PARENT,
        PARENT " ",
        "00_" TRACE "-" SPAN "-01",
        "00-" TRACE "_" SPAN "-01",
        "00-" TRACE "-" SPAN "_01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
        "00-" TRACE "-00F067AA0BA902B7-01",
        "00-" TRACE "-" SPAN "-0A",
        "0A-" TRACE "-" SPAN "-01",
        "00-00000000000000000000000000000000-" SPAN "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-" SPAN "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e47363-" SPAN "-1",
        PARENT "," PARENT,
    };
    trace_context c;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (read_parent(bad[i], strlen(bad[i]), &c)) fail_msg("accepted: %s", bad[i]);
    assert_false(read_parent("00-" TRACE "-00f067aa0ba902\0b-01", 55, &c));
    for (size_t n = 0; n < strlen(PARENT); n++) assert_false(read_parent(PARENT, n, &c));
    /* Two parents, and none. */
    trace_headers h = {0};
    assert_false(trace_context_read(&h, &c));
    add(&h, "tracestate", "a=1");
    assert_false(trace_context_read(&h, &c));
    add(&h, "TraceParent", PARENT);
    assert_true(trace_context_read(&h, &c));
    add(&h, "traceparent", PARENT);
    assert_false(trace_context_read(&h, &c));
}

/* Reads a parent with these states; NULL ends the list. */
static trace_context with_states(const char *const *states)
{
    trace_headers h = {0};
    trace_context c;
    add(&h, "x-traceparent", "no");
    add(&h, "traceparent", PARENT);
    add(&h, "traceparents", "no");
    for (; *states; states++) add(&h, "Tracestate", *states);
    assert_true(trace_context_read(&h, &c));
    return c;
}

static void check_state(const char *text, const char *expected)
{
    trace_context c = with_states((const char *const[]){text, NULL});
    if (c.state_bytes != strlen(expected) || memcmp(c.state, expected, c.state_bytes) != 0)
        fail_msg("'%s' gives '%.*s'", text, (int)c.state_bytes, c.state);
}

static void a_state_is_kept_whole_or_left_out(void **state)
{
    (void)state;
    static const char *const good[] = {
        "congo=t61rcWkgMzE", "a=1,b=2", "a=1 , b=2", "a=1,,b=2", "0a_-*/z=~!\"+", "t@s=1", "a= 1",
    };
    static const char *const bad[] = {
        "",
        " ",
        ",",
        "a",
        "a=",
        "=1",
        "A=1",
        "a=1,b",
        "a=1=2",
        "a=\x7f",
        "a=\x80",
        "@s=1",
        "t@=1",
        "t@s@u=1",
        "_a=1",
        "t@-s=1",
        "t@abcdefghijklmno=1",
        "a b=1",
        "a=1\tb",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) check_state(good[i], good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) check_state(bad[i], "");
    trace_context c = with_states((const char *const[]){"a=1", "", "b=2,c=3", NULL});
    assert_int_equal(c.state_bytes, 11);
    assert_memory_equal(c.state, "a=1,b=2,c=3", 11);
}

static void a_long_state_is_left_out(void **state)
{
    (void)state;
    char long_one[TRACE_STATE_BYTES_MAX + 2];
    strbuf members = {0};
    memset(long_one, ',', sizeof long_one);
    memcpy(long_one, "a=1", 3);
    long_one[TRACE_STATE_BYTES_MAX + 1] = '\0';
    check_state(long_one, "");
    long_one[TRACE_STATE_BYTES_MAX] = '\0';
    check_state(long_one, long_one);
    /* Another header makes it too long, and so it stays, whatever follows. */
    trace_context c = with_states((const char *const[]){long_one, "b=2", "c=3", NULL});
    assert_int_equal(c.state_bytes, 0);
    for (int i = 0; i < TRACE_STATE_MEMBERS_MAX; i++) strbuf_puts(&members, i ? ",a=1" : "a=1");
    check_state(members.data, members.data);
    strbuf_puts(&members, ",a=1");
    check_state(members.data, "");
    strbuf_destroy(&members);
    /* Keys and values of the longest length. */
    char pair[600];
    snprintf(pair, sizeof pair, "%0256d=1", 0);
    check_state(pair, pair);
    snprintf(pair, sizeof pair, "%0257d=1", 0);
    check_state(pair, "");
    snprintf(pair, sizeof pair, "%0241d@%014d=%0200d", 0, 0, 0);
    check_state(pair, pair);
    snprintf(pair, sizeof pair, "%0242d@s=1", 0);
    check_state(pair, "");
    snprintf(pair, sizeof pair, "a=%0256d", 0);
    check_state(pair, pair);
    snprintf(pair, sizeof pair, "a=%0257d", 0);
    check_state(pair, "");
}

/* ---- settings -------------------------------------------------------------------------------- */

/* The environment of the test: name, value, …, NULL. */
static const char *const *environment;

static const char *variable(const char *name)
{
    for (const char *const *v = environment; v && *v; v += 2)
        if (strcmp(v[0], name) == 0) return v[1];
    return NULL;
}

static status read_config(const char *endpoint, const char *const *variables, otlp_config *out,
                          error *err)
{
    const tracer_options o = {.endpoint = endpoint, .version = "1.2", .variable = variable};
    environment = variables;
    return otlp_config_read(&o, out, err);
}

#define VARIABLES(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *find(const otlp_pairs *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->items[i].name, name) == 0) return list->items[i].value;
    return NULL;
}

static void settings_without_variables_are_the_specifications(void **state)
{
    (void)state;
    otlp_config c;
    error err;
    assert_true(status_ok(read_config("http://h:4318/v1/traces?a=b", NULL, &c, &err)));
    assert_string_equal(c.url, "http://h:4318/v1/traces?a=b");
    assert_string_equal(c.shown, "http://h:4318");
    assert_int_equal(c.headers.n, 0);
    assert_false(c.gzip);
    assert_null(c.ca_file);
    assert_true(c.timeout_us == 10000000 && c.export_us == 30000000 && c.delay_us == 5000000);
    assert_true(c.queue_max == 2048 && c.batch_max == 512);
    assert_true(c.follows_parent && c.sampling == SAMPLE_ALL);
    assert_string_equal(find(&c.resource, "service.name"), "octavo");
    assert_string_equal(find(&c.resource, "service.version"), "1.2");
    otlp_config_destroy(&c);
}

static void variables_are_read(void **state)
{
    (void)state;
    otlp_config c;
    error err;
    const char *const *all = VARIABLES(
        "OTEL_SERVICE_NAME", "llm", "OTEL_RESOURCE_ATTRIBUTES",
        " zone = b%C3%A9 ,service.name=lost,a%20b=1,", "OTEL_EXPORTER_OTLP_HEADERS", "lost=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20x=y, tenant=7 ,tenant=8,e=",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "OTEL_EXPORTER_OTLP_CERTIFICATE",
        "/dev/null", "OTEL_EXPORTER_OTLP_TIMEOUT", "250", "OTEL_BSP_EXPORT_TIMEOUT", "700",
        "OTEL_BSP_SCHEDULE_DELAY", "0", "OTEL_BSP_MAX_QUEUE_SIZE", "100",
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "OTEL_TRACES_SAMPLER", "traceidratio",
        "OTEL_TRACES_SAMPLER_ARG", "0.25");
    if (!status_ok(read_config("https://[::1]/x", all, &c, &err))) fail_msg("%s", err.text);
    assert_string_equal(c.shown, "https://[::1]");
    assert_string_equal(find(&c.resource, "service.name"), "llm");
    assert_string_equal(find(&c.resource, "zone"), "b\xc3\xa9");
    assert_string_equal(find(&c.resource, "a b"), "1");
    assert_null(find(&c.headers, "lost"));
    assert_string_equal(find(&c.headers, "authorization"), "Bearer x=y");
    assert_string_equal(find(&c.headers, "tenant"), "8");
    assert_string_equal(find(&c.headers, "e"), "");
    assert_true(c.gzip);
    assert_string_equal(c.ca_file, "/dev/null");
    assert_true(c.timeout_us == 250000 && c.export_us == 700000 && c.delay_us == 0);
    assert_true(c.queue_max == 100 && c.batch_max == 100);
    assert_true(!c.follows_parent && c.sampling == SAMPLE_RATIO && c.ratio == 0.25);
    otlp_config_destroy(&c);
}

static void bad_settings_are_refused_by_name(void **state)
{
    (void)state;
    static const char url[] = "http://localhost:4318/v1/traces";
    static const struct {
        const char *endpoint, *name, *value, *says;
    } bad[] = {
        {"grpc://localhost:4317", NULL, NULL,
         "must be a URL of http or https: the receiver's port"},
        {"ftp://localhost/x", NULL, NULL, "must be a URL of http or https"},
        {"file:///etc/passwd", NULL, NULL, "must be a URL of http or https"},
        {"localhost:4318", NULL, NULL, "is not a URL"},
        {"", NULL, NULL, "is not a URL"},
        {"http://", NULL, NULL, "is not a URL"},
        {"http://me:secret@localhost/x", NULL, NULL, "must hold no user and password"},
        {"http://:secret@localhost/x", NULL, NULL, "must hold no user and password"},
        {url, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "'grpc' is not supported"},
        {url, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "'http/json' is not supported"},
        {url, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=1,secret", "entry 2 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "secret key=1", "entry 1 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0d%0ab: c", "entry 1 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "a=secret%", "entry 1 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "a=secret%4", "entry 1 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "a=secret%ff", "entry 1 is not name=value"},
        {url, "OTEL_EXPORTER_OTLP_HEADERS", "=secret", "entry 1 is not name=value"},
        {url, "OTEL_RESOURCE_ATTRIBUTES", "a=1,,=2", "entry 3 is not name=value"},
        {url, "OTEL_SERVICE_NAME", "\xff", "must be a text in UTF-8"},
        {url, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "from 1 to"},
        {url, "OTEL_EXPORTER_OTLP_TIMEOUT", "1s", "from 1 to"},
        {url, "OTEL_BSP_EXPORT_TIMEOUT", "-1", "from 1 to"},
        {url, "OTEL_BSP_SCHEDULE_DELAY", "99999999999999999999", "from 0 to"},
        {url, "OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1 to"},
        {url, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049", "from 1 to 2048"},
        {url, "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd", "'zstd' is not gzip or none"},
        {url, "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", "No such file"},
        {url, "OTEL_TRACES_SAMPLER", "xray", "'xray' is not always_on"},
        {url, NULL, "-0.1", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
        {url, NULL, "1.1", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
        {url, NULL, "nan", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
        {url, NULL, "0x1p-1", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
        {url, NULL, " 0.5", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
        {url, "OTEL_BSP_MAX_QUEUE_SIZE", "0x10", "must be an integer from"},
        {url, NULL, "half", "OTEL_TRACES_SAMPLER_ARG: must be a share"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        otlp_config c;
        error err = {{0}};
        const char *name = bad[i].name;
        const char *const *all =
            name ? VARIABLES(name, bad[i].value)
                 : VARIABLES("OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG",
                             bad[i].value ? bad[i].value : "1");
        status st = read_config(bad[i].endpoint, all, &c, &err);
        otlp_config_destroy(&c);
        if (status_ok(st)) fail_msg("accepted: %s %s", bad[i].endpoint, bad[i].value);
        if (!strstr(err.text, bad[i].says)) fail_msg("'%s' lacks '%s'", err.text, bad[i].says);
        if (name && !strstr(err.text, name)) fail_msg("'%s' lacks '%s'", err.text, name);
        assert_null(strstr(err.text, "secret"));
    }
}

static void long_lists_are_refused(void **state)
{
    (void)state;
    strbuf many = {0};
    char text[20000];
    otlp_config c;
    error err;
    for (int i = 0; i <= OTLP_PAIRS_MAX; i++) strbuf_printf(&many, "h%d=1,", i);
    const char *const *headers = VARIABLES("OTEL_EXPORTER_OTLP_HEADERS", many.data);
    assert_false(status_ok(read_config("http://h/", headers, &c, &err)));
    assert_non_null(strstr(err.text, "more than 64 entries"));
    otlp_config_destroy(&c);
    strbuf_destroy(&many);
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    headers = VARIABLES("OTEL_EXPORTER_OTLP_HEADERS", text);
    assert_false(status_ok(read_config("http://h/", headers, &c, &err)));
    assert_non_null(strstr(err.text, "longer than 16384 bytes"));
    otlp_config_destroy(&c);
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Whether a trace is sampled whose last 8 bytes are these; parent: '1' sampled, '0' not, '-'
 * none. */
static bool sampled(const char *sampler, const char *ratio, uint64_t low, char parent)
{
    otlp_config c;
    error err;
    uint8_t trace[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    const trace_context above = {.sampled = parent == '1'};
    const char *const *all =
        VARIABLES("OTEL_TRACES_SAMPLER", sampler, "OTEL_TRACES_SAMPLER_ARG", ratio);
    assert_true(status_ok(read_config("http://h/", all, &c, &err)));
    for (int i = 0; i < 8; i++) trace[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    bool result = otlp_samples(&c, trace, parent == '-' ? NULL : &above);
    otlp_config_destroy(&c);
    return result;
}

static void samplers_decide(void **state)
{
    (void)state;
    assert_true(sampled("always_on", "", 0, '0'));
    assert_false(sampled("always_off", "", 0, '1'));
    assert_true(sampled("parentbased_always_on", "", 0, '-'));
    assert_true(sampled("parentbased_always_on", "", 0, '1'));
    assert_false(sampled("parentbased_always_on", "", 0, '0'));
    assert_false(sampled("parentbased_always_off", "", 0, '-'));
    assert_true(sampled("parentbased_always_off", "", 0, '1'));
    /* A quarter of the ids, by their last 8 bytes. */
    const uint64_t quarter = UINT64_C(1) << 62;
    assert_true(sampled("traceidratio", "0.25", quarter - (1 << 20), '0'));
    assert_false(sampled("traceidratio", "0.25", quarter, '1'));
    assert_true(sampled("parentbased_traceidratio", "0.25", 0, '-'));
    assert_false(sampled("parentbased_traceidratio", "0.25", quarter, '-'));
    assert_true(sampled("parentbased_traceidratio", "0.25", quarter, '1'));
    assert_false(sampled("parentbased_traceidratio", "0.25", 0, '0'));
    assert_true(sampled("traceidratio", "1", UINT64_MAX, '-'));
    assert_false(sampled("traceidratio", "0", 0, '-'));
    assert_true(sampled("traceidratio", "", UINT64_MAX, '-'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parent_is_read),
        cmocka_unit_test(a_malformed_parent_is_left_out),
        cmocka_unit_test(a_state_is_kept_whole_or_left_out),
        cmocka_unit_test(a_long_state_is_left_out),
        cmocka_unit_test(settings_without_variables_are_the_specifications),
        cmocka_unit_test(variables_are_read),
        cmocka_unit_test(bad_settings_are_refused_by_name),
        cmocka_unit_test(long_lists_are_refused),
        cmocka_unit_test(samplers_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

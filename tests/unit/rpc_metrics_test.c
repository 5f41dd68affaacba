/* The Prometheus page, read by a parser that accepts exactly the format and nothing more. */
#include "tests/unit/rpc_fixture.h"

#include <math.h>

/* ---- a strict reader of text format 0.0.4 ---------------------------------------------------- */

enum { SAMPLES_MAX = 1024, NAME_MAX_BYTES = 128, LABELS_MAX_BYTES = 256 };

typedef struct sample {
    char name[NAME_MAX_BYTES];
    char labels[LABELS_MAX_BYTES]; // verbatim, with braces
    char kind[16];                 // of its family
    double value;
} sample;

typedef struct parsed {
    sample samples[SAMPLES_MAX];
    size_t n;
    char families[256][NAME_MAX_BYTES];
    size_t n_families;
} parsed;

typedef struct cursor {
    const char *at;
} cursor;

static bool is_name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
           (!first && c >= '0' && c <= '9');
}

static void expect(cursor *c, const char *text)
{
    size_t n = strlen(text);
    if (strncmp(c->at, text, n) != 0) fail_msg("'%.40s' does not begin with '%s'", c->at, text);
    c->at += n;
}

static void read_name(cursor *c, char *out)
{
    size_t n = 0;
    while (is_name_char(c->at[n], n == 0)) n++;
    assert_true(n > 0 && n < NAME_MAX_BYTES);
    memcpy(out, c->at, n);
    out[n] = '\0';
    c->at += n;
}

/* Reads one label="value": only \\, \" and \n are escapes in values. */
static void read_label(cursor *c)
{
    char name[NAME_MAX_BYTES];
    read_name(c, name);
    assert_null(strchr(name, ':'));
    expect(c, "=\"");
    for (; *c->at != '"'; c->at++) {
        assert_true(*c->at && *c->at != '\n');
        if (*c->at == '\\') assert_non_null(strchr("\\\"n", *++c->at));
    }
    c->at++;
}

static void read_labels(cursor *c, char *out)
{
    const char *from = c->at;
    out[0] = '\0';
    if (*c->at != '{') return;
    do {
        c->at++;
        read_label(c);
    } while (*c->at == ',');
    expect(c, "}");
    assert_true((size_t)(c->at - from) < LABELS_MAX_BYTES);
    memcpy(out, from, (size_t)(c->at - from));
    out[c->at - from] = '\0';
}

/* True for the sample names that a family may have. */
static bool belongs(const char *name, const char *family, const char *kind)
{
    size_t n = strlen(family);
    if (strncmp(name, family, n) != 0) return false;
    bool is_histogram = strcmp(kind, "histogram") == 0;
    if (!is_histogram && strcmp(kind, "summary") != 0) return name[n] == '\0';
    return (is_histogram && strcmp(name + n, "_bucket") == 0) || strcmp(name + n, "_sum") == 0 ||
           strcmp(name + n, "_count") == 0;
}

static void read_sample(cursor *c, parsed *p, const char *family, const char *kind)
{
    assert_true(p->n < SAMPLES_MAX);
    sample *s = &p->samples[p->n];
    read_name(c, s->name);
    if (!belongs(s->name, family, kind)) fail_msg("%s stands under %s", s->name, family);
    read_labels(c, s->labels);
    expect(c, " ");
    char *end;
    s->value = strtod(c->at, &end);
    assert_true(end > c->at && !isnan(s->value));
    c->at = end;
    expect(c, "\n");
    snprintf(s->kind, sizeof s->kind, "%s", kind);
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->samples[i].name, s->name) && !strcmp(p->samples[i].labels, s->labels))
            fail_msg("%s%s comes twice", s->name, s->labels);
    p->n++;
}

static void read_family(cursor *c, parsed *p)
{
    char family[NAME_MAX_BYTES], again[NAME_MAX_BYTES], kind[16];
    expect(c, "# HELP ");
    read_name(c, family);
    expect(c, " ");
    assert_true(*c->at && *c->at != '\n');
    c->at += strcspn(c->at, "\n");
    expect(c, "\n# TYPE ");
    read_name(c, again);
    assert_string_equal(family, again);
    expect(c, " ");
    read_name(c, kind);
    expect(c, "\n");
    assert_true(!strcmp(kind, "gauge") || !strcmp(kind, "counter") || !strcmp(kind, "histogram") ||
                !strcmp(kind, "summary"));
    for (size_t i = 0; i < p->n_families; i++)
        if (strcmp(p->families[i], family) == 0) fail_msg("family %s comes twice", family);
    snprintf(p->families[p->n_families++], NAME_MAX_BYTES, "%s", family);
    while (*c->at && *c->at != '#') read_sample(c, p, family, kind);
}

static parsed *read_page(rpc_fixture *f)
{
    parsed *p = calloc(1, sizeof *p);
    strbuf page = {0};
    metrics_text(&f->service, &page);
    assert_false(page.failed);
    assert_int_equal(strlen(page.data), page.size);
    cursor c = {page.data};
    while (*c.at) read_family(&c, p);
    strbuf_destroy(&page);
    return p;
}

/* The only sample of this name whose labels contain `label` (NULL = any). */
static double value_of(const parsed *p, const char *name, const char *label)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->samples[i].name, name) && (!label || strstr(p->samples[i].labels, label)))
            return p->samples[i].value;
    fail_msg("no %s %s", name, label ? label : "");
    return 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void every_name_is_there(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    parsed *p = read_page(f);
    static const char *const names[] = {
        "octavo:num_requests_running",
        "octavo:num_requests_waiting",
        "octavo:num_requests_waiting_by_reason",
        "octavo:kv_cache_usage_perc",
        "octavo:prefix_cache_queries_total",
        "octavo:prefix_cache_hits_total",
        "octavo:num_preemptions_total",
        "octavo:num_swaps_total",
        "octavo:host_pages_used",
        "octavo:host_pages",
        "octavo:prompt_tokens_total",
        "octavo:generation_tokens_total",
        "octavo:request_success_total",
        "octavo:time_to_first_token_seconds_count",
        "octavo:inter_token_latency_seconds_count",
        "octavo:request_time_per_output_token_seconds_count",
        "octavo:e2e_request_latency_seconds_count",
        "octavo:request_queue_time_seconds_count",
        "octavo:request_prefill_time_seconds_count",
        "octavo:request_decode_time_seconds_count",
        "octavo:request_inference_time_seconds_count",
        "octavo:request_prompt_tokens_count",
        "octavo:request_generation_tokens_count",
        "octavo:request_max_num_generation_tokens_count",
        "octavo:request_prefill_kv_computed_tokens_count",
        "octavo:request_params_n_count",
        "octavo:request_params_max_tokens_count",
        "octavo:prompt_tokens_by_source_total",
        "octavo:prompt_tokens_cached_by_source_total",
        "octavo:iteration_tokens_total_count",
        "octavo:cache_config_info",
        "octavo:admission_rejections_total",
        "octavo:logical_tokens",
        "octavo:kept_tokens",
        "octavo:kv_pages_used",
        "octavo:kv_pages_cached",
        "octavo:kv_pages",
        "octavo:backend_restarts_total",
        "octavo:corrupted_requests_total",
        "octavo:uptime_seconds",
        "octavo_build_info",
        "process_resident_memory_bytes",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) (void)value_of(p, names[i], NULL);
    (void)value_of(p, "octavo:cache_config_info", "num_gpu_blocks=\"333\",num_pages=\"999\"");
    for (size_t i = 0; i < p->n; i++)
        if (strncmp(p->samples[i].name, "octavo:", 7) == 0)
            assert_int_equal(strncmp(p->samples[i].labels, "{model_name=\"demo\",engine=\"0\"", 29),
                             0);
    assert_true(value_of(p, "process_resident_memory_bytes", NULL) > 1e6);
    assert_true(value_of(p, "octavo:kv_pages", NULL) == 999);
    free(p);
    rpc_fixture_destroy(f);
}

static void requests_are_counted(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.max_requests = 4});
    rpc_fixture_answer(f, "one two three");
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x y z\", \"n\": 2}", 1, NULL);
    rpc_fixture_wait_idle(f);
    atomic_store(&f->service.refused[REFUSED_QUEUE_FULL], 7);
    parsed *p = read_page(f);
    double made = 2.0 * (f->n_script + 1);
    assert_true(value_of(p, "octavo:generation_tokens_total", NULL) == made);
    assert_true(value_of(p, "octavo:prompt_tokens_total", NULL) > 0);
    assert_true(value_of(p, "octavo:request_success_total", "finished_reason=\"stop\"") == 2);
    assert_true(value_of(p, "octavo:request_success_total", "finished_reason=\"abort\"") == 0);
    assert_true(value_of(p, "octavo:admission_rejections_total", "\"queue_full\"") == 7);
    assert_true(value_of(p, "octavo:admission_rejections_total", "\"draining\"") == 0);
    assert_true(value_of(p, "octavo:num_requests_in_flight", NULL) == 1);
    assert_true(value_of(p, "octavo:serving", NULL) == 1);
    free(p);
    generation_release(g);
    rpc_fixture_destroy(f);
}

static void check_counter(const parsed *p, const char *metric, uint64_t value)
{
    char name[NAME_MAX_BYTES];
    if (!metric) return;
    snprintf(name, sizeof name, "octavo:%s", metric);
    assert_true(value_of(p, name, NULL) == (double)value);
}

/* Each named counter of the scheduler and of its pages has a row with its value. */
static void every_counter_has_its_row(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){.max_requests = 4});
    rpc_fixture_answer(f, "one two three");
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x y z\", \"n\": 2}", 1, NULL);
    rpc_fixture_wait_idle(f);
    sched_stats st = engine_get_stats(f->engine).sched;
    assert_true(st.prompt_tokens > 0 && st.generated_tokens > st.prompt_tokens);
    assert_true(st.pages.queried_tokens > 0);
    parsed *p = read_page(f);
#define CHECK(field, metric, help)       check_counter(p, metric, st.field);
#define CHECK_PAGES(field, metric, help) check_counter(p, metric, st.pages.field);
    SCHED_COUNTERS(CHECK)
    PKV_COUNTERS(CHECK_PAGES)
    free(p);
    generation_release(g);
    rpc_fixture_destroy(f);
}

/* The buckets of a histogram rise up to +Inf, which equals the count. */
static void histograms_are_cumulative(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    generation *g = rpc_fixture_start(f, "{\"prompt\": \"x\"}", 3, NULL);
    rpc_fixture_wait_idle(f);
    generation_release(g);
    parsed *p = read_page(f);
    size_t n_buckets = 0;
    for (size_t i = 0; i < p->n; i++) {
        const sample *s = &p->samples[i];
        if (strcmp(s->kind, "histogram") != 0) continue;
        size_t n = strlen(s->name);
        bool bucket = n > 7 && strcmp(s->name + n - 7, "_bucket") == 0;
        const char *le = strstr(s->labels, ",le=\"");
        assert_int_equal(bucket, le != NULL);
        if (!bucket) continue;
        n_buckets++;
        const sample *next = &p->samples[i + 1];
        if (strcmp(next->name, s->name) == 0) {
            assert_true(next->value >= s->value);
            assert_true(strtod(strstr(next->labels, ",le=\"") + 5, NULL) > strtod(le + 5, NULL));
        } else {
            assert_int_equal(strncmp(le, ",le=\"+Inf\"}", 11), 0);
            char count[NAME_MAX_BYTES];
            snprintf(count, sizeof count, "%.*s_count", (int)n - 7, s->name);
            assert_true(value_of(p, count, NULL) == s->value);
        }
    }
    assert_true(n_buckets > 50);
    assert_true(value_of(p, "octavo:request_prompt_tokens_count", NULL) == 3);
    free(p);
    rpc_fixture_destroy(f);
}

static void give_answer(service *s, const char *route, const char *code, bool of_api,
                        double seconds)
{
    service_answer a = {.surface = "http", .route = route, .code = code, .of_api = of_api};
    service_count_answer(s, &a);
    service_time_answer(s, &a, seconds);
}

/* Answers to probes and over gRPC are not among those that boards of web servers show. */
static void answers_are_summed_by_class_and_route(void **state)
{
    (void)state;
    rpc_fixture *f = rpc_fixture_create(&(rpc_fixture_options){0});
    service *s = &f->service;
    give_answer(s, "/a", "200", true, 1);
    give_answer(s, "/b", "200", true, 16);
    give_answer(s, "/a", "404", true, 2);
    give_answer(s, "/a", "400", true, 4);
    give_answer(s, "/health", "200", false, 8);
    service_count_answer(s, &(service_answer){.surface = "grpc", .route = "/c", .code = "OK"});
    parsed *p = read_page(f);
    static const struct {
        const char *name, *labels;
        double value;
    } wanted[] = {
        {"http_requests_total", "{handler=\"/a\",status=\"2xx\"}", 1},
        {"http_requests_total", "{handler=\"/a\",status=\"4xx\"}", 2},
        {"http_requests_total", "{handler=\"/b\",status=\"2xx\"}", 1},
        {"http_request_duration_seconds_sum", "{handler=\"/a\"}", 7},
        {"http_request_duration_seconds_sum", "{handler=\"/b\"}", 16},
        {"http_request_duration_seconds_count", "{handler=\"/a\"}", 3},
        {"http_request_duration_seconds_count", "{handler=\"/b\"}", 1},
    };
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += strncmp(p->samples[i].name, "http_", 5) == 0;
    assert_int_equal(n, sizeof wanted / sizeof wanted[0]);
    for (size_t i = 0; i < n; i++)
        assert_true(value_of(p, wanted[i].name, wanted[i].labels) == wanted[i].value);
    assert_true(value_of(p, "octavo:http_requests_total", "code=\"200\",route=\"/health\"") == 1);
    free(p);
    rpc_fixture_destroy(f);
}

static void names_are_escaped(void **state)
{
    (void)state;
    rpc_fixture *f =
        rpc_fixture_create(&(rpc_fixture_options){.model_name = "a\"b\\c\nd} 1\n# HELP x"});
    parsed *p = read_page(f);
    (void)value_of(p, "octavo_build_info",
                   "{version=\"\",commit=\"\",model_name=\"a\\\"b\\\\c\\nd} 1\\n# HELP x\",dtype");
    (void)value_of(p, "octavo:serving", "{model_name=\"a\\\"b\\\\c\\nd} 1\\n# HELP x\",engine");
    free(p);
    rpc_fixture_destroy(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_there),
        cmocka_unit_test(requests_are_counted),
        cmocka_unit_test(every_counter_has_its_row),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(answers_are_summed_by_class_and_route),
        cmocka_unit_test(names_are_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The settings of traces: the endpoint, and the environment variables that OpenTelemetry's
 * specification names. A variable of the name with TRACES goes before the one without. */
#include "rpc/otlp/internal.h"

#include "base/number.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BLOCK_BYTES = 4096,
    TIMEOUT_MS = 10000, // the specification's defaults
    EXPORT_MS = 30000,
    DELAY_MS = 5000,
    QUEUE = 2048,
    BATCH = 512,
    MS_MAX = 86400 * 1000,
    SPANS_MAX = 1 << 20,
    LIST_BYTES_MAX = 16384,
};

static const char flag[] = "otlp-traces-endpoint";

typedef struct reading {
    const char *(*variable)(const char *name);
    otlp_config *config;
} reading;

static const char *of_process(const char *name) { return getenv(name); }

/* The variable's value; NULL when it is not set, or empty. */
static const char *value_of(const reading *r, const char *name)
{
    const char *value = r->variable(name);
    return value && *value ? value : NULL;
}

/* The value of the variable of traces, or else of all signals; *name says which. */
static const char *either(const reading *r, const char *of_traces, const char *of_all,
                          const char **name)
{
    const char *value = value_of(r, *name = of_traces);
    return value ? value : value_of(r, *name = of_all);
}

static status refuse_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", flag);
}

static const char *copy(const reading *r, const char *text, size_t n)
{
    return arena_strndup(&r->config->memory, text, n);
}

/* ---- the endpoint ---------------------------------------------------------------------------- */

static const char *scheme_hint(const char *scheme)
{
    return strcmp(scheme, "grpc") == 0 ? ": the receiver's port for HTTP is usually 4318, with the "
                                         "path /v1/traces"
                                       : "";
}

static status check_parts(reading *r, const char *scheme, const char *host, const char *port,
                          const char *user, error *err)
{
    if (!scheme || (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        return error_set(err, STATUS_INVALID, "%s: must be a URL of http or https%s", flag,
                         scheme ? scheme_hint(scheme) : "");
    if (user)
        return error_set(err, STATUS_INVALID,
                         "%s: must hold no user and password: give what the receiver asks for by "
                         "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                         flag);
    snprintf(r->config->shown, sizeof r->config->shown, "%s://%s%s%s", scheme, host ? host : "",
             port ? ":" : "", port ? port : "");
    return STATUS_IS_OK;
}

static status read_endpoint(reading *r, const char *endpoint, error *err)
{
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL, *password = NULL;
    CURLU *url = curl_url();
    r->config->url = copy(r, endpoint, strlen(endpoint));
    if (!url || !r->config->url) {
        curl_url_cleanup(url);
        return refuse_memory(err);
    }
    status st = STATUS_IS_OK;
    if (curl_url_set(url, CURLUPART_URL, endpoint, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK) {
        curl_url_get(url, CURLUPART_SCHEME, &scheme, 0);
        curl_url_get(url, CURLUPART_HOST, &host, 0);
        curl_url_get(url, CURLUPART_PORT, &port, 0);
        curl_url_get(url, CURLUPART_USER, &user, 0);
        curl_url_get(url, CURLUPART_PASSWORD, &password, 0);
        st = check_parts(r, scheme, host, port, user ? user : password, err);
    } else {
        st = error_set(err, STATUS_INVALID,
                       "%s: is not a URL, such as http://localhost:4318/v1/traces", flag);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(user);
    curl_free(password);
    curl_url_cleanup(url);
    return st;
}

/* ---- lists of name=value --------------------------------------------------------------------- */

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes %XX in place. False for a bad escape, and for characters that are no text. */
static bool unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        char c = *s;
        if (c == '%') {
            int high = hex_of(s[1]), low = high < 0 ? -1 : hex_of(s[2]);
            if (low < 0) return false;
            c = (char)(high << 4 | low);
            s += 2;
        }
        if ((unsigned char)c < ' ' || c == 0x7f) return false;
        *to++ = c;
    }
    *to = '\0';
    return true;
}

static char *trim(char *s)
{
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) s[--n] = '\0';
    return s;
}

/* A header's name is a token of HTTP. */
static bool is_token(const char *s)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    if (!*s) return false;
    for (; *s; s++)
        if (!(*s >= '0' && *s <= '9') && !((*s | 0x20) >= 'a' && (*s | 0x20) <= 'z') &&
            !strchr(marks, *s))
            return false;
    return true;
}

static bool is_utf8(const char *s) { return utf8_valid((const uint8_t *)s, strlen(s)); }

/* A later pair takes the place of an earlier one of its name. */
static bool set_pair(otlp_pairs *list, const char *name, const char *value)
{
    size_t i = 0;
    while (i < list->n && strcmp(list->items[i].name, name) != 0) i++;
    if (i == OTLP_PAIRS_MAX) return false;
    list->items[i] = (otlp_pair){name, value};
    if (i == list->n) list->n++;
    return true;
}

/* Reads "name=value,name=value" with values in %XX. Messages show no value, because it may be a
 * key. */
static status read_pairs(reading *r, const char *variable, const char *text, bool are_headers,
                         otlp_pairs *out, error *err)
{
    if (!text) return STATUS_IS_OK;
    if (strlen(text) > LIST_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "%s: is longer than %d bytes", variable,
                         LIST_BYTES_MAX);
    char *left = (char *)(uintptr_t)copy(r, text, strlen(text));
    if (!left) return refuse_memory(err);
    for (uint32_t number = 1; left; number++) {
        char *item = trim(strsep(&left, ",")), *value = strchr(item, '=');
        if (!*item) continue;
        if (value) *value++ = '\0';
        char *name = trim(item);
        if (value) value = trim(value);
        bool good = value && unescape(value) && is_utf8(value) &&
                    (are_headers ? is_token(name) : *name && unescape(name) && is_utf8(name));
        if (!good)
            return error_set(err, STATUS_INVALID, "%s: entry %u is not name=value", variable,
                             number);
        if (!set_pair(out, name, value))
            return error_set(err, STATUS_INVALID, "%s: there are more than %d entries", variable,
                             OTLP_PAIRS_MAX);
    }
    return STATUS_IS_OK;
}

static status read_headers(reading *r, error *err)
{
    const char *name,
        *text = either(r, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", &name);
    return read_pairs(r, name, text, true, &r->config->headers, err);
}

static status read_resource(reading *r, const char *version, error *err)
{
    char pid[24];
    otlp_pairs *out = &r->config->resource;
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    const char *own_version = copy(r, version, strlen(version)),
               *own_pid = copy(r, pid, strlen(pid));
    if (!own_version || !own_pid) return refuse_memory(err);
    set_pair(out, "service.name", "octavo");
    set_pair(out, "service.version", own_version);
    set_pair(out, "process.pid", own_pid);
    RETURN_IF_ERROR(read_pairs(r, "OTEL_RESOURCE_ATTRIBUTES",
                               value_of(r, "OTEL_RESOURCE_ATTRIBUTES"), false, out, err));
    const char *service = value_of(r, "OTEL_SERVICE_NAME");
    if (!service) return STATUS_IS_OK;
    if (!is_utf8(service))
        return error_set(err, STATUS_INVALID, "OTEL_SERVICE_NAME: must be a text in UTF-8");
    service = copy(r, service, strlen(service));
    if (!service) return refuse_memory(err);
    set_pair(out, "service.name", service);
    return STATUS_IS_OK;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static status read_number(const char *name, const char *text, long least, long most, long *out,
                          error *err)
{
    uint64_t n = 0;
    if (!text) return STATUS_IS_OK;
    const char *end = number_read_whole(text, &n);
    if (!end || *end || n < (uint64_t)least || n > (uint64_t)most)
        return error_set(err, STATUS_INVALID, "%s: must be an integer from %ld to %ld", name, least,
                         most);
    *out = (long)n;
    return STATUS_IS_OK;
}

static status read_numbers(reading *r, error *err)
{
    otlp_config *c = r->config;
    const char *name;
    long timeout = TIMEOUT_MS, export = EXPORT_MS, delay = DELAY_MS, queue = QUEUE, batch = 0;
    const char *text =
        either(r, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT", &name);
    RETURN_IF_ERROR(read_number(name, text, 1, MS_MAX, &timeout, err));
    name = "OTEL_BSP_EXPORT_TIMEOUT";
    RETURN_IF_ERROR(read_number(name, value_of(r, name), 1, MS_MAX, &export, err));
    name = "OTEL_BSP_SCHEDULE_DELAY";
    RETURN_IF_ERROR(read_number(name, value_of(r, name), 0, MS_MAX, &delay, err));
    name = "OTEL_BSP_MAX_QUEUE_SIZE";
    RETURN_IF_ERROR(read_number(name, value_of(r, name), 1, SPANS_MAX, &queue, err));
    batch = queue < BATCH ? queue : BATCH;
    name = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
    RETURN_IF_ERROR(read_number(name, value_of(r, name), 1, queue, &batch, err));
    c->timeout_us = timeout * INT64_C(1000);
    c->export_us = export * INT64_C(1000);
    c->delay_us = delay * INT64_C(1000);
    c->queue_max = (uint32_t)queue;
    c->batch_max = (uint32_t)batch;
    return STATUS_IS_OK;
}

static status read_transport(reading *r, error *err)
{
    const char *name, *text = either(r, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
                                     "OTEL_EXPORTER_OTLP_PROTOCOL", &name);
    if (text && strcmp(text, "http/protobuf") != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: '%.32s' is not supported: traces are sent "
                         "as http/protobuf",
                         name, text);
    text =
        either(r, "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION", &name);
    r->config->gzip = text && strcmp(text, "gzip") == 0;
    if (text && !r->config->gzip && strcmp(text, "none") != 0)
        return error_set(err, STATUS_INVALID, "%s: '%.32s' is not gzip or none", name, text);
    text =
        either(r, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE", &name);
    if (!text) return STATUS_IS_OK;
    if (access(text, R_OK) != 0)
        return error_set(err, STATUS_IO, "%s: %.256s: %s", name, text, strerror(errno));
    r->config->ca_file = copy(r, text, strlen(text));
    return r->config->ca_file ? STATUS_IS_OK : refuse_memory(err);
}

/* ---- sampling -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool follows_parent;
    otlp_sampling sampling;
} samplers[] = {
    {"parentbased_always_on", true, SAMPLE_ALL},
    {"parentbased_always_off", true, SAMPLE_NONE},
    {"parentbased_traceidratio", true, SAMPLE_RATIO},
    {"always_on", false, SAMPLE_ALL},
    {"always_off", false, SAMPLE_NONE},
    {"traceidratio", false, SAMPLE_RATIO},
};

static status read_sampler(reading *r, error *err)
{
    otlp_config *c = r->config;
    const char *name = value_of(r, "OTEL_TRACES_SAMPLER");
    size_t i = 0, n = sizeof samplers / sizeof samplers[0];
    while (name && i < n && strcmp(samplers[i].name, name) != 0) i++;
    if (i == n)
        return error_set(err, STATUS_INVALID,
                         "OTEL_TRACES_SAMPLER: '%.48s' is not always_on, always_off, traceidratio "
                         "or one of these after parentbased_",
                         name);
    c->follows_parent = samplers[i].follows_parent;
    c->sampling = samplers[i].sampling;
    c->ratio = 1;
    const char *ratio = value_of(r, "OTEL_TRACES_SAMPLER_ARG");
    if (c->sampling != SAMPLE_RATIO || !ratio) return STATUS_IS_OK;
    const char *end = number_read(ratio, &c->ratio);
    if (!end || *end || !(c->ratio >= 0 && c->ratio <= 1))
        return error_set(err, STATUS_INVALID,
                         "OTEL_TRACES_SAMPLER_ARG: must be a share from 0 to 1");
    return STATUS_IS_OK;
}

/* The last 8 bytes of the id decide, as in OpenTelemetry's own libraries, so that a trace is
 * sampled by all or by none of the processes that have the same share. */
bool otlp_samples(const otlp_config *c, const uint8_t trace[16], const trace_context *parent)
{
    uint64_t low = 0;
    if (parent && c->follows_parent) return parent->sampled;
    if (c->sampling != SAMPLE_RATIO) return c->sampling == SAMPLE_ALL;
    for (int i = 8; i < 16; i++) low = low << 8 | trace[i];
    return c->ratio >= 1 || (double)low < c->ratio * 0x1p64;
}

/* ---- all ------------------------------------------------------------------------------------- */

status otlp_config_read(const tracer_options *o, otlp_config *out, error *err)
{
    reading r = {o->variable ? o->variable : of_process, out};
    *out = (otlp_config){0};
    arena_init(&out->memory, BLOCK_BYTES, 0);
    RETURN_IF_ERROR(read_endpoint(&r, o->endpoint, err));
    RETURN_IF_ERROR(read_transport(&r, err));
    RETURN_IF_ERROR(read_headers(&r, err));
    RETURN_IF_ERROR(read_resource(&r, o->version ? o->version : "", err));
    RETURN_IF_ERROR(read_numbers(&r, err));
    return read_sampler(&r, err);
}

void otlp_config_destroy(otlp_config *c)
{
    arena_destroy(&c->memory);
    *c = (otlp_config){0};
}

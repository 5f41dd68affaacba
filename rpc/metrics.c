/* The Prometheus page (text format 0.0.4). A metric is a row; its name gets the prefix "octavo:"
 * and the labels model_name and engine, as dashboards made for vLLM expect. */
#include "rpc/service.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PREFIX "octavo:"

typedef struct page {
    strbuf *out;
    strbuf labels; // of every sample: model_name="…",engine="0"
} page;

typedef struct metric {
    const char *name, *help;
    double value;
} metric;

enum { LABEL_VALUES_MAX = ENGINE_METHODS_MAX };

/* A metric whose samples differ in one label. */
typedef struct labelled {
    const char *name, *help, *label;
    const char *of[LABEL_VALUES_MAX];
    double values[LABEL_VALUES_MAX];
    size_t n;
} labelled;

/* ---- the format ------------------------------------------------------------------------------ */

static void put_escaped(strbuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n') strbuf_puts(out, "\\n");
        else {
            if (*text == '\\' || *text == '"') strbuf_putc(out, '\\');
            strbuf_putc(out, *text);
        }
    }
}

static void put_number(strbuf *out, double v)
{
    if (isinf(v)) strbuf_puts(out, v > 0 ? "+Inf" : "-Inf");
    else if (v == floor(v) && fabs(v) < 0x1p53) strbuf_printf(out, "%.0f", v);
    else strbuf_printf(out, "%.10g", v);
}

static void put_head(strbuf *out, const char *prefix, const char *kind, const char *name,
                     const char *help)
{
    strbuf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, kind);
}

/* Writes one sample; label may be NULL. */
static void put_sample(page *p, const char *name, const char *suffix, const char *label,
                       const char *of, double value)
{
    strbuf_printf(p->out, PREFIX "%s%s{", name, suffix);
    strbuf_append(p->out, p->labels.data, p->labels.size);
    if (label) {
        strbuf_printf(p->out, ",%s=\"", label);
        put_escaped(p->out, of);
        strbuf_putc(p->out, '"');
    }
    strbuf_puts(p->out, "} ");
    put_number(p->out, value);
    strbuf_putc(p->out, '\n');
}

/* A row without a name is left out. */
static void put_rows(page *p, const char *kind, const metric *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].name) continue;
        put_head(p->out, PREFIX, kind, rows[i].name, rows[i].help);
        put_sample(p, rows[i].name, "", NULL, NULL, rows[i].value);
    }
}

static void put_labelled(page *p, const char *kind, const labelled *l)
{
    put_head(p->out, PREFIX, kind, l->name, l->help);
    for (size_t i = 0; i < l->n; i++) put_sample(p, l->name, "", l->label, l->of[i], l->values[i]);
}

/* Python's client writes whole bounds as 1.0 and 1e+06, and boards select buckets by such texts. */
static void bound_text(double bound, char *out, size_t size)
{
    int n = snprintf(out, size, "%g", bound);
    if (!strpbrk(out, ".e")) snprintf(out + n, size - (size_t)n, ".0");
}

static void put_histogram(page *p, const engine_histogram_info *info, const engine_histogram *h)
{
    char bound[32];
    uint64_t below = 0;
    put_head(p->out, PREFIX, "histogram", info->name, info->help);
    for (uint32_t i = 0; i < info->n_bounds; i++) {
        below += h->counts[i];
        bound_text(info->bounds[i], bound, sizeof bound);
        put_sample(p, info->name, "_bucket", "le", bound, (double)below);
    }
    put_sample(p, info->name, "_bucket", "le", "+Inf", (double)h->count);
    put_sample(p, info->name, "_sum", NULL, NULL, h->sum);
    put_sample(p, info->name, "_count", NULL, NULL, (double)h->count);
}

/* ---- the metrics ----------------------------------------------------------------------------- */

static void put_gauges(page *p, service *s, const engine_stats *e)
{
    const sched_stats *st = &e->sched;
    const pkv_counts *pages = &st->pages;
    double total = s->o.model.n_pages;
    const metric rows[] = {
        {"num_requests_running", "Choices in the batch.", st->running},
        {"num_requests_waiting", "Requests that wait to be scheduled.", st->waiting},
        {"num_requests_live", "Requests accepted and not ended, tokenizing ones too.", e->n_live},
        {"num_requests_in_flight", "Calls whose answers have not been sent in full.",
         atomic_load(&s->in_flight)},
        {"kv_cache_usage_perc", "Referenced KV pages / all KV pages, 0 to 1.",
         total > 0 ? pages->used / total : 0},
        {"kv_pages", "KV pages of the pool, of a layer and a KV head each.", total},
        {"kv_pages_used",
         "KV pages referenced, each once: kv_pages less these are left for new work.", pages->used},
        {"host_pages_used", "KV pages in the host tier.", pages->host_used},
        {"host_pages", "KV pages that the host tier can hold.", pages->n_host_pages},
        {"kv_pages_cached", "KV pages that only the prefix cache references.", pages->cached},
        {"logical_tokens", "Tokens seen, summed over sequences that hold pages.",
         (double)st->logical_tokens},
        {"kept_tokens", "Tokens that attention still reads, summed over sequences that hold pages.",
         st->kept_tokens},
        {"embedding_bytes", "Bytes of the embeddings of requests and sessions of method reform.",
         (double)e->embed_bytes},
        {"serving", "1 when new requests are accepted.", service_is_serving(s)},
        {"uptime_seconds", "Seconds since the server started.",
         (double)(clock_now_us() - s->start_us) / 1e6},
    };
    put_rows(p, "gauge", rows, sizeof rows / sizeof rows[0]);
}

static void put_counters(page *p, const engine_stats *e, const engine_metrics *m)
{
    const sched_stats *st = &e->sched;
#define PAGES_ROW(field, metric, help) {metric, help, (double)st->pages.field},
#define SCHED_ROW(field, metric, help) {metric, help, (double)st->field},
    const metric rows[] = {
        PKV_COUNTERS(PAGES_ROW) SCHED_COUNTERS(SCHED_ROW)
        /* The engine's own counters. */
        {"steps_total", "Steps of the engine.", (double)e->steps},
        {"step_compute_seconds_total", "Time the backend computed.", (double)e->compute_us / 1e6},
        {"step_schedule_seconds_total", "Time the scheduler took.", (double)e->schedule_us / 1e6},
        {"step_tell_seconds_total", "Time it took to give tokens to streams.",
         (double)e->tell_us / 1e6},
        {"backend_restarts_total", "Backends restarted after a stuck or failed step.",
         (double)m->restarts},
        {"corrupted_requests_total",
         "Requests that failed because the model's logits or hidden states were not finite.",
         (double)m->undefined},
    };
#undef PAGES_ROW
#undef SCHED_ROW
    put_rows(p, "counter", rows, sizeof rows / sizeof rows[0]);
}

/* Writes zeros where there is no disk cache. */
static void put_disk(page *p, const disk_counts *d)
{
#define DISK_ROW(field, metric, help) {metric, help, (double)d->field},
    const metric gauges[] = {
        {"disk_cache_works", "1 while there is a disk cache that has not failed.", d->works},
        {"disk_cache_blocks", "Blocks of the prefix cache that are on disk.", (double)d->blocks},
        {"disk_cache_blocks_waiting", "Blocks of the prefix cache that wait to be written to disk.",
         d->waiting},
        {"disk_cache_bytes", "Bytes of the blocks that are on disk.", (double)d->bytes},
    };
    const metric counters[] = {DISK_COUNTERS(DISK_ROW)};
#undef DISK_ROW
    put_rows(p, "gauge", gauges, sizeof gauges / sizeof gauges[0]);
    put_rows(p, "counter", counters, sizeof counters / sizeof counters[0]);
}

/* Writes zeros where all pages are in memory. */
static void put_tier(page *p, const backend_tier *t)
{
#define TIER_ROW(field, metric, help) {metric, help, (double)t->field},
    const metric counters[] = {
        BACKEND_TIER_COUNTERS(TIER_ROW)
        /* Counted in microseconds. */
        {"kv_disk_wait_seconds_total",
         "Time that steps waited for pages of K and V on disk, of all ranks together.",
         (double)t->wait_us / 1e6},
    };
#undef TIER_ROW
    put_rows(p, "counter", counters, sizeof counters / sizeof counters[0]);
}

/* Writes zeros where sessions are kept in memory alone. */
static void put_sessions_on_disk(page *p, const disk_record_counts *d)
{
#define DISK_ROW(field, metric, help) {metric, help, (double)d->field},
    const metric gauges[] = {
        {"disk_sessions", "Sessions that are on disk, or wait to be written there.", d->records},
        {"disk_sessions_waiting", "Sessions that wait to be written to disk, or deleted there.",
         d->waiting},
    };
    const metric counters[] = {DISK_RECORD_COUNTERS(DISK_ROW)};
#undef DISK_ROW
    put_rows(p, "gauge", gauges, sizeof gauges / sizeof gauges[0]);
    put_rows(p, "counter", counters, sizeof counters / sizeof counters[0]);
}

/* Likewise for their embeddings. */
static void put_embeddings_on_disk(page *p, const disk_record_counts *d)
{
#define DISK_ROW(field, metric, help) {metric, help, (double)d->field},
    const metric gauges[] = {
        {"disk_embeddings", "Sessions whose embeddings are on disk, or wait to be written there.",
         d->records},
        {"disk_embeddings_waiting",
         "Sessions whose embeddings wait to be written to disk, or deleted there.", d->waiting},
        {"disk_embeddings_bytes", "Bytes of the embeddings that are on disk.", (double)d->bytes},
    };
    const metric counters[] = {DISK_EMBEDDING_COUNTERS(DISK_ROW)};
#undef DISK_ROW
    put_rows(p, "gauge", gauges, sizeof gauges / sizeof gauges[0]);
    put_rows(p, "counter", counters, sizeof counters / sizeof counters[0]);
}

/* Zeros where no prompts go from one server to another. */
static void put_transfer_counts(page *p, const transfer_counts *t)
{
#define TRANSFER_ROW(field, metric, help) {metric, help, (double)t->field},
    const metric gauges[] = {
        {"kv_transfer_records", "Computed prompts that are held for another server.", t->records},
        {"kv_transfer_bytes",
         "Bytes of prompts that are held for another server, or were fetched "
         "from one and are not in pages yet.",
         (double)t->bytes},
    };
    const metric counters[] = {
        TRANSFER_COUNTERS(TRANSFER_ROW){"kv_transfer_sent_seconds_total",
                                        "Time from another server's connection to the end of what "
                                        "it fetched.",
                                        (double)t->sent_us / 1e6},
        {"kv_transfer_fetched_seconds_total", "Time from the begin of a fetch to its end.",
         (double)t->fetched_us / 1e6},
    };
#undef TRANSFER_ROW
    put_rows(p, "gauge", gauges, sizeof gauges / sizeof gauges[0]);
    put_rows(p, "counter", counters, sizeof counters / sizeof counters[0]);
}

/* Writes zeros where no rank is in another process. */
static void put_workers(page *p, service *s)
{
    rpc_workers w = {0};
    if (s->o.workers) s->o.workers(s->o.workers_ctx, &w);
    const metric gauges[] = {
        {"workers", "Ranks that are computed by workers.", w.n},
        {"workers_up", "Workers that answered when they were asked last.", w.up},
    };
    const metric lost = {"workers_lost_total", "Workers lost: dead, silent or cut off.",
                         (double)w.lost};
    put_rows(p, "gauge", gauges, sizeof gauges / sizeof gauges[0]);
    put_rows(p, "counter", &lost, 1);
}

static void put_sessions(page *p, const sched_stats *st)
{
    labelled sessions = {"sessions",
                         "Sessions between two turns, by where their pages are.",
                         "state",
                         {"idle", "swapped"},
                         {st->sessions_idle, st->sessions_swapped},
                         2};
    put_labelled(p, "gauge", &sessions);
}

static void put_by_label(page *p, service *s, const engine_stats *e, const engine_metrics *m)
{
    labelled waiting = {"num_requests_waiting_by_reason",
                        "Requests that wait, by reason.",
                        "reason",
                        {"capacity", "deferred"},
                        {e->sched.waiting, 0},
                        2};
    labelled swaps = {
        "num_swaps_total", "Preempted sequences copied to the host tier and back.", "direction",
        {"out", "in"},     {(double)e->sched.swaps_out, (double)e->sched.swaps_in}, 2};
    tracer_counts spans = tracer_count(s->tracer);
    labelled traced = {"trace_spans_total",
                       "Spans of requests, by what became of them.",
                       "result",
                       {"sent", "rejected", "failed", "queue_full"},
                       {(double)spans.sent, (double)spans.rejected, (double)spans.failed,
                        (double)spans.queue_full},
                       4};
    labelled success = {.name = "request_success_total",
                        .help = "Choices ended, by finish reason.",
                        .label = "finished_reason"};
    for (int f = ENGINE_FINISH_NONE + 1; f < ENGINE_FINISHES; f++, success.n++) {
        success.of[success.n] = engine_finish_name((engine_finish)f);
        success.values[success.n] = (double)m->choices_finished[f];
    }
    labelled refused = {.name = "admission_rejections_total",
                        .help = "Requests refused, by reason.",
                        .label = "reason"};
    for (; refused.n < SERVICE_REFUSALS; refused.n++) {
        refused.of[refused.n] = service_refusal_name((service_refusal)refused.n);
        refused.values[refused.n] = (double)atomic_load(&s->refused[refused.n]);
    }
    put_labelled(p, "gauge", &waiting);
    put_labelled(p, "counter", &swaps);
    put_labelled(p, "counter", &success);
    put_labelled(p, "counter", &refused);
    put_labelled(p, "counter", &traced);
}

/* By vLLM's names of sources: what came from disk or another server is to it a transfer from
 * outside. */
static void put_prompts(page *p, const sched_stats *st)
{
    uint64_t hit = st->prompt_hit_tokens, loaded = st->prompt_loaded_tokens;
    uint64_t outside = loaded + st->prompt_handed_tokens;
    double computed = (double)(st->prompt_tokens - hit - outside);
    labelled sources = {"prompt_tokens_by_source_total",
                        "Prompt tokens of requests, by where their K and V came from.",
                        "source",
                        {"local_compute", "local_cache_hit", "external_kv_transfer"},
                        {computed, (double)hit, (double)outside},
                        3};
    labelled cached = {"prompt_tokens_cached_by_source_total",
                       "Prompt tokens of requests that the prefix cache had, by where it had them.",
                       "source",
                       {"device", "disk"},
                       {(double)hit, (double)loaded},
                       2};
    put_labelled(p, "counter", &sources);
    put_labelled(p, "counter", &cached);
}

static void put_methods(page *p, const engine_metrics *m)
{
    labelled dropped = {.name = "pages_dropped_total",
                        .help = "Pages given up by retention, counted as in reports.",
                        .label = "method"};
    labelled seconds = {.name = "retention_seconds_total",
                        .help = "Time spent on measuring and selecting.",
                        .label = "method"};
    for (size_t i = 0; i < ENGINE_METHODS_MAX && m->methods[i].method; i++) {
        dropped.of[dropped.n] = seconds.of[seconds.n] = m->methods[i].method;
        dropped.values[dropped.n++] = (double)m->methods[i].pages_dropped;
        seconds.values[seconds.n++] = m->methods[i].scoring_seconds;
    }
    put_labelled(p, "counter", &dropped);
    put_labelled(p, "counter", &seconds);
}

static void put_connections(page *p, const service *s)
{
    const metric closed = {"http_idle_connections_closed_total",
                           "Idle HTTP connections closed early, to make room for others.",
                           (double)atomic_load(&s->n_idle_closed)};
    put_rows(p, "counter", &closed, 1);
}

/* Writes the answer counts of one surface. */
static void put_answers(page *p, service *s, const char *surface, const char *name,
                        const char *route_label)
{
    answer_counts *a = &s->answers;
    put_head(p->out, PREFIX, "counter", name, "Requests answered, by code and route.");
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->n_rows; i++) {
        const answer_count *row = &a->rows[i];
        if (strcmp(row->surface, surface) != 0) continue;
        strbuf_printf(p->out, PREFIX "%s{", name);
        strbuf_append(p->out, p->labels.data, p->labels.size);
        strbuf_printf(p->out, ",code=\"%s\",%s=\"%s\"} %llu\n", row->code, route_label, row->route,
                      (unsigned long long)row->n);
    }
    pthread_mutex_unlock(&a->lock);
}

static bool is_api_row(const answer_counts *a, size_t i)
{
    return a->rows[i].of_api && strcmp(a->rows[i].surface, "http") == 0;
}

/* True where `of` is the first row of its route, and of its class of codes unless any_code. */
static bool is_first_of(const answer_counts *a, size_t of, bool any_code)
{
    for (size_t i = 0; i < of; i++)
        if (is_api_row(a, i) && strcmp(a->rows[i].route, a->rows[of].route) == 0 &&
            (any_code || a->rows[i].code[0] == a->rows[of].code[0]))
            return false;
    return true;
}

/* The sum of the rows of a route, or of those whose codes are of the row's class. */
static answer_count sum_of(const answer_counts *a, size_t of, bool any_code)
{
    answer_count sum = a->rows[of];
    for (size_t i = of + 1; i < a->n_rows; i++) {
        const answer_count *row = &a->rows[i];
        if (!is_api_row(a, i) || strcmp(row->route, sum.route) != 0) continue;
        if (!any_code && row->code[0] != sum.code[0]) continue;
        sum.n += row->n;
        sum.n_timed += row->n_timed;
        sum.seconds += row->seconds;
    }
    return sum;
}

/* What vLLM's web framework counts and its boards show, by its names: answers to clients, without
 * those to probes and to the page for people. */
static void put_http(strbuf *out, service *s)
{
    answer_counts *a = &s->answers;
    put_head(out, "", "counter", "http_requests_total",
             "HTTP answers to clients, by route and class of code.");
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->n_rows; i++) {
        if (!is_api_row(a, i) || !is_first_of(a, i, false)) continue;
        answer_count sum = sum_of(a, i, false);
        strbuf_printf(out, "http_requests_total{handler=\"%s\",status=\"%cxx\"} %llu\n", sum.route,
                      sum.code[0], (unsigned long long)sum.n);
    }
    put_head(out, "", "summary", "http_request_duration_seconds",
             "From a request's head to the end of its answer, by route.");
    for (size_t i = 0; i < a->n_rows; i++) {
        if (!is_api_row(a, i) || !is_first_of(a, i, true)) continue;
        answer_count sum = sum_of(a, i, true);
        strbuf_printf(out, "http_request_duration_seconds_sum{handler=\"%s\"} %.10g\n", sum.route,
                      sum.seconds);
        strbuf_printf(out, "http_request_duration_seconds_count{handler=\"%s\"} %llu\n", sum.route,
                      (unsigned long long)sum.n_timed);
    }
    pthread_mutex_unlock(&a->lock);
}

static void put_label(strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, "%s=\"", name);
    put_escaped(out, value ? value : "");
    strbuf_putc(out, '"');
}

static void put_build(strbuf *out, const service *s)
{
    const rpc_model *m = &s->o.model;
    const char *const labels[][2] = {
        {"version", s->o.version},  {"commit", s->o.commit},      {"model_name", m->names[0]},
        {"dtype", m->weight_dtype}, {"cache_dtype", m->kv_dtype}, {"isa", m->isa},
    };
    put_head(out, "", "gauge", "octavo_build_info", "What runs, as labels.");
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        strbuf_puts(out, i ? "," : "octavo_build_info{");
        put_label(out, labels[i][0], labels[i][1]);
    }
    strbuf_puts(out, "} 1\n");
}

static void put_config(page *p, const service *s)
{
    const rpc_model *m = &s->o.model;
    put_head(p->out, PREFIX, "gauge", "cache_config_info", "The KV cache's settings, as labels.");
    strbuf_puts(p->out, PREFIX "cache_config_info{");
    strbuf_append(p->out, p->labels.data, p->labels.size);
    /* vLLM's names, on a CPU as well: dashboards multiply them to get the room in tokens. */
    strbuf_printf(p->out, ",block_size=\"%u\",num_gpu_blocks=\"%u\"", m->page_tokens, m->n_blocks);
    strbuf_printf(p->out, ",num_pages=\"%u\",cache_dtype=\"%s\"} 1\n", m->n_pages,
                  m->kv_dtype ? m->kv_dtype : "");
}

/* ---- the process, by the names that Prometheus exporters share ------------------------------- */

static double resident_bytes(void)
{
    char text[128];
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long all = 0, resident = 0;
    if (!f) return 0;
    if (!fgets(text, sizeof text, f) || sscanf(text, "%llu %llu", &all, &resident) != 2)
        resident = 0;
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void put_process(strbuf *out, const service *s)
{
    const struct {
        const char *kind;
        metric m;
    } rows[] = {
        {"gauge", {"process_resident_memory_bytes", "Resident memory.", resident_bytes()}},
        {"gauge",
         {"process_start_time_seconds", "When the server started, since 1970.", s->start_time}},
        {"counter", {"process_cpu_seconds_total", "User and system time.", cpu_seconds()}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_head(out, "", rows[i].kind, rows[i].m.name, rows[i].m.help);
        strbuf_printf(out, "%s %.15g\n", rows[i].m.name, rows[i].m.value);
    }
}

void metrics_text(service *s, strbuf *out)
{
    engine_stats stats = engine_get_stats(s->o.engine);
    engine_metrics metrics;
    engine_get_metrics(s->o.engine, &metrics);
    page p = {.out = out};
    strbuf_puts(&p.labels, "model_name=\"");
    put_escaped(&p.labels, s->o.model.names[0]);
    strbuf_puts(&p.labels, "\",engine=\"0\"");
    put_gauges(&p, s, &stats);
    put_counters(&p, &stats, &metrics);
    put_by_label(&p, s, &stats, &metrics);
    put_disk(&p, &stats.disk);
    put_tier(&p, &stats.tier);
    put_sessions_on_disk(&p, &stats.records);
    put_embeddings_on_disk(&p, &stats.embeddings);
    put_transfer_counts(&p, &stats.transfer);
    put_workers(&p, s);
    put_sessions(&p, &stats.sched);
    put_prompts(&p, &stats.sched);
    put_methods(&p, &metrics);
    put_connections(&p, s);
    put_answers(&p, s, "http", "http_requests_total", "route");
    put_answers(&p, s, "grpc", "grpc_requests_total", "method");
    for (int i = 0; i < ENGINE_HISTOGRAMS; i++) {
        engine_histogram_info info = engine_histogram_describe((engine_histogram_id)i);
        put_histogram(&p, &info, &metrics.histograms[i]);
    }
    put_config(&p, s);
    put_http(out, s);
    put_build(out, s);
    put_process(out, s);
    out->failed |= p.labels.failed;
    strbuf_destroy(&p.labels);
}

/* The data of the page for people: the requests that run, the pool, and the map of one request's
 * pages. */
#include "rpc/generation.h"

#include <string.h>

enum { REQUESTS_MOST = 256 }; // in a list

bool service_pages(service *s, const char *identity, const char *id, strbuf *out)
{
    int64_t taken_us = 0;
    strbuf map = {0};
    pthread_mutex_lock(&s->lock);
    const generation *g = generation_find(s, identity, id, strlen(id));
    bool found = g != NULL, has_map = false;
    int64_t now = clock_now_us(), start_us = found ? g->start_us : now;
    uint32_t n = found ? g->n : 0;
    /* Once its streams are known, they stay while the lock is held. */
    if (found && g->n_streams > 0)
        has_map = engine_stream_pages(g->requests[0].stream, &map, &taken_us);
    pthread_mutex_unlock(&s->lock);
    if (found) {
        strbuf_puts(out, "{\"id\":");
        strbuf_json_string(out, id, strlen(id));
        strbuf_printf(out, ",\"prompts\":%u,\"age_ms\":%lld,\"map_age_ms\":", n,
                      (long long)((now - start_us) / 1000));
        if (has_map) strbuf_printf(out, "%lld", (long long)((clock_now_us() - taken_us) / 1000));
        else strbuf_puts(out, "null");
        strbuf_puts(out, ",\"map\":");
        strbuf_puts(out, has_map && map.data ? map.data : "null");
        strbuf_putc(out, '}');
        out->failed |= map.failed;
    }
    strbuf_destroy(&map);
    return found;
}

/* The names of all retention methods. Requests may name fewer, where the server says so. */
static void put_methods(strbuf *out)
{
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    strbuf_puts(out, ",\"methods\":[");
    for (size_t i = 0; i < n; i++) strbuf_printf(out, "%s\"%s\"", i ? "," : "", presets[i].name);
    strbuf_putc(out, ']');
}

static void put_request(const generation *g, int64_t now, bool first, strbuf *out)
{
    strbuf_printf(out, "%s{\"id\":", first ? "" : ",");
    strbuf_json_string(out, g->id, strlen(g->id));
    strbuf_printf(out, ",\"surface\":\"%s\",\"age_ms\":%lld,\"prompts\":%u,\"choices\":%u}",
                  g->surface, (long long)((now - g->start_us) / 1000), g->n, g->n_choices);
}

static void put_requests(service *s, const char *identity, strbuf *out)
{
    uint32_t n = 0, left_out = 0;
    int64_t now = clock_now_us();
    strbuf_puts(out, ",\"requests\":[");
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < SERVICE_BUCKETS; i++)
        for (const generation *g = s->live[i]; g; g = g->next) {
            if (identity && strcmp(g->identity, identity) != 0) continue;
            if (n < REQUESTS_MOST) put_request(g, now, n++ == 0, out);
            else left_out++;
        }
    pthread_mutex_unlock(&s->lock);
    strbuf_printf(out, "],\"left_out\":%u", left_out);
}

void service_overview(service *s, const char *identity, strbuf *out)
{
    engine_stats stats = engine_get_stats(s->o.engine);
    const pkv_counts *pages = &stats.sched.pages;
    const rpc_model *model = &s->o.model;
    strbuf_puts(out, "{\"model\":");
    strbuf_json_string(out, model->names[0], strlen(model->names[0]));
    strbuf_printf(out,
                  ",\"chat\":%s,\"time_ms\":%lld,\"pages\":%u,\"used\":%u,\"cached\":%u,"
                  "\"host_pages\":%u,\"host_used\":%u,\"running\":%u,\"waiting\":%u,"
                  "\"generated_tokens\":%llu,\"read_prompt_tokens\":%llu",
                  model->chat ? "true" : "false", (long long)(clock_now_us() / 1000),
                  model->n_pages, pages->used, pages->cached, pages->n_host_pages, pages->host_used,
                  stats.sched.running, stats.sched.waiting,
                  (unsigned long long)stats.sched.generated_tokens,
                  (unsigned long long)stats.sched.prompt_tokens);
    put_methods(out);
    put_requests(s, identity, out);
    strbuf_putc(out, '}');
}

/* Decides when requests start, and runs the loop that waits for their answers. */
#include "cli/bench/bench_serve_client.h"
#include "cli/bench/bench_serve_grpc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENTS_AT_ONCE = 256,
    SWEEP_US = 1000 * 1000,
    PROGRESS_TTY_US = 1000 * 1000,
    PROGRESS_LOG_US = 10 * 1000 * 1000,
    ASK_TIMEOUT_S = 30,
};

typedef struct load {
    serve_tracker t;
    client c;
    serve_grpc *grpc; // NULL: HTTP, by c
    const work *work;
    uint64_t next; // index of the request that is due next
    double due_s;  // when it is due
    rng gaps, chances;
    strbuf body;
    int64_t swept_us, logged_us;
    uint64_t logged_tokens;
    bool tty;
} load;

/* ---- requests -------------------------------------------------------------------------------- */

static void put_head(const serve_options *o, const char *method, const char *what, strbuf *out)
{
    bool v6 = strchr(o->host, ':') != NULL;
    strbuf_printf(out, "%s %s%s HTTP/1.1\r\nhost: %s%s%s:%s\r\n", method, o->path, what,
                  v6 ? "[" : "", o->host, v6 ? "]" : "", o->port);
    if (o->api_key) strbuf_printf(out, "authorization: Bearer %s\r\n", o->api_key);
}

static work_item put_body(load *l, uint64_t i, strbuf *out)
{
    const serve_options *o = l->t.o;
    strbuf_puts(out, "{\"model\":");
    strbuf_json_string(out, o->model, strlen(o->model));
    strbuf_puts(out, o->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    work_item item = work_prompt(l->work, i, out);
    strbuf_printf(out,
                  "%s,\"%s\":%u,\"temperature\":0,\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true}",
                  o->chat ? "}]" : "", o->chat ? "max_completion_tokens" : "max_tokens",
                  item.output_len);
    if (!o->keep_eos) strbuf_puts(out, ",\"ignore_eos\":true");
    if (o->extra) strbuf_printf(out, ",%s", o->extra);
    strbuf_putc(out, '}');
    return item;
}

/* Tokens after which this request's client leaves; 0 = it stays. */
static uint32_t vanish_after(load *l, uint32_t want)
{
    float chance = rng_unit(&l->chances);
    uint32_t after = 1 + rng_below(&l->chances, want > 2 ? want / 2 : 1);
    return chance < l->t.o->vanish ? after : 0;
}

static serve_request make_request(load *l, uint64_t i, bool never_read, work_item item)
{
    return (serve_request){.call = {.index = i, .prompt_tokens = item.input_len},
                           .want = item.output_len,
                           .vanish_after = never_read ? 0 : vanish_after(l, item.output_len),
                           .never_read = never_read,
                           .body_hash = hash_bytes(l->body.data, l->body.size, 1) | 1};
}

static void send_http(load *l, uint64_t i, bool never_read, const char *id)
{
    const serve_options *o = l->t.o;
    conn *k = client_take(&l->c);
    if (!k) {
        l->t.no_memory = true;
        return;
    }
    k->r = make_request(l, i, never_read, put_body(l, i, &l->body));
    put_head(o, "POST", o->chat ? "/v1/chat/completions" : "/v1/completions", &k->out);
    strbuf_printf(&k->out,
                  "content-type: application/json\r\nx-request-id: %s\r\n"
                  "content-length: %zu\r\n\r\n",
                  id, l->body.size);
    strbuf_append(&k->out, l->body.data, l->body.size);
    if (l->body.failed || k->out.failed) l->t.no_memory = true;
    l->t.now_us = clock_now_us();
    client_send(&l->c, k);
}

static void start_request(load *l, uint64_t i, bool never_read)
{
    char id[64];
    snprintf(id, sizeof id, "bench-%ld-%s%llu", (long)getpid(), never_read ? "unread-" : "",
             (unsigned long long)i);
    strbuf_clear(&l->body);
    if (!l->grpc) {
        send_http(l, i, never_read, id);
        return;
    }
    work_item item = work_prompt(l->work, i, &l->body);
    serve_request r = make_request(l, i, never_read, item);
    if (l->body.failed) l->t.no_memory = true;
    else serve_grpc_send(l->grpc, &r, id, &l->body);
}

/* ---- when ------------------------------------------------------------------------------------ */

static double now_s(const load *l) { return (double)(l->t.now_us - l->t.start_us) / 1e6; }

static bool has_next(const load *l)
{
    const serve_options *o = l->t.o;
    if (l->t.no_memory) return false;
    if (o->duration_s > 0 && (now_s(l) >= o->duration_s || l->due_s >= o->duration_s)) return false;
    return o->n_prompts == 0 || l->next < o->n_prompts;
}

static bool has_room(const load *l)
{
    uint32_t most = l->t.o->max_concurrency;
    return most == 0 || l->t.running < most;
}

static void plan_next(load *l)
{
    const serve_options *o = l->t.o;
    if (o->trace_speed > 0) l->due_s = work_arrival_s(l->work, l->next) / o->trace_speed;
    else if (o->rate > 0) l->due_s += arrival_gap(&l->gaps, o->rate, o->burstiness);
}

/* Starts at most as many requests as epoll returns events at once, so that answers are read in
 * between. */
static void start_due(load *l)
{
    for (int i = 0; i < EVENTS_AT_ONCE; i++) {
        if (!has_next(l) || !has_room(l) || l->due_s > now_s(l)) return;
        start_request(l, l->next++, false);
        plan_next(l);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void log_progress(load *l, bool last)
{
    serve_tracker *t = &l->t;
    int64_t since = t->now_us - l->logged_us;
    if (t->o->quiet || (!last && since < (l->tty ? PROGRESS_TTY_US : PROGRESS_LOG_US))) return;
    fprintf(stderr, "%s%.1f s: %llu done (%llu failed), %u running, %.0f tokens/s%s",
            l->tty ? "\r\033[K" : "", now_s(l), (unsigned long long)t->n_done,
            (unsigned long long)t->n_bad, t->running,
            since > 0 ? (double)(t->n_tokens - l->logged_tokens) * 1e6 / (double)since : 0,
            !l->tty || last ? "\n" : "");
    l->logged_us = t->now_us;
    l->logged_tokens = t->n_tokens;
}

static void wait_http(load *l, int64_t us)
{
    serve_tracker *t = &l->t;
    struct epoll_event events[EVENTS_AT_ONCE];
    struct timespec timeout = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    int n = epoll_pwait2(l->c.epoll, events, EVENTS_AT_ONCE, &timeout, NULL);
    t->now_us = clock_now_us();
    for (int i = 0; i < n; i++) {
        client_event(&l->c, events[i].data.ptr, events[i].events);
        t->now_us = clock_now_us();
    }
}

static void wait_events(load *l, bool may_start)
{
    int64_t us = SWEEP_US;
    if (may_start) {
        double until = (l->due_s - now_s(l)) * 1e6;
        us = until <= 0 ? 0 : until < SWEEP_US ? (int64_t)until : SWEEP_US;
    }
    if (l->grpc) serve_grpc_wait(l->grpc, us);
    else wait_http(l, us);
    if (l->t.now_us - l->swept_us >= SWEEP_US) {
        if (l->grpc) serve_grpc_sweep(l->grpc);
        else client_sweep(&l->c);
        l->swept_us = l->t.now_us;
    }
    log_progress(l, false);
}

static void hold_unread(load *l)
{
    int64_t until = l->t.now_us + (int64_t)(l->t.o->hold_s * 1e6);
    l->due_s = (double)(until - l->t.start_us) / 1e6;
    while (l->t.now_us < until) wait_events(l, true);
}

static void run_all(load *l)
{
    serve_tracker *t = &l->t;
    t->start_us = t->now_us = l->swept_us = l->logged_us = clock_now_us();
    for (uint32_t i = 0; i < t->o->never_read && !t->no_memory; i++) {
        uint64_t beyond = (uint64_t)1 << 40; /* their prompts differ from all others */
        start_request(l, beyond + i, true);
    }
    plan_next(l);
    for (;;) {
        start_due(l);
        bool more = has_next(l);
        if (!more && t->running == 0) break;
        wait_events(l, more && has_room(l));
    }
    t->run->duration_s = now_s(l);
    log_progress(l, true);
    if (t->o->never_read && t->o->hold_s > 0) hold_unread(l);
}

static void allow_many_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static status open_http(load *l, error *err)
{
    int probe;
    RETURN_IF_ERROR(serve_target_find(l->t.o, &l->c.target, &probe, err));
    close(probe);
    l->c.t = &l->t;
    l->c.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->c.epoll < 0) return error_set(err, STATUS_INTERNAL, "epoll: %s", strerror(errno));
    return STATUS_IS_OK;
}

status serve_load(const serve_options *o, const work *w, serve_run *run, error *err)
{
    *run = (serve_run){.o = o, .work = w};
    load l = {.t = {.o = o, .run = run},
              .work = w,
              .gaps = rng_seed(hash_mix64(o->seed + 1)),
              .chances = rng_seed(hash_mix64(o->seed + 2)),
              .tty = isatty(STDERR_FILENO)};
    allow_many_files();
    RETURN_IF_ERROR(o->grpc ? serve_grpc_create(&l.t, &l.grpc, err) : open_http(&l, err));
    run_all(&l);
    if (l.grpc) {
        serve_grpc_destroy(l.grpc);
    } else {
        client_close_all(&l.c);
        close(l.c.epoll);
    }
    track_destroy(&l.t);
    strbuf_destroy(&l.body);
    if (!l.t.no_memory) return STATUS_IS_OK;
    serve_run_destroy(run);
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

void serve_run_destroy(serve_run *run)
{
    for (size_t i = 0; i < run->n_calls; i++) free(run->calls[i].itls);
    free(run->calls);
    free(run->tokens_by_second);
    *run = (serve_run){0};
}

/* ---- which model ----------------------------------------------------------------------------- */

static void take_text(void *ctx, const char *bytes, size_t n) { strbuf_append(ctx, bytes, n); }

static status ask_server(const serve_options *o, int fd, strbuf *answer, http_response *r,
                         error *err)
{
    strbuf head = {0};
    put_head(o, "GET", "/v1/models", &head);
    strbuf_puts(&head, "connection: close\r\n\r\n");
    bool sent = !head.failed && send(fd, head.data, head.size, MSG_NOSIGNAL) == (ssize_t)head.size;
    strbuf_destroy(&head);
    http_outcome got = HTTP_MORE;
    while (sent && got == HTTP_MORE && answer->size < 1 << 20) {
        char bytes[4096];
        size_t used;
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0) break;
        got = n == 0 ? http_response_end(r)
                     : http_response_feed(r, bytes, (size_t)n, &used, take_text, answer);
    }
    if (got == HTTP_WHOLE && r->status == 200) return STATUS_IS_OK;
    if (got == HTTP_WHOLE)
        return error_set(err, STATUS_IO, "GET /v1/models: HTTP %u: %.300s", r->status,
                         answer->data ? answer->data : "");
    return error_set(err, STATUS_IO, "GET /v1/models: %s",
                     r->wrong ? r->wrong : "no answer; is --model given?");
}

status serve_first_model(const serve_options *o, char **out, error *err)
{
    serve_target target;
    int fd;
    RETURN_IF_ERROR(serve_target_find(o, &target, &fd, err));
    struct timeval limit = {.tv_sec = ASK_TIMEOUT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    strbuf answer = {0};
    http_response r = {0};
    status st = ask_server(o, fd, &answer, &r, err);
    json_t *tree = NULL;
    if (status_ok(st))
        st = json_read_text("/v1/models", answer.data ? answer.data : "", answer.size, &tree, err);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(tree, "data"), 0), "id"));
    *out = id ? strdup(id) : NULL;
    if (status_ok(st) && !*out) st = error_set(err, STATUS_INVALID, "/v1/models names no model");
    json_decref(tree);
    http_response_destroy(&r);
    strbuf_destroy(&answer);
    close(fd);
    return st;
}

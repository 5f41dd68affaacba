#include "tests/unit/rpc_http_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 180000 }; // then an awaited event counts as lost

void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* ---- the model ------------------------------------------------------------------------------- */

static const backend_info *scripted_info(void *ctx) { return &((scripted *)ctx)->info; }

static status scripted_submit(void *ctx, const step_plan *plan)
{
    ((scripted *)ctx)->plan = plan;
    return STATUS_IS_OK;
}

static status scripted_collect(void *ctx, const step_result **out)
{
    scripted *b = ctx;
    uint32_t n = 0, us = atomic_load(&b->nap_us);
    while (atomic_load(&b->hold)) nap_ms(1);
    if (us) nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000L}, NULL);
    b->result = (step_result){.step = b->plan->step,
                              .seqs = b->seqs,
                              .n_seqs = b->plan->n_seqs,
                              .checksum = b->plan->checksum};
    for (uint32_t i = 0; i < b->plan->n_seqs; i++) {
        const step_seq *s = &b->plan->seqs[i];
        b->seqs[i] = (step_seq_result){.samples = &b->samples[n], .n_samples = s->n_samples};
        for (uint32_t j = 0; j < s->n_samples; j++)
            b->samples[n++] = (step_sample){.token = b->token, .logprob = -1, .rank = 1};
    }
    *out = &b->result;
    return STATUS_IS_OK;
}

static void scripted_nothing(void *ctx) { (void)ctx; }

static const backend_ops scripted_ops = {
    .info = scripted_info,
    .submit = scripted_submit,
    .collect = scripted_collect,
    .interrupt = scripted_nothing,
    .destroy = scripted_nothing,
};

/* ---- the server ------------------------------------------------------------------------------ */

static void start_engine(fixture *f, uint32_t max_requests)
{
    error err = {{0}};
    strbuf bos = {0}, eos = {0};
    if (!status_ok(tok_load("models/demo", &f->tokenizer, &err))) fail_msg("%s", err.text);
    if (!status_ok(tmpl_load("models/demo", &f->chat, &bos, &eos, &err))) fail_msg("%s", err.text);
    strbuf_destroy(&bos);
    strbuf_destroy(&eos);
    f->model.token = (uint32_t)tok_find(f->tokenizer, "a", 1);
    f->model.info = (backend_info){.name = "scripted",
                                   .vocab_size = 1024 + 16,
                                   .max_positions = 2048,
                                   .max_rows = FIXTURE_ROWS,
                                   .max_seqs = FIXTURE_SEQS,
                                   .n_pages = 4000,
                                   .max_in_flight = 1,
                                   .geometry = {.page_tokens = 16,
                                                .n_layers = 2,
                                                .n_kv_heads = 2,
                                                .layers_per_group = 1,
                                                .heads_per_group = 2}};
    f->backend = (backend){&scripted_ops, &f->model};
    engine_options o = {.backend = &f->backend,
                        .tokenizer = f->tokenizer,
                        .chat = f->chat,
                        .bos = "",
                        .eos = "<|im_end|>",
                        .prefill_chunk = 64,
                        .max_model_len = 2048,
                        .max_requests = max_requests,
                        .prefix_cache = true};
    if (!status_ok(engine_create(&o, &f->engine, &err))) fail_msg("%s", err.text);
}

fixture *fixture_make(uint32_t max_requests)
{
    static const char *const names[] = {"demo"};
    fixture *f = calloc(1, sizeof *f);
    start_engine(f, max_requests);
    f->options = (rpc_options){
        .engine = f->engine,
        .version = "test",
        .http_address = "127.0.0.1:0",
        .max_body_bytes = 1 << 20,
        .max_connections = 100,
        .stall_timeout_us = 180000000,
        .keepalive_timeout_us = 180000000,
        .model = {.names = names,
                  .n_names = 1,
                  .dir = "models/demo",
                  .architecture = "test",
                  .tokenizer = f->tokenizer,
                  .chat = f->chat,
                  .bos = "",
                  .eos = "<|im_end|>",
                  .defaults = {.top_p = 1, .repetition_penalty = 1},
                  .bos_id = -1,
                  .vocab_size = 1024,
                  .max_model_len = 2048,
                  .page_tokens = 16,
                  .n_pages = 4000,
                  .max_batch = FIXTURE_SEQS,
                  .max_requests = max_requests,
                  .weight_dtype = "bf16",
                  .kv_dtype = "bf16",
                  .isa = "none"},
    };
    return f;
}

void fixture_start(fixture *f)
{
    error err = {{0}};
    assert_true(status_ok(service_init(&f->service, &f->options)));
    if (!status_ok(http_server_create(&f->service, &f->server, &err))) fail_msg("%s", err.text);
}

void fixture_stop(fixture *f)
{
    if (!f->server) return;
    http_server_destroy(f->server);
    service_destroy(&f->service);
    f->server = NULL;
}

void fixture_destroy(fixture *f)
{
    atomic_store(&f->model.hold, false);
    fixture_stop(f);
    engine_destroy(f->engine);
    tmpl_destroy(f->chat);
    tok_destroy(f->tokenizer);
    free(f);
}

uint32_t fixture_in_flight(fixture *f) { return atomic_load(&f->service.in_flight); }

void wait_in_flight(fixture *f, uint32_t n)
{
    for (int i = 0; i < PATIENCE_MS && fixture_in_flight(f) != n; i++) nap_ms(1);
    assert_int_equal(fixture_in_flight(f), n);
}

/* A request counts as in flight before the engine has it: until then it can still be refused. */
void wait_running(fixture *f, uint32_t n)
{
    wait_in_flight(f, n);
    for (int i = 0; i < PATIENCE_MS && engine_get_stats(f->engine).n_live < n; i++) nap_ms(1);
    assert_true(engine_get_stats(f->engine).n_live >= n);
}

void wait_aborted(fixture *f, uint64_t n)
{
    for (int i = 0; i < PATIENCE_MS && engine_get_stats(f->engine).requests_aborted < n; i++)
        nap_ms(1);
    assert_true(engine_get_stats(f->engine).requests_aborted >= n);
}

/* ---- the client ------------------------------------------------------------------------------ */

int client_open(const fixture *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(http_server_port(f->server)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* A server that closes while the client still sends is no error here. */
void client_send_bytes(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        at += sent;
        n -= (size_t)sent;
    }
}

void client_send(int fd, const char *text) { client_send_bytes(fd, text, strlen(text)); }

/* 0 at the end of the connection. A server silent for so long has hung. */
size_t client_receive(int fd, void *out, size_t n)
{
    struct pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("the server neither answers nor closes");
    ssize_t got = recv(fd, out, n, 0);
    return got > 0 ? (size_t)got : 0;
}

static bool read_line(int fd, char *out, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && client_receive(fd, out + n, 1) == 1) {
        if (out[n++] != '\n') continue;
        out[n] = 0;
        return true;
    }
    out[n] = 0;
    return false;
}

static bool read_bytes(int fd, size_t n, strbuf *out)
{
    if (!strbuf_reserve(out, n)) return false;
    while (n > 0) {
        char part[4096];
        size_t got = client_receive(fd, part, n < sizeof part ? n : sizeof part);
        if (got == 0) return false;
        strbuf_append(out, part, got);
        n -= got;
    }
    return true;
}

static bool read_chunks(int fd, strbuf *out)
{
    char line[256];
    while (read_line(fd, line, sizeof line)) {
        size_t n = strtoul(line, NULL, 16);
        if (!read_bytes(fd, n, out) || !read_line(fd, line, sizeof line)) return false;
        if (n == 0) return true;
    }
    return false;
}

static const char *field_of(const char *head, const char *name)
{
    for (const char *line = strchr(head, '\n'); line && line[1]; line = strchr(line + 1, '\n'))
        if (strncasecmp(line + 1, name, strlen(name)) == 0) return line + 1 + strlen(name);
    return NULL;
}

static bool read_head(int fd, reply *r)
{
    size_t n = 0;
    while (n < sizeof r->head - 1 && read_line(fd, r->head + n, sizeof r->head - n)) {
        if (strcmp(r->head + n, "\r\n") == 0) return true;
        n += strlen(r->head + n);
    }
    return false;
}

reply client_read(int fd, bool is_head)
{
    reply r = {0};
    strbuf body = {0};
    if (!read_head(fd, &r)) {
        r.cut = r.head[0] != 0;
        r.body = strdup("");
        return r;
    }
    r.status = (unsigned)strtoul(r.head + 9, NULL, 10);
    const char *length = field_of(r.head, "content-length: ");
    bool ok = true;
    if (is_head || r.status == 100) ok = true;
    else if (field_of(r.head, "transfer-encoding: chunked")) ok = read_chunks(fd, &body);
    else if (length) ok = read_bytes(fd, strtoul(length, NULL, 10), &body);
    else
        while (read_bytes(fd, 1, &body)) continue;
    r.cut = !ok;
    r.body_bytes = body.size;
    r.body = body.data ? body.data : strdup("");
    return r;
}

void reply_free(reply *r) { free(r->body); }

bool client_at_end(int fd)
{
    char byte;
    return client_receive(fd, &byte, 1) == 0;
}

reply ask(const fixture *f, const char *request)
{
    int fd = client_open(f);
    client_send(fd, request);
    reply r = client_read(fd, strncmp(request, "HEAD ", 5) == 0);
    close(fd);
    return r;
}

void send_post(int fd, const char *path, const char *headers, const char *json)
{
    strbuf b = {0};
    strbuf_printf(&b,
                  "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s"
                  "Content-Length: %zu\r\n\r\n%s",
                  path, headers, strlen(json), json);
    client_send_bytes(fd, b.data, b.size);
    strbuf_destroy(&b);
}

reply post(const fixture *f, const char *path, const char *json)
{
    int fd = client_open(f);
    send_post(fd, path, "", json);
    reply r = client_read(fd, false);
    close(fd);
    return r;
}

unsigned count_of(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) n++;
    return n;
}

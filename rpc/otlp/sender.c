/* One request to the receiver at a time, over a connection that is kept (libcurl). */
#include "rpc/otlp/internal.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_BYTES = 16384,         // of an answer
    ANSWER_BYTES_MAX = 1 << 20, // the rest is dropped; a longer answer ends the request
    WAIT_S_MAX = 3600,
};

struct otlp_sender {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    int64_t timeout_us;
    char error_text[CURL_ERROR_SIZE];
    char answer[KEPT_BYTES];
    size_t n_answer, n_received;
};

/* ---- life ------------------------------------------------------------------------------------ */

static size_t take_answer(char *data, size_t one, size_t n, void *ctx)
{
    otlp_sender *s = ctx;
    (void)one; // 1
    size_t room = sizeof s->answer - s->n_answer, kept = n < room ? n : room;
    memcpy(s->answer + s->n_answer, data, kept);
    s->n_answer += kept;
    s->n_received += n;
    return s->n_received > ANSWER_BYTES_MAX ? 0 : n;
}

static bool add_header(otlp_sender *s, const char *line)
{
    struct curl_slist *longer = curl_slist_append(s->headers, line);
    if (longer) s->headers = longer;
    return longer != NULL;
}

static bool add_headers(otlp_sender *s, const otlp_config *c)
{
    bool ok = add_header(s, "Content-Type: application/x-protobuf") &&
              add_header(s, "Expect:") && /* a large body goes out at once */
              (!c->gzip || add_header(s, "Content-Encoding: gzip"));
    for (size_t i = 0; ok && i < c->headers.n; i++) {
        strbuf line = {0};
        const otlp_pair *h = &c->headers.items[i];
        /* libcurl sends a header without a value when it ends with ";". */
        strbuf_printf(&line, *h->value ? "%s: %s" : "%s;", h->name, h->value);
        ok = !line.failed && add_header(s, line.data);
        strbuf_destroy(&line);
    }
    return ok;
}

static bool set_options(otlp_sender *s, const otlp_config *c)
{
    CURL *e = s->easy;
    bool ok = curl_easy_setopt(e, CURLOPT_URL, c->url) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_HTTPHEADER, s->headers) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_USERAGENT, "octavo") == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_WRITEDATA, s) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_ERRORBUFFER, s->error_text) == CURLE_OK;
    ok &= curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    /* The end of the server does not wait for a name server. */
    ok &= curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;
    if (c->ca_file) ok &= curl_easy_setopt(e, CURLOPT_CAINFO, c->ca_file) == CURLE_OK;
    return ok;
}

status otlp_sender_create(const otlp_config *c, otlp_sender **out, error *err)
{
    otlp_sender *s = calloc(1, sizeof *s);
    if (!s || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(s);
        return error_set(err, STATUS_NO_MEMORY, "traces: out of memory");
    }
    s->timeout_us = c->timeout_us;
    s->multi = curl_multi_init();
    s->easy = curl_easy_init();
    if (!s->multi || !s->easy || !add_headers(s, c) || !set_options(s, c)) {
        otlp_sender_destroy(s);
        return error_set(err, STATUS_INTERNAL, "traces: libcurl cannot be set up");
    }
    *out = s;
    return STATUS_IS_OK;
}

void otlp_sender_destroy(otlp_sender *s)
{
    if (!s) return;
    if (s->easy) curl_easy_cleanup(s->easy);
    if (s->multi) curl_multi_cleanup(s->multi);
    curl_slist_free_all(s->headers);
    curl_global_cleanup();
    free(s);
}

void otlp_sender_wake(otlp_sender *s) { curl_multi_wakeup(s->multi); }

/* ---- one request ----------------------------------------------------------------------------- */

/* Runs the request. False when the deadline came first. */
static bool run(otlp_sender *s, int64_t (*deadline)(void *ctx), void *ctx, CURLcode *result)
{
    enum { LOOK_MS = 1000 };
    int64_t until_us = clock_now_us() + s->timeout_us;
    for (int running = 1, left;;) {
        curl_multi_perform(s->multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(s->multi, &left)) != NULL;)
            if (m->msg == CURLMSG_DONE) {
                *result = m->data.result;
                return true;
            }
        int64_t end_us = deadline(ctx), now_us = clock_now_us();
        if (until_us < end_us) end_us = until_us;
        if (now_us >= end_us) return false;
        int64_t wait_ms = (end_us - now_us) / 1000 + 1;
        curl_multi_poll(s->multi, NULL, 0, wait_ms < LOOK_MS ? (int)wait_ms : LOOK_MS, NULL);
    }
}

static bool is_passing(long code)
{
    return code == 429 || code == 502 || code == 503 || code == 504;
}

static void judge(otlp_sender *s, bool ended, CURLcode result, otlp_answer *out)
{
    long code = 0;
    curl_off_t wait_s = 0;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(s->easy, CURLINFO_RETRY_AFTER, &wait_s);
    *out = (otlp_answer){.outcome = OTLP_RETRY};
    if (!ended) {
        snprintf(out->why, sizeof out->why, "no answer in time");
    } else if (result != CURLE_OK && result != CURLE_WRITE_ERROR) {
        snprintf(out->why, sizeof out->why, "%.200s",
                 s->error_text[0] ? s->error_text : curl_easy_strerror(result));
    } else if (code >= 200 && code < 300) {
        out->outcome = OTLP_TAKEN;
        if (result == CURLE_OK && s->n_received <= KEPT_BYTES)
            out->rejected = otlp_rejected(s->answer, s->n_answer, out->why, sizeof out->why);
    } else {
        out->outcome = is_passing(code) ? OTLP_RETRY : OTLP_REFUSED;
        if (wait_s > 0) out->wait_us = (wait_s < WAIT_S_MAX ? wait_s : WAIT_S_MAX) * 1000000;
        snprintf(out->why, sizeof out->why, "HTTP %ld", code);
    }
}

void otlp_send(otlp_sender *s, const strbuf *body, int64_t (*deadline)(void *ctx), void *ctx,
               otlp_answer *out)
{
    CURLcode result = CURLE_OK;
    s->n_answer = s->n_received = 0;
    s->error_text[0] = '\0';
    bool ok = curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, body->data) == CURLE_OK;
    ok &=
        curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->size) == CURLE_OK;
    if (!ok || curl_multi_add_handle(s->multi, s->easy) != CURLM_OK) {
        *out = (otlp_answer){.outcome = OTLP_RETRY, .why = "out of memory"};
        return;
    }
    bool ended = run(s, deadline, ctx, &result);
    judge(s, ended, result, out);
    curl_multi_remove_handle(s->multi, s->easy);
}

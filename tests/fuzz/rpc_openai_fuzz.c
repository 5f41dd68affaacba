/* Property: for any body sent to the OpenAI endpoints, the body is accepted, or refused with 400
 * or 404 and one line. An accepted request is within the stated limits, and for any outputs the
 * answer is JSON: one document, or one for each frame or event.
 *
 * The first byte picks the endpoint; the rest is the body. Linked with --wrap=generation_prompt and
 * --wrap=generation_pooled. */
#include "rpc/anthropic/anthropic.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/rpc_openai_fixture.h"

#include <math.h>

static const uint32_t prompt_ids[] = {1021, 83, 257, 127, 5000};
static const float prompt_logprobs[] = {NAN, -1, -INFINITY, -2, -3};

engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request);
engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request)
{
    (void)g;
    (void)request;
    return (engine_prompt){.tokens = prompt_ids,
                           .n_tokens = 5,
                           .logprobs = prompt_logprobs,
                           .ranks = prompt_ids,
                           .n_top = 1,
                           .top_ids = prompt_ids,
                           .top_logprobs = prompt_logprobs};
}

static const float pooled[] = {1, -2.5f, 0};

const float *__wrap_generation_pooled(const generation *g, uint32_t request, uint32_t *n);
const float *__wrap_generation_pooled(const generation *g, uint32_t request, uint32_t *n)
{
    (void)g;
    *n = 3;
    return request % 16 == 15 ? NULL : pooled;
}

/* Made at the first input; never freed. */
static service *the_service(void)
{
    static openai_fixture f;
    static bool open;
    error err = {{0}};
    if (!open && !status_ok(openai_fixture_open(&f, &err))) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    open = true;
    f.service.o.max_body_bytes = 1 << 20;
    f.service.o.responses_bytes = 1 << 16;
    f.service.o.responses_ttl_us = INT64_MAX;
    if (!f.service.responses) FUZZ_CHECK(openai_open(&f.service));
    return &f.service;
}

static void check_json(const char *text, size_t n)
{
    json_t *doc = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    FUZZ_CHECK(json_is_object(doc));
    json_decref(doc);
}

static void check_error(const openai_error *e)
{
    strbuf out = {0};
    FUZZ_CHECK(e->status == 400 || e->status == 404);
    FUZZ_CHECK(e->message[0] && !strpbrk(e->message, "\r\n"));
    openai_error_json(e, &out);
    check_json(out.data, out.size);
    strbuf_destroy(&out);
}

static void check_frames(const strbuf *out)
{
    static const char done[] = "data: [DONE]\n\n";
    const char *at = out->data;
    while (strcmp(at, done) != 0) {
        const char *end = strstr(at, "\n\n");
        FUZZ_CHECK(end && strncmp(at, "data: ", 6) == 0);
        check_json(at + 6, (size_t)(end - at) - 6);
        at = end + 2;
    }
}

/* The events of the other APIs: a name, and an object that has it as its type. */
static void check_events(const strbuf *out)
{
    const char *at = out->data;
    FUZZ_CHECK(at);
    while (*at) {
        const char *line = strchr(at, '\n'), *end = strstr(at, "\n\n");
        FUZZ_CHECK(end && strncmp(at, "event: ", 7) == 0 && strncmp(line, "\ndata: ", 7) == 0);
        check_json(line + 7, (size_t)(end - line) - 7);
        at = end + 2;
    }
}

static void check_call(const openai_call *c)
{
    FUZZ_CHECK(c->n_requests >= 1 && c->n_requests <= 8 && c->n_choices >= 1);
    FUZZ_CHECK(c->n_requests * c->n_choices <= OPENAI_CHOICES_MAX);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        const engine_request *r = &c->requests[i];
        FUZZ_CHECK(!r->prompt + !r->messages + !r->prompt_token_ids == 2);
        /* best_of compares its choices by logprobs that its client did not ask for. */
        FUZZ_CHECK(r->n == c->n_choices && (!c->logprobs || r->logprobs >= 0));
        FUZZ_CHECK(c->logprobs || c->n_unseen || r->logprobs < 0);
    }
}

/* Makes two outputs for each choice from the bytes of the body. */
static void answer(service *s, openai_call *c, const uint8_t *data, size_t size)
{
    uint32_t n = c->n_requests * c->n_choices;
    bool stream = c->stream, events = c->form != NULL;
    openai_answer *a = openai_answer_create(s, c, "\"id\n");
    strbuf out = {0};
    FUZZ_CHECK(a);
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint8_t byte = data[i % size];
        generation_output o = {.index = i % n, .request = 0};
        o.out = (engine_output){.has_token = byte & 1, .text = "\"\xc3\xb6\n", .stop_token = -1};
        o.out.text_bytes = byte & 2 ? 4 : 0;
        o.out.sample = (step_sample){.token = byte * 5, .logprob = byte & 4 ? -INFINITY : -1};
        o.out.sample.n_top = 2;
        o.out.sample.top_ids[0] = data[(i + 1) % size] * 5;
        if (i >= n) o.out.finish = byte == 0x7d ? ENGINE_FINISH_ERROR : ENGINE_FINISH_STOP;
        openai_answer_take(a, NULL, &o, &out);
    }
    openai_answer_finish(a, &out);
    FUZZ_CHECK(out.size && !out.failed);
    if (stream && events) check_events(&out);
    else if (stream) check_frames(&out);
    else check_json(out.data, out.size);
    openai_answer_destroy(a);
    strbuf_destroy(&out);
}

/* One request of sixteen was aborted. */
static void answer_embeddings(service *s, openai_call *c)
{
    uint32_t n = c->n_requests;
    strbuf out = {0};
    openai_embeddings *e = openai_embeddings_create(s, c);
    FUZZ_CHECK(e);
    for (uint32_t i = 0; i < n; i++) {
        const generation_output o = {
            .index = i, .request = i, .out = {.finish = ENGINE_FINISH_LENGTH}};
        openai_embeddings_take(e, NULL, &o);
    }
    openai_embeddings_finish(e, &out);
    FUZZ_CHECK((n < 16) == !openai_embeddings_error(e));
    check_json(out.data, out.size);
    openai_embeddings_destroy(e);
    strbuf_destroy(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    service *s = the_service();
    if (size < 2) return 0;
    const char *body = (const char *)data + 1;
    size_t n = size - 1;
    openai_error e = {0};
    openai_call c;
    strbuf out = {0};
    bool ok;
    unsigned endpoint = (uint8_t)(data[0] - '0') % 8;
    switch (endpoint) {
    case 0: ok = openai_parse_completion(s, body, n, &c, &e); break;
    case 1: ok = openai_parse_chat(s, body, n, &c, &e); break;
    case 2: ok = openai_tokenize(s, body, n, &out, &e); break;
    case 3: ok = openai_detokenize(s, body, n, &out, &e); break;
    case 4: ok = openai_parse_response(s, "alice", body, n, &c, &e); break;
    case 5: ok = anthropic_parse(s, body, n, &c, &e); break;
    case 7: ok = openai_parse_embeddings(s, body, n, &c, &e); break;
    default: ok = anthropic_count_tokens(s, body, n, &out, &e); break;
    }
    if (!ok) {
        check_error(&e);
    } else if (endpoint == 7) {
        check_call(&c);
        answer_embeddings(s, &c);
    } else if (endpoint < 2 || endpoint == 4 || endpoint == 5) {
        check_call(&c);
        answer(s, &c, data, size);
    } else {
        check_json(out.data, out.size);
    }
    strbuf_destroy(&out);
    return 0;
}

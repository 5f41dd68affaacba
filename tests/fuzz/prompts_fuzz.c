/* Property: for any line of `octavo run --prompts`, the request's parser accepts the line or
 * refuses it in one line that begins with "request: "; an accepted request is within the limits of
 * engine.h, and reading the same line again gives the same. */
#include "engine/engine.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static const char *const also[] = {"id", NULL};

static void check_limits(const engine_request *r)
{
    FUZZ_CHECK(r->n_stop <= ENGINE_STOPS_MAX);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t n = strlen(r->stop[i]);
        FUZZ_CHECK(n >= 1 && n <= ENGINE_STOP_BYTES_MAX);
    }
    FUZZ_CHECK(!r->prompt || r->prompt[r->prompt_bytes] == '\0');
    FUZZ_CHECK(!r->messages || json_is_array(r->messages));
    FUZZ_CHECK(!r->tools || json_is_array(r->tools));
    FUZZ_CHECK(!r->retention || json_is_object(r->retention));
    FUZZ_CHECK(r->prompt_token_ids || r->n_prompt_token_ids == 0);
    FUZZ_CHECK(r->stop_token_ids || r->n_stop_token_ids == 0);
    FUZZ_CHECK((r->bias && r->bias_ids) || r->n_bias == 0);
}

static void check_same(const engine_request *a, const engine_request *b)
{
    FUZZ_CHECK(a->prompt_bytes == b->prompt_bytes && a->n_stop == b->n_stop && a->n == b->n);
    FUZZ_CHECK(a->n_prompt_token_ids == b->n_prompt_token_ids && a->n_bias == b->n_bias);
    FUZZ_CHECK(a->max_tokens == b->max_tokens && a->seed == b->seed);
    for (uint32_t i = 0; i < a->n_stop; i++) FUZZ_CHECK(strcmp(a->stop[i], b->stop[i]) == 0);
}

static void check_request(const json_t *doc)
{
    const engine_defaults defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    engine_request once, twice;
    error err = {{0}};
    engine_request_init(&once, &defaults);
    if (status_ok(engine_request_parse(doc, "request", also, &once, &err))) {
        check_limits(&once);
        engine_request_init(&twice, &defaults);
        FUZZ_CHECK(status_ok(engine_request_parse(doc, "request", also, &twice, &err)));
        FUZZ_CHECK(status_ok(engine_request_parse(doc, "request", also, &twice, &err)));
        check_same(&once, &twice);
        engine_request_destroy(&twice);
    } else {
        FUZZ_CHECK(strncmp(err.text, "request: ", 9) == 0 && !strchr(err.text, '\n'));
    }
    engine_request_destroy(&once);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *doc = NULL;
    error err;
    if (!status_ok(json_read_text("not JSON", (const char *)data, size, &doc, &err))) return 0;
    check_request(doc);
    json_decref(doc);
    return 0;
}

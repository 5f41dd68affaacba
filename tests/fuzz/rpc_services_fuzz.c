/* Property: for any bytes as a request of octavo.v1, VllmEngine or KServe, unpacking stays within a
 * capped arena, and the conversion accepts the message or refuses it in one line; an accepted
 * request has exactly one prompt and is within the limits of engine.h. The first byte picks the
 * service; 255 is KServe over HTTP, whose JSON ends at the first NUL. */
#include "rpc/services/kserve_json.h"
#include "tests/fuzz/fuzz.h"

enum { UNPACK_BYTES_MAX = 4 << 20 };

static const char *const names[] = {"demo"};
static const service served = {
    .o.model =
        {
            .names = names,
            .n_names = 1,
            .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        },
};

static void *take(void *ctx, size_t n) { return arena_alloc(ctx, n); }

static void forget(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

static void check_request(const engine_request *r)
{
    FUZZ_CHECK((r->prompt != NULL) + (r->messages != NULL) + (r->prompt_token_ids != NULL) == 1);
    FUZZ_CHECK(!r->prompt || r->prompt[r->prompt_bytes] == '\0');
    FUZZ_CHECK(!r->messages || json_is_array(r->messages));
    FUZZ_CHECK(r->n_stop <= ENGINE_STOPS_MAX);
    for (uint32_t i = 0; i < r->n_stop; i++)
        FUZZ_CHECK(*r->stop[i] && strlen(r->stop[i]) <= ENGINE_STOP_BYTES_MAX);
    FUZZ_CHECK(r->prompt_token_ids || r->n_prompt_token_ids == 0);
    FUZZ_CHECK(r->stop_token_ids || r->n_stop_token_ids == 0);
    FUZZ_CHECK((r->bias && r->bias_ids) || r->n_bias == 0);
    FUZZ_CHECK(!r->retention || json_is_object(r->retention));
    FUZZ_CHECK(r->max_tokens <= INT32_MAX && r->min_tokens <= INT32_MAX && r->n <= INT32_MAX);
}

static void check(status st, engine_request *r, const error *err)
{
    if (status_ok(st)) check_request(r);
    else FUZZ_CHECK(err->text[0] && !strchr(err->text, '\n'));
    engine_request_destroy(r);
}

static void kserve(const Inference__ModelInferRequest *m)
{
    kserve_facts facts;
    engine_request r;
    error err = {{0}};
    check(kserve_request_of(&served, m, &r, &err), &r, &err);
    if (!status_ok(kserve_facts_of(&served, m, &facts, &err))) return;
    FUZZ_CHECK(facts.n_prompts >= 1 && facts.n_prompts <= KSERVE_PROMPTS_MAX);
    status st = kserve_fields_of(&served, m, &facts, &r, &err);
    if (status_ok(st)) st = kserve_prompt_of(m, &facts, facts.n_prompts - 1, &r, &err);
    check(st, &r, &err);
}

static void kserve_http(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    json_t *json = NULL;
    if (!status_ok(json_read_text("body", (const char *)data, n, &json, NULL))) return;
    const kserve_body body = {.json = json, .bytes = data + n, .n_bytes = size - n};
    Inference__ModelInferRequest m;
    arena memory;
    uint32_t binary;
    error err = {{0}};
    arena_init(&memory, 4096, SIZE_MAX);
    if (status_ok(kserve_read_json(&body, &memory, &m, &binary, &err))) kserve(&m);
    else FUZZ_CHECK(err.text[0] && !strchr(err.text, '\n'));
    arena_destroy(&memory);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &octavo__v1__generate_request__descriptor,
        &vllm__grpc__engine__generate_request__descriptor,
        &inference__model_infer_request__descriptor,
    };
    if (size == 0) return 0;
    if (data[0] == 255) {
        kserve_http(data + 1, size - 1);
        return 0;
    }
    unsigned which = data[0] % 3;
    arena memory;
    arena_init(&memory, 4096, UNPACK_BYTES_MAX);
    ProtobufCAllocator alloc = {take, forget, &memory};
    const ProtobufCMessage *m = protobuf_c_message_unpack(types[which], &alloc, size - 1, data + 1);
    engine_request r;
    error err = {{0}};
    if (m && which == 0) {
        status st = octavo_v1_request_of(&served, (const void *)m, &r, &err);
        check(st, &r, &err);
    } else if (m && which == 1) {
        status st = vllm_request_of(&served, (const void *)m, NULL, 0, &r, &err);
        check(st, &r, &err);
    } else if (m) {
        kserve((const void *)m);
    }
    arena_destroy(&memory);
    return 0;
}

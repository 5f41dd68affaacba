/* octavo.v1: messages into requests, outputs into messages. */
#include "rpc/services/octavo_v1.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

typedef Octavo__V1__GenerateRequest generate_request;
typedef Octavo__V1__SamplingParams sampling_params;

static const char *const names[] = {"demo", "alias"};
static const service served = {
    .o.model =
        {
            .names = names,
            .n_names = 2,
            .defaults = {.temperature = 0.6f,
                         .top_p = 0.9f,
                         .min_p = 0.1f,
                         .repetition_penalty = 1.1f,
                         .top_k = 40,
                         .max_tokens = 7},
        },
};

static generate_request make_request(void)
{
    generate_request m;
    octavo__v1__generate_request__init(&m);
    return m;
}

static ProtobufCBinaryData text(const char *s) { return field_of(s); }

static void with_prompt(generate_request *m, const char *s)
{
    m->input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_PROMPT;
    m->prompt = text(s);
}

/* The number of a field, which is what its oneof's case holds when it is given. */
static unsigned tag_of(const ProtobufCMessage *m, const char *field)
{
    return protobuf_c_message_descriptor_get_field_by_name(m->descriptor, field)->id;
}

static void test_defaults(void **state)
{
    (void)state;
    generate_request m = make_request();
    engine_request r;
    error err;
    with_prompt(&m, "hi");
    assert_true(status_ok(octavo_v1_request_of(&served, &m, &r, &err)));
    assert_string_equal(r.prompt, "hi");
    assert_int_equal(r.prompt_bytes, 2);
    assert_true(r.temperature == 0.6f && r.top_p == 0.9f && r.min_p == 0.1f);
    assert_true(r.repetition_penalty == 1.1f && r.top_k == 40 && r.max_tokens == 7);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.logprobs, -1);
    assert_int_equal(r.prompt_logprobs, -1);
    assert_true(r.skip_special_tokens && r.add_special_tokens && !r.has_seed && !r.score_only);
    assert_null(r.cache_salt);
    assert_null(r.retention);
    assert_null(r.retrieval);
    engine_request_destroy(&r);
}

static void test_fields(void **state)
{
    (void)state;
    generate_request m = make_request();
    sampling_params p = OCTAVO__V1__SAMPLING_PARAMS__INIT;
    Octavo__V1__TokenIds ids = OCTAVO__V1__TOKEN_IDS__INIT;
    Octavo__V1__LogitBias bias = OCTAVO__V1__LOGIT_BIAS__INIT, *biases = &bias;
    uint32_t id_list[] = {1, 2, 3}, stop_ids[] = {9}, allowed[] = {4, 5};
    ProtobufCBinaryData stops[] = {text("END"), text("\n\n")};
    m.input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS;
    m.token_ids = &ids;
    ids.n_ids = 3;
    ids.ids = id_list;
    m.model = text("alias");
    m.sampling = &p;
    m.priority = -3;
    m.cache_salt = text("pepper");
    m.retention_json = text("{\"method\": \"full\"}");
    m.retrieval_json = text("quest:4096");
    m.structured_outputs_json = text("{\"regex\": \"[0-9]+\"}");
#define SET(field, value)                                                                          \
    p.field##_opt_case = tag_of(&p.base, #field);                                                  \
    p.field = value
    SET(temperature, 0);
    SET(top_p, 0.5f);
    SET(top_k, -1);
    SET(min_p, 0);
    SET(presence_penalty, -1);
    SET(frequency_penalty, 2);
    SET(repetition_penalty, 1);
    SET(max_tokens, 0);
    SET(n, 3);
    SET(seed, -5);
    SET(skip_special_tokens, false);
    SET(logprobs, 0);
    SET(prompt_logprobs, 20);
#undef SET
    p.min_tokens = 4;
    p.n_stop = 2;
    p.stop = stops;
    p.n_stop_token_ids = 1;
    p.stop_token_ids = stop_ids;
    p.n_bad_words = 2;
    p.bad_words = stops;
    p.n_allowed_token_ids = 2;
    p.allowed_token_ids = allowed;
    p.ignore_eos = p.include_stop_str_in_output = true;
    p.n_logit_bias = 1;
    p.logit_bias = &biases;
    bias.token_id = 11;
    bias.bias = -100;
    m.add_special_tokens_opt_case = tag_of(&m.base, "add_special_tokens");
    m.add_special_tokens = false;

    engine_request r;
    error err;
    assert_true(status_ok(octavo_v1_request_of(&served, &m, &r, &err)));
    assert_null(r.prompt);
    assert_int_equal(r.n_prompt_token_ids, 3);
    assert_memory_equal(r.prompt_token_ids, id_list, sizeof id_list);
    assert_true(r.temperature == 0 && r.top_p == 0.5f && r.top_k == -1 && r.min_p == 0);
    assert_true(r.presence_penalty == -1 && r.frequency_penalty == 2);
    assert_true(r.repetition_penalty == 1);
    assert_true(r.score_only && r.max_tokens == 0 && r.n == 3 && r.min_tokens == 4);
    assert_true(r.has_seed && r.seed == (uint64_t)-5);
    assert_true(r.logprobs == 0 && r.prompt_logprobs == 20);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[0], "END");
    assert_string_equal(r.stop[1], "\n\n");
    assert_true(r.n_stop_token_ids == 1 && r.stop_token_ids[0] == 9);
    assert_int_equal(json_array_size(r.bad_words), 2);
    assert_string_equal(json_string_value(json_array_get(r.bad_words, 1)), "\n\n");
    assert_true(r.n_allowed_token_ids == 2 && r.allowed_token_ids[1] == 5);
    assert_true(r.ignore_eos && r.include_stop_str_in_output);
    assert_true(!r.skip_special_tokens && !r.add_special_tokens);
    assert_true(r.n_bias == 1 && r.bias_ids[0] == 11 && r.bias[0] == -100);
    assert_int_equal(r.priority, -3);
    assert_string_equal(r.cache_salt, "pepper");
    assert_string_equal(json_string_value(json_object_get(r.retention, "method")), "full");
    assert_string_equal(json_string_value(json_object_get(r.retrieval, "method")), "quest");
    assert_int_equal(json_integer_value(json_object_get(r.retrieval, "tokens")), 4096);
    assert_true(r.form.given && r.form.kind == GRAMMAR_REGEX);
    assert_string_equal(r.form.text, "[0-9]+");
    assert_string_equal(r.form.field, "structured_outputs_json");
    engine_request_destroy(&r);
}

static void test_nul_in_prompt(void **state)
{
    (void)state;
    generate_request m = make_request();
    engine_request r;
    m.input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_PROMPT;
    m.prompt = call_bytes("ab\0cd", 5);
    assert_true(status_ok(octavo_v1_request_of(&served, &m, &r, NULL)));
    assert_int_equal(r.prompt_bytes, 5);
    assert_memory_equal(r.prompt, "ab\0cd", 6);
    engine_request_destroy(&r);
}

static void test_chat(void **state)
{
    (void)state;
    generate_request m = make_request();
    Octavo__V1__Chat chat = OCTAVO__V1__CHAT__INIT;
    Octavo__V1__ChatMessage ask = OCTAVO__V1__CHAT_MESSAGE__INIT;
    Octavo__V1__ChatMessage call = OCTAVO__V1__CHAT_MESSAGE__INIT;
    Octavo__V1__ChatMessage *messages[] = {&ask, &call};
    m.input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_CHAT;
    m.chat = &chat;
    chat.n_messages = 2;
    chat.messages = messages;
    chat.tools_json = text("[{\"type\": \"function\"}]");
    ask.role = text("user");
    ask.content = text("h\xc3\xa9");
    ask.name = text("Ada");
    call.role = text("assistant");
    call.tool_calls_json = text("[{\"id\": \"1\"}]");
    call.tool_call_id = text("7");

    engine_request r;
    error err;
    assert_true(status_ok(octavo_v1_request_of(&served, &m, &r, &err)));
    char *dumped = json_dumps(r.messages, JSON_COMPACT);
    assert_string_equal(dumped, "[{\"role\":\"user\",\"content\":\"h\xc3\xa9\",\"name\":\"Ada\"},"
                                "{\"role\":\"assistant\",\"content\":\"\",\"tool_call_id\":\"7\","
                                "\"tool_calls\":[{\"id\":\"1\"}]}]");
    free(dumped);
    assert_int_equal(json_array_size(r.tools), 1);
    engine_request_destroy(&r);
}

/* ---- refusals: each row changes one field of a valid request --------------------------------- */

static ProtobufCBinaryData many_stops[ENGINE_STOPS_MAX + 1];
static uint32_t huge_id = 1u << 31;
static Octavo__V1__LogitBias bias_a = OCTAVO__V1__LOGIT_BIAS__INIT;
static Octavo__V1__LogitBias bias_b = OCTAVO__V1__LOGIT_BIAS__INIT;
static Octavo__V1__LogitBias *two_biases[] = {&bias_a, &bias_b};
static Octavo__V1__TokenIds bad_ids = OCTAVO__V1__TOKEN_IDS__INIT;
static Octavo__V1__ChatMessage bad_message = OCTAVO__V1__CHAT_MESSAGE__INIT;
static Octavo__V1__ChatMessage *bad_messages[] = {&bad_message};
static Octavo__V1__Chat bad_chat = OCTAVO__V1__CHAT__INIT;

#define DAMAGE(name, code)                                                                         \
    static void name(generate_request *m, sampling_params *p)                                      \
    {                                                                                              \
        (void)m;                                                                                   \
        (void)p;                                                                                   \
        code;                                                                                      \
    }
#define DAMAGE_NUMBER(name, field, value)                                                          \
    DAMAGE(name, (p->field##_opt_case = tag_of(&p->base, #field), p->field = value))
#define DAMAGE_FLOAT(field) DAMAGE_NUMBER(nan_##field, field, NAN)

DAMAGE(no_input, m->input_case = 0)
DAMAGE(wrong_model, m->model = text("other"))
static char long_session[ENGINE_SESSION_BYTES_MAX + 1];
DAMAGE(session_long, (memset(long_session, 's', sizeof long_session),
                      m->session = call_bytes(long_session, sizeof long_session)))
DAMAGE(session_nul, m->session = call_bytes("a\0b", 3))
DAMAGE(session_bytes, m->session = text("\xff"))
DAMAGE(not_utf8, m->prompt = text("\xff"))
DAMAGE(salt_nul, m->cache_salt = call_bytes("a\0b", 3))
DAMAGE(retention_list, m->retention_json = text("[]"))
DAMAGE(retrieval_list, m->retrieval_json = text("[]"))
DAMAGE(retrieval_word, m->retrieval_json = text("quest:x"))
DAMAGE(retrieval_nul, m->retrieval_json = call_bytes("quest\0", 6))
DAMAGE(retention_broken, m->retention_json = text("{"))
DAMAGE(retention_word, m->retention_json = text("chunkkv"))
DAMAGE(retention_nul, m->retention_json = call_bytes("full\0", 5))
static const char wide_word[] =
    "chunkkv-a-name-that-no-method-has-and-that-is-longer-than-any-of-them-would-be-even-with-a-"
    "ratio-of-many-digits-behind-the-colon:0.25";
DAMAGE(retention_wide, m->retention_json = call_bytes(wide_word, sizeof wide_word - 1))
DAMAGE(form_list, m->structured_outputs_json = text("[]"))
DAMAGE(form_none, m->structured_outputs_json = text("{}"))
DAMAGE(form_two, m->structured_outputs_json = text("{\"json\": {}, \"regex\": \"a\"}"))
DAMAGE(form_other, m->structured_outputs_json = text("{\"xml\": 1}"))
DAMAGE(empty_stop, (many_stops[0] = text(""), p->n_stop = 1, p->stop = many_stops))
DAMAGE(nul_stop, (many_stops[0] = call_bytes("a\0", 2), p->n_stop = 1, p->stop = many_stops))
DAMAGE(too_many_stops, (p->n_stop = ENGINE_STOPS_MAX + 1, p->stop = many_stops))
static ProtobufCBinaryData many_words[ENGINE_BAD_WORDS_MAX + 1];
DAMAGE(too_many_words, (p->n_bad_words = ENGINE_BAD_WORDS_MAX + 1, p->bad_words = many_words))
DAMAGE(bad_word, (many_words[0] = text("\xff"), p->n_bad_words = 1, p->bad_words = many_words))
DAMAGE(allowed_id, (p->n_allowed_token_ids = 1, p->allowed_token_ids = &huge_id))
DAMAGE(stop_id, (p->n_stop_token_ids = 1, p->stop_token_ids = &huge_id))
DAMAGE_NUMBER(many_n, n, UINT32_MAX)
DAMAGE_NUMBER(many_tokens, max_tokens, UINT32_MAX)
DAMAGE(many_min, p->min_tokens = UINT32_MAX)
DAMAGE_NUMBER(negative_logprobs, logprobs, -1)
DAMAGE_NUMBER(many_prompt_logprobs, prompt_logprobs, 21)
DAMAGE(same_bias, (p->n_logit_bias = 2, p->logit_bias = two_biases))
DAMAGE(prompt_id, (m->input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_TOKEN_IDS,
                   m->token_ids = &bad_ids, bad_ids.n_ids = 1, bad_ids.ids = &huge_id))
DAMAGE(message_text, (m->input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_CHAT, m->chat = &bad_chat,
                      bad_chat.tools_json = text(""), bad_chat.n_messages = 1,
                      bad_chat.messages = bad_messages, bad_message.content = text("\xc3")))
DAMAGE(message_calls, (message_text(m, p), bad_message.content = text(""),
                       bad_message.tool_calls_json = text("1")))
static uint8_t much_json[FIELD_JSON_BYTES_MAX + 1]; // refused unread
DAMAGE(large_retention, m->retention_json = call_bytes((const char *)much_json, sizeof much_json))
DAMAGE(large_tools,
       (message_text(m, p), bad_message.content = text(""),
        bad_message.tool_calls_json = text("[]"),
        bad_chat.tools_json = call_bytes((const char *)much_json, FIELD_JSON_BYTES_MAX - 1)))
DAMAGE(many_messages, (message_text(m, p), bad_chat.n_messages = 16385))
DAMAGE_FLOAT(temperature)
DAMAGE_FLOAT(top_p)
DAMAGE_FLOAT(min_p)
DAMAGE_FLOAT(presence_penalty)
DAMAGE_FLOAT(frequency_penalty)
DAMAGE_FLOAT(repetition_penalty)

static const struct {
    void (*damage)(generate_request *m, sampling_params *p);
    status_code code;
    const char *text;
} refusals[] = {
    {no_input, STATUS_INVALID, "input: one of prompt, token_ids and chat must be given"},
    {wrong_model, STATUS_NOT_FOUND, "model: 'other' is not served here"},
    {session_long, STATUS_INVALID, "session: is longer than 256 bytes"},
    {session_nul, STATUS_INVALID, "session: must be UTF-8 without NUL"},
    {session_bytes, STATUS_INVALID, "session: must be UTF-8 without NUL"},
    {not_utf8, STATUS_INVALID, "prompt: is not UTF-8"},
    {salt_nul, STATUS_INVALID, "cache_salt: holds a NUL byte"},
    {retention_list, STATUS_INVALID, "retention_json: must be a JSON object"},
    {retrieval_list, STATUS_INVALID, "retrieval_json: must be a JSON object"},
    {retrieval_word, STATUS_INVALID,
     "retrieval_json: 'quest:x' must be METHOD or METHOD:TOKENS, such as quest:4096, or a JSON "
     "object (methods: ktransformers, quest, dynamic)"},
    {retrieval_nul, STATUS_INVALID, "retrieval_json: must be UTF-8 without NUL"},
    {retention_broken, STATUS_INVALID, "retention_json: line 1"},
    {retention_word, STATUS_INVALID, "retention_json: 'chunkkv' must be METHOD:RATIO"},
    {retention_nul, STATUS_INVALID, "retention_json: must be UTF-8 without NUL"},
    {retention_wide, STATUS_INVALID, "retention_json: is longer than 127 bytes"},
    {form_list, STATUS_INVALID, "structured_outputs_json: must be a JSON object"},
    {form_none, STATUS_INVALID, "structured_outputs_json: must give one form"},
    {form_two, STATUS_INVALID, "structured_outputs_json: must give one form"},
    {form_other, STATUS_UNSUPPORTED, "structured_outputs_json: 'xml' is not supported"},
    {large_retention, STATUS_LIMIT, "retention_json: more than 262144 bytes of JSON"},
    {large_tools, STATUS_LIMIT, "chat: more than 262144 bytes of JSON in tools_json"},
    {many_messages, STATUS_LIMIT, "chat.messages: more than 16384"},
    {empty_stop, STATUS_INVALID, "sampling.stop: strings have 1 to 256 bytes and no NUL"},
    {nul_stop, STATUS_INVALID, "sampling.stop: strings have 1 to 256 bytes and no NUL"},
    {too_many_stops, STATUS_INVALID, "sampling.stop: more than 16 strings"},
    {too_many_words, STATUS_LIMIT, "sampling.bad_words: more than 512 strings"},
    {bad_word, STATUS_INVALID, "sampling.bad_words[0]: is not UTF-8"},
    {allowed_id, STATUS_INVALID, "sampling.allowed_token_ids[0]: 2147483648 is no token id"},
    {stop_id, STATUS_INVALID, "sampling.stop_token_ids[0]: 2147483648 is no token id"},
    {many_n, STATUS_INVALID, "sampling.n: 4294967295 is more than 2147483647"},
    {many_tokens, STATUS_INVALID, "sampling.max_tokens: 4294967295 is more than 2147483647"},
    {many_min, STATUS_INVALID, "sampling.min_tokens: 4294967295 is more than 2147483647"},
    {negative_logprobs, STATUS_INVALID, "sampling.logprobs: must be in 0 .. 20"},
    {many_prompt_logprobs, STATUS_INVALID, "sampling.prompt_logprobs: must be in 0 .. 20"},
    {same_bias, STATUS_INVALID, "sampling.logit_bias: token 0 is given twice"},
    {prompt_id, STATUS_INVALID, "token_ids[0]: 2147483648 is no token id"},
    {message_text, STATUS_INVALID, "chat.messages[0].content: is not UTF-8"},
    {message_calls, STATUS_INVALID, "chat.messages[0].tool_calls_json: must be a JSON array"},
    {nan_temperature, STATUS_INVALID, "sampling.temperature: must be a finite number"},
    {nan_top_p, STATUS_INVALID, "sampling.top_p: must be a finite number"},
    {nan_min_p, STATUS_INVALID, "sampling.min_p: must be a finite number"},
    {nan_presence_penalty, STATUS_INVALID, "sampling.presence_penalty: must be a finite number"},
    {nan_frequency_penalty, STATUS_INVALID, "sampling.frequency_penalty: must be a finite number"},
    {nan_repetition_penalty, STATUS_INVALID,
     "sampling.repetition_penalty: must be a finite number"},
};

/* What C types a message has for the rows that it has fields of. */
static void check_types(const ProtobufCMessageDescriptor *message)
{
    for (size_t i = 0; i < ENGINE_FIELDS; i++) {
        const engine_field *f = &engine_fields()[i];
        const ProtobufCFieldDescriptor *d =
            protobuf_c_message_descriptor_get_field_by_name(message, f->name);
        if (!d) continue;
        bool whole = d->type == PROTOBUF_C_TYPE_BOOL || d->type == PROTOBUF_C_TYPE_INT32 ||
                     d->type == PROTOBUF_C_TYPE_UINT32 || d->type == PROTOBUF_C_TYPE_INT64;
        bool fits = f->kind == ENGINE_FIELD_FLOAT  ? d->type == PROTOBUF_C_TYPE_FLOAT
                    : f->kind == ENGINE_FIELD_BOOL ? d->type == PROTOBUF_C_TYPE_BOOL
                                                   : whole && d->type != PROTOBUF_C_TYPE_BOOL;
        bool alone = d->label == PROTOBUF_C_LABEL_NONE; /* neither repeated nor proto2's optional */
        if (!fits || !alone) fail_msg("%s.%s does not fit its row", message->name, f->name);
    }
}

static void test_types(void **state)
{
    (void)state;
    check_types(&octavo__v1__sampling_params__descriptor);
    check_types(&octavo__v1__generate_request__descriptor);
    check_types(&octavo__v1__tokenize_request__descriptor);
    check_types(&vllm__grpc__engine__sampling_params__descriptor);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        generate_request m = make_request();
        sampling_params p = OCTAVO__V1__SAMPLING_PARAMS__INIT;
        engine_request r;
        error err = {{0}};
        with_prompt(&m, "hi");
        m.sampling = &p;
        refusals[i].damage(&m, &p);
        status st = octavo_v1_request_of(&served, &m, &r, &err);
        assert_int_equal(st.code, refusals[i].code);
        err.text[strlen(refusals[i].text)] = '\0';
        assert_string_equal(err.text, refusals[i].text);
        engine_request_destroy(&r);
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

static tokenizer *load(void)
{
    static const char doc[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
        "\"merges\": [\"a b\"]}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true}}";
    tokenizer *t = NULL;
    error err = {{0}};
    if (!status_ok(tok_load_text("test", doc, sizeof doc - 1, &t, &err))) fail_msg("%s", err.text);
    return t;
}

static generation_output token_output(uint32_t id, const char *text)
{
    generation_output o = {.index = 5};
    o.out.has_token = true;
    o.out.text = text;
    o.out.text_bytes = strlen(text);
    o.out.sample = (step_sample){
        .token = id,
        .logprob = -0.5f,
        .rank = 2,
        .n_top = 2,
        .top_ids = {1, 2},
        .top_logprobs = {-0.25f, -0.5f},
    };
    return o;
}

/* A run of two tokens: both ids, texts and logprobs are in one message. */
static void test_token_response(void **state)
{
    (void)state;
    tokenizer *t = load();
    strbuf report = {0};
    arena memory;
    octavo_v1_response out;
    generation_output first = token_output(2, "ab"), second = token_output(0, "a");
    const generation_output *both[] = {&first, &second};
    output_run run = {both, 2};
    arena_init(&memory, 4096, 0);
    assert_true(octavo_v1_response_of(t, "r1", &run, true, &report, &memory, &out));
    assert_true(field_is(out.message.request_id, "r1") && field_is(out.message.text, "aba"));
    assert_int_equal(out.message.index, 5);
    assert_int_equal(out.message.n_token_ids, 2);
    assert_true(out.message.token_ids[0] == 2 && out.message.token_ids[1] == 0);
    assert_int_equal(out.message.n_logprobs, 2);
    const Octavo__V1__TokenLogprob *l = out.message.logprobs[0];
    assert_true(l->logprob == -0.5f && l->rank == 2 && field_is(l->token, "ab"));
    assert_true(l->n_top == 2 && l->top[0]->token_id == 1 && field_is(l->top[0]->token, "b"));
    assert_true(field_is(out.message.logprobs[1]->token, "a"));
    assert_int_equal(out.message.finish_reason.len, 0);
    assert_null(out.message.usage);

    assert_true(octavo_v1_response_of(t, "r1", &run, false, &report, &memory, &out));
    assert_int_equal(out.message.n_logprobs, 0);
    arena_destroy(&memory);
    tok_destroy(t);
}

/* The choice's end may come without a token, behind tokens. */
static void test_last_response(void **state)
{
    (void)state;
    tokenizer *t = load();
    strbuf report = {0};
    arena memory;
    octavo_v1_response out;
    retention_report kept = {.method = "chunkkv", .logical_tokens = 8, .kept_tokens = 4};
    generation_output token = token_output(2, "ab");
    generation_output end = {.index = 5,
                             .out = {.text = "",
                                     .finish = ENGINE_FINISH_STOP,
                                     .stop_token = -1,
                                     .stop_string = "END",
                                     .usage = {3, 2, 1},
                                     .timings = {1000, 2000, 4500},
                                     .report = &kept}};
    const generation_output *both[] = {&token, &end};
    output_run run = {both, 2};
    arena_init(&memory, 4096, 0);
    assert_true(octavo_v1_response_of(t, "r1", &run, true, &report, &memory, &out));
    assert_int_equal(out.message.n_token_ids, 1);
    assert_int_equal(out.message.n_logprobs, 1);
    assert_true(field_is(out.message.text, "ab"));
    assert_true(field_is(out.message.finish_reason, "stop"));
    assert_int_equal(out.message.matched_stop_case,
                     OCTAVO__V1__GENERATE_RESPONSE__MATCHED_STOP_STOP_STRING);
    assert_true(field_is(out.message.stop_string, "END"));
    assert_int_equal(out.message.usage->prompt_tokens, 3);
    assert_int_equal(out.message.usage->completion_tokens, 2);
    assert_int_equal(out.message.usage->cached_tokens, 1);
    assert_true(out.message.timings->queue_ms == 1 && out.message.timings->total_ms == 4.5);
    assert_non_null(strstr((const char *)out.message.retention_json.data, "\"chunkkv\""));

    end.out.stop_string = NULL;
    end.out.stop_token = 0;
    run = (output_run){both + 1, 1};
    assert_true(octavo_v1_response_of(t, "r1", &run, true, &report, &memory, &out));
    assert_int_equal(out.message.n_token_ids, 0);
    assert_int_equal(out.message.matched_stop_case,
                     OCTAVO__V1__GENERATE_RESPONSE__MATCHED_STOP_STOP_TOKEN_ID);
    arena_destroy(&memory);
    strbuf_destroy(&report);
    tok_destroy(t);
}

static void test_prompt_piece(void **state)
{
    (void)state;
    tokenizer *t = load();
    const uint32_t tokens[] = {0, 1, 2}, ranks[] = {0, 1, 3}, top_ids[] = {9, 9, 1, 2, 0, 1};
    const float logprobs[] = {NAN, -1, -2}, tops[] = {9, 9, -1, -2, -3, -4};
    engine_prompt prompt = {tokens, 3, logprobs, ranks, 2, top_ids, tops};
    Octavo__V1__Prompt out;
    arena memory;
    arena_init(&memory, 4096, 0);
    assert_true(octavo_v1_prompt_of(t, &prompt, 0, 1, &memory, &out));
    assert_true(out.n_token_ids == 1 && out.token_ids[0] == 0);
    assert_true(out.logprobs[0]->logprob == 0 && out.logprobs[0]->n_top == 0);
    assert_true(octavo_v1_prompt_of(t, &prompt, 1, 2, &memory, &out));
    assert_true(out.n_token_ids == 2 && out.token_ids[1] == 2 && out.n_logprobs == 2);
    assert_true(out.logprobs[1]->logprob == -2 && out.logprobs[1]->rank == 3);
    assert_true(out.logprobs[1]->top[1]->token_id == 1 && out.logprobs[1]->top[1]->logprob == -4);
    prompt.logprobs = NULL;
    assert_true(octavo_v1_prompt_of(t, &prompt, 0, 3, &memory, &out));
    assert_true(out.n_token_ids == 3 && out.n_logprobs == 0);
    arena_destroy(&memory);
    tok_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_fields),
        cmocka_unit_test(test_nul_in_prompt), cmocka_unit_test(test_chat),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_token_response),
        cmocka_unit_test(test_last_response), cmocka_unit_test(test_prompt_piece),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

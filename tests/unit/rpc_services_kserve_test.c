/* KServe v2: requests from tensors and parameters, tensors from choices. */
#include "rpc/services/kserve.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef Inference__ModelInferRequest infer_request;
typedef Inference__ModelInferRequest__InferInputTensor input_tensor;
typedef Inference__ModelInferRequest__ParametersEntry parameter;

static const char *const names[] = {"demo"};
static const service served = {
    .o.model =
        {
            .names = names,
            .n_names = 1,
            .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_tokens = 7},
        },
};

/* A request with room for all that the tests change. */
typedef struct sample {
    infer_request m;
    input_tensor inputs[3];
    input_tensor *input_list[3];
    int64_t shapes[3][3];
    Inference__InferTensorContents contents[3];
    ProtobufCBinaryData elements[3][2];
    protobuf_c_boolean stream[2];
    ProtobufCBinaryData raw[3];
    parameter parameters[6];
    parameter *parameter_list[6];
    Inference__InferParameter values[6];
    Inference__ModelInferRequest__InferRequestedOutputTensor output;
    Inference__ModelInferRequest__InferRequestedOutputTensor *output_list[1];
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry input_parameter;
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry *input_parameter_list[1];
} sample;

static int add_input(sample *s, const char *name, const char *datatype, int64_t n)
{
    size_t i = s->m.n_inputs++;
    s->inputs[i] = (input_tensor)INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT;
    s->contents[i] = (Inference__InferTensorContents)INFERENCE__INFER_TENSOR_CONTENTS__INIT;
    s->inputs[i].name = field_of(name);
    s->inputs[i].datatype = field_of(datatype);
    s->inputs[i].n_shape = 1;
    s->inputs[i].shape = s->shapes[i];
    s->shapes[i][0] = n;
    s->inputs[i].contents = &s->contents[i];
    s->contents[i].bytes_contents = s->elements[i];
    s->contents[i].n_bytes_contents = (size_t)n;
    s->input_list[i] = &s->inputs[i];
    return (int)i;
}

static Inference__InferParameter *add_parameter(sample *s, const char *key)
{
    size_t i = s->m.n_parameters++;
    s->parameters[i] = (parameter)INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT;
    s->values[i] = (Inference__InferParameter)INFERENCE__INFER_PARAMETER__INIT;
    s->parameters[i].key = field_of(key);
    s->parameters[i].value = &s->values[i];
    s->parameter_list[i] = &s->parameters[i];
    return &s->values[i];
}

static void add_text(sample *s, const char *key, const char *value)
{
    Inference__InferParameter *p = add_parameter(s, key);
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    p->string_param = field_of(value);
}

static void add_int(sample *s, const char *key, int64_t value)
{
    Inference__InferParameter *p = add_parameter(s, key);
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
    p->int64_param = value;
}

/* A valid request with one prompt. */
static void sample_init(sample *s)
{
    memset(s, 0, sizeof *s);
    s->m = (infer_request)INFERENCE__MODEL_INFER_REQUEST__INIT;
    s->m.inputs = s->input_list;
    s->m.parameters = s->parameter_list;
    s->m.outputs = s->output_list;
    s->output = (Inference__ModelInferRequest__InferRequestedOutputTensor)
        INFERENCE__MODEL_INFER_REQUEST__INFER_REQUESTED_OUTPUT_TENSOR__INIT;
    s->output_list[0] = &s->output;
    s->input_parameter = (Inference__ModelInferRequest__InferInputTensor__ParametersEntry)
        INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__PARAMETERS_ENTRY__INIT;
    s->input_parameter.key = field_of("shared_memory_region");
    s->input_parameter_list[0] = &s->input_parameter;
    add_input(s, "text_input", "BYTES", 1);
    s->elements[0][0] = field_of("hi");
}

static void add_sampling(sample *s, const char *json)
{
    int i = add_input(s, "sampling_parameters", "BYTES", 1);
    s->elements[i][0] = field_of(json);
}

static void add_stream(sample *s, bool stream)
{
    int i = add_input(s, "stream", "BOOL", 1);
    s->stream[0] = stream;
    s->contents[i].bool_contents = s->stream;
    s->contents[i].n_bool_contents = 1;
    s->contents[i].n_bytes_contents = 0;
}

static status request_of(const sample *s, const kserve_facts *facts, uint32_t prompt,
                         engine_request *r)
{
    RETURN_IF_ERROR(kserve_fields_of(&served, &s->m, facts, r, NULL));
    return kserve_prompt_of(&s->m, facts, prompt, r, NULL);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    (void)state;
    sample s;
    engine_request r;
    kserve_facts facts;
    sample_init(&s);
    assert_true(status_ok(kserve_facts_of(&served, &s.m, &facts, NULL)));
    assert_true(facts.n_prompts == 1 && !facts.stream && facts.outputs == 127);
    assert_true(status_ok(kserve_request_of(&served, &s.m, &r, NULL)));
    assert_string_equal(r.prompt, "hi");
    assert_true(r.max_tokens == 7 && r.n == 1 && r.temperature == 1);
    engine_request_destroy(&r);
}

static void test_fields(void **state)
{
    (void)state;
    sample s;
    engine_request r;
    error err = {{0}};
    sample_init(&s);
    add_sampling(&s, "{\"max_tokens\": 3, \"seed\": 5, \"stop\": [\"a\"], \"session\": \"s0\", "
                     "\"logit_bias\": {\"4\": 1}}");
    add_int(&s, "max_tokens", 9); // the parameter takes precedence
    add_text(&s, "retention", "{\"method\": \"full\"}");
    add_text(&s, "retrieval", "quest:4096");
    add_text(&s, "session", "s1");
    Inference__InferParameter *p = add_parameter(&s, "temperature");
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM;
    p->double_param = 0.5;
    p = add_parameter(&s, "triton_enable_empty_final_response");
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
    p->bool_param = true;
    status st = kserve_request_of(&served, &s.m, &r, &err);
    assert_string_equal(err.text, "");
    assert_true(status_ok(st));
    assert_true(r.max_tokens == 9 && r.seed == 5 && r.n_stop == 1 && r.temperature == 0.5f);
    assert_true(r.n_bias == 1 && r.bias_ids[0] == 4);
    assert_non_null(r.retention);
    assert_int_equal(json_integer_value(json_object_get(r.retrieval, "tokens")), 4096);
    assert_string_equal(r.session, "s1");
    engine_request_destroy(&r);
}

static void test_prompts(void **state)
{
    (void)state;
    sample s;
    engine_request r;
    kserve_facts facts;
    const int64_t shapes[][2] = {{1, 2}, {2, 1}};
    for (size_t i = 0; i < 2; i++) {
        sample_init(&s);
        s.elements[0][1] = call_bytes("b\0c", 3);
        s.contents[0].n_bytes_contents = 2;
        s.inputs[0].n_shape = 2;
        memcpy(s.shapes[0], shapes[i], sizeof shapes[i]);
        assert_true(status_ok(kserve_facts_of(&served, &s.m, &facts, NULL)));
        assert_int_equal(facts.n_prompts, 2);
        assert_true(status_ok(request_of(&s, &facts, 1, &r)));
        assert_int_equal(r.prompt_bytes, 3);
        assert_memory_equal(r.prompt, "b\0c", 4);
        engine_request_destroy(&r);
    }
}

static void test_raw(void **state)
{
    (void)state;
    sample s;
    engine_request r;
    kserve_facts facts;
    static const char two[] = "\2\0\0\0hi\3\0\0\0you";
    sample_init(&s);
    add_stream(&s, false);
    s.inputs[0].contents = s.inputs[1].contents = NULL;
    s.shapes[0][0] = 2;
    s.raw[0] = call_bytes(two, sizeof two - 1);
    s.raw[1] = call_bytes("\1", 1);
    s.m.n_raw_input_contents = 2;
    s.m.raw_input_contents = s.raw;
    s.m.n_outputs = 1;
    s.output.name = field_of("finish_reason");
    assert_true(status_ok(kserve_facts_of(&served, &s.m, &facts, NULL)));
    assert_true(facts.n_prompts == 2 && facts.stream && facts.outputs == 1 << KSERVE_FINISH_REASON);
    assert_true(status_ok(request_of(&s, &facts, 1, &r)));
    assert_string_equal(r.prompt, "you");
    engine_request_destroy(&r);
    /* A length far beyond the end. */
    ProtobufCBinaryData whole = s.raw[0];
    s.raw[0] = call_bytes("\xf0\xff\xff\xffhi\3\0\0\0you", whole.len);
    assert_int_equal(request_of(&s, &facts, 0, &r).code, STATUS_INVALID);
    engine_request_destroy(&r);
    s.raw[0] = whole;
    /* The tensor cut at any length, or with a byte too many, is refused. */
    for (size_t n = 0; n <= sizeof two; n++) {
        s.raw[0].len = n;
        status st = request_of(&s, &facts, 0, &r);
        assert_int_equal(st.code, n == sizeof two - 1 ? STATUS_OK : STATUS_INVALID);
        engine_request_destroy(&r);
    }
}

#define DAMAGE(name, code)                                                                         \
    static void name(sample *s) { code; }

DAMAGE(no_text, (s->m.n_inputs = 0, add_stream(s, true)))
DAMAGE(other_model, s->m.model_name = field_of("x"))
DAMAGE(other_version, s->m.model_version = field_of("2"))
DAMAGE(other_tensor, (void)add_input(s, "image", "BYTES", 1))
DAMAGE(other_type, s->inputs[0].datatype = field_of("FP32"))
DAMAGE(no_shape, s->inputs[0].n_shape = 0)
DAMAGE(zero_shape, s->shapes[0][0] = 0)
DAMAGE(square, (s->inputs[0].n_shape = 2, s->shapes[0][0] = s->shapes[0][1] = 2))
DAMAGE(cube, s->inputs[0].n_shape = 3)
DAMAGE(huge, s->shapes[0][0] = 1025)
DAMAGE(two_streams, (add_stream(s, true), s->shapes[1][0] = 2))
DAMAGE(again, (void)add_input(s, "text_input", "BYTES", 1))
DAMAGE(shared, (s->inputs[0].n_parameters = 1, s->inputs[0].parameters = s->input_parameter_list))
DAMAGE(no_contents, s->inputs[0].contents = NULL)
DAMAGE(short_contents, s->contents[0].n_bytes_contents = 0)
DAMAGE(raw_count,
       (add_stream(s, true), s->m.n_raw_input_contents = 1, s->m.raw_input_contents = s->raw))
DAMAGE(raw_both, (s->m.n_raw_input_contents = 1, s->m.raw_input_contents = s->raw))
DAMAGE(other_output, (s->m.n_outputs = 1, s->output.name = field_of("x")))
DAMAGE(bad_utf8, s->elements[0][0] = field_of("\xff"))
#define LONG_KEY "a-name-of-sixty-five-bytes-is-longer-than-that-of-any-field-here."
DAMAGE(bad_json, add_sampling(s, "{"))
DAMAGE(json_list, add_sampling(s, "[]"))
DAMAGE(unknown_field, add_sampling(s, "{\"beams\": 2}"))
DAMAGE(other_prompt, add_sampling(s, "{\"prompt\": \"x\"}"))
DAMAGE(json_session, add_sampling(s, "{\"session\": 5}"))
DAMAGE(unknown_parameter, add_int(s, "timeout", 3))
DAMAGE(too_many_parameters, s->m.n_parameters = 65)
DAMAGE(parameter_twice, (add_int(s, "n", 1), add_int(s, "n", 2)))
DAMAGE(no_value, (void)add_parameter(s, "n"))
DAMAGE(wrong_value, add_text(s, "n", "2"))
DAMAGE(bad_key, add_int(s, "\xff", 3))
DAMAGE(key_nul, (add_text(s, "retention", "full"), s->parameters[0].key.len++))
DAMAGE(long_key, add_int(s, LONG_KEY, 3))
DAMAGE(session_parameter, add_text(s, "session", ""))
DAMAGE(bad_retention, add_text(s, "retention", "x"))
DAMAGE(bad_retrieval_word, add_text(s, "retrieval", "quest:0"))
DAMAGE(bad_retrieval, add_text(s, "retrieval", "[]"))
DAMAGE(logprobs, add_int(s, "logprobs", 1))
DAMAGE(huge_unsigned, (add_int(s, "seed", 0),
                       s->values[0].parameter_choice_case =
                           INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM,
                       s->values[0].uint64_param = UINT64_MAX))

static const struct {
    void (*damage)(sample *s);
    status_code code;
    const char *text;
} refusals[] = {
    {no_text, STATUS_INVALID, "text_input: is missing"},
    {other_model, STATUS_NOT_FOUND, "model_name: 'x' is not served here"},
    {other_version, STATUS_NOT_FOUND, "model_version: only version 1 is served"},
    {other_tensor, STATUS_INVALID, "inputs[1]: unknown tensor 'image'"},
    {other_type, STATUS_INVALID, "text_input: its datatype must be BYTES"},
    {no_shape, STATUS_INVALID, "text_input: its shape must be [n], [1, n] or [n, 1]"},
    {zero_shape, STATUS_INVALID, "text_input: its shape must be [n], [1, n] or [n, 1]"},
    {square, STATUS_INVALID, "text_input: its shape must be [n], [1, n] or [n, 1]"},
    {cube, STATUS_INVALID, "text_input: its shape must be [n], [1, n] or [n, 1]"},
    {huge, STATUS_INVALID, "text_input: has more than 1024 elements"},
    {two_streams, STATUS_INVALID, "stream: has 2 elements, not 1"},
    {again, STATUS_INVALID, "text_input: is given twice"},
    {shared, STATUS_UNSUPPORTED, "text_input: parameter 'shared_memory_region': not supported"},
    {no_contents, STATUS_INVALID, "text_input: its contents are not 1 elements of BYTES"},
    {short_contents, STATUS_INVALID, "text_input: its contents are not 1 elements of BYTES"},
    {raw_count, STATUS_INVALID, "raw_input_contents: 1 for 2 inputs"},
    {raw_both, STATUS_INVALID, "inputs[0]: has both contents and raw_input_contents"},
    {other_output, STATUS_INVALID, "outputs[0]: unknown tensor 'x'"},
    {bad_utf8, STATUS_INVALID, "text_input: is not UTF-8"},
    {bad_json, STATUS_INVALID, "sampling_parameters: line 1"},
    {json_list, STATUS_INVALID, "sampling_parameters: must be a JSON object"},
    {unknown_field, STATUS_INVALID, "sampling_parameters: unknown field 'beams'"},
    {other_prompt, STATUS_INVALID, "text_input: no other input may give the prompt"},
    {json_session, STATUS_INVALID, "sampling_parameters: session: must be a string"},
    {unknown_parameter, STATUS_INVALID, "parameters: unknown field 'timeout'"},
    {too_many_parameters, STATUS_LIMIT, "parameters: more than 64"},
    {parameter_twice, STATUS_INVALID, "parameters: n: is given twice"},
    {no_value, STATUS_INVALID, "parameters: n: has no value that can be used"},
    {wrong_value, STATUS_INVALID, "parameters: n: must be an integer"},
    {bad_key, STATUS_INVALID, "parameters: a name: must be UTF-8 without NUL"},
    {key_nul, STATUS_INVALID, "parameters: a name: must be UTF-8 without NUL"},
    {long_key, STATUS_INVALID, "parameters: a name: is longer than 64 bytes"},
    {session_parameter, STATUS_INVALID, "parameters: session: must have 1 to 256 bytes"},
    {bad_retention, STATUS_INVALID, "parameters: retention: 'x' must be METHOD:RATIO"},
    {bad_retrieval_word, STATUS_INVALID,
     "parameters: retrieval: 'quest:0' must be METHOD or METHOD:TOKENS"},
    {bad_retrieval, STATUS_INVALID, "parameters: retrieval: must be a JSON object"},
    {logprobs, STATUS_UNSUPPORTED, "logprobs: this service has no tensor for them"},
    {huge_unsigned, STATUS_INVALID, "parameters: seed: has no value that can be used"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        sample s;
        engine_request r;
        error err = {{0}};
        sample_init(&s);
        refusals[i].damage(&s);
        status st = kserve_request_of(&served, &s.m, &r, &err);
        err.text[strlen(refusals[i].text)] = '\0';
        assert_string_equal(err.text, refusals[i].text);
        assert_int_equal(st.code, refusals[i].code);
        engine_request_destroy(&r);
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

static void take(kserve_choice *choice, uint32_t index, const char *text, uint32_t token)
{
    generation_output o = {.index = index, .out = {.has_token = true, .text = text}};
    o.out.text_bytes = strlen(text);
    o.out.sample.token = token;
    assert_true(kserve_choice_take(choice, &o));
}

static void end(kserve_choice *choice, uint32_t index)
{
    generation_output o = {.index = index, .out = {.text = "", .finish = ENGINE_FINISH_LENGTH}};
    o.out.usage = (engine_usage){5, choice->n_ids, 1};
    assert_true(kserve_choice_take(choice, &o));
}

static void check_tensor(const kserve_response *r, size_t i, const char *name, int64_t n,
                         const char *raw, size_t bytes)
{
    assert_true(field_is(r->message.outputs[i]->name, name));
    assert_true(r->message.outputs[i]->n_shape == 1 && r->message.outputs[i]->shape[0] == n);
    assert_int_equal(r->message.raw_output_contents[i].len, bytes);
    assert_memory_equal(r->message.raw_output_contents[i].data, raw, bytes);
}
#define RAW(text) text, sizeof text - 1

static void test_whole_response(void **state)
{
    (void)state;
    kserve_choice choices[2] = {0};
    kserve_response r = {0};
    take(&choices[0], 0, "he", 258);
    take(&choices[1], 1, "yo", 3);
    take(&choices[0], 0, "y", 1);
    end(&choices[0], 0);
    end(&choices[1], 1);
    kserve_response_begin(&r, "demo", "id7");
    kserve_response_set_bool(&r, "triton_final_response", true);
    assert_true(kserve_response_fill(&r, choices, 2, (1u << KSERVE_OUTPUTS) - 1));
    assert_true(field_is(r.message.model_name, "demo") && field_is(r.message.id, "id7"));
    assert_true(r.message.n_outputs == 7 && r.message.n_raw_output_contents == 7);
    check_tensor(&r, 0, "text_output", 2, RAW("\3\0\0\0hey\2\0\0\0yo"));
    check_tensor(&r, 1, "finish_reason", 2, RAW("\6\0\0\0length\6\0\0\0length"));
    check_tensor(&r, 2, "index", 2, RAW("\0\0\0\0\1\0\0\0"));
    check_tensor(&r, 3, "output_ids", 3, RAW("\2\1\0\0\1\0\0\0\3\0\0\0"));
    check_tensor(&r, 4, "completion_tokens", 2, RAW("\2\0\0\0\1\0\0\0"));
    check_tensor(&r, 5, "prompt_tokens", 2, RAW("\5\0\0\0\5\0\0\0"));
    check_tensor(&r, 6, "cached_tokens", 2, RAW("\1\0\0\0\1\0\0\0"));
    assert_true(r.message.n_parameters == 1 && r.message.parameters[0]->value->bool_param);
    kserve_choice_destroy(&choices[0]);
    kserve_choice_destroy(&choices[1]);
    kserve_response_destroy(&r);
}

static void test_token_response(void **state)
{
    (void)state;
    kserve_choice choice = {0};
    kserve_response r = {0};
    take(&choice, 4, "a", 2);
    kserve_response_begin(&r, "demo", "");
    assert_true(kserve_response_fill(&r, &choice, 1, (1u << KSERVE_OUTPUTS) - 1));
    assert_int_equal(r.message.n_outputs, 4); // usage comes at the end
    check_tensor(&r, 0, "text_output", 1, RAW("\1\0\0\0a"));
    check_tensor(&r, 1, "finish_reason", 1, RAW("\0\0\0\0"));
    kserve_choice_clear(&choice);
    end(&choice, 4);
    kserve_response_begin(&r, "demo", "");
    assert_true(
        kserve_response_fill(&r, &choice, 1, 1 << KSERVE_TEXT_OUTPUT | 1 << KSERVE_OUTPUT_IDS));
    assert_int_equal(r.message.n_outputs, 2);
    check_tensor(&r, 0, "text_output", 1, RAW("\0\0\0\0"));
    check_tensor(&r, 1, "output_ids", 0, RAW(""));
    kserve_choice_destroy(&choice);
    kserve_response_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_fields),
        cmocka_unit_test(test_prompts),        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_whole_response),
        cmocka_unit_test(test_token_response),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

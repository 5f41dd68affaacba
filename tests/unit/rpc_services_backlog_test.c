/* A stream whose tokens have waited gets them in one message of each choice, over each of the three
 * services. */
#include "rpc/services/services.h"
#include "tests/unit/rpc_grpc_fixture.h"

#include <semaphore.h>

#define ANSWER "to be or not to be, that is the question of this test"

/* ---- a backlog ------------------------------------------------------------------------------- */

static sem_t go_on;
static _Atomic int blocked;

/* Keeps the queue's thread until the test goes on, as a burst of other work would. */
static void block(rpc_call *c, const ProtobufCMessage *m)
{
    blocked++;
    while (sem_wait(&go_on) != 0) continue;
    call_reply(c, m);
}

static const rpc_method block_row = {.path = "/t.T/Block", .input = TEXT_INPUT, .message = block};
static const rpc_service block_service = {"t.T", &block_row, 1};
static const rpc_service *const services[] = {&octavo_v1_service, &vllm_engine_service,
                                              &kserve_service, &block_service};

static int setup(void **state)
{
    fixture *f = fixture_make(NULL, 0);
    *state = f;
    sem_init(&go_on, 0, 0);
    blocked = 0;
    f->core->service.o.grpc_threads = 1; // which `block` keeps
    f->core->service.o.model.defaults = (engine_defaults){.top_p = 1, .repetition_penalty = 1};
    rpc_fixture_answer(f->core, ANSWER);
    atomic_store(&f->core->hold, true); // no token before the queue's thread is kept
    fixture_start(f, services, sizeof services / sizeof services[0]);
    return 0;
}

static int teardown(void **state)
{
    fixture_destroy(*state);
    sem_destroy(&go_on);
    return 0;
}

/* Waits until every output of the calls before is in its ring: the engine's thread serves requests
 * in order, and this one is later. */
static void pass_through(fixture *f)
{
    generation_output o;
    rpc_fixture_wait_idle(f->core);
    generation *g = rpc_fixture_start(f->core, "{\"prompt\": \"a\", \"max_tokens\": 1}", 1, "");
    while (!generation_ended(g))
        if (!generation_read(g, &o)) rpc_fixture_nap();
    generation_release(g);
}

/* Starts a call, and lets all its tokens come while no message can be sent. */
static client_call *ask_with_backlog(fixture *f, const char *path, const ProtobufCMessage *m)
{
    text_message nothing = text_of("", 0);
    strbuf reply = {0};
    client_call *call = client_ask(&f->client, path, NULL, m);
    while (engine_get_stats(f->core->engine).requests_prepared == 0) nap_ms(1);
    client_call *blocker = client_ask(&f->client, "/t.T/Block", NULL, &nothing.base);
    assert_true(reaches(&blocked, 1));
    atomic_store(&f->core->hold, false);
    pass_through(f);
    sem_post(&go_on);
    assert_true(client_read(blocker, &reply));
    assert_int_equal(client_end(blocker), GRPC_STATUS_OK);
    strbuf_destroy(&reply);
    client_destroy(blocker);
    return call;
}

static ProtobufCMessage *read_message(client_call *call, const ProtobufCMessageDescriptor *type)
{
    strbuf bytes = {0};
    ProtobufCMessage *m = NULL;
    if (client_read(call, &bytes)) {
        m = protobuf_c_message_unpack(type, NULL, bytes.size, (const uint8_t *)bytes.data);
        assert_non_null(m);
    }
    strbuf_destroy(&bytes);
    return m;
}

static void end_ok(client_call *call)
{
    if (client_end(call) != GRPC_STATUS_OK) fail_msg("%s", call->text);
    client_destroy(call);
}

static bool text_is(ProtobufCBinaryData text, const char *what)
{
    return text.len == strlen(what) && memcmp(text.data, what, text.len) == 0;
}

/* ---- octavo.v1 ------------------------------------------------------------------------------- */

static void test_octavo(void **state)
{
    fixture *f = *state;
    Octavo__V1__GenerateRequest m;
    Octavo__V1__SamplingParams p = OCTAVO__V1__SAMPLING_PARAMS__INIT;
    octavo__v1__generate_request__init(&m);
    m.input_case = OCTAVO__V1__GENERATE_REQUEST__INPUT_PROMPT;
    m.prompt = call_bytes("hi", 2);
    m.sampling = &p;
    p.n_opt_case = OCTAVO__V1__SAMPLING_PARAMS__N_OPT_N;
    p.n = 3;
    p.logprobs_opt_case = OCTAVO__V1__SAMPLING_PARAMS__LOGPROBS_OPT_LOGPROBS;
    p.logprobs = 0;
    client_call *call = ask_with_backlog(f, "/octavo.v1.Inference/Generate", &m.base);
    for (uint32_t i = 0; i < 3; i++) {
        Octavo__V1__GenerateResponse *r = (Octavo__V1__GenerateResponse *)read_message(
            call, &octavo__v1__generate_response__descriptor);
        assert_non_null(r);
        assert_int_equal(r->index, i);
        assert_true(text_is(r->text, ANSWER));
        assert_true(text_is(r->finish_reason, "stop"));
        assert_int_equal(r->usage->completion_tokens, r->n_token_ids);
        assert_true(r->n_token_ids > f->core->n_script); // and the token that ends the answer
        assert_memory_equal(r->token_ids, f->core->script,
                            f->core->n_script * sizeof *r->token_ids);
        assert_int_equal(r->n_logprobs, r->n_token_ids);
        for (size_t k = 0; k < r->n_logprobs; k++)
            assert_int_equal(r->logprobs[k]->token_id, r->token_ids[k]);
        assert_int_equal(r->prompt != NULL, i == 0);
        protobuf_c_message_free_unpacked(&r->base, NULL);
    }
    assert_null(read_message(call, &octavo__v1__generate_response__descriptor));
    end_ok(call);
}

/* ---- VllmEngine ------------------------------------------------------------------------------ */

typedef Vllm__Grpc__Engine__GenerateResponse vllm_response;

static vllm_response *read_vllm(client_call *call)
{
    return (vllm_response *)read_message(call, &vllm__grpc__engine__generate_response__descriptor);
}

static void test_vllm(void **state)
{
    fixture *f = *state;
    Vllm__Grpc__Engine__GenerateRequest m;
    Vllm__Grpc__Engine__SamplingParams p;
    vllm__grpc__engine__generate_request__init(&m);
    vllm__grpc__engine__sampling_params__init(&p);
    m.input_case = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT;
    m.text = call_bytes("hi", 2);
    m.stream = true;
    m.sampling_params = &p;
    p.n = 2;
    p.logprobs_opt_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__LOGPROBS_OPT_LOGPROBS;
    client_call *call = ask_with_backlog(f, "/vllm.grpc.engine.VllmEngine/Generate", &m.base);
    for (uint32_t i = 0; i < 2; i++) {
        vllm_response *chunk = read_vllm(call), *complete = read_vllm(call);
        assert_non_null(chunk);
        assert_non_null(complete);
        const Vllm__Grpc__Engine__GenerateStreamChunk *tokens = chunk->chunk;
        assert_int_equal(chunk->response_case,
                         VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK);
        assert_int_equal(complete->response_case,
                         VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE);
        assert_true(tokens->index == i && complete->complete->index == i);
        assert_true(tokens->n_token_ids > f->core->n_script);
        assert_int_equal(tokens->completion_tokens, tokens->n_token_ids);
        assert_int_equal(complete->complete->n_output_ids, tokens->n_token_ids);
        assert_memory_equal(complete->complete->output_ids, tokens->token_ids,
                            tokens->n_token_ids * sizeof *tokens->token_ids);
        assert_int_equal(tokens->output_logprobs->n_token_logprobs, tokens->n_token_ids);
        assert_memory_equal(tokens->output_logprobs->token_ids, tokens->token_ids,
                            tokens->n_token_ids * sizeof *tokens->token_ids);
        assert_true(text_is(complete->complete->finish_reason, "stop"));
        protobuf_c_message_free_unpacked(&chunk->base, NULL);
        protobuf_c_message_free_unpacked(&complete->base, NULL);
    }
    assert_null(read_vllm(call));
    end_ok(call);
}

/* ---- KServe ---------------------------------------------------------------------------------- */

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;

static void test_kserve(void **state)
{
    fixture *f = *state;
    Inference__ModelInferRequest m = INFERENCE__MODEL_INFER_REQUEST__INIT;
    input_tensor text = INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT, stream = text;
    Inference__InferTensorContents text_values = INFERENCE__INFER_TENSOR_CONTENTS__INIT,
                                   stream_values = text_values;
    input_tensor *inputs[] = {&text, &stream};
    ProtobufCBinaryData prompt = call_bytes("hi", 2);
    protobuf_c_boolean yes = true;
    int64_t one = 1;
    text.name = call_bytes("text_input", 10);
    text.datatype = call_bytes("BYTES", 5);
    stream.name = call_bytes("stream", 6);
    stream.datatype = call_bytes("BOOL", 4);
    text.n_shape = stream.n_shape = 1;
    text.shape = stream.shape = &one;
    text.contents = &text_values;
    text_values.n_bytes_contents = 1;
    text_values.bytes_contents = &prompt;
    stream.contents = &stream_values;
    stream_values.n_bool_contents = 1;
    stream_values.bool_contents = &yes;
    m.n_inputs = 2;
    m.inputs = inputs;
    client_call *call =
        ask_with_backlog(f, "/inference.GRPCInferenceService/ModelStreamInfer", &m.base);
    Inference__ModelStreamInferResponse *r = (Inference__ModelStreamInferResponse *)read_message(
        call, &inference__model_stream_infer_response__descriptor);
    assert_non_null(r);
    assert_int_equal(r->error_message.len, 0);
    const Inference__ModelInferResponse *answer = r->infer_response;
    assert_true(text_is(answer->outputs[0]->name, "text_output"));
    assert_int_equal(answer->raw_output_contents[0].len, 4 + strlen(ANSWER));
    assert_memory_equal(answer->raw_output_contents[0].data + 4, ANSWER, strlen(ANSWER));
    assert_true(text_is(answer->parameters[0]->key, "triton_final_response"));
    assert_true(answer->parameters[0]->value->bool_param);
    protobuf_c_message_free_unpacked(&r->base, NULL);
    assert_null(read_message(call, &inference__model_stream_infer_response__descriptor));
    end_ok(call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_octavo, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vllm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kserve, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

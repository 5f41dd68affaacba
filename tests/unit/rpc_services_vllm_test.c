/* VllmEngine: requests from messages, logprobs, and fields that are refused by name. */
#include "rpc/services/vllm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef Vllm__Grpc__Engine__GenerateRequest generate_request;
typedef Vllm__Grpc__Engine__SamplingParams sampling_params;

static const char *const names[] = {"demo"};
static const service served = {
    .o.model =
        {
            .names = names,
            .n_names = 1,
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
    vllm__grpc__engine__generate_request__init(&m);
    return m;
}

static sampling_params make_params(void)
{
    sampling_params p;
    vllm__grpc__engine__sampling_params__init(&p);
    return p;
}

static void with_text(generate_request *m)
{
    m->input_case = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT;
    m->text = field_of("hi");
}

/* A zero that cannot be a value means the default; other zeros are values. */
static void test_zeros(void **state)
{
    (void)state;
    generate_request m = make_request();
    sampling_params p = make_params();
    engine_request r;
    with_text(&m);
    m.sampling_params = &p;
    assert_true(status_ok(vllm_request_of(&served, &m, NULL, 0, &r, NULL)));
    assert_string_equal(r.prompt, "hi");
    assert_true(r.temperature == 0.6f && r.top_p == 0.9f && r.repetition_penalty == 1.1f);
    assert_true(r.min_p == 0 && r.top_k == 0 && r.n == 1 && r.max_tokens == 7);
    assert_true(!r.skip_special_tokens && !r.has_seed && r.logprobs == -1);
    assert_null(r.retention);
    engine_request_destroy(&r);
}

static void test_fields(void **state)
{
    (void)state;
    generate_request m = make_request();
    sampling_params p = make_params();
    Vllm__Grpc__Engine__TokenizedInput input = VLLM__GRPC__ENGINE__TOKENIZED_INPUT__INIT;
    Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry bias =
        VLLM__GRPC__ENGINE__SAMPLING_PARAMS__LOGIT_BIAS_ENTRY__INIT;
    Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry *biases = &bias;
    uint32_t ids[] = {4, 5};
    ProtobufCBinaryData stop = field_of("END");
    static const char retention[] = "{\"method\": \"full\"} and what lies behind it";
    m.input_case = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    m.tokenized = &input;
    input.n_input_ids = 2;
    input.input_ids = ids;
    m.sampling_params = &p;
    p.temperature_opt_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__TEMPERATURE_OPT_TEMPERATURE;
    p.max_tokens_opt_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__MAX_TOKENS_OPT_MAX_TOKENS;
    p.seed_opt_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__SEED_OPT_SEED;
    p.logprobs_opt_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__LOGPROBS_OPT_LOGPROBS;
    p.prompt_logprobs_opt_case =
        VLLM__GRPC__ENGINE__SAMPLING_PARAMS__PROMPT_LOGPROBS_OPT_PROMPT_LOGPROBS;
    p.temperature = 0;
    p.top_p = 0.5f;
    p.top_k = 3;
    p.min_p = 0.25f;
    p.frequency_penalty = 1;
    p.presence_penalty = -1;
    p.repetition_penalty = 1.5f;
    p.max_tokens = 12;
    p.min_tokens = 2;
    p.n_stop = 1;
    p.stop = &stop;
    p.n_stop_token_ids = 2;
    p.stop_token_ids = ids;
    p.skip_special_tokens = p.ignore_eos = p.include_stop_str_in_output = true;
    p.n = 2;
    p.logprobs = 3;
    p.prompt_logprobs = 0;
    p.seed = -1;
    p.truncate_prompt_tokens_opt_case = 27;
    p.truncate_prompt_tokens = -1;
    p.n_logit_bias = 1;
    p.logit_bias = &biases;
    bias.key = 8;
    bias.value = 1.5f;
    /* Rank 0 is this server. */
    m.data_parallel_rank_opt_case = 1;

    engine_request r;
    error err;
    assert_true(status_ok(vllm_request_of(&served, &m, retention, 18, &r, &err)));
    assert_true(r.n_prompt_token_ids == 2 && r.prompt_token_ids[1] == 5);
    assert_true(r.temperature == 0 && r.top_p == 0.5f && r.top_k == 3 && r.min_p == 0.25f);
    assert_true(r.frequency_penalty == 1 && r.presence_penalty == -1);
    assert_true(r.repetition_penalty == 1.5f && r.max_tokens == 12 && r.min_tokens == 2);
    assert_true(r.n == 2 && r.logprobs == 3 && r.prompt_logprobs == 0);
    assert_true(r.has_seed && r.seed == (uint64_t)-1);
    assert_true(r.n_stop == 1 && r.n_stop_token_ids == 2);
    assert_true(r.skip_special_tokens && r.ignore_eos && r.include_stop_str_in_output);
    assert_int_equal(r.truncate_prompt_tokens, -1);
    assert_true(r.n_bias == 1 && r.bias_ids[0] == 8 && r.bias[0] == 1.5f);
    assert_non_null(r.retention);
    engine_request_destroy(&r);
}

/* ---- the form of the answer ------------------------------------------------------------------ */

static void check_form(sampling_params *p, bool given, grammar_kind kind, const char *field,
                       const char *source)
{
    generate_request m = make_request();
    engine_request r;
    with_text(&m);
    m.sampling_params = p;
    assert_true(status_ok(vllm_request_of(&served, &m, NULL, 0, &r, NULL)));
    assert_int_equal(r.form.given, given);
    if (given) {
        assert_int_equal(r.form.kind, kind);
        assert_string_equal(r.form.field, field);
        assert_int_equal(r.form.n, strlen(source));
        assert_string_equal(r.form.text, source);
    }
    engine_request_destroy(&r);
}

static void test_forms(void **state)
{
    (void)state;
    ProtobufCBinaryData texts[] = {field_of("yes"), field_of("\"no\"")};
    Vllm__Grpc__Engine__ChoiceConstraint choices = VLLM__GRPC__ENGINE__CHOICE_CONSTRAINT__INIT;
    sampling_params p = make_params();
    choices.n_choices = 2;
    choices.choices = texts;
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA;
    p.json_schema = field_of("{\"type\": \"null\"}");
    check_form(&p, true, GRAMMAR_JSON_SCHEMA, "json_schema", "{\"type\": \"null\"}");
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX;
    p.regex = field_of("a+");
    check_form(&p, true, GRAMMAR_REGEX, "regex", "a+");
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR;
    p.grammar = field_of("root ::= \"a\"");
    check_form(&p, true, GRAMMAR_GBNF, "grammar", "root ::= \"a\"");
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT;
    p.json_object = false;
    check_form(&p, false, GRAMMAR_JSON_OBJECT, "", "");
    p.json_object = true;
    check_form(&p, true, GRAMMAR_JSON_OBJECT, "json_object", "");
    p.constraint_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE;
    p.choice = &choices;
    check_form(&p, true, GRAMMAR_CHOICE, "choice", "[\"yes\",\"\\\"no\\\"\"]");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static Vllm__Grpc__Engine__MultimodalInputs images = VLLM__GRPC__ENGINE__MULTIMODAL_INPUTS__INIT;
static Vllm__Grpc__Engine__KvTransferParams place = VLLM__GRPC__ENGINE__KV_TRANSFER_PARAMS__INIT;
static ProtobufCBinaryData reference;
static Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry negative =
    VLLM__GRPC__ENGINE__SAMPLING_PARAMS__LOGIT_BIAS_ENTRY__INIT;
static Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry *negative_list[] = {&negative, &negative};

#define DAMAGE(name, code)                                                                         \
    static void name(generate_request *m, sampling_params *p)                                      \
    {                                                                                              \
        (void)m;                                                                                   \
        (void)p;                                                                                   \
        code;                                                                                      \
    }
static ProtobufCBinaryData half_character = {1, (uint8_t *)(uintptr_t) "\xc3"};
static Vllm__Grpc__Engine__ChoiceConstraint broken_choice =
    VLLM__GRPC__ENGINE__CHOICE_CONSTRAINT__INIT;

DAMAGE(no_input, m->input_case = 0)
DAMAGE(mm, m->mm_inputs = &images)
DAMAGE(media, (m->n_media_refs = 1, m->media_refs = &reference))
DAMAGE(extra_mm, (m->n_extra_mm_inputs = 1, m->extra_mm_inputs = &reference))
DAMAGE(kv, m->kv_transfer_params = &place)
DAMAGE(kv_json,
       (m->kv_transfer_params_json_opt_case = 8, m->kv_transfer_params_json = field_of("[]")))
DAMAGE(kv_flag, (m->kv_transfer_params_json_opt_case = 8,
                 m->kv_transfer_params_json = field_of("{\"do_remote_decode\":1}")))
DAMAGE(kv_stream, (m->kv_transfer_params_json_opt_case = 8, m->stream = true,
                   m->kv_transfer_params_json = field_of("{\"do_remote_decode\":true}")))
DAMAGE(kv_host, (m->kv_transfer_params_json_opt_case = 8,
                 m->kv_transfer_params_json = field_of("{\"do_remote_prefill\":true}")))
DAMAGE(rank, (m->data_parallel_rank_opt_case = 9, m->data_parallel_rank = 1))
DAMAGE(truncate, p->truncate_prompt_tokens_opt_case = 27) // to 0 tokens
DAMAGE(empty_regex, (p->constraint_case = 17, p->regex = field_of("")))
DAMAGE(broken_grammar, (p->constraint_case = 18, p->grammar = half_character))
DAMAGE(structural, p->constraint_case = 19)
DAMAGE(broken_choices, (p->constraint_case = 21, p->choice = &broken_choice,
                        broken_choice.n_choices = 1, broken_choice.choices = &half_character))
DAMAGE(all_logprobs, (p->logprobs_opt_case = 22, p->logprobs = -1))
DAMAGE(bad_top_k, p->top_k = UINT32_MAX)
DAMAGE(nan_top_p, p->top_p = NAN)
DAMAGE(nan_min_p, p->min_p = INFINITY)
DAMAGE(negative_bias, (negative.key = -1, p->n_logit_bias = 1, p->logit_bias = negative_list))
DAMAGE(same_bias, (negative.key = 3, p->n_logit_bias = 2, p->logit_bias = negative_list))

static const struct {
    void (*damage)(generate_request *m, sampling_params *p);
    status_code code;
    const char *text;
} refusals[] = {
    {no_input, STATUS_INVALID, "input: one of tokenized and text must be given"},
    {mm, STATUS_UNSUPPORTED, "mm_inputs: not supported"},
    {media, STATUS_UNSUPPORTED, "media_refs: not supported"},
    {extra_mm, STATUS_UNSUPPORTED, "extra_mm_inputs: not supported"},
    {kv, STATUS_UNSUPPORTED, "kv_transfer_params: not supported"},
    {kv_json, STATUS_INVALID, "kv_transfer_params_json: must be a JSON object"},
    {kv_flag, STATUS_INVALID,
     "request: kv_transfer_params_json: do_remote_decode: must be true or false"},
    {kv_stream, STATUS_INVALID, "kv_transfer_params_json: do_remote_decode: stream must be false"},
    {kv_host, STATUS_INVALID,
     "request: kv_transfer_params_json: remote_host: must be the name of a host"},
    {rank, STATUS_INVALID, "data_parallel_rank: there is only rank 0"},
    {truncate, STATUS_INVALID, "sampling_params.truncate_prompt_tokens: must be 1 or more, or -1"},
    {empty_regex, STATUS_INVALID, "regex: must not be empty"},
    {broken_grammar, STATUS_INVALID, "sampling_params.grammar: is not UTF-8"},
    {broken_choices, STATUS_INVALID, "sampling_params.choice[0]: is not UTF-8"},
    {structural, STATUS_UNSUPPORTED, "sampling_params.structural_tag: not supported"},
    {all_logprobs, STATUS_INVALID, "sampling_params.logprobs: must be in 0 .. 20"},
    {bad_top_k, STATUS_INVALID, "sampling_params.top_k: 4294967295 is more than 2147483647"},
    {nan_top_p, STATUS_INVALID, "sampling_params.top_p: must be a finite number"},
    {nan_min_p, STATUS_INVALID, "sampling_params.min_p: must be a finite number"},
    {negative_bias, STATUS_INVALID, "sampling_params.logit_bias: -1 is no token id"},
    {same_bias, STATUS_INVALID, "sampling_params.logit_bias: token 3 is given twice"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        generate_request m = make_request();
        sampling_params p = make_params();
        engine_request r;
        error err = {{0}};
        with_text(&m);
        m.sampling_params = &p;
        refusals[i].damage(&m, &p);
        status st = vllm_request_of(&served, &m, NULL, 0, &r, &err);
        assert_string_equal(err.text, refusals[i].text);
        assert_int_equal(st.code, refusals[i].code);
        engine_request_destroy(&r);
    }
}

static void test_retention_metadata(void **state)
{
    (void)state;
    generate_request m = make_request();
    engine_request r;
    error err = {{0}};
    with_text(&m);
    assert_int_equal(vllm_request_of(&served, &m, "7", 1, &r, &err).code, STATUS_INVALID);
    assert_string_equal(err.text, "octavo-retention: must be a JSON object");
    engine_request_destroy(&r);
    assert_true(status_ok(vllm_request_of(&served, &m, "chunkkv:0.5", 11, &r, &err)));
    assert_string_equal(json_string_value(json_object_get(r.retention, "method")), "chunkkv");
    engine_request_destroy(&r);
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void test_output_logprobs(void **state)
{
    (void)state;
    vllm_choice choice = {0};
    arena memory;
    arena_init(&memory, 4096, 0);
    for (uint32_t i = 0; i < 3; i++) {
        step_sample sample = {.token = i,
                              .logprob = -(float)i,
                              .n_top = i,
                              .top_ids = {10 + i, 20 + i},
                              .top_logprobs = {-1, -2}};
        assert_true(vllm_choice_take(&choice, &sample, true));
    }
    const Vllm__Grpc__Engine__OutputLogProbs *l = vllm_choice_logprobs(&choice, &memory);
    assert_true(l->n_token_ids == 3 && l->n_token_logprobs == 3 && l->n_top_logprobs == 3);
    assert_true(l->token_ids[2] == 2 && l->token_logprobs[2] == -2);
    assert_int_equal(l->top_logprobs[0]->n_values, 0);
    assert_true(l->top_logprobs[1]->n_values == 1 && l->top_logprobs[1]->token_ids[0] == 11);
    assert_true(l->top_logprobs[2]->n_values == 2 && l->top_logprobs[2]->token_ids[1] == 22);

    /* The next chunk has what came after the last one. */
    vllm_choice_sent(&choice);
    const step_sample more = {.token = 9, .logprob = -7, .n_top = 1, .top_ids = {90}};
    assert_true(vllm_choice_take(&choice, &more, true));
    assert_true(choice.n == 4 && vllm_choice_unsent(&choice)[0] == 9);
    l = vllm_choice_logprobs(&choice, &memory);
    assert_true(l->n_token_ids == 1 && l->n_token_logprobs == 1 && l->n_top_logprobs == 1);
    assert_true(l->token_ids[0] == 9 && l->token_logprobs[0] == -7);
    assert_true(l->top_logprobs[0]->n_values == 1 && l->top_logprobs[0]->token_ids[0] == 90);
    arena_destroy(&memory);
    vllm_choice_destroy(&choice);
}

static void test_input_logprobs(void **state)
{
    (void)state;
    const uint32_t tokens[] = {7, 8}, ranks[] = {0, 2}, top_ids[] = {0, 5};
    const float logprobs[] = {NAN, -1.5f}, tops[] = {0, -0.5f};
    engine_prompt prompt = {tokens, 2, logprobs, ranks, 1, top_ids, tops};
    arena memory;
    arena_init(&memory, 4096, 0);
    const Vllm__Grpc__Engine__InputLogProbs *l = vllm_prompt_logprobs(&prompt, &memory);
    assert_true(l->n_token_ids == 2 && l->token_ids[1] == 8 && l->n_token_logprobs == 2);
    assert_int_equal(l->token_logprobs[0]->value_opt_case, 0);
    assert_int_equal(l->token_logprobs[1]->value_opt_case, 1);
    assert_true(l->token_logprobs[1]->value == -1.5f);
    assert_int_equal(l->top_logprobs[0]->n_values, 0);
    assert_true(l->top_logprobs[1]->n_values == 1 && l->top_logprobs[1]->token_ids[0] == 5);
    arena_destroy(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_retention_metadata),
        cmocka_unit_test(test_output_logprobs),
        cmocka_unit_test(test_input_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

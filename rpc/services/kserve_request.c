/* Converts KServe's tensors and parameters into engine requests. */
#include "rpc/services/kserve.h"

#include <math.h>
#include <stdlib.h>

const char kserve_version[] = "1";

const kserve_tensor kserve_inputs[KSERVE_INPUTS] = {
    [KSERVE_TEXT_INPUT] = {"text_input", "BYTES", -1},
    [KSERVE_SAMPLING_PARAMETERS] = {"sampling_parameters", "BYTES", 1},
    [KSERVE_STREAM] = {"stream", "BOOL", 1},
};

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;

status kserve_check_model(const service *s, ProtobufCBinaryData name, ProtobufCBinaryData version,
                          error *err)
{
    RETURN_IF_ERROR(field_model(s, "model_name", name, err));
    if (version.len == 0 || field_is(version, kserve_version)) return STATUS_IS_OK;
    return error_set(err, STATUS_NOT_FOUND, "model_version: only version %s is served",
                     kserve_version);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Counts a tensor's elements: the shapes [n], [1, n] and [n, 1] have n. */
static status count_elements(const input_tensor *t, const kserve_tensor *row, uint32_t *out,
                             error *err)
{
    int64_t n = 1;
    bool good = t->n_shape == 1 || t->n_shape == 2;
    for (size_t i = 0; good && i < t->n_shape; i++) {
        good = t->shape[i] >= 1 && t->shape[i] <= INT32_MAX && (n == 1 || t->shape[i] == 1);
        if (good) n *= t->shape[i];
    }
    if (!good)
        return error_set(err, STATUS_INVALID, "%s: its shape must be [n], [1, n] or [n, 1]",
                         row->name);
    if (row->dim > 0 && n != row->dim)
        return error_set(err, STATUS_INVALID, "%s: has %lld elements, not %lld", row->name,
                         (long long)n, (long long)row->dim);
    if (n > KSERVE_PROMPTS_MAX)
        return error_set(err, STATUS_INVALID, "%s: has more than %d elements", row->name,
                         KSERVE_PROMPTS_MAX);
    *out = (uint32_t)n;
    return STATUS_IS_OK;
}

/* The index of a name in a table, or -1. */
static int find_name(const kserve_tensor *rows, int n, ProtobufCBinaryData name)
{
    int i = 0;
    while (i < n && !field_is(name, rows[i].name)) i++;
    return i < n ? i : -1;
}

/* A name as messages show it; "" where it is no word. */
enum { SHOWN_BYTES = 65 };
static void show(ProtobufCBinaryData name, char shown[SHOWN_BYTES])
{
    if (!status_ok(field_word("", name, shown, SHOWN_BYTES, NULL))) *shown = '\0';
}

static status unknown(const char *list, size_t i, ProtobufCBinaryData name, error *err)
{
    char shown[SHOWN_BYTES];
    show(name, shown);
    return error_set(err, STATUS_INVALID, "%s[%zu]: unknown tensor '%s'", list, i, shown);
}

static status refuse_parameter(const char *tensor, ProtobufCBinaryData name, error *err)
{
    char shown[SHOWN_BYTES];
    show(name, shown);
    return error_set(err, STATUS_UNSUPPORTED, "%s: parameter '%s': not supported", tensor, shown);
}

static status check_input(const Inference__ModelInferRequest *m, size_t i, kserve_facts *out,
                          error *err)
{
    const input_tensor *t = m->inputs[i];
    int which = find_name(kserve_inputs, KSERVE_INPUTS, t->name);
    if (which < 0) return unknown("inputs", i, t->name, err);
    const kserve_tensor *row = &kserve_inputs[which];
    uint32_t n = 0;
    if (out->place[which] >= 0)
        return error_set(err, STATUS_INVALID, "%s: is given twice", row->name);
    if (!field_is(t->datatype, row->datatype))
        return error_set(err, STATUS_INVALID, "%s: its datatype must be %s", row->name,
                         row->datatype);
    if (t->n_parameters) return refuse_parameter(row->name, t->parameters[0]->key, err);
    RETURN_IF_ERROR(count_elements(t, row, &n, err));
    out->place[which] = (int)i;
    if (which == KSERVE_TEXT_INPUT) out->n_prompts = n;
    return STATUS_IS_OK;
}

static status check_outputs(const Inference__ModelInferRequest *m, kserve_facts *out, error *err)
{
    for (size_t i = 0; i < m->n_outputs; i++) {
        const Inference__ModelInferRequest__InferRequestedOutputTensor *t = m->outputs[i];
        int which = find_name(kserve_outputs, KSERVE_OUTPUTS, t->name);
        if (which < 0) return unknown("outputs", i, t->name, err);
        if (t->n_parameters)
            return refuse_parameter(kserve_outputs[which].name, t->parameters[0]->key, err);
        out->outputs |= 1u << which;
    }
    if (m->n_outputs == 0) out->outputs = (1u << KSERVE_OUTPUTS) - 1;
    return STATUS_IS_OK;
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Finds element `at` of n elements with length prefixes. False unless raw holds exactly n. */
static bool raw_element(ProtobufCBinaryData raw, uint32_t n, uint32_t at, ProtobufCBinaryData *out)
{
    size_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (raw.len - from < 4) return false;
        const uint8_t *p = raw.data + from;
        size_t bytes = (size_t)p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
        from += 4;
        if (raw.len - from < bytes) return false;
        if (i == at) *out = (ProtobufCBinaryData){bytes, raw.data + from};
        from += bytes;
    }
    return from == raw.len;
}

static status read_bytes(const Inference__ModelInferRequest *m, const kserve_facts *facts,
                         int which, uint32_t n, uint32_t at, ProtobufCBinaryData *out, error *err)
{
    int place = facts->place[which];
    const Inference__InferTensorContents *contents = m->inputs[place]->contents;
    if (m->n_raw_input_contents) {
        if (raw_element(m->raw_input_contents[place], n, at, out)) return STATUS_IS_OK;
    } else if (contents && contents->n_bytes_contents == n) {
        *out = contents->bytes_contents[at];
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_INVALID, "%s: its contents are not %u elements of BYTES",
                     kserve_inputs[which].name, n);
}

static status read_stream(const Inference__ModelInferRequest *m, kserve_facts *facts, error *err)
{
    int place = facts->place[KSERVE_STREAM];
    if (place < 0) return STATUS_IS_OK;
    const Inference__InferTensorContents *contents = m->inputs[place]->contents;
    if (m->n_raw_input_contents) {
        ProtobufCBinaryData raw = m->raw_input_contents[place];
        facts->stream = raw.len == 1 && raw.data[0];
        if (raw.len == 1) return STATUS_IS_OK;
    } else if (contents && contents->n_bool_contents == 1) {
        facts->stream = contents->bool_contents[0];
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_INVALID, "stream: its contents are not one BOOL");
}

status kserve_facts_of(const service *s, const Inference__ModelInferRequest *m, kserve_facts *out,
                       error *err)
{
    *out = (kserve_facts){0};
    for (int i = 0; i < KSERVE_INPUTS; i++) out->place[i] = -1;
    RETURN_IF_ERROR(field_word("id", m->id, out->id, sizeof out->id, err));
    RETURN_IF_ERROR(kserve_check_model(s, m->model_name, m->model_version, err));
    if (m->n_raw_input_contents && m->n_raw_input_contents != m->n_inputs)
        return error_set(err, STATUS_INVALID, "raw_input_contents: %zu for %zu inputs",
                         m->n_raw_input_contents, m->n_inputs);
    for (size_t i = 0; i < m->n_inputs; i++) {
        RETURN_IF_ERROR(check_input(m, i, out, err));
        if (m->n_raw_input_contents && m->inputs[i]->contents)
            return error_set(err, STATUS_INVALID,
                             "inputs[%zu]: has both contents and raw_input_contents", i);
    }
    if (out->place[KSERVE_TEXT_INPUT] < 0)
        return error_set(err, STATUS_INVALID, "text_input: is missing");
    RETURN_IF_ERROR(read_stream(m, out, err));
    return check_outputs(m, out, err);
}

/* ---- request fields -------------------------------------------------------------------------- */

/* The most parameters of a request; more than there are fields. */
enum { PARAMETERS_MAX = 64 };

/* The value of a parameter for which has_value is true. NULL: memory is out. */
static json_t *value_of(const Inference__InferParameter *p)
{
    switch (p->parameter_choice_case) {
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM:
        return json_boolean(p->bool_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM:
        return json_integer(p->int64_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM:
        return json_integer((json_int_t)p->uint64_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM:
        return json_real(p->double_param);
    case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM:
        return json_stringn(p->string_param.len ? (const char *)p->string_param.data : "",
                            p->string_param.len);
    default: return NULL;
    }
}

static bool has_value(const Inference__InferParameter *p)
{
    if (!p) return false;
    if (p->parameter_choice_case == INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM)
        return p->uint64_param <= INT64_MAX;
    if (p->parameter_choice_case == INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM)
        return isfinite(p->double_param);
    if (p->parameter_choice_case == INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM)
        return utf8_valid(p->string_param.data, p->string_param.len);
    return p->parameter_choice_case != INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE__NOT_SET;
}

/* Converts a parameter into a value that the engine's parser reads; *out is NULL for a parameter
 * that is skipped. */
static status read_parameter(const char *key, const Inference__InferParameter *p, json_t **out,
                             error *err)
{
    static const char retention[] = "parameters: retention", retrieval[] = "parameters: retrieval";
    bool text =
        p && p->parameter_choice_case == INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    *out = NULL;
    /* Triton's switch for a mark on the last response, which octavo always sends. */
    if (strcmp(key, "triton_enable_empty_final_response") == 0) return STATUS_IS_OK;
    if (strcmp(key, "retention") == 0 && text)
        return field_retention(retention, p->string_param, out, err);
    if (strcmp(key, "retrieval") == 0 && text)
        return field_retrieval(retrieval, p->string_param, out, err);
    if (!has_value(p))
        return error_set(err, STATUS_INVALID, "parameters: %.64s: has no value that can be used",
                         key);
    *out = value_of(p);
    return *out ? STATUS_IS_OK
                : error_set(err, STATUS_NO_MEMORY, "parameters: %.64s: out of memory", key);
}

static status read_parameters(const Inference__ModelInferRequest *m, engine_request *r, error *err)
{
    if (m->n_parameters > PARAMETERS_MAX)
        return error_set(err, STATUS_LIMIT, "parameters: more than %d", PARAMETERS_MAX);
    json_t *fields = json_object();
    status st =
        fields ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "parameters: out of memory");
    for (size_t i = 0; i < m->n_parameters && status_ok(st); i++) {
        const Inference__ModelInferRequest__ParametersEntry *p = m->parameters[i];
        json_t *value = NULL;
        char key[SHOWN_BYTES];
        st = field_word("parameters: a name", p->key, key, sizeof key, err);
        if (status_ok(st) && json_object_get(fields, key))
            st = error_set(err, STATUS_INVALID, "parameters: %s: is given twice", key);
        else if (status_ok(st)) st = read_parameter(key, p->value, &value, err);
        if (value && json_object_set_new(fields, key, value))
            st = error_set(err, STATUS_NO_MEMORY, "parameters: out of memory");
    }
    if (status_ok(st)) st = engine_request_parse(fields, "parameters", NULL, r, err);
    json_decref(fields);
    return st;
}

static status read_sampling(const Inference__ModelInferRequest *m, const kserve_facts *facts,
                            engine_request *r, error *err)
{
    static const char name[] = "sampling_parameters";
    if (facts->place[KSERVE_SAMPLING_PARAMETERS] < 0) return STATUS_IS_OK;
    ProtobufCBinaryData text;
    json_t *fields = NULL;
    RETURN_IF_ERROR(read_bytes(m, facts, KSERVE_SAMPLING_PARAMETERS, 1, 0, &text, err));
    RETURN_IF_ERROR(field_json(name, text, JSON_OBJECT, &fields, err));
    if (!fields) return STATUS_IS_OK;
    status st = engine_request_parse(fields, name, NULL, r, err);
    json_decref(fields);
    return st;
}

/* Refuses fields whose results no tensor of KServe can carry. */
static status check_fields(const engine_request *r, error *err)
{
    if (r->prompt || r->messages || r->prompt_token_ids || r->tools)
        return error_set(err, STATUS_INVALID, "text_input: no other input may give the prompt");
    if (r->logprobs >= 0 || r->prompt_logprobs >= 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: this service has no tensor for them",
                         r->logprobs >= 0 ? "logprobs" : "prompt_logprobs");
    if (r->hands_over || r->takes_over)
        return error_set(err, STATUS_UNSUPPORTED,
                         "kv_transfer_params: this service has no tensor for the answer's");
    return STATUS_IS_OK;
}

status kserve_fields_of(const service *s, const Inference__ModelInferRequest *m,
                        const kserve_facts *facts, engine_request *out, error *err)
{
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(read_sampling(m, facts, out, err));
    RETURN_IF_ERROR(read_parameters(m, out, err));
    return check_fields(out, err);
}

status kserve_prompt_of(const Inference__ModelInferRequest *m, const kserve_facts *facts,
                        uint32_t prompt, engine_request *r, error *err)
{
    ProtobufCBinaryData text;
    RETURN_IF_ERROR(read_bytes(m, facts, KSERVE_TEXT_INPUT, facts->n_prompts, prompt, &text, err));
    return field_prompt("text_input", text, r, err);
}

/* Starts a request for each prompt. generation_start copies requests, so they may share all fields
 * but the prompt. */
static status start_prompts(service *s, const Inference__ModelInferRequest *m,
                            const kserve_facts *facts, const engine_request *fields,
                            const generation_options *o, generation **out, error *err)
{
    uint32_t n = facts->n_prompts, made = 0;
    engine_request *requests = calloc(n, sizeof *requests);
    status st =
        requests ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "request: out of memory");
    for (; made < n && status_ok(st); made++) {
        requests[made] = *fields;
        st = kserve_prompt_of(m, facts, made, &requests[made], err);
    }
    if (status_ok(st)) st = generation_start(s, requests, n, o, out, err);
    for (uint32_t i = 0; i < made; i++) free(requests[i].prompt);
    free(requests);
    return st;
}

status kserve_start(service *s, const Inference__ModelInferRequest *m, const kserve_facts *facts,
                    const generation_options *o, generation **out, uint32_t *n_choices, error *err)
{
    engine_request fields;
    status st = kserve_fields_of(s, m, facts, &fields, err);
    if (status_ok(st)) st = start_prompts(s, m, facts, &fields, o, out, err);
    *n_choices = facts->n_prompts * fields.n;
    engine_request_destroy(&fields);
    return st;
}

status kserve_request_of(const service *s, const Inference__ModelInferRequest *m,
                         engine_request *out, error *err)
{
    kserve_facts facts;
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(kserve_facts_of(s, m, &facts, err));
    RETURN_IF_ERROR(kserve_fields_of(s, m, &facts, out, err));
    return kserve_prompt_of(m, &facts, 0, out, err);
}

/* Writes choices into KServe's tensors, as raw contents. */
#include "rpc/services/kserve.h"

const kserve_tensor kserve_outputs[KSERVE_OUTPUTS] = {
    [KSERVE_TEXT_OUTPUT] = {"text_output", "BYTES", -1},
    [KSERVE_FINISH_REASON] = {"finish_reason", "BYTES", -1},
    [KSERVE_INDEX] = {"index", "INT32", -1},
    /* The ids of all choices in order; completion_tokens says how many belong to each choice. */
    [KSERVE_OUTPUT_IDS] = {"output_ids", "INT32", -1},
    [KSERVE_COMPLETION_TOKENS] = {"completion_tokens", "INT32", -1},
    [KSERVE_PROMPT_TOKENS] = {"prompt_tokens", "INT32", -1},
    [KSERVE_CACHED_TOKENS] = {"cached_tokens", "INT32", -1},
};

static void put32(strbuf *out, uint32_t v)
{
    for (int shift = 0; shift < 32; shift += 8) strbuf_putc(out, (char)(v >> shift & 255));
}

/* ---- choices --------------------------------------------------------------------------------- */

bool kserve_choice_take(kserve_choice *choice, const generation_output *o)
{
    choice->index = o->index;
    strbuf_append(&choice->text, o->out.text, o->out.text_bytes);
    if (o->out.has_token) {
        put32(&choice->ids, o->out.sample.token);
        choice->n_ids++;
    }
    choice->finish = o->out.finish;
    choice->usage = o->out.usage;
    return !choice->text.failed && !choice->ids.failed;
}

void kserve_choice_clear(kserve_choice *choice)
{
    strbuf_clear(&choice->text);
    strbuf_clear(&choice->ids);
    choice->n_ids = 0;
}

void kserve_choice_destroy(kserve_choice *choice)
{
    strbuf_destroy(&choice->text);
    strbuf_destroy(&choice->ids);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_element(strbuf *out, const kserve_choice *c, int which)
{
    const char *finish = engine_finish_name(c->finish);
    switch (which) {
    case KSERVE_TEXT_OUTPUT:
        put32(out, (uint32_t)c->text.size);
        strbuf_append(out, c->text.data, c->text.size);
        break;
    case KSERVE_FINISH_REASON:
        put32(out, (uint32_t)strlen(finish));
        strbuf_puts(out, finish);
        break;
    case KSERVE_INDEX: put32(out, c->index); break;
    case KSERVE_OUTPUT_IDS: strbuf_append(out, c->ids.data, c->ids.size); break;
    case KSERVE_COMPLETION_TOKENS: put32(out, c->usage.completion_tokens); break;
    case KSERVE_PROMPT_TOKENS: put32(out, c->usage.prompt_tokens); break;
    case KSERVE_CACHED_TOKENS: put32(out, c->usage.cached_tokens); break;
    default: break;
    }
}

static void add_tensor(kserve_response *r, int which, int64_t elements)
{
    size_t i = r->message.n_outputs++;
    Inference__ModelInferResponse__InferOutputTensor *t = &r->tensors[i];
    *t = (Inference__ModelInferResponse__InferOutputTensor)
        INFERENCE__MODEL_INFER_RESPONSE__INFER_OUTPUT_TENSOR__INIT;
    t->name = field_of(kserve_outputs[which].name);
    t->datatype = field_of(kserve_outputs[which].datatype);
    r->shapes[i] = elements;
    t->n_shape = 1;
    t->shape = &r->shapes[i];
    r->tensor_list[i] = t;
}

bool kserve_response_fill(kserve_response *r, const kserve_choice *choices, uint32_t n,
                          uint32_t outputs)
{
    size_t from[KSERVE_OUTPUTS + 1];
    int64_t n_ids = 0;
    bool ended = true;
    for (uint32_t i = 0; i < n; i++) {
        n_ids += choices[i].n_ids;
        ended = ended && choices[i].finish != ENGINE_FINISH_NONE;
    }
    strbuf_clear(&r->bytes);
    for (int which = 0; which < KSERVE_OUTPUTS; which++) {
        bool of_usage = which >= KSERVE_COMPLETION_TOKENS;
        if (!(outputs >> which & 1) || (of_usage && !ended)) continue;
        from[r->message.n_outputs] = r->bytes.size;
        add_tensor(r, which, which == KSERVE_OUTPUT_IDS ? n_ids : n);
        for (uint32_t i = 0; i < n; i++) put_element(&r->bytes, &choices[i], which);
    }
    size_t n_outputs = r->message.n_outputs;
    from[n_outputs] = r->bytes.size;
    /* Set after all bytes are written, since they may move while they grow. */
    for (size_t i = 0; i < n_outputs; i++)
        r->raw[i] = call_bytes(r->bytes.data + from[i], from[i + 1] - from[i]);
    r->message.outputs = r->tensor_list;
    r->message.n_raw_output_contents = n_outputs;
    r->message.raw_output_contents = r->raw;
    return !r->bytes.failed;
}

/* ---- the rest of a response ------------------------------------------------------------------ */

void kserve_response_begin(kserve_response *r, const char *model, const char *id)
{
    r->message = (Inference__ModelInferResponse)INFERENCE__MODEL_INFER_RESPONSE__INIT;
    r->message.model_name = field_of(model);
    r->message.model_version = field_of(kserve_version);
    r->message.id = field_of(id);
    r->message.parameters = r->parameter_list;
}

static Inference__InferParameter *add_parameter(kserve_response *r, const char *key)
{
    size_t i = r->message.n_parameters++;
    r->parameters[i] = (Inference__ModelInferResponse__ParametersEntry)
        INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT;
    r->values[i] = (Inference__InferParameter)INFERENCE__INFER_PARAMETER__INIT;
    r->parameters[i].key = field_of(key);
    r->parameters[i].value = &r->values[i];
    r->parameter_list[i] = &r->parameters[i];
    return &r->values[i];
}

void kserve_response_set_bool(kserve_response *r, const char *key, bool value)
{
    Inference__InferParameter *p = add_parameter(r, key);
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
    p->bool_param = value;
}

void kserve_response_set_text(kserve_response *r, const char *key, const strbuf *text)
{
    Inference__InferParameter *p = add_parameter(r, key);
    p->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    p->string_param = call_bytes(text->data, text->size);
}

void kserve_response_destroy(kserve_response *r) { strbuf_destroy(&r->bytes); }

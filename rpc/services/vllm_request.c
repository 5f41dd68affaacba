/* Converts VllmEngine's messages into engine requests. */
#include "rpc/services/vllm.h"

static status refuse_named(const char *name, error *err)
{
    return error_set(err, STATUS_UNSUPPORTED, "%s: not supported", name);
}

/* ---- fields refused by name ------------------------------------------------------------------ */

static status refuse_unsupported(const Vllm__Grpc__Engine__GenerateRequest *m, error *err)
{
    const struct {
        bool given;
        const char *name;
    } fields[] = {
        {m->mm_inputs != NULL, "mm_inputs"},
        {m->n_media_refs > 0, "media_refs"},
        {m->n_extra_mm_inputs > 0, "extra_mm_inputs"},
        {m->kv_transfer_params != NULL, "kv_transfer_params"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].given) return refuse_named(fields[i].name, err);
    if (m->data_parallel_rank_opt_case && m->data_parallel_rank != 0)
        return error_set(err, STATUS_INVALID, "data_parallel_rank: there is only rank 0");
    return STATUS_IS_OK;
}

/* ---- the form of the answer ------------------------------------------------------------------ */

/* The texts as a JSON array. */
static status put_choices(const Vllm__Grpc__Engine__ChoiceConstraint *m, strbuf *out, error *err)
{
    strbuf_putc(out, '[');
    for (size_t i = 0; i < m->n_choices; i++) {
        const ProtobufCBinaryData text = m->choices[i];
        if (!utf8_valid(text.data, text.len))
            return error_set(err, STATUS_INVALID, "sampling_params.choice[%zu]: is not UTF-8", i);
        if (i) strbuf_putc(out, ',');
        strbuf_json_string(out, text.len ? (const char *)text.data : "", text.len);
    }
    strbuf_putc(out, ']');
    if (out->failed) return error_set(err, STATUS_NO_MEMORY, "sampling_params.choice: no memory");
    return STATUS_IS_OK;
}

static status set_choices(const Vllm__Grpc__Engine__ChoiceConstraint *m, engine_request *r,
                          error *err)
{
    strbuf list = {0};
    status s = put_choices(m, &list, err);
    if (status_ok(s))
        s = engine_request_set_form(r, "choice", GRAMMAR_CHOICE, list.data, list.size, err);
    strbuf_destroy(&list);
    return s;
}

static status set_text(engine_request *r, const char *name, grammar_kind kind,
                       ProtobufCBinaryData text, error *err)
{
    if (!utf8_valid(text.data, text.len))
        return error_set(err, STATUS_INVALID, "sampling_params.%s: is not UTF-8", name);
    return engine_request_set_form(r, name, kind, (const char *)text.data, text.len, err);
}

static status read_constraint(const Vllm__Grpc__Engine__SamplingParams *m, engine_request *r,
                              error *err)
{
    switch (m->constraint_case) {
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA:
        return set_text(r, "json_schema", GRAMMAR_JSON_SCHEMA, m->json_schema, err);
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX:
        return set_text(r, "regex", GRAMMAR_REGEX, m->regex, err);
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR:
        return set_text(r, "grammar", GRAMMAR_GBNF, m->grammar, err);
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT:
        if (!m->json_object) return STATUS_IS_OK;
        return engine_request_set_form(r, "json_object", GRAMMAR_JSON_OBJECT, "", 0, err);
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE:
        return set_choices(m->choice, r, err);
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG:
        return refuse_named("sampling_params.structural_tag", err);
    default: return STATUS_IS_OK;
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

static status read_sampling(const Vllm__Grpc__Engine__SamplingParams *m, engine_request *r,
                            error *err)
{
    static const char bias_name[] = "sampling_params.logit_bias";
    RETURN_IF_ERROR(field_rows("sampling_params.", &m->base, r, err));
    RETURN_IF_ERROR(read_constraint(m, r, err));
    RETURN_IF_ERROR(field_stops("sampling_params.stop", m->stop, m->n_stop, r, err));
    RETURN_IF_ERROR(field_ids("sampling_params.stop_token_ids", m->stop_token_ids,
                              m->n_stop_token_ids, &r->stop_token_ids, &r->n_stop_token_ids, err));
    if (m->truncate_prompt_tokens_opt_case) r->truncate_prompt_tokens = m->truncate_prompt_tokens;
    if (m->truncate_prompt_tokens_opt_case && r->truncate_prompt_tokens == 0)
        return error_set(err, STATUS_INVALID,
                         "sampling_params.truncate_prompt_tokens: must be 1 or more, or -1");
    if (m->n_logit_bias == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(field_bias_begin(m->n_logit_bias, r, err));
    for (size_t i = 0; i < m->n_logit_bias; i++) {
        const Vllm__Grpc__Engine__SamplingParams__LogitBiasEntry *bias = m->logit_bias[i];
        RETURN_IF_ERROR(field_bias_add(bias_name, bias->key, bias->value, r, err));
    }
    return field_bias_end(bias_name, r, err);
}

/* ---- requests -------------------------------------------------------------------------------- */

static status read_input(const Vllm__Grpc__Engine__GenerateRequest *m, engine_request *r,
                         error *err)
{
    switch (m->input_case) {
    case VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED:
        return field_ids("tokenized.input_ids", m->tokenized->input_ids, m->tokenized->n_input_ids,
                         &r->prompt_token_ids, &r->n_prompt_token_ids, err);
    case VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT:
        return field_prompt("text", m->text, r, err);
    default:
        return error_set(err, STATUS_INVALID, "input: one of tokenized and text must be given");
    }
}

static status read_transfer(const Vllm__Grpc__Engine__GenerateRequest *m, engine_request *r,
                            error *err)
{
    static const char name[] = "kv_transfer_params_json";
    json_t *params = NULL;
    if (!m->kv_transfer_params_json_opt_case) return STATUS_IS_OK;
    RETURN_IF_ERROR(field_json(name, m->kv_transfer_params_json, JSON_OBJECT, &params, err));
    status st =
        params ? engine_request_read_transfer(r, "request", name, params, err) : STATUS_IS_OK;
    json_decref(params);
    if (status_ok(st) && r->hands_over && m->stream)
        return error_set(err, STATUS_INVALID, "%s: do_remote_decode: stream must be false", name);
    return st;
}

status vllm_request_of(const service *s, const Vllm__Grpc__Engine__GenerateRequest *m,
                       const char *retention, size_t n_retention, engine_request *out, error *err)
{
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(refuse_unsupported(m, err));
    RETURN_IF_ERROR(read_input(m, out, err));
    if (m->sampling_params) RETURN_IF_ERROR(read_sampling(m->sampling_params, out, err));
    RETURN_IF_ERROR(read_transfer(m, out, err));
    return field_retention("octavo-retention", call_bytes(retention, n_retention), &out->retention,
                           err);
}

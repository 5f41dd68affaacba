/* Converts VllmEngine's messages into engine requests. */
#include "rpc/services/vllm.h"

static status refuse_named(const char *name, error *err)
{
    return error_set(err, STATUS_UNSUPPORTED, "%s: not supported", name);
}

/* ---- fields refused by name ------------------------------------------------------------------ */

static status refuse_constraint(const Vllm__Grpc__Engine__SamplingParams *m, error *err)
{
    static const char *const names[] = {
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA] =
            "sampling_params.json_schema",
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX] = "sampling_params.regex",
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR] = "sampling_params.grammar",
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG] =
            "sampling_params.structural_tag",
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT] =
            "sampling_params.json_object",
        [VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE] = "sampling_params.choice",
    };
    return m->constraint_case ? refuse_named(names[m->constraint_case], err) : STATUS_IS_OK;
}

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
        {m->kv_transfer_params_json_opt_case != 0, "kv_transfer_params_json"},
        {m->sampling_params && m->sampling_params->truncate_prompt_tokens_opt_case,
         "sampling_params.truncate_prompt_tokens"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].given) return refuse_named(fields[i].name, err);
    if (m->data_parallel_rank_opt_case && m->data_parallel_rank != 0)
        return error_set(err, STATUS_INVALID, "data_parallel_rank: there is only rank 0");
    return m->sampling_params ? refuse_constraint(m->sampling_params, err) : STATUS_IS_OK;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static status read_sampling(const Vllm__Grpc__Engine__SamplingParams *m, engine_request *r,
                            error *err)
{
    static const char bias_name[] = "sampling_params.logit_bias";
    RETURN_IF_ERROR(field_rows("sampling_params.", &m->base, r, err));
    RETURN_IF_ERROR(field_stops("sampling_params.stop", m->stop, m->n_stop, r, err));
    RETURN_IF_ERROR(field_ids("sampling_params.stop_token_ids", m->stop_token_ids,
                              m->n_stop_token_ids, &r->stop_token_ids, &r->n_stop_token_ids, err));
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

status vllm_request_of(const service *s, const Vllm__Grpc__Engine__GenerateRequest *m,
                       const char *retention, size_t n_retention, engine_request *out, error *err)
{
    engine_request_init(out, &s->o.model.defaults);
    RETURN_IF_ERROR(refuse_unsupported(m, err));
    RETURN_IF_ERROR(read_input(m, out, err));
    if (m->sampling_params) RETURN_IF_ERROR(read_sampling(m->sampling_params, out, err));
    return field_json("octavo-retention", call_bytes(retention, n_retention), JSON_OBJECT,
                      &out->retention, err);
}

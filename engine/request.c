/* A request's fields: defaults, copies, limits. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

void engine_request_init(engine_request *r, const engine_defaults *defaults)
{
    *r = (engine_request){
        .max_tokens = defaults->max_tokens,
        .n = 1,
        .temperature = defaults->temperature,
        .top_p = defaults->top_p,
        .min_p = defaults->min_p,
        .top_k = defaults->top_k,
        .repetition_penalty = defaults->repetition_penalty,
        .logprobs = -1,
        .skip_special_tokens = true,
        .add_special_tokens = true,
    };
}

void engine_request_destroy(engine_request *r)
{
    free(r->prompt);
    json_decref(r->messages);
    json_decref(r->tools);
    free(r->prompt_token_ids);
    for (uint32_t i = 0; i < r->n_stop; i++) free(r->stop[i]);
    free(r->stop_token_ids);
    free(r->bias_ids);
    free(r->bias);
    free(r->cache_salt);
    json_decref(r->retention);
    *r = (engine_request){0};
}

/* NULL for nothing to copy; *ok turns false when memory is out. */
static void *copy_bytes(const void *from, size_t bytes, bool *ok)
{
    if (!from || bytes == 0) return NULL;
    void *copy = malloc(bytes);
    if (!copy) {
        *ok = false;
        return NULL;
    }
    return memcpy(copy, from, bytes);
}

/* jansson's counts are not atomic, so another thread needs a tree of its own. */
static json_t *copy_json(const json_t *from, bool *ok)
{
    json_t *copy = from ? json_deep_copy(from) : NULL;
    if (from && !copy) *ok = false;
    return copy;
}

status engine_request_copy(const engine_request *from, engine_request *to)
{
    bool ok = true;
    *to = *from;
    to->prompt = from->prompt ? copy_bytes(from->prompt, from->prompt_bytes + 1, &ok) : NULL;
    to->messages = copy_json(from->messages, &ok);
    to->tools = copy_json(from->tools, &ok);
    to->prompt_token_ids =
        copy_bytes(from->prompt_token_ids, from->n_prompt_token_ids * sizeof(uint32_t), &ok);
    for (uint32_t i = 0; i < from->n_stop; i++)
        to->stop[i] = copy_bytes(from->stop[i], strlen(from->stop[i]) + 1, &ok);
    to->stop_token_ids =
        copy_bytes(from->stop_token_ids, from->n_stop_token_ids * sizeof(uint32_t), &ok);
    to->bias_ids = copy_bytes(from->bias_ids, from->n_bias * sizeof(uint32_t), &ok);
    to->bias = copy_bytes(from->bias, from->n_bias * sizeof(float), &ok);
    to->cache_salt =
        from->cache_salt ? copy_bytes(from->cache_salt, strlen(from->cache_salt) + 1, &ok) : NULL;
    to->retention = copy_json(from->retention, &ok);
    if (ok) return STATUS_IS_OK;
    engine_request_destroy(to);
    return status_make(STATUS_NO_MEMORY, "request");
}

static bool within(float v, float min, float max)
{
    return v >= min && v <= max;
} /* false for NaN */

/* What no front end may let through, by field. */
status engine_request_check(const engine_request *r, const backend_info *info, bool has_template,
                            error *err)
{
    int sources = (r->prompt != NULL) + (r->messages != NULL) + (r->prompt_token_ids != NULL);
    if (sources != 1)
        return error_set(err, STATUS_INVALID,
                         "one of prompt, messages and prompt_token_ids must be given (%d are)",
                         sources);
    if (r->messages && !has_template)
        return error_set(err, STATUS_UNSUPPORTED, "messages: this model has no chat template");
    if (r->prompt_token_ids && r->n_prompt_token_ids == 0)
        return error_set(err, STATUS_INVALID, "prompt_token_ids: has no tokens");
    for (uint32_t i = 0; i < r->n_prompt_token_ids; i++)
        if (r->prompt_token_ids[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID,
                             "prompt_token_ids[%u]: %u is outside the vocabulary (%u)", i,
                             r->prompt_token_ids[i], info->vocab_size);
    if (r->n < 1 || r->n > ENGINE_N_MAX || r->n > info->max_seqs)
        return error_set(err, STATUS_INVALID, "n: %u is not in 1 .. %u", r->n,
                         info->max_seqs < ENGINE_N_MAX ? info->max_seqs : ENGINE_N_MAX);
    if (!within(r->temperature, 0, 100))
        return error_set(err, STATUS_INVALID, "temperature: must be >= 0");
    if (!(r->top_p > 0) || !within(r->top_p, 0, 1))
        return error_set(err, STATUS_INVALID, "top_p: must be in (0, 1]");
    if (!within(r->min_p, 0, 1)) return error_set(err, STATUS_INVALID, "min_p: must be in [0, 1]");
    if (r->top_k < -1) return error_set(err, STATUS_INVALID, "top_k: must be -1 or more");
    if (!within(r->presence_penalty, -2, 2))
        return error_set(err, STATUS_INVALID, "presence_penalty: must be in [-2, 2]");
    if (!within(r->frequency_penalty, -2, 2))
        return error_set(err, STATUS_INVALID, "frequency_penalty: must be in [-2, 2]");
    if (!(r->repetition_penalty > 0) || !within(r->repetition_penalty, 0, 2))
        return error_set(err, STATUS_INVALID, "repetition_penalty: must be in (0, 2]");
    if (r->logprobs < -1 || r->logprobs > SAMPLE_LOGPROBS_MAX)
        return error_set(err, STATUS_INVALID, "logprobs: must be in 0 .. %d", SAMPLE_LOGPROBS_MAX);
    for (uint32_t i = 0; i < r->n_stop_token_ids; i++)
        if (r->stop_token_ids[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID,
                             "stop_token_ids[%u]: %u is outside the vocabulary (%u)", i,
                             r->stop_token_ids[i], info->vocab_size);
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (r->bias_ids[i] >= info->vocab_size || !within(r->bias[i], -100, 100))
            return error_set(err, STATUS_INVALID,
                             "logit_bias: token %u: ids are below %u, values in [-100, 100]",
                             r->bias_ids[i], info->vocab_size);
    if (r->max_tokens && r->min_tokens > r->max_tokens)
        return error_set(err, STATUS_INVALID, "min_tokens: %u is more than max_tokens %u",
                         r->min_tokens, r->max_tokens);
    return STATUS_IS_OK;
}

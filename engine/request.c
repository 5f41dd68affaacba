/* Defaults, copies and limits of a request's fields. */
#include "engine/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void engine_request_init(engine_request *r, const engine_defaults *defaults)
{
    *r = (engine_request){
#define FIELD(kind, name, initial, ...) .name = initial,
#include "engine/request_fields.inc"
    };
}

void engine_request_destroy(engine_request *r)
{
    free(r->prompt);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->chat_template_kwargs);
    free(r->chat_template);
    free(r->prompt_token_ids);
    for (uint32_t i = 0; i < r->n_stop; i++) free(r->stop[i]);
    free(r->stop_token_ids);
    free(r->bias_ids);
    free(r->bias);
    free(r->allowed_token_ids);
    json_decref(r->bad_words);
    form_destroy(&r->form);
    free(r->cache_salt);
    free(r->session);
    free(r->identity);
    json_decref(r->retention);
    json_decref(r->retrieval);
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

static char *copy_text(const char *from, bool *ok)
{
    return from ? copy_bytes(from, strlen(from) + 1, ok) : NULL;
}

/* jansson's counts are not atomic, so another thread needs a tree of its own. */
static json_t *copy_json(const json_t *from, bool *ok)
{
    json_t *copy = from ? json_copy_whole(from) : NULL;
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
    to->chat_template_kwargs = copy_json(from->chat_template_kwargs, &ok);
    to->chat_template = copy_text(from->chat_template, &ok);
    to->prompt_token_ids =
        copy_bytes(from->prompt_token_ids, from->n_prompt_token_ids * sizeof(uint32_t), &ok);
    for (uint32_t i = 0; i < from->n_stop; i++) to->stop[i] = copy_text(from->stop[i], &ok);
    to->stop_token_ids =
        copy_bytes(from->stop_token_ids, from->n_stop_token_ids * sizeof(uint32_t), &ok);
    to->bias_ids = copy_bytes(from->bias_ids, from->n_bias * sizeof(uint32_t), &ok);
    to->bias = copy_bytes(from->bias, from->n_bias * sizeof(float), &ok);
    to->allowed_token_ids =
        copy_bytes(from->allowed_token_ids, from->n_allowed_token_ids * sizeof(uint32_t), &ok);
    to->bad_words = copy_json(from->bad_words, &ok);
    ok = form_copy(&from->form, &to->form) && ok;
    to->cache_salt = copy_text(from->cache_salt, &ok);
    to->session = copy_text(from->session, &ok);
    to->identity = copy_text(from->identity, &ok);
    to->retention = copy_json(from->retention, &ok);
    to->retrieval = copy_json(from->retrieval, &ok);
    if (ok) return STATUS_IS_OK;
    engine_request_destroy(to);
    return status_make(STATUS_NO_MEMORY, "request");
}

/* ---- what no front end may let through, by field --------------------------------------------- */

status engine_check_tools(const engine_request *r, const chat_template *chat, error *err)
{
    if (json_array_size(r->tools) == 0 || tmpl_uses(chat, "tools")) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "tools: this model's chat template does not show them to the model");
}

static status check_template_fields(const engine_request *r, error *err)
{
    const char *field = r->chat_template            ? "chat_template"
                        : r->chat_template_kwargs   ? "chat_template_kwargs"
                        : r->continue_final_message ? "continue_final_message"
                        : !r->add_generation_prompt ? "add_generation_prompt"
                                                    : NULL;
    if (r->chat_template_kwargs && !json_is_object(r->chat_template_kwargs))
        return error_set(err, STATUS_INVALID, "chat_template_kwargs: must be an object");
    if (r->messages || !field) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: is for requests with messages", field);
}

static status check_source(const engine_request *r, const backend_info *info,
                           const chat_template *chat, error *err)
{
    int sources = (r->prompt != NULL) + (r->messages != NULL) + (r->prompt_token_ids != NULL);
    if (sources != 1)
        return error_set(err, STATUS_INVALID,
                         "one of prompt, messages and prompt_token_ids must be given (%d are)",
                         sources);
    if (r->messages && !chat && !r->chat_template)
        return error_set(err, STATUS_UNSUPPORTED, "messages: this model has no chat template");
    if (r->messages && !json_is_array(r->messages))
        return error_set(err, STATUS_INVALID, "messages: must be a list of messages");
    if (r->tools && !json_is_array(r->tools))
        return error_set(err, STATUS_INVALID, "tools: must be a list of tools");
    if (r->messages && !r->chat_template) RETURN_IF_ERROR(engine_check_tools(r, chat, err));
    RETURN_IF_ERROR(check_template_fields(r, err));
    if (r->retention && !json_is_object(r->retention))
        return error_set(err, STATUS_INVALID, "retention: must be an object");
    if (r->retrieval && !json_is_object(r->retrieval))
        return error_set(err, STATUS_INVALID, "retrieval: must be an object");
    if (r->prompt_token_ids && r->n_prompt_token_ids == 0)
        return error_set(err, STATUS_INVALID, "prompt_token_ids: has no tokens");
    for (uint32_t i = 0; i < r->n_prompt_token_ids; i++)
        if (r->prompt_token_ids[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID,
                             "prompt_token_ids[%u]: %u is outside the vocabulary (%u)", i,
                             r->prompt_token_ids[i], info->vocab_size);
    return STATUS_IS_OK;
}

static double value_of(const engine_field *f, const engine_request *r)
{
    const void *member = (const char *)r + f->offset;
    switch (f->kind) {
    case ENGINE_FIELD_FLOAT: return *(const float *)member;
    case ENGINE_FIELD_BOOL: return *(const bool *)member;
    case ENGINE_FIELD_INT:
    case ENGINE_FIELD_TOP:
    case ENGINE_FIELD_LOGPROBS: return *(const int32_t *)member;
    case ENGINE_FIELD_UINT:
    case ENGINE_FIELD_LENGTH: return *(const uint32_t *)member;
    case ENGINE_FIELD_SEED: return (double)*(const uint64_t *)member;
    }
    return NAN;
}

static status check_range(const engine_field *f, const engine_request *r, error *err)
{
    double value = value_of(f, r), min = f->range.min, max = f->range.max;
    bool can_be_absent = f->kind == ENGINE_FIELD_TOP || f->kind == ENGINE_FIELD_LOGPROBS;
    if (engine_field_in_range(f, value) || (can_be_absent && value == -1)) return STATUS_IS_OK;
    if (isinf(max)) return error_set(err, STATUS_INVALID, "%s: must be %g or more", f->name, min);
    if (f->kind != ENGINE_FIELD_FLOAT)
        return error_set(err, STATUS_INVALID, "%s: must be in %g .. %g", f->name, min, max);
    return error_set(err, STATUS_INVALID, "%s: must be in %c%g, %g]", f->name,
                     f->range.above ? '(' : '[', min, max);
}

static status check_ranges(const engine_request *r, error *err)
{
    for (size_t i = 0; i < ENGINE_FIELDS; i++)
        RETURN_IF_ERROR(check_range(&engine_fields()[i], r, err));
    return STATUS_IS_OK;
}

static status check_lengths(const engine_request *r, const backend_info *info, error *err)
{
    if (r->n < 1 || r->n > ENGINE_N_MAX || r->n > info->max_seqs)
        return error_set(err, STATUS_INVALID, "n: %u is not in 1 .. %u", r->n,
                         info->max_seqs < ENGINE_N_MAX ? info->max_seqs : ENGINE_N_MAX);
    if (r->truncate_prompt_tokens < -1)
        return error_set(err, STATUS_INVALID, "truncate_prompt_tokens: must be 1 or more, or -1");
    if (r->max_tokens && r->min_tokens > r->max_tokens && !r->hands_over)
        return error_set(err, STATUS_INVALID, "min_tokens: %u is more than max_tokens %u",
                         r->min_tokens, r->max_tokens);
    if (!r->score_only) return STATUS_IS_OK;
    if (r->prompt_logprobs < 0 && !r->pooling)
        return error_set(err, STATUS_INVALID,
                         "max_tokens: must be at least 1, or 0 with prompt_logprobs");
    if (r->max_tokens || r->min_tokens)
        return error_set(err, STATUS_INVALID, "%s: must be 0 when the prompt is scored only",
                         r->max_tokens ? "max_tokens" : "min_tokens");
    return STATUS_IS_OK;
}

static status check_stops(const engine_request *r, const backend_info *info, error *err)
{
    if (r->n_stop > ENGINE_STOPS_MAX)
        return error_set(err, STATUS_LIMIT, "stop: more than %d strings", ENGINE_STOPS_MAX);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t n = r->stop[i] ? strnlen(r->stop[i], ENGINE_STOP_BYTES_MAX + 1) : 0;
        if (n == 0 || n > ENGINE_STOP_BYTES_MAX)
            return error_set(err, STATUS_INVALID, "stop: strings have 1 to %d bytes",
                             ENGINE_STOP_BYTES_MAX);
    }
    /* Without a limit, a million times the same id would be copied with each request. */
    if (r->n_stop_token_ids > info->vocab_size)
        return error_set(err, STATUS_LIMIT,
                         "stop_token_ids: %u ids are more than the vocabulary has (%u)",
                         r->n_stop_token_ids, info->vocab_size);
    for (uint32_t i = 0; i < r->n_stop_token_ids; i++)
        if (r->stop_token_ids[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID,
                             "stop_token_ids[%u]: %u is outside the vocabulary (%u)", i,
                             r->stop_token_ids[i], info->vocab_size);
    return STATUS_IS_OK;
}

static status check_bias(const engine_request *r, const backend_info *info, error *err)
{
    if (r->n_bias > info->vocab_size)
        return error_set(err, STATUS_INVALID, "logit_bias: has more entries than the vocabulary");
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (r->bias_ids[i] >= info->vocab_size || !(r->bias[i] >= -100 && r->bias[i] <= 100))
            return error_set(err, STATUS_INVALID,
                             "logit_bias: token %u: ids are below %u, values in [-100, 100]",
                             r->bias_ids[i], info->vocab_size);
    return STATUS_IS_OK;
}

static status check_bad_words(const engine_request *r, error *err)
{
    size_t n = json_array_size(r->bad_words);
    if (r->bad_words && !json_is_array(r->bad_words))
        return error_set(err, STATUS_INVALID, "bad_words: must be a list of strings");
    if (n > ENGINE_BAD_WORDS_MAX)
        return error_set(err, STATUS_LIMIT, "bad_words: more than %d strings",
                         ENGINE_BAD_WORDS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_array_get(r->bad_words, i);
        size_t bytes = json_string_length(text);
        if (bytes == 0 || bytes > ENGINE_STOP_BYTES_MAX)
            return error_set(err, STATUS_INVALID,
                             "bad_words[%zu]: must be a string of 1 to %d bytes", i,
                             ENGINE_STOP_BYTES_MAX);
    }
    return STATUS_IS_OK;
}

/* Which tokens may be drawn: by a form, a list, or texts that must not be. */
static status check_masks(const engine_request *r, const backend_info *info, error *err)
{
    const char *field = r->form.given          ? r->form.field
                        : r->allowed_token_ids ? "allowed_token_ids"
                                               : "bad_words";
    RETURN_IF_ERROR(check_bad_words(r, err));
    if (!r->form.given && !r->allowed_token_ids && json_array_size(r->bad_words) == 0)
        return STATUS_IS_OK;
    if (r->form.given && r->allowed_token_ids)
        return error_set(err, STATUS_UNSUPPORTED, "allowed_token_ids: cannot be combined with %s",
                         field);
    if (!info->masks)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: the backend '%s' cannot keep tokens from being drawn", field,
                         info->name);
    if (!r->allowed_token_ids) return STATUS_IS_OK;
    if (r->n_allowed_token_ids < 1 || r->n_allowed_token_ids > info->vocab_size)
        return error_set(err, STATUS_INVALID, "allowed_token_ids: must have 1 to %u ids",
                         info->vocab_size);
    for (uint32_t i = 0; i < r->n_allowed_token_ids; i++)
        if (r->allowed_token_ids[i] >= info->vocab_size)
            return error_set(err, STATUS_INVALID,
                             "allowed_token_ids[%u]: %u is outside the vocabulary (%u)", i,
                             r->allowed_token_ids[i], info->vocab_size);
    return STATUS_IS_OK;
}

/* An id stands in the path that deletes it, where control characters are refused. */
static status check_session(const engine_request *r, error *err)
{
    size_t n = r->session ? strnlen(r->session, ENGINE_SESSION_BYTES_MAX + 1) : 1;
    if (n < 1 || n > ENGINE_SESSION_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "session: must have 1 to %d bytes",
                         ENGINE_SESSION_BYTES_MAX);
    for (const char *c = r->session; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return error_set(err, STATUS_INVALID, "session: holds a control character, 0x%02x",
                             (unsigned)*c);
    return STATUS_IS_OK;
}

static status check_pooling(const engine_request *r, const backend_info *info, error *err)
{
    if (!r->pooling) return STATUS_IS_OK;
    if (r->pooling > POOLING_SUM || !r->score_only)
        return error_set(err, STATUS_INVALID, "pooling: a request that pools generates nothing");
    if (info->hidden == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "pooling: the backend '%s' gives no hidden states", info->name);
    if (r->session)
        return error_set(err, STATUS_UNSUPPORTED, "pooling: cannot be combined with session");
    return STATUS_IS_OK;
}

status engine_request_check(const engine_request *r, const backend_info *info,
                            const chat_template *chat, error *err)
{
    RETURN_IF_ERROR(check_source(r, info, chat, err));
    RETURN_IF_ERROR(check_lengths(r, info, err));
    RETURN_IF_ERROR(check_ranges(r, err));
    RETURN_IF_ERROR(check_stops(r, info, err));
    RETURN_IF_ERROR(check_session(r, err));
    RETURN_IF_ERROR(check_masks(r, info, err));
    RETURN_IF_ERROR(check_pooling(r, info, err));
    return check_bias(r, info, err);
}

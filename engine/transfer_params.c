/* vLLM's kv_transfer_params of a request. Routers send what the other server's answer had, beside
 * members of their own, so that unknown members are left out. */
#include "engine/internal.h"

#include <string.h>

typedef struct params_place {
    const char *where, *field;
    const json_t *value;
} params_place;

static status refuse_member(const params_place *p, const char *member, const char *what, error *err)
{
    return error_set(err, STATUS_INVALID, "%s: %s: %s: %s", p->where, p->field, member, what);
}

static status read_flag(const params_place *p, const char *member, bool *out, error *err)
{
    const json_t *v = json_object_get(p->value, member);
    *out = json_is_true(v);
    if (!v || json_is_null(v) || json_is_boolean(v)) return STATUS_IS_OK;
    return refuse_member(p, member, "must be true or false", err);
}

static status read_host(const params_place *p, engine_request *r, error *err)
{
    const json_t *v = json_object_get(p->value, "remote_host");
    const char *host = json_word(v);
    size_t n = json_string_length(v);
    if (!host || n == 0 || n >= sizeof r->transfer_host)
        return refuse_member(p, "remote_host", "must be the name of a host", err);
    memcpy(r->transfer_host, host, n + 1);
    return STATUS_IS_OK;
}

static status read_port(const params_place *p, engine_request *r, error *err)
{
    const json_t *v = json_object_get(p->value, "remote_port");
    json_int_t port = json_integer_value(v);
    if (!json_is_integer(v) || port < 1 || port > UINT16_MAX)
        return refuse_member(p, "remote_port", "must be in 1 .. 65535", err);
    r->transfer_port = (uint32_t)port;
    return STATUS_IS_OK;
}

static status read_id(const params_place *p, engine_request *r, error *err)
{
    const json_t *v = json_object_get(p->value, "remote_request_id");
    const char *id = json_is_string(v) ? json_string_value(v) : "";
    size_t n = strspn(id, "0123456789abcdef");
    if (n != ENGINE_TRANSFER_ID_BYTES - 1 || json_string_length(v) != n)
        return refuse_member(p, "remote_request_id", "must be what the other server answered", err);
    memcpy(r->transfer_id, id, n + 1);
    return STATUS_IS_OK;
}

status engine_request_read_transfer(engine_request *r, const char *where, const char *field,
                                    const json_t *value, error *err)
{
    const params_place p = {where, field, value};
    if (!json_is_object(value))
        return error_set(err, STATUS_INVALID, "%s: %s: must be an object", where, field);
    RETURN_IF_ERROR(read_flag(&p, "do_remote_decode", &r->hands_over, err));
    RETURN_IF_ERROR(read_flag(&p, "do_remote_prefill", &r->takes_over, err));
    if (!r->takes_over) return STATUS_IS_OK;
    RETURN_IF_ERROR(read_host(&p, r, err));
    RETURN_IF_ERROR(read_port(&p, r, err));
    return read_id(&p, r, err);
}

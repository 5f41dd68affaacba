/* The configuration: the JSON of vLLM's --kv-events-config. */
#include "rpc/zmq/internal.h"

#include <string.h>

static const char where[] = "kv-events-config";

enum { HWM_DEFAULT = 100000, HWM_MAX = 1000000, TOPIC_BYTES_MAX = 1024 };

/* Fields of vLLM's that mean something here, and one that has no meaning to choose. */
static const char *const fields[] = {"enable_kv_cache_events", "publisher", "endpoint",
                                     "replay_endpoint",        "topic",     "hwm"};

static status check_fields(const json_t *json, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            known |= strcmp(key, fields[i]) == 0;
        if (known || json_is_null(value)) continue;
        if (strcmp(key, "buffer_steps") == 0 || strcmp(key, "max_queue_size") == 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s.%s: the server decides how many events it keeps; leave it out",
                             where, key);
        return error_set(err, STATUS_INVALID, "%s.%.64s: is unknown", where, key);
    }
    return STATUS_IS_OK;
}

bool publisher_listens(const char *endpoint)
{
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strncmp(endpoint, "ipc://", 6) == 0;
}

static bool is_of_this_machine(const char *endpoint)
{
    static const char *const starts[] = {"ipc://", "tcp://127.",
                                         "tcp://localhost:", "tcp://[::1]:"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (strncmp(endpoint, starts[i], strlen(starts[i])) == 0) return true;
    return false;
}

static status check_endpoint(const char *key, const char *endpoint, bool listens, bool has_keys,
                             error *err)
{
    if (strncmp(endpoint, "tcp://", 6) != 0 && strncmp(endpoint, "ipc://", 6) != 0)
        return error_set(err, STATUS_INVALID, "%s.%s: '%.64s' must begin with tcp:// or ipc://",
                         where, key, endpoint);
    if (!has_keys || !listens || is_of_this_machine(endpoint)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s.%s: '%.64s' would show the requests of all API keys to everyone who can "
                     "connect: name ipc:// or this machine's loopback%s",
                     where, key, endpoint,
                     strcmp(key, "endpoint") == 0 ? ", or the reader's address to connect to" : "");
}

static status read_fields(publisher_config *c, bool has_keys, error *err)
{
    const char *kind = NULL;
    int64_t hwm = HWM_DEFAULT;
    RETURN_IF_ERROR(check_fields(c->json, err));
    RETURN_IF_ERROR(
        json_get_bool(c->json, where, "enable_kv_cache_events", false, &c->enabled, err));
    RETURN_IF_ERROR(json_get_string(c->json, where, "publisher", &kind, err));
    RETURN_IF_ERROR(json_get_string(c->json, where, "endpoint", &c->endpoint, err));
    RETURN_IF_ERROR(json_get_string(c->json, where, "replay_endpoint", &c->replay, err));
    RETURN_IF_ERROR(json_get_string(c->json, where, "topic", &c->topic, err));
    RETURN_IF_ERROR(json_get_int(c->json, where, "hwm", 1, HWM_MAX, HWM_DEFAULT, &hwm, err));
    c->hwm = (int)hwm;
    if (!c->endpoint) c->endpoint = "tcp://*:5557";
    if (!c->topic) c->topic = "";
    if (kind && strcmp(kind, "zmq") != 0 && strcmp(kind, "null") != 0)
        return error_set(err, STATUS_INVALID, "%s.publisher: '%.64s' is not zmq or null", where,
                         kind);
    if (kind && strcmp(kind, "null") == 0) c->enabled = false;
    if (strlen(c->topic) > TOPIC_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "%s.topic: has more than %d bytes", where,
                         TOPIC_BYTES_MAX);
    if (!c->enabled) return STATUS_IS_OK;
    bool listens = publisher_listens(c->endpoint);
    RETURN_IF_ERROR(check_endpoint("endpoint", c->endpoint, listens, has_keys, err));
    if (!c->replay) return STATUS_IS_OK;
    return check_endpoint("replay_endpoint", c->replay, true, has_keys, err);
}

status publisher_config_read(const char *json, bool has_keys, publisher_config *out, error *err)
{
    *out = (publisher_config){0};
    RETURN_IF_ERROR(json_read_argument(where, json, strlen(json), &out->json, err));
    if (!json_is_object(out->json))
        return error_set(err, STATUS_INVALID, "%s: must be a JSON object", where);
    return read_fields(out, has_keys, err);
}

void publisher_config_destroy(publisher_config *c)
{
    json_decref(c->json);
    *c = (publisher_config){0};
}

status publisher_check(const char *json, bool has_keys, error *err)
{
    publisher_config config;
    status st = publisher_config_read(json, has_keys, &config, err);
    publisher_config_destroy(&config);
    return st;
}

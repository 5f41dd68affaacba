/* Reads a model_config from JSON that is already parsed (private to model/: model_config_load,
 * the inspector and the fuzzer use it). */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "model/model.h"

/* A larger config.json or generation_config.json is refused unread. */
enum { MODEL_JSON_BYTES_MAX = 4 << 20 };

/* An f32 holds every position up to this one exactly. */
enum { MODEL_POSITIONS_MAX = 1 << 24 };

/* Puts "key=value" (a JSON value) into config, which must be an object. The key must be one that
 * config has or that a reader here knows: a misspelt key would otherwise silently do nothing. */
status model_config_override(json_t *config, const char *assignment, error *err);

/* `where` names config in messages, and generation_where names generation, which may be NULL. */
status model_config_read(const json_t *config, const char *where, const json_t *generation,
                         const char *generation_where, model_config *out, error *err);

/* Reads "rope_parameters" or "rope_scaling", and the top-level keys that belong to them
 * (config_rope.c). c must have its shape already. */
status model_config_read_rope(const json_t *json, const char *where, model_config *c, error *err);

#endif

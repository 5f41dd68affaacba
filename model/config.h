/* Reading a model_config out of JSON that is already parsed (private to model/: model_config_load,
 * the inspector and the fuzzer use it). */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "model/model.h"

/* config.json and the like: larger is not a configuration. */
enum { MODEL_JSON_BYTES_MAX = 4 << 20 };

/* Beyond, an f32 no longer holds every position. */
enum { MODEL_POSITIONS_MAX = 1 << 24 };

/* Puts "key=value" (a JSON value) into config, which must be an object. Only keys that config has
 * or that a reader here knows: a misspelt one would otherwise change nothing in silence. */
status model_config_override(json_t *config, const char *assignment, error *err);

/* where names config in messages, generation_where generation (which may be NULL). */
status model_config_read(const json_t *config, const char *where, const json_t *generation,
                         const char *generation_where, model_config *out, error *err);

/* "rope_parameters" or "rope_scaling", and what stands beside them (config_rope.c). c has its shape
 * by then. */
status model_config_read_rope(const json_t *json, const char *where, model_config *c, error *err);

#endif

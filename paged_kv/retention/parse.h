/* Shared by the two halves of parsing: keys (parse.c) and compositions (check.c). */
#ifndef PAGED_KV_RETENTION_PARSE_H
#define PAGED_KV_RETENTION_PARSE_H

#include "paged_kv/retention/method.h"

/* A JSON object of a request: its "retention" or that one's "prefill". */
typedef struct parsing {
    const json_t *json;
    const char *where;
    const retention_preset *preset;
    const retention_limits *limits;
    bool nested;
} parsing;

/* Whether the object has a key. A null member counts as absent, as in all JSON of requests. */
bool has_member(const json_t *json, const char *key);
/* Lowers defaults to the model's positions. */
void fit_defaults(const parsing *p, retention_policy *policy);
/* Refuses an option and names the available ones. */
status refuse_option(const parsing *p, retention_part part, const char *value, uint32_t available,
                     error *err);
/* Checks that parts, budget and geometry fit each other. */
status check_composition(const parsing *p, const retention_policy *policy, error *err);
status check_growth(const parsing *p, const retention_policy *policy, error *err);

#endif

/* What the two halves of parsing share: keys (parse.c) and compositions (check.c). */
#ifndef PAGED_KV_RETENTION_PARSE_H
#define PAGED_KV_RETENTION_PARSE_H

#include "paged_kv/retention/method.h"

/* An object of a request: the "retention" itself, or its "prefill". */
typedef struct parsing {
    const json_t *json;
    const char *where;
    const retention_preset *preset;
    const retention_limits *limits;
    bool nested;
} parsing;

/* Says what there is instead. */
status refuse_choice(const parsing *p, retention_part part, const char *value, uint32_t available,
                     error *err);
/* Parts, budget and geometry go together. */
status check_composition(const parsing *p, const retention_policy *policy, error *err);
status check_growth(const parsing *p, const retention_policy *policy, error *err);

#endif

/* How command lines and requests write a policy in one word. */
#include "paged_kv/retention/retention.h"

#include "base/number.h"

#include <string.h>

/* "chunkkv:0.25" is {"method": "chunkkv", "ratio": 0.25}; "full", which has no ratio, is
 * {"method": "full"}. */
static status read_short(const char *name, const char *text, json_t **out, error *err)
{
    if (strcmp(text, "full") == 0) {
        *out = json_pack("{s:s}", "method", "full");
        return *out ? STATUS_IS_OK : json_refuse_word(name, text, err);
    }
    const char *colon = strrchr(text, ':');
    double ratio = 0;
    const char *end = colon ? number_read(colon + 1, &ratio) : NULL;
    if (!end || *end || colon == text || !(ratio > 0 && ratio <= 1))
        return error_set(
            err, STATUS_INVALID,
            "%s: '%.64s' must be METHOD:RATIO with a ratio in (0, 1], full, or a JSON object", name,
            text);
    *out = json_pack("{s:s%, s:f}", "method", text, (size_t)(colon - text), "ratio", ratio);
    return *out ? STATUS_IS_OK : json_refuse_word(name, text, err);
}

status retention_read_text(const char *name, const char *text, json_t **out, error *err)
{
    return *text == '{' ? json_read_argument(name, text, strlen(text), out, err)
                        : read_short(name, text, out, err);
}

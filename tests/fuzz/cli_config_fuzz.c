/* Property: a file of flags of any bytes is either read, into names and values without NULs whose
 * lines are in the file, or refused by one line that begins with the file's name. */
#include "cli/config.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > CONFIG_BYTES_MAX) return 0;
    config_file c;
    error err = {{0}};
    status s = config_parse("f", (const char *)data, size, &c, &err);
    if (!status_ok(s)) {
        FUZZ_CHECK(strncmp(err.text, "f: ", 3) == 0 && !strchr(err.text, '\n'));
        FUZZ_CHECK(c.settings.n == 0 && !c.settings.items);
        return 0;
    }
    for (size_t i = 0; i < c.settings.n; i++) {
        const arg_setting *setting = &c.settings.items[i];
        FUZZ_CHECK(setting->name && setting->value);
        FUZZ_CHECK(setting->line >= 1 && setting->line <= size + 1);
    }
    config_destroy(&c);
    return 0;
}

/* The API keys of `octavo serve`, and which prefixes they share. */
#include "cli/serve.h"

#include <string.h>

enum { KEY_FILE_BYTES_MAX = 1 << 20 };

static char *trim(char *line)
{
    static const char blanks[] = " \t\r";
    line += strspn(line, blanks);
    size_t n = strlen(line);
    while (n > 0 && strchr(blanks, line[n - 1])) line[--n] = '\0';
    return line;
}

/* Adds the keys of a file, which point into its text. A file without keys is refused, because it
 * would leave the server more open than its owner thinks. A line that is not one whole key is
 * refused, because a part of the line would be easier to guess. */
static status read_key_file(const char *flag, const char *path, char **text, arg_list *keys,
                            error *err)
{
    size_t size, before = keys->n, number = 0;
    if (!path) return STATUS_IS_OK;
    RETURN_IF_ERROR(file_read(path, KEY_FILE_BYTES_MAX, text, &size, err));
    if (memchr(*text, '\0', size))
        return error_set(err, STATUS_INVALID, "%s: %s holds a NUL", flag, path);
    for (char *next = *text; next;) {
        char *line = strsep(&next, "\n");
        line = trim(line);
        number++;
        if (!*line || *line == '#') continue;
        if (!rpc_key_is_valid(line))
            return error_set(err, STATUS_INVALID,
                             "%s: %s, line %zu: a key has 1 to 256 visible ASCII characters and no "
                             "blank",
                             flag, path, number);
        if (!arg_list_add(keys, line)) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    if (keys->n > before) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %s holds no key", flag, path);
}

status serve_read_keys(serve_flags *f, error *err)
{
    for (size_t i = 0; i < f->keys.n; i++)
        if (!rpc_key_is_valid(f->keys.items[i]))
            return error_set(err, STATUS_INVALID,
                             "--api-key: a key has 1 to 256 visible ASCII characters and no blank");
    RETURN_IF_ERROR(read_key_file("--api-key-file", f->key_file, &f->key_file_text, &f->keys, err));
    RETURN_IF_ERROR(read_key_file("--admin-key-file", f->admin_key_file, &f->admin_key_file_text,
                                  &f->admin_keys, err));
    for (size_t i = 0; i < f->keys.n; i++)
        for (size_t j = 0; j < f->admin_keys.n; j++)
            if (strcmp(f->keys.items[i], f->admin_keys.items[j]) == 0)
                return error_set(err, STATUS_INVALID,
                                 "--admin-key-file: its key number %zu is also an API key", j + 1);
    return STATUS_IS_OK;
}

/* Blocks on disk outlive the process, and the next one may have another key. So a key that is alone
 * keeps to its own prefixes, too, where there is a disk. */
serve_sharing serve_sharing_of(const serve_flags *f)
{
    size_t n_keys = f->keys.n + f->admin_keys.n;
    if (n_keys == 0) return SERVE_PREFIXES_OPEN;
    if (f->share_prefixes) return SERVE_PREFIXES_JOINED;
    return n_keys > 1 || f->disk_cache ? SERVE_PREFIXES_APART : SERVE_PREFIXES_JOINED;
}

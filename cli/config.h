/* Files of flags (--config): YAML, read by libyaml. The top is a mapping from names of flags to
 * values; a list gives a flag several, a switch takes true or false, and a mapping or a list within
 * a list becomes JSON text, as in `retention: {method: chunkkv, ratio: 0.25}`.
 *
 * A file has one document of at most CONFIG_BYTES_MAX bytes, nested at most CONFIG_DEPTH_MAX deep.
 * Anchors, aliases and tags are refused, and so are names that are given twice. Errors are one line
 * that begins with the file and the line in it. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/args.h"

enum { CONFIG_BYTES_MAX = 64 << 10, CONFIG_DEPTH_MAX = 16 };

typedef struct config_file {
    arg_settings settings; // owned, like their texts
} config_file;

status config_read(const char *path, config_file *out, error *err);
/* source names the text in errors; it is copied. */
status config_parse(const char *source, const char *text, size_t n, config_file *out, error *err);
void config_destroy(config_file *c);

#endif

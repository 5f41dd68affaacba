/* The part of `octavo inspect` that depends on the machine (private to cli/). */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "base/base.h"

/* Appends two lines: the size of the weights, and whether the model fits a CPU with this much
 * free memory, by the default flags. Reads the model's headers alone. */
void inspect_room(const char *path, uint64_t memory, strbuf *out);

#endif

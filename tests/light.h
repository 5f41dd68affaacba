/* Whether a long suite leaves out what teaches a sanitizer nothing new: CMakeLists.txt here and in
 * simt/ say which suites do, and under which sanitizer. A soak runs all of it. */
#ifndef TESTS_LIGHT_H
#define TESTS_LIGHT_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_light(void) { return getenv("OCTAVO_TESTS_LIGHT") && !getenv("OCTAVO_SOAK"); }

#endif

/* The arguments of a Python call as JSON (private to rpc/openai/tools). */
#ifndef RPC_OPENAI_TOOLS_PYTHON_H
#define RPC_OPENAI_TOOLS_PYTHON_H

#include "base/base.h"

/* Appends the JSON object of "(a=1, b=None)". Values are literals: strings without NUL, numbers,
 * True, False, None, lists, tuples and dicts. False for anything else; what was appended is to be
 * dropped. */
bool python_arguments(const char *text, size_t n, strbuf *out);

#endif

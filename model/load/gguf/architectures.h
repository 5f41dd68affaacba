/* The architectures of GGUF files that this build runs (private to model/load/gguf/). */
#ifndef MODEL_LOAD_GGUF_ARCHITECTURES_H
#define MODEL_LOAD_GGUF_ARCHITECTURES_H

#include "model/load/gguf/gguf.h"

typedef struct gguf_architecture {
    const char *name;         /* "general.architecture" */
    const char *transformers; /* the row of the family table */
    bool rotary_pairs;        /* rows of q and k lie in pairs: i beside i + head_dim / 2 */
} gguf_architecture;

/* Finds the row of the file's architecture. The error names an unsupported one. */
status gguf_architecture_of(const gguf *g, const gguf_architecture **out, error *err);

#endif

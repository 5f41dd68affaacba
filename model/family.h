/* The table of model families (private to model/). A family is a row here and at most one file: how
 * its config.json differs and what its tensors are called. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "model/model.h"

/* Which matrix a tensor is, and so where its rows go and how it is sliced over ranks. */
typedef enum tensor_role {
    TENSOR_EMBED,
    TENSOR_HEAD,
    TENSOR_NORM,
    TENSOR_ATTN_NORM,
    TENSOR_Q,
    TENSOR_K,
    TENSOR_V,
    TENSOR_O,
    TENSOR_FFN_NORM,
    TENSOR_GATE,
    TENSOR_UP,
    TENSOR_DOWN,
    TENSOR_ROLES
} tensor_role;

typedef struct model_family {
    const char *architecture; // config.json's architectures[0]
    /* Reads what is particular to the family out of config.json, after the common fields; NULL =
     * nothing. */
    status (*read_config)(const json_t *json, const char *where, model_config *c, error *err);
    const char *names[TENSOR_ROLES]; // printf pattern; %u is the layer
} model_family;

extern const model_family *const model_families[];
extern const size_t model_families_n;

#endif

/* The family table. A new family: one file in families/ that defines its row, one line here. */
#include "model/family.h"

#define FAMILIES(X)                                                                                \
    X(model_family_llama)                                                                          \
    X(model_family_mistral)                                                                        \
    X(model_family_mixtral)                                                                        \
    X(model_family_qwen2)                                                                          \
    X(model_family_qwen2_moe)                                                                      \
    X(model_family_qwen3)                                                                          \
    X(model_family_qwen3_moe)                                                                      \
    X(model_family_internlm2)                                                                      \
    X(model_family_phi3)                                                                           \
    X(model_family_gemma3)

#define DECLARE(row) extern const model_family row;
FAMILIES(DECLARE)

#define ENTRY(row) &row,
const model_family *const model_families[] = {FAMILIES(ENTRY)};
const size_t model_families_n = sizeof model_families / sizeof *model_families;

size_t model_family_count(void) { return model_families_n; }

const char *model_family_architecture(size_t i)
{
    return i < model_families_n ? model_families[i]->architecture : NULL;
}

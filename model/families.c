/* The table of model families: the rows of all files in families/, which the build finds. */
#include "model/families.gen.h" // MODEL_FAMILY_FILES, from the names of the files
#include "model/family.h"

#define DECLARE(file) extern const model_family *const model_families_##file[];
MODEL_FAMILY_FILES(DECLARE)

#define ENTRY(file) model_families_##file,
static const model_family *const *const files[] = {MODEL_FAMILY_FILES(ENTRY)};

const model_family *model_family_at(size_t i)
{
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (const model_family *const *row = files[f]; *row; row++)
            if (i-- == 0) return *row;
    return NULL;
}

size_t model_family_count(void)
{
    size_t n = 0;
    while (model_family_at(n)) n++;
    return n;
}

const char *model_family_architecture(size_t i)
{
    const model_family *family = model_family_at(i);
    return family ? family->architecture : NULL;
}
